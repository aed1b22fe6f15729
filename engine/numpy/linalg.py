"""`numpy.linalg`: systems of equations, factorizations, eigenvalues, norms. A matrix is the last two dimensions; the
dimensions before are the batch.

The engine's `vme_linear` does the work. solve, inv, det and cholesky need nothing else. The other factorizations need
LAPACK (scipy-openblas32, see docs/numpy.md); without it they raise NotImplementedError, which says what to install."""

from operator import index as _index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._products import cross as _cross
from vmhost.engine.numpy._products import outer as _outer_any
from vmhost.engine.numpy._products import tensordot, vecdot
from vmhost.engine.numpy._shapes import matrix_transpose
from vmhost.engine.numpy._shapes import moveaxis as _moveaxis

__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]

matmul = _a.matmul
_inf = float("inf")

# the order of enum vme_linear_op, and its flags
_SOLVE, _INVERSE, _SLOGDET, _CHOLESKY, _QR, _SVD, _EIG, _EIGH, _LSTSQ = range(9)
_UPPER, _FULL, _RAW = 1, 2, 4


class LinAlgError(ValueError):
    """The matrix does not suit the function: not square, singular, or no convergence."""


class _Result(tuple):
    """A tuple with named items, like NumPy's results of several arrays."""

    __slots__ = ()
    _fields = ()

    def __new__(cls, *values):
        return tuple.__new__(cls, values)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"


def _result(name, *fields):
    members = {"_fields": fields, "__slots__": ()}
    for i, field in enumerate(fields):
        members[field] = property(lambda self, i=i: self[i])
    return type(name, (_Result,), members)


EigResult = _result("EigResult", "eigenvalues", "eigenvectors")
EighResult = _result("EighResult", "eigenvalues", "eigenvectors")
QRResult = _result("QRResult", "Q", "R")
SlogdetResult = _result("SlogdetResult", "sign", "logabsdet")
SVDResult = _result("SVDResult", "U", "S", "Vh")


# ---- calls of the engine


def _matrices(a, square=False):
    a = _a.asarray(a)
    if a.ndim < 2:
        raise LinAlgError(f"{a.ndim}-dimensional array given. Array must be at least two-dimensional")
    if square and a.shape[-1] != a.shape[-2]:
        raise LinAlgError("Last 2 dimensions of the array must be square")
    return a


def _dtype_for(*arrays):
    """The dtype to compute in; float64 for integers."""
    dtype = _a.result_type(*(array.dtype for array in arrays))
    if dtype.kind in "biu":
        return _a.float64
    if dtype == _a.float16:
        raise TypeError("array type float16 is unsupported in linalg")
    return dtype


def _real(dtype):
    return _a.float32 if dtype in (_a.float32, _a.complex64) else _a.float64


def _complex(dtype):
    return _a.complex64 if dtype in (_a.float32, _a.complex64) else _a.complex128


def _call(op, flags, a, shapes, dtypes, b=None, columns=0, cutoff=0.0, failure=None):
    """Runs `op` on the batch `a` and returns its outputs. `shapes` are the outputs' without the batch; None leaves
    an output out. `dtypes` are the dtype to compute in, then the outputs' dtypes."""
    dtype = _a.complex128 if dtypes[0].kind == "c" else _a.float64  # like NumPy: double precision, then rounded
    lead, (m, n) = a.shape[:-2], a.shape[-2:]
    batch = 1
    for size in lead:
        batch *= size
    a = _a.ascontiguousarray(a.astype(dtype, copy=False)).reshape(a.shape)
    if b is not None:
        b = _a.ascontiguousarray(b.astype(dtype, copy=False)).reshape(b.shape)
    outputs = tuple(
        None if shape is None else _a.empty(lead + shape, _double(kind)) for shape, kind in zip(shapes, dtypes[1:])
    )
    if _a._linear(op, flags, cutoff, (batch, m, n, columns), (a, b), outputs) and failure:
        raise LinAlgError(failure)
    return tuple(
        None if output is None else output.astype(kind, copy=False)[()] for output, kind in zip(outputs, dtypes[1:])
    )


def _double(dtype):
    return _a.complex128 if dtype.kind == "c" else _a.float64 if dtype.kind == "f" else dtype


