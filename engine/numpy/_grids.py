"""Index grids: open and full grids by slices, joining by index syntax, flat indices to coordinates and back, iteration
over all indices."""

from operator import index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _count, clip_mode

_INT64 = _a.dtype(int)


class _Grid:
    """`mgrid[0:5, 0:1:3j]`: coordinates of a grid, full or as one array for each dimension. A complex step is a number
    of points."""

    def __init__(self, sparse):
        self._sparse = sparse

    def __getitem__(self, key):
        if not isinstance(key, tuple):
            return _range(key)
        each = [_range(one) for one in key]
        dtype = _a.result_type(*each) if each else _a.dtype(int)
        rank = len(each)
        if self._sparse:
            return tuple(
                one.astype(dtype, copy=False).reshape((1,) * i + (-1,) + (1,) * (rank - 1 - i))
                for i, one in enumerate(each)
            )
        result = _a.empty((rank, *(len(one) for one in each)), dtype)
        for i, one in enumerate(each):
            result[i] = one.reshape((-1,) + (1,) * (rank - 1 - i))
        return result

    def __len__(self):
        return 0


def _range(key):
    """The numbers that a slice names."""
    start, stop, step = key.start, key.stop, key.step
    start = 0 if start is None else start
    if isinstance(step, complex) or isinstance(step, _a.ndarray) and step.dtype.kind == "c":
        points = int(abs(step))
        numbers = _a.arange(points) * 1.0
        if points > 1:
            numbers = numbers * ((stop - start) / (points - 1))
        numbers = numbers + start
        if isinstance(step, complex):
            return numbers
        return numbers.astype(_a.result_type(start, 0 if stop is None else stop, step.real))  # complex64: float32
    return _a.arange(start, stop, 1 if step is None else step)


mgrid, ogrid = _Grid(False), _Grid(True)


class _Joined:
    """`r_[1:4, 0, [7, 8]]`: ranges, numbers and arrays joined along an axis. A first item "axis,min rank,position" is
    as in NumPy."""

    def __init__(self, axis, rank=1, position=-1):
        self._axis, self._rank, self._position = axis, rank, position

    def __getitem__(self, key):
        axis, rank, position = self._axis, self._rank, self._position
        items = list(key) if isinstance(key, tuple) else [key]
        if items and isinstance(items[0], str):
            directive = items.pop(0)
            if directive in ("r", "c"):
                raise ValueError("matrices are absent: expected 'axis,min rank,position' with numbers")
            try:
                numbers = [int(part) for part in directive.split(",")]
            except ValueError:
                raise ValueError(f"unknown special directive {directive!r}") from None
            axis, rank, position = numbers + [rank, position][len(numbers) - 1 :]
        arrays, numbers = [], []
        for item in items:
            if isinstance(item, str):
                raise ValueError("special directives must be the first entry.")
            if isinstance(item, slice):
                array, own = _range(item), 1
            elif isinstance(item, (bool, int, float, complex)):
                array, own = item, None
                numbers.append(item)
            else:
                array = _a.asarray(item)
                own = array.ndim
            if own is not None and array.ndim < rank:
                array = _raised(array, rank, position)
            arrays.append((array, own is None))
        dtypes = [array.dtype for array, number in arrays if not number] + numbers
        dtype = _a.result_type(*dtypes) if dtypes else None
        return _a.concatenate(
            [_a.array(array, dtype, ndmin=rank) if number else array for array, number in arrays], axis, dtype=dtype
        )

    def __len__(self):
        return 0


def _raised(array, rank, position):
    """`array` with dimensions of size 1 added up to `rank`; its own begin at `position` (-1: at the end)."""
    extra = rank - array.ndim
    before = extra if position == -1 else min(position if position >= 0 else position + rank, extra)
    return array.reshape((1,) * before + array.shape + (1,) * (extra - before))


r_, c_ = _Joined(0), _Joined(-1, 2, 0)


