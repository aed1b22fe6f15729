"""The table of `host.yaml`, and its reader: all problems at once, with file, line and key.

HOST has the keys: the fields of HostSettings here, and those of the policies in `vmhost.limits`. The schema and the
page in docs are written from it (`vmhost.settings.pages`). Host functions are imported here, from `module:function`.
"""

import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

from vmhost.bytecode.either import section
from vmhost.bytecode.kinds import (
    Choice,
    Flag,
    Items,
    Named,
    Number,
    Path,
    Section,
    Setting,
    Size,
    Text,
    Whole,
    setting,
    settings_of,
)
from vmhost.bytecode.reading import read
from vmhost.bytecode.task_kinds import ENTRY
from vmhost.errors import ConfigurationError
from vmhost.limits import Policy, TaskPolicy
from vmhost.settings.files import SettingsFile

_TABLE_QUOTA = 1 << 30  # bytes; default of a table
_FOLDER, _SIZE = Path("the path of a folder"), Size()


_TABLE = section(
    ("dim", Whole(1, 65536), "elements per row"),
    ("optimizer", Choice("sgd", "adagrad", "adam", "ftrl"), "of training steps", "adagrad"),
    ("initial", Number(ge=0), "initial value of Adagrad's slots", 0),
    ("initializer", Number(ge=0), "the standard deviation of initial rows", "dim ** -0.5"),
    ("seed", Whole(0, (1 << 32) - 1), "of initial rows", 0),
    ("default_value_dim", Whole(1, 1 << 24), "number of initial rows", 4096),
    ("default_value_no_permission", Number(), "value read by keys waiting for admission", 0),
    (
        "filter",
        section(
            ("filter_freq", Whole(1, 65534), "steps that count a key before it gets a row"),
            ("max_element_size", Whole(1, (1 << 31) - 1), "number of keys; counts them by a Bloom filter", None),
            ("false_positive_probability", Number(gt=0, lt=1), "of the Bloom filter", 0.01),
        ),
        "admission of keys",
        None,
    ),
    (
        "evict",
        section(
            ("steps_to_live", Whole(1), "steps after which an unused key is evicted", None),
            ("l2_weight_threshold", Number(gt=0), "keys with smaller rows are evicted", None),
        ),
        "eviction of keys, when all are saved",
        None,
    ),
    ("quota", _SIZE, "maximum memory", _TABLE_QUOTA),
    (
        "storage",
        section(
            ("folder", _FOLDER, "folder of the file with these rows"),
            ("memory", _SIZE, "share of the quota for rows in memory"),
            ("quota", _SIZE, "maximum size of the file"),
            ("cache", Choice("lru", "lfu"), "eviction of rows from memory", "lfu"),
        ),
        "moves rows that do not fit into memory to disk",
        None,
    ),
)
_TABLE_NAME = Text("the name of a table, such as items", re.compile("[A-Za-z_][A-Za-z0-9_-]*"), 128)
_FUNCTION = Text("`module:function`, such as shop.prices:lookup", ENTRY.pattern, ENTRY.max_chars)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The settings for `Host.from_file`: arguments of Host, and `load`, the paths of bundles to load. `values`: as in
    the file."""

    trust: object = setting(Path("the path of a file or folder of public keys"), "keys of trusted signers", None)
    allow_unsigned: bool = setting(Flag(), "load unsigned bundles (during development)", False)
    state: object = setting(
        _FOLDER,
        "for state across restarts (breakers, crash reports, cached models); one host at a time",
        None,
        fixed=True,
    )
    load: tuple = setting(
        Items(Path("the path of a bundle"), "a list of paths of bundles"),
        'loaded at the start; `host.task("digits")` gives the Task',
        (),
    )
    functions: dict = setting(
        Named(_FUNCTION, "a mapping of names to module:function"),
        "host functions, for tasks whose `permissions.host` names them",
        dict,
    )
    tables: dict = setting(
        Named(_TABLE, "a mapping of names to embedding tables", _TABLE_NAME),
        "embedding tables (docs/embedding.md), for tasks whose `permissions.tables` names them",
        dict,
        fixed=True,
    )
    tables_from: object = setting(_FOLDER, "of saves, from which tables are restored at the start", None, fixed=True)
    policy: Policy
    values: dict


_OF_EACH_TASK = ("queue", "breaker", "record")  # keys that also stand outside of `tasks`, for all
HOST = Section(
    [
        Setting("vms", Section(settings_of(Policy, "vms")), "VMs of the host", (), fixed=True),
        *settings_of(HostSettings),
        *(each._replace(path=("task", *each.path)) for each in settings_of(TaskPolicy) if each.key in _OF_EACH_TASK),
        *settings_of(Policy),
    ]
)


def read_host_yaml(path):
    """The HostSettings in the file at `path`. ConfigurationError with all its problems."""
    file = SettingsFile(path)
    return host_settings(file.values, file.problems)


def reread_host_yaml(path, before):
    """(HostSettings, places): as read_host_yaml for a host that runs with the settings `before`. What such a host
    cannot change stays as it is there, and `places` are the changed keys of these, as "FILE:LINE: KEY"."""
    file = SettingsFile(path)
    read(HOST, file.values, file.problems)
    file.problems.stop()
    fixed = [key for key, each in HOST.settings.items() if each.fixed]
    changed = [key for key in fixed if file.values.get(key) != before.values.get(key)]
    places = tuple(f"{file.problems.place([key])}: {key}" for key in changed)
    kept = {key: value for key, value in before.values.items() if key in fixed}
    values = {key: value for key, value in file.values.items() if key not in fixed} | kept
    no_tables = {key: value for key, value in values.items() if key not in ("tables", "tables_from")}
    return replace(host_settings(no_tables, file.problems), tables=before.tables, values=values), places


def host_settings(values, problems):
    """The HostSettings of `values`, a file's or those of a section; `problems` (`vmhost.settings.files.Problems`)
    collects what is wrong. ConfigurationError with all of it."""
    given = read(HOST, values, problems) or {}
    own = {each.name: given.pop(each.name) for each in fields(HostSettings) if given.get(each.name) is not None}
    if (given.get("debugging") or {}).get("consent") == "ask" and "state" not in own:
        problems.add(["debugging"], "needs a state folder, where the audit is kept; add `state: FOLDER`")
    targets = own.get("functions", {}).items()
    own["functions"] = {name: _function(name, target, problems) for name, target in targets if target is not None}
    problems.stop()
    own["tables"] = {name: _table(name, options, problems) for name, options in own.get("tables", {}).items()}
    problems.stop()
    if "tables_from" in own:
        _restore(own["tables"], own["tables_from"], problems)
    return HostSettings(policy=_policy(given, problems.origins), values=values, **own)


def _policy(given, origins):
    tasks = given.pop("tasks", {})
    policy = _with(Policy(), given)
    policy = replace(policy, tasks={name: _with(policy.task, own) for name, own in tasks.items()})
    places = {names: place for names, place in origins.items() if names and hasattr(policy, names[0])}
    values = {names: functools.reduce(_field, names, policy) for names in places}
    return replace(policy, origins={".".join(names): (place, values[names]) for names, place in places.items()})


def _with(policy, given):
    """`policy` with the fields in `given`; those of a policy in it likewise."""
    parts = {name: getattr(policy, name) for name, value in given.items() if isinstance(value, dict)}
    parts = {name: _with(part, given[name]) for name, part in parts.items() if is_dataclass(part)}
    return replace(policy, **given | parts)


def _field(part, name):
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _table(name, options, problems):
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
        if "storage" in options:
            options["storage"] = SSDStorage(**options["storage"])
        return EmbeddingVariable(options.pop("dim"), optimizer=kind, name=name, **{"quota": _TABLE_QUOTA} | options)
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
