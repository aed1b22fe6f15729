"""Modules that a VM lacks, for packages that import and seldom use them: plain Python with the names they have.

Constants, exceptions and classes can be named, compared, subclassed and caught; who calls something gets
PermissionDenied with the reason. The bundle holds the names (bytecode/inert.py), `get` makes the modules. They are not
in `sys.modules`: an import that a program expects to fail fails still.
"""

import builtins
from types import ModuleType

from _vmhost import PermissionDenied, text

from vmhost.guest.texts import digest

_MAKE_CLASSES = {"CFUNCTYPE", "POINTER", "PYFUNCTYPE", "WINFUNCTYPE"}  # functions of ctypes that give classes
_made = {}


class InertModule(ModuleType):
    """`__inert__`: why it refuses."""

    def __repr__(self):
        return f"<inert module {self.__name__!r}: {self.__inert__}>"


def get(name, part=None):
    """The inert module `name`, or what it calls `part`; ImportError if it has no such name."""
    module = _made.get(name) or _make(name)
    if part is None:
        return module
    try:
        return getattr(module, part)
    except AttributeError:
        if text(digest("inert", f"{name}.{part}")) is not None:
            return get(f"{name}.{part}")
        raise ImportError(f"cannot import name {part!r} from {name!r}", name=name) from None


def _make(name):
    reason, names = eval(text(digest("inert", name)))
    module = _made[name] = InertModule(name)
    module.__inert__ = reason
    for each, (kind, *detail) in names.items():
        setattr(module, each, _stand_in(name, each, reason, kind, detail))
    if name == "ctypes":
        module.sizeof = _size_of
    parent, _, last = name.rpartition(".")
    if parent and text(digest("inert", parent)) is not None:
        setattr(get(parent), last, module)
    return module


def _stand_in(module, name, reason, kind, detail):
    told = f"{module}.{name}: a VM does not have it: {reason}"
    if kind == "value":
        return detail[0]
    if kind == "error":
        return type(name, (getattr(builtins, detail[0]),), {"__module__": module})
    if kind == "class" and module.partition(".")[0] != "ctypes":
        return _refusing_class(module, name, told)
    if kind in ("class", "size"):
        return _Kind(name, (), {"__module__": module, "__inert__": told, "__size__": detail[0] if detail else None})
    if name in _MAKE_CLASSES:
        return _giving_classes(module, name, told)
    return _Refusing(told) if kind == "object" else _refusing(module, name, told)


class _Kind(type):
    """A class of ctypes: it can be named, multiplied and subclassed, and has no instances."""

    def __call__(cls, *_, **__):
        raise PermissionDenied(13, cls.__inert__)

    def __mul__(cls, count):
        return _Kind(f"{cls.__name__}_Array_{count}", (cls,), {"__size__": cls.__size__ and cls.__size__ * count})

    __rmul__ = __mul__

    def __getitem__(cls, _):
        return cls

    def __getattr__(cls, name):
        raise AttributeError(name if name == "__inert__" else f"{name}: {cls.__inert__}")


def _refusing_class(module, name, told):
    """A class without instances. Its metaclass is type, as programs derive classes from it and from abstract ones."""

    def refuses(cls, *_, **__):
        raise PermissionDenied(13, told)

    own = {"__module__": module, "__inert__": told, "__new__": refuses}
    return type(name, (), own | {"__class_getitem__": classmethod(lambda cls, _: cls)})


class _Refusing:
    def __init__(self, told):
        self.__inert__ = told

    def __call__(self, *_, **__):
        raise PermissionDenied(13, self.__inert__)

    def __getattr__(self, name):
        raise AttributeError(f"{name}: {vars(self).get('__inert__', 'it is being copied')}")


def _refusing(module, name, told):
    def refuses(*_, **__):
        raise PermissionDenied(13, told)

    refuses.__name__ = refuses.__qualname__ = name
    refuses.__module__ = module
    return refuses


def _giving_classes(module, name, told):
    def gives(*_, **__):
        return _Kind(name, (), {"__module__": module, "__inert__": told, "__size__": None})

    return gives


def _size_of(kind, /):
    """The bytes of one of C's types, which packages ask for to know their machine."""
    size = getattr(kind, "__size__", None) if isinstance(kind, _Kind) else None
    if size is None:
        raise PermissionDenied(13, f"ctypes.sizeof: {getattr(kind, '__inert__', 'a VM does not have ctypes')}")
    return size
