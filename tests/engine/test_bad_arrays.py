"""Bad input to `vmhost.engine.numpy`: a clear error, NumPy's where NumPy refuses the same, and nothing changed, held or
left charged."""

import ctypes
import math

import numpy
import pytest

import vmhost.engine.numpy
from tests.batches import each
from tests.engine.interchange_structures import Deleter, DLManagedTensor, DLTensor, PyBuffer
from tests.engine.test_arrays_against_numpy import CUBE, outcome
from vmhost.engine import _array

SHAPES = """
    np.zeros((2**40, 2**40)); np.zeros((0, 2**62, 2**62)); np.empty((2**32, 2**32)); np.ones((2**31, 2**31, 2));
    np.full((2**62, 4), 1.5); np.zeros(2**63); np.zeros(-2**70); np.zeros(-1); np.zeros((2, -3)); np.empty((0, -1));
    np.full(-1, 2); np.ones((3, 4, -5)); np.zeros((1,) * 65); np.zeros((1.5,)); np.zeros('3'); np.zeros((2, None));
    x.reshape(2**62, 2**62); x.reshape((1,) * 65); np.broadcast_to(x, (-1, 2, 3, 4)); np.broadcast_to(x, (1,) * 65);
    np.broadcast_to(1.0, (2**31, 2**31)) + np.ones((2**31, 1)); np.linspace(0, 1, -3); np.eye(-1); np.eye(2**33);
    np.identity(-2); np.repeat(x, -1); np.repeat(x, [1, -1, 1], 1); np.repeat(x, [1, 2], 1); np.tile(x, -1);
    np.resize(x, (-1, 2)); np.pad(x, -1); np.frombuffer(b'12345678', 'f8', 2); np.frombuffer(b'12345678', 'f8', 1, 4);
    np.frombuffer(b'12345678', 'f8', 1, -4); np.split(x, 0); np.stack([]); np.concatenate([]); np.arange(0, 1, 0);
    np.arange(0, float('nan')); np.arange(float('inf')); np.expand_dims(x, 9);
    np.ndarray((2**40, 2**40), 'f8', bytearray(8)); np.ndarray((3,), 'f8', bytearray(16));
    np.ndarray((2,), 'f8', bytearray(16), 8); np.ndarray((2,), 'f8', bytearray(32), 0, (32,)); np.ndarray((-2,), 'f8');
    np.ndarray((2,), 'f8', bytearray(32), 0, (8, 8))
"""

READ_ONLY = """
    fixed.__setitem__(0, 1.0); fixed.__setitem__(..., x); fixed.__setitem__([0, 1], 2); fixed.__setitem__(x > 3, 2);
    fixed.__iadd__(1); fixed.__itruediv__(x); np.add(x, x, out=fixed); np.exp(x, out=fixed);
    x.sum(axis=0, out=fixed[0]); x.cumsum(axis=0, out=fixed);
    np.matmul(x, x.swapaxes(1, 2)[:, :, :], out=fixed[:, :, :3]); fixed.sort(); fixed.fill(3); np.copyto(fixed, x);
    fixed.T.__setitem__(0, 1); fixed[0].__setitem__(0, 1); fixed.reshape(-1).__setitem__(0, 1);
    fixed.view('i8').__setitem__(0, 1); np.clip(x, 1, 2, out=fixed); np.broadcast_to(x, (2, 2, 3, 4)).__setitem__(0, 1);
    memoryview(fixed).__setitem__((0, 0, 0), 1.0); np.put_along_axis(fixed, np.zeros((1, 3, 4), int), 1, 0);
    fixed.real.__setitem__(0, 1); np.cumsum(x, 0, out=fixed)
"""

