"""The Python array API standard (2024.12) in `vmhost.engine.numpy`: its names, its inspection, promotion, special
values, and its functions on arrays of any dtype, shape and strides, NumPy the oracle. Where NumPy and the standard
differ, NumPy is followed. Every case is evaluated in the host and again in a sealed VM: see cases.py."""

import inspect
import itertools

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost.engine.numpy
from tests.batches import each
from tests.engine.arrays import arrays
from tests.engine.cases import again_in_a_vm, check, host_of_cases, outcomes  # noqa: F401 - two are fixtures
from tests.engine.test_array_expressions import assert_near

pytestmark = pytest.mark.usefixtures("again_in_a_vm")

for name in dir(vmhost.engine.numpy):  # all loaded here, so that no test is the first to import one
    getattr(vmhost.engine.numpy, name)
DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
]

NAMES = """
    e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
    __array_namespace_info__ __array_api_version__ arange asarray empty empty_like eye from_dlpack full full_like
    linspace meshgrid ones ones_like tril triu zeros zeros_like astype can_cast finfo iinfo isdtype result_type abs acos
    acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or bitwise_right_shift
    bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater greater_equal hypot
    imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or
    logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder round sign
    signbit sin sinh square sqrt subtract tan tanh trunc take take_along_axis matmul matrix_transpose tensordot vecdot
    broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze stack tile
    unstack argmax argmin count_nonzero nonzero searchsorted where unique_all unique_counts unique_inverse unique_values
    argsort sort cumulative_prod cumulative_sum max mean min prod std sum var all any diff""".split()
METHODS = """
    __abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__ __eq__ __float__
    __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__ __lt__ __matmul__ __mod__
    __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __rshift__ __setitem__ __sub__ __truediv__ __xor__ __iadd__ __radd__
    __imatmul__ __rmatmul__ __ipow__ __rpow__ to_device dtype device mT ndim shape size T""".split()


@each("name", NAMES)
def test_the_standards_names(name):
    assert hasattr(vmhost.engine.numpy, name)


def test_the_methods_of_arrays():
    assert [name for name in METHODS if not hasattr(vmhost.engine.numpy.ndarray, name)] == []
    assert vmhost.engine.numpy.zeros(1).__array_namespace__() is vmhost.engine.numpy
    assert vmhost.engine.numpy.zeros(1).to_device("cpu").device == "cpu"


def test_inspection():
    info, theirs = vmhost.engine.numpy.__array_namespace_info__(), numpy.__array_namespace_info__()
    assert info.capabilities() == theirs.capabilities()
    assert (info.default_device(), info.devices()) == ("cpu", ("cpu",)) == (theirs.default_device(), theirs.devices())
    assert {name: dtype.name for name, dtype in info.default_dtypes().items()} == {
        name: numpy.dtype(dtype).name for name, dtype in theirs.default_dtypes().items()
    }
    for kind in (None, "bool", "signed integer", "integral", "numeric", ("real floating", "bool")):
        assert {name: dtype.name for name, dtype in info.dtypes(kind=kind).items()} == {
            name: numpy.dtype(dtype).name for name, dtype in theirs.dtypes(kind=kind).items()
        }
    for wrong in (
        lambda: info.dtypes(kind="text"),
        lambda: info.dtypes(device="gpu"),
        lambda: info.default_dtypes(device="gpu"),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_functions_in_c_have_signatures_of_numpys_parameters():
    for name in (
        "sum",
        "sort",
        "clip",
        "asarray",
        "zeros",
        "full_like",
        "where",
        "take",
        "searchsorted",
        "concatenate",
        "can_cast",
    ):
        own, theirs = (list(inspect.signature(getattr(np, name)).parameters) for np in (vmhost.engine.numpy, numpy))
        assert own == [parameter for parameter in theirs if parameter != "kwargs"]


# ---- dtypes


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_promotion_of_every_pair():
    for one, other in itertools.product(DTYPES, DTYPES):
        check("str(np.result_type(one, other))", one=one, other=other)
        for casting in ("safe", "same_kind", "unsafe"):
            check("np.can_cast(one, other, casting)", one=one, other=other, casting=casting)
        check("np.astype(np.asarray([0, 1, 2], dtype=one), other)", one=one, other=other)
    for one, number in itertools.product(DTYPES, (True, 3, 2.5, 1j)):
        check("str(np.result_type(one, number))", one=one, number=number)


@pytest.mark.parametrize(
    "kind",
    [
        "bool",
        "signed integer",
        "unsigned integer",
        "integral",
        "real floating",
        "complex floating",
        "numeric",
        ("integral", "bool"),
    ],
)
def test_kinds_of_dtypes(kind):
    for dtype in DTYPES:
        check("np.isdtype(np.dtype(dtype), kind)", dtype=dtype, kind=kind)


def test_limits_of_dtypes():
    for dtype in DTYPES:
        kind = numpy.dtype(dtype).kind
        if kind in "fc":
            for name in (
                "eps",
                "max",
                "min",
                "smallest_normal",
                "tiny",
                "bits",
                "nmant",
                "maxexp",
                "minexp",
                "precision",
                "resolution",
                "epsneg",
            ):
                check("float(getattr(np.finfo(dtype), name))", dtype=dtype, name=name)
        elif kind in "iu":
            for name in ("bits", "min", "max"):
                check("getattr(np.iinfo(dtype), name)", dtype=dtype, name=name)


# ---- special values

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 0.5, numpy.inf, -numpy.inf, numpy.nan, 5e-324, -1e308, 3.0, -3.0]
REAL_UNARY = """
    abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p log2 log10
    negative positive reciprocal round sign signbit sin sinh square sqrt tan tanh trunc""".split()
