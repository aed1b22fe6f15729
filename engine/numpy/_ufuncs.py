"""What a ufunc can do beyond being called: `add.reduce`, `maximum.accumulate`, `multiply.outer`, `add.at`."""

from engine import _array as _a

_REDUCTIONS = {
    "add": _a.sum, "multiply": _a.prod, "maximum": _a.max, "minimum": _a.min, "fmax": _a._fmax, "fmin": _a._fmin, "logical_and": _a.all, "logical_or": _a.any,
}
_SCANS = {"add": _a.cumsum, "multiply": _a.cumprod, "maximum": _a._cummax, "minimum": _a._cummin}


def _identity_of_first(ufunc, array, axis):
    """Folds with the ufunc itself, an element after the other along one axis: [first, first∘second, ...]."""
    made = _a.empty(array.shape, ufunc(array[:1], array[:1]).dtype if array.ndim else array.dtype)
    from engine.numpy._shapes import moveaxis

    source, target = moveaxis(array, axis, 0), moveaxis(made, axis, 0)
    if len(source):
        target[0] = source[0]
    for i in range(1, len(source)):
        target[i] = ufunc(target[i - 1], source[i])
    return made


def reduce(ufunc, array, axis=0, dtype=None, out=None, keepdims=False, initial=None, where=True):
    name = ufunc.__name__
    if name in _REDUCTIONS:
        given = {"axis": axis, "out": out, "keepdims": keepdims}
        if name not in ("logical_and", "logical_or"):
            given["initial"] = initial
        if dtype is not None:
            array = _a.asarray(array).astype(dtype)
            if name in ("add", "multiply"):
                given["dtype"] = dtype
        if where is not True:
            given["where"] = where
        return _REDUCTIONS[name](array, **given)
    if ufunc.nin != 2:
        raise ValueError("reduce only supported for binary functions")
    array = _a.asarray(array) if dtype is None else _a.asarray(array, dtype)
    if axis is None:
        array, axis = array.ravel(), 0
    if array.shape[axis] == 0:
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    result = _a.take(_identity_of_first(ufunc, array, axis), -1, axis)
    if keepdims:
        from engine.numpy._shapes import expand_dims

        result = expand_dims(result, axis)
    if out is not None:
        out[...] = result
        return out
    return result


def accumulate(ufunc, array, axis=0, dtype=None, out=None):
    if ufunc.nin != 2:
        raise ValueError("accumulate only supported for binary functions")
    scan = _SCANS.get(ufunc.__name__)
    if scan is not None:
        return scan(array, axis, dtype, out)
    result = _identity_of_first(ufunc, _a.asarray(array, dtype), axis)
    if out is not None:
        out[...] = result
        return out
    return result


def outer(ufunc, A, B, **kwargs):
    A, B = _a.asarray(A), _a.asarray(B)
    return ufunc(A.reshape(A.shape + (1,) * B.ndim), B, **kwargs)


def at(ufunc, a, indices, b=None):
    """The operation at those places, once for each time that a place is named, in their order."""
    if ufunc.__name__ == "add" and b is not None and not isinstance(indices, (int, slice)):
        _a._scatter_add(a, indices, b)
        return
    named = _a.arange(a.size).reshape(a.shape)[indices]
    places = named.ravel()
    values = None if b is None else _a.broadcast_to(_a.asarray(b), named.shape).ravel()
    flat = a.ravel()
    waiting = _a.arange(len(places))
    while len(waiting):         # in each round every place that still waits takes its first turn
        order = places[waiting].argsort()
        sorted_places = places[waiting][order]
        first = _a.ones(len(waiting), bool)
        first[1:] = sorted_places[1:] != sorted_places[:-1]
        now = waiting[order[first]]
        flat[places[now]] = ufunc(flat[places[now]]) if values is None else ufunc(flat[places[now]], values[now])
        waiting = _a.sort(waiting[order[~first]])
    a[...] = flat.reshape(a.shape)


def reduceat(ufunc, array, indices, axis=0, dtype=None, out=None):
    """For each index the reduction up to the next one; the element itself where that is not further on."""
    from engine.numpy._shapes import moveaxis

    array, starts = _a.asarray(array, dtype), _a.asarray(indices)
    if not _a.can_cast(starts.dtype, _a.int64):
        raise TypeError(f"Cannot cast array data from {starts.dtype!r} to dtype('int64') according to the rule 'safe'")
    rows = moveaxis(array, axis, 0) if axis else array
    if ufunc.__name__ in _REDUCTIONS:
        result = _a._reduceat(_REDUCTIONS[ufunc.__name__].__name__.lstrip("_"), rows, _a.asarray(starts, int, "C"), ufunc.__name__)
    else:
        result = _folds_at(ufunc, rows, starts.tolist())
    result = moveaxis(result, 0, axis) if axis else result
    if out is not None:
        out[...] = result
        return out
    return result


def _folds_at(ufunc, rows, starts):
    if not starts:
        return rows[:0]
    for start in starts:
        if not 0 <= start < len(rows):
            raise IndexError(f"index {start} out-of-bounds in {ufunc.__name__}.reduceat [0, {len(rows)})")
    result = _a.empty((len(starts), *rows.shape[1:]), reduce(ufunc, rows[:1], 0).dtype)
    for place, (start, stop) in enumerate(zip(starts, [*starts[1:], len(rows)])):
        result[place] = reduce(ufunc, rows[start:stop], 0) if stop > start + 1 else rows[start]
    return result
