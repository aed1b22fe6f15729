"""Readers of ONNX's operators whose output size depends on values: elements found, selected or distinct. Each makes a
tensor of the maximum size and a count; a later part of the model cuts it to the count (parts.py)."""

import math

import numpy

from .lowering import Lowering, may_be_zero
from .network import contiguous, dtype_number
from .parts import counted_size
from .readers import Unsupported, reads, reads_by_value
from .sizes import is_open
from .tensor_operators import axis_of, numbers_of


def _running_count(add, flags):
    """The running count of true elements in a 1-d tensor, as int64."""
    parameters = (0, dtype_number(numpy.int64), 0)
    numbers = add.cast(flags, numpy.int64)
    return add.reader.add_layer(
        "Scan", add.node, [numbers], add.shape(flags), numpy.int64, add.fresh("sums"), parameters=parameters
    )


def indices_of_true(add, flags):
    """Returns (int64 indices of the true elements, in order, followed by zeros; int64 [1], their number)."""
    [size] = add.shape(flags)
    sums = _running_count(add, flags)
    slots = add.where(flags, add.do("subtract", sums, 1), add.constant(size, numpy.int64))  # others go past the end
    zeros = add.network.expanded(add.fresh("nothing"), add.constant(0, numpy.int64), (size + 1,))
    indices = add.scattered(zeros, add.arange(size), [slots])
    if may_be_zero(size):  # there is no last sum then
        count = add.reduce("sum", add.cast(flags, numpy.int64), [0])
    else:
        count = add.part(sums, 0, size - 1, size)
    return add.part(indices, 0, 0, size), count


def _cut(add, name, size, axis=0):
    return add.part(name, axis, 0, size)


def counted_indices(add, flags):
    """The indices of the true elements, as many as there are."""
    indices, count = indices_of_true(add, flags)
    return _cut(add, indices, counted_size(add.reader, add.node, count))


