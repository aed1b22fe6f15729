"""Readers of the fused operators that ONNX Runtime's optimizers write (com.microsoft), except attention (attention.py):
activations, normalizations of sums, embeddings and products."""

import numpy

from .lowering import Lowering
from .readers import Unsupported, reads


def _optional(node, count):
    return (*node.inputs, *[None] * count)[:count]


# ---- activations
@reads("com.microsoft.Gelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")
def gelu(reader, node):
    add = Lowering(reader, node)
    x, bias = _optional(node, 2)
    if bias is not None:
        x = add.do("add", x, bias)
    approximate = "tanh" if node.op == "FastGelu" else "none"
    add.done(_in_float32(add, x, lambda name: add.operator("Gelu", name, approximate=approximate)))


def _in_float32(add, x, function):
    """Applies `function` to x, in float32 if x is narrower."""
    dtype = add.dtype(x)
    return add.cast(function(add.cast(x, numpy.float32)), dtype) if dtype == numpy.float16 else function(x)


@reads("com.microsoft.QuickGelu")
def quick_gelu(reader, node):
    """x * sigmoid(alpha * x)"""
    add, x = Lowering(reader, node), node.inputs[0]
    alpha = node.get("alpha", 1.702)
    gate = add.operator("Sigmoid", x if alpha == 1 else add.do("multiply", x, alpha))
    add.done(add.do("multiply", x, gate))


@reads("com.microsoft.BiasAdd")
def bias_add(reader, node):
    add, (x, bias, skip) = Lowering(reader, node), node.inputs
    add.done(add.do("add", add.do("add", x, bias), skip))


@reads("com.microsoft.BiasSplitGelu")
def bias_split_gelu(reader, node):
    """The first half times GELU of the second half."""
    add, (x, bias) = Lowering(reader, node), node.inputs
    x = add.do("add", x, bias)
    last, half = len(add.shape(x)) - 1, add.shape(x)[-1] // 2
    left, right = add.part(x, last, 0, half), add.part(x, last, half, 2 * half)
    add.done(add.do("multiply", left, _in_float32(add, right, lambda name: add.operator("Gelu", name))))


# ---- normalizations
@reads("com.microsoft.SimplifiedLayerNormalization")
def simplified_layer_normalization(reader, node):
    add, (x, scale) = Lowering(reader, node), node.inputs
    if any(node.outputs[1:]):
        raise Unsupported("has the deviation as an output, which only training uses")
    add.done(add.operator("RMSNormalization", x, scale, axis=node.get("axis", -1), epsilon=node.get("epsilon", 1e-5)))


