"""Frozen snapshots of all counters of a host, as plain values."""

import array
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vmhost.errors import Kind
from vmhost.isolation import vm as isolation
from vmhost.memory_lines import MemoryLines

KINDS = tuple(kind.name for kind in Kind)  # the ways in which calls end
HISTOGRAM_UNIT_S = 128e-9  # buckets as in isolation/lanes/histogram.h


def bucket_end_s(bucket: int) -> float:
    """The upper bound of the bucket with this index, in seconds; exclusive."""
    if bucket < 7:
        return (bucket + 1) * HISTOGRAM_UNIT_S
    power, eighth = divmod(bucket + 1, 8)
    return math.ldexp(8 + eighth, power - 1) * HISTOGRAM_UNIT_S


def filled(template: str, texts: list[str], rows: list[Any]) -> str:
    """`template` once for each of `texts`, which replaces each \\0 in it; each \\1 is the next number of its row (a
    list or tuple of ints and floats, or the only number). ValueError if a row has more or fewer numbers."""
    return isolation.core().fill(template, texts, rows)


@dataclass(frozen=True, slots=True)
class VMStatistics:
    """One VM.

    `task` and `version` are None while it serves no task. `descriptors`: files, sockets and pipes that it has open.
    `counters` has the native core's other counters.
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
    descriptors: int
    idle_s: float
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class VMTotals:
    """Sums over VMs, including those that are gone: their number, and their counters."""

    vms: int = 0
    calls: int = 0
    errors: int = 0
    stops: int = 0
    cpu_s: float = 0.0

    def with_vms(self, vms: Sequence[VMStatistics]) -> VMTotals:
        """These totals plus those of `vms`, VMStatistics."""
        if not vms:
            return self
        return VMTotals(
            self.vms + len(vms),
            self.calls + sum(vm.calls for vm in vms),
            self.errors + sum(vm.errors for vm in vms),
            self.stops + sum(vm.stops for vm in vms),
            self.cpu_s + sum(vm.cpu_s for vm in vms),
        )


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of the last process that used the state folder.

    `phase`: what the VM was doing ("boot", "load", "call", "end", "idle").
    """

    task: str
    version: str
    phase: str
    signal: str
    pid: int

    def __str__(self) -> str:
        what = f"{self.task} {self.version} ({self.phase})" if self.task else f"a VM without a task ({self.phase})"
        return f"process {self.pid} crashed with {self.signal} while {what} ran"


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    """One breaker. `state` is "closed", "open" or "half-open"; `reason`: why it opened last, None if closed. `refused`:
    calls that ended with BreakerOpenError, which are not among the task's calls."""

    state: str
    reason: str | None
    trips: int
    refused: int = 0


@dataclass(frozen=True, slots=True)
class CallError:
    """One of the last errors of a task that differ. `ended`: when it was last seen, in seconds since 1970; of a task
    that fails often, some calls are looked at. `outcome`: a name of `vmhost.errors.Kind`. `message` and `traceback`
    ("" if there is none) are bounded, in printable text, and masked by the rules of the host's records."""

    ended: float
    outcome: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations of calls: counts per bucket, and the sum. Buckets are an eighth of a power of two wide.

    `counts`: an unsigned 64-bit number per bucket, in native byte order. A snapshot is not taken under a lock:
    `total_s` may include one call more than `counts`."""

    counts: bytes
    total_s: float

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, total_s={self.total_s:g})"

    @property
    def count(self) -> int:
        return sum(array.array("Q", self.counts))

    def longer_than(self, seconds: float) -> int:
        """The number of durations above `seconds`, which is rounded up by at most 12.5 %, to the start of a bucket."""
        counts = array.array("Q", self.counts)
        return sum(count for bucket, count in enumerate(counts) if bucket and bucket_end_s(bucket - 1) >= seconds)

    def quantile(self, share: float) -> float | None:
        """Seconds that `share` (0 to 1) of the durations do not exceed, at most 12.5 % too high; None if empty."""
        counts = array.array("Q", self.counts)
        wanted = max(1, math.ceil(sum(counts) * share))
        reached = itertools.accumulate(counts)
        return next((bucket_end_s(bucket) for bucket, count in enumerate(reached) if count >= wanted), None)


def reached(histograms: Sequence[Histogram], first: int, step: int, steps: int) -> list[list[int]]:
    """For each histogram: the number of durations in the first `first` buckets, with `step` more, ...: `steps`
    cumulative numbers, then the total."""
    native = isolation.core().reached
    return [native(one.counts, first, step, steps) for one in histograms]


@dataclass(frozen=True, slots=True)
class TaskMetric:
    """A series of a task's own metrics (vmhost.guest.metrics). `kind`: "counter", "gauge" or "histogram".

    For a histogram, `value` is the sum of the observations, and `counts` has the number of observations above the
    previous and up to each of `bounds`; the last one counts the rest."""

    name: str
    help: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def _are_labels(names):
    own = all(name.isascii() and name.isidentifier() and name not in ("task", "version", "le") for name in names)
    return own and len(set(names)) == len(names)


_METRIC_KINDS = ("counter", "gauge", "histogram")


def of_metrics(native):
    """(TaskMetrics, number of series beyond the limit) from a lane's metrics(). Malformed ones are left out."""
    found, left_out = native
    metrics = []
    for kind, key, value, bounds, counts in found:
        name, _, rest = key.partition("\x1f")
        help_text, *labels = rest.split("\x1f")
        if len(labels) % 2 == 0 and name.isascii() and name.isidentifier() and math.isfinite(value):
            pairs = tuple(zip(labels[::2], labels[1::2]))
            if not name.startswith("vmhost_") and _are_labels([label for label, _ in pairs]):
                metrics.append(TaskMetric(name, help_text, _METRIC_KINDS[kind], pairs, value, bounds, counts))
    return tuple(metrics), left_out


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """One version of a task. `ended` maps how calls ended (names of `vmhost.errors.Kind`) to their number.

    `draining` is true for a version that was replaced and still ends its calls. `totals` are of all VMs that served it,
    including those that are gone. `walls`: how long calls ran; `waits`: how long they waited before. `metrics`: its own
    metrics. `memory_lines`: what held the memory when it last reached its limit, with TaskPolicy.memory_lines.
    `last_errors`: those that differ, newest first."""

    name: str
    version: str
    draining: bool
    queued: int
    running: int
    vms: int
    calls: int
    failures: int
    ended: dict[str, int]
    totals: VMTotals
    breaker: BreakerStatistics
    walls: Histogram
    waits: Histogram
    counters: dict[str, int]
    metrics: tuple[TaskMetric, ...] = ()
    memory_lines: MemoryLines | None = None
    last_errors: tuple[CallError, ...] = ()


