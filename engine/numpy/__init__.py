"""NumPy's names over the tensor engine: `import engine.numpy as np`, the same in the host and in every VM.

What computes is C (`engine._array`); what arranges calls of it is Python, in the files beside this one, loaded at first use.
"""

from engine import _array
from engine._array import *  # noqa: F403 - the module's public names are NumPy's

pi = 3.141592653589793
e = 2.718281828459045
euler_gamma = 0.5772156649015329
inf = float("inf")
nan = float("nan")
newaxis = None
little_endian = True

# NumPy's other names for the same functions
abs = _array.absolute
acos, acosh, asin, asinh, atan, atanh = (_array.arccos, _array.arccosh, _array.arcsin, _array.arcsinh, _array.arctan,
                                         _array.arctanh)
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

# Which file has which names; each is read when the first of its names is asked for.
_LATER = {
    "_creation":
        "linspace logspace geomspace eye identity diag diagflat tri tril triu tril_indices triu_indices "
        "diag_indices meshgrid indices fromfunction fromiter vander asfortranarray copyto broadcast_shapes "
        "broadcast_arrays",
    "_shapes":
        "ndim shape size expand_dims moveaxis rollaxis matrix_transpose flip flipud fliplr rot90 atleast_1d "
        "atleast_2d atleast_3d resize stack vstack row_stack hstack dstack column_stack unstack array_split split "
        "vsplit hsplit dsplit tile repeat roll pad append delete insert trim_zeros diagonal take_along_axis "
        "put_along_axis put place putmask extract compress choose select piecewise",
    "_sets":
        "flatnonzero argwhere unique unique_values union1d intersect1d isin setdiff1d setxor1d bincount digitize "
        "histogram partition argpartition lexsort",
    "_statistics":
        "var std ptp average median quantile percentile nansum nanmean nanvar nanstd nanmax nanmin diff ediff1d "
        "gradient trapezoid cumulative_sum cumulative_prod cov corrcoef round around fix",
    "_products":
        "inner outer vdot vecdot tensordot trace kron cross convolve correlate",
    "_logic":
        "isclose allclose array_equal array_equiv isneginf isposinf iscomplexobj isrealobj iscomplex isreal "
        "isscalar nan_to_num",
    "_arithmetic":
        "divmod modf deg2rad rad2deg radians degrees sinc angle fabs float_power heaviside logaddexp2 gcd lcm "
        "interp",
    "_dtypes":
        "iinfo finfo generic number integer signedinteger unsignedinteger inexact floating complexfloating "
        "issubdtype isdtype min_scalar_type isfortran",
    "_printing":
        "set_printoptions get_printoptions printoptions array2string array_str array_repr",
    "_options":
        "errstate seterr geterr",
}
_MODULES = {"exceptions"}
_FILE_OF = {name: file for file, names in _LATER.items() for name in names.split()}
__version__ = "2.5.0"       # the NumPy whose behaviour is followed


def __getattr__(name):
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    file = _FILE_OF.get(name)
    if file is None:
        from engine.numpy._absent import ABSENT

        advice = f"; {ABSENT[name]}" if name in ABSENT else ""
        raise AttributeError(f"module 'engine.numpy' has no attribute {name!r}{advice}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{file}"), name)
    return value


def __dir__():
    return sorted({name for name in globals() if not name.startswith("_")} | _FILE_OF.keys() | _MODULES)
