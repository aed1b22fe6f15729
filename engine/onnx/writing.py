"""Serializes the model file (docs/model-format.md): header, tensors, nodes, inputs, outputs, operands, open sizes and
their conditions, guards, names, weights."""

import json
import struct

import numpy

from .network import CURVES, dtype_number

VERSION = 4
OPS = {
    "Conv": 1,
    "MaxPool": 2,
    "GlobalAveragePool": 3,
    "Gemm": 4,
    "Add": 5,
    "Relu": 6,
    "Flatten": 7,
    "Clip": 8,
    "AveragePool": 9,
    "Concat": 10,
    "Slice": 11,
    "Shuffle": 12,
    "Interleave": 13,
    "Copy": 32,
    "Unary": 33,
    "Binary": 34,
    "Where": 35,
    "Reduce": 36,
    "MatMul": 37,
    "Gather": 38,
    "Softmax": 39,
    "Normalize": 40,
    "Activate": 41,
    "Scan": 42,
    "Argsort": 43,
    "Scatter": 44,
    "Attention": 45,
    "Recurrence": 46,
    "Trees": 47,
    "Couple": 48,
    "IntegerProduct": 49,
    "Quantize": 50,
    "Dequantize": 51,
    "QuantizedAdd": 52,
    "QuantizedMultiply": 53,
    "LookUp": 54,
    "NarrowProduct": 55,
    "Blend": 56,
    "Sample": 57,
    "Regions": 58,
    "Fourier": 59,
    "Chance": 60,
    "Bits": 61,
    "Suppress": 62,
    "ByteMaxPool": 63,
    "IntegerMean": 64,
}
_COMPUTED, _CONSTANT, _VIEW = range(3)
_ABSENT = 0xFFFFFFFF
_ALIGNMENT = 64
_RANK, _PARAMETERS = 8, 24
_OPEN, _VARYING, _TERM, _QUOTIENT, _NEED = 16, 24, 16, 16, 24  # sizes of records in bytes


def write(network, sizes=None):
    """Returns the file as a list of bytes-like pieces. `sizes`: the network's OpenSizes, if any."""
    tensors = numbered(network)
    names, records, weights, weights_size = bytearray(), bytearray(), [], 0

    def name_at(text):
        data = text.encode()[:1024]
        names.extend(data)
        return len(names) - len(data), len(data)

    for name in tensors:
        values, view = network.constants.get(name), network.views.get(name)
        shape = network.shape(name)
        size = 0 if values is None else values.nbytes
        weight_offset = weights_size if size else 0
        if size:
            values = numpy.ascontiguousarray(values, values.dtype.newbyteorder("<"))
            weights += [values.reshape(-1).view("uint8").data, bytes(-size % _ALIGNMENT)]
            weights_size += size + -size % _ALIGNMENT
        name_range = (
            name_at(network.shown.get(name, name)) if name in network.inputs or name in network.outputs else (0, 0)
        )
        kind = _CONSTANT if values is not None else _COMPUTED if view is None else _VIEW
        base, offset, strides = (0, 0, ()) if view is None else (tensors[view.base], view.offset, view.strides)
        records += struct.pack(
            f"<4I{_RANK}q2Q2Iq{_RANK}q16x",
            *name_range,
            dtype_number(network.dtype(name)),
            len(shape),
            *_padded(shape),
            weight_offset,
            size,
            kind,
            base,
            offset,
            *_padded(strides),
        )
    nodes, operands = bytearray(), []
    for layer in network.layers:
        parameters = layer.parameters or _image_parameters(layer)
        nodes += struct.pack(
            f"<6I{_PARAMETERS}iI4x",
            *name_at(layer.name),
            OPS[layer.op],
            len(operands),
            len(layer.inputs),
            1,
            *parameters,
            *(0,) * (_PARAMETERS - len(parameters)),
            0 if layer.guard is None else layer.guard + 1,
        )
        operands += [_ABSENT if name is None else tensors[name] for name in layer.inputs] + [tensors[layer.output]]
    lists = [tensors[name] for name in (*network.inputs, *network.outputs)] + operands
    opens, varyings, terms, quotients, needs = _open_records(network, sizes, tensors, name_at) if sizes else (b"",) * 5
    guards = b"".join(
        struct.pack("<4I", tensors[name], int(side), 0 if parent is None else parent + 1, 0)
        for name, side, parent in network.guards
    )
    notes_at, notes = len(names), _notes(network)
    names += notes
    body = records + nodes + struct.pack(f"<{len(lists)}I", *lists) + opens + varyings + terms + quotients
    body += needs + guards + names
    body += bytes(-len(body) % _ALIGNMENT)
    header = struct.pack(
        "<8s2IQ6I2Q7I36x",
        b"VMEMODEL",
        VERSION,
        1 if sizes else 0,
        128 + len(body) + weights_size,
        len(tensors),
        len(network.layers),
        len(network.inputs),
        len(network.outputs),
        len(operands),
        len(opens) // _OPEN,
        len(names),
        weights_size,
        len(varyings) // _VARYING,
        len(terms) // _TERM,
        notes_at,
        len(notes),
        len(quotients) // _QUOTIENT,
        len(needs) // _NEED,
        len(network.guards),
    )
    return [header, body, *weights]


