"""`vmhost.engine.numpy` against NumPy: the same values, dtypes, shapes, strides, errors and sentences from the same
expressions.

Each case is an expression of `np` and of arrays that both sides hold; it is evaluated once with NumPy and once with the
engine."""

import gc
import itertools
import operator

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost.engine.numpy
from tests.batches import each

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

DTYPES = ["bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
CUBE = numpy.arange(24.0).reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def no_collection_within_numpy():
    """NumPy allocates while an error is set. A collection at that moment calls Hypothesis's callback, which then
    fails."""
    gc.disable()
    yield
    gc.enable()


def outcome(module, function, arguments):
    """What the function returns, or the exception that it raises."""
    own = [module.array(value) if isinstance(value, numpy.ndarray) else value for value in arguments]
    try:
        with numpy.errstate(all="ignore"):
            return function(module, *own)
    except Exception as error:
        return error


def described(value):
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if isinstance(value, (numpy.ndarray, numpy.generic, vmhost.engine.numpy.ndarray)):
        return value.dtype.name, value.shape
    return value


def check(function, *arguments, strides=False, sentences=True):
    wanted = outcome(numpy, function, arguments)
    got = outcome(vmhost.engine.numpy, function, arguments)
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        assert isinstance(got, Exception), f"NumPy raised {wanted!r}"
        assert isinstance(wanted, Exception), f"raised {got!r}, NumPy returned {wanted!r}"
        # NumPy's own subclasses of TypeError and of IndexError are their parents here
        assert isinstance(wanted, type(got)) or type(wanted).__name__ == type(got).__name__, (wanted, got)
        assert not sentences or str(got) == str(wanted)
        return
    assert_same(got, wanted, strides)


def assert_same(got, wanted, strides=False):
    if isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted):
            assert_same(one, other, strides)
    elif isinstance(wanted, (numpy.ndarray, numpy.generic)):
        assert described(got) == described(wanted)
        numpy.testing.assert_array_equal(numpy.asarray(got), wanted)
        if strides and wanted.size:
            assert got.strides == wanted.strides
    else:
        assert got == wanted


# ---- operators

OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.and_,
    operator.or_,
    operator.lshift,
    operator.eq,
    operator.lt,
    operator.ge,
]


def numbers(dtype, first=0):
    return (numpy.arange(6).reshape(2, 3) + first).astype(dtype)


@each("function", OPERATORS, ids=lambda function: function.__name__)
@each("left", DTYPES)
def test_operators_of_two_arrays(function, left):
    for right in DTYPES:
        check(lambda np, a, b: function(a, b), numbers(left), numbers(right, 1), strides=True)


@each("function", OPERATORS, ids=lambda function: function.__name__)
def test_python_numbers_are_weak(function):
    for dtype, number in itertools.product(DTYPES, (2, 2.5, True, -1, 300, 1j)):
        check(lambda np, a: function(a, number), numbers(dtype, 1))
        check(lambda np, a: function(number, a), numbers(dtype, 1))


@pytest.mark.parametrize("function", [operator.iadd, operator.itruediv, operator.ifloordiv, operator.iand])
def test_in_place(function):
    for left, right in itertools.product(DTYPES, DTYPES):
        check(lambda np, a, b: function(a, b), numbers(left, 1), numbers(right, 1))


def test_a_scalar_is_bound_anew_by_in_place_operators():
    a = vmhost.engine.numpy.array([1.0, 2.0])
    first = kept = a[0]
    first += 1
    assert (float(kept), float(first), a.tolist()) == (1.0, 2.0, [1.0, 2.0])


