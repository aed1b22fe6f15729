"""Products whose weights have 8 or 4 bits, in blocks with a scale each: com.microsoft's MatMulNBits. Results stay
float32."""

import numpy
from onnx import helper

from vmhost.engine.quantize.errors import QuantizeError
from vmhost.engine.quantize.graphs import insert_nodes

BLOCK = 32
_DOMAIN = "com.microsoft"


def with_narrow_weights(graph, bits, block=BLOCK):
    """Changes products with constant weights in the Graph's model to MatMulNBits."""
    added, replaced, shared = [], [], {}
    for node in graph.graph.node:
        found = _weights(graph, node)
        if found is None:
            continue
        name, columns, bias = found
        key = name, columns.strides  # a product may read the weights transposed
        if key not in shared:
            shared[key] = _packed(graph, name, columns, bits, block)
        count, k = columns.shape
        product = node.output[0] if bias is None else graph.fresh(f"{node.output[0]}_product")
        new = helper.make_node(
            "MatMulNBits", [node.input[0], *shared[key]], [product], node.name, domain=_DOMAIN, K=k,
            N=count, bits=bits, block_size=block,
        )  # fmt: skip
        added.append((node, new))
        if bias is not None:
            added.append((node, helper.make_node("Add", [product, bias], [node.output[0]], f"{node.name}_bias")))
        replaced.append(node)
    if not replaced:
        raise QuantizeError("there is nothing to quantize: no product with constant weights of float32 in the model")
    insert_nodes(graph.graph, added)
    outputs = {node.output[0] for node in replaced}
    for node in [each for each in graph.graph.node if each.op_type in ("MatMul", "Gemm") and each.output[0] in outputs]:
        graph.graph.node.remove(node)
    if all(each.domain != _DOMAIN for each in graph.model.opset_import):
        graph.model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    graph.drop_dead_constants()
    return graph.model


def _weights(graph, node):
    """(the weights' name, the weights as [columns, k], the bias' name or None), or None if they cannot be narrow."""
    known = node.domain in ("", "ai.onnx") and node.op_type in ("MatMul", "Gemm")
    if not known or node.input[0] in graph.constants:
        return None
    values = graph.weights(node.input[1])
    if values is None or values.ndim != 2 or min(values.shape) < 2:
        return None
    if node.op_type == "MatMul":
        return node.input[1], values.T, None
    options = {each.name: each for each in node.attribute}
    if any(key in options and options[key].f != 1.0 for key in ("alpha", "beta")) or (
        "transA" in options and options["transA"].i
    ):
        return None
    columns = values if "transB" in options and options["transB"].i else values.T
    return node.input[1], columns, node.input[2] if len(node.input) > 2 and node.input[2] else None


def _packed(graph, name, columns, bits, block):
    """Names of the constants: integers, scales and zero points of blocks."""
    count, k = columns.shape
    blocks = -(-k // block)
    values = numpy.zeros((count, blocks * block), "float32")
    values[:, :k] = columns
    values = values.reshape(count, blocks, block)
    low = numpy.minimum(values.min(axis=2), 0.0)
    high = numpy.maximum(values.max(axis=2), 0.0)
    levels = (1 << bits) - 1
    scales = ((high - low) / levels).astype("float32")
    scales[scales == 0] = 1.0
    zeros = numpy.clip(numpy.rint(-low / scales), 0, levels)
    integers = numpy.clip(numpy.rint(values / scales[..., None]) + zeros[..., None], 0, levels).astype("uint8")
    zeros = zeros.astype("uint8")
    if bits == 4:
        integers = integers[..., 0::2] | integers[..., 1::2] << 4
        if blocks % 2:
            zeros = numpy.pad(zeros, ((0, 0), (0, 1)))
        zeros = zeros[:, 0::2] | zeros[:, 1::2] << 4
    return [
        graph.put(graph.fresh(f"{name}_integers"), numpy.ascontiguousarray(integers)),
        graph.put(graph.fresh(f"{name}_scales"), scales),
        graph.put(graph.fresh(f"{name}_zeros"), numpy.ascontiguousarray(zeros)),
    ]
