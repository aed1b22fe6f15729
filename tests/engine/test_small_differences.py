"""Answers where a near miss is easy: equal bins, integers beyond 2**53, casts that are checked, axes out of bounds, and
dtypes that follow from all operands. Compared with NumPy, in the host and again in a sealed VM: see cases.py."""

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.cases import again_in_a_vm, check, host_of_cases, outcomes  # noqa: F401 - two are fixtures

pytestmark = [
    pytest.mark.usefixtures("again_in_a_vm"),
    pytest.mark.filterwarnings("ignore"),  # NumPy's; the engine gives none
]

BIG = 2**53


# ---- bins


@each("bins", [[3, 2, 1], [3, 2, 2, 1], [3, 3, 1, 1], [2, 2], [2], [], [1, 2, 3], [1, 1, 2]])
@each("right", [False, True])
def test_values_equal_to_bins_that_increase_or_decrease(bins, right):
    check("np.digitize([0, 1, 2, 3, 4], bins, right=right)", bins=bins, right=right)
    check("np.digitize([0.5, 1, 2, np.nan], np.array(bins, float), right=right)", bins=bins, right=right)


@each(
    "expression",
    [
        "np.digitize([0, 1, 2, 3], [1, 2, np.nan])",
        "np.digitize([0, 1, 2, 3], [np.nan, 2, 1])",
        "np.digitize([0, 1], [3, 1, 2])",
        "np.digitize([0, 1], [[1, 2], [3, 4]])",
        "np.digitize([0, 1], 5)",
        "np.digitize([0, 1j], [1, 2])",
        "np.digitize([0, 1], [1, 2j])",
    ],
)
def test_bins_that_are_no_order(expression):
    check(expression)


# ---- sets


@each(
    "expression",
    [
        "np.isin([2**53], np.array([2**53 + 1], 'u8'))",
        "np.isin(np.array([2**53 + 1], 'u8'), [2**53])",
        "np.isin([2**53 + 1], np.array([2**53 + 1], 'u8'))",
        "np.isin([-1, 0, 5], np.array([2**64 - 1, 5], 'u8'), invert=True)",
        "np.isin([300, 1], np.array([44], 'i1'))",
        "np.isin(np.array([44], 'i1'), [300])",
        "np.isin(np.array([255, 5], 'u1'), np.array([-1, 5], 'i1'))",
        "np.isin(np.array([255, 5], 'u8'), np.array([-1], 'i1'), invert=True)",
        "np.isin([1, 2, 0], [True])",
        "np.setdiff1d([2**53], np.array([2**53 + 1], 'u8'))",
        "np.setdiff1d(np.array([2**53 + 1], 'u8'), [2**53])",
        "np.isin([1.0, 2.0], [1.0], kind='table')",
        "np.isin([1, 2], [], kind='table')",
        "np.isin([1, 2], [-(2**62), 2**62], kind='table')",
        "np.isin(np.array([127, -128], 'i1'), np.array([127, -128], 'i1'), kind='table')",
        "np.isin([0, 2**63 - 1], [2**63 - 1, 2**63 - 3], kind='table')",
        "np.unique([np.nan, 1, np.nan], axis=0)",
        "np.unique([np.nan, 1, np.nan, 1], True, True, True, axis=0)",
        "np.unique([np.nan, 1, np.nan], axis=0, equal_nan=False)",
        "np.unique([3, 1], axis=1)",
    ],
)
def test_members_of_sets(expression):
    check(expression)


def test_integers_are_compared_exactly_where_numpy_rounds_them():
    spread = np.array([BIG, -(2**62), 2**62])  # too far apart for a table
    for kind in (None, "sort"):
        assert not np.isin(spread, np.array([BIG + 1], "u8"), kind=kind).any()
        assert np.isin(spread, np.array([BIG, 2**63], "u8"), kind=kind).tolist() == [True, False, False]
    assert np.setdiff1d(spread, np.array([BIG + 1], "u8")).tolist() == sorted(spread.tolist())


