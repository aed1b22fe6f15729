"""Polynomials as arrays of coefficients, the highest power first, and poly1d: such an array as an object that can be
called, added, multiplied and printed."""

from functools import wraps

from vmhost.engine import _array as _a
from vmhost.engine.numpy._logic import isscalar
from vmhost.engine.numpy._shapes import atleast_1d, trim_zeros


def _accepts_poly1d(function):
    """Lets the function take poly1d as well; if an argument is one, the results are too."""

    @wraps(function)
    def wrapped(*args, **options):
        for argument in args:
            if hasattr(argument, "coeffs"):
                break
        else:
            return function(*args, **options)
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


class poly1d:
    """A polynomial with these coefficients, highest power first, or (with `r`) with these roots; `variable` is its name
    when printed."""

    __hash__ = None

    def __init__(self, c_or_r, r=False, variable=None):
        if isinstance(c_or_r, poly1d):
            self.__dict__.update(c_or_r.__dict__)
            self._variable = variable or self._variable
            return
        coefficients = atleast_1d(poly(c_or_r) if r else c_or_r)
        if coefficients.ndim > 1:
            raise ValueError("Polynomial must be 1d only.")
        coefficients = trim_zeros(coefficients, "f")
        self._coefficients = coefficients if len(coefficients) else _a.zeros(1, coefficients.dtype)
        self._variable = variable or "x"

    @property
    def coeffs(self):
        return self._coefficients

    @coeffs.setter
    def coeffs(self, value):
        if value is not self._coefficients:  # `p.coeffs += 1` assigns the same array
            raise AttributeError("Cannot set attribute")

    c = coef = coefficients = coeffs

    @property
    def variable(self):
        return self._variable

    @property
    def order(self):
        return len(self.coeffs) - 1

    o = order

    @property
    def roots(self):
        return roots(self.coeffs)

    r = roots

    def __repr__(self):
        return f"poly1d({repr(self.coeffs)[6:-1]})"

    def __str__(self):
        terms = []
        for power, coefficient in zip(range(self.order, -1, -1), self.coeffs):
            number = _text(coefficient)
            if number == "0" and self.order:
                continue
            terms.append(
                number + ("" if power == 0 else f" {self.variable}" if power == 1 else f" {self.variable}**{power}")
            )
        return _with_raised_powers(" + ".join(terms).replace("+ -", "- ") if terms else "0")

    def __len__(self):
        return self.order

    def __iter__(self):
        return iter(self.coeffs)

    def __call__(self, val):
        return polyval(self.coeffs, val)

    def __getitem__(self, power):
        return self.coeffs[self.order - power] if 0 <= power <= self.order else _a.zeros((), self.coeffs.dtype)[()]

    def __setitem__(self, power, value):
        if power < 0:
            raise ValueError("Does not support negative powers.")
        if power > self.order:
            self._coefficients = _a.concatenate((_a.zeros(power - self.order, self.coeffs.dtype), self.coeffs))
        self._coefficients[self.order - power] = value

    def __neg__(self):
        return poly1d(-self.coeffs)

    def __pos__(self):
        return self

    def __add__(self, other):
        return poly1d(polyadd(self.coeffs, poly1d(other).coeffs))

    # an array as the left operand is combined with the array of coefficients, as in NumPy
    def __radd__(self, other):
        return other + self.coeffs if isinstance(other, _a.ndarray) else self + other

    def __sub__(self, other):
        return poly1d(polysub(self.coeffs, poly1d(other).coeffs))

    def __rsub__(self, other):
        return (
            other - self.coeffs if isinstance(other, _a.ndarray) else poly1d(polysub(poly1d(other).coeffs, self.coeffs))
        )

    def __mul__(self, other):
        return poly1d(self.coeffs * other if isscalar(other) else polymul(self.coeffs, poly1d(other).coeffs))

    def __rmul__(self, other):
        return other * self.coeffs if isinstance(other, _a.ndarray) else self * other

    def __pow__(self, power):
        if not isscalar(power) or int(power) != power or power < 0:
            raise ValueError("Power to non-negative integers only.")
        coefficients = [1]
        for _ in range(int(power)):
            coefficients = polymul(self.coeffs, coefficients)
        return poly1d(coefficients)

    def __truediv__(self, other):
        return poly1d(self.coeffs / other) if isscalar(other) else polydiv(self, poly1d(other))

    def __rtruediv__(self, other):
        if isinstance(other, _a.ndarray):
            return other / self.coeffs
        return poly1d(other / self.coeffs) if isscalar(other) else polydiv(poly1d(other), self)

    def __eq__(self, other):
        if not isinstance(other, poly1d):
            return NotImplemented
        return self.coeffs.shape == other.coeffs.shape and (self.coeffs == other.coeffs).all()

    def integ(self, m=1, k=0):
        """The `m`-th antiderivative with the constants `k`."""
        return poly1d(polyint(self.coeffs, m, k))

    def deriv(self, m=1):
        """The `m`-th derivative."""
        return poly1d(polyder(self.coeffs, m))


def _text(coefficient):
    value = coefficient.item()
    if not isinstance(value, complex) or value.imag == 0:
        return f"{value.real:.4g}"
    return f"{value.imag:.4g}j" if value.real == 0 else f"({value.real:.4g} + {value.imag:.4g}j)"


def _with_raised_powers(text, max_width=70):
    """Moves the 2 of `x**2` to a line above, in pairs of lines of at most `max_width` characters."""
    import re

    above, below, result, end = "", "", " ", 0
    for match in re.finditer(r"\*\*([0-9]*)", text):
        power, before = match[1], text[end : match.start()]
        end = match.end()
        upper, lower = " " * (len(before) - 1) + power, before + " " * (len(power) - 1)
        if len(below) + len(lower) > max_width or len(above) + len(upper) > max_width:
            result += f"{above}\n{below}\n "
            above, below = upper, lower
        else:
            above, below = above + upper, below + lower
    return f"{result}{above}\n{below}{text[end:]}"
