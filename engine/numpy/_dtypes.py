"""Properties of dtypes: limits, and the kinds they belong to."""

from types import GenericAlias

from vmhost.engine import _array as _a


def _dtype_of(value):
    """The dtype that `value` names, or that of a number of Python."""
    return _a.asarray(value).dtype if isinstance(value, (int, float, complex)) else _a.dtype(value)


class iinfo:
    """The limits of an integer dtype: `bits`, `min`, `max`."""

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, type):
        try:
            self.dtype = type.dtype if isinstance(type, _a.ndarray) else _dtype_of(type)
        except TypeError as error:
            raise ValueError(f"Invalid integer data type {type!r}.") from error
        if self.dtype.kind not in "iu":
            raise ValueError(f"Invalid integer data type {self.dtype.kind!r}.")
        self.kind = self.dtype.kind
        self.bits = 8 * self.dtype.itemsize
        self.min = 0 if self.kind == "u" else -(1 << self.bits - 1)
        self.max = (1 << self.bits - (self.kind == "i")) - 1

    def __str__(self):
        line = "-" * 63
        return f"Machine parameters for {self.dtype}\n{line}\nmin = {self.min}\nmax = {self.max}\n{line}\n"

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


_MANTISSA = {"float16": (10, 15, 3), "float32": (23, 127, 6), "float64": (52, 1023, 15)}


class finfo:
    """The limits of a floating dtype (for a complex dtype, of its parts)."""

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, dtype):
        if dtype is None:
            raise TypeError("dtype must not be None")
        dtype = dtype.dtype if isinstance(dtype, _a.ndarray) else _dtype_of(dtype)
        if dtype.kind == "c":
            dtype = _a.float32 if dtype.itemsize == 8 else _a.float64
        if dtype.kind != "f":
            raise ValueError(f"data type {dtype!r} not compatible with finfo")
        bits, largest, self.precision = _MANTISSA[dtype.name]
        self.dtype, self.bits, self.nmant, self.nexp = dtype, 8 * dtype.itemsize, bits, 8 * dtype.itemsize - bits - 1
        self.maxexp, self.minexp = largest + 1, 1 - largest
        self.machep, self.negep, self.iexp = -bits, -bits - 1, self.nexp
        self.eps = dtype(2.0**-bits)
        self.epsneg = dtype(2.0 ** -(bits + 1))
        self.max = dtype((2.0 - 2.0**-bits) * 2.0**largest)
        self.min = -self.max
        self.tiny = self.smallest_normal = dtype(2.0**self.minexp)
        self.smallest_subnormal = dtype(2.0 ** (self.minexp - bits))
        self.resolution = dtype(10.0**-self.precision)

    def __str__(self):
        line = "-" * 63
        return (
            f"Machine parameters for {self.dtype}\n{line}\nprecision = {self.precision}   resolution ="
            f" {self.resolution!s}\nmachep = {self.machep}   eps =        {self.eps!s}\nnegep =  {self.negep}   epsneg"
            f" =     {self.epsneg!s}\nminexp = {self.minexp}   tiny =       {self.tiny!s}\nmaxexp = {self.maxexp}   max"
            f" =        {self.max!s}\nnexp =   {self.nexp}   min =        -max\nsmallest_normal ="
            f" {self.smallest_normal!s}   smallest_subnormal = {self.smallest_subnormal!s}\n{line}\n"
        )

    def __eq__(self, other):
        return isinstance(other, finfo) and self.dtype == other.dtype

    def __hash__(self):
        return hash(self.dtype)

    def __repr__(self):
        return f"finfo(resolution={self.resolution!s}, min={self.min!s}, max={self.max!s}, dtype={self.dtype})"


class _Kind:
    """One of NumPy's abstract scalar classes: `isinstance(x, np.floating)`, `issubdtype(dtype, np.integer)`."""

    def __init__(self, name, kinds):
        self.__name__, self.kinds = name, kinds

    def __instancecheck__(self, value):
        return isinstance(value, _a.ndarray) and value.dtype.kind in self.kinds and isinstance(value, value.dtype)

    def __subclasscheck__(self, other):
        return issubdtype(other, self)

    def __repr__(self):
        return f"<class 'numpy.{self.__name__}'>"


generic = _Kind("generic", "biufc")
number = _Kind("number", "iufc")
integer = _Kind("integer", "iu")
signedinteger = _Kind("signedinteger", "i")
unsignedinteger = _Kind("unsignedinteger", "u")
inexact = _Kind("inexact", "fc")
floating = _Kind("floating", "f")
complexfloating = _Kind("complexfloating", "c")


