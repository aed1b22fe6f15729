"""Which tasks does an event trigger? A trigger engine, primed with the stored events before it was made."""

import heapq

from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT
from vmhost.pipeline.triggers import TriggerEngine


class Matching:
    """A TriggerEngine with the conditions of stream tasks, fed with the events after `position`.

    An event that comes after the exit of its visit triggers tasks of the time level only: the visit was complete, and
    triggered, before. `after_exit`: the positions of such events among those that `feed` got last. Not thread-safe.
    """

    def __init__(self, position=0):
        self.engine = TriggerEngine()
        self.position = position
        self.triggers = {}  # name: Trigger
        self.after_exit = set()
        self._ended = {}  # visit: time of its exit, of those that did not begin anew; the oldest go

    def add(self, name, trigger):
        """TriggerError."""
        self.engine.add(name, *condition(trigger))
        self.triggers[name] = trigger

    def remove(self, name):
        self.engine.remove(name)
        del self.triggers[name]

    def change(self, name, trigger):
        """Replaces a condition; it begins anew if ids, level or time differ. TriggerError: nothing has changed."""
        if condition(trigger) != condition(self.triggers[name]):
            self.engine.change(name, *condition(trigger))
        self.triggers[name] = trigger

    def check(self, name, trigger):
        """TriggerError if `change` would refuse the trigger."""
        if condition(trigger) != condition(self.triggers[name]):
            self.engine.add(f"\0{name}", *condition(trigger))
            self.engine.remove(f"\0{name}")

    def begin_anew(self, store, visits):
        """Drops all matches under way and looks for them again, as `prime`."""
        self.engine = TriggerEngine()
        for name, trigger in self.triggers.items():
            self.engine.add(name, *condition(trigger))
        ended = self._ended
        self._ended = {}
        self.prime(store, visits)
        self._ended = ended or self._ended  # exits may be among what was forgotten

    @property
    def under_way(self):
        return self.engine.statistics()["matches"]

    def knows(self, ended):
        """Adds ended visits, {visit: time of its exit}, whose events it was not fed with."""
        self._ended = ended | self._ended

    def _comes_after_exit(self, name, visit, time_ms):
        if visit not in self._ended:
            return False
        if name == PAGE_ENTER and time_ms >= self._ended[visit]:
            del self._ended[visit]
            return False
        return name != PAGE_EXIT

    def _end(self, visit, time_ms):
        self.engine.end_visit(visit)
        self._ended[visit] = time_ms
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def feed(self, events):
        """The conditions that StoredEvents complete: {position: [(name, start), …]}. Exits end their visits."""
        self.position = events[-1].position
        self.after_exit = set()
        found, begin = {}, 0
        for index, stored in enumerate(events):
            event = stored.event
            visit = event.visit
            if not visit:
                continue
            if event.name == PAGE_EXIT:
                found.update(self.engine.feed_many(events[begin : index + 1]))
                self._end(visit, event.time_ms)
                begin = index + 1
            elif visit in self._ended and self._comes_after_exit(event.name, visit, event.time_ms):
                if begin < index:
                    found.update(self.engine.feed_many(events[begin:index]))
                if fired := self.engine.feed(event.name, event.page, "", event.time_ms, stored.position):
                    found[stored.position] = fired
                self.after_exit.add(stored.position)
                begin = index + 1
        if begin == len(events) - 1:
            event, position = events[-1].event, events[-1].position
            if fired := self.engine.feed(event.name, event.page, event.visit, event.time_ms, position):
                found[position] = fired
        elif begin < len(events):
            found.update(self.engine.feed_many(events[begin:] if begin else events))
        return found

    def feed_head(self, head, indexes):
        """The same for some events of a block's Head, given by ascending indexes."""
        found, run, visits = {}, [], []
        for index in indexes:
            name, visit, time_ms = head.names[index], head.visits[index], head.times[index]
            run.append(index)
            visits.append("" if visit and self._comes_after_exit(name, visit, time_ms) else visit)
            if name == PAGE_EXIT:
                self._feed_run(head, run, visits, found)
                if visit:
                    self._end(visit, time_ms)
                run, visits = [], []
        if run:
            self._feed_run(head, run, visits, found)
        return found

    def _feed_run(self, head, run, visits, found):
        names, pages, times = ([column[index] for index in run] for column in (head.names, head.pages, head.times))
        columns = names, pages, visits, times
        positions = [head.positions[index] for index in run]
        found.update(self.engine.feed_columns(*columns, positions))
        self.position = positions[-1]

    def prime(self, store, visits=()):
        """Feeds the stored events up to `position` that may belong to matches under way: for page-level conditions
        those of `visits`, the visits that may go on; for time-level ones those within `within_ms`, or all where one has
        no limit.

        Conditions completed here are not returned: they were seen before, or began too early.
        """
        until, levels = self.position, {trigger.level for trigger in self.triggers.values()}
        recent, recent_ms = (), None
        if "time" in levels:
            spans = [trigger.within_ms for trigger in self.triggers.values() if trigger.level == "time"]
            recent_ms = -(1 << 63)
            if None not in spans and (last := next(iter(store.heads(until - 1)), None)) is not None:
                recent_ms = last.times[0] - max(spans) - _BEHIND_MS
            recent = store.heads(earliest_ms=recent_ms)
        wanted = set(visits) if "page" in levels else set()
        last = 0
        for head in heapq.merge(recent, store.heads_with(wanted, until), key=lambda head: head.positions[0]):
            if head.positions[0] <= last:
                continue  # from both iterators
            if head.positions[0] > until:
                break
            last = head.positions[0]
            indexes = [
                index
                for index, position in enumerate(head.positions)
                if position <= until
                and (head.visits[index] in wanted or (recent_ms is not None and head.times[index] >= recent_ms))
            ]
            self.feed_head(head, indexes)
        self.position = until


_MAX_ENDED = 100_000
_BEHIND_MS = 3_600_000  # allowance for events of one block that are behind others: they count at the latest time


def condition(trigger):
    """(sequences, level, within_ms), the arguments of TriggerEngine."""
    return [list(ids) for ids in trigger.on], trigger.level, trigger.within_ms
