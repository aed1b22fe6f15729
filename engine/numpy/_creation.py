"""Arrays by formula: linspace and the like, identity matrices, diagonals, triangles, grids."""

from operator import index

from vmhost.engine import _array as _a


def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, *, device=None):
    """`num` evenly spaced numbers from `start` to `stop`, as `numpy.linspace`."""
    num = index(num)
    if num < 0:
        raise ValueError(f"Number of samples, {num}, must be non-negative.")
    gaps = num - 1 if endpoint else num
    start, stop = _a.asarray(start) * 1.0, _a.asarray(stop) * 1.0
    loop = _a.result_type(start, stop, 1.0)
    delta = _a.subtract(stop, start)
    numbers = _a.arange(num).astype(loop if loop.kind != "c" else _a.float64).reshape((num,) + (1,) * delta.ndim)
    if gaps > 0:
        step = delta / gaps
        result = numbers * step if (step != 0).all() else numbers / gaps * delta
    else:
        step = _a.float64(float("nan"))
        result = numbers * delta
    result = result + start
    if endpoint and num > 1:
        result[-1] = stop
    if axis != 0:
        from vmhost.engine.numpy._shapes import moveaxis

        result = moveaxis(result, 0, axis)
    dtype = loop if dtype is None else _a.dtype(dtype)
    if dtype.kind in "iu":
        result = _a.floor(result)
    result = result.astype(dtype, copy=False)
    return (result, step) if retstep else result


def logspace(start, stop, num=50, endpoint=True, base=10.0, dtype=None, axis=0):
    """`base` to the power of `linspace(start, stop)`."""
    if not isinstance(base, (int, float)) and _a.asarray(base).ndim:
        from vmhost.engine.numpy._shapes import broadcast_shapes, expand_dims

        rank = len(broadcast_shapes(*(_a.asarray(one).shape for one in (start, stop, base))))
        start, stop, base = (_a.array(one, ndmin=rank) for one in (start, stop, base))
        base = expand_dims(base, axis)
    result = _a.power(base, linspace(start, stop, num, endpoint, axis=axis))
    return result if dtype is None else result.astype(dtype, copy=False)


def geomspace(start, stop, num=50, endpoint=True, dtype=None, axis=0):
    """`num` numbers from `start` to `stop` with a constant ratio."""
    start, stop = _a.asarray(start), _a.asarray(stop)
    if (start == 0).any() or (stop == 0).any():
        raise ValueError("Geometric sequence cannot include zero")
    # complex where an end or the result is: the logarithm of a negative real number would be NaN
    loop = _a.result_type(start, stop, float(num), float if dtype is None else dtype)
    start, stop = start.astype(loop), stop.astype(loop)
    sign = _a.sign(start)  # rotates the start to the positive real numbers
    start, stop = start / sign, stop / sign
    result = logspace(_a.log10(start), _a.log10(stop), num, endpoint, dtype=loop)
    if num > 0:
        result[0] = start
        if num > 1 and endpoint:
            result[-1] = stop
    result = result * sign
    if axis != 0:
        from vmhost.engine.numpy._shapes import moveaxis

        result = moveaxis(result, 0, axis)
    return result if dtype is None else result.astype(dtype, copy=False)


def eye(N, M=None, k=0, dtype=float, order="C", *, device=None, like=None):
    """Ones on diagonal `k` of an N x M matrix, zeros elsewhere."""
    N = index(N)
    M = N if M is None else index(M)
    k = index(k)
    result = _a.zeros((N, M), dtype, order)
    length = min(N + min(k, 0), M - max(k, 0))
    if length > 0:
        _diagonal_of(result, k, length)[...] = 1
    return result


def _diagonal_of(matrix, k, length):
    """A writable view of diagonal `k`."""
    rows, columns = matrix.strides
    return _a._as_strided(matrix[max(-k, 0) :, max(k, 0) :], (length,), (rows + columns,))


def identity(n, dtype=None, *, like=None):
    return eye(n, dtype=float if dtype is None else dtype)


def diag(v, k=0):
    """A matrix with diagonal `k`; for a matrix, its diagonal `k` (a read-only view)."""
    v = _a.asarray(v)
    if v.ndim == 2:
        return _a.diagonal(v, k)
    if v.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    size = v.shape[0] + abs(k)
    result = _a.zeros((size, size), v.dtype)
    if v.shape[0]:
        step = v.itemsize
        _a._as_strided(result if k == 0 else result[max(-k, 0) :, max(k, 0) :], v.shape, (size * step + step,))[...] = v
    return result


def diagflat(v, k=0):
    return diag(_a.ravel(v), k)


def tri(N, M=None, k=0, dtype=float, *, like=None):
    """Ones on and below diagonal `k`."""
    M = N if M is None else M
    return (_a.arange(N).reshape(-1, 1) >= _a.arange(-k, M - k)).astype(dtype)


def tril(m, k=0):
    """`m` with zeros above diagonal `k`."""
    m = _a.asarray(m)
    return _a.where(tri(*m.shape[-2:], k=k, dtype=bool), m, _a.zeros(1, m.dtype))


