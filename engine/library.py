"""Administration of the engine, for the host: backends, threads, build information. Arrays are in
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
    """The engine refused a request; the text is its message."""


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
    """Makes every operator of the process use the backend `name`; None: the fastest that this CPU can run."""
    names = [backend.name for backend in backends()]
    if name is not None and name not in names:
        raise EngineError(f"there is no backend {name!r}; there are {', '.join(names)}")
    _check(lib.vme_backend_force(-1 if name is None else names.index(name)))


def operator_names(family):
    """The names of the operators of a family ("unary", "binary", "reduce" or "scan"), in order of their numbers."""
    count, name = getattr(lib, f"VME_{family.upper()}_COUNT"), getattr(lib, f"vme_{family}_name")
    return tuple(_text(name(number)) for number in range(count))


def algorithms():
    """The names of the algorithms for a model's convolutions, products with constant weights, and attention."""
    return [_text(lib.vme_algorithm_name(i)) for i in range(lib.vme_algorithm_count())]


def force_algorithm(name):
    """Makes models opened from now on compute each step by the algorithm `name` if it can, otherwise by "direct", or
    "fused" for attention; None: models choose."""
    names = algorithms()
    if name is not None and name not in names:
        raise EngineError(f"there is no algorithm {name!r}; there are {', '.join(names)}")
    _check(lib.vme_algorithm_force(-1 if name is None else names.index(name)))


def threads():
    """The maximum number of threads of one operator, including its caller."""
    return lib.vme_threads()


def set_threads(count):
    """Lets one operator use `count` threads (1 to the number of cores), for the whole process."""
    _check(lib.vme_threads_set(count))


def abandoned_threads():
    """The number of threads that still work in a foreign library (LAPACK) for calls that a stop has ended."""
    return lib.vme_abandoned_threads()


class Statistics(NamedTuple):
    """The resources of one owner's arrays: live bytes and buffers, peak bytes, operators begun, operators ended by a
    stop, allocations refused, nanoseconds of CPU of helper threads."""

    live_bytes: int
    peak_bytes: int
    buffers: int
    operators: int
    stopped: int
    refused: int
    helper_cpu_ns: int


def statistics():
    """The Statistics of the host's own arrays; `Host.statistics()` has those of each VM."""
    from vmhost.engine import _array

    return Statistics(**_array._statistics())


def find_lapack():
    """Tells the engine where scipy-openblas32 is installed; the engine opens it when a function first needs it.

    False: it is not installed, and functions that need it will say so.
    """
    found = importlib.util.find_spec("scipy_openblas32")  # not imported: that would open the library at once
    if found is None:
        return False
    for path in sorted(Path(found.origin).parent.glob("lib/libscipy_openblas*.so*")):
        _check(lib.vme_lapack_at(str(path).encode()))
        return True
    return False


def fixed_rates():
    """The built-in rates of one core per nanosecond, for the backend in use: `search="fixed"` chooses by them. See
    vme_search.h."""
    return _rates(lib.vme_rates_fixed)


def measured_rates():
    """The same rates, measured on this machine: now, in some ten milliseconds, unless they were measured before."""
    return _rates(lambda rates: _check(lib.vme_rates_measured(rates)))


def set_rates(rates):
    """Sets the rates that an earlier process measured on this machine. EngineError: they are implausible."""
    _check(lib.vme_rates_set(ffi.new("double[]", [float(rates[name]) for name in RATES])))


def _rates(fill):
    rates = ffi.new("double[]", len(RATES))
    fill(rates)
    return dict(zip(RATES, rates))


class Model:
    """A model prepared from the bytes of a model file, shared by everyone who runs it; nobody is charged for its
    weights.

    `search`: "measured" chooses algorithms by this machine's measured rates and times near ties, "fixed" by built-in
    rates. `kept`: a path that identifies these bytes and this engine, backend and CPU, in a folder that only this user
    can write: the prepared model is mapped from there, or written there. `spend`: `data` is writable and not read
    afterwards, as in vmhost.engine.models.opened. EngineError says what is wrong with the bytes."""

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
        """The address of the `vme_model`, which lives as long as this object."""
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
