"""What tests and benchmarks run: operators with dtypes, and layouts of operands. Plain data.

A case is an operator's name, the dtypes of its inputs and a domain (which values make sense); a layout says how operands of `n`
elements lie in memory.
"""

import numpy as np

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
ALL = ["bool", *INTEGERS, *FLOATS, *COMPLEX]

# what the values of a benchmark are drawn from: (low, high)
DOMAINS = {"any": (-50, 50), "positive": (0.1, 50), "unit": (-0.99, 0.99), "above one": (1.01, 50), "small": (1, 5)}

# operator: domain of its input
UNARY = {
    "negative": "any", "positive": "any", "absolute": "any", "sign": "any", "invert": "any", "logical_not": "any", "square": "any",
    "sqrt": "positive", "cbrt": "any", "reciprocal": "positive", "exp": "any", "exp2": "any", "expm1": "any", "log": "positive",
    "log2": "positive", "log10": "positive", "log1p": "positive", "sin": "any", "cos": "any", "tan": "any", "arcsin": "unit",
    "arccos": "unit", "arctan": "any", "sinh": "any", "cosh": "any", "tanh": "any", "arcsinh": "any", "arccosh": "above one",
    "arctanh": "unit", "floor": "any", "ceil": "any", "trunc": "any", "rint": "any", "isnan": "any", "isinf": "any",
    "isfinite": "any", "signbit": "any", "conjugate": "any",
}
BINARY = {
    "add": "any", "subtract": "any", "multiply": "any", "divide": "positive", "floor_divide": "positive", "remainder": "positive",
    "fmod": "positive", "power": "small", "maximum": "any", "minimum": "any", "fmax": "any", "fmin": "any", "arctan2": "any",
    "hypot": "any", "copysign": "any", "nextafter": "any", "logaddexp": "any", "bitwise_and": "any", "bitwise_or": "any",
    "bitwise_xor": "any", "left_shift": "small", "right_shift": "small", "equal": "any", "not_equal": "any", "less": "any",
    "less_equal": "any", "greater": "any", "greater_equal": "any", "logical_and": "any", "logical_or": "any", "logical_xor": "any",
}

# what a benchmark measures: (operator, dtypes of its inputs)
MEASURED = [
    *((name, (dtype, dtype)) for name in ("add", "multiply", "maximum", "less", "equal")
      for dtype in ("float32", "float64", "int32", "int64", "uint8")),
    *((name, (dtype, dtype)) for name in ("divide", "power", "arctan2") for dtype in ("float32", "float64")),
    *((name, (dtype, dtype)) for name in ("floor_divide", "remainder") for dtype in ("float32", "int32", "int64")),
    *((name, ("int64", "int64")) for name in ("bitwise_and", "left_shift")),
    ("logical_and", ("bool", "bool")), ("add", ("int32", "float32")), ("add", ("float16", "float16")), ("multiply", ("complex64",) * 2),
    *((name, (dtype,)) for name in ("negative", "absolute", "sqrt", "square", "floor", "isnan", "exp", "log", "sin", "cos", "tanh",
                                    "expm1", "log1p", "arctan")
      for dtype in ("float32", "float64")),
    ("absolute", ("int32",)), ("absolute", ("complex64",)), ("logical_not", ("bool",)), ("exp", ("float16",)),
]

# what a benchmark reduces: operator, dtypes; and what the values are drawn from
REDUCED = {
    "sum": ("float32", "float64", "int64", "uint8"), "mean": ("float32", "float64"), "prod": ("float64",),
    "max": ("float32", "float64", "int32", "uint8"), "min": ("float32", "int64"), "argmax": ("float32", "int64"),
    "all": ("bool",), "any": ("bool",), "count_nonzero": ("bool", "int32"), "cumsum": ("float32", "int64"),
}
REDUCED_DOMAIN = {name: "unit" if name == "prod" else "any" for name in REDUCED}

# what a benchmark casts: from, to
CASTS = [("float32", "float64"), ("float64", "float32"), ("int32", "float32"), ("int64", "float64"), ("float32", "int32"),
         ("float64", "int64"), ("uint8", "float32"), ("float32", "uint8"), ("bool", "float32"), ("int64", "int32"), ("int32", "int64"),
         ("float16", "float32"), ("float32", "float16"), ("float32", "bool")]

# layout: how many operands of `n` elements are laid out
LAYOUTS = ["contiguous", "strided", "broadcast", "scalar", "transposed"]


def operand(layout, number, n, dtype, domain, seed=0):
    """Input `number` (0, 1) of a case: about `n` elements of `dtype` in one of LAYOUTS.

    strided: every other element; broadcast: (rows, 100) with a row of 100; scalar: with a 0-d array; transposed: a square's transpose,
    both inputs alike."""
    low, high = DOMAINS[domain]
    random = np.random.default_rng(seed + number)

    def values(size):
        made = random.uniform(low, high, size)
        if np.dtype(dtype).kind == "u":
            made = np.abs(made)
        if np.dtype(dtype).kind == "c":
            made = made + 1j * random.uniform(low, high, size)
        if np.dtype(dtype).kind == "b":
            made = made > (low + high) / 2
        if np.dtype(dtype).kind in "iu" and low > 0:
            made = np.ceil(made)
        return np.asarray(made, dtype)
    if layout == "strided":
        return values(2 * n)[::2]
    if layout == "broadcast":
        return values((max(n // 100, 1), 100)) if number == 0 else values(100)
    if layout == "scalar" and number == 1:
        return values(())
    if layout == "transposed":
        side = round(n ** 0.5)
        return values((side, side)).T
    return values(n)