def _lapack(op, *args, **kwargs):
    """`_call` for operations that need LAPACK: if the library is missing, the host searches for it and tries again."""
    try:
        return _call(op, *args, **kwargs)
    except NotImplementedError:
        if not _find_lapack():
            raise
    return _call(op, *args, **kwargs)


def _find_lapack():
    """Searches for the library, unless the host has named one. A VM uses its host's and cannot search."""
    try:
        from vmhost.engine import library
    except ImportError:
        return False
    return library.find_lapack()


# ---- equations


def solve(a, b):
    """x with a @ x = b; a `b` of one dimension is a vector, else matrices."""
    a, b = _matrices(a, True), _a.asarray(b)
    dtype, n = _dtype_for(a, b), a.shape[-1]
    vector = b.ndim == 1
    if vector:
        b = b.reshape(-1, 1)
    if b.ndim == 0 or b.shape[-2] != n:
        raise ValueError(
            f"{'solve1' if vector else 'solve'}: Input operand 1 has a mismatch in its core dimension 0, with gufunc"
            f" signature {'(m,m),(m)->(m)' if vector else '(m,m),(m,n)->(m,n)'} (size {b.shape[-2] if b.ndim else 0} is"
            f" different from {n})"
        )
    lead = _broadcast(a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1]
    (x,) = _call(
        _SOLVE,
        0,
        _a.broadcast_to(a, lead + (n, n)),
        [(n, columns)],
        [dtype, dtype],
        _a.broadcast_to(b, lead + (n, columns)),
        columns,
        failure="Singular matrix",
    )
    return x[..., 0] if vector else x


def _broadcast(first, second):
    if first == second:
        return first
    from vmhost.engine.numpy._shapes import broadcast_shapes

    return broadcast_shapes(first, second)


def inv(a):
    """The inverse."""
    a = _matrices(a, True)
    dtype = _dtype_for(a)
    return _call(_INVERSE, 0, a, [a.shape[-2:]], [dtype, dtype], failure="Singular matrix")[0]


def slogdet(a):
    """The determinant's sign and the logarithm of its absolute value."""
    dtype, sign, logarithm = _slogdet(a)
    return SlogdetResult(sign.astype(dtype, copy=False)[()], logarithm.astype(_real(dtype), copy=False)[()])


def _slogdet(a):
    """The dtype of the result; sign and logarithm in double precision."""
    a = _matrices(a, True)
    dtype = _dtype_for(a)
    return dtype, *_call(_SLOGDET, 0, a, [(), ()], [dtype, _double(dtype), _a.float64])


def det(a):
    """The determinant."""
    dtype, sign, logarithm = _slogdet(a)
    return (sign * _a.exp(logarithm)).astype(dtype, copy=False)[()]


def cholesky(a, /, *, upper=False):
    """The triangular factor of a positive definite matrix; only one triangle of `a` is read."""
    a = _matrices(a, True)
    dtype = _dtype_for(a)
    return _call(
        _CHOLESKY, _UPPER if upper else 0, a, [a.shape[-2:]], [dtype, dtype], failure="Matrix is not positive definite"
    )[0]


def tensorsolve(a, b, axes=None):
    """x with tensordot(a, x, x.ndim) = b."""
    a, b = _a.asarray(a), _a.asarray(b)
    rank = a.ndim
    if axes is not None:
        order = [i for i in range(rank) if i not in axes] + list(axes)
        a = a.transpose(order)
    old_shape = a.shape[-(rank - b.ndim) :]
    size = 1
    for k in old_shape:
        size *= k
    if a.size != size**2:
        raise LinAlgError(
            "Input arrays must satisfy the requirement             prod(a.shape[b.ndim:]) == prod(a.shape[:b.ndim])"
        )
    return solve(a.reshape(size, size), b.ravel()).reshape(old_shape)


def tensorinv(a, ind=2):
    """The inverse of `a` as a map from its last dimensions to its first `ind`."""
    a = _a.asarray(a)
    if ind <= 0:
        raise ValueError("Invalid ind argument.")
    size = 1
    for k in a.shape[ind:]:
        size *= k
    return inv(a.reshape(size, -1)).reshape(a.shape[ind:] + a.shape[:ind])