OTHERS = """
    np.zeros(3, 'foo'); np.dtype('f3'); np.dtype('int65'); np.dtype(3); np.dtype('<f9'); np.zeros(3, dtype=7);
    x.astype('nothing'); np.array([1, [2]]); np.array([[1, 2], [3]]); x.sum(axis=3); x.sum(axis=(0, 0)); x.sum(axis=-4);
    x[9]; x[:, :, 4]; x[0, 0, 0, 0]; x['a']; x[1.0]; x[[9]]; x[[[0, 1], [2]]]; x[x > 3, 0]; x[:, numpy_mask];
    x.__setitem__(0, np.zeros(5)); np.take(x, 99); np.take(x, -25); x.transpose(0, 1); np.searchsorted(x, 1);
    x.view('i3'); x[..., ::2].view('c16'); x.item(99); x.item(0, 0, 9); np.concatenate([x, x[0]]); x @ x;
    np.add(x, x, out=x[0]); np.add(x, x, out=np.zeros((2, 3, 4), 'i8')); np.add(x, x, out=3); np.add(x, x, x, x);
    np.add(x, x, nonsense=1); x.astype('i4', casting='safe'); np.bitwise_and(x, 1); np.invert(x); x << 1;
    np.subtract(x > 1, x > 2); np.negative(x > 1); np.full(3, 300, 'u1'); np.array([1, -1], 'u1'); np.array([1j], 'f8');
    int(np.array(1j)); float(x); bool(x); int(x); hash(x); np.int8(200); np.dot(x, x); np.max(x[:0]); np.argmax(x[:0]);
    np.where(x > 1, x); np.logspace(0, 1, -1); np.matmul(1, x); np.sort(x, axis=5); x.squeeze(0); np.histogram(x, -3);
    np.diff(x, -1); np.roll(x, 1, 9); np.moveaxis(x, 0, 7); np.bincount([-1]); np.digitize(x, [[1]]);
    np.unravel_index(99, (2, 3))
"""

# refused by both; NumPy's message names its internals, or things that differ in the engine
OTHER_WORDS = """
    np.zeros(None); fixed.partition(1); x.reshape(-1, 0); x.reshape(7, -1); np.broadcast_to(x, (2**62, 2**62, 2, 3, 4));
    x[(None,) * 62]; np.put(fixed, [0], 1); np.place(fixed, x > 3, 1); np.putmask(fixed, x > 3, 1);
    np.add.at(fixed, 0, 1); np.take(x, [0, 0], 0, out=fixed);
    np.concatenate([x, x], out=np.broadcast_to(x[0], (4, 3, 4))); np.fill_diagonal(fixed[0], 1); x.swapaxes(0, 5);
    np.add(x); x.astype('i4', casting='what'); len(x[0, 0, 0]); np.nonzero(3); iter(x[0, 0, 0]);
    np.round(x, 10**30); np.round(x.astype('i8'), -10**30); x.astype('i8').round(-2**31 - 1); np.float64(3).round(1.5);
    np.float64(3).__format__(5); x.__format__(5); x.__format__(None)
"""


def expressions(text):
    return [one.strip() for one in text.replace("\n", " ").split(";") if one.strip()]


def refused(expression, sentences=True):
    """NumPy and the engine refuse with the same error, and leave their arguments unchanged."""
    kept = []

    def evaluate(np, x):
        fixed = x.copy()
        fixed.setflags(write=False)
        kept.append((np, x, fixed))
        return eval(expression, {"np": np, "x": x, "fixed": fixed, "numpy_mask": np.zeros(4, bool)})

    wanted = outcome(numpy, evaluate, (CUBE,))
    assert isinstance(wanted, Exception), f"NumPy gave {wanted!r}"
    got = outcome(vmhost.engine.numpy, evaluate, (CUBE,))
    assert isinstance(got, Exception), f"gave {got!r}, NumPy {wanted!r}"
    for _, x, fixed in kept:
        assert numpy.array_equal(numpy.asarray(x), CUBE) and numpy.array_equal(numpy.asarray(fixed), CUBE)
    if isinstance(wanted, MemoryError):
        assert isinstance(got, (MemoryError, ValueError)), (wanted, got)
    else:
        assert isinstance(wanted, type(got)) or type(wanted).__name__ == type(got).__name__, (wanted, got)
        assert not sentences or str(got) == str(wanted), (wanted, got)


