"""Readers of ONNX's indexing operators: gather, scatter, sort, running sums."""

import math

import numpy

from . import sizes
from .lowering import Lowering
from .network import dtype_number
from .readers import Unsupported, reads
from .tensor_operators import axis_of, numbers_of

_SCANS = ("cumsum", "cumprod")


@reads("CumSum", "CumProd")
def cumulative(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    [axis] = numbers_of(reader, node, 1, "axis")
    shape, axis, dtype = add.shape(x), axis % len(add.shape(x)), add.dtype(x)
    source, loop = (
        add.reverse(x, axis) if node.get("reverse", 0) else x,
        {"i": "int64", "u": "uint64"}.get(dtype.kind, dtype),
    )
    totals = reader.add_layer(
        "Scan",
        node,
        [source],
        shape,
        output=add.fresh("scan"),
        parameters=(_SCANS.index(node.op.lower()), dtype_number(loop), axis),
    )
    if node.get("exclusive", 0):
        first = add.expand(
            add.constant(int(node.op == "CumProd"), dtype), [1 if d == axis else size for d, size in enumerate(shape)]
        )
        if sizes.is_open(shape[axis]) or shape[axis] > 1:
            totals = add.joined([first, totals], axis)
            totals = add.part(totals, axis, 0, shape[axis])
        else:
            totals = add.copy(first)
    add.done(add.reverse(totals, axis) if node.get("reverse", 0) else totals)


def _order(add, x, axis, largest, count):
    """The first `count` indices along the axis in the order of the elements."""
    # Model files are also checked at sizes where an open axis is shorter than `count`, so all of it is sorted.
    sorts_all = sizes.is_open(add.shape(x)[axis])
    shape = [count if d == axis and not sorts_all else size for d, size in enumerate(add.shape(x))]
    order = add.reader.add_layer(
        "Argsort", add.node, [x], shape, numpy.int64, add.fresh("order"), parameters=(axis, int(largest))
    )
    return add.part(order, axis, 0, count) if sorts_all else order


@reads("TopK")
def top_k(reader, node):
    """Always sorted, even if not requested; equal numbers keep their order."""
    add, x = Lowering(reader, node), node.inputs[0]
    axis = axis_of(reader, node, x, default=-1)
    [count] = numbers_of(reader, node, 1, "k") if node.opset >= 10 else [node.get("k")]
    if not sizes.is_open(count) and count < 1:
        raise Unsupported("makes an empty tensor")
    add.network.need_within(x, axis, 0, count - 1)
    order = _order(add, x, axis, node.get("largest", 1), count)
    if node.outputs[0]:
        add.done(add.take(x, add.all_indices(add.shape(x), axis, order)))
    if len(node.outputs) > 1 and node.outputs[1]:
        add.done(order, node.outputs[1])


def _as_int64(add, indices):
    """The indices as int64."""
    values = add.reader.constant(indices)
    return add.constant(values, numpy.int64) if values is not None else add.cast(indices, numpy.int64)


@reads("GatherElements")
def gather_elements(reader, node):
    add, (x, indices) = Lowering(reader, node), node.inputs
    axis = axis_of(reader, node, x, default=0)
    add.done(add.take(x, add.all_indices(add.shape(indices), axis, _as_int64(add, indices))))


def _columns(add, indices):
    """The index tensors along the last dimension; constants where the indices are constant."""
    values, shape = add.reader.constant(indices), add.shape(indices)
    if values is not None:
        return [numpy.ascontiguousarray(values[..., number]) for number in range(shape[-1])]
    return [
        add.reshape(add.part(indices, len(shape) - 1, number, number + 1), shape[:-1]) for number in range(shape[-1])
    ]


@reads("GatherND")
def gather_nd(reader, node):
    add, (x, indices) = Lowering(reader, node), node.inputs
    batch, shape = node.get("batch_dims", 0), add.shape(indices)
    leading = [add.along(shape[d], d, len(shape) - 1) for d in range(batch)]
    add.done(add.take(x, [*leading, *_columns(add, _as_int64(add, indices))]))


def _scattered(add, x, values, indices):
    op = {"none": None, "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}[
        add.node.get("reduction", "none")
    ]
    if op not in (None, "add") and add.dtype(x) == numpy.float16:
        raise Unsupported(f"reduces float16 by {add.node.get('reduction')!r}")
    add.done(add.scattered(x, values, indices, reduction=op))


@reads("ScatterElements", "Scatter")
def scatter_elements(reader, node):
    add, (x, indices, values) = Lowering(reader, node), node.inputs
    axis = axis_of(reader, node, x, default=0)
    _scattered(add, x, values, add.all_indices(add.shape(indices), axis, _as_int64(add, indices)))


@reads("ScatterND")
def scatter_nd(reader, node):
    add, (x, indices, values) = Lowering(reader, node), node.inputs
    _scattered(add, x, values, _columns(add, _as_int64(add, indices)))


@reads("OneHot")
def one_hot(reader, node):
    """Negative indices count from the end; an index out of range gives a row of off values."""
    add, (indices, _, values) = Lowering(reader, node), node.inputs
    [depth] = numbers_of(reader, node, 1, "depth")
    indices_shape, axis = add.shape(indices), node.get("axis", -1)
    axis = axis + len(indices_shape) + 1 if axis < 0 else axis
    expanded = add.reshape(indices, (*indices_shape[:axis], 1, *indices_shape[axis:]))
    classes = numpy.arange(depth).reshape([-1 if d == axis else 1 for d in range(len(indices_shape) + 1)])
    if add.dtype(indices).kind == "u":
        hot = add.do("equal", expanded, classes)
    else:
        hot = add.do("logical_or", add.do("equal", expanded, classes), add.do("equal", expanded, classes - depth))
    off, on = (add.reshape(add.part(values, 0, number, number + 1), ()) for number in range(2))
    add.done(add.where(hot, on, off))


@reads("Compress")
def compress(reader, node):
    add, (x, condition) = Lowering(reader, node), node.inputs
    condition = reader.constant(condition)
    axis = node.get("axis")
    if axis is None:
        x, axis = add.reshape(x, (math.prod(add.shape(x)),)), 0
    indices = numpy.flatnonzero(condition)
    if not len(indices):
        raise Unsupported("makes an empty tensor")
    add.done(add.take(x, [indices], axis % len(add.shape(x))))


@reads("ReverseSequence")
def reverse_sequences(reader, node):
    add, (x, lengths) = Lowering(reader, node), node.inputs
    batch, time, x_shape = node.get("batch_axis", 1), node.get("time_axis", 0), add.shape(x)
    if {batch, time} != {0, 1}:
        raise Unsupported(f"has the time_axis {time} and the batch_axis {batch}, expected 0 and 1")
    lengths = _as_int64(add, reader.as_tensor(lengths, node))
    lengths = add.reshape(lengths, (x_shape[0], 1) if batch == 0 else (1, x_shape[1]))
    steps, batches = add.along(x_shape[time], time, 2), add.along(x_shape[batch], batch, 2)
    last = add.do("subtract", lengths, 1)
    sources = add.where(add.do("less_equal", steps, last), add.do("subtract", last, steps), steps)
    batches = add.expand(batches, x_shape[:2])
    add.done(add.take(x, [batches, sources] if batch == 0 else [sources, batches]))


@reads("MaxUnpool")
def max_unpool(reader, node):
    """Writes each number back to its original position, with zeros elsewhere."""
    add, (x, indices) = Lowering(reader, node), node.inputs[:2]
    x_shape, kernel = add.shape(x), node.get("kernel_shape")
    rank = len(kernel)
    pads, strides = node.get("pads", (0,) * (2 * rank)), node.get("strides", (1,) * rank)
    sizes = [(size - 1) * strides[d] - pads[d] - pads[rank + d] + kernel[d] for d, size in enumerate(x_shape[2:])]
    if len(x_shape) != rank + 2 or min(sizes) < 1:
        raise Unsupported(f"makes images of {sizes}")
    shape = (*x_shape[:2], *sizes)
    zeros = add.network.expanded(add.fresh("nothing"), add.constant(0, add.dtype(x)), (math.prod(shape),))
    flat = [add.reshape(name, (math.prod(x_shape),)) for name in (x, _as_int64(add, indices))]
    result = add.reshape(add.scattered(zeros, flat[0], [flat[1]]), shape)
    output_shape = numbers_of(reader, node, 2, "output_shape")
    if output_shape:
        result = add.padded(result, [0] * len(shape), [new - old for new, old in zip(output_shape, shape)], 0)
    add.done(result)


@reads("TensorScatter")
def tensor_scatter(reader, node):
    """Writes rows of a cache along one axis, from the position given by the batch's index."""
    add, (x, rows, first) = Lowering(reader, node), (*node.inputs, None)[:3]
    x_shape, rows_shape = add.shape(x), add.shape(rows)
    axis = node.get("axis", -2) % len(x_shape)
    rank, mode = axis + 1, node.get("mode", "linear")
    if axis == 0 or mode not in ("linear", "circular"):
        raise Unsupported(f"has the axis {axis} and the mode {mode!r}")
    positions = add.along(rows_shape[axis], axis, rank)
    if first is not None:
        begin = add.reshape(_as_int64(add, first), (x_shape[0], *(1,) * (rank - 1)))
        positions = add.do("add", add.expand(positions, (x_shape[0], *(1,) * (rank - 2), rows_shape[axis])), begin)
    if mode == "circular":
        positions = add.do("remainder", positions, add.constant(x_shape[axis], numpy.int64))
    add.done(add.scattered(x, rows, [*(add.along(x_shape[d], d, rank) for d in range(axis)), positions]))
