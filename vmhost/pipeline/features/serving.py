"""Histories of keys, kept up to date event by event, and vectors of features read from them.

An event costs an append to each history that it belongs to. A vector is computed when it is read: the features of one
window share the passes over its events, which lie together in memory. What is not kept any more (a time in the past,
or a key that was put aside) is computed from the store, by the same code, so that both give equal values.
"""

import array
import hashlib
import math
import struct
import threading
from collections.abc import Mapping

from vmhost import ConfigurationError
from vmhost.pipeline.features import _features
from vmhost.pipeline.features.definitions import ANY, DERIVED, OPERATORS, FeatureSet, read_feature_file

MAX_KEYS = 100_000
MAX_EVENTS = 10_000  # of one history
_OPERATOR = {name: number for number, name in enumerate(OPERATORS)}
_DERIVED = {name: number for number, name in enumerate(DERIVED, 1)}
_AT_ONCE = 1000


class Features:
    """The features of a FeatureSet over events that `feed` is given. Threads may share it.

    `max_keys`: keys whose histories are kept; the one without an event for longest goes first. `max_events`: of one
    history; beyond it the oldest goes before its time, and is counted (`statistics`). `store`: where events can be read
    again (`read(position)`), for keys that went and for times in the past; None: there is none. ConfigurationError
    where a condition cannot be used.
    """

    def __init__(self, declared, *, max_keys=MAX_KEYS, max_events=MAX_EVENTS, store=None):
        self.declared = declared
        self._max_keys, self._max_events, self._store = max_keys, max_events, store
        self._lock = threading.Lock()
        self._histories = {by: {} for by in ("key", "visit", "page")}  # by -> {key: History}, least recent first
        self._put_aside = 0
        self._streams, self._columns = [], {by: [] for by in self._histories}
        self._layout()
        self._conditions = _Conditions(self._streams)
        self._plans = {}
        self._generation = 0  # grows with each event that is taken
        self._known = {}  # view -> (at_ms, key, generation, vector): what is asked for again is not computed again

    def _layout(self):
        """Each stream and key is a column of that key's histories, as long as the longest window over it."""
        places = {}
        for each in self.declared.features.values():
            if each.of:
                continue
            place = (each.stream, each.by)
            if place not in places:
                columns = self._columns[each.by]
                places[place] = len(columns)
                columns.append([0, self._max_events])
                self._streams.append((each.source, each.where, each.field, each.by, len(columns) - 1))
            column = self._columns[each.by][places[place]]
            column[0] = max(column[0], each.window_ms)
        self._places = places
        self._columns = {by: tuple(map(tuple, columns)) for by, columns in self._columns.items()}

    # ---- events

    def feed(self, events):
        """Takes StoredEvents, in the order of their positions."""
        with self._lock:
            self._generation += 1
            for stored, streams in self._conditions.belonging(events):
                for number in streams:
                    _, _, path, by, column = self._streams[number]
                    self._append(stored.event, path, by, column)

    def _append(self, event, path, by, column):
        key = getattr(event, by)
        if not key:
            return
        histories = self._histories[by]
        history = histories.pop(key, None)
        if history is None:
            history = _features.History(self._columns[by])
            if len(histories) >= self._max_keys:
                del histories[next(iter(histories))]
                self._put_aside += 1
        histories[key] = history  # the most recent is the last
        history.append(column, event.time_ms, *value_of(event, path))

    def fill(self, store):
        """Takes all events of a store, as after a restart or a change of definitions."""
        for batch in _batches(store.read(0)):
            self.feed(batch)

    def forget(self, key, visits=()):
        """A person's histories go."""
        with self._lock:
            self._generation += 1
            self._histories["key"].pop(key, None)
            for visit in visits:
                self._histories["visit"].pop(visit, None)

    # ---- reading

    def read(self, view, key, at_ms):
        """The vector of a view ("*": all features; or a sequence of names) for a key, as of a time: an array of
        float64. Of features by visit or page, `key` is that of the visit or page. KeyError: there is no such view or
        feature."""
        known = self._known.get(view) if isinstance(view, str) else None
        if known is not None and known[0] == at_ms and known[1] == key and known[2] == self._generation:
            return known[3][:]
        names, plan, by, order = self._plan(view)
        with self._lock:
            history = self._histories[by].get(key)
            if history is None and self._put_aside == 0:
                history = _features.History(self._columns[by])
            if history is not None and not self._is_past(history, by, at_ms):
                found = array.array("d", history.read(plan, at_ms))
                vector = array.array("d", [found[place] for place in order])
                if isinstance(view, str):
                    self._known[view] = (at_ms, key, self._generation, vector[:])
                return vector
        return self._from_store(names, key, by, at_ms)

    def computed(self, view, key, at_ms):
        """The same, from the events of the store alone, whatever `feed` was given."""
        names, _, by, _ = self._plan(view)
        return self._from_store(names, key, by, at_ms)

    def _is_past(self, history, by, at_ms):
        """Whether events may be gone that a read at that time wants."""
        return self._store is not None and at_ms < history.latest()

    def _from_store(self, names, key, by, at_ms):
        """Computed anew from the events of the key, up to that time."""
        alone = Features(self.declared, max_events=self._max_events)
        if self._store is not None:
            for batch in _batches(self._store.read(0)):
                alone.feed([one for one in batch if getattr(one.event, by) == key and one.event.time_ms <= at_ms])
        return alone.read(names, key, at_ms)

    def _plan(self, view):
        names = self.declared.names(view) if isinstance(view, str) else tuple(view)
        known = self._plans.get(names)
        if known is None:
            known = self._plans[names] = self._compile(names)
        return known

    def _compile(self, names):
        """(names, the C plan, by what, places of the names in it): features of one window follow each other, and those
        of others come after them."""
        features = self.declared.features
        basics, derived = [], []

        def collect(name):
            each = features[name]
            if name in basics or name in derived:
                return
            for other in each.of:
                collect(other)
            (derived if each.of else basics).append(name)

        for name in names:
            collect(name)
        by = {features[name].by for name in basics}
        if len(by) > 1:
            raise ConfigurationError(f"a view has features by {' and '.join(sorted(by))}; make one for each")
        basics.sort(key=lambda name: (self._places[features[name].stream, features[name].by], features[name].window_ms))
        places = {name: place for place, name in enumerate((*basics, *derived))}
        steps = []
        for name in places:
            each = features[name]
            if each.of:
                left, right = (places[other] for other in each.of)
                steps.append((_DERIVED[each.operator], left, right, 0, -1, 0.0, each.default))
            else:
                column = self._places[each.stream, each.by]
                fresh = -1 if each.fresh_ms is None else each.fresh_ms
                operator = _OPERATOR[each.operator]
                steps.append((0, column, operator, each.window_ms, fresh, each.parameter, each.default))
        plan = _features.Plan(steps, self.declared.offset_ms)
        return names, plan, (by or {"key"}).pop(), [places[name] for name in names]

    def statistics(self):
        """{"keys", "bytes", "events", "dropped" before their time, "put_aside": keys}."""
        with self._lock:
            sizes = [history.size() for histories in self._histories.values() for history in histories.values()]
            return {
                "keys": len(sizes),
                "bytes": sum(size for size, _, _ in sizes),
                "events": sum(events for _, events, _ in sizes),
                "dropped": sum(dropped for _, _, dropped in sizes),
                "put_aside": self._put_aside,
            }