def matrix_power(a, n):
    """The `n`-th power of `a`; a negative `n` uses the inverse."""
    a = _matrices(a, True)
    try:
        n = _index(n)
    except TypeError as error:
        raise TypeError("exponent must be an integer") from error
    if n == 0:
        from vmhost.engine.numpy._creation import eye

        identity = _a.empty_like(a)
        identity[...] = eye(a.shape[-1], dtype=a.dtype)
        return identity
    if n < 0:
        a, n = inv(a), -n
    if n <= 3:
        return a if n == 1 else a @ a if n == 2 else a @ a @ a
    power = result = None
    for bit in reversed(f"{n:b}"):  # repeated n // 2 would be quadratic in the length of a huge n
        power = a if power is None else power @ power
        if bit == "1":
            result = power if result is None else result @ power
    return result


# ---- factorizations


def qr(a, mode="reduced"):
    """Orthonormal Q and upper triangular R; mode: reduced, complete, r or raw."""
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ValueError(f"Unrecognized mode '{mode}'")
    a = _matrices(a)
    dtype, (m, n) = _dtype_for(a), a.shape[-2:]
    k = min(m, n)
    failure = "Incorrect argument found while performing QR factorization"
    if mode == "raw":
        h, tau = _lapack(_QR, _RAW, a, [(n, m), (k,)], [dtype] * 3, failure=failure)
        return h, tau
    full = m if mode == "complete" else k
    q, r = _lapack(
        _QR,
        _FULL if mode == "complete" else 0,
        a,
        [None if mode == "r" else (m, full), (full, n)],
        [dtype] * 3,
        failure=failure,
    )
    return r if mode == "r" else QRResult(q, r)


_NO_SVD = "SVD did not converge"


def svd(a, full_matrices=True, compute_uv=True, hermitian=False):
    """U, the singular values in descending order, and V's conjugate transpose; only the values without `compute_uv`."""
    a = _matrices(a)
    if hermitian:
        return _svd_of_hermitian(a, compute_uv)
    return _svd(a, full_matrices, compute_uv, _NO_SVD)


def _values_or_nan(a):
    """The singular values; NaN where they do not converge."""
    return _svd(_matrices(a), False, False, None)


def _svd(a, full_matrices, compute_uv, failure):
    dtype, (m, n) = _dtype_for(a), a.shape[-2:]
    k = min(m, n)
    real = _real(dtype)
    u_shape, vh_shape = ((m, m), (n, n)) if full_matrices else ((m, k), (k, n))
    if k == 0:
        s = _a.empty(a.shape[:-2] + (0,), real)
        return SVDResult(_identities(a, u_shape, dtype), s, _identities(a, vh_shape, dtype)) if compute_uv else s
    shapes = [(k,), u_shape, vh_shape] if compute_uv else [(k,)]
    results = _lapack(_SVD, _FULL if full_matrices else 0, a, shapes, [dtype, real, dtype, dtype], failure=failure)
    return SVDResult(results[1], results[0], results[2]) if compute_uv else results[0]


def _identities(a, shape, dtype):
    from vmhost.engine.numpy._creation import eye

    result = _a.empty(a.shape[:-2] + shape, dtype)
    result[...] = eye(*shape, dtype=dtype)
    return result


def _svd_of_hermitian(a, compute_uv):
    if not compute_uv:
        return _a.sort(_a.absolute(eigvalsh(a)), descending=True)
    s, u = eigh(a)
    sign = _a.copysign(_a.ones((), s.dtype), s)  # never 0
    s = _a.absolute(s)
    order = _a.argsort(s)[..., ::-1]
    from vmhost.engine.numpy._shapes import take_along_axis

    sign, s = take_along_axis(sign, order, axis=-1), take_along_axis(s, order, axis=-1)
    u = take_along_axis(u, order[..., None, :], axis=-1)
    vt = _a.conjugate(matrix_transpose(u * sign[..., None, :].astype(u.dtype)))
    return SVDResult(u, s, vt)


def svdvals(x, /):
    """The singular values in descending order."""
    return svd(x, compute_uv=False)


