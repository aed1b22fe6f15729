"""NumPy as its own tests see it: the names of `vmhost.engine.numpy` under NumPy's modules.

`Exchange.numpy` is what `import numpy` gives while a test module is imported. A public name is the engine's or absent.
A private one (`numpy._core._multiarray_umath`, `numpy._NoValue`) is NumPy's, for tests that reach into it. The judges
of `numpy.testing` are NumPy's: they are given NumPy's arrays of what the engine computed."""

import functools
import importlib
import pkgutil
import sys
import types

import numpy
import numpy.testing

import vmhost.engine.numpy

_ENGINE = vmhost.engine.numpy
_OURS = {  # NumPy's public modules, and the engine's
    "numpy": _ENGINE,
    "numpy.exceptions": _ENGINE.exceptions,
    "numpy.fft": _ENGINE.fft,
    "numpy.lib": _ENGINE.lib,
    "numpy.lib.scimath": _ENGINE.emath,
    "numpy.lib.stride_tricks": _ENGINE.lib.stride_tricks,
    "numpy.linalg": _ENGINE.linalg,
    "numpy.random": _ENGINE.random,
}
_CLOSED = "numpy._core._multiarray_tests"  # C functions for NumPy's arrays, which fault with others
_LEFT = ("numpy.conftest", "numpy.testing", "numpy.f2py", "numpy.distutils", "numpy._pyinstaller")


class Refused:
    """In place of what a statement of a test module could not make: each use raises the statement's error."""

    def __init__(self, error):
        self._error = error

    def __repr__(self):
        return f"Refused({type(self._error).__name__}: {self._error})"

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__call__", "__getitem__", "__iter__"):
            raise AttributeError(name)
        raise AttributeError(f"{type(self._error).__name__}: {self._error}") from self._error

    def as_test(self, name):
        def test(*arguments):
            raise self._error.with_traceback(None)

        test.__name__ = name
        return test

    def __call__(self, *arguments, **keywords):
        raise self._error.with_traceback(None)

    def __getitem__(self, key):
        raise self._error.with_traceback(None)

    def __iter__(self):
        raise self._error.with_traceback(None)


def refused(name, error):
    """What stands for `name` in a test module after `error`: for a test, a test that raises it."""
    found = Refused(error)
    return found.as_test(name) if name.startswith("test") else found


def attempt(make):
    """The item of a list, or what raises its error."""
    try:
        return make()
    except Exception as error:
        return Refused(error)


class _Module(types.ModuleType):
    """One of NumPy's modules, with the engine's names."""

    def __init__(self, real, exchange):
        super().__init__(real.__name__)
        self.__dict__.update(
            _real=real, _exchange=exchange, __file__=real.__file__, __path__=getattr(real, "__path__", [])
        )

    def __getattr__(self, name):
        value = self._exchange.attribute(self._real, name)
        if not self._exchange.importing:
            self.__dict__[name] = value  # found at once the next time
        return value

    def __dir__(self):
        return dir(self._real)


class Exchange:
    """NumPy's modules, exchanged. `importing`: absent names give a Refused instead of an AttributeError."""

    def __init__(self):
        for found in pkgutil.walk_packages(numpy.__path__, "numpy.", onerror=lambda name: None):
            if ".tests" not in found.name and not found.name.startswith(_LEFT):
                try:
                    importlib.import_module(found.name)
                except Exception:  # modules for other machines, and those that need a compiler
                    continue
        self.importing = False
        self._real = {
            name: module
            for name, module in sys.modules.items()
            if (name == "numpy" or name.startswith("numpy.")) and isinstance(module, types.ModuleType)
        }
        self._modules = {
            name: _Module(module, self)
            for name, module in self._real.items()
            if ".tests" not in name and not name.startswith("numpy.testing") and hasattr(module, "__file__")
        }
        for name in ("numpy.testing", "numpy.ma.testutils"):
            self._modules[name] = _judges(self._real[name])
        self._real[_CLOSED] = self._modules[_CLOSED] = sys.modules[_CLOSED] = types.ModuleType(_CLOSED)
        self._public = {}  # id of one of NumPy's public objects: (module of the engine's, name)
        for module, ours in reversed(_OURS.items()):
            for name in dir(self._real[module]):
                value = getattr(self._real[module], name)
                if not name.startswith("_") and callable(value):
                    self._public[id(value)] = ours, name
        self.numpy = self._modules["numpy"]

    def __enter__(self):
        """`import numpy` gives the exchanged modules until the exit."""
        self.importing = True
        sys.modules.update(self._modules)

    def __exit__(self, *error):
        self.importing = False
        sys.modules.update(self._real)

    def attribute(self, real, name):
        ours = _OURS.get(real.__name__)
        child = self._modules.get(f"{real.__name__}.{name}")
        if child is not None:
            return child
        if name.startswith("__"):
            return getattr(real, name)
        if ours is not None:
            try:
                return getattr(ours, name)
            except AttributeError as error:
                if not name.startswith("_") and hasattr(real, name):
                    return self._absent(name, error)
        value = getattr(real, name)
        if isinstance(value, types.ModuleType):
            return self._modules.get(value.__name__, value)
        known = self._public.get(id(value))
        if known is None:
            return value
        try:
            return getattr(*known)
        except AttributeError as error:
            return self._absent(name, error)

    def _absent(self, name, error):
        if self.importing:
            return refused(name, error)
        raise error.with_traceback(None)


def to_numpy(value):
    """The value with NumPy's arrays, scalars and dtypes for the engine's."""
    if isinstance(value, _ENGINE.ndarray):
        array = numpy.asarray(value)
        return array[()] if _ENGINE.isscalar(value) else array
    if isinstance(value, _ENGINE.flatiter):
        return numpy.asarray(_ENGINE.asarray(value))
    if type(value) in (list, tuple):
        return type(value)(map(to_numpy, value))
    if type(value) is dict:
        return {key: to_numpy(item) for key, item in value.items()}
    if type(value) is _ENGINE.dtype:
        return numpy.dtype(value.name)
    return value


def _judges(real):
    """A module of assertions, which see NumPy's arrays."""
    module = types.ModuleType(real.__name__)
    module.__dict__.update(real.__dict__)
    for name in dir(real):
        if name.startswith("assert") and "raises" not in name and "warn" not in name and "gc" not in name:
            setattr(module, name, _judge(getattr(real, name)))
    return module


def _judge(function):
    @functools.wraps(function)
    def judge(*arguments, **keywords):
        __tracebackhide__ = True
        return function(*map(to_numpy, arguments), **{name: to_numpy(value) for name, value in keywords.items()})

    return judge