class _Key:
    """Returns the index expression itself."""

    def __init__(self, as_tuple):
        self._as_tuple = as_tuple

    def __getitem__(self, key):
        return (key,) if self._as_tuple and not isinstance(key, tuple) else key


index_exp, s_ = _Key(True), _Key(False)


def ix_(*args):
    """Index arrays that pick the rows, columns, ... of a block; booleans stand for the indices of true elements."""
    grids, rank = [], len(args)
    for i, one in enumerate(args):
        given, one = one, _a.asarray(one)
        if one.size == 0 and not isinstance(given, _a.ndarray):
            one = one.astype(int)
        if one.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        if one.dtype.kind == "b":
            one = one.nonzero()[0]
        grids.append(one.reshape((1,) * i + (-1,) + (1,) * (rank - 1 - i)))
    return tuple(grids)


class ndindex:
    """Walks all indices of a shape, the last one fastest."""

    def __init__(self, *shape):
        from itertools import product

        if len(shape) == 1 and isinstance(shape[0], tuple):
            shape = shape[0]
        shape = tuple(map(index, shape))
        if any(size < 0 for size in shape):
            raise ValueError("negative dimensions are not allowed")
        self._indices = product(*map(range, shape))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._indices)


class ndenumerate:
    """Walks (index, element)."""

    def __init__(self, arr):
        arr = _a.asarray(arr)
        self._pairs = zip(ndindex(arr.shape), arr.ravel())

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._pairs)


class broadcast:
    """The shape that arrays broadcast to, and their elements side by side."""

    def __init__(self, *args, **kwargs):
        from vmhost.engine.numpy._shapes import broadcast_arrays

        if kwargs:
            raise ValueError("keyword arguments not accepted.")
        args = [array for one in args for array in (one._of if isinstance(one, broadcast) else (one,))]
        if len(args) > 64:
            raise ValueError(f"Need at least 0 and at most 64 array objects, got {len(args)}.")
        self._of = [_a.asarray(one) for one in args]
        arrays = broadcast_arrays(*self._of)
        self.shape = arrays[0].shape if arrays else ()
        self.nd = self.ndim = len(self.shape)
        self.size, self.numiter, self.index = _count(self.shape), len(arrays), 0
        self._arrays = [array.ravel() for array in arrays]

    def __iter__(self):
        return self

    def __next__(self):
        if self.index >= self.size:
            raise StopIteration
        self.index += 1
        return tuple(array[self.index - 1] for array in self._arrays)

    def reset(self):
        self.index = 0

    @property
    def iters(self):
        """A flat iterator over each array."""
        return tuple(array.flat for array in self._of)


_MAX_INDEX = (1 << 63) - 1


def _check_integral(array, given):
    if array.dtype.kind in "iu":
        return
    if not array.size and not isinstance(given, _a.ndarray):
        raise TypeError(
            "indices must be integral: the provided empty sequence was inferred as float. Wrap it with"
            " 'np.array(indices, dtype=np.intp)'"
        )
    raise TypeError("only int indices permitted")


