"""Answers where a near miss is easy: equal bins, integers beyond 2**53, casts that are checked, axes out of bounds, and
dtypes that follow from all operands. Compared with NumPy, in the host and again in a sealed VM: see cases.py."""

import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.cases import again_in_a_vm, check, host_of_cases, outcomes  # noqa: F401 - two are fixtures

pytestmark = pytest.mark.usefixtures("again_in_a_vm")

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
