"""Administration of the engine, for the host: backends, threads, what it is made of. Arrays are in
`vmhost.engine.numpy`.

Needs cffi, so it works in the main interpreter only; nothing inside a VM imports it.
"""

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from vmhost.engine._vme import ffi, lib

RATES = ("products", "points_2", "points_4", "weight_bytes", "bytes")  # in the order of vme_search.h


class EngineError(Exception):
    """What the engine refused; the text is its own sentence."""


class Backend(NamedTuple):
    """A set of kernels: its name, whether this CPU can run it, whether it is in use."""

    name: str
    available: bool
    current: bool


def backends():
    """All backends, from the portable one to the fastest."""
    current = lib.vme_backend_current()
    return [
        Backend(_text(lib.vme_backend_name(i)), lib.vme_backend_available(i), i == current)
        for i in range(lib.vme_backend_count())
    ]


def force_backend(name):
    """Makes every operator of the process use the backend `name`; None: the best that this CPU can run."""
    names = [backend.name for backend in backends()]
    if name is not None and name not in names:
        raise EngineError(f"there is no backend {name!r}; there are {', '.join(names)}")
    _check(lib.vme_backend_force(-1 if name is None else names.index(name)))


def operator_names(family):
    """The names of the operators of a family ("unary", "binary", "reduce" or "scan"), in the order of their numbers."""
    count, name = getattr(lib, f"VME_{family.upper()}_COUNT"), getattr(lib, f"vme_{family}_name")
    return tuple(_text(name(number)) for number in range(count))


def algorithms():
    """The names of the ways in which a model's convolutions, products with constant weights and attention can be
    computed."""
    return [_text(lib.vme_algorithm_name(i)) for i in range(lib.vme_algorithm_count())]


def force_algorithm(name):
    """Makes models that are opened from now on compute each step by the algorithm `name` where that can, else by
    "direct", attention by "fused"; None: they choose."""
    names = algorithms()
    if name is not None and name not in names:
        raise EngineError(f"there is no algorithm {name!r}; there are {', '.join(names)}")
    _check(lib.vme_algorithm_force(-1 if name is None else names.index(name)))


def threads():
    """How many threads one operator may use, its caller among them."""
    return lib.vme_threads()


def set_threads(count):
    """Lets one operator use `count` threads (1 .. cores), for the whole process."""
    _check(lib.vme_threads_set(count))


class Statistics(NamedTuple):
    """What the arrays of one owner took: bytes and buffers that live, the most bytes so far, operators begun, ended by
    a stop, allocations refused, nanoseconds of CPU of helper threads."""

    live_bytes: int
    peak_bytes: int
    buffers: int
    operators: int
    stopped: int
    refused: int
    helper_cpu_ns: int


def statistics():
    """The Statistics of the host's own arrays; what each VM holds and pays for is in `Host.statistics()`."""
    from vmhost.engine import _array

    return Statistics(**_array._statistics())


def find_lapack():
    """Tells the engine where scipy-openblas32 lies, if it is installed; the engine opens it when a function first needs
    it.

    False: it is not installed, and what needs it will say so.
    """
    found = importlib.util.find_spec("scipy_openblas32")  # not imported: that would open the library at once
    if found is None:
        return False
    for path in sorted(Path(found.origin).parent.glob("lib/libscipy_openblas*.so*")):
        _check(lib.vme_lapack_at(str(path).encode()))
        return True
    return False


def fixed_rates():
    """What one core does in a nanosecond by what is built in, for the backend in use: what choices with
    `search="fixed"` go by. See vme_search.h."""
    return _rates(lib.vme_rates_fixed)


def measured_rates():
    """The same by measurement on this machine: done now, in some ten milliseconds, unless it was before."""
    return _rates(lambda rates: _check(lib.vme_rates_measured(rates)))


def set_rates(rates):
    """Takes what an earlier process measured on this machine. EngineError: no core is like that."""
    _check(lib.vme_rates_set(ffi.new("double[]", [float(rates[name]) for name in RATES])))


def _rates(fill):
    rates = ffi.new("double[]", len(RATES))
    fill(rates)
    return dict(zip(RATES, rates))


class Model:
    """A model prepared from the bytes of a model file, for all that will run it; nobody is charged for its weights.

    `search`: "measured" chooses algorithms by what this machine's cores do and tries near ties, "fixed" by built-in
    numbers. `kept`: a path that stands for these bytes and this engine, backend and CPU, in a folder that only this
    user can write: what is prepared is mapped from there, or kept there. `spend`: `data` is writable and nobody reads
    it afterwards, as of vmhost.engine.models.opened. EngineError says what is wrong with the bytes."""

    def __init__(self, data, search="measured", kept=None, spend=False):
        if search not in ("measured", "fixed"):
            raise EngineError(f"search: expected measured or fixed, got {search!r}")
        context, model = ffi.new("vme_context **"), ffi.new("vme_model **")
        path = ffi.NULL if kept is None else ffi.new("char[]", os.fsencode(kept))
        options = ffi.new("vme_model_options *", {"fixed": search == "fixed", "kept": path, "spend": spend})
        _check(lib.vme_context_new(ffi.NULL, 0, context))
        try:
            _check(
                lib.vme_model_prepare(
                    context[0], ffi.from_buffer(data, require_writable=spend), len(data), options, model
                )
            )
        finally:
            lib.vme_context_unref(context[0])
        self._model = ffi.gc(model[0], lib.vme_model_unref)

    @property
    def was_kept(self):
        """Whether it was mapped from its kept file."""
        return bool(lib.vme_model_was_kept(self._model))

    @property
    def address(self):
        """Of the `vme_model`, which lives as long as this object."""
        return int(ffi.cast("uintptr_t", self._model))


def table_address():
    """The address of the engine's `const struct vme_api`, for the isolation core."""
    return int(ffi.cast("uintptr_t", lib.vme_api()))


def array_module_path():
    """The file of the native module `vmhost.engine._array`."""
    return importlib.util.find_spec("vmhost.engine._array").origin


def _check(status):
    if status != lib.VME_OK:
        raise EngineError(_text(lib.vme_message()))


def _text(characters):
    return ffi.string(characters).decode()
