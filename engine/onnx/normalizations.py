"""Readers of ONNX's normalizations, and of reductions that take several of the engine's operations."""

import math

import numpy

from .integer_means import INTEGER_MEANS, integer_mean
from .lowering import Lowering
from .network import MAX_ROW, float_bits
from .readers import Unsupported, reads
from .sizes import is_open
from .tensor_operators import axis_of, reduced_axes


@reads("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduce(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape, axes = add.shape(x), reduced_axes(reader, node)
    if axes is None:
        axes = []  # the other steps still apply
    if add.dtype(x).kind in "iu" and node.op in INTEGER_MEANS:
        result = integer_mean(add, node.op, x, axes)
    elif node.op == "ReduceLogSumExp":
        largest = add.reduce("max", x, axes) if axes else x
        finite = add.where(add.do("isfinite", largest), largest, 0)
        powers = add.do("exp", add.do("subtract", x, finite))
        result = add.do("add", add.do("log", add.reduce("sum", powers, axes) if axes else powers), finite)
    else:
        before = {"ReduceL1": "absolute", "ReduceL2": "square", "ReduceSumSquare": "square"}.get(node.op)
        after = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}.get(node.op)
        result = add.do(before, x) if before else x
        result = add.reduce("sum", result, axes) if axes else result
        result = add.do(after, result) if after else result
    if not node.get("keepdims", 1):
        result = add.reshape(result, [size for d, size in enumerate(x_shape) if d not in axes])
    add.done(result)


def _normalized(add, x, axes, epsilon):
    centred = add.do("subtract", x, add.mean(x, axes))
    return add.do("divide", centred, add.do("sqrt", add.do("add", add.mean(add.do("square", centred), axes), epsilon)))


def _of_channels(add, name, rank):
    return add.reshape(name, (-1, *(1,) * (rank - 2)))


@reads("InstanceNormalization")
def instance_normalization(reader, node):
    add, (x, scale, bias) = Lowering(reader, node), node.inputs
    rank = len(add.shape(x))
    normalized = _planes_normalized(add, x, 2, node.get("epsilon", 1e-5))
    if not _is_all(reader, scale, 1):  # as in group normalization, which exporters make of this
        normalized = add.do("multiply", normalized, _of_channels(add, scale, rank))
    if not _is_all(reader, bias, 0):
        normalized = add.do("add", normalized, _of_channels(add, bias, rank))
    add.done(normalized)


def _is_all(reader, name, number):
    values = reader.constant(name)
    return values is not None and name not in reader.network.values and (values == number).all()


def _planes_normalized(add, x, first, epsilon):
    """Normalizes over the dimensions from `first` on, as rows where the engine has an operator for them."""
    x_shape = add.shape(x)
    length = math.prod(x_shape[first:])
    if add.dtype(x) != numpy.float32 or is_open(length) or not 1 < length <= MAX_ROW:
        return _normalized(add, x, list(range(first, len(x_shape))), epsilon)
    rows = add.reshape(x, (math.prod(x_shape[:first]), length))
    ones, output = add.constant(numpy.ones(length), numpy.float32), add.fresh("normalized")
    shape, parameters = add.shape(rows), (float_bits(epsilon), 0)
    add.reader.add_layer("Normalize", add.node, [rows, ones, None], shape, output=output, parameters=parameters)
    return add.reshape(output, x_shape)