@reads("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def skip_layer_normalization(reader, node):
    add = Lowering(reader, node)
    simplified = node.op == "SkipSimplifiedLayerNormalization"
    x, skip, scale, beta, bias = (
        _optional(node, 5) if not simplified else (*_optional(node, 3), None, *_optional(node, 4)[3:])
    )
    outputs = (*node.outputs, "", "", "")[:4]
    if any(outputs[1:3]):
        raise Unsupported("has the mean or the deviation as an output, which only training uses")
    if bias is not None:
        x = add.do("add", x, bias)
    total = add.do("add", x, skip)
    epsilon = node.get("epsilon", 1e-12)
    if simplified:
        add.done(add.operator("RMSNormalization", total, scale, axis=-1, epsilon=epsilon))
    else:
        add.done(add.operator("LayerNormalization", total, scale, beta, axis=-1, epsilon=epsilon))
    if outputs[3]:
        add.done(total, outputs[3])


@reads("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(reader, node):
    add = Lowering(reader, node)
    ids, segments, words, positions, kinds, scale, beta, mask, position_ids = _optional(node, 9)
    batch, length = add.shape(ids)
    if position_ids is None:
        total = add.part(positions, 0, 0, length)
    else:
        total = add.operator("Gather", positions, position_ids)
    total = add.do("add", add.operator("Gather", words, ids), total)
    if segments is not None:
        total = add.do("add", total, add.operator("Gather", kinds, segments))
    y, counts, sum_output = (*node.outputs, "", "")[:3]
    add.done(add.operator("LayerNormalization", total, scale, beta, axis=-1, epsilon=node.get("epsilon", 1e-12)), y)
    if counts:
        if mask is None:
            add.done(add.expand(add.constant(0, numpy.int32), (batch,)), counts)
        else:
            add.done(add.reshape(add.reduce("sum", add.cast(mask, numpy.int32), [1]), (batch,)), counts)
    if sum_output:
        add.done(total, sum_output)


# ---- products
@reads("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def matmul(reader, node):
    """alpha * a @ b, each transposed as requested; `transBatch` moves the first dimension before the last one."""
    add = Lowering(reader, node)
    operands = []
    for name, side in zip(node.inputs, "AB"):
        rank = len(add.shape(name))
        order = list(range(rank))
        if node.get(f"transBatch{side}", 0):
            order = [*order[1:-1], 0, order[-1]]
        if node.get(f"trans{side}", 0) and rank > 1:
            order[-2:] = order[:-3:-1]
        values = reader.constant(name)
        if order == list(range(rank)):
            operands.append(name)
        elif values is not None:
            operands.append(add.constant(values.transpose(order), values.dtype))
        else:
            operands.append(add.transpose(name, order))
    result = add.operator("MatMul", *operands)
    alpha = node.get("alpha", 1.0)
    add.done(result if alpha == 1 else add.do("multiply", result, alpha))


def _activated(add, node, name):
    """The node's result after its fused activation."""
    kind, numbers = node.get("activation", ""), list(node.get("activation_params", ()))
    if kind in ("", "Relu", "Sigmoid", "Tanh"):
        return add.operator(kind, name) if kind else name
    if kind == "LeakyRelu":
        return add.operator(kind, name, alpha=numbers[0] if numbers else node.get("activation_alpha", 0.01))
    if kind == "Clip":
        bounds = [add.constant(number, add.dtype(name)) for number in numbers]
        return add.operator(kind, name, *bounds)
    if kind == "HardSigmoid":
        alpha, beta = numbers or (node.get("activation_alpha", 0.2), node.get("activation_beta", 0.5))
        return add.operator(kind, name, alpha=alpha, beta=beta)
    raise Unsupported(f"has the activation {kind}")


@reads("com.microsoft.FusedGemm")
def gemm(reader, node):
    add = Lowering(reader, node)
    attributes = {key: value for key, value in node.attributes.items() if not key.startswith("activation")}
    add.done(_activated(add, node, add.operator("Gemm", *node.inputs, **attributes)))


@reads("com.microsoft.FusedConv", "com.microsoft.NhwcConv", "com.microsoft.NhwcFusedConv")
def convolution(reader, node):
    """With an addend, which is added before the activation. In Nhwc variants images have channels last, and weights
    are those of Conv."""
    add = Lowering(reader, node)
    x, weights, bias, addend = _optional(node, 4)
    attributes = {key: value for key, value in node.attributes.items() if not key.startswith("activation")}
    channels_last = node.op.startswith("Nhwc")
    image = _channels_first(add, x) if channels_last else x
    result = add.operator("Conv", image, weights, *[bias] * (bias is not None), **attributes)
    if addend is not None:
        result = add.do("add", result, _channels_first(add, addend) if channels_last else addend)
    result = _activated(add, node, result)
    add.done(_channels_last(add, result) if channels_last else result)


def _channels_first(add, name):
    rank = len(add.shape(name))
    return add.transpose(name, (0, rank - 1, *range(1, rank - 1)))


def _channels_last(add, name):
    return add.transpose(name, (0, *range(2, len(add.shape(name))), 1))


# ONNX's image operators with channels last, in the domain of ONNX Runtime's layout transformer
_IMAGES = (
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "MaxPool",
)


@reads(*(f"com.ms.internal.nhwc.{op}" for op in _IMAGES))
def with_channels_last(reader, node):
    if any(node.outputs[1:]):
        raise Unsupported("has more outputs than its image")
    add, (x, *others) = Lowering(reader, node), node.inputs
    add.done(_channels_last(add, add.operator(node.op, _channels_first(add, x), *others, **dict(node.attributes))))
