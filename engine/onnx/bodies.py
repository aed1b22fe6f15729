"""Nested graphs: the branches of If, the bodies of Loop, Scan and SequenceMap. A body is inlined at its node, once for
each execution, with names of its own; captured tensors keep their outer names. Weights and constants of a body are
stored once, however often it is read."""

import math

import numpy

from . import sizes
from .lowering import Lowering
from .parts import counted_size
from .readers import Unsupported
from .structures import structure_of

_MAX_DEPTH = 16  # nesting of bodies
MAX_READ = 1 << 15  # nodes that all bodies of a model may be inlined to


class TooLong(Unsupported):
    """The bodies of a model are inlined to too many nodes."""


class Body:
    """A nested graph of `node`, read by `reader`; its tensors' names begin with the node's output and `label`."""

    def __init__(self, reader, node, attribute, label):
        from onnx import numpy_helper

        self.reader, self.graph, self.attribute = reader, node.attributes.get(attribute), attribute
        if self.graph is None:
            raise Unsupported(f"has no {attribute}")
        self.prefix = f"{next(filter(None, node.outputs), node.label)}/{label}"
        self._shared = {}  # names that are the same in each execution
        for item in self.graph.initializer:
            reader.keep_constant(self._share(item.name), numpy_helper.to_array(item))
        self._nodes = []
        for proto in self.graph.node:
            if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
                self._share(proto.output[0])
                reader.read_inner(_renamed(proto, self._shared))
            else:
                self._nodes.append(proto)

    def _share(self, name):
        self._shared[name] = f"{self.prefix}/{name}"
        return self._shared[name]

    @property
    def inputs(self):
        return [value.name for value in self.graph.input]

    @property
    def outputs(self):
        return [value.name for value in self.graph.output]

    def passed(self):
        """The names of the outer tensors that are the body's outputs; None if it computes anything."""
        sources = {proto.output[0]: proto.input[0] for proto in self._nodes if proto.op_type == "Identity"}
        if len(sources) != len(self._nodes):
            return None
        names = []
        for name in self.outputs:
            while name in sources:
                name = sources[name]
            names.append(self.reader.name_of(self._shared.get(name, name)))
        return names

    def read(self, operands=(), number=None):
        """Reads the body with the tensors `operands` (names) as its inputs. Returns the names of its outputs; None if a
        node in it cannot be read, which is then among the reader's problems."""
        reader = self.reader
        if len(operands) != len(self.graph.input):
            raise Unsupported(f"has a {self.attribute} of {len(self.graph.input)} inputs, expected {len(operands)}")
        names = self._shared | dict(zip(self.inputs, operands))
        prefix = f"{self.prefix}/" if number is None else f"{self.prefix}{number}/"
        for proto in self._nodes:
            names.update((name, prefix + name) for name in proto.output if name)
        if reader.depth >= _MAX_DEPTH:
            raise Unsupported(f"has more than {_MAX_DEPTH} nested graphs")
        reader.read_in_bodies += len(self._nodes) + 1
        if reader.read_in_bodies > MAX_READ:
            raise TooLong(
                f"unrolls to more than {MAX_READ:,} nodes; export it with fewer iterations, or with the operators"
                " LSTM, GRU or RNN"
            )
        problems = len(reader.problems)
        reader.depth += 1
        reader.network.repeats = True
        try:
            for proto in self._nodes:
                reader.read_inner(_renamed(proto, names))
                if len(reader.problems) > problems:
                    return None
        finally:
            reader.depth -= 1
            reader.network.repeats = reader.depth > 0
        results = [reader.name_of(names.get(name, name)) for name in self.outputs]
        for name, output in zip(results, self.outputs):
            if not reader.knows(name):
                raise Unsupported(f"has a {self.attribute} whose output {output!r} nothing computes")
        return results


