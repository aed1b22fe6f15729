"""The Python array API standard (2024.12) in `engine.numpy`: its names, its inspection, promotion, special values, and its functions on
arrays of any dtype, shape and strides, NumPy the oracle. Where NumPy and the standard differ, NumPy is followed."""

import inspect
import itertools

import numpy
import pytest
from hypothesis import given, settings, strategies as st

import engine.numpy
from tests.engine.arrays import arrays
from tests.engine.test_arrays_against_numpy import assert_same, check, outcome
from tests.engine.test_array_expressions import assert_near

for name in dir(engine.numpy):      # all loaded here, so that no test is the first to import one
    getattr(engine.numpy, name)
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64", "complex128"]

NAMES = """
    e inf nan newaxis pi bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128 __array_namespace_info__
    __array_api_version__ arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros
    zeros_like astype can_cast finfo iinfo isdtype result_type abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift
    bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
    greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or logical_xor
    maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh square sqrt subtract
    tan tanh trunc take take_along_axis matmul matrix_transpose tensordot vecdot broadcast_arrays broadcast_to concat expand_dims flip moveaxis
    permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted where unique_all unique_counts
    unique_inverse unique_values argsort sort cumulative_prod cumulative_sum max mean min prod std sum var all any diff""".split()
METHODS = """
    __abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__ __eq__ __float__ __floordiv__ __ge__
    __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__
    __rshift__ __setitem__ __sub__ __truediv__ __xor__ __iadd__ __radd__ __imatmul__ __rmatmul__ __ipow__ __rpow__ to_device dtype device mT
    ndim shape size T""".split()


@pytest.mark.parametrize("name", NAMES)
def test_the_standards_names(name):
    assert hasattr(engine.numpy, name)


def test_the_methods_of_arrays():
    assert [name for name in METHODS if not hasattr(engine.numpy.ndarray, name)] == []
    assert engine.numpy.zeros(1).__array_namespace__() is engine.numpy
    assert engine.numpy.zeros(1).to_device("cpu").device == "cpu"


def test_inspection():
    info, theirs = engine.numpy.__array_namespace_info__(), numpy.__array_namespace_info__()
    assert info.capabilities() == theirs.capabilities()
    assert (info.default_device(), info.devices()) == ("cpu", ["cpu"])
    assert {name: dtype.name for name, dtype in info.default_dtypes().items()} == \
           {name: numpy.dtype(dtype).name for name, dtype in theirs.default_dtypes().items()}
    for kind in (None, "bool", "signed integer", "integral", "numeric", ("real floating", "bool")):
        assert {name: dtype.name for name, dtype in info.dtypes(kind=kind).items()} == \
               {name: numpy.dtype(dtype).name for name, dtype in theirs.dtypes(kind=kind).items()}
    for wrong in (lambda: info.dtypes(kind="text"), lambda: info.dtypes(device="gpu"), lambda: info.default_dtypes(device="gpu")):
        with pytest.raises(ValueError):
            wrong()


def test_functions_in_c_have_signatures_of_numpys_parameters():
    for name in ("sum", "sort", "clip", "asarray", "zeros", "full_like", "where", "take", "searchsorted", "concatenate", "can_cast"):
        own, theirs = (list(inspect.signature(getattr(np, name)).parameters) for np in (engine.numpy, numpy))
        assert own == [parameter for parameter in theirs if parameter != "kwargs"]


# ---- dtypes

@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_promotion_of_every_pair():
    for one, other in itertools.product(DTYPES, DTYPES):
        assert engine.numpy.result_type(one, other).name == numpy.result_type(one, other).name
        for casting in ("safe", "same_kind", "unsafe"):
            assert engine.numpy.can_cast(one, other, casting) == numpy.can_cast(one, other, casting)
        for number in (True, 3, 2.5, 1j):
            assert engine.numpy.result_type(one, number).name == numpy.result_type(one, number).name
        check(lambda np: np.astype(np.asarray([0, 1, 2], dtype=one), other))


