"""ONNX files: nodes, constants and ports as protocol buffers, with the field numbers of onnx.proto3."""

import struct

OPSET = 17
_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}


class ExportError(ValueError):
    """The network does something that cannot be written as ONNX here."""


def model(nodes, initializers, inputs, outputs):
    """The file of a graph, of parts that the functions below have written."""
    graph = b"".join(_field(1, one) for one in nodes) + _field(2, b"network")
    graph += b"".join(_field(5, one) for one in initializers)
    graph += b"".join(_field(11, one) for one in inputs) + b"".join(_field(12, one) for one in outputs)
    opset = _field(1, b"") + _field(2, OPSET)
    return _field(1, 8) + _field(2, b"vmhost") + _field(7, graph) + _field(8, opset)


def node(name, kind, inputs, output, attributes):
    body = b"".join(_field(1, one.encode()) for one in inputs) + _field(2, output.encode())
    body += _field(3, name.encode()) + _field(4, kind.encode())
    return body + b"".join(_field(5, _attribute(key, given)) for key, given in attributes.items())


def port(name, dtype, sizes):
    """An input or output. A size is a number, the name of an open one, or None: not known."""
    dims = b""
    for size in sizes:
        dims += _field(
            1, b"" if size is None else _field(1, size) if isinstance(size, int) else _field(2, size.encode())
        )
    tensor = _field(1, type_number(dtype)) + _field(2, dims)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def constant(name, array):
    dims = b"".join(_field(1, size) for size in array.shape)
    return dims + _field(2, type_number(array.dtype)) + _field(8, name.encode()) + _field(9, array.tobytes())


def type_number(dtype):
    if dtype.name not in _TYPES:
        raise ExportError(f"arrays of {dtype} cannot be written as ONNX")
    return _TYPES[dtype.name]


def _varint(number):
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _attribute(name, value):
    head = _field(1, name.encode())
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _field(20, 1)
    if isinstance(value, int):
        return head + _field(3, value) + _field(20, 2)
    return head + b"".join(_field(8, one) for one in value) + _field(20, 7)
