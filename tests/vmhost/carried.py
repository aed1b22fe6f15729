"""A module of a program: functions for VMs, and the classes of their arguments and results."""

import dataclasses
import enum
import inspect
import typing


@dataclasses.dataclass
class Order:
    number: int
    lines: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    a: int
    b: object = None


class Colour(enum.Enum):
    RED = 1
    BLUE = 2
    CRIMSON = 1  # noqa: PIE796 - an alias


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(typing.NamedTuple):
    x: float
    y: float = 0.0


class BadOrder(Exception):
    def __init__(self, order, *, code):
        super().__init__(f"bad {order.number}")
        self.order, self.code = order, code


class Missing(KeyError):
    pass


class Refused(OSError):
    pass


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: int


class Money:
    def __init__(self, cents):
        self.cents = cents

    def __eq__(self, other):
        return isinstance(other, Money) and self.cents == other.cents

    __hash__ = None


def money_to_plain(money):
    return money.cents


def money_from_plain(cents):
    if type(cents) is not int:
        raise TypeError("no cents")
    return Money(cents)


def echo(*values):
    return values


def classes_are_here(order, colour, point, key):
    return [
        type(order) is Order,
        colour is Colour.RED,
        type(point) is Point,
        type(key) is Key,
        hash(key) == hash(Key(key.a, key.b)),
    ]


def fail(order):
    error = BadOrder(order, code=Colour.BLUE)
    error.add_note("a note")
    raise error


def fail_with(kind):
    raise {
        "missing": Missing("k"),
        "refused": Refused(2, "no", "/x"),
        "status": StatusError(inspect.Parameter.VAR_KEYWORD),
    }[kind]


class StatusError(Exception):
    pass


def both_rights():
    return Rights.READ | Rights.WRITE


def double(money):
    return Money(money.cents * 2)


_kept = []


def keep(order):
    _kept.append(order)


def kept():
    return _kept[0]


def order():
    return Order(1)
