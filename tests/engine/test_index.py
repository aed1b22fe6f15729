"""gather, scatter and nonzero against NumPy's advanced indexing."""

import ctypes

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import arrays, shapes, stretched, values
from tests.engine.library import DTYPES, Context, EngineError, Status, check, library, tensor, tensors

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def key(indices, first):
    return (slice(None),) * first + tuple(indices)


def gather(context, array, first, indices, out):
    check(library.vme_gather(context.handle, tensor(array), first, len(indices), tensors(indices), tensor(out)))
    return out


def scatter(context, values_, first, indices, target, add=False):
    check(
        library.vme_scatter(
            context.handle, tensor(values_), first, len(indices), tensors(indices), ctypes.c_bool(add), tensor(target)
        )
    )


def nonzero(context, mask):
    count = ctypes.c_int64()
    check(library.vme_nonzero(context.handle, tensor(mask), ctypes.byref(count), None))
    out = [np.zeros(count.value, "int64") for _ in range(mask.ndim)]
    check(library.vme_nonzero(context.handle, tensor(mask), ctypes.byref(count), tensors(out)))
    return out


@st.composite
def places(draw, dtypes):
    """An array, where its indexed dimensions begin, and index tensors for them."""
    array = draw(
        arrays(dtypes, shape=draw(shapes(min_rank=1, max_rank=4, max_size=5).filter(lambda shape: 0 not in shape)))
    )
    first = draw(st.integers(0, array.ndim - 1))
    count = draw(st.integers(1, array.ndim - first))
    shape = draw(shapes(max_rank=3, max_size=4))
    indices = []
    for axis in range(first, first + count):
        kept = tuple(size if draw(st.booleans()) else 1 for size in shape) if indices else shape
        random = np.random.default_rng(draw(st.integers(0, 999)))
        index = random.integers(-array.shape[axis], array.shape[axis], kept)
        indices.append(stretched(index, 1) if draw(st.booleans()) else index)
    return array, first, indices


@RELAXED
@given(data=st.data())
def test_gather(backend, context, data):
    array, first, indices = data.draw(places(DTYPES))
    expected = array[key(indices, first)]
    out = stretched(np.zeros_like(expected), data.draw(st.integers(0, 9)))
    np.testing.assert_array_equal(gather(context, array, first, indices, out), expected)


@RELAXED
@given(data=st.data())
def test_scatter(backend, context, data):
    array, first, indices = data.draw(places(DTYPES))
    shape = array[key(indices, first)].shape
    kept = tuple(size if data.draw(st.booleans()) else 1 for size in shape)
    new = values(array.dtype, int(np.prod(kept)), 3).reshape(kept)
    ours, theirs = array.copy(), array.copy()
    theirs[key(indices, first)] = new
    scatter(context, new, first, indices, ours)
    np.testing.assert_array_equal(ours, theirs)


def test_large(backend, context):
    random = np.random.default_rng(1)
    array = random.random((3000, 40))
    index = random.integers(-3000, 3000, 20_000)
    np.testing.assert_array_equal(gather(context, array, 0, [index], np.zeros((20_000, 40))), array[index])
    np.testing.assert_array_equal(gather(context, array.T, 1, [index], np.zeros((40, 20_000))), array.T[:, index])
    flat = array.ravel()
    index = random.integers(0, flat.size, 200_000)
    np.testing.assert_array_equal(gather(context, flat, 0, [index], np.zeros(200_000)), flat[index])


@pytest.mark.parametrize("index", [5, -6, 2**62, -(2**63)])
def test_out_of_bounds(backend, context, index):
    array = np.zeros((2, 5))
    indices = [np.array([0, index])]
    with pytest.raises(IndexError) as theirs:
        array[:, indices[0]]
    for call in (
        lambda: gather(context, array, 1, indices, np.zeros((2, 2))),
        lambda: scatter(context, np.ones((2, 2)), 1, indices, array),
    ):
        with pytest.raises(EngineError) as caught:
            call()
        assert caught.value.status is Status.BAD_INDEX
        assert str(caught.value) == str(theirs.value)
    assert not array.any()


def test_over_itself(backend, context):
    array = np.arange(10)
    gather(context, array, 0, [array[::-1]], array)
    assert array.tolist() == list(range(9, -1, -1))
    scatter(context, array, 0, [array], array)  # array[v] = v
    assert array.tolist() == list(range(10))


