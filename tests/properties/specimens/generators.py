"""Generators: yield, yield from, send, throw, finally, generator expressions."""


def count(n):
    for i in range(n):
        got = yield i
        if got:
            yield got


def chain(xs):
    total = 0
    try:
        total = yield from count(3)
        yield total
    except ValueError as error:
        yield str(error)
    finally:
        total = None
    return total


def guarded():
    try:
        yield 1
        yield 2
    except GeneratorExit:
        raise
    except Exception:
        yield -1
    else:
        yield 3


def drive():
    g = chain([])
    out = [next(g), g.send(None)]
    try:
        out.append(g.throw(ValueError("v")))
    except StopIteration:
        pass
    g.close()
    return out, list(guarded()), sum(x * x for x in range(5) if x & 1)


def tree(t):
    if isinstance(t, tuple):
        for each in t:
            yield from tree(each)
    else:
        yield t


def flat():
    return list(tree((1, (2, (3, 4)), 5)))
