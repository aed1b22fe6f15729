"""What NumPy's own tests ask of arguments, errors and corners: each expression gives what it gives with NumPy."""

import copy
import sys

import numpy
import pytest

import vmhost.engine.numpy as ours


class Lender:
    """Makes an array of itself."""

    def __init__(self, np):
        self.np = np

    def __array__(self, dtype=None, copy=None):
        return self.np.arange(3)

    def __len__(self):
        return 2

    def __getitem__(self, key):
        raise AssertionError("it is asked for its array")


class Typed:
    """Has a dtype."""

    def __init__(self, np):
        self.dtype = np.dtype("float32")


def outcome(np, expression):
    """(kind, value) of the expression: arrays by dtype, shape and elements, errors by class."""
    try:
        with numpy.errstate(all="ignore"):
            value = eval(expression, {"np": np, "Lender": Lender, "Typed": Typed})
    except Exception as error:
        kind = type(error)
        return "error", next(base for base in kind.__mro__ if base.__module__ in ("builtins",)).__name__
    return told(value)


def told(value):
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [told(item) for item in value]
    if isinstance(value, (ours.dtype, numpy.dtype)):
        return "dtype", value.name
    if isinstance(value, (ours.ndarray, numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        return "array", array.dtype.name, array.shape, repr(array.tolist())
    return type(value).__name__, repr(value)


def check(expression):
    assert outcome(ours, expression) == outcome(numpy, expression)


@pytest.mark.parametrize(
    "expression",
    [
        "np.array([None, 1.0], float)",
        "np.array(None, 'f4')",
        "np.array([None, 2], complex)",
        "np.array([None, 1], bool)",
        "np.array([None, 1], int)",
        "np.full(2, None, float)",
        "np.full_like(np.ones(2), None)",
        "np.float64(None)",
        "[a := np.zeros(2), a.__setitem__(0, None), a][2]",
        "[a := np.zeros(2), a.fill(None), a][2]",
        "[a := np.zeros(2), a.__setitem__(0, object), a][2]",
        "[a := np.zeros(2), a.__setitem__(0, [1]), a][2]",
    ],
)
def test_none_is_not_a_number(expression):
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "np.asarray(Lender(np))",
        "np.array([Lender(np), Lender(np)])",
        "np.ones(3) + Lender(np)",
        "Lender(np) + np.ones(3)",
        "np.ones(3) == Lender(np)",
        "np.arange(4)[Lender(np)]",
        "np.sum(Lender(np))",
        "np.dtype(Typed(np))",
        "np.finfo(Typed(np)).max",
        "np.zeros(2, Typed(np))",
        "np.dtype(b'f')",
        "np.dtype(b'<i2')",
        "np.dtype(b'')",
        "np.dtype(b'\\xff')",
    ],
)
def test_objects_that_have_an_array_or_a_dtype(expression):
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "np.zeros(True)",
        "np.zeros((True, 2))",
        "np.ones(3).reshape(np.True_, 3)",
        "np.sum(np.ones(3), axis=False)",
        "np.sum(np.ones((2, 2)), axis=(False, True))",
        "np.cumsum(np.ones(3), axis=False)",
        "np.argmax(np.ones(3), axis=True)",
        "np.take(np.ones(3), [0], False)",
        "np.sort(np.ones(3), axis=False)",
        "np.ones((2, 3, 4)).transpose(np.array([1, 0, 2])).shape",
        "np.ones((2, 3)).transpose(range(2)).shape",
        "np.ones(2).transpose(np.array(0)).shape",
        "np.arange(start=4)",
        "np.arange(start=0, stop=4)",
        "np.arange(0, 1, np.inf)",
        "np.arange(0, 1, -np.inf)",
        "np.arange(0, -1e-16, -1e300)",
        "np.arange(0.5, 3, np.inf, dtype=int)",
        "np.arange(2**64)",
        "np.where([True], x=1, y=2)",
        "np.array([1, 2], copy='always')",
        "np.array([[1, 2]], ndmax=2)",
        "np.array([1, 2], ndmax=65)",
        "np.astype([1], float)",
        "np.astype(np.ones(2), int)",
        "np.complex64(1j, 1j)",
        "np.complex64(1, None)",
        "np.complex128(1, 2)",
        "np.ndarray((2, 3), buffer=np.arange(6.0), order='F')",
        "np.ndarray((2,), strides=())",
        "np.ndarray((2, 3), 'f4', order='F').flags.f_contiguous",
        "np.lexsort((np.arange(1),), axis=2)",
        "np.roll(np.arange(4), 2**100 + 1)",
        "np.stack(x for x in range(3))",
        "np.hstack(x for x in np.ones((2, 2)))",
        "np.block([[], 2])",
        "np.block([[]])",
        "np.block([1, [2]])",
        "np.cross(0, [1, 2, 3])",
        "np.convolve(np.ones(5), np.ones(3), mode=1)",
        "np.correlate(np.ones(5), np.ones(3), mode=None)",
        "np.isdtype('int64', np.int64)",
        "np.isdtype(np.dtype(int), 1)",
        "np.putmask(a=np.ones(2), mask=[0, 1], values=[1])",
        "np.place([1, 2], [True, False], [3])",
        "np.take_along_axis(np.ones((2, 2)), np.ones((2, 2), bool), 0)",
        "np.take_along_axis(np.ones((2, 2)), np.ones((2, 2), int), None)",
        "np.take_along_axis(np.ones((2, 2)), np.ones((2, 2)), 0)",
        "np.iinfo('hi')",
        "np.finfo(None)",
        "repr(np.finfo('f4'))",
        "np.set_printoptions(threshold='1')",
        "np.set_printoptions(threshold=np.nan)",
        "np.set_printoptions(precision=1.5)",
        "np.may_share_memory(np.ones(1), np.ones(1), max_work=10**100)",
        "[m := np.broadcast(*[np.ones(2)] * 64), m.numiter, m.iters[0].base][1:]",
        "np.broadcast(*[np.ones(2)] * 65)",
        "np.broadcast(1, x=1)",
        "list(np.ndindex(2.5))",
        "list(np.ndindex([2, 3]))",
        "list(np.ndindex(np.int64(2), 1))",
        "np.ix_(np.array([], 'f4'))",
        "np.unravel_index([], (10, 3))",
        "np.unravel_index([0], ())",
        "np.unravel_index(1, (2**32 - 1, 2**31 + 1))",
        "np.ravel_multi_index(([], []), (10, 3))",
        "np.ravel_multi_index(([0], [0]), (2**62, 2))",
        "np.ravel_multi_index(np.zeros((3, 1), int), (2, 1, 0), mode='clip')",
        "np.ravel_multi_index(np.zeros((3, 0), int), (2, 1, 0), mode='wrap')",
        "np.mgrid[0:1:np.complex64(3j)]",
        "np.unpackbits(np.ones(1, 'u1'), bitorder=10)",
        "np.apply_along_axis(lambda x: 1, 1, np.empty((10, 0)))",
        "np.triu_indices(np.uint64(4), m=np.uint8(4))",
        "np.result_type(2**63, 0)",
        "np.result_type(2**63)",
        "np.equal(2**200, 2**200)",
        "np.less(-(2**200), 1)",
        "np.greater_equal([1, 2], -(2**200))",
        "np.add.reduce([], initial=None)",
        "np.add.reduce([1], initial=None)",
        "np.maximum.reduce([], initial=3.0)",
        "np.percentile(np.arange(12), 50, out=np.empty(1))",
        "np.clip(np.arange(5), 2)",
        "np.clip(np.arange(5), a_max=2)",
        "np.clip(np.arange(5), 2, 3, max=3)",
        "np.clip(np.arange(5), min=2)",
        "np.arange(5).clip(2)",
        "np.partition(np.arange(5), 2, kind='heap')",
        "np.arange(5).partition(2, kind=[])",
        "np.arange(6).reshape(2, 3).partition(2, axis=None)",
        "np.argpartition(np.arange(5), 2, kind='introselect')",
        "np.einsum('ij->j', np.ones((2, 2)), casting='blah')",
        "np.fft.fft(np.ones(4), out='result')",
        "np.logaddexp2.reduce([])",
        "np.finfo('f4') == np.finfo(np.float32)",
        "np.finfo('f4') == np.finfo(float)",
        "np.vectorize(lambda x: x + x)(np.arange(3, dtype='i2'))",
        "np.vectorize(lambda x: x + x)(np.arange(3, dtype='f8'))",
    ],
)
def test_arguments(expression):
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "np.argmax(np.arange(6).reshape(2, 3), keepdims=True, out=np.zeros((1, 1), int))",
        "np.argmin(np.arange(6).reshape(2, 3), keepdims=True, out=np.zeros((1, 2), int))",
        "np.argmin(np.arange(6).reshape(2, 3), keepdims=True, out=np.zeros((), int))",
        "np.dot(np.ones((2, 3)), np.ones((3, 2)), np.empty((2, 2), 'f4'))",
        "np.dot(np.ones((2, 3)), np.ones((3, 2)), np.empty((2, 4))[:, ::2])",
        "np.dot(np.ones((2, 3)), np.ones((4, 3, 2)), np.empty((2, 4, 2)))",
        "np.dot(np.ones((2, 3)), np.ones((4, 3, 2)), np.empty((2, 4)))",
        "np.spacing(np.arange(65536).astype('u2').view('f2'))",
        "np.spacing(np.array([0.0, -0.0, 1, -1, np.inf, np.nan, -1e-310]))",
        "np.cov(np.array([[1, 2, 3], [1j, 2j, 3j]]), aweights=np.ones(3))",
        "np.interp([], [], [])",
        "np.interp([], [1, 2], [3 + 4j, 5 + 6j])",
        "np.interp([], [], [3, 4, 5])",
        "np.interp(0.5, [np.nan, 1], [0.0, 10])",
        "np.interp(0.5, [0, 1], [0, complex(-np.inf, np.inf)])",
        "np.interp([1, 2, 2.5, 3, np.nan], [1, 2, 3, 4], [1, 2 + 1j, np.inf, 4])",
        "np.interp(-1.0, [0, 1], [1j, 2j], left=3 + 4j)",
        "np.add.at(a := np.arange(9).reshape(3, 3), (slice(None), [1, 2, 1]), np.ones((3, 3), int)) or a",
        "np.add.at(a := np.arange(9).reshape(3, 3), ([1, 2, 1], slice(None)), np.ones((3, 3), int)) or a",
        "np.add.at(a := np.arange(9).reshape(3, 3), (slice(None), slice(1, 3)), np.ones((3, 2), int)) or a",
        "np.add.at(a := np.array(0), (), 1) or a",
        "np.vecdot(np.ones((2, 3)), np.ones((2, 3)), axes=[-1, -1, -1])",
        "np.vecdot(np.ones((2, 3)), np.ones((2, 3)), axes=[-1, (-2, -1), ()])",
        "np.vecdot(np.ones((2, 3)), np.ones((2, 3)), axes=[-1, -1, ()])",
        "np.histogramdd(np.ones((1, 10)), bins=2**10)",
        "np.isclose(np.float32(1), 2, atol=0, rtol=0.4999999999999999)",
        "np.linalg.norm(np.array([1, 0, 1], 'f2'), 0)",
        "np.random.SeedSequence([[1, 2], [3, 4]])",
        "np.random.RandomState(1).set_state(())",
        "np.random.Generator(np.random.Philox(1)).integers(0, [2**65] * 3)",
        "np.einsum('i,i->', np.ones(7), np.ones(7), out=np.array(0), optimize='optimal')",
        "np.einsum('i,i->', np.ones(7), np.ones(7), out=np.array(0))",
        "np.einsum('', 0, out='test')",
        "np.einsum('', 0, order='W')",
        "np.einsum(np.ones((2, 2)), [0, 52], np.ones((2, 2)), [52, 1])",
        "np.einsum(np.ones((2, 2)), [-1, 0], np.ones((2, 2)), [0, 1])",
        "np.einsum(*(None,) * 63)",
        "np.einsum('eft,mf->emt', np.ones((2, 3, 5)), np.ones((4, 3)), order='F').flags.f_contiguous",
        "np.einsum('eft,mf->emt', np.ones((2, 3, 5), order='F'), np.ones((4, 3), order='F'), order='A').strides",
        "np.einsum('eft,mf->emt', np.ones((2, 3, 5)), np.ones((4, 3), order='F'), order='A').flags.c_contiguous",
        "np.einsum('a,a,a->a', *[np.ones(3)] * 3, optimize=['einsum_path', (1,), (0, 1)])",
        "np.einsum('a,a,a->a', *[np.ones(3)] * 3, optimize=['einsum_path', (0, 1), (0, 1)])",
    ],
)
def test_results(expression):
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a.flags.owndata",
        "a[:].flags.owndata",
        "a.T.flags.owndata",
        "a.ravel().flags.owndata",
        "a.T.ravel().flags.owndata",
        "a.reshape(3, 2).flags.owndata",
        "a.copy(order='F').flags.owndata",
        "np.ones((2, 3), order='F').flags.owndata",
        "np.array(a, order='F').flags.owndata",
        "np.asarray(a.T, order='F').flags.owndata",
        "a.swapaxes(0, 1).flags.owndata",
        "a.flags.num",
        "a.flags == a.copy().flags, a.flags == a.T.flags",
        "np.asarray(memoryview(a)).flags.owndata",
        "copy.copy(a.T).flags.f_contiguous, copy.deepcopy(a.T).flags.f_contiguous",
        "a.T.flags.fortran",
        "a.flags.carray, a.flags.farray, a.flags.behaved, a.flags.fnc, a.flags.forc",
        "a.flags['X'], a.flags['WRITEBACKIFCOPY'], a.flags['B'], a.flags['CA']",
        "a.flags['c_contiguous']",
        "delattr(a.flags, 'writeable')",
        "delattr(a.flags, 'num')",
        "delattr(a, 'real')",
        "delattr(a, 'flat')",
        "a.astype(float, copy=False, order='F') is a",
        "a.astype(float, copy=False, order='C') is a",
        "a.flat.__array__().flags.writeable, a.T.flat.__array__().flags.writeable",
        "[it := a.flat, list(it), it.index][1:]",
        "a.flat.__delitem__(1)",
        "a.flat[[True, 1]]",
        "a.flat[[True, False]]",
        "a.flat.__setitem__((), 7)",
        "a.flat[np.array([0, 5]).flat]",
    ],
)
def test_views_and_flags(expression):
    def there(np):
        try:
            return told(eval(expression, {"np": np, "copy": copy, "a": np.array([[0.0, 1, 2], [3, 4, 5]])}))
        except Exception as error:
            return "error", next(base for base in type(error).__mro__ if base.__module__ == "builtins").__name__

    assert there(ours) == there(numpy)


