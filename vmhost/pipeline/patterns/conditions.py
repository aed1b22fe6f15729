"""Conditions of rules: simple ones as data, and texts in the Common Expression Language (cel.py lowers them).

A condition is a tree as in automaton.py, whose leaves are compared by value: equal ones become one predicate.

| leaf | holds where |
| --- | --- |
| `Named(name)` | the event has this name |
| `Compared(field, op, value)` | a field of the event, given by its path, compares so; a missing one never does |
| `Gathered(kind, step, field, plus, other, op, value)` | an aggregate over the step's events compares so |
| `Program(...)` | a CEL expression is true |
"""

from dataclasses import dataclass

from vmhost.pipeline.patterns.programs import program_of
from vmhost.pipeline.patterns.rules import MAX_DEPTH, RuleError

OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
GATHERS = ("sum_of", "count_of", "min_of", "max_of", "avg_of", "first_of", "last_of")
MAX_PARTS = 1000


@dataclass(frozen=True)
class Named:
    name: str


@dataclass(frozen=True)
class Compared:
    field: tuple
    op: str
    value: object
    kind: type  # of `value`, as 1, 1.0 and True are equal in Python


@dataclass(frozen=True)
class Gathered:
    """`field`: the aggregated field; None: the events are counted. `plus`: a field of this event that is added.
    `other`: a field of this event to compare with, in place of `value`."""

    kind: str
    step: str
    field: tuple | None
    plus: tuple | None
    other: tuple | None
    op: str
    value: object
    value_kind: type


def conjunction(parts):
    return _joined("and", parts)


def disjunction(parts):
    return _joined("or", parts)


def _joined(word, parts):
    found = None
    for part in parts:
        found = part if found is None else (word, found, part)
    return found


def leaves(condition):
    """The leaves of a tree, from left to right."""
    stack = [condition]
    while stack:
        found = stack.pop()
        if found[0] == "leaf":
            yield found[1]
        else:
            stack.extend(reversed(found[1:]))


class Conditions:
    """Reads the conditions of one rule. `path(text)`: the path of a field in an event. `expression(text, place)`: reads
    a condition in CEL; None: these are refused. RuleError."""

    conjunction = staticmethod(conjunction)
    disjunction = staticmethod(disjunction)

    def __init__(self, path, expression=None):
        self._path, self._expression = path, expression

    def event(self, name, place):
        if not isinstance(name, str) or not name:
            raise RuleError(f"{place}: expected an event's name, got {name!r}")
        return ("leaf", Named(name))

    def read(self, data, place, depth=0):
        if depth > MAX_DEPTH:
            raise RuleError(f"{place}: conditions are nested more than {MAX_DEPTH} deep")
        if isinstance(data, str):
            if self._expression is None:
                raise RuleError(f"{place}: expected a mapping or a list, got a text")
            return self._expression(data, place)
        if isinstance(data, list | tuple):
            return self._all(data, place, depth, conjunction, ("true",))
        if not isinstance(data, dict):
            raise RuleError(f"{place}: expected a condition, got {type(data).__name__}")
        if "all" in data:
            return self._all(self._only(data, "all", place), f"{place}.all", depth, conjunction, ("true",))
        if "any" in data:
            parts = self._only(data, "any", place)
            return self._all(parts, f"{place}.any", depth, disjunction, ("not", ("true",)))
        if "not" in data:
            return ("not", self.read(self._only(data, "not", place), f"{place}.not", depth + 1))
        if "program" in data:
            return program_of(data, place)
        if "event" in data:
            return self.event(self._only(data, "event", place), f"{place}.event")
        return self._comparison(data, place)

    def _all(self, listed, place, depth, join, none):
        if not isinstance(listed, list | tuple) or len(listed) > MAX_PARTS:
            raise RuleError(f"{place}: expected a list of conditions")
        parts = [self.read(one, f"{place}[{number}]", depth + 1) for number, one in enumerate(listed)]
        return join(parts) if parts else none

    @staticmethod
    def _only(data, key, place):
        if len(data) != 1:
            others = ", ".join(sorted(str(other) for other in data if other != key))
            raise RuleError(f"{place}: `{key}` stands alone in its mapping, got {others} beside it")
        return data[key]

    def _comparison(self, data, place):
        gathers = [key for key in GATHERS if key in data]
        for key in data:
            if key not in ("field", "op", "value", "plus", *GATHERS):
                raise RuleError(
                    f"{place}: there is no key {key!r}; there are field, op, value, plus, event, all, any, not, "
                    f"{', '.join(GATHERS)}"
                )
        op, value = data.get("op"), data.get("value")
        if op not in OPERATORS:
            raise RuleError(f"{place}.op: expected one of {', '.join(OPERATORS)}, got {op!r}")
        if value is not None and not isinstance(value, str | int | float):
            raise RuleError(
                f"{place}.value: expected a text, a number, true, false or null, got {type(value).__name__}"
            )
        field = self._field(data.get("field"), f"{place}.field")
        if not gathers:
            if field is None:
                raise RuleError(f"{place}: expected `field`, or one of {', '.join(GATHERS)}")
            if "plus" in data:
                raise RuleError(f"{place}: `plus` goes with {', '.join(GATHERS)}")
            return ("leaf", Compared(field, op, value, type(value)))
        if len(gathers) > 1:
            raise RuleError(f"{place}: expected one of {' and '.join(gathers)}")
        (kind,) = gathers
        step, of = data[kind], None
        if isinstance(step, list | tuple):
            if not 1 <= len(step) <= 2:
                raise RuleError(f"{place}.{kind}: expected [step, field], got {step!r}")
            step, of = step[0], step[1] if len(step) == 2 else None
        if not isinstance(step, str):
            raise RuleError(f"{place}.{kind}: expected a step's name, got {step!r}")
        plus = self._field(data.get("plus"), f"{place}.plus")
        return (
            "leaf",
            Gathered(kind, step, self._field(of, f"{place}.{kind}"), plus, field, op, value, type(value)),
        )

    def _field(self, text, place):
        if text is None:
            return None
        if not isinstance(text, str) or not text:
            raise RuleError(f"{place}: expected the name of a field, got {text!r}")
        return self._path(text)
