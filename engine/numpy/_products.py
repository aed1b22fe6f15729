"""Vector and matrix products beyond `@`, and convolution, all lowered to matrix products."""

from operator import index as _index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _integers
from vmhost.engine.numpy._statistics import _finish


def inner(a, b, /):
    a, b = _a.asarray(a), _a.asarray(b)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if a.ndim <= 2 and b.ndim <= 2 and a.shape[-1] == b.shape[-1]:
        return a @ b.T
    return tensordot(a, b, (-1, -1))


def outer(a, b, out=None):
    return _a.multiply(_a.ravel(a).reshape(-1, 1), _a.ravel(b), out=out)


def vdot(a, b, /):
    a = _a.ravel(a)
    return _a.dot(_a.conjugate(a) if a.dtype.kind == "c" else a, _a.ravel(b))


def _core(name, signature, size, other):
    if size != other:
        raise ValueError(
            f"{name}: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature {signature} "
            f"(size {other} is different from {size})"
        )


def _as_vectors(name, *arrays):
    vectors = [_a.asarray(array) for array in arrays]
    for i, array in enumerate(vectors):
        if array.ndim == 0:
            raise ValueError(
                f"{name}: Input operand {i} does not have enough dimensions (has 0, gufunc core with signature "
                "(n),(n)->() requires 1)"
            )
    return vectors


def _cores_last(axes, *arrays_and_counts):
    """The arrays with the dimensions that `axes` names moved last; unchanged if `axes` is None."""
    from vmhost.engine.numpy._shapes import moveaxis

    arrays = [array for array, _ in arrays_and_counts]
    if axes is None:
        return arrays
    if not isinstance(axes, list):
        raise TypeError("axes should be a list.")
    if len(axes) not in (len(arrays), len(arrays) + 1):
        raise ValueError(
            f"axes should be a list with an entry for all {len(arrays)} inputs and outputs; entries for outputs can"
            " only be omitted if none of them has core axes."
        )
    named = [entry if isinstance(entry, tuple) else (entry,) for entry in axes]
    for i, (entry, (_, count)) in enumerate(zip(named, arrays_and_counts)):
        if len(entry) != count:
            raise _a.AxisError(
                f"operand {i} has {count} core dimensions, but {len(entry)} dimensions are specified by axes"
            )
    return [moveaxis(array, entry, tuple(range(-count, 0))) for (array, count), entry in zip(arrays_and_counts, named)]


def _core_moved(axes, result, inputs):
    """The result with its last dimension moved to where the output's entry of `axes` says."""
    from vmhost.engine.numpy._shapes import moveaxis

    if axes is None or len(axes) == inputs:
        return result
    entry = axes[inputs]
    return moveaxis(result, -1, entry[0] if isinstance(entry, tuple) else entry)


ROWS_LONG = 32  # minimum length at which a 1 x n by n x 1 matrix product beats a sum of products


def vecdot(x1, x2, /, out=None, *, axis=None, axes=None, keepdims=False, dtype=None):
    """Dot products of the vectors along `axis` (default: last), the first one conjugated; `axes` names an axis for each
    operand."""
    if axis is axes is dtype is out is None and not keepdims:
        x1, x2 = _a.asarray(x1), _a.asarray(x2)
        if (
            x1.ndim > 1
            and x2.ndim > 1
            and x1.dtype.kind == x2.dtype.kind == "f"
            and x1.shape[-1] == x2.shape[-1] < ROWS_LONG
        ):
            return (x1 * x2).sum(-1)
    from vmhost.engine.numpy._shapes import expand_dims

    if axis is not None and axes is not None:
        raise TypeError("cannot specify both 'axis' and 'axes'")
    last = -1 if axis is None else axis
    if axis not in (None, -1):
        axes = [axis, axis]
    x1, x2 = _as_vectors("vecdot", x1, x2)
    if axes is not None:
        x1, x2 = _cores_last(axes, (x1, 1), (x2, 1))
        if len(axes) > 2 and not keepdims and axes[2] != ():
            raise _a.AxisError("operand 2 has 0 core dimensions: its item of axes is ()")
    _core("vecdot", "(n),(n)->()", x1.shape[-1], x2.shape[-1])
    if dtype is not None:
        x1, x2 = x1.astype(dtype, copy=False), x2.astype(dtype, copy=False)
    if x1.dtype.kind == "c":
        x1 = _a.conjugate(x1)
    if x1.ndim == x2.ndim == 1 and not keepdims:
        return _finish(_a.dot(x1, x2), out)
    if x1.shape[-1] >= ROWS_LONG:
        result = (x1[..., None, :] @ x2[..., :, None])[..., 0, 0]
    else:
        product = x1 * x2
        result = product.any(-1) if product.dtype.kind == "b" else product.sum(-1, product.dtype)
    if keepdims:
        entry = axes[2] if axes is not None and len(axes) > 2 else last
        result = expand_dims(result, entry[0] if isinstance(entry, tuple) else entry)
    return _finish(result, out)


