"""Convolutions whose groups have one channel and several outputs each. The direct algorithm would compute few lanes of
each vector; one depthwise convolution for each output of a group computes all of them, and a shuffle brings the
channels into order."""

import copy

import numpy

_MIN_GROUPS = 16
_MAX_MULTIPLE = 8  # outputs of a group: the shuffle of more costs more than the idle lanes


def part_multiples(network):
    """Replaces such convolutions, each together with an activation that is the only reader of its result."""
    multiples = [layer for layer in network.layers if _multiple_of(network, layer) > 1]
    if not multiples:
        return
    readers, bases = network.readers(), {view.base for view in network.views.values()}
    replaced, absorbed = {id(layer) for layer in multiples}, set()
    layers = network.layers
    network.layers = []
    for layer in layers:
        if id(layer) not in replaced:
            if id(layer) not in absorbed:
                network.layers.append(layer)
            continue
        output, output_readers = layer.output, readers.get(layer.output, [])
        if len(output_readers) == 1 and output not in bases and _activates(network, output_readers[0], output):
            absorbed.add(id(output_readers[0]))
            layer.absorb(output_readers[0])
            output = output_readers[0].output
        _part(network, layer, output)


def _activates(network, layer, name):
    return (
        layer is not None
        and layer.op in ("Relu", "Clip", "Activate")
        and network.shape(layer.output) == network.shape(name)
    )


def _multiple_of(network, layer):
    """The outputs of a group, if each group has one channel; else 0."""
    if layer.op != "Conv" or layer.inputs[3] or layer.activated:
        return 0
    weights, groups = network.constants[layer.inputs[1]], layer.window[10]
    multiple = len(weights) // groups
    return multiple if weights.shape[1] == 1 and groups >= _MIN_GROUPS and multiple <= _MAX_MULTIPLE else 0


def _part(network, layer, output):
    weights, bias = (network.constants.get(name) for name in layer.inputs[1:3])
    groups = layer.window[10]
    multiple, shape = len(weights) // groups, network.shape(layer.output)
    results = []
    for number in range(multiple):
        part = copy.copy(layer)
        constants = [
            None if values is None else network.constant(f"{output}/weights", values[number::multiple].copy())
            for values in (weights, bias)
        ]
        part.inputs = [layer.inputs[0], *constants, None]
        part.output = network.declare(network.fresh(f"{output}/part"), (shape[0], groups, *shape[2:]), numpy.float32)
        network.layers.append(part)
        results.append(part.output)
    _shuffle(network, layer, results, output)


def _shuffle(network, layer, results, output):
    """Makes `output`, whose channels are the first ones of all results, then the second ones, and so on."""
    count, channels, *sizes = network.shape(results[0])
    if len(results) == 2:
        _add(network, layer, "Shuffle", results, output, 2)
    elif len(results) % 2 == 0:  # of two halves, which vectors shuffle
        halves = []
        for first in range(2):
            half_results = results[first::2]
            half = network.fresh(f"{output}/half")
            halves.append(network.declare(half, (count, channels * len(half_results), *sizes), numpy.float32))
            _shuffle(network, layer, half_results, half)
        _add(network, layer, "Shuffle", halves, output, 2)
    else:
        joined = network.fresh(f"{output}/whole")
        network.declare(joined, (count, channels * len(results), *sizes), numpy.float32)
        _add(network, layer, "Concat", results, joined, 1)
        _add(network, layer, "Shuffle", [joined], output, len(results))


def _add(network, layer, op, inputs, output, groups):
    parameters = (1,) * 10 + (groups,) if op == "Shuffle" else ()
    network.layers.append(type(layer)(op, layer.name, inputs, output, window=parameters))
