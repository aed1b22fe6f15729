"""Imports of a VMExecutor's functions that wait until something uses them (vmhost/bytecode/postponing.py writes them).

The code of such a module may not be in this VM yet: then the host is asked to add it to the image.
"""

import sys
from _frozen_importlib import _init_module_attrs, _ModuleLockManager
from _thread import allocate_lock, get_ident

import _vmhost

from vmhost.guest.boot import Importer

_ModuleType = type(sys)
_lock = allocate_lock()  # of the dicts below; held for no import
_waiting = {}  # top-level module -> [(dotted name, where it is imported)]
_filling = {}  # module whose code runs -> the thread that runs it
_turn = vars(object)["__class__"].__set__


class _Module(_ModuleType):
    """A module that is filled when one of its attributes is first used, and an ordinary one from then on."""

    def __getattribute__(self, name):
        if name == "__class__":
            return _ModuleType
        _fill(self)
        return _ModuleType.__getattribute__(self, name)

    def __setattr__(self, name, value):
        _fill(self)
        _ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name):
        _fill(self)
        _ModuleType.__delattr__(self, name)

    def __repr__(self):
        _fill(self)
        return _ModuleType.__repr__(self)


def module(name, where):
    """The top-level module of the dotted `name`, which `where` imports."""
    top = name.partition(".")[0]
    with _lock:
        found = sys.modules.get(top)
        if found is None:
            found = sys.modules[top] = _Module(top)
            _waiting[top] = []
        if type(found) is _Module and top in _waiting:
            _waiting[top].append((name, where))
            return found
    _import(name, where)
    return found


def names(namespace, module, bound, where):
    """Makes a module, of which these are the globals, import names from another one when they are asked for."""
    later = namespace.get("__getattr__")
    later = getattr(later, "later", None)
    if later is None:
        later = {}

        def __getattr__(name):
            if name not in later:
                raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
            home, name_there, place = later[name]
            _import(home, place)
            try:
                value = getattr(sys.modules[home], name_there)
            except AttributeError:
                _import(f"{home}.{name_there}", place)
                value = sys.modules[f"{home}.{name_there}"]
            return namespace.setdefault(name, value)

        __getattr__.later = later
        namespace["__getattr__"] = __getattr__
    later.update((name, (module, name_there, where)) for name, name_there in bound.items())


def _fill(lazy):
    contents = object.__getattribute__(lazy, "__dict__")
    top = contents["__name__"]
    if type(lazy) is not _Module or _filling.get(top) == get_ident():
        return
    with _ModuleLockManager(top):  # as any import of it: it notices deadlocks
        if type(lazy) is not _Module:
            return
        with _lock:
            waiting = _waiting.pop(top)
        _filling[top] = get_ident()
        try:
            _ask(top, waiting[0][1])
            spec = Importer.find_spec(top)
            _init_module_attrs(spec, lazy)
            spec._initializing = True
            try:
                Importer.exec_module(lazy)
            finally:
                spec._initializing = False
            _turn(lazy, _ModuleType)
        except BaseException:
            contents.clear()
            contents["__name__"] = top
            with _lock:
                _waiting[top] = waiting
            raise
        finally:
            del _filling[top]
    for name, where in waiting:
        if name != top:
            _import(name, where)


def _import(name, where):
    _ask(name, where)
    __import__(name)


def _ask(name, where):
    """Has the host add the module to this VM's image where it is not there. ImportError with the reason."""
    if _vmhost.find(name) is not None:
        return
    _, reason = _vmhost.host_call("later", name)
    if reason is not None:
        raise ImportError(f"{where}: {reason}", name=name)
