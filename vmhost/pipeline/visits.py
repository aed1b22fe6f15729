"""The events of open visits, held in memory for the calls that they will trigger, and the input values of calls."""

from msgspec.structs import asdict

from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT
from vmhost.pipeline.passes import EventList
from vmhost.pipeline.values import unpack

MAX_EVENTS = 2_000  # of one visit; calls of longer visits read the store
MAX_HELD = 50_000  # of all visits; beyond it, events of the oldest visits are read from the store


class Visits:
    """Holds events of open visits. `store`: the EventStore that has all of them. Not thread-safe."""

    def __init__(self, store):
        self._store = store
        self._held = {}  # visit: its EventList; None if calls read the store
        self._count = 0  # number of events held
        self._wanted = False  # whether any task gets the events of visits

    def wanted_by(self, tasks):
        """Sets the StreamTasks; if none of them gets events of visits, none are held."""
        wanted = any(_of_visit(task.trigger) for task in tasks)
        if wanted != self._wanted:
            self._wanted = wanted
            self._held = dict.fromkeys(self._held)  # visits that are open now were not held from their begin
            self._count = 0

    def read_later(self, visit):
        """The visit is open, but its events are in the store only."""
        self._held[visit] = None

    def hold(self, events, after_exit=()):
        """Takes StoredEvents; a visit's exit drops it. `after_exit`: positions of those whose visit has ended."""
        if not self._wanted:
            return
        held = self._held
        for stored in events:
            event = stored.event
            visit = event.visit
            if visit and stored.position not in after_exit:
                if event.name == PAGE_EXIT:
                    self._drop(visit)
                    continue
                there = held.get(visit)
                if there is not None:
                    self._add(visit, there, stored)
                    if self._count > MAX_HELD or len(there) > MAX_EVENTS:
                        self._make_room(visit)
                elif visit not in held:
                    self._begin(visit, stored)

    def hold_last(self, stored):
        """Takes one StoredEvent, possibly an exit, that triggers calls; call `leave` after they were made."""
        visit = stored.event.visit
        if not self._wanted or not visit:
            return
        there = self._held.get(visit)
        if there is not None:
            self._add(visit, there, stored)
        elif visit not in self._held:
            self._begin(visit, stored)

    def leave(self, stored):
        if stored.event.name == PAGE_EXIT:
            self._drop(stored.event.visit)

    def _begin(self, visit, stored):
        """Begins to hold a visit, unless its first events were missed and are only in the store."""
        self._held[visit] = None
        if stored.event.name == PAGE_ENTER:
            self._held[visit] = there = EventList()
            self._add(visit, there, stored)

    def _add(self, visit, there, stored):
        """Adds an event. If its contents are not plain msgpack, all of the visit is read from the store later."""
        if stored.packed is None:
            self._read_from_store(visit)
        else:
            there.append(stored)
            self._count += 1

    def _read_from_store(self, visit):
        self._count -= len(self._held[visit])
        self._held[visit] = None

    def _drop(self, visit):
        there = self._held.pop(visit, None)
        if there is not None:
            self._count -= len(there)

    def _make_room(self, visit):
        """Makes room if `visit` is too long, or all visits together are."""
        there = self._held[visit]
        if there is not None and len(there) > MAX_EVENTS:
            self._read_from_store(visit)
        if self._count > MAX_HELD:
            for visit, there in self._held.items():
                if there is not None:
                    self._read_from_store(visit)
                    if self._count <= MAX_HELD // 2:
                        break

    def forget(self, key, visits):
        """Drops events of `key`, and `visits`, its open ones."""
        for visit in visits:
            self._drop(visit)
        for visit, held in self._held.items():
            if held is not None:
                kept = held.without(key)
                self._count -= len(held) - len(kept)
                self._held[visit] = kept

    # ---- input values of calls

    def value(self, trigger, stored, start, from_store=False):
        """The input of the call that the StoredEvent triggers, with a match that began at `start`; where the store has
        to be read, a function that reads it and returns the input.
        """
        if trigger.events == "none":
            return Value(stored, [])
        visit = stored.event.visit
        if not _of_visit(trigger):
            return lambda: Value(stored, list(self._store.read(start - 1, until=stored.position)))
        if not visit:
            return Value(stored, [stored])
        after = start - 1 if trigger.events == "match" else 0
        held = None if from_store else self._held.get(visit)
        if held is None:
            return lambda: Value(stored, self._stay(stored, after))
        return Value(stored, held, after)

    def _stay(self, stored, after):
        """The visit's events since its last begin: an id may be used again after the visit's exit."""
        events = list(self._store.read(after, until=stored.position, visit=stored.event.visit))
        exits = [each.position for each in events if each.event.name == PAGE_EXIT and each is not events[-1]]
        return [each for each in events if each.position > exits[-1]] if exits else events


def _of_visit(trigger):
    return trigger.events == "visit" or (trigger.events == "match" and trigger.level == "page")


class Value:
    """The input of a call: fields of the StoredEvent that triggered it, and events by time, then position. `events` is
    an EventList, of which those after the position `after` up to the StoredEvent count, or a list of StoredEvents.
    """

    __slots__ = ("_stored", "_events", "_after")

    def __init__(self, stored, events, after=0):
        self._stored, self._events, self._after = stored, events, after

    def plain(self):
        """The value as plain Python."""
        if type(self._events) is EventList:
            return self._value_of(unpack(self._packed()))
        return self._value_of(
            [asdict(each.event) for each in sorted(self._events, key=lambda each: each.event.time_ms)]
        )

    def crossing(self):
        """The value for a VM, with packed events where possible, which the VM unpacks."""
        if type(self._events) is not EventList:
            return self.plain()
        from vmhost import Packed  # late: it loads the native core, after which a process cannot fork

        return self._value_of(Packed(self._packed()))

    def _packed(self):
        return self._events.packed(self._after, self._stored.position)

    def _value_of(self, events):
        event = self._stored.event
        return {
            "position": self._stored.position,
            "key": event.key,
            "page": event.page,
            "visit": event.visit,
            "time_ms": event.time_ms,
            "events": events,
        }

    def without(self, key):
        """The same value without events of `key`; None if it has none."""
        if type(self._events) is EventList:
            kept = self._events.without(key)
        else:
            kept = [each for each in self._events if each.event.key != key]
        return Value(self._stored, kept, self._after) if len(kept) < len(self._events) else None
