"""Polynomials as arrays of coefficients, the highest power first."""

from functools import wraps

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import atleast_1d


def _accepts_poly1d(function):
    """Lets the function take poly1d as well; if an argument is one, the results are too."""

    @wraps(function)
    def wrapped(*args, **options):
        for argument in args:
            if hasattr(argument, "coeffs"):
                break
        else:
            return function(*args, **options)
        from vmhost.engine.numpy._poly1d import poly1d

        result = function(*(getattr(argument, "coeffs", argument) for argument in args), **options)
        return tuple(map(poly1d, result)) if isinstance(result, tuple) else poly1d(result)

    return wrapped


def polyval(p, x):
    """Evaluates the polynomial at `x` by Horner's rule; a poly1d `x` gives the composed polynomial."""
    p = _a.asarray(getattr(p, "coeffs", p))
    if hasattr(x, "coeffs"):
        result = 0 * x
        for coefficient in p:
            result = result * x + coefficient
        return result
    x = _a.asarray(x)
    y = _a.zeros(x.shape, x.dtype)
    for coefficient in p:
        y = y * x + coefficient
    return y


def poly(seq_of_zeros):
    """The coefficients of the polynomial with these roots, or a square matrix's characteristic polynomial."""
    roots = atleast_1d(seq_of_zeros)
    if roots.ndim == 2 and roots.shape[0] == roots.shape[1] and roots.shape[0]:
        from vmhost.engine.numpy.linalg import eigvals

        roots = eigvals(roots)
    elif roots.ndim != 1:
        raise ValueError("input must be 1d or non-empty square 2d array.")
    if len(roots) == 0:
        return 1.0
    if roots.dtype.kind not in "fc" or roots.dtype == _a.float16:
        roots = roots.astype(float)
    from vmhost.engine.numpy._products import convolve

    result = _a.ones(1, roots.dtype)
    for root in roots:
        result = convolve(result, _a.asarray([1, -root.item()], roots.dtype))
    if result.dtype.kind == "c" and (_a.sort(roots) == _a.sort(_a.conjugate(roots))).all():
        result = result.real.copy()
    return result


def roots(p):
    """The roots of the polynomial, as the eigenvalues of its companion matrix."""
    p = atleast_1d(getattr(p, "coeffs", p))
    if p.ndim != 1:
        raise ValueError("Input must be a rank-1 array.")
    nonzero = _a.nonzero(p)[0]
    if not len(nonzero):
        return _a.asarray([])
    trailing = len(p) - int(nonzero[-1]) - 1
    p = p[int(nonzero[0]) : int(nonzero[-1]) + 1]
    if p.dtype.kind not in "fc":
        p = p.astype(float)
    nonzero_roots = _a.zeros(0)
    if len(p) > 1:
        from vmhost.engine.numpy._creation import eye
        from vmhost.engine.numpy.linalg import eigvals

        companion = eye(len(p) - 1, k=-1, dtype=p.dtype)
        companion[0] = -p[1:] / p[0]
        nonzero_roots = eigvals(companion)
        if p.dtype.kind == "f" and nonzero_roots.dtype.kind == "c" and (nonzero_roots.imag == 0).all():
            nonzero_roots = nonzero_roots.real.copy()
    return _a.concatenate((nonzero_roots, _a.zeros(trailing, nonzero_roots.dtype)))


@_accepts_poly1d
def polyint(p, m=1, k=None):
    """The `m`-th antiderivative with the constants `k`."""
    m = int(m)
    if m < 0:
        raise ValueError("Order of integral must be positive (see polyder)")
    constants = atleast_1d(_a.zeros(m) if k is None else k)
    if len(constants) == 1 and m > 1:
        constants = constants[0] * _a.ones(m)
    if len(constants) < m:
        raise ValueError("k must be a scalar or a rank-1 array of length 1 or >m.")
    p = _a.asarray(p)
    for i in range(m):
        p = _a.concatenate((p / _a.arange(len(p), 0, -1), constants[i : i + 1]))
    return p