def _finite(a):
    if not _a.isfinite(a).all():
        raise LinAlgError("Array must not contain infs or NaNs")


def eig(a):
    """Eigenvalues, unordered, and eigenvectors in columns, all complex."""
    a = _matrices(a, True)
    _finite(a)
    dtype, n = _dtype_for(a), a.shape[-1]
    kind = _complex(dtype)
    return EigResult(*_lapack(_EIG, 0, a, [(n,), (n, n)], [dtype, kind, kind], failure="Eigenvalues did not converge"))


def eigvals(a):
    """Eigenvalues, unordered, complex."""
    a = _matrices(a, True)
    _finite(a)
    dtype = _dtype_for(a)
    return _lapack(_EIG, 0, a, [(a.shape[-1],)], [dtype, _complex(dtype)], failure="Eigenvalues did not converge")[0]


def _triangle(UPLO):
    if UPLO.upper() not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return _UPPER if UPLO.upper() == "U" else 0


def eigh(a, UPLO="L"):
    """Eigenvalues of a Hermitian matrix in ascending order, and eigenvectors in columns; one triangle is read."""
    flags, a = _triangle(UPLO), _matrices(a, True)
    dtype, n = _dtype_for(a), a.shape[-1]
    return EighResult(
        *_lapack(_EIGH, flags, a, [(n,), (n, n)], [dtype, _real(dtype), dtype], failure="Eigenvalues did not converge")
    )


def eigvalsh(a, UPLO="L"):
    """Eigenvalues of a Hermitian matrix in ascending order; one triangle is read."""
    flags, a = _triangle(UPLO), _matrices(a, True)
    dtype = _dtype_for(a)
    return _lapack(_EIGH, flags, a, [(a.shape[-1],)], [dtype, _real(dtype)], failure="Eigenvalues did not converge")[0]


def lstsq(a, b, rcond=None):
    """Returns (x that minimizes |a @ x - b|, sums of squared residuals (empty if there are none), a's rank, its
    singular values)."""
    a, b = _a.asarray(a), _a.asarray(b)
    if a.ndim != 2:
        raise LinAlgError(f"{a.ndim}-dimensional array given. Array must be two-dimensional")
    vector = b.ndim == 1
    if vector:
        b = b.reshape(-1, 1)
    if b.ndim != 2:
        raise LinAlgError(f"{b.ndim}-dimensional array given. Array must be two-dimensional")
    (m, n), columns = a.shape, b.shape[-1]
    if m != b.shape[0]:
        raise LinAlgError("Incompatible dimensions")
    dtype = _dtype_for(a, b)
    if rcond is None:
        rcond = _epsilon(_a.float64) * max(m, n)
    right = b if columns else _a.zeros((m, 1), b.dtype)
    x, s, rank = _lapack(
        _LSTSQ,
        0,
        a,
        [(max(m, n), right.shape[1]), (min(m, n),), ()],
        [dtype, dtype, _real(dtype), _a.int64],
        right,
        right.shape[1],
        float(rcond),
        failure="SVD did not converge in Linear Least Squares",
    )
    rank = int(rank)
    residuals = _a.asarray([], dtype=_real(dtype))
    if rank == n and m > n and columns:
        residuals = (_a.absolute(x[n:]) ** 2).sum(axis=0).astype(_real(dtype), copy=False)
    x = x[:n, :columns].copy() if m else _a.zeros((n, columns), dtype)
    if m == 0:
        rank = 0
    if vector:
        x = x[:, 0].copy()
    return x, residuals, _a.int32(rank), s


def _epsilon(dtype):
    return 2.0**-23 if dtype in (_a.float32, _a.complex64) else 2.0**-52


