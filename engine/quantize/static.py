"""int8 by pairs of QuantizeLinear and DequantizeLinear: uint8 with a zero point for computed tensors, int8 per output
channel for weights, int32 for biases, as the processors' instructions for sums of bytes need them."""

import numpy
from onnx import helper

from vmhost.engine.quantize.errors import QuantizeError
from vmhost.engine.quantize.graphs import insert_nodes, pair

_PRODUCTS = ("Conv", "Gemm", "MatMul")
# On images these run on bytes between convolutions.
_SAME = ("MaxPool", "Flatten", "Reshape", "Transpose")  # the result has the range of the operand
_IMAGES = (
    *_SAME, "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Clip", "Relu", "HardSwish", "Sigmoid",
    "HardSigmoid", "LeakyRelu",
)  # fmt: skip
_BOUNDS = ("Relu", "Clip")
_BIAS_MAX = 1 << 30  # leaves as much room for the sum of products that the bias is added to


def quantized_tensors(graph):
    """(names of tensors to quantize, the products that read them)."""
    tensors, products, on_bytes = {}, [], set()
    for node in graph.graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _PRODUCTS and _weights(graph, node) is not None and node.input[0] not in graph.constants:
            tensors[node.input[0]] = None
            products.append(node)
            on_bytes.add(node.output[0])
        elif node.op_type in _BOUNDS and node.input[0] in on_bytes and _alone(graph, node.input[0]):
            on_bytes.discard(node.input[0])
            on_bytes.add(node.output[0])
        elif (
            node.op_type in _IMAGES
            and len(node.output) == 1
            and (_on_image(graph, node) or node.op_type in ("Flatten", "Reshape") and node.input[0] in on_bytes)
        ):
            floats = [name for name in node.input if graph.is_float(name)]
            if floats and all(name in on_bytes for name in floats) and _operands_computed(graph, node):
                tensors.update(dict.fromkeys(floats))
                on_bytes.add(node.output[0])
    if not products:
        raise QuantizeError(
            "there is nothing to quantize: no convolution and no product with constant weights of float32 in the model"
        )
    return list(tensors), products, on_bytes


def _on_image(graph, node):
    return graph.ranks.get(node.input[0]) == 4


def _operands_computed(graph, node):
    """Whether Add and the like combine two computed tensors, not one with a constant."""
    return node.op_type not in ("Add", "Mul") or all(name not in graph.constants for name in node.input)


def _alone(graph, name):
    return len(graph.readers.get(name, ())) == 1 and name not in graph.outputs


def _weights(graph, node):
    """(the weights as an array, the axis of outputs), or None."""
    values = graph.weights(node.input[1])
    if values is None:
        return None
    if node.op_type == "Conv":
        return values, 0
    options = {each.name: each for each in node.attribute}
    if node.op_type == "Gemm":
        usual = all(key not in options or options[key].f == 1.0 for key in ("alpha", "beta"))
        if not usual or ("transA" in options and options["transA"].i):
            return None
        return values, 0 if "transB" in options and options["transB"].i else 1
    return (values, 1) if values.ndim == 2 else None


def statically(graph, ranges):
    """Changes the Graph's model to int8. `ranges` has (min, max) of each of its quantized_tensors."""
    tensors, products, on_bytes = quantized_tensors(graph)
    ranges, added, dequantized, tensor_scales = dict(ranges), [], {}, {}
    for node in graph.graph.node:
        if node.op_type in _SAME and node.input[0] in ranges and node.output[0] in ranges:
            ranges[node.output[0]] = ranges[node.input[0]]
    producers = {name: node for node in graph.graph.node for name in node.output}
    following = dict(zip(map(id, graph.graph.node), [*list(graph.graph.node)[1:], None]))
    last = []
    for name in tensors:
        low, high = ranges[name]
        scale = numpy.float32((high - low) / 255.0) or numpy.float32(1.0)
        zero = numpy.uint8(min(255, max(0, round(-low / float(scale)))))
        tensor_scales[name] = scale
        names = (
            graph.put(graph.fresh(f"{name}_scale"), numpy.array(scale, "float32")),
            graph.put(graph.fresh(f"{name}_zero"), numpy.array(zero, "uint8")),
        )
        nodes, dequantized[name] = pair(graph, name, *names)
        producer = producers.get(name)
        before = None if producer is None else following[id(producer)]
        if producer is not None and before is None:
            last += nodes
        else:
            added += [(before if producer is not None else None, node) for node in nodes]
    readers = {id(node) for node in products}
    for node in graph.graph.node:
        on_image = node.output and node.output[0] in on_bytes
        for i, name in enumerate(node.input):
            if name in dequantized and (name in on_bytes or id(node) in readers and i == 0 or on_image):
                node.input[i] = dequantized[name]
    shared = {}
    for node in products:
        values, axis = _weights(graph, node)
        scale = tensor_scales[_source_of(dequantized, node.input[0])]
        name, count = node.input[1], values.shape[axis]
        bias = graph.weights(node.input[2]) if len(node.input) > 2 else None
        if bias is not None and bias.shape not in ((count,), (1, count)):  # a number for each row, or one for all
            bias = None
        scales = _scales(values, axis, bias, scale)
        key = name, axis, scales.tobytes()
        if key not in shared:
            shared[key] = _narrowed(graph, name, values, axis, scales, added)
        node.input[1] = shared[key]
        if bias is not None:
            node.input[2] = _bias(graph, node.input[2], bias.reshape(-1), scale * scales, added)
    insert_nodes(graph.graph, added)
    graph.graph.node.extend(last)
    graph.drop_dead_constants()
    return graph.model


def _source_of(dequantized, out):
    return next(name for name, result in dequantized.items() if result == out)


def _scales(values, axis, bias, unit):
    """The scale of each output's weights. The bias, in units of the product of the scales, must be within int32: small
    weights beside a large bias get a larger scale."""
    other_axes = tuple(d for d in range(values.ndim) if d != axis)
    scales = numpy.abs(values).max(axis=other_axes).astype("float64") / 127.0
    if bias is not None:
        smallest = numpy.maximum(numpy.abs(bias.reshape(-1)) / _BIAS_MAX, numpy.finfo("float32").tiny)
        scales = numpy.maximum(scales, smallest / float(unit))
    scales = scales.astype("float32")
    scales[scales == 0] = 1.0
    return scales


def _narrowed(graph, name, values, axis, scales, added):
    """The name of the weights after DequantizeLinear."""
    shape = [1] * values.ndim
    shape[axis] = -1
    integers = numpy.clip(numpy.rint(values / scales.reshape(shape)), -127, 127).astype("int8")
    out = graph.fresh(f"{name}_again")
    operands = [
        graph.put(graph.fresh(f"{name}_integers"), integers),
        graph.put(graph.fresh(f"{name}_scale"), scales),
        graph.put(graph.fresh(f"{name}_zero"), numpy.zeros(len(scales), "int8")),
    ]
    added.append((None, helper.make_node("DequantizeLinear", operands, [out], name=f"{out}_of", axis=axis)))
    return out


def _bias(graph, name, values, units, added):
    integers = numpy.clip(numpy.rint(values.astype("float64") / units), -_BIAS_MAX, _BIAS_MAX).astype("int32")
    out = graph.fresh(f"{name}_again")
    operands = [
        graph.put(graph.fresh(f"{name}_integers"), integers),
        graph.put(graph.fresh(f"{name}_scale"), units.astype("float32")),
    ]
    added.append((None, helper.make_node("DequantizeLinear", operands, [out], name=f"{out}_of", axis=0)))
    return out
