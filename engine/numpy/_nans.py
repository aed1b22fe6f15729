"""Reductions that ignore NaNs."""

from vmhost.engine import _array as _a
from vmhost.engine.numpy._statistics import _finish, correction_of, var


def _known(a):
    """Returns (array, mask of elements that are not NaN; None: all)."""
    a = _a.asarray(a)
    return a, ~_a.isnan(a) if a.dtype.kind in "fc" else None


def _filled(a, value):
    a, known = _known(a)
    return a if known is None else _a.where(known, a, _a.asarray(value, a.dtype))


def _options(initial, where):
    options = {}
    if initial is not None:
        options["initial"] = initial
    if where is not True:
        options["where"] = where
    return options


def nansum(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    return _a.sum(_filled(a, 0), axis, dtype, out, keepdims, **_options(initial, where))


def nanprod(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    return _a.prod(_filled(a, 1), axis, dtype, out, keepdims, **_options(initial, where))


def nancumsum(a, axis=None, dtype=None, out=None):
    return _a.cumsum(_filled(a, 0), axis, dtype, out)


def nancumprod(a, axis=None, dtype=None, out=None):
    return _a.cumprod(_filled(a, 1), axis, dtype, out)


def _where_known(known, where):
    return where if known is None else known if where is True else known & where


def _require_inexact(known, dtype, out):
    """An array that can hold NaN (`known` is not None) has a mean and a variance of inexact numbers only."""
    for name, kind in (
        ("dtype", None if dtype is None else _a.dtype(dtype).kind),
        ("out", None if out is None else out.dtype.kind),
    ):
        if known is not None and kind is not None and kind not in "fc":
            raise TypeError(f"If a is inexact, then {name} must be inexact")


def nanmean(a, axis=None, dtype=None, out=None, keepdims=False, *, where=True):
    a, known = _known(a)
    _require_inexact(known, dtype, out)
    return _a.mean(a, axis, dtype, out, keepdims, where=_where_known(known, where))


def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    a, known = _known(a)
    if known is None:
        return var(a, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction)
    _require_inexact(known, dtype, out)
    ddof = correction_of(ddof, correction)
    if where is True and mean is None and dtype is None and a.dtype.kind == "f" and a.itemsize >= 4:
        return _finish(_variance(a, known, axis, ddof, keepdims), out)
    result_dtype = (a.real.dtype if a.dtype.kind == "c" else a.dtype) if dtype is None else None
    where = _where_known(known, where)
    counts = _a.count_nonzero(_a.broadcast_to(_a.asarray(where), a.shape), axis, keepdims=keepdims)
    result = var(_a.where(known, a, _a.zeros(1, a.dtype)), axis, dtype, None, ddof, keepdims, where=where, mean=mean)
    # too few values give NaN, where var() gives infinity
    result = result if result_dtype is None else result.astype(result_dtype, copy=False)
    return _finish(_a.where(counts <= ddof, _a.asarray(float("nan"), result.dtype), result)[()], out)


def _variance(a, known, axis, ddof, keepdims):
    filled, counts = _a.where(known, a, _a.zeros(1, a.dtype)), _a.count_nonzero(known, axis, keepdims=True)
    distance = filled - (_a.sum(filled, axis, keepdims=True) / counts).astype(a.dtype, copy=False)
    distance *= known
    _a.square(distance, out=distance)
    total = _a.sum(distance, axis, keepdims=keepdims)
    freedom = counts.reshape(total.shape) - ddof
    return (total / _a.where(freedom > 0, freedom, float("nan"))).astype(a.dtype, copy=False)[()]  # too few values: NaN


def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    return _finish(
        _a.sqrt(nanvar(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction)), out
    )


def _extreme(reduce, known, worst, a, axis, out, keepdims, initial, where):
    a = _a.asarray(a)
    if where is True:
        return known(a, axis, out, keepdims, **_options(initial, where))
    a, mask = _known(a)
    # the mask excludes NaNs; the reduction starts from the worst value of the dtype
    mask = _where_known(mask, where)
    result = reduce(
        a, axis, keepdims=keepdims, initial=_a.asarray(worst if initial is None else initial, a.dtype), where=mask
    )
    if initial is None:
        result = _a.where(_a.any(mask, axis, keepdims=keepdims), result, _a.asarray(float("nan"), a.dtype))[()]
    return _finish(result, out)


def nanmax(a, axis=None, out=None, keepdims=False, initial=None, where=True):
    return _extreme(_a.max, _a._fmax, float("-inf"), a, axis, out, keepdims, initial, where)


def nanmin(a, axis=None, out=None, keepdims=False, initial=None, where=True):
    return _extreme(_a.min, _a._fmin, float("inf"), a, axis, out, keepdims, initial, where)


def _position_of(find, worst, a, axis, out, keepdims):
    a, known = _known(a)
    if known is not None:
        if not known.any(axis).all():
            raise ValueError("All-NaN slice encountered")
        a = _a.where(known, a, _a.asarray(worst, a.dtype))
    return find(a, axis, out, keepdims=keepdims)


def nanargmax(a, axis=None, out=None, *, keepdims=False):
    return _position_of(_a.argmax, float("-inf"), a, axis, out, keepdims)


def nanargmin(a, axis=None, out=None, *, keepdims=False):
    return _position_of(_a.argmin, float("inf"), a, axis, out, keepdims)
