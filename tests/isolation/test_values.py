"""Values that cross a wall and come back: equal, of the same type, and released afterwards."""

import array
import sys

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import vmhost
from tests.batches import each
from tests.hosts import bundle

PLAIN = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False)
    | some.complex_numbers(allow_nan=False)
    | some.text(some.characters(codec=None))
    | some.binary()
)
KEYS = some.none() | some.booleans() | some.integers() | some.text() | some.binary()
VALUES = some.recursive(
    PLAIN,
    lambda inner: some.lists(inner) | some.lists(inner).map(tuple) | some.dictionaries(KEYS, inner) | some.sets(KEYS),
    max_leaves=30,
)
LENT_FROM = 64 * 1024  # bytes; wire.c


@pytest.fixture(scope="module")
def echo():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle("def run(value):\n    return value\n", limits={"memory_bytes": 256 << 20}))


def types(value):
    if isinstance(value, dict):
        return dict, [(types(key), types(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(item) for item in value]
    return type(value)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_went(echo, value):
    back = echo(value)
    assert back == value and types(back) == types(value)


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        "a\udcffb",
        "\udbff\udfffä",
        {"\udc80": "\ud8ff"},
        ["x" * LENT_FROM + "\ud800"],
        {("\udfff",)},
    ],
)
def test_lone_surrogates_come_back_as_they_went(echo, value):
    assert echo(value) == value


@pytest.mark.parametrize("size", [0, 1, LENT_FROM - 1, LENT_FROM, LENT_FROM + 1, 3_000_000])
def test_bytes_of_any_size_come_back_and_are_let_go_of(echo, size):
    data = bytes(size % 251 for _ in range(1)) * size if size else b""
    before = sys.getrefcount(data)
    assert echo({"a": [data, data], "b": data}) == {"a": [data, data], "b": data}
    echo(None)
    echo(None)  # the host's references are released by one of its next calls
    assert sys.getrefcount(data) == before


@pytest.mark.parametrize(
    "value",
    [
        numpy.arange(24, dtype=dtype).reshape(2, 3, 4)
        for dtype in ("int8", "uint16", "int32", "int64", "float32", "float64", "complex128")
    ]
    + [numpy.array(2.5), numpy.zeros((0, 3)), array.array("h", [1, -2]), bytearray(b"abc"), memoryview(b"xyz")],
)
def test_arrays_come_back_read_only_with_shape_and_type(echo, value):
    back = numpy.asarray(echo(value))
    expected = numpy.asarray(value)
    assert back.shape == expected.shape and back.dtype == expected.dtype and (back == expected).all()
    assert not back.flags.writeable


def test_an_array_is_lent_not_copied(echo):
    value = numpy.zeros(1000)
    back = numpy.asarray(echo(value))
    value[7] = 3.5
    assert back[7] == 3.5


class Sub(int):
    pass


NOT_NUMBERS = [
    numpy.datetime64("2026-01-01"),
    numpy.timedelta64(3, "s"),
    numpy.array(["2026-01-01"], "M8[D]"),
    numpy.array([3], "m8[s]"),
    numpy.zeros(2, [("a", "i4"), ("b", "f8")]),
    numpy.zeros(1, [("a", "i4")])[0],
    numpy.rec.array([(1, 2.0)]),
    numpy.array([1, None]),
    numpy.array([b"text"]),
    numpy.array(["text"]),
    numpy.void(b"text"),
    numpy.array(["text"], numpy.dtypes.StringDType()),
]


