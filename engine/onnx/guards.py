"""Skips layers that only the untaken side of a choice needs: branches of If, iterations after a loop's end.

A choice is a Where whose condition has one element. Layers that are read only through one of its operands get a guard:
the condition and the value it must have. Guards are found last, from the readers of each tensor, so that no other pass
needs to know of them. A nested guard has the outer one as its parent and is evaluated only if that holds."""

import math


def find_guards(network):
    """Sets each layer's `guard`, an index into `network.guards`: (tensor, side, parent or None)."""
    choices = [layer for layer in network.layers if _is_choice(network, layer)]
    if not choices:
        return
    bases = {name: network.base(name) for name in _names(network)}
    last, first_read = {}, {}
    for number, layer in enumerate(network.layers):
        base = bases[layer.output]
        last[base] = number
        for name in filter(None, layer.inputs):
            first_read.setdefault(bases[name], number)
    needed = {bases[name]: () for name in network.outputs}  # bases to the chain of guards common to all their readers
    needed.update((base, ()) for base, number in first_read.items() if number <= last.get(base, -1))
    numbers = {}
    for number in range(len(network.layers) - 1, -1, -1):
        layer = network.layers[number]
        chain = _computed_before(needed.get(bases[layer.output], ()), number, bases, last)
        layer.guard = _number(network, numbers, chain)
        is_choice = _is_choice(network, layer)
        for index, name in enumerate(layer.inputs):
            if not name:
                continue
            reader_chain = (*chain, (layer.inputs[0], index == 1)) if is_choice and index > 0 else chain
            base = bases[name]
            needed[base] = reader_chain if base not in needed else _common(needed[base], reader_chain)


def _is_choice(network, layer):
    return layer.op == "Where" and _is_condition(network, layer.inputs[0])


def _is_condition(network, name):
    size = math.prod(network.shape(name))
    return isinstance(size, int) and size == 1 and network.base(name) not in network.constants


def _names(network):
    for layer in network.layers:
        yield from filter(None, (*layer.inputs, layer.output))
    yield from network.outputs


def _computed_before(chain, number, bases, last):
    """The leading part of the chain whose conditions are computed before that layer."""
    computed = []
    for condition, side in chain:
        if last.get(bases[condition], -1) >= number:
            break
        computed.append((condition, side))
    return tuple(computed)


def _common(one, other):
    count = next((index for index, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return one[:count]


def _number(network, numbers, chain):
    """The number of the chain's last guard; None for an empty chain."""
    parent = None
    for end in range(1, len(chain) + 1):
        key = chain[:end]
        if key not in numbers:
            numbers[key] = len(network.guards)
            network.guards.append((*chain[end - 1], parent))
        parent = numbers[key]
    return parent
