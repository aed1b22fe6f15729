"""Many values of one class in one message: after the first one they are read and made in C, by the same rules."""

import dataclasses
import enum
import re
import typing
from pathlib import Path

import pytest

import vmhost
from vmhost.guest import classes

RAN = []


@dataclasses.dataclass
class Record:
    number: int
    name: str = "unset"
    inner: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: object
    b: object = None


@dataclasses.dataclass(frozen=True)
class Half(Slotted):  # slots and a dict
    c: object = None


@dataclasses.dataclass
class Loud:
    """Its own code runs for nothing that crosses."""

    x: int

    def __post_init__(self):
        RAN.append("__post_init__")

    def __getattribute__(self, name):
        if not name.startswith("__"):
            RAN.append(f"get {name}")
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        RAN.append(f"set {name}")
        object.__setattr__(self, name, value)


class Pair(typing.NamedTuple):
    left: object
    right: object


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Empty:
    pass


@dataclasses.dataclass
class Keyed:
    x: int

    def __hash__(self):
        return self.x


def echo(value):
    return value


def loud(values):
    return RAN, [object.__getattribute__(value, "x") for value in values]


def one_unset():
    first, second, third = Record(1), Record(2), Record(3)
    del second.name  # the class's default stands for it
    return [first, second, third]


def keyed():
    return [Keyed(1), {Keyed(2): 1}]


def wide(count):
    cls = dataclasses.make_dataclass("Wide", [f"f{i}" for i in range(count)])
    cls.__module__ = __name__
    return cls


Wide = wide(65)  # more fields than C reads


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(1) as executor:
        yield executor


VALUES = {
    "dataclasses": [Record(i, f"n{i}", [i, None]) for i in range(300)],
    "slots": [Slotted(i, (i,)) for i in range(50)],
    "slots and dict": [Half(i, 2, [i]) for i in range(50)],
    "namedtuples": [Pair(i, [i]) for i in range(50)],
    "members": [Colour.RED, Colour.BLUE, Colour.RED, {Colour.RED: Colour.BLUE}],
    "no fields": [Empty(), Empty(), Empty()],
    "more fields than C reads": [Wide(*range(65)), Wide(*range(65))],
    "nested in itself": [
        Record(1, "a", Record(2, "b", Record(3, "c", Slotted(Record(4), Pair(Record(5), 1))))),
        Record(6),
    ],
    "keys": [Slotted(1, 2), {Slotted(1, 2): Pair(1, 2), Pair(1, 2): Slotted(3)}, {Pair(3, 4)}, Slotted(5)],
    "mixed": [each for i in range(40) for each in (Record(i), Pair(i, Slotted(i)), Colour.BLUE, Empty(), Half(1))],
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_values_arrive_as_they_are(pool, values):
    back = pool.submit(echo, values).result()
    assert back == values and [type(each) for each in back] == [type(each) for each in values]
    again = pool.submit(echo, [values, values]).result()
    assert again == [values, values]


def test_attributes_that_are_no_fields_stay(pool):
    values = [Record(1), Record(2), Record(3)]
    values[1].more = object()
    assert [vars(each) for each in pool.submit(echo, values).result()] == [vars(Record(i)) for i in (1, 2, 3)]


def test_a_field_that_is_not_set_is_the_classes_default_or_an_error(pool):
    assert [each.name for each in pool.submit(one_unset).result()] == ["unset"] * 3
    values = [Record(1), Record(2)]
    del values[1].number
    with pytest.raises(vmhost.CrossingError, match=r"\[1\]: a `Record` without its field number cannot cross"):
        pool.submit(echo, values)
    values = [Slotted(1), object.__new__(Slotted)]
    with pytest.raises(vmhost.CrossingError, match=r"\[1\]: a `Slotted` without its field a cannot cross"):
        pool.submit(echo, values)


def test_places_of_what_cannot_cross_are_those_of_the_fields(pool):
    with pytest.raises(vmhost.CrossingError, match=r"\$\[0\]\[0\]\[1\]\.inner\[0\]: a `object` cannot cross"):
        pool.submit(echo, [Record(1), Record(2, inner=[object()])])


def test_no_code_of_a_class_runs(pool):
    values = [Loud(i) for i in range(5)]
    RAN.clear()
    ran, numbers = pool.submit(loud, values).result()
    back = pool.submit(echo, values).result()
    assert (RAN, ran, numbers) == ([], [], [0, 1, 2, 3, 4])
    assert [vars(each) for each in back] == [{"x": i} for i in range(5)]


def test_a_class_with_a_hash_of_its_own_is_no_key_after_the_first_either(pool):
    with pytest.raises(vmhost.CrossingError, match="has a __hash__ or __eq__ of its own"):
        pool.submit(keyed).result()


def test_a_class_that_changes_between_messages_is_read_anew(pool, monkeypatch):
    values = [Record(1), Record(2), Record(3)]
    assert pool.submit(echo, values).result() == values
    monkeypatch.setattr(Record, "name", property(lambda self: "computed"), raising=False)
    back = pool.submit(echo, values).result()  # the fields are where they are stored, whatever the class says now
    assert [vars(each)["name"] for each in back] == ["unset"] * 3


def test_a_class_that_changes_while_a_message_is_made_is_read_anew():
    conversion = vmhost.Conversion(Changing, plain_of_changing, changing_of)
    with vmhost.VMExecutor(1, types=[conversion]) as pool:
        values = [Record(1, inner=Changing()), Record(2, inner=Changing()), Record(3)]
        back = pool.submit(echo, values).result()
    assert [each.number for each in back] == [1, 2, 3] and type(back[1].inner) is Changing
    del Record.extra


class Changing:
    pass


def plain_of_changing(value):
    return 0


def changing_of(plain):
    Record.extra = object()  # a new version of the class, after the C code has seen it
    return Changing()


def test_many_classes_in_one_message(pool):
    values = [member for member in Many] * 3 + [Record(1), Record(2)]
    assert pool.submit(echo, values).result() == values


Many = enum.Enum("Many", [f"M{i}" for i in range(100)])


def test_kinds_are_those_of_the_wire():
    text = Path(vmhost.__file__).with_name("isolation").joinpath("wire", "wire.c").read_text()
    found = {name: int(number) for name, number in re.findall(r"KIND_(FIELDS|TUPLE|MEMBER) = (\d+)", text)}
    assert found == {"FIELDS": classes.FIELDS, "TUPLE": classes.TUPLE, "MEMBER": classes.MEMBER}


@pytest.mark.parametrize("shape, values", [("_Fields", VALUES["dataclasses"]), ("_Tuples", VALUES["namedtuples"])])
def test_one_value_of_a_class_goes_through_python_code(pool, monkeypatch, shape, values):
    called = []

    def counted(name):
        plain = getattr(vars(classes)[shape], name)
        monkeypatch.setattr(vars(classes)[shape], name, lambda *given: called.append(name) or plain(*given))

    counted("read")
    counted("_make")
    assert pool.submit(echo, values).result() == values
    assert called == ["read", "_make"]
