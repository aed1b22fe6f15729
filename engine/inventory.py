"""What operators there are and how each is made, read from where they are made: what `vmhost doctor` prints.

The C library says which of its operators have kernels in every backend, which are loops written once, and which are
lowered to others; the functions of `vmhost.engine.numpy` beyond those are lowered to them in Python or in the array
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
_MAKINGS = {lib.VME_BY_KERNELS: KERNELS, lib.VME_BY_LOOPS: LOOPS, lib.VME_LOWERED: LOWERED}
_FAMILIES = {"unary", "binary", "reduce", "scan"}  # operators of the library that are many, each with a name

# Files of vmhost.engine.numpy that hold no operators on arrays: dtypes, files, text, printing, options, walks and
# functions of Python's.
_NO_OPERATORS = {
    "_apply",
    "_dtypes",
    "_files",
    "_flat",
    "_inspection",
    "_memory",
    "_options",
    "_poly1d",
    "_printing",
    "_text",
}
# Functions beside operators that are none: what they say is no array, comes from outside, or from a function of the
# caller's.
_NONE = {
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
# One operator of the library each, under NumPy's name.
_ONE = {
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
    """What has to be written for all backends, and what would have to be if every operator had a kernel in each."""

    written: int
    without_lowering: int


def listed():
    """Every Operator of the library's headers; a family as one: raster, copy, unary, ..."""
    return [
        Operator(_text(lib.vme_operator_name(i)), _MAKINGS[lib.vme_operator_making(i)])
        for i in range(lib.vme_operator_count())
    ]


def primitives():
    """The names of the library's operators that are not lowered, a family's as one: "raster", "unary", ..."""
    return [operator.name for operator in listed() if operator.making != LOWERED]


def operators():
    """Every Operator of the library, each one of a family: raster, copy, negative, positive, ..."""
    found = []
    for operator in listed():
        names = operator_names(operator.name) if operator.name in _FAMILIES else (operator.name,)
        found += [Operator(name, operator.making) for name in names]
    return found


def kernels():
    """{backend: how many kernels it brings}; the rest it has from the one below it."""
    return {_text(lib.vme_backend_name(i)): lib.vme_backend_kernels(i) for i in range(lib.vme_backend_count())}


def lowered():
    """The names of the operators that are made of others and so need nothing in any backend: the library's, and
    vmhost.engine.numpy's functions."""
    names = {operator.name for operator in operators() if operator.making == LOWERED}
    files = {file for file in vmhost.engine.numpy._FILE_OF.values() if file not in _NO_OPERATORS}
    for file in files:
        importlib.import_module(f"vmhost.engine.numpy.{file}")
    known = {operator.name for operator in operators()} | _NONE | _ONE
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
    """The Pieces of all operators, counted as Walle counts (OSDI '22, section 4.1: 1954 become 1055)."""
    backends, makings = lib.vme_backend_count(), [operator.making for operator in operators()]
    made_of_others = len(lowered())
    own = len(makings) - makings.count(LOWERED)
    return Pieces(
        makings.count(KERNELS) * backends + makings.count(LOOPS) + made_of_others, (own + made_of_others) * backends
    )


def _text(characters):
    return ffi.string(characters).decode()
