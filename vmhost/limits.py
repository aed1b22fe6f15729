"""Limits of a task and policies of a host, as in `task.yaml` and `host.yaml`.

Quantities are numbers in the unit that the field's name gives, or text with a unit ("64 MiB", "500 ms"). A host only
narrows a bundle's requests: `Limits.capped_by` takes the smaller of each.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vmhost.bytecode import quantities
from vmhost.bytecode.fields import (
    END_OF_TIME_S,
    EXPECTED_LIMITS,
    FUNCTION,
    GRANTS,
    MAX_PRIORITY,
    MIN_PRIORITY,
    limit_is_right,
    matches,
    shown,
)
from vmhost.errors import ConfigurationError
from vmhost.grants import read_caps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from vmhost.masking import Masking


def _quantity(value, read, what, example):
    found = value if _is_number(value) else read(value)
    if found is not None and found > 0:
        return found
    raise ConfigurationError(f"{what}: expected a quantity above zero such as {example}, got {shown(value)}")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def byte_count(value, what="size"):
    """`value` ("64 MiB" or a number of bytes) as an int. Raises ConfigurationError naming `what`."""
    number = _quantity(value, quantities.byte_count, what, "64 MiB")
    if not number < 1 << 63:
        raise ConfigurationError(f"{what}: expected less than 2**63 bytes, got {shown(value)}")
    return int(number)


def seconds(value, what="time"):
    """`value` ("500 ms" or a number of seconds) as a float. Raises ConfigurationError naming `what`."""
    number = _quantity(value, quantities.seconds, what, "500 ms")
    return float(number) if number < END_OF_TIME_S else math.inf


def whole(value, what="count", minimum=1, maximum=None):
    """`value` as an int from `minimum` to `maximum` (None: without bound). Raises ConfigurationError naming `what`."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and minimum <= value and (maximum is None or value <= maximum):
        return int(value)
    expected = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    raise ConfigurationError(f"{what}: expected a whole number {expected}, got {shown(value)}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a task. `memory_bytes` is the soft limit; allocations fail at `hard_bytes`, 25 % above.

    `wall_s` counts from submission, `cpu_s` the CPU time of one call, `stack_bytes` the stack of a VM's thread. None
    means no limit. `concurrency` is the number of VMs that may serve the task at once, `descriptors` the number of
    files, sockets and pipes that each of them may have open, `output_bytes` what each may print and log in a second.
    The ranges are those of task.yaml (`vmhost.bytecode.fields`); ConfigurationError outside."""

    memory_bytes: int = 64 << 20
    wall_s: float | None = None
    cpu_s: float | None = None
    stack_bytes: int = 1 << 20
    concurrency: int = 4
    descriptors: int = 64
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, manifest_name in _MANIFEST_NAMES.items():
            value = getattr(self, name)
            if not (limit_is_right(manifest_name, value) or value is None and name in ("wall_s", "cpu_s")):
                raise ConfigurationError(
                    f"limits: {name}: expected {EXPECTED_LIMITS[manifest_name]}, got {shown(value)}"
                )

    @property
    def hard_bytes(self) -> int:
        """The memory at which allocations of a VM fail."""
        return self.memory_bytes + self.memory_bytes // 4

    @classmethod
    def read(cls, limits: Mapping[str, "Any"], where: str) -> "Self":
        """Reads the mapping `limits` of task.yaml, host.yaml or a manifest. `where` names it in errors."""
        return cls(**_given(limits, where))

    def capped_by(self, caps: Mapping[str, "Any"] | Limits) -> Limits:
        """These limits, each at most that of `caps`: a mapping as in host.yaml, or Limits."""
        changes = {}
        for name, cap in _given(caps, "host limits").items():
            mine = getattr(self, name)
            changes[name] = cap if mine is None else min(mine, cap)
        return replace(self, **changes)


def _given(limits, where):
    """Name of a field of Limits -> value, for `limits`: a mapping, Limits, or None. ConfigurationError."""
    if isinstance(limits, Limits):
        return {name: value for name in _MANIFEST_NAMES if (value := getattr(limits, name)) is not None}
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise ConfigurationError(
            f"{where}: expected a mapping such as {{'memory': '64 MiB'}} or Limits, got {shown(limits)}"
        )
    given = {}
    for key, value in limits.items():
        name, convert = _LIMIT_KEYS.get(key, (None, None)) if isinstance(key, str) else (None, None)
        if name is None:
            raise ConfigurationError(
                f"{where}: unknown limit `{shown(key).strip(chr(39))}`; expected {', '.join(sorted(_LIMIT_KEYS))}"
            )
        if value is None:
            continue
        given[name] = convert(value, f"{where}: {key}")
        if not limit_is_right(_MANIFEST_NAMES[name], given[name]):
            raise ConfigurationError(
                f"{where}: {key}: expected {EXPECTED_LIMITS[_MANIFEST_NAMES[name]]}, got {shown(value)}"
            )
    return given


# Field of Limits -> its name in a manifest.
_MANIFEST_NAMES = {
    "memory_bytes": "memory_bytes",
    "wall_s": "wall_time_s",
    "cpu_s": "cpu_time_s",
    "stack_bytes": "stack_bytes",
    "concurrency": "concurrency",
    "descriptors": "descriptors",
    "output_bytes": "output_bytes",
}
_LIMIT_KEYS = {
    "memory": ("memory_bytes", byte_count),
    "memory_bytes": ("memory_bytes", byte_count),
    "wall_time": ("wall_s", seconds),
    "wall_s": ("wall_s", seconds),
    "wall_time_s": ("wall_s", seconds),
    "cpu_time": ("cpu_s", seconds),
    "cpu_s": ("cpu_s", seconds),
    "cpu_time_s": ("cpu_s", seconds),
    "stack": ("stack_bytes", byte_count),
    "stack_bytes": ("stack_bytes", byte_count),
    "concurrency": ("concurrency", whole),
    "descriptors": ("descriptors", whole),
    "output": ("output_bytes", byte_count),
    "output_bytes": ("output_bytes", byte_count),
}


FAILURES = ("error", "load", "value", "time", "cpu", "memory")
CALLER_ERRORS = ("ValueError", "TypeError", "LookupError")


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a task version's breaker opens and how it closes again.

    A call is a failure if it ends as one of `failures` ("error": the task raised; "load": its module or setup() failed;
    "value": its result cannot cross; "time", "cpu", "memory": a limit of the task), unless the caller is to blame:
    exceptions in `caller_errors` (names as in TaskError.type_name, subclasses included), time that the caller's own
    `timeout_s` ended or that passed in the queue, an `entry` that the task does not have. A lost VM always counts; a
    call that was cancelled, closed or refused never does. For the reasons see docs/decisions/breaker.md.

    It opens at once when a VM of the task wedges or crashes, after `consecutive` failures in a row, and when, of the
    calls of the last `window_s` seconds (at least `min_calls`), more than `failure_rate` failed, or more than
    `slow_rate` took longer than `slow_s` (None: calls are never slow). It stays open for `open_s`, doubled each time a
    probe fails, up to `max_open_s`. Then `probes` calls are admitted, and it closes when all of them succeed.
    """

    consecutive: int = 20
    window_s: float = 30.0
    min_calls: int = 20
    failure_rate: float = 0.5
    slow_s: float | None = None
    slow_rate: float = 0.8
    open_s: float = 5.0
    max_open_s: float = 300.0
    probes: int = 2
    enabled: bool = True
    failures: tuple[str, ...] = FAILURES
    caller_errors: tuple[str, ...] = CALLER_ERRORS

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """Which calls of a task a host records as a baseline (docs/operations.md), and where.

    `folder`: for the files, one per version and run of the host. `share`: of its calls, chosen at random. A file ends
    at `max_calls` calls or `max_bytes` bytes; a call whose value, result or answers of clocks and host functions exceed
    `max_value_bytes` is left out. `mask_fields` and `mask_patterns`: rules for hiding, as for vmhost.masking.Masking.
    ConfigurationError.
    """

    folder: str | os.PathLike[str]
    share: float = 0.01
    max_calls: int = 100_000
    max_bytes: int = 256 << 20
    max_value_bytes: int = 1 << 20
    mask_fields: tuple[str, ...] = ()
    mask_patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        self.masking()

    def masking(self) -> "Masking":
        """The Masking with its rules."""
        from vmhost.masking import Masking

        return Masking(self.mask_fields, self.mask_patterns)


CONSENTS = ("never", "ask")
DEBUG_SCOPES = ("config", "logs", "run", "reports")  # rights of a debugging session


@dataclass(frozen=True, slots=True)
class DebugPolicy:
    """Remote debugging of a host (docs/remote-debugging.md), by a signed link.

    `consent`: "never", or "ask": a person at the device must agree to each session. `scopes`: the maximum rights of any
    session, of config, logs, run and reports. `keys`: the path of public keys whose links are valid besides the host's
    own. `longest_s`: for sessions and the host's own links. ConfigurationError.
    """

    consent: str = "never"
    scopes: tuple[str, ...] = DEBUG_SCOPES
    keys: str | os.PathLike[str] | None = None
    longest_s: float = 3600.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """A host's settings for one task.

    `weight`: its share of VMs against other tasks when they are scarce. `priority`: tasks with higher values are served
    first (None: the bundle's). `queue`: calls that may wait. `fresh`: a new VM for each call (None: the bundle's).
    `ready`: VMs attached before the first call. `limits`: caps on the bundle's own, a mapping as in host.yaml or
    Limits. `permissions`: caps on the bundle's requests, a mapping of kinds to lists of names as in host.yaml; None:
    only those of `Policy`. `coverage`: the share of calls, 0 to 1, whose lines and branches are recorded
    (Host.coverage). `memory_lines`: track which lines hold the memory of its VMs, for its MemoryLimitErrors. `record`:
    which of its calls are recorded (None: none). ConfigurationError.
    """

    weight: float = 1.0
    priority: int | None = None
    queue: int = 100_000
    fresh: bool | None = None
    ready: int = 0
    limits: Mapping[str, "Any"] | Limits = field(default_factory=dict)
    permissions: Mapping[str, "Any"] | None = None
    coverage: float = 0.0
    memory_lines: bool = False
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    record: RecordPolicy | None = None

    def __post_init__(self) -> None:
        check_fields(self)


SEARCHES = ("measured", "fixed")


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Policy:
    """A host's settings for all its tasks.

    `max_vms`: VMs that serve at once. `warm`, `max_warm`: VMs booted ahead, and the maximum to which that number
    grows when tasks had to wait for a boot. `idle_s`: an idle VM is retired after this time. `memory_bytes`: idle
    VMs are retired when all VMs together hold more; None is a quarter of the machine's memory, or of what a control
    group (a container) allows the process. `pressure_percent`: the same when so much of that memory is in use.
    `grace_s`: the time a stopped call has to unwind before its VM is quarantined. `replace_warm`: replace a warm VM
    that a task got (False: for a process that ends after a call). `quantum_s`: how long a task may keep VMs that
    another task with an equal claim waits for. `cores`: processors available to VMs: a task of short calls gets no
    more VMs than that. `boot_tries`: boots that may fail in a row before waiting calls get their error.
    `boots_at_once`: VMs that boot at the same time. `function_threads`: threads for host functions; that many run
    at the same time. `allow`: the kinds of permissions that a bundle may ask for. `permissions`: caps on any
    bundle's requests, as in TaskPolicy; kinds that it does not name are refused. `search`: how models' algorithms
    are chosen: "measured", by the speed of this machine's cores, or "fixed", by built-in numbers, so that every
    machine with the same backend gives the same bytes. `limits`: as in TaskPolicy, for all tasks. `tasks`: name of
    a task -> its TaskPolicy; `task` applies to all others. `origins`: sources of values in host.yaml, by the path
    of the field, as in "task.breaker.window_s": (FILE:LINE, the value there). ConfigurationError.
    """

    max_vms: int = 1000
    warm: int = 1
    replace_warm: bool = True
    max_warm: int = field(default_factory=lambda: max(2, _cores()))
    idle_s: float = 60.0
    memory_bytes: int | None = None
    pressure_percent: float = 95.0
    grace_s: float = 0.25
    quantum_s: float = 0.25
    cores: int = field(default_factory=lambda: _cores())
    boot_tries: int = 3
    boots_at_once: int = field(default_factory=lambda: max(2, _cores()))
    function_threads: int = 4
    allow: tuple[str, ...] = tuple(GRANTS)
    permissions: Mapping[str, "Any"] | None = None
    search: str = "measured"
    limits: Mapping[str, "Any"] | Limits = field(default_factory=dict)
    task: TaskPolicy = field(default_factory=TaskPolicy)
    tasks: dict[str, TaskPolicy] = field(default_factory=dict)
    debugging: DebugPolicy = field(default_factory=DebugPolicy)
    origins: Mapping[str, tuple[str, object]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_warm < self.warm:
            object.__setattr__(self, "max_warm", self.warm)

    def masking(self) -> "Masking":
        """The Masking for logs and reports: the rules of all tasks' records, and tokens."""
        from vmhost.masking import Masking

        records = [policy.record for policy in (self.task, *self.tasks.values()) if policy.record is not None]
        fields = dict.fromkeys(field for record in records for field in record.mask_fields)
        patterns = dict.fromkeys(("token", *(pattern for record in records for pattern in record.mask_patterns)))
        return Masking(tuple(fields), tuple(patterns))

    def for_task(self, name: str) -> TaskPolicy:
        """The TaskPolicy of task `name`."""
        return self.tasks.get(name, self.task)


# -- validators of policy fields: each checks a value, named `what` in errors, and returns the value to keep
# ------------


def _whole(minimum, maximum=None):
    return lambda value, what: whole(value, what, minimum, maximum)


def _above_zero(maximum=math.inf):
    def check(value, what):
        if _is_number(value) and 0 < value <= maximum:
            return value
        up_to = "" if maximum == math.inf else f", up to {maximum}"
        raise ConfigurationError(f"{what}: expected a number above 0{up_to}, got {shown(value)}")

    return check


def _flag(value, what):
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{what}: expected True or False, got {shown(value)}")


def _optional(check):
    return lambda value, what: None if value is None else check(value, what)


def _of(cls):
    def check(value, what):
        if isinstance(value, cls):
            return value
        raise ConfigurationError(f"{what}: expected a {cls.__name__}, got {shown(value)}")

    return check


def _caps(value, what):
    _given(value, what)
    return value if isinstance(value, Limits) else dict(value or {})


def _kinds(value, what):
    if isinstance(value, (list, tuple, set, frozenset)) and all(
        isinstance(kind, str) and kind in GRANTS for kind in value
    ):
        return tuple(value)
    raise ConfigurationError(f"{what}: expected a list with any of {', '.join(GRANTS)}, got {shown(value)}")


def _failures(value, what):
    if isinstance(value, (list, tuple, set, frozenset)) and all(
        isinstance(kind, str) and kind in FAILURES for kind in value
    ):
        return tuple(value)
    raise ConfigurationError(f"{what}: expected a list with any of {', '.join(FAILURES)}, got {shown(value)}")


def _exceptions(value, what):
    if (
        isinstance(value, (list, tuple, set, frozenset))
        and len(value) <= 64
        and all(matches(FUNCTION, name, 255) for name in value)
    ):
        return tuple(value)
    raise ConfigurationError(
        f"{what}: expected a list of at most 64 names of exceptions, such as ValueError or main.BadOrder, got"
        f" {shown(value)}"
    )


def _folder(value, what):
    if isinstance(value, (str, os.PathLike)) and os.fspath(value) and "\0" not in os.fspath(value):
        return os.fspath(value)
    raise ConfigurationError(f"{what}: expected the path of a folder, got {shown(value)}")


def _texts(value, what):
    if isinstance(value, (list, tuple)) and all(isinstance(text, str) and text for text in value):
        return tuple(value)
    raise ConfigurationError(f"{what}: expected a list of texts, got {shown(value)}")


def _search(value, what):
    if isinstance(value, str) and value in SEARCHES:
        return value
    raise ConfigurationError(f"{what}: expected one of {', '.join(SEARCHES)}, got {shown(value)}")


def _consent(value, what):
    if isinstance(value, str) and value in CONSENTS:
        return value
    raise ConfigurationError(f"{what}: expected {' or '.join(CONSENTS)}, got {shown(value)}")


def _scopes(value, what):
    if isinstance(value, (list, tuple)) and value and all(scope in DEBUG_SCOPES for scope in value):
        return tuple(scope for scope in DEBUG_SCOPES if scope in value)
    raise ConfigurationError(f"{what}: expected a list with any of {', '.join(DEBUG_SCOPES)}, got {shown(value)}")


def _by_task(value, what):
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{what}: expected a mapping of names of tasks to TaskPolicy, got {shown(value)}")
    for name, policy in value.items():
        if not isinstance(name, str) or not isinstance(policy, TaskPolicy):
            raise ConfigurationError(
                f"{what}: {shown(name)}: expected the name of a task and its TaskPolicy, got {shown(policy)}"
            )
    return dict(value)


def _share_or_none(value, what):
    return _SHARE(value, what) if value != 0 or isinstance(value, bool) else 0.0


_COUNT, _SECONDS_LONG, _SHARE = _whole(1), _above_zero(), _above_zero(1)
_CHECKS = {
    BreakerPolicy: {
        "consecutive": _COUNT,
        "window_s": _SECONDS_LONG,
        "min_calls": _COUNT,
        "failure_rate": _SHARE,
        "slow_s": _optional(_SECONDS_LONG),
        "slow_rate": _SHARE,
        "open_s": _SECONDS_LONG,
        "max_open_s": _SECONDS_LONG,
        "probes": _COUNT,
        "enabled": _flag,
        "failures": _failures,
        "caller_errors": _exceptions,
    },
    TaskPolicy: {
        "weight": _above_zero(),
        "priority": _optional(_whole(MIN_PRIORITY, MAX_PRIORITY)),
        "queue": _whole(1),
        "fresh": _optional(_flag),
        "ready": _whole(0, 1024),
        "limits": _caps,
        "permissions": read_caps,
        "coverage": _share_or_none,
        "memory_lines": _flag,
        "breaker": _of(BreakerPolicy),
        "record": _optional(_of(RecordPolicy)),
    },
    RecordPolicy: {
        "folder": _folder,
        "share": _SHARE,
        "max_calls": _COUNT,
        "max_bytes": _COUNT,
        "max_value_bytes": _COUNT,
        "mask_fields": _texts,
        "mask_patterns": _texts,
    },
    DebugPolicy: {
        "consent": _consent,
        "scopes": _scopes,
        "keys": _optional(_folder),
        "longest_s": _above_zero(7 * 86400),
    },
    Policy: {
        "max_vms": _whole(1, 4096),
        "warm": _whole(0, 1024),
        "replace_warm": _flag,
        "max_warm": _whole(0, 1024),
        "idle_s": _SECONDS_LONG,
        "memory_bytes": _optional(_whole(1, (1 << 63) - 1)),
        "pressure_percent": _above_zero(100),
        "grace_s": _SECONDS_LONG,
        "quantum_s": _SECONDS_LONG,
        "cores": _COUNT,
        "boot_tries": _whole(1, 100),
        "boots_at_once": _whole(1, 4096),
        "function_threads": _whole(1, 1024),
        "allow": _kinds,
        "permissions": read_caps,
        "search": _search,
        "limits": _caps,
        "task": _of(TaskPolicy),
        "tasks": _by_task,
        "debugging": _of(DebugPolicy),
        "origins": _of(Mapping),
    },
}


def check_fields(policy):
    """Called by a new policy: ConfigurationError for its first invalid field."""
    for name, check in _CHECKS[type(policy)].items():
        object.__setattr__(policy, name, check(getattr(policy, name), f"{type(policy).__name__}: {name}"))


def field_problem(cls, name, value):
    """What is wrong with `value` for the field `name` of the policy class `cls`, in words; None if it is valid."""
    try:
        _CHECKS[cls][name](value, "")
    except ConfigurationError as error:
        return str(error).removeprefix(": ")
    return None