@reads("GroupNormalization")
def group_normalization(reader, node):
    add, (x, scale, bias) = Lowering(reader, node), node.inputs
    x_shape, groups = add.shape(x), node.get("num_groups")
    rows = add.reshape(x, (x_shape[0], groups, x_shape[1] // groups, -1))
    normalized = _planes_normalized(add, rows, 2, node.get("epsilon", 1e-5))
    shape = (groups, -1, 1)
    normalized = add.do("add", add.do("multiply", normalized, add.reshape(scale, shape)), add.reshape(bias, shape))
    add.done(add.reshape(normalized, x_shape))


@reads("com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm")
def group_normalization_channels_last(reader, node):
    """Normalizes x [n, …, channels], or [n, channels, …] with `channels_last` 0; then SiLU if `activation` is 1.
    SkipGroupNorm first adds an image, or a number for each of its channels, and a bias; output 2 is the sum."""
    add, (x, scale, bias, *added) = Lowering(reader, node), node.inputs
    x_shape, groups, channels_last = add.shape(x), node.get("groups"), node.get("channels_last", 1)
    rank = len(x_shape)
    for name in filter(None, added):
        shape = add.shape(name)
        if len(shape) == 2:
            name = add.reshape(
                name, (shape[0], *(1,) * (rank - 2), shape[1]) if channels_last else (*shape, *(1,) * (rank - 2))
            )
        elif len(shape) == 1 and not channels_last:
            name = add.reshape(name, (-1, *(1,) * (rank - 2)))
        x = add.do("add", x, name)
    outputs, dtype = (*node.outputs, "")[:2], add.dtype(x)
    if outputs[1]:
        add.done(x, outputs[1])
    image = add.transpose(x, (0, rank - 1, *range(1, rank - 1))) if channels_last else x
    channels = add.shape(image)[1]
    rows = add.reshape(add.cast(image, numpy.float32), (x_shape[0], groups, channels // groups, -1))
    normalized = _normalized(add, rows, [2, 3], node.get("epsilon", 1e-5))
    scale, bias = (add.reshape(add.cast(name, numpy.float32), (groups, -1, 1)) for name in (scale, bias))
    result = add.reshape(add.do("add", add.do("multiply", normalized, scale), bias), add.shape(image))
    if node.get("activation", 0):
        result = add.do("multiply", result, add.operator("Sigmoid", result))
    result = add.transpose(result, (0, *range(2, rank), 1)) if channels_last else result
    add.done(add.cast(result, dtype), outputs[0])


@reads("RMSNormalization")
def rms_normalization(reader, node):
    """Computed in at least float32, as stash_type requires."""
    add, (x, scale) = Lowering(reader, node), node.inputs
    dtype = add.dtype(x)
    wide = add.cast(x, numpy.result_type(dtype, numpy.float32))
    axes = list(range(axis_of(reader, node, x, default=-1), len(add.shape(x))))
    length = add.shape(x)[-1:]
    if (
        add.dtype(wide) == numpy.float32
        and axes == [len(add.shape(x)) - 1]
        and length[0] <= MAX_ROW
        and reader.constant(scale) is not None
        and add.shape(scale) == length
    ):
        parameters = (float_bits(node.get("epsilon", 1e-5)), 1)
        scale, output = add.constant(reader.constant(scale), numpy.float32), add.fresh("normalized")
        reader.add_layer("Normalize", node, [wide, scale, None], add.shape(x), output=output, parameters=parameters)
        add.done(add.cast(output, add.dtype(node.inputs[1])))
        return
    root = add.do("sqrt", add.do("add", add.mean(add.do("square", wide), axes), node.get("epsilon", 1e-5)))
    add.done(add.do("multiply", add.cast(add.do("divide", wide, root), add.dtype(scale)), scale))


@reads("LpNormalization")
def lp_normalization(reader, node):
    add, x, p = Lowering(reader, node), node.inputs[0], node.get("p", 2)
    axes = [axis_of(reader, node, x, default=-1)]
    norm = add.reduce("sum", add.do("absolute" if p == 1 else "square", x), axes)
    norm = norm if p == 1 else add.do("sqrt", norm)
    add.done(add.do("divide", x, add.where(add.do("equal", norm, 0), 1, norm)))


@reads("LRN")
def local_response_normalization(reader, node):
    """Scales each channel by the squares of its neighbours."""
    add, x, size = Lowering(reader, node), node.inputs[0], node.get("size")
    x_shape, dtype = add.shape(x), add.dtype(x)
    if dtype.kind != "f":
        raise Unsupported(f"works on {dtype}, expected floats")
    before = (size - 1) // 2
    widths = [[0, n, *(0,) * (len(x_shape) - 2)] for n in (before, size - 1 - before)]
    squares = add.padded(add.do("square", x), *widths, 0)
    total = add.part(squares, 1, 0, x_shape[1])
    for first in range(1, size):
        total = add.do("add", total, add.part(squares, 1, first, first + x_shape[1]))
    base = add.do("add", add.do("multiply", total, node.get("alpha", 1e-4) / size), node.get("bias", 1.0))
    add.done(add.do("divide", x, add.do("power", base, node.get("beta", 0.75))))


@reads("Hardmax")
def hardmax(reader, node):
    """1 at the first maximum, 0 elsewhere; before opset 13 over all dimensions from the axis on."""
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape, axis = add.shape(x), axis_of(reader, node, node.inputs[0], default=-1 if node.opset >= 13 else 1)
    if node.opset < 13:
        x, axis = add.reshape(x, (int(numpy.prod(x_shape[:axis])), int(numpy.prod(x_shape[axis:])))), 1
    shape = add.shape(x)
    indices = add.constant(
        numpy.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))]), numpy.int64
    )
    hot = add.do("equal", add.reduce("argmax", x, [axis]), indices)
    add.done(add.reshape(add.cast(hot, add.dtype(x)), x_shape))


@reads("ArgMax", "ArgMin")
def arg_extreme(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    axis, op = axis_of(reader, node, x, default=0), node.op.lower()
    if node.get("select_last_index", 0):
        index = add.do(
            "subtract", add.constant(add.shape(x)[axis] - 1, numpy.int64), add.reduce(op, add.reverse(x, axis), [axis])
        )
    else:
        index = add.reduce(op, x, [axis])
    add.done(
        index
        if node.get("keepdims", 1)
        else add.reshape(index, [size for d, size in enumerate(add.shape(x)) if d != axis])
    )


@reads("GlobalMaxPool")
def global_max_pool(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    add.done(add.reduce("max", x, list(range(2, len(add.shape(x))))))


@reads("MeanVarianceNormalization")
def mean_variance_normalization(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    axes = [axis % len(add.shape(x)) for axis in node.get("axes", (0, 2, 3))]
    centred = add.do("subtract", x, add.mean(x, axes))
    deviation = add.do("sqrt", add.mean(add.do("square", centred), axes))
    add.done(add.do("divide", centred, add.do("add", deviation, 1e-9)))
