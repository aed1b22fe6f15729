"""match statements."""


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def describe(value):
    match value:
        case 0 | 1 | None:
            return "small"
        case str() as text if len(text) < 3:
            return text
        case [first, *rest]:
            return first, rest
        case {"a": a, "b": [b, _], **others}:
            return a, b, others
        case Point(0, y=0):
            return "origin"
        case Point(x, y) if x == y:
            return x
        case Point(x=int(n)):
            return n
        case -1.5 | True:
            return "number"
        case _:
            return "other"


def each():
    return [
        describe(v)
        for v in (
            0,
            None,
            "ab",
            "abcd",
            [1, 2],
            (),
            {"a": 1, "b": [2, 3], "c": 4},
            {"a": 1},
            Point(0, 0),
            Point(1, 1),
            Point(1, 2),
            Point("p", 2),
            -1.5,
            9,
        )
    ]
