"""The fields of stream tasks: `trigger` and `table` of task.yaml, manifests and hosts.

`Trigger.from_fields` and `Table.from_fields` validate the plain form, which manifests contain; `fields()` returns it.
For the meaning see docs/pipeline.md."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .fields import is_unicode, shown

LEVELS = ("page", "time")
GIVEN_EVENTS = ("visit", "match", "none")
OVERLOAD_RULES = ("newest", "oldest", "coalesce")
COLUMN_TYPES = ("text", "integer", "real", "bytes", "json", "array")
MAX_SEQUENCES, MAX_IDS, MAX_ID_CHARS = 64, 64, 255
MAX_QUEUE, MAX_RETRIES = 100_000, 100
MAX_SPAN_MS, EXPECTED_SPAN = 10 * 366 * 24 * 3600 * 1000, "a time from 1 ms to 10 years"
MAX_COLUMNS = 256

# An event's name, `page:` and a page's id, or `*` for any run of events, even an empty one.
EVENT_ID = re.compile(r"[^\u0000-\u001f\u007f]+")
COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
ANY_RUN, PAGE_PREFIX = "*", "page:"
_SQL_NAMES = ("rowid", "oid")  # SQLite's implicit column


class FieldError(ValueError):
    """An invalid `key` of a trigger or table; the text says what was expected and given."""

    def __init__(self, key, expected, got):
        super().__init__(f"expected {expected}, got {shown(got)}")
        self.key = key


@dataclass(frozen=True)
class Trigger:
    """When a stream task is called, and with which input.

    `on` is a tuple of sequences of ids, any of which triggers. `level` is one of LEVELS. `within_ms` bounds the time
    from the first event of a match to its last (None: a match ends with its visit). `events` selects the events that a
    call gets: the visit's, the match's, or none. With `state`, calls of one key run one after the other, and each gets
    the result of the one before. At most `queue` calls wait; beyond that, `overload` selects which stay: the newest,
    the oldest, or, per key, the newest. A failed call is retried `retries` times.
    """

    on: tuple
    level: str = "page"
    within_ms: int | None = None
    events: str = "visit"
    state: bool = False
    overload: str = "newest"
    queue: int = 64
    retries: int = 1

    @classmethod
    def from_fields(cls, found):
        """The Trigger in plain form `found`; FieldError."""
        check = _Check(found, cls.__dataclass_fields__, ("on",))
        on = check.get("on", list)
        if not 1 <= len(on) <= MAX_SEQUENCES:
            raise FieldError("on", f"1 to {MAX_SEQUENCES} sequences", on)
        level = check.one_of("level", LEVELS, "page")
        return cls(
            on=tuple(_sequence(ids) for ids in on),
            level=level,
            within_ms=check.span("within_ms"),
            events=check.one_of("events", GIVEN_EVENTS, "visit" if level == "page" else "match"),
            state=check.get("state", bool, False),
            overload=check.one_of("overload", OVERLOAD_RULES, "newest"),
            queue=check.whole("queue", 1, MAX_QUEUE, 64),
            retries=check.whole("retries", 0, MAX_RETRIES, 1),
        )

    def fields(self):
        """The plain form, complete."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "on": [list(ids) for ids in self.on]
        }


@dataclass(frozen=True)
class Column:
    """One column of a stream task's table: `type` is one of COLUMN_TYPES, `index` speeds up searches by it, `leaves`
    allows it to leave the device."""

    type: str
    index: bool = False
    leaves: bool = False


@dataclass(frozen=True)
class Table:
    """The table for a stream task's rows: `columns` by name, in the order of task.yaml. `key` names the column of the
    row's subject. Rows older than `retention_ms` are removed (None: never)."""

    columns: Mapping = field(default_factory=dict)
    key: str | None = None
    retention_ms: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))

    @classmethod
    def from_fields(cls, found):
        """The Table in plain form `found`; FieldError."""
        check = _Check(found, cls.__dataclass_fields__, ("columns",))
        described = check.get("columns", dict)
        if not 1 <= len(described) <= MAX_COLUMNS:
            raise FieldError("columns", f"1 to {MAX_COLUMNS} columns", described)
        columns, names = {}, {}
        for name, column in described.items():
            if type(name) is not str or not COLUMN.fullmatch(name) or name.lower() in _SQL_NAMES:
                expected = f"names of letters, digits and '_', and not {' or '.join(_SQL_NAMES)}"
                raise FieldError("columns", expected, name)
            if (other := names.setdefault(name.lower(), name)) != name:
                raise FieldError(f"columns.{name}", f"names that differ in more than case from {other!r}", name)
            columns[name] = _column(f"columns.{name}", column)
        key = check.get("key", (str, type(None)), None)
        if key is not None and key not in columns:
            raise FieldError("key", f"one of the columns {', '.join(columns)}", key)
        return cls(columns, key, check.span("retention_ms"))

    def fields(self):
        """The plain form, complete."""
        columns = {name: {"type": c.type, "index": c.index, "leaves": c.leaves} for name, c in self.columns.items()}
        return {"columns": columns, "key": self.key, "retention_ms": self.retention_ms}


class _Check:
    """Typed access to a plain mapping that may have the keys `known` and must have those in `required`."""

    def __init__(self, found, known, required, prefix=""):
        self._prefix = prefix
        if type(found) is not dict:
            raise FieldError(prefix.rstrip("."), "a mapping", found)
        for name in found:
            if name not in known:
                raise FieldError(prefix + str(name), f"one of the keys {', '.join(known)}", name)
        for name in required:
            if name not in found:
                raise FieldError(prefix + name, "it to be there", found)
        self._found = found

    def get(self, name, kinds, default=None):
        value = self._found.get(name, default)
        kinds = kinds if type(kinds) is tuple else (kinds,)
        if type(value) not in kinds:
            raise FieldError(self._prefix + name, " or ".join(kind.__name__ for kind in kinds), value)
        return value

    def one_of(self, name, choices, default):
        value = self._found.get(name, default)
        if value not in choices:
            raise FieldError(self._prefix + name, " or ".join(choices), value)
        return value

    def whole(self, name, minimum, maximum, default):
        value = self.get(name, int, default)
        if not minimum <= value <= maximum:
            raise FieldError(self._prefix + name, f"a whole number from {minimum} to {maximum}", value)
        return value

    def span(self, name):
        value = self.get(name, (int, type(None)))
        if value is not None and not 1 <= value <= MAX_SPAN_MS:
            raise FieldError(self._prefix + name, EXPECTED_SPAN, value)
        return value


def _sequence(ids):
    if type(ids) is not list or not 1 <= len(ids) <= MAX_IDS:
        raise FieldError("on", f"sequences of 1 to {MAX_IDS} ids", ids)
    for each in ids:
        right = type(each) is str and len(each) <= MAX_ID_CHARS and EVENT_ID.fullmatch(each) and is_unicode(each)
        if not right or each == PAGE_PREFIX:
            raise FieldError("on", "an event's name, `page:` and a page's id, or `*`", each)
    if all(each == ANY_RUN for each in ids):
        raise FieldError("on", "an id beside `*`, which would trigger at every event", ids)
    return tuple(ids)


def _column(where, found):
    if type(found) is str:
        found = {"type": found}
    check = _Check(found, Column.__dataclass_fields__, ("type",), f"{where}.")
    return Column(
        check.one_of("type", COLUMN_TYPES, None), check.get("index", bool, False), check.get("leaves", bool, False)
    )
