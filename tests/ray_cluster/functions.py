"""Functions that the tests of vmhost.ray send to nodes."""

import enum
import time
from dataclasses import dataclass

from tests.ray_cluster import more


class Refused(Exception):
    pass


@dataclass(frozen=True)
class Point:
    x: int
    y: int


class Colour(enum.Enum):
    RED = 1


def makes_generator():
    return (each for each in "ab")


def is_prime(number):
    return number > 1 and all(number % each for each in range(2, int(number**0.5) + 1))


def fails(number):
    raise LookupError("no", number)


def refuses(number):
    if number == 3:
        raise Refused("three", number)
    return number


def of_point(point):
    return Point(point.y, point.x)


def keyed(point):
    return {point: {point}, "list": [point, (1.5, 2j, b"x", None)]}


def uses_more(number):
    return more.doubled(number)


def waits(seconds):
    time.sleep(seconds)
    return seconds


def spins():
    while True:
        pass


def makes(size):
    return [bytes(size)]


def echoes(value):
    return value


def slow_double(number):
    time.sleep(0.002)
    return 2 * number


def adds(number):
    return lambda other: other + number
