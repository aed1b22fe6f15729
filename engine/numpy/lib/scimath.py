"""Functions that return complex numbers outside their real domain: `emath.sqrt(-1)` is 1j."""

from vmhost.engine import _array as _a

__all__ = ["arccos", "arcsin", "arctanh", "log", "log10", "log2", "logn", "power", "sqrt"]


def _complex(x):
    return x.astype(
        _a.complex64 if x.dtype.name in ("int8", "uint8", "int16", "uint16", "float16", "float32") else _a.complex128,
        copy=False,
    )


def _where(outside, x):
    """`x`, as complex if `outside` holds for any element."""
    x = _a.asarray(x)
    return _complex(x) if x.dtype.kind != "c" and outside(x).any() else x


def _negative(x):
    return x < 0


def _beyond_one(x):
    return _a.absolute(x) > 1


def sqrt(x):
    return _a.sqrt(_where(_negative, x))


def log(x):
    return _a.log(_where(_negative, x))


def log10(x):
    return _a.log10(_where(_negative, x))


def log2(x):
    return _a.log2(_where(_negative, x))


def logn(n, x):
    """The logarithm of `x` to the base `n`."""
    return log(x) / log(n)


def power(x, p):
    x, p = _where(_negative, x), _a.asarray(p)
    if p.dtype.kind in "iu" and (p < 0).any():
        p = p * 1.0
    return _a.power(x, p)


def arccos(x):
    return _a.arccos(_where(_beyond_one, x))


def arcsin(x):
    return _a.arcsin(_where(_beyond_one, x))


def arctanh(x):
    return _a.arctanh(_where(_beyond_one, x))