def triu(m, k=0):
    """`m` with zeros below diagonal `k`."""
    m = _a.asarray(m)
    return _a.where(tri(*m.shape[-2:], k=k - 1, dtype=bool), _a.zeros(1, m.dtype), m)


def tril_indices(n, k=0, m=None):
    return tri(n, m, k, bool).nonzero()


def triu_indices(n, k=0, m=None):
    n, m = int(n), None if m is None else int(m)
    return _a.logical_not(tri(n, m, k - 1, bool)).nonzero()


def require(a, dtype=None, requirements=None, *, like=None):
    """An array of this dtype that meets the requirements: C or F order, W writeable; every array meets A and O."""
    flags = set()
    for requirement in requirements or ():
        names = {
            "C": "C",
            "CONTIGUOUS": "C",
            "C_CONTIGUOUS": "C",
            "F": "F",
            "FORTRAN": "F",
            "F_CONTIGUOUS": "F",
            "W": "W",
            "WRITEABLE": "W",
            "A": "A",
            "ALIGNED": "A",
            "O": "O",
            "OWNDATA": "O",
            "E": "E",
            "ENSUREARRAY": "E",
        }
        flags.add(names[requirement.upper()])
    if {"C", "F"} <= flags:
        raise ValueError('Cannot specify both "C" and "F" order')
    result = _a.asarray(a, dtype, "F" if "F" in flags else "C" if "C" in flags else None)
    if "W" in flags and not result.flags.writeable or "O" in flags and not result.flags.owndata:
        result = result.copy("F" if "F" in flags else "C")
    return result


def asarray_chkfinite(a, dtype=None, order=None):
    """`asarray` that raises ValueError for NaN and infinity."""
    a = _a.asarray(a, dtype, order)
    if a.dtype.kind in "fc" and not _a.isfinite(a).all():
        raise ValueError("array must not contain infs or NaNs")
    return a


def diag_indices(n, ndim=2):
    return (_a.arange(n),) * ndim


def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    """Coordinate arrays of a grid: a tuple with one for each vector."""
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    rank = len(xi)
    grids = [_a.asarray(x).reshape((1,) * i + (-1,) + (1,) * (rank - 1 - i)) for i, x in enumerate(xi)]
    if indexing == "xy" and rank > 1:
        grids[:2] = [grids[0].swapaxes(0, 1), grids[1].swapaxes(0, 1)]
    if not sparse:
        from vmhost.engine.numpy._shapes import broadcast_arrays

        grids = broadcast_arrays(*grids)
    return tuple(x.copy() for x in grids) if copy else tuple(grids)


def indices(dimensions, dtype=int, sparse=False):
    """For each dimension of a grid, the indices along it."""
    rank = len(dimensions)
    each = [
        _a.arange(n, dtype=dtype).reshape((1,) * i + (n,) + (1,) * (rank - 1 - i)) for i, n in enumerate(dimensions)
    ]
    if sparse:
        return tuple(each)
    result = _a.empty((rank, *dimensions), dtype)
    for i, values in enumerate(each):
        result[i] = values
    return result


def fromfunction(function, shape, *, dtype=float, **kwargs):
    return function(*indices(shape, dtype), **kwargs)


def fromiter(iter, dtype, count=-1, *, like=None):
    """A 1-d array of an iterator's numbers."""
    if count >= 0:
        from itertools import islice

        values = list(islice(iter, count))
        if len(values) < count:
            raise ValueError(f"iterator too short: Expected {count} but iterator had only {len(values)} items.")
    else:
        values = list(iter)
    return _a.array(values, dtype).reshape(-1)


def vander(x, N=None, increasing=False):
    """Powers of `x` in columns."""
    x = _a.asarray(x)
    if x.ndim != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    count = len(x) if N is None else N
    result = _a.ones((len(x), count), _a.result_type(x.dtype, int))
    x = x.astype(result.dtype, copy=False)
    columns, power = result.T if increasing else result.T[::-1], x
    for i in range(1, count):  # products are exact where `power` is not
        columns[i] = power
        if i + 1 < count:
            power = power * x
    return result


def asfortranarray(a, dtype=None, *, like=None):
    a = _a.asarray(a, dtype)
    return _a.asarray(a.reshape(1) if a.ndim == 0 else a, order="F")


def copyto(dst, src, casting="same_kind", where=True):
    """Writes `src`, broadcast, into `dst` where `where` is true."""
    if not isinstance(dst, _a.ndarray):
        raise TypeError(f"copyto() argument 1 must be numpy.ndarray, not {type(dst).__name__}")
    number = isinstance(src, (bool, int, float, complex))
    if number and casting == "equiv" and _a.asarray(src).dtype != dst.dtype:
        raise TypeError(f"cannot cast Python {type(src).__name__} to {dst.dtype} under the casting rule 'equiv'")
    # Python's numbers take any size of a kind
    src = _a.asarray(src, _a.result_type(dst.dtype, src) if number else None)
    if not _a.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(
            f"Cannot cast {'scalar' if number else 'array data'} from {src.dtype!r} to {dst.dtype!r} according to the"
            f" rule '{casting}'"
        )
    if where is True:
        dst[...] = src
    else:
        dst[...] = _a.where(where, src.astype(dst.dtype, copy=False), dst)
