"""Limits of a task and policies of a host. Their fields are the keys of `host.yaml`, too: a `setting` has kind, words,
default and, where it is not the field's name, key.

Quantities are numbers in the unit that the field's name gives, or text with a unit ("64 MiB", "500 ms"). A host only
narrows a bundle's requests: `Limits.capped_by` takes the smaller of each.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from vmhost.bytecode.fields import (
    FUNCTION,
    GRANTS,
    shown,
)
from vmhost.bytecode.kinds import (
    Choice,
    Flag,
    Instance,
    Items,
    Named,
    Number,
    Part,
    Path,
    Refused,
    Section,
    Size,
    Text,
    Time,
    Whole,
    documented,
    refused,
    setting,
    settings_of,
)
from vmhost.bytecode.task_kinds import LIMITS, PRIORITY
from vmhost.errors import ConfigurationError
from vmhost.grants import Permissions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from vmhost.masking import Masking


_COUNT, _TIME, _FLAG, _SIZE = Whole(1), Time(), Flag(), Size()
_SHARE = Number(gt=0, le=1)


def byte_count(value: int | float | str, what: str = "size") -> int:
    """`value` ("64 MiB" or a number of bytes) as an int. Raises ConfigurationError naming `what`."""
    return _named(_SIZE.given, value, what)


def seconds(value: int | float | str, what: str = "time") -> float:
    """`value` ("500 ms" or a number of seconds) as a float. Raises ConfigurationError naming `what`."""
    return _named(_TIME.given, value, what)


def _named(read, value, what):
    try:
        return read(value)
    except Refused as error:
        raise ConfigurationError(f"{what}: {error}") from None


def _check_fields(made, what=None):
    """Called by a new dataclass of settings: ConfigurationError for its first invalid field. `what` names the class."""
    for each in fields(made):
        value = getattr(made, each.name)
        if value is not None or each.default is not None:
            kept = _named(each.metadata["kind"].check, value, f"{what or type(made).__name__}: {each.name}")
            object.__setattr__(made, each.name, kept)


@documented
@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a task. `memory_bytes` is the soft limit; allocations fail at `hard_bytes`, 25 % above.

    `concurrency` is the number of VMs that may serve the task at once; what is counted is counted for each. None: no
    limit. The ranges are those of task.yaml (`vmhost.bytecode.task_kinds`); ConfigurationError outside."""

    memory_bytes: int = setting(LIMITS["memory_bytes"], "memory of a VM", 64 << 20, "memory")
    wall_s: float | None = setting(LIMITS["wall_time_s"], "time of a call from its submission", None, "wall_time")
    cpu_s: float | None = setting(LIMITS["cpu_time_s"], "CPU time of a call", None, "cpu_time")
    stack_bytes: int = setting(LIMITS["stack_bytes"], "stack of a VM's thread", 1 << 20, "stack")
    concurrency: int = setting(LIMITS["concurrency"], "VMs that serve the task at once", 4)
    descriptors: int = setting(LIMITS["descriptors"], "files, sockets and pipes that a VM has open", 64)
    output_bytes: int = setting(LIMITS["output_bytes"], "what a VM prints and logs in a second", 1 << 20, "output")

    def __post_init__(self) -> None:
        _check_fields(self, "limits")

    @property
    def hard_bytes(self) -> int:
        """The memory at which allocations of a VM fail."""
        return self.memory_bytes + self.memory_bytes // 4

    @classmethod
    def read(cls, limits: Mapping[str, "Any"], where: str) -> "Self":
        """Reads the mapping `limits` of task.yaml, host.yaml or a manifest. `where` names it in errors."""
        return cls(**cls.given(limits, where))

    @staticmethod
    def given(limits: Mapping[str, "Any"] | Limits | None, where: str) -> dict[str, "Any"]:
        """The fields that `limits` sets, and their values. `where` names it in errors: ConfigurationError."""
        return _named(_given, limits, where)

    def capped_by(self, caps: Mapping[str, "Any"] | Limits) -> Limits:
        """These limits, each at most that of `caps`: a mapping as in host.yaml, or Limits."""
        changes = {}
        for name, cap in self.given(caps, "host limits").items():
            mine = getattr(self, name)
            changes[name] = cap if mine is None else min(mine, cap)
        return replace(self, **changes)


