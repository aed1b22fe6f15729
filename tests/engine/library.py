"""A small ctypes view of engine/include/vme.h for tests: operators called on NumPy arrays, on any backend, with a
context whose account can refuse the n-th request.

`Context()` counts what is charged; `check` turns a status into `EngineError`; `Tensor(array)` lends a NumPy array to
the library for as long as the Tensor lives."""

import contextlib
import ctypes
import enum
from pathlib import Path

import numpy as np

from vmhost.engine._vme import lib

library = ctypes.CDLL(str(Path(__file__).resolve().parents[2] / "engine" / "libvme.so"))

DTYPES = [
    np.dtype(name)
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
]
NUMBER = {dtype: number for number, dtype in enumerate(DTYPES)}

Status = enum.IntEnum(
    "Status", "OK NO_MEMORY BAD_SHAPE BAD_DTYPE BAD_INDEX BAD_AXIS BAD_VALUE READ_ONLY STOPPED UNSUPPORTED", start=0
)


def names(kind):
    """{NumPy's name: number} of the operators of one kind: "unary", "binary", "reduce", "scan"."""
    count = getattr(lib, f"VME_{kind.upper()}_COUNT")
    name = getattr(library, f"vme_{kind}_name")
    name.restype = ctypes.c_char_p
    return {name(number).decode(): number for number in range(count)}


class EngineError(Exception):
    """A status that is not OK: `status` and, as text, the library's message."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = Status(status)


library.vme_message.restype = ctypes.c_char_p


def check(status):
    if status != Status.OK:
        raise EngineError(status, library.vme_message().decode())


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("buffer", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class Tensor(_Tensor):
    """`array` as a tensor of the library: same memory, no copy."""

    def __init__(self, array):
        self.array = array
        rank = array.ndim
        self.shape_array = (ctypes.c_int64 * max(rank, 1))(*array.shape)
        self.strides_array = (ctypes.c_int64 * max(rank, 1))(*array.strides)
        super().__init__(None, array.ctypes.data, self.shape_array, self.strides_array, rank, NUMBER[array.dtype])


def tensor(array):
    return ctypes.byref(Tensor(array))


def tensors(arrays):
    """`const vme_tensor *const *`; keeps its tensors alive."""
    built = [Tensor(array) for array in arrays]
    pointers = (ctypes.c_void_p * max(len(built), 1))(*(ctypes.addressof(one) for one in built))
    pointers.kept_alive = built
    return pointers


_CHARGE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_size_t)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


class Account(ctypes.Structure):
    _fields_ = [
        ("owner", ctypes.c_void_p),
        ("charge", _CHARGE),
        ("release", _RELEASE),
        ("inherit", ctypes.c_void_p),
        ("worked", ctypes.c_void_p),
        ("retain", ctypes.c_void_p),
        ("forget", ctypes.c_void_p),
        ("made", ctypes.c_void_p),
        ("gone", ctypes.c_void_p),
    ]


class Context:
    """An engine context. `charged` is the memory in use, in bytes; `requests` counts allocations; the one numbered
    `refuse` (from 0) and those after it are refused."""

    def __init__(self, refuse=None):
        self.charged = self.requests = 0
        self.refuse = refuse
        self._account = Account(charge=_CHARGE(self._charge), release=_RELEASE(self._release))
        handle = ctypes.c_void_p()
        check(library.vme_context_new(ctypes.byref(self._account), 0, ctypes.byref(handle)))
        self.handle = handle

    def _charge(self, owner, size):
        number = self.requests
        self.requests += 1
        if self.refuse is not None and number >= self.refuse:
            return False
        self.charged += size
        return True

    def _release(self, owner, size):
        self.charged -= size

    def stop(self, stop=True):
        library.vme_context_stop(self.handle, ctypes.c_bool(stop))

    def close(self):
        library.vme_context_unref(self.handle)


def backends():
    """Numbers of the backends that this CPU can run."""
    return [number for number in range(library.vme_backend_count()) if library.vme_backend_available(number)]


def backend_name(number):
    library.vme_backend_name.restype = ctypes.c_char_p
    return library.vme_backend_name(number).decode()


@contextlib.contextmanager
def on_backend(number):
    """Uses that backend inside the block; failures name it."""
    check(library.vme_backend_force(number))
    try:
        yield
    except Exception as error:
        error.add_note(f"on the backend {backend_name(number)}")
        raise
    finally:
        check(library.vme_backend_force(-1))
