"""Values as bytes: each comes back with its exact type; errors name values that cannot be stored; junk runs no code."""

import enum

import msgpack
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches import each
from vmhost.pipeline.values import joined, pack, unpack, unpack_some

KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    KEYS | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner)
        | st.sets(KEYS | st.tuples(KEYS))
    ),
    max_leaves=20,
)


def shape(value):
    """The value with the type of each part, so that 1, True and 1.0 differ, and lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value), [shape(part) for part in value]
    if isinstance(value, dict):
        return dict, [(shape(key), shape(part)) for key, part in value.items()]
    if isinstance(value, set):
        return set, sorted(repr(shape(part)) for part in value)
    return type(value), repr(value)


@settings(max_examples=50)
@given(VALUES)
def test_values_come_back_as_they_were(value):
    assert shape(unpack(pack(value))) == shape(value)


@settings(max_examples=40)
@given(st.lists(VALUES, max_size=10), st.data())
def test_parts_of_a_list_are_read_alone(values, data):
    packed = joined([pack(value) for value in values])
    assert packed == pack(values)
    indexes = sorted(data.draw(st.sets(st.integers(0, len(values) - 1)))) if values else []
    assert shape(unpack_some(packed, indexes)) == shape([values[index] for index in indexes])


@each("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "c16", ">i4"])
@each("dimensions", [(), (0,), (5,), (2, 3)])
def test_arrays_come_back(dtype, dimensions):
    array = numpy.ones(dimensions, dtype)
    back = unpack(pack({"a": array}))["a"]
    assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()
    assert unpack(pack(array.T)).tolist() == array.T.tolist()


class Number(enum.IntEnum):
    ONE = 1


CIRCLE = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [object(), Number.ONE, frozenset(), range(3), len, CIRCLE, numpy.array(["a"]), numpy.array([None])],
    ids=type,
)
def test_what_cannot_be_stored_is_refused(value):
    with pytest.raises(ValueError):
        pack([value])


@given(st.binary())
def test_junk_is_refused_or_a_value(data):
    try:
        value = unpack(data)
    except ValueError:
        return
    assert type(value).__module__ in ("builtins", "numpy", "msgpack.ext")


def test_junk_in_an_array_is_refused():
    for dtype, dims, content in (
        ("O", [1], bytes(8)),
        ("f8", [2], bytes(8)),
        ("nonsense", [1], b""),
    ):
        with pytest.raises(ValueError):
            unpack(msgpack.packb(msgpack.ExtType(5, msgpack.packb([dtype, dims, content]))))
