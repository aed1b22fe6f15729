"""Elementwise functions that are a few operators each."""

from engine import _array as _a


def divmod(x1, x2, /):
    return _a.floor_divide(x1, x2), _a.remainder(x1, x2)


def modf(x, /):
    """(the fractional part, the whole part), both with the sign of `x`."""
    x = _a.asarray(x) * 1.0
    whole = _a.trunc(x)
    return _a.copysign(_a.where(_a.isinf(x), 0.0, x - whole), x), whole


def deg2rad(x, /, out=None):
    return _a.multiply(x, 0.017453292519943295, out=out)


def rad2deg(x, /, out=None):
    return _a.multiply(x, 57.29577951308232, out=out)


radians, degrees = deg2rad, rad2deg


def sinc(x):
    """sin(pi x) / (pi x), 1 at zero."""
    x = _a.asarray(x) * 1.0
    y = 3.141592653589793 * _a.where(x == 0, 1.0e-20, x)
    return _a.sin(y) / y


def angle(z, deg=False):
    z = _a.asarray(z)
    result = _a.arctan2(z.imag, z.real)
    return rad2deg(result) if deg else result


def fabs(x, /, out=None):
    return _a.absolute(_a.asarray(x) * 1.0, out=out)


def float_power(x1, x2, /):
    dtype = _a.promote_types(_a.result_type(x1, x2), _a.float64)
    return _a.power(_a.asarray(x1, dtype), x2)


def heaviside(x1, x2, /):
    x1 = _a.asarray(x1) * 1.0
    return _a.where(_a.isnan(x1), x1, _a.where(x1 == 0, x2, (x1 > 0) * 1.0))


def logaddexp2(x1, x2, /):
    return _a.logaddexp(_a.asarray(x1) * 0.6931471805599453, _a.asarray(x2) * 0.6931471805599453) / 0.6931471805599453


def gcd(x1, x2, /):
    """The greatest common divisor."""
    x1, x2 = _a.absolute(_a.asarray(x1)), _a.absolute(_a.asarray(x2))
    while (x2 != 0).any():
        x1, x2 = _a.where(x2 == 0, x1, x2), _a.where(x2 == 0, x2, x1 % _a.where(x2 == 0, 1, x2))
    return (x1 + x2 * 0)[()]


def lcm(x1, x2, /):
    common = gcd(x1, x2)
    return _a.where(common == 0, 0, _a.absolute(_a.asarray(x1) // _a.where(common == 0, 1, common) * x2))[()]


def interp(x, xp, fp, left=None, right=None, period=None):
    """Values at `x` on straight lines between the points (xp, fp); `xp` rises."""
    if period is not None:
        raise NotImplementedError("interp(period=...) is not there")
    x, xp, fp = _a.asarray(x) * 1.0, _a.asarray(xp) * 1.0, _a.asarray(fp) * 1.0
    if len(xp) != len(fp):
        raise ValueError("fp and xp are not of the same length.")
    if not len(xp):
        raise ValueError("array of sample points is empty")
    if len(xp) == 1:
        result = _a.zeros(x.shape) + fp[0]
    else:
        below = _a.clip(_a.searchsorted(xp, x, "right") - 1, 0, len(xp) - 2)
        slope = (fp[1:] - fp[:-1]) / (xp[1:] - xp[:-1])
        result = slope[below] * (x - xp[below]) + fp[below]
    result = _a.where(x < xp[0], fp[0] if left is None else left, result)
    return _a.where(x > xp[-1], fp[-1] if right is None else right, _a.where(x == xp[-1], fp[-1], result))[()]
