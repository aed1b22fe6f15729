"""The calls of one stream task: they wait, run in VMs, are tried again, and end as rows, state, or a dead letter.

A call ends in exactly one way, and each way has a counter. The position of a task moves on only over calls that have
ended: what a crash or a shutdown cut off is triggered again by the same event.
"""

from collections import Counter, deque
from concurrent.futures import CancelledError

from vmhost import BreakerOpenError, ClosedError, QueueFullError
from vmhost.pipeline.tables import TableError

IN_FLIGHT = 4  # calls of one task that are with the host, where task.yaml does not say more or fewer
# How a call ends, and what happened on the way.
COUNTED = ("triggered", "stored", "dead_letters", "dropped_by_overload", "retries", "put_off")


class Call:
    """One call: `position` is that of the event that triggered it, `value` what the entry function gets."""

    __slots__ = ("position", "key", "value", "tries")

    def __init__(self, position, key, value):
        self.position, self.key, self.value, self.tries = position, key, value, 0


class StreamTask:
    """`task` with its `table`. `ended(self, call, future)` is called on some thread when a call has ended.

    Not for several threads at once: the pipeline's lock is held, but for `store`, which one thread calls.
    """

    def __init__(self, task, table, tables, ended):
        self.task, self.table, self.trigger = task, table, task.trigger
        self._tables, self._ended = tables, ended
        self._waiting, self._running, self._busy_keys = deque(), 0, set()
        self._open = {}  # positions of calls that have not ended, in their order
        self._most = task.limits.concurrency or IN_FLIGHT
        self.counts = Counter(dict.fromkeys(COUNTED, 0))

    @property
    def unfinished(self):
        """How many calls have not ended."""
        return len(self._open)

    @property
    def waiting(self):
        return len(self._waiting)

    @property
    def running(self):
        return self._running

    def offer(self, call):
        """Takes a call that was triggered; by the overload rule another one may go for it, or it goes itself."""
        self.counts["triggered"] += 1
        self._open[call.position] = None
        if len(self._waiting) >= self.trigger.queue:
            self._drop(self._loser(call))
            if call.position not in self._open:
                return
        self._waiting.append(call)
        self.pump()

    def _loser(self, call):
        rule = self.trigger.overload
        if rule == "oldest":
            return call
        if rule == "coalesce":
            return next((each for each in self._waiting if each.key == call.key), self._waiting[0])
        return self._waiting[0]

    def _drop(self, call):
        self.counts["dropped_by_overload"] += 1
        if call in self._waiting:
            self._waiting.remove(call)
        del self._open[call.position]

    def pump(self):
        """Hands calls to the host, as many as may run. A host that takes none now is asked again at the next tick."""
        while self._running < self._most and (call := self._next()) is not None:
            self._waiting.remove(call)
            value = call.value
            if self.trigger.state:
                kept = self.table.state(call.key)
                value = value | {"state": kept and kept.value}
            try:
                future = self.task.submit(value)
            except BreakerOpenError, QueueFullError:
                self.counts["put_off"] += 1
                self._waiting.appendleft(call)
                return
            except ClosedError:
                return  # its position stays open: a restart triggers it again
            self._running += 1
            if self.trigger.state:
                self._busy_keys.add(call.key)
            future.add_done_callback(lambda future, call=call: self._ended(self, call, future))

    def _next(self):
        """The next call that may run: with state, calls of a key follow each other."""
        return next((call for call in self._waiting if call.key not in self._busy_keys), None)

    def returned(self, call):
        """The host is done with the call, however it ended."""
        self._running -= 1
        self._busy_keys.discard(call.key)

    def store(self, call, future):
        """Keeps the result of a call: "stored", "dead_letters", or what to do with the call instead: "retries",
        "put_off", None (it was cut off). StoreError: nothing was kept, and it may be tried again."""
        try:
            error = future.exception()
        except CancelledError:
            return None
        if error is None:
            try:
                rows, state = self._result(future.result())
                self.table.add(call.position, rows, call.key, state)
                return "stored"
            except (TableError, ValueError) as refused:
                error = refused
                call.tries = self.trigger.retries  # the same call would give the same rows
        if isinstance(error, (BreakerOpenError, QueueFullError)):
            return "put_off"
        if isinstance(error, ClosedError):
            return None
        call.tries += 1
        if call.tries <= self.trigger.retries:
            return "retries"
        traceback = getattr(error, "guest_traceback", None) or ""
        said = f"{type(error).__name__}: {error}"
        self._tables.dead_letter(
            self.task.name, self.task.version, call.position, call.value, said, traceback, call.tries, call.key
        )
        return "dead_letters"

    def _result(self, result):
        if not self.trigger.state:
            return result, None
        if type(result) is not dict or not result.keys() <= {"rows", "state"}:
            raise TableError(f"{self.task.name}: expected a dict of rows and state, got {type(result).__name__}")
        return result.get("rows"), result.get("state")

    def settled(self, call, way, fed):
        """Notes how `store` ended; `fed` is the position of the last event that was looked at."""
        if way is None:
            return
        self.counts[way] += 1
        if way in ("retries", "put_off"):
            self._waiting.appendleft(call)
        else:
            self._open.pop(call.position, None)
            self.move_on(fed)
        if way != "put_off":
            self.pump()

    def move_on(self, fed):
        """All calls before the first open one have ended."""
        self.table.complete_until(next(iter(self._open), fed + 1) - 1)
