"""Integer convolutions, matrix products and means of bytes with constant weights, for the engine's integer product
(engine/src/models/integer_products.c): images channels last, weights packed in groups of four."""

import math

import numpy

from .readers import Unsupported

MAX_TAPS = 1 << 10  # TAPS_MAX of engine/src/models/byte_pooling.c
COLUMNS, QUAD = 32, 4  # QUANTIZED_COLUMNS and QUANTIZED_QUAD of engine/src/models/quantized_kernels.h


def convolved(add, node, x, zero, weights, zeros, bias, dtype, factors, limits):
    """The convolution `node` of the bytes `x` [n, channels, …] with constant `weights` [outputs, channels of a group,
    …], whose zero points are `zeros`, one for each output. The result is bytes within `limits` (zero point, lowest,
    highest), float32 scaled by `factors`, or (factors None) integer sums. `zero` is the name of x's zero point [1], or
    None."""
    rank = weights.ndim - 2
    if rank not in (1, 2, 3):
        raise Unsupported(f"convolves {rank} dimensions of bytes, expected 1 to 3")
    groups = node.get("group", 1)
    kernel, sizes, _ = _window(node, weights.shape[2:], add.shape(x)[2:])
    if rank == 3:
        return _convolved_volumes(add, x, zero, weights, zeros, bias, dtype, factors, limits, kernel, sizes, groups)
    image = add.reshape(x, (*add.shape(x)[:2], 1, add.shape(x)[2])) if rank == 1 else x
    weights = weights.reshape(*weights.shape[:2], *((1,) * (2 - rank)), *weights.shape[2:])
    result = _layer(add, image, zero, weights, zeros, bias, (*kernel, groups), sizes, dtype, factors, limits)
    return add.reshape(result, (add.shape(x)[0], len(weights), sizes[1])) if rank == 1 else result


def _convolved_volumes(add, x, zero, weights, zeros, bias, dtype, factors, limits, parameters, sizes, groups):
    """Three dimensions: each slice of the result is a convolution of an image whose channels are those of the slices
    that the window sees. `parameters`: five for each dimension."""
    n, channels, _, height, width = add.shape(x)
    (taps, stride, before, after, dilation), result_depth = parameters[::3], sizes[0]
    group_channels = channels // groups
    volume = add.padded(x, (0, 0, before, 0, 0), (0, 0, after, 0, 0), 0 if zero is None else zero)
    depth = add.shape(volume)[2]
    volume = add.reshape(volume, (n, groups, group_channels, depth, height, width))
    images = add.empty((n, result_depth, height, width, groups, taps, group_channels), add.dtype(x))
    for tap in range(taps):
        first = tap * dilation
        slices = add.part(volume, 3, first, first + (result_depth - 1) * stride + 1, stride)
        slices = add.reshape(
            add.transpose(slices, (0, 3, 4, 5, 1, 2)), (n, result_depth, height, width, groups, 1, group_channels)
        )
        add.put(add.part(images, 5, tap, tap + 1), slices)
    images = add.reshape(images, (n * result_depth, height, width, channels * taps))
    flat = weights.transpose(0, 2, 1, 3, 4).reshape(len(weights), -1, *weights.shape[3:])
    kernel = tuple(number for index, number in enumerate(parameters) if index % 3)
    images = add.transpose(images, (0, 3, 1, 2))
    result = _layer(add, images, zero, flat, zeros, bias, (*kernel, groups), sizes[1:], dtype, factors, limits)
    result = add.reshape(result, (n, result_depth, *add.shape(result)[1:]))
    return add.transpose(result, (0, 2, 1, 3, 4))