@each("expression", expressions(SHAPES))
def test_shapes_that_overflow_sizes_that_are_negative_and_other_wrong_shapes(expression):
    refused(expression)


@each("expression", expressions(READ_ONLY))
def test_writes_to_what_is_read_only(expression):
    refused(expression)


@each("expression", expressions(OTHERS))
def test_wrong_dtypes_indices_axes_and_values(expression):
    refused(expression)


@each("expression", expressions(OTHER_WORDS))
def test_what_both_refuse_in_words_of_their_own(expression):
    refused(expression, sentences=False)


class Boom(Exception):
    pass


class Undecided:
    def __bool__(self):
        raise Boom


@pytest.mark.parametrize(
    "call",
    [
        lambda np, x, no: x.reshape(24, copy=no),
        lambda np, x, no: np.reshape(x, 24, copy=no),
        lambda np, x, no: np.array(x, copy=no),
        lambda np, x, no: np.asarray(x, copy=no),
        lambda np, x, no: x.astype("f4", copy=no),
        lambda np, x, no: x.sum(keepdims=no),
        lambda np, x, no: np.from_dlpack(x, copy=no),
        lambda np, x, no: x.byteswap(no),
        lambda np, x, no: x.setflags(write=no),
    ],
)
def test_an_argument_that_is_neither_true_nor_false(call):
    with pytest.raises(Boom):
        call(vmhost.engine.numpy, vmhost.engine.numpy.asarray(CUBE.copy()), Undecided())


@pytest.mark.parametrize(
    "call",
    [
        lambda np, lone: np.astype(np.zeros(2), lone, lone),
        lambda np, lone: np.zeros(2).astype("nothing", lone, lone),
        lambda np, lone: np.zeros_like(np.zeros(2), lone, lone),
        lambda np, lone: np.full_like(np.zeros(2), 1, lone, lone),
    ],
)
def test_two_wrong_arguments_give_one_error(call):
    """A lone surrogate has no UTF-8: looking at it with an exception set was a SystemError."""
    with pytest.raises((TypeError, ValueError)):
        call(vmhost.engine.numpy, chr(0xDC80))


def test_whole_numbers_are_rounded_far_above_them():
    x = numpy.array([15, -25, 2**62])
    for decimals in range(-20, 3):
        assert (
            vmhost.engine.numpy.round(vmhost.engine.numpy.asarray(x), decimals).tolist()
            == numpy.round(x, decimals).tolist()
        ), decimals
    assert vmhost.engine.numpy.round(vmhost.engine.numpy.asarray(x), -(2**31)).tolist() == [0, 0, 0]


def test_powers_of_a_matrix_with_a_huge_exponent():
    turn = vmhost.engine.numpy.array([[0, -1], [1, 0]])
    for exponent in (4 * 10**4000, 4 * 10**4000 + 3, *range(-3, 12)):
        wanted = numpy.linalg.matrix_power(numpy.asarray(turn), exponent % 4)
        assert vmhost.engine.numpy.linalg.matrix_power(turn, exponent).tolist() == wanted.tolist(), exponent


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("S3", "data type 'S3' not understood"),
        ("U", "data type 'U' not understood"),
        ("datetime64[s]", "data type 'datetime64[s]' not understood"),
        ("O", "data type 'O' not understood"),
        (">f8", "data type '>f8' not understood"),
        ("f4,i4", "data type 'f4,i4' not understood"),
        ("longdouble", "data type 'longdouble' not understood"),
        ([("a", "f4")], "Cannot interpret"),
        (object, "Cannot interpret"),
        (str, "Cannot interpret"),
    ],
)
def test_dtypes_that_the_engine_lacks(name, sentence):
    for use in (
        vmhost.engine.numpy.dtype,
        lambda dtype: vmhost.engine.numpy.zeros(3, dtype),
        vmhost.engine.numpy.ones(3).astype,
        vmhost.engine.numpy.ones(2).view,
        lambda dtype: vmhost.engine.numpy.asarray([1], dtype),
        lambda dtype: vmhost.engine.numpy.ones(3).sum(dtype=dtype),
    ):
        with pytest.raises(TypeError) as caught:
            use(name)
        assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "value", ["a", ["a", "b"], [object()], {1: 2}, {1, 2}, [1, "x"], b"ab", [b"a"], [[1, 2], "ab"], print]
)
def test_values_that_are_no_numbers(value):
    with pytest.raises((TypeError, ValueError)):
        vmhost.engine.numpy.array(value, "f8")


