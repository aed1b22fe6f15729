"""Which tasks does an event trigger? A trigger engine, primed with the stored events before it was made."""

import heapq

from vmhost.pipeline.events import PAGE_EXIT
from vmhost.pipeline.triggers import TriggerEngine


class Matching:
    """A TriggerEngine with the conditions of stream tasks, fed with the events after `position`.

    Not thread-safe.
    """

    def __init__(self, position=0):
        self.engine = TriggerEngine()
        self.position = position
        self.triggers = {}  # name: Trigger

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
        self.prime(store, visits)

    @property
    def under_way(self):
        return self.engine.statistics()["matches"]

    def feed(self, events):
        """The conditions that StoredEvents complete: {position: [(name, start), …]}. Exits end their visits."""
        self.position = events[-1].position
        if len(events) == 1:
            (stored,) = events
            event = stored.event
            fired = self.engine.feed(event.name, event.page, event.visit, event.time_ms, stored.position)
            if event.name == PAGE_EXIT and event.visit:
                self.engine.end_visit(event.visit)
            return {stored.position: fired} if fired else {}
        found, begin = {}, 0
        for index, stored in enumerate(events):
            if stored.event.name == PAGE_EXIT and stored.event.visit:
                found.update(self.engine.feed_many(events[begin : index + 1]))
                self.engine.end_visit(stored.event.visit)
                begin = index + 1
        if begin < len(events):
            found.update(self.engine.feed_many(events[begin:] if begin else events))
        return found

    def feed_head(self, head, indexes):
        """The same for some events of a block's Head, given by ascending indexes."""
        found, run = {}, []
        for index in indexes:
            run.append(index)
            if head.names[index] == PAGE_EXIT:
                self._feed_run(head, run, found)
                self.engine.end_visit(head.visits[index])
                run = []
        if run:
            self._feed_run(head, run, found)
        return found

    def _feed_run(self, head, run, found):
        columns = [[column[index] for index in run] for column in (head.names, head.pages, head.visits, head.times)]
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


_BEHIND_MS = 3_600_000  # allowance for events of one block that are behind others: they count at the latest time


def condition(trigger):
    """(sequences, level, within_ms), the arguments of TriggerEngine."""
    return [list(ids) for ids in trigger.on], trigger.level, trigger.within_ms
