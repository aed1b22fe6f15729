"""The calls of one stream task: they wait, run in VMs, are tried again, and end as rows, state, or a dead letter.

A call ends in exactly one way, and each way has a counter: `triggered` is the sum of ENDS and of the calls that are
open. The task's table knows which calls are open; what a crash or a shutdown cut off is called again.
"""

import contextlib
import time
from concurrent.futures import CancelledError

from vmhost import BreakerOpenError, ClosedError, QueueFullError, TimeLimitError, VMHostError
from vmhost.pipeline.tables import DEAD_LETTERS, STORED, TRIGGERED, TableError
from vmhost.pipeline.visits import Value
from vmhost.pipeline.waiting import WaitingCalls
from vmhost.stores import StoreDamagedError, StoreError

IN_FLIGHT = 4  # calls of one task that are with the host, where task.yaml does not say more or fewer
# While calls come back within SHORT_S, a VM that has ended one finds the next: more are with the host, up to AHEAD for
# each that may run, and up to a part of the queue.
SHORT_S, AHEAD, PART_OF_QUEUE = 0.05, 8, 1 / 4
STUCK_S = 30.0  # nobody waits for a task whose breaker has been open, or that has made no progress, for so long
DROPPED, FORGOTTEN, EXPIRED = "dropped_by_overload", "forgotten", "expired"
# `forgotten`: its person was. `expired`: after a restart its event was no longer in the store.
ENDS = (STORED, DEAD_LETTERS, DROPPED, FORGOTTEN, EXPIRED)
RETRIES, PUT_OFF = "retries", "put_off"
COUNTED = (TRIGGERED, *ENDS, RETRIES, PUT_OFF)
STALE = "stale"  # the call was given what is forgotten by now, and is made again without it


def _reaching_nobody(position, key, rows):
    return contextlib.nullcontext()


class Call:
    """One call. `position` is that of the event that triggered it, `start` that of the event its match began with;
    `value` what the entry function gets, a `visits.Value`, or a function that reads it from the store when the call is
    made. `table`: where its rows go.
    """

    __slots__ = ("position", "start", "key", "value", "table", "tries", "forgotten", "stale", "handed_s")

    def __init__(self, position, start, key, value):
        self.position, self.start, self.key, self.value = position, start, key, value
        self.table, self.tries, self.forgotten, self.stale = None, 0, False, False
        self.handed_s = 0.0  # when the host got it, on the monotonic clock

    def forget(self, key):
        """Takes what is of `key` out of a call that is of somebody else; whether there was anything."""
        if type(self.value) is not Value:
            return False  # what it reads will be gone
        less = self.value.without(key)
        if less is not None:
            self.value = less
        return less is not None


class Failed:
    """The future of a call that did not get as far as to the host."""

    def __init__(self, error):
        self._error = error

    def exception(self):
        return self._error

    def stop(self):
        pass