def pinv(a, rcond=None, hermitian=False, *, rtol=None):
    """The Moore-Penrose inverse; singular values below rtol times the largest count as zero."""
    a = _matrices(a)
    if rcond is not None and rtol is not None:
        raise ValueError("`rtol` and `rcond` can't be both set.")
    dtype = _dtype_for(a)
    if rcond is None:
        rcond = max(a.shape[-2:]) * _epsilon(dtype) if rtol is None else rtol
    rcond = _a.asarray(rcond)
    if a.size == 0:
        return _a.empty(a.shape[:-2] + (a.shape[-1], a.shape[-2]), a.dtype)
    u, s, vt = svd(_a.conjugate(a), full_matrices=False, hermitian=hermitian)
    cutoff = rcond[..., None] * s.max(axis=-1, keepdims=True)
    large = s > cutoff
    s = _a.where(large, 1 / _a.where(large, s, _a.ones((), s.dtype)), _a.zeros((), s.dtype)).astype(s.dtype, copy=False)
    return matrix_transpose(vt) @ (s[..., None] * matrix_transpose(u))


def matrix_rank(A, tol=None, hermitian=False, *, rtol=None):
    """The number of singular values above `tol`."""
    if rtol is not None and tol is not None:
        raise ValueError("`tol` and `rtol` can't be both set.")
    A = _a.asarray(A)
    if A.ndim < 2:
        return int(not (A == 0).all())
    s = svd(A, compute_uv=False, hermitian=hermitian)
    if tol is None:
        rtol = max(A.shape[-2:]) * _epsilon(s.dtype) if rtol is None else _a.asarray(rtol)[..., None]
        tol = s.max(axis=-1, keepdims=True, initial=0) * rtol
    else:
        tol = _a.asarray(tol)[..., None]
    return _a.count_nonzero(s > tol, axis=-1)


def cond(x, p=None):
    """The condition number in the norm `p`."""
    x = _a.asarray(x)
    if x.size == 0:
        raise LinAlgError("cond is not defined on empty arrays")
    if p is None or p in (2, -2):
        s = _values_or_nan(x)
        ratio = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    else:
        x = _matrices(x, True)
        dtype = _dtype_for(x)
        (inverse,) = _call(_INVERSE, 0, x, [x.shape[-2:]], [dtype, dtype])  # NaN for a singular matrix
        if p == "nuc":
            ratio = _values_or_nan(x).sum(axis=-1) * _values_or_nan(inverse).sum(axis=-1)
        else:
            ratio = norm(x, p, axis=(-2, -1)) * norm(inverse, p, axis=(-2, -1))
    is_infinite = _a.isnan(ratio) & ~_a.isnan(x).any(axis=(-2, -1))
    return _a.where(is_infinite, _a.asarray(_inf, dtype=ratio.dtype), ratio)[()]


# ---- norms


def norm(x, ord=None, axis=None, keepdims=False):
    """The norm of vectors (one axis) or matrices (two axes); of all elements as one vector without `ord` and `axis`."""
    x = _a.asarray(x)
    if x.dtype.kind in "biu":
        x = x.astype(_a.float64)
    if axis is None:
        rank = x.ndim
        if ord is None or ord in ("f", "fro") and rank == 2 or ord == 2 and rank == 1:
            flat = x.ravel()
            total = _squares(flat).sum() if flat.dtype.kind == "c" else _a.dot(flat, flat)
            result = _a.sqrt(total)
            return result.reshape((1,) * rank) if keepdims else result
        axis = tuple(range(rank))
    elif not isinstance(axis, tuple):
        try:
            axis = (int(axis),)
        except (TypeError, ValueError) as error:
            raise TypeError("'axis' must be None, an integer or a tuple of integers") from error
    if len(axis) == 1:
        return _vector_norm(x, ord, axis, keepdims)
    if len(axis) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    rows, columns = (_axis_index(one, x.ndim) for one in axis)
    if rows == columns:
        raise ValueError("Duplicate axes given.")
    if ord in (2, -2, "nuc"):
        s = svd(_moveaxis(x, (rows, columns), (-2, -1)), compute_uv=False)
        result = s.max(axis=-1, initial=0) if ord == 2 else s.min(axis=-1) if ord == -2 else s.sum(axis=-1)
    elif ord in (1, -1, _inf, -_inf):
        along, across = (rows, columns) if ord in (1, -1) else (columns, rows)
        sums = _a.absolute(x).sum(axis=along)
        across -= across > along
        result = sums.max(axis=across) if ord > 0 else sums.min(axis=across)
    elif ord in (None, "fro", "f"):
        result = _a.sqrt(_squares(x).sum(axis=(rows, columns)))
    else:
        raise ValueError("Invalid norm order for matrices.")
    if keepdims:
        result = result.reshape([1 if i in (rows, columns) else size for i, size in enumerate(x.shape)])
    return result