@each(
    "expression",
    [
        "x.T * x.T",
        "x.swapaxes(0, 2) + 1",
        "np.add(x, x, out=x[:1])",
        "np.add(x, 1, out=np.zeros((2, 3, 4), int))",
        "np.add(x, 1, dtype='f4')",
        "np.exp(x * 0, out=np.zeros((2, 3, 4)))",
        "np.add(1, 2)",
        "np.add([1, 2], 3)",
        "divmod(x, 3)",
        "-x",
        "abs(-x)",
        "~x",
        "~x.astype(int)",
        "x ** 2",
        "x ** 0.5",
        "x.astype(int) ** -1",
        "2 ** x.astype(int)",
        "x + np.zeros((2, 2))",
        "x + np.zeros((2, 3, 4, 1))",
        "np.int8(100) + np.int8(20)",
        "np.float32(1) + 1.0",
        "np.float32(1) + np.float64(1)",
        "np.where(x > 3, x, 0)",
        "np.where(x > 3, 1, 2.5)",
        "np.clip(x, 3, 7)",
        "x.clip(min=3)",
        "np.add(x, 1, where=x > 3, out=np.zeros((2, 3, 4)))",
        "np.result_type('f4', 1.0)",
        "np.result_type(np.int8, 300.0)",
        "np.promote_types('i8', 'f4')",
        "np.can_cast('i8', 'f4')",
        "np.can_cast('i8', 'i4', 'same_kind')",
        "np.can_cast(1, 'i4')",
        "3.0 in x",
        "99 in x",
        "bool(x)",
        "bool(x[:0])",
        "int(x[0])",
        "len(x)",
        "hash(x)",
        "hash(x[0, 0, 1]) == hash(1.0)",
        "f'{x[0, 0, 1]:.3f} {x[0]} {x[1, 1, 1]}'",
        "x.item(3)",
        "x.item(1, 2, 3)",
        "x.item()",
        "x.item(99)",
        "x.tolist()",
        "[1, 2, 3][x.astype(int)[0, 0, 2]]",
        "x.astype('i8', casting='safe')",
        "np.dtype('foo')",
        "np.dtype(3)",
        (
            "(np.dtype('f4') == np.float32, np.dtype('f4').name, np.dtype('i8').kind, np.dtype('u2').itemsize,"
            " str(np.dtype('c8')))"
        ),
    ],
)
def test_expressions(expression):
    def evaluate(np, x):
        result = eval(expression, {"np": np, "x": x})
        return str(result) if type(result).__name__ == "dtype" or "DType" in type(result).__name__ else result

    check(evaluate, CUBE, strides=True)


# ---- reductions


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "all", "any", "argmax", "argmin"])
def test_reductions(name):
    for dtype, axis, keep in itertools.product(DTYPES, (None, 0, -1, 1, (0, 2), 5, (0, 0)), (False, True)):
        if name in ("mean", "prod") and dtype in ("float16", "float32", "complex64", "complex128"):
            continue  # in another order they differ in their last digits
        check(lambda np, x: getattr(x, name)(axis=axis, keepdims=keep), CUBE.astype(dtype))


@each(
    "expression",
    [
        "x.sum(where=x > 3)",
        "x.max(where=x < 3, initial=-1)",
        "x.max(where=x < 3)",
        "x.mean(where=x > 3)",
        "x.sum(initial=10)",
        "x[:0].sum()",
        "x[:0].max()",
        "x[:, :0].max(0)",
        "x[:, :0].max(1)",
        "x.cumsum()",
        "x.cumsum(1)",
        "np.cumprod(x, 0)",
        "np.count_nonzero(x)",
        "np.count_nonzero(x, 1)",
        "x.var()",
        "x.std(0)",
        "np.var(x, ddof=1)",
        "np.median(x, 0)",
        "np.ptp(x, 1)",
        "np.diff(x)",
        "np.average(x, 0, [1, 3])",
        "np.quantile(x, 0.3)",
        "np.percentile(x, [10, 50], axis=0)",
        "x.max(1, out=np.zeros((2, 4)))",
        "x.argmax(out=np.zeros((), int))",
        "x.round(-1)",
        "np.add.reduce(x)",
        "np.add.outer([1, 2], [3, 4])",
        "np.maximum.accumulate(x, 1)",
        "np.trace(x[0])",
    ],
)
def test_reduction_expressions(expression):
    check(lambda np, x: eval(expression, {"np": np, "x": x}), CUBE)


