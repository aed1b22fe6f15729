"""`vmhost.engine.numpy.fft` against NumPy's: every function, length, axis, norm and precision; plans that are kept; in
a sealed VM."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost
import vmhost.engine.numpy as np
from tests.batches import each
from tests.hosts import bundle

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

NORMS = [None, "backward", "ortho", "forward"]
COMPLEX, REAL = ["fft", "ifft"], ["rfft", "ihfft"]


def numbers(seed, shape, dtype):
    random = numpy.random.default_rng(seed)
    result = random.normal(size=shape)
    return (result + 1j * random.normal(size=shape) if dtype.startswith("complex") else result * 10).astype(dtype)


def same(got, wanted):
    got = numpy.asarray(got)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    single = wanted.dtype in (numpy.float32, numpy.complex64)
    scale = abs(wanted).max(initial=1e-30)
    numpy.testing.assert_allclose(got, wanted, rtol=0, atol=scale * (2e-6 if single else 1e-14))


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    norm=st.sampled_from(NORMS),
    n=st.one_of(st.none(), st.integers(1, 30)),
    name=st.sampled_from(COMPLEX + REAL + ["irfft", "hfft"]),
    dtype=st.sampled_from(["float32", "float64", "int32", "bool", "complex64", "complex128"]),
    data=st.data(),
)
def test_one_axis(shape, seed, norm, n, name, dtype, data):
    if name in REAL and dtype.startswith("complex"):
        dtype = "float64"
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    if name in ("irfft", "hfft") and n is None and shape[axis] == 1:
        n = 2
    a = numbers(seed, shape, dtype)
    same(getattr(np.fft, name)(np.asarray(a), n, axis, norm), getattr(numpy.fft, name)(a, n, axis, norm))


@each(
    "length",
    [1, 2, 3, 4, 5, 7, 11, 13, 16, 49, 53, 64, 97, 120, 127, 211, 1000, 1024, 1009, 2187, 4099, 16384, 20000, 32771],
)
@each("dtype", ["float32", "float64"])
def test_every_kind_of_length(length, dtype):
    a = numbers(length, length, dtype)
    c = numbers(length + 1, length, "complex64" if dtype == "float32" else "complex128")
    same(np.fft.rfft(np.asarray(a)), numpy.fft.rfft(a))
    same(np.fft.fft(np.asarray(c)), numpy.fft.fft(c))
    same(np.fft.ifft(np.asarray(c)), numpy.fft.ifft(c))
    same(np.fft.irfft(np.asarray(c), length), numpy.fft.irfft(c, length))


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(2, 7), min_size=2, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    norm=st.sampled_from(NORMS),
    name=st.sampled_from(["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"]),
    data=st.data(),
)
def test_several_axes(shape, seed, norm, name, data):
    axes = data.draw(st.permutations(range(len(shape))).map(lambda order: tuple(order[:2])))
    s = data.draw(st.one_of(st.none(), st.tuples(st.integers(2, 9), st.integers(2, 9))))
    a = numbers(seed, shape, "float64" if name.startswith("r") else "complex128")
    same(getattr(np.fft, name)(np.asarray(a), s, axes, norm), getattr(numpy.fft, name)(a, s, axes, norm))
    if s is None:
        same(getattr(np.fft, name)(np.asarray(a)), getattr(numpy.fft, name)(a))


def test_where_the_result_goes():
    a = numbers(1, (4, 6), "complex128")
    for axis in (0, 1):
        out = np.empty((4, 6), complex)
        assert np.fft.fft(np.asarray(a), axis=axis, out=out) is out
        same(out, numpy.fft.fft(a, axis=axis))
    inside = np.asarray(a.copy())
    np.fft.fft(inside, out=inside)
    same(inside, numpy.fft.fft(a))
    with pytest.raises(ValueError, match="wrong shape"):
        np.fft.fft(np.asarray(a), out=np.empty((4, 5), complex))


def test_frequencies_and_shifts():
    for n in (1, 2, 5, 8):
        same(np.fft.fftfreq(n, 0.1), numpy.fft.fftfreq(n, 0.1))
        same(np.fft.rfftfreq(n, 0.1), numpy.fft.rfftfreq(n, 0.1))
        same(
            np.fft.fftfreq(n, dtype="float32"), numpy.fft.fftfreq(n).astype("float32")
        )  # the standard's dtype, which NumPy lacks
        same(np.fft.rfftfreq(n, dtype=np.float64), numpy.fft.rfftfreq(n))
        a = numpy.arange(float(n * 3)).reshape(n, 3)
        for axes in (None, 0, (1, 0)):
            same(np.fft.fftshift(np.asarray(a), axes), numpy.fft.fftshift(a, axes))
            same(np.fft.ifftshift(np.asarray(a), axes), numpy.fft.ifftshift(a, axes))


def test_frequencies_are_real():
    for make in (np.fft.fftfreq, np.fft.rfftfreq):
        for dtype in ("int64", "complex64"):
            with pytest.raises(TypeError, match=f"got {dtype}"):
                make(4, dtype=dtype)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m.fft.fft(m.ones(3), 0),
        lambda m: m.fft.fft(m.ones(3), norm="all"),
        lambda m: m.fft.fft(m.ones(3), axis=2),
        lambda m: m.fft.irfft(m.ones(1)),
        lambda m: m.fft.fftn(m.ones((2, 2)), s=(1,), axes=(0, 1)),
        lambda m: m.fft.rfft(m.ones(3, dtype="complex128")),
    ],
)
def test_errors(wrong):
    for module in (np, numpy):
        with pytest.raises((ValueError, TypeError, IndexError)):
            wrong(module)


def test_more_lengths_than_plans_are_kept():
    for length in (*range(1, 80), *range(79, 0, -1)):
        same(np.fft.fft(np.asarray(numpy.ones(length) + 0j)), numpy.fft.fft(numpy.ones(length) + 0j))


def test_in_a_sealed_vm():
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            bundle(
                """
            import vmhost.engine.numpy as np

            def run(a):
                return [np.fft.fft(a), np.fft.rfft2(np.ones((4, 6))),
                        np.fft.irfft(np.fft.rfft(np.arange(100001.0)), 100001)]
        """,
                name="fft",
            )
        )
        a = numbers(2, (3, 50), "complex64")
        transformed, constant, back = task(a)
    same(transformed, numpy.fft.fft(a))
    same(constant, numpy.fft.rfft2(numpy.ones((4, 6))))
    numpy.testing.assert_allclose(numpy.asarray(back), numpy.arange(100001.0), atol=1e-6)