REAL_BINARY = """
    add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp maximum minimum
    multiply nextafter not_equal pow remainder subtract""".split()


def signs(array):
    array = numpy.asarray(array)
    return numpy.signbit(array) & ~numpy.isnan(array) if array.dtype.kind == "f" else None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each("dtype", ["float32", "float64"])
@each("name", REAL_UNARY + REAL_BINARY)
def test_special_values(name, dtype):
    values = numpy.array(SPECIAL).astype(dtype)
    if name in REAL_UNARY:
        wanted, got = outcomes(f"np.{name}(x)", x=values)
    else:
        wanted, got = outcomes(f"np.{name}(x, y)", x=values[:, None], y=values)
    assert_near(got, wanted)
    if name not in ("maximum", "minimum"):  # of two zeros NumPy gives either
        numpy.testing.assert_array_equal(signs(got), signs(wanted))


# ---- functions on arrays of any dtype, shape and strides

REAL = [dtype for dtype in DTYPES if dtype[0] != "c"]


@settings(max_examples=60, deadline=None)
@given(x=arrays(REAL, nan=False), data=st.data())
def test_searching_and_sorting(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1)) if x.ndim else None
    check("np.count_nonzero(x, axis=axis)", x=x, axis=axis)
    check("np.sort(np.unique_values(x.ravel()))", x=x)  # NumPy's come in no order
    check("[*np.unique_counts(x)]", x=x)
    check("[*np.unique_all(x)]", x=x)
    if x.ndim:
        check("np.sort(x, axis=axis)", x=x, axis=axis)
        # NumPy's unstable argsort may order equal elements otherwise; its stable one may not
        check("np.argsort(x, axis=axis, stable=True)", x=x, axis=axis)
        check("np.nonzero(x)", x=x)
        for side in ("left", "right"):
            check("np.searchsorted(ends, x, side=side)", ends=numpy.sort(x.ravel()), x=x, side=side)
    if x.ndim and x.shape[axis]:
        check("[np.argmax(x, axis=axis), np.argmin(x, axis=axis, keepdims=True)]", x=x, axis=axis)


