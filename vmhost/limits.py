"""Limits of a task and policies of a host, as `task.yaml` and `host.yaml` write them.

Quantities are numbers in the unit that the field's name says, or text with a unit ("64 MiB", "500 ms"). A host only
ever narrows what a bundle asks for: `Limits.capped_by` takes the smaller of each.
"""

import os
import re
from dataclasses import dataclass, field, fields, replace

from vmhost.errors import ConfigurationError

_BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def _quantity(value, units, what, example):
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match and match[2].lower() in units and float(match[1]) > 0:
        return float(match[1]) * units[match[2].lower()]
    raise ConfigurationError(f"{what}: expected a quantity above zero such as {example}, got {value!r}")


def byte_count(value, what="size"):
    """`value` ("64 MiB" or a number of bytes) as an int. Raises ConfigurationError naming `what`."""
    return int(_quantity(value, _BYTES, what, "64 MiB"))


def seconds(value, what="time"):
    """`value` ("500 ms" or a number of seconds) as a float. Raises ConfigurationError naming `what`."""
    return float(_quantity(value, _SECONDS, what, "500 ms"))


def whole(value, what="count", least=1):
    """`value` as an int of at least `least`. Raises ConfigurationError naming `what`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise ConfigurationError(f"{what}: expected a whole number of at least {least}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may use. `memory_bytes` is the soft limit; `hard_bytes`, where allocations fail, is 25 % above.

    None means no limit of that kind. `concurrency` is the number of VMs that may serve the task at once.
    """

    memory_bytes: int = 64 << 20
    wall_s: float | None = None
    cpu_s: float | None = None
    stack_bytes: int = 1 << 20
    concurrency: int = 4

    @property
    def hard_bytes(self):
        return self.memory_bytes + self.memory_bytes // 4

    @classmethod
    def read(cls, limits, where):
        """From the mapping `limits` of task.yaml, host.yaml or a manifest. `where` names it in errors."""
        given = {}
        for key, value in (limits or {}).items():
            try:
                name, convert = _LIMIT_KEYS[key]
            except KeyError:
                raise ConfigurationError(
                    f"{where}: unknown limit `{key}`; expected {', '.join(sorted(_LIMIT_KEYS))}") from None
            if value is not None:
                given[name] = convert(value, f"{where}: {key}")
        return cls(**given)

    def capped_by(self, caps):
        """These limits, none of them wider than in the mapping `caps` (host.yaml's `limits`)."""
        most = Limits.read(caps, "host limits")
        given = {_LIMIT_KEYS[key][0] for key, value in (caps or {}).items() if value is not None}
        changes = {}
        for name in given:
            mine, cap = getattr(self, name), getattr(most, name)
            changes[name] = cap if mine is None else min(mine, cap)
        return replace(self, **changes)


_LIMIT_KEYS = {
    "memory": ("memory_bytes", byte_count), "memory_bytes": ("memory_bytes", byte_count),
    "wall_time": ("wall_s", seconds), "wall_s": ("wall_s", seconds), "wall_time_s": ("wall_s", seconds),
    "cpu_time": ("cpu_s", seconds), "cpu_s": ("cpu_s", seconds), "cpu_time_s": ("cpu_s", seconds),
    "stack": ("stack_bytes", byte_count), "stack_bytes": ("stack_bytes", byte_count),
    "concurrency": ("concurrency", whole),
}


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a task version's breaker opens and how it closes again.

    It opens at once when a VM of the task wedges or crashes, after `consecutive` failures in a row, and when of the
    calls of the last `window_s` seconds (at least `min_calls`) more than `failure_rate` failed, or more than
    `slow_rate` took longer than `slow_s` (None: slowness is not looked at). It stays open for `open_s`, doubled each
    time a probe fails up to `max_open_s`; then `probes` calls are admitted, and closes when all of them succeed.
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


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """What a host decides about one task.

    `weight`: its share of VMs against other tasks when they are scarce. `priority`: tasks of a higher one are served
    first (None: as the bundle says). `queue`: calls that may wait. `fresh`: a new VM for each call (None: as the
    bundle says). `ready`: VMs attached before the first call comes. `limits`: caps on the bundle's own, as in
    host.yaml.
    """

    weight: float = 1.0
    priority: int | None = None
    queue: int = 100_000
    fresh: bool | None = None
    ready: int = 0
    limits: dict = field(default_factory=dict)
    breaker: BreakerPolicy = BreakerPolicy()


PERMISSIONS = ("read", "write", "net", "env", "host")
SEARCHES = ("measured", "fixed")


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a host decides for all its tasks.

    `max_vms`: VMs that serve at once. `warm`, `max_warm`: VMs booted ahead, and how far that number may grow when
    tasks had to wait for a boot. `idle_s`: an idle VM is retired after this time. `memory_bytes`: idle VMs are
    retired when all VMs together hold more; None is a quarter of the machine's memory. `pressure_percent`: the same
    when so much of the machine's memory is in use. `grace_s`: the time a stopped call has to unwind before its VM is
    quarantined. `replace_warm`: a warm VM that a task got is replaced (False: for a process that ends after a call). `quantum_s`: how long a task may keep VMs that another task with as good a claim waits for. `cores`:
    processors that VMs may count on: a task of short calls gets no more VMs than that. `boot_tries`: boots that may
    fail in a row before waiting calls get their error. `allow`: the kinds of permissions that a bundle may ask for.
    `search`: how models' algorithms are chosen: "measured", by what this machine's cores do, or "fixed", by built-in
    numbers, so that every machine with the same backend gives the same bytes.
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
    allow: tuple = PERMISSIONS
    search: str = "measured"
    limits: dict = field(default_factory=dict)
    task: TaskPolicy = TaskPolicy()
    tasks: dict = field(default_factory=dict)

    def __post_init__(self):
        if self.search not in SEARCHES:
            raise ConfigurationError(f"search: expected one of {', '.join(SEARCHES)}, got {self.search!r}")
        if self.max_warm < self.warm:
            object.__setattr__(self, "max_warm", self.warm)

    def for_task(self, name):
        """The TaskPolicy of task `name`."""
        return self.tasks.get(name, self.task)


def known_fields(cls):
    """The names of the fields of a dataclass, for error messages and schemas."""
    return tuple(f.name for f in fields(cls))
