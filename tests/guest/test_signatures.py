"""The line of documentation that dataclasses get without inspect is the one that inspect would have written."""

import abc
import dataclasses
import inspect
import typing
from dataclasses import KW_ONLY, InitVar, dataclass, field

import pytest

from vmhost.guest import signatures

T = typing.TypeVar("T")


class Arrow:
    def __repr__(self):
        return "a -> None"


class Broken:
    def __repr__(self):
        raise ValueError("no text")


class Calls(type):
    def __call__(cls, one, *two):
        return super().__call__()


@dataclass
class Empty:
    pass


@dataclass
class Plain:
    a: int
    b: "str" = "x"
    c: list[int] = field(default_factory=list)
    d: typing.Optional[int] = None  # noqa: UP045
    e: typing.Callable[[int], str] = len
    f: T = 3
    g: Arrow = dataclasses.field(default=3)
    h: None = None
    i: int | str = 2
    j: "InitVar[int]" = 2
    k: typing.ClassVar[int] = 3


@dataclass
class KeywordsOnly:
    a: Unknown  # noqa: F821 - a name that stays unknown is part of the test
    _: KW_ONLY
    b: list[Unknown.inner] = 3  # noqa: F821
    c: int = field(default=4)


@dataclass(kw_only=True)
class AllKeywords:
    a: int


@dataclass
class Child(Plain, typing.Generic[T]):
    l: tuple[int, ...] = ()


@dataclass
class Abstract(abc.ABC):
    a: int

    @abc.abstractmethod
    def work(self): ...


@dataclass
class Made:
    a: int

    def __new__(cls, *rest):
        return super().__new__(cls)


@dataclass
class Signed:
    a: int
    __signature__ = inspect.Signature([inspect.Parameter("q", inspect.Parameter.KEYWORD_ONLY)])


@dataclass
class OwnInit:
    a: int

    def __init__(self, x, /, *y, z: int = 3, **w) -> "int":
        pass


@dataclass(init=False)
class NoInit:
    a: int


@dataclass(init=False)
class NoInitOfError(Exception):
    a: int


@dataclass
class Commanded(metaclass=Calls):
    a: int


@dataclass(slots=True)
class Slotted:
    a: "Slotted"
    b: Arrow = Arrow()


CLASSES = [
    Empty,
    Plain,
    KeywordsOnly,
    AllKeywords,
    Child,
    Abstract,
    Made,
    Signed,
    OwnInit,
    NoInit,
    NoInitOfError,
    Commanded,
    Slotted,
    dataclasses.make_dataclass("Untyped", ["a", ("b", "list[int]"), ("c", int, 3)]),
]


def outcome(function, *arguments, **options):
    try:
        return str(function(*arguments, **options))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_signatures_are_those_of_inspect(cls):
    expected = outcome(inspect.signature, cls, annotation_format=inspect.Format.FORWARDREF)
    assert outcome(signatures.of_class, cls) == expected


def test_a_default_without_text_fails_as_in_inspect():
    broken = type("Broken", (), {"__annotations__": {"a": int}, "a": Broken()})
    broken.__init__ = lambda self, a=Broken(): None
    with pytest.raises(ValueError, match="no text"):
        signatures.of_class(broken)


def test_unwrapping_finds_the_function_below_its_decorators():
    def function():
        pass

    def wrapper():
        pass

    wrapper.__wrapped__ = function
    assert signatures.unwrapped(wrapper) is function is signatures.unwrapped(function)
    assert signatures.unwrapped(Plain) is Plain
    function.__wrapped__ = wrapper
    with pytest.raises(ValueError, match="wrapper loop when unwrapping"):
        signatures.unwrapped(wrapper)
