"""Padding: what lies beyond an array's edges, made of the array itself or of given values."""

from engine import _array as _a
from engine.numpy._shapes import moveaxis

# what the engine pads by itself, in all dimensions at once
_PRIMITIVE = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3, "wrap": 4}

# the keyword arguments of each mode, as numpy.pad has them
_ALLOWED = {
    "empty": (), "edge": (), "wrap": (), "constant": ("constant_values",), "linear_ramp": ("end_values",), "maximum": ("stat_length",),
    "mean": ("stat_length",), "median": ("stat_length",), "minimum": ("stat_length",), "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
}


def _pairs(value, rank):
    """((before, after), ...) of numpy.pad's ways to give widths."""
    if isinstance(value, dict):
        pairs = [(0, 0)] * rank
        for axis, pair in value.items():
            pairs[axis] = (pair, pair) if not hasattr(pair, "__len__") else tuple(pair)
        return pairs
    return _a.broadcast_to(_a.asarray(value), (rank, 2)).tolist()


def pad(array, pad_width, mode="constant", **kwargs):
    """`array` with so many elements more in front of and behind each dimension."""
    array = _a.asarray(array)
    rank = array.ndim
    widths = _pairs(pad_width, rank)
    if any(int(width) != width for pair in widths for width in pair):
        raise TypeError("`pad_width` must be of integral type.")
    widths = [(int(before), int(after)) for before, after in widths]
    if any(width < 0 for pair in widths for width in pair):
        raise ValueError("index can't contain negative values")
    if callable(mode):
        return _by_function(array, widths, mode, kwargs)
    if mode not in _ALLOWED:
        raise ValueError(f"mode '{mode}' is not supported")
    wrong = set(kwargs) - set(_ALLOWED[mode])
    if wrong:
        raise ValueError(f"unsupported keyword arguments for mode '{mode}': {wrong}")
    if mode == "constant":
        return _constant(array, widths, kwargs.get("constant_values", 0))
    if mode == "empty":
        return _constant(array, widths, 0)
    for axis, (n, pair) in enumerate(zip(array.shape, widths)):
        if n == 0 and any(pair):
            raise ValueError(f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
    if mode in _PRIMITIVE and kwargs.get("reflect_type", "even") == "even":
        return _whole(array, widths, _PRIMITIVE[mode])
    if mode in ("reflect", "symmetric"):
        for axis, pair in enumerate(widths):
            array = _odd(array, axis, pair, mode == "symmetric")
        return array
    if mode == "linear_ramp":
        for axis, (pair, ends) in enumerate(zip(widths, _pairs(kwargs.get("end_values", 0), rank))):
            array = _ramps(array, axis, pair, ends)
        return array
    lengths = kwargs.get("stat_length")
    lengths = [(None, None)] * rank if lengths is None else _pairs(lengths, rank)
    for axis, (pair, length) in enumerate(zip(widths, lengths)):
        array = _statistic(array, axis, pair, mode, length)
    return array


def _whole(array, widths, mode, value=None):
    shape = tuple(before + n + after for n, (before, after) in zip(array.shape, widths))
    befores = tuple(before for before, _ in widths)
    return _a._pad(array, befores, shape, mode) if value is None else _a._pad(array, befores, shape, mode, value)


def _constant(array, widths, values):
    values = _pairs(values, array.ndim)
    if len({value for pair in values for value in pair}) <= 1:
        return _whole(array, widths, 0, _a.asarray(values[0][0] if values else 0).astype(array.dtype).item())
    for axis, ((before, after), (first, last)) in enumerate(zip(widths, values)):      # different edges: a dimension after the other
        size = array.shape[:axis], array.shape[axis + 1:]
        fronts = [_a.full((*size[0], width, *size[1]), value).astype(array.dtype) for width, value in ((before, first), (after, last))]
        array = _a.concatenate((fronts[0], array, fronts[1]), axis)
    return array


def _odd(array, axis, pair, with_edge):
    """Reflected through the edges' values: 2*edge - mirror image, again and again where the padding is longer than the array."""
    array = moveaxis(array, axis, 0)
    before, after = pair
    if len(array) == 1 and not with_edge:
        array = _a.concatenate((_a.broadcast_to(array, (before, *array.shape[1:])), array, _a.broadcast_to(array, (after, *array.shape[1:]))))
        before = after = 0
    skip = 0 if with_edge else 1
    while before or after:
        n = len(array)
        front, back = min(before, n - skip), min(after, n - skip)
        parts = [2 * array[:1] - array[skip:skip + front][::-1], array, 2 * array[-1:] - array[n - skip - back:n - skip][::-1]]
        array = _a.concatenate(parts)
        before, after = before - front, after - back
    return moveaxis(array, 0, axis)


def _ramps(array, axis, pair, ends):
    from engine.numpy._creation import linspace

    array = moveaxis(array, axis, 0)
    (before, after), (first, last) = pair, ends
    dtype = array.dtype
    front = linspace(first, array[0], before, False, dtype=dtype)
    back = linspace(last, array[-1], after, False, dtype=dtype)[::-1]
    return moveaxis(_a.concatenate((front, array, back)), 0, axis)


def _statistic(array, axis, pair, mode, lengths):
    from engine.numpy._quantiles import median

    find = {"maximum": _a.max, "minimum": _a.min, "mean": _a.mean, "median": median}[mode]
    array = moveaxis(array, axis, 0)
    n, values = len(array), []
    for length, front in zip(lengths, (True, False)):
        length = n if length is None else min(int(length), n)
        if length == 0 and mode in ("maximum", "minimum"):
            raise ValueError("stat_length of 0 yields no value for padding")
        value = _a.asarray(find(array[:length] if front else array[n - length:], 0))
        values.append((_a.rint(value) if array.dtype.kind in "iu" and value.dtype.kind == "f" else value).astype(array.dtype))
    parts = [_a.broadcast_to(values[0], (pair[0], *values[0].shape)), array, _a.broadcast_to(values[1], (pair[1], *values[1].shape))]
    return moveaxis(_a.concatenate(parts), 0, axis)


def _by_function(array, widths, function, kwargs):
    from engine.numpy._grids import ndindex

    made = _constant(array, widths, 0)
    for axis in range(made.ndim):
        rows = moveaxis(made, axis, -1)
        for place in ndindex(rows.shape[:-1]):
            row = rows[place]
            function(row, widths[axis], axis, kwargs)
    return made
