"""Concatenate, pad, tile, roll and raw regions against NumPy."""

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.arrays import arrays, shapes, stretched, values
from tests.engine.library import DTYPES, Context, EngineError, Status, check, library, tensor, tensors

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MODES = ["constant", "edge", "reflect", "symmetric", "wrap"]


def int64s(numbers):
    return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def concatenate(context, parts, axis, out):
    check(library.vme_concatenate(context.handle, len(parts), tensors(parts), axis, tensor(out)))


@RELAXED
@given(data=st.data())
def test_concatenate(backend, context, data):
    shape = list(data.draw(shapes(min_rank=1)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(st.sampled_from(DTYPES))
    parts = []
    for _ in range(data.draw(st.integers(1, 4))):
        shape[axis] = data.draw(st.integers(0, 5))
        parts.append(data.draw(arrays([dtype], shape=tuple(shape))))
    expected = np.concatenate(parts, axis)
    out = stretched(np.zeros_like(expected), 1)
    concatenate(context, parts, axis, out)
    assert same(out, expected)


@pytest.mark.parametrize(
    ("parts", "axis", "status"),
    [
        ([], 0, Status.BAD_VALUE),
        ([np.zeros(())], 0, Status.BAD_VALUE),
        ([np.zeros((2, 3)), np.zeros((3, 3))], 1, Status.BAD_SHAPE),
        ([np.zeros((2, 3)), np.zeros(3)], 0, Status.BAD_SHAPE),
        ([np.zeros(3)], 1, Status.BAD_AXIS),
    ],
)
def test_concatenate_refuses(context, parts, axis, status):
    with pytest.raises(ValueError) as theirs:
        np.concatenate(parts, axis)
    with pytest.raises(EngineError) as caught:
        concatenate(context, parts, axis, np.zeros((2, 6)))
    assert caught.value.status is status
    if (
        "array at index" not in str(theirs.value)
        or status is Status.BAD_SHAPE
        and len({part.ndim for part in parts}) == 1
    ):
        assert str(caught.value) == str(theirs.value)


def test_concatenate_onto_a_part(backend, context):
    array = np.arange(10.0)
    concatenate(context, [array[5:], array[:5]], 0, array)
    assert array.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]


def pad(context, array, widths, mode, value=0):
    out = np.full([size + sum(width) for size, width in zip(array.shape, widths, strict=True)], 99).astype(array.dtype)
    one = np.array(value, array.dtype)
    check(
        library.vme_pad(
            context.handle,
            MODES.index(mode),
            tensor(array),
            int64s([width[0] for width in widths]),
            one.ctypes.data_as(ctypes.c_void_p),
            tensor(out),
        )
    )
    return out


@RELAXED
@given(data=st.data(), mode=st.sampled_from(MODES))
def test_pad(backend, context, data, mode):
    array = data.draw(arrays(DTYPES, shape=data.draw(shapes(max_rank=3, max_size=5))))
    widths = [(data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))) for _ in array.shape]
    try:
        expected = np.pad(array, widths, mode) if widths else array
    except ValueError as error:
        with pytest.raises(EngineError) as caught:
            pad(context, array, widths, mode)
        assert str(caught.value) == str(error)
        return
    assert same(pad(context, array, widths, mode), expected)


def test_pad_with_a_value(backend, context):
    assert same(
        pad(context, np.ones((2, 3), "int16"), [(1, 0), (0, 2)], "constant", 7),
        np.pad(np.ones((2, 3), "int16"), [(1, 0), (0, 2)], constant_values=7),
    )


@RELAXED
@given(data=st.data())
def test_tile(backend, context, data):
    array = data.draw(arrays(DTYPES, shape=data.draw(shapes(max_rank=4, max_size=4))))
    times = data.draw(st.lists(st.integers(0, 3), min_size=array.ndim, max_size=array.ndim + 2))
    expected = np.tile(array, times)
    out = stretched(np.zeros_like(expected), 2)
    check(library.vme_tile(context.handle, tensor(array), tensor(out)))
    assert same(out, expected)


