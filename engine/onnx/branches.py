"""Merges branches that convolve the same image and are added: into one convolution with the sum of their kernels.

Networks are trained with several branches for each block (RepVGG, MobileOne, FastViT): kernels of several sizes, and
the image itself, each scaled by a batch normalization. All of that is linear, so one kernel does the same."""

from typing import NamedTuple

import numpy

from .network import Layer, is_binary


class Branch(NamedTuple):
    """What an addend does to the image `source`: a convolution, or a `factor` and `offset` for each channel."""

    source: str
    window: tuple | None = None  # 11 parameters, as of an image operator
    weights: str | None = None
    bias: str | None = None
    factor: tuple = ()
    offset: tuple = ()


def merge_branches(network, read_once, channels):
    """Merges pairs of branches; returns whether it changed the network. read_once(network) has the names of tensors
    that a single layer reads; channels(network, constant, image) has the constant's value for each channel, or None."""
    producers, summed, kept = {}, {}, []
    single, changed = read_once(network), False

    def branch(name, of=None):
        """The branch whose result is the tensor, or None. `of` names an image that is itself a branch."""
        layer = producers.get(name)
        if name == of or layer is None or name not in single:
            return Branch(name) if name == of else None
        if layer.op == "Conv":
            source, weights, bias, addend = layer.inputs
            plain = addend is None and not layer.activated and not layer.further
            return Branch(source, layer.window, weights, bias) if plain and weights in network.constants else None
        return _affine(layer)

    def _affine(layer):
        """The factors and offsets for each channel that the layer and those before it apply, as a branch, or None."""
        for op in ("multiply", "add", "subtract"):
            constants = [name for name in layer.inputs if name in network.constants]
            if (
                not is_binary(layer, op)
                or len(constants) != 1
                or (op == "subtract" and constants[0] == layer.inputs[0])
            ):
                continue
            [image] = [name for name in layer.inputs if name != constants[0]]
            values = channels(network, constants[0], image)
            if values is None or network.shape(layer.output) != network.shape(image):
                return None
            before = producers.get(image)
            inner = _affine(before) if image in single and before is not None and before.op == "Binary" else None
            inner = inner or Branch(image, factor=(1.0,) * len(values), offset=(0.0,) * len(values))
            factor, offset = numpy.array(inner.factor), numpy.array(inner.offset)
            if op == "multiply":
                factor, offset = factor * values, offset * values
            else:
                offset = offset + (values if op == "add" else -values)
            return inner._replace(factor=tuple(factor), offset=tuple(offset))
        return None

    for layer in network.layers:
        op = next((op for op in ("add", "subtract") if is_binary(layer, op)), None)
        if op and len(network.shape(layer.output)) == 4 and not set(layer.inputs) & network.constants.keys():
            merged = _merged(network, layer, -1 if op == "subtract" else 1, branch, summed)
            if merged is not None:
                layer, changed = merged, True
        producers[layer.output] = layer
        kept.append(layer)
    network.layers = kept
    return changed


def _merged(network, layer, sign, branch, summed):
    """The convolution that replaces the addition, or None."""
    first_name, second_name = layer.inputs
    first, second = branch(first_name), branch(second_name)
    if first is None and second is not None and second.window:
        first = branch(first_name, second.source if first_name == second.source else None)
    if second is None and first is not None and first.window:
        second = branch(second_name, first.source if second_name == first.source else None)
    if first is None or second is None or first.source != second.source or not (first.window or second.window):
        return None
    windows = [addend.window for addend in (first, second) if addend.window]
    if len(windows) == 1:  # the other is the image itself, perhaps scaled
        unscaled = not (first.factor or second.factor)
        if network.shape(first.source) != network.shape(layer.output):
            return None
        if unscaled and windows[0][10] != network.shape(first.source)[1]:
            return None  # a dense convolution adds the image at no cost
    window = _union(windows)
    if window is None:
        return None
    key = (first, second, sign)
    if key not in summed:
        summed[key] = _summed(network, layer, first, second, sign, window)
    return Layer("Conv", layer.name, [first.source, *summed[key], None], layer.output, window=window)


def _union(windows):
    """The window that covers one window and the image's own element, or two windows. None if the engine has no such
    window, or its product costs more."""
    if len(windows) == 1:  # the other is the image itself: a window of one element
        windows = [windows[0], (1, 1, 1, 1, 0, 0, 0, 0, 1, 1, windows[0][10])]
    one, two = windows
    if one[2:4] != two[2:4] or one[10] != two[10]:
        return None
    sizes, befores, afters, dilations = [], [], [], []
    for d in range(2):
        step = next((window[8 + d] for window in windows if window[d] > 1), 1)
        if any(window[d] > 1 and window[8 + d] != step for window in windows):
            return None
        low = min(-window[4 + d] for window in windows)
        lasts = [step * (window[d] - 1) - window[4 + d] for window in windows]
        high = max(lasts)
        if any((-window[4 + d] - low) % step for window in windows):
            return None
        after = max(window[6 + d] - last for window, last in zip(windows, lasts)) + high
        if not (0 <= -low <= high - low and 0 <= after <= high - low):
            return None
        sizes.append((high - low) // step + 1)
        befores.append(-low)
        afters.append(after)
        dilations.append(step)
    if sizes[0] * sizes[1] > one[0] * one[1] + two[0] * two[1]:  # a row and a column would become a square
        return None
    return (*sizes, *one[2:4], *befores, *afters, *dilations, one[10])


def _summed(network, layer, first, second, sign, window):
    """The names of the summed weights and bias."""
    groups, inner, outputs = window[10], network.shape(first.source)[1], network.shape(layer.output)[1]
    weights = numpy.zeros((outputs, inner // groups, *window[:2]))
    bias = numpy.zeros(outputs)
    for addend, factor in ((first, 1), (second, sign)):
        addend_window, low = addend.window or (1, 1, 1, 1, 0, 0), window[4:6]
        begins = [(low[d] - addend_window[4 + d]) // window[8 + d] for d in range(2)]
        if addend.window:
            kernel = network.constants[addend.weights].astype("float64")
            bias += factor * network.constants[addend.bias] if addend.bias else 0
        else:
            kernel = numpy.zeros((outputs, inner // groups, 1, 1))
            channel = numpy.arange(outputs)
            kernel[channel, channel % (inner // groups), 0, 0] = addend.factor or 1
            bias += factor * numpy.array(addend.offset or 0)
        weights[:, :, begins[0] : begins[0] + addend_window[0], begins[1] : begins[1] + addend_window[1]] += (
            factor * kernel
        )
    biased = first.bias or second.bias or first.offset or second.offset
    return (
        network.constant(f"{layer.output}/weights", weights, "float32"),
        network.constant(f"{layer.output}/bias", bias, "float32") if biased else None,
    )
