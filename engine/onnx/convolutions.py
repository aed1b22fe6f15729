"""Readers of ONNX's convolutions. Those of float32 with constant weights are the engine's own (windows.py); others,
with computed weights or in float64, become matrix products over the windows."""

import itertools
import math

import numpy

from .lowering import Lowering
from .readers import Unsupported, reads
from .tensor_operators import numbers_of
from .transposed import TransposedWindow, spread_out, transposed
from .windows import Window, convolved, pads_within, trim_taps

_MAX_TAPS = 1 << 10  # elements of a window; each costs a copy


def _read_lowered(reader, node, computed):
    """Whether the engine's convolution does not take the node's weights or dtype, so that this file lowers it."""
    rank, dtype = len(reader.shape(node.inputs[1])) - 2, reader.dtype(node.inputs[0])
    if not 1 <= rank <= 3:
        raise Unsupported(f"has {rank} dimensions, expected 1 to 3")
    constant = all(name is None or reader.constant(name) is not None for name in node.inputs[1:])
    if constant and dtype == numpy.float32:
        return False
    (_in_float32 if dtype == numpy.float16 else computed)(reader, node)
    return True


@reads("Conv")
def convolution(reader, node):
    if _read_lowered(reader, node, _computed_convolution):
        return
    weights, bias = reader.constant(node.inputs[1]), reader.constant(node.input(2))
    window, groups = Window(reader, node, weights.shape[2:]), node.get("group", 1)
    trimmed = trim_taps(window, weights)
    if trimmed.shape != weights.shape:
        reader.same(node.output, convolved(Lowering(reader, node), node.inputs[0], trimmed, bias, window, groups))
    elif weights.ndim == 4 and pads_within(window):
        reader.add_layer(
            "Conv",
            node,
            [*node.inputs[:2], node.input(2), None],
            (reader.shape(node.inputs[0])[0], len(weights), *window.result_sizes),
            window=window.parameters(groups),
        )
    else:
        reader.same(node.output, convolved(Lowering(reader, node), node.inputs[0], weights, bias, window, groups))


@reads("ConvTranspose")
def transposed_convolution(reader, node):
    if not _read_lowered(reader, node, _computed_transposed):
        weights, bias = reader.constant(node.inputs[1]), reader.constant(node.input(2))
        reader.same(node.output, transposed(reader, node, weights, bias))


def _in_float32(reader, node):
    """float16, computed in float32."""
    add = Lowering(reader, node)
    operands = [name and add.cast(name, numpy.float32) for name in node.inputs]
    add.done(add.cast(add.operator(node.op, *operands, **node.attributes), numpy.float16))


def _computed_convolution(reader, node):
    add, (x, weights, bias) = Lowering(reader, node), (*node.inputs, None)[:3]
    window = Window(reader, node, add.shape(weights)[2:])
    add.done(_with_bias(add, _windows_times(add, x, weights, window, node.get("group", 1)), bias))