def test_tile_in_many_dimensions(backend, context):
    array = np.arange(2**10).reshape([2] * 10 + [1] * 54)
    expected = np.concatenate([array, array], axis=3)
    out = np.zeros_like(expected)
    check(library.vme_tile(context.handle, tensor(array), tensor(out)))
    assert same(out, expected)


@RELAXED
@given(data=st.data())
def test_roll(backend, context, data):
    array = data.draw(arrays(DTYPES))
    shifts = [data.draw(st.integers(-20, 20)) for _ in array.shape]
    expected = np.roll(array, shifts, range(array.ndim)) if shifts else array
    out = np.zeros_like(expected)
    check(library.vme_roll(context.handle, tensor(array), int64s(shifts), tensor(out)))
    assert same(out, expected)
    writable = array.copy()
    check(library.vme_roll(context.handle, tensor(writable), int64s(shifts), tensor(writable)))
    assert same(writable, expected)


class Region(ctypes.Structure):
    _fields_ = [
        ("source", ctypes.c_void_p),
        ("source_offset", ctypes.c_int64),
        ("destination_offset", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int64 * 8),
        ("source_strides", ctypes.c_int64 * 8),
        ("destination_strides", ctypes.c_int64 * 8),
    ]


def raster(context, source, regions, elements):
    buffer = ctypes.c_void_p()
    check(
        library.vme_buffer_new(
            context.handle, ctypes.c_size_t(elements * source.itemsize), ctypes.c_bool(True), ctypes.byref(buffer)
        )
    )
    library.vme_buffer_data.restype = ctypes.c_void_p
    try:
        listed = (Region * max(len(regions), 1))()
        for region, (from_, to, size, from_strides, to_strides) in zip(listed, regions, strict=False):
            region.source, region.source_offset, region.destination_offset, region.rank = (
                source.ctypes.data,
                from_,
                to,
                len(size),
            )
            region.size[: len(size)] = size
            region.source_strides[: len(size)], region.destination_strides[: len(size)] = from_strides, to_strides
        check(library.vme_raster(context.handle, source.itemsize, len(regions), listed, buffer))
        return np.frombuffer(
            ctypes.string_at(library.vme_buffer_data(buffer), elements * source.itemsize), source.dtype
        )
    finally:
        library.vme_buffer_unref(buffer)


def test_regions(backend, context):
    source = values("int32", 600, 1)
    grid = source.reshape(20, 30)
    # the transpose of the left half, and the right half backwards
    got = raster(context, source, [(0, 0, (15, 20), (1, 30), (20, 1)), (599, 300, (20, 15), (-30, -1), (15, 1))], 600)
    assert same(got[:300].reshape(15, 20), np.ascontiguousarray(grid[:, :15].T))
    assert same(got[300:].reshape(20, 15), np.ascontiguousarray(grid[::-1, 30:14:-1]))


@pytest.mark.parametrize(
    "region",
    [
        (0, 0, (11,), (1,), (1,)),
        (0, 5, (10,), (1,), (-1,)),
        (0, 0, (2, 2**62), (0, 0), (0, 4)),
        (0, 0, (-1,), (1,), (1,)),
    ],
)
def test_regions_outside(context, region):
    with pytest.raises(EngineError, match="region 0 does not lie inside its destination of 10 elements"):
        raster(context, np.zeros(20, "int32"), [region], 10)


def test_without_memory():
    context = Context(refuse=0)
    array = np.arange(10.0)
    for call in (
        lambda: concatenate(context, [array[5:], array[:5]], 0, array),
        lambda: check(library.vme_roll(context.handle, tensor(array), int64s([3]), tensor(array))),
        lambda: check(library.vme_pad(context.handle, 1, tensor(array[1:9]), int64s([1]), None, tensor(array))),
    ):
        with pytest.raises(EngineError) as caught:
            call()
        assert caught.value.status is Status.NO_MEMORY
        assert context.charged == 0
        assert array.tolist() == list(range(10))
    context.close()