@each(
    "expression",
    [
        "np.ediff1d(np.array([1, 2, 3], 'i1'), to_end=np.array([1], 'i8'))",
        "np.ediff1d(np.array([1, 2, 3], 'i1'), to_end=[300], to_begin=5)",
        "np.ediff1d([1, 2, 3], to_begin=np.nan)",
        "np.ediff1d([1, 2, 3], to_end=np.nan)",
        "np.ediff1d(np.array([1, 2, 3], 'f4'), to_end=np.nan)",
        "np.ediff1d(np.array([[1, 2], [4, 8]], 'u1'), to_end=[[1], [2]])",
        "np.ediff1d(np.array([[1, 2], [4, 8]]), to_end=[[1], [2]])",
        "np.ediff1d([True, False])",
        "np.ediff1d(3, to_end=1, to_begin=2.0)",
        "np.ediff1d([], to_end=1, to_begin=2)",
    ],
)
def test_differences_keep_the_dtype(expression):
    check(expression)


# ---- casts that are checked


@each(
    "statement",
    [
        "a.__setitem__(0, np.float64(np.nan))",
        "a.__setitem__(0, np.float64(300))",
        "a.__setitem__(0, np.int64(300))",
        "a.__setitem__(..., np.int64(-129))",
        "a.__setitem__(slice(None), np.float32(np.inf))",
        "a.__setitem__(0, np.float64(2.75))",
        "a.__setitem__(0, np.array(300))",
        "a.__setitem__([0, 1], np.int64(300))",
        "a.fill(np.int64(300))",
        "np.copyto(a, 1.5)",
        "np.copyto(a, 1j)",
        "np.copyto(a, 300)",
        "np.copyto(a, 3, casting='no')",
        "np.copyto(a, 300.0, casting='unsafe')",
        "np.copyto(a, True)",
        "a.flat.__setitem__(0, 300)",
        "a.flat.__setitem__(slice(None), 300)",
        "a.flat.__setitem__([0, 1], [300, 1])",
        "a.flat.__setitem__([0, 1], [3.5, 1])",
        "np.fill_diagonal(a.reshape(2, 2), 300)",
        "np.fill_diagonal(a.reshape(2, 2), [300, 1])",
        "np.fill_diagonal(a.reshape(2, 2), 3.5)",
    ],
)
@each("dtype", ["i1", "u1", "f4"])
def test_one_element_is_stored_as_numpy_stores_it(statement, dtype):
    check(f"[a := np.zeros(4, dtype), {statement}, a][-1]", dtype=dtype)


@each(
    "expression",
    [
        "np.array([np.float64(300)], 'i1')",
        "np.array([[np.int64(300)], [1]], 'i1')",
        "np.array([np.float64(np.nan)], 'i8')",
        "np.array([np.float64(300)], 'u1')",
        "np.array([np.complex64(3 + 1j)], 'f4')",
        "np.int8(np.int64(300))",
        "np.r_[np.array([1], 'i1'), 255]",
        "np.r_[np.array([1], 'i1'), 5]",
        "np.r_[np.array([1], 'f4'), 5.5]",
        "np.c_[np.array([1], 'i1'), 5]",
        "np.full(3, 300.0, 'i1')",
        "np.full(3, 300, 'i1')",
        "np.full(3, [300, 1, 1], 'i1')",
        "np.full(3, 1j, 'f4')",
        "np.full_like(np.zeros(2, 'i1'), [300])",
        "np.select([[True, False]], [np.array([1, 1], 'i1')], 300)",
        "np.choose([0, 1], [np.ones(2, 'i1'), 300])",
        "np.array([1, 2, 3]).sum(out=np.zeros((), 'i1'))",
        "np.array([100, 200]).max(out=np.zeros((), 'i1'))",
        "np.subtract.reduce([300, 1], out=np.zeros((), 'i1'))",
    ],
)
def test_values_are_checked_or_cast_as_numpy_does(expression):
    check(expression)


