"""Readers of ONNX's operators that sample images at computed positions: grids, regions, deformable convolutions."""

import math

import numpy

from .lowering import Lowering
from .network import float_bits
from .readers import Unsupported, reads
from .sizes import is_open
from .tensor_operators import numbers_of

_MODES = {"nearest": 0, "linear": 1, "bilinear": 1, "cubic": 2, "bicubic": 2}
_PADDING_MODES = {"zeros": 0, "border": 1, "reflection": 2}
_EDGES, _CORNERS, _PIXELS = range(3)
_AVERAGE, _MAXIMUM, _PIXEL_MAXIMA = range(3)


def chosen(node, attribute, choices, default):
    """Maps a string attribute to its choice."""
    text = node.get(attribute, default)
    if text not in choices:
        raise Unsupported(f"has the {attribute} {text!r}, expected one of {', '.join(map(repr, choices))}")
    return choices[text]


def floats_for(add, *names):
    """The float dtype to compute in: float64 if a tensor has float64 or integers of 32 bits or more, else float32."""
    wide = any(add.dtype(name) == numpy.float64 or add.dtype(name).name in _LONG for name in names)
    return numpy.dtype(numpy.float64 if wide else numpy.float32)


_LONG = ("int32", "int64", "uint32", "uint64")


def _sampled(add, x, grid, shape, mode, padding_mode, coordinates):
    return add.reader.add_layer(
        "Sample", add.node, [x, grid], shape, output=add.fresh("sampled"), parameters=(mode, padding_mode, coordinates)
    )


@reads("GridSample")
def grid_sample(reader, node):
    add, (x, grid) = Lowering(reader, node), node.inputs
    x_shape, grid_shape = add.shape(x), add.shape(grid)
    if len(x_shape) not in (4, 5):
        raise Unsupported(f"has {len(x_shape) - 2} dimensions, expected 2 or 3")
    if len(grid_shape) != len(x_shape) or grid_shape[-1] != len(x_shape) - 2:
        raise Unsupported(f"has a grid of the shape {grid_shape} for x of {x_shape}")
    dtype = floats_for(add, x, grid)
    parameters = (
        chosen(node, "mode", _MODES, "linear"),
        chosen(node, "padding_mode", _PADDING_MODES, "zeros"),
        _CORNERS if node.get("align_corners", 0) else _EDGES,
    )
    result = _sampled(add, add.cast(x, dtype), add.cast(grid, dtype), (*x_shape[:2], *grid_shape[1:-1]), *parameters)
    add.done(add.cast(result, add.dtype(x)))


@reads("AffineGrid")
def affine_grid(reader, node):
    """Coordinates from -1 to 1 in each dimension, multiplied by the matrices."""
    add, theta = Lowering(reader, node), node.inputs[0]
    sizes = numbers_of(reader, node, 1, "size")
    dtype, images = add.dtype(theta), sizes[2:]
    rank = len(images)
    if rank not in (2, 3) or add.shape(theta)[1:] != (rank, rank + 1):
        raise Unsupported(f"has matrices of the shape {add.shape(theta)} for the size {sizes}")
    coordinates = add.empty((*images, rank + 1), dtype)
    for d, size in enumerate(images):  # the last dimension's coordinate first
        index = add.cast(add.arange(size), dtype)
        if node.get("align_corners", 0):
            axis_coordinates = add.do("subtract", add.do("multiply", index, _ratio(add, 2, size - 1, dtype)), 1)
        else:
            axis_coordinates = add.do(
                "subtract", add.do("multiply", add.do("add", index, 0.5), _ratio(add, 2, size, dtype)), 1
            )
        axis_coordinates = add.reshape(axis_coordinates, [size if e == d else 1 for e in range(rank + 1)])
        add.put(add.part(coordinates, rank, rank - 1 - d, rank - d), axis_coordinates)
    add.put(add.part(coordinates, rank, rank, rank + 1), 1)
    rows = add.reshape(coordinates, (1, math.prod(images), rank + 1))
    result = add.matmul(rows, add.transpose(theta, (0, 2, 1)))
    add.done(add.reshape(result, (add.shape(theta)[0], *images, rank)))


def _ratio(add, numerator, denominator, dtype):
    """whole / parts as a tensor; 0 if parts is 0."""
    if not is_open(denominator):
        return add.constant(numerator / denominator if denominator else 0, dtype)
    return add.do("divide", add.constant(numerator, dtype), add.do("maximum", add.constant(denominator, dtype), 1))


def _regions(add, x, regions, images, shape, *parameters):
    return add.reader.add_layer(
        "Regions", add.node, [x, regions, images], shape, output=add.fresh("regions"), parameters=parameters
    )


