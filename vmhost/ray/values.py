"""Values on their way between the program and a node, as bytes.

What a value may be is decided by the codec, as for a VM in the program's own process: pickle carries the builtin
classes, and of other values their parts (kind, detail, payload). Only the program unpacks these; a node passes them on
as `Parts`. Reading bytes calls nothing but the functions named here.
"""

import io
import pickle

from vmhost.guest import kinds
from vmhost.packed import Packed

_HERE = __name__


class Parts:
    """A value of a class that a node does not know, as its codec packed it. It may be a key, and in a set."""

    def __init__(self, kind, detail, payload):
        self.packed = kind, detail, payload


class PassingCodec:
    """The codec of a node: passes values on, whatever their class is."""

    conversions = plain = {}

    def pack(self, value):
        return value.packed if type(value) is Parts else kinds.pack(value)

    def unpack(self, kind, detail, payload, in_key, _entry=None):
        return Parts(kind, detail, payload)


def parts(kind, detail, payload):
    raise pickle.UnpicklingError("Unpickler.find_class replaces this")


def array(format, shape, content):
    """The memoryview of an array."""
    flat = memoryview(content)
    if 0 in shape:  # memoryview has no such shapes
        return flat.cast(format)
    return flat if format == "B" and len(shape) == 1 else flat.cast(format, shape)


def packed(data):
    return Packed(data)


class _Pickler(pickle.Pickler):
    def __init__(self, file, pack):
        super().__init__(file, protocol=5)
        self._pack = pack

    def reducer_override(self, value):
        if type(value) is complex:
            return NotImplemented
        if type(value) is Packed:
            return packed, (bytes(value.data),)
        if value is parts or value is array or value is packed or value is complex:
            return NotImplemented
        made = self._pack(value)
        if made is not None:
            return parts, made[:3]  # what may follow describes the layout of the value's own class
        with memoryview(value) as view:  # TypeError for all that cannot cross
            return array, (view.format, view.shape, view.tobytes())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, unpack):
        super().__init__(file)
        self._unpack = unpack

    def find_class(self, module, name):
        if module == _HERE and name == "parts":
            return self._made
        if (module, name) in _FOUND:
            return _FOUND[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is no value")

    def _made(self, kind, detail, payload):
        return self._unpack(kind, detail, payload, False)


_FOUND = {(_HERE, "array"): array, (_HERE, "packed"): packed, ("builtins", "complex"): complex}


def to_bytes(value, pack):
    """The value as bytes. `pack`: a codec's. TypeError, ValueError, RecursionError for one that cannot cross."""
    file = io.BytesIO()
    try:
        _Pickler(file, pack).dump(value)
    except pickle.PicklingError as error:
        raise TypeError(str(error)) from error
    return file.getvalue()


def from_bytes(data, unpack):
    """The value in bytes from `to_bytes`. `unpack`: a codec's. ValueError if it is invalid."""
    try:
        return _Unpickler(io.BytesIO(data), unpack).load()
    except (pickle.UnpicklingError, TypeError) as error:
        raise ValueError(str(error)) from error
