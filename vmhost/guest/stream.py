"""Event streams: filter, key, window by event time, reduce, join. The same code runs in a VM and on the host.

    counted = (
        Stream(events)
        .filter(lambda event: event["name"] == "exposure")
        .key_by("contents.shown")
        .window(TimeWindow.sliding("5 min", "1 min"))
        .reduce(lambda count, event: count + 1, 0)
    )
    for result in counted:  # {"key", "start_ms", "end_ms", "count", "value"}
        ...

A stream is a lazy iterator: it reads events, each once, as results are asked for. An event is a dict with `time_ms`,
whole milliseconds; an `Event` or `StoredEvent` of vmhost.pipeline is converted to such a dict.

Time is event time. The *watermark* is the latest time seen less `lateness`; it never goes back, and no older event is
expected. Windows are half-open, [start, end). Events may come in any order: windows take them by time, and those of
equal times in order of arrival. So the results do not depend on the order of arrival as long as no event is older than
the watermark; windows drop and count (`late`) those that are. A window's result comes when the watermark reaches its
end; results come by end, then start, then the order in which the windows began.

State: with `ends=False` the end of the source does not close the windows; incomplete ones wait. `snapshot()` gives the
whole state as a plain value; `restore(value)` loads it into a stream of the same operators over the events that follow.
Where events have a `position`, those at or before the snapshot's are skipped, so that each counts once; they must come
in order of position, as the time-level sequence has them.
"""

import collections
import copy
import heapq
import itertools
import math
import re

__all__ = ["Columns", "Filter", "Join", "KeyBy", "Map", "Reduce", "Stream", "StreamError", "TimeWindow"]

FORMAT = 1  # of snapshots
# As bytecode/quantities.py, which VMs do not have; a test holds them equal.
_UNITS_US = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
_QUANTITY = re.compile(r" *([0-9]{1,1000})(?:\.([0-9]{1,1000}))? *([A-Za-z]+) *")
_UNCHANGING = (int, float, str, bool, bytes, type(None))
_EVENT_FIELDS = ("name", "time_ms", "page", "visit", "contents", "id", "key")


class StreamError(ValueError):
    """A stream was made wrongly, an event has no time, or a snapshot is of another stream."""


def milliseconds(duration):
    """`duration`, such as `"5 min"`, `"500 ms"` or a whole number of milliseconds, in milliseconds."""
    if type(duration) is int:
        return duration
    match = _QUANTITY.fullmatch(duration) if isinstance(duration, str) else None
    if match is not None and match[3].lower() in _UNITS_US:
        digits = match[2] or ""
        whole, rest = divmod(int(match[1] + digits) * _UNITS_US[match[3].lower()], 10 ** len(digits) * 1000)
        if not rest:
            return whole
    raise StreamError(
        f'expected a duration such as "5 min" or a whole number of milliseconds, got {duration!r}; units are'
        f" {', '.join(_UNITS_US)}"
    )


def _positive_duration(what, duration):
    found = milliseconds(duration)
    if found <= 0:
        raise StreamError(f"{what}: expected more than 0 ms, got {duration!r}")
    return found


def _getter(path):
    """A function that looks up `"contents.item.id"` in nested dicts; None where something is missing."""
    if callable(path):
        return path
    if not isinstance(path, str):
        raise StreamError(f'expected a path such as "contents.item" or a function, got {path!r}')
    parts = path.split(".")

    def get(value):
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    return get


# ---- operators: the parts of a stream


class Filter:
    """Keeps the values for which `function(value)` is true."""

    def __init__(self, function):
        self.function = function

    def describe(self):
        return "filter"

    def stage(self):
        return _Plain(lambda element: [element] if self.function(element.value) else [])


class Map:
    """Replaces each value by `function(value)`; time and key stay."""

    def __init__(self, function):
        self.function = function

    def describe(self):
        return "map"

    def stage(self):
        return _Plain(lambda element: [_Element(element.time_ms, element.key, self.function(element.value))])