@pytest.mark.parametrize("kind", ["bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric",
                                  ("integral", "bool")])
def test_kinds_of_dtypes(kind):
    for dtype in DTYPES:
        assert engine.numpy.isdtype(engine.numpy.dtype(dtype), kind) == numpy.isdtype(numpy.dtype(dtype), kind)


def test_limits_of_dtypes():
    for dtype in DTYPES:
        kind = numpy.dtype(dtype).kind
        if kind in "fc":
            for name in ("eps", "max", "min", "smallest_normal", "tiny", "bits", "nmant", "maxexp", "minexp", "precision", "resolution", "epsneg"):
                assert getattr(engine.numpy.finfo(dtype), name) == getattr(numpy.finfo(dtype), name), (dtype, name)
        elif kind in "iu":
            for name in ("bits", "min", "max"):
                assert getattr(engine.numpy.iinfo(dtype), name) == getattr(numpy.iinfo(dtype), name)


# ---- special values

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 0.5, numpy.inf, -numpy.inf, numpy.nan, 5e-324, -1e308, 3.0, -3.0]
REAL_UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p log2 log10 negative positive
    reciprocal round sign signbit sin sinh square sqrt tan tanh trunc""".split()
REAL_BINARY = """add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp maximum minimum multiply
    nextafter not_equal pow remainder subtract""".split()


def signs(array):
    array = numpy.asarray(array)
    return numpy.signbit(array) & ~numpy.isnan(array) if array.dtype.kind == "f" else None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", REAL_UNARY + REAL_BINARY)
def test_special_values(name, dtype):
    values = numpy.array(SPECIAL).astype(dtype)
    operands = (values,) if name in REAL_UNARY else (values[:, None], values)
    wanted = getattr(numpy, name)(*operands)
    got = getattr(engine.numpy, name)(*map(engine.numpy.asarray, operands))
    assert_near(got, wanted)
    if name not in ("maximum", "minimum"):      # of two zeros NumPy gives either
        numpy.testing.assert_array_equal(signs(got), signs(wanted))


# ---- functions on arrays of any dtype, shape and strides

REAL = [dtype for dtype in DTYPES if dtype[0] != "c"]


@settings(max_examples=60, deadline=None)
@given(x=arrays(REAL, nan=False), data=st.data())
def test_searching_and_sorting(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1)) if x.ndim else None
    check(lambda np, x: np.count_nonzero(x, axis=axis), x)
    check(lambda np, x: np.sort(np.unique_values(x.ravel())), x)        # NumPy's come in no order
    check(lambda np, x: [*np.unique_counts(x)], x)
    check(lambda np, x: [*np.unique_all(x)], x)
    if x.ndim:
        check(lambda np, x: np.sort(x, axis=axis), x)
        # NumPy's unstable argsort may order equal elements otherwise; its stable one may not
        check(lambda np, x: np.argsort(x, axis=axis, stable=True), x)
        check(lambda np, x: np.nonzero(x), x)
        ends = numpy.sort(x.ravel())
        for side in ("left", "right"):
            check(lambda np, ends, x: np.searchsorted(ends, x, side=side), ends, x)
    if x.ndim and x.shape[axis]:
        check(lambda np, x: [np.argmax(x, axis=axis), np.argmin(x, axis=axis, keepdims=True)], x)


@settings(max_examples=60, deadline=None)
@given(x=arrays(DTYPES), data=st.data())
def test_moving_elements(x, data):
    check(lambda np, x: np.flip(x), x)
    check(lambda np, x: np.roll(x, 3), x)
    check(lambda np, x: np.concat([x, x], axis=None), x)
    check(lambda np, x: np.tile(x, (2, 1)), x)
    check(lambda np, x: np.stack([x, x]), x)
    if x.ndim:
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        order = data.draw(st.permutations(range(x.ndim)))
        places = data.draw(st.lists(st.integers(-x.shape[axis], x.shape[axis] - 1), max_size=5)) if x.shape[axis] else []
        check(lambda np, x: np.permute_dims(x, order), x)
        check(lambda np, x: np.moveaxis(x, axis, 0), x)
        check(lambda np, x: np.expand_dims(x, axis), x)
        check(lambda np, x: np.repeat(x, 2, axis=axis), x)
        check(lambda np, x: np.unstack(x, axis=axis), x)
        check(lambda np, x: np.take(x, np.asarray(places, dtype="int64"), axis=axis), x)
        check(lambda np, x: np.roll(x, -2, axis=axis), x)
    if x.ndim >= 2:
        check(lambda np, x: np.matrix_transpose(x), x)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None)
@given(x=arrays(["bool", "int8", "int64", "uint8", "float64", "complex128"], nan=False), data=st.data())
def test_statistics(x, data):
    axes = data.draw(st.one_of(st.none(), st.lists(st.integers(0, x.ndim - 1), unique=True, max_size=x.ndim).map(tuple))) if x.ndim else None
    keep = data.draw(st.booleans())
    finite = numpy.where(numpy.isfinite(x), x, x.dtype.type(1))
    for name in ("sum", "prod", "mean", "all", "any", *(("var", "std") if x.dtype.kind != "c" else ())):
        wanted, got = (outcome(np, lambda np, x: getattr(np, name)(x, axis=axes, keepdims=keep), [finite / 7 if name == "prod" else finite])
                       for np in (numpy, engine.numpy))
        if isinstance(wanted, Exception):
            assert isinstance(got, Exception)
        else:
            # sums in another order differ by the rounding of their terms, however little is left of these in the end
            largest = float(numpy.abs(finite).max(initial=0))
            scale = {"sum": largest * finite.size, "mean": largest, "var": largest ** 2, "std": largest}.get(name, 0)
            assert described_near(got, wanted, scale)
    if x.ndim:
        for name in ("cumulative_sum", "cumulative_prod"):
            check(lambda np, x: getattr(np, name)(np.asarray(x, dtype="int64"), axis=-1, include_initial=keep), finite.real.astype("int64"))
        if x.dtype.kind != "b":
            check(lambda np, x: np.diff(x, axis=-1), finite)


def described_near(got, wanted, scale=0.0):
    got, wanted = numpy.asarray(got), numpy.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    return numpy.allclose(got, wanted, 1e-9, 1e-9 + 1e-12 * scale, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(x=arrays(["int32", "float64", "complex128"], shape=(3, 4), nan=False), y=arrays(["int32", "float64"], shape=(4,), nan=False))
def test_products(x, y):
    x, y = (numpy.where(numpy.isfinite(a), a, 1).clip(-1000, 1000) if a.dtype.kind != "c" else numpy.where(numpy.isfinite(a), a, 1) for a in (x, y))
    for function in (lambda np, x, y: np.matmul(x, y), lambda np, x, y: np.tensordot(x, y, axes=1), lambda np, x, y: np.vecdot(x, y)):
        wanted, got = (outcome(np, function, (x, y)) for np in (numpy, engine.numpy))
        assert described_near(got, wanted)


def test_creation_by_the_standard():
    for case in (lambda np: np.arange(5, dtype=np.float32), lambda np: np.linspace(0, 1, num=4, endpoint=False), lambda np: np.eye(3, 4, k=-1),
                 lambda np: np.full((2, 2), 7), lambda np: np.full_like(np.zeros(3), 2, dtype=np.int64), lambda np: np.meshgrid(np.arange(3), np.arange(2)),
                 lambda np: np.asarray([[1, 2], [3, 4]], device="cpu", copy=True), lambda np: np.tril(np.ones((3, 3)), k=1)):
        wanted, got = case(numpy), case(engine.numpy)
        assert_same(got, wanted)