def _given(limits):
    if isinstance(limits, Limits):
        return {each.name: value for each in fields(Limits) if (value := getattr(limits, each.name)) is not None}
    if not isinstance(limits, Mapping | None):
        raise refused("a mapping such as {'memory': '64 MiB'} or Limits", limits)
    found = {}
    for key, value in (limits or {}).items():
        if not isinstance(key, str) or key not in _LIMITS:
            known = ", ".join(sorted(_LIMITS))
            raise Refused(f"unknown limit `{shown(key).strip(chr(39))}`; expected {known}")
        if value is not None:
            try:
                found[_LIMITS[key].path[0]] = _LIMITS[key].kind.given(value)
            except Refused as error:
                raise Refused(f"{key}: {error}") from None
    return found


# Name of a limit in host.yaml, in a program or in a manifest -> its Setting.
_LIMITS = {
    name: each
    for each in settings_of(Limits)
    for name in (each.key, each.path[0], each.key + getattr(each.kind, "suffix", ""))
}


class _Caps(Section):
    """Limits as a mapping with units, kept as it is given, or as Limits."""

    raw = True

    def check(self, value):
        _given(value)
        return value if isinstance(value, Limits) else dict(value or {})


FAILURES = ("error", "load", "value", "time", "cpu", "memory")
CALLER_ERRORS = ("ValueError", "TypeError", "LookupError")
_EXCEPTION = Text("the name of an exception, such as ValueError or main.BadOrder", FUNCTION, 255)


