"""Prints all that a user can see of many named tuples and dataclasses: the same in CPython and in a sealed process."""

import collections
import copy
import dataclasses
import inspect
import itertools
import re
import traceback
import typing
from dataclasses import KW_ONLY, InitVar, dataclass, field, make_dataclass
from types import FunctionType


def show(*values, end="\n"):
    print(re.sub(" at 0x[0-9a-f]+", " at 0x", " ".join(str(attempt(str, value)) for value in values)), end=end)


def attempt(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        calls = [
            (frame.name, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == "<string>"
        ]
        return type(error).__name__, str(error), calls


def function_of(value):
    value = inspect.unwrap(getattr(value, "__func__", value))
    code = value.__code__
    return (
        value.__name__,
        value.__qualname__,
        value.__module__,
        value.__defaults__,
        value.__kwdefaults__,
        value.__doc__,
        code.co_name,
        code.co_qualname,
        code.co_varnames,
        code.co_freevars,
        code.co_flags,
        code.co_argcount,
        code.co_kwonlyargcount,
        str(attempt(inspect.signature, value)),
        [code.co_firstlineno, *sorted({line for _, _, line in code.co_lines() if line is not None})]
        if code.co_filename == "<string>"
        else None,
    )


def describe(title, cls):
    show("==", title)
    if not isinstance(cls, type):
        show(cls)
        return
    show(
        cls,
        cls.__doc__,
        getattr(cls, "__match_args__", None),
        getattr(cls, "__slots__", None),
        attempt(inspect.signature, cls),
    )
    for name, value in cls.__dict__.items():
        if isinstance(getattr(value, "__func__", value), FunctionType):
            show(name, function_of(value))
        elif name not in ("__dict__", "__weakref__", "__annotate_func__", "__annotate__", "__dataclass_fields__"):
            show(name, attempt(repr, value))
    if "__init__" in cls.__dict__:
        show(attempt(lambda: cls.__init__.__annotations__), attempt(lambda: inspect.get_annotations(cls.__init__)))


def exercise(cls, *calls):
    made = [attempt(cls, *positional, **keywords) for positional, keywords in calls]
    show(*made)
    for one in made:
        if not isinstance(one, cls):
            continue
        show(
            attempt(hash, one) if cls.__hash__ is not object.__hash__ else "by identity",
            attempt(setattr, one, "a", 5),
            attempt(setattr, one, "other_name", 5),
            attempt(delattr, one, "a"),
            attempt(delattr, one, "other_name"),
            attempt(copy.copy, one),
            attempt(dataclasses.asdict, one),
            attempt(dataclasses.astuple, one),
            attempt(dataclasses.replace, one, a=7),
            one == one,
            one == 3,
        )
    for left, right in itertools.product(made, repeat=2):
        if isinstance(left, cls):
            show(
                attempt(lambda: left == right),
                attempt(lambda: left < right),
                attempt(lambda: left <= right),
                attempt(lambda: left > right),
                attempt(lambda: left >= right),
                end=" ",
            )
    show()


SWITCHES = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots", "weakref_slot")
DEFAULTS = {"init": True, "repr": True, "eq": True, "match_args": True}


def switches():
    """Every combination of two switches turned from their defaults, and a few of many."""
    names = [
        (),
        *((name,) for name in SWITCHES),
        *itertools.combinations(SWITCHES, 2),
        ("order", "frozen", "slots", "weakref_slot", "kw_only"),
        ("order", "unsafe_hash", "frozen", "slots"),
        SWITCHES,
    ]
    for turned in names:
        yield {name: not DEFAULTS.get(name, False) for name in turned}


def base_class(options, namespace=None):
    return make_dataclass(
        "Plain",
        [("a", int), ("b", str, "text"), ("c", list, field(default_factory=list)), "d_", ("e", "int", 3)][:3],
        namespace=namespace or {},
        module="elsewhere",
        **options,
    )


def all_switches():
    for options in switches():
        cls = attempt(base_class, options)
        describe(f"dataclass with {options}", cls)
        if isinstance(cls, type):
            exercise(
                cls,
                ((), {}),
                ((1,), {}),
                ((1, "t"), {}),
                ((1, "t", [2]), {}),
                ((2,), {"b": "u"}),
                ((1, 2, 3, 4), {}),
                ((), {"a": 1}),
                ((), {"a": 2, "z": 1}),
            )


def field_options():
    for name in ("init", "repr", "hash", "compare", "kw_only"):
        for value in (False, True):
            for frozen in (False, True):
                for slots in (False, True):
                    cls = attempt(
                        make_dataclass,
                        "Optioned",
                        [
                            ("a", int, field(**{name: value})),
                            ("b", int, field(default=2, **{name: value})),
                            ("c", list, field(default_factory=list, **{name: value})),
                            ("d", int, 4),
                        ],
                        frozen=frozen,
                        slots=slots,
                        order=True,
                        unsafe_hash=not frozen,
                    )
                    describe(f"field({name}={value}) frozen={frozen} slots={slots}", cls)
                    if isinstance(cls, type):
                        exercise(cls, ((), {}), ((1,), {}), ((), {"a": 1}), ((1, 2), {}), ((1, 2, [3], 4), {}))


def shapes():
    for count in (0, 1, 2, 7, 14, 15, 16, 17, 30, 31, 40, 90, 300):
        for frozen in (False, True):
            names = [f"field_{index}" for index in range(count)]
            cls = make_dataclass("Many", names, frozen=frozen, order=True)
            made = cls(*range(count))
            show(
                count,
                str(made),
                made == cls(*range(count)),
                made < cls(*range(1, count + 1)),
                attempt(cls, *range(count + 1)),
                attempt(hash, made),
                attempt(setattr, made, "field_0", 3),
                attempt(cls),
                made == cls(*[*range(count - 1), -1]) if count else None,
            )
            describe("shape", cls)
        with_factories = make_dataclass("Many", [(name, list, field(default_factory=list)) for name in names])
        show(with_factories(), with_factories(1) if count else None)
        with_keywords = make_dataclass("Many", [(name, int, 1) for name in names], kw_only=True, frozen=True)
        show(with_keywords(), with_keywords(field_0=2) if count else None, attempt(with_keywords, 1))


def special_names():
    for names in (
        ["self"],
        ["self", "other"],
        ["other"],
        ["cls", "name", "value"],
        ["type", "hash", "object"],
        ["_"],
        ["__x"],
        ["é", "ñandú"],
        ["名前"],
        ["__class__"],
        ["print", "NotImplemented"],
        ["a", "a_", "aa"],
        ["type_", "match", "case", "_private"],
        ["FrozenInstanceError"],
        ["__dataclass_self__"],
    ):
        for frozen in (False, True):
            cls = attempt(make_dataclass, "Named", names, frozen=frozen, order=True)
            describe(names, cls)
            if isinstance(cls, type):
                made = attempt(cls, *range(len(names)))
                show(
                    attempt(repr, made),
                    attempt(lambda: made == cls(*range(len(names)))),
                    attempt(setattr, made, names[0], 3),
                )
    for wrong in ("class", "a b", "1a", "", "None", 3):
        show(wrong, attempt(make_dataclass, "Wrong", [wrong]))


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list, repr=False, compare=False)
    count: typing.ClassVar[int] = 0

    def length(self):
        return (self.x**2 + self.y**2) ** 0.5


@dataclass
class Point3(Point):
    z: float = 0.5
    scale: InitVar[int] = 2
    made: int = field(init=False)

    def __post_init__(self, scale):
        self.made = scale * self.x


@dataclass(frozen=True, slots=True)
class Node[T]:
    """A documented class."""

    value: T
    next: "Node[T] | None" = None
    _: KW_ONLY = None
    label: "str" = "none"
    weight: "InitVar[float]" = 1.0
    seen: "typing.ClassVar[int]" = 0

    def __post_init__(self, weight):
        super().__init__()
        object.__setattr__(self, "label", f"{self.label}/{weight}")


class Descriptor:
    def __get__(self, instance, owner):
        return 7 if instance is None else instance._hidden

    def __set__(self, instance, value):
        instance._hidden = value * 2


@dataclass
class Described:
    hidden: int = Descriptor()


@dataclass
class Custom:
    a: int

    def __repr__(self):
        return "<mine>"

    def __eq__(self, other):
        return True


class Slotted(typing.NamedTuple):
    a: int
    b: "str" = "b"
    c: typing.Optional["Slotted"] = None

    def double(self):
        return self.a * 2


class Generic(typing.NamedTuple, typing.Generic[typing.TypeVar("T")]):
    value: int


def written_classes():
    for cls in (Point, Point3, Node, Described, Custom, Slotted, Generic):
        describe(cls.__name__, cls)
        show(attempt(typing.get_type_hints, cls), attempt(inspect.get_annotations, cls))
    show(
        Point(3, 4).length(),
        Point3(1, 2),
        Point3(1, scale=5),
        Node(3, Node(4)),
        Node(1, label="x", weight=2),
        Described(),
        Described(4),
    )
    show(
        attempt(Point),
        attempt(Point3, 1, 2, 3, 4, 5, 6),
        attempt(Node, 1, None, "x"),
        attempt(setattr, Node(1), "value", 2),
        Custom(1),
    )
    show([(f.name, f.type, f._field_type, f.kw_only) for f in dataclasses.fields(Node)])
    show(Slotted(1).double(), Slotted(1, c=Slotted(2)), attempt(Slotted), Generic[int](3))
    match Point3(1, 2):
        case Point3(x, y):
            show(x, y)
    show(attempt(lambda: dataclass(order=True)(type("T", (), {"__lt__": None}))), attempt(lambda: dataclass(3)))

    class Base:
        pass

    for bad in (
        {"a": [], "__annotations__": {"a": list}},
        {"a": field(), "__annotations__": {}},
        {"__annotations__": {"a": int, "b": int}, "a": 1},
        {"__annotations__": {"a": int}, "__setattr__": None},
    ):
        show(attempt(dataclass(frozen=True), type("Bad", (), bad)))
    show(attempt(dataclass, type("Bad", (), {"__annotations__": {"class": int}}))[0])
    show(attempt(dataclass, type("Local", (Point,), {"__annotations__": {"q": int}})))


def named_tuples():
    for names, options in (
        ("", {}),
        ("a", {}),
        ("a b", {}),
        ("a,b,c", {"defaults": [1, 2]}),
        ("a b", {"defaults": ()}),
        (["a", "a", "class", "_x", "1"], {"rename": True}),
        ("a b", {"module": "somewhere"}),
        ([f"f{i}" for i in range(31)], {}),
        ([f"f{i}" for i in range(300)], {"defaults": range(300)}),
        ("self cls _tuple", {"rename": True}),
        ("cls self tuple_new", {}),
        ("é 名", {}),
        ("ﬁ", {}),
        ("a a", {}),
        ("class", {}),
        ("_a", {}),
        ("a", {"defaults": [1, 2]}),
        ("a-b", {}),
        (["_cls"], {"rename": True}),
    ):
        cls = attempt(collections.namedtuple, "Tuple", names, **options)
        describe(f"namedtuple {names if len(names) < 20 else len(names)} {options}", cls)
        if isinstance(cls, type):
            count = len(cls._fields)
            made = attempt(cls, *range(count))
            show(
                made,
                attempt(cls),
                attempt(cls, *range(count + 1)),
                attempt(cls, **dict.fromkeys(cls._fields, 1)),
                attempt(cls, zz=1),
            )
            if isinstance(made, tuple):
                show(
                    made._asdict(),
                    made == tuple(range(count)),
                    hash(made) == hash(tuple(range(count))),
                    cls._make(range(count)),
                    attempt(made._replace, **{name: 9 for name in cls._fields[:1]}),
                    made.__getnewargs__(),
                    cls._field_defaults,
                    copy.copy(made),
                    [getattr(made, name) for name in cls._fields],
                )


if __name__ == "__main__":
    for part in (all_switches, field_options, shapes, special_names, written_classes, named_tuples):
        show("####", part.__name__)
        part()