class KeyBy:
    """Sets the key; later windows and reductions work per key. `key`: a path such as "contents.item", several of them
    (the key is a tuple), or a function of the value. A value without the path has the key None."""

    def __init__(self, *keys):
        if not keys:
            raise StreamError('expected what to key by, a path such as "contents.item" or a function, got nothing')
        getters = [_getter(key) for key in keys]
        self.keys = keys
        self.get = getters[0] if len(keys) == 1 else lambda value: tuple(get(value) for get in getters)

    def describe(self):
        return f"key by {', '.join(key if isinstance(key, str) else 'a function' for key in self.keys)}"

    def stage(self):
        return _Plain(lambda element: [_Element(element.time_ms, _hashable(self.get(element.value)), element.value)])


class TimeWindow:
    """Assigns values to windows of event time, per key.

    `tumbling(size)`: windows that do not overlap. `sliding(size, every)`: a window begins every `every`; they overlap
    where that is shorter than `size`. Both begin at multiples of the step since 1970 in UTC, plus `offset`.
    `session(gap)`: from a key's first value to `gap` after its last; a value exactly `gap` after the last begins a new
    session. Without a Reduce after it, a window's value is the list of its values.
    """

    def __init__(self, kind, size_ms, every_ms, offset_ms=0):
        self.kind, self.size_ms, self.every_ms, self.offset_ms = kind, size_ms, every_ms, offset_ms

    @classmethod
    def tumbling(cls, size, offset=0):
        size_ms = _positive_duration("size of a window", size)
        return cls("tumbling", size_ms, size_ms, milliseconds(offset) % size_ms)

    @classmethod
    def sliding(cls, size, every, offset=0):
        every_ms = _positive_duration("step of a sliding window", every)
        return cls("sliding", _positive_duration("size of a window", size), every_ms, milliseconds(offset) % every_ms)

    @classmethod
    def session(cls, gap):
        return cls("session", _positive_duration("gap of a session", gap), None)

    def starts(self, time_ms):
        """The starts of the windows that contain `time_ms`, earliest first; not for sessions."""
        last = time_ms - (time_ms - self.offset_ms) % self.every_ms
        earliest = last - (last - (time_ms - self.size_ms) - 1) // self.every_ms * self.every_ms
        return range(earliest, last + 1, self.every_ms)

    def describe(self):
        step = "" if self.every_ms in (None, self.size_ms) else f" every {self.every_ms} ms"
        return f"{self.kind} window of {self.size_ms} ms{step}" + (f" + {self.offset_ms}" if self.offset_ms else "")

    def stage(self):
        return _Windows(self, Reduce(_gathered, []))


def _gathered(values, value):
    values.append(value)
    return values


class Reduce:
    """Folds values: `function(accumulated, next)`, starting from a copy of `initial` for each window or key. `finish`,
    where given, turns the accumulated value into the result.

    After a window: one result per window. Without one: a result `{"key", "time_ms", "count", "value"}` after each
    value, over all values of its key so far, in order of arrival.
    """

    def __init__(self, function, initial, finish=None):
        self.function, self.initial, self.finish = function, initial, finish

    @classmethod
    def count(cls):
        return cls(lambda count, _: count + 1, 0)

    @classmethod
    def total(cls, path):
        """The sum of the values at `path`. None counts as 0; `least`, `most` and `mean` skip it too."""
        get = _getter(path)
        return cls(lambda total, value: total + (get(value) or 0), 0)

    @classmethod
    def least(cls, path):
        return cls._chosen(path, min)

    @classmethod
    def most(cls, path):
        return cls._chosen(path, max)

    @classmethod
    def mean(cls, path):
        """None if there was no value."""
        get = _getter(path)

        def add(pair, value):
            number = get(value)
            return pair if number is None else [pair[0] + number, pair[1] + 1]

        return cls(add, [0, 0], lambda pair: pair[0] / pair[1] if pair[1] else None)

    @classmethod
    def _chosen(cls, path, choose):
        get = _getter(path)

        def better(so_far, value):
            return choose((candidate for candidate in (so_far, get(value)) if candidate is not None), default=None)

        return cls(better, None)

    def begin(self):
        return copy.deepcopy(self.initial)

    def end(self, value):
        return value if self.finish is None else self.finish(value)

    def describe(self):
        return "reduce"

    def stage(self):
        return _Running(self)


