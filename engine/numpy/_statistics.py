"""Statistics: spreads, medians, weighted means, differences, rounding."""

from engine import _array as _a


def _finish(result, out):
    if out is None:
        return result
    out[...] = result
    return out


def _count(a, axis):
    axes = range(a.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    count = 1
    for one in axes:
        count *= a.shape[one]
    return count


def var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """The mean of squared distances from the mean; divided by count - `ddof`."""
    a = _a.asarray(a)
    ddof = ddof if correction is None else correction
    kept = a.dtype if dtype is None else _a.dtype(dtype)
    if dtype is None:
        kept = _a.float64 if a.dtype.kind in "iub" else a.dtype
        loop = _a.float32 if kept == _a.float16 else kept
    else:
        loop = kept
    middle = _a.mean(a, axis, loop, keepdims=True, where=where) if mean is None else mean
    distance = _a.subtract(a, middle, dtype=loop)
    if distance.dtype.kind == "c":
        distance = distance.real * distance.real + distance.imag * distance.imag
    else:
        distance = _a.square(distance)
    if where is True:
        divisor = max(_count(a, axis) - ddof, 0)
    else:
        divisor = _a.maximum(_a.count_nonzero(_a.broadcast_to(_a.asarray(where), a.shape), axis, keepdims=keepdims) - ddof, 0)
    result = _a.sum(distance, axis, keepdims=keepdims, where=where) / divisor
    return _finish(result.astype(kept, copy=False) if kept.kind == "f" else result, out)


def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """The square root of `var`."""
    return _finish(_a.sqrt(var(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction)), out)


def ptp(a, axis=None, out=None, keepdims=False):
    a = _a.asarray(a)
    return _a.subtract(a.max(axis, keepdims=keepdims), a.min(axis, keepdims=keepdims), out=out)


def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    """The mean, weighted."""
    a = _a.asarray(a)
    if weights is None:
        result = a.mean(axis, keepdims=keepdims)
        total = result * 0 + _count(a, axis)
    else:
        weights = _a.asarray(weights)
        if weights.shape != a.shape:
            if axis is None:
                raise TypeError("Axis must be specified when shapes of a and weights differ.")
            if weights.shape != (a.shape[axis],):
                raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
            weights = weights.reshape(weights.shape + (1,) * (a.ndim - 1 - axis % a.ndim))
        total = _a.sum(weights * _a.ones(a.shape, weights.dtype), axis, keepdims=keepdims)
        if (total == 0).any():
            raise ZeroDivisionError("Weights sum to zero, can't be normalized")
        result = _a.sum(a * weights, axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def _ordered(a, axis):
    """(sorted along one axis which is the last, or flat; with the axes of the result)."""
    from engine.numpy._shapes import moveaxis

    a = _a.asarray(a)
    if axis is None:
        return _a.sort(a.ravel())
    if isinstance(axis, tuple):
        rest = [i for i in range(a.ndim) if i not in {one % a.ndim for one in axis}]
        a = moveaxis(a, axis, tuple(range(-len(axis), 0)))
        return _a.sort(a.reshape([a.shape[i] for i in range(len(rest))] + [-1]), -1)
    return _a.sort(moveaxis(a, axis, -1), -1)


def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    """The middle value; of an even number the mean of the two in the middle."""
    a = _a.asarray(a)
    ordered = _ordered(a, axis)
    count = ordered.shape[-1]
    if count == 0:
        result = _a.mean(ordered, -1)
    else:
        result = _a.mean(ordered[..., (count - 1) // 2:count // 2 + 1], -1)
        if ordered.dtype.kind in "fc":
            last = ordered[..., -1]
            result = _a.where(_a.isnan(last), last, result)[()]
    return _finish(_keep(result, a, axis) if keepdims else result, out)


def _keep(result, a, axis):
    axes = range(a.ndim) if axis is None else {one % a.ndim for one in (axis if isinstance(axis, tuple) else (axis,))}
    return result.reshape(tuple(1 if i in axes else n for i, n in enumerate(a.shape)))


def quantile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    """The values below which the fractions `q` of the elements lie, interpolated linearly."""
    if method != "linear" or weights is not None:
        raise NotImplementedError("quantile: method='linear' without weights is what there is")
    a, q = _a.asarray(a), _a.asarray(q) * 1.0
    if ((q < 0) | (q > 1)).any():
        raise ValueError("Quantiles must be in the range [0, 1]")
    ordered = _ordered(a, axis)
    if ordered.dtype.kind in "iub":
        ordered = ordered.astype(float)
    count = ordered.shape[-1]
    results = []
    for fraction in q.ravel().tolist():
        place = fraction * (count - 1)
        below = min(int(place), count - 1)
        share = place - below
        low, high = ordered[..., below], ordered[..., min(below + 1, count - 1)]
        step = high - low
        value = low + step * share if share < 0.5 else high - step * (1 - share)
        last = ordered[..., -1]
        value = _a.where(_a.isnan(last), last, value)[()]
        results.append(_keep(value, a, axis) if keepdims else value)
    if q.ndim == 0:
        return _finish(results[0], out)
    from engine.numpy._shapes import stack

    result = stack(results)
    return _finish(result.reshape(q.shape + result.shape[1:]), out)


def percentile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    q = _a.asarray(q) / 100.0
    if ((q < 0) | (q > 1)).any():
        raise ValueError("Percentiles must be in the range [0, 100]")
    return quantile(a, q, axis, out, overwrite_input, method, keepdims, weights=weights)


# ---- without NaNs

def _known(a):
    a = _a.asarray(a)
    return a, ~_a.isnan(a) if a.dtype.kind in "fc" else _a.ones(a.shape, bool)


def nansum(a, axis=None, dtype=None, out=None, keepdims=False):
    a, known = _known(a)
    return _a.sum(_a.where(known, a, _a.zeros(1, a.dtype)), axis, dtype, out, keepdims)


def nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    a, known = _known(a)
    return _a.mean(a, axis, dtype, out, keepdims, where=known)


def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    a, known = _known(a)
    return var(_a.where(known, a, _a.zeros(1, a.dtype)), axis, dtype, out, ddof, keepdims, where=known)


def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    return _finish(_a.sqrt(nanvar(a, axis, dtype, None, ddof, keepdims)), out)


def nanmax(a, axis=None, out=None, keepdims=False):
    a, known = _known(a)
    result = _a.max(_a.where(known, a, _a.asarray(float("-inf"), a.dtype)) if a.dtype.kind == "f" else a, axis, keepdims=keepdims)
    if a.dtype.kind == "f":
        result = _a.where(known.any(axis, keepdims=keepdims), result, _a.asarray(float("nan"), a.dtype))[()]
    return _finish(result, out)


def nanmin(a, axis=None, out=None, keepdims=False):
    return _finish(-nanmax(-_a.asarray(a), axis, keepdims=keepdims), out)


# ---- differences and sums along an axis

def diff(a, n=1, axis=-1, prepend=None, append=None):
    """Each element less the one before it, `n` times."""
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    a = _a.asarray(a)
    if a.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    parts = [a]
    for extra, front in ((prepend, True), (append, False)):
        if extra is not None:
            extra = _a.asarray(extra)
            if extra.ndim == 0:
                sizes = list(a.shape)
                sizes[axis] = 1
                extra = _a.broadcast_to(extra, tuple(sizes))
            parts.insert(0, extra) if front else parts.append(extra)
    if len(parts) > 1:
        a = _a.concatenate(parts, axis)
    before = (slice(None),) * (axis % a.ndim)
    for _ in range(n):
        later, earlier = a[(*before, slice(1, None))], a[(*before, slice(None, -1))]
        a = _a.not_equal(later, earlier) if a.dtype.kind == "b" else later - earlier
    return a


def ediff1d(ary, to_end=None, to_begin=None):
    parts = [diff(_a.ravel(ary))]
    if to_begin is not None:
        parts.insert(0, _a.ravel(to_begin))
    if to_end is not None:
        parts.append(_a.ravel(to_end))
    return _a.concatenate(parts)


def gradient(f, *varargs, axis=None, edge_order=1):
    """Central differences, at the ends one-sided ones; for equal steps."""
    f = _a.asarray(f)
    if f.dtype.kind in "iub":
        f = f.astype(float)
    axes = range(f.ndim) if axis is None else [axis % f.ndim] if isinstance(axis, int) else [one % f.ndim for one in axis]
    steps = list(varargs) * (len(axes) if len(varargs) == 1 else 1) or [1.0] * len(axes)
    if edge_order != 1 or any(_a.asarray(step).ndim for step in steps):
        raise NotImplementedError("gradient: equal steps and edge_order=1 are what there is")
    results = []
    for one, step in zip(axes, steps):
        if f.shape[one] < 2:
            raise ValueError("Shape of array too small to calculate a numerical gradient, at least (edge_order + 1) elements are required.")
        at = lambda *place: f[(slice(None),) * one + (slice(*place),)]       # noqa: E731
        made = _a.empty(f.shape, f.dtype)
        to = lambda *place: (slice(None),) * one + (slice(*place),)         # noqa: E731
        made[to(1, -1)] = (at(2, None) - at(None, -2)) / (2.0 * step)
        made[to(0, 1)] = (at(1, 2) - at(0, 1)) / step
        made[to(-1, None)] = (at(-1, None) - at(-2, -1)) / step
        results.append(made)
    return results[0] if len(results) == 1 else tuple(results)


def trapezoid(y, x=None, dx=1.0, axis=-1):
    """The area under straight lines between the points."""
    from engine.numpy._shapes import moveaxis

    y = moveaxis(_a.asarray(y), axis, -1)
    width = dx if x is None else diff(x, axis=-1 if _a.asarray(x).ndim == 1 else axis)
    return (width * (y[..., 1:] + y[..., :-1]) / 2.0).sum(-1)


def cumulative_sum(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
    return _cumulative(_a.cumsum, 0, x, axis, dtype, out, include_initial)


def cumulative_prod(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
    return _cumulative(_a.cumprod, 1, x, axis, dtype, out, include_initial)


def _cumulative(scan, start, x, axis, dtype, out, include_initial):
    x = _a.asarray(x)
    if axis is None:
        if x.ndim != 1:
            raise ValueError("For arrays which have more than one dimension ``axis`` argument is required.")
        axis = 0
    result = scan(x, axis, dtype)
    if include_initial:
        sizes = list(result.shape)
        sizes[axis] = 1
        result = _a.concatenate((_a.full(tuple(sizes), start, result.dtype), result), axis)
    return _finish(result, out)


def cov(m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None):
    """The matrix of covariances of the rows (variables) of `m`."""
    if fweights is not None or aweights is not None:
        raise NotImplementedError("cov: weights are not there")
    from engine.numpy._shapes import atleast_2d

    m = atleast_2d(_a.asarray(m) * 1.0)
    if not rowvar and m.shape[0] != 1:
        m = m.T
    if y is not None:
        y = atleast_2d(_a.asarray(y) * 1.0)
        m = _a.concatenate((m, y.T if not rowvar and y.shape[0] != 1 else y))
    ddof = (0 if bias else 1) if ddof is None else ddof
    centred = m - m.mean(1, keepdims=True)
    product = centred @ _a.conjugate(centred.T) / max(m.shape[1] - ddof, 0)
    return _a.squeeze(product)


def corrcoef(x, y=None, rowvar=True, *, dtype=None):
    c = cov(x, y, rowvar)
    if c.ndim == 0:
        return c / c
    deviation = _a.sqrt(c.diagonal().real)
    return _a.clip(c / deviation[:, None] / deviation, -1, 1)


# ---- rounding

def round(a, decimals=0, out=None):
    """To so many decimal places, halves to even."""
    a = _a.asarray(a)
    if a.dtype.kind in "iub":
        if decimals >= 0:
            return _finish(+a if a.dtype.kind != "b" else a.astype(_a.float16), out)
        power = 10 ** -decimals
        result = (_a.rint(a / power) * power).astype(a.dtype)
    elif decimals == 0:
        result = _a.rint(a)
    elif decimals > 0:
        result = _a.rint(a * 10.0 ** decimals) / 10.0 ** decimals
    else:
        result = _a.rint(a / 10.0 ** -decimals) * 10.0 ** -decimals
    return _finish(result, out)


around = round


def fix(x, out=None):
    return _a.trunc(x, out=out)