def _axis_index(axis, rank):
    from vmhost.engine.numpy._shapes import _axis

    return _axis(axis, rank)


def _squares(x):
    return _a.square(_a.real(x)) + _a.square(_a.imag(x)) if x.dtype.kind == "c" else _a.square(x)


def _vector_norm(x, ord, axis, keepdims):
    if isinstance(ord, str):
        raise ValueError(f"Invalid norm order '{ord}' for vectors")
    if ord == _inf:
        return _a.absolute(x).max(axis=axis, keepdims=keepdims, initial=0)
    if ord == -_inf:
        return _a.absolute(x).min(axis=axis, keepdims=keepdims)
    if ord == 0:
        return (x != 0).astype(x.real.dtype).sum(axis=axis, keepdims=keepdims)
    if ord == 1:
        return _a.absolute(x).sum(axis=axis, keepdims=keepdims)
    if ord is None or ord == 2:
        return _a.sqrt(_squares(x).sum(axis=axis, keepdims=keepdims))
    magnitude = _a.absolute(x)
    total = (magnitude ** _a.asarray(ord, dtype=magnitude.dtype)).sum(axis=axis, keepdims=keepdims)
    return total ** _a.asarray(1 / ord, dtype=magnitude.dtype)


def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    """The norm of vectors along `axis` (several axes form one vector); default: of all elements."""
    x = _a.asarray(x)
    if x.dtype.kind in "biu":
        x = x.astype(_a.float64)
    axis = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return _vector_norm(x, ord, axis, keepdims)


def matrix_norm(x, /, *, keepdims=False, ord="fro"):
    """The norm of matrices."""
    return norm(_a.asarray(x), axis=(-2, -1), keepdims=keepdims, ord=ord)


# ---- products and diagonals, as the array API standard defines them for this module


def multi_dot(arrays, *, out=None):
    """The product of several matrices in the order with the fewest multiplications."""
    arrays = [_a.asarray(array) for array in arrays]
    if len(arrays) < 2:
        raise ValueError("Expecting at least two arrays.")
    first_is_vector, last_is_vector = arrays[0].ndim == 1, arrays[-1].ndim == 1
    if first_is_vector:
        arrays[0] = arrays[0].reshape(1, -1)
    if last_is_vector:
        arrays[-1] = arrays[-1].reshape(-1, 1)
    for array in arrays:
        if array.ndim != 2:
            raise LinAlgError(f"{array.ndim}-dimensional array given. Array must be two-dimensional")
    result = _best_product(arrays)
    if first_is_vector and last_is_vector:
        result = result[0, 0]
    elif first_is_vector or last_is_vector:
        result = result.ravel()
    if out is not None:
        out[...] = result
        return out
    return result


def _best_product(arrays):
    """Dynamic programming over the split point (Cormen et al., Introduction to Algorithms, section 15.2)."""
    n = len(arrays)
    sizes = [array.shape[0] for array in arrays] + [arrays[-1].shape[1]]
    cost, split = [[0] * n for _ in range(n)], [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i][j], split[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def product(i, j):
        return arrays[i] if i == j else product(i, split[i][j]) @ product(split[i][j] + 1, j)

    return product(0, n - 1)


def outer(x1, x2, /):
    x1, x2 = _a.asarray(x1), _a.asarray(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"Input arrays must be one-dimensional, but they are x1.ndim={x1.ndim} and x2.ndim={x2.ndim}.")
    return _outer_any(x1, x2)


def cross(x1, x2, /, *, axis=-1):
    x1, x2 = _a.asarray(x1), _a.asarray(x2)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they are {x1.shape[axis]} and "
            f"{x2.shape[axis]} dimensional instead."
        )
    return _cross(x1, x2, axis=axis)


def diagonal(x, /, *, offset=0):
    return _a.diagonal(x, offset, -2, -1)


def trace(x, /, *, offset=0, dtype=None):
    return _a.trace(x, offset, -2, -1, dtype)


def __dir__():
    return list(__all__)
