"""Reading a tokenizer.json: values are taken by name and type, and errors name their place."""


class TokenizerError(ValueError):
    """A tokenizer.json that cannot be used, or texts that a tokenizer cannot take. The message says where, what, and
    what was expected."""


NUMBER = (int, float)
_NAMES = {
    str: "a text", int: "a whole number", float: "a number", NUMBER: "a number", bool: "true or false", list: "a list",
    dict: "an object",
}  # fmt: skip
_REQUIRED = object()


class Section:
    """An object of the document and its place in it, such as `$.model`."""

    __slots__ = ("values", "where")

    def __init__(self, values, where):
        if type(values) is not dict:
            raise TokenizerError(f"{where}: expected an object, got {shown(values)}")
        self.values, self.where = values, where

    def take(self, name, kind, default=_REQUIRED):
        """The value with that name; `default` if it is absent or null."""
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise TokenizerError(f"{self.where}: {name!r} is missing; expected {_NAMES[kind]}")
            return default
        return checked(value, kind, f"{self.where}.{name}")

    def section(self, name):
        return Section(self.take(name, dict), f"{self.where}.{name}")

    def sections(self, name):
        return [Section(each, f"{self.where}.{name}[{i}]") for i, each in enumerate(self.take(name, list))]

    def natural(self, name, default=_REQUIRED):
        """An integer from 0 to 2**31."""
        value = self.take(name, int, default)
        if value is not None and not 0 <= value <= 1 << 31:
            raise TokenizerError(f"{self.where}.{name}: expected a whole number from 0 to 2**31, got {value}")
        return value

    def choice(self, name, among, default=_REQUIRED):
        value = self.take(name, str, default)
        if value not in among:
            raise TokenizerError(f"{self.where}.{name}: expected {' or '.join(map(repr, among))}, got {value!r}")
        return value

    def character(self, name, default=_REQUIRED):
        value = self.take(name, str, default)
        if len(value) != 1:
            raise TokenizerError(f"{self.where}.{name}: expected one character, got {shown(value)}")
        return value

    def make(self, makers, what):
        """The result of the maker for this object's `type`."""
        kind = self.take("type", str)
        if kind not in makers:
            raise TokenizerError(
                f"{self.where}: there is no {what} {shown(kind)} here; there are {', '.join(sorted(makers))}"
            )
        return makers[kind](self)


def checked(value, kind, where):
    wrong = not isinstance(value, kind) or (type(value) is bool and kind is not bool)
    if wrong:
        raise TokenizerError(f"{where}: expected {_NAMES[kind]}, got {shown(value)}")
    return value


def texts(values, where):
    """A list of strings, checked."""
    checked(values, list, where)
    for i, value in enumerate(values):
        if type(value) is not str:
            raise TokenizerError(f"{where}[{i}]: expected a text, got {shown(value)}")
    return values


def vocabulary(values, where):
    """A dict of strings to ids, checked."""
    checked(values, dict, where)
    for text, number in values.items():
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise TokenizerError(f"{where}: {shown(text)}: expected an id from 0 to 2**31 - 1, got {shown(number)}")
    return values


def shown(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
