"""Scans along an axis against NumPy's accumulate."""

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import arrays, shapes, stretched, values
from tests.engine.library import DTYPES, NUMBER, Context, EngineError, Status, check, library, names, tensor

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OPS = names("scan")
NUMPY = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}
KINDS = [dtype for dtype in DTYPES if dtype.kind in "fc" or dtype.itemsize == 8]


def scan(context, op, array, axis, out=None):
    loop, result = ctypes.c_int(), ctypes.c_int()
    check(library.vme_scan_types(OPS[op], NUMBER[array.dtype], ctypes.byref(loop), ctypes.byref(result)))
    if out is None:
        out = np.zeros(array.shape, DTYPES[result.value])
    check(library.vme_scan(context.handle, OPS[op], loop, tensor(array), axis, tensor(out)))
    return out


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@RELAXED
@given(data=st.data(), op=st.sampled_from(list(OPS)))
def test_scans(backend, context, data, op):
    array = data.draw(arrays(KINDS, shape=data.draw(shapes(min_rank=1)), nan=op != "cumprod"))
    axis = data.draw(st.integers(0, array.ndim - 1))
    if array.dtype == "float16":  # as float32, rounded once: NumPy rounds at every step
        expected = NUMPY[op](array.astype("float32"), axis=axis).astype("float16")
    else:
        expected = NUMPY[op](array, axis=axis)
    out = stretched(np.zeros_like(expected), data.draw(st.integers(0, 9)))
    scan(context, op, array, axis, out)
    if op == "cumprod" and array.dtype.kind == "c":
        np.testing.assert_allclose(out, expected, rtol=1e-5)
    else:
        np.testing.assert_array_equal(out, expected)


@each("op", OPS)
@each(("shape", "axis"), [((200_001,), 0), ((300, 701), 0), ((300, 701), 1), ((20, 50, 300), 1), ((50_000, 3), 0)])
def test_large(backend, context, op, shape, axis):
    array = values("int64", int(np.prod(shape)), 3).reshape(shape)
    np.testing.assert_array_equal(scan(context, op, array, axis), NUMPY[op](array, axis=axis))
    np.testing.assert_array_equal(scan(context, op, stretched(array, 1), axis), NUMPY[op](array, axis=axis))


def test_in_place(backend, context):
    array = np.arange(12.0).reshape(3, 4)
    expected = np.cumsum(array, axis=0)
    scan(context, "cumsum", array, 0, out=array)
    assert np.array_equal(array, expected)


@pytest.mark.parametrize(
    "views",
    [lambda whole: (whole[1:], whole[:-1]), lambda whole: (whole[:-1], whole[1:]), lambda whole: (whole, whole[::-1])],
)
@pytest.mark.parametrize("shape", [(1000,), (40, 9)])
def test_onto_part_of_itself(backend, context, views, shape):
    array, out = views(np.arange(float(np.prod(shape))).reshape(shape))
    expected = np.cumsum(array, axis=0)
    scan(context, "cumsum", array, 0, out=out)
    assert np.array_equal(out, expected)


def test_refuses(context):
    with pytest.raises(EngineError) as caught:
        scan(context, "cumsum", np.zeros(3), 1)
    assert caught.value.status is Status.BAD_AXIS
    with pytest.raises(EngineError) as caught:
        scan(context, "cumsum", np.zeros(3), 0, out=np.zeros(4))
    assert caught.value.status is Status.BAD_SHAPE


def test_stop():
    context = Context()
    context.stop()
    with pytest.raises(EngineError) as caught:
        scan(context, "cumsum", np.zeros(100_000), 0)
    assert caught.value.status is Status.STOPPED
    context.close()