@reads("RoiAlign")
def align_regions(reader, node):
    add, (x, regions, images) = Lowering(reader, node), node.inputs
    dtype = floats_for(add, x)
    mode = chosen(node, "mode", {"avg": _AVERAGE, "max": _MAXIMUM}, "avg")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half = chosen(node, "coordinate_transformation_mode", {"half_pixel": 1, "output_half_pixel": 0}, default)
    shape = (
        add.shape(regions)[0],
        add.shape(x)[1],
        _positive(node, "output_height", 1),
        _positive(node, "output_width", 1),
    )
    ratio = node.get("sampling_ratio", 0)
    if ratio < 0:
        raise Unsupported(f"has the sampling_ratio {ratio}, expected 0 or more")
    operands = (add.cast(x, dtype), add.cast(regions, dtype), add.cast(images, numpy.int64))
    result = _regions(add, *operands, shape, mode, ratio, float_bits(node.get("spatial_scale", 1.0)), half)
    add.done(add.cast(result, add.dtype(x)))


def _positive(node, attribute, default=None):
    number = node.get(attribute, default)
    if number is None or number < 1:
        raise Unsupported(f"has the {attribute} {number}, expected at least 1")
    return number


@reads("MaxRoiPool")
def pool_regions(reader, node):
    """Each row of `regions` begins with the index of its image."""
    add, (x, regions) = Lowering(reader, node), node.inputs
    dtype, [height, width] = floats_for(add, x), node.get("pooled_shape")
    images = add.reshape(add.cast(add.part(regions, 1, 0, 1), numpy.int64), (add.shape(regions)[0],))
    corners = add.cast(add.part(regions, 1, 1, 5), dtype)
    shape = (add.shape(regions)[0], add.shape(x)[1], height, width)
    scale = float_bits(node.get("spatial_scale", 1.0))
    result = _regions(add, add.cast(x, dtype), corners, images, shape, _PIXEL_MAXIMA, 0, scale, 0)
    add.done(add.cast(result, add.dtype(x)))


@reads("DeformConv")
def deformable_convolution(reader, node):
    """Samples each tap of each window at its offset, then multiplies by the weights."""
    add, (x, weights, offsets, bias, mask) = Lowering(reader, node), (*node.inputs, None, None)[:5]
    n, channels, height, width = add.shape(x)
    kernel, groups, offset_groups = add.shape(weights)[2:], node.get("group", 1), node.get("offset_group", 1)
    if len(kernel) != 2:
        raise Unsupported(f"has {len(kernel)} dimensions, expected 2")
    sizes, taps, outputs = add.shape(offsets)[2:], math.prod(kernel), add.shape(weights)[0]
    strides, dilations = node.get("strides", (1, 1)), node.get("dilations", (1, 1))
    pads, dtype = node.get("pads", (0, 0, 0, 0)), floats_for(add, x)
    tap_positions = numpy.stack(
        [
            numpy.broadcast_to(
                (numpy.arange(sizes[d]) * strides[d] - pads[d]).reshape((1, 1, -1, 1) if d == 0 else (1, 1, 1, -1))
                + (numpy.arange(kernel[d]) * dilations[d]).reshape((-1, 1, 1, 1) if d == 0 else (1, -1, 1, 1)),
                (*kernel, *sizes),
            )
            for d in range(2)
        ]
    ).reshape(2, taps, *sizes)
    shifts = add.reshape(add.cast(offsets, dtype), (n * offset_groups, taps, 2, *sizes))
    positions = add.do(
        "add", add.transpose(shifts, (0, 1, 3, 4, 2)), add.constant(tap_positions.transpose(1, 2, 3, 0), dtype)
    )
    grid = add.joined([add.part(positions, 4, 1, 2), add.part(positions, 4, 0, 1)], 4)  # x, then y
    grid = add.reshape(grid, (n * offset_groups, taps, *sizes, 2))
    images = add.reshape(add.cast(x, dtype), (n * offset_groups, channels // offset_groups, height, width))
    shape = (n * offset_groups, channels // offset_groups, taps, *sizes)
    columns = _sampled(add, images, grid, shape, _MODES["linear"], _PADDING_MODES["zeros"], _PIXELS)
    if mask is not None:
        columns = add.do("multiply", columns, add.reshape(add.cast(mask, dtype), (n * offset_groups, 1, taps, *sizes)))
    inner = channels // groups * taps
    columns = add.reshape(columns, (n, groups, inner, math.prod(sizes)))
    rows = add.reshape(add.cast(weights, dtype), (1, groups, outputs // groups, inner))
    result = add.reshape(add.matmul(rows, columns), (n, outputs, *sizes))
    if bias is not None:
        result = add.do("add", result, add.reshape(add.cast(bias, dtype), (1, outputs, 1, 1)))
    add.done(add.cast(result, add.dtype(x)))