def test_a_view_never_reaches_beyond_its_memory():
    x = vmhost.engine.numpy.arange(600.0)
    for shape, strides in [
        ((601,), (8,)),
        ((2,), (4800,)),
        ((2,), (-8,)),
        ((3,), (2**62,)),
        ((2**62,), (8,)),
        ((2, 2), (4792, 8)),
        ((2,), (-(2**63),)),
    ]:
        with pytest.raises(ValueError):
            _array._as_strided(x, shape, strides)
    assert _array._as_strided(x, (0,), (2**62,)).shape == (0,)
    for offset in (-1, x.nbytes + 1, 2**63 - 1, -(2**63)):
        for shape in ((1,), (0,)):
            with pytest.raises(ValueError, match="offset must lie within the buffer"):
                _array._as_strided(x, shape, (8,), offset)
    with pytest.raises(ValueError, match="offset must lie within the buffer"):
        vmhost.engine.numpy.ndarray((1,), "f8", bytearray(16), 2**63 - 1, (8,))


def exported(memory, shape, strides, itemsize=8, format=b"d", suboffsets=None):
    sizes = [
        (
            ctypes.cast((ctypes.c_ssize_t * max(len(list_), 1))(*list_), ctypes.POINTER(ctypes.c_ssize_t))
            if list_ is not None
            else None
        )
        for list_ in (shape, strides, suboffsets)
    ]
    size = math.prod(shape) * itemsize
    size = size if 0 <= size < 2**63 else len(memory)
    view = PyBuffer(ctypes.addressof(memory), None, size, itemsize, 0, len(shape), format, *sizes, None)
    function = ctypes.pythonapi.PyMemoryView_FromBuffer
    function.restype, function.argtypes = ctypes.py_object, [ctypes.POINTER(PyBuffer)]
    return function(ctypes.byref(view)), sizes


@pytest.mark.parametrize(
    ("layout", "error", "sentence"),
    [
        (dict(shape=(3,), strides=(2**62,)), ValueError, "strides is incompatible with shape"),
        (dict(shape=(2, 2), strides=(2**62, 2**62)), ValueError, "strides is incompatible with shape"),
        (dict(shape=(2, 2), strides=(2**62, -(2**62))), ValueError, "strides is incompatible with shape"),
        (dict(shape=(-1,), strides=(8,)), ValueError, "negative dimensions are not allowed"),
        (dict(shape=(2**62, 2**62), strides=(0, 0)), ValueError, "array is too big"),
        (dict(shape=(4,), strides=(8,), itemsize=4), ValueError, "has a layout that no array can have"),
        (dict(shape=(4,), strides=(8,), suboffsets=(0,)), ValueError, "has a layout that no array can have"),
        (dict(shape=(4,), strides=(8,), format=b"Zg"), TypeError, "no dtype"),
        (dict(shape=(4,), strides=(8,), format=b">d"), TypeError, "no dtype"),
        (dict(shape=(4,), strides=(8,), format=b"dd"), TypeError, "no dtype"),
    ],
)
def test_foreign_buffers_that_cannot_be(layout, error, sentence):
    memory = ctypes.create_string_buffer(64)
    view, kept = exported(memory, **layout)
    with pytest.raises(error, match=sentence):
        vmhost.engine.numpy.asarray(view)
    del view, kept