@each(
    "expression",
    [
        "np.mean([1, 2, 4], out=np.zeros((), int))",
        "np.mean([[1.5, 2], [2, 3]], axis=0, out=np.zeros(2, 'i1'))",
        "np.mean([[100, 100]], axis=1, out=np.zeros(1, 'i1'))",
        "np.mean([1.5, 2], out=np.zeros((), 'f4'))",
        "np.var([[1, 5], [4, 4]], axis=1, out=np.zeros(2, int))",
        "np.nanmean([[1, 2], [2, 3]], axis=0, out=np.zeros(2, int))",
        "np.nanmean([1.5, np.nan], out=np.zeros((), int))",
        "np.nanvar([1.5, np.nan], dtype=int)",
    ],
)
def test_means_into_integers(expression):
    check(expression)


# ---- bounds and ranges


@each("low", [None, 0, -5, -129, 128, 5, -(2**70)])
@each("high", [None, 300, 127, 255, -1, 2**70])
def test_bounds_beyond_the_dtype(low, high):
    for dtype in ("i1", "u1", "i8", "u8", "f4"):
        check("np.clip(np.array([1, 2, 100], dtype), low, high)", dtype=dtype, low=low, high=high)
    check("np.array([1, 2], 'u1').clip(low, high)", low=low, high=high)


def test_a_clipped_array_has_the_dtype_that_is_asked_for():
    check("np.clip(np.array([1, 2], 'u1'), -5, None, dtype='i2')")
    check("np.clip(np.array([1, 2], 'u1'), 0, 1, dtype='i2')")


@each(
    "expression",
    [
        "np.arange(2**63 - 2, 2**63, dtype='u8')",
        "np.arange(2**63, 2**63 + 3, dtype='u8')",
        "np.arange(2**63 + 3, 2**63, -1, dtype='u8')",
        "np.arange(2**64 - 3, 2**64 - 1, dtype='u8')",
        "np.arange(2**63 - 2, 2**63)",
        "np.arange(2**63 - 2, 2**63 + 5, 2)",
        "np.arange(np.uint64(2), np.uint64(5))",
        "np.arange(-3, 3, dtype='u1')",
        "np.arange(-3, -3, dtype='u1')",
        "np.arange(255, 256, dtype='u1')",
        "np.arange(256, 257, dtype='u1')",
        "np.arange(2, -1, -1, dtype='u8')",
        "np.arange(300, dtype='u1')",
    ],
)
def test_ranges_of_unsigned_integers(expression):
    check(expression)


@each(
    "method", ["linear", "lower", "midpoint", "hazen", "weibull", "averaged_inverted_cdf", "interpolated_inverted_cdf"]
)
@each("q", [0, 1, [0, 1], True, 0.5, [0.5]])
def test_quantiles_at_the_ends(method, q):
    check("np.quantile([1, 2, 3], q, method=method)", q=q, method=method)
    check("np.quantile(np.array([1, 2, 3], 'f4'), q, method=method)", q=q, method=method)
    check("np.nanquantile(np.array([1, np.nan, 3], 'f4'), np.float32(0.5), method=method)", method=method)


