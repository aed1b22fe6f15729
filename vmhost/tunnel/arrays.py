"""Arrays in values: a msgpack extension with dtype, shape and bytes. NumPy is imported when the first one comes."""

import math

import msgpack

CODE = 5  # of the extension, as in vmhost/pipeline/values.py
_KINDS = "biufc"  # bool, integers, floats and complex numbers: dtypes whose values are plain bytes
_MAX_DIMENSIONS = 32


def extension(value):
    """The extension for an array of NumPy or the engine; a plain number for a real NumPy scalar. TypeError for anything
    else."""
    if hasattr(type(value), "__array_interface__") or hasattr(value, "dtype"):
        import numpy

        if isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
            return value.item()
        array = numpy.asarray(value)
        if array.dtype.kind in _KINDS:
            return msgpack.ExtType(CODE, msgpack.packb([array.dtype.str, list(array.shape), array.tobytes()]))
        raise TypeError(f"an array of {array.dtype} cannot be sent; expected numbers or bools")
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} cannot be sent")


def extended(code, data):
    """The read-only array of such an extension. ValueError."""
    if code != CODE:
        raise ValueError(f"unknown extension {code}")
    kind, shape, content = msgpack.unpackb(data, max_array_len=_MAX_DIMENSIONS, max_map_len=0, max_ext_len=0)
    if type(kind) is not str or len(kind) > 8 or type(shape) is not list or type(content) is not bytes:
        raise ValueError("no array")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("no shape")
    import numpy

    dtype = numpy.dtype(kind)
    if dtype.kind not in _KINDS or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError("an array whose bytes do not fit its shape")
    return numpy.frombuffer(content, dtype).reshape(shape)
