"""Calls with every shape of arguments, methods, decorators, lambdas, recursion."""


def every(a, b=2, /, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more


def callers():
    args, named = (1, 2, 3, 4), {"d": 4, "z": 9}
    return (
        every(1, d=2),
        every(*args, **named),
        every(1, *args, d=1, e=2),
        every(1, 2, 3, 4, d=5, x=6, **{"y": 7}),
        "a,b".split(","),
        "{:>4}".format(3),
        sorted([3, 1], key=lambda v: -v),
        print("x", end=""),
        [].append(1),
    )


def wrong():
    out = []
    for attempt in (lambda: every(), lambda: every(1, d=2, **{"d": 3}), lambda: len(1, 2), lambda n=None: n()):
        try:
            attempt()
        except TypeError as error:
            out.append(str(error))
    return out


def fib(n):
    return n if not isinstance(n, int) or n < 2 else fib(n - 1) + fib(n - 2)


def fibs():
    return [fib(n) for n in range(8)]


def wrap(function):
    def inner(*args, **named):
        return function(*args, **named)

    return inner


@wrap
def wrapped(a, *, b=1):
    return a + b


def decorated():
    return wrapped(1), wrapped(1, b=2), (lambda *a, **k: (a, k))(1, x=2)


def conditional(a, b, c):
    if a and b or not c:
        return a if b else c
    elif a is None:
        return b
    while c:
        c = None
    return a == b != c, a in (b, c), 1 < 2 < 3
