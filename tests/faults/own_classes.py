"""Classes that tests/faults/value_allocations.py sends to a VM, where this file's text is a part of the task."""

import dataclasses
import enum
import typing


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    lines: tuple = ()


class Colour(enum.Enum):
    RED = 1


class Point(typing.NamedTuple):
    x: int


class BadOrder(Exception):
    pass
