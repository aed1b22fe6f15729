"""Reads `host.yaml` and checks it against `host.schema.json`; reports all problems at once, with file, line and key.

Paths in it are relative to the file's folder. Host functions are imported here, from `module:function`.
"""

import importlib
from dataclasses import dataclass, replace
from pathlib import Path

from vmhost.errors import ConfigurationError
from vmhost.limits import (
    BreakerPolicy,
    DebugPolicy,
    Limits,
    Policy,
    RecordPolicy,
    TaskPolicy,
    byte_count,
    field_problem,
    seconds,
)
from vmhost.settings_file import SettingsFile

_SCHEMA = Path(__file__).with_name("host.schema.json")
_TABLE_QUOTA = 1 << 30  # bytes; default of a table
# Keys that a running host cannot change.
_FIXED = ("vms", "grace_time", "search", "debugging", "state", "tables", "tables_from")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings for `Host.from_file`: arguments of Host, and `load`, the paths of bundles to load. `values`: as in
    the file."""

    trust: object
    allow_unsigned: bool
    policy: Policy
    state: Path | None
    functions: dict
    tables: dict
    load: tuple
    values: dict


def read_host_yaml(path):
    """The HostSettings in the file at `path`. ConfigurationError with all its problems."""
    file = SettingsFile(path, _SCHEMA)
    return _settings(file.values, file.folder, file.problems)


def reread_host_yaml(path, before):
    """(HostSettings, places): as read_host_yaml for a host that runs with the settings `before`. What such a host
    cannot change stays as it is there, and `places` are the changed keys of these, as "FILE:LINE: KEY"."""
    file = SettingsFile(path, _SCHEMA)
    file.problems.stop()
    changed = [key for key in _FIXED if file.values.get(key) != before.values.get(key)]
    places = tuple(f"{file.problems.place([key])}: {key}" for key in changed)
    kept = {key: value for key, value in before.values.items() if key in _FIXED}
    values = {key: value for key, value in file.values.items() if key not in _FIXED} | kept
    no_tables = {key: value for key, value in values.items() if key not in ("tables", "tables_from")}
    return replace(_settings(no_tables, file.folder, file.problems), tables=before.tables, values=values), places


def host_settings(values, folder, problems):
    """The HostSettings in a section of another file; its paths are relative to `folder`, and `problems`
    (`vmhost.settings_file.Problems`) collects its problems. ConfigurationError with all of them.
    """
    problems.check(values, _SCHEMA)
    return _settings(values, folder, problems)


def _settings(values, folder, problems):
    problems.stop()
    policy = _policy(values, folder, problems)
    functions = {name: _function(name, target, problems) for name, target in values.get("functions", {}).items()}
    tables = {name: _table(name, options, folder, problems) for name, options in values.get("tables", {}).items()}
    problems.stop()
    if "tables_from" in values:
        _restore(tables, folder / values["tables_from"], problems)
    return HostSettings(
        trust=folder / values["trust"] if "trust" in values else None,
        allow_unsigned=values.get("allow_unsigned", False),
        policy=policy,
        state=folder / values["state"] if "state" in values else None,
        functions=functions,
        tables=tables,
        load=tuple(folder / bundle for bundle in values.get("load", [])),
        values=values,
    )


def _table(name, options, folder, problems):
    from vmhost.engine.embedding import (
        CBFFilter,
        CounterFilter,
        EmbeddingVariable,
        GlobalStepEvict,
        L2WeightEvict,
        SSDStorage,
    )

    options = dict(options)
    kind = options.pop("optimizer", "adagrad")
    if "initial" in options:
        initial = options.pop("initial")
        if kind != "adagrad":
            problems.add(("tables", name, "initial"), f"is for the optimizer adagrad, got {kind}")
            return None
        from vmhost.engine.optim import Adagrad

        kind = Adagrad(1.0, initial=initial)
    if "filter" in options:
        given = options["filter"]
        if "false_positive_probability" in given and "max_element_size" not in given:
            problems.add(("tables", name, "filter"), "false_positive_probability goes with max_element_size")
            return None
        options["filter"] = (CBFFilter if "max_element_size" in given else CounterFilter)(**given)
    kinds = {"steps_to_live": GlobalStepEvict, "l2_weight_threshold": L2WeightEvict}
    options["evict"] = tuple(kinds[key](number) for key, number in options.pop("evict", {}).items())
    try:
        options["quota"] = byte_count(options.get("quota", _TABLE_QUOTA))
        if storage := options.pop("storage", None):
            sizes = {key: byte_count(storage[key]) for key in ("memory", "quota")}
            options["storage"] = SSDStorage(**storage | sizes | {"folder": folder / storage["folder"]})
        return EmbeddingVariable(options.pop("dim"), optimizer=kind, name=name, **options)
    except (ConfigurationError, MemoryError, OSError, ValueError) as error:
        problems.add(("tables", name), str(error))
        return None


def _restore(tables, folder, problems):
    """Restores the tables from the saves in `folder`, if there are any."""
    from vmhost.engine.embedding import restore

    if not folder.is_dir() or not any(path.name.endswith("-full") for path in folder.iterdir()):
        return
    try:
        restore(tables, folder)
    except (MemoryError, OSError, ValueError) as error:
        problems.add(("tables_from",), str(error))
        problems.stop()


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
    except (Exception, SystemExit) as error:  # whatever importing the module may raise
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
_RECORD = {
    "folder": ("folder", str),
    "share": ("share", float),
    "max_calls": ("max_calls", int),
    "max_bytes": ("max_bytes", byte_count),
    "max_value": ("max_value_bytes", byte_count),
    "mask_fields": ("mask_fields", tuple),
    "mask_patterns": ("mask_patterns", tuple),
}
_DEBUGGING = {
    "consent": ("consent", str),
    "scopes": ("scopes", tuple),
    "keys": ("keys", str),
    "longest": ("longest_s", seconds),
}
_TASK = {
    "weight": ("weight", float),
    "priority": ("priority", int),
    "queue": ("queue", int),
    "fresh": ("fresh", bool),
    "ready": ("ready", int),
    "coverage": ("coverage", float),
    "memory_lines": ("memory_lines", bool),
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


def _record(values, where, folder, problems):
    """The RecordPolicy in `values`; None: nothing is recorded."""
    if values is None or not values.get("enabled", True):
        return None
    if "folder" not in values:
        problems.add([*where], "names no `folder` for the baselines")
        return None
    fields = _fields(RecordPolicy, {**values, "folder": str(folder / values["folder"])}, _RECORD, where, problems)
    try:
        return RecordPolicy(**fields) if "folder" in fields else None
    except ConfigurationError as error:
        problems.add([*where], str(error))
        return None


def _task_policy(base, values, where, folder, problems):
    breaker = replace(
        base.breaker, **_fields(BreakerPolicy, values.get("breaker", {}), _BREAKER, [*where, "breaker"], problems)
    )
    if "permissions" in values:
        base = replace(base, permissions=values["permissions"])
    if "record" in values:
        base = replace(base, record=_record(values["record"], [*where, "record"], folder, problems))
    if "limits" in values:
        base = replace(base, limits=_right_limits(values["limits"], [*where, "limits"], problems))
    return replace(base, breaker=breaker, **_fields(TaskPolicy, values, _TASK, where, problems))


def _right_limits(limits, where, problems):
    """The valid entries of `limits`; reports the others."""
    right = {}
    for key, value in limits.items():
        try:
            Limits.read({key: value}, "limits")
            right[key] = value
        except ConfigurationError as error:
            problems.add([*where, key], str(error).removeprefix(f"limits: {key}: "))
    return right


def _debugging(values, folder, problems):
    given = values["debugging"]
    given = {"consent": given} if isinstance(given, str) else dict(given)
    if "keys" in given:
        given["keys"] = str(folder / given["keys"])
    if given.get("consent", "never") == "ask" and "state" not in values:
        problems.add(["debugging"], "needs a state folder, where the audit is kept; add `state: FOLDER`")
    return DebugPolicy(**_fields(DebugPolicy, given, _DEBUGGING, ["debugging"], problems))


def _policy(values, folder, problems):
    fields = _fields(Policy, values.get("vms", {}), _VMS, ["vms"], problems)
    if "grace_time" in values:
        fields |= _fields(Policy, values, {"grace_time": ("grace_s", seconds)}, [], problems)
    if "allow" in values:
        fields["allow"] = tuple(values["allow"])
    if "permissions" in values:
        fields["permissions"] = values["permissions"]
    if "search" in values:
        fields["search"] = values["search"]
    if "debugging" in values:
        fields["debugging"] = _debugging(values, folder, problems)
    limits = _right_limits(values.get("limits", {}), ["limits"], problems)
    default = {key: values[key] for key in ("queue", "breaker", "record") if key in values}
    task = _task_policy(TaskPolicy(breaker=BreakerPolicy()), default, [], folder, problems)
    tasks = {
        name: _task_policy(task, settings or {}, ["tasks", name], folder, problems)
        for name, settings in values.get("tasks", {}).items()
    }
    policy = Policy(limits=limits, task=task, tasks=tasks, **fields)
    return replace(policy, origins=_origins(policy, values, problems))


# As `_VMS`, for keys whose values are kept as they are or converted elsewhere.
_WHOLE = {"grace_time": ("grace_s", None), "allow": ("allow", None), "search": ("search", None)}
_CAPS = {"permissions": ("permissions", None)}
_LIMITS = {
    name: (name, None) for name in ("memory", "wall_time", "cpu_time", "stack", "concurrency", "descriptors", "output")
}
_TASK_WHOLE = {"queue": ("queue", None), "record": ("record", None)}


def _origins(policy, values, problems):
    """Policy.origins for the file's `values`."""
    found = {}

    def note(part, path, keys, given, where=()):
        """Records the keys of `given`. `part`: the policy, or mapping of limits, that received their values."""
        for key, (name, _) in keys.items():
            if given and key in given:
                value = part.get(name) if isinstance(part, dict) else getattr(part, name)
                found[f"{path}{name}"] = (problems.place([*where, key]), value)

    note(policy, "", _VMS, values.get("vms"), ["vms"])
    note(policy, "", _WHOLE | _CAPS, values)
    note(policy.limits, "limits.", _LIMITS, values.get("limits"), ["limits"])
    note(policy.task, "task.", _TASK_WHOLE, values)
    note(policy.task.breaker, "task.breaker.", _BREAKER, values.get("breaker"), ["breaker"])
    debugging = values.get("debugging")
    if isinstance(debugging, str):
        found["debugging.consent"] = (problems.place(["debugging"]), policy.debugging.consent)
    else:
        note(policy.debugging, "debugging.", _DEBUGGING, debugging, ["debugging"])
    for name, given in values.get("tasks", {}).items():
        own, path, where = policy.tasks[name], f"tasks.{name}.", ["tasks", name]
        note(own, path, _TASK | _TASK_WHOLE | _CAPS | {"limits": ("limits", None)}, given, where)
        given = given or {}
        note(own.limits, f"{path}limits.", _LIMITS, given.get("limits"), [*where, "limits"])
        note(own.breaker, f"{path}breaker.", _BREAKER, given.get("breaker"), [*where, "breaker"])
    return found
