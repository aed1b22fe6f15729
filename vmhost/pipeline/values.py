"""Values that can cross into a VM, as bytes: msgpack, with extensions, so that each comes back with its exact type.

`pack(value)` takes None, bool, int of any size, float, complex, str, bytes, list, tuple, dict, set and arrays; `unpack`
returns them, arrays as NumPy's. The bytes cannot run code. Anything else, subclasses included, raises ValueError.
"""

import struct

import msgpack

TUPLE, SET, COMPLEX, INT, ARRAY = 1, 2, 3, 4, 5
_COMPLEX = struct.Struct("<dd")
# bool, integers, floats and complex numbers: dtypes whose values are plain bytes
_KINDS = "biufc"
_FEW_BYTES = 2048  # small buffers: a large one is new pages of memory, which cost more than packing a small value


def _extension(value):
    """The extension for a value that plain msgpack does not have."""
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(TUPLE, pack(list(value)))
    if kind is set:
        return msgpack.ExtType(SET, pack(list(value)))
    if kind is complex:
        return msgpack.ExtType(COMPLEX, _COMPLEX.pack(value.real, value.imag))
    if kind is int:
        return msgpack.ExtType(INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if hasattr(kind, "__array_interface__") or hasattr(value, "dtype"):
        import numpy

        array = numpy.asarray(value)
        if array.dtype.kind in _KINDS:
            return msgpack.ExtType(ARRAY, pack([array.dtype.str, list(array.shape), array.tobytes()]))
        raise ValueError(f"an array of {array.dtype} cannot be stored; expected numbers or bools")
    raise ValueError(
        f"{kind.__module__}.{kind.__qualname__} cannot be stored; expected None, bool, int, float, complex, str, "
        "bytes, list, tuple, dict, set or an array"
    )


def _extended(code, data):
    if code == TUPLE:
        return tuple(unpack(data))
    if code == SET:
        return set(unpack(data))
    if code == COMPLEX:
        return complex(*_COMPLEX.unpack(data))
    if code == INT:
        return int.from_bytes(data, "little", signed=True)
    if code == ARRAY:
        import numpy

        dtype, shape, content = unpack(data)
        dtype = numpy.dtype(dtype)
        if dtype.kind not in _KINDS:
            raise ValueError(f"array of {dtype}")
        return numpy.frombuffer(content, dtype).reshape(shape)
    raise ValueError(f"unknown extension {code}")


def pack(value):
    """The bytes of `value`. ValueError for a value that cannot be stored, such as one nested beyond some 500 levels."""
    try:
        return msgpack.Packer(
            default=_extension, strict_types=True, unicode_errors="surrogatepass", buf_size=_FEW_BYTES
        ).pack(value)
    except RecursionError:
        raise ValueError("the value is nested too deeply, or within itself") from None


_UNPACK = dict(ext_hook=_extended, strict_map_key=False, unicode_errors="surrogatepass")


def unpack(data):
    """The value for such bytes; arrays are read-only. ValueError for other bytes."""
    try:
        return msgpack.unpackb(data, **_UNPACK)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException, struct.error) as error:
        raise ValueError(f"no stored value: {error}") from error


def unpack_some(data, indexes):
    """The items at the ascending `indexes` of a packed list; the others are skipped without unpacking."""
    try:
        unpacker = msgpack.Unpacker(max_buffer_size=0, **_UNPACK)
        unpacker.feed(data)
        unpacker.read_array_header()
        here, items = 0, []
        for index in indexes:
            for _ in range(index - here):
                unpacker.skip()
            items.append(unpacker.unpack())
            here = index + 1
        return items
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException, struct.error) as error:
        raise ValueError(f"no stored value: {error}") from error


def joined(packed):
    """The packed list of values that are packed already."""
    return msgpack.Packer(buf_size=16).pack_array_header(len(packed)) + b"".join(packed)
