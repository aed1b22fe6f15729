"""Functions applied along axes."""

from engine import _array as _a
from engine.numpy._shapes import _axis, expand_dims, moveaxis


def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    """What `func1d` makes of each 1-d slice along `axis`; its result's dimensions stand where that axis was."""
    arr = _a.asarray(arr)
    axis = _axis(axis, arr.ndim)
    rows = moveaxis(arr, axis, -1)
    outside, length = rows.shape[:-1], rows.shape[-1]
    if 0 in outside:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    rows = rows.reshape(-1, length)
    first = _a.asarray(func1d(rows[0], *args, **kwargs))
    made = _a.zeros((len(rows), *first.shape), first.dtype)
    made[0] = first
    for i in range(1, len(rows)):
        made[i] = func1d(rows[i], *args, **kwargs)
    made = made.reshape(outside + first.shape)
    rank = len(outside)
    return moveaxis(made, tuple(range(rank, rank + first.ndim)), tuple(range(axis, axis + first.ndim)))[()]


def apply_over_axes(func, a, axes):
    """`func(a, axis)` for one axis after the other; dimensions that it takes away are kept as size 1."""
    made = _a.asarray(a)
    rank = made.ndim
    for axis in axes if _a.asarray(axes).ndim else (axes,):
        axis = int(axis) + rank if axis < 0 else int(axis)
        result = func(made, axis)
        if result.ndim != rank:
            result = expand_dims(result, axis)
            if result.ndim != rank:
                raise ValueError("function is not returning an array of the correct shape")
        made = result
    return made


def iterable(y):
    try:
        iter(y)
    except TypeError:
        return False
    return True
