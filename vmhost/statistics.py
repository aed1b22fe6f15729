"""Frozen snapshots of everything that a host counts. They hold plain values only and stay as they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VMStatistics:
    """One VM.

    `task` and `version` are None while it is not lent to a task. `counters` has what the native core counts beyond
    this.
    """

    id: int
    state: str
    task: str | None
    version: str | None
    live_bytes: int
    peak_bytes: int
    arenas: int
    cpu_s: float
    calls: int
    errors: int
    stops: int
    threads: int
    idle_s: float
    counters: dict


@dataclass(frozen=True, slots=True)
class VMTotals:
    """Sums over VMs, those too that are gone: how many there were, and what they counted."""

    vms: int = 0
    calls: int = 0
    errors: int = 0
    stops: int = 0
    cpu_s: float = 0.0

    def with_vms(self, vms):
        """These totals and those of `vms`, each a VMStatistics."""
        return VMTotals(
            self.vms + len(vms),
            self.calls + sum(vm.calls for vm in vms),
            self.errors + sum(vm.errors for vm in vms),
            self.stops + sum(vm.stops for vm in vms),
            self.cpu_s + sum(vm.cpu_s for vm in vms),
        )


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of the process that used the state folder before.

    `phase`: what the VM did ("boot", "load", "call", "end", "idle").
    """

    task: str
    version: str
    phase: str
    signal: str
    pid: int

    def __str__(self):
        what = f"{self.task} {self.version} ({self.phase})" if self.task else f"a VM without a task ({self.phase})"
        return f"process {self.pid} crashed with {self.signal} while {what} ran"


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    """One breaker. `state` is "closed", "open" or "half-open"; `reason` says why it opened last, None when closed."""

    state: str
    reason: str | None
    trips: int


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """One version of a task. `ended` maps how calls ended (names of `vmhost.errors.Kind`) to their number.

    `draining` is true for a version that a newer one replaced and that still ends its calls. `totals` are of all VMs
    that served it, also those that are gone."""

    name: str
    version: str
    draining: bool
    queued: int
    running: int
    vms: int
    calls: int
    failures: int
    ended: dict
    totals: VMTotals
    breaker: BreakerStatistics
    counters: dict


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """One host. `tasks` by name (current versions), `draining` the versions that are on their way out.

    `sqlite_counted`: the memory of SQLite is in what VMs are charged with. False where the process had connections of
    its own before its first host: then tasks may use SQLite beyond their limit. `totals` are of all VMs that there
    were, those of versions that are gone and of no task as well; what a VM does after it was quarantined is not in
    them. `functions` names the host functions that run now."""

    tasks: dict
    draining: tuple
    vms: tuple
    quarantined: tuple
    warm: int
    booting: int
    booted: int
    boot_failures: int
    ended: int
    starved: int
    memory_bytes: int
    sqlite_counted: bool
    totals: VMTotals
    functions: tuple


_KNOWN = ("live_bytes", "peak_bytes", "arenas", "cpu_s", "calls", "errors", "stops", "threads", "idle_s")


def of_vm(native, task=None, version=None):
    """The VMStatistics of a native VM that serves `task` `version`."""
    counters = dict(native.statistics())
    for name in ("id", "state"):
        counters.pop(name, None)  # told above already
    known = {name: counters.pop(name, 0) for name in _KNOWN}
    return VMStatistics(id=native.id, state=native.state, task=task, version=version, counters=counters, **known)
