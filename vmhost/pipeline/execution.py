"""The calls of one stream task: they wait, run in VMs, are retried, and end as rows, state or a dead letter.

A call ends in exactly one of the ways in ENDS, and each has a counter: `triggered` is the sum of these and of the open
calls. The task's table records the open calls; those that a crash or a shutdown cut off are made again.
"""

import contextlib
import time
from concurrent.futures import CancelledError

from vmhost import BreakerOpenError, ClosedError, QueueFullError, TimeLimitError, VMHostError
from vmhost.pipeline.tables import DEAD_LETTERS, STORED, TRIGGERED, TableError
from vmhost.pipeline.visits import Value
from vmhost.pipeline.waiting import WaitingCalls
from vmhost.stores import StoreDamagedError, StoreError

IN_FLIGHT = 4  # calls of one task that the host has at once, where task.yaml does not say
# Short calls: while calls return within SHORT_S, the host gets more of them, so that a VM that has ended one finds the
# next: up to AHEAD for each that may run, and up to PART_OF_QUEUE of the queue.
SHORT_S, AHEAD, PART_OF_QUEUE = 0.05, 8, 1 / 4
STUCK_S = 30.0  # after so long with an open breaker or without progress, waits no longer count the task
DROPPED, FORGOTTEN, EXPIRED = "dropped_by_overload", "forgotten", "expired"
# FORGOTTEN: the key was forgotten. EXPIRED: after a restart the event was no longer in the store.
ENDS = (STORED, DEAD_LETTERS, DROPPED, FORGOTTEN, EXPIRED)
RETRIES, PUT_OFF = "retries", "put_off"
COUNTED = (TRIGGERED, *ENDS, RETRIES, PUT_OFF)
STALE = "stale"  # the call's input held events that were forgotten since; it is made again without them


def _no_messages(position, key, rows):
    return contextlib.nullcontext()


class Call:
    """One call. `position` is that of the event that triggered it, `start` that of the first event of its match.
    `value` is what the entry function gets: a `visits.Value`, or a function that reads it from the store when the call
    is made. `table`: where its rows go.
    """

    __slots__ = ("position", "start", "key", "value", "table", "tries", "forgotten", "stale", "handed_s")

    def __init__(self, position, start, key, value):
        self.position, self.start, self.key, self.value = position, start, key, value
        self.table, self.tries, self.forgotten, self.stale = None, 0, False, False
        self.handed_s = 0.0  # when it was handed to the host; monotonic clock

    def forget(self, key):
        """Removes events of `key` from a call of another key; True if there were any."""
        if type(self.value) is not Value:
            return False  # it reads from the store later, when the events are gone
        less = self.value.without(key)
        if less is not None:
            self.value = less
        return less is not None


class Failed:
    """Stands for the future of a call that never reached the host."""

    def __init__(self, error):
        self._error = error

    def exception(self):
        return self._error

    def stop(self):
        pass


