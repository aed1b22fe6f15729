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
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import NamedTuple

from vmhost import ConfigurationError, callbacks
from vmhost.bytecode.either import MAX_MS, Either, Milliseconds, Raw
from vmhost.bytecode.kinds import (
    Choice,
    Items,
    Kind,
    Named,
    Number,
    Refused,
    Section,
    Setting,
    Text,
    refused,
    setting,
    settings_of,
)
from vmhost.bytecode.quantities import TIME_PATTERN, milliseconds
from vmhost.bytecode.reading import read
from vmhost.pipeline.features import _features
from vmhost.settings.files import Problems, SettingsFile


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


class _Time(Milliseconds):
    """Whole milliseconds from `ge` to `le`; a plain number is of these. `range_words` say the two."""

    example = "a time such as 30 min or 7 d"

    def __init__(self, ge=0, le=MAX_MS, range_words=example):
        super().__init__(ge)
        self.le, self.range_words = le, range_words
        sign = "-?" if ge < 0 else ""
        pattern = f"^{sign}{TIME_PATTERN[1:]}"
        self.schema = {"type": ["string", "integer"], "pattern": pattern, "minimum": ge, "maximum": le}

    def given(self, value):
        negative = self.ge < 0 and isinstance(value, str) and value.startswith("-")
        if isinstance(value, int) and not isinstance(value, bool):
            found = value
        else:
            try:
                found = milliseconds(value[1:] if negative else value)
            except ValueError as error:
                raise Refused(str(error)) from None
        if found is None:
            raise refused(self.words, value)
        found = -found if negative else found
        if not self.ge <= found <= self.le:
            raise refused(self.range_words, value)
        return found


_LENGTH = _Time(1, MAX_WINDOW_MS, "a time above 0, up to 400 days")


def _of(keys):
    return dict.fromkeys(keys, _LENGTH.schema)


class _Window(Kind):
    """(shape, window_ms, most_ms)"""

    words = "a time such as 7 d, or one of {tumbling: 1 d}, {previous: 1 d} and {session: 30 min, most: 1 d}"
    schema = {
        "anyOf": [
            _LENGTH.schema,
            *(
                {"type": "object", "required": keys[:1], "additionalProperties": False, "properties": _of(keys)}
                for keys in (["sliding"], ["tumbling"], ["previous"], ["session", "most"])
            ),
        ]
    }

    def given(self, value):
        shape, most = "sliding", None
        if isinstance(value, Mapping):
            shapes = [key for key in value if key in SHAPES]
            if len(shapes) != 1 or not value.keys() <= {shapes[0], *(("most",) if shapes == ["session"] else ())}:
                raise refused(self.words, dict(value))
            (shape,) = shapes
            value, most = value[shape], value.get("most")
        window_ms = _LENGTH.given(value)
        return shape, window_ms, max(DAY_MS, window_ms) if most is None else _LENGTH.given(most)


class _Real(Number):
    """A float. `nan`: or none."""

    def __init__(self, *, nan=False):
        super().__init__()
        self.nan = nan

    def given(self, value):
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value and not self.nan:
            raise refused(self.words, value)
        try:
            return float(value)
        except OverflowError:
            raise Refused("expected a number that a float can hold") from None


_TEXT, _EVENT = Text("a text"), Text("the name of an event")
_EVENTS = f"the name of an event, a list of them, or {ANY!r}"
_NAME = Text("a name of letters, digits and _", re.compile("[A-Za-z_][A-Za-z0-9_]{0,127}"), 128)


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
    source: tuple = setting(
        Either(_EVENTS, (str, _EVENT), ((list, tuple), Items(_EVENT, _EVENTS, 1, unique=False))),
        "the events",
        (ANY,),
    )
    where: object = setting(
        Raw("a condition", "string", "object", "array"),
        "a condition on the event, as in a pattern's step (docs/patterns.md), also in CEL",
        None,
    )
    field: str | None = setting(_TEXT, "the value: a dotted path in the contents, or `page`, `visit`, `name`", None)
    other: str | None = setting(_TEXT, "a second field, for operators over two", None)
    by: str = setting(Choice(*BY), "what the feature belongs to", "key")
    shape: str = "sliding"
    window_ms: int = DAY_MS
    most_ms: int = DAY_MS
    when: str = setting(
        Choice(*WHEN), "`write`: the window ends with the last event instead of the time of reading", "read"
    )
    parameter: float = setting(_Real(), "of some operators", 0.0)
    default: float = setting(
        _Real(nan=True), "if there is no result, such as the mean of no events", math.nan, unset="none (NaN)"
    )
    fresh_ms: int | None = setting(
        _Time(), "no result if the last event of the window is older than this", None, "fresh", unset="any"
    )
    of: tuple = ()
    about: str = setting(_TEXT, "for people", "")
    compute: Callable[["Window"], float] | None = None
    task: str | None = setting(_TEXT, "a task that computes it, instead of an operator", None)
    entry: str | None = setting(_TEXT, "of the task, such as main:other", None, unset="the task's own")

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


