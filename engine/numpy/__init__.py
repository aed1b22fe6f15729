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
_LATER = {}
_MODULES = {"exceptions"}
_FILE_OF = {name: file for file, names in _LATER.items() for name in names.split()}
__version__ = "2.5.0"       # the NumPy whose behaviour is followed


def __getattr__(name):
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    file = _FILE_OF.get(name)
    if file is None:
        raise AttributeError(f"module 'engine.numpy' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{file}"), name)
    return value


def __dir__():
    return sorted({name for name in globals() if not name.startswith("_")} | _FILE_OF.keys() | _MODULES)
