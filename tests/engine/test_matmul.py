"""vme_matmul against NumPy's matmul: every dtype, shapes on both sides of every block's edge, any strides, broadcast
batches."""

import mmap
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import stretched
from tests.engine.library import DTYPES, Context, EngineError, Status, check, library, tensor

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def matmul(context, a, b, out=None):
    if out is None:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = np.full((*lead, a.shape[-2], b.shape[-1]), 77).astype(a.dtype)
    check(library.vme_matmul(context.handle, tensor(a), tensor(b), tensor(out)))
    return out


def values(dtype, shape, seed):
    """Small whole numbers where sums are exact in every dtype; NaN and infinities are tested on their own."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)  # wraps
    numbers = random.integers(-3, 4, shape)
    if dtype.kind == "b":
        return random.random(shape) < 0.2
    if dtype.kind == "c":
        return (numbers + 1j * random.integers(-3, 4, shape)).astype(dtype)
    return numbers.astype(dtype)


def same(got, right):
    """A fast check; if it fails, NumPy's slower assert_array_equal reports where the arrays differ."""
    if not np.array_equal(got, right):
        np.testing.assert_array_equal(got, right)


def expected(a, b):
    """Exact; float16 is summed in float32 and rounded once, as NumPy does. NumPy multiplies contiguous copies ten times
    faster than reversed views, and the sums of `values` are the same in any order."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if a.dtype == np.float16:
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    return a @ b


@RELAXED
@given(data=st.data())
def test_any_shapes_and_strides(backend, context, data):
    size = st.one_of(st.integers(0, 40), st.integers(60, 130))
    m, n, k = data.draw(size), data.draw(size), data.draw(size)
    lead = data.draw(st.lists(st.integers(0, 3), max_size=3))
    leads = [
        [1 if data.draw(st.booleans()) else size for size in lead][data.draw(st.integers(0, len(lead))) :] for _ in "ab"
    ]
    dtype, seed = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 999))
    a, b = values(dtype, (*leads[0], m, k), seed), values(dtype, (*leads[1], k, n), seed + 1)
    out = np.zeros((*np.broadcast_shapes(*leads), m, n), dtype)
    if data.draw(st.booleans()):
        a = stretched(a, seed)
    if data.draw(st.booleans()):
        b = stretched(b, seed + 2)
    if data.draw(st.booleans()):
        out = stretched(out, seed + 3)
    same(matmul(context, a, b, out), expected(a, b))


@each("dtype", [str(dtype) for dtype in DTYPES])
@each(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (14, 32, 5),
        (15, 33, 400),
        (29, 65, 769),
        (1, 100, 300),
        (100, 1, 300),
        (3, 70, 500),
        (70, 3, 500),
        (130, 140, 150),
        (6, 16, 1),
        (5, 4, 0),
    ],
)
def test_block_edges(backend, context, dtype, m, n, k):
    a, b = values(dtype, (m, k), 1), values(dtype, (k, n), 2)
    turned = a[::-1, ::-1]
    products = {
        False: expected(a, b),
        True: expected(turned, b),
    }  # NumPy takes long; b turned as well makes these turned, as sums are exact
    for left in (a, np.asfortranarray(a), turned):
        for right in (b, np.asfortranarray(b)):
            same(matmul(context, left, right), products[left is turned])
        same(matmul(context, left, b[::-1, ::-1]), products[left is not turned][::-1, ::-1])


@pytest.mark.parametrize(
    ("dtype", "m"), [("float32", 16), ("float32", 31), ("float64", 2), ("float64", 5), ("float64", 17)]
)
def test_few_rows_of_a_large_matrix(backend, context, dtype, m):
    """The second operand is processed in strips; 1031 and 1030 end in partial ones."""
    a, b = values(dtype, (2, m, 1031), 1), values(dtype, (2, 1031, 1030), 2)
    wanted = a @ b
    same(matmul(context, a, b), wanted)
    turned = np.ascontiguousarray(a.transpose(0, 2, 1)).transpose(0, 2, 1)
    out = np.zeros((2, m, 2000), dtype)[:, :, 5:1035]
    matmul(context, turned, b[:, ::-1][:, ::-1], out)
    same(out, wanted)
    same(matmul(context, a, b[:, ::-1]), expected(a, b[:, ::-1]))
    poor = Context(refuse=0)
    try:
        with pytest.raises(EngineError) as caught:
            matmul(poor, a, b)
        assert caught.value.status is Status.NO_MEMORY
        assert poor.charged == 0
    finally:
        poor.close()


@each("dtype", ["float32", "float64", "float16", "complex64", "int32"])
@each(("m", "n", "k"), [(2030, 40, 390), (40, 2060, 390), (2020, 2050, 4)])
def test_operands_larger_than_what_is_packed_at_once(backend, context, dtype, m, n, k):
    a, b = values(dtype, (m, k), 3), values(dtype, (k, n), 4)
    right = expected(a, b)
    same(matmul(context, a, np.asfortranarray(b)), right)
    out = np.zeros((2 * m, 2 * n), dtype)[::2, ::2]
    same(matmul(context, a, b, out), right)


@each("dtype", ["float32", "float64"])
@each(("m", "k"), [(1, 200_001), (3, 140_000), (4099, 37), (5000, 129), (300, 1000)])
def test_vectors(backend, context, dtype, m, k):
    a, x = values(dtype, (m, k), 5), values(dtype, (k, 1), 6)
    for matrix in (a, np.asfortranarray(a), a[:, ::-1]):
        for vector in (x, np.repeat(x, 3, 1)[:, 1:2], x[::-1]):
            right = expected(matrix, vector)
            same(matmul(context, matrix, vector), right)
            same(matmul(context, vector.T, matrix.T), right.T)
            same(matmul(context, matrix, vector, np.zeros((m, 2), dtype)[:, :1]), right)


@each("dtype", ["float32", "float64", "complex64", "complex128", "float16"])
@each("shape", [(50, 60, 70), (60, 30, 1200), (1, 100, 500), (100, 1, 900)])
def test_rounding(backend, context, dtype, shape):
    random = np.random.default_rng(7)
    m, n, k = shape
    a, b = random.normal(size=(m, k)).astype(dtype), random.normal(size=(k, n)).astype(dtype)
    exact = a.astype("clongdouble") @ b.astype("clongdouble")
    scale = np.abs(a.astype("clongdouble")) @ np.abs(b.astype("clongdouble"))
    step = np.finfo(dtype).eps
    tolerance = step * np.abs(exact) + scale * 2e-3 * step if dtype == "float16" else scale * step * 40
    assert np.all(np.abs(matmul(context, a, b) - exact) <= tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_nan_and_infinity_spread_along_their_rows_and_columns_only(backend, context, dtype, n):
    a, b = np.ones((20, 100), dtype), np.ones((100, n), dtype)
    a[3, 50], a[7, 99], b[0, n // 2] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        same(matmul(context, a, b), expected(a, b))


@pytest.mark.parametrize("dtype", ["float32", "int16", "complex128"])
def test_output_over_an_input(backend, context, dtype):
    a, b = values(dtype, (3, 40, 40), 8), values(dtype, (40, 40), 9)
    right = a @ b
    for out in (a, a[:, ::-1], a.transpose(0, 2, 1)):
        source = a.copy()
        out = source if out is a else source[:, ::-1] if out.strides[2] == a.strides[2] else source.transpose(0, 2, 1)
        same(matmul(context, source, b, out), right)


def test_threads_do_not_change_results(backend, context):
    random = np.random.default_rng(10)
    max_threads = library.vme_threads()
    try:
        for m, n, k in [
            (300, 310, 800),
            (64, 64, 2048),
            (16, 700, 1000),
            (2, 5000, 300),
            (1, 3000, 3000),
            (3000, 1, 3000),
            (1, 1, 1_000_000),
        ]:
            a, b = random.normal(size=(m, k)).astype("float32"), random.normal(size=(k, n)).astype("float32")
            results = []
            for threads in (1, max_threads, max_threads):
                check(library.vme_threads_set(threads))
                results.append(matmul(context, a, b).tobytes())
            assert results[0] == results[1] == results[2]
    finally:
        check(library.vme_threads_set(max_threads))


@each("dtype", ["float32", "float16", "complex64", "int8"])
@each("shape", [(70, 80, 90), (1, 1, 300_000), (1, 80, 90)])
def test_every_refused_request(dtype, shape):
    m, n, k = shape
    a, b = values(dtype, (m, k), 11), np.asfortranarray(values(dtype, (k, n), 12))
    out = np.zeros((m, n), dtype)
    for refuse in range(10):
        context = Context(refuse=refuse)
        try:
            matmul(context, a[:, ::-1], b[::-1], out)
        except EngineError as error:
            assert error.status is Status.NO_MEMORY
        else:
            same(out, expected(a[:, ::-1], b[::-1]))
            break
        finally:
            assert context.charged == 0
            context.close()
    else:
        raise AssertionError("ten requests, and still more")


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_huge_strides(backend, context, dtype):
    """Elements a mebibyte apart along either dimension, and matrices that are one element or one row again and
    again."""
    step = 1 << 20
    with mmap.mmap(-1, 72 * step) as memory:  # nearly all of it is never touched
        spread = np.ndarray((70,), dtype, memory, strides=(step,))
        spread[...] = values(dtype, (70,), 13)
        for shape, strides in [
            ((1, 70), (0, step)),
            ((70, 1), (step, 0)),
            ((3, 70), (0, step)),
            ((70, 80), (step, 0)),
            ((70, 80), (-step, 0)),
        ]:
            first = 69 * step if strides[0] < 0 else 0
            a = np.ndarray(shape, dtype, memory, offset=first, strides=strides)
            for left, right in [
                (a, values(dtype, (shape[1], 90), 14)),
                (values(dtype, (50, shape[0]), 15), a),
                (a, a.T),
                (a.T, a),
            ]:
                same(matmul(context, left, right), expected(left.copy(), right.copy()))
            del a, left, right
        out = np.ndarray((70, 1), dtype, memory, offset=64, strides=(step, 0))
        b = values(dtype, (70, 70), 16)
        same(matmul(context, b, spread[:, None], out), expected(b, spread[:, None].copy()))
        del spread, out


@pytest.mark.parametrize(
    ("dtype", "shapes"),
    [
        ("float32", ((700, 1300), (1300, 700))),
        ("float16", ((300, 800), (800, 300))),
        ("float64", ((6, 90, 900), (900, 90))),
        ("float32", ((1, 3000), (3000, 2000))),
    ],
)
def test_a_stop_in_the_middle(dtype, shapes):
    context = Context()
    a, b = (np.ones(shape, dtype) for shape in shapes)
    working, caught = threading.Event(), []

    def work():
        try:
            while True:
                matmul(context, a, b)
                working.set()
        except EngineError as error:
            caught.append(error.status)

    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        working.wait()
        context.stop()
        thread.join()
        context.stop(False)
        working.clear()
        assert matmul(context, a, b).flat[0] == a.shape[-1]
    assert caught == [Status.STOPPED] * 5
    assert context.charged == 0
    context.close()


def test_a_stopped_context(backend):
    context = Context()
    context.stop()
    for a, b in [(np.ones((500, 500)), np.ones((500, 500))), (np.ones((2, 2)), np.ones((2, 1)))]:
        with pytest.raises(EngineError) as caught:
            matmul(context, a, b)
        assert caught.value.status is Status.STOPPED
    context.stop(False)
    assert matmul(context, np.ones((2, 2)), np.ones((2, 1))).tolist() == [[2], [2]]
    context.close()


@pytest.mark.parametrize(
    ("a", "b", "out", "status", "sentence"),
    [
        (
            (2, 3),
            (4, 2),
            (2, 2),
            "BAD_SHAPE",
            r"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            r"\(n\?,k\),\(k,m\?\)->\(n\?,m\?\) \(size 4 is different from 3\)",
        ),
        ((2, 3), (3, 2), (2, 3), "BAD_SHAPE", "expected an output of 2 x 2 matrices, got 2 x 3"),
        ((2, 2, 3), (3, 3, 2), (2, 2, 2), "BAD_SHAPE", "could not broadcast"),
        ((3,), (3, 2), (1, 2), "BAD_SHAPE", "two dimensions or more, got 1, 2 and 2"),
    ],
)
def test_shapes_that_do_not_fit(context, a, b, out, status, sentence):
    with pytest.raises(EngineError, match=sentence) as caught:
        matmul(context, np.ones(a), np.ones(b), np.ones(out))
    assert caught.value.status is Status[status]


def test_dtypes_that_differ(context):
    with pytest.raises(EngineError, match="matmul: expected one dtype, got float32, float64 and float32") as caught:
        matmul(context, np.ones((2, 2), "float32"), np.ones((2, 2)))
    assert caught.value.status is Status.BAD_DTYPE
