"""`numpy.fft`: discrete Fourier transforms, by pocketfft (engine/src/vendor/pocketfft). float16, float32 and
complex64 are computed in single precision, all other dtypes in double."""

from operator import index as _index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _axis
from vmhost.engine.numpy._shapes import roll as _roll

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

_FORWARD, _BACKWARD, _REAL_FORWARD, _REAL_BACKWARD = range(4)
_DIVIDES = {_FORWARD: "forward", _REAL_FORWARD: "forward", _BACKWARD: "backward", _REAL_BACKWARD: "backward"}
_INVERSE_NORM = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def _transform(kind, a, n, axis, norm, out=None):
    if n < 1:
        raise ValueError(f"Invalid number of FFT data points ({n}) specified.")
    if norm not in _INVERSE_NORM:
        raise ValueError(f'Invalid norm value {norm}; should be "backward","ortho" or "forward".')
    factor = n**-0.5 if norm == "ortho" else 1 / n if (norm or "backward") == _DIVIDES[kind] else 1.0
    single = a.dtype in (_a.float16, _a.float32, _a.complex64)
    real, number = (_a.float32, _a.complex64) if single else (_a.float64, _a.complex128)
    if kind == _REAL_FORWARD and a.dtype.kind == "c":
        raise TypeError(
            f"ufunc 'rfft_n_{'odd' if n % 2 else 'even'}' not supported for the input types: complex numbers; use fft"
        )
    rows = _rows_last(a.astype(real if kind == _REAL_FORWARD else number, copy=False), axis)
    columns = n // 2 + 1 if kind == _REAL_FORWARD else n
    dtype = real if kind == _REAL_BACKWARD else number
    shape = a.shape[:axis] + (columns,) + a.shape[axis + 1 :]
    if out is not None and not isinstance(out, _a.ndarray):
        raise TypeError("return arrays must be of ArrayType")
    if out is not None and out.shape != shape:
        raise ValueError("output array has wrong shape.")
    last = axis == a.ndim - 1
    direct = out is not None and last and out.dtype == dtype and out.flags.c_contiguous and out is not a
    result = out if direct else _a.empty(rows.shape[:-1] + (columns,), dtype)
    _a._fft(kind, n, factor, rows, result)
    if direct:
        return out
    if not last:
        result = result.swapaxes(axis, -1)
    if out is not None:
        if not _a.can_cast(dtype, out.dtype, "same_kind"):
            raise TypeError(
                f"Cannot cast ufunc 'fft' output from {dtype!r} to {out.dtype!r} with casting rule 'same_kind'"
            )
        out[...] = result
        return out
    return result


def _rows_last(a, axis):
    a = a if axis == a.ndim - 1 else a.swapaxes(axis, -1)
    return _a.ascontiguousarray(a)


def _along_axis(kind, a, n, axis, norm, out):
    a = _a.asarray(a)
    axis = _axis(axis, a.ndim)
    if n is None:
        n = a.shape[axis] if kind != _REAL_BACKWARD else 2 * (a.shape[axis] - 1)
    return _transform(kind, a, _index(n), axis, norm, out)


def fft(a, n=None, axis=-1, norm=None, out=None):
    """The transform along `axis`, of `n` points: longer rows are truncated, shorter ones padded with zeros."""
    return _along_axis(_FORWARD, a, n, axis, norm, out)


def ifft(a, n=None, axis=-1, norm=None, out=None):
    """The inverse of `fft`."""
    return _along_axis(_BACKWARD, a, n, axis, norm, out)


def rfft(a, n=None, axis=-1, norm=None, out=None):
    """The transform of real numbers: the n//2+1 values at nonnegative frequencies; the others are their conjugates."""
    return _along_axis(_REAL_FORWARD, a, n, axis, norm, out)


def irfft(a, n=None, axis=-1, norm=None, out=None):
    """The inverse of `rfft`: `n` real numbers, by default 2 * (count of values - 1)."""
    return _along_axis(_REAL_BACKWARD, a, n, axis, norm, out)


def hfft(a, n=None, axis=-1, norm=None, out=None):
    """The transform of a Hermitian-symmetric signal, given by its first half: real numbers."""
    if norm not in _INVERSE_NORM:
        raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
    return irfft(_a.conjugate(_a.asarray(a)), n, axis, _INVERSE_NORM[norm], out)


