"""`vmhost.engine.numpy.testing` fails where numpy.testing fails, and passes where it passes."""

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.batches import each

NAN, INF = float("nan"), float("inf")
PAIRS = [
    ([1.0, 2.0], [1.0, 2.0]),
    ([1.0, 2.0], [1.0, 2.1]),
    ([1.0, NAN], [1.0, NAN]),
    ([1.0, NAN], [NAN, 1.0]),
    ([INF, -INF], [INF, -INF]),
    ([INF], [-INF]),
    ([1.0], [1.0 + 1e-9]),
    ([1, 2, 3], [1, 2]),
    ([1, 2], 1),
    ([1, 1], 1),
    (1.0, 1.0),
    (1.0, 2.0),
    ([True], [False]),
    ([[1, 2]], [[1, 3]]),
    ([1 + 2j], [1 + 2j]),
    ([1 + 2j], [1 + 3j]),
    ([], []),
    ([0.0], [-0.0]),
    ([1e-9], [0.0]),
]
NAMES = [
    "assert_allclose",
    "assert_array_equal",
    "assert_equal",
    "assert_almost_equal",
    "assert_array_almost_equal",
    "assert_array_less",
]


def fails(module, name, actual, desired):
    try:
        getattr(module.testing, name)(module.asarray(actual), module.asarray(desired))
    except AssertionError as error:
        assert str(error)
        return True
    return False


@each(
    ("name", "pair"),
    [(name, pair) for name in NAMES for pair in PAIRS if name != "assert_array_less" or "j" not in str(pair)],
    ids=str,
)  # no order that both define
def test_as_numpy(name, pair):
    assert fails(np, name, *pair) == fails(numpy, name, *pair)


def test_messages_say_where():
    with pytest.raises(
        AssertionError,
        match=r"(?s)rtol=1e-07, atol=0.*here.*Mismatched elements: 1 / 3.*ACTUAL: array\(\[1., 2., 3.\]\).*DESIRED",
    ):
        np.testing.assert_allclose(np.asarray([1.0, 2, 3]), [1.0, 2, 4], err_msg="here")
    with pytest.raises(AssertionError, match="shapes"):
        np.testing.assert_array_equal(np.ones(2), np.ones(3))
    with pytest.raises(AssertionError, match="dtypes"):
        np.testing.assert_array_equal(np.ones(2), np.ones(2, dtype="float32"), strict=True)
    with pytest.raises(AssertionError, match="key"):
        np.testing.assert_equal({"a": np.ones(2)}, {"a": np.zeros(2)})


def test_exceptions_that_are_wanted():
    with np.testing.assert_raises(ValueError):
        raise ValueError("good")
    np.testing.assert_raises(ZeroDivisionError, lambda: 1 / 0)
    with pytest.raises(AssertionError):
        np.testing.assert_raises(ValueError, lambda: None)
    with np.testing.assert_raises_regex(ValueError, "go+d"):
        raise ValueError("good")
    np.testing.assert_approx_equal(1.23456789, 1.23456780, 6)
    with pytest.raises(AssertionError):
        np.testing.assert_approx_equal(1.2, 1.3)


# ---- the sentences are NumPy's, character by character
DIFFERING = [
    ([1.0, 2], [1.0, 2.1]),
    ([1.0, 2, numpy.nan], [1, 2, 3]),
    (numpy.arange(20.0), numpy.arange(20.0) + 1),
    (1.0, 2.0),
    ([1, 2], [1, 2, 3]),
    ([numpy.inf, 1], [1, 1]),
    ([[1, 2], [3, 4]], [[1, 2], [3, 5]]),
    (numpy.array([1, 2], "u1"), numpy.array([2, 1], "u1")),
    ([True, False], [True, True]),
    ([1 + 1j, 2], [1, 2]),
    (numpy.ones((9, 9)), numpy.zeros((9, 9))),
    ([numpy.nan, 1.0], [numpy.nan, 2.0]),
    (numpy.ones(3), 1.5),
    ([], []),
    ([0.0, 1], [0, numpy.inf]),
    ([1.0, numpy.nan], numpy.nan),
    (numpy.float32([1.1, 2]), numpy.float32([1.1, 2.5])),
]


def sentence(module, name, pair, options):
    try:
        getattr(module.testing, name)(*map(module.asarray, pair), **options)
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.parametrize("options", [{}, {"err_msg": "why"}, {"err_msg": "long " * 30, "verbose": False}], ids=str)
@pytest.mark.parametrize(
    "name", ["assert_allclose", "assert_array_equal", "assert_array_almost_equal", "assert_array_less", "assert_equal"]
)
def test_a_failure_reads_as_numpys(name, options):
    for pair in DIFFERING:
        with numpy.errstate(all="ignore"):
            assert sentence(np, name, pair, options) == sentence(numpy, name, pair, options)
