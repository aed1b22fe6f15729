"""Comparisons of whole arrays, and predicates on numbers."""

from vmhost.engine import _array as _a


def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether |a - b| <= atol + rtol*|b|, element by element."""
    # numbers of Python are weak: float32 is compared in float32
    a, b, rtol, atol = (x if isinstance(x, (int, float, complex)) else _a.asarray(x) for x in (a, b, rtol, atol))
    if not isinstance(b, _a.ndarray):
        b = float(b) if isinstance(b, int) else b
    elif b.dtype.kind not in "fc":
        b = b.astype(float)
    if any(isinstance(x, _a.ndarray) for x in (b, rtol, atol)):
        bound = _a.add(atol, _a.multiply(rtol, _a.absolute(b)))
    else:  # a Python number, which is weak as its parts are
        bound = atol + rtol * abs(b)
    near = _a.less_equal(_a.absolute(_a.subtract(a, b)), bound) & _a.isfinite(b) | _a.equal(a, b)
    if equal_nan:
        near = near | (_a.isnan(a) & _a.isnan(b))
    return near if near.ndim else near[()]


def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    return bool(isclose(a, b, rtol, atol, equal_nan).all())


EQUAL_BLOCK = 1 << 14  # elements; a comparison of large arrays stops at the first block that differs


def array_equal(a1, a2, equal_nan=False):
    """Whether both have the same shape and elements."""
    try:
        a1, a2 = _a.asarray(a1), _a.asarray(a2)
    except TypeError, ValueError:  # not convertible to an array
        return False
    if a1.shape != a2.shape:
        return False
    if a1.size > EQUAL_BLOCK and not equal_nan and a1.flags.c_contiguous and a2.flags.c_contiguous:
        a1, a2 = a1.reshape(-1), a2.reshape(-1)
        for begin in range(0, a1.size, EQUAL_BLOCK):
            if not (a1[begin : begin + EQUAL_BLOCK] == a2[begin : begin + EQUAL_BLOCK]).all():
                return False
        return True
    same = a1 == a2
    if equal_nan and a1.dtype.kind in "fc" and a2.dtype.kind in "fc":
        same = same | (_a.isnan(a1) & _a.isnan(a2))
    return bool(same.all())


def array_equiv(a1, a2):
    from vmhost.engine.numpy._shapes import broadcast_shapes

    try:
        a1, a2 = _a.asarray(a1), _a.asarray(a2)
        broadcast_shapes(a1.shape, a2.shape)
    except TypeError, ValueError:
        return False
    return bool((a1 == a2).all())


def isneginf(x, out=None):
    return _a.logical_and(_a.isinf(x), _a.signbit(x), out=out)


def isposinf(x, out=None):
    return _a.logical_and(_a.isinf(x), _a.logical_not(_a.signbit(x)), out=out)


def iscomplexobj(x):
    return _a.asarray(x).dtype.kind == "c"


def isrealobj(x):
    return not iscomplexobj(x)


def iscomplex(x):
    return _a.asarray(x).imag != 0


def isreal(x):
    return _a.asarray(x).imag == 0


def isscalar(element):
    """Whether it is a Python number or string, or stands for a NumPy scalar."""
    if isinstance(element, _a.ndarray):
        return isinstance(element, element.dtype)
    from numbers import Number

    return isinstance(element, (str, bytes, memoryview, Number))


def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    """Replaces NaN by `nan`, and infinities by the dtype's limits (or the given numbers)."""
    x = _a.array(x) if copy else _a.asarray(x)
    if x.dtype.kind == "c":
        x.real, x.imag = (nan_to_num(part, True, nan, posinf, neginf) for part in (x.real, x.imag))
        return x if x.ndim else x[()]
    if x.dtype.kind == "f":
        from vmhost.engine.numpy._dtypes import finfo

        limits = finfo(x.dtype)
        bad, high, low = _a.isnan(x), isposinf(x), isneginf(x)
        for where, value in (
            (bad, nan),
            (high, float(limits.max) if posinf is None else posinf),
            (low, float(limits.min) if neginf is None else neginf),
        ):
            x[where] = value if isinstance(value, (int, float)) else _a.broadcast_to(value, x.shape)[where]
    return x if x.ndim else x[()]
