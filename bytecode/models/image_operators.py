"""Readers of ONNX's operators on images: of rank 4, channels first as ONNX has them, in float32; and of those on tensors that can stay on
images, channels last: each of these says whether it did."""

import numpy

from .network import contiguous
from .operators import Unsupported, reads

_MAKERS = {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Slice", "Shuffle"}        # of images
_KEEPERS = {"Relu", "Clip", "Unary", "Binary"}
_CONCAT_MOST = 256


def image_of(reader, node):
    """The node's first operand, which is an image."""
    name = node.inputs[0]
    if len(reader.shape(name)) != 4:
        raise Unsupported("is not two-dimensional")
    if reader.dtype(name) != numpy.float32:
        raise Unsupported(f"works on {reader.dtype(name)}, expected float32")
    return name


def window_of(reader, node, kernel):
    """The window's parameters; padding is made explicit, and longer at the end where sizes are rounded up."""
    strides, dilations = node.get("strides", (1, 1)), node.get("dilations", (1, 1))
    begin, end = list(node.get("pads", (0,) * 4)[:2]), list(node.get("pads", (0,) * 4)[2:])
    sizes, made = reader.shape(node.inputs[0])[2:], reader.inferred_shape(node.output)[2:]
    automatic = node.get("auto_pad", "NOTSET")
    for d in range(2):
        needed = (made[d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            whole = max(0, needed - sizes[d])
            begin[d] = whole // 2 if automatic == "SAME_UPPER" else whole - whole // 2
            end[d] = whole - begin[d]
        end[d] = max(end[d], needed - sizes[d] - begin[d])
    return (*kernel, *strides, *begin, *end, *dilations, 1)


@reads("Conv")
def convolution(reader, node):
    image_of(reader, node)
    weights = reader.constant(node.inputs[1])
    if weights is None or (node.input(2) and reader.constant(node.input(2)) is None):
        raise Unsupported("has weights that are not constant")
    window = (*window_of(reader, node, weights.shape[2:])[:-1], node.get("group", 1))
    reader.made("Conv", node, [*node.inputs[:2], node.input(2), None], reader.inferred_shape(node.output), window=window)


@reads("MaxPool")
def max_pool(reader, node):
    image_of(reader, node)
    if any(node.outputs[1:]):
        raise Unsupported("has more than one output that is used")
    window = window_of(reader, node, node.get("kernel_shape"))
    reader.made("MaxPool", node, node.inputs[:1], reader.inferred_shape(node.output), window=window)


@reads("AveragePool")
def average_pool(reader, node):
    image_of(reader, node)
    window, pads = window_of(reader, node, node.get("kernel_shape")), node.get("pads", (0,) * 4)
    explicit = node.get("auto_pad", "NOTSET") == "NOTSET"       # what is longer than said comes of rounding up, and never counts
    uncounted = (window[6] - pads[2], window[7] - pads[3]) if explicit else (0, 0)
    reader.made("AveragePool", node, node.inputs[:1], reader.inferred_shape(node.output), window=window,
                further=(node.get("count_include_pad", 0), *uncounted))


@reads("GlobalAveragePool")
def global_average_pool(reader, node):
    image = image_of(reader, node)
    reader.made("GlobalAveragePool", node, [image], (*reader.shape(image)[:2], 1, 1))


@reads("BatchNormalization")
def batch_normalization(reader, node):
    """Two layers, a product and a sum along the channels; they go into the convolution before them (passes.py)."""
    network, image = reader.network, node.inputs[0]
    parameters = [reader.constant(name) for name in node.inputs[1:]]
    if any(values is None for values in parameters) or node.get("training_mode", 0):
        raise Unsupported("is not made for inference")
    scale, bias, mean, variance = (values.astype("float64") for values in parameters)
    factor = scale / numpy.sqrt(variance + node.get("epsilon", 1e-5))
    shape = (-1, *(1,) * (len(reader.shape(image)) - 2))
    values = {"factor": factor, "offset": bias - mean * factor}
    names = {key: network.constant(f"{node.output}/{key}", value.reshape(shape), reader.dtype(image)) for key, value in values.items()}
    scaled = network.binary("multiply", node.name, image, names["factor"], network.fresh(f"{node.output}/scaled"))
    network.binary("add", node.name, scaled, names["offset"], node.output)


# ---- operators on tensors, where their operands are images
def lies_as_image(reader, *names):
    """Whether the engine keeps all of these tensors as images: an operator on images makes each, or a chain of elementwise ones behind one."""
    network, makers = reader.network, reader.network.makers()

    def of_images(name, depth):
        layer = makers.get(name)
        if layer is None or name in network.views or network.dtype(name) != numpy.float32 or len(network.shape(name)) != 4 or depth == 0:
            return False
        same = [other for other in layer.inputs if other and network.shape(other) == network.shape(name)]
        return layer.op in _MAKERS or (layer.op in _KEEPERS and any(of_images(other, depth - 1) for other in same[:1]))

    return all(of_images(name, 8) for name in names)


def concatenated(reader, node, axis, shape):
    if axis != 1 or len(node.inputs) > _CONCAT_MOST or not lies_as_image(reader, *node.inputs):
        return False
    reader.made("Concat", node, node.inputs, shape)
    return True


def channels_sliced(reader, node, output, first, count):
    """`output` are `count` channels of the node's first operand."""
    source = node.inputs[0]
    if count < 1 or not lies_as_image(reader, source):
        return False
    size, _, height, width = reader.shape(source)
    reader.made("Slice", node, [source], (size, count, height, width), output=output, further=(0, 0, 0, first))
    return True


def shuffled(reader, node, shape):
    """The last of three: channels are split into groups, groups and members change places, and they are channels again."""
    source, grouped = node.inputs[0], reader.shape(node.inputs[0])
    view = reader.network.as_view(source)
    if len(grouped) != 5 or not lies_as_image(reader, view.base) or tuple(shape) != reader.shape(view.base) or view.offset != 0:
        return False
    strides, groups = contiguous((grouped[0], grouped[2], grouped[1], *grouped[3:])), grouped[2]
    if grouped[3:] != tuple(shape[2:]) or view.strides != (strides[0], strides[2], strides[1], *strides[3:]):
        return False
    whole = reader.network.makers()[view.base]
    halves = whole.op == "Concat" and groups == 2 and len({reader.shape(name) for name in whole.inputs}) == 1 and len(whole.inputs) == 2
    reader.made("Shuffle", node, whole.inputs if halves else [view.base], shape, window=(1,) * 10 + (groups,))
    return True


def averaged(reader, node, axes):
    """The mean over height and width, which stay with size 1; its name, or None."""
    source = node.inputs[0]
    if axes != [2, 3] or not lies_as_image(reader, source):
        return None
    return reader.made("GlobalAveragePool", node, [source], (*reader.shape(source)[:2], 1, 1), output=reader.network.fresh(f"{node.output}/pixel"))
