"""with statements, nested, suppressed, returning early; loops inside."""


class Guard:
    def __init__(self, swallow=False):
        self.swallow = swallow
        self.events = []

    def __enter__(self):
        self.events.append("in")
        return self

    def __exit__(self, kind, value, trace):
        self.events.append(kind and kind.__name__)
        return self.swallow


def early(flag):
    with Guard() as a, Guard(True) as b:
        if flag:
            return a.events
        for i in range(3):
            with Guard(True):
                if i:
                    continue
                raise IndexError(i)
        raise KeyError
    return b.events


def nested():
    out = []
    with Guard(True) as g:
        with Guard() as h:
            out.append((g, h))
            raise OSError
    return g.events, h.events


def lines(xs):
    seen = set()
    for x in (1, 2, 2, 3):
        with Guard(True):
            try:
                if x in seen:
                    raise ValueError(x)
                seen.add(x)
            except ValueError as e:
                raise TypeError from e
            finally:
                seen.add(-x)
    return sorted(seen)


def both():
    return early(True), early(False), nested(), lines([])
