"""Lists of numbers in attributes as arrays. The lists of tree ensembles have a number for each node: they are read from
the attribute's encoding, since Python objects for the elements would take several times as long."""

import numpy

_CHUNK = 4096  # integers read at a time: temporary arrays stay in the cache
_FLOAT, _INT = 0x3D, 0x40  # tags of an element of `floats` (4 bytes follow) and of `ints` (a varint follows)


def array_of_list(proto, dtype):
    """The attribute's list of floats or integers as an array of that dtype."""
    floats, ints = len(proto.floats), len(proto.ints)
    values = None
    if floats or ints:
        # fields are encoded in the order of their numbers: the name, then the elements, then the others
        name = type(proto)(name=proto.name).SerializeToString()
        data = numpy.frombuffer(proto.SerializePartialToString(), "uint8")
        if data[: len(name)].tobytes() == name:
            data = data[len(name) :]
            values = _floats(data, floats) if floats else _integers(data, ints)
    if values is None:
        values = proto.floats if floats else proto.ints
        return numpy.fromiter(values, dtype, len(values))
    return values.astype(dtype)


def _floats(data, count):
    """The first `count` fields, if all are floats; else None."""
    fields = data[: 5 * count]
    if len(fields) < 5 * count or (fields[::5] != _FLOAT).any():
        return None
    return fields.view([("tag", "u1"), ("value", "<f4")])["value"]


def _integers(data, count):
    """The first `count` fields, if all are integers; else None. Tags and values are varints: 7 bits in each byte, the
    lowest first, and the 8th bit in all bytes but the last."""
    values, offset = numpy.empty(count, "uint64"), 0
    for begin in range(0, count, _CHUNK):
        chunk = values[begin : begin + _CHUNK]
        encoded = data[offset : offset + 11 * len(chunk)]
        ends = numpy.flatnonzero(encoded < 0x80)[: 2 * len(chunk)]
        if len(ends) < 2 * len(chunk):
            return None
        tags, last = ends[::2], ends[1::2]
        if tags[0] != 0 or (encoded[tags] != _INT).any() or (tags[1:] - last[:-1] != 1).any():  # each tag is one byte
            return None
        first = tags + 1
        lengths = last - tags
        chunk[:] = encoded[first] & 0x7F
        for byte in range(1, int(lengths.max())):
            bits = encoded[numpy.minimum(first + byte, last)] & 0x7F
            bits[lengths <= byte] = 0
            chunk |= bits.astype("uint64") << numpy.uint64(7 * byte)
        offset += int(last[-1]) + 1
    return values.view("int64")
