"""Readers of ONNX's operators that change sizes: padding, tiling, interpolation, depth to space.

Interpolation along an axis multiplies by a matrix of weights [new positions, old positions]: by its nonzero weights if
they are few (Blend), else by a matrix product."""

import functools
import math
from fractions import Fraction

import numpy

from .lowering import Lowering
from .readers import Unsupported, reads
from .sizes import is_open
from .tensor_operators import numbers_of

_MAX_TAPS, _MIN_ROW = 64, 16  # blending.c: the most weights per element; shorter rows have no loop of their own there


@reads("Pad")
def pad(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape, mode = add.shape(x), node.get("mode", "constant")
    widths = numbers_of(reader, node, 1, "pads") if node.opset >= 11 else node.get("pads", node.get("paddings"))
    axes = numbers_of(reader, node, 3, "axes") or range(len(x_shape))
    before, after = [0] * len(x_shape), [0] * len(x_shape)
    for number, axis in enumerate(axes):
        before[axis], after[axis] = widths[number], widths[number + len(widths) // 2]
    if mode == "constant":
        value = node.input(2) if node.opset >= 11 else node.get("value", 0.0)
        padded = add.padded(x, before, after, add.reshape(value, ()) if isinstance(value, str) else value or 0)
        number = reader.constant(value) if isinstance(value, str) else value or 0
        if number is not None and numpy.all(number == 0) and all(isinstance(n, int) and n >= 0 for n in before + after):
            reader.borders.setdefault(padded, (x, before, after))
        add.done(padded)
        return
    modes = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}
    if mode not in modes:
        raise Unsupported(f"pads by {mode!r}")
    for d, (front, back) in enumerate(zip(before, after)):
        if (front or back) and is_open(x_shape[d]):
            x = _padded_open_axis(add, x, d, front, back, mode)
        elif front or back:
            indices = numpy.arange(max(0, -front), x_shape[d] - max(0, -back))
            indices = numpy.pad(indices, (max(0, front), max(0, back)), modes[mode])
            x = add.take(x, [indices], d)
    add.done(x)


def _padded_open_axis(add, x, d, front, back, mode):
    """Pads dimension `d`, whose size is open, from its own elements; negative widths crop."""
    size = add.shape(x)[d]
    add.network.need_signs(front, back)
    if min(front, back) < 0:
        x = add.part(x, d, max(0, -front), size - max(0, -back))
        size, front, back = add.shape(x)[d], 0 if front < 0 else front, 0 if back < 0 else back

    def border(width, edge, first, last):
        if mode == "edge":
            return [add.part(x, d, edge, edge + 1)] * width
        return [add.part(x, d, first, last, 1 if mode == "wrap" else -1)] if width else []

    if mode == "wrap":
        return add.joined([*border(front, 0, size - front, size), x, *border(back, 0, 0, back)], d)
    before, after = border(front, 0, front, 0), border(back, size - 1, size - 2, size - 2 - back)
    return add.joined([*before, x, *after], d)


@reads("Tile")
def tile(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape, counts = add.shape(x), numbers_of(reader, node, 1, "repeats")
    if len(counts) != len(x_shape):
        raise Unsupported(f"has {len(counts)} repeats, expected {len(x_shape)}, one per dimension")
    for d, count in enumerate(counts):
        if count > 1:  # adds one dimension at a time
            shape = add.shape(x)
            x = add.expand(add.reshape(x, (*shape[:d], 1, *shape[d:])), (*shape[:d], count, *shape[d:]))
            x = add.reshape(x, (*shape[:d], count * shape[d], *shape[d + 1 :]))
        elif count < 1:
            raise Unsupported("makes an empty tensor")
    add.done(x)


@reads("CenterCropPad")
def center(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape, sizes = add.shape(x), numbers_of(reader, node, 1, "shape")
    before, after = [0] * len(x_shape), [0] * len(x_shape)
    for axis, size in zip(node.get("axes", range(len(x_shape))), sizes):
        difference = size - x_shape[axis]
        before[axis] = difference // 2 if difference > 0 else -(-difference // 2)
        after[axis] = difference - before[axis]
    add.done(add.padded(x, before, after, 0))


@reads("DepthToSpace")
def depth_to_space(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    (n, c, h, w), block = add.shape(x), node.get("blocksize")
    inner = c // block**2
    if node.get("mode", "DCR") == "DCR":
        rearranged = add.transpose(add.reshape(x, (n, block, block, inner, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        rearranged = add.transpose(add.reshape(x, (n, inner, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    add.done(add.reshape(rearranged, (n, inner, h * block, w * block)))


@reads("SpaceToDepth")
def space_to_depth(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    (n, c, h, w), block = add.shape(x), node.get("blocksize")
    split = add.reshape(x, (n, c, h // block, block, w // block, block))
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    add.done(add.reshape(add.transpose(split, order), (n, c * block**2, h // block, w // block)))


# ---- interpolation
def _coordinates(mode, size, scale, count, region):
    """The positions of the `count` new elements on the axis of the `size` old ones."""
    positions, length = numpy.arange(count, dtype=numpy.float64), scale * size
    if mode == "align_corners":
        return positions * (size - 1) / (length - 1) if length != 1 else positions * 0
    if mode == "asymmetric":
        return positions / scale
    if mode == "tf_crop_and_resize":
        first, last = region[0] * (size - 1), region[1] * (size - 1)
        return first + positions * (last - first) / (length - 1) if length != 1 else positions * 0 + (first + last) / 2
    if mode == "pytorch_half_pixel" and length == 1:
        return positions * 0 - 0.5
    offset = size / 2 * (1 - count / length) if mode == "half_pixel_symmetric" else 0.0
    if mode not in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn"):
        raise Unsupported(f"has the coordinate_transformation_mode {mode!r}")
    return positions / scale if mode == "tf_half_pixel_for_nn" else offset + (positions + 0.5) / scale - 0.5


def _nearest(coordinates, rounding):
    if rounding == "round_prefer_floor":
        return numpy.ceil(coordinates - 0.5)
    return {"floor": numpy.floor, "ceil": numpy.ceil}.get(rounding, lambda position: numpy.floor(position + 0.5))(
        coordinates
    )


def _weights(kind, distance, a):
    """The weight of a position at this distance."""
    distance = abs(distance)
    if kind == "linear":
        return numpy.maximum(0, 1 - distance)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return numpy.where(distance <= 1, near, numpy.where(distance < 2, far, 0))


def _matrix(node, kind, coordinates, size, scale):
    """The weights [new, old]. Positions beyond the ends repeat the end elements, or are excluded by exclude_outside."""
    narrowing = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    reach = math.ceil((1 if kind == "linear" else 2) / narrowing) + 1
    matrix = numpy.zeros((len(coordinates), size))
    tap_positions = numpy.floor(coordinates).astype(numpy.int64)[:, None] + numpy.arange(-reach, reach + 1)
    weights = _weights(kind, (tap_positions - coordinates[:, None]) * narrowing, node.get("cubic_coeff_a", -0.75))
    if node.get("exclude_outside", 0):
        weights = numpy.where((tap_positions >= 0) & (tap_positions < size), weights, 0)
    weights /= weights.sum(1, keepdims=True)
    numpy.add.at(matrix, (numpy.arange(len(coordinates))[:, None], numpy.clip(tap_positions, 0, size - 1)), weights)
    return matrix


def _blended(add, x, axis, matrix, taps):
    """Multiplies along the axis by the nonzero weights, in memory order."""
    strides, rank = add.network.as_view(x).strides, len(add.shape(x))
    order = sorted(range(rank), key=lambda d: (-int(strides[d]), d))
    transposed = x if order == list(range(rank)) else add.transpose(x, order)
    if not add.network.is_dense(transposed):
        order, transposed = list(range(rank)), x if add.network.is_dense(x) else add.copy(x)
    axis, shape = order.index(axis), add.shape(transposed)
    indices = numpy.argsort(matrix == 0, 1, kind="stable")[:, :taps]
    weights = numpy.take_along_axis(matrix, indices, 1)
    inner = math.prod(shape[axis + 1 :])
    merged = 1 < inner < _MIN_ROW  # inner elements are merged with the axis
    if merged:
        indices = (indices[:, None] * inner + numpy.arange(inner)[:, None]).reshape(-1, taps)
        weights = numpy.repeat(weights, inner, 0)
    outer = math.prod(shape[:axis])
    flat = add.reshape(transposed, (outer, shape[axis] * inner) if merged else (outer, shape[axis], inner))
    names = [flat, add.constant(indices.T, "int32"), add.constant(weights.T, "float32")]
    result_shape = (outer, len(indices)) if merged else (outer, len(indices), inner)
    result = add.reader.add_layer("Blend", add.node, names, result_shape, output=add.fresh("blended"), parameters=(1,))
    result = add.reshape(result, (*shape[:axis], len(matrix), *shape[axis + 1 :]))
    return result if transposed is x else add.transpose(result, [order.index(d) for d in range(rank)])


def _resized_open_axis(add, node, x, axis, count, scale):
    """Resizes an axis of open size by `scale`, or if None by the ratio of the sizes. Positions and weights are computed
    in each call."""
    size, dtype = add.shape(x)[axis], add.dtype(x)
    kind, factor = node.get("mode", "nearest"), count // size if count % size == 0 else None
    transformation = node.get("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    rounding = node.get("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    if kind == "nearest" and factor is not None and not is_open(factor):
        nearest = _nearest(_coordinates(transformation, int(size), factor, int(count), None), rounding)
        if (numpy.clip(nearest, 0, int(size) - 1) == numpy.arange(int(count)) // factor).all():
            return _repeated(add, x, axis, factor)
    if node.get("antialias", 0) or node.get("exclude_outside", 0):
        raise Unsupported("has antialias or exclude_outside over an open size")
    old, new = (add.cast(add.constant(number, numpy.int64), numpy.float64) for number in (size, count))
    positions = add.cast(add.arange(count), numpy.float64)
    step = add.do("divide", old, new) if scale is None else add.constant(1 / scale, numpy.float64)
    if transformation == "align_corners":
        length = new if scale is None else add.do("multiply", old, scale)
        ends = add.do("divide", add.do("subtract", old, 1.0), add.do("maximum", add.do("subtract", length, 1.0), 1e-9))
        positions = add.do("multiply", positions, add.where(add.do("greater", length, 1.0), ends, 0.0))
    elif transformation == "asymmetric":
        positions = add.do("multiply", positions, step)
    elif transformation in ("half_pixel", "pytorch_half_pixel"):
        positions = add.do("subtract", add.do("multiply", add.do("add", positions, 0.5), step), 0.5)
        if transformation == "pytorch_half_pixel":
            positions = add.where(add.do("greater", new, 1.0), positions, 0.0)
    else:
        raise Unsupported(f"has the coordinate_transformation_mode {transformation!r} over an open size")
    last = add.do("subtract", old, 1.0)

    def bounded(index):
        return add.do("minimum", add.do("maximum", index, 0.0), last)

    if kind == "nearest":
        by_rounding = {
            "floor": lambda: add.do("floor", positions),
            "ceil": lambda: add.do("ceil", positions),
            "round_prefer_floor": lambda: add.do("ceil", add.do("subtract", positions, 0.5)),
            "round_prefer_ceil": lambda: add.do("floor", add.do("add", positions, 0.5)),
        }
        return add.take(x, [add.cast(bounded(by_rounding[rounding]()), numpy.int64)], axis)
    if dtype.kind != "f":
        raise Unsupported(f"interpolates {dtype}, expected floats")
    first = add.do("floor", positions)
    fraction = add.do("subtract", positions, first)
    if kind == "cubic":
        indices, weights = _cubic_taps(add, first, fraction, node.get("cubic_coeff_a", -0.75))
        indices = [bounded(index) for index in indices]
    else:
        indices = [bounded(first), bounded(add.do("add", first, 1.0))]
        weights = [add.do("add", add.do("negative", fraction), 1.0), fraction]
    if dtype == numpy.float32:
        rows = [add.joined([add.reshape(name, (1, count)) for name in names], 0) for names in (indices, weights)]
        return _blended_by(add, x, axis, add.cast(rows[0], "int32"), add.cast(rows[1], "float32"), count)
    shape = [count if d == axis else 1 for d in range(len(add.shape(x)))]
    taps = [
        add.do(
            "multiply",
            add.take(x, [add.cast(index, numpy.int64)], axis),
            add.reshape(add.cast(weight, dtype), shape),
        )
        for index, weight in zip(indices, weights)
    ]
    return functools.reduce(lambda one, other: add.do("add", one, other), taps)


def _cubic_taps(add, first, fraction, a):
    """The four positions around each new element, which lies `fraction` after position `first`, and their weights, as
    tensors (_weights)."""
    indices, weights = [], []
    for tap in (-1, 0, 1, 2):
        distance = add.do("absolute", add.do("subtract", fraction, float(tap)))
        factors = (a + 2, -(a + 3), 0.0, 1.0) if tap in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
        weight = add.do("add", add.do("multiply", distance, factors[0]), factors[1])
        for factor in factors[2:]:
            weight = add.do("add", add.do("multiply", weight, distance), factor)
        indices.append(add.do("add", first, float(tap)))
        weights.append(weight)
    return indices, weights


def _blended_by(add, x, axis, indices, weights, count):
    """Blends by computed positions and weights [taps, count]."""
    if not add.network.is_dense(x):
        x = add.copy(x)
    shape = add.shape(x)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = add.reshape(x, (outer, shape[axis], inner))
    result = add.reader.add_layer(
        "Blend", add.node, [flat, indices, weights], (outer, count, inner), output=add.fresh("blended"), parameters=(1,)
    )
    return add.reshape(result, (*shape[:axis], count, *shape[axis + 1 :]))


def _repeated(add, x, axis, times):
    shape = add.shape(x)
    x = add.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    return add.reshape(
        add.expand(x, (*shape[: axis + 1], times, *shape[axis + 1 :])),
        (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]),
    )


def _resized_axis(add, node, x, axis, count, scale, region):
    transformation, kind = (
        node.get("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric"),
        node.get("mode", "nearest"),
    )
    x_shape = add.shape(x)
    size, rank = x_shape[axis], len(x_shape)
    coordinates = _coordinates(transformation, size, scale, count, region)
    outside = (
        (coordinates < 0) | (coordinates > size - 1)
        if transformation == "tf_crop_and_resize"
        else numpy.zeros(count, bool)
    )
    if kind == "nearest":
        indices = _nearest(coordinates, node.get("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor"))
        indices = numpy.clip(indices, 0, size - 1).astype(numpy.int64)
        repeats = count % size == 0 and (indices == numpy.arange(count) // (count // size)).all()  # each element
        if repeats:
            x = _repeated(add, x, axis, count // size)
        else:
            x = add.take(x, [indices], axis)
    else:
        dtype = add.dtype(x)
        if dtype.kind != "f":
            raise Unsupported(f"interpolates {dtype}, expected floats")
        matrix = _matrix(node, "cubic" if kind == "cubic" else "linear", coordinates, size, scale)
        taps = int((matrix != 0).sum(1).max())
        if (
            dtype == numpy.float32
            and taps <= _MAX_TAPS
            and taps * 4 <= max(size, 16)
            and not is_open(math.prod(x_shape))
        ):
            x = _blended(add, x, axis, matrix, taps)
        elif axis == rank - 1 and rank > 1:
            x = add.matmul(x, add.constant(matrix.T, dtype))
        elif axis == rank - 2:
            x = add.matmul(add.constant(matrix, dtype), x)
        else:
            rows = add.reshape(x, (math.prod(x_shape[:axis]), size, math.prod(x_shape[axis + 1 :])))
            x = add.reshape(
                add.matmul(add.constant(matrix, dtype), rows), (*x_shape[:axis], count, *x_shape[axis + 1 :])
            )
    if outside.any():
        inside = add.constant(~outside.reshape([-1 if d == axis else 1 for d in range(rank)]), bool)
        x = add.where(inside, x, node.get("extrapolation_value", 0.0))
    return x


def _resized_open_axes(add, node, x, axes, scales, sizes):
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch" or (scales is None and sizes is None):
        raise Unsupported("keeps the ratio of open sizes, or has neither scales nor sizes")
    for number, axis in enumerate(axes):
        size = add.shape(x)[axis]
        if sizes is not None:
            count, scale = sizes[number] if is_open(sizes[number]) else int(sizes[number]), None
        else:
            ratio = Fraction(float(scales[number])).limit_denominator(1 << 12)
            if float(ratio) != float(scales[number]):
                raise Unsupported(f"has the scale {scales[number]} over an open size, expected a simple fraction")
            count, scale = size * ratio.numerator // ratio.denominator, float(ratio)
        if is_open(count) or is_open(size):
            if is_open(count - size) or count != size:
                x = _resized_open_axis(add, node, x, axis, count, scale)
        elif count != size:
            x = _resized_axis(add, node, x, axis, count, scale or count / size, (0.0, 1.0))
    return x


def _cast_back(add, node, x, dtype):
    """Casts the result to the operand's dtype. Interpolated integers are truncated, or rounded with antialias, as in
    ONNX Runtime; cubic interpolation is clipped to the dtype's range."""
    if add.dtype(x) == dtype:
        return x
    if node.get("antialias", 0):
        x = add.do("floor", add.do("add", x, 0.5))
    if node.get("mode") == "cubic" and dtype.itemsize <= 2:  # float32 represents the bounds exactly
        limits = numpy.iinfo(dtype)
        x = add.do("minimum", add.do("maximum", x, float(limits.min)), float(limits.max))
    return add.cast(x, dtype)


@reads("Resize", "Upsample")
def resize(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape = add.shape(x)
    values = [reader.network.values.get(name, reader.constant(name)) for name in node.inputs]
    dtype = add.dtype(x)
    if dtype.kind in "iu" and node.get("mode", "nearest") != "nearest":
        x = add.cast(x, numpy.float32)
    if any(name is not None and value is None for name, value in zip(node.inputs[1:], values[1:])):
        raise Unsupported("has sizes that are not constant")
    region = scales = sizes = None
    if node.op == "Upsample" or node.opset < 11:
        scales = values[1] if len(values) > 1 else numpy.array(node.get("scales"))
    else:
        region, scales, sizes = (
            value if value is not None and value.size else None for value in (*values[1:], None, None)[:3]
        )
    axes = [axis % len(x_shape) for axis in node.get("axes", range(len(x_shape)))]
    if any(is_open(x_shape[axis]) for axis in axes) or (sizes is not None and is_open(sizes)):
        add.done(_cast_back(add, node, _resized_open_axes(add, node, x, axes, scales, sizes), dtype))
        return
    if sizes is not None:
        scales = [int(size) / x_shape[axis] for size, axis in zip(sizes, axes)]
        if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            common_scale = (min if node.get("keep_aspect_ratio_policy") == "not_larger" else max)(scales)
            scales = [common_scale] * len(axes)
            sizes = [math.floor(common_scale * x_shape[axis] + 0.5) for axis in axes]
    elif scales is None:
        raise Unsupported("has neither scales nor sizes")
    else:
        # in float32, like ONNX's shape inference: 10 * 1.3 is 13
        sizes = [math.floor(numpy.float32(x_shape[axis]) * numpy.float32(scale)) for axis, scale in zip(axes, scales)]
    for number, axis in enumerate(axes):
        axis_region = (0.0, 1.0) if region is None else (float(region[number]), float(region[number + len(axes)]))
        if sizes[number] != x_shape[axis] or axis_region != (0.0, 1.0) or float(scales[number]) != 1.0:
            x = _resized_axis(add, node, x, axis, int(sizes[number]), float(scales[number]), axis_region)
    add.done(_cast_back(add, node, x, dtype))