def matvec(x1, x2, /, out=None, *, axes=None, dtype=None):
    """Each matrix of `x1` times the vector of `x2`."""
    x1, x2 = _a.asarray(x1), _a.asarray(x2)
    if x2.ndim == 1 and axes is dtype is out is None and x1.ndim >= 2 and x1.shape[-1] == x2.shape[0]:
        return _a.matmul(x1, x2)
    if x1.ndim < 2 or x2.ndim < 1:
        raise ValueError(
            f"matvec: Input operand {int(x1.ndim >= 2)} does not have enough dimensions (has"
            f" {x1.ndim if x1.ndim < 2 else 0}, gufunc core with signature (m,n),(n)->(m) requires"
            f" {2 if x1.ndim < 2 else 1})"
        )
    x1, x2 = _cores_last(axes, (x1, 2), (x2, 1))
    _core("matvec", "(m,n),(n)->(m)", x1.shape[-1], x2.shape[-1])
    if dtype is not None:
        x1, x2 = _cast("matvec", dtype, x1, x2)
    if axes is None and x2.ndim == 1:
        return _finish(_a.matmul(x1, x2), out)
    return _finish(_core_moved(axes, _a.matmul(x1, x2[..., None])[..., 0], 2), out)


def vecmat(x1, x2, /, out=None, *, axes=None, dtype=None):
    """Each vector of `x1`, conjugated, times the matrix of `x2`."""
    x1, x2 = _a.asarray(x1), _a.asarray(x2)
    if x1.ndim < 1 or x2.ndim < 2:
        raise ValueError(
            f"vecmat: Input operand {int(x1.ndim >= 1)} does not have enough dimensions (has"
            f" {0 if x1.ndim < 1 else x2.ndim}, gufunc core with signature (n),(n,m)->(m) requires"
            f" {1 if x1.ndim < 1 else 2})"
        )
    x1, x2 = _cores_last(axes, (x1, 1), (x2, 2))
    _core("vecmat", "(n),(n,m)->(m)", x1.shape[-1], x2.shape[-2])
    if dtype is not None:
        x1, x2 = _cast("vecmat", dtype, x1, x2)
    x1 = _a.conjugate(x1) if x1.dtype.kind == "c" else x1
    return _finish(_core_moved(axes, _a.matmul(x1[..., None, :], x2)[..., 0, :], 2), out)


def _cast(name, dtype, *operands, casting="same_kind"):
    """The operands cast to the argument `dtype`."""
    for i, operand in enumerate(operands):
        if not _a.can_cast(operand.dtype, dtype, casting):
            raise TypeError(
                f"Cannot cast ufunc '{name}' input {i} from {operand.dtype!r} to {_a.dtype(dtype)!r} with casting rule "
                f"'{casting}'"
            )
    return [operand.astype(dtype, copy=False) for operand in operands]


def matmul(x1, x2, /, out=None, *, axes=None, axis=None, casting="same_kind", order="K", dtype=None, subok=True):
    """matmul with arguments other than `out`; the C implementation calls this for them."""
    from vmhost.engine.numpy._shapes import moveaxis

    if axis is not None:
        raise TypeError(
            "matmul: axis can only be used with a single shared core dimension, not with the 3 distinct ones implied by"
            " signature (n?,k),(k,m?)->(n?,m?)."
        )
    operands = [_a.asarray(x1), _a.asarray(x2)]
    if dtype is not None:
        operands = _cast("matmul", dtype, *operands, casting=casting)
    counts = [min(operand.ndim, 2) for operand in operands]
    counts.append(sum(counts) - 2)
    core_axes = []
    if axes is not None:
        if not isinstance(axes, list):
            raise TypeError("axes should be a list.")
        if len(axes) != 3:
            raise ValueError(
                "axes should be a list with an entry for all 3 inputs and outputs; entries for outputs can only be"
                " omitted if none of them has core axes."
            )
        for i, (entry, count) in enumerate(zip(axes, counts)):
            if not isinstance(entry, tuple):
                if count != 1:
                    raise _a.AxisError(
                        f"matmul: operand {i} has {count} core dimensions, but the axes item is a single integer."
                    )
                entry = (entry,)
            if len(entry) != count:
                raise _a.AxisError(
                    f"matmul: operand {i} has {count} core dimensions, but {len(entry)} dimensions are specified by"
                    " axes tuple."
                )
            for k, one in enumerate(entry):
                if i < 2 and not -operands[i].ndim <= one < operands[i].ndim:
                    raise _a.AxisError(f"axis {one} is out of bounds for array of dimension {operands[i].ndim}")
                if one in entry[:k]:
                    raise ValueError(f"axes item {i} has value {one} repeated")
            core_axes.append(entry)
        operands = [
            moveaxis(operand, entry, tuple(range(-len(entry), 0))) for operand, entry in zip(operands, core_axes)
        ]
    result = _a.matmul(*operands)
    if core_axes and core_axes[2]:
        for one in core_axes[2]:
            if not -result.ndim <= one < result.ndim:
                raise _a.AxisError(f"axis {one} is out of bounds for array of dimension {result.ndim}")
        result = moveaxis(result, tuple(range(-len(core_axes[2]), 0)), core_axes[2])
    if order in ("C", "F") and result.ndim:
        result = _a.asarray(result, order=order)
    return _finish(result, out)


