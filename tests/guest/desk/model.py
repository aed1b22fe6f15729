"""The order book's model."""
from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections import namedtuple
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar, overload, runtime_checkable

T = TypeVar("T")


class Side(enum.StrEnum):
    BUY = enum.auto()
    SELL = enum.auto()


class Rights(enum.Flag, boundary=enum.STRICT):
    READ = enum.auto()
    WRITE = enum.auto()
    TRADE = enum.auto()
    ALL = READ | WRITE | TRADE


class Kept(enum.IntFlag, boundary=enum.KEEP):
    A = 1
    B = 2


class Conform(enum.Flag, boundary=enum.CONFORM):
    A = 1
    B = 4


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10

    @classmethod
    def _missing_(cls, value):
        return cls.HIGH if isinstance(value, int) and value > 10 else None


@enum.unique
class Planet(enum.Enum):
    EARTH = (5.97e24, 6.37e6)
    MARS = (6.42e23, 3.39e6)

    def __init__(self, mass, radius):
        self.mass = mass
        self.radius = radius

    @property
    def gravity(self):
        return round(6.67430e-11 * self.mass / self.radius**2, 3)

    @enum.nonmember
    class Outer:
        pass


class Money(NamedTuple):
    """An amount."""
    amount: Decimal
    currency: str = "EUR"

    def __add__(self, other):
        if self.currency != other.currency:
            raise ValueError(f"{self.currency} != {other.currency}")
        return self._replace(amount=self.amount + other.amount)


Point = namedtuple("Point", "x y z", defaults=(0, 0), module="geometry")
Renamed = namedtuple("Renamed", ["a", "class", "a", "_b"], rename=True)


@dataclass(order=True, frozen=True, slots=True, kw_only=False, match_args=True, repr=True, weakref_slot=True)
class Line:
    sort: tuple = field(init=False, repr=False)
    sku: str
    quantity: int = 1
    price: Decimal = Decimal("0")
    tags: tuple[str, ...] = field(default=(), compare=False, hash=False, metadata={"doc": "free"})
    _: KW_ONLY
    discount: float = 0.0
    scale: InitVar[int] = 1

    def __post_init__(self, scale):
        object.__setattr__(self, "sort", (self.sku, -self.quantity * scale))

    @property
    def total(self):
        return self.price * self.quantity * (1 - Decimal(str(self.discount)))


@dataclass(eq=True, unsafe_hash=True)
class Account:
    count: ClassVar[int] = 0
    name: str
    rights: Rights = Rights.READ
    history: list[Line] = field(default_factory=list, hash=False, compare=False)
    created: datetime = field(
        default_factory=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc), kw_only=True, doc="when")

    def __set_name__(self, owner, name):
        pass


@dataclass
class Base[K, V]:
    key: K
    value: V


@dataclass(repr=False)
class Child(Base[str, int]):
    extra: float = 1.5


class Shape(TypedDict, total=False):
    sides: typing.Required[int]
    name: str
    tag: typing.NotRequired[str]
    frozen: typing.ReadOnly[bool]


@runtime_checkable
class Priced(Protocol):
    @property
    def total(self) -> Decimal: ...


class Stack(Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []

    def push(self, item: T) -> Stack[T]:
        self.items.append(item)
        return self


@overload
def double(x: int) -> int: ...
@overload
def double(x: str) -> str: ...
def double(x):
    return x * 2


@functools.total_ordering
class Version:
    def __init__(self, text):
        self.parts = tuple(map(int, text.split(".")))

    def __eq__(self, other):
        return self.parts == other.parts

    def __lt__(self, other):
        return self.parts < other.parts


class Validated:
    def __init__(self, kind):
        self.kind = kind

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__[self.name]

    def __set__(self, instance, value):
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.name}: expected {self.kind.__name__}, got {type(value).__name__}")
        instance.__dict__[self.name] = value


class Registry(type):
    known = {}

    @classmethod
    def __prepare__(mcls, name, bases, **options):
        return {"made_by": mcls.__name__}

    def __new__(mcls, name, bases, namespace, **options):
        cls = super().__new__(mcls, name, bases, namespace)
        mcls.known[name] = options
        return cls

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)


class Handler(metaclass=Registry, kind="base"):
    rate = Validated(float)

    def __init__(self, rate):
        self.rate = rate

    def __init_subclass__(cls, /, topic=None, **options):
        cls.topic = topic


class Mailer(Handler, topic="mail", kind="mail"):
    @functools.cached_property
    def slow(self):
        return [self.rate] * 2

    @functools.singledispatchmethod
    def handle(self, value):
        return f"any {value!r}"

    @handle.register
    def _(self, value: int):
        return f"int {value}"

    @handle.register(list)
    def _(self, value):
        return f"list of {len(value)}"

    def scale(self, factor, *, offset=0):
        return self.rate * factor + offset

    twice = functools.partialmethod(scale, 2, offset=1)


type Pairs[A] = list[tuple[A, A]]


def largest[N: (int, float)](values: list[N], *, key: typing.Callable[[N], N] | None = None) -> N:
    return max(values, key=key)
