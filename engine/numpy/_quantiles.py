"""Medians and quantiles, with and without NaNs: sort along the axes, then interpolate between two neighbours.

Methods of `quantile` after Hyndman and Fan, "Sample quantiles in statistical packages", The American Statistician 50
(1996)."""

from vmhost.engine import _array as _a
from vmhost.engine.numpy._sets import MAX_SELECTED, partitioned
from vmhost.engine.numpy._shapes import _axes, _count, moveaxis, take_along_axis
from vmhost.engine.numpy._statistics import _finish, _keep


def _last(a, axis):
    """Moves the axes into one last dimension: a view if possible, else a copy."""
    if axis is None:
        return a.reshape(-1)
    axes = _axes(axis, a.ndim, "axis" if isinstance(axis, (tuple, list)) else None)
    a = moveaxis(a, axes, tuple(range(-len(axes), 0)))
    rest = a.shape[: a.ndim - len(axes)]
    return a.reshape(*rest, _count(a.shape[len(rest) :]))


def _with_nans(result, ordered):
    """NaN if a sorted row ends with NaN."""
    if ordered.dtype.kind in "fc" and ordered.shape[-1]:
        last = ordered[..., -1]
        bad = _a.isnan(last)
        if bad.any():
            return _a.where(bad, last, result)[()]
    return result


