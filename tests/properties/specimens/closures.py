"""Cells, free variables, nonlocal, defaults."""


def counter():
    count = 0

    def up(by=1, *, twice=False):
        nonlocal count
        count += by
        if twice:
            count += by
        return count

    return up() + up(2) + up(3, twice=True)


def deep(a):
    def one(b):
        def two(c):
            return a, b, c

        return two

    return one(1)(2)


def late(flag):
    def inner():
        return value

    if flag:
        value = 3
    try:
        return inner()
    except NameError:
        return None


def deleted():
    value = [1]

    def peek():
        return value

    before = peek()
    del value
    try:
        peek()
    except NameError as error:
        return before, str(error)


def adders():
    return [lambda x, n=n: x + n for n in range(3)], [lambda: n for n in range(3)]


def me(self):
    def inner():
        return self

    return inner(), [self for self in (1, 2)], {k: (lambda: k)() for k in "ab"}