@each(
    "expression",
    [
        "np.histogram([2**62, 2**62 + 5])",
        "np.histogram([2**62], bins=3)",
        "np.histogram([2**53 + 1, 2**53 + 2, 2**53 + 3], bins=4)",
        "np.histogram_bin_edges(np.array([2**63], 'u8'))",
        "np.histogram([2**62] * 3, bins=[2**62, 2**62 + 1])",
        "np.einsum('...i->', np.ones((2, 3)))",
        "np.einsum('...i->i', np.ones((2, 3)))",
        "np.einsum('...i->', np.ones(3))",
        "np.tensordot(3, 4)",
        "np.tensordot(3, 4, axes=1)",
        "np.tensordot(3, 4, 0)",
        "np.tensordot(np.ones((2, 3)), np.ones((2, 3)), axes=([3], [0]))",
        "np.tensordot(np.ones((2, 3)), np.ones((2, 3)), axes=([-3], [0]))",
        "np.tensordot(np.ones((2, 2)), np.ones((2, 2)), axes=([0, 0], [0, 1]))",
        "np.diff(np.ones((2, 3)), axis=3)",
        "np.diff(np.ones((2, 3)), axis=-3)",
        "np.diff(np.ones((2, 3)), axis=-2)",
    ],
)
def test_what_does_not_fit(expression):
    check(expression)


# ---- results


@each("axis", [0, 1, -1])
def test_geometric_sequences_along_an_axis(axis):
    for ends in (([1.0, 2, 3], [10.0, 20, 30]), ([1, -2], [16, -32]), ([1, 1j], [16, 16j])):
        wanted, got = outcomes("np.geomspace(a, b, 3, axis=axis)", a=ends[0], b=ends[1], axis=axis)
        numpy.testing.assert_allclose(numpy.asarray(got), wanted, rtol=1e-14)


def test_a_geometric_sequence_that_must_be_complex():
    for expression in (
        "np.geomspace(-1, 1, 3, dtype=complex)",
        "np.geomspace(1j, 16j, 4)",
        "np.geomspace(1, 8, 4, dtype=int)",
    ):
        wanted, got = outcomes(expression)
        assert got.dtype.name == wanted.dtype.name
        numpy.testing.assert_allclose(numpy.asarray(got), wanted, rtol=1e-14, atol=1e-15)


@each("number", ["np.int64(3)", "np.int8(2)", "np.int64(-1)", "np.array([1, 2]).sum()", "np.float64(3)", "np.True_"])
@each("sequence", ["[0, 1]", "(0, 1)", "[]", "[[1, 2], [3, 4]]"])
def test_a_sequence_times_a_scalar(number, sequence):
    for expression in (f"{number} * {sequence}", f"{sequence} * {number}"):
        wanted, got = outcomes(expression)
        if isinstance(wanted, Exception):
            assert type(got) is type(wanted)
        else:
            assert got == wanted and type(got) is type(wanted)
    check(f"np.multiply({number}, {sequence})")
    check(f"np.array(3) * {sequence}")


@each(
    "expression",
    [
        "np.result_type('u2', 'i2', 'f2')",
        "np.result_type('f2', 'u2', 'i2')",
        "np.result_type('?', 'u1', 'i1', 'f2')",
        "np.result_type('u2', 'i2', 'f2', 'c8')",
        "np.result_type('u4', 'i4', 'f4')",
        "np.result_type('u8', 'i8', 'f2')",
        "np.result_type(3, 'u2', 'i2', 'f2')",
        "np.result_type('u1', 'i1')",
    ],
)
def test_dtypes_promote_in_any_order(expression):
    wanted, got = outcomes(expression)
    assert got.name == wanted.name


