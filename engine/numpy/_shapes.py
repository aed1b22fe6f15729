"""Functions that rearrange elements: axes, broadcasting, stacking, splitting, tiling, rolling, inserting, and access by
index."""

from operator import index

from vmhost.engine import _array as _a
from vmhost.engine._array import AxisError


def _axis(axis, rank, name=None):
    number = index(axis)
    if not -rank <= number < rank:
        prefix = f"{name}: " if name else ""
        raise AxisError(f"{prefix}axis {number} is out of bounds for array of dimension {rank}")
    return number % rank


def _integers(value):
    """The integers of an array, a range or another sequence; of one integer, itself."""
    try:
        return (index(value),)
    except TypeError:
        return tuple(map(index, value))


def clip_mode(mode):
    """`mode`, which says what becomes of indices out of bounds."""
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    return mode


def _axes(axes, rank, name=None):
    axes = axes if isinstance(axes, (tuple, list)) else _integers(axes)
    numbers = tuple(_axis(axis, rank, name) for axis in axes)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"repeated axis in `{name}` argument" if name else "repeated axis")
    return numbers


# ---- axes and broadcasting


def ndim(a):
    return _a.asarray(a).ndim


def shape(a):
    return _a.asarray(a).shape


def size(a, axis=None):
    a = _a.asarray(a)
    if axis is None:
        return a.size
    count = 1
    for one in _axes(axis, a.ndim):
        count *= a.shape[one]
    return count


def expand_dims(a, axis):
    """A view with dimensions of size 1 at the positions `axis` of the result."""
    a = _a.asarray(a)
    if not isinstance(axis, (tuple, list)):
        return a.reshape(_with_one(a.shape, _axis(axis, a.ndim + 1)))
    rank = a.ndim + len(axis)
    axes = _axes(axis, rank)
    sizes = iter(a.shape)
    return a.reshape([1 if i in axes else next(sizes) for i in range(rank)])


def _with_one(shape, axis):
    return shape[:axis] + (1,) + shape[axis:]


def moveaxis(a, source, destination):
    """A view with the dimensions `source` moved to `destination`."""
    a = _a.asarray(a)
    source, destination = _axes(source, a.ndim, "source"), _axes(destination, a.ndim, "destination")
    if len(source) != len(destination):
        raise ValueError("`source` and `destination` arguments must have the same number of elements")
    order = [i for i in range(a.ndim) if i not in source]
    for to, origin in sorted(zip(destination, source)):
        order.insert(to, origin)
    return a.transpose(order)


def rollaxis(a, axis, start=0):
    rank = a.ndim
    axis = _axis(axis, rank)
    if not -rank <= start <= rank:
        raise AxisError(f"'start' arg requires {-rank} <= start < {rank + 1}, but {start} was passed in")
    start += rank if start < 0 else 0
    order = list(range(rank))
    order.remove(axis)
    order.insert(start - (axis < start), axis)
    return a.transpose(order)


def matrix_transpose(x):
    x = _a.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {x.ndim}")
    return x.swapaxes(-1, -2)


_BACKWARDS = slice(None, None, -1)


def flip(m, axis=None):
    """A view with the elements reversed along the axes."""
    m = _a.asarray(m)
    if axis is None:
        return m[(_BACKWARDS,) * m.ndim]
    chosen = _axes(axis, m.ndim)
    return m[tuple(_BACKWARDS if i in chosen else slice(None) for i in range(m.ndim))]


def flipud(m):
    return flip(m, 0)


def fliplr(m):
    return flip(m, 1)


def rot90(m, k=1, axes=(0, 1)):
    m = _a.asarray(m)
    first, second = (_axis(axis, m.ndim) if -m.ndim <= axis < m.ndim else axis for axis in axes)
    if m.ndim < 2 or first == second or first >= m.ndim or second >= m.ndim:
        raise ValueError("Axes must be different.")
    k %= 4
    if k == 0:
        return m[...]
    if k == 2:
        return flip(flip(m, first), second)
    order = list(range(m.ndim))
    order[first], order[second] = order[second], order[first]
    return flip(m, second).transpose(order) if k == 1 else flip(m.transpose(order), second)


def atleast_1d(*arys):
    results = [a if a.ndim else a.reshape(1) for a in map(_a.asarray, arys)]
    return results[0] if len(results) == 1 else tuple(results)


def atleast_2d(*arys):
    results = [a if a.ndim >= 2 else a.reshape(1, -1) for a in map(_a.asarray, arys)]
    return results[0] if len(results) == 1 else tuple(results)