def _computed_transposed(reader, node):
    """A convolution over the operand with zeros inserted by the strides, with mirrored weights."""
    add, (x, weights, bias) = Lowering(reader, node), (*node.inputs, None)[:3]
    groups, weights_shape = node.get("group", 1), add.shape(weights)
    kernel, strides = weights_shape[2:], node.get("strides", (1,) * (len(weights_shape) - 2))
    window = TransposedWindow(reader, node, kernel, add.shape(x)[2:])
    window.after = [after - stride + 1 for after, stride in zip(window.after, strides)]
    swapped = add.reshape(weights, (groups, weights_shape[0] // groups, *weights_shape[1:]))
    swapped = add.transpose(swapped, (0, 2, 1, *range(3, len(weights_shape) + 1)))
    swapped = add.reshape(swapped, (groups * weights_shape[1], weights_shape[0] // groups, *kernel))
    for d in range(len(kernel)):
        swapped = add.reverse(swapped, d + 2)
    window.kernel = kernel
    add.done(_with_bias(add, _windows_times(add, spread_out(add, x, strides), swapped, window, groups), bias))


def _with_bias(add, result, bias):
    if bias is None:
        return result
    return add.do("add", result, add.reshape(bias, (add.shape(bias)[0], *(1,) * (len(add.shape(result)) - 2))))


def _windows_times(add, x, weights, window, groups):
    kernel, taps = add.shape(weights)[2:], math.prod(add.shape(weights)[2:])
    if taps > _MAX_TAPS:
        raise Unsupported(f"has computed weights and windows of {taps} elements, expected at most {_MAX_TAPS}")
    x = add.padded(x, (0, 0, *window.before), (0, 0, *window.after), 0)
    n, channels, outputs, sizes = *add.shape(x)[:2], add.shape(weights)[0], window.result_sizes
    if channels % groups or outputs % groups or add.shape(weights)[1] != channels // groups:
        raise Unsupported(f"has weights of the shape {add.shape(weights)} for {channels} channels in {groups} groups")

    def values_at(offsets):
        part = x
        for d, offset in enumerate(offsets):
            first = offset * window.dilations[d]
            last = first + (sizes[d] - 1) * window.strides[d] + 1
            part = add.part(part, d + 2, first, last, window.strides[d])
        return part

    offsets = list(itertools.product(*map(range, kernel)))
    if groups == channels == outputs:  # depthwise: no sums over channels
        flat, total = add.reshape(weights, (channels, taps)), None
        for tap, offset in enumerate(offsets):
            factor = add.reshape(add.part(flat, 1, tap, tap + 1), (channels, *(1,) * len(kernel)))
            product = add.do("multiply", values_at(offset), factor)
            total = product if total is None else add.do("add", total, product)
        return total
    inner = channels // groups
    columns = add.empty((n, groups, inner, taps, *sizes), add.dtype(x))
    for tap, offset in enumerate(offsets):
        add.put(add.part(columns, 3, tap, tap + 1), add.reshape(values_at(offset), (n, groups, inner, 1, *sizes)))
    columns = add.reshape(columns, (n, groups, inner * taps, math.prod(sizes)))
    rows = add.reshape(weights, (1, groups, outputs // groups, inner * taps))
    return add.reshape(add.matmul(rows, columns), (n, outputs, *sizes))


@reads("Col2Im")
def columns_to_image(reader, node):
    """Sums the values of overlapping windows at each position."""
    add, x = Lowering(reader, node), node.inputs[0]
    image, block = numbers_of(reader, node, 1, "image_shape"), numbers_of(reader, node, 2, "block_shape")
    rank = len(image)
    strides, dilations = node.get("strides", (1,) * rank), node.get("dilations", (1,) * rank)
    pads, taps = node.get("pads", (0,) * (2 * rank)), math.prod(block)
    counts = [
        (size + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1
        for d, size in enumerate(image)
    ]
    n, column_size, length = add.shape(x)
    if min((*image, *block, *counts)) < 1 or column_size % taps or math.prod(counts) != length:
        raise Unsupported(f"does not make images of {image} of windows of {block} in {add.shape(x)}")
    positions = numpy.zeros((1,) * (2 * rank), numpy.int64)
    inside = numpy.ones((1,) * (2 * rank), bool)
    for d in range(rank):
        offsets = numpy.arange(block[d])[:, None] * dilations[d] + numpy.arange(counts[d]) * strides[d] - pads[d]
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = offsets.shape
        offsets = offsets.reshape(shape)
        positions, inside = positions * image[d] + offsets, inside & (offsets >= 0) & (offsets < image[d])
    image_size = math.prod(image)
    indices = numpy.where(inside, positions, image_size).reshape(
        -1
    )  # positions outside the image go to an element after it
    zeros = add.network.expanded(
        add.fresh("nothing"), add.constant(0, add.dtype(x)), (n, column_size // taps, image_size + 1)
    )
    values = add.reshape(x, (n, column_size // taps, taps * length))
    sums = add.scattered(zeros, values, [indices], 2, "add")
    add.done(add.reshape(add.part(sums, 2, 0, image_size), (n, column_size // taps, *image)))


@reads("CausalConvWithState")
def causal_convolution(reader, node):
    """Depthwise, over the state (the previous elements) followed by the input."""
    add, (x, weights, bias, past) = Lowering(reader, node), (*node.inputs, None, None)[:4]
    (_, channels, length), kernel = add.shape(x), add.shape(weights)[2]
    if past is None:
        extended = add.padded(x, (0, 0, kernel - 1), (0, 0, 0), 0)
    else:
        extended = add.joined([past, x], 2) if kernel > 1 else x
    result = add.operator("Conv", extended, weights, bias, group=channels, kernel_shape=[kernel])
    activation = node.get("activation", "none")
    if activation in ("silu", "swish"):
        result = add.do("multiply", result, add.operator("Sigmoid", result))
    elif activation != "none":
        raise Unsupported(f"has the activation {activation!r}")
    add.done(result)
    if len(node.outputs) > 1 and node.outputs[1]:
        if kernel < 2:
            raise Unsupported("makes an empty state")
        add.done(add.part(extended, 2, length, length + kernel - 1), node.outputs[1])
