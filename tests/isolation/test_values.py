"""Values that cross a wall and come back: equal, of the same type, and let go of afterwards."""

import array
import sys

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import vmhost
from tests.hosts import bundle

PLAIN = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.complex_numbers(allow_nan=False) \
    | some.text(some.characters(codec=None)) | some.binary()
KEYS = some.none() | some.booleans() | some.integers() | some.text() | some.binary()
VALUES = some.recursive(
    PLAIN, lambda inner: some.lists(inner) | some.lists(inner).map(tuple) | some.dictionaries(KEYS, inner) | some.sets(KEYS),
    max_leaves=30)
LENT_FROM = 64 * 1024       # bytes; wire.c


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


@pytest.mark.parametrize("size", [0, 1, LENT_FROM - 1, LENT_FROM, LENT_FROM + 1, 3_000_000])
def test_bytes_of_any_size_come_back_and_are_let_go_of(echo, size):
    data = bytes(size % 251 for _ in range(1)) * size if size else b""
    before = sys.getrefcount(data)
    assert echo({"a": [data, data], "b": data}) == {"a": [data, data], "b": data}
    echo(None)
    echo(None)      # the host's references are given back by one of its next calls
    assert sys.getrefcount(data) == before


@pytest.mark.parametrize("value", [
    numpy.arange(24, dtype=dtype).reshape(2, 3, 4) for dtype in ("int8", "uint16", "int32", "int64", "float32", "float64", "complex128")
] + [numpy.array(2.5), numpy.zeros((0, 3)), array.array("h", [1, -2]), bytearray(b"abc"), memoryview(b"xyz")])
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


@pytest.mark.parametrize(("value", "said"), [
    (object(), "argument: $: a `object` cannot cross"),
    ({"a": [1, Sub(2)]}, "argument: $.a[1]: a `Sub` cannot cross"),
    ([numpy.zeros((4, 4))[:, 1]], "argument: $[0]: the memory of this `numpy.ndarray` is not contiguous"),
    (numpy.array(["text"]), "argument: $: items of format"),
    ({"deep": __import__("functools").reduce(lambda inner, _: [inner], range(300), None)}, "nested deeper than 200 levels"),
])
def test_what_cannot_cross_is_named_with_its_place(echo, value, said):
    with pytest.raises(vmhost.CrossingError) as caught:
        echo(value)
    assert said in str(caught.value)
    assert echo(1) == 1
