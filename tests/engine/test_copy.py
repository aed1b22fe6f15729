"""vme_copy against NumPy's assignment: any strides, broadcasts, overlaps; what it refuses."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import arrays, shapes, stretched
from tests.engine.library import DTYPES, Context, EngineError, Status, check, library, tensor

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def copy(context, source, target):
    check(library.vme_copy(context.handle, tensor(source), tensor(target)))


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@RELAXED
@given(data=st.data())
def test_any_strides(backend, context, data):
    source = data.draw(arrays(DTYPES))
    target = stretched(np.zeros(source.shape, source.dtype), data.draw(st.integers(0, 99)))
    copy(context, source, target)
    assert same(target, source)


@RELAXED
@given(data=st.data())
def test_broadcasts(backend, context, data):
    shape = data.draw(shapes())
    kept = tuple(size if data.draw(st.booleans()) else 1 for size in shape)[data.draw(st.integers(0, len(shape))) :]
    source = data.draw(arrays(DTYPES, shape=kept))
    target = stretched(np.zeros(shape, source.dtype), 1)
    copy(context, source, target)
    assert same(target, np.broadcast_to(source, shape))


@each("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
@each("shape", [(300, 517), (1, 1000), (17, 16), (65, 3), (3, 65), (5, 70, 90)])
def test_transposes(backend, context, dtype, shape):
    source = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)
    for axes in [(0, 1), (1, 0)] if len(shape) == 2 else [(2, 1, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1)]:
        view = source.transpose(axes)
        target = np.zeros(view.shape, dtype)
        copy(context, view, target)
        assert same(target, view)
        copy(context, target, source.transpose(axes))
        assert same(source.transpose(axes), target)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("channels", [2, 3, 4, 5, 8, 17, 32])
@pytest.mark.parametrize("sizes", [(1, 1), (19, 37), (300, 301)])
def test_channels_of_pixels(backend, context, dtype, channels, sizes):
    pixel = channels * np.dtype(dtype).itemsize
    if sizes[0] > 19 and pixel >= 16:
        sizes = (131, max(31, -(-280_000 // (131 * pixel))))  # one image is still divided between threads
    source = (np.arange(2 * np.prod(sizes) * channels) % 251).reshape(2, *sizes, channels).astype(dtype)
    for image in (source, source[0], source[:, :, 1:], source[:, ::2], source[..., ::-1]):
        for view in (np.moveaxis(image, -1, -3), np.moveaxis(np.ascontiguousarray(np.moveaxis(image, -1, -3)), -3, -1)):
            target = np.zeros(view.shape, dtype)
            copy(context, view, target)
            assert same(target, view)


def test_rank_64(backend, context):
    source = np.arange(2**6, dtype="int32").reshape([1, 2] * 6 + [1] * 52)
    target = np.zeros(source.shape, "int32").transpose(range(63, -1, -1)).reshape(source.shape)
    copy(context, source, target)
    assert same(target, source)


@pytest.mark.parametrize(
    ("target", "source"),
    [(np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:]), (np.s_[::-1], np.s_[:]), (np.s_[::2], np.s_[1::2])],
)
def test_overlap(backend, context, target, source):
    array = np.arange(100_000, dtype="int16")
    expected = array.copy()
    expected[target] = expected[source].copy()
    copy(context, array[source], array[target])
    assert same(array, expected)
    square = np.arange(10_000.0).reshape(100, 100)
    expected = square.T.copy()
    copy(context, square.T, square)
    assert same(square, expected)


def test_overlap_without_memory():
    context = Context(refuse=0)
    array = np.arange(10.0)
    with pytest.raises(EngineError) as caught:
        copy(context, array[:-1], array[1:])
    assert caught.value.status is Status.NO_MEMORY
    assert context.charged == 0
    assert same(array, np.arange(10.0))
    context.close()


def test_shapes_that_do_not_fit(context):
    with pytest.raises(EngineError, match=r"could not broadcast input array from shape \(3,\) into shape \(2,2\)"):
        copy(context, np.zeros(3), np.zeros((2, 2)))


def test_stop(backend):
    context = Context()
    context.stop()
    with pytest.raises(EngineError) as caught:
        copy(context, np.zeros((1000, 1000)).T, np.zeros((1000, 1000)))
    assert caught.value.status is Status.STOPPED
    context.stop(False)
    copy(context, np.ones((10, 10)).T, np.zeros((10, 10)))
    context.close()


def test_past_the_caches(backend, context):
    source = np.arange(9 << 20, dtype="uint8").reshape(9, -1)
    target = np.zeros((9, (1 << 20) + 7), "uint8")
    copy(context, source, target[:, 3:-4])
    assert np.array_equal(target[:, 3:-4], source)
    assert not target[:, :3].any() and not target[:, -4:].any()
