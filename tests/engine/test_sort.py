"""sort, argsort and searchsorted against NumPy's stable ones."""

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import arrays, shapes, stretched, values
from tests.engine.library import DTYPES, Context, EngineError, Status, check, library, tensor

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def call(context, name, array, axis, descending, out):
    check(getattr(library, f"vme_{name}")(context.handle, tensor(array), axis, ctypes.c_bool(descending), tensor(out)))
    return out


def descending_order(array, axis):
    """Stable, NaNs last: NumPy has no such order of its own."""
    ranks = np.argsort(np.argsort(array, axis=axis, kind="stable"), axis=axis)  # only to get the shape
    out = np.empty_like(ranks)
    for index in np.ndindex(*(size for at, size in enumerate(array.shape) if at != axis)):
        where = index[:axis] + (slice(None),) + index[axis:]
        line = array[where]
        unique = np.unique(line, equal_nan=True)
        rank = np.searchsorted(unique, line)
        nan = np.isnan(line) if line.dtype.kind in "fc" else np.zeros(line.shape, bool)
        out[where] = np.argsort(np.where(nan, 1, -rank), kind="stable")
    return out


@RELAXED
@given(data=st.data())
def test_orders(backend, context, data):
    array = data.draw(arrays(DTYPES, shape=data.draw(shapes(min_rank=1, max_rank=3, max_size=60))))
    axis = data.draw(st.integers(0, array.ndim - 1))
    np.testing.assert_array_equal(
        call(context, "argsort", array, axis, False, stretched(np.zeros(array.shape, "int64"), 1)),
        np.argsort(array, axis=axis, kind="stable"),
    )
    np.testing.assert_array_equal(
        call(context, "sort", array, axis, False, stretched(np.zeros_like(array), 1)),
        np.sort(array, axis=axis, kind="stable"),
    )


@RELAXED
@given(data=st.data())
def test_descending(backend, context, data):
    array = data.draw(
        arrays(
            [dtype for dtype in DTYPES if dtype.kind != "c"],
            shape=data.draw(shapes(min_rank=1, max_rank=2, max_size=40)),
        )
    )
    axis = data.draw(st.integers(0, array.ndim - 1))
    expected = descending_order(array, axis)
    np.testing.assert_array_equal(call(context, "argsort", array, axis, True, np.zeros(array.shape, "int64")), expected)
    np.testing.assert_array_equal(
        call(context, "sort", array, axis, True, np.zeros_like(array)), np.take_along_axis(array, expected, axis)
    )


@each("dtype", DTYPES, ids=str)
def test_large(backend, context, dtype):
    array = values(dtype, 100_000, 5)
    np.testing.assert_array_equal(
        call(context, "argsort", array, 0, False, np.zeros(array.shape, "int64")), np.argsort(array, kind="stable")
    )
    np.testing.assert_array_equal(call(context, "sort", array, 0, False, array.copy()), np.sort(array))


