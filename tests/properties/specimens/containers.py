"""Displays, unpacking, slices, comprehensions, set and dict building."""


def displays(a, b):
    return [a, *"bc", b], (a, *(1, 2)), {a: b, **{"k": 1}}, {1, 2, *range(3)}


def unpack():
    a, (b, *c), d = 1, (2, 3, 4), 5
    first, *middle, last = range(5)
    x, y = y, x = (1, 2)
    return a, b, c, d, first, middle, last, x, y


def slices(xs):
    xs = list(range(10))
    xs[1:3] = [7, 8, 9]
    del xs[0], xs[-1:]
    xs[2] += 1
    xs[slice(0, 1)] = []
    return xs[::2], xs[1:], xs[:-1], xs[a if (a := 2) else 0]


def comprehensions(n):
    pairs = [(i, j) for i in range(3) for j in "ab" if i]
    nested = [[i * j for j in range(3)] for i in range(3)]
    table = {k: v for k, v in pairs}
    letters = {c for c in "hello" if c not in "l"}
    i = "kept"
    return pairs, nested, table, sorted(letters), i, [last := x for x in range(3)], last


def quantify(xs):
    return any(x > 2 for x in range(5)), all(x for x in (1, 2)), tuple(x for x in "ab"), list(map(str, range(2)))


def grow():
    out = []
    text = ""
    for i in range(40):
        out.append(i)
        text += "x"
        out[0] = text
    return len(out), text


def delete():
    d = {"a": 1, "b": 2}
    del d["a"]
    x = d
    del d
    try:
        return d
    except UnboundLocalError:
        return x
