"""Elementwise functions composed of a few operators each."""

from vmhost.engine import _array as _a
from vmhost.engine.numpy._composites import Composite, floating, promoted
from vmhost.engine.numpy._shapes import moveaxis
from vmhost.engine.numpy._statistics import diff


def _refuse(name, *arrays, kinds):
    for array in arrays:
        if array.dtype.kind not in kinds:
            raise TypeError(
                f"ufunc '{name}' not supported for the input types, and the inputs could not be safely coerced to any"
                " supported types according to the casting rule ''safe''"
            )


# ---- division and parts


def _divmod(x1, x2):
    """(floor_divide(x1, x2), remainder(x1, x2))."""
    return _a.floor_divide(x1, x2), _a.remainder(x1, x2)


LDEXP_PLAIN = 126  # for |n| up to this, 2**n is a normal float32


def _ldexp(x1, x2):
    """x1 * 2**x2, rounded once."""
    x1 = floating(x1)
    _refuse("ldexp", x1, kinds="f")
    if type(x2) is int and -LDEXP_PLAIN <= x2 <= LDEXP_PLAIN and x1.itemsize >= 4:
        return x1 * 2.0**x2
    x2 = _a.asarray(x2)
    _refuse("ldexp", x2, kinds="bi")
    wide = x1.astype(float, copy=False)
    if x2.size and -1022 <= x2.min() and x2.max() <= 1022:  # 2**x2 is representable: one product, rounded once
        return (wide * ((x2.astype(int) + 1023) << 52).view(_a.float64)).astype(x1.dtype, copy=False)
    mantissa, exponent = _a._split(wide)
    total = exponent + _a.clip(x2.astype(int), -5000, 5000)
    first = _a.clip(total, -1000, 1000)
    # the first product is exact; only the second one rounds
    result = mantissa * _a.power(2.0, first) * _a.power(2.0, _a.clip(total - first, -1074, 1000))
    return result.astype(x1.dtype)


def _spacing(x):
    """The distance to the next number away from zero."""
    x = floating(x)
    _refuse("spacing", x, kinds="f")
    if x.dtype == _a.float16:  # as in NumPy, the distance to the next larger number
        return _a.where(_a.isinf(x), _a.float16("nan"), _a.nextafter(x, _a.float16("inf")) - x)
    size = _a.ascontiguousarray(_a.absolute(x)).reshape(x.shape)
    following = (size.view(f"int{8 * x.itemsize}") + 1).view(x.dtype)  # positive floats are ordered like their bits
    return _a.where(x < 0, size - following, following - size)


divmod = Composite(_divmod, 2, 2)
modf = Composite(_a._parts, 1, 2, name="modf")  # (fractional, whole parts), both with the sign
frexp = Composite(_a._split, 1, 2, name="frexp")  # (mantissas in [0.5, 1), exponents): x is mantissa * 2**exponent
ldexp = Composite(_ldexp, 2)
spacing = Composite(_spacing, 1)


# ---- angles


def _deg2rad(x):
    return floating(x) * 0.017453292519943295


def _rad2deg(x):
    return floating(x) * 57.29577951308232


deg2rad = Composite(_deg2rad, 1)
rad2deg = Composite(_rad2deg, 1)
radians = Composite(_deg2rad, 1, name="radians")
degrees = Composite(_rad2deg, 1, name="degrees")


def angle(z, deg=False):
    """The angle (argument) of complex numbers."""
    z = _a.asarray(z)
    if z.dtype.kind == "c":
        result = _a.arctan2(z.imag, z.real)
    else:
        result = _a.arctan2(_a.zeros_like(z), z)
    return result * (180 / 3.141592653589793) if deg else result


def unwrap(p, discont=None, axis=-1, *, period=6.283185307179586):
    """Removes jumps from angles: adds whole periods where neighbours differ by more than `discont`."""
    p = _a.asarray(p)
    steps = diff(p, axis=axis)
    discont = period / 2 if discont is None else discont
    dtype = _a.result_type(steps, period)
    if dtype.kind in "iu":
        high, rest = period // 2, period % 2
        tie = rest == 0
    else:
        high, tie = period / 2, True
    wrapped = _a.remainder(steps + high, period) - high
    if tie:
        wrapped = _a.where((wrapped == -high) & (steps > 0), high, wrapped)
    correction = _a.where(_a.absolute(steps) < discont, 0, wrapped - steps)
    result = _a.array(p, dtype)
    later = moveaxis(result, axis, 0)[1:]
    later += moveaxis(correction.cumsum(axis), axis, 0).astype(dtype, copy=False)
    return result


