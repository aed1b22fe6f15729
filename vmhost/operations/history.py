"""A host's recent history: a thread samples its statistics, for charts and rates."""

import collections
import logging
import threading
import time
from dataclasses import dataclass

import numpy as np

EVERY_S = 2.0
SAMPLES = 300  # of the host: ten minutes
TASK_SAMPLES = 150  # of each task: five minutes
RATE_SAMPLES = 5  # a rate covers the last ten seconds
MAX_TASKS = 1000
MAX_EVENTS = 50

HOST_FIELDS = ("calls", "failures", "refused", "cpu_s", "memory_bytes", "queued", "running", "vms")
TASK_FIELDS = ("calls", "failures", "refused", "cpu_s", "memory_bytes", "queued", "running")
RATES = ("calls", "failures", "refused", "cpu_s")  # cumulative counters, shown as rates
_log = logging.getLogger("vmhost")


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A breaker whose state differs from the previous sample."""

    time_s: float
    task: str
    version: str
    state: str
    reason: str | None


class Series:
    """Rows of numbers by time; the last `most` are kept, as float64."""

    def __init__(self, fields, max_rows):
        self._fields, self._rows, self._count = fields, np.zeros((max_rows, len(fields) + 1)), 0

    def add(self, time_s, values):
        self._rows[self._count % len(self._rows)] = (time_s, *values)
        self._count += 1

    def _ordered(self):
        most = len(self._rows)
        return self._rows[: self._count] if self._count <= most else np.roll(self._rows, -(self._count % most), axis=0)

    def columns(self):
        """Lists by name: "time_s", and each field; those in RATES as rates per second. Starts with the second
        sample."""
        rows = self._ordered()
        between = np.maximum(np.diff(rows[:, 0]), 1e-9)
        shown = {"time_s": rows[1:, 0].tolist()}
        for index, name in enumerate(self._fields, 1):
            column = np.maximum(np.diff(rows[:, index]), 0) / between if name in RATES else rows[1:, index]
            shown[name] = column.tolist()
        return shown

    def rate(self, name):
        """The rate of a field in RATES, per second over the last RATE_SAMPLES; 0 before there are two samples."""
        rows = self._ordered()[-RATE_SAMPLES - 1 :]
        if len(rows) < 2:
            return 0.0
        index = self._fields.index(name) + 1
        return float(max(0.0, rows[-1, index] - rows[0, index]) / max(rows[-1, 0] - rows[0, 0], 1e-9))


class History:
    """Samples `statistics()` every EVERY_S seconds on a thread of its own, between `start` and `stop`."""

    def __init__(self, statistics, *, clock=time.time):
        self._statistics, self._clock = statistics, clock
        self.host = Series(HOST_FIELDS, SAMPLES)
        self._tasks = {}  # name -> Series
        self._breakers = {}  # (name, version) -> (state, trips)
        self.breaker_changes = collections.deque(maxlen=MAX_EVENTS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vmhost-history", daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def task(self, name):
        """The Series of the task `name`; an empty one for a task that was never sampled."""
        return self._tasks.get(name) or Series(TASK_FIELDS, 1)

    def _run(self):
        while True:
            try:
                self.sample()
            except Exception:
                _log.exception("vmhost: the dashboard could not sample the host; it tries again")
            if self._ended.wait(EVERY_S):
                return

    def sample(self):
        """Takes one sample now."""
        now, host = self._clock(), self._statistics()
        memory = collections.Counter()
        for vm in host.vms:
            memory[vm.task] += vm.live_bytes
        tasks = list(host.tasks.values())
        self.host.add(
            now,
            (
                sum(task.calls for task in tasks),
                sum(task.failures for task in tasks),
                sum(task.breaker.refused for task in tasks),
                host.totals.cpu_s,
                host.memory_bytes,
                sum(task.queued for task in tasks),
                sum(task.running for task in tasks),
                len(host.vms),
            ),
        )
        for name in self._tasks.keys() - host.tasks.keys():
            del self._tasks[name]
        for task in tasks:
            series = self._tasks.get(task.name)
            if series is None:
                if len(self._tasks) >= MAX_TASKS:
                    continue
                series = self._tasks[task.name] = Series(TASK_FIELDS, TASK_SAMPLES)
            counts = (task.calls, task.failures, task.breaker.refused, task.totals.cpu_s)
            series.add(now, (*counts, memory[task.name], task.queued, task.running))
        self._look_at_breakers(now, tasks)

    def _look_at_breakers(self, now, tasks):
        found = {}
        for task in tasks:
            key, breaker = (task.name, task.version), task.breaker
            found[key] = (breaker.state, breaker.trips)
            if found[key] != self._breakers.get(key, ("closed", 0)):
                change = BreakerChange(now, task.name, task.version, breaker.state, breaker.reason)
                self.breaker_changes.appendleft(change)
        self._breakers = found
