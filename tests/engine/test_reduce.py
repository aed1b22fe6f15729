"""vme_reduce against NumPy's reductions: every dtype, any axes, any strides, on every backend."""

import ctypes
import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import arrays, stretched, values
from tests.engine.library import DTYPES, NUMBER, Context, EngineError, Status, check, library, names, tensor

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OPS = names("reduce")
NUMPY = {name: getattr(np, name) for name in OPS if name not in ("fmax", "fmin")} | {
    "fmax": np.fmax.reduce,
    "fmin": np.fmin.reduce,
}


def types(op, dtype):
    loop, result = ctypes.c_int(), ctypes.c_int()
    check(library.vme_reduce_types(OPS[op], NUMBER[np.dtype(dtype)], ctypes.byref(loop), ctypes.byref(result)))
    return DTYPES[loop.value], DTYPES[result.value]


def reduce(context, op, array, axes, out=None, initial=None, dtype=None):
    """The reduction with size 1 in place of `axes`."""
    loop, result = types(op, array.dtype if dtype is None else dtype)
    if out is None:
        out = np.full([1 if axis in axes else size for axis, size in enumerate(array.shape)], 77, result)
    if initial is not None:
        initial = np.array(initial, loop).ctypes.data_as(ctypes.c_void_p)
    bits = ctypes.c_uint64(sum(1 << axis for axis in axes))
    check(library.vme_reduce(context.handle, OPS[op], NUMBER[loop], tensor(array), bits, initial, tensor(out)))
    return out


def wanted(op, array, axis):
    """NumPy's reduction. Sums and products of float16 are made in float32 and rounded once, more exactly than NumPy's,
    which rounds between two dimensions."""
    half = array.dtype == "float16" and op in ("sum", "prod")
    with np.errstate(all="ignore"):
        result = NUMPY[op](array.astype("float32") if half else array, axis=axis, keepdims=True)
        return result.astype("float16") if half else result