class Join:
    """Pairs the values of two streams that have the same key and window (a session spans the values of both). The
    result's value is `function(left, right)`, by default [left, right]. Pairs come by the left value's time, then the
    right one's. Results: {"key", "start_ms", "end_ms", "value"}."""

    def __init__(self, other, window, function=None):
        if not isinstance(other, Stream) or not isinstance(window, TimeWindow):
            raise StreamError(
                f"join: expected a Stream and a TimeWindow, got {type(other).__name__} and {type(window).__name__}"
            )
        self.other, self.window, self.function = other, window, function or (lambda left, right: [left, right])

    def describe(self):
        return f"join with ({self.other.describe()}) in {self.window.describe()}"

    def stage(self):
        return _Windows(self.window, Reduce(_sorted_by_side, [[], []]))

    def pairs(self, window):
        """The pairs of a closed window, as elements."""
        about = {name: window.value[name] for name in ("key", "start_ms", "end_ms")}
        for left, right in itertools.product(*window.value["value"]):
            yield window._replace(value={**about, "value": self.function(left, right)})


def _sorted_by_side(sides, tagged):
    side, value = tagged
    sides[side].append(value)
    return sides


# ---- stages: running operators and their state

_Element = collections.namedtuple("_Element", "time_ms key value")


def _hashable(key):
    """`key` with tuples for lists: a snapshot may have turned tuples into lists."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


class _Plain:
    """A stage without state."""

    late = 0

    def __init__(self, take):
        self.take = take

    def advance(self, watermark):
        return ()

    def snapshot(self):
        return None

    def restore(self, state):
        pass


class _Running:
    """A Reduce without windows: the count and accumulated value per key."""

    late = 0

    def __init__(self, reduce):
        self._reduce, self._known = reduce, {}

    def take(self, element):
        count, value = self._known.get(element.key) or (0, self._reduce.begin())
        value = self._reduce.function(value, element.value)
        self._known[element.key] = count + 1, value
        shown = self._reduce.end(value)
        if type(shown) not in _UNCHANGING:
            shown = copy.deepcopy(shown)
        result = {"key": element.key, "time_ms": element.time_ms, "count": count + 1, "value": shown}
        return [_Element(element.time_ms, element.key, result)]

    def advance(self, watermark):
        return ()

    def snapshot(self):
        return [[key, count, value] for key, (count, value) in self._known.items()]

    def restore(self, state):
        self._known = {_hashable(key): (count, value) for key, count, value in state}


class _Windows:
    """Windows and their reduction. Values wait in `_pending` until the watermark has passed them and are then added in
    order of time, so a session only grows at its end."""

    def __init__(self, window, reduce):
        self._window, self._reduce, self.late = window, reduce, 0
        self._watermark, self._order = -math.inf, itertools.count()
        self._pending = []  # heap of (time, order, key, value)
        self._open = {}  # (key, start) -> [end, count, value]
        self._sessions = {}  # key -> start of its session
        self._ends = []  # heap of (end, start, order, key); a session's end may be outdated: it has grown since

    def take(self, element):
        if element.time_ms < self._watermark:
            self.late += 1
        else:
            heapq.heappush(self._pending, (element.time_ms, next(self._order), element.key, element.value))
        return ()

    def advance(self, watermark):
        if watermark <= self._watermark:
            return ()
        closed = []
        while self._pending and self._pending[0][0] < watermark:
            time_ms, _, key, value = heapq.heappop(self._pending)
            self._close(time_ms, closed)
            self._add(time_ms, key, value)
        self._close(watermark, closed)
        self._watermark = watermark
        return closed

    def _add(self, time_ms, key, value):
        if self._window.kind == "session":
            start = self._sessions.setdefault(key, time_ms)
            self._put(key, start, time_ms + self._window.size_ms, value)
        else:
            for start in self._window.starts(time_ms):
                self._put(key, start, start + self._window.size_ms, value)

    def _put(self, key, start, end, value):
        entry = self._open.get((key, start))
        if entry is None:
            entry = self._open[key, start] = [end, 0, self._reduce.begin()]
            heapq.heappush(self._ends, (end, start, next(self._order), key))
        entry[:] = end, entry[1] + 1, self._reduce.function(entry[2], value)

    def _close(self, until, closed):
        while self._ends and self._ends[0][0] <= until:
            end, start, order, key = heapq.heappop(self._ends)
            real_end, count, value = self._open[key, start]
            if real_end > end:
                heapq.heappush(self._ends, (real_end, start, order, key))
                continue
            del self._open[key, start]
            self._sessions.pop(key, None)
            result = {"key": key, "start_ms": start, "end_ms": end, "count": count, "value": self._reduce.end(value)}
            closed.append(_Element(end - 1, key, result))

    def snapshot(self):
        return {
            "watermark": _plain_time(self._watermark),
            "late": self.late,
            "pending": [[time_ms, key, value] for time_ms, _, key, value in sorted(self._pending, key=_time_and_order)],
            "open": [[key, start, *self._open[key, start]] for _, start, _, key in sorted(self._ends, key=_began)],
        }

    def restore(self, state):
        self._watermark, self.late = _time_of(state["watermark"]), state["late"]
        for key, start, end, count, value in state["open"]:
            key = _hashable(key)
            self._open[key, start] = [end, count, value]
            heapq.heappush(self._ends, (end, start, next(self._order), key))
            if self._window.kind == "session":
                self._sessions[key] = start
        for time_ms, key, value in state["pending"]:
            heapq.heappush(self._pending, (time_ms, next(self._order), _hashable(key), value))


def _time_and_order(entry):
    return entry[:2]


def _began(entry):
    return entry[2]


def _plain_time(watermark):
    return None if watermark == -math.inf else watermark


def _time_of(plain):
    return -math.inf if plain is None else plain


# ---- sources: they give elements and move the watermark


class _Events:
    """Source: an iterable of events."""

    late = 0

    def __init__(self, events, lateness_ms, ends, positions):
        self._events, self._lateness_ms, self.ends, self._positions = iter(events), lateness_ms, ends, positions
        self.watermark, self._count = -math.inf, 0
        self._known = self._position = None  # the last position of the restored snapshot, and the last one read

    def pull(self):
        """(elements, watermark) of the next event; None when there is none."""
        for event in self._events:
            if type(event) is not dict:
                event = _as_dict(event)
            position = event.get("position") if self._positions and isinstance(event, dict) else None
            if position is not None:
                if self._known is not None and position <= self._known:
                    continue
                self._position = position if self._position is None else max(position, self._position)
            self._count += 1
            time_ms = event.get("time_ms") if isinstance(event, dict) else None
            if type(time_ms) is not int:
                got = f"time_ms {time_ms!r}" if isinstance(event, dict) else type(event).__name__
                raise StreamError(
                    f"event {self._count} of the stream: expected a dict with time_ms, whole milliseconds, got {got}"
                )
            self.watermark = max(self.watermark, time_ms - self._lateness_ms)
            return [_Element(time_ms, None, event)], self.watermark
        if self.ends and self.watermark < math.inf:
            self.watermark = math.inf
            return [], math.inf
        return None

    def advance(self, time_ms):
        self.watermark = max(self.watermark, time_ms)
        return [], self.watermark

    def snapshot(self):
        return {"watermark": _plain_time(self.watermark), "position": self._position}

    def restore(self, state):
        self.watermark = _time_of(state["watermark"])
        self._known = self._position = state["position"]

    def describe(self):
        return f"events, lateness {self._lateness_ms} ms"


def _as_dict(event):
    """An event of vmhost.pipeline as the dict that a VM gets; anything else as it is."""
    if hasattr(event, "position") and hasattr(event, "event"):
        return {**_as_dict(event.event), "position": event.position}
    if hasattr(event, "time_ms"):
        return {name: getattr(event, name) for name in _EVENT_FIELDS}
    return event


class _Joined:
    """Source: the join of two streams. Reads the one that is behind, and holds the windows where their values meet."""

    def __init__(self, left, join):
        self._sides, self._join, self._windows = (left, join.other), join, join.stage()
        self.ends = left.ends and join.other.ends

    @property
    def late(self):
        return self._windows.late + sum(side.late for side in self._sides)

    @property
    def watermark(self):
        return min(side.watermark for side in self._sides)

    def pull(self):
        for number in sorted((0, 1), key=lambda number: self._sides[number].watermark):
            got = self._sides[number]._pull()
            if got is not None:
                return self._join_pairs(number, got[0])
        return None

    def _join_pairs(self, number, elements):
        for element in elements:
            self._windows.take(element._replace(value=(number, element.value)))
        watermark = self.watermark
        return [pair for window in self._windows.advance(watermark) for pair in self._join.pairs(window)], watermark

    def advance(self, time_ms):
        found = []
        for number, side in enumerate(self._sides):
            found += self._join_pairs(number, side._advanced(time_ms)[0])[0]
        return found, self.watermark

    def snapshot(self):
        return {"sides": [side._state() for side in self._sides], "windows": self._windows.snapshot()}

    def restore(self, state):
        for side, of_side in zip(self._sides, state["sides"]):
            side._put_back(of_side)
        self._windows.restore(state["windows"])

    def describe(self):
        return f"({self._sides[0].describe()}), {self._join.describe()}"


class Stream:
    """An iterator over the results of operators on events.

    `events`: an iterable of dicts with `time_ms`. `lateness`: a duration, how much older than the latest event another
    may be. `ends`: the end of the source closes all windows; with False they stay open for a later stream (`snapshot`,
    `restore`). `positions`: skip events at or before a snapshot's position; False if events come in another order.

    Each method returns a new stream over the same source; use only the last one. Time and state: see the top of this
    file.
    """

    def __init__(self, events=(), *, lateness=0, ends=True, positions=True):
        lateness_ms = milliseconds(lateness)
        if lateness_ms < 0:
            raise StreamError(f"lateness: expected 0 ms or more, got {lateness!r}")
        self._set(_Events(events, lateness_ms, ends, positions), ())

    def _set(self, source, operators):
        self._source, self._operators, self._stages, self._ready = source, operators, [], collections.deque()
        operators = collections.deque(operators)
        while operators:
            operator = operators.popleft()
            if isinstance(operator, TimeWindow) and operators and isinstance(operators[0], Reduce):
                self._stages.append(_Windows(operator, operators.popleft()))
            else:
                self._stages.append(operator.stage())

    def then(self, *operators):
        """This stream followed by `operators`: Filter, Map, KeyBy, TimeWindow, Reduce, Join."""
        stream = self
        for operator in operators:
            made = object.__new__(Stream)
            if isinstance(operator, Join):
                made._set(_Joined(stream, operator), ())
            elif hasattr(operator, "stage"):
                made._set(stream._source, (*stream._operators, operator))
            else:
                raise StreamError(f"expected an operator such as Filter(function), got {operator!r}")
            stream = made
        return stream

    def filter(self, function):
        return self.then(Filter(function))

    def map(self, function):
        return self.then(Map(function))

    def key_by(self, *keys):
        return self.then(KeyBy(*keys))

    def window(self, window):
        if not isinstance(window, TimeWindow):
            raise StreamError(f'expected a window such as TimeWindow.tumbling("1 min"), got {window!r}')
        return self.then(window)

    def reduce(self, function, initial=None, finish=None):
        """`reduce(function, initial)`, or a ready-made one such as `reduce(Reduce.count())`."""
        return self.then(function if isinstance(function, Reduce) else Reduce(function, initial, finish))

    def join(self, other, window, function=None):
        return self.then(Join(other, window, function))

    @property
    def watermark(self):
        """No event before this time is expected: milliseconds; -inf before the first event, inf after the end."""
        return self._source.watermark

    @property
    def late(self):
        """The number of values that windows dropped because they came after the watermark, over all windows."""
        return self._source.late + sum(stage.late for stage in self._stages)

    @property
    def ends(self):
        return self._source.ends

    def describe(self):
        """The source and operators in words; a snapshot fits streams of the same description."""
        return "; ".join([self._source.describe(), *(operator.describe() for operator in self._operators)])

    def __iter__(self):
        return self

    def __next__(self):
        while not self._ready:
            got = self._pull()
            if got is None:
                raise StopIteration
            self._ready += [element.value for element in got[0]]
        return self._ready.popleft()

    def advance(self, time_ms):
        """Moves the watermark to `time_ms` without an event. Returns a list: the results not yet read and those of the
        windows that end by then."""
        self._ready += [element.value for element in self._advanced(time_ms)[0]]
        ready = list(self._ready)
        self._ready.clear()
        return ready

    def _pull(self):
        got = self._source.pull()
        return None if got is None else self._through(*got)

    def _advanced(self, time_ms):
        return self._through(*self._source.advance(time_ms))

    def _through(self, elements, watermark):
        for stage in self._stages:
            if elements:
                elements = [after for element in elements for after in stage.take(element)]
            closed = stage.advance(watermark)
            if closed:
                elements = [*elements, *closed]
        return elements, watermark

    def snapshot(self):
        """The state and the last position read, as a plain value that crosses walls. It includes results that are
        ready and unread; the restored stream gives them first."""
        if self.ends:
            raise StreamError(
                "a stream that ends has no state to continue from; make it with Stream(events, ends=False)"
            )
        return {"format": FORMAT, "of": self.describe(), **self._state()}

    def restore(self, snapshot):
        """Continues from `snapshot`, or from the beginning if it is None. Returns the stream itself.

        Call it before the first result is read. StreamError if the snapshot is of a stream with other operators.
        """
        if snapshot is None:
            return self
        if self.ends:
            raise StreamError(
                "a stream that ends cannot continue from a snapshot; make it with Stream(events, ends=False)"
            )
        if self.watermark != -math.inf:
            raise StreamError("the stream was read before; restore it before its first result is asked for")
        known = isinstance(snapshot, dict) and (snapshot.get("format"), snapshot.get("of"))
        if known != (FORMAT, self.describe()):
            of = f"of format {known[0]}: {known[1]}" if known else f"a {type(snapshot).__name__}"
            raise StreamError(
                f"the snapshot is {of}; expected one of format {FORMAT}: {self.describe()}; make the stream as it was"
                " made then, or begin with None"
            )
        self._put_back(copy.deepcopy(snapshot))
        return self

    def _state(self):
        return copy.deepcopy(
            {
                "source": self._source.snapshot(),
                "stages": [stage.snapshot() for stage in self._stages],
                "ready": list(self._ready),
            }
        )

    def _put_back(self, state):
        self._source.restore(state["source"])
        for stage, of_stage in zip(self._stages, state["stages"], strict=True):
            stage.restore(of_stage)
        self._ready.extend(state["ready"])


class Columns:
    """Events as columns: a dict of arrays of one length (`vmhost.engine.numpy`, NumPy), or an iterable of such dicts;
    one column is `time_ms`. Filters and maps take whole columns; `rows` makes a stream of dicts.

        Columns({"time_ms": times, "item": items, "dwell_ms": dwell}).filter(lambda c: c["dwell_ms"] > 1000).rows()
    """

    def __init__(self, batches):
        self._batches = [batches] if isinstance(batches, dict) else batches

    def filter(self, function):
        """The rows for which the boolean array `function(columns)` is true."""

        def chosen():
            for columns in self._batches:
                mask = function(columns)
                yield {name: column[mask] for name, column in columns.items()}

        return Columns(chosen())

    def map(self, function):
        """Replaces each dict of columns by `function(columns)`."""
        return Columns(map(function, self._batches))

    def rows(self, *, lateness=0, ends=True):
        """A Stream of one dict per row, with Python numbers; columns may also be lists."""
        return Stream(self._rows(), lateness=lateness, ends=ends)

    def _rows(self):
        for columns in self._batches:
            lists = [column.tolist() if hasattr(column, "tolist") else column for column in columns.values()]
            if len({len(one) for one in lists}) > 1:
                sizes = ", ".join(f"{name} {len(one)}" for name, one in zip(columns, lists))
                raise StreamError(f"expected columns of one length, got {sizes}")
            for row in zip(*lists):
                yield dict(zip(columns, row))