def ihfft(a, n=None, axis=-1, norm=None, out=None):
    """The inverse of `hfft`."""
    if norm not in _INVERSE_NORM:
        raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
    result = rfft(a, n, axis, _INVERSE_NORM[norm], out)
    return _a.conjugate(result, out=result)


def _sizes(a, s, axes, half_last=False):
    """Returns (the number of points along each axis, axes)."""
    if s is None:
        axes = range(a.ndim) if axes is None else axes
        s = [a.shape[axis] for axis in axes]
        if half_last and s:
            s[-1] = 2 * (s[-1] - 1)
    else:
        s = list(s)
        axes = range(-len(s), 0) if axes is None else axes
        if len(s) != len(axes):
            raise ValueError("Shape and axes have different lengths.")
        s = [a.shape[axis] if size == -1 else size for size, axis in zip(s, axes)]
    return s, list(axes)


def _along_axes(kind, a, s, axes, norm, out):
    a = _a.asarray(a)
    s, axes = _sizes(a, s, axes)
    for size, axis in reversed(list(zip(s, axes))):
        a = _along_axis(kind, a, size, axis, norm, out)
    return a


def fftn(a, s=None, axes=None, norm=None, out=None):
    """The transform along several axes (default: all)."""
    return _along_axes(_FORWARD, a, s, axes, norm, out)


def ifftn(a, s=None, axes=None, norm=None, out=None):
    return _along_axes(_BACKWARD, a, s, axes, norm, out)


def fft2(a, s=None, axes=(-2, -1), norm=None, out=None):
    return _along_axes(_FORWARD, a, s, axes, norm, out)


def ifft2(a, s=None, axes=(-2, -1), norm=None, out=None):
    return _along_axes(_BACKWARD, a, s, axes, norm, out)


def rfftn(a, s=None, axes=None, norm=None, out=None):
    """The transform of real numbers along several axes: `rfft` along the last, `fft` along the others."""
    a = _a.asarray(a)
    s, axes = _sizes(a, s, axes)
    a = _along_axis(_REAL_FORWARD, a, s[-1], axes[-1], norm, out)
    for size, axis in zip(s[-2::-1], axes[-2::-1]):
        a = _along_axis(_FORWARD, a, size, axis, norm, out)
    return a


def rfft2(a, s=None, axes=(-2, -1), norm=None, out=None):
    return rfftn(a, s, axes, norm, out)


def irfftn(a, s=None, axes=None, norm=None, out=None):
    """The inverse of `rfftn`."""
    a = _a.asarray(a)
    s, axes = _sizes(a, s, axes, True)
    for size, axis in zip(s[:-1], axes[:-1]):
        a = _along_axis(_BACKWARD, a, size, axis, norm, None)
    return _along_axis(_REAL_BACKWARD, a, s[-1], axes[-1], norm, out)


def irfft2(a, s=None, axes=(-2, -1), norm=None, out=None):
    return irfftn(a, s, axes, norm, out)


# ---- frequencies


def fftfreq(n, d=1.0, device=None, *, dtype=None):
    """The frequency of each value of `fft`, in cycles per unit of the sample spacing `d`; `dtype` is floating, by
    default float64."""
    n = _points(n)
    numbers = _a.concatenate((_a.arange(0, (n - 1) // 2 + 1), _a.arange(-(n // 2), 0)))
    return _cast(dtype, numbers * (1.0 / (n * d)))


def rfftfreq(n, d=1.0, device=None, *, dtype=None):
    """The frequency of each value of `rfft`."""
    return _cast(dtype, _a.arange(0, _points(n) // 2 + 1) * (1.0 / (n * d)))


def _cast(dtype, frequencies):
    if dtype is not None and _a.dtype(dtype).kind != "f":
        raise TypeError(
            f"frequencies have a real floating dtype, got {_a.dtype(dtype)}: leave dtype out, and cast the result"
        )
    return frequencies.astype(dtype or frequencies.dtype, copy=False)


def _points(n):
    if not hasattr(n, "__index__"):
        raise ValueError("n should be an integer")
    return _index(n)


def _shifted(x, axes, sign):
    x = _a.asarray(x)
    axes = tuple(range(x.ndim)) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    return _roll(x, [sign * (x.shape[axis] // 2) for axis in axes], axes)


def fftshift(x, axes=None):
    """Moves frequency zero to the middle."""
    return _shifted(x, axes, 1)


def ifftshift(x, axes=None):
    """The inverse of `fftshift`."""
    return _shifted(x, axes, -1)


def __dir__():
    return list(__all__)
