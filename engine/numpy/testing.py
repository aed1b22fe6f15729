"""`numpy.testing`: assertions on arrays, whose AssertionError shows where they differ."""

from engine import _array as _a
from engine.numpy._logic import isclose
from engine.numpy._printing import array_repr

__all__ = ["assert_", "assert_allclose", "assert_almost_equal", "assert_approx_equal", "assert_array_almost_equal", "assert_array_compare",
           "assert_array_equal", "assert_array_less", "assert_equal", "assert_raises", "assert_raises_regex", "assert_string_equal"]


def _text(value):
    return array_repr(value) if isinstance(value, _a.ndarray) else repr(value)


def _message(header, err_msg, actual, desired, names=("ACTUAL", "DESIRED")):
    lines = ["", header + (f"\n{err_msg}" if err_msg else "")]
    for name, value in zip(names, (actual, desired)):
        lines.append(f" {name}: {_text(value)}")
    return "\n".join(lines)


def _compare(agrees, actual, desired, err_msg="", verbose=True, header="", equal_nan=True, equal_inf=True, strict=False):
    """Fails unless agrees(a, b) holds everywhere, apart from NaNs (and infinities) that stand in the same places."""
    actual, desired = _a.asarray(actual), _a.asarray(desired)
    if strict:
        fits = actual.shape == desired.shape and actual.dtype == desired.dtype
    else:
        fits = actual.shape == () or desired.shape == () or actual.shape == desired.shape
    if not fits:
        why = f"\n(shapes {actual.shape}, {desired.shape} mismatch)" if actual.shape != desired.shape \
            else f"\n(dtypes {actual.dtype}, {desired.dtype} mismatch)"
        raise AssertionError(_message(header + why, err_msg, actual, desired))
    good = _a.asarray(agrees(actual, desired))
    if equal_nan and "c" in (actual.dtype.kind, desired.dtype.kind) or equal_nan and "f" in (actual.dtype.kind, desired.dtype.kind):
        nans = _a.isnan(actual) if actual.dtype.kind in "fc" else _a.zeros(actual.shape, bool)
        others = _a.isnan(desired) if desired.dtype.kind in "fc" else _a.zeros(desired.shape, bool)
        if (nans != others).any():
            raise AssertionError(_message(header + "\nnan location mismatch:", err_msg, actual, desired))
        good = good | (nans & others)
    if equal_inf:
        good = good | (actual == desired)
    if good.all():
        return
    wrong = ~good
    count, size = int(_a.count_nonzero(wrong)), wrong.size
    lines = [f"Mismatched elements: {count} / {size} ({100 * count / size:.3g}%)"]
    if actual.dtype.kind != "b" and desired.dtype.kind != "b" and size:
        gap = _a.absolute(actual.astype(_wide(actual.dtype)) - desired.astype(_wide(desired.dtype)))[wrong if actual.shape or desired.shape else ()]
        lines.append(f"Max absolute difference among violations: {_a.max(gap)}")
        base = _a.broadcast_to(_a.absolute(desired.astype(_wide(desired.dtype))), wrong.shape)
        base = base[wrong] if wrong.shape else base.reshape(1)
        ratio = gap.reshape(-1)[base != 0] / base[base != 0]
        lines.append(f"Max relative difference among violations: {_a.max(ratio) if ratio.size else float('inf')}")
    raise AssertionError(_message(header, "\n".join([err_msg] * bool(err_msg) + lines), actual, desired))


def _wide(dtype):
    return _a.complex128 if dtype.kind == "c" else _a.float64


def assert_array_compare(comparison, x, y, err_msg="", verbose=True, header="", precision=6, equal_nan=True, equal_inf=True, *, strict=False):
    """Fails unless comparison(x, y) is true everywhere."""
    _compare(comparison, x, y, err_msg, verbose, header, equal_nan, equal_inf, strict)


def assert_allclose(actual, desired, rtol=1e-7, atol=0, equal_nan=True, err_msg="", verbose=True, *, strict=False):
    """Fails unless |actual - desired| <= atol + rtol * |desired| everywhere."""
    _compare(lambda a, b: isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan), actual, desired, err_msg, verbose,
             f"Not equal to tolerance rtol={rtol:g}, atol={atol:g}", equal_nan, True, strict)


def assert_array_equal(actual, desired, err_msg="", verbose=True, *, strict=False):
    """Fails unless shapes and all elements are equal; NaNs are equal to each other."""
    _compare(_a.equal, actual, desired, err_msg, verbose, "Arrays are not equal", True, True, strict)


def assert_array_almost_equal(actual, desired, decimal=6, err_msg="", verbose=True):
    """Fails unless |actual - desired| < 1.5 * 10**-decimal everywhere."""
    _compare(lambda a, b: _a.absolute(a - b) < 1.5 * 10.0 ** -decimal, _a.asarray(actual) * 1, _a.asarray(desired) * 1, err_msg, verbose,
             f"Arrays are not almost equal to {decimal} decimals")


def assert_array_less(x, y, err_msg="", verbose=True, *, strict=False):
    """Fails unless x < y everywhere."""
    _compare(_a.less, x, y, err_msg, verbose, "Arrays are not strictly ordered `x < y`", True, False, strict)


def assert_almost_equal(actual, desired, decimal=7, err_msg="", verbose=True):
    """Fails unless |actual - desired| < 1.5 * 10**-decimal."""
    if isinstance(actual, (_a.ndarray, list, tuple)) or isinstance(desired, (_a.ndarray, list, tuple)):
        assert_array_almost_equal(actual, desired, decimal, err_msg)
        return
    same = actual == desired or actual != actual and desired != desired
    if not same and not abs(desired - actual) < 1.5 * 10.0 ** -decimal:
        raise AssertionError(_message(f"Arrays are not almost equal to {decimal} decimals", err_msg, actual, desired))


def assert_approx_equal(actual, desired, significant=7, err_msg="", verbose=True):
    """Fails unless both agree to `significant` digits."""
    from math import floor, log10

    if actual == desired or actual != actual and desired != desired:
        return
    scale = 0.5 * (abs(desired) + abs(actual))
    scale = 10.0 ** floor(log10(scale))
    if not abs(desired / scale - actual / scale) < 10.0 ** -(significant - 1):
        raise AssertionError(_message(f"Items are not equal to {significant} significant digits:", err_msg, actual, desired))


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
        assert_array_equal(actual, desired, err_msg, strict=strict)
    elif not (actual == desired or actual != actual and desired != desired):
        raise AssertionError(_message("Items are not equal:", err_msg, actual, desired))


def assert_(val, msg=""):
    if not val:
        raise AssertionError(msg() if callable(msg) else msg)


def assert_string_equal(actual, desired):
    if actual != desired:
        raise AssertionError(_message("Differences in strings:", "", actual, desired))


class _Raises:
    """Waits for an exception: a context manager, or called with a function at once."""

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
    waiting = _Raises(exception_class)
    if callable is None:
        return waiting
    with waiting:
        callable(*args, **kwargs)
    return None


def assert_raises_regex(exception_class, expected_regexp, callable=None, *args, **kwargs):
    waiting = _Raises(exception_class, expected_regexp)
    if callable is None:
        return waiting
    with waiting:
        callable(*args, **kwargs)
    return None


def __dir__():
    return list(__all__)


def __getattr__(name):
    from engine.numpy._absent import missing

    raise missing("testing", name)