def _renamed(proto, names):
    """The node with tensors renamed, also in its nested graphs except for names that these define."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    for values in (copy.input, copy.output):
        values[:] = [names.get(name, name) for name in values]
    for item in copy.attribute:
        for graph in (*([item.g] if item.HasField("g") else ()), *item.graphs):
            _rename_within(graph, names)
    return copy


def _rename_within(graph, names):
    defined = {value.name for value in (*graph.input, *graph.initializer)}
    defined.update(name for proto in graph.node for name in proto.output)
    names = {old: new for old, new in names.items() if old not in defined}
    nodes = [_renamed(proto, names) for proto in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


def choose(reader, node, condition, one, other, output, any_sizes=False):
    """Makes `output` the tensor, sequence or optional `one` if the run-time `condition` is true, else `other`. With
    `any_sizes` two tensors of one rank may differ in size: what follows is another part of the model (parts.py)."""
    if one == other:
        reader.same(output, one)
        return
    first, second = structure_of(reader, one), structure_of(reader, other)
    if first is not None or second is not None:
        _choose_structures(reader, node, condition, (one, first), (other, second), output)
        return
    values = reader.constant(one), reader.constant(other)
    if (
        all(value is not None and value.dtype == bool and value.size == 1 for value in values)
        and values[0] == values[1]
    ):
        reader.same(output, one)  # a loop's condition that both sides end
        return
    a, b = reader.shape(one), reader.shape(other)
    different = [d for d, (x, y) in enumerate(zip(a, b)) if sizes.terms_of(x) != sizes.terms_of(y)]
    follows = any_sizes and not any(sizes.is_open(shape[d]) for shape in (a, b) for d in different)
    if len(a) != len(b) or (different and not follows):
        raise Unsupported(
            f"gives a tensor of shape {reader.shape_text(a)} in one case and {reader.shape_text(b)} in the other, by"
            " a condition computed at run time; export it with one shape"
        )
    if reader.dtype(one) != reader.dtype(other):
        raise Unsupported(f"gives {reader.dtype(one).name} in one case and {reader.dtype(other).name} in the other")
    if not reader.network.texts.isdisjoint((one, other)):
        raise Unsupported("chooses between texts at run time")
    add = Lowering(reader, node)
    one, other = (reader.as_tensor(name, node) for name in (one, other))
    condition = scalar(add, condition)
    if different:
        one, other = (
            add.padded(name, [0] * len(a), [max(pair) - size for pair, size in zip(zip(a, b), add.shape(name))], 0)
            for name in (one, other)
        )
    result = add.where(condition, one, other)
    for d in different:
        counts = [add.constant([size], numpy.int64) for size in (a[d], b[d])]
        result = add.part(result, d, 0, counted_size(reader, node, add.where(condition, *counts)))
    add.done(result, output)


def _choose_structures(reader, node, condition, one, other, output):
    from .structures import Optional, Sequence

    (_, first), (_, second) = one, other
    if isinstance(first, Sequence) and isinstance(second, Sequence) and len(first.items) == len(second.items):
        names = [f"{output}/item {number}" for number in range(len(first.items))]
        for name, a, b in zip(names, first.items, second.items):
            choose(reader, node, condition, a, b, name)
        reader.structures[output] = Sequence([reader.name_of(name) for name in names], first.dtype)
        return
    if isinstance(first, Optional) and isinstance(second, Optional):
        if first.item is not None and second.item is not None:
            name = f"{output}/element"
            choose(reader, node, condition, first.item, second.item, name)
            reader.structures[output] = Optional(reader.name_of(name))
            return
        if first.item is second.item is None:
            reader.structures[output] = first
            return
    raise Unsupported(
        "gives sequences of different lengths, or an optional that is empty in one case only, as a condition computed"
        " at run time decides"
    )


def scalar(add, name):
    """A tensor of one element, reshaped to no dimensions."""
    if math.prod(add.shape(name)) != 1:
        raise Unsupported(f"has a condition of shape {add.reader.shape_text(add.shape(name))}, expected one element")
    if add.dtype(name).kind != "b":
        raise Unsupported(f"has a condition of {add.dtype(name).name}, expected bool")
    return name if add.shape(name) == () else add.reshape(name, ())


def truth(reader, name):
    """Whether the constant condition is true; None if it is known only at run time."""
    value = reader.constant(name)
    if value is None or name in reader.network.values:
        producer = reader.producers.get(name)
        is_both = producer is not None and producer.operator == "And"
        return False if is_both and any(truth(reader, operand) is False for operand in producer.inputs) else None
    if value.size != 1 or value.dtype != bool:
        raise Unsupported(f"has a condition of {value.dtype.name}{value.shape}, expected one bool")
    return bool(value.reshape(())[()])
