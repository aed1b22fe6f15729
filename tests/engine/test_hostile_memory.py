"""Foreign memory that lies about itself, through DLPack and the buffer protocol: a clear error, as NumPy words it, and
no crash."""

import ctypes
import gc

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.interchange_structures import (
    Deleter,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLTensor,
    PyBuffer,
)

VERSIONED, PLAIN = ctypes.c_char_p(b"dltensor_versioned"), ctypes.c_char_p(b"dltensor")  # outlive their capsules
READ_ONLY = 1
capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Producer:
    """Eight float64, 0 to 7, unless a test says otherwise. `deleted` counts the consumer's calls of the deleter."""

    def __init__(
        self,
        shape=(8,),
        strides=None,
        ndim=None,
        data=True,
        offset=0,
        dtype=(2, 64, 1),
        device=(1, 0),
        says=(1, 0),
        major=1,
        flags=0,
        deleter=True,
        versioned=True,
    ):
        self.numbers = (ctypes.c_double * 8)(*range(8))
        self.deleted, self.says = 0, says
        self.deleter = Deleter(self._delete) if deleter else Deleter()
        self.shape = None if shape is None else (ctypes.c_int64 * 100)(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * 100)(*strides)
        tensor = DLTensor(
            ctypes.addressof(self.numbers) if data is True else data,
            *device,
            len(shape or ()) if ndim is None else ndim,
            *dtype,
            self.shape,
            self.strides,
            offset,
        )
        self.managed = (
            DLManagedTensorVersioned(major, 0, None, self.deleter, flags, tensor)
            if versioned
            else DLManagedTensor(tensor, None, self.deleter)
        )
        self.capsule = capsule_new(ctypes.addressof(self.managed), VERSIONED if versioned else PLAIN, None)

    def _delete(self, managed):
        assert managed == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self):
        return self.says

    def __dlpack__(self, **options):
        return self.capsule


