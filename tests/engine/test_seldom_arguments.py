"""Rare arguments: dtype=, where= of a wider shape, orders in memory, devices, reductions by any ufunc, comparisons with
values that are not numbers. Compared with NumPy, in the host and again in a sealed VM: see cases.py."""

import numpy
import pytest

import vmhost.engine.numpy
from tests.batches import each
from tests.engine.cases import again_in_a_vm, check, host_of_cases, outcomes  # noqa: F401 - two are fixtures

pytestmark = pytest.mark.usefixtures("again_in_a_vm")

MATRIX = numpy.arange(6.0).reshape(2, 3)
TURNED = numpy.asfortranarray(numpy.arange(24.0).reshape(2, 3, 4))
CUBE = numpy.arange(24).reshape(2, 3, 4)


@each(
    "expression",
    [
        "np.subtract.reduce(x, initial=10)",
        "np.subtract.reduce(x, axis=1, keepdims=True)",
        "np.subtract.reduce(x, where=[True, False, True], initial=3)",
        "np.divide.reduce(x, where=[True, False, True])",
        "np.subtract.reduce(x, axis=None)",
        "np.hypot.reduce(x[0], keepdims=True)",
        "np.copysign.reduce(np.array(2.5))",
        "np.gcd.reduce(np.array(7))",
        "np.bitwise_and.reduce(c | 5, axis=(0, 2), keepdims=True)",
        "np.bitwise_xor.reduce(c, axis=None)",
        "np.gcd.reduce(c, axis=None)",
        "np.lcm.reduce([4, 6, 10])",
        "np.logical_xor.reduce(c % 3, axis=(0, 2))",
        "np.bitwise_or.reduce(np.zeros((0, 3), int))",
        "np.heaviside.reduce(np.zeros(0), initial=-1.5)",
        "np.heaviside.reduce(np.zeros(0))",
        "np.bitwise_and.reduce(c, where=c > 3, axis=1)",
        "np.ldexp.reduce(np.array([[True, False], [False, True]]), initial=-1.5)",
        "np.power.reduce([2, 3, 2])",
        "np.fmod.reduce(np.array([17.0, 5, 3]))",
        "np.left_shift.reduce(np.array([1, 2, 3]), initial=5)",
        "np.negative.reduce(x)",
        "np.negative.accumulate(x)",
        "np.negative.outer(x, x)",
        "np.negative.reduceat(x, [0])",
        "np.subtract.accumulate(np.array(3))",
        "np.subtract.accumulate(x, axis=1)",
        "np.subtract.reduce(x, axis=None, out=np.zeros(()))",
        "np.subtract.reduceat(x, [])",
        "np.add.reduceat(x, [], axis=1)",
    ],
)
def test_reductions_by_any_ufunc(expression):
    check(expression, x=MATRIX, c=CUBE)


def test_a_reduction_of_many_rows_takes_them_in_halves():
    for count in (1, 7, 8, 9, 100, 1001):
        check("np.bitwise_xor.reduce(x)", x=numpy.arange(count * 3).reshape(count, 3))


@each(
    "expression",
    [
        "np.less(x, 2, dtype=bool)",
        "np.not_equal(x, x, dtype=bool)",
        "np.isnan(x, dtype=bool)",
        "np.logical_and(x, x, dtype=bool)",
        "np.add(x, 1, dtype='f4')",
        "np.less(x, 2, dtype='f4')",
        "np.isnan(x, dtype='f8')",
        "np.signbit(x, dtype=int)",
        "np.sqrt(x, dtype=int)",
        "np.divide(x, 2, dtype=int)",
        "np.arctan2(x, x, dtype='u1')",
        "np.log10(True, dtype=bool)",
        "np.zeros(3, order='z')",
        "np.array(x, order='z')",
        "x.copy('z')",
        "np.zeros(3, device='gpu')",
        "np.zeros_like(x, device='gpu')",
        "np.asarray(x, device='gpu')",
        "np.full(3, 1, device='gpu')",
        "np.arange(3, device='gpu')",
        "np.ones(3, device='cpu')",
    ],
)
def test_what_a_result_is_asked_to_be(expression):
    wanted, got = outcomes(expression, x=MATRIX)
    if isinstance(wanted, Exception):
        assert isinstance(got, type(wanted)), (wanted, got)
    else:
        check(expression, x=MATRIX)


@pytest.mark.filterwarnings("ignore:'where' used without 'out'")
@pytest.mark.parametrize(
    "expression",
    [
        "np.square(x[0], where=mask)[1]",
        "np.add(x[0], 1, where=mask)[1]",
        "np.rad2deg(x[0], where=mask)[1]",
        "np.sqrt(4.0, where=mask)[1]",
        "np.isnan(x[0], where=mask)[1]",
    ],
)
def test_where_may_be_wider_than_the_operands(expression):
    check(expression, x=MATRIX, mask=numpy.array([[False], [True]]))