# ---- indexing

KEYS = [
    "0",
    "-1",
    "5",
    "1, 2",
    "1, 2, 3",
    "1, 2, 3, 4",
    "...",
    "None",
    ":",
    "::-1",
    "1:, None, ..., 0",
    "..., ...",
    "1.5",
    "'a'",
    "0, :, [0, 2]",
    "[0, 1], [0, 2]",
    "[0, 1]",
    "[]",
    "[True, False]",
    ":, [True, False, True]",
    "[0, 1], :, [0, 2]",
    ":, [0, 1], [1, 2]",
    ":, [[0, 1]], [[1], [2]]",
    "0, [0, 1]",
    "[5]",
    "[0, 1], [0, 1, 2]",
    "None, [0, 1]",
    "[0, 1], None, [1, 2]",
    "True",
    "False",
    "True, 0",
    "[[True]]",
    "..., [0, 1]",
    "..., [0, -4]",
    ":, 1, [1, 2]",
    "5:1",
    "()",
    "1, 2, [0]",
    "1, 2, -1",
    "10**30",
    "[1], [2], [3]",
    "1, ..., 2, 3",
    "0, 1, 2, ...",
]


class Key:
    def __getitem__(self, key):
        return key


@each("text", KEYS)
def test_getting(text):
    key = eval(f"key[{text}]", {"key": Key()}) if text != "()" else ()
    check(lambda np, x: x[key], CUBE)


@each("text", KEYS)
@each("value", [7, [1.0, 2.0], numpy.arange(4.0), numpy.arange(100.0), 1j], ids=str)
def test_setting(text, value):
    key = eval(f"key[{text}]", {"key": Key()}) if text != "()" else ()

    def put(np, x, value):
        x[key] = value
        return x

    check(put, CUBE, value)


@each(
    "expression",
    [
        "x[x > 10]",
        "x[(x > 10)[0]]",
        "x[(x > 10)[:, :, 0]]",
        "x[(x > 10)[:, 0]]",
        "x[0][x[0] > 3]",
        "x[x > 10, None]",
        "x[1:][::-1].T[0]",
        "np.take(x, [0, 1], 1)",
        "x.take([0, 30])",
        "np.take(x, [0, 30], mode='wrap')",
        "x.nonzero()",
        "np.where(x > 20)",
        "np.argwhere(x > 20)",
        "np.take_along_axis(x, np.argsort(x, 1), 1)",
        "np.sort(-x, 0)",
        "np.argsort(-x)",
        "np.searchsorted([1, 2, 3], [0, 2, 5])",
        "np.unique([3, 1, 3, 2], return_counts=True)",
        "np.bincount([1, 1, 3])",
        "[row[0] for row in x[0]]",
    ],
)
def test_picking(expression):
    check(lambda np, x: eval(expression, {"np": np, "x": x}), CUBE)


@pytest.mark.parametrize(
    "value", [5, numpy.arange(13.0), numpy.arange(12.0), numpy.array(2.0)], ids=["one", "all", "few", "0-d"]
)
def test_setting_by_mask(value):
    def put(np, x, value):
        x[x > 10] = value
        return x

    check(put, CUBE, value)


def test_in_place_through_an_index():
    def add(np, x):
        x[0, 1:] += 2
        x[:, [0, 2]] *= 3
        x[x > 20] -= 1
        return x

    check(add, CUBE)


def test_read_only_views_are_not_written():
    a = vmhost.engine.numpy.broadcast_to(vmhost.engine.numpy.zeros(3), (2, 3))
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        a[0] = 1
    with pytest.raises(ValueError, match="output array is read-only"):
        a += 1


