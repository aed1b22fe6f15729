"""Definitions of features: data that names the events, the field, the window and the operator of each.

carts:      {source: cart, operator: count, window: 7 d}
spent:      {source: order, field: price, operator: sum, window: 30 d, default: 0}
conversion: {ratio: [orders, carts], default: 0}

Equal features are computed once, for all consumers: features of the same source, field, key and window share the stored
history and the passes over it.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from vmhost import ConfigurationError, callbacks
from vmhost.bytecode.quantities import milliseconds
from vmhost.pipeline.features import _features


class Operator(NamedTuple):
    """One operator, as `vmhost pipeline features --operators` lists it. `parameter`, `other`: whether it takes a
    parameter or a second field. `cost`: the shared passes over its window, or the sketch that it reads."""

    parameter: bool
    other: bool
    cost: str
    says: str

    @property
    def of_sketch(self):
        return self.cost.endswith("sketch") or self.cost == "panes"


OPERATORS = {name: Operator(*fields) for name, *fields in _features.operators()}
DERIVED = {
    "ratio": "the first over the second",
    "difference": "the first less the second",
    "total": "their sum",
    "product": "their product",
    "larger": "the larger one",
    "smaller": "the smaller one",
    "both": "1 where both are above 0, else 0",
}
BY = ("key", "visit", "page")
SHAPES = ("sliding", "tumbling", "previous", "session")  # of windows, in the order of their numbers in features.h
WHEN = ("read", "write")
ANY = "*"
MAX_WINDOW_MS = 400 * 86_400_000
DAY_MS = 86_400_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_KEYS = (
    "source",
    "where",
    "field",
    "other",
    "by",
    "operator",
    "task",
    "entry",
    "parameter",
    "window",
    "when",
    "default",
    "fresh",
    "about",
)
_DERIVED_KEYS = ("default", "about")


@dataclass(frozen=True)
class Feature:
    """One feature.

    `name`: by which it is read. `operator`: a name in OPERATORS or DERIVED. `source`: names of events, or "*". `where`:
    a condition on them, as of a pattern's step. `field`: the path of the value in an event: keys in the contents,
    separated by dots, or `page`, `visit`, `name`; None: no value, for operators that only count events. `other`: a
    second field, for operators over two. `by`: what the feature belongs to, the "key" of events, a "visit" or a "page".

    `shape`, `window_ms`, `most_ms`: which events count. "sliding": those of the last `window_ms`. "tumbling": those
    since the last whole multiple of `window_ms`, in local time; "previous": those of the multiple before. "session":
    those of the current session, at most its last `most_ms`; a session ends `window_ms` after its last event. `when`:
    "read": the window ends at the time of reading; "write": it ends with the last event, so the value stays until the
    next one. `parameter`: of operators that take one, such as the share of a quantile. `default`: the number if there
    is none. `fresh_ms`: there is none if the last event is older than this. `about`: a text for readers.

    `of`: the names of two other features, for the operators of DERIVED. `compute`: for the operator "function", a
    function of a Window. `task`, `entry`: for the operator "task", the task that computes it in a VM.
    """

    name: str
    operator: str
    source: tuple = (ANY,)
    where: object = None
    field: str | None = None
    other: str | None = None
    by: str = "key"
    shape: str = "sliding"
    window_ms: int = DAY_MS
    most_ms: int = DAY_MS
    when: str = "read"
    parameter: float = 0.0
    default: float = math.nan
    fresh_ms: int | None = None
    of: tuple = ()
    about: str = ""
    compute: Callable[["Window"], float] | None = None
    task: str | None = None
    entry: str | None = None

    @functools.cached_property
    def stream(self):
        """The stream of events that it is computed from; features of equal streams share their histories."""
        return (self.source, repr(self.where), self.field, self.other)

    @property
    def own(self):
        """Whether a function or a task computes it."""
        return self.compute is not None or self.task is not None

    @property
    def reach_ms(self):
        """How long before the latest event, or before the time of reading, its window may begin."""
        return {"previous": 2 * self.window_ms, "session": self.most_ms}.get(self.shape, self.window_ms)


class Window(NamedTuple):
    """The input of an own operator. `times_ms`: an array of int64, ascending; `values`, `others`: arrays of float64,
    NaN if an event has none; `others` is None without a second field."""

    at_ms: int
    times_ms: object
    values: object
    others: object
    parameter: float


def feature(source=None, *, name=None, **data):
    """Declares a feature in Python instead of as data: `carts = feature("cart", name="carts", operator="count",
    window="7 d")`. Without an operator it decorates a function of a Window that returns the number, and takes the
    function's name::

        @feature("order", field="price", window="30 d", when="write")
        def spread(window):
            return max(window.values, default=0) - min(window.values, default=0)

    ConfigurationError."""
    data |= {} if source is None else {"source": source}
    if data.keys() & {"operator", "task", *DERIVED}:
        return _feature(name or "feature", data)

    def declare(function):
        if not callable(function):
            raise ConfigurationError(f"feature: expected a function or an operator, got {function!r:.100}")
        if callbacks.is_async(function):
            raise ConfigurationError(f"feature: expected a function that is not async, got {function!r:.100}")
        own = name or getattr(function, "__name__", "feature")
        return _feature(own, data, compute=function)

    return declare


@dataclass(frozen=True)
class FeatureSet:
    """Features by name, and views: lists of features that are read as one vector. `offset_ms`: the offset of local time
    from UTC, for operators on hours and days."""

    features: Mapping = field(default_factory=dict)
    views: Mapping = field(default_factory=dict)
    offset_ms: int = 0

    @classmethod
    def of_features(cls, features: Iterable[Feature], views=None, utc_offset=0):
        """From the results of `feature`, with views and offset as in `of`. ConfigurationError."""
        found = {}
        for each in features:
            if not isinstance(each, Feature):
                raise ConfigurationError(f"features: expected what `feature` made, got {each!r:.100}")
            if found.setdefault(each.name, each) is not each:
                raise ConfigurationError(f"features: {each.name} means two things; give one of them another name")
        return cls._checked(found, views, utc_offset, "features")

    @classmethod
    def of(cls, data, where="features"):
        """From plain data: {"features": {name: {...}}, "views": {name: [names]}, "utc_offset": "1 h"}."""
        if not isinstance(data, Mapping) or not isinstance(data.get("features"), Mapping) or not data["features"]:
            raise ConfigurationError(f"{where}: expected a mapping with `features`, a mapping of names to features")
        for key in data:
            if key not in ("features", "views", "utc_offset"):
                raise ConfigurationError(f"{where}: {key}: expected features, views or utc_offset")
        found = {name: _feature(name, each, f"{where}: {name}") for name, each in data["features"].items()}
        return cls._checked(found, data.get("views"), data.get("utc_offset", 0), where)

    @classmethod
    def _checked(cls, found, views, utc_offset, where):
        for each in found.values():
            for other in each.of:
                if other not in found:
                    raise ConfigurationError(f"{where}: {each.name}: {other}: there is no such feature")
        _refuse_circles(found, where)
        views = views or {}
        if not isinstance(views, Mapping):
            raise ConfigurationError(f"{where}: views: expected a mapping of names to lists of features")
        for name, names in views.items():
            if not isinstance(names, list) or not names:
                raise ConfigurationError(f"{where}: views: {name}: expected a list of names of features")
            for other in names:
                if other not in found:
                    raise ConfigurationError(f"{where}: views: {name}: {other}: there is no such feature")
        offset = _milliseconds(utc_offset, f"{where}: utc_offset", signed=True)
        if abs(offset) > 86_400_000:
            raise ConfigurationError(f"{where}: utc_offset: expected a day at most")
        return cls(found, {name: tuple(names) for name, names in views.items()}, offset)

    def names(self, view):
        """The features of a view; KeyError. "*": all, in order of declaration."""
        return tuple(self.features) if view == ANY else self.views[view]

    def merged(self, other):
        """The union with `other`; ConfigurationError if a name has two meanings."""
        for known, added in ((self.features, other.features), (self.views, other.views)):
            for name in known.keys() & added.keys():
                if known[name] != added[name] and known[name] is not added[name]:
                    raise ConfigurationError(f"features: {name} means two things; give one of them another name")
        if self.offset_ms != other.offset_ms:
            raise ConfigurationError("features: two different utc_offset")
        return replace(self, features={**self.features, **other.features}, views={**self.views, **other.views})


def read_feature_file(path, content_of=Path.read_bytes):
    """The FeatureSet in a YAML or JSON file; `content_of(path)` reads its bytes. ConfigurationError."""
    import yaml

    path = Path(path)
    try:
        data = yaml.safe_load(content_of(path).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return FeatureSet.of(data, f"{path}")


def _feature(name, data, where=None, compute=None):
    where = where or name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: expected a name of letters, digits and _, got {name!r:.100}")
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"{where}: expected a mapping, got {data!r:.100}")
    kinds = [kind for kind in DERIVED if kind in data]
    known = (*kinds, *_DERIVED_KEYS) if kinds else _KEYS
    for key in data:
        if key not in known or len(kinds) > 1:
            raise ConfigurationError(f"{where}: {key}: expected one of {', '.join((*_KEYS, *DERIVED))}")
    default = _number(data.get("default", math.nan), f"{where}: default", nan=True)
    about = str(data.get("about", ""))
    if kinds:
        of = data[kinds[0]]
        if not isinstance(of, (list, tuple)) or len(of) != 2 or not all(isinstance(each, str) for each in of):
            raise ConfigurationError(f"{where}: {kinds[0]}: expected the names of two features")
        return Feature(name, kinds[0], default=default, of=tuple(of), about=about)
    operator = _operator(data, where, compute)
    source = data.get("source", ANY)
    source = tuple(source) if isinstance(source, (list, tuple)) else (source,)
    if not source or not all(isinstance(each, str) and each for each in source):
        raise ConfigurationError(f"{where}: source: expected the name of an event, a list of them, or {ANY!r}")
    for key, choices in (("by", BY), ("when", WHEN)):
        if data.get(key, choices[0]) not in choices:
            raise ConfigurationError(f"{where}: {key}: expected one of {', '.join(choices)}, got {data[key]!r:.60}")
    for key in ("field", "other", "task", "entry"):
        if not isinstance(data.get(key, ""), str):
            raise ConfigurationError(f"{where}: {key}: expected a text, got {data[key]!r:.60}")
    shape, window_ms, most_ms = _window(data.get("window", "1 d"), f"{where}: window")
    if shape != "sliding" and operator in OPERATORS and OPERATORS[operator].of_sketch:
        raise ConfigurationError(f"{where}: window: {operator} has a sliding one only")
    fresh = data.get("fresh")
    return Feature(
        name,
        operator,
        tuple(sorted(set(source))),
        data.get("where"),
        data.get("field"),
        data.get("other"),
        data.get("by", "key"),
        shape,
        window_ms,
        most_ms,
        data.get("when", "read"),
        _number(data.get("parameter", 0.0), f"{where}: parameter"),
        default,
        None if fresh is None else _milliseconds(fresh, f"{where}: fresh"),
        about=about,
        compute=compute,
        task=data.get("task"),
        entry=data.get("entry"),
    )


def _operator(data, where, compute):
    """The operator's name; "function" or "task" for an own one."""
    if compute is not None:
        return "function"
    if "task" in data:
        if "operator" in data:
            raise ConfigurationError(f"{where}: operator: a task computes it; leave one of the two out")
        return "task"
    operator = data.get("operator")
    if not isinstance(operator, str) or operator not in OPERATORS:
        import difflib

        near = difflib.get_close_matches(str(operator), OPERATORS, 1)
        hint = f"; did you mean {near[0]}?" if near else "; `vmhost pipeline features --operators` lists them"
        raise ConfigurationError(f"{where}: operator: there is no {operator!r:.60}{hint}")
    for key, wants in (("parameter", OPERATORS[operator].parameter), ("other", OPERATORS[operator].other)):
        if wants != (key in data):
            raise ConfigurationError(f"{where}: {key}: {operator} {'needs one' if wants else 'has none'}")
    if "entry" in data:
        raise ConfigurationError(f"{where}: entry: it goes with a task")
    return operator