def _notes(network):
    """What callers need to know of texts, dict and list outputs, and parts, as JSON; empty if nothing."""
    ports = [("inputs", network.inputs), ("outputs", network.outputs)]
    texts = {key: [name for name in names if name in network.texts] for key, names in ports}
    notes = {f"text_{key}": names for key, names in texts.items() if names}
    if notes:
        notes["vocabulary"] = network.vocabulary
    if network.notes is not None:
        notes["parts"] = network.notes
    labels = {name: network.labels[name] for name in network.outputs if name in network.labels}
    if labels:
        notes["labels"] = labels
    if network.sequences:
        notes["sequences"] = network.sequences
    return json.dumps(notes, ensure_ascii=False).encode() if notes else b""


def _open_records(network, sizes, tensors, name_at):
    """The records of open sizes, varying numbers, terms, quotients and needs."""
    opens = b"".join(
        struct.pack("<4I", *name_at(name), *input_and_axis) for name, input_and_axis in zip(sizes.names, sizes.inputs)
    )
    varyings, terms, quotients, needs = bytearray(), bytearray(), bytearray(), bytearray()
    variables = {variable: number for number, variable in enumerate((*sizes.names, *sizes.quotients), 1)}

    def terms_at(polynomial):
        """Writes the terms. Returns (index of the first, their number)."""
        first = len(terms) // _TERM
        for monomial, factor in polynomial.items():
            terms.extend(struct.pack("<q8B", factor, *_padded([variables[variable] for variable in monomial])))
        return first, len(polynomial)

    for _, numerator, denominator in sizes.quotients:
        quotients += struct.pack("<4I", *terms_at(dict(numerator)), *terms_at(dict(denominator)))
    for name, numbers in sizes.numbers.items():
        for slot, polynomial in numbers.items():
            label = (
                name_at(sizes.label(polynomial))
                if slot < _RANK and (name in network.inputs or name in network.outputs)
                else (0, 0)
            )
            varyings += struct.pack("<2I", tensors[name], slot)
            varyings += struct.pack("<4I", *terms_at(polynomial), *label)
    for need in sizes.needs:
        needs += struct.pack("<6I", *terms_at(need.terms), *name_at(need.text), int(not need.equal), 0)
    return opens, bytes(varyings), bytes(terms), bytes(quotients), bytes(needs)


def _image_parameters(layer):
    bounds = struct.unpack("<2i", struct.pack("<2f", *layer.bounds)) if layer.bounds else (0, 0)
    activation = 3 + CURVES.index(layer.curve) if layer.curve else 2 if layer.bounds else int(layer.relu)
    return (*(layer.window or (0,) * 11), activation, *bounds, *layer.further)


def numbered(network):
    """The tensors that the file needs, with their indices."""
    used = dict.fromkeys(
        (
            *network.inputs,
            *(name for layer in network.layers for name in (*layer.inputs, layer.output) if name),
            *network.outputs,
        )
    )
    used.update(dict.fromkeys(network.views[name].base for name in tuple(used) if name in network.views))
    return {name: number for number, name in enumerate(used)}


def _padded(sizes):
    return (*sizes, *(0,) * (_RANK - len(sizes)))