def atleast_3d(*arys):
    results = [
        a if a.ndim >= 3 else a.reshape(1, -1, 1) if a.ndim < 2 else a[:, :, None] for a in map(_a.asarray, arys)
    ]
    return results[0] if len(results) == 1 else tuple(results)


def resize(a, new_shape):
    """The elements, repeated as needed, in a new shape."""
    a = _a.ravel(a)
    sizes = _integers(new_shape)
    count = 1
    for one in sizes:
        count *= one
        if one < 0:
            raise ValueError("all elements of `new_shape` must be non-negative")
    if a.size == 0 or count == 0:
        return _a.zeros(sizes, a.dtype)
    return tile(a, -(-count // a.size))[:count].reshape(sizes)


def broadcast_shapes(*args):
    """The shape that arrays of these shapes broadcast to."""
    shapes = [(index(shape),) if hasattr(shape, "__index__") else tuple(map(index, shape)) for shape in args]
    if any(size < 0 for shape in shapes for size in shape):
        raise ValueError("negative dimensions are not allowed")
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    raise ValueError(
                        "shape mismatch: objects cannot be broadcast to a single shape.  Mismatch is between arg 0"
                        f" with shape {shapes[0]} and arg {shapes.index(shape)} with shape {shape}."
                    )
                result[i] = size
    return tuple(result)


def broadcast_arrays(*args, subok=False):
    """Views of all arrays with their common shape."""
    arrays = [_a.asarray(array) for array in args]
    shape = broadcast_shapes(*(array.shape for array in arrays))
    return tuple(array if array.shape == shape else _a.broadcast_to(array, shape) for array in arrays)


# ---- joining and splitting


def _stacked(arrays):
    """The arrays to stack; an iterator is none, as it may be read once only."""
    if not hasattr(arrays, "__getitem__"):
        raise TypeError('arrays to stack must be passed as a "sequence" type such as list or tuple.')
    return arrays


def stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    """Joins arrays of equal shape along a new axis."""
    arrays = [_a.asarray(array) for array in (arrays if isinstance(arrays, (list, tuple)) else _stacked(arrays))]
    if not arrays:
        raise ValueError("need at least one array to stack")
    shape = arrays[0].shape
    for array in arrays:
        if array.shape != shape:
            raise ValueError("all input arrays must have the same shape")
    axis = _axis(axis, len(shape) + 1)
    shape = _with_one(shape, axis)
    return _a.concatenate([array.reshape(shape) for array in arrays], axis, out, dtype=dtype, casting=casting)


def vstack(tup, *, dtype=None, casting="same_kind"):
    return _a.concatenate([atleast_2d(array) for array in _stacked(tup)], 0, dtype=dtype, casting=casting)


row_stack = vstack


def hstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_1d(array) for array in _stacked(tup)]
    return _a.concatenate(arrays, 0 if arrays and arrays[0].ndim == 1 else 1, dtype=dtype, casting=casting)


def dstack(tup):
    return _a.concatenate([atleast_3d(array) for array in _stacked(tup)], 2)


def column_stack(tup):
    arrays = [_a.asarray(array) for array in _stacked(tup)]
    return _a.concatenate([array.reshape(-1, 1) if array.ndim < 2 else array for array in arrays], 1)


def block(arrays):
    """Joins nested lists of arrays: the innermost lists along the last axis, the lists around them along the axis
    before it, and so on."""
    depth = _block_depth(arrays, ())
    if depth is None:
        raise ValueError("List at arrays cannot be empty")
    rank = max(depth, _block_rank(arrays))
    joined = _block(arrays, depth, rank)
    return joined.copy() if depth == 0 else joined


def _block_depth(arrays, path):
    if isinstance(arrays, tuple):
        raise TypeError(
            f"arrays{''.join(f'[{i}]' for i in path)} is a tuple. Only lists can be used to arrange blocks, and"
            " np.block does not allow implicit conversion from tuple to ndarray."
        )
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        return None
    depths = [_block_depth(one, (*path, i)) for i, one in enumerate(arrays)]
    empty = next((i for i, depth in enumerate(depths) if depth is None), None)
    if empty is not None and all(depth is None or depth > 0 for depth in depths):
        raise ValueError(f"List at arrays{''.join(f'[{i}]' for i in (*path, empty))} cannot be empty")
    if len(set(depths)) > 1:
        raise ValueError(
            f"List depths are mismatched. First element was at depth {len(path) + 1 + (depths[0] or 1)}, but there is"
            " an element at another depth"
        )
    return 1 + depths[0]


def _block_rank(arrays):
    return max(map(_block_rank, arrays)) if isinstance(arrays, list) else ndim(arrays)


def _block(arrays, depth, rank):
    if depth == 0:
        return _a.array(arrays, ndmin=rank, copy=None)
    if depth == rank == 2:
        return _block_of_rows([[_a.array(one, ndmin=2, copy=None) for one in row] for row in arrays])
    return _a.concatenate([_block(one, depth - 1, rank) for one in arrays], -depth)


def _block_of_rows(rows):
    """`_block` for matrices: each is copied once, directly into the result."""
    widths = {sum(one.shape[1] for one in row) for row in rows}
    if len(rows) == 1 or len(widths) > 1 or any(len({one.shape[0] for one in row}) > 1 for row in rows):
        return _a.concatenate([_a.concatenate(row, 1) for row in rows])  # raises if the shapes do not fit
    result = _a.empty(
        (sum(row[0].shape[0] for row in rows), *widths), _a.result_type(*(one.dtype for row in rows for one in row))
    )
    top = 0
    for row in rows:
        bottom = top + row[0].shape[0]
        _a.concatenate(row, 1, out=result[top:bottom])
        top = bottom
    return result


def unstack(x, /, *, axis=0):
    x = _a.asarray(x)
    if x.ndim == 0:
        raise ValueError("Input array must be at least 1-d.")
    return tuple(moveaxis(x, axis, 0))


def array_split(ary, indices_or_sections, axis=0):
    """Views of parts along an axis: a number of nearly equal parts, or parts that start at these indices."""
    ary = _a.asarray(ary)
    axis = _axis(axis, ary.ndim)
    length = ary.shape[axis]
    try:
        cuts = [0, *(index(cut) for cut in indices_or_sections), length]
    except TypeError:
        sections = index(indices_or_sections)
        if sections <= 0:
            raise ValueError("number sections must be larger than 0.") from None
        each, extra = divmod(length, sections)
        cuts = [i * each + min(i, extra) for i in range(sections + 1)]
    before = (slice(None),) * axis
    return [ary[(*before, slice(start, stop))] for start, stop in zip(cuts, cuts[1:])]


def split(ary, indices_or_sections, axis=0):
    ary = _a.asarray(ary)
    if not hasattr(indices_or_sections, "__len__") and ary.shape[axis] % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return array_split(ary, indices_or_sections, axis)


def vsplit(ary, indices_or_sections):
    if ndim(ary) < 2:
        raise ValueError("vsplit only works on arrays of 2 or more dimensions")
    return split(ary, indices_or_sections, 0)


def hsplit(ary, indices_or_sections):
    if ndim(ary) == 0:
        raise ValueError("hsplit only works on arrays of 1 or more dimensions")
    return split(ary, indices_or_sections, 1 if ndim(ary) > 1 else 0)


def dsplit(ary, indices_or_sections):
    if ndim(ary) < 3:
        raise ValueError("dsplit only works on arrays of 3 or more dimensions")
    return split(ary, indices_or_sections, 2)


# ---- repeating and padding


def tile(A, reps):
    """`A` repeated `reps` times along each dimension."""
    reps = tuple(reps) if hasattr(reps, "__iter__") else (reps,)
    A = _a.asarray(A)
    rank = max(len(reps), A.ndim)
    reps = (1,) * (rank - len(reps)) + reps
    A = A.reshape((1,) * (rank - A.ndim) + A.shape)
    return _a._tile(A, tuple(n * r for n, r in zip(A.shape, reps)))


def repeat(a, repeats, axis=None):
    """Repeats each element (or row along `axis`)."""
    a = _a.asarray(a)
    if axis is None or not a.ndim:
        a, axis = a.ravel(), 0 if axis is None else axis
    axis = _axis(axis, a.ndim)
    if isinstance(repeats, int) and repeats >= 0:
        return _repeated(a, repeats, axis)
    counts = _a.asarray(repeats)
    if counts.dtype.kind not in "iub":
        raise TypeError(f"Cannot cast array data from {counts.dtype!r} to dtype('int64') according to the rule 'safe'")
    if (counts < 0).any():
        raise ValueError(
            "repeats may not contain negative values." if counts.ndim else "negative dimensions are not allowed"
        )
    length = a.shape[axis]
    if counts.size == 1:
        return _repeated(a, int(counts.item()), axis)
    if counts.shape != (length,):
        raise ValueError(f"operands could not be broadcast together with shape ({length},) ({counts.size},)")
    ends = counts.cumsum()
    return a.take(_a.searchsorted(ends, _a.arange(int(ends[-1]) if length else 0), side="right"), axis)


def _repeated(a, count, axis):
    before, length, after = a.shape[:axis], a.shape[axis], a.shape[axis + 1 :]
    copies = _a.broadcast_to(a.reshape((*before, length, 1, *after)), (*before, length, count, *after))
    return copies.copy().reshape((*before, length * count, *after))


def roll(a, shift, axis=None):
    """Shifts elements along the axes; those shifted past one end reappear at the other."""
    a = _a.asarray(a)
    if axis is None:
        return roll(a.ravel(), shift, 0).reshape(a.shape)
    axes = (axis,) if type(axis) is int else _integers(axis)
    shifts = [shift] if isinstance(shift, int) else [int(distance) for distance in _a.ravel(shift)]
    if len(shifts) == 1:
        shifts *= len(axes)
    elif len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ValueError("'shift' and 'axis' should be scalars or 1D sequences")
    total = [0] * a.ndim
    for one, distance in zip(axes, shifts):
        total[_axis(one, a.ndim)] += distance
    return _a._roll(a, tuple(distance % n if n else 0 for distance, n in zip(total, a.shape)))


# ---- inserting and removing


def append(arr, values, axis=None):
    if axis is None:
        return _a.concatenate((_a.ravel(arr), _a.ravel(values)))
    return _a.concatenate((_a.asarray(arr), _a.asarray(values)), axis)


def delete(arr, obj, axis=None):
    """`arr` without the elements (or rows along `axis`) at `obj`."""
    arr = _a.asarray(arr)
    if axis is None:
        arr, axis = arr.ravel(), 0
    axis = _axis(axis, arr.ndim)
    keep = _a.ones(arr.shape[axis], bool)
    if isinstance(obj, bool) or not isinstance(obj, (int, slice)):
        listed, obj = not isinstance(obj, _a.ndarray), _a.asarray(obj)
        if obj.dtype.kind not in "iub" and (obj.size or not listed):
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        if obj.dtype.kind == "b" and obj.shape != keep.shape:
            raise ValueError(
                f"boolean array argument obj to delete must be one dimensional and match the axis length of {len(keep)}"
            )
        if obj.size == 0:
            return arr.copy()
        if obj.size <= 16 and obj.dtype.kind == "i":  # few: join the slices between them
            n = len(keep)
            removed = sorted({position if position >= 0 else position + n for position in obj.ravel().tolist()})
            if 0 <= removed[0] and removed[-1] < n:
                ends = zip([0, *(position + 1 for position in removed)], [*removed, n], strict=True)
                return _a.concatenate([arr[(slice(None),) * axis + (slice(*pair),)] for pair in ends], axis)
    if isinstance(obj, int) and not -len(keep) <= obj < len(keep):
        raise IndexError(f"index {obj} is out of bounds for axis {axis} with size {len(keep)}")
    keep[obj] = False
    return arr[(slice(None),) * axis + (keep,)]


def insert(arr, obj, values, axis=None):
    """`arr` with `values` inserted before `obj`."""
    arr = _a.asarray(arr)
    if axis is None:
        arr, axis = arr.ravel(), 0
    axis = _axis(axis, arr.ndim)
    length = arr.shape[axis]
    if isinstance(obj, slice):
        indices = _a.arange(*obj.indices(length))
    else:
        indices = _a.asarray(obj)
        if indices.dtype.kind == "b":
            if indices.ndim != 1:
                raise ValueError("boolean array argument obj to insert must be one dimensional")
            indices = indices.nonzero()[0]
        elif indices.ndim > 1:
            raise ValueError("index array argument obj to insert must be one dimensional or scalar")
        elif indices.ndim and indices.dtype.kind not in "iu" and (indices.size or isinstance(obj, _a.ndarray)):
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
    sizes, before = list(arr.shape), (slice(None),) * axis
    if indices.size == 1:
        position = indices.item()
        if not -length <= position <= length:
            raise IndexError(f"index {obj} is out of bounds for axis {axis} with size {length}")
        position += length if position < 0 else 0
        values = _a.array(values, arr.dtype, ndmin=arr.ndim)
        if indices.ndim == 0:
            values = moveaxis(values, 0, axis)
        count = values.shape[axis]
        sizes[axis] += count
        result = _a.empty(sizes, arr.dtype)
        result[(*before, slice(None, position))] = arr[(*before, slice(None, position))]
        result[(*before, slice(position, position + count))] = values
        result[(*before, slice(position + count, None))] = arr[(*before, slice(position, None))]
        return result
    indices = indices.astype(int)
    wrong = (indices < -length) | (indices > length)
    if wrong.any():
        raise IndexError(f"index {indices[wrong][0]} is out of bounds for axis {axis} with size {length}")
    indices = _a.where(indices < 0, indices + length, indices)
    target = indices.copy()
    order = indices.argsort()
    target[order] += _a.arange(len(indices))
    sizes[axis] += len(indices)
    result = _a.empty(sizes, arr.dtype)
    is_old = _a.ones(sizes[axis], bool)
    is_old[target] = False
    result[(*before, target)] = _a.asarray(values, arr.dtype)
    result[(*before, is_old)] = arr
    return result


def trim_zeros(filt, trim="fb", axis=None):
    """Removes zeros at the front ("f") and the back ("b") of the axes."""
    original, filt = filt, _a.asarray(filt)
    trim = trim.lower()
    if trim not in ("fb", "bf", "f", "b"):
        raise ValueError(f"unexpected character(s) in `trim`: {trim!r}")
    axes = tuple(range(filt.ndim)) if axis is None else _axes(axis, filt.ndim, "axis")
    if not axes:
        return filt
    key = [slice(None)] * filt.ndim
    for dimension, indices in enumerate(filt.nonzero()):
        if dimension in axes:
            any_nonzero = len(indices) > 0
            key[dimension] = slice(
                int(indices.min()) if "f" in trim and any_nonzero else None if any_nonzero else 0,
                int(indices.max()) + 1 if "b" in trim and any_nonzero else None if any_nonzero else 0,
            )
    return original[key[0]] if filt.ndim == 1 else filt[tuple(key)]


# ---- access by index, by mask, by condition


def take_along_axis(arr, indices, axis=-1):
    """For each position along `axis`, the element at its index in `indices`."""
    arr = _a.asarray(arr)
    if axis is None:
        return arr.ravel()[_flat_indices(indices)]
    return arr[_along(arr, indices, axis)]


def put_along_axis(arr, indices, values, axis):
    if axis is None:
        arr.reshape(-1)[_flat_indices(indices)] = values
    else:
        arr[_along(arr, indices, axis)] = values


def _flat_indices(indices):
    indices = _a.asarray(indices)
    if indices.ndim != 1:
        raise ValueError("when axis=None, `indices` must have a single dimension.")
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    return indices


def _along(arr, indices, axis):
    axis = _axis(axis, arr.ndim)
    indices = _a.asarray(indices)
    if indices.ndim != arr.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    rank = arr.ndim
    return tuple(
        indices if i == axis else _a.arange(arr.shape[i]).reshape((1,) * i + (-1,) + (1,) * (rank - 1 - i))
        for i in range(rank)
    )


def put(a, ind, v, mode="raise"):
    """Sets elements of the flat array."""
    clip_mode(mode)
    if not a.flags.writeable:
        raise ValueError("put: output array is read-only")
    if not a.ndim:
        a = a.reshape(1)
    if not a.size and _a.asarray(ind).size:
        raise IndexError("cannot replace elements of an empty array")
    if not _a.asarray(v).size:
        return
    if mode == "raise":
        ind = _a.asarray(ind).ravel()
        wrong = (ind < -a.size) | (ind >= a.size)
        if wrong.any():
            raise IndexError(f"index {ind[wrong][0]} is out of bounds for axis 0 with size {a.size}")
    elif mode == "wrap":
        ind = _a.asarray(ind).ravel() % a.size
    else:
        ind = _a.clip(_a.asarray(ind).ravel(), 0, a.size - 1)
    values = _a.ravel(_a.asarray(v, a.dtype))
    if not len(ind) or not len(values):
        return
    indices = _unravel(ind, a.shape)
    a[indices] = values[_a.arange(len(ind)) % len(values)]


def _unravel(flat, shape):
    flat = _a.where(flat < 0, flat + _count(shape), flat)
    indices = []
    for n in reversed(shape):
        indices.append(flat % n if len(indices) < len(shape) - 1 else flat)
        flat = flat // n
    return tuple(reversed(indices))


def _count(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def place(arr, mask, vals):
    """Sets the elements where `mask` is true from `vals`, repeated as needed."""
    if not isinstance(arr, _a.ndarray):
        raise TypeError(f"argument 1 must be numpy.ndarray, not {type(arr).__name__}")
    mask = _a.asarray(mask, bool)
    values = _a.ravel(_a.asarray(vals, arr.dtype))
    count = int(_a.count_nonzero(mask))
    if count and not len(values):
        raise ValueError("Cannot insert from an empty array!")
    if count:
        arr[mask] = values[_a.arange(count) % len(values)]


def putmask(a, /, mask, values):
    """Sets the elements where `mask` is true to those at the same positions of `values`, repeated to `a`'s size."""
    mask, values = _a.asarray(mask, bool), resize(_a.asarray(values, a.dtype), a.shape)
    if mask.size != a.size:
        raise ValueError("putmask: mask and data must be the same size")
    a[...] = _a.where(mask.reshape(a.shape), values, a)


def extract(condition, arr):
    return _a.take(_a.ravel(arr), _a.nonzero(_a.ravel(_a.asarray(condition)))[0])


def compress(condition, a, axis=None, out=None):
    """The elements (or rows along `axis`) where `condition` is true."""
    condition = _a.asarray(condition)
    if condition.ndim != 1:
        raise ValueError("condition must be a 1-d array")
    return _a.take(a, (condition != 0).nonzero()[0], axis, out)


MAX_CHOICE_PASSES = 4  # choices; for more, gathering is faster than one pass per choice


def choose(a, choices, out=None, mode="raise"):
    """For each position, the element of choices[i], where i is `a`'s element."""
    dtype = _common_dtype(choices)
    a, *choices = broadcast_arrays(a, *(_a.asarray(choice).astype(dtype, copy=False) for choice in choices))
    if not _a.can_cast(a.dtype, _a.int64):
        raise TypeError(f"Cannot cast array data from {a.dtype!r} to dtype('int64') according to the rule 'safe'")
    if clip_mode(mode) == "wrap":
        a = a % len(choices)
    elif mode == "clip":
        a = _a.clip(a, 0, len(choices) - 1)
    elif a.size and (a.min() < 0 or a.max() >= len(choices)):
        raise ValueError("invalid entry in choice array")
    if len(choices) <= MAX_CHOICE_PASSES:
        result = choices[-1].copy()
        for number, choice in enumerate(choices[:-1]):
            result = _a.where(a == number, choice, result)
    else:
        result = stack(choices)[(a, *_grid(a.shape))]
    if out is not None:
        out[...] = result.astype(out.dtype, copy=False)
        return out
    return result


def _common_dtype(values):
    """The dtype that arrays and Python's numbers, which are weak, promote to."""
    return _a.result_type(*(one if isinstance(one, (int, float, complex)) else _a.asarray(one) for one in values))


def _grid(shape):
    rank = len(shape)
    return tuple(_a.arange(n).reshape((1,) * i + (-1,) + (1,) * (rank - 1 - i)) for i, n in enumerate(shape))


def select(condlist, choicelist, default=0):
    """For each position, the element of the first choice whose condition is true, else `default`."""
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    if not condlist:
        raise ValueError("select with an empty condition list is not possible")
    condlist = [_a.asarray(condition) for condition in condlist]
    for number, condition in enumerate(condlist):
        if condition.dtype.kind != "b":
            raise TypeError(f"invalid entry {number} in condlist: should be boolean ndarray")
    dtype = _common_dtype([*choicelist, default])
    result = _a.asarray(default).astype(dtype)
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        result = _a.where(condition, _a.asarray(choice).astype(dtype, copy=False), result)
    return result


def piecewise(x, condlist, funclist, *args, **kw):
    """Applies each function (or writes its number) where its condition is true, and an extra last one where none is."""
    x = _a.asarray(x)
    if not isinstance(condlist, (list, tuple)) or _a.asarray(condlist[0]).ndim == 0 and x.ndim:
        condlist = [condlist]
    conditions = [_a.asarray(condition, bool) for condition in condlist]
    result = _a.zeros(x.shape, x.dtype)
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"with {len(conditions)} condition(s), either {len(conditions)} or {len(conditions) + 1} functions are"
            " expected"
        )
    if len(funclist) == len(conditions) + 1:
        rest = _a.ones(x.shape, bool)
        for condition in conditions:
            rest = rest & ~condition
        conditions.append(rest)
    for condition, function in zip(conditions, funclist):
        if condition.any():
            result[condition] = function(x[condition], *args, **kw) if callable(function) else function
    return result