def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    """The middle value; for an even count the mean of the middle two."""
    a = _a.asarray(a)
    rows = _last(a, axis)
    count = rows.shape[-1]
    # the largest element is included: it is NaN if there is any NaN
    ordered = partitioned(rows, ((count - 1) // 2, count // 2, count - 1)) if count else rows
    middle = ordered[..., max(count - 1, 0) // 2 : count // 2 + 1]
    result = _with_nans(_a.mean(middle, -1), ordered)
    return _finish(_keep(result, a, axis) if keepdims else result, out)


def nanmedian(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    a = _a.asarray(a)
    if a.dtype.kind != "f":
        return median(a, axis, out, overwrite_input, keepdims)
    ordered = _a.sort(_last(a, axis), -1)
    count = ordered.shape[-1]
    if count == 0:
        result = _a.mean(ordered, -1)
    else:
        known = count - _a.count_nonzero(_a.isnan(ordered), -1)
        indices = _a.maximum(known[..., None] + _a.asarray([-1, 0]), 0) // 2
        result = _a.mean(take_along_axis(ordered, indices, -1), -1)
    return _finish(_keep(result, a, axis) if keepdims else result, out)


# ---- quantiles

# Position of the quantile q among n sorted values, counted from 0: n*q + alpha + q*(1 - alpha - beta) - 1
_CONTINUOUS = {
    "interpolated_inverted_cdf": (0, 1),
    "hazen": (0.5, 0.5),
    "weibull": (0, 0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_METHODS = (
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    *_CONTINUOUS,
    "linear",
    "lower",
    "higher",
    "midpoint",
    "nearest",
)


def _position(n, q, method):
    """Returns (position, fraction towards the next value); None for the fraction if the position is a whole number."""
    if isinstance(n, _a.ndarray) and q.dtype.kind == "f":
        n = n.astype(q.dtype)
    if method in ("inverted_cdf", "closest_observation"):
        position = n * q - (1 if method == "inverted_cdf" else 1.5)
        below = _a.floor(position)
        exact = position == below
        if method == "closest_observation":
            exact = exact & (below % 2 == 1)
        return _a.maximum(_a.where(exact, below, below + 1), 0), None
    if method in ("lower", "higher", "nearest"):
        rounded = {"lower": _a.floor, "higher": _a.ceil, "nearest": _a.rint}[method]
        return rounded((n - 1) * q), None
    if method == "averaged_inverted_cdf":
        position = n * q - 1
        return position, _a.where(position == _a.floor(position), 0.5, 1.0)
    if method == "midpoint":
        position = 0.5 * (_a.floor((n - 1) * q) + _a.ceil((n - 1) * q))
        return position, _a.where(position % 1 == 0, 0.0, 0.5)
    if method == "linear":
        position = (n - 1) * q
    else:
        alpha, beta = _CONTINUOUS[method]
        position = n * q + (alpha + q * (1 - alpha - beta)) - 1
    return position, position - _a.floor(position)


def _pick(ordered, indices):
    if indices.ndim == 1:
        return ordered[..., indices]
    return take_along_axis(ordered, indices, -1)


def _quantiles(ordered, known, q, method, weak):
    """The quantile for each of `q` (1-d) of each sorted row, in a new last dimension. `known`: the number of valid
    values in a row, an int or an array whose last dimension has size 1."""
    position, share = _position(known, q, method)
    integral = q.dtype.kind in "iub" and method == "linear"
    position = _a.asarray(position)
    if share is None or integral:
        return _pick(ordered, _a.clip(position.astype(int), 0, _a.maximum(known - 1, 0)))
    below = _a.floor(position)
    above = below + 1
    high, low = position >= known - 1, position < 0
    below, above = (_a.where(high, known - 1, _a.where(low, 0, one)).astype(int) for one in (below, above))
    below, above = (_a.maximum(one, 0) for one in (below, above))
    before, after = _pick(ordered, below), _pick(ordered, above)
    share = share.astype(before.dtype if weak and before.dtype.kind == "f" else position.dtype, copy=False)
    step = after - before
    return _a.where(share >= 0.5, after - step * (1 - share), before + step * share)


def _needed(count, q, method):
    """The positions of a sorted row that `_quantiles` reads; None if they are so many that a full sort is faster."""
    if 2 * len(q) >= MAX_SELECTED:
        return None
    position, _ = _position(count, q, method)
    below = _a.clip(_a.floor(position), 0, count - 1).astype(int).tolist()
    return [*below, *(min(one + 1, count - 1) for one in below), 0, count - 1]


def _weighted(rows, weights, q):
    """Weighted quantiles of rows: the first value at which the cumulative weight reaches q."""
    order = rows.argsort(-1)
    rows, weights = take_along_axis(rows, order, -1), take_along_axis(weights, order, -1)
    if rows.dtype.kind == "f":
        weights = _a.where(_a.isnan(rows), 0, weights) if _a.isnan(rows).any() else weights
    shares = _a.cumsum(weights, -1, float)
    shares = shares / shares[..., -1:]
    if _a.isnan(shares[..., -1]).any():
        raise ValueError("Weights included NaN, inf or were all zero.")
    if q.dtype.kind == "f":
        shares = shares.astype(q.dtype, copy=False)
    shares = _a.where(shares == 0, -1, shares)
    indices = _a.count_nonzero(shares[..., None, :] < q[:, None], -1)
    return take_along_axis(rows, _a.minimum(indices, rows.shape[-1] - 1), -1), rows


def _prepared_weights(weights, a, axis, method):
    if method != "inverted_cdf":
        raise ValueError(f"Only method 'inverted_cdf' supports weights. Got: {method}.")
    weights = _a.asarray(weights)
    if weights.shape != a.shape:
        if axis is None:
            raise TypeError("Axis must be specified when shapes of a and weights differ.")
        axes = _axes(axis, a.ndim, "axis")
        if weights.shape != tuple(a.shape[one] for one in axes):
            raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
        weights = weights.transpose(sorted(range(len(axes)), key=axes.__getitem__))
        weights = _a.broadcast_to(weights.reshape([n if i in axes else 1 for i, n in enumerate(a.shape)]), a.shape)
    if (weights < 0).any():
        raise ValueError("Weights must be non-negative.")
    return weights


def _quantile(a, q, axis, out, method, keepdims, weights, weak, skip_nans):
    if a.dtype.kind == "c":
        raise TypeError("a must be an array of real numbers")
    if q.ndim > 1:
        if q.ndim > 2:
            raise ValueError("q must be a scalar or 1d")
    if method not in _METHODS:
        raise ValueError(f"{method!r} is not a valid method. Use one of: {', '.join(_METHODS)}")
    if weights is not None:
        weights = _prepared_weights(weights, a, axis, method)
    rows, fractions = _last(a, axis), q.ravel()
    if rows.shape[-1] == 0:
        if not skip_nans:
            raise IndexError("index -1 is out of bounds for axis 0 with size 0")
        result = _a.full((*rows.shape[:-1], len(fractions)), float("nan"), rows.dtype)
    elif weights is not None:
        if skip_nans and rows.dtype.kind == "f":
            weights = _a.where(_a.isnan(a), 0, weights)
        result, rows = _weighted(rows, _last(weights, axis), fractions)
        if not skip_nans:
            result = _with_nans_last(result, rows)
    else:
        known = rows.shape[-1]
        kth = _needed(known, fractions, method) if not skip_nans else None
        ordered = _a.sort(rows, -1) if kth is None else partitioned(rows, kth)
        if skip_nans and ordered.dtype.kind == "f":
            missing = _a.count_nonzero(_a.isnan(ordered), -1)
            if missing.any():
                known = (known - missing)[..., None]
        result = _quantiles(ordered, known, fractions, method, weak)
        if not skip_nans:
            result = _with_nans_last(result, ordered)
    result = moveaxis(result, -1, 0)
    if keepdims:
        axes = range(a.ndim) if axis is None else _axes(axis, a.ndim)
        result = result.reshape((len(fractions), *(1 if i in axes else n for i, n in enumerate(a.shape))))
    result = result.reshape(q.shape + result.shape[1:])[()]
    if out is not None and out.size == 1 and not result.ndim:  # as in NumPy, a number fills any array of one element
        result = result.reshape(out.shape)
    return _finish(result, out)


def _with_nans_last(result, ordered):
    if ordered.dtype.kind == "f":
        bad = _a.isnan(ordered[..., -1:])
        if bad.any():
            return _a.where(bad, ordered[..., -1:], result)
    return result


def _checked(q, maximum, method, words):
    q = _a.asarray(q, float if type(q) is int and method != "linear" else None)
    if ((q < 0) | (q > maximum)).any():
        raise ValueError(words)
    return q


def quantile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    """The values below which the fractions `q` of the elements lie; `method` chooses between two elements."""
    wanted = _checked(q, 1, method, "Quantiles must be in the range [0, 1]")
    return _quantile(_a.asarray(a), wanted, axis, out, method, keepdims, weights, type(q) in (int, float), False)


def percentile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    """`quantile` of q / 100."""
    wanted = _checked(q, 100, method, "Percentiles must be in the range [0, 100]") / 100
    return _quantile(_a.asarray(a), wanted, axis, out, method, keepdims, weights, type(q) in (int, float), False)


def nanquantile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    wanted = _checked(q, 1, method, "Quantiles must be in the range [0, 1]")
    return _quantile(_a.asarray(a), wanted, axis, out, method, keepdims, weights, type(q) in (int, float), True)


def nanpercentile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    wanted = _checked(q, 100, method, "Percentiles must be in the range [0, 100]") / 100
    return _quantile(_a.asarray(a), wanted, axis, out, method, keepdims, weights, type(q) in (int, float), True)
