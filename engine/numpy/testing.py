"""`numpy.testing`: assertions on arrays; the AssertionError shows where they differ."""

from vmhost.engine import _array as _a
from vmhost.engine.numpy._logic import isclose
from vmhost.engine.numpy._printing import array2string, array_repr

__all__ = [
    "assert_",
    "assert_allclose",
    "assert_almost_equal",
    "assert_approx_equal",
    "assert_array_almost_equal",
    "assert_array_compare",
    "assert_array_equal",
    "assert_array_less",
    "assert_equal",
    "assert_raises",
    "assert_raises_regex",
    "assert_string_equal",
]


_NAMES = "ACTUAL", "DESIRED"


def _text(value, precision):
    text = array_repr(value, precision=precision) if isinstance(value, _a.ndarray) else repr(value)
    return "\n".join(text.splitlines()[:3]) + "..." if text.count("\n") > 3 else text


def _message(header, err_msg, actual, desired, verbose=True, precision=8, names=_NAMES):
    err_msg = str(err_msg)
    fits_in_header = err_msg and "\n" not in err_msg and len(err_msg) < 79 - len(header)
    lines = [f"\n{header} {err_msg}" if fits_in_header else f"\n{header}"]
    if err_msg and not fits_in_header:
        lines.append(err_msg)
    if verbose:
        lines += [f" {name}: {_text(value, precision)}" for name, value in zip(names, (actual, desired))]
    return "\n".join(lines)


def _compare(
    agrees,
    actual,
    desired,
    err_msg="",
    verbose=True,
    header="",
    equal_nan=True,
    equal_inf=True,
    strict=False,
    precision=6,
    names=_NAMES,
):
    """Fails unless agrees(a, b) holds everywhere, except for NaNs (and infinities) at the same positions."""
    actual, desired = _a.asarray(actual), _a.asarray(desired)

    def fail(why):
        raise AssertionError(_message(header, f"{err_msg}\n{why}", actual, desired, verbose, precision, names))

    if actual.shape != desired.shape and (strict or actual.shape != () != desired.shape):
        fail(f"(shapes {actual.shape}, {desired.shape} mismatch)")
    if strict and actual.dtype != desired.dtype:
        fail(f"(dtypes {actual.dtype}, {desired.dtype} mismatch)")
    ignored = _a.asarray(False)
    if equal_nan:
        actual_nans, desired_nans = _a.isnan(actual), _a.isnan(desired)
        if (actual_nans != desired_nans).any():
            fail("nan location mismatch:")
        ignored = actual_nans & desired_nans
    if equal_inf:
        actual_infs, desired_infs = _a.isinf(actual) & ~ignored, _a.isinf(desired) & ~ignored
        if (actual_infs != desired_infs).any():
            fail("inf location mismatch:")
        if (actual_infs & (actual != desired)).any():
            fail("inf values mismatch:")
        ignored = ignored | actual_infs
    wrong = ~(_a.asarray(agrees(actual, desired)) | ignored)
    if wrong.any():
        fail("\n".join(_mismatch_lines(actual, desired, wrong, names)))


def _mismatch_lines(actual, desired, wrong, names):
    """Lines for the message: how many elements differ, the first of them, the largest differences."""
    from vmhost.engine.numpy._sets import argwhere

    count = int(_a.count_nonzero(wrong))
    lines = [f"Mismatched elements: {count} / {wrong.size} ({100 * count / wrong.size:.3g}%)"]
    if wrong.ndim:
        title = (
            "Mismatch at index:"
            if count == 1
            else "Mismatch at indices:"
            if count <= 5
            else "First 5 mismatches are at indices:"
        )
        indices = argwhere(wrong)[:5].tolist()
        lines += [
            title,
            *(
                f" {index}: "
                + ", ".join(
                    f"{value[tuple(index)] if value.ndim else value} ({name})"
                    for value, name in zip((actual, desired), names)
                )
                for index in indices
            ),
        ]
    if actual.dtype.kind == "b" and desired.dtype.kind == "b":
        return lines
    one, other = (_a.broadcast_to(value, wrong.shape)[wrong] for value in (actual, desired))
    difference = abs(one - other)
    if actual.dtype.kind == "u":
        difference = _a.minimum(difference, abs(other - one))
    nonzero = other != 0
    ratio = _a.max(difference[nonzero] / abs(other[nonzero])) if nonzero.any() else _a.asarray(float("inf"))
    return [
        *lines,
        f"Max absolute difference among violations: {array2string(_a.max(difference))}",
        f"Max relative difference among violations: {array2string(ratio)}",
    ]


def assert_array_compare(
    comparison, x, y, err_msg="", verbose=True, header="", precision=6, equal_nan=True, equal_inf=True, *, strict=False
):
    """Fails unless comparison(x, y) is true everywhere."""
    _compare(comparison, x, y, err_msg, verbose, header, equal_nan, equal_inf, strict, precision)