class VersionNumbers(NamedTuple):
    """The numbers of a task's version for a scrape: as in TaskStatistics, and cheaper. `ends`: calls by
    `vmhost.errors.Kind`. `walls`, `waits`: as from `reached`, then the sum in seconds and the count."""

    calls: int
    name: str
    version: str
    ends: Sequence[int]
    queued: int
    running: int
    vms: int
    cpu_s: float
    stops: int
    denied: int
    input_bytes: int
    breaker: str
    trips: int
    refused: int
    walls: Sequence[float]
    waits: Sequence[float]
    metrics: tuple[TaskMetric, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class LongCall:
    """One of the longest calls of the last five to ten minutes. `ended`: in seconds since 1970. `input_bytes`: the size
    of its input, arrays included. `outcome`: a name of `vmhost.errors.Kind`."""

    version: str
    ended: float
    wall_s: float
    wait_s: float
    input_bytes: int
    outcome: str


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """One host. `tasks` by name (current versions), `draining` the versions that end their last calls.

    `vms`: those that live. `warm` of them wait for a task, `booting` are not ready yet; `booted`, `ended` and
    `boot_failures` count since the host began. `starved`: how often a task needed a VM and could not get one.
    `sqlite_counted`: memory of SQLite counts for VMs. False if the process had SQLite connections before its first
    host: then tasks may exceed their limit with SQLite. `totals` are of all VMs so far, including those of versions
    that are gone and of no task; they exclude what a VM does after it was quarantined. `functions`: host functions that
    run now. `abandoned_threads`: threads of the process that still work in a foreign library (LAPACK) for calls that a
    stop has ended. `tables`: the statistics of embedding tables by name. `replaced`: for each loaded task, the previous
    version at its end, if there was one."""

    tasks: dict[str, TaskStatistics]
    draining: tuple[TaskStatistics, ...]
    vms: tuple[VMStatistics, ...]
    quarantined: tuple[VMStatistics, ...]
    warm: int
    booting: int
    booted: int
    boot_failures: int
    ended: int
    starved: int
    memory_bytes: int
    sqlite_counted: bool
    totals: VMTotals
    functions: tuple[str, ...]
    abandoned_threads: int = 0
    tables: dict[str, Any] = field(default_factory=dict)
    replaced: tuple[TaskStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class HostNumbers:
    """The numbers of one host for a scrape. `whole`: its HostStatistics without tasks; `versions`: loaded and draining
    ones."""

    whole: HostStatistics
    versions: list[VersionNumbers]


_KNOWN = ("live_bytes", "peak_bytes", "arenas", "cpu_s", "calls", "errors", "stops", "threads", "descriptors", "idle_s")


def of_vm(native, task=None, version=None):
    """The VMStatistics of a native VM that serves `task` `version`."""
    counters = dict(native.statistics())
    for name in ("id", "state"):
        counters.pop(name, None)  # separate fields
    known = {name: counters.pop(name, 0) for name in _KNOWN}
    return VMStatistics(id=native.id, state=native.state, task=task, version=version, counters=counters, **known)
