"""Task: the handle for callers. Version: one loaded bundle behind it.

    task(value)     blocks           task.submit(value)   a concurrent.futures.Future
    await task.run(value)            task.map(values)     results in order, as they come

A Task stays the same object when its host loads a new version; later calls go to that. While the breaker is closed,
each way of calling goes straight to the native lane; opening the breaker swaps the bound methods that the handle holds.
"""

import functools
import itertools
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator

from vmhost.bytecode.fields import shown
from vmhost.errors import BreakerOpenError, ClosedError, Kind, QueueFullError, VMHostError
from vmhost.future import TaskFuture
from vmhost.isolation.vm import MIN_STACK_BYTES
from vmhost.runtime.breaker import CLOSED, Breaker, Counts, Refused
from vmhost.runtime.last_errors import LastErrors
from vmhost.statistics import VMTotals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vmhost.baseline import Recorded
    from vmhost.bytecode.stream_task import Table, Trigger
    from vmhost.limits import Limits

# Names in a BreakerPolicy's `failures`.
_KINDS = {
    "error": Kind.TASK_ERROR,
    "load": Kind.LOAD_ERROR,
    "value": Kind.VALUE,
    "time": Kind.TIME_LIMIT,
    "cpu": Kind.CPU_LIMIT,
    "memory": Kind.MEMORY_LIMIT,
}

_MAP_WINDOW = 1024  # calls of one map() at a time; more would only fill the queue


