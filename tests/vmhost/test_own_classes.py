"""Values of a program's own classes cross as their class where it is registered; the host runs none of their code."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import pathlib
import sys
import typing
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import vmhost
from tests.batches import each
from tests.hosts import bundle
from tests.vmhost import carried
from tests.vmhost.carried import Colour, Key, Missing, Money, Order, Outer, Point, Refused, Rights


@pytest.fixture(scope="module")
def pool():
    types = [vmhost.Conversion(Money, carried.money_to_plain, carried.money_from_plain)]
    with vmhost.VMExecutor(1, types=types) as pool:
        yield pool


def call(pool, function, *args):
    return pool.submit(function, *args).result()


NESTED = [
    Order(1, [Order(2), {"a": Point(1.5)}]),
    {Key(1, Colour.RED): [Colour.BLUE], Point(1, 2): {Key(3), Colour.RED}},
    Outer.Inner(3),
    Key(Key(Key(1))),
    [Money(3), {"m": Money(4)}],
    collections.OrderedDict(a=collections.deque([Order(1)])),
]


@pytest.mark.parametrize("value", NESTED, ids=range(len(NESTED)))
def test_values_of_the_submitted_functions_module_come_back_as_they_went(pool, value):
    (back,) = call(pool, carried.echo, value)
    assert back == value and type(back) is type(value)


def test_the_vm_has_its_own_classes(pool):
    assert call(pool, carried.classes_are_here, Order(1), Colour.CRIMSON, Point(1), Key(1, "b")) == [True] * 5


def test_a_registered_pair_converts_both_ways(pool):
    assert call(pool, carried.double, Money(21)) == Money(42)


def test_exceptions_of_the_module_come_as_themselves(pool):
    with pytest.raises(carried.BadOrder, match="bad 7") as caught:
        call(pool, carried.fail, Order(7))
    error = caught.value
    assert (error.order, error.code, error.args) == (Order(7), Colour.BLUE, ("bad 7",))
    assert error.__notes__ == ["a note"] and isinstance(error.__cause__, vmhost.TaskError)
    assert "in fail" in error.__cause__.guest_traceback
    with pytest.raises(Missing) as caught:
        call(pool, carried.fail_with, "missing")
    assert caught.value.args == ("k",)
    with pytest.raises(Refused) as caught:
        call(pool, carried.fail_with, "refused")
    assert (caught.value.errno, caught.value.filename) == (2, "/x")


def test_exceptions_are_values_too(pool):
    error, own = call(pool, carried.echo, ValueError("no", 1), Missing("k"))
    assert (type(error), error.args, type(own), own.args) == (ValueError, ("no", 1), Missing, ("k",))


def test_an_exception_that_holds_what_is_not_known_is_a_task_error(pool):
    with pytest.raises(vmhost.TaskError, match="StatusError") as caught:
        call(pool, carried.fail_with, "status")
    assert caught.value.__cause__ is None and "in fail_with" in caught.value.guest_traceback


def test_a_combination_of_flags_is_refused(pool):
    with pytest.raises(vmhost.CrossingError, match="`Rights` that is no member by name"):
        call(pool, carried.both_rights)
    with pytest.raises(vmhost.CrossingError, match="`Rights` that is no member by name"):
        pool.submit(carried.echo, Rights.READ | Rights.WRITE)
    assert call(pool, carried.echo, Rights.READ) == (Rights.READ,)


@dataclasses.dataclass
class Elsewhere:
    value: int


def test_a_class_that_the_executor_does_not_know_is_refused(pool):
    with pytest.raises(vmhost.CrossingError, match=r"argument: \$\[0\]\[0\]\.a: .*Elsewhere.* not registered"):
        pool.submit(carried.echo, {"a": Elsewhere(1)})


# -- a host and a task that lies

RAN = []


def never(*_, **__):
    RAN.append(sys._getframe().f_lineno)
    raise SystemExit("code of the class ran")


class Trap:
    """A class whose methods call never()."""

    __init__ = __setattr__ = __post_init__ = __reduce__ = __setstate__ = __copy__ = never

    def __new__(cls, *args, **kwargs):
        never()


@dataclasses.dataclass(init=False, eq=False)
class Trapped(Trap):
    number: int
    text: str = "default"

    __init__ = never


@dataclasses.dataclass(init=False, eq=False)
class Hashed(Trap):
    number: int

    __hash__ = __eq__ = never


class TrappedError(Exception):
    __init__ = __setattr__ = never

    def __new__(cls, *args):
        never()


class TrappedPoint(typing.NamedTuple("Base", [("x", int), ("y", int)])):
    __init__ = __setattr__ = never

    def __new__(cls, *args):
        never()


class Level(enum.Enum):
    LOW = 1

    @classmethod
    def _missing_(cls, value):
        never()


LIAR = """
    import vmhost.guest.kinds as kinds

    class Forged:
        pass

    def run(packed):
        kinds._packers[Forged] = lambda value: packed
        return {"a": [1, Forged()]}

    def keyed(packed):
        kinds._packers[Forged] = lambda value: packed
        return {Forged(): 1}

    class Swapped(Exception):
        def __init__(self, *args):
            super().__init__(*args)
            self.number = 5

    def raising(name):
        Swapped.__module__, Swapped.__qualname__ = name.split(":")
        raise Swapped(1, 2)