@settings(max_examples=60, deadline=None)
@given(x=arrays(DTYPES), data=st.data())
def test_moving_elements(x, data):
    check("np.flip(x)", x=x)
    check("np.roll(x, 3)", x=x)
    check("np.concat([x, x], axis=None)", x=x)
    check("np.tile(x, (2, 1))", x=x)
    check("np.stack([x, x])", x=x)
    if x.ndim:
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        order = data.draw(st.permutations(range(x.ndim)))
        positions = (
            data.draw(st.lists(st.integers(-x.shape[axis], x.shape[axis] - 1), max_size=5)) if x.shape[axis] else []
        )
        check("np.permute_dims(x, order)", x=x, order=order)
        check("np.moveaxis(x, axis, 0)", x=x, axis=axis)
        check("np.expand_dims(x, axis)", x=x, axis=axis)
        check("np.repeat(x, 2, axis=axis)", x=x, axis=axis)
        check("np.unstack(x, axis=axis)", x=x, axis=axis)
        check("np.take(x, np.asarray(positions, dtype='int64'), axis=axis)", x=x, positions=positions, axis=axis)
        check("np.roll(x, -2, axis=axis)", x=x, axis=axis)
    if x.ndim >= 2:
        check("np.matrix_transpose(x)", x=x)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None)
@given(x=arrays(["bool", "int8", "int64", "uint8", "float64", "complex128"], nan=False), data=st.data())
def test_statistics(x, data):
    axes = (
        data.draw(st.one_of(st.none(), st.lists(st.integers(0, x.ndim - 1), unique=True, max_size=x.ndim).map(tuple)))
        if x.ndim
        else None
    )
    keep = data.draw(st.booleans())
    finite = numpy.where(numpy.isfinite(x), x, x.dtype.type(1))
    largest = float(numpy.abs(finite).max(initial=0))
    for name in ("sum", "prod", "mean", "all", "any", *(("var", "std") if x.dtype.kind != "c" else ())):
        # factors in another order do not overflow on the way to a zero
        operand = finite / (largest or 1) if name == "prod" else finite
        wanted, got = outcomes(f"np.{name}(x, axis=axes, keepdims=keep)", x=operand, axes=axes, keep=keep)
        if isinstance(wanted, Exception):
            assert isinstance(got, Exception)
        else:
            # sums in another order differ by the rounding of their terms, however little is left of these in the end
            scale = {"sum": largest * finite.size, "mean": largest, "var": largest**2, "std": largest}.get(name, 0)
            assert described_near(got, wanted, scale)
    if x.ndim:
        for name in ("cumulative_sum", "cumulative_prod"):
            check(f"np.{name}(x, axis=-1, include_initial=keep)", x=finite.real.astype("int64"), keep=keep)
        if x.dtype.kind != "b":
            check("np.diff(x, axis=-1)", x=finite)


def described_near(got, wanted, scale=0.0):
    got, wanted = numpy.asarray(got), numpy.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    return numpy.allclose(got, wanted, 1e-9, 1e-9 + 1e-12 * scale, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    x=arrays(["int32", "float64", "complex128"], shape=(3, 4), nan=False),
    y=arrays(["int32", "float64"], shape=(4,), nan=False),
)
def test_products(x, y):
    x, y = (
        (
            numpy.where(numpy.isfinite(a), a, 1).clip(-1000, 1000)
            if a.dtype.kind != "c"
            else numpy.where(numpy.isfinite(a), a, 1)
        )
        for a in (x, y)
    )
    for expression in ("np.matmul(x, y)", "np.tensordot(x, y, axes=1)", "np.vecdot(x, y)"):
        wanted, got = outcomes(expression, x=x, y=y)
        assert described_near(got, wanted)


@pytest.mark.parametrize(
    "expression",
    [
        "np.arange(5, dtype=np.float32)",
        "np.linspace(0, 1, num=4, endpoint=False)",
        "np.eye(3, 4, k=-1)",
        "np.full((2, 2), 7)",
        "np.full_like(np.zeros(3), 2, dtype=np.int64)",
        "np.meshgrid(np.arange(3), np.arange(2))",
        "np.asarray([[1, 2], [3, 4]], device='cpu', copy=True)",
        "np.tril(np.ones((3, 3)), k=1)",
    ],
)
def test_creation_by_the_standard(expression):
    check(expression)