class Version:
    """One loaded bundle: its lane, limits, policy and breaker. Created by the host, used by scheduler and pool.

    `permissions`: grants for its VMs, None: the manifest's."""

    def __init__(self, service, manifest, digest, limits, policy, *, clock, wall, permissions=None):
        self.service = service
        self.name = manifest.name
        self.version = manifest.version
        self.entry = manifest.entry
        self.digest = digest
        self.limits = limits
        self.policy = policy
        self.functions = frozenset(manifest.permissions.get("host", ()))
        self.trigger, self.table = manifest.trigger, manifest.table
        self.fresh = manifest.fresh if policy.fresh is None else policy.fresh
        self.priority = manifest.priority if policy.priority is None else policy.priority
        self.stack_bytes = max(limits.stack_bytes, MIN_STACK_BYTES)
        self.permissions = permissions or {kind: list(names) for kind, names in manifest.permissions.items()}
        self.draining = False
        self.given_up = 0  # VMs of it in quarantine
        self.totals = VMTotals()  # of its VMs that are gone
        self.muted = False  # its lane no longer reports that it is starved
        self.closed_because = None  # a sentence once calls are refused
        self._failures = (Kind.VM_LOST, *(_KINDS[name] for name in policy.breaker.failures))
        self.lane = None  # set by the service, which makes it
        # Calls and their seconds at the last sample, and the mean between that and the sample before.
        self._recent = (0, 0.0, float("inf"))
        self.last_errors = LastErrors(self.name, self.version)
        self.recorder = None  # a runtime.recorder.Recorder while its calls are recorded
        self._probes = {}  # native call -> token, for submitted probes not yet reported to the breaker
        # No reference cycle: a version that ends frees its code at once, not at some collection.
        self_ref = weakref.ref(self)
        self.breaker = Breaker(
            policy.breaker, lambda breaker: service.breaker_changed(self_ref()), clock=clock, wall=wall
        )

    def has(self, limits, policy, permissions):
        """Whether it was made with these."""
        return (self.limits, self.policy) == (limits, policy) and permissions in (None, self.permissions)

    @property
    def key(self):
        """The key of its saved breaker."""
        return (self.name, self.version, self.digest.hex())

    def observe(self):
        """Updates the breaker with the calls that have ended."""
        self.breaker.observe(self.counts())

    def counts(self):
        """The lane's totals, for the breaker."""
        counters = self.lane.statistics()
        ends, excused = counters["ends"], counters["excused"]
        failures = sum(max(0, ends[kind] - excused[kind]) for kind in self._failures)
        return Counts(ends[Kind.OK] + failures, failures, ends[Kind.VM_LOST], counters["slow"])

    def ended(self):
        """The number of its calls that have ended, in any way."""
        return sum(self.lane.statistics()["ends"])

    def mute(self, muted):
        """Sets whether the lane reports that it is starved."""
        self.muted = muted
        self.lane.mute(muted)

    def recent_call_s(self):
        """Mean run time of the last 64 or more calls, in seconds; infinite while too few have ended."""
        counters = self.lane.statistics()
        calls, wall_s = sum(counters["ends"]), counters["wall_s"]
        seen_calls, seen_s, mean_s = self._recent
        if calls - seen_calls >= 64:
            mean_s = (wall_s - seen_s) / (calls - seen_calls)
            self._recent = calls, wall_s, mean_s
        return mean_s

    # -- while the breaker is not closed --------------------------------------------------------------------------

    def _admit(self):
        try:
            return self.breaker.admit()
        except Refused as refused:
            # Callers that have the results of the last probes must find it closed, even before the service reacts.
            ended = [call for call in list(self._probes) if call.done()]
            if ended:
                for call in ended:
                    self._submitted_probe_ended(call)
                return self._admit()
            self.breaker.count_refused()
            error = BreakerOpenError(
                f"{self.name} {self.version}: the breaker is open: {refused.reason}; try again in "
                f"{refused.retry_in_s:.1f} s, or load a version that works",
                task=self.name,
                version=self.version,
            )
            error.retry_in_s = refused.retry_in_s
            raise error from None

    def guarded_call(self, value, timeout_s=None, priority=0, entry=None):
        token = self._admit()
        if token is None:
            return self.lane.call(value, timeout_s, priority, entry)
        call = self._probe(token, value, timeout_s, priority, entry)
        try:
            return call.result()
        finally:
            if not call.done():
                call.stop()  # the caller was interrupted
            self._probe_ended(token, call)

    def guarded_submit(self, value, timeout_s=None, priority=0, entry=None):
        token = self._admit()
        if token is None:
            return self.lane.submit(value, timeout_s, priority, entry)
        call = self._probe(token, value, timeout_s, priority, entry)
        self._probes[call] = token
        self.service.watch(call, lambda: self._submitted_probe_ended(call))
        return call

    def guarded_submit_many(self, values, timeout_s=None, priority=0, entry=None):
        if self.breaker.state == CLOSED:
            return self.lane.submit_many(values, timeout_s, priority, entry)
        return [self.guarded_submit(value, timeout_s, priority, entry) for value in values]

    def _probe(self, token, value, timeout_s, priority, entry):
        try:
            return self.lane.submit(value, timeout_s, priority, entry)
        except BaseException:
            self.breaker.probe_ended(token, None)
            raise

    def _submitted_probe_ended(self, call):
        token = self._probes.pop(call, None)
        if token is not None:  # not yet reported to the breaker
            self._probe_ended(token, call)

    def _probe_ended(self, token, call):
        kind = call.kind if call.done() else Kind.CANCELLED
        succeeded = None
        if kind == Kind.OK:
            succeeded = True
        elif kind in self._failures and not call.excused:
            succeeded = False
        self.breaker.probe_ended(token, succeeded)

    # -- after closing --------------------------------------------------------------------------------------------

    def refuse(self, *_):
        raise ClosedError(f"{self.name} {self.version}: {self.closed_because}", task=self.name, version=self.version)


@functools.cache
def _replayed():
    from vmhost.runtime.recorder import replayed  # here: few hosts replay

    return replayed


