"""numpy.pad: arrays extended at their edges.

The five modes that only move elements are the engine's (`_array._pad`, regions of the raster primitive). The others
compute their values one dimension after the other, each over the result of the previous ones, as NumPy does.
"""

from vmhost.engine import _array as _a

_MOVES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3, "wrap": 4}
_OPTIONS = {
    "constant": "constant_values",
    "reflect": "reflect_type",
    "symmetric": "reflect_type",
    "linear_ramp": "end_values",
    "maximum": "stat_length",
    "mean": "stat_length",
    "median": "stat_length",
    "minimum": "stat_length",
    "edge": None,
    "wrap": None,
    "empty": None,
}


def _pairs(value, rank):
    """((before, after), ...) from each form in which numpy.pad accepts two values for each dimension."""
    value = _a.asarray(value)
    return _a.broadcast_to(value.ravel() if value.size == 1 else value, (rank, 2)).tolist()


def _counts(value, rank):
    pairs = [[int(number) for number in pair] for pair in _pairs(value, rank)]
    if any(number < 0 for pair in pairs for number in pair):
        raise ValueError("index can't contain negative values")
    return pairs


def _widths(pad_width, rank):
    if isinstance(pad_width, dict):
        pairs = [(0, 0)] * rank
        for axis, pair in pad_width.items():
            pairs[axis] = pair if isinstance(pair, tuple) else (pair, pair)
        pad_width = pairs or [(0, 0)]
    pad_width = _a.asarray(pad_width)
    if pad_width.dtype.kind != "i":
        raise TypeError("`pad_width` must be of integral type.")
    return _counts(pad_width, rank)


def pad(array, pad_width, mode="constant", **kwargs):
    """`array` extended before and after each dimension."""
    array = _a.asarray(array)
    widths = _widths(pad_width, array.ndim)
    before = tuple(pair[0] for pair in widths)
    shape = tuple(n + sum(pair) for n, pair in zip(array.shape, widths))
    if callable(mode):
        return _by_function(_a._pad(array, before, shape, _MOVES["constant"]), widths, mode, kwargs)
    if mode not in _OPTIONS:
        raise ValueError(f"mode '{mode}' is not supported")
    unsupported = set(kwargs) - {_OPTIONS[mode]}
    if unsupported:
        raise ValueError(f"unsupported keyword arguments for mode '{mode}': {unsupported}")
    option = next(iter(kwargs.values()), None)
    if mode in ("constant", "empty"):
        values = _pairs(0 if option is None else option, array.ndim)
        if len({value for pair in values for value in pair}) > 1:
            return _each_axis(array, widths, values, _constants)
        return _a._pad(
            array, before, shape, _MOVES["constant"], _a.asarray(values[0][0] if values else 0, array.dtype).item()
        )
    for axis, (n, pair) in enumerate(zip(array.shape, widths)):
        if n == 0 and any(pair):
            raise ValueError(f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
    if array.size == 0:
        return _a.empty(shape, array.dtype)
    if mode in _MOVES and (option is None or option != "odd"):
        return _a._pad(array, before, shape, _MOVES[mode])
    if mode == "linear_ramp":
        return _each_axis(array, widths, _pairs(0 if option is None else option, array.ndim), _ramps)
    if mode in _MOVES:
        return _each_axis(array, widths, [mode == "symmetric"] * array.ndim, _reflections)
    lengths = [(None, None)] * array.ndim if option is None else _counts(option, array.ndim)
    return _with_statistics(array, before, shape, mode, lengths)


def _each_axis(array, widths, options, edges):
    """Extends each axis in turn by what `edges(array, widths of the axis, its option)` returns for before and after,
    with that axis first."""
    from vmhost.engine.numpy._shapes import moveaxis

    for axis, (pair, option) in enumerate(zip(widths, options)):
        if any(pair):
            lines = moveaxis(array, axis, 0)
            front, back = edges(lines, pair, option)
            array = moveaxis(_a.concatenate((front, lines, back), dtype=array.dtype, casting="unsafe"), 0, axis)
    return _a.ascontiguousarray(array) if any(map(any, widths)) else array.copy()


def _constants(lines, widths, values):
    return (_a.full((width, *lines.shape[1:]), value, lines.dtype) for width, value in zip(widths, values))


def _ramps(lines, widths, ends):
    from vmhost.engine.numpy._creation import linspace

    front, back = (
        linspace(end, edge, width, endpoint=False, dtype=lines.dtype)
        for end, edge, width in zip(ends, (lines[0], lines[-1]), widths)
    )
    return front, back[::-1]


def _with_statistics(array, before, shape, mode, lengths):
    """`array` surrounded by a statistic (mode) of its edge elements: the outermost `lengths` of each line, or the whole
    line if None."""
    from vmhost.engine.numpy._quantiles import median

    function = {"maximum": _a.max, "minimum": _a.min, "mean": _a.mean, "median": median}[mode]
    result = _a._pad(array, before, shape, _MOVES["constant"])
    filled = [slice(start, start + length) for start, length in zip(before, array.shape)]
    for axis, (start, length, padded_length, pair) in enumerate(zip(before, array.shape, shape, lengths)):
        front, back = (length if one is None else min(one, length) for one in pair)
        if mode in ("maximum", "minimum") and 0 in pair:
            raise ValueError("stat_length of 0 yields no value for padding")
        if padded_length != length:
            if mode in ("maximum", "minimum") and not length:
                raise ValueError("stat_length of 0 yields no value for padding")
            stop, statistic = start + length, None
            for ends, edge in (
                (slice(start, start + front), slice(start)),
                (slice(stop - back, stop), slice(stop, None)),
            ):
                if statistic is None or not front == back == length:
                    filled[axis] = ends
                    statistic = function(result[tuple(filled)], axis=axis, keepdims=True)
                    if array.dtype.kind in "iu":
                        statistic = _a.rint(statistic)
                filled[axis] = edge
                result[tuple(filled)] = statistic
        filled[axis] = slice(None)
    return result


def _reflections(lines, widths, with_edge):
    """Odd reflections, i.e. mirrored around the edge's value. A padding wider than the line reflects earlier
    reflections."""
    length, (front, back) = len(lines), widths
    if length == 1:
        return (_a.broadcast_to(lines, (width, *lines.shape[1:])) for width in widths)
    period = length if with_edge else length - 1
    padded = _a.empty((front + length + back, *lines.shape[1:]), lines.dtype)
    start, stop = front, front + length  # of the filled part
    padded[start:stop] = lines
    while start > 0 or stop < len(padded):
        reach = (stop - start - (not with_edge)) // period * period
        first = start + (not with_edge)
        count = min(reach, start)
        padded[start - count : start] = 2 * padded[start : start + 1] - padded[first : first + count][::-1]
        start -= count
        last = stop - (not with_edge)
        count = min(reach, len(padded) - stop)
        padded[stop : stop + count] = 2 * padded[stop - 1 : stop] - padded[last - count : last][::-1]
        stop += count
    return padded[:front], padded[front + length :]


def _by_function(array, widths, function, options):
    """`function(vector, widths, axis, options)` fills the edges of every vector of the extended array, axis by axis."""
    from itertools import product

    from vmhost.engine.numpy._shapes import moveaxis

    for axis, pair in enumerate(widths):
        lines = moveaxis(array, axis, -1)
        for index in product(*map(range, lines.shape[:-1])):
            function(lines[(*index, ...)], tuple(pair), axis, options)
    return array
