"""A VM's codec for values of classes that the native wire does not know; called through `vmhost.guest.boot`.

A task's own dataclasses, namedtuples, enums and exceptions are sent under their class's name; the host decides whether
it accepts them. Incoming values become instances of the task's own class of that name.
"""

import sys

from vmhost.guest import kinds
from vmhost.guest.classes import (
    CONVERTED,
    ERROR,
    ERROR_CLASS,
    FIELDS,
    find,
    has_shape,
    is_class_kind,
    name_of,
    shape_of,
    shape_of_state,
    split,
    unknown,
)
from vmhost.guest.kinds import Malformed

_converted = {}  # class -> (its name on the wire, to_plain)
_conversions = {}  # name -> (class, from_plain)
_plain = {}  # class of a VMExecutor's types that is no dataclass, namedtuple, enum or exception -> (name, its Shape)
_plain_names = {}  # its name -> its Shape
_executors_known = False
main = None  # the name of the module that is the host program's own, while no call says so


def register(cls, to_plain, from_plain, *, name=None):
    """Let values of `cls` cross: sent as `to_plain(value)`, created by `from_plain(plain)`. The host registers a class
    under the same name, by default "module:Class"."""
    if not isinstance(cls, type) or not callable(to_plain) or not callable(from_plain):
        raise TypeError("register: expected a class and two functions")
    name = name_of(cls) if name is None else name
    _converted[cls] = name, to_plain
    _conversions[name] = cls, from_plain


def pack(value):
    packed = kinds.pack(value)
    if packed is not None:
        return packed
    cls = type(value)
    if not _executors_known:
        _learn_executors()
    if cls in _converted:
        name, to_plain = _converted[cls]
        return CONVERTED, name, to_plain(value)
    if cls in _plain:
        name, shape = _plain[cls]
        return shape.kind, name, shape.read(value)
    if cls is type and issubclass(value, Exception):  # such as those in the arguments of decimal's exceptions
        return ERROR_CLASS, name_of(value), None
    if not has_shape(cls):
        return None
    shape = shape_of(cls)
    return shape.packed(name_of(cls), value)


def unpack(kind, detail, payload, in_key, entry):
    if not is_class_kind(kind):
        return kinds.unpack(kind, detail, payload)
    module, path = split(detail)
    if not _executors_known:
        _learn_executors()
    if kind == CONVERTED:
        if detail not in _conversions:
            raise unknown(kind, detail)
        return _conversions[detail][1](payload)
    if detail in _plain_names and kind == FIELDS:
        return _plain_names[detail].make(payload, in_key)
    cls = _class_at(module, path, entry)
    if cls is None or not has_shape(cls):
        raise unknown(kind, detail)
    shape = shape_of(cls)
    if kind == ERROR_CLASS and shape.kind == ERROR:
        return cls
    if shape.kind != kind:
        raise Malformed(f"`{detail}` is another kind of class here")
    return shape.make(payload, in_key)


def _class_at(module, path, entry):
    """The task's class. The host program's own module corresponds to the entry point's module here."""
    if module == "__main__" and entry is not None and " " in entry:
        module = entry.partition(" ")[2].partition(":")[0].replace("/", ".")
    elif module == "__main__" and main is not None:
        module = main
    if module not in sys.modules:
        try:
            __import__(module)
        except ImportError:
            return None
    return find(sys.modules[module], path)


def _learn_executors():
    """Registers the conversions of a VMExecutor, from a module that it adds to its image."""
    global _executors_known
    _executors_known = True
    try:
        from __vmhost_conversions__ import CONVERSIONS, PLAIN
    except ImportError:
        return
    from vmhost.guest.executor import find as place

    for name, *places in CONVERSIONS:
        register(*map(place, places), name=name)
    for name, where in PLAIN:
        cls = place(where)
        shape = _plain_names[name] = shape_of_state(cls)
        _plain[cls] = name, shape