@documented
@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a task version's breaker opens and how it closes again.

    A call is a failure if it ends as one of `failures` ("error": the task raised; "load": its module or setup() failed;
    "value": its result cannot cross; "time", "cpu", "memory": a limit of the task), unless the caller is to blame:
    exceptions in `caller_errors` (names as in TaskError.type_name, subclasses included), time that the caller's own
    `timeout_s` ended or that passed in the queue, an `entry` that the task does not have. A lost VM always counts; a
    call that was cancelled, closed or refused never does. For the reasons see docs/decisions/breaker.md.

    It opens at once when a VM of the task wedges or crashes, after `consecutive` failures in a row, and when too many
    of the last calls failed or were slow. It stays open for `open_s`, doubled each time a probe fails, up to
    `max_open_s`. Then `probes` calls are admitted, and it closes when all of them succeed.
    """

    consecutive: int = setting(_COUNT, "failures in a row that open the breaker", 20)
    window_s: float = setting(_TIME, "how far back calls are counted", 30.0, "window")
    min_calls: int = setting(_COUNT, "calls in the window, below which rates do not count", 20)
    failure_rate: float = setting(_SHARE, "share of the window's calls; with more failures it opens", 0.5)
    slow_s: float | None = setting(_TIME, "a call that takes longer is slow", None, "slow", unset="none is")
    slow_rate: float = setting(_SHARE, "share of the window's calls; with more slow ones it opens", 0.8)
    open_s: float = setting(_TIME, "how long it stays open", 5.0, "open_time")
    max_open_s: float = setting(_TIME, "the same at most, doubled for each failed probe", 300.0, "max_open_time")
    probes: int = setting(_COUNT, "calls that must succeed before it closes", 2)
    enabled: bool = setting(_FLAG, "false: it never opens", True)
    failures: tuple[str, ...] = setting(
        Items(Choice(*FAILURES)), "outcomes that count as failures; a lost VM always does", FAILURES, unset="all"
    )
    caller_errors: tuple[str, ...] = setting(
        Items(_EXCEPTION, "a list of at most 64 names of exceptions, such as ValueError or main.BadOrder", 0, 64),
        "exceptions due to the caller, which do not count; your own: main.BadOrder",
        CALLER_ERRORS,
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@documented
@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """Which calls of a task a host records as a baseline (docs/operations.md), and where: one file per version and run
    of the host. Masks hide values, as vmhost.masking.Masking does. ConfigurationError."""

    folder: str | os.PathLike[str] = setting(Path("the path of a folder"), "folder of the files")
    share: float = setting(_SHARE, "share of the calls, chosen at random", 0.01)
    max_calls: int = setting(_COUNT, "calls per file", 100_000)
    max_bytes: int = setting(_SIZE, "size of a file", 256 << 20)
    max_value_bytes: int = setting(_SIZE, "calls with a larger value or result are left out", 1 << 20, "max_value")
    mask_fields: tuple[str, ...] = setting(
        Items(Text("the name of a field, such as email or customer.name")), "masked fields", ()
    )
    mask_patterns: tuple[str, ...] = setting(
        Items(Text("one of email, phone, card, ip, token, or a regular expression")), "masked patterns in texts", ()
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        self.masking()

    def masking(self) -> "Masking":
        """The Masking with its rules."""
        from vmhost.masking import Masking

        return Masking(self.mask_fields, self.mask_patterns)


CONSENTS = ("never", "ask")
DEBUG_SCOPES = ("config", "logs", "run", "reports")  # rights of a debugging session


@documented
@dataclass(frozen=True, slots=True)
class DebugPolicy:
    """Remote debugging of a host (docs/remote-debugging.md), by a signed link. ConfigurationError."""

    consent: str = setting(Choice(*CONSENTS), "ask: a person at the device agrees to each session", "never")
    scopes: tuple[str, ...] = setting(
        Items(Choice(*DEBUG_SCOPES), min_items=1), "the maximum rights of any session", DEBUG_SCOPES, unset="all"
    )
    keys: str | os.PathLike[str] | None = setting(
        Path("the path of a file or folder of public keys"), "signers of links besides the host itself", None
    )
    longest_s: float = setting(
        Time(le=7 * 86400, words="a time above 0, up to 7 d"), "maximum of sessions and own links", 3600.0, "longest"
    )

    def __post_init__(self) -> None:
        _check_fields(self)


MAX_QUEUE = 100_000_000
CAPS, PERMISSIONS = _Caps(each._replace(default=None) for each in settings_of(Limits)), Permissions()


@documented
@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """A host's settings for one task. `limits` may be Limits, too. ConfigurationError."""

    weight: float = setting(Number(gt=0), "its share of VMs against other tasks when they are scarce", 1.0)
    priority: int | None = setting(PRIORITY, "higher values are served first", None, unset="as in its bundle")
    queue: int = setting(Whole(1, MAX_QUEUE), "maximum number of queued calls of a task", 100_000)
    fresh: bool | None = setting(_FLAG, "a new VM for each call", None, unset="as in its bundle")
    ready: int = setting(Whole(0, 1024), "VMs that are attached before the first call, and kept", 0)
    limits: Mapping[str, "Any"] | Limits = setting(CAPS, "upper limits", dict)
    permissions: Mapping[str, "Any"] | None = setting(PERMISSIONS, "restricts `permissions` of the host further", None)
    coverage: float = setting(Number(ge=0, le=1), "share of calls whose lines and branches are recorded", 0.0)
    memory_lines: bool = setting(_FLAG, "MemoryLimitErrors name the lines that hold the memory", False)
    breaker: BreakerPolicy = setting(Part(BreakerPolicy), "when a task's breaker opens (docs/host.md)", BreakerPolicy)
    record: RecordPolicy | None = setting(
        Part(RecordPolicy, whole=True), "records calls as a baseline (docs/operations.md)", None
    )

    def __post_init__(self) -> None:
        _check_fields(self)