@reads("NonZero")
def nonzero(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    shape = add.shape(x)
    if not shape:
        raise Unsupported("works on a tensor of no dimensions")
    flags = x if add.dtype(x).kind == "b" else add.do("not_equal", x, 0)
    indices = counted_indices(add, add.reshape(flags, (math.prod(shape),)))
    rows = []
    for size, stride in zip(shape, contiguous(shape)):
        numbers = [add.constant(number, numpy.int64) for number in (stride, size)]
        rows.append(add.do("remainder", add.do("floor_divide", indices, numbers[0]), numbers[1]))
    add.done(add.joined([add.reshape(row, (1, add.shape(row)[0])) for row in rows], 0))


@reads_by_value("Compress")
def compressed(reader, node):
    add, (x, condition) = Lowering(reader, node), node.inputs
    axis = node.get("axis")
    if axis is None:
        x, axis = add.reshape(x, (math.prod(add.shape(x)),)), 0
    axis %= len(add.shape(x))
    size = min(add.shape(condition)[0], add.shape(x)[axis])
    add.done(add.take(x, [counted_indices(add, add.part(condition, 0, 0, size))], axis))


@reads_by_value("TopK")
def top_by_value(reader, node):
    add, (x, count) = Lowering(reader, node), node.inputs
    axis = axis_of(reader, node, x, default=-1)
    size = add.shape(x)[axis]
    parameters = (axis, int(node.get("largest", 1)))
    order = reader.add_layer("Argsort", node, [x], add.shape(x), numpy.int64, add.fresh("order"), parameters=parameters)
    capacity = add.constant(size, numpy.int64)
    bounded = add.do("minimum", add.do("maximum", add.cast(count, numpy.int64), 0), capacity)
    order = _cut(add, order, counted_size(reader, node, add.reshape(bounded, (1,))), axis)
    if node.outputs[0]:
        add.done(add.take(x, add.all_indices(add.shape(order), axis, order)))
    if len(node.outputs) > 1 and node.outputs[1]:
        add.done(order, node.outputs[1])


def _numbers(add, name, dtype=numpy.int64):
    """An operand of numbers as a tensor: computed, or a constant, which may depend on open sizes."""
    values = add.network.values.get(name, add.reader.constant(name))
    return add.cast(name, dtype) if values is None else add.constant(values, dtype)


def _sizes_from(reader, node, name):
    """The counted sizes in the tensor `name`, which are known once it is computed."""
    add = Lowering(reader, node)
    [count], flat = add.shape(name), _numbers(add, name)
    return [counted_size(reader, node, add.part(flat, 0, index, index + 1)) for index in range(count)]


@reads_by_value("Expand")
def expand_by_value(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    x_shape, requested = add.shape(x), _sizes_from(reader, node, node.inputs[1])
    rank = max(len(x_shape), len(requested))
    x_shape, requested = (1,) * (rank - len(x_shape)) + x_shape, [1] * (rank - len(requested)) + requested
    shape = [size if is_open(size) or size != 1 else other for size, other in zip(x_shape, requested)]
    add.done(add.copy(add.expand(x, shape)))


@reads_by_value("ConstantOfShape")
def filled_by_value(reader, node):
    from onnx import numpy_helper

    add = Lowering(reader, node)
    value = numpy.float32(0) if node.get("value") is None else numpy_helper.to_array(node.get("value"))
    number = add.constant(value.reshape(()), value.dtype)
    add.done(add.copy(add.expand(number, _sizes_from(reader, node, node.inputs[0]))))


@reads_by_value("Range")
def range_by_value(reader, node):
    add, dtype = Lowering(reader, node), reader.dtype(node.inputs[0])
    start, limit, step = (add.reshape(_numbers(add, name, dtype), (1,)) for name in node.inputs)
    span = add.do("subtract", limit, start)
    if dtype.kind == "f":
        step_count = add.do("ceil", add.do("divide", add.cast(span, numpy.float64), add.cast(step, numpy.float64)))
        step_count = add.do("minimum", add.do("maximum", step_count, 0.0), 2.0**40)  # larger than any size
        count = add.cast(step_count, numpy.int64)
    else:
        span, divisor = add.cast(span, numpy.int64), add.cast(step, numpy.int64)
        count = add.do("negative", add.do("floor_divide", add.do("negative", span), divisor))
        count = add.do("maximum", count, 0)
    indices = add.cast(add.arange(counted_size(reader, node, count)), dtype)
    add.done(add.do("add", add.do("multiply", indices, step), start))


@reads_by_value("Slice")
def sliced_by_value(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    rank, [count] = len(add.shape(x)), add.shape(node.inputs[1])
    axes = numbers_of(reader, node, 3, "axes") or range(count)
    steps = numbers_of(reader, node, 4, "steps") or [1] * count
    starts, ends = (_numbers(add, name) for name in node.inputs[1:3])
    for number, (axis, step) in enumerate(zip(axes, steps)):
        if step < 1:
            raise Unsupported("has starts or ends that are computed at run time, and a step backwards")
        axis %= rank
        size = add.constant(add.shape(x)[axis], numpy.int64)
        first, last = (_bounded(add, add.part(name, 0, number, number + 1), size) for name in (starts, ends))
        span = add.do("maximum", add.do("subtract", last, first), 0)
        length = add.do("floor_divide", add.do("add", span, step - 1), step)
        length = counted_size(reader, node, length)
        indices = add.do("add", add.do("multiply", add.arange(length), step), first)
        indices = add.do("minimum", indices, add.do("subtract", size, 1))  # where the slice is empty
        x = add.take(x, [indices], axis)
    add.done(x)


def _bounded(add, index, size):
    """Clips to 0 .. size; a negative number counts from the end."""
    index = add.where(add.do("less", index, 0), add.do("add", index, size), index)
    return add.do("minimum", add.do("maximum", index, 0), size)


@reads("NonMaxSuppression")
def suppression(reader, node):
    add = Lowering(reader, node)
    boxes, scores, max_per_class, overlap, min_score = (*node.inputs, None, None, None)[:5]
    dtype = numpy.float32
    images, classes, count = add.shape(scores)
    capacity = count
    if max_per_class is None:
        capacity, max_per_class = 1, add.constant([0], numpy.int64)
    elif reader.constant(max_per_class) is not None:
        limit = max(0, int(reader.constant(max_per_class).reshape(-1)[0]))
        capacity, max_per_class = max(1, limit if int(count) > limit else count), add.constant([limit], numpy.int64)
    else:
        max_per_class = add.reshape(add.cast(max_per_class, numpy.int64), (1,))
    bounds = [add.reshape(add.cast(name, dtype), (1,)) if name else None for name in (overlap, min_score)]
    operands = [
        add.cast(boxes, dtype),
        add.cast(scores, dtype),
        max_per_class,
        bounds[0] or add.constant([0], dtype),
        bounds[1],
    ]
    rows = images * classes * capacity
    selection = reader.add_layer(
        "Suppress",
        node,
        operands,
        (rows + 1, 3),
        numpy.int64,
        add.fresh("chosen"),
        parameters=(int(node.get("center_point_box", 0)),),
    )
    total = add.reshape(add.part(add.part(selection, 0, 0, 1), 1, 0, 1), (1,))
    size = counted_size(reader, node, total)
    add.done(add.copy(add.part(selection, 0, 1, size + 1)))


_MAX_COLUMNS = 64  # of rows compared by `unique`: each is a sort key


@reads("Unique")
def unique(reader, node):
    """Distinct elements, or slices along an axis: sorted, or in order of first occurrence."""
    add, x = Lowering(reader, node), node.inputs[0]
    shape, axis = add.shape(x), node.get("axis")
    if axis is None:
        x, shape, axis = add.reshape(x, (math.prod(shape),)), (math.prod(shape),), 0
    axis %= len(shape)
    total, columns = shape[axis], math.prod(shape) // shape[axis]
    if is_open(columns) or columns > _MAX_COLUMNS:
        raise Unsupported(f"compares rows of {columns} numbers, expected at most {_MAX_COLUMNS}")
    rows = add.transpose(x, [axis, *(d for d in range(len(shape)) if d != axis)])
    rows = add.reshape(rows, (total, columns))
    order = None
    for column in reversed(range(columns)):  # sorting is stable
        keys = add.reshape(add.part(rows, 1, column, column + 1), (total,))
        permutation = _sorted(add, keys if order is None else add.take(keys, [order]))
        order = permutation if order is None else add.take(order, [permutation])
    differ = _differing(add, add.take(rows, [order]))
    group = add.do("subtract", _running_count(add, differ), 1)  # of each element, in sorted order
    zeros = add.network.expanded(add.fresh("nothing"), add.constant(0, numpy.int64), (total,))
    indices, count = indices_of_true(add, differ)
    size = counted_size(reader, node, count)
    firsts = add.take(order, [_cut(add, indices, size)])
    inverse = add.scattered(zeros, group, [order])
    ones = add.network.expanded(add.fresh("ones"), add.constant(1, numpy.int64), (total,))
    counts = _cut(add, add.scattered(zeros, ones, [group], reduction="add"), size)
    if not node.get("sorted", 1):
        permutation = _sorted(add, firsts)
        firsts, counts = add.take(firsts, [permutation]), add.take(counts, [permutation])
        zeros = add.network.expanded(add.fresh("nothing"), add.constant(0, numpy.int64), (size,))
        inverse = add.take(add.scattered(zeros, add.arange(size), [permutation]), [inverse])
    for name, result in zip(node.outputs, (add.take(x, [firsts], axis), firsts, inverse, counts)):
        if name:
            add.done(result, name)


def _differing(add, rows):
    """Which rows differ from the one before, or are the first, as bools."""
    total = add.shape(rows)[0]
    if may_be_zero(total):  # there may be no first row
        indices = add.arange(total)
        previous = add.take(rows, [add.do("maximum", add.do("subtract", indices, 1), 0)])
        changes = add.reshape(add.reduce("max", add.do("not_equal", rows, previous), [1]), (total,))
        return add.do("logical_or", add.do("equal", indices, 0), changes)
    differ = add.empty((total,), numpy.bool_)
    add.put(add.part(differ, 0, 0, 1), True)
    if total > 1:
        pair = add.part(rows, 0, 1, total), add.part(rows, 0, 0, total - 1)
        changes = add.reduce("max", add.do("not_equal", *pair), [1])
        add.put(add.part(differ, 0, 1, total), add.reshape(changes, (total - 1,)))
    return differ


def _sorted(add, row):
    return add.reader.add_layer(
        "Argsort", add.node, [row], add.shape(row), numpy.int64, add.fresh("order"), parameters=(0, 0)
    )