@_accepts_poly1d
def polyder(p, m=1):
    """The `m`-th derivative."""
    m = int(m)
    if m < 0:
        raise ValueError("Order of derivative must be positive (see polyint)")
    p = _a.asarray(p)
    for _ in range(m):
        p = p[:-1] * _a.arange(len(p) - 1, 0, -1)
    return p


def _aligned(a1, a2):
    a1, a2 = atleast_1d(a1), atleast_1d(a2)
    if len(a1) == len(a2):
        return a1, a2
    size = max(len(a1), len(a2))
    return tuple(_a.concatenate((_a.zeros(size - len(a), a.dtype), a)) for a in (a1, a2))


@_accepts_poly1d
def polyadd(a1, a2):
    a1, a2 = _aligned(a1, a2)
    return a1 + a2


@_accepts_poly1d
def polysub(a1, a2):
    a1, a2 = _aligned(a1, a2)
    return a1 - a2


@_accepts_poly1d
def polymul(a1, a2):
    from vmhost.engine.numpy._products import convolve
    from vmhost.engine.numpy._shapes import trim_zeros

    a1, a2 = (trim_zeros(atleast_1d(a), "f") for a in (a1, a2))
    return convolve(*(a if len(a) else _a.zeros(1, a.dtype) for a in (a1, a2)))


@_accepts_poly1d
def polydiv(u, v):
    """(quotient, remainder)."""
    u, v = atleast_1d(u) + 0.0, atleast_1d(v) + 0.0
    dtype = (u[0] + v[0]).dtype
    scale = 1.0 / v[0]
    quotient, rest = _a.zeros(max(len(u) - len(v) + 1, 1), dtype), u.astype(dtype)
    for k in range(len(u) - len(v) + 1):
        factor = scale * rest[k]
        quotient[k] = factor
        rest[k : k + len(v)] -= factor * v
    while len(rest) > 1 and bool(_a.absolute(rest[0]) <= 1e-8):
        rest = rest[1:]
    return quotient, rest


def polyfit(x, y, deg, rcond=None, full=False, w=None, cov=False):
    """Fits a polynomial of degree `deg` to the points by least squares."""
    from vmhost.engine.numpy import linalg
    from vmhost.engine.numpy._creation import vander

    order = int(deg) + 1
    x, y = _a.asarray(x) + 0.0, _a.asarray(y) + 0.0
    if deg < 0:
        raise ValueError("expected deg >= 0")
    if x.ndim != 1:
        raise TypeError("expected 1D vector for x")
    if x.size == 0:
        raise TypeError("expected non-empty vector for x")
    if y.ndim < 1 or y.ndim > 2:
        raise TypeError("expected 1D or 2D array for y")
    if x.shape[0] != y.shape[0]:
        raise TypeError("expected x and y to have same length")
    if rcond is None:
        from vmhost.engine.numpy._dtypes import finfo

        rcond = len(x) * finfo(x.dtype).eps
    left, right = vander(x, order), y
    if w is not None:
        w = _a.asarray(w) + 0.0
        if w.ndim != 1:
            raise TypeError("expected a 1-d array for weights")
        if w.shape[0] != y.shape[0]:
            raise TypeError("expected w and y to have the same length")
        left = left * w[:, None]
        right = right * (w[:, None] if right.ndim == 2 else w)
    scale = _a.sqrt((left * left).sum(0))
    left = left / scale
    coefficients, residuals, rank, values = linalg.lstsq(left, right, rcond)
    coefficients = (coefficients.T / scale).T
    if rank != order and not full:
        from warnings import warn

        from vmhost.engine.numpy.exceptions import RankWarning

        warn("Polyfit may be poorly conditioned", RankWarning, stacklevel=2)
    if full:
        return coefficients, residuals, rank, values, rcond
    if cov:
        base = linalg.inv(left.T @ left) / (scale[:, None] * scale)
        if isinstance(cov, str) and cov == "unscaled":
            factor = 1
        else:
            if len(x) <= order:
                raise ValueError("the number of data points must exceed order to scale the covariance matrix")
            factor = residuals / (len(x) - order)
        return coefficients, base * factor if y.ndim == 1 else base[:, :, None] * factor
    return coefficients