SEARCHES = ("measured", "fixed")


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _cores_or_two():
    return max(2, _cores())


class _Tasks(Named):
    def check(self, value):
        if not isinstance(value, Mapping):
            raise refused("a mapping of names of tasks to TaskPolicy", value)
        for name, policy in value.items():
            if not isinstance(name, str) or not isinstance(policy, TaskPolicy):
                raise Refused(f"{shown(name)}: {refused('the name of a task and its TaskPolicy', policy)}")
        return dict(value)


@documented
@dataclass(frozen=True, slots=True)
class Policy:
    """A host's settings for all its tasks. ConfigurationError."""

    max_vms: int = setting(Whole(1, 4096), "maximum number of VMs; memory is the usual limit", 1000, "vms.max")
    warm: int = setting(Whole(0, 1024), "VMs booted ahead", 1, "vms.warm")
    replace_warm: bool = setting(_FLAG, "replace a warm VM that a task got", True, None)
    max_warm: int = setting(
        Whole(0, 1024),
        "maximum of these, after tasks waited for boots",
        _cores_or_two,
        "vms.max_warm",
        unset="one per core, at least 2",
    )
    idle_s: float = setting(_TIME, "an idle VM ends after this time", 60.0, "vms.idle_time")
    memory_bytes: int | None = setting(
        _SIZE, "idle VMs end beyond this total", None, "vms.memory", unset="a quarter of the machine or container"
    )
    pressure_percent: float = setting(
        Number(gt=0, le=100), "the same at this use of memory, in per cent", 95.0, "vms.pressure"
    )
    grace_s: float = setting(
        _TIME, "for a stopped call to unwind before its VM is lost", 0.25, "grace_time", fixed=True
    )
    quantum_s: float = setting(_TIME, "how long a task keeps VMs that an equal one waits for", 0.25, None)
    cores: int = setting(_COUNT, "processors: a task of short calls gets no more VMs", _cores, None)
    boot_tries: int = setting(Whole(1, 100), "failed boots in a row before calls get an error", 3, "vms.boot_tries")
    boots_at_once: int = setting(Whole(1, 4096), "VMs that boot at the same time", _cores_or_two, None)
    function_threads: int = setting(Whole(1, 1024), "host functions that run at the same time", 4, None)
    limits: Mapping[str, "Any"] | Limits = setting(CAPS, "upper limits of every task", dict)
    allow: tuple[str, ...] = setting(
        Items(Choice(*GRANTS)), "kinds of permissions that a bundle may request", tuple(GRANTS), unset="all"
    )
    permissions: Mapping[str, "Any"] | None = setting(
        PERMISSIONS, 'what it may request of them; of kinds not listed: nothing; "*" or "*:*": all', None, unset="any"
    )
    search: str = setting(
        Choice(*SEARCHES),
        "how models' algorithms are chosen; fixed: the same bytes on all machines with one backend",
        "measured",
        fixed=True,
    )
    task: TaskPolicy = setting(Instance(TaskPolicy), "for tasks that `tasks` does not name", TaskPolicy, None)
    tasks: dict[str, TaskPolicy] = setting(
        _Tasks(Part(TaskPolicy, null=True), "a mapping of task names to settings"),
        "by name; what is missing is as for all",
        dict,
    )
    debugging: DebugPolicy = setting(
        Part(DebugPolicy, short="consent"),
        "remote debugging (docs/remote-debugging.md)",
        DebugPolicy,
        unset="never",
        fixed=True,
    )
    origins: Mapping[str, tuple[str, object]] = field(
        default_factory=dict,
        compare=False,
        repr=False,
        metadata={
            "kind": Instance(Mapping),
            "words": 'sources of values in host.yaml, by the path of the field, as in "task.breaker.window_s":'
            " (FILE:LINE, the value there)",
        },
    )

    def __post_init__(self) -> None:
        _check_fields(self)
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
