"""NumPy's names over the tensor engine: `import vmhost.engine.numpy as np`, the same in the host and in every VM.

The computation is C (`vmhost.engine._array`); the Python files beside this one arrange its calls and are loaded at
first use."""

from vmhost.engine import _array
from vmhost.engine._array import *  # noqa: F403 - the module's public names are NumPy's

pi = 3.141592653589793
e = 2.718281828459045
euler_gamma = 0.5772156649015329
inf = float("inf")
nan = float("nan")
newaxis = None
little_endian = True

# NumPy's other names for the same functions
abs = _array.absolute
acos, acosh, asin, asinh, atan, atanh = (
    _array.arccos,
    _array.arccosh,
    _array.arcsin,
    _array.arcsinh,
    _array.arctan,
    _array.arctanh,
)
amax, amin = _array.max, _array.min
asanyarray = _array.asarray
atan2 = _array.arctan2
bitwise_not = bitwise_invert = _array.invert
bitwise_left_shift, bitwise_right_shift = _array.left_shift, _array.right_shift
concat = _array.concatenate
conj = _array.conjugate
mod = _array.remainder
permute_dims = _array.transpose
pow = _array.power
true_divide = _array.divide

# The names that each file defines; a file is imported when one of them is first used.
_LATER = {
    "_apply": "apply_along_axis apply_over_axes iterable vectorize",
    "_arithmetic": (
        "divmod modf frexp ldexp spacing deg2rad rad2deg radians degrees angle unwrap sinc fabs float_power "
        "logaddexp2 real_if_close interp"
    ),
    "_bits": "packbits unpackbits binary_repr base_repr",
    "_creation": (
        "linspace logspace geomspace eye identity diag diagflat tri tril triu tril_indices triu_indices "
        "diag_indices meshgrid indices fromfunction fromiter vander asfortranarray asarray_chkfinite require copyto"
    ),
    "_dtypes": (
        "iinfo finfo generic number integer signedinteger unsignedinteger inexact floating complexfloating issubdtype"
        " isdtype min_scalar_type isfortran True_ False_ ScalarType typecodes typename mintypecode common_type"
    ),
    "_einsum": "einsum einsum_path",
    "_flat": "flatiter",
    "_files": "load save savez savez_compressed",
    "_grids": (
        "mgrid ogrid r_ c_ index_exp s_ ix_ ndindex ndenumerate broadcast unravel_index ravel_multi_index "
        "diag_indices_from tril_indices_from triu_indices_from mask_indices fill_diagonal"
    ),
    "_histograms": "bincount digitize histogram histogram_bin_edges histogram2d histogramdd",
    "_inspection": "__array_namespace_info__",
    "_logic": (
        "isclose allclose array_equal array_equiv isneginf isposinf iscomplexobj isrealobj iscomplex isreal "
        "isscalar nan_to_num"
    ),
    "_memory": "may_share_memory shares_memory",
    "_nans": "nansum nanprod nancumsum nancumprod nanmean nanvar nanstd nanmax nanmin nanargmax nanargmin",
    "_options": "errstate seterr geterr",
    "_pads": "pad",
    "_polynomials": "poly poly1d polyadd polyder polydiv polyfit polyint polymul polysub polyval roots",
    "_printing": (
        "set_printoptions get_printoptions printoptions array2string array_str array_repr format_float_positional "
        "format_float_scientific"
    ),
    "_products": "inner outer vdot vecdot matvec vecmat tensordot kron cross convolve correlate",
    "_quantiles": "median quantile percentile nanmedian nanquantile nanpercentile",
    "_sets": (
        "flatnonzero argwhere unique unique_all unique_counts unique_inverse unique_values union1d intersect1d isin "
        "setdiff1d setxor1d partition argpartition lexsort sort_complex"
    ),
    "_shapes": (
        "ndim shape size expand_dims moveaxis rollaxis matrix_transpose flip flipud fliplr rot90 atleast_1d "
        "atleast_2d atleast_3d resize stack vstack row_stack hstack dstack column_stack block unstack array_split "
        "split vsplit hsplit dsplit tile repeat roll append delete insert trim_zeros take_along_axis "
        "put_along_axis put place putmask extract compress choose select piecewise broadcast_shapes broadcast_arrays"
    ),
    "_statistics": (
        "var std ptp average diff ediff1d gradient trapezoid cumulative_sum cumulative_prod cov corrcoef round "
        "around fix"
    ),
    "_text": "fromstring genfromtxt loadtxt savetxt",
    "_windows": "bartlett blackman hamming hanning kaiser i0",
}
# modules under NumPy's names, and their paths here
_MODULES = {
    "emath": "lib.scimath",
    "exceptions": "exceptions",
    "fft": "fft",
    "lib": "lib",
    "linalg": "linalg",
    "random": "random",
    "testing": "testing",
}
_FILE_OF = {name: file for file, names in _LATER.items() for name in names.split()}
__version__ = "2.5.0"  # the NumPy version whose behaviour this follows
__array_api_version__ = "2025.12"


def __getattr__(name):
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    file = _FILE_OF.get(name)
    if file is None:
        from vmhost.engine.numpy._absent import missing

        raise missing("", name)
    value = globals()[name] = getattr(import_module(f"{__name__}.{file}"), name)
    return value


def __dir__():
    return sorted({name for name in globals() if not name.startswith("_")} | _FILE_OF.keys() | _MODULES.keys())