class StreamTask:
    """`task` with its `table`. `ended(self, call, future)` is called, on any thread, when a call has ended.

    Not thread-safe: callers hold the pipeline's lock, except for `store`, which a single thread calls.
    """

    def __init__(self, task, table, ended):
        self.task, self.table, self.trigger = task, table, task.trigger
        self._ended = ended
        self.waiting = WaitingCalls(self.trigger.state)
        self.running = {}  # position: (call, future), of calls that the host has or whose results are not stored yet
        self.paused = False  # no call goes to the host
        self.old_tables = []  # of earlier versions, whose calls may still run
        self.admits = None  # for a task with an audience: a function that says whether a key is in it
        self.outside = 0  # calls that were not made, as their key is outside of the audience
        self.reaching = _no_messages  # a context in which a call's rows are stored
        self._progress_s = 0.0  # when the idle task last got a call, or a call that had begun ended; monotonic clock
        self._refused_since_s = None  # when the breaker first refused a call after the last stored result
        self._size()

    def _size(self):
        self._least = self._window = self.task.limits.concurrency or IN_FLIGHT
        self._most = self._least + min(self._least * (AHEAD - 1), int(self.trigger.queue * PART_OF_QUEUE))

    @property
    def counts(self):
        counts = self.table.counts
        return {name: counts[name] for name in COUNTED}

    @property
    def unfinished(self):
        """How many calls have not ended."""
        return len(self.waiting) + len(self.running)

    @property
    def is_stuck(self):
        """Whether the task has calls and the host begins none: the breaker stays open, or calls reach their time limit
        before they get a VM."""
        if not self.unfinished or self.holds_up and time.monotonic() - self._progress_s < STUCK_S:
            return False
        return not any(type(future) is Failed or future.running() for _, future in self.running.values())

    @property
    def holds_up(self):
        """Whether sources wait for room in this task's queue. Not while its breaker stays open: other tasks would get
        no events either."""
        return self._refused_since_s is None or time.monotonic() - self._refused_since_s < STUCK_S

    @property
    def is_refused(self):
        """Whether the task's breaker refuses calls, and no result was stored since."""
        return self._refused_since_s is not None

    @property
    def room(self):
        """How many calls may be offered before one is dropped."""
        return self.trigger.queue - len(self.waiting)

    # ---- new calls

    def offer(self, call, bounded=True):
        """Takes a triggered call. Where the queue is full, the overload rule drops another call or this one; not
        `bounded`: none is dropped. A call whose key is outside of the task's audience is not made."""
        if self.admits is not None and not self.admits(call.key):
            self.outside += 1
            return
        if not self.unfinished:
            self._progress_s = time.monotonic()
        call.table = self.table
        self.table.begin(call.position, call.start)
        if bounded and self.room <= 0:
            loser = self._call_to_drop(call)
            self.table.end(loser.position, DROPPED)
            if loser is call:
                return
            self.waiting.remove(loser)
        if self.waiting or self.trigger.state or not self._has_room() or not self._submit(call):
            self.waiting.add(call)
            self.pump()

    def _has_room(self):
        return not self.paused and len(self.running) < self._window

    def _call_to_drop(self, call):
        rule = self.trigger.overload
        if rule == "oldest":
            return call
        same = self.waiting.oldest(call.key) if rule == "coalesce" else None
        return same if same is not None else self.waiting.oldest()

    def resume(self, call):
        """Takes a call that was still open when the pipeline last ended."""
        self._progress_s = time.monotonic()
        call.table = self.table
        self.waiting.add(call)

    def pump(self):
        """Hands as many calls to the host as may run. If the host takes none now, the next tick tries again."""
        while self._has_room() and (call := self.waiting.take()) is not None:
            if not self._submit(call):
                self._put_back(call)
                return

    def _put_back(self, call):
        self.waiting.add(call, first=True)
        self.waiting.free(call.key)

    def _submit(self, call):
        """False if the call has to wait."""
        try:
            if callable(call.value):
                call.value = call.value()
            value = call.value.crossing()
            if self.trigger.state:
                kept = self.table.state(call.key)
                value["state"] = kept and kept.value
            future = self.task.submit(value)
        except BreakerOpenError:
            if self._refused_since_s is None:
                self._refused_since_s = time.monotonic()
            self._count(PUT_OFF)
            return False
        except QueueFullError:
            self._count(PUT_OFF)
            return False
        except ClosedError:
            return False  # the call stays open: a restart makes it
        except StoreDamagedError as error:
            call.tries = self.trigger.retries  # no retry: it would be damaged again
            future = Failed(error)
        except StoreError:
            self._count(PUT_OFF)
            return False
        except VMHostError as error:
            future = Failed(error)
        except Exception as error:  # an error must not end the submitting thread
            future = Failed(error)
        call.handed_s = time.monotonic()
        self.running[call.position] = call, future
        if type(future) is Failed:
            self._ended(self, call, future)
        else:
            future.when_ended(lambda: self._ended(self, call, future))
        return True

    def _count(self, name):
        self.table.count(name)

    # ---- ended calls

    def store(self, call, future):
        """Stores the result of a call and returns how it ended, or what is to happen instead: RETRIES, PUT_OFF, or None
        (it was cut off). StoreError: nothing was stored, and the caller may try again."""
        try:
            error = future.exception()
        except CancelledError:
            return None
        if error is None:
            try:
                rows, state = self._result(future.result())
                with self.reaching(call.position, call.key, rows):
                    call.table.add(call.position, rows, call.key, state)
                return STORED
            except (TableError, ValueError) as refused:
                error = refused
                call.tries = self.trigger.retries  # the same call would give the same rows
        if isinstance(error, (BreakerOpenError, QueueFullError)):
            return PUT_OFF
        if isinstance(error, TimeLimitError) and not future.began():
            return PUT_OFF  # its time ran out in the host's queue
        if isinstance(error, ClosedError):
            return None
        if call.tries < self.trigger.retries:
            return RETRIES
        traceback = getattr(error, "guest_traceback", None) or ""
        message = f"{type(error).__name__}: {error}"
        value = self.dead_letter_value(call)
        call.table.give_up(call.position, value, message, traceback, call.tries + 1, call.key)
        return DEAD_LETTERS

    def _result(self, result):
        if not self.trigger.state:
            return result, None
        if type(result) is not dict or not result.keys() <= {"rows", "state"}:
            raise TableError(f"{self.task.name}: expected a dict of rows and state, got {type(result).__name__}")
        return result.get("rows"), result.get("state")

    @staticmethod
    def dead_letter_value(call):
        """A call as its dead letter shows it: its value, or, where that was never read, its position and key."""
        return call.value.plain() if type(call.value) is Value else {"position": call.position, "key": call.key}

    def settled(self, call, way):
        """Takes the outcome of `store`: the call is over, waits again, or stays open for a restart."""
        self.running.pop(call.position, None)
        now_s = time.monotonic()
        if way != PUT_OFF:
            self._progress_s = now_s
        if way == STORED:
            self._refused_since_s = None
        is_short = now_s - call.handed_s < SHORT_S
        self._window = min(self._window + 1, self._most) if is_short else self._least
        if way in (RETRIES, PUT_OFF, STALE):
            if way != STALE:
                self._count(way)
            call.tries += way == RETRIES
            if call.table is not self.table:
                self.table.adopt(call.table, (call.position,))
            call.stale, call.table = False, self.table
            self._put_back(call)
        elif way is None:
            return  # the host is closing, or the task is withdrawn
        else:
            self.waiting.free(call.key)
        if way != PUT_OFF:
            self.pump()

    # ---- changes

    def forget(self, key):
        """Ends the calls of `key`, and restarts those of other keys whose input holds its events. Returns how many
        ended. Running ones are stopped and their results discarded: see `Call.forgotten` and `Call.stale`."""
        ended = 0
        for call in self.waiting:
            if call.key == key:
                self.waiting.remove(call)
                call.table.end(call.position, FORGOTTEN)
                ended += 1
            else:
                call.forget(key)
        for call, future in list(self.running.values()):
            if call.key == key and not call.forgotten:
                call.forgotten = True
                call.table.end(call.position, FORGOTTEN)
                ended += 1
                future.stop()
            elif call.forget(key):
                call.stale = True
                future.stop()
        return ended

    def put_in_place(self, table):
        """Switches to a new version of the task, with this table; waiting calls go over to it."""
        old, self.table, self.trigger = self.table, table, self.task.trigger
        self._size()
        waiting, self.waiting = self.waiting, WaitingCalls(self.trigger.state)
        for call in waiting:
            call.table = table
            self.waiting.add(call)
        if self.trigger.state:
            for call, _ in self.running.values():
                self.waiting.hold(call.key)
        table.adopt(old, [call.position for call in self.waiting])
        self.old_tables.append(old)

    def tables_let_go(self):
        """Tables of earlier versions that no call uses any more; each is returned once."""
        used = {id(call.table) for call, _ in self.running.values()}
        released = [table for table in self.old_tables if id(table) not in used]
        self.old_tables = [table for table in self.old_tables if id(table) in used]
        return released
