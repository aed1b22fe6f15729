"""Rows of engine/include/vme_operators.h: their numbers stay, each has kernels, and each is compared with NumPy."""

import numpy as np
import pytest

from tests.batches import each
from tests.engine.library import DTYPES, EngineError, Status, names
from tests.engine.op_cases import BINARY, UNARY
from tests.engine.test_elementwise import binary, unary
from vmhost.engine._vme import ffi, lib
from vmhost.engine.library import operator_names
from vmhost.engine.onnx import operations

# Files of models have these numbers (docs/model-format.md): a file that was made yesterday means the same tomorrow.
NUMBERED = {
    "unary": """negative positive absolute sign invert logical_not square sqrt cbrt reciprocal exp exp2 expm1 log log2
        log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh erf floor ceil trunc rint
        isnan isinf isfinite signbit real imag conjugate bitwise_count""",
    "binary": """add subtract multiply divide floor_divide remainder fmod power maximum minimum fmax fmin arctan2 hypot
        copysign nextafter logaddexp bitwise_and bitwise_or bitwise_xor left_shift right_shift equal not_equal less
        less_equal greater greater_equal logical_and logical_or logical_xor heaviside gcd lcm""",
    "reduce": "sum prod max min all any argmax argmin count_nonzero fmax fmin",
    "scan": "cumsum cumprod cummax cummin",
}
NOT_OF_NUMPY = {"erf", "real", "imag"}  # which are no ufuncs there: tests of their own hold them


@pytest.mark.parametrize("family", NUMBERED)
def test_numbers_in_files_of_models_stay(family):
    numbered = NUMBERED[family].split()
    assert list(operator_names(family)[: len(numbered)]) == numbered


@each("name", names("unary"))
def test_every_unary_row_has_kernels(name, backend, context):
    assert any([has_loop(unary, context, name, np.ones(1, dtype)) for dtype in DTYPES]), "no dtype computes"


@each("name", names("binary"))
def test_every_binary_row_has_kernels(name, backend, context):
    one = {dtype: np.ones(1, dtype) for dtype in DTYPES}
    assert any([has_loop(binary, context, name, one[dtype], one[dtype]) for dtype in DTYPES]), "no dtype computes"


def has_loop(operator, context, name, *inputs):
    """Whether the rules of the row let it compute; fails where they do and no backend has a kernel."""
    try:
        operator(context, name, *inputs)
    except EngineError as error:
        assert error.status == Status.BAD_DTYPE and "has no loop for" not in str(error), error
        return False
    return True


def test_every_row_is_compared_with_numpy():
    """A new one has its row in tests/engine/op_cases.py."""
    assert set(names("unary")) - NOT_OF_NUMPY == UNARY.keys()
    assert names("binary").keys() == BINARY.keys()


def test_the_compiler_of_models_reads_the_rows():
    assert operations.UNARY == operator_names("unary")
    assert operations.BINARY == operator_names("binary")
    assert operations.REDUCE == operator_names("reduce")
    loop, result = ffi.new("vme_dtype *"), ffi.new("vme_dtype *")

    def is_truth(types, number, *dtypes):
        return types(number, *dtypes, loop, result) == lib.VME_OK and result[0] == lib.VME_BOOL

    float32 = lib.VME_FLOAT32
    assert operations.BOOLEAN_RESULTS == {
        *(name for name, number in names("unary").items() if is_truth(lib.vme_unary_types, number, float32)),
        *(name for name, number in names("binary").items() if is_truth(lib.vme_binary_types, number, float32, float32)),
    }