def _window(data, where):
    """(shape, window_ms, most_ms)."""
    shape, max_text = "sliding", None
    if isinstance(data, Mapping):
        shapes = [key for key in data if key in SHAPES]
        if len(shapes) != 1 or not data.keys() <= {shapes[0], *(("most",) if shapes == ["session"] else ())}:
            raise ConfigurationError(
                f"{where}: expected a time such as 7 d, or one of {{tumbling: 1 d}}, {{previous: 1 d}} and "
                f"{{session: 30 min, most: 1 d}}, got {dict(data)!r:.100}"
            )
        (shape,) = shapes
        data, max_text = data[shape], data.get("most")
    times = [_milliseconds(data, where)]
    times.append(max(DAY_MS, times[0]) if max_text is None else _milliseconds(max_text, f"{where}: most"))
    if not all(0 < each <= MAX_WINDOW_MS for each in times):
        raise ConfigurationError(f"{where}: expected a time above 0, up to 400 days")
    return shape, *times


def _refuse_circles(features, where):
    done, under_way = set(), []

    def visit(name):
        if name in under_way:
            raise ConfigurationError(f"{where}: {' -> '.join((*under_way[under_way.index(name) :], name))}: a circle")
        if name not in done:
            under_way.append(name)
            for other in features[name].of:
                visit(other)
            under_way.pop()
            done.add(name)

    try:
        for name in features:
            visit(name)
    except RecursionError:
        raise ConfigurationError(f"{where}: features of features lie too deep") from None


def _number(value, where, nan=False):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{where}: expected a number, got {value!r:.60}")
    try:
        number = float(value)
    except OverflowError:
        raise ConfigurationError(f"{where}: expected a number that a float can hold") from None
    if math.isnan(number) and not nan:
        raise ConfigurationError(f"{where}: expected a number, got nan")
    return number


def _milliseconds(value, where, signed=False):
    """The time of a text such as "7 d", or an integer of milliseconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    negative = signed and isinstance(value, str) and value.startswith("-")
    try:
        found = milliseconds(value[1:] if negative else value)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if found is None:
        raise ConfigurationError(f"{where}: expected a time such as 30 min or 7 d, got {value!r:.60}")
    return -found if negative else found