"""
NAMES = {
    f"main:{cls.__name__}": cls for cls in (Trapped, Hashed, TrappedError, TrappedPoint, Level, Key, Rights, Missing)
}


@pytest.fixture(scope="module")
def liar():
    types = NAMES | {"main:Money": vmhost.Conversion(Money, carried.money_to_plain, carried.money_from_plain)}
    with vmhost.Host(allow_unsigned=True, types=types) as host:
        yield host.load(bundle(LIAR))


@pytest.fixture(autouse=True)
def no_code_ran():
    RAN.clear()
    yield
    assert RAN == []


FIELDS, TUPLE, MEMBER, ERROR, CONVERTED, ERROR_CLASS = range(100, 106)


def test_what_is_right_is_made_without_a_call_of_the_class(liar):
    made = liar((FIELDS, "main:Trapped", {"number": [1], "text": None}))["a"][1]
    assert type(made) is Trapped and vars(made) == {"number": [1], "text": None}
    made = liar((TUPLE, "main:TrappedPoint", (1, "y")))["a"][1]
    assert type(made) is TrappedPoint and made == (1, "y")
    made = liar((ERROR, "main:TrappedError", ((1, 2), {"more": 3})))["a"][1]
    assert type(made) is TrappedError and made.args == (1, 2) and made.more == 3
    assert liar((MEMBER, "main:Level", "LOW"))["a"][1] is Level.LOW
    assert liar((FIELDS, "main:Key", {"a": 1, "b": 2}), entry="main:keyed") == {Key(1, 2): 1}


@each(
    ("packed", "message"),
    [
        ((FIELDS, "main:Trapped", {"number": 1}), "missing fields: text; unknown fields: none"),
        ((FIELDS, "main:Trapped", {"number": 1, "text": 1, "__class__": 2}), "unknown fields: __class__"),
        ((FIELDS, "main:Trapped", {"number": 1, 5: 1}), "missing fields: text; unknown fields: 5"),
        ((FIELDS, "main:Trapped", {}), "missing fields: number, text"),
        ((FIELDS, "main:Trapped", [("number", 1)]), "its fields: expected `dict`, got `list`"),
        ((TUPLE, "main:Trapped", (1, 2)), "another kind of class"),
        ((MEMBER, "main:Trapped", "number"), "another kind of class"),
        ((FIELDS, "main:Money", {"cents": 1}), "is not known here"),
        ((CONVERTED, "main:Trapped", 1), "is not known here"),
        ((CONVERTED, "main:Money", "5"), "its function raised TypeError: no cents"),
        ((FIELDS, "main:Nobody", {}), "the dataclass `main:Nobody` is not known here; name it in `types`"),
        ((FIELDS, "tests.vmhost.carried:Order", {"number": 1, "lines": []}), "is not known here"),
        ((FIELDS, "os:environ", {}), "is not known here"),
        ((FIELDS, "builtins:ValueError", {}), "another kind of class"),
        ((ERROR, "builtins:SystemExit", ((1,), {})), "is not known here"),
        ((ERROR, "builtins:KeyboardInterrupt", ((), {})), "is not known here"),
        ((ERROR, "builtins:SyntaxError", (("a", "b"), {})), "its place: expected `tuple`, got `str`"),
        ((ERROR, "builtins:SyntaxError", (("a", ("f", 1 << 40, 0, "")), {})), "its lineno: expected a number"),
        ((ERROR, "builtins:SyntaxError", (("a", (5, 1, 0, "")), {})), "its filename: expected `str` or None"),
        ((ERROR, "builtins:ExceptionGroup", (("a", (5,)), {})), "not a `ExceptionGroup`"),
        ((ERROR, "builtins:ImportError", (("a",), {"name": 5})), "its name: expected `str`"),
        ((ERROR, "builtins:ValueError", (("a",), {"__notes__": [5]})), "its notes: expected `str`"),
        ((ERROR, "json.decoder:JSONDecodeError", (("a",), {})), "is not known here"),
        ((ERROR_CLASS, "builtins:ValueError", None), "another kind of class"),
        ((ERROR, "builtins:UnicodeDecodeError", ((1,), {})), "not a `UnicodeDecodeError`"),
        ((ERROR, "builtins:eval", ((1,), {})), "is not known here"),
        ((FIELDS, 5, {}), "its class: expected `str`"),
        ((FIELDS, "Trapped", {}), "its class: expected module:name"),
        ((FIELDS, "main:" + "x" * 600, {}), "its class: expected module:name"),
        ((TUPLE, "main:TrappedPoint", (1,)), "expected 2 fields, got 1"),
        ((TUPLE, "main:TrappedPoint", [1, 2]), "its fields: expected `tuple`"),
        ((MEMBER, "main:Level", "HIGH"), "there is no member 'HIGH'"),
        ((MEMBER, "main:Level", "__class__"), "there is no member '__class__'"),
        ((MEMBER, "main:Level", 1), "its member: expected `str`"),
        ((MEMBER, "main:Rights", "READ|WRITE"), "there is no member"),
        ((ERROR, "main:TrappedError", (1,)), "expected 2 parts"),
        ((ERROR, "main:TrappedError", ([1], {})), "its arguments: expected `tuple`"),
        ((ERROR, "main:TrappedError", ((), {"__class__": 1})), "do not begin with two underscores"),
        ((ERROR, "main:TrappedError", ((), {1: 1})), "do not begin with two underscores"),
        ((106, "main:Trapped", {}), "kind 106"),
    ],
    ids=itertools.count(),
)
def test_what_a_task_makes_up_is_one_error(liar, packed, message):
    with pytest.raises(vmhost.CrossingError) as caught:
        liar(packed)
    assert "result: $.a[1]: " in str(caught.value) and message in str(caught.value)


JUNK = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5) | some.binary(max_size=17),
    lambda inner: (
        some.lists(inner, max_size=9)
        | some.lists(inner, max_size=9).map(tuple)
        | some.dictionaries(some.sampled_from(["number", "text", "a", "b", "cents", "__class__"]), inner, max_size=3)
        | some.tuples(inner, some.dictionaries(some.text(max_size=3), inner, max_size=2))
    ),
    max_leaves=12,
)
DETAILS = some.none() | some.sampled_from([*NAMES, "main:Money", "builtins:OSError", "PosixPath", "list"]) | JUNK
MADE = (
    collections.Counter,
    collections.defaultdict,
    collections.OrderedDict,
    collections.deque,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PurePath,
    Exception,
    Money,
    *NAMES.values(),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.integers(0, 14) | some.integers(100, 106), DETAILS, JUNK)
def test_whatever_a_task_makes_up_is_a_value_of_a_known_class_or_one_error(liar, kind, detail, payload):
    try:
        made = liar((kind, detail, payload))["a"][1]
    except vmhost.CrossingError as error:
        assert "result: $.a[1]" in str(error)
    else:
        assert isinstance(made, MADE)


def test_a_hash_of_the_classes_own_is_not_run(liar):
    with pytest.raises(vmhost.CrossingError, match="not a `Hashed`: the class has a __hash__ or __eq__ of its own"):
        liar((FIELDS, "main:Hashed", {"number": 1}), entry="main:keyed")
    assert liar((FIELDS, "main:Hashed", {"number": 1}))["a"][1].number == 1


def test_a_key_whose_parts_cannot_be_hashed_is_refused(liar):
    with pytest.raises(vmhost.CrossingError, match=r"result: \$: .*(unhashable|cannot use)"):
        liar((FIELDS, "main:Key", {"a": [], "b": 1}), entry="main:keyed")


def test_an_exception_that_the_host_knows_is_the_cause_of_the_task_error(liar):
    with pytest.raises(vmhost.TaskError) as caught:
        liar("main:Missing", entry="main:raising")
    cause = caught.value.__cause__
    assert type(cause) is Missing and cause.args == (1, 2) and cause.number == 5
    with pytest.raises(vmhost.TaskError, match="main.Nobody: ") as caught:
        liar("main:Nobody", entry="main:raising")
    assert caught.value.__cause__ is None and "in raising" in caught.value.guest_traceback
    with pytest.raises(vmhost.TaskError) as caught:  # a class that is no exception on the host
        liar("main:Trapped", entry="main:raising")
    assert caught.value.__cause__ is None


def test_a_task_takes_and_gives_its_own_classes():
    source = """
        import dataclasses
        from vmhost.guest import register

        @dataclasses.dataclass
        class Order:
            number: int
            lines: list

        class Money:
            def __init__(self, cents):
                self.cents = cents

        register(Money, lambda money: money.cents, Money)

        def run(order):
            assert type(order) is Order
            order.lines.append(Money(5))
            return order
    """
    types = {"main:Order": Order, "main:Money": vmhost.Conversion(Money, carried.money_to_plain, Money)}
    with vmhost.Host(allow_unsigned=True, types=types) as host:
        assert host.load(bundle(source))(Order(1)) == Order(1, [Money(5)])
        other = host.load(bundle("def run(order):\n    return order\n", name="other"))
        with pytest.raises(vmhost.CrossingError, match="argument: .*the dataclass `main:Order` is not known here"):
            other(Order(1))
        assert other(3) == 3


@dataclasses.dataclass
class WithProperty:
    number: int

    @property
    def text(self):
        return never()

    text: str = text


@dataclasses.dataclass
class OfDict(dict):
    number: int


class Undecorated(Order):
    pass


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([5], "expected a class or a Conversion, got 5"),
        ("main:Order", "expected a list of classes"),
        ([Order, Order], "given twice"),
        ([object], "`object` is no dataclass, namedtuple, enum or exception"),
        ([WithProperty], "its field text is a descriptor"),
        ([OfDict], "derives from `dict`"),
        ([Undecorated], "derives from a dataclass and is none itself"),
        ([KeyboardInterrupt], "is no plain Exception"),
        ([BaseExceptionGroup], "is no plain Exception"),
        ({"Order": Order}, "expected a name such as main:Order"),
    ],
    ids=itertools.count(),
)
def test_types_that_cannot_be_registered_are_told(types, message):
    with pytest.raises(vmhost.ConfigurationError) as caught:
        vmhost.Host(types=types)
    assert message in str(caught.value)
    with pytest.raises(vmhost.ConfigurationError):
        vmhost.VMExecutor(types=types)


def test_conversions_are_checked():
    with pytest.raises(vmhost.ConfigurationError, match="Conversion: expected a class"):
        vmhost.Conversion(5, int, int)
    with pytest.raises(vmhost.ConfigurationError, match="to_plain: expected a function"):
        vmhost.Conversion(Money, 5, int)