@each(
    "expression",
    [
        "np.concatenate((np.ones(2, 'u2'), np.ones(2, 'i2'), np.ones(2, 'f2')))",
        "np.concatenate((np.float32(1), 1.0), axis=None)",
        "np.concatenate((np.ones(2, 'i1'), 300), axis=None)",
        "np.concatenate((np.ones(1, 'f4'), 1j), axis=None)",
        "np.concatenate((np.ones(1, '?'), 1), axis=None)",
        "np.concatenate((np.ones(2, 'f4'), [1.0]), axis=None)",
        "np.concatenate((1, 2.5), axis=None)",
        "np.choose([0, 1], [np.ones(2, 'f4'), 1.0])",
        "np.choose(0, [np.float32(2), 1.0])",
        "np.nanvar(np.array([1, np.nan, 3], 'c8'))",
        "np.nanstd(np.array([[1, np.nan, 3]], 'c8'), axis=0)",
        "np.percentile(np.ones(3, 'f4'), np.float32(50), method='midpoint')",
        "np.nanpercentile(np.array([1, np.nan, 3], 'f4'), np.float32(50), method='midpoint')",
        "np.isclose(np.array([0.1], 'f4'), 0.1, rtol=0, atol=0)",
        "np.isclose(np.array([0.1], 'f4'), np.float64(0.1), rtol=0, atol=0)",
        "np.isclose(np.array([16777216], 'f4'), np.array([16777217], 'f8'), rtol=0, atol=0)",
        "np.isclose(np.array([3e38], 'f4'), np.array([-3e38], 'f4'), rtol=2)",
        "np.isclose([127], np.array([-128], 'i1'), rtol=0, atol=2)",
        "np.isclose(1, 1.0000001)",
        "np.isclose(1, [1.1, 1], rtol=[1, 0])",
    ],
)
def test_dtypes_of_several_operands(expression):
    check(expression)


@each(
    "expression",
    [
        "np.array(x, copy=False, order='F')",
        "np.asarray(x, copy=False, order='F')",
        "np.array(x.T, copy=False, order='F').flags.f_contiguous",
        "np.array(x.T, copy=False, order='C')",
        "np.array(x, copy=None, order='F')",
        "np.array(x, copy=False)",
        "x.flat[True]",
        "x.flat[False]",
        "x.flat[np.array(True)]",
        "x.flat[None]",
        "x.flat[(1,)]",
        "x.flat[[1, 2]]",
        "x.flat[np.array([True, False, True, False, True, False])]",
    ],
)
def test_orders_and_flat_indices(expression):
    check(expression, x=numpy.arange(6.0).reshape(2, 3))


def test_a_running_sum_into_elements_that_share_memory():
    for shape, strides in (((2, 3), (0, 0)), ((2, 3), (0, 8)), ((6,), (0,))):
        check(
            "[z := np.zeros(6), v := np.lib.stride_tricks.as_strided(z, shape, strides),"
            " np.add.accumulate(np.arange(6.0).reshape(shape), axis=-1, out=v), z][-1]",
            shape=shape,
            strides=strides,
        )


@each(
    "expression",
    [
        "np.genfromtxt(['1 2', '3 4 5', '5 6', '7 8 9', '9 10'], skip_footer=1)",
        "np.genfromtxt(['1 2', '3 4', '5 6', '7 8 9'], skip_footer=1)",
        "np.genfromtxt(['1 2', '3 4', '5 6', '7 8 9'], skip_footer=2)",
        "np.genfromtxt(['1 2', '3 4 5', '5 6 7', '7 8 9', '9 10'], skip_footer=1)",
    ],
)
def test_bad_lines_above_a_footer(expression):
    check(expression)


def test_shares_of_no_weight():
    check("np.random.Generator(np.random.Philox(3)).dirichlet([])")
    check("np.random.Generator(np.random.Philox(3)).dirichlet([0, 0], 2)")
    wanted, got = outcomes("np.random.RandomState(1).choice(3, -1, replace=False)")
    assert type(got) is type(wanted) is ValueError
    wanted, got = outcomes("np.random.Generator(np.random.Philox(3)).dirichlet([0, 2, 3.0], 2)")
    numpy.testing.assert_allclose(numpy.asarray(got), wanted, rtol=1e-14)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".txt"])
def test_compressed_text(tmp_path, ending):
    ours, theirs = str(tmp_path / f"ours{ending}"), str(tmp_path / f"theirs{ending}")
    rows = [[1.0, 2.5], [3.0, -4.0]]
    np.savetxt(ours, rows)
    numpy.savetxt(theirs, rows)
    assert numpy.loadtxt(ours).tolist() == np.loadtxt(theirs).tolist() == rows
    assert np.genfromtxt(theirs).tolist() == rows
