"""Counting, interpolation, windows, parts of reductions, parts of floats and extremes of known numbers: values, special
values and errors as NumPy's."""

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from vmhost.engine import _array

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

LENGTHS = [0, 1, 2, 7, 8, 33, 64, 257, 1003]


def both(function, *arrays):
    """The results of the function for our module and NumPy's with arrays of each, or the exceptions."""

    def outcome(module):
        with numpy.errstate(all="ignore"):
            try:
                return function(module, *(module.asarray(array) for array in arrays))
            except (TypeError, ValueError, IndexError) as error:
                return type(error), str(error)

    return outcome(np), outcome(numpy)


def agree(function, *arrays):
    ours, wanted = both(function, *arrays)
    if isinstance(wanted, tuple) and isinstance(wanted[0], type):
        assert ours == wanted
        return
    for one, other in zip(
        ours if isinstance(ours, tuple) else (ours,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        one = numpy.asarray(one)
        assert one.dtype == other.dtype and one.shape == other.shape
        numpy.testing.assert_array_equal(one, other)


def odd_floats(n, dtype="float64"):
    """Numbers among NaNs, infinities, zeros of both signs and subnormals."""
    random = numpy.random.default_rng(n)
    info = numpy.finfo(dtype)
    odd = numpy.array(
        [numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0, info.smallest_subnormal, -info.tiny / 3, info.max, info.tiny],
        dtype,
    )
    return numpy.where(
        random.random(n) < 0.4, odd[random.integers(0, len(odd), n)], random.normal(size=n).astype(dtype)
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_counts(n):
    random = numpy.random.default_rng(n)
    indices, weights = random.integers(0, 2 * n + 1, n), random.normal(size=n)
    agree(lambda module, x: module.bincount(x), indices)
    agree(lambda module, x: module.bincount(x[::-2], None, 5), indices)
    agree(lambda module, x, w: module.bincount(x, w), indices.astype("uint8"), weights)
    agree(lambda module, x: module.bincount(x - 1), indices)


def test_counts_refuse_places_outside_of_the_table():
    with pytest.raises(ValueError, match="expected bins as a vector of int64"):
        _array._bincount(np.ones(3), None, 0)
    with pytest.raises(ValueError, match="vectors of int64"):
        _array._bincount(np.arange(3), np.ones(2), 0)


@each("points", [1, 2, 5, 16, 17, 200])
@each("n", LENGTHS)
def test_interpolates(n, points):
    random = numpy.random.default_rng(n + points)
    xp, fp, x = numpy.sort(random.integers(-9, 9, points) / 2.0), odd_floats(points), odd_floats(n)
    x[::3] = random.choice(xp, len(x[::3]))
    agree(lambda module, *arrays: module.interp(*arrays), x, xp, fp)
    agree(lambda module, *arrays: module.interp(*arrays, left=7, right=numpy.nan), x[::-2], xp, fp)


def test_interpolates_numbers_and_grids():
    agree(lambda module, xp, fp: module.interp(0.3, xp, fp), numpy.arange(3.0), numpy.arange(3) * 2)
    agree(
        lambda module, x, xp, fp: module.interp(x, xp, fp),
        numpy.linspace(-1, 4, 12).reshape(3, 4),
        numpy.arange(3),
        numpy.array([1.0, 5, 2]),
    )


@each("mode", ["full", "same", "valid", "none"])
@each("dtypes", ["dd", "lf", "FD", "bB"])
def test_windows(dtypes, mode):
    random = numpy.random.default_rng(3)
    for n, m in ((1, 1), (7, 3), (3, 7), (40, 40), (50, 13)):
        a, v = (random.integers(0, 5, size).astype(dtype) for size, dtype in zip((n, m), dtypes))
        agree(lambda module, a, v: module.convolve(a, v, mode), a, v)
        agree(lambda module, a, v: module.correlate(a, v, mode), a, v)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "logical_or", "fmin", "subtract"])
def test_reduces_parts(name):
    values = numpy.random.default_rng(4).integers(-3, 4, (20, 6)).astype("float32")
    for axis in (0, 1, -1):
        for starts in ([0, 3, 3, 5, 1], [2], [], [0, 20], [-1]):
            starts = numpy.array(starts, int)
            agree(lambda module, values, starts: getattr(module, name).reduceat(values, starts, axis), values, starts)
    agree(
        lambda module, values: getattr(module, name).reduceat(
            values, numpy.array([0.5]) if module is numpy else np.asarray([0.5])
        ),
        values,
    )


def test_equal_in_blocks():
    large = numpy.arange(40_000.0)
    for position in (0, 16_383, 16_384, 39_999):
        other = large.copy()
        other[position] = numpy.nan
        for a, b in ((large, other), (large, large.copy()), (other, other), (large[::2], other[::2])):
            assert np.array_equal(np.asarray(a), np.asarray(b)) is numpy.array_equal(a, b)
            assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) is numpy.array_equal(
                a, b, equal_nan=True
            )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_takes_floats_apart(backend, dtype):
    for n in LENGTHS:
        agree(lambda module, x: module.frexp(x), odd_floats(n, dtype))
        agree(lambda module, x: module.modf(x), odd_floats(n, dtype))
        agree(lambda module, x: module.modf(x), numpy.linspace(-40, 40, n).astype(dtype))
    agree(lambda module, x: module.frexp(x[:, ::2]), odd_floats(60, dtype).reshape(6, 10))
    agree(lambda module, x: module.modf(x[:, ::2]), odd_floats(60, dtype).reshape(6, 10))


