"""Readers of ONNX's operators on images: of rank 4, channels first as ONNX has them, in float32."""

import numpy

from .operators import Unsupported, reads


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
    if node.get("group", 1) != 1:
        raise Unsupported(f"has group {node.get('group')}, expected 1")
    window = window_of(reader, node, weights.shape[2:])
    reader.made("Conv", node, [*node.inputs[:2], node.input(2), None], reader.inferred_shape(node.output), window=window)


@reads("MaxPool")
def max_pool(reader, node):
    image_of(reader, node)
    if any(node.outputs[1:]):
        raise Unsupported("has more than one output that is used")
    window = window_of(reader, node, node.get("kernel_shape"))
    reader.made("MaxPool", node, node.inputs[:1], reader.inferred_shape(node.output), window=window)


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