@RELAXED
@given(data=st.data())
def test_nonzero(backend, context, data):
    mask = data.draw(arrays(["bool"], shape=data.draw(shapes(min_rank=1, max_rank=4, max_size=20))))
    for ours, theirs in zip(nonzero(context, mask), np.nonzero(mask), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_sparse_mask(backend, context):
    mask = np.zeros(100_003, bool)
    mask[[0, 7, 8, 50_000, 100_002]] = True
    assert nonzero(context, mask)[0].tolist() == [0, 7, 8, 50_000, 100_002]


def test_without_memory():
    context = Context(refuse=0)
    array, square = np.arange(10.0), np.zeros((3, 3))
    for call in (
        lambda: gather(context, square, 0, [np.arange(3)], np.zeros((3, 3))),
        lambda: scatter(context, np.zeros(3), 0, [np.arange(3)], array),
        lambda: scatter(context, array[:3], 0, [np.arange(3)], array),
    ):
        with pytest.raises(EngineError) as caught:
            call()
        assert caught.value.status is Status.NO_MEMORY
        assert context.charged == 0
    assert array.tolist() == list(range(10))
    context.close()


def test_stop():
    context = Context()
    context.stop()
    for call in (
        lambda: gather(context, np.zeros(10), 0, [np.arange(3)], np.zeros(3)),
        lambda: scatter(context, np.zeros(3), 0, [np.arange(3)], np.zeros(10)),
    ):
        with pytest.raises(EngineError) as caught:
            call()
        assert caught.value.status is Status.STOPPED
    assert context.charged == 0
    context.close()


@each("dtype", DTYPES, ids=str)
def test_single_elements_of_a_vector(backend, context, dtype):
    array, random = values(dtype, 3000, 1), np.random.default_rng(2)
    for source in (array, array[::-2]):
        indices = random.integers(-len(source), len(source), (70, 600))
        np.testing.assert_array_equal(
            gather(context, source, 0, [indices], np.zeros(indices.shape, dtype)), source[indices]
        )
        for bad in (len(source), -len(source) - 1, 2**63 - 1, -(2**63)):
            indices[50, 3] = bad
            with pytest.raises(EngineError, match=f"index {bad} is out of bounds for axis 0 with size {len(source)}"):
                gather(context, source, 0, [indices], np.zeros(indices.shape, dtype))


@each("dtype", DTYPES, ids=str)
def test_single_elements_of_a_matrix(backend, context, dtype):
    array, random = values(dtype, 3000, 1).reshape(60, 50), np.random.default_rng(2)
    for source in (array, array[::-2, 1::3], array.T):
        rows, columns = (random.integers(-size, size, (70, 600)) for size in source.shape)
        target = np.zeros(rows.shape, dtype)
        np.testing.assert_array_equal(gather(context, source, 0, [rows, columns], target), source[rows, columns])
        np.testing.assert_array_equal(
            gather(context, source, 0, [rows, columns[:1]], target), source[rows, columns[:1]]
        )
        for axis, indices in enumerate((rows, columns)):
            size, kept = source.shape[axis], indices[50, 3]
            for bad in (size, -size - 1, 2**63 - 1, -(2**63)):
                indices[50, 3] = bad
                with pytest.raises(EngineError, match=f"index {bad} is out of bounds for axis {axis} with size {size}"):
                    gather(context, source, 0, [rows, columns], target)
            indices[50, 3] = kept
        rows[60, 0], columns[0, 0] = 99, 99  # NumPy tells of the first axis first
        with pytest.raises(EngineError, match="index 99 is out of bounds for axis 0"):
            gather(context, source, 0, [rows, columns], target)


def test_take_into_an_array_writes_nothing_when_an_index_is_wrong(backend):
    import vmhost.engine.numpy as en

    out = en.zeros(600)
    indices = en.arange(600)
    indices[-1] = 600
    with pytest.raises(IndexError):
        en.take(en.arange(1.0, 601.0), indices, out=out)
    assert not out.any()
    indices[-1] = -1
    assert en.take(en.arange(1.0, 601.0), indices, out=out) is out
    assert out[-1] == 600