def expect(result, expected, array, op):
    """Equal values; sums and products of floats are equal up to rounding."""
    expected = np.asarray(expected)
    assert result.dtype == expected.dtype
    result = result.reshape(expected.shape)
    if op in ("sum", "prod") and expected.dtype.kind in "fc":
        size = {2: 1e-3, 4: 1e-5, 8: 1e-13}[expected.dtype.itemsize // (2 if expected.dtype.kind == "c" else 1)]
        with np.errstate(all="ignore"):
            scale = np.nanmax(np.abs(np.where(np.isfinite(array), array, 0)), initial=1) * max(array.size, 1)
        if expected.dtype == "float16":  # the last place, also of what is subnormal
            np.testing.assert_allclose(result, expected, rtol=size, atol=1e-7)
            return
        np.testing.assert_allclose(result, expected, rtol=size, atol=size * float(scale) if op == "sum" else 0)
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@RELAXED
@given(data=st.data(), op=st.sampled_from([op for op in OPS if not op.startswith("arg")]))
def test_any_axes(backend, context, data, op):
    array = data.draw(arrays(DTYPES, nan=op != "prod"))
    if op in ("sum", "prod") and array.dtype.kind in "fc":  # where the order of additions decides nothing but rounding
        array = np.where(np.isfinite(array) & (np.abs(array) < 1000), array, array.dtype.type(2))
        if op == "prod":
            array = np.where(np.abs(array) > 1, array / np.abs(array), array).astype(array.dtype)
    axes = tuple(axis for axis in range(array.ndim) if data.draw(st.booleans()))
    if op == "count_nonzero" and not axes:
        axes = tuple(range(array.ndim))  # NumPy takes () for all there
    try:
        expected = wanted(op, array, axes)
    except ValueError as error:
        with pytest.raises(EngineError) as caught:
            reduce(context, op, array, axes)
        assert str(caught.value) == str(error)
        return
    expect(reduce(context, op, array, axes), expected, array, op)


@RELAXED
@given(data=st.data(), op=st.sampled_from(["argmax", "argmin"]))
def test_places(backend, context, data, op):
    array = data.draw(arrays(DTYPES))
    if array.ndim == 0:
        return
    axis = data.draw(st.integers(0, array.ndim - 1))
    try:
        expected = NUMPY[op](array, axis=axis, keepdims=True)
    except ValueError as error:
        with pytest.raises(EngineError) as caught:
            reduce(context, op, array, (axis,))
        assert str(caught.value) == str(error)
        return
    expect(reduce(context, op, array, (axis,)), expected, array, op)


LARGE = [
    ((100_001,), (0,)),
    ((200, 613), (0,)),
    ((200, 613), (1,)),
    ((70, 40, 30), (1,)),
    ((70, 40, 30), (0, 2)),
    ((50_000, 3), (0,)),
    ((20_000, 17), (0,)),
    ((3, 40_000), (1,)),
    ((3000, 4, 9), (1,)),
]


@functools.cache
def many(dtype, size):
    made = values(dtype, size, 7)
    made.flags.writeable = False
    return made


@each("op", OPS)
@pytest.mark.parametrize(("shape", "axes"), LARGE)
def test_large(backend, context, op, shape, axes):
    if op.startswith("arg"):
        axes = axes[:1]
    axis = axes[0] if op.startswith("arg") else axes
    for dtype in ("float32", "int64", "bool", "uint8", "complex64", "int16", "float16"):
        array = many(dtype, int(np.prod(shape))).reshape(shape)
        if array.dtype.kind in "fc":
            array = np.nan_to_num(array, nan=1, posinf=3, neginf=-3)
            if op == "prod":
                array = np.where(array.real < 0, -1, 1j if array.dtype.kind == "c" else 1).astype(dtype)
            if dtype == "float16":  # sums stay where float16 has numbers, and where float32 adds them exactly
                array = array.clip(0, 30).round()
                array[np.random.default_rng(1).random(shape) < 0.99] = op == "prod"
        right = wanted(op, array, axis)
        for view in (array, stretched(array, 3)):
            expect(reduce(context, op, view, axes), right, array, op)


@each("dtype", ["uint8", "int32", "float32", "float64"])
@each("op", ["max", "min", "sum", "argmax", "argmin", "count_nonzero"])
def test_long_runs_from_any_place(backend, context, dtype, op):
    """The first elements are folded apart, up to where a line begins: an extreme is found among them, at their end, and
    behind."""
    array = np.full(40_100, 2, dtype)
    for first in (0, 1, 3, 15, 16, 40):
        for n in (1024, 40_000):
            run = array[first : first + n]
            for start in (0, 1, 7, 8, 15, 16, 63, 64, n - 1):
                for value in (1, 3):
                    run[start] = value
                    expect(reduce(context, op, run, (0,)), wanted(op, run, 0), run, op)
                run[start] = 2


def test_sums_are_as_accurate_as_numpys(backend, context):
    array = np.random.default_rng(1).random(1_000_000, dtype="float32")
    exact = np.sum(array, dtype="float64")
    assert abs(reduce(context, "sum", array, (0,))[0] - exact) <= max(2 * abs(np.sum(array) - exact), 1e-6 * exact)


def test_nan_wins_at_any_place(backend, context):
    for size in (1, 5, 70, 700, 40_000, 100_000):
        for position in {0, size // 2, size - 1}:
            array = np.arange(size, dtype="float32")
            array[position] = np.nan
            assert np.isnan(reduce(context, "max", array, (0,)))
            assert np.isnan(reduce(context, "min", array, (0,)))
            assert reduce(context, "argmax", array, (0,)) == position
            assert reduce(context, "argmin", array, (0,)) == position


@each("op", ["argmax", "argmin"])
@each("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_first_place_among_ties(backend, context, op, dtype):
    """Rows of every length around those of vectors and of blocks, with few distinct values, zeros of both signs and a
    NaN or two."""
    random = np.random.default_rng(3)
    for width in (*range(1, 140, 3), *range(127, 134), 255, 256, 257, 1000, 2047, 2048, 2050, 2081, 4100):
        values = random.integers(0, 3, (12, width)).astype(dtype)
        values[3] = np.arange(width) % 251
        values[4] = values[3][::-1]
        values[5] = 7
        if values.dtype.kind == "f":
            values[6:9] *= -0.0
            values[9, random.integers(width)] = np.nan
            values[10, random.integers(0, width, 2)] = [np.nan, -np.nan]
            values[11] = np.where(values[11] == 1, np.inf, -np.inf)
        np.testing.assert_array_equal(reduce(context, op, values, (1,)), NUMPY[op](values, axis=1, keepdims=True))


@each("op", list(OPS))
def test_bytes_above_one_are_true(backend, context, op):
    """Bools of foreign memory, with other bytes than 0 and 1: each non-zero byte counts as True."""
    for shape, axes in [((40,), (0,)), ((5, 7), (1,)), ((9, 130), (0,)), ((3, 50_000), (1,)), ((50, 3000), (0,))]:
        raw = np.random.default_rng(5).choice(np.array([0, 1, 2, 128, 255], "uint8"), shape).view("bool")
        honest = raw.view("uint8") != 0
        for given, meant in [(raw, honest), (raw[..., ::2], honest[..., ::2])]:
            expected = wanted(op, meant, axes[0])
            np.testing.assert_array_equal(reduce(context, op, given, axes).view("uint8"), expected.view("uint8"))
    if op in ("sum", "prod"):
        assert reduce(context, op, np.array([2, 255], "uint8").view("bool"), (0,), initial=5).tolist() == [
            7 if op == "sum" else 5
        ]


def test_initial(backend, context):
    array = np.arange(6.0).reshape(2, 3)
    assert reduce(context, "sum", array, (1,), initial=10.0).tolist() == [[13.0], [22.0]]
    assert reduce(context, "max", array, (1,), initial=3.0).tolist() == [[3.0], [5.0]]
    assert reduce(context, "max", np.zeros((2, 0)), (1,), initial=3.0).tolist() == [[3.0], [3.0]]
    assert reduce(context, "prod", np.full(100_000, 1), (0,), initial=7).tolist() == [7]


def test_result_over_the_input(backend, context):
    array = np.arange(12.0).reshape(3, 4)
    expected = array.sum(axis=0)
    reduce(context, "sum", array, (0,), out=array[1:2])
    assert array[1].tolist() == expected.tolist()


@pytest.mark.parametrize("array", [np.ones(100_000), np.ones((10_000, 20)), np.ones((70_000, 3)).T])
@pytest.mark.parametrize("op", ["sum", "argmax"])
def test_without_memory(op, array):
    refused = 0
    for number in range(4):
        context = Context(refuse=number)
        try:
            result = reduce(context, op, array, (0,))
            assert result.flat[0] == (0 if op == "argmax" else array.shape[0])
            break
        except EngineError as error:
            assert error.status is Status.NO_MEMORY
            refused += 1
        finally:
            assert context.charged == 0
            context.close()
    assert refused <= 1


def test_stop(backend):
    context = Context()
    context.stop()
    for array in (np.ones(1_000_000), np.ones((1000, 1000)), np.ones(3)):
        with pytest.raises(EngineError) as caught:
            reduce(context, "sum", array, (0,))
        assert caught.value.status is Status.STOPPED
    assert context.charged == 0
    context.close()


def test_rank_64(backend, context):
    array = np.arange(64).reshape([2] * 6 + [1] * 58)
    assert reduce(context, "sum", array, tuple(range(64))).ravel().tolist() == [64 * 63 // 2]
