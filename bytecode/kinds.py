"""Kinds of values, and settings: a dataclass field with a kind, a key in a file, and words for people.

A program gives a value in the unit of the field's name, and `check` tells if it is right. How files are read is in
`reading.py`. Plain Python and little of it, since policies are checked on devices, too.
"""

import dataclasses
import math
import os
import re
from collections import namedtuple
from collections.abc import Callable
from dataclasses import MISSING, field

from . import quantities
from .fields import END_OF_TIME_S, matches, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

END_OF_NUMBERS = (1 << 63) - 1
ANY_TEXT = re.compile(r"[\s\S]+")
_LISTS = (list, tuple, set, frozenset)


class Refused(ValueError):
    """The value is not of the kind; the message says what was expected."""


def refused(expected, value):
    error = Refused(f"expected {expected}, got {shown(value)}")
    error.expected, error.value = expected, value
    return error


class Kind:
    """What a value may be: `words` say it for files, and for programs if `python` does not."""

    words = "a value"
    python = None

    def of(self, _value):
        """The kind that the value is to be of."""
        return self

    def accepts(self, value):
        raise NotImplementedError

    def kept(self, value):
        """What a program reads back of a value that is accepted."""
        return value

    def check(self, value):
        """The value to keep of what a program gives. Refused."""
        if self.accepts(value):
            return self.kept(value)
        raise refused(self.python or self.words, value)

    def given(self, value):
        """The value for a program of what a file gives. Refused."""
        if self.accepts(value):
            return self.kept(value)
        raise refused(self.words, value)


