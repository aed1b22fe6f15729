"""Sizes that depend on values: the model is split where they become known.

NonZero or NonMaxSuppression write their result to a tensor of the maximum size, and its length to a second tensor. The
reader treats that length as an open size (sizes.py) and continues. Layers that involve such a counted size belong to a
part after the one that counts. Each part is a model of its own, with these sizes among its open ones, and runs after
the parts before it (engine/model_parts.py). Its inputs are results of earlier parts, and for each counted size a
ruler: a tensor of zeros with that length."""

import copy
import itertools

from .network import Network
from .savings import Savings
from .sizes import Counted, Size, terms_of, variables

_SAMPLES = ((43, 47, 53, 59, 61, 67, 71, 73), (50, 54, 58, 62, 66, 70, 74, 78))
MAX_PARTS = 32


def sample(reading, number):
    """The sample of counted size `number`; it may exceed what can be found. No two sizes of a model, open ones
    included (open_sizes.py), have the same samples in both readings."""
    samples = _SAMPLES[reading]
    return samples[number % len(samples)] + 60 * (number // len(samples))


def counted_size(reader, node, count):
    """The Size given by the int64 tensor `count` of one element; a call may find 0."""
    network = reader.network
    count = network.copied(network.fresh(f"{node.output}/count"), count, layer=node.name)
    name = next(
        f"count of {node.output}{suffix}" for suffix in _suffixes() if not _name_is_taken(network, node, suffix)
    )
    name = Counted(name)
    number = sample(reader.reading, len(network.counted))
    if reader.open_inputs:
        number = reader.open_inputs.counted(name, number)
    size = Size.open(name, number)
    ruler = network.declare(network.fresh(f"{node.output}/ruler"), (size,), "bool")
    network.counted[name] = (network.reshaped(network.fresh(f"{count}/number"), count, ()), ruler)
    return size


def _suffixes():
    return itertools.chain([""], (f" {number}" for number in itertools.count(2)))


def _name_is_taken(network, node, suffix):
    return f"count of {node.output}{suffix}" in network.counted


def _open_sizes_of(network, name):
    """The open sizes in the tensor's numbers."""
    if name in network.constants:
        return set()
    view = network.views.get(name)
    numbers = (*network.shapes[name], *((view.offset, *view.strides) if view else ()))
    return set().union(*(variables(terms_of(number)) for number in numbers if isinstance(number, Size)))


def split_parts(network, where):
    """[network] if nothing is counted, else the networks of all parts, in order."""
    if not network.counted:
        return [network]
    from .problems import OnnxError

    part_of, counts = _parts(network)
    for name in network.outputs:  # outputs are cut to the counted sizes
        known = [counts.get(size, 0) for size in _open_sizes_of(network, name)]
        part_of[name] = max(part_of.get(name, 0), part_of.get(_base(network, name), 0), *known, 0)
    last = max((part_of[name] for name in network.outputs), default=0)  # no output needs later layers
    if last >= MAX_PARTS:
        cause = f"has a chain of {last} sizes that depend on values, expected at most {MAX_PARTS - 1}"
        raise OnnxError(where, cause)
    return [_part(network, number, last, part_of) for number in range(last + 1)]


def _base(network, name):
    return network.base(name)


def _first_part_with(network, size, part_of):
    """The first part in which the size is known."""
    return part_of[network.counted[size][1]] if size in network.counted else 0


def _parts(network):
    """Returns ({tensor, base or view: part that makes it}, {counted size: first part that knows it}). Constants belong
    to all parts."""
    counts = {}  # counted sizes to the first part that knows them
    part_of = dict.fromkeys(network.inputs, 0)

    def earliest_part(layer):
        operands = [name for name in layer.inputs if name]
        parts = [part_of.get(_base(network, name), 0) for name in operands]
        for variable in set().union(*(_open_sizes_of(network, name) for name in (*operands, layer.output))):
            parts.append(counts.get(variable, 0))
        return max((*parts, part_of.get(_base(network, layer.output), 0)), default=0)

    changed = True
    while changed:  # layers that write one base all belong to the part of the last
        changed = False
        for layer in network.layers:
            part, base = earliest_part(layer), _base(network, layer.output)
            if part_of.get(base, -1) != part:
                part_of[base], changed = part, True
            part_of[layer.output] = part
        for variable, (count, ruler) in network.counted.items():
            part = part_of.get(_base(network, count), 0) + 1
            if counts.get(variable) != part:
                counts[variable], part_of[ruler], changed = part, part, True
    return part_of, counts


def _part(network, number, last, part_of):
    """The network of one part. Its inputs are the tensors that it reads, and others that give its open sizes."""
    layers = [layer for layer in network.layers if part_of[layer.output] == number]
    names = [name for layer in layers for name in (*layer.inputs, layer.output) if name]
    written = {_base(network, layer.output) for layer in layers}
    later_layers = [layer for layer in network.layers if number < part_of[layer.output] <= last]
    counts = [count for count, _ in network.counted.values() if part_of.get(_base(network, count), 0) == number]
    read_later = [_base(network, name) for layer in later_layers for name in layer.inputs if name]
    outputs = [name for name in network.outputs if part_of[name] == number]
    later_outputs = [_base(network, name) for name in network.outputs if part_of[name] > number]
    names = list(dict.fromkeys((*names, *outputs)))  # ordered: equal models give equal bytes
    outputs += [
        name for name in (*read_later, *later_outputs, *(_base(network, name) for name in counts)) if name in written
    ]
    bases = [_base(network, name) for name in names]
    inputs = [name for name in bases if name not in written and name not in network.constants]
    sizes = set().union(*(_open_sizes_of(network, name) for name in (*names, *inputs, *outputs)))
    needs = {
        key: need
        for key, need in network.needs.items()
        if max((_first_part_with(network, size, part_of) for size in variables(need.terms)), default=0) == number
    }
    sizes |= set().union(*(variables(need.terms) for need in needs.values()))
    input_sizes = set().union(*(_open_sizes_of(network, name) for name in inputs if name in network.inputs))
    for size in sorted(sizes):
        if size in network.counted:
            inputs.append(network.counted[size][1])
        elif size not in input_sizes:
            inputs += [name for name in network.inputs if size in _open_sizes_of(network, name)][:1]
    if number == 0:  # also inputs that nothing reads
        names_read = {_base(network, name) for layer in network.layers for name in layer.inputs if name}
        inputs += [name for name in network.inputs if name not in names_read]
    order = {name: index for index, name in enumerate(network.inputs)}
    inputs = sorted(dict.fromkeys(inputs), key=lambda name: order.get(name, len(order)))
    part = Network(inputs or network.inputs[:1], list(dict.fromkeys(outputs)))
    for key in ("shapes", "dtypes", "constants", "views", "sources", "values"):
        setattr(part, key, dict(getattr(network, key)))
    part.shown = network.shown
    part.texts, part.labels, part.vocabulary = set(network.texts), dict(network.labels), network.vocabulary
    part.layers = [copy.copy(layer) for layer in layers]
    for layer in part.layers:
        layer.inputs = list(layer.inputs)
    part.savings = network.savings if number == 0 else Savings(0, 0, 0, idle=True)
    part.counted = network.counted
    part.needs = needs
    if number == 0:
        part.notes, part.sequences = _notes(network, last, part_of), network.sequences
    return part


def _notes(network, last, part_of):
    """What the runner needs: the model's inputs and outputs; each count with its part and ruler."""
    counted = []
    for name, (count, ruler) in network.counted.items():
        base = _base(network, count)
        if part_of.get(base, 0) > last:
            continue
        counted.append({"part": part_of.get(base, 0) + 1, "count": base, "ruler": ruler, "size": name})
        if name in network.must_be_zero:
            counted[-1]["most"] = 0
    outputs = [network.shown.get(name, name) for name in network.outputs]
    return {"inputs": network.inputs, "outputs": outputs, "parts": last + 1, "counted": counted}
