"""The operators and how each is implemented, read from the sources of truth; `vmhost doctor` prints it.

The C library reports which of its operators have kernels in every backend, which are loops written once, and which are
lowered to others. The functions of `vmhost.engine.numpy` beyond those are lowered to them in Python or in the array
module. Needs cffi, like `vmhost.engine.library`; imports all files of `vmhost.engine.numpy`."""

import importlib
from types import BuiltinFunctionType, FunctionType
from typing import NamedTuple

import vmhost.engine.numpy
from vmhost.engine import _array
from vmhost.engine._vme import ffi, lib
from vmhost.engine.library import operator_names
from vmhost.engine.numpy._composites import Composite

KERNELS, LOOPS, LOWERED = "kernels", "loops", "lowered"
_MAKING_NAMES = {lib.VME_BY_KERNELS: KERNELS, lib.VME_BY_LOOPS: LOOPS, lib.VME_LOWERED: LOWERED}
_FAMILIES = {"unary", "binary", "reduce", "scan"}  # operator families of the library, with a name for each member

# Files of vmhost.engine.numpy without operators on arrays: dtypes, files, text, printing, options, iteration, and
# wrappers of Python functions.
_NO_OPERATORS = {
    "_apply",
    "_dtypes",
    "_files",
    "_flat",
    "_inspection",
    "_memory",
    "_options",
    "_printing",
    "_text",
}
# Functions that are not operators: their result is not an array, or comes from outside or from the caller's function.
_NOT_OPERATORS = {
    "array",
    "asarray",
    "asarray_chkfinite",
    "base_repr",
    "binary_repr",
    "broadcast_shapes",
    "can_cast",
    "copyto",
    "einsum_path",
    "empty",
    "empty_like",
    "frombuffer",
    "from_dlpack",
    "fromfunction",
    "fromiter",
    "iscomplexobj",
    "isrealobj",
    "isscalar",
    "mask_indices",
    "ndim",
    "piecewise",
    "promote_types",
    "require",
    "result_type",
    "shape",
    "size",
}
# NumPy's names for functions that are one operator of the library.
_NUMPY_NAMED = {
    "argpartition",
    "astype",
    "bincount",
    "copy",
    "frexp",
    "full",
    "full_like",
    "interp",
    "modf",
    "ones",
    "ones_like",
    "packbits",
    "partition",
    "take",
    "unpackbits",
    "zeros",
    "zeros_like",
}


class Operator(NamedTuple):
    """An operator of the C library: its name, and "kernels" (in each backend), "loops" (its own, written once) or
    "lowered"."""

    name: str
    making: str


class Pieces(NamedTuple):
    """The number of pieces to write for all backends, and the number if every operator had a kernel in each."""

    written: int
    without_lowering: int


def listed():
    """Every Operator in the library's headers, with a family as one: raster, copy, unary, ..."""
    return [
        Operator(_text(lib.vme_operator_name(i)), _MAKING_NAMES[lib.vme_operator_making(i)])
        for i in range(lib.vme_operator_count())
    ]


def primitives():
    """The names of the library's operators that are not lowered, with a family as one: "raster", "unary", ..."""
    return [operator.name for operator in listed() if operator.making != LOWERED]


def operators():
    """Every Operator of the library, with each member of a family: raster, copy, negative, positive, ..."""
    found = []
    for operator in listed():
        names = operator_names(operator.name) if operator.name in _FAMILIES else (operator.name,)
        found += [Operator(name, operator.making) for name in names]
    return found


def kernels():
    """{backend: number of kernels it implements}; it takes the others from the backend below it."""
    return {_text(lib.vme_backend_name(i)): lib.vme_backend_kernels(i) for i in range(lib.vme_backend_count())}


def lowered():
    """The names of operators composed of others, which need no code in any backend: the library's, and
    vmhost.engine.numpy's functions."""
    names = {operator.name for operator in operators() if operator.making == LOWERED}
    files = {file for file in vmhost.engine.numpy._FILE_OF.values() if file not in _NO_OPERATORS}
    for file in files:
        importlib.import_module(f"vmhost.engine.numpy.{file}")
    known = {operator.name for operator in operators()} | _NOT_OPERATORS | _NUMPY_NAMED
    found = {}  # a function under several names counts once
    for name in sorted(
        set(dir(_array)) | {name for name, file in vmhost.engine.numpy._FILE_OF.items() if file in files}
    ):
        function = getattr(vmhost.engine.numpy, name, None)
        if (
            not name.startswith("_")
            and name not in known
            and isinstance(function, (BuiltinFunctionType, FunctionType, Composite))
        ):
            found.setdefault(
                id(function),
                function.__name__ if getattr(vmhost.engine.numpy, function.__name__, None) is function else name,
            )
    return sorted(names | set(found.values()))


def pieces():
    """The Pieces of all operators, counted as in Walle (OSDI '22, section 4.1: 1954 become 1055)."""
    backends, makings = lib.vme_backend_count(), [operator.making for operator in operators()]
    composed = len(lowered())
    own = len(makings) - makings.count(LOWERED)
    return Pieces(makings.count(KERNELS) * backends + makings.count(LOOPS) + composed, (own + composed) * backends)


def _text(characters):
    return ffi.string(characters).decode()