class Producer:
    """A DLPack producer that may lie about its 64 bytes."""

    def __init__(self, shape=(8,), strides=(1,), device=1, said=1, code=2, bits=64, lanes=1, capsule=None):
        self.memory, self.freed, self.said, self.capsule = ctypes.create_string_buffer(64), [], said, capsule
        self.lists = [(ctypes.c_int64 * max(len(list_), 1))(*list_) for list_ in (shape, strides)]
        tensor = DLTensor(ctypes.addressof(self.memory), device, 0, len(shape), code, bits, lanes, *self.lists, 0)
        self.managed = DLManagedTensor(tensor, None, Deleter(self.freed.append))

    def __dlpack_device__(self):
        return self.said, 0

    def __dlpack__(self):
        if self.capsule is not None:
            return self.capsule
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), b"dltensor", None)


@pytest.mark.parametrize(
    ("producer", "error", "sentence"),
    [
        (dict(said=2), BufferError, "Unsupported device in DLTensor"),
        (dict(device=2), BufferError, "Unsupported device in DLTensor"),
        (dict(device=13), BufferError, "Unsupported device in DLTensor"),
        (dict(shape=(-1,)), ValueError, "negative dimensions"),
        (dict(shape=(2**62, 2**62), strides=(0, 0)), ValueError, "too big"),
        (dict(shape=(3,), strides=(2**61,)), BufferError, "strides"),
        (dict(shape=(1,) * 65, strides=(1,) * 65), BufferError, "higher than the supported maxdims"),
        (dict(code=4, bits=16), BufferError, "Unsupported dtype"),
        (dict(lanes=2), BufferError, "Unsupported lanes"),
        (dict(bits=128), BufferError, "Unsupported dtype"),
        (dict(code=77), BufferError, "Unsupported dtype"),
        (dict(capsule=3), ValueError, "PyCapsule_GetPointer"),
    ],
)
def test_dlpack_that_cannot_be(producer, error, sentence):
    producer_object = Producer(**producer)
    with pytest.raises(error, match=sentence):
        vmhost.engine.numpy.from_dlpack(producer_object)
    assert not producer_object.freed  # the capsule was not taken: its maker's to free


def test_dlpack_that_can_be_frees_its_memory_once():
    producer = Producer()
    taken = vmhost.engine.numpy.from_dlpack(producer)
    view = taken[2:4]
    del taken
    assert not producer.freed
    del view
    assert len(producer.freed) == 1


@pytest.mark.parametrize("size", [2**59, 2**55])
def test_what_the_system_refuses_is_no_peak(size):
    before = _array._statistics()["peak_bytes"]
    with pytest.raises(MemoryError, match=f"{8 * size} bytes"):
        vmhost.engine.numpy.empty(size)
    assert _array._statistics()["peak_bytes"] == before


def test_a_number_that_becomes_a_sequence_while_an_array_is_made_is_refused():
    """Otherwise an element would stay undefined."""

    class Changes:
        looks = 0

        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index == 0:
                self.looks += 1
                if self.looks == 2:
                    rows[1][0] = [1.0]
            return (1.0, 2.0)[index]

    rows = [Changes(), [3.0, 4.0]]
    with pytest.raises(ValueError, match="became a sequence"):
        vmhost.engine.numpy.array(rows)


def test_bits_of_empty_arrays_with_rows_as_long_as_can_be():
    longest = 2**63 - 1
    assert _array._bits_unpacked(vmhost.engine.numpy.zeros((0, 1), "uint8"), longest, True).shape == (0, longest)
    packed = _array._bits_packed(vmhost.engine.numpy.zeros((0, longest), bool), True)
    assert packed.shape == (0, 2**60)