@each(
    "value",
    [
        *NOT_NUMBERS,
        numpy.str_("text"),
        numpy.bytes_(b"text"),
        numpy.longdouble(1),
        numpy.zeros(2, "g"),
        numpy.clongdouble(1),
        numpy.zeros(2, ">f8"),
        numpy.array(2, ">i4"),
        numpy.ma.masked_array([1, 2], mask=[0, 1]),
        numpy.ma.masked,
        numpy.arange(3)[::-1],
        numpy.zeros((1,) * 20),
        numpy.dtype("f8"),
        array.array("w", "text"),
    ],
)
def test_what_numpy_has_and_a_vm_has_not_is_refused_with_its_place(echo, value):
    with pytest.raises(
        vmhost.CrossingError,
        match=r"argument: \$\.x\[3\]: .*cannot cross|argument: \$\.x\[3\]: .*not contiguous"
        r"|argument: \$\.x\[3\]: 20 dimensions",
    ):
        echo({"x": [1, 2, 3, value]})


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_is_named_by_type_and_dtype(echo, value):
    with pytest.raises(vmhost.CrossingError) as caught:
        echo(value)
    assert f"a `{type(value).__module__}.{type(value).__name__}`" in str(caught.value) or isinstance(
        value, numpy.recarray
    )
    assert f"of dtype '{value.__array_interface__['typestr']}'" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        numpy.float16(1.5),
        numpy.bool_(True),
        numpy.int8(-3),
        numpy.uint64(2**64 - 1),
        numpy.float32(0.1),
        numpy.complex64(1 + 2j),
        numpy.zeros(3, numpy.float16),
        numpy.array(True),
        numpy.zeros((0, 2)),
    ],
)
def test_numpy_numbers_arrive_as_they_were(echo, value):
    back = echo(value)
    assert numpy.array_equal(numpy.asarray(back), numpy.asarray(value))
    assert numpy.shape(back) == numpy.shape(value)


def test_a_mapped_file_crosses_as_the_array_that_it_is(echo, tmp_path):
    value = numpy.memmap(tmp_path / "values", dtype="f4", mode="w+", shape=(3,))
    value[:] = 1.5
    assert numpy.asarray(echo(value)).tolist() == [1.5, 1.5, 1.5]


@pytest.mark.parametrize("keyed", [{memoryview(b"x"): 1}, {memoryview(b"x")}, {(1, memoryview(b"x")): 1}])
def test_memory_is_no_key(echo, keyed):
    with pytest.raises(vmhost.CrossingError, match="argument: .* as a dict's key or a set's item"):
        echo(keyed)


def test_a_result_that_is_small_in_its_vm_only_is_bounded_by_its_limit():
    source = """
        def run(levels):
            value = [0] * 100
            for _ in range(levels):
                value = [value] * 100
            return value
    """
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source, limits={"memory_bytes": 16 << 20}))
        assert task(1) == [[0] * 100] * 100
        with pytest.raises(vmhost.MemoryLimitError):
            task(6)  # nine bytes each: 9 TB
        assert task(0) == [0] * 100


class Raises:
    def __init__(self, error):
        self.error = error

    def __buffer__(self, flags):
        raise self.error


class Mute(ValueError):
    def __str__(self):
        raise KeyError


def test_what_a_buffer_raises_is_told_and_ctrl_c_goes_on(echo):
    with pytest.raises(vmhost.CrossingError, match=r"argument: \$\[0\]: no more memory today"):
        echo([Raises(RuntimeError("no more memory today"))])
    with pytest.raises(vmhost.CrossingError, match=r"argument: \$\[0\]: its buffer raises `Mute`"):
        echo([Raises(Mute())])
    with pytest.raises(KeyboardInterrupt):
        echo([Raises(KeyboardInterrupt())])
    assert echo(1) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "argument: $: a `object` cannot cross"),
        ({"a": [1, Sub(2)]}, "argument: $.a[1]: a `Sub` cannot cross"),
        ([numpy.zeros((4, 4))[:, 1]], "argument: $[0]: the memory of this `numpy.ndarray` is not contiguous"),
        (array.array("w", "text"), "argument: $: items of format"),
        ({Sub(1): {Sub(2): 3}}, "argument: $[a `Sub`]: a `Sub` cannot cross"),
        ({"k" * 1000: Sub(1)}, f"argument: $.{'k' * 100}: a `Sub` cannot cross"),
        (
            {"deep": __import__("functools").reduce(lambda inner, _: [inner], range(300), None)},
            "nested deeper than 200 levels",
        ),
    ],
)
def test_what_cannot_cross_is_named_with_its_place(echo, value, message):
    with pytest.raises(vmhost.CrossingError) as caught:
        echo(value)
    assert message in str(caught.value)
    assert echo(1) == 1