# ---- the rest


def sinc(x):
    """sin(pi x) / (pi x), 1 at zero."""
    x = _a.asarray(x)
    y = 3.141592653589793 * x
    if y.dtype.kind == "f":
        from vmhost.engine.numpy._dtypes import finfo

        small = finfo(y.dtype).eps
    else:
        small = 1e-20
    y = _a.where(y == 0, small, y)
    return (_a.sin(y) / y)[()]


def _fabs(x):
    """The absolute value, as a float."""
    x = floating(x)
    _refuse("fabs", x, kinds="f")
    return _a.absolute(x)


def _float_power(x1, x2):
    """x1 ** x2 in float64 or complex128."""
    x1, x2 = (_a.asarray(x) for x in (x1, x2))
    dtype = _a.result_type(x1, x2, _a.float64)
    return _a.power(x1.astype(dtype, copy=False), x2.astype(dtype, copy=False))


def _logaddexp2(x1, x2):
    """log2(2**x1 + 2**x2)."""
    x1, x2 = promoted(x1, x2)
    x1, x2 = floating(x1), floating(x2)
    _refuse("logaddexp2", x1, kinds="f")
    low, high = _a.minimum(x1, x2), _a.maximum(x1, x2)
    distance = _a.where(x1 == x2, 0.0, low - high)  # the difference of equal infinities would be NaN
    return high + _a.log1p(_a.exp2(distance)) * 1.4426950408889634


fabs = Composite(_fabs, 1)
float_power = Composite(_float_power, 2)
logaddexp2 = Composite(_logaddexp2, 2, identity=float("-inf"))


def real_if_close(a, tol=100):
    """The real parts if all imaginary parts are within `tol` of zero (in units of eps; absolute if below 1)."""
    a = _a.asarray(a)
    if a.dtype.kind != "c":
        return a
    if tol > 1:
        tol = tol * 2.0 ** (-23 if a.dtype == _a.complex64 else -52)
    return a.real if (_a.absolute(a.imag) < tol).all() else a


def interp(x, xp, fp, left=None, right=None, period=None):
    """Linear interpolation at `x` between the points (xp, fp); `xp` increases. With `period` both wrap around."""
    fp = _a.asarray(fp, None, "C")
    real = fp.dtype.kind != "c"
    fp = fp.astype(float if real else complex, copy=False)
    x, xp = _a.asarray(x, float, "C"), _a.asarray(xp, float, "C")
    if period is not None:
        if period == 0:
            raise ValueError("period must be a non-zero value")
        if xp.ndim != 1 or fp.ndim != 1:
            raise ValueError("Data points must be 1-D sequences")
        if len(xp) != len(fp):
            raise ValueError("fp and xp are not of the same length")
        period, left, right = abs(period), None, None
        x, xp = x % period, xp % period
        if not x.size:
            return _a.empty(x.shape, fp.dtype)
        order = xp.argsort()
        xp, fp = xp[order], fp[order]
        xp = _a.concatenate((xp[-1:] - period, xp, xp[:1] + period))
        fp = _a.concatenate((fp[-1:], fp, fp[:1]))
    if len(xp) != len(fp):
        raise ValueError("fp and xp are not of the same length.")
    if not x.size:
        return _a.empty(x.shape, fp.dtype)
    if not len(xp):
        raise ValueError("array of sample points is empty")
    if xp.ndim != 1 or fp.ndim != 1:
        raise ValueError("object too deep for desired array")
    if real:
        return _a._interp(x, xp, fp, left, right)
    parts = []
    for part in ("real", "imag"):
        ends = [None if end is None else float(getattr(_a.asarray(end), part)) for end in (left, right)]
        parts.append(_a.asarray(_a._interp(x, xp, _a.ascontiguousarray(getattr(fp, part)), *ends)))
    result = _a.empty(x.shape, fp.dtype)
    result.real, result.imag = parts[0], _a.where(_a.isnan(x), 0, parts[1])
    return result[()]