def features_of(declared, store):
    """The Features of FeatureSets, mappings, and paths of files; None where there are none. ConfigurationError."""
    merged = None
    for one in declared:
        if isinstance(one, Mapping):
            one = FeatureSet.of(one)
        elif not isinstance(one, FeatureSet):
            one = read_feature_file(one)
        merged = one if merged is None else merged.merged(one)
    return None if merged is None else Features(merged, store=store)


class _Conditions:
    """Which streams does an event belong to? By its name; where there is a condition, by the matcher of patterns."""

    def __init__(self, streams):
        self._by_name, self._engine = {}, None
        for number, (source, where, _, _, _) in enumerate(streams):
            if where is None:
                for name in source:
                    self._by_name.setdefault(name, []).append(number)
                continue
            from vmhost.pipeline.patterns import PatternEngine, PatternError, RuleError

            if self._engine is None:
                self._engine = PatternEngine()
            try:
                self._engine.add(str(number), {"pattern": [{"name": "event", "where": where}]}, by="all")
            except (RuleError, PatternError) as error:
                raise ConfigurationError(f"features: where: {error}") from error
        self._sources = [frozenset(source) for source, *_ in streams]
        self._of_all = self._by_name.get(ANY, [])

    def belonging(self, events):
        """(StoredEvent, numbers of its streams) of those that belong to any."""
        found = {}
        if self._engine is not None and events:
            for position, matches in self._engine.feed_many(events).items():
                found[position] = [int(match.rule) for match in matches]
        for stored in events:
            name = stored.event.name
            numbers = [*self._by_name.get(name, ()), *(self._of_all if name != ANY else ())]
            for number in found.get(stored.position, ()):
                if ANY in self._sources[number] or name in self._sources[number]:
                    numbers.append(number)
            if numbers:
                yield stored, numbers


def value_of(event, path):
    """(value, identity) of an event's field, as histories have them: NaN where it has none; of a text, a number that
    only tells it from others."""
    if path is None:
        return math.nan, 0
    found = event.contents
    if path in ("name", "page", "visit", "key", "time_ms"):
        found = getattr(event, path)
    else:
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        identity = int.from_bytes(hashlib.blake2b(found.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        return float(identity >> 11), identity
    if isinstance(found, (int, float)):
        try:
            number = float(found)
        except OverflowError:
            return math.nan, 0
        return number, struct.unpack("<Q", struct.pack("<d", number + 0.0))[0]
    return math.nan, 0


def _batches(events):
    batch = []
    for one in events:
        batch.append(one)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