ONE_INDEX = st.one_of(
    st.integers(-4, 4),
    st.slices(5),
    st.just(None),
    st.just(...),
    st.lists(st.integers(-3, 2), max_size=3),
    st.lists(st.booleans(), min_size=2, max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(key=st.lists(ONE_INDEX, max_size=4).map(tuple))
def test_any_key(key):
    # which of two faults in one key is named first is not held
    check(lambda np, x: x[key], CUBE, sentences=False)

    def put(np, x):
        x[key] = 5.0
        return x

    check(put, CUBE, sentences=False)


@settings(max_examples=200, deadline=None)
@given(left=st.lists(st.integers(0, 3), max_size=4), right=st.lists(st.integers(0, 3), max_size=4))
def test_any_broadcast(left, right):
    check(lambda np, a, b: a + b, numpy.ones(left), numpy.ones(right))


# ---- making and reshaping


@each(
    "value",
    [
        [1, 2.5],
        [1, 2**63],
        [True, 2],
        [[1, 2], [3]],
        [1, [2]],
        [[1], 2],
        [],
        [[]],
        [[], []],
        [[[1]], [[2]]],
        (1, 2),
        range(4),
        [range(2), range(2)],
        1,
        2.5,
        1j,
        [1j, 1],
        [numpy.float32(2), 1],
        [[1, 2], numpy.arange(2)],
        bytearray(b"abc"),
        memoryview(b"abc"),
    ],
    ids=lambda value: str(value) if not isinstance(value, memoryview) else "memoryview",
)
def test_array(value):
    for dtype, ndmin in ((None, 0), (None, 3), ("f4", 0)):
        check(lambda np: np.array(value, dtype, ndmin=ndmin))


@each(
    "expression",
    [
        "np.arange(5)",
        "np.arange(1, 5)",
        "np.arange(0, 1, .1)",
        "np.arange(5, 0, -1)",
        "np.arange(5, 0)",
        "np.arange(1, 2, 0)",
        "np.arange(2.5)",
        "np.arange(-3, 3, 2)",
        "np.arange(3, dtype='f4')",
        "np.zeros(3)",
        "np.zeros((2, 3), 'i4')",
        "np.zeros(-1)",
        "np.zeros((2**40, 2**40))",
        "np.zeros((0, 2**62, 2**62))",
        "np.zeros((0, 5), 'f4').reshape(-1, 2**61)",
        "np.zeros((0, 5), 'f4').reshape(2**61, 0, order='F')",
        "np.zeros((0, 5), 'f4').reshape(-1, 2**61 - 1).shape",
        "np.zeros((2**61, 0), 'i1').view('f8')",
        "np.zeros(())",
        "np.full(3, 300, 'u1')",
        "np.full((2, 2), 1.5)",
        "np.ones((2, 2), order='F')",
        "np.zeros_like([1, 2], dtype='f4')",
        "np.frombuffer(b'12345678', 'i2', 2, 2)",
        "np.frombuffer(b'123', 'i2')",
        "np.linspace(0, 1, 5)",
        "np.linspace(0, 10, 3, False)",
        "np.linspace([0, 1], [2, 3], 4)",
        "np.eye(3)",
        "np.eye(3, 4, 1)",
        "np.eye(3, 4, -1, int)",
        "np.tri(3)",
        "np.tril(x[0])",
        "np.triu(x[0], 1)",
        "np.diag(x[0])",
        "np.diag(x[0, 0], 1)",
        "np.meshgrid([1, 2], [3, 4, 5])",
    ],
)
def test_creation(expression):
    check(lambda np, x: eval(expression, {"np": np, "x": x}), CUBE, strides=True)


@each(
    "expression",
    [
        "x.reshape(24)",
        "x.reshape(4, -1)",
        "x.reshape(5)",
        "x.reshape(-1, -1)",
        "x.T.reshape(6, 4)",
        "x[:, ::2].reshape(-1)",
        "x.reshape(3, 8, order='F')",
        "x.ravel('F')",
        "x.flatten()",
        "x.view('i8')",
        "x[..., :2].view('i4')",
        "x.view('c16')",
        "x.copy('F')",
        "np.stack([x, x], 1)",
        "np.vstack([x[0], x[1]])",
        "np.hstack([x[0], x[1]])",
        "np.moveaxis(x, 0, -1)",
        "np.expand_dims(x, (0, 2))",
        "np.flip(x, 1)",
        "np.split(x, 3, 1)",
        "np.split(x, 5, 1)",
        "np.array_split(x, 2, 2)",
        "np.tile(x, (2, 1, 2))",
        "np.repeat(x, 2, 1)",
        "np.repeat(x, [1, 2, 0], 1)",
        "np.roll(x, 1)",
        "np.roll(x, (1, 2), (0, 2))",
        "np.pad(x, 1)",
        "np.pad(x, ((1, 2), (0, 0), (3, 1)), 'reflect')",
        "np.pad(x, 2, 'edge')",
        "np.rot90(x[0])",
        "np.squeeze(x[:1])",
        "x.squeeze(0)",
        "np.broadcast_to(x, (5, 2, 3, 4))",
        "np.broadcast_to(x, (2, 3))",
        "np.broadcast_to(x, (2, 3, 5))",
        "np.append(x[0], x[1], 0)",
        "np.delete(x, 1, 1)",
        "np.insert(x[0, 0], 1, [5, 6])",
        "np.diagonal(x)",
        "np.concatenate([x, x], 1)",
        "np.concatenate([x, x[:1]], 1)",
        "np.concatenate([x, x[0]])",
        "np.concatenate([])",
        "np.concatenate([1, 2])",
        "np.concatenate([x, x], None)",
        "x.transpose(1, 0)",
        "x.transpose(1, 1, 0)",
        "x.transpose(2, 0, 1)",
    ],
)
def test_shapes(expression):
    check(lambda np, x: eval(expression, {"np": np, "x": x}), CUBE)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (2, 3)),
        ((), (3,)),
        ((2, 3), (5, 3, 4)),
        ((0, 3), (3, 0)),
        ((2, 0), (0, 3)),
    ],
    ids=str,
)
def test_matrix_products(shapes):
    a, b = (numpy.arange(float(numpy.prod(shape))).reshape(shape) for shape in shapes)
    check(lambda np, a, b: a @ b, a, b)
    check(lambda np, a, b: np.dot(a, b), a, b)


