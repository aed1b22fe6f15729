"""libvme_cuda.so: finding and opening it, and the GPUs that it sees."""

import ctypes
import importlib.util
import os
import re
import threading
from pathlib import Path
from typing import NamedTuple

HEADER = Path(__file__).resolve().parent.parent / "include" / "vme_cuda.h"
LIBRARY = Path(__file__).resolve().parent.parent / "libvme_cuda.so"
PATH = "VMHOST_CUDA_LIBRARY"  # the environment variable with the path of the library
ABI = 1
_CUBLAS = "libcublasLt.so.13"
_lock = threading.Lock()
_opened = None
_gpus = {}


class DeviceError(RuntimeError):
    """The requested GPU cannot be used; the text says why and what to do."""


class Facts(NamedTuple):
    """About a GPU: its name, bytes of its memory and of its free memory, bytes used by this process's networks and
    tables and their limit (0: none), its multiprocessors and compute capability."""

    name: str
    memory_bytes: int
    free_bytes: int
    used_bytes: int
    limit_bytes: int
    multiprocessors: int
    capability: tuple


def declarations():
    """The declarations in vme_cuda.h, for cffi."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    constants = dict(re.findall(r"^#define (VME_CUDA_[A-Z]+) +([0-9]+)\s*$", text, flags=re.MULTILINE))
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for name, value in constants.items():
        text = text.replace(f"[{name}]", f"[{value}]")
    return text.replace("VME_CUDA_API ", "")


class _Library(NamedTuple):
    ffi: object
    lib: object


def library():
    """(ffi, lib), opened once. DeviceError: it is not built, or cannot be opened."""
    global _opened
    with _lock:
        if _opened is None:
            _opened = _open(Path(os.environ.get(PATH) or LIBRARY))
        return _opened


def _open(path):
    if not path.is_file():
        raise DeviceError(
            f"device='cuda': there is no {path.name} at {path.parent}: build it with `make cuda` (it needs nvcc, which"
            f" the CUDA toolkit or the packages nvidia-cuda-nvcc and nvidia-cublas have), or set {PATH} to where it"
            " lies; device='cpu' needs nothing"
        )
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(declarations())
    _find_cublas()
    try:
        lib = ffi.dlopen(str(path))
        abi = lib.vme_cuda_abi()
    except (OSError, AttributeError) as error:
        raise DeviceError(f"device='cuda': {path} does not open: {error}; build it again with `make cuda`") from error
    if abi != ABI:
        raise DeviceError(f"device='cuda': {path} is of another version ({abi}, not {ABI}): build it with `make cuda`")
    return _Library(ffi, lib)


def _find_cublas():
    """cuBLAS from the package nvidia-cublas, if the loader finds no other."""
    try:
        ctypes.CDLL(_CUBLAS)
        return
    except OSError:
        found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found is not None else ():
        for path in sorted(Path(folder).glob(f"cu13/lib/{_CUBLAS}")):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            return


def check(status):
    """Raises the exception for a status other than OK."""
    opened = library()
    if status == opened.lib.VME_CUDA_OK:
        return
    text = opened.ffi.string(opened.lib.vme_cuda_message()).decode(errors="replace")
    if status == opened.lib.VME_CUDA_NO_MEMORY:
        raise MemoryError(text)
    if status == opened.lib.VME_CUDA_BAD_VALUE:
        raise ValueError(text)
    raise DeviceError(
        f"device='cuda': {text}; device='cpu' needs no GPU"
        if status == opened.lib.VME_CUDA_NO_DEVICE
        else f"device='cuda': {text}"
    )


class Gpu:
    """A GPU of this machine; returned by `gpu()`. Networks and tables on it hold its memory until they are no longer
    used."""

    def __init__(self, number, memory):
        self.number = number
        self._ffi, self._lib = library()
        out = self._ffi.new("vme_cuda_device **")
        check(self._lib.vme_cuda_device_new(number, memory, out))
        self.handle = self._ffi.gc(out[0], self._lib.vme_cuda_device_unref)
        self._shared, self._sharing = None, threading.Lock()

    def facts(self):
        raw = self._ffi.new("vme_cuda_device_facts *")
        check(self._lib.vme_cuda_device_facts_of(self.handle, raw))
        return Facts(
            self._ffi.string(raw.name).decode(),
            raw.memory_bytes,
            raw.free_bytes,
            raw.used_bytes,
            raw.limit_bytes,
            raw.multiprocessors,
            (raw.major, raw.minor),
        )

    def stream(self, shared=False):
        """A stream; `shared`: one stream for all callers that ask for a shared one."""
        if shared:
            with self._sharing:
                if self._shared is None:
                    self._shared = self._new_stream()
                return self._shared
        return self._new_stream()

    def _new_stream(self):
        out = self._ffi.new("vme_cuda_stream **")
        check(self._lib.vme_cuda_stream_new(self.handle, out))
        return self._ffi.gc(out[0], self._lib.vme_cuda_stream_unref)


def gpu(device="cuda", *, memory=0):
    """The Gpu named by `device`: "cuda", the first one, or "cuda:1". `memory`: maximum bytes of its memory for
    everything opened on it, 0: no limit; each limit makes a Gpu object of its own. DeviceError: no GPU, or no library;
    ValueError: no such device."""
    found = re.fullmatch(r"cuda(?::([0-9]{1,3}))?", device) if isinstance(device, str) else None
    if found is None:
        raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:NUMBER', got {device!r}")
    number = int(found[1] or 0)
    library()
    with _lock:
        known = _gpus.get((number, memory))
    if known is None:
        created = Gpu(number, memory)
        with _lock:
            known = _gpus.setdefault((number, memory), created)
    return known
