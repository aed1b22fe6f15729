"""Sequences of stored events, as streams that are read from a point on, and again: each `for` begins anew.

`TimeLevel`: all events in order of time, those of one time in the order in which they came. `PageLevel`: those of one
visit, from enter to exit. `Visits`: the page-level sequences of all visits that ended, in the order of their exits.
None needs the events in memory; TimeLevel holds those that came out of order.
"""

import heapq
from typing import NamedTuple

from vmhost.pipeline.events import PAGE_EXIT


class Point(NamedTuple):
    """A place in the time-level sequence, just behind the event with this time and position."""

    time_ms: int
    position: int


START = Point(-(1 << 63), 0)


def point(stored):
    """The Point just behind a StoredEvent."""
    return Point(stored.event.time_ms, stored.position)


class TimeLevel:
    """All events of `store` in order of time, behind the Point `after`; up to `until_ms`, where it is given.

    Iterating sees the events that were stored when it began. An event that comes later with an earlier time is not seen
    by who reads on from a Point behind it: read up to `Intake.event_time_ms - lateness_ms` to miss none.
    """

    def __init__(self, store, after=START, until_ms=None):
        self.store, self.after, self.until_ms = store, Point(*after), until_ms

    def __iter__(self):
        self.store.flush()
        with self.store.database.reader() as connection:
            spans = connection.execute(
                "SELECT earliest_ms, first, last FROM event_blocks WHERE latest_ms >= ? AND earliest_ms <= ? "
                "ORDER BY earliest_ms, first",
                (self.after.time_ms, (1 << 63) - 1 if self.until_ms is None else self.until_ms),
            ).fetchall()
        heap = []
        for earliest_ms, first, last in spans:
            # Blocks to come hold no event before `earliest_ms`; at that very time they may hold earlier positions.
            while heap and heap[0][0].time_ms < earliest_ms:
                yield heapq.heappop(heap)[1]
            for stored in self.store.read(first - 1, until=last, until_ms=self.until_ms):
                if (here := point(stored)) > self.after:
                    heapq.heappush(heap, (here, stored))
        while heap:
            yield heapq.heappop(heap)[1]


class PageLevel:
    """The events of one visit in order of time, behind the position `after`, up to the position `until`."""

    def __init__(self, store, visit, after=0, until=None):
        self.store, self.visit, self.after, self.until = store, visit, after, until

    def __iter__(self):
        found = self.store.read(self.after, until=self.until, visit=self.visit)
        return iter(sorted(found, key=point))


class Visit(NamedTuple):
    """A visit that ended: `position` is that of its exit, `events` its PageLevel sequence up to there."""

    position: int
    visit: str
    page: str
    key: str
    events: PageLevel


class Visits:
    """The visits of `store` whose exits lie behind the position `after`, as Visits; of one page or key, where given."""

    def __init__(self, store, after=0, *, page=None, key=None):
        self.store, self.after, self.page, self.key = store, after, page, key

    def __iter__(self):
        for stored in self.store.read(self.after, page=self.page, key=self.key):
            event = stored.event
            if event.name == PAGE_EXIT and event.visit:
                events = PageLevel(self.store, event.visit, until=stored.position)
                yield Visit(stored.position, event.visit, event.page, event.key, events)
