"""Readers of ONNX's image operators: rank 4, channels first, float32 (windows.py has the others). Also of tensor
operators that can keep their operands as images, channels last; each of these returns whether it did."""

import math

import numpy

from .integer_products import MAX_TAPS, largest_bytes
from .lowering import Lowering
from .network import same_strides
from .readers import reads
from .windows import Window, averages, indices_of_largest, largest, sums, two_dimensional

# Operators that make images, and those that preserve them.
_IMAGE_PRODUCERS = {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Slice", "Shuffle", "Interleave"}
_IMAGE_PRESERVING = {"Relu", "Clip", "Unary", "Binary"}
_MAX_CONCAT_INPUTS = 256


def _pooled(reader, node, op, window, further=()):
    """Lowers to the engine's image pooling if it applies: one or two dimensions, float32, or maxima of bytes. Returns
    whether it does."""
    dtype = reader.dtype(node.inputs[0])
    if op == "MaxPool" and dtype in (numpy.uint8, numpy.int8) and len(window.kernel) <= 2:
        return _bytes_pooled(reader, node, window)
    if dtype != numpy.float32 or len(window.kernel) > 2:
        return False
    shape, one_dimensional = (*reader.shape(node.inputs[0])[:2], *window.result_sizes), len(window.kernel) == 1
    source = two_dimensional(reader, node, window)
    output, sizes = (
        (reader.network.fresh(f"{node.output}/pool"), (*shape[:2], 1, shape[2]))
        if one_dimensional
        else (node.output, shape)
    )
    reader.add_layer(
        op, node, [source], sizes, output=output, window=window.parameters(), further=further(window) if further else ()
    )
    if one_dimensional:
        reader.network.reshaped(node.output, output, shape)
    return True


def _bytes_pooled(reader, node, window):
    add = Lowering(reader, node)
    if math.prod(window.kernel) > MAX_TAPS:
        return False
    shape = (*add.shape(node.inputs[0])[:2], *window.result_sizes)
    source = two_dimensional(reader, node, window)
    add.done(add.reshape(largest_bytes(add, source, window.parameters(), window.result_sizes), shape))
    return True


@reads("MaxPool")
def max_pool(reader, node):
    window = Window(reader, node, node.get("kernel_shape"))
    if len(node.outputs) > 1 and node.outputs[1]:
        reader.same(node.outputs[1], indices_of_largest(reader, node, window))
    if node.outputs[0] and not _pooled(reader, node, "MaxPool", window):
        reader.same(node.output, largest(reader, node, window))


@reads("AveragePool")
def average_pool(reader, node):
    window = Window(reader, node, node.get("kernel_shape"))
    if not _pooled(
        reader, node, "AveragePool", window, lambda pool: (node.get("count_include_pad", 0), *pool.uncounted)
    ):
        reader.same(node.output, averages(reader, node, window))


@reads("LpPool")
def norm_pool(reader, node):
    add, p = Lowering(reader, node), node.get("p", 2)
    powers = add.do("power", add.do("absolute", node.inputs[0]), p)
    reader.same(node.output, add.do("power", sums(add, powers, Window(reader, node, node.get("kernel_shape"))), 1 / p))


@reads("GlobalLpPool")
def global_norm(reader, node):
    add, x, p = Lowering(reader, node), node.inputs[0], node.get("p", 2)
    powers = add.do("power", add.do("absolute", x), p)
    add.done(add.do("power", add.reduce("sum", powers, list(range(2, len(add.shape(x))))), 1 / p))


@reads("GlobalAveragePool")
def global_average_pool(reader, node):
    name = node.inputs[0]
    shape = reader.shape(name)
    if len(shape) == 4 and reader.dtype(name) == numpy.float32:
        reader.add_layer("GlobalAveragePool", node, [name], (*shape[:2], 1, 1))
    else:
        reader.same(node.output, Lowering(reader, node).mean(name, list(range(2, len(shape)))))


@reads("BatchNormalization")
def batch_normalization(reader, node):
    """Two layers, a product and a sum along the channels; passes.py folds them into the preceding convolution."""
    network, image = reader.network, node.inputs[0]
    parameters = [reader.constant(name) for name in node.inputs[1:]]
    if any(values is None for values in parameters) or node.get("training_mode", 0):
        _normalized_by_tensors(Lowering(reader, node))
        return
    scale, bias, mean, variance = (values.astype("float64") for values in parameters)
    factor = scale / numpy.sqrt(variance + node.get("epsilon", 1e-5))
    shape = (-1, *(1,) * (len(reader.shape(image)) - 2))
    values = {"factor": factor, "offset": bias - mean * factor}
    names = {
        key: network.constant(f"{node.output}/{key}", value.reshape(shape), reader.dtype(image))
        for key, value in values.items()
    }
    scaled = network.binary("multiply", node.name, image, names["factor"], network.fresh(f"{node.output}/scaled"))
    network.binary("add", node.name, scaled, names["offset"], node.output)


def _normalized_by_tensors(add):
    """Normalizes by computed parameters, or in training mode by the batch's own statistics, which some networks also
    use to normalize weights."""
    node, (x, scale, bias, mean, variance) = add.node, add.node.inputs
    channels, running = (-1, *(1,) * (len(add.shape(x)) - 2)), (mean, variance)
    if node.get("training_mode", 0):
        axes = [d for d in range(len(add.shape(x))) if d != 1]
        mean = add.mean(x, axes)
        centred = add.do("subtract", x, mean)
        variance = add.mean(add.do("multiply", centred, centred), axes)
        momentum = node.get("momentum", 0.9)
        for output, old, new in zip(node.outputs[1:], running, (mean, variance)):
            if output:
                new = add.do("multiply", add.reshape(new, add.shape(old)), 1 - momentum)
                add.done(add.do("add", add.do("multiply", old, momentum), new), output)
    else:
        centred, variance = add.do("subtract", x, add.reshape(mean, channels)), add.reshape(variance, channels)
    deviation = add.do("sqrt", add.do("add", variance, node.get("epsilon", 1e-5)))
    factor = add.do("divide", add.reshape(scale, channels), deviation)
    add.done(add.do("add", add.do("multiply", centred, factor), add.reshape(bias, channels)))


# ---- operators on tensors, where their operands are images
def are_images(reader, *names):
    """Whether the engine keeps all of these tensors as images: each is the result of an image operator, possibly after
    a chain of elementwise ones."""
    network = reader.network
    producers = network.producers_so_far()

    def of_images(name, depth):
        layer = producers.get(name)
        if (
            layer is None
            or name in network.views
            or network.dtype(name) != numpy.float32
            or len(network.shape(name)) != 4
            or depth == 0
        ):
            return False
        same_shape = [other for other in layer.inputs if other and network.shape(other) == network.shape(name)]
        return layer.op in _IMAGE_PRODUCERS or (
            layer.op in _IMAGE_PRESERVING and any(of_images(other, depth - 1) for other in same_shape[:1])
        )

    return all(of_images(name, 8) for name in names)


def concatenated(reader, node, axis, shape):
    if axis != 1 or len(node.inputs) > _MAX_CONCAT_INPUTS or not are_images(reader, *node.inputs):
        return False
    reader.add_layer("Concat", node, node.inputs, shape)
    return True


def channels_sliced(reader, node, output, first, count):
    """Makes `output` a slice of `count` channels of the node's first operand."""
    source = node.inputs[0]
    if count < 1 or not are_images(reader, source):
        return False
    size, _, height, width = reader.shape(source)
    reader.add_layer("Slice", node, [source], (size, count, height, width), output=output, further=(0, 0, 0, first))
    return True


def shuffled(reader, node, shape):
    """Reads the last of the three nodes of a channel shuffle: split channels into groups, swap groups and members,
    merge."""
    source, grouped_shape = node.inputs[0], reader.shape(node.inputs[0])
    view = reader.network.as_view(source)
    if (
        len(grouped_shape) != 5
        or not are_images(reader, view.base)
        or tuple(shape) != reader.shape(view.base)
        or view.offset != 0
    ):
        return False
    groups, strides = grouped_shape[2], view.strides
    if grouped_shape[3:] != tuple(shape[2:]) or not same_strides(
        (grouped_shape[0], groups, grouped_shape[1], *grouped_shape[3:]),
        (strides[0], strides[2], strides[1], *strides[3:]),
    ):
        return False
    producer = reader.network.producers_so_far()[view.base]
    halves = (
        producer.op == "Concat"
        and groups == 2
        and len({reader.shape(name) for name in producer.inputs}) == 1
        and len(producer.inputs) == 2
    )
    reader.add_layer("Shuffle", node, producer.inputs if halves else [view.base], shape, window=(1,) * 10 + (groups,))
    return True


def averaged(reader, node, axes):
    """The name of the mean over height and width, which keep size 1; None if it is not one of an image."""
    source = node.inputs[0]
    if axes != [2, 3] or not are_images(reader, source):
        return None
    return reader.add_layer(
        "GlobalAveragePool",
        node,
        [source],
        (*reader.shape(source)[:2], 1, 1),
        output=reader.network.fresh(f"{node.output}/pixel"),
    )
