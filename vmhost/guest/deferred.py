"""Modules that are imported at first use: for what the standard library imports always but seldom needs."""

import sys


class Module:
    """Replaces a module in another module's globals."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, attribute):
        __import__(self.__name__)
        value = getattr(sys.modules[self.__name__], attribute)
        setattr(self, attribute, value)
        return value


class Result:
    """Replaces the result of a module's function, which is called when the result is first used."""

    def __init__(self, module, function, *arguments):
        self._made_by = module, function, arguments

    def __getattr__(self, attribute):
        module, function, arguments = self._made_by
        __import__(module)
        return getattr(getattr(sys.modules[module], function)(*arguments), attribute)


class _Traceback:
    """Replaces traceback in `sys.modules` while `_asyncio` gets `extract_stack`, which it calls only to debug."""

    def extract_stack(self, f=None, limit=None):
        return self.__getattr__("extract_stack")(sys._getframe(1) if f is None else f, limit)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get("traceback") is self:
            del sys.modules["traceback"]
        __import__("traceback")
        return getattr(sys.modules["traceback"], name)


traceback = _Traceback()


def definitions(namespace, prefix, names, heads):
    """`__getattr__` and `__dir__` of a module whose source was cut (`splitting.py`, for the build).

    `names`: the deferred ones, each between spaces. A part is named `prefix` plus the name that it defines, or plus the
    name that `heads` has for it. The module's own `__getattr__` was renamed to `_own_getattr`. Two threads that ask at
    the same time run a part twice and get the same objects: the second result is dropped. A lock instead could deadlock
    with an import that waits for it.
    """
    defined = {}  # part -> the names it has defined

    def __getattr__(name):
        if name in namespace:
            return namespace[name]
        if f" {name} " not in names:
            otherwise = namespace.get("_own_getattr")
            if otherwise is not None:
                return otherwise(name)
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        part = heads.get(name, name)
        found = defined.get(part)
        if found is None:
            found = {}
            exec(sys.modules["_vmhost"].code(prefix + part), namespace, found)
            found = defined.setdefault(part, found)
        for key, value in found.items():
            if f" {key} " in names:
                namespace.setdefault(key, value)
        return found[name]

    def __dir__():
        return sorted({*namespace, *names.split()})

    return __getattr__, __dir__


def facade(namespace, homes, modules, otherwise):
    """`__getattr__` and `__dir__` of a package that gathers the names of its modules.

    `homes` maps each name to its module; the modules themselves (`modules`) are attributes too.
    """
    package = namespace["__name__"]

    def __getattr__(name):
        home = homes.get(name)
        if home is None and name not in modules:
            return otherwise(name)
        full_name = f"{package}.{home or name}"
        __import__(full_name)
        module = sys.modules[full_name]
        return namespace.setdefault(name, module if home is None else getattr(module, name))

    def __dir__():
        return sorted({*namespace, *homes, *modules})

    return __getattr__, __dir__
