"""Sections of rows, whole milliseconds, and kinds of values that have one of several types. Apart from `kinds`, since
device images need none of them."""

from types import MappingProxyType

from . import quantities
from .kinds import Flag, Kind, Refused, Section, Setting, Time, refused

MAX_MS = 1 << 52

_JSON_TYPES = {"object": dict, "array": (list, tuple), "string": str}


def section(*rows, fields=MappingProxyType({}), **options):
    """A Section. A row: key, kind, words, and the default, without which the key is required. `fields`: the names of
    values that are not named as their keys."""
    settings = [Setting(*row[:3], (fields.get(row[0], row[0]),), *row[3:], required=len(row) == 3) for row in rows]
    return Section(settings, **options)


class Raw(Kind):
    """A value of some of JSON's types, which what uses it reads further."""

    def __init__(self, words, *json_types):
        self.words, self.json_types = words, json_types

    def accepts(self, value):
        return any(isinstance(value, _JSON_TYPES[name]) for name in self.json_types)


class Yes(Flag):
    words, python = "true", "True"

    def accepts(self, value):
        return value is True


class Either(Kind):
    """The kind of the first of the pairs `options` (class, kind) whose class the value has."""

    def __init__(self, words, *options):
        self.words, self.options = words, options

    def of(self, value):
        return next((kind for cls, kind in self.options if isinstance(value, cls)), self)

    def accepts(self, value):
        return self.of(value) is not self and self.of(value).accepts(value)


class Milliseconds(Time):
    """Whole milliseconds, at least `ge` of them. A plain number in a file is one of seconds."""

    example, suffix, types = "a time such as 500 ms, 30 min or 7 d", "_ms", (int,)

    def __init__(self, ge=1, le=MAX_MS, expected=None):
        super().__init__(words=f"a whole number of milliseconds from {ge}")
        self.gt, self.ge, self.le, self.words = None, ge, le, self.example
        self.range = expected or f"a time{' above zero' * (ge > 0)} such as 30 min"

    def given(self, value):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            found = value * 1000 if is_number else quantities.milliseconds(value)
        except ValueError as error:
            raise Refused(str(error)) from error
        if found is None:
            raise refused(self.words, value)
        if 0 < found <= MAX_MS:
            found = round(found)
        if not self.ge <= found <= self.le:
            raise refused(self.range, value)
        return int(found)


def time_text(ms):
    """The milliseconds as a text such as "30 min"."""
    units = reversed(quantities.MICROSECONDS.items())
    unit, us = ("s", 1) if ms == 0 else next(each for each in units if ms * 1000 % each[1] == 0)
    return f"{int(ms * 1000) // us} {unit}"