def tensordot(a, b, axes=2):
    """Sums products over `axes`: the last so many of `a` and the first of `b`, or two lists."""
    a, b = _a.asarray(a), _a.asarray(b)
    if hasattr(axes, "__index__") and not (isinstance(axes, _a.ndarray) and axes.ndim):
        first, second = list(range(-_index(axes), 0)), list(range(_index(axes)))
    else:
        first, second = (list(_integers(one)) for one in axes)
    if len(first) != len(second) or any(a.shape[i] != b.shape[j] for i, j in zip(first, second)):
        raise ValueError("shape-mismatch for sum")
    first, second = [axis % a.ndim for axis in first], [axis % b.ndim for axis in second]
    if len(set(first)) != len(first) or len(set(second)) != len(second):
        raise ValueError("duplicate axes are not allowed in tensordot")
    free_a = [i for i in range(a.ndim) if i not in first]
    free_b = [i for i in range(b.ndim) if i not in second]
    count = 1
    for i in first:
        count *= a.shape[i]
    rows = tuple(a.shape[i] for i in free_a)
    columns = tuple(b.shape[i] for i in free_b)
    left = a.transpose(free_a + first).reshape(_product(rows), count)
    right = b.transpose(second + free_b).reshape(count, _product(columns))
    return (left @ right).reshape(rows + columns)[()]


def _product(sizes):
    count = 1
    for size in sizes:
        count *= size
    return count


def dot_of_high_rank(a, b):
    """`dot` for `b` of three or more dimensions: over a's last and b's second to last."""
    return tensordot(a, b, (-1, -2))


def kron(a, b):
    a, b = _a.asarray(a), _a.asarray(b)
    rank = max(a.ndim, b.ndim)
    a, b = a.reshape((1,) * (rank - a.ndim) + a.shape), b.reshape((1,) * (rank - b.ndim) + b.shape)
    wide = a.reshape([n for size in a.shape for n in (size, 1)]) * b.reshape([n for size in b.shape for n in (1, size)])
    return wide.reshape([m * n for m, n in zip(a.shape, b.shape)])


def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """The cross product of vectors of three (or two) components."""
    from vmhost.engine.numpy._shapes import moveaxis, stack

    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _a.asarray(a), _a.asarray(b)
    if not a.ndim or not b.ndim:
        raise ValueError("At least one array has zero dimension")
    a, b = moveaxis(_a.asarray(a), axisa, 0), moveaxis(_a.asarray(b), axisb, 0)
    if len(a) != 3 or len(b) != 3:
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they are {len(a)} and "
            f"{len(b)} dimensional instead."
        )
    a, b = _a.ascontiguousarray(a), _a.ascontiguousarray(b)  # the components of each vector adjacent
    components = [a[i] * b[j] - a[j] * b[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return _a.ascontiguousarray(moveaxis(stack(components, 0), 0, axisc))


def convolve(a, v, mode="full"):
    """The discrete convolution of two vectors."""
    a, v = _a.asarray(a), _a.asarray(v)
    a, v = a if a.ndim else a.reshape(1), v if v.ndim else v.reshape(1)
    if not len(a):
        raise ValueError("a cannot be empty")
    if not len(v):
        raise ValueError("v cannot be empty")
    if len(v) > len(a):
        a, v = v, a
    return _slide(a, v[::-1], mode)


def correlate(a, v, mode="valid"):
    a, v = _a.asarray(a), _a.asarray(v)
    v = _a.conjugate(v) if v.dtype.kind == "c" else v
    if len(v) > len(a):
        return _slide(v, a, mode)[::-1]
    return _slide(a, v, mode)


def _slide(a, v, mode):
    """Dot products of `v` with each window of `a` (the longer one): a strided view times a vector."""
    m = len(v)
    if mode is None:
        raise TypeError("mode must be one of 'valid', 'same', or 'full', not None")
    mode = ("valid", "same", "full")[mode] if mode in (0, 1, 2) else mode
    if mode == "full":
        return _a._windows(a, v, m - 1, m - 1)
    if mode == "same":
        return _a._windows(a, v, m // 2, m - 1 - m // 2)
    if mode == "valid":
        return _a._windows(a, v, 0, 0)
    raise ValueError(f"mode must be one of 'valid', 'same', or 'full' (got {mode!r})")