class Number(Kind):
    """A number above `gt` or of at least `ge`, below `lt` or of at most `le`."""

    types, noun = (int, float), "a number"

    def __init__(self, *, gt=None, ge=None, lt=None, le=None, words=None):
        self.gt, self.ge, self.lt, self.le = gt, ge, lt, le
        most = "2**63 - 1" if le == END_OF_NUMBERS else le
        low = f" above {gt}" if gt is not None else f" from {ge}" if le is not None else f" of at least {ge}"
        high = f" to {most}" if gt is None else f", up to {most}"
        high = f" and below {lt}" if lt is not None else high if le is not None else ""
        self.python = self.words = words or f"{self.noun}{'' if gt is None and ge is None else low}{high}"

    def accepts(self, value):
        return (
            isinstance(value, self.types)
            and not isinstance(value, bool)
            and value == value
            and (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def given(self, value):
        return float(super().given(value))


class Whole(Number):
    types, noun = (int,), "a whole number"

    def __init__(self, ge, le=END_OF_NUMBERS):
        super().__init__(ge=ge, le=le)

    given = Kind.given

    def kept(self, value):
        return int(value)


class _Quantity(Number):
    """A number above zero in the kind's unit; files may name another unit. `words` say a range."""

    def __init__(self, words, **bounds):
        super().__init__(words=words, **bounds)
        self.words = words or self.example

    def given(self, value):
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        number = value if plain else self.in_unit(value)
        if number is None or number != number:
            raise refused(self.example, value)
        if number <= 0:
            raise refused(f"a quantity above zero such as {self.example.rpartition('such as ')[2]}", value)
        number = self.bounded(number, value)
        if not self.accepts(number):
            raise refused(self.words, value)
        return number


class Time(_Quantity):
    """Seconds. Beyond the end of time, a file means "without end"."""

    example, suffix, in_unit = "a time such as 500 ms", "_s", staticmethod(quantities.seconds)

    def __init__(self, *, words=None, **bounds):
        super().__init__(words, gt=0, **bounds)

    def bounded(self, number, _value):
        return float(number) if number < END_OF_TIME_S else math.inf


class Size(_Quantity):
    """Bytes."""

    example, suffix, in_unit = "a size such as 64 MiB", "_bytes", staticmethod(quantities.byte_count)
    types, noun = (int,), "a whole number"

    def __init__(self, ge=1, le=END_OF_NUMBERS, words=None):
        super().__init__(words, ge=ge, le=le)

    def bounded(self, number, value):
        if number > END_OF_NUMBERS:
            raise refused("less than 2**63 bytes", value)
        return int(number) if number == int(number) else number


class Flag(Kind):
    words, python = "true or false", "True or False"

    def accepts(self, value):
        return isinstance(value, bool)


class Choice(Kind):
    def __init__(self, *options):
        self.options = options
        self.words = " or ".join(options) if len(options) == 2 else f"one of {', '.join(options)}"

    def accepts(self, value):
        return isinstance(value, str) and value in self.options


class Text(Kind):
    """A text that `pattern` matches as a whole, or one of `others`."""

    types = (str,)

    def __init__(self, words, pattern=ANY_TEXT, max_chars=1 << 16, others=()):
        self.words, self.pattern, self.max_chars, self.others = words, pattern, max_chars, others

    def accepts(self, value):
        return matches(self.pattern, value, self.max_chars) or isinstance(value, str) and value in self.others


class Path(Kind):
    """A path; in a file, relative to the file's folder."""

    def __init__(self, words):
        self.words = words

    def accepts(self, value):
        return isinstance(value, (str, os.PathLike)) and os.fspath(value) and "\0" not in os.fspath(value)

    def kept(self, value):
        return os.fspath(value)

    def located(self, folder, value):
        """The path for a program, of what a file in `folder` gives. Refused."""
        return folder / value


class Items(Kind):
    """A list of values of one kind, different ones if `unique`. Options of a Choice are kept in their order."""

    types = (list,)

    def __init__(self, item, words=None, min_items=0, max_items=None, *, unique=True):
        some = (
            f"a list with any of {', '.join(item.options)}"
            if isinstance(item, Choice)
            else f"a list, each {item.words}"
        )
        self.item, self.words, self.min_items, self.max_items = item, words or some, min_items, max_items
        self.unique = unique

    def accepts(self, value):
        return self.fits(value) and all(map(self.item.accepts, value))

    def fits(self, value):
        return isinstance(value, _LISTS) and self.min_items <= len(value) <= (self.max_items or len(value))

    def check(self, value):
        self.once(value)
        return super().check(value)

    def once(self, values):
        if (
            self.unique
            and self.fits(values)
            and any(value in list(values)[:number] for number, value in enumerate(values))
        ):
            raise refused(f"{self.words}, each once", values)

    def kept(self, value):
        if isinstance(self.item, Choice):
            return tuple(option for option in self.item.options if option in value)
        return tuple(value)


class Instance(Kind):
    """An object of a class; for programs only."""

    def __init__(self, cls):
        self.cls, self.words = cls, f"a {cls.__name__}"

    def accepts(self, value):
        return isinstance(value, self.cls)


class Named(Kind):
    """A mapping of names, each of the kind `name`, to values of one kind."""

    def __init__(self, item, words, name=None, min_items=0, max_items=None):
        self.item, self.words, self.name = item, words, name or Text("a name")
        self.min_items, self.max_items = min_items, max_items

    def fits(self, value):
        return isinstance(value, dict) and self.min_items <= len(value) <= (self.max_items or len(value))


class Setting(namedtuple("Setting", "key kind words path default fixed required", defaults=(None, False, False))):
    """One key of a file. `path`: the names of fields that lead to its value, () for a section whose settings are fields
    beside it; `default`: what it is without, as a value or in words; `fixed`: a running host cannot change it."""


class Section(Kind):
    """A mapping with some of the keys of `settings`. `short`: the key that a plain text stands for; `null`: null is
    a mapping without keys; `raw`: its values stay as they are given."""

    raw = False

    def __init__(self, settings, *, short=None, null=False, words=None):
        self.settings, self.short, self.null = {setting.key: setting for setting in settings}, short, null
        required = [key for key, setting in self.settings.items() if setting.required]
        others = ", ".join(key for key in self.settings if key not in required)
        first = f"{', '.join(required)}, and " if required else ""
        self.words = words or f"a mapping with {first}any of {others}"
        if short is not None:
            self.words = f"{', '.join(self.settings[short].kind.options)}, or {self.words}"


class Part(Section):
    """A section with the settings of a dataclass, which is what a program gives. `whole`: a file gives all of it rather
    than changes, by a mapping with a key `enabled`, or null for none."""

    def __init__(self, cls, *, whole=False, **options):
        enabled = [Setting("enabled", Flag(), "false: none", ("enabled",), True)] if whole else []
        super().__init__(enabled + settings_of(cls), **options)
        self.cls, self.python, self.whole = cls, f"a {cls.__name__}", whole

    def accepts(self, value):
        return isinstance(value, self.cls)


def setting(kind, words, default=MISSING, key="", *, unset=None, fixed=False) -> "Any":
    """A dataclass field. `key`: its key in a file, by default its name; None: no file sets it. `default` may be a
    function that makes it, and `unset` says in words what it is."""
    made = {"default_factory": default} if isinstance(default, Callable) else {"default": default}
    return field(**made, metadata={"kind": kind, "words": words, "key": key, "unset": unset, "fixed": fixed})


def settings_of(cls, section=""):
    """The Settings of a dataclass whose keys are in `section`."""
    found = []
    for each in dataclasses.fields(cls):
        if (key := each.metadata.get("key")) is not None and (key or each.name).rpartition(".")[0] == section:
            kind, words, unset, fixed = (each.metadata[name] for name in ("kind", "words", "unset", "fixed"))
            required = each.default is each.default_factory is MISSING
            default, key = each.default if unset is None else unset, (key or each.name).rpartition(".")[2]
            found.append(Setting(key, kind, words, (each.name,), default, fixed, required))
    return found


def documented(cls):
    """`cls`, with its settings in its docstring."""
    if cls.__doc__ is not None:
        words = "".join(f"\n- `{each.name}`: {each.metadata['words']}" for each in dataclasses.fields(cls))
        cls.__doc__ = f"{cls.__doc__.rstrip()}\n{words}"
    return cls
