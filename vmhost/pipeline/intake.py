"""Intake: the checks and decisions on events before they are stored. docs/pipeline-events.md describes the rules.

*Event time* is the latest time of any event so far; while no events come, the clock moves it on. An event that is more
than `lateness_ms` behind event time, or a second exit of a visit, goes to the table `late_events`; an event whose id is
known is dropped; both are counted. Another event of a visit that is over is stored, and counted as `after_exit`: it is
of its person and time, but does not begin the visit again (matching.py keeps it from the visit's triggers). A visit
without an exit gets one: after `visit_timeout_ms` without events, at the next enter of the same key (`enter_closes`),
at the bound of open visits, and at shutdown. Such an exit has the time of the visit's last event and the contents
{"closed_by": "timeout", "enter", "bound" or "shutdown"}.
"""

import heapq
import threading
import time
from collections import deque

from vmhost.pipeline import passes
from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.values import pack, unpack

STEPS = (
    """
    CREATE TABLE late_events (
        id INTEGER PRIMARY KEY, why TEXT NOT NULL, key TEXT NOT NULL, time_ms INTEGER NOT NULL,
        stored_ms INTEGER NOT NULL, event BLOB NOT NULL
    );
    CREATE INDEX late_events_key ON late_events (key)
    """,
)
LATE, AFTER_CLOSE, AFTER_EXIT = "late", "after_close", "after_exit"
TIMEOUT, ENTER, BOUND, SHUTDOWN = "timeout", "enter", "bound", "shutdown"
ENTER_CLOSES = ("none", "covered", "page", "key")
# Counters that the store keeps, under `intake.NAME`.
COUNTED = (
    "duplicates",
    LATE,
    AFTER_CLOSE,
    AFTER_EXIT,
    "late_dropped",
    "ahead",
    "clock_jumps",
    "ids_dropped",
    *(f"closed_by_{why}" for why in (TIMEOUT, ENTER, BOUND, SHUTDOWN)),
)


_NEVER_MS = (1 << 63) - 1
_EVENT_TIME = "intake.event_time_ms"  # a note of the store: event time as of its last event


class _Visit:
    __slots__ = ("page", "key", "began_ms", "last_ms", "covered_ms")

    def __init__(self, page, key, began_ms):
        self.page, self.key, self.began_ms, self.last_ms = page, key, began_ms, began_ms
        self.covered_ms = None  # its `last_ms` when a visit of the same key that began later ended