def assert_allclose(actual, desired, rtol=1e-7, atol=0, equal_nan=True, err_msg="", verbose=True, *, strict=False):
    """Fails unless |actual - desired| <= atol + rtol * |desired| everywhere."""
    _compare(
        lambda a, b: isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan),
        actual,
        desired,
        err_msg,
        verbose,
        f"Not equal to tolerance rtol={rtol:g}, atol={atol:g}",
        equal_nan,
        True,
        strict,
    )


def assert_array_equal(actual, desired, err_msg="", verbose=True, *, strict=False):
    """Fails unless shapes and all elements are equal; NaNs are equal to each other."""
    _compare(_a.equal, actual, desired, err_msg, verbose, "Arrays are not equal", True, True, strict)


def assert_array_almost_equal(actual, desired, decimal=6, err_msg="", verbose=True):
    """Fails unless |actual - desired| < 1.5 * 10**-decimal everywhere."""
    _compare(
        lambda a, b: _a.absolute(a * 1 - b * 1) < 1.5 * 10.0**-decimal,
        actual,
        desired,
        err_msg,
        verbose,
        f"Arrays are not almost equal to {decimal} decimals",
        precision=decimal,
    )


def assert_array_less(x, y, err_msg="", verbose=True, *, strict=False):
    """Fails unless x < y everywhere."""
    _compare(
        _a.less,
        x,
        y,
        err_msg,
        verbose,
        "Arrays are not strictly ordered `x < y`",
        True,
        False,
        strict,
        names=("x", "y"),
    )


def assert_almost_equal(actual, desired, decimal=7, err_msg="", verbose=True):
    """Fails unless |actual - desired| < 1.5 * 10**-decimal."""
    if isinstance(actual, (_a.ndarray, list, tuple)) or isinstance(desired, (_a.ndarray, list, tuple)):
        assert_array_almost_equal(actual, desired, decimal, err_msg, verbose)
        return
    same = actual == desired or actual != actual and desired != desired
    if not same and not abs(desired - actual) < 1.5 * 10.0**-decimal:
        raise AssertionError(_message(f"Arrays are not almost equal to {decimal} decimals", err_msg, actual, desired))


def assert_approx_equal(actual, desired, significant=7, err_msg="", verbose=True):
    """Fails unless both agree to `significant` digits."""
    from math import floor, log10

    if actual == desired or actual != actual and desired != desired:
        return
    scale = 0.5 * (abs(desired) + abs(actual))
    scale = 10.0 ** floor(log10(scale))
    if not abs(desired / scale - actual / scale) < 10.0 ** -(significant - 1):
        raise AssertionError(
            _message(f"Items are not equal to {significant} significant digits:", err_msg, actual, desired)
        )


def assert_equal(actual, desired, err_msg="", verbose=True, *, strict=False):
    """Fails unless both are equal: numbers, arrays, and lists, tuples and dicts of them."""
    if isinstance(desired, dict):
        if not isinstance(actual, dict):
            raise AssertionError(repr(type(actual)))
        assert_equal(len(actual), len(desired), err_msg)
        for key in desired:
            if key not in actual:
                raise AssertionError(repr(key))
            assert_equal(actual[key], desired[key], f"key={key!r}\n{err_msg}")
    elif isinstance(desired, (list, tuple)) and isinstance(actual, (list, tuple)):
        assert_equal(len(actual), len(desired), err_msg)
        for i, (one, other) in enumerate(zip(actual, desired)):
            assert_equal(one, other, f"item={i}\n{err_msg}")
    elif isinstance(actual, _a.ndarray) or isinstance(desired, _a.ndarray):
        assert_array_equal(actual, desired, err_msg, verbose, strict=strict)
    elif not (actual == desired or actual != actual and desired != desired):
        raise AssertionError(_message("Items are not equal:", err_msg, actual, desired))


def assert_(val, msg=""):
    if not val:
        raise AssertionError(msg() if callable(msg) else msg)


def assert_string_equal(actual, desired):
    if actual != desired:
        raise AssertionError(_message("Differences in strings:", "", actual, desired))


class _ExpectedError:
    """A context manager that fails unless its body raises the expected exception."""

    def __init__(self, expected, pattern=None):
        self.expected, self.pattern, self.exception = expected, pattern, None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            raise AssertionError(f"{self.expected!r} not raised")
        if not isinstance(error, self.expected):
            return False
        self.exception = error
        if self.pattern is not None:
            import re

            if not re.search(self.pattern, str(error)):
                raise AssertionError(f"{self.pattern!r} does not match {str(error)!r}")
        return True


def assert_raises(exception_class, callable=None, *args, **kwargs):
    expected_error = _ExpectedError(exception_class)
    if callable is None:
        return expected_error
    with expected_error:
        callable(*args, **kwargs)
    return None


def assert_raises_regex(exception_class, expected_regexp, callable=None, *args, **kwargs):
    expected_error = _ExpectedError(exception_class, expected_regexp)
    if callable is None:
        return expected_error
    with expected_error:
        callable(*args, **kwargs)
    return None


def __dir__():
    return list(__all__)


def __getattr__(name):
    from vmhost.engine.numpy._absent import missing

    raise missing("testing", name)