FAR = 2**62
REFUSED = {  # what is wrong: the error and its words
    "another version": (dict(major=2), BufferError, "exported DLPack major version is too high to be imported: 2"),
    "another device": (dict(device=(2, 0)), BufferError, "Unsupported device in DLTensor"),
    "says another device": (dict(says=(2, 0)), BufferError, "Unsupported device in DLTensor"),
    "says no device": (dict(says=5), TypeError, "must give a tuple of two ints, not 'int'"),
    "says half a device": (dict(says=(1,)), TypeError, "must give a tuple of two ints"),
    "says a device in words": (dict(says=("cpu", 0)), TypeError, "'str' object cannot be interpreted as an integer"),
    "lanes": (dict(dtype=(2, 64, 2)), BufferError, "Unsupported lanes in DLTensor dtype: 2"),
    "no lanes": (dict(dtype=(2, 64, 0)), BufferError, "Unsupported lanes in DLTensor dtype: 0"),
    "bits": (dict(dtype=(2, 128, 1)), BufferError, "Unsupported dtype in DLTensor: code 2 of 128 bits"),
    "odd bits": (dict(dtype=(0, 7, 1)), BufferError, "Unsupported dtype in DLTensor: code 0 of 7 bits"),
    "a kind of number": (dict(dtype=(4, 16, 1)), BufferError, "Unsupported dtype in DLTensor: code 4"),
    "too many dimensions": (
        dict(shape=[1] * 65),
        BufferError,
        "maxdims of DLPack tensor is higher than the supported maxdims",
    ),
    "far too many dimensions": (dict(ndim=2**31 - 1), BufferError, "maxdims of DLPack tensor is higher"),
    "fewer than none": (
        dict(ndim=-1),
        ValueError,
        "maximum supported dimension for an ndarray is currently 64, found -1",
    ),
    "no shape": (dict(shape=None, ndim=1), BufferError, "has 1 dimensions and no shape"),
    "a negative size": (dict(shape=[-1]), ValueError, "negative dimensions are not allowed"),
    "a size beyond memory": (dict(shape=[FAR, 4]), ValueError, "array is too big"),
    "strides beyond memory": (dict(shape=[3], strides=[FAR]), BufferError, "strides reach beyond what memory can hold"),
    "strides beyond memory together": (
        dict(shape=[3, 3], strides=[FAR // 16, FAR // 16]),
        BufferError,
        "strides reach beyond",
    ),
    "strides below address 0": (dict(shape=[2], strides=[-FAR // 8]), BufferError, "cannot lie at address"),
    "an offset beyond addresses": (dict(offset=2**64 - 8), BufferError, "cannot lie at address"),
    "no data": (dict(data=None), BufferError, "cannot lie at address"),
}


@each("wrong", REFUSED)
@each("versioned", [True, False])
def test_dlpack_refuses(wrong, versioned):
    options, error, words = REFUSED[wrong]
    if "major" in options and not versioned:
        options = dict(options, versioned=True)
    producer = Producer(**{"versioned": versioned, **options})
    with pytest.raises(error, match=words):
        np.from_dlpack(producer)
    gc.collect()
    assert producer.deleted == 0  # what was not taken over is its producer's still


def test_dlpack_of_anything_else():
    class Odd(Producer):
        def __dlpack__(self, **options):
            return self.given

    for given, words in (
        (5, "invalid PyCapsule object"),
        (None, "invalid PyCapsule object"),
        (capsule_new(1, b"other", None), "incorrect name"),
    ):
        odd = Odd()
        odd.given = given
        with pytest.raises(ValueError, match=words):
            np.from_dlpack(odd)
    with pytest.raises(AttributeError, match="__dlpack"):
        np.from_dlpack([1, 2])


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_is_used_once_and_deleted_once(versioned):
    producer = Producer(versioned=versioned)
    ours = np.from_dlpack(producer)
    with pytest.raises(ValueError, match="incorrect name"):
        np.from_dlpack(producer)
    view = ours[2:]
    del ours
    assert view.tolist() == [2, 3, 4, 5, 6, 7] and producer.deleted == 0
    del view
    assert producer.deleted == 1
    with pytest.raises(ValueError, match="incorrect name"):
        np.from_dlpack(producer)


def test_dlpack_without_a_deleter():
    producer = Producer(deleter=False)
    assert np.from_dlpack(producer).sum() == 28


def test_dlpack_with_strides_and_offsets():
    backwards = Producer(shape=[2, 3], strides=[-4, -1], offset=7 * 8)
    assert np.from_dlpack(backwards).tolist() == [[7, 6, 5], [3, 2, 1]]
    assert np.from_dlpack(Producer(shape=[3, 2], strides=[0, 5])).tolist() == [[0, 5]] * 3
    assert np.from_dlpack(Producer(shape=[], offset=24)).item() == 3
    assert np.from_dlpack(Producer(shape=[0, 3], data=None)).shape == (0, 3)
    assert np.from_dlpack(Producer(shape=[2, 2], dtype=(0, 8, 1), offset=1)).tolist() == [[0, 0], [0, 0]]


def test_dlpack_says_what_may_be_written():
    for producer, writable in (
        (Producer(flags=READ_ONLY), False),
        (Producer(), True),
        (Producer(versioned=False), False),
    ):
        ours = np.from_dlpack(producer)
        assert ours.flags.writeable == writable
        if writable:
            ours[0] = 42
            assert producer.numbers[0] == 42
        else:
            with pytest.raises(ValueError, match="assignment destination is read-only"):
                ours[0] = 42
            assert producer.numbers[0] == 0
    assert np.from_dlpack(Producer(flags=READ_ONLY), copy=True).flags.writeable
    with pytest.raises(ValueError, match="truth value"):
        np.from_dlpack(Producer(), copy=np.arange(2))


# ---- the buffer protocol
GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(PyBuffer), ctypes.c_int)
numbers = (ctypes.c_double * 8)(*range(8))
told = {}  # the fields of the next buffer
kept = []


def sizes(values):
    return None if values is None else (ctypes.c_ssize_t * 100)(*values)


@GET
def get_buffer(exporter, view, flags):
    fields = dict(
        buf=ctypes.addressof(numbers),
        len=64,
        itemsize=8,
        readonly=0,
        ndim=1,
        format=b"d",
        shape=(8,),
        strides=(8,),
        suboffsets=None,
    )
    fields.update(told)
    for name in ("shape", "strides", "suboffsets"):
        fields[name] = sizes(fields[name])
    kept[:] = [fields]
    for name, value in fields.items():
        setattr(view[0], name, value)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(exporter))
    view[0].obj = id(exporter)
    return 0


class Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(Slot)),
    ]


BF_GETBUFFER = 1  # typeslots.h
slots = (Slot * 2)((BF_GETBUFFER, ctypes.cast(get_buffer, ctypes.c_void_p)), (0, None))
spec = Spec(b"hostile.Exporter", object.__basicsize__, 0, 0, slots)
ctypes.pythonapi.PyType_FromSpec.restype, ctypes.pythonapi.PyType_FromSpec.argtypes = (
    ctypes.py_object,
    [ctypes.POINTER(Spec)],
)
Exporter = ctypes.pythonapi.PyType_FromSpec(ctypes.byref(spec))


@pytest.fixture
def told_to():
    def tell(**fields):
        told.update(fields)
        return Exporter()

    yield tell
    told.clear()


def test_an_honest_buffer(told_to):
    assert np.asarray(told_to()).tolist() == list(range(8))
    assert np.asarray(
        told_to(buf=ctypes.addressof(numbers) + 56, shape=(2, 4), ndim=2, strides=(-32, -8))
    ).tolist() == [[7, 6, 5, 4], [3, 2, 1, 0]]
    assert np.asarray(told_to(buf=ctypes.addressof(numbers), shape=None, strides=None, ndim=1)).tolist() == list(
        range(8)
    )
    assert np.asarray(told_to(shape=None, ndim=0, len=8)).tolist() == 0


BUFFERS = {
    "an unknown format": (dict(format=b"Zg"), TypeError, "format 'Zg', for which there is no dtype"),
    "a record": (dict(format=b"T{d:a:}"), TypeError, "for which there is no dtype"),
    "another byte order": (dict(format=b">d"), TypeError, "for which there is no dtype"),
    "an empty format": (dict(format=b""), TypeError, "for which there is no dtype"),
    "an item of another size": (dict(itemsize=4), ValueError, "has a layout that no array can have"),
    "an item of size 0": (dict(itemsize=0), ValueError, "has a layout that no array can have"),
    "suboffsets": (dict(suboffsets=(0,)), ValueError, "has a layout that no array can have"),
    "too many dimensions": (
        dict(ndim=65, shape=(1,) * 65, strides=(8,) * 65, len=8),
        ValueError,
        "has a layout that no array can have",
    ),
    "fewer than none": (
        dict(ndim=-1),
        ValueError,
        "maximum supported dimension for an ndarray is currently 64, found -1",
    ),
    "dimensions without shape": (dict(ndim=2, shape=None, strides=None, len=63), ValueError, "has 63 bytes at"),
    "a negative size": (dict(shape=(-8,)), ValueError, "negative dimensions are not allowed"),
    "a size beyond memory": (dict(ndim=2, shape=(FAR, 4), strides=(8, 8)), ValueError, "array is too big"),
    "fewer bytes than elements": (dict(len=56), ValueError, "has 56 bytes at .* make 64"),
    "a negative length": (dict(len=-64), ValueError, "has -64 bytes at"),
    "no memory": (dict(buf=None), ValueError, "has 64 bytes at"),
    "strides beyond memory": (dict(strides=(FAR,)), ValueError, "strides is incompatible with shape"),
    "strides below address 0": (dict(strides=(-FAR // 8,)), ValueError, "strides is incompatible with shape"),
}


@pytest.mark.parametrize("wrong", BUFFERS)
def test_buffers_that_are_refused(told_to, wrong):
    fields, error, words = BUFFERS[wrong]
    exporter = told_to(**fields)
    with pytest.raises(error, match=words):
        np.asarray(exporter)


def test_views_cast_to_anything():
    view = memoryview(bytearray(range(64)))
    for format in "bBhHiIlLqQfd?":
        cast = view.cast(format)
        assert numpy.array_equal(numpy.asarray(np.asarray(cast)), numpy.asarray(cast), equal_nan=True)
    assert np.asarray(view.cast("B", shape=[2] * 6)).shape == (2,) * 6
    assert np.asarray(view[::-3]).tolist() == list(view[::-3])
    assert np.asarray(view[5:5]).shape == (0,)
    with pytest.raises(TypeError, match="no dtype"):
        np.asarray(view.cast("c"))
    view.release()
    with pytest.raises(ValueError, match="released memoryview"):
        np.asarray(view)


def test_memory_that_lies_askew():
    askew = numpy.frombuffer(bytearray(8 * 1000 + 1), dtype="u1")[1:].view("f8")
    askew[:] = numpy.arange(1000.0)
    ours = np.asarray(askew)
    assert ours.flags.aligned is False
    assert (ours + ours).tolist() == (askew + askew).tolist() and ours.sum() == askew.sum()
    assert np.sort(ours[::-1]).tolist() == askew.tolist() and (ours @ ours) == askew @ askew
    assert np.allclose(numpy.asarray(np.fft.fft(ours)), numpy.fft.fft(askew))
    ours[::2] = 5
    assert askew[::2].tolist() == [5] * 500