_PAIR = Items(_NAME, "the names of two features", 2, 2, unique=False)
FEATURE = Section(
    [
        Setting("operator", Text("the name of an operator"), "one of the operators below", ("operator",)),
        Setting("window", _Window(), "the events that count", ("window",), "1 d"),
        *settings_of(Feature),
        *(Setting(name, _PAIR, f"instead of an operator: {says}", (name,)) for name, says in DERIVED.items()),
    ]
)
_SET = Section(
    [
        Setting(
            "views",
            Named(
                Items(Text("the name of a feature"), "a list of names of features", 1), "a mapping of names to views"
            ),
            "lists of features that are read as one vector",
            ("views",),
        ),
        Setting(
            "utc_offset",
            _Time(-DAY_MS, DAY_MS, "a time of a day at most"),
            "of local time, for operators on hours and days",
            ("utc_offset",),
            0,
        ),
    ]
)
FEATURES = Section(
    [
        Setting(
            "features", Named(FEATURE, "a mapping of names to features", _NAME), "by name", ("features",), required=True
        ),
        *_SET.settings.values(),
    ],
    words="a mapping with `features`, a mapping of names to features",
)


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
        return _feature(own, data, function)

    return declare


@dataclass(frozen=True)
class FeatureSet:
    """Features by name, and views: lists of features that are read as one vector. `offset_ms`: the offset of local time
    from UTC, for operators on hours and days."""

    features: Mapping = dataclass_field(default_factory=dict)
    views: Mapping = dataclass_field(default_factory=dict)
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
        at = Problems("features", None, Path(), "")
        given = read(_SET, {"views": views or {}, "utc_offset": utc_offset}, at)
        at.stop()
        _check_names(found, given, at)
        at.stop()
        return cls._of(found, given)

    @classmethod
    def of(cls, data, where="features"):
        """From plain data: {"features": {name: {...}}, "views": {name: [names]}, "utc_offset": "1 h"}."""
        return cls._read(data, Problems(where, None, Path(), ""))

    @classmethod
    def _read(cls, data, at):
        given = read(FEATURES, data, at) or {}
        at.stop()
        found = {name: _made(name, each, at.part("features", name)) for name, each in given["features"].items()}
        at.stop()
        if not found:
            at.add((), f"expected {FEATURES.words}, got none")
        _check_names(found, given, at)
        at.stop()
        return cls._of(found, given)

    @classmethod
    def _of(cls, found, given):
        views = {name: tuple(names) for name, names in given.get("views", {}).items()}
        return cls(found, views, given.get("utc_offset", 0))

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
    file = SettingsFile(path, content_of=content_of)
    return FeatureSet._read(file.values, file.problems)


def _feature(name, data, compute=None):
    at = Problems(name, None, Path(), "")
    read(_NAME, name, at)
    given = read(FEATURE, data, at)
    at.stop()
    made = _made(name, given, at, compute)
    at.stop()
    return made


def _made(name, given, at, compute=None):
    """The Feature of what was read; None, with a problem in `at`, if its keys do not fit together."""
    kinds = [kind for kind in DERIVED if kind in given]
    if kinds:
        if more := given.keys() - {kinds[0], "default", "about"}:
            return at.add((min(more),), f"{kinds[0]} has none; leave one of the two out")
        return Feature(name, kinds[0], of=given.pop(kinds[0]), **given)
    operator = _operator(given, at, compute)
    given.pop("operator", None)
    shape, window_ms, most_ms = given.pop("window", ("sliding", DAY_MS, DAY_MS))
    if shape != "sliding" and operator in OPERATORS and OPERATORS[operator].of_sketch:
        at.add(("window",), f"{operator} has a sliding one only")
    source = given.pop("source", ANY)
    source = tuple(sorted({source} if isinstance(source, str) else set(source)))
    window = {"shape": shape, "window_ms": window_ms, "most_ms": most_ms}
    return Feature(name, operator, source, **window, **given, compute=compute)


def _operator(given, at, compute):
    """The operator's name; "function" or "task" for an own one. Adds problems to `at`."""
    if compute is not None:
        return "function"
    operator = given.get("operator")
    if "task" in given:
        if operator is not None:
            at.add(("operator",), "a task computes it; leave one of the two out")
        return "task"
    if operator not in OPERATORS:
        import difflib

        near = difflib.get_close_matches(str(operator), OPERATORS, 1)
        hint = f"; did you mean {near[0]}?" if near else "; `vmhost pipeline features --operators` lists them"
        return at.add(("operator",), f"there is no {operator!r:.60}{hint}")
    for key, wants in (("parameter", OPERATORS[operator].parameter), ("other", OPERATORS[operator].other)):
        if wants != (key in given):
            at.add((key,), f"{operator} {'needs one' if wants else 'has none'}")
    if "entry" in given:
        at.add(("entry",), "it goes with a task")
    return operator


def _check_names(features, given, at):
    for name, names in given.get("views", {}).items():
        for other in names:
            if other not in features:
                at.add(("views", name), f"{other}: there is no such feature")
    missing = [(each.name, other) for each in features.values() for other in each.of if other not in features]
    for name, other in missing:
        at.add(("features", name), f"{other}: there is no such feature")
    if not missing:
        _refuse_circles(features, at)


def _refuse_circles(features, at):
    done, under_way = set(), []

    def visit(name):
        if name in under_way:
            return at.add((), f"{' -> '.join((*under_way[under_way.index(name) :], name))}: a circle")
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
        at.add((), "features of features lie too deep")