def issubdtype(arg1, arg2):
    """Whether the first dtype or kind is within the second."""
    kinds = arg1.kinds if isinstance(arg1, _Kind) else _a.dtype(arg1).kind
    if isinstance(arg2, _Kind):
        return all(kind in arg2.kinds for kind in kinds)
    return not isinstance(arg1, _Kind) and _a.dtype(arg1) == _a.dtype(arg2)


_STANDARD = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


def isdtype(dtype, kind):
    """Whether `dtype` is of this kind (array API standard): a dtype, a kind by name, or a tuple of them."""
    if not isinstance(dtype, _a.dtype):
        raise TypeError(f"dtype argument must be a NumPy dtype, but it is a {type(dtype)}.")
    for one in kind if isinstance(kind, tuple) else (kind,):
        if not isinstance(one, (str, _a.dtype)):
            raise TypeError(f"kind argument must be comprised of NumPy dtypes or strings only, but is a {type(one)}.")
        if isinstance(one, str) and one not in _STANDARD:
            raise ValueError(f"kind argument is a string, but {one!r} is not a known kind name.")
        if dtype.kind in _STANDARD[one] if isinstance(one, str) else dtype == one:
            return True
    return False


def min_scalar_type(a, /):
    a = _a.asarray(a)
    if a.ndim or a.dtype.kind == "b":
        return a.dtype
    value = a.item()
    if a.dtype.kind in "iu":
        names = ("uint8", "uint16", "uint32", "uint64") if value >= 0 else ("int8", "int16", "int32", "int64")
        return next(_a.dtype(name) for name in names if iinfo(name).min <= value <= iinfo(name).max)
    names = ("float16", "float32", "float64") if a.dtype.kind == "f" else ("complex64", "complex128")
    size = abs(value)
    if size != size or size == float("inf"):
        return _a.dtype(names[0])
    return next(_a.dtype(name) for name in names if size <= finfo(name).max.item())


def isfortran(a):
    return a.flags.fnc


# ---- names and lists of dtypes


def __getattr__(name):
    if name in ("True_", "False_"):  # arrays, made at first use
        return _a.bool(name == "True_")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


ScalarType = (
    int,
    float,
    complex,
    bool,
    bytes,
    str,
    memoryview,
    _a.bool,
    _a.complex64,
    _a.complex128,
    _a.float16,
    _a.float32,
    _a.float64,
    _a.int8,
    _a.int16,
    _a.int32,
    _a.int64,
    _a.uint8,
    _a.uint16,
    _a.uint32,
    _a.uint64,
)
typecodes = {
    "Character": "",
    "Integer": "bhilqnp",
    "UnsignedInteger": "BHILQNP",
    "Float": "efd",
    "Complex": "FD",
    "AllInteger": "bBhHiIlLqQnNpP",
    "AllFloat": "efdFD",
    "Datetime": "",
    "All": "?bhilqnpBHILQNPefdFD",
}

_DESCRIPTIONS = {
    "?": "bool",
    "b": "signed char",
    "B": "unsigned char",
    "h": "short",
    "H": "unsigned short",
    "i": "integer",
    "I": "unsigned integer",
    "l": "long integer",
    "L": "unsigned long integer",
    "q": "long long integer",
    "Q": "unsigned long long integer",
    "f": "single precision",
    "d": "double precision",
    "F": "complex single precision",
    "D": "complex double precision",
}


def typename(char):
    """The description of a dtype's one-letter code."""
    return _DESCRIPTIONS[char]


def mintypecode(typechars, typeset="GDFgdf", default="d"):
    """The code of the smallest floating dtype in `typeset` that can hold all of `typechars`."""
    codes = [char if isinstance(char, str) else _a.asarray(char).dtype.char for char in typechars]
    candidates = [code for code in codes if code in typeset]
    if not candidates:
        return default
    if "F" in candidates and "d" in candidates:
        return "D"
    return min(candidates, key="GDFgdf".index)


def common_type(*arrays):
    """The floating dtype to compute all arrays in; float64 for integers."""
    dtypes = [_a.asarray(array).dtype for array in arrays]
    if any(dtype.kind == "b" for dtype in dtypes):
        raise TypeError("can't get common type for non-numeric array")
    return (
        _a.result_type(_a.float16, *(_a.float64 if dtype.kind in "iu" else dtype for dtype in dtypes))
        if dtypes
        else _a.float16
    )