class StreamTask:
    """`task` with its `table`. `ended(self, call, future)` is called on some thread when a call has ended.

    Not for several threads at once: the pipeline's lock is held, but for `store`, which one thread calls.
    """

    def __init__(self, task, table, ended):
        self.task, self.table, self.trigger = task, table, task.trigger
        self._ended = ended
        self.waiting = WaitingCalls(self.trigger.state)
        self.running = {}  # position: (call, future), of calls that the host has, or whose results are not kept yet
        self.paused = False  # no call goes to the host
        self.old_tables = []  # of versions before, whose calls may run still
        self.admits = None  # of a task with an audience: whether a key is in it
        self.outside = 0  # calls that were not made: their key is not
        self.reaching = _reaching_nobody  # a context in which rows of a call are stored
        self._progress_s = 0.0  # when a call came to the idle task, or one ended that had begun; monotonic clock
        self._refused_since_s = None  # when the breaker first refused a call since the last one that was stored
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
        """Whether the task has calls, and the host begins none of them: its breaker stays open, or a call's time is
        over before it gets a VM."""
        if not self.unfinished or self.holds_up and time.monotonic() - self._progress_s < STUCK_S:
            return False
        return not any(type(future) is Failed or future.running() for _, future in self.running.values())

    @property
    def holds_up(self):
        """Whether sources wait for room in this task's queue. They do not where its breaker stays open: other tasks
        would get no events for as long."""
        return self._refused_since_s is None or time.monotonic() - self._refused_since_s < STUCK_S

    @property
    def room(self):
        """How many calls may be offered before one is dropped."""
        return self.trigger.queue - len(self.waiting)

    # ---- calls come

    def offer(self, call, bounded=True):
        """Takes a call that was triggered; where too many wait, by the overload rule another one goes for it, or it
        goes itself. Not `bounded`: none is dropped. One whose key is outside of the task's audience is not made."""
        if self.admits is not None and not self.admits(call.key):
            self.outside += 1
            return
        if not self.unfinished:
            self._progress_s = time.monotonic()
        call.table = self.table
        self.table.begin(call.position, call.start)
        if bounded and self.room <= 0:
            loser = self._loser(call)
            self.table.end(loser.position, DROPPED)
            if loser is call:
                return
            self.waiting.remove(loser)
        if self.waiting or self.trigger.state or not self._has_room() or not self._submit(call):
            self.waiting.add(call)
            self.pump()

    def _has_room(self):
        return not self.paused and len(self.running) < self._window

    def _loser(self, call):
        rule = self.trigger.overload
        if rule == "oldest":
            return call
        same = self.waiting.oldest(call.key) if rule == "coalesce" else None
        return same if same is not None else self.waiting.oldest()

    def resume(self, call):
        """Takes a call that was open when the pipeline ended."""
        self._progress_s = time.monotonic()
        call.table = self.table
        self.waiting.add(call)

    def pump(self):
        """Hands calls to the host, as many as may run. A host that takes none now is asked again at the next tick."""
        while self._has_room() and (call := self.waiting.take()) is not None:
            if not self._submit(call):
                self._put_back(call)
                return

    def _put_back(self, call):
        self.waiting.add(call, first=True)
        self.waiting.free(call.key)

    def _submit(self, call):
        """False where it is to wait."""
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
            return False  # it stays open: a restart makes the call
        except StoreDamagedError as error:
            call.tries = self.trigger.retries  # it would be damaged the next time too
            future = Failed(error)
        except StoreError:
            self._count(PUT_OFF)
            return False
        except VMHostError as error:
            future = Failed(error)
        except Exception as error:  # it must not end the thread that hands calls over
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

    # ---- calls end

    def store(self, call, future):
        """Keeps the result of a call and gives how it ended, or what to do with it instead: RETRIES, PUT_OFF, None (it
        was cut off). StoreError: nothing was kept, and it may be tried again."""
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
            return PUT_OFF  # others were before it for too long
        if isinstance(error, ClosedError):
            return None
        if call.tries < self.trigger.retries:
            return RETRIES
        traceback = getattr(error, "guest_traceback", None) or ""
        said = f"{type(error).__name__}: {error}"
        value = self.told(call)
        call.table.give_up(call.position, value, said, traceback, call.tries + 1, call.key)
        return DEAD_LETTERS

    def _result(self, result):
        if not self.trigger.state:
            return result, None
        if type(result) is not dict or not result.keys() <= {"rows", "state"}:
            raise TableError(f"{self.task.name}: expected a dict of rows and state, got {type(result).__name__}")
        return result.get("rows"), result.get("state")

    @staticmethod
    def told(call):
        """What a dead letter says of a call: its value; where that cannot be said, whose call it was."""
        return call.value.plain() if type(call.value) is Value else {"position": call.position, "key": call.key}

    def settled(self, call, way):
        """Notes how `store` ended."""
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
        """Ends the calls of `key`, and lets those that were given something of it begin again without. Returns how many
        ended. What runs is stopped, and what it gives is not kept: `forgotten` and `stale` say so."""
        gone = 0
        for call in self.waiting:
            if call.key == key:
                self.waiting.remove(call)
                call.table.end(call.position, FORGOTTEN)
                gone += 1
            else:
                call.forget(key)
        for call, future in list(self.running.values()):
            if call.key == key and not call.forgotten:
                call.forgotten = True
                call.table.end(call.position, FORGOTTEN)
                gone += 1
                future.stop()
            elif call.forget(key):
                call.stale = True
                future.stop()
        return gone

    def put_in_place(self, table):
        """The task has a new version now, with this table; calls that wait are its own from now on."""
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
        """Tables of versions before that no call uses any more; each is told of once."""
        used = {id(call.table) for call, _ in self.running.values()}
        gone = [table for table in self.old_tables if id(table) not in used]
        self.old_tables = [table for table in self.old_tables if id(table) in used]
        return gone
