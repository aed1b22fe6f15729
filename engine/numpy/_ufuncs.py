"""Methods of ufuncs: `add.reduce`, `maximum.accumulate`, `multiply.outer`, `add.at`."""

from vmhost.engine import _array as _a

_REDUCTIONS = {
    "add": _a.sum,
    "multiply": _a.prod,
    "maximum": _a.max,
    "minimum": _a.min,
    "fmax": _a._fmax,
    "fmin": _a._fmin,
    "logical_and": _a.all,
    "logical_or": _a.any,
}
_SCANS = {"add": _a.cumsum, "multiply": _a.cumprod, "maximum": _a._cummax, "minimum": _a._cummin}


def _scan(ufunc, rows, result):
    """Fills `result` with the running results of the ufunc over the first dimension: [r0, r0∘r1, (r0∘r1)∘r2, ...]."""
    if len(rows):
        result[0] = rows[0]
    for i in range(1, len(rows)):
        result[i] = ufunc(result[i - 1], rows[i])
    return result


def _check_binary(ufunc, method):
    if ufunc.nin != 2:
        raise ValueError(f"{method} only supported for binary functions")


def _store(result, out, name):
    if out is None:
        return result
    if out.ndim != result.ndim:
        raise ValueError(
            f"output parameter for reduction operation {name} has the wrong number of dimensions: Found {out.ndim} but"
            f" expected {result.ndim}"
        )
    if out.shape != result.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the broadcast shape {result.shape}"
        )
    if not _a.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast ufunc '{name}' output from {result.dtype!r} to {out.dtype!r} with casting rule 'same_kind'"
        )
    out[...] = result.astype(out.dtype, copy=False)
    return out


_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def _check_loop(ufunc, array, dtype):
    """A comparison takes its own results only where the elements are bool."""
    if ufunc.__name__ in _COMPARISONS and (array.dtype if dtype is None else _a.dtype(dtype)).kind != "b":
        raise TypeError(f"No loop matching the specified signature and casting was found for ufunc {ufunc.__name__}")


_UNSAID = object()


def reduce(ufunc, array, axis=0, dtype=None, out=None, keepdims=False, initial=_UNSAID, where=True):
    name = ufunc.__name__
    if initial is None and ufunc.identity is not None and not _a.asarray(array).size:
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    initial = None if initial is _UNSAID else initial
    if name in _REDUCTIONS:
        kwargs = {"axis": axis, "out": out, "keepdims": keepdims}
        if name not in ("logical_and", "logical_or"):
            kwargs["initial"] = initial
        if dtype is not None:
            array = _a.asarray(array).astype(dtype)
            if name in ("add", "multiply"):
                kwargs["dtype"] = dtype
        if where is not True:
            kwargs["where"] = where
        return _REDUCTIONS[name](array, **kwargs)
    _check_binary(ufunc, "reduce")
    array = _a.asarray(array)
    _check_loop(ufunc, array, dtype)
    array = array if dtype is None else _a.asarray(array, dtype)
    result = _reduce_axes(ufunc, array, _reduced_axes(ufunc, array, axis), initial, where, keepdims)
    return _store(result, out, name)


def _reduced_axes(ufunc, array, axis):
    from vmhost.engine.numpy._shapes import _axes

    if array.ndim == 0 and axis in (0, -1):
        return ()
    axes = tuple(range(array.ndim)) if axis is None else _axes(axis, array.ndim)
    if len(axes) > 1 and ufunc.identity is None:
        raise ValueError(
            f"reduction operation '{ufunc.__name__}' is not reorderable, so at most one axis may be specified"
        )
    return axes