PATTERNS = {
    "random": lambda random, n: random.normal(size=n),
    "few values": lambda random, n: random.choice([-1.0, 0.0, 1.0], n),
    "one value": lambda random, n: np.full(n, 7.0),
    "largest and NaN": lambda random, n: random.choice([np.inf, np.nan, -np.inf], n),
    "sorted": lambda random, n: np.sort(random.normal(size=n)),
    "falling": lambda random, n: -np.sort(random.normal(size=n)),
    "organ pipes": lambda random, n: np.concatenate([np.arange(n - n // 2), np.arange(n // 2)[::-1]]) * 1.0,
    "last bits": lambda random, n: 1 + random.integers(0, 9, n) * 2.0**-52,
    "one far off": lambda random, n: np.where(np.arange(n) == n // 3, 1e300, 1 + random.integers(0, 9, n) * 2.0**-52),
}


@each("pattern", PATTERNS)
@each("n", [9, 33, 130, 257, 1000, 5000])
def test_patterns(backend, context, pattern, n):
    numbers = PATTERNS[pattern](np.random.default_rng(n), n)
    for dtype in ("float64", "float32", "float16", "int64", "uint64", "int32", "uint32", "int16", "int8"):
        with np.errstate(invalid="ignore", over="ignore"):
            array = numbers.astype(dtype)
        order = np.argsort(array, kind="stable")
        np.testing.assert_array_equal(call(context, "argsort", array, 0, False, np.zeros(n, "int64")), order)
        np.testing.assert_array_equal(call(context, "sort", array, 0, False, array.copy()), array[order])
        kth = np.array(sorted({0, n // 3, n // 2, n - 1}))
        for as_indices in (False, True):
            out = np.zeros(n, "int64" if as_indices else dtype)
            check(
                library.vme_partition(
                    context.handle, tensor(array), 0, len(kth), kth.ctypes, ctypes.c_bool(as_indices), tensor(out)
                )
            )
            parted = array[out] if as_indices else out
            np.testing.assert_array_equal(np.sort(parted), array[order])
            np.testing.assert_array_equal(parted[kth], array[order][kth])
            for k in kth:
                np.testing.assert_array_equal(np.sort(parted[:k]), array[order][:k])


@each("pattern", PATTERNS)
@each("n", [65_536, 150_001])
def test_what_threads_divide(backend, context, pattern, n):
    numbers = PATTERNS[pattern](np.random.default_rng(n), n)
    for dtype in ("float64", "float32", "int16"):
        with np.errstate(invalid="ignore", over="ignore"):
            array = numbers.astype(dtype)
        order = np.argsort(array, kind="stable")
        np.testing.assert_array_equal(call(context, "argsort", array, 0, False, np.zeros(n, "int64")), order)
        np.testing.assert_array_equal(call(context, "sort", array, 0, False, array.copy()), array[order])


@each("dtype", ["float32", "float64", "int32", "uint64"])
@each("length", [2, 10, 100, 256, 257])
def test_many_short_lines(backend, context, dtype, length):
    a = np.random.default_rng(1).integers(0, 50, (600, length)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        a[::3, 1], a[1::3, 0] = np.nan, -0.0
    for descending in (False, True):
        lines = np.empty_like(a)
        check(library.vme_sort(context.handle, tensor(a), 1, descending, tensor(lines)))
        wanted = np.sort(a, axis=1)
        if descending:
            wanted = -np.sort(-a, axis=1) if np.dtype(dtype).kind == "f" else wanted[:, ::-1]
        assert np.array_equal(lines, wanted, equal_nan=np.dtype(dtype).kind == "f")


def test_sort_in_place(backend, context):
    array = np.array([3.0, np.nan, -1.0, -0.0, np.inf])
    call(context, "sort", array, 0, False, array)
    np.testing.assert_array_equal(array, [-1.0, -0.0, 3.0, np.inf, np.nan])
    call(context, "sort", array, 0, True, array[::-1])
    np.testing.assert_array_equal(array[::-1], [np.inf, 3.0, 0.0, -1.0, np.nan])


@RELAXED
@given(data=st.data(), right=st.booleans())
def test_searchsorted(backend, context, data, right):
    dtype = data.draw(st.sampled_from(DTYPES))
    ordered = np.sort(data.draw(arrays([dtype], shape=(data.draw(st.integers(0, 30)),))))
    wanted = data.draw(arrays([dtype]))
    out = np.zeros(wanted.shape, "int64")
    check(library.vme_searchsorted(context.handle, tensor(ordered), tensor(wanted), ctypes.c_bool(right), tensor(out)))
    np.testing.assert_array_equal(out, np.searchsorted(ordered, wanted, side="right" if right else "left"))


def test_refuses(context):
    for name, array, axis, out, status in [
        ("sort", np.zeros(3), 1, np.zeros(3), Status.BAD_AXIS),
        ("argsort", np.zeros(3), 0, np.zeros(3), Status.BAD_DTYPE),
        ("sort", np.zeros(3), 0, np.zeros(2), Status.BAD_SHAPE),
    ]:
        with pytest.raises(EngineError) as caught:
            call(context, name, array, axis, False, out)
        assert caught.value.status is status


def test_without_memory():
    context = Context(refuse=0)
    square = np.arange(100.0).reshape(10, 10)
    for name, dtype in (("sort", "float64"), ("argsort", "int64")):
        with pytest.raises(EngineError) as caught:
            call(context, name, square, 0, False, np.zeros(square.shape, dtype))  # columns: sorted aside
        assert caught.value.status is Status.NO_MEMORY
    assert context.charged == 0
    context.close()