@each(
    "expression",
    [
        "np.zeros_like(x)",
        "np.ones_like(x)",
        "np.full_like(x, 3)",
        "np.zeros_like(x, order='C')",
        "np.zeros_like(x, order='A')",
        "np.ones_like(c, order='F')",
        "np.zeros_like(x, shape=(2, 2))",
        "np.zeros_like(x.transpose(1, 0, 2))",
        "np.array(x)",
        "np.array(x, order='C')",
        "np.array(x, order='A')",
        "np.copy(x)",
        "np.copy(x, order='C')",
        "x.copy()",
        "x.copy('K')",
        "x.copy('A')",
        "c.copy('F')",
        "x.astype('f4')",
        "x.astype('f4', order='C')",
        "np.array(x.transpose(2, 0, 1))",
        "np.array(x[::-1, :, ::2])",
        "np.asarray(x, dtype='f4')",
    ],
)
def test_orders_in_memory(expression):
    for question in (f"({expression}).strides", f"({expression}).flags.f_contiguous", expression):
        check(question, x=TURNED, c=CUBE)


@pytest.mark.parametrize("value", [None, "abc", ""])
def test_nothing_equals_what_is_no_number(value):
    for expression in ("x == value", "x != value", "value == x", "value != x", "x[0, 0] == value"):
        check(expression, x=MATRIX, value=value)


@pytest.mark.parametrize(
    "expression", ["np.bitwise_and(c, None)", "np.add(c, None)", "np.logical_or(c, {})", "np.maximum(None, c)"]
)
def test_a_function_never_leaves_an_operand_to_others(expression):
    _, got = outcomes(expression, c=CUBE)
    assert isinstance(got, TypeError)


@pytest.mark.parametrize(
    "expression",
    [
        "np.fft.fft(x, axis=1.0)",
        "np.eye(2.5)",
        "np.moveaxis(x, 'a', 0)",
        "np.repeat(x, 2, axis='a')",
        "np.partition(x, 1, axis='a')",
        "np.linspace(0, 1, 2.5)",
        "np.array_split(x, [1.5])",
        "np.linalg.matrix_power(x[:, :2], 1.5)",
        "np.linalg.norm(x, axis='a')",
    ],
)
def test_an_index_that_is_none_is_a_type_error(expression):
    wanted, got = outcomes(expression, x=MATRIX)
    assert isinstance(got, TypeError) and isinstance(wanted, TypeError)


@pytest.mark.parametrize(
    "expression",
    [
        "np.std(x, out=np.zeros(2))",
        "np.subtract.reduce(x, out=np.zeros(2))",
        "np.putmask(x, [True], 1)",
        "np.put(x, 0, 1, mode='edge')",
        "np.round(x, out=np.zeros(3))",
        "np.heaviside(x * 1j, 1.0, dtype='f4')",
    ],
)
def test_what_does_not_fit_is_refused(expression):
    wanted, got = outcomes(expression, x=MATRIX)
    assert isinstance(wanted, (ValueError, TypeError)) and isinstance(got, type(wanted).__mro__[-4])


def test_small_ones():
    for expression in (
        "np.cumulative_sum(np.array(2.5))",
        "np.poly(np.array([1.5, 2.5], dtype='f2'))",
        "np.sort_complex(np.arange(3, dtype='f4'))",
        "np.extract(np.uint64(5), [0, 2])",
        "np.linalg.norm(x, axis=1.0)",
        "[*np.unique_counts([1, 1, 2])._asdict().values()]",
        "x.clip(out=np.zeros((2, 3)))",
        "np.array([True]).conj()",
        "np.conj(np.array([True]))",
        "(x * 1j).conjugate(np.zeros((2, 3), complex))",
        "np.array_equal(x, None)",
        "np.array_equiv(x, [[1], [2, 3]])",
        "f'{np.float32(1.1)} {np.float16(1.1)} {x[0, 1]} {np.True_}'",
    ):
        check(expression, x=MATRIX)


def test_numpy_sees_the_dtypes_that_it_would_have_chosen():
    for dtype in ("int64", "uint64"):
        seen = numpy.asarray(vmhost.engine.numpy.ones(2, dtype))
        assert seen.dtype.char == numpy.dtype(dtype).char and "dtype=int64" not in repr(seen)
        assert memoryview(vmhost.engine.numpy.ones(2, dtype)).format == memoryview(numpy.ones(2, dtype)).format
    for code in "qlQL":
        assert vmhost.engine.numpy.asarray(memoryview(bytes(16)).cast(code)).dtype.name == (
            "int64" if code in "ql" else "uint64"
        )