def test_a_list_that_its_items_change_meanwhile():
    """Items whose conversion empties the list that holds them: an error or a result, and no crash."""

    class Emptying:
        def __init__(self, value):
            self.value = value

        def __index__(self):
            sizes.clear()
            return self.value

        def __float__(self):
            sizes.clear()
            return float(self.value)

        def __buffer__(self, flags):
            sizes.clear()
            return memoryview(bytes(8))

    for make in (
        vmhost.engine.numpy.zeros,
        lambda v: vmhost.engine.numpy.asarray(v, dtype="float64"),
        lambda v: vmhost.engine.numpy.transpose(vmhost.engine.numpy.zeros((1, 1, 1, 1)), v),
        vmhost.engine.numpy.concatenate,
    ):
        sizes = [Emptying(i) for i in range(4)]
        try:
            make(sizes)
        except TypeError, ValueError:
            pass
        assert sizes == []


@each(
    ("name", "operands"),
    [
        ("negative", ()),
        ("subtract", ([1.0, 2.0, 3.0, 4.0],)),
        ("multiply", (3.0,)),
        ("maximum", (2.5,)),
        ("add", (1.0,)),
    ],
)
@each("key", [[0, 2, 0, 0], slice(1, 4), 3, [], [[1, 1], [1, 2]]], ids=str)
def test_at_counts_every_time_that_a_place_is_named(name, operands, key):
    results = []
    for np in (numpy, vmhost.engine.numpy):
        array = np.asarray([1.0, 2.0, 3.0, 4.0])
        indices = key if isinstance(key, (int, slice)) else np.asarray(key, dtype="int64")
        try:
            getattr(np, name).at(array, indices, *(np.asarray(operand) for operand in operands))
            results.append(array.tolist())
        except ValueError:
            results.append("values that do not fit the places")
    assert results[0] == results[1]
