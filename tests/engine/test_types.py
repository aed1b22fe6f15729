"""The dtypes that operators compute in and return: every combination of dtypes, against NumPy's ufuncs."""

import ctypes

import numpy as np

from tests.batches import each
from tests.engine.library import DTYPES, NUMBER, EngineError, Status, check, library, names

UNARY, BINARY = names("unary"), names("binary")


def types(function, number, *inputs):
    loop, result = ctypes.c_int(), ctypes.c_int()
    check(function(number, *(NUMBER[dtype] for dtype in inputs), ctypes.byref(loop), ctypes.byref(result)))
    return DTYPES[loop.value], DTYPES[result.value]


def expected(ufunc, *inputs):
    """NumPy's loop (of the first input) and result; or its error message."""
    try:
        ufunc(*(np.zeros(0, dtype) for dtype in inputs))
    except TypeError as error:
        return str(error)
    found = ufunc.resolve_dtypes((*inputs, None))
    return found[0], found[-1]


def outcome(function, number, *inputs):
    try:
        return types(function, number, *inputs)
    except EngineError as error:
        assert error.status == Status.BAD_DTYPE
        return str(error)


@each("name", [name for name in UNARY if name not in ("erf", "real", "imag")])
def test_unary(name):
    for dtype in DTYPES:
        assert outcome(library.vme_unary_types, UNARY[name], dtype) == expected(getattr(np, name), dtype), dtype


@each("name", BINARY)
def test_binary(name):
    for a in DTYPES:
        for b in DTYPES:
            found, wanted = outcome(library.vme_binary_types, BINARY[name], a, b), expected(getattr(np, name), a, b)
            if wanted == found:
                continue
            # integers of both signs compare in no common dtype; logical operators look at each operand by itself
            assert isinstance(found, tuple) and found[1] == wanted[1] == bool, (a, b, found, wanted)
            assert name.startswith("logical") or (a.kind + b.kind in ("iu", "ui") and found[0] == np.uint64), (
                a,
                b,
                found,
                wanted,
            )


def test_parts_and_erf():
    for dtype in DTYPES:
        part = np.ones(1, dtype).real.dtype
        assert types(library.vme_unary_types, UNARY["real"], dtype) == (dtype, part)
        assert types(library.vme_unary_types, UNARY["imag"], dtype) == (dtype, part)
        found = outcome(library.vme_unary_types, UNARY["erf"], dtype)
        wanted = expected(np.cbrt, dtype)  # NumPy has no erf; a real function of floats like it
        assert found == (wanted.replace("cbrt", "erf") if isinstance(wanted, str) else wanted)
