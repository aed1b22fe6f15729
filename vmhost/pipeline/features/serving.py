"""Histories of keys, updated with each event, and vectors of features read from them.

An event costs one append to each history that it belongs to. A vector is computed when it is read: features of one
window share the passes over its events, which are contiguous in memory. Times in the past and evicted keys are computed
from the store, by the same code, so both give equal values.
"""

import array
import hashlib
import logging
import math
import struct
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from vmhost import ConfigurationError, callbacks
from vmhost.pipeline.features import _features
from vmhost.pipeline.features.definitions import (
    ANY,
    BY,
    DERIVED,
    OPERATORS,
    SHAPES,
    Feature,
    FeatureSet,
    Window,
    read_feature_file,
)

_log = logging.getLogger("vmhost")

MAX_KEYS = 100_000
MAX_EVENTS = 10_000  # kept in one history
_OPERATOR = {name: number for number, name in enumerate(OPERATORS)}
_FIRST_SKETCH = next(number for number, each in enumerate(OPERATORS.values()) if each.of_sketch)
_BASIC, _SKETCHED = 0, len(DERIVED) + 1  # kinds of steps, numbered as in features.h
_DERIVED = {name: number for number, name in enumerate(DERIVED, 1)}
_AT_ONCE = 1000


class _Stream(NamedTuple):
    """Events that are taken together, and the columns of their keys' histories that get them."""

    source: tuple
    where: object
    field: str | None
    other: str | None
    by: str
    columns: list


class _Plan(NamedTuple):
    """How the vector of a view is computed: `steps` gives the numbers of `basics`, then own operators run, then derived
    features. `complete`: all of `names` are in `basics`, so `steps` gives the vector itself."""

    names: tuple
    steps: object
    basics: tuple
    own: tuple
    later: tuple
    by: str
    complete: bool


