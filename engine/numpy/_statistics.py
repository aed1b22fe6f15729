"""Statistics: variances, weighted means, covariances, differences along an axis, rounding."""

from operator import index as _index

from vmhost.engine import _array as _a


def _finish(result, out):
    if out is None:
        return result
    if not isinstance(out, _a.ndarray):
        raise TypeError("return arrays must be of ArrayType")
    if out.shape != result.shape:
        raise ValueError(f"output array has the wrong shape: found {out.shape}, expected {result.shape}")
    if not _a.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(f"Cannot cast output from {result.dtype!r} to {out.dtype!r} with casting rule 'same_kind'")
    out[...] = result.astype(out.dtype, copy=False)
    return out


def _count(a, axis):
    axes = range(a.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    count = 1
    for one in axes:
        count *= a.shape[one]
    return count


def correction_of(ddof, correction):
    """What a variance subtracts from the count: two names for one argument."""
    if correction is None:
        return ddof
    if ddof != 0:
        raise ValueError("ddof and correction can't be provided simultaneously.")
    return correction


def var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """The mean squared distance from the mean, with count - `ddof` as the divisor."""
    a, ddof = _a.asarray(a), correction_of(ddof, correction)
    result_dtype = a.dtype if dtype is None else _a.dtype(dtype)
    if dtype is None:
        result_dtype = _a.float64 if a.dtype.kind in "iub" else a.dtype
        compute_dtype = _a.float32 if result_dtype == _a.float16 else result_dtype
    else:
        compute_dtype = result_dtype
    center = _a.mean(a, axis, compute_dtype, keepdims=True, where=where) if mean is None else mean
    distance = _a.subtract(a, center, dtype=compute_dtype)
    if distance.dtype.kind == "c":
        distance = distance.real * distance.real + distance.imag * distance.imag
    else:
        distance = _a.square(distance)
    if where is True:
        divisor = max(_count(a, axis) - ddof, 0)
    else:
        divisor = _a.maximum(
            _a.count_nonzero(_a.broadcast_to(_a.asarray(where), a.shape), axis, keepdims=keepdims) - ddof, 0
        )
    total = _a.sum(distance, axis, keepdims=keepdims, where=where)
    if out is not None and out.shape == total.shape and not _a.can_cast(total.dtype, out.dtype, "same_kind"):
        # as in NumPy: the sum is cast to the output's dtype, then divided and cast again
        out[...] = (total.astype(out.dtype) / divisor).astype(out.dtype)
        return out
    result = total / divisor
    return _finish(result.astype(result_dtype, copy=False) if result_dtype.kind == "f" else result, out)


def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """The square root of `var`."""
    variance = var(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean, correction=correction)
    if isinstance(variance, _a.ndarray):
        return _finish(_a.sqrt(variance), out)
    equal = variance == 0  # traced: where all elements are equal, the gradient is 0, not that of a square root
    return _finish(_a.where(equal, variance, _a.sqrt(_a.where(equal, 1, variance))), out)


def ptp(a, axis=None, out=None, keepdims=False):
    a = _a.asarray(a)
    return _a.subtract(a.max(axis, keepdims=keepdims), a.min(axis, keepdims=keepdims), out=out)


def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    """The weighted mean."""
    a = _a.asarray(a)
    if weights is None:
        result = a.mean(axis, keepdims=keepdims)
        total = result * 0 + _count(a, axis)
    else:
        weights = _a.asarray(weights)
        if weights.shape != a.shape:
            if axis is None:
                raise TypeError("Axis must be specified when shapes of a and weights differ.")
            from vmhost.engine.numpy._shapes import _axes

            axes = _axes(axis, a.ndim, "axis" if isinstance(axis, (tuple, list)) else None)
            if weights.shape != tuple(a.shape[one] for one in axes):
                raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
            weights = weights.transpose(sorted(range(len(axes)), key=axes.__getitem__))
            weights = weights.reshape([n if i in axes else 1 for i, n in enumerate(a.shape)])
        dtype = _a.result_type(a.dtype, weights.dtype, *([_a.float64] if a.dtype.kind in "iub" else []))
        weights = _a.broadcast_to(weights, a.shape)
        total = _a.sum(weights, axis, dtype, keepdims=keepdims)
        if (total == 0).any():
            raise ZeroDivisionError("Weights sum to zero, can't be normalized")
        result = _a.sum(_a.multiply(a, weights, dtype=dtype), axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def _keep(result, a, axis):
    axes = range(a.ndim) if axis is None else {one % a.ndim for one in (axis if isinstance(axis, tuple) else (axis,))}
    return result.reshape(tuple(1 if i in axes else n for i, n in enumerate(a.shape)))


# ---- differences and sums along an axis


def diff(a, n=1, axis=-1, prepend=None, append=None):
    """Differences of neighbouring elements, `n` times."""
    from vmhost.engine.numpy._shapes import _axis

    if n == 0:
        return a
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    a = _a.asarray(a)
    if a.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    axis, pieces = _axis(axis, a.ndim), [a]
    for extra, front in ((prepend, True), (append, False)):
        if extra is not None:
            extra = _a.asarray(extra)
            if extra.ndim == 0:
                sizes = list(a.shape)
                sizes[axis] = 1
                extra = _a.broadcast_to(extra, tuple(sizes))
            pieces.insert(0, extra) if front else pieces.append(extra)
    if len(pieces) > 1:
        a = _a.concatenate(pieces, axis)
    before = (slice(None),) * axis
    for _ in range(n):
        later, earlier = a[(*before, slice(1, None))], a[(*before, slice(None, -1))]
        a = _a.not_equal(later, earlier) if a.dtype.kind == "b" else later - earlier
    return a


def ediff1d(ary, to_end=None, to_begin=None):
    """Differences of neighbouring elements of the flat array, between `to_begin` and `to_end`, in its dtype."""
    ary = _a.ravel(ary)
    pieces = [ary[1:] - ary[:-1]]
    for name, extra in (("to_begin", to_begin), ("to_end", to_end)):
        if extra is None:
            continue
        extra = _a.asarray(extra)
        if not _a.can_cast(extra.dtype, ary.dtype, "same_kind"):
            raise TypeError(f"dtype of `{name}` must be compatible with input `ary` under the `same_kind` rule.")
        pieces.insert(0 if name == "to_begin" else len(pieces), extra.astype(ary.dtype).ravel())
    return pieces[0] if len(pieces) == 1 else _a.concatenate(pieces)


def gradient(f, *varargs, axis=None, edge_order=1):
    """Central differences inside, one-sided differences of order `edge_order` (1 or 2) at the ends. `varargs`: one step
    for all axes, or for each axis its step or the positions along it."""
    from vmhost.engine.numpy._shapes import _axes, moveaxis

    f = _a.asarray(f)
    axes = tuple(range(f.ndim)) if axis is None else _axes(axis, f.ndim)
    if len(varargs) == 0:
        steps = [1.0] * len(axes)
    elif len(varargs) == 1 and _a.asarray(varargs[0]).ndim == 0:
        steps = list(varargs) * len(axes)
    elif len(varargs) == len(axes):
        steps = [_steps(one, f.shape[axes[i]]) for i, one in enumerate(varargs)]
    else:
        raise TypeError("invalid number of arguments")
    if edge_order > 2:
        raise ValueError("'edge_order' greater than 2 not supported")
    if f.dtype.kind in "iub":
        f = f.astype(float) if f.dtype.kind != "b" else f
    dtype = f.dtype if f.dtype.kind in "fc" else _a.float64
    results = []
    for one, step in zip(axes, steps):
        if f.shape[one] < edge_order + 1:
            raise ValueError(
                "Shape of array too small to calculate a numerical gradient, at least (edge_order + 1) elements are"
                " required."
            )
        result, length = _a.empty(f.shape, dtype), f.shape[one]
        y, to = (f, result) if one == f.ndim - 1 else (moveaxis(f, one, -1), moveaxis(result, one, -1))
        if type(step) is float or _a.asarray(step).ndim == 0:
            to[..., 1:-1] = (y[..., 2:] - y[..., :-2]) / (2.0 * step)
            if edge_order == 1 and length > 2:  # both ends at once
                to[..., :: length - 1] = (y[..., 1 :: length - 2] - y[..., : -1 : length - 2]) / step
                results.append(result)
                continue
            near = far = (step, step)
        else:
            before, after = step[:-1], step[1:]
            to[..., 1:-1] = (
                -after / (before * (before + after)) * y[..., :-2]
                + (after - before) / (before * after) * y[..., 1:-1]
                + before / (after * (before + after)) * y[..., 2:]
            )
            near, far = (step[0], step[min(1, len(step) - 1)]), (step[-1], step[max(-2, -len(step))])
        if edge_order == 1:
            to[..., 0] = (y[..., 1] - y[..., 0]) / near[0]
            to[..., -1] = (y[..., -1] - y[..., -2]) / far[0]
        else:
            for end, inner, outer, (d1, d2), sign in ((0, 1, 2, near, 1), (-1, -2, -3, far, -1)):
                to[..., end] = sign * (
                    -(2.0 * d1 + d2) / (d1 * (d1 + d2)) * y[..., end]
                    + (d1 + d2) / (d1 * d2) * y[..., inner]
                    - d1 / (d2 * (d1 + d2)) * y[..., outer]
                )
        results.append(result)
    return results[0] if len(results) == 1 else tuple(results)


def _steps(positions, length):
    """The step of `gradient` along an axis: a number, or the distances of neighbouring positions."""
    positions = _a.asarray(positions)
    if positions.ndim == 0:
        return positions
    if positions.ndim != 1:
        raise ValueError("distances must be either scalars or 1d")
    if len(positions) != length:
        raise ValueError("when 1d, distances must match the length of the corresponding dimension")
    distances = diff(positions.astype(float) if positions.dtype.kind in "iu" else positions)
    return distances[0] if len(distances) and (distances == distances[0]).all() else distances


def trapezoid(y, x=None, dx=1.0, axis=-1):
    """The integral by the trapezoidal rule."""
    from vmhost.engine.numpy._shapes import moveaxis

    y = moveaxis(_a.asarray(y), axis, -1)
    if x is None:
        width = dx
    else:
        x = _a.asarray(x)
        width = diff(x) if x.ndim == 1 else diff(moveaxis(x, axis, -1))
    return (width * (y[..., 1:] + y[..., :-1]) / 2.0).sum(-1)


def cumulative_sum(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
    return _cumulative(_a.cumsum, 0, x, axis, dtype, out, include_initial)


def cumulative_prod(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
    return _cumulative(_a.cumprod, 1, x, axis, dtype, out, include_initial)


def _cumulative(scan, start, x, axis, dtype, out, include_initial):
    x = _a.asarray(x)
    if x.ndim == 0:
        x = x.reshape(1)
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


def _sample_weights(weights, name, count):
    weights = _a.array(weights, float)
    if weights.ndim > 1:
        raise RuntimeError(f"cannot handle multidimensional {name}")
    if weights.shape[0] != count:
        raise RuntimeError(f"incompatible numbers of samples and {name}")
    if (weights < 0).any():
        raise ValueError(f"{name} cannot be negative")
    return weights


def cov(m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None):
    """The covariance matrix of the rows (variables) of `m`. `fweights` says how often each sample occurs, `aweights`
    how important it is."""
    if ddof is not None and ddof != int(ddof):
        raise ValueError("ddof must be integer")
    m = _a.asarray(m)
    if m.ndim > 2:
        raise ValueError("m has more than 2 dimensions")
    y = None if y is None else _a.asarray(y)
    if y is not None and y.ndim > 2:
        raise ValueError("y has more than 2 dimensions")
    if dtype is None:
        dtype = _a.result_type(m, _a.float64) if y is None else _a.result_type(m, y, _a.float64)
    rows = _a.array(m, dtype, ndmin=2)
    if not rowvar and m.ndim != 1:
        rows = rows.T
    if rows.shape[0] == 0:
        return _a.zeros((0, 0))
    if y is not None:
        y = _a.array(y, dtype, ndmin=2)
        rows = _a.concatenate((rows, y.T if not rowvar and y.shape[0] != 1 else y))
    ddof = (0 if bias else 1) if ddof is None else ddof
    count = rows.shape[1]
    weights = None
    if fweights is not None:
        if (_a.asarray(fweights) != round(_a.asarray(fweights))).any():
            raise TypeError("fweights must be integer")
        weights = _sample_weights(fweights, "fweights", count)
    if aweights is not None:
        analytic_weights = _sample_weights(aweights, "aweights", count)
        weights = analytic_weights if weights is None else weights * analytic_weights
    means, total = average(rows, 1, weights, True, keepdims=True)
    total = total[0, 0]
    if weights is None:
        divisor = count - ddof
    elif ddof == 0:
        divisor = total
    elif aweights is None:
        divisor = total - ddof
    else:
        divisor = total - ddof * (weights * analytic_weights).sum() / total
    rows = rows - means
    product = _a.dot(rows, _a.conjugate((rows if weights is None else rows * weights).T))
    divisor = divisor.real
    return _a.squeeze(product * (1.0 / float(divisor) if divisor > 0 else float("inf")))[()]


def corrcoef(x, y=None, rowvar=True, *, dtype=None):
    """The matrix of correlation coefficients of the rows (variables) of `x`."""
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    deviation = _a.sqrt(c.diagonal().real)
    c = c / deviation[:, None] / deviation
    if c.dtype.kind == "c":
        c.real, c.imag = _a.clip(c.real, -1, 1), _a.clip(c.imag, -1, 1)
        return c
    return _a.clip(c, -1, 1)


# ---- rounding


def round(a, decimals=0, out=None):
    """Rounds to `decimals` decimal places, halves to even."""
    a, decimals = _a.asarray(a), _index(decimals)
    if not -1 << 31 <= decimals < 1 << 31:
        raise OverflowError(f"decimals must fit 32 bits, got an integer of {decimals.bit_length()}")
    power = 10.0 ** abs(decimals) if abs(decimals) <= 308 else float("inf")
    if a.dtype.kind in "iub":
        if decimals >= 0:
            return _finish(+a if a.dtype.kind != "b" else a.astype(_a.float16), out)
        # every integer is less than half of 10**20 and rounds to 0
        result = (_a.rint(a / power) * power).astype(a.dtype) if decimals > -20 else _a.zeros(a.shape, a.dtype)
    elif decimals == 0:
        result = _a.rint(a)
    elif decimals > 0:
        result = _a.rint(a * power) / power
    else:
        result = _a.rint(a / power) * power
    return _finish(result, out)


around = round


def fix(x, out=None):
    return _a.trunc(x, out=out)