def test_a_running_sum_into_elements_that_share_memory():
    """Of the same memory: what is written must not be read as input."""
    found = []
    for np in (numpy, ours):
        values = (np.arange(10, dtype="i2") * 7919 + 255).astype("i2")
        out = np.lib.stride_tricks.as_strided(values, (7,), (1,))
        found.append(np.add.accumulate(values[:7], out=out).tolist())
    assert found[0] == found[1]


def test_numbers_that_no_integer_holds_are_refused_without_a_dtype():
    for values in ([4, 2**80], [4, -(2**80)], [[1], [2**64]]):
        with pytest.raises(OverflowError):
            ours.array(values)
    check("np.array([4, 2**80], float)")
    check("np.array([1, 2**63])")


def test_the_size_of_an_array_counts_its_elements_but_not_those_of_its_base():
    a = ours.ones(1000)
    assert sys.getsizeof(a) > a.nbytes > sys.getsizeof(a[:])


def test_a_scalar_is_its_own_deep_copy():
    scalar, array = ours.float64(1.1), ours.array(1.1)
    assert copy.deepcopy(scalar) is scalar
    assert copy.deepcopy(array) is not array


@pytest.mark.parametrize("name", ["__array_ufunc__", "__array_priority__"])
def test_an_object_with_rules_of_its_own_comes_to_its_turn(name):
    def reflected(self, other):
        return "its own"

    kind = type("Own", (Lender,), {name: None, "__radd__": reflected, "__eq__": reflected, "__hash__": None})
    assert ours.ones(3) + kind(ours) == "its own"
    assert (ours.ones(3) == kind(ours)) == "its own"


