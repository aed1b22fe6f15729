"""Arrays print exactly as NumPy's."""

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy import inf, nan

import vmhost.engine.numpy as np
from tests.batches import each

RANDOM = numpy.random.default_rng(0)
ARRAYS = [
    numpy.array([1, 2, 3]),
    numpy.array([1.5, 2, 3]),
    numpy.array([[1, -2], [3, 4]]),
    numpy.array([1e-10, 1]),
    numpy.array([nan, inf, -inf, 1]),
    numpy.array([True, False]),
    numpy.array(3.5),
    numpy.array([], "f4"),
    numpy.zeros((2, 0)),
    numpy.zeros((0, 3), "i4"),
    numpy.arange(1001),
    numpy.arange(1001.0),
    numpy.arange(1002.0).reshape(2, 3, 167),
    numpy.arange(2000).reshape(40, 50),
    numpy.array([1 + 2j, 3.5 - 1j]),
    numpy.array([1e8, 1]),
    numpy.array([1 / 3, 2 / 3]),
    numpy.array([1 / 3], "f4"),
    numpy.array([1 / 3, 1e3], "f2"),
    numpy.array([123456.7, 1], "f4"),
    numpy.array([1e6, 1], "f4"),
    numpy.arange(30).reshape(2, 3, 5),
    numpy.arange(100),
    numpy.arange(40) * 0.1,
    numpy.array([0.0, -0.0]),
    numpy.array([1e100, 1e-100]),
    numpy.array([1, 2], "u1"),
    numpy.array([[nan]]),
    numpy.array([1e16]),
    numpy.array([1e-5, 2e-5]),
    numpy.zeros((3, 4, 2, 2)),
    RANDOM.normal(size=(11, 11)),
    RANDOM.normal(size=30).astype("f4"),
    RANDOM.normal(size=(3, 4)) + 1j,
    numpy.array(True),
    numpy.array(5),
    numpy.array(1 + 1j),
    numpy.arange(24).reshape(1, 2, 3, 4) > 3,
    numpy.array([12345.6789, 0.1]),
]


@each("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays(array):
    ours = np.asarray(array)
    assert repr(ours) == repr(array)
    assert str(ours) == str(array)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "complex128", "int8", "bool"])
def test_scalars(dtype):
    values = [
        0,
        1,
        1.5,
        1e16,
        1e15,
        123456789.0,
        1e-4,
        1e-5,
        nan,
        inf,
        -inf,
        1 / 3,
        1e10,
        65504,
        1e3,
        1e5,
        -0.0,
        1e22,
        2048,
        1e7,
    ]
    for value in values if dtype not in ("int8", "bool") else [0, 1]:
        with numpy.errstate(all="ignore"):
            wanted = numpy.dtype(dtype).type(value)
        got = getattr(np, dtype)(wanted.item())
        assert (repr(got), str(got)) == (repr(wanted), str(wanted))


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=8), dtype=st.sampled_from(["float64", "float32"]))
@example(values=[0.0001], dtype="float32")
@example(values=[1000.0, 1.0000001], dtype="float32")
def test_any_floats(values, dtype):
    array = numpy.array(values, dtype)
    assert repr(np.asarray(array)) == repr(array)


def test_options():
    array = numpy.arange(12.0).reshape(3, 4) / 7
    for options in (
        {"precision": 3},
        {"linewidth": 30},
        {"threshold": 5, "edgeitems": 1},
        {"floatmode": "fixed"},
        {"sign": "+"},
        {"suppress": True, "precision": 2},
        {"floatmode": "unique"},
        {"nanstr": "?"},
    ):
        with numpy.printoptions(**options), np.printoptions(**options):
            assert repr(np.asarray(array)) == repr(array), options
            assert str(np.asarray(array * nan)) == str(array * nan), options