def _window(node, kernel, sizes):
    """Returns (first parameters of an image operator, five for each dimension, the result's sizes, whether padding is
    rounded up); for one dimension in two."""
    rank = len(kernel)
    strides, dilations = node.get("strides", (1,) * rank), node.get("dilations", (1,) * rank)
    pads, automatic = node.get("pads", (0,) * (2 * rank)), node.get("auto_pad", "NOTSET")
    before, after, counts, rounded_up = [], [], [], False
    for d, size in enumerate(sizes):
        reach = dilations[d] * (kernel[d] - 1) + 1
        begin, end = (pads[d], pads[rank + d]) if automatic == "NOTSET" else (0, 0)
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            padding = max(0, (-(-size // strides[d]) - 1) * strides[d] + reach - size)
            begin = padding // 2 if automatic == "SAME_UPPER" else padding - padding // 2
            end = padding - begin
        span = size + begin + end - reach
        count = span // strides[d] + 1
        if node.get("ceil_mode", 0) and span % strides[d] and count * strides[d] < size + begin:
            rounded_up, end, count = True, end + strides[d] - span % strides[d], count + 1
        before.append(begin)
        after.append(end)
        counts.append(count)
    one_dimensional = rank == 1
    numbers = ((1, kernel), (1, strides), (0, before), (0, after), (1, dilations))
    parameters = tuple(
        number for filler, per_dimension in numbers for number in (*[filler] * one_dimensional, *per_dimension)
    )
    return parameters, (*[1] * one_dimensional, *counts), rounded_up


def largest(add, node, x):
    """Maxima over the windows of an image of bytes; None if it is not such an image."""
    if len(add.shape(x)) != 4 or math.prod(node.get("kernel_shape")) > MAX_TAPS:
        return None
    kernel, sizes, _ = _window(node, node.get("kernel_shape"), add.shape(x)[2:])
    return largest_bytes(add, x, (*kernel, 1), sizes)


def largest_bytes(add, x, parameters, sizes):
    """The largest bytes of the windows (the 11 parameters of one) of an image [n, channels, height, width]."""
    image = add.transpose(x, (0, 2, 3, 1))
    if not add.network.is_dense(image):
        image = add.copy(image)
    shape = (add.shape(x)[0], *sizes, add.shape(x)[1])
    name = add.reader.add_layer(
        "ByteMaxPool", add.node, [image], shape, add.dtype(x), add.fresh("largest"), parameters=parameters
    )
    return add.transpose(name, (0, 3, 1, 2))


def multiplied(add, x, zero, weights, zeros, bias, dtype, factors, limits):
    """x @ weights.T for bytes [..., k] and constants [outputs, k]; arguments as in `convolved`."""
    shape = add.shape(x)
    rows = math.prod(shape[:-1]) if len(shape) > 1 else 1
    image = add.transpose(add.reshape(x, (1, 1, rows, shape[-1])), (0, 3, 1, 2))
    kernel = (1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    result = _layer(add, image, zero, weights[:, :, None, None], zeros, bias, kernel, (1, rows), dtype, factors, limits)
    return add.reshape(add.transpose(result, (0, 2, 3, 1)), (*shape[:-1], len(weights)))


def pooled(add, node, x, target, low, high):
    """Means of a quantized image, as windows of ones; None if the windows differ in their number of elements."""
    shape, network = add.shape(x.source), add.network
    if len(shape) != 4 or any(not isinstance(size, int) or type(size) is not int for size in shape[1:]):
        return None
    if node.op == "GlobalAveragePool":
        kernel, sizes = (*shape[2:], 1, 1, 0, 0, 0, 0, 1, 1, shape[1]), (1, 1)
    else:
        kernel, sizes, rounded_up = _window(node, node.get("kernel_shape"), shape[2:])
        if rounded_up or (any(kernel[4:8]) and not node.get("count_include_pad", 0)):
            return None
        kernel = (*kernel, shape[1])
    count = kernel[0] * kernel[1]
    if count > 1 << 12:
        return None
    weights = numpy.ones((shape[1], 1, *kernel[:2]), numpy.int8)
    factor = x.scale.reshape(()) / (target.scale.reshape(()) * numpy.float32(count))
    zero = network.constant(add.fresh("zero"), x.zero.reshape(1), x.dtype)
    factors = numpy.full(shape[1], factor, "float32")
    limits = (int(target.zero.reshape(())), low, high)
    zeros = numpy.zeros(shape[1], "int64")
    return _layer(add, x.source, zero, weights, zeros, None, kernel, sizes, target.dtype, factors, limits)


def _layer(add, x, zero, weights, zeros, bias, kernel, sizes, dtype, factors, limits):
    """Adds the layer; x and the result are [n, channels, height, width], with bytes channels last."""
    reader, groups = add.reader, kernel[10]
    image = add.transpose(x, (0, 2, 3, 1))
    if not add.network.is_dense(image):
        image = add.copy(image)
    outputs, channels = weights.shape[0], add.shape(x)[1]
    depthwise = groups == channels == outputs and groups > 1
    address = weights.__array_interface__["data"][0], weights.shape, weights.strides, weights.dtype.str
    # one layout for each dtype of the result; keeps `weights` alive, so that their address is not reused
    layout = reader.once(
        ("integer weights", address, zeros.tobytes(), groups, depthwise),
        lambda: (*_packed_layout(weights, zeros, groups, depthwise), weights),
    )
    packed, sums, zeros, parts = layout[:4]
    operands = [
        image,
        add.constant(packed, "int8"),
        add.constant(sums, "int32"),
        None if bias is None else add.constant(bias, "int32"),
        None if factors is None else add.constant(factors, "float32"),
        add.constant(zeros, "int32") if zeros.any() else None,
        zero,
    ]
    name = reader.add_layer(
        "IntegerProduct",
        add.node,
        operands,
        (add.shape(x)[0], *sizes, outputs),
        dtype,
        add.fresh("product"),
        parameters=(*kernel, *(limits or (0, 0, 0)), parts),
    )
    return add.transpose(name, (0, 3, 1, 2))


def _packed_layout(weights, zeros, groups, depthwise):
    """Returns (packed weights, their sums for each output, remaining zero points, number of parts that depthwise
    weights are split into)."""
    weights, zeros = _signed(weights, zeros, depthwise)
    outputs = weights.shape[0]
    flat = weights.reshape(groups, outputs // groups, *weights.shape[1:]).transpose(0, 1, 3, 4, 2)
    flat = flat.reshape(groups, outputs // groups, -1)
    sums = flat.sum(-1, dtype="int32").reshape(-1)
    if depthwise:
        parts = _parts(flat.reshape(outputs, -1))
        return numpy.concatenate(parts, 1).T[None, None, :, :, None], sums, zeros, len(parts)
    return _packed(flat.astype("int8"), zeros.any()), sums, zeros, 0


def _signed(weights, zeros, depthwise):
    """Returns (weights as int8, or int16 if depthwise; remaining zero points). They are subtracted if the differences
    fit."""
    differences = weights.astype("int16") - zeros.reshape(-1, 1, 1, 1).astype("int16")
    if depthwise or (differences.min() >= -128 and differences.max() <= 127):
        return differences, numpy.zeros_like(zeros)
    return (weights, zeros) if weights.dtype == numpy.int8 else (weights.astype("int16") - 128, zeros - 128)


def _parts(weights):
    """Splits weights into int8 arrays whose sum they are."""
    parts, remainder = [], weights.astype("int16")
    while not parts or remainder.any():
        parts.append(numpy.clip(remainder, -128, 127).astype("int8"))
        remainder = remainder - parts[-1]
    return parts


def _packed(weights, with_ones):
    """[groups, outputs, k] as [groups, slivers, quads, 32, 4], with an extra output of ones if zero points need it."""
    groups, outputs, k = weights.shape
    if with_ones:
        weights = numpy.concatenate([weights, numpy.ones((groups, 1, k), "int8")], 1)
        outputs += 1
    slivers, quads = -(-outputs // COLUMNS), -(-k // QUAD)
    padded = numpy.pad(weights, ((0, 0), (0, slivers * COLUMNS - outputs), (0, quads * QUAD - k)))
    return padded.reshape(groups, slivers, COLUMNS, quads, QUAD).transpose(0, 1, 3, 2, 4)
