"""`host.yaml`: read and checked against `host.schema.json`; every problem is reported at once, with file, line and key.

Paths in it are relative to the file's folder. Host functions are imported here, from `module:function`.
"""

import difflib
import importlib
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from vmhost.bytecode.fields import shown
from vmhost.bytecode.schema import validator
from vmhost.errors import ConfigurationError
from vmhost.limits import BreakerPolicy, Limits, Policy, TaskPolicy, byte_count, field_problem, seconds

_SCHEMA = Path(__file__).with_name("host.schema.json")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What `Host.from_file` needs; the fields are arguments of Host, and `load` the paths of bundles to load."""

    trust: object
    allow_unsigned: bool
    policy: Policy
    state: Path | None
    functions: dict
    load: tuple


def read_host_yaml(path):
    """The HostSettings that the file at `path` describes. ConfigurationError with all that is wrong with it."""
    path = Path(path)
    values, lines = _parse(path)
    problems = _Problems(path, lines)
    for error in validator(_SCHEMA).iter_errors(values):
        problems.add_schema_error(error)
    problems.stop()
    policy = _policy(values, problems)
    functions = {name: _function(name, target, problems) for name, target in values.get("functions", {}).items()}
    problems.stop()
    folder = path.parent
    return HostSettings(
        trust=folder / values["trust"] if "trust" in values else None,
        allow_unsigned=values.get("allow_unsigned", False),
        policy=policy,
        state=folder / values["state"] if "state" in values else None,
        functions=functions,
        load=tuple(folder / bundle for bundle in values.get("load", [])),
    )


def _parse(path):
    """The values in the file, and the line of each key by its path."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = {}
        _note_lines(node, (), lines, path)
        return _small(yaml.safe_load(text) or {}), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigurationError(f"{path}:{line}: not YAML: {error.problem}") from error
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
        TypeError,
    ) as error:  # the last two: of dates that are none, lists as keys
        raise ConfigurationError(f"{path}: not YAML: {error}") from error


def _small(value):
    """`value`, which has no number of more than 64 bits in it: messages could not show it. ValueError."""
    if isinstance(value, dict):
        for key, item in value.items():
            _small(key)
            _small(item)
    elif isinstance(value, list):
        for item in value:
            _small(item)
    elif type(value) is int and abs(value) >= 1 << 64:
        raise ValueError(f"expected numbers of at most 64 bits, got {shown(value)}")
    return value


def _note_lines(node, where, lines, path):
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*where, key.value)
            if inner in lines:
                line = key.start_mark.line + 1
                raise ConfigurationError(
                    f"{path}:{line}: {'.'.join(inner)}: written twice (first in line {lines[inner]}); remove one"
                )
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            inner = (*where, str(number))
            lines[inner] = value.start_mark.line + 1
            _note_lines(value, inner, lines, path)


class _Problems:
    def __init__(self, path, lines):
        self._path, self._lines, self._found = path, lines, set()

    def add(self, where, message):
        where = tuple(map(str, where))
        known = next((where[:n] for n in range(len(where), 0, -1) if where[:n] in self._lines), ())
        self._found.add((self._lines.get(known, 1), f"{'.'.join(where) or 'the file'}: {message}"))

    def add_schema_error(self, error):
        where = list(error.absolute_path)
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for key in error.instance.keys() - known.keys():
                near = difflib.get_close_matches(str(key), known, 1)
                advice = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
                self.add([*where, key], f"unknown key; {advice}")
        else:
            expected = error.schema.get("description", error.validator_value)
            self.add(where, f"expected {expected}, got {shown(error.instance)}")

    def stop(self):
        if self._found:
            raise ConfigurationError("\n".join(f"{self._path}:{line}: {text}" for line, text in sorted(self._found)))


def _function(name, target, problems):
    module, _, attribute = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        problems.add(
            ("functions", name),
            f"{target} cannot be imported: {error}; if it is yours, put the folder that has it on PYTHONPATH",
        )
        return None
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        problems.add(("functions", name), f"{target} cannot be imported: {type(error).__name__}: {error}")
        return None
    if not callable(function):
        problems.add(("functions", name), f"expected a function, got {target} of type {type(function).__name__}")
    return function


# yaml key -> (field, conversion)
_VMS = {
    "max": ("max_vms", int),
    "warm": ("warm", int),
    "max_warm": ("max_warm", int),
    "idle_time": ("idle_s", seconds),
    "memory": ("memory_bytes", byte_count),
    "pressure": ("pressure_percent", float),
    "boot_tries": ("boot_tries", int),
}
_BREAKER = {
    "enabled": ("enabled", bool),
    "failures": ("failures", tuple),
    "caller_errors": ("caller_errors", tuple),
    "consecutive": ("consecutive", int),
    "window": ("window_s", seconds),
    "min_calls": ("min_calls", int),
    "failure_rate": ("failure_rate", float),
    "slow": ("slow_s", seconds),
    "slow_rate": ("slow_rate", float),
    "open_time": ("open_s", seconds),
    "max_open_time": ("max_open_s", seconds),
    "probes": ("probes", int),
}
_TASK = {
    "weight": ("weight", float),
    "priority": ("priority", int),
    "queue": ("queue", int),
    "fresh": ("fresh", bool),
    "ready": ("ready", int),
}


def _fields(cls, values, keys, where, problems):
    fields = {}
    for key, (name, convert) in keys.items():
        if key in values:
            try:
                value = convert(values[key])
            except ConfigurationError as error:
                problems.add([*where, key], str(error).partition(": ")[2])
                continue
            if (problem := field_problem(cls, name, value)) is None:
                fields[name] = value
            else:
                problems.add([*where, key], problem)
    return fields


def _task_policy(base, values, where, problems):
    breaker = replace(
        base.breaker, **_fields(BreakerPolicy, values.get("breaker", {}), _BREAKER, [*where, "breaker"], problems)
    )
    if "permissions" in values:
        base = replace(base, permissions=values["permissions"])
    if "limits" in values:
        base = replace(base, limits=_right_limits(values["limits"], [*where, "limits"], problems))
    return replace(base, breaker=breaker, **_fields(TaskPolicy, values, _TASK, where, problems))


def _right_limits(limits, where, problems):
    """`limits` without what is wrong in them, which is told."""
    right = {}
    for key, value in limits.items():
        try:
            Limits.read({key: value}, "limits")
            right[key] = value
        except ConfigurationError as error:
            problems.add([*where, key], str(error).removeprefix(f"limits: {key}: "))
    return right


def _policy(values, problems):
    fields = _fields(Policy, values.get("vms", {}), _VMS, ["vms"], problems)
    if "grace_time" in values:
        fields |= _fields(Policy, values, {"grace_time": ("grace_s", seconds)}, [], problems)
    if "allow" in values:
        fields["allow"] = tuple(values["allow"])
    if "permissions" in values:
        fields["permissions"] = values["permissions"]
    if "search" in values:
        fields["search"] = values["search"]
    limits = _right_limits(values.get("limits", {}), ["limits"], problems)
    default = {key: values[key] for key in ("queue", "breaker") if key in values}
    task = _task_policy(TaskPolicy(breaker=BreakerPolicy()), default, [], problems)
    tasks = {
        name: _task_policy(task, settings or {}, ["tasks", name], problems)
        for name, settings in values.get("tasks", {}).items()
    }
    return Policy(limits=limits, task=task, tasks=tasks, **fields)