class Replay:
    """A recorded call that runs again: `Task.replay`."""

    __slots__ = ("_call", "recorded", "_codec")

    def __init__(self, call, recorded, codec):
        self._call, self.recorded, self._codec = call, recorded, codec

    def done(self) -> bool:
        return self._call.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits, at most `timeout_s`; has it ended?"""
        return self._call.wait(timeout_s)

    def result(self) -> "Recorded":
        """The call as recorded in the replay, however it ended; waits for it."""
        self._call.wait()
        return _replayed()(self._call, self.recorded, self._codec.pack)

    def stop(self) -> None:
        """Ends it, queued or running."""
        self._call.stop()


class Task:
    """A loaded task, to be called: `task(value)` waits, `submit` returns a future, `run` awaits, `map` takes many.

    Each call takes one `value` that can cross into a VM (builtin values, arrays, dates, decimals and similar;
    docs/writing-tasks.md) and returns one. `timeout_s` counts from submission. `priority` (-8 to 7) goes before order
    of arrival. `entry` ("module:function") calls another function of the bundle than the manifest's. Errors: TaskError,
    TimeLimitError, MemoryLimitError, PermissionDenied, BreakerOpenError, QueueFullError, VMLostError, ClosedError,
    CrossingError.
    """

    __slots__ = ("_call", "_submit", "_submit_many", "_current", "_service", "_host", "__weakref__")

    def __init__(self, host, service, current):
        self._host = host  # a handle keeps its host alive
        self._service = service
        self._move(current)

    def _move(self, version):
        """Directs calls to `version` from now on, or to its guarded methods. Called with the host's lock held."""
        self._current = version
        if version.closed_because is not None:
            self._call = self._submit = self._submit_many = version.refuse
        elif version.breaker.state == CLOSED:
            lane = version.lane
            self._call, self._submit, self._submit_many = (
                version.recorder.before(lane)
                if version.recorder is not None and version.recorder.stopped is None
                else (lane.call, lane.submit, lane.submit_many)
            )
        else:
            self._call, self._submit = version.guarded_call, version.guarded_submit
            self._submit_many = version.guarded_submit_many

    def __repr__(self):
        return f"<vmhost.Task {self.name} {self.version}>"

    @property
    def name(self) -> str:
        """The name in its task.yaml."""
        return self._current.name

    @property
    def version(self) -> str:
        """The version that new calls use."""
        return self._current.version

    @property
    def limits(self) -> "Limits":
        """The limits of a call: those of its task.yaml, as far as the host allows them."""
        return self._current.limits

    @property
    def trigger(self) -> "Trigger | None":
        """When a pipeline calls the task: its task.yaml's `trigger` as vmhost.bytecode.stream_task.Trigger, or None."""
        return self._current.trigger

    @property
    def table(self) -> "Table | None":
        """What a pipeline keeps of its results: `table` as vmhost.bytecode.stream_task.Table, or None."""
        return self._current.table

    def __call__(
        self, value: "Any" = None, *, timeout_s: float | None = None, priority: int = 0, entry: str | None = None
    ) -> "Any":
        """Runs the task on `value` in a VM and waits for the result."""
        call = self._call
        try:
            return call(value, timeout_s, priority, entry)
        except ClosedError:
            if self._call is call or self._current.closed_because is not None:
                raise
            # The handle has just moved to a new version.
            return self(value, timeout_s=timeout_s, priority=priority, entry=entry)
        except VMHostError:
            self._current.observe()  # so that this thread's next call finds the breaker open
            raise

    def submit(
        self, value: "Any" = None, *, timeout_s: float | None = None, priority: int = 0, entry: str | None = None
    ) -> TaskFuture:
        """Queues a call; returns a concurrent.futures.Future with `stop()`, which also ends a running call."""
        return TaskFuture(self._submitted(value, timeout_s, priority, entry), self)

    def _submitted(self, value, timeout_s, priority, entry):
        submit = self._submit
        try:
            return submit(value, timeout_s, priority, entry)
        except ClosedError:
            if self._submit is submit or self._current.closed_because is not None:
                raise
            return self._submitted(value, timeout_s, priority, entry)

    async def run(
        self, value: "Any" = None, *, timeout_s: float | None = None, priority: int = 0, entry: str | None = None
    ) -> "Any":
        """Awaits a call. Cancelling the asyncio task stops it, even while it runs."""
        import asyncio  # here: few hosts use it, and it takes long to import

        asyncio.get_running_loop()
        call = self._submitted(value, timeout_s, priority, entry)
        await until_done(self._service, call)
        try:
            return call.result()
        except VMHostError:
            self._current.observe()
            raise

    def replay(
        self, recorded: "Recorded", *, timeout_s: float | None = None, faults: Iterable[dict[str, "Any"]] = ()
    ) -> "Replay":
        """Submits a recorded call again: clocks, randomness and host functions answer from the record.

        `faults`: rules for host functions, {"function": name or "*", "fails": text, "slow_s": seconds, "every": n}."""
        observed = recorded.observed or {}
        given = {"answers": observed.get("answers", {})}
        given |= {name: observed[name] for name in ("random", "functions") if observed.get(name)}
        if faults:
            given["faults"] = list(faults)
        lane = self._current.lane
        call = lane.submit(recorded.value, timeout_s, 0, recorded.entry, False, given)
        return Replay(call, recorded, self._service.codec)

    def map(
        self,
        values: Iterable["Any"],
        *,
        timeout_s: float | None = None,
        priority: int = 0,
        entry: str | None = None,
        window: int = _MAP_WINDOW,
    ) -> Iterator["Any"]:
        """Calls the task on each of `values`; returns an iterator over the results in order.

        Calls start at once, at most `window` ahead of the results taken; `values` may be endless. An error of a call is
        raised at its place and ends the iteration. Then, and when the iterator is dropped, calls not yet taken are
        cancelled; Ctrl-C also stops running ones. `timeout_s` counts from this call of map() for all items together:
        TimeLimitError, a TimeoutError."""
        if not isinstance(window, int) or isinstance(window, bool):
            raise TypeError(f"window: expected a whole number of at least 1, got {shown(window)}")
        if window < 1:
            raise ValueError(f"window: expected at least 1, got {shown(window)}")
        end = end_after(timeout_s)
        try:
            source = _Source(values)
        except TypeError as error:
            raise TypeError(f"values: expected something to iterate over, got {shown(values)}: {error}") from error
        calls = deque()
        self._feed(source, calls, window, end, priority, entry)
        return self._results(source, calls, window, end, priority, entry)

    def _feed(self, source, calls, number, end, priority, entry):
        """Submits the next `number` values; fewer if the queue is full and calls of this map will make room."""
        values = source.take(number)
        while values:
            left = None if end is None else max(1e-9, end - time.monotonic())
            submit_many = self._submit_many
            try:
                calls.extend(submit_many(values, left, priority, entry))
                return
            except QueueFullError:
                if len(values) > 1:
                    source.give_back(values[len(values) // 2 :])
                    del values[len(values) // 2 :]
                elif calls:
                    source.give_back(values)
                    return
                else:
                    raise
            except ClosedError:
                if self._submit_many is submit_many or self._current.closed_because is not None:
                    raise

    def _results(self, source, calls, window, end, priority, entry):
        half = window // 2
        try:
            while calls:
                if len(calls) <= half and not source.empty:
                    self._feed(source, calls, window - len(calls), end, priority, entry)
                calls[0].wait()  # still in `calls` if interrupted, so that it is stopped
                yield calls.popleft().result()
        except VMHostError:
            self._current.observe()
            raise
        except KeyboardInterrupt:
            for call in calls:
                call.stop()  # nobody else could stop running ones
            raise
        finally:
            for call in calls:
                call.cancel()


async def until_done(service, call):
    """Waits until the native call of the service has ended; cancelling the waiter stops the call."""
    import asyncio

    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    service.watch(call, lambda: _wake(loop, ended))
    try:
        await ended
    except BaseException:
        call.stop()
        raise


def end_after(timeout_s, name="timeout_s"):
    """The end of a time-out, given as argument `name`, on the monotonic clock; None: never. TypeError, ValueError."""
    if timeout_s is None:
        return None
    try:
        seconds = float(timeout_s) if not isinstance(timeout_s, (str, bytes, bytearray)) else None
    except TypeError:
        seconds = None
    except OverflowError:
        raise ValueError(f"{name}: expected a number of seconds, got {shown(timeout_s)}") from None
    if seconds is None:
        raise TypeError(f"{name}: expected a number of seconds or None, got {shown(timeout_s)}")
    if not seconds >= 0:
        raise ValueError(f"{name}: expected a number of seconds from 0 on, got {shown(timeout_s)}")
    return time.monotonic() + seconds


class _Source:
    """An iterator over the values of a map that can take back unsubmitted ones."""

    def __init__(self, values):
        self._values = iter(values)
        self._back = []
        self.empty = False

    def take(self, number):
        taken, self._back = self._back[:number], self._back[number:]
        taken.extend(itertools.islice(self._values, number - len(taken)))
        self.empty = len(taken) < number
        return taken

    def give_back(self, values):
        self._back = values + self._back
        self.empty = False


def _wake(loop, ended):
    try:
        loop.call_soon_threadsafe(_set, ended)
    except RuntimeError:
        pass  # the loop was closed: nobody waits


def _set(ended):
    if not ended.done():
        ended.set_result(None)