class Features:
    """The features of a FeatureSet, over the events that `feed` gets. Thread-safe.

    `declared`: the FeatureSet. `max_keys`: keys whose histories are kept; the one without an event for longest is
    evicted first. `max_events`: of one history; beyond it the oldest is dropped before its time, and counted
    (`statistics`). `store`: where events can be read again (`read(position)`), for evicted keys and for times in the
    past; None: they have no answer. `call_task`: a function of (name, entry, window) that returns the number that a
    task computes from the fields of a Window; None: features of tasks have no answer.

    `tasks` has the names of the tasks that compute features. ConfigurationError if a condition cannot be used.
    """

    def __init__(self, declared, *, max_keys=MAX_KEYS, max_events=MAX_EVENTS, store=None, call_task=None):
        self.declared = declared
        self._max_keys, self._max_events, self._store = max_keys, max_events, store
        self._call_task = call_task
        self._lock = threading.Lock()
        self._histories = {by: {} for by in BY}  # by -> {key: History}, least recent first
        self._put_aside = self._failed = 0
        self.tasks = frozenset(each.task for each in declared.features.values() if each.task is not None)
        self._layout()
        self._conditions = _Conditions(self._streams)
        self._plans = {}
        self._generation = 0  # grows with each event taken
        self._known = {}  # view -> (at_ms, key, generation, vector): the last vector, for the same question again
        self._own_known = {}  # (name, key) -> (version of its column, number): own features as of the last event

    def _layout(self):
        """Each stream and key is one column of that key's histories, which reaches as far back as the longest window
        over it; a sketch has a column for each window. `_places`: name -> column; `_written`: name -> the index of its
        number in a history."""
        columns, streams, places = {by: {} for by in BY}, {}, {}
        written = {by: {} for by in BY}
        for each in self.declared.features.values():
            if each.of:
                continue
            stream = streams.setdefault(
                (each.stream, each.by), _Stream(each.source, each.where, each.field, each.other, each.by, [])
            )
            operator = OPERATORS.get(each.operator)
            sketched = operator is not None and operator.of_sketch
            known = columns[each.by]
            column = known.setdefault(
                (each.stream, each.window_ms if sketched else None),
                {"number": len(known), "reach": 0, "paired": each.other is not None, "distinct": 0, "quantiles": 0},
            )
            if column["number"] not in stream.columns:
                stream.columns.append(column["number"])
            column["reach"] = max(column["reach"], each.reach_ms)
            column["pane"] = -(-each.window_ms // _features.PANES) if sketched else 0
            if sketched:
                column["distinct"] |= operator.cost == "distinct sketch"
                column["quantiles"] |= operator.cost == "quantile sketch"
            places[each.name] = column["number"]
            if each.when == "write" and not each.own:
                written[each.by][each.name] = len(written[each.by])
        self._streams, self._places, self._written = list(streams.values()), places, written
        self._columns = {
            by: tuple(
                (each["reach"], self._max_events, each["paired"], each["pane"], each["distinct"], each["quantiles"])
                for each in known.values()
            )
            for by, known in columns.items()
        }

    def _new_history(self, by):
        return _features.History(self._columns[by], len(self._written[by]))

    # ---- events

    def feed(self, events):
        """Takes StoredEvents, in the order of their positions."""
        with self._lock:
            self._generation += 1
            for stored, streams in self._conditions.belonging(events):
                for number in streams:
                    self._append(stored.event, self._streams[number])

    def _append(self, event, stream):
        key = getattr(event, stream.by)
        if not key:
            return
        histories = self._histories[stream.by]
        history = histories.pop(key, None)
        if history is None:
            history = self._new_history(stream.by)
            if len(histories) >= self._max_keys:
                del histories[next(iter(histories))]
                self._put_aside += 1
        histories[key] = history  # most recent last
        values = value_of(event, stream.field)
        if stream.other is not None:
            values += value_of(event, stream.other)
        for column in stream.columns:
            history.append(column, event.time_ms, *values)

    def fill(self, store):
        """Feeds all events of a store, as after a restart or a change of definitions."""
        for batch in _batches(store.read(0)):
            self.feed(batch)

    def forget(self, key, visits=()):
        """Deletes the histories of a person, and of the given visits."""
        with self._lock:
            self._generation += 1
            self._histories["key"].pop(key, None)
            self._own_known.clear()
            for visit in visits:
                self._histories["visit"].pop(visit, None)

    # ---- reading

    def read(self, view, key, at_ms):
        """The vector of a view ("*": all features; or a sequence of names) for a key, as of a time: an array of
        float64. For features by visit or page, `key` is the visit or page. KeyError: no such view or feature."""
        known = self._known.get(view) if isinstance(view, str) else None
        if known is not None and known[0] == at_ms and known[1] == key and known[2] == self._generation:
            return known[3][:]
        plan = self._plan(view)
        with self._lock:
            history = self._histories[plan.by].get(key)
            if history is None and self._put_aside == 0:
                history = self._new_history(plan.by)
            here = history is not None and not self._is_past(history, at_ms)
            if here:
                found = array.array("d", history.read(plan.steps, at_ms))
                if plan.complete:
                    if isinstance(view, str):
                        self._known[view] = (at_ms, key, self._generation, found[:])
                    return found
                numbers = dict(zip(plan.basics, found, strict=True))
                windows = [(each, *self._window(history, each, at_ms)) for each in plan.own]
        if not here:
            return self._from_store(plan.names, key, plan.by, at_ms)
        for each, version, window, fresh in windows:  # without the lock: a task may read features
            numbers[each.name] = self._own_number(each, key, version, window) if fresh else math.nan
            if math.isnan(numbers[each.name]):
                numbers[each.name] = each.default
        for each in plan.later:
            number = _features.derived(_DERIVED[each.operator], *(numbers[other] for other in each.of))
            numbers[each.name] = each.default if math.isnan(number) else number
        return array.array("d", [numbers[name] for name in plan.names])

    def _window(self, history, each, at_ms):
        """(version of its column, Window, whether it is fresh) of an own feature."""
        column, written = self._places[each.name], each.when == "write"
        shape = SHAPES.index(each.shape)
        ends_ms, times, values, others = history.window(
            column, shape, each.window_ms, each.most_ms, written, at_ms, self.declared.offset_ms
        )
        window = Window(
            ends_ms,
            array.array("q", times),
            array.array("d", values),
            None if others is None else array.array("d", others),
            each.parameter,
        )
        fresh = each.fresh_ms is None or not window.times_ms or at_ms - window.times_ms[-1] <= each.fresh_ms
        return history.version(column), window, fresh

    def _own_number(self, each, key, version, window):
        """The number from a feature's own function or task; NaN if that fails. With `when: write` it is computed
        once for each event."""
        known = self._own_known.get((each.name, key)) if each.when == "write" else None
        if known is not None and known[:2] == (version, window.at_ms):
            return known[2]
        try:
            if each.compute is not None:
                number = float(callbacks.call(each.compute, window))
            elif self._call_task is None:
                return math.nan
            else:
                number = float(self._call_task(each.task, each.entry, window._asdict()))
        except Exception as error:  # one that fails does not affect the others
            self._failed += 1
            _log.warning("features: %s: %s: %s", each.name, type(error).__name__, error)
            return math.nan
        if each.when == "write":
            while len(self._own_known) >= self._max_keys:
                self._own_known.pop(next(iter(self._own_known)), None)
            self._own_known[each.name, key] = (version, window.at_ms, number)
        return number

    def computed(self, view, key, at_ms):
        """As `read`, but from the events of the store alone."""
        plan = self._plan(view)
        return self._from_store(plan.names, key, plan.by, at_ms)

    def _is_past(self, history, at_ms):
        """Whether a read at that time may need events that are no longer kept."""
        return self._store is not None and at_ms < history.latest()

    def _from_store(self, names, key, by, at_ms):
        """Computed from the key's stored events up to that time."""
        alone = Features(self.declared, max_events=self._max_events, call_task=self._call_task)
        if self._store is not None:
            for batch in _batches(self._store.read(0)):
                alone.feed([one for one in batch if getattr(one.event, by) == key and one.event.time_ms <= at_ms])
        return alone.read(names, key, at_ms)

    def _plan(self, view):
        named = isinstance(view, str)
        known = self._plans.get(view) if named else None
        if known is None:
            names = self.declared.names(view) if named else tuple(view)
            known = self._plans.get(names)
            if known is None:
                known = self._plans[names] = self._compile(names)
            if named:
                self._plans[view] = known
        return known

    def _compile(self, names):
        features = self.declared.features
        basics, derived, own, later = [], [], [], []

        def collect(name):
            each = features[name]
            if any(name in found for found in (basics, derived, own, later)):
                return
            for other in each.of:
                collect(other)
            if each.own:
                own.append(name)
            elif not each.of:
                basics.append(name)
            else:
                (later if any(other in own or other in later for other in each.of) else derived).append(name)

        for name in names:
            collect(name)
        by = {features[name].by for name in (*basics, *own)}
        if len(by) > 1:
            raise ConfigurationError(f"a view has features by {' and '.join(sorted(by))}; make one for each")
        by = (by or {"key"}).pop()
        basics.sort(key=self._by_window)  # steps of one window become adjacent
        places = {name: place for place, name in enumerate((*basics, *derived))}
        steps = tuple(self._step(features[name], places, by) for name in places)
        return _Plan(
            names,
            _features.Plan(steps, self.declared.offset_ms, None if own else tuple(places[name] for name in names)),
            tuple(places),
            tuple(features[name] for name in own),
            tuple(features[name] for name in later),
            by,
            not own,
        )

    def _by_window(self, name):
        each = self.declared.features[name]
        return (self._places[name], each.shape, each.window_ms, each.most_ms, each.when)

    def _step(self, each, places, by):
        if each.of:
            left, right = (places[other] for other in each.of)
            return (_DERIVED[each.operator], left, right, 0, 1, 1, -1, -1, 0.0, each.default)
        number = _OPERATOR[each.operator]
        sketched = number >= _FIRST_SKETCH
        return (
            _SKETCHED if sketched else _BASIC,
            self._places[each.name],
            number - _FIRST_SKETCH if sketched else number,
            SHAPES.index(each.shape),
            each.window_ms,
            each.most_ms,
            -1 if each.fresh_ms is None else each.fresh_ms,
            self._written[by].get(each.name, -1),
            each.parameter,
            each.default,
        )

    def statistics(self):
        """{"keys", "bytes", "events", "dropped": before their time, "put_aside": evicted keys, "failed": own
        operators}."""
        with self._lock:
            sizes = [history.size() for histories in self._histories.values() for history in histories.values()]
            return {
                "keys": len(sizes),
                "bytes": sum(size for size, _, _ in sizes),
                "events": sum(events for _, events, _ in sizes),
                "dropped": sum(dropped for _, _, dropped in sizes),
                "put_aside": self._put_aside,
                "failed": self._failed,
            }


def features_of(declared, store, call_task=None, content_of=Path.read_bytes):
    """The Features of FeatureSets, lists of Features, mappings, and paths of files, whose bytes `content_of(path)`
    reads. None if there are none. ConfigurationError."""
    merged = None
    for one in declared:
        if isinstance(one, Mapping):
            one = FeatureSet.of(one)
        elif isinstance(one, Feature):
            one = FeatureSet.of_features([one])
        elif isinstance(one, Iterable) and not isinstance(one, str):
            one = FeatureSet.of_features(one)
        elif not isinstance(one, FeatureSet):
            one = read_feature_file(one, content_of)
        merged = one if merged is None else merged.merged(one)
    return None if merged is None else Features(merged, store=store, call_task=call_task)


class _Conditions:
    """Finds the streams of an event: by its name, and by the matcher of patterns where there is a condition."""

    def __init__(self, streams):
        self._by_name, self._engine = {}, None
        for number, (source, where, *_) in enumerate(streams):
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
        """(StoredEvent, numbers of its streams) of those events that belong to any."""
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
    """(value, identity) of an event's field, as histories store it. The value is NaN if there is none; that of a
    text is a number that only tells it from other texts."""
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
