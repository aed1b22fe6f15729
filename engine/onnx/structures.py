"""Sequences and optionals. A sequence's length, and whether an optional is present, are known when the graph is read:
both become lists of names, and no layer of the engine deals with them."""

from typing import NamedTuple

import numpy

from . import sizes
from .lowering import Lowering
from .readers import Unsupported, reads_whole

_MAX_LENGTH = 1 << 12  # tensors in a sequence


class Sequence(NamedTuple):
    """`items`: names of tensors. `dtype`: their dtype if the model declares it, else None."""

    items: list
    dtype: object = None


class Optional(NamedTuple):
    """`item`: the name of a tensor or sequence, or None."""

    item: str | None


def structure_of(reader, name):
    """The Sequence or Optional of that name; None for a tensor."""
    return reader.structures.get(name)


def _sequence(reader, node, number=0):
    name = node.input(number)
    structure = structure_of(reader, name)
    if isinstance(structure, Optional) and structure.item is not None:
        structure = structure_of(reader, structure.item)
    if isinstance(structure, Sequence):
        return structure
    if name is not None and not reader.knows(name):
        raise Unsupported(f"works on {name!r}, which is unknown")
    raise Unsupported(f"works on {name!r}, which is not a sequence")


def _keep(reader, output, items, dtype=None):
    if len(items) > _MAX_LENGTH:
        raise Unsupported(f"makes a sequence of {len(items):,} tensors, expected at most {_MAX_LENGTH:,}")
    for name in items:
        if not reader.knows(name) or structure_of(reader, name) is not None:
            raise Unsupported(f"makes a sequence of {name!r}, which is not a tensor")
    kinds = {reader.dtype(name).name for name in items} | ({numpy.dtype(dtype).name} if dtype is not None else set())
    if len(kinds) > 1:
        raise Unsupported(f"makes a sequence of tensors of {' and '.join(sorted(kinds))}")
    reader.structures[output] = Sequence(list(items), reader.dtype(items[0]) if items else dtype)


def _position(reader, node, number, length, ends=False):
    """The position in a sequence given by the operand; with `ends`, the end is allowed. None if it is computed."""
    name = node.input(number)
    if name is None:
        return length if ends else length - 1
    value = reader.constant(name)
    if value is None or name in reader.network.values:
        return None
    if value.size != 1 or value.dtype.kind not in "iu":
        raise Unsupported(f"has a position of {value.dtype.name}{value.shape}, expected one integer")
    position = int(value.reshape(())[()])
    if not -length <= position <= length - (0 if ends else 1):
        raise Unsupported(f"has position {position} of a sequence of {length}")
    return position + length if position < 0 else position


@reads_whole("SequenceConstruct")
def construct(reader, node):
    _keep(reader, node.output, node.inputs)


@reads_whole("SequenceEmpty")
def empty(reader, node):
    from onnx import TensorProto, helper

    _keep(reader, node.output, [], helper.tensor_dtype_to_np_dtype(node.get("dtype", TensorProto.FLOAT)))


@reads_whole("SequenceLength")
def length(reader, node):
    reader.keep_constant(node.output, numpy.int64(len(_sequence(reader, node).items)))


@reads_whole("SequenceInsert")
def insert(reader, node):
    sequence = _sequence(reader, node)
    items, position = list(sequence.items), _position(reader, node, 2, len(sequence.items), ends=True)
    if position is None:
        raise Unsupported("inserts at a position that is not constant")
    items.insert(position, node.input(1))
    _keep(reader, node.output, items, sequence.dtype)


@reads_whole("SequenceErase")
def erase(reader, node):
    sequence = _sequence(reader, node)
    items, position = list(sequence.items), _position(reader, node, 1, len(sequence.items))
    if position is None:
        raise Unsupported("erases at a position that is not constant")
    if not items:
        raise Unsupported("takes a tensor out of an empty sequence")
    del items[position]
    _keep(reader, node.output, items, sequence.dtype)


@reads_whole("SequenceAt")
def at(reader, node):
    """A computed position selects among tensors of one shape."""
    items = _sequence(reader, node).items
    position = _position(reader, node, 1, len(items))
    if not items:
        raise Unsupported("takes a tensor out of an empty sequence")
    if position is not None:
        reader.same(node.output, items[position])
        return
    shapes = {tuple(map(_terms, reader.shape(name))) for name in items}
    if len(shapes) > 1:
        raise Unsupported("chooses at run time among tensors of different shapes")
    stack = stacked(reader, node, items, 0, f"{node.output}/all")
    index = node.inputs[1]
    add = Lowering(reader, node)
    if reader.constant(index) is None and add.shape(index) != ():
        index = add.reshape(index, ())
    reader.emit("Gather", [stack, index], [node.output], axis=0)


