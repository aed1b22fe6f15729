"""Class bodies, super, properties, metaclasses, slots, generics, annotations."""


class Base:
    kind: str = "base"

    def __init__(self, x=1):
        self.x = x

    @property
    def double(self):
        return self.x * 2

    @classmethod
    def make(cls, *args):
        return cls(*args)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return error[0] is ValueError

    def __getitem__(self, key):
        return key


class Derived(Base):
    __slots__ = ("y",)

    def __init__(self, x, y):
        super().__init__(x)
        self.y = y

    def describe(self):
        return f"{self.x!r:>3}{self.y} {super().double} {__class__.__name__}"

    def __eq__(self, other):
        return isinstance(other, Derived) and self.x == other.x


class Meta(type):
    def __new__(meta, name, bases, space, **named):
        space["extra"] = named.get("extra", 0)
        return super().__new__(meta, name, bases, space)


class Made(metaclass=Meta, extra=3):
    values = [i for i in range(3)]
    lambdas = [lambda: __class__ for _ in "a"]


class Stack[T]:
    items: list[T]

    def push[S: int = int](self, item: T, other: S = 0) -> T:
        return item


type Pair[A, *B, **C] = tuple[A, A]


def first[T](xs: list[T], *, n: int = 0) -> T:
    return xs[n]


def use():
    d = Derived(1, "b")
    d.x += 2
    with Base.make(3) as b, d as e:
        raise ValueError
    for attribute in ("x", "double"):
        getattr(d, attribute)
    del b.x
    return (
        d.describe(),
        d == d,
        d != e,
        Made.extra,
        first([1]),
        Stack().push(2),
        str(Pair),
        d[1],
        [d[i] for i in range(9)],
    )