@pytest.mark.parametrize("generator", ["np.random.Generator(np.random.Philox(1))", "np.random.RandomState(1)"])
@pytest.mark.parametrize(
    "call",
    [
        "normal(scale=-0.0)",
        "normal(scale=0.0) == 0",
        "normal(0, [1, -0.0])",
        "lognormal(0, -0.0)",
        "exponential(-0.0)",
        "rayleigh(-0.0)",
        "gumbel(0, -0.0)",
        "laplace(0, -0.0)",
        "logistic(0, -0.0)",
        "gamma(-0.0, 1)",
        "gamma(1, -0.0)",
        "standard_gamma(-0.0)",
        "weibull(-0.0)",
        "poisson(-0.0)",
        "poisson(2**63)",
        "poisson([-1])",
        "dirichlet([[5, 1]])",
    ],
)
def test_parameters_of_distributions(generator, call):
    check(f"np.asarray({generator}.{call})")


@pytest.mark.parametrize(
    "call",
    [
        "standard_normal(out=np.empty(4), dtype='f4')",
        "standard_normal(out=np.empty(4)[::2])",
        "standard_gamma(1.0, out=np.empty(4)[::2])",
        "standard_gamma(np.arange(1.0, 4), out=np.empty((2, 3))).shape",
        "standard_gamma(np.arange(1.0, 4), size=(2, 3), out=np.empty((3, 2)))",
    ],
)
def test_arrays_to_draw_into(call):
    check(f"np.random.Generator(np.random.Philox(1)).{call}")