def _reduce_axes(ufunc, array, axes, initial, where, keepdims):
    """Reduces over these axes, which are merged into the first dimension; `initial` comes before its first element."""
    others = [i for i in range(array.ndim) if i not in axes]
    count, kept = 1, [array.shape[i] for i in others]
    for i in axes:
        count *= array.shape[i]
    rows = array.transpose([*axes, *others]).reshape([count, *kept])
    start = ufunc.identity if initial is None and (where is not True or not count) else initial
    if start is None and where is not True:
        raise ValueError(
            f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has to"
            " specify 'initial'"
        )
    if start is None and not count:
        raise ValueError(f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    sample = _a.ones((1,), array.dtype)
    dtype = ufunc(sample, sample).dtype
    if where is not True:
        mask = _a.broadcast_to(_a.asarray(where), array.shape).transpose([*axes, *others]).reshape(rows.shape)
    elif ufunc.identity is not None:  # any order is allowed: combine one half with the other
        while len(rows) > 8:
            half = len(rows) // 2
            rows = _a.concatenate([ufunc(rows[:half], rows[half : 2 * half]), rows[2 * half :]])
    total = _a.array(rows[0], dtype) if start is None else _a.full(kept, start, dtype)
    for i in range(start is None, len(rows)):
        next_total = ufunc(total, rows[i]).astype(dtype, copy=False)
        total = next_total if where is True else _a.where(mask[i], next_total, total)
    return total.reshape([1 if i in axes else size for i, size in enumerate(array.shape)]) if keepdims else total[()]


def accumulate(ufunc, array, axis=0, dtype=None, out=None):
    _check_binary(ufunc, "accumulate")
    scan = _SCANS.get(ufunc.__name__)
    if scan is not None:
        return scan(array, axis, dtype, out)
    from vmhost.engine.numpy._shapes import moveaxis

    array = _a.asarray(array)
    _check_loop(ufunc, array, dtype)
    array = _a.asarray(array, dtype)
    if not array.ndim:
        raise TypeError("cannot accumulate on a scalar")
    rows = moveaxis(array, axis, 0)
    result = _scan(ufunc, rows, _a.empty(rows.shape, ufunc(rows[:1], rows[:1]).dtype))
    return _store(moveaxis(result, 0, axis), out, ufunc.__name__)


def outer(ufunc, A, B, **kwargs):
    _check_binary(ufunc, "outer product")
    A, B = _a.asarray(A), _a.asarray(B)
    return ufunc(A.reshape(A.shape + (1,) * B.ndim), B, **kwargs)


def at(ufunc, a, indices, b=None):
    """Applies the operation in place at these indices: once per occurrence of an index, in order."""
    keys = indices if isinstance(indices, tuple) else (indices,)
    if ufunc.__name__ == "add" and b is not None and keys and all(isinstance(key, (list, _a.ndarray)) for key in keys):
        _a._scatter_add(a, indices, b)
        return
    selected = _a.arange(a.size).reshape(a.shape)[indices]
    flat_indices = selected.ravel()
    values = None if b is None else _a.broadcast_to(_a.asarray(b), selected.shape).ravel()
    flat = a.ravel()
    pending = _a.arange(len(flat_indices))
    while len(pending):  # each round applies the first pending occurrence of every index
        order = flat_indices[pending].argsort()
        sorted_indices = flat_indices[pending][order]
        first = _a.ones(len(pending), bool)
        first[1:] = sorted_indices[1:] != sorted_indices[:-1]
        batch = pending[order[first]]
        flat[flat_indices[batch]] = (
            ufunc(flat[flat_indices[batch]]) if values is None else ufunc(flat[flat_indices[batch]], values[batch])
        )
        pending = _a.sort(pending[order[~first]])
    a[...] = flat.reshape(a.shape)


def reduceat(ufunc, array, indices, axis=0, dtype=None, out=None):
    """For each index, the reduction up to the next index, or only its element if the next index is not larger."""
    from vmhost.engine.numpy._shapes import moveaxis

    _check_binary(ufunc, "reduceat")
    array, starts = _a.asarray(array, dtype), _a.asarray(indices)
    if not starts.size:
        starts = starts.astype(int)
    if not _a.can_cast(starts.dtype, _a.int64):
        raise TypeError(f"Cannot cast array data from {starts.dtype!r} to dtype('int64') according to the rule 'safe'")
    rows = moveaxis(array, axis, 0) if axis else array
    if ufunc.__name__ in _REDUCTIONS:
        result = _a._reduceat(
            _REDUCTIONS[ufunc.__name__].__name__.lstrip("_"), rows, _a.asarray(starts, int, "C"), ufunc.__name__
        )
    else:
        result = _reduce_slices(ufunc, rows, starts.tolist())
    result = moveaxis(result, 0, axis) if axis else result
    if out is not None:
        out[...] = result.astype(out.dtype, copy=False)
        return out
    return result


def _reduce_slices(ufunc, rows, starts):
    if not starts:
        return rows[:0]
    for start in starts:
        if not 0 <= start < len(rows):
            raise IndexError(f"index {start} out-of-bounds in {ufunc.__name__}.reduceat [0, {len(rows)})")
    result = _a.empty((len(starts), *rows.shape[1:]), reduce(ufunc, rows[:1], 0).dtype)
    for index, (start, stop) in enumerate(zip(starts, [*starts[1:], len(rows)])):
        result[index] = reduce(ufunc, rows[start:stop], 0) if stop > start + 1 else rows[start]
    return result
