"""Functions that no name leads to, and what makes them."""

import dataclasses
import functools
import json

CALLS = []


def scaled(k):
    def scale(x):
        return x * k

    return scale


def recursive(base):
    def factorial(n):
        return base if n < 2 else n * factorial(n - 1)

    return factorial


def nested(n):
    import math

    triple = scaled(3)
    Error = json.JSONDecodeError

    def both(x, *, offset=n, more=(n, "käse")):
        return triple(x) + offset, math.floor(1.5), json.dumps(more), Error.__name__, helper(x)

    return both


def helper(x):
    return x - 1


def counter():
    count = 0

    def up():
        nonlocal count
        count += 1
        return count

    return up


def mutual():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    return even


def unset():
    def read():
        return later

    if False:
        later = 1
    return read


def noted():
    def note(x):
        CALLS.append(x)
        return len(CALLS)

    return note


def holding(value):
    return lambda: value


def asynchronous(y):
    async def later(x):
        return x + y

    return later


def generator(items):
    return lambda: sum(item for item in items)


TABLE = [lambda x: x + 1, lambda x: x + 2, lambda x: x * 3]  # fmt: skip
DEFAULTS = [lambda x, i=i: x * i for i in range(3)]


@dataclasses.dataclass
class Point:
    x: int

    def plus(self, y):
        return Point(self.x + y)

    def bound(self):
        return functools.partial(self.plus, 1)


class Opaque:
    def method(self):
        return 1


def inner_method(point):
    plus = point.plus
    return lambda y: plus(y).x
