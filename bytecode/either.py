"""Kinds of values that have one of several types. Apart from `kinds`, since device images need none of them."""

from .kinds import Flag, Kind

_JSON_TYPES = {"object": dict, "array": (list, tuple), "string": str}


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
