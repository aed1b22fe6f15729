"""Sequences of stored events, as streams that are read from a given point on; each `for` starts anew.

`TimeLevel`: all events by time, events of equal time in order of arrival. `PageLevel`: the events of one visit, from
enter to exit. `Visits`: the page-level sequences of all ended visits, in the order of their exits. None of these loads
all events into memory; TimeLevel holds those that arrived out of order.
"""

import heapq
from typing import NamedTuple

from vmhost.pipeline.events import PAGE_EXIT


class Point(NamedTuple):
    """A place in the time-level sequence, just after the event with this time and position."""

    time_ms: int
    position: int


START = Point(-(1 << 63), 0)


def point(stored):
    """The Point just after a StoredEvent."""
    return Point(stored.event.time_ms, stored.position)


class TimeLevel:
    """All events of `store` by time, after the Point `after`, up to `until_ms` where given.

    Iterating sees the events that were stored when it began. A reader that continues from a Point does not see an event
    that arrives later with an earlier time: read up to `Intake.event_time_ms - lateness_ms` to miss none.
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
            # Later blocks have no event before `earliest_ms`; at that very time they may have earlier positions.
            while heap and heap[0][0].time_ms < earliest_ms:
                yield heapq.heappop(heap)[1]
            for stored in self.store.read(first - 1, until=last, until_ms=self.until_ms):
                if (here := point(stored)) > self.after:
                    heapq.heappush(heap, (here, stored))
        while heap:
            yield heapq.heappop(heap)[1]


class PageLevel:
    """The events of one visit by time, after the position `after`, up to the position `until`."""

    def __init__(self, store, visit, after=0, until=None):
        self.store, self.visit, self.after, self.until = store, visit, after, until

    def __iter__(self):
        found = self.store.read(self.after, until=self.until, visit=self.visit)
        return iter(sorted(found, key=point))


class Visit(NamedTuple):
    """An ended visit: `position` is that of its exit, `events` its PageLevel sequence up to there."""

    position: int
    visit: str
    page: str
    key: str
    events: PageLevel


class Visits:
    """The visits of `store` with exits after the position `after`, as Visits; only of one page or key, where given."""

    def __init__(self, store, after=0, *, page=None, key=None):
        self.store, self.after, self.page, self.key = store, after, page, key

    def __iter__(self):
        for stored in self.store.read(self.after, page=self.page, key=self.key):
            event = stored.event
            if event.name == PAGE_EXIT and event.visit:
                events = PageLevel(self.store, event.visit, until=stored.position)
                yield Visit(stored.position, event.visit, event.page, event.key, events)
