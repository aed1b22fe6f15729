"""f-strings, t-strings, formatting, long constants."""


def formats(x, y):
    return (
        f"{x}",
        f"{x!r}{y!s}{x!a}",
        f"{x:>{y}}" if isinstance(y, int) and isinstance(x, (int, str)) else f"{y=}",
        f"{x}b{{}}",
    )


def templates(x):
    t = t"a{x}b{x!r:>{x}}c"
    return t.strings, t.values, [part for part in t], t + t"d", t""


def walrus(x):
    return f"{x}{(x := 5)}{x:03d}"


def table():
    return {"alpha": 1, "beta": (1, 2.5, 3j, b"x", "s", None, ..., frozenset({1, 2})), "gamma": -1, "delta": 10**5}


def texts():
    return formats(3, 5), formats("a", 2), templates(3), walrus(1), table()