def _terms(size):
    return tuple(sorted(sizes.terms_of(size).items(), key=repr))


@reads_whole("ConcatFromSequence")
def joined(reader, node):
    items, axis = _sequence(reader, node).items, node.get("axis")
    if not items:
        raise Unsupported("joins an empty sequence")
    if node.get("new_axis", 0):
        rank = len(reader.shape(items[0])) + 1
        stacked(reader, node, items, axis + rank if axis < 0 else axis, node.output)
    else:
        reader.emit("Concat", items, [node.output], axis=axis)


def stacked(reader, node, names, axis, output):
    """Stacks the tensors along a new axis."""
    if axis < 0 or any(axis > len(reader.shape(name)) for name in names):
        raise Unsupported(f"has axis {axis}, which its tensors do not have")
    parts = []
    for number, name in enumerate(names):
        part = f"{output}/part {number}"
        reader.emit("Unsqueeze", [name], [part], axes=[axis])
        parts.append(part)
    reader.emit("Concat", parts, [output], axis=axis)
    return output


def unstacked(reader, name, axis, output, keep=False):
    """Splits the tensor along an axis of fixed size. Returns the names."""
    count = fixed(reader.shape(name)[axis], reader)
    names = [f"{output}/item {number}" for number in range(count)]
    slices = names if keep else [f"{part}/whole" for part in names]
    if count == 1:
        reader.same(slices[0], name)
    else:
        reader.emit("Split", [name], slices, axis=axis, split=[1] * count)
    if not keep:
        for slice_name, part in zip(slices, names):
            reader.emit("Squeeze", [slice_name], [part], axes=[axis])
    return [reader.name_of(part) for part in names]


def fixed(size, reader):
    if sizes.is_open(size):
        raise Unsupported(
            f"goes through a dimension of the open size {reader.size_text(size)}; export the model with that size fixed"
        )
    if size > _MAX_LENGTH:
        raise Unsupported(f"goes through a dimension of {size:,}, expected at most {_MAX_LENGTH:,}")
    return int(size)


@reads_whole("SplitToSequence")
def split(reader, node):
    name, axis = node.input(0), node.get("axis", 0)
    if not reader.knows(name) or structure_of(reader, name) is not None:
        raise Unsupported(f"works on {name!r}, which is not a tensor")
    shape = reader.shape(name)
    if not -len(shape) <= axis < len(shape):
        raise Unsupported(f"has axis {axis} of a tensor of {len(shape)} dimensions")
    axis %= len(shape)
    if node.input(1) is None:
        keep = bool(node.get("keepdims", 1))
        _keep(reader, node.output, unstacked(reader, name, axis, node.output, keep), reader.dtype(name))
        return
    parts, size = reader.constant(node.input(1)), fixed(shape[axis], reader)
    if parts is None or node.input(1) in reader.network.values or parts.dtype.kind not in "iu":
        raise Unsupported("has sizes of parts that are not constant integers")
    if parts.ndim == 0:
        part_size = int(parts)
        if part_size < 1:
            raise Unsupported(f"has parts of {part_size}")
        parts = [part_size] * (size // part_size) + ([size % part_size] if size % part_size else [])
    parts = [int(part) for part in numpy.reshape(parts, -1)]
    if min(parts, default=0) < 1 or sum(parts) != size:
        raise Unsupported(f"has parts of {parts} of a dimension of {size}")
    names = [f"{node.output}/item {number}" for number in range(len(parts))]
    if len(names) == 1:
        reader.same(names[0], name)
    else:
        reader.emit("Split", [name], names, axis=axis, split=parts)
    _keep(reader, node.output, [reader.name_of(part) for part in names], reader.dtype(name))


@reads_whole("Optional")
def optional(reader, node):
    name = node.input(0)
    if name is not None and not reader.knows(name):
        raise Unsupported(f"works on {name!r}, which is unknown")
    reader.structures[node.output] = Optional(name)


@reads_whole("OptionalHasElement")
def has_element(reader, node):
    name = node.input(0)
    structure = structure_of(reader, name)
    if name is not None and not reader.knows(name):
        raise Unsupported(f"works on {name!r}, which is unknown")
    present = name is not None and not (isinstance(structure, Optional) and structure.item is None)
    reader.keep_constant(node.output, numpy.bool_(present))


@reads_whole("OptionalGetElement")
def get_element(reader, node):
    name = node.input(0)
    if not reader.knows(name):
        raise Unsupported(f"works on {name!r}, which is unknown")
    structure = structure_of(reader, name)
    if isinstance(structure, Optional):
        if structure.item is None:
            raise Unsupported("takes the element of an optional that has none")
        name = structure.item
    reader.same(node.output, name)