class Intake:
    """Takes events into `store` (an EventStore). Not thread-safe.

    `lateness_ms`: how far an event may be behind event time. `visit_timeout_ms`: a visit is closed after this long
    without events, in event time. `idle_ms`: after this long without events, by `clock` (seconds since 1970), `tick`
    moves event time on. `ahead_ms`: an event further ahead of the clock does not move event time. `ids_ms`: ids are
    remembered for at least this long, in event time, but at most `max_ids` of them. `enter_closes`: the open visits of
    its key that a page_enter closes: none; "covered": those without an event since another visit of the key began and
    ended; "page": those to the same page; "key": all. Nested visits need one of the first two; a key that is on two
    devices at once needs the first.
    """

    with_every_commit = True

    def __init__(
        self,
        store,
        *,
        lateness_ms=60_000,
        visit_timeout_ms=30 * 60_000,
        idle_ms=10_000,
        ahead_ms=5 * 60_000,
        ids_ms=3_600_000,
        max_ids=200_000,
        max_visits=100_000,
        max_late=10_000,
        enter_closes="none",
        clock=time.time,
    ):
        if enter_closes not in ENTER_CLOSES:
            raise ValueError(f"enter_closes: expected one of {', '.join(ENTER_CLOSES)}, got {enter_closes!r}")
        self.store = store
        self.lateness_ms, self.visit_timeout_ms, self.idle_ms = lateness_ms, visit_timeout_ms, idle_ms
        self.ahead_ms, self.ids_ms, self.max_ids = ahead_ms, ids_ms, max_ids
        self.max_visits, self.max_late, self.enter_closes = max_visits, max_late, enter_closes
        self._clock = clock
        self._time_ms = None  # event time; None before the first event
        self._clock_ms = self._now_ms()  # clock at the last event, or when event time was last moved on
        self._open = {}  # visit: _Visit
        self._of_key = {}  # key: {visit: None}, in the order of entering
        self._deadlines = []  # heap of (time, visit); an entry earlier than its visit's deadline is pushed again
        self._closed = {}  # visit: the time of its exit; beyond max_visits the oldest go
        self._ids, self._old_ids, self._ids_since_ms = set(), set(), None
        self._undo = deque()
        self._counts, self._new_late = dict.fromkeys(COUNTED, 0), []
        self._counts_before = None  # the counts before the current batch, once it has changed any
        self._lock = threading.Lock()  # guards what is to be written, which the flushing thread takes
        self._late, self._ready, self._written = [], dict(self._counts), dict(self._counts)
        store.database.migrate("pipeline.intake", STEPS)
        self._recover()
        store.database.attach(self)

    def _now_ms(self):
        return int(self._clock() * 1000)

    @property
    def event_time_ms(self):
        """The latest time of an event so far, moved on by the clock; None before the first event."""
        return self._time_ms

    def visits_of(self, key):
        """The open visits of `key`."""
        return tuple(self._of_key.get(key, ()))

    @property
    def ended_visits(self):
        """{visit: time of its exit} of visits that are over, as far as they are known."""
        return dict(self._closed)

    @property
    def open_visits(self):
        return tuple(self._open)

    # ---- taking events

    def take(self, events, notes=None):
        """Stores `events`, in order, except for those that the rules refuse, together with the exits that they cause.
        Returns the stored ones as StoredEvents, in order of position.

        `notes`: as for `EventStore.append_stored`. Raises as `EventStore.append_many`; then nothing was taken, and the
        same events may come again.
        """
        return self._all_or_none(self._checked, events, notes=notes)

    def _all_or_none(self, function, *arguments, notes=None):
        """Stores the events that `function` returns; where that fails, restores all state."""
        self._undo.clear()
        before_ms, clock_ms = self._time_ms, self._clock_ms
        self._counts_before = None
        try:
            events = function(*arguments)
            notes = notes or {}
            if events and self._time_ms is not None:
                notes = notes | {_EVENT_TIME: self._time_ms}
            stored = self.store.append_stored(events, notes) if events or notes else []
        except BaseException:
            while self._undo:
                undo, *values = self._undo.pop()
                undo(*values)
            self._time_ms, self._clock_ms = before_ms, clock_ms
            if self._counts_before is not None:
                self._counts = self._counts_before
            self._new_late.clear()
            raise
        if self._counts_before is not None:
            with self._lock:
                self._late += self._new_late
                self._new_late.clear()
                if (over := len(self._late) - self.max_late) > 0:
                    del self._late[:over]  # none of these was written yet: the disk is full or slow
                    self._counts["late_dropped"] += over
                self._ready = dict(self._counts)
        return stored

    def _count(self, name, n=1):
        if self._counts_before is None:
            self._counts_before = dict(self._counts)
        self._counts[name] += n

    def _checked(self, events):
        """The events that are to be stored."""
        out, visits = [], self._open
        now_ms = self._now_ms()
        latest_ms, ahead_ms = self._time_ms, now_ms + self.ahead_ms
        if latest_ms is None:
            latest_ms = -(1 << 62)
        late_ms = latest_ms - self.lateness_ms
        behind_ms, usual_ahead_ms = min(self.lateness_ms, _NEVER_MS), min(ahead_ms, _NEVER_MS)
        events = events if type(events) is list else list(events)
        index, count = 0, len(events)
        while index < count:
            due_ms = min(self._deadlines[0][0], _NEVER_MS) if self._deadlines else _NEVER_MS
            begin = index
            index, now_latest_ms = passes.usual(events, begin, visits, latest_ms, behind_ms, usual_ahead_ms, due_ms)
            if index > begin:
                out += events[begin:index]
                if now_latest_ms > latest_ms:
                    self._time_ms = latest_ms = now_latest_ms
                    late_ms = latest_ms - self.lateness_ms
                if index == count:
                    break
            event = events[index]
            index += 1
            at_ms, name = event.time_ms, event.id
            if type(at_ms) is not int or not -_NEVER_MS <= at_ms <= _NEVER_MS:
                passes.columns((event,))  # refuses what cannot be stored before it changes event time or a visit
            if name is not None and self._known(name):
                self._count("duplicates")
                continue
            if at_ms > latest_ms:
                if at_ms > ahead_ms:
                    self._count("ahead")
                else:
                    self._time_ms, late_ms, latest_ms = at_ms, at_ms - self.lateness_ms, at_ms
                    if self._deadlines and self._deadlines[0][0] <= at_ms:
                        self._close_due(out)
            elif at_ms < late_ms:
                if latest_ms - now_ms <= self.lateness_ms:
                    self._keep_late(LATE, event, now_ms)
                    continue
                # event time is ahead of the clock, so the clock was set back: set event time back too
                self._count("clock_jumps")
                self._time_ms, late_ms, latest_ms = at_ms, at_ms - self.lateness_ms, at_ms
            if event.visit:
                visit = visits.get(event.visit)
                if visit is not None and event.name != PAGE_EXIT:
                    if at_ms > visit.last_ms:
                        visit.last_ms = at_ms
                elif not self._enter_or_exit(event, visit, out):
                    self._keep_late(AFTER_CLOSE, event, now_ms)
                    continue
            out.append(event)
        if events:
            self._clock_ms = now_ms
        return out

    def _enter_or_exit(self, event, visit, out):
        """Handles an event of a visit that is not open, or one that ends a visit; False if the visit is over."""
        name = event.visit
        if visit is not None:
            self._shut(name, event.time_ms)
            self._cover(visit)
            return True
        if name in self._closed and not begins_again(event, self._closed[name]):
            if event.name == PAGE_EXIT:
                return False
            self._count(AFTER_EXIT)
            return True
        if event.name == PAGE_EXIT:
            self._remember(name, event.time_ms)
            return True
        if event.name == PAGE_ENTER and self.enter_closes != "none":
            for other in list(self._of_key.get(event.key, ())):
                if self._closes_visit(self._open[other], event):
                    self._close(other, ENTER, out)
        while len(self._open) >= self.max_visits:
            self._close(self._next_due()[1], BOUND, out)
        if name in self._closed:
            self._undo.append((self._closed.__setitem__, name, self._closed.pop(name)))
        self._begin(name, _Visit(event.page, event.key, event.time_ms))
        self._undo.append((self._forget_visit, name))
        return True

    def _cover(self, ended):
        """The visit ended: others of its key without an event since it began are covered."""
        for other in self._of_key.get(ended.key, ()):
            outer = self._open[other]
            if outer.last_ms <= ended.began_ms:
                outer.covered_ms = outer.last_ms

    def _closes_visit(self, visit, event):
        """Whether the page_enter `event` closes an open visit of its key."""
        if self.enter_closes == "covered":
            return visit.covered_ms == visit.last_ms
        return self.enter_closes == "key" or visit.page == event.page

    def _begin(self, name, visit):
        self._open[name] = visit
        self._of_key.setdefault(visit.key, {})[name] = None
        heapq.heappush(self._deadlines, (visit.last_ms + self.visit_timeout_ms, name))

    def _forget_visit(self, name):
        visit = self._open.pop(name)
        of_key = self._of_key[visit.key]
        del of_key[name]
        if not of_key:
            del self._of_key[visit.key]
        return visit

    def _shut(self, name, at_ms):
        visit = self._forget_visit(name)
        self._undo.append((self._begin, name, visit))
        self._remember(name, at_ms)
        return visit

    def _remember(self, name, at_ms):
        before = self._closed.pop(name, None)
        self._closed[name] = at_ms
        self._undo.append((self._recall, name, before))
        if len(self._closed) > self.max_visits:
            oldest = next(iter(self._closed))
            self._undo.append((self._closed.__setitem__, oldest, self._closed.pop(oldest)))

    def _recall(self, name, before):
        if before is None:
            self._closed.pop(name, None)
        else:
            self._closed[name] = before

    def _close(self, name, why, out):
        visit = self._shut(name, self._open[name].last_ms)
        self._count(f"closed_by_{why}")
        out.append(Event(PAGE_EXIT, visit.last_ms, visit.page, name, {"closed_by": why}, None, visit.key))

    def _next_due(self):
        """(deadline, visit) of the open visit that is due first, or None."""
        heap = self._deadlines
        while heap:
            due_ms, name = heap[0]
            visit = self._open.get(name)
            if visit is None:
                heapq.heappop(heap)
            elif (due := visit.last_ms + self.visit_timeout_ms) > due_ms:
                heapq.heapreplace(heap, (due, name))
            else:
                return heap[0]
        return None

    def _close_due(self, out):
        while (due := self._next_due()) is not None and due[0] <= self._time_ms:
            self._close(due[1], TIMEOUT, out)

    def _known(self, name):
        """Whether the id was seen before; it is remembered from now on."""
        if name in self._ids or name in self._old_ids:
            return True
        now_ms = self._time_ms or 0
        if self._ids_since_ms is None:
            self._ids_since_ms = now_ms
        full = len(self._ids) * 2 >= self.max_ids
        if full or not 0 <= now_ms - self._ids_since_ms < self.ids_ms:
            if full:
                self._count("ids_dropped", len(self._old_ids))
            self._old_ids, self._ids, self._ids_since_ms = self._ids, set(), now_ms
        self._ids.add(name)
        self._undo.append((self._ids.discard, name))
        return False

    # ---- passing of time

    def tick(self, now_ms=None):
        """After `idle_ms` without events, moves event time on by the time passed on the clock; returns the exits of
        visits that this closes, stored. `now_ms`: the time, where it is not that of the Intake's clock.
        """
        now_ms = self._now_ms() if now_ms is None else now_ms
        passed_ms = now_ms - self._clock_ms
        if passed_ms < 0:
            self._clock_ms = now_ms  # the clock was set back: start from here
        if self._time_ms is None or passed_ms < self.idle_ms:
            return []
        return self._all_or_none(self._moved_on, passed_ms, now_ms)

    def _moved_on(self, passed_ms, now_ms):
        self._time_ms += passed_ms
        self._clock_ms = now_ms
        out = []
        self._close_due(out)
        return out

    def _shut_down(self):
        out = []
        for name in list(self._open):
            self._close(name, SHUTDOWN, out)
        return out

    def close(self, keep_visits=False):
        """Shutdown: closes the open visits and returns their exits, stored. `keep_visits`: they stay open, and the next
        Intake of this store continues them. Closing again does nothing.
        """
        closed = [] if keep_visits else self._all_or_none(self._shut_down)
        self.store.flush()
        self.store.database.detach(self)
        return closed

    # ---- persistent state

    def _keep_late(self, why, event, now_ms):
        self._count(why)
        passes.columns((event,))
        parts = [event.name, event.time_ms, event.page, event.visit, event.contents, event.id, event.key]
        self._new_late.append((why, event.key, event.time_ms, now_ms, pack(parts)))

    @property
    def pending(self):
        return self._ready != self._written

    def write(self, connection):
        """Called by the database inside of a transaction."""
        if not self.pending:
            return None
        with self._lock:
            late, counts = list(self._late), self._ready
        if late:
            connection.executemany("INSERT INTO late_events VALUES (NULL, ?, ?, ?, ?, ?)", late)
            (first, last) = connection.execute("SELECT min(id), max(id) FROM late_events").fetchone()
            if last - first >= self.max_late:
                gone = connection.execute("DELETE FROM late_events WHERE id <= ?", (last - self.max_late,)).rowcount
                self.store.database.count("intake.late_dropped", gone)
        for name, value in counts.items():
            self.store.database.count(f"intake.{name}", value - self._written[name])
        return _Written(self, late, counts)

    def late_events(self):
        """The events that were refused as late, oldest first: (why, stored_ms, Event); why is "late" or
        "after_close"."""
        self.store.flush()
        with self.store.database.reader() as connection:
            rows = connection.execute("SELECT why, stored_ms, event FROM late_events ORDER BY id").fetchall()
        return [(why, stored_ms, Event(*unpack(event))) for why, stored_ms, event in rows]

    def forgotten(self, key):
        """Called by `forget`: drops the open visits of `key`, without an exit."""
        for name in list(self._of_key.get(key, ())):
            self._forget_visit(name)

    def statistics(self):
        """Counters since the store was made (COUNTED), `open_visits`, and `event_time_ms`."""
        with self.store.database.lock:  # no commit in between
            kept = self.store.database.counters()
            counters = {
                name: kept.get(f"intake.{name}", 0) + self._counts[name] - self._written[name] for name in COUNTED
            }
        return counters | {"open_visits": len(self._open), "event_time_ms": self._time_ms}

    def _recover(self):
        """Restores visits, ids and event time as of the last durable event. Reads all that is stored: whether a visit
        is over may have been decided long ago."""
        with self.store.database.reader() as connection:
            row = connection.execute("SELECT latest_ms FROM event_blocks ORDER BY first DESC LIMIT 1").fetchone()
        if row is None:
            return
        self._time_ms = self.store.database.counters().get(_EVENT_TIME, row[0])
        for head in self.store.heads():
            for name, at_ms, page, visit, key, known in zip(
                head.names, head.times, head.pages, head.visits, head.keys, head.ids
            ):
                if known is not None and at_ms >= self._time_ms - self.ids_ms:
                    self._known(known)
                if not visit:
                    continue
                if name == PAGE_EXIT:
                    if visit in self._open:
                        self._cover(self._shut(visit, at_ms))
                    else:
                        self._remember(visit, at_ms)
                elif visit in self._open:
                    self._open[visit].last_ms = max(self._open[visit].last_ms, at_ms)
                elif visit not in self._closed or (name == PAGE_ENTER and at_ms >= self._closed[visit]):
                    self._closed.pop(visit, None)
                    self._begin(visit, _Visit(page, key, at_ms))
            self._undo.clear()
        for name, visit in list(self._open.items()):
            if visit.last_ms < self._time_ms - self.visit_timeout_ms:  # its exit was forgotten, or the time-out changed
                self._forget_visit(name)


def begins_again(event, ended_ms):
    """Whether an event begins its visit anew that ended at `ended_ms`."""
    return event.name == PAGE_ENTER and event.time_ms >= ended_ms


class _Written:
    def __init__(self, intake, late, counts):
        self.intake, self.late, self.counts = intake, late, counts

    def committed(self):
        with self.intake._lock:
            done = {id(row) for row in self.late}
            self.intake._late = [row for row in self.intake._late if id(row) not in done]
            self.intake._written = self.counts

    def undone(self):
        pass
