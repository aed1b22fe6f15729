"""Window functions, and the modified Bessel function that the Kaiser window needs."""

from vmhost.engine import _array as _a

pi = 3.141592653589793

# Chebyshev coefficients of exp(-x) I0(x) on [0, 8] and of sqrt(x) exp(-x) I0(x) on [8, inf), from Cephes (Moshier,
# i0.c)
_NEAR = (
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-09,
    -1.300025009986248e-08,
    6.046995022541919e-08,
    -2.670793853940612e-07,
    1.1173875391201037e-06,
    -4.4167383584587505e-06,
    1.6448448070728896e-05,
    -5.754195010082104e-05,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
)
_FAR = (
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-09,
    2.266668990498178e-08,
    2.0489185894690638e-07,
    2.8913705208347567e-06,
    6.889758346916825e-05,
    0.0033691164782556943,
    0.8044904110141088,
)


def _chebyshev(x, coefficients):
    """The Chebyshev series at x/2, by Clenshaw's recurrence."""
    last, before, older = coefficients[0], 0.0, 0.0
    for coefficient in coefficients[1:]:
        last, before, older = x * last - before + coefficient, last, before
    return 0.5 * (last - older)


def i0(x):
    """The modified Bessel function of the first kind, order 0, for real numbers."""
    x = _a.asarray(x)
    if x.dtype.kind == "c":
        raise TypeError("i0 not supported for complex values")
    if x.dtype.kind != "f":
        x = x.astype(float)
    x = _a.absolute(x)
    near = _chebyshev(_a.minimum(x, 8.0) / 2.0 - 2.0, _NEAR)
    wide = _a.maximum(x, 8.0)
    return (_a.exp(x) * _a.where(x <= 8.0, near, _chebyshev(32.0 / wide - 2.0, _FAR) / _a.sqrt(wide)))[()]


def _window(M, formula):
    """`formula` of n = 1 - M, 3 - M, ... M - 1; 1 for one point, empty for none."""
    M = _a.asarray(M).item()
    if M < 1:
        return _a.zeros(0)
    if M == 1:
        return _a.ones(1)
    return formula(_a.arange(1 - M, M, 2) * 1.0, M - 1)


def bartlett(M):
    return _window(M, lambda n, last: _a.where(n <= 0, 1 + n / last, 1 - n / last))


def blackman(M):
    return _window(M, lambda n, last: 0.42 + 0.5 * _a.cos(pi * n / last) + 0.08 * _a.cos(2.0 * pi * n / last))


def hamming(M):
    return _window(M, lambda n, last: 0.54 + 0.46 * _a.cos(pi * n / last))


def hanning(M):
    return _window(M, lambda n, last: 0.5 + 0.5 * _a.cos(pi * n / last))


def kaiser(M, beta):
    M = _a.asarray(M).item()
    if M == 1:
        return _a.ones(1)
    n = _a.arange(0, M) * 1.0
    alpha = (M - 1) / 2.0
    return i0(beta * _a.sqrt(1 - ((n - alpha) / alpha) ** 2.0)) / i0(_a.asarray(beta) * 1.0)
