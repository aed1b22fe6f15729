"""bitwise_count, packbits and unpackbits on every backend, against NumPy."""

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.engine.op_cases import INTEGERS

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

LENGTHS = [0, 1, 7, 8, 9, 31, 64, 65, 1003]


def drawn(dtype, shape):
    random = numpy.random.default_rng(5)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    limits = numpy.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def same(got, wanted):
    got = numpy.asarray(got)
    assert got.dtype == wanted.dtype
    numpy.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_counts(backend, dtype):
    for n in LENGTHS:
        values = drawn(dtype, n)
        same(np.bitwise_count(np.asarray(values)), numpy.bitwise_count(values))
        same(np.bitwise_count(np.asarray(values)[::-3]), numpy.bitwise_count(values[::-3]))


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_packs_and_unpacks(backend, axis, order):
    for n in LENGTHS:
        for shape in ((3, 2, n), (n, 3, 2), (2, n, 5)):
            for dtype in ("bool", "int16"):
                values = drawn(dtype, shape)
                same(np.packbits(np.asarray(values), axis, order), numpy.packbits(values, axis, order))
            values = drawn("uint8", shape)
            length = 8 * (values.size if axis is None else shape[axis])
            for count in (None, length - 3, length + 5) if length else (None,):
                same(
                    np.unpackbits(np.asarray(values), axis, count, order), numpy.unpackbits(values, axis, count, order)
                )


def test_any_byte_but_zero_is_true(backend):
    values = drawn("uint8", 100)
    same(np.packbits(np.asarray(values).view(np.bool_)), numpy.packbits(values.view(bool)))


def test_missing_bytes_are_zeros(backend):
    same(np.unpackbits(np.asarray([], np.uint8), count=5), numpy.zeros(5, "uint8"))  # NumPy leaves these undefined