@each("dtype", ["float16", "float32", "float64", "complex64", "int16", "bool", "uint64"])
@each("name", ["fmax", "fmin"])
def test_extremes_pass_nans_over(backend, name, dtype):
    random = numpy.random.default_rng(6)
    for n in LENGTHS[1:]:
        values = random.integers(-50, 50, (3, n)).astype(dtype)
        if numpy.dtype(dtype).kind in "fc":
            values[0] = values[1, : n // 2] = numpy.nan
            values[2, ::3] = -numpy.inf
        for axis in (0, 1, None):
            agree(lambda module, values: getattr(module, name).reduce(values, axis), values)
        agree(lambda module, values: getattr(module, name).reduce(values[:, ::-2], 1), values)
    agree(lambda module, values: getattr(module, name).reduce(values[:0], 0), values)


@each("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@each("name", ["gcd", "lcm"])
def test_divisors(backend, name, dtype):
    """Numbers of one size together, around each size from which on they are taken in another way; with zeros, of both
    signs."""
    limits, random = numpy.iinfo(dtype), numpy.random.default_rng(8)
    for maximum in (10, 1000, 2**22, 2**31, 2**33, 2**63):
        high = min(maximum, limits.max)
        for n in (1, 31, 32, 100):
            x, y = (random.integers(max(-high, limits.min), high, n, dtype, endpoint=True) for _ in range(2))
            x[::5], y[::7] = 0, random.choice(x)
            agree(lambda module, x, y, name=name: getattr(module, name)(x, y), x, y)
            agree(lambda module, x, y, name=name: getattr(module, name)(x[::-2], y[::2]), x, y)
            agree(lambda module, x, name=name: getattr(module, name)(x, 36), x)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rounds_down_by_one_divisor(backend, dtype):
    """Multiples of the divisor and their neighbours, of every size; the extremes; every layout."""
    limits = numpy.iinfo(dtype)
    sizes = numpy.array(
        [0, 1, 2, 1000, 2**30, 2**31 - 1, 2**49, 2**50 - 1, 2**50, 2**50 + 1, 2**53, 2**62][
            : 12 if dtype == "int64" else 6
        ]
    )
    divisors = [1, -1, 2, 3, -3, 7, -10, 641, 2**16, 2**31 - 1, -(2**31), limits.max, limits.min]
    if dtype == "int64":
        divisors += [2**49 + 1, 2**50, -(2**50) + 1]
    for divisor in divisors:
        near = [int(size) // divisor * divisor + step for size in (*sizes, *-sizes) for step in (-1, 0, 1)]
        values = numpy.array(
            [value for value in near if limits.min <= value <= limits.max] + [limits.min, limits.max], dtype
        )
        values = numpy.concatenate([values, values[: 3 * len(sizes)], numpy.arange(-70, 71, dtype=dtype)])
        agree(lambda module, x, divisor=divisor: x // divisor, values)
        agree(lambda module, x, divisor=divisor: x[::2] // divisor, values)


def test_blocks_of_rows_and_clips_in_place():
    m = numpy.arange(6.0).reshape(2, 3)
    for rows in (
        [[m, m], [m, m]],
        [[m, m[:, :1]], [m[:1, :1], m[:1]]],
        [[1, 2], [3, m[:1, :1]]],
        [[m, m.astype("float32")], [m.astype("int8"), m > 2]],
        [[m], [m[:, :2]]],
        [[m, m[:1]], [m, m]],
        [[m[:0], m[:0]], [m, m]],
    ):
        assert_same_blocks(rows)
    for low, high in ((-1, 1), (1, 3.5), (0.5, 2), (None, 2), (3, 1)):
        for dtype in ("float32", "int16", "bool"):
            agree(lambda module, a, low=low, high=high: module.clip(a, low, high), m.astype(dtype))
    for dtype in ("float16", "float64", "complex64", "int16", "uint64"):  # more than a block
        large = numpy.arange(20_000).astype(dtype)
        for low, high in ((5, 9000), (9000, 5), (0.5, 9000), (7, numpy.nan), (numpy.float32(3), 60), (None, 60)):
            agree(lambda module, a, low=low, high=high: module.clip(a, low, high), large)
    untouched = np.asarray(m)
    np.clip(untouched, 1, 2)
    numpy.testing.assert_array_equal(untouched, m)


def assert_same_blocks(rows):
    def outcome(module):
        try:
            return numpy.asarray(module.block([[module.asarray(one) for one in row] for row in rows]))
        except ValueError as error:
            return str(error)

    ours, wanted = outcome(np), outcome(numpy)
    if isinstance(wanted, str):
        assert isinstance(ours, str)
    else:
        assert ours.dtype == wanted.dtype
        numpy.testing.assert_array_equal(ours, wanted)


def test_diagonals_are_read_only_views():
    for offset in (-9, -2, 0, 1, 9):
        agree(
            lambda module, a: (module.diagonal(a, offset), module.trace(a, offset, 2, 0)),
            numpy.arange(24.0).reshape(2, 3, 4),
        )
    view = np.diagonal(np.ones((3, 3)))
    with pytest.raises(ValueError):
        view[0] = 2