def unravel_index(indices, shape, order="C"):
    """The coordinates of elements with these flat indices, an array for each dimension."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    flat = _a.asarray(indices)
    _check_integral(flat, indices)
    if not shape and flat.ndim:
        raise ValueError("multiple indices are not supported for 0d array")
    if _count(shape) > _MAX_INDEX:
        raise ValueError(
            "dimensions are too large; arrays and shapes with a total size greater than 'intp' are not supported."
        )
    size, uncast = _count(shape), flat
    flat = flat.astype(int)
    if flat.size and int(flat.view(_a.uint64).max()) >= size:  # as unsigned, a negative index exceeds any size
        wrong = uncast[(uncast < 0) | (uncast >= size)].ravel()[0]
        raise ValueError(f"index {wrong} is out of bounds for array with size {size}")
    coordinates, first = [], 0 if _is_c(order) else len(shape) - 1
    for i in range(len(shape) - 1, -1, -1) if first == 0 else range(len(shape)):
        n = shape[i]
        coordinates.append((flat if i == first else flat % n if n != 1 else _a.zeros_like(flat))[()])
        if n != 1 and i != first:
            flat = flat // n
    return tuple(reversed(coordinates)) if first == 0 else tuple(coordinates)


def _is_c(order):
    if order not in ("C", "F"):
        raise ValueError(f"order must be one of 'C', 'F' (got {order!r})")
    return order == "C"


def ravel_multi_index(multi_index, dims, mode="raise", order="C"):
    """The flat indices of elements at these coordinates."""
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if _count(dims) > _MAX_INDEX:
        raise ValueError("invalid dims: array size defined by dims is larger than the maximum possible size.")
    indices = [_a.asarray(one) for one in multi_index]
    for one, given in zip(indices, multi_index):
        if not (isinstance(multi_index, _a.ndarray) and not one.size):
            _check_integral(one, given)
    if (
        mode == "raise"
        and order == "C"
        and len(indices) == len(dims) > 1
        and all([one.dtype is _INT64 and one.size for one in indices])
    ):
        flat = None
        for one, n in zip(indices, dims):
            if int(one.view(_a.uint64).max()) >= n:
                raise ValueError("invalid entry in coordinates array")
            flat = one if flat is None else flat * n + one
        return flat if flat.ndim else flat[()]
    modes = [clip_mode(one) for one in ((mode,) * len(dims) if isinstance(mode, str) else mode)]
    if len(indices) != len(dims):
        raise ValueError(f"parameter multi_index must be a sequence of length {len(dims)}")
    flat, step = None, 1
    pairs = list(zip(indices, dims, modes))
    for one, n, how in reversed(pairs) if _is_c(order) else pairs:
        if not n and one.size:
            raise ValueError("cannot unravel if shape has zero entries")
        if how == "wrap":
            one = one % n
        elif how == "clip":
            one = _a.clip(one, 0, n - 1)
        one = one.astype(int, copy=False)
        if (
            how == "raise" and one.size and int(one.view(_a.uint64).max()) >= n
        ):  # as unsigned, a negative index exceeds any size
            raise ValueError("invalid entry in coordinates array")
        one = one if step == 1 else one * step
        flat = one if flat is None else flat + one
        step *= n
    if flat is None:
        return 0
    return flat[()] if flat.ndim == 0 else flat.copy() if len(pairs) == 1 else flat


def diag_indices_from(arr):
    if arr.ndim < 2:
        raise ValueError("input array must be at least 2-d")
    if len(set(arr.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    return (_a.arange(arr.shape[0]),) * arr.ndim


def tril_indices_from(arr, k=0):
    from vmhost.engine.numpy._creation import tril_indices

    if arr.ndim != 2:
        raise ValueError("input array must be 2-d")
    return tril_indices(arr.shape[-2], k, arr.shape[-1])


def triu_indices_from(arr, k=0):
    from vmhost.engine.numpy._creation import triu_indices

    if arr.ndim != 2:
        raise ValueError("input array must be 2-d")
    return triu_indices(arr.shape[-2], k, arr.shape[-1])


def mask_indices(n, mask_func, k=0):
    """Where `mask_func` of a full n x n matrix is not zero."""
    return (mask_func(_a.ones((n, n), int), k) != 0).nonzero()


def fill_diagonal(a, val, wrap=False):
    """Writes the main diagonal; of a tall matrix with `wrap` again below each square."""
    if a.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if a.ndim > 2 and len(set(a.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    values, length = _a.asarray(val, None if isinstance(val, _a.ndarray) else a.dtype).ravel(), min(a.shape)
    if not length:
        return
    if wrap and a.ndim == 2 and a.shape[0] > a.shape[1]:
        indices = _a.arange(0, a.size, a.shape[1] + 1)
        target, key, length = a, (indices // a.shape[1], indices % a.shape[1]), len(indices)
    else:
        target, key = _a._as_strided(a, (length,), (sum(a.strides),)), ...
    target[key] = values[_a.arange(length) % len(values)] if len(values) > 1 else values
