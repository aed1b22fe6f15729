"""Readers of ONNX's operators on tensors of any rank and dtype. Rearrangements become views, others the engine's
operators."""

import math

import numpy

from . import sizes
from .bfloat16 import as_halves
from .image_operators import averaged, channels_sliced, concatenated, shuffled
from .integer_means import integer_mean
from .lowering import Lowering
from .narrow_products import multiplied_by_blocks, multiplied_by_halves
from .network import CURVES, MAX_ROW, float_bits
from .readers import Unsupported, reads


def axis_of(reader, node, name, attribute="axis", default=None):
    axis, rank = node.get(attribute, default), len(reader.shape(name))
    return axis + rank if axis < 0 else axis


def numbers_of(reader, node, number, attribute):
    """Integers that an operator takes as an attribute or, in newer opsets, as an input; None if it has neither."""
    name = node.input(number)
    if name is None:
        return node.get(attribute)
    values = reader.constant(name)
    if values is None:
        raise Unsupported(f"has {attribute} computed at run time from other values than sizes")
    values = reader.network.values.get(name, values)
    return [value if isinstance(value, sizes.Size) else int(value) for value in values.reshape(-1)]


# ---- elementwise
@reads("Identity", "Dropout")
def identity(reader, node):
    if (
        node.op == "Dropout"
        and node.input(2)
        and (reader.constant(node.input(2)) is None or reader.constant(node.input(2)).any())
    ):
        raise Unsupported("is made for training")
    reader.same(node.output, node.inputs[0])
    if len(node.outputs) > 1 and node.outputs[1]:
        reader.network.constants[node.outputs[1]] = numpy.ones(reader.shape(node.inputs[0]), bool)


UNARY = {
    "Neg": "negative",
    "Abs": "absolute",
    "Sign": "sign",
    "Not": "logical_not",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Exp": "exp",
    "Log": "log",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "arcsin",
    "Acos": "arccos",
    "Atan": "arctan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "arcsinh",
    "Acosh": "arccosh",
    "Atanh": "arctanh",
    "Erf": "erf",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "rint",
    "IsNaN": "isnan",
    "BitwiseNot": "invert",
}


@reads(*UNARY)
def unary(reader, node):
    reader.network.unary(UNARY[node.op], node.name, node.inputs[0], node.output)


BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Pow": "power",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}


@reads(*BINARY)
def binary(reader, node):
    a, b = node.inputs
    if node.op == "Pow" and _product(reader, node, a, reader.constant(b)):
        return
    loop = numpy.result_type(reader.dtype(a), reader.dtype(b))
    reader.network.binary(
        BINARY[node.op], node.name, a, b, node.output, loop=loop, dtype=reader.dtype(a) if node.op == "Pow" else None
    )


def _product(reader, node, x, exponents):
    """Lowers a square or cube of floats to products, which take a fifth of the time. Returns whether it did."""
    if exponents is None or exponents.size != 1 or exponents.ndim > len(reader.shape(x)) or reader.dtype(x).kind != "f":
        return False
    exponent = float(exponents.reshape(()))
    if exponent not in (2, 3):
        return False
    network, is_square = reader.network, exponent == 2
    square = network.unary("square", node.name, x, node.output if is_square else network.fresh(f"{node.output}/square"))
    if not is_square:
        network.binary("multiply", node.name, square, x, node.output)
    return True


@reads("Div")
def divide(reader, node):
    """Integer quotients are rounded towards zero."""
    network, (a, b), kind = reader.network, node.inputs, reader.dtype(node.inputs[0]).kind
    if kind == "f":
        network.binary("divide", node.name, a, b, node.output)
    elif kind == "u":
        network.binary("floor_divide", node.name, a, b, node.output)
    else:
        signs, magnitudes = [], []
        for name in (a, b):
            signs.append(network.unary("sign", node.name, name, network.fresh(f"{node.output}/sign")))
            magnitudes.append(network.unary("absolute", node.name, name, network.fresh(f"{node.output}/size")))
        magnitude = network.binary("floor_divide", node.name, *magnitudes, network.fresh(f"{node.output}/quotient"))
        sign = network.binary("multiply", node.name, *signs, network.fresh(f"{node.output}/signs"))
        network.binary("multiply", node.name, magnitude, sign, node.output)


@reads("Relu")
def relu(reader, node):
    source = node.inputs[0]
    if reader.dtype(source) == numpy.float32:
        reader.add_layer("Relu", node, [source], reader.shape(source))
    else:
        zero = reader.network.constant(f"{node.output}/zero", 0, reader.dtype(source))
        reader.network.binary("maximum", node.name, source, zero, node.output)


@reads("Clip")
def clip(reader, node):
    network, source, dtype = reader.network, node.inputs[0], reader.dtype(node.inputs[0])
    bounds = [node.input(1), node.input(2)]
    if node.opset < 11:
        bounds = [
            network.constant(f"{node.output}/{key}", node.get(key), dtype) if node.get(key) is not None else None
            for key in ("min", "max")
        ]
    values = [reader.constant(name) for name in bounds]
    known = all(
        name is None or (value is not None and value.size == 1 and not numpy.isnan(value).any())
        for name, value in zip(bounds, values)
    )
    if dtype == numpy.float32 and known:
        low, high = (
            default if value is None else float(value.reshape(()))
            for value, default in zip(values, (-math.inf, math.inf))
        )
        reader.add_layer("Clip", node, [source], reader.shape(source), bounds=(min(low, high), high))
        return
    for op, name in zip(("maximum", "minimum"), bounds):
        if name is not None:
            source = network.binary(op, node.name, source, name, network.fresh(f"{node.output}/{op}"))
    reader.same(node.output, source)


def activated(reader, node, curve, source, output=None):
    """Adds the fused operator for float32. Returns False for other dtypes."""
    if reader.dtype(source) != numpy.float32:
        return False
    reader.add_layer("Activate", node, [source], reader.shape(source), output=output, parameters=(CURVES.index(curve),))
    return True


@reads("Sigmoid")
def sigmoid(reader, node):
    network, source = reader.network, node.inputs[0]
    if activated(reader, node, "sigmoid", source):
        return
    negative = network.unary("negative", node.name, source, network.fresh(f"{node.output}/negative"))
    power = network.unary("exp", node.name, negative, network.fresh(f"{node.output}/exp"))
    one = network.constant(f"{node.output}/one", 1, reader.dtype(source))
    denominator = network.binary("add", node.name, power, one, network.fresh(f"{node.output}/whole"))
    network.unary("reciprocal", node.name, denominator, node.output)


@reads("Gelu", "Mish")
def gelu_or_mish(reader, node):
    name = "mish" if node.op == "Mish" else "gelu tanh" if node.get("approximate", "none") == "tanh" else "gelu"
    if activated(reader, node, name, node.inputs[0]):
        return
    dtype = reader.dtype(node.inputs[0])
    if dtype != numpy.float16:
        raise Unsupported(f"works on {dtype}, expected float32 or float16")
    network = reader.network
    single = network.copied(network.fresh(f"{node.output}/single"), node.inputs[0], numpy.float32, node.name)
    result = network.fresh(f"{node.output}/made")
    activated(reader, node, name, single, result)
    network.copied(node.output, result, dtype, node.name)


@reads("Where")
def where(reader, node):
    shape = reader.network.broadcast(*(reader.shape(name) for name in node.inputs))
    reader.add_layer("Where", node, node.inputs, shape, reader.dtype(node.inputs[1]))


@reads("Cast", "CastLike")
def cast(reader, node):
    from onnx import helper

    try:
        dtype = (
            numpy.dtype(helper.tensor_dtype_to_np_dtype(node.get("to")))
            if node.op == "Cast"
            else reader.dtype(node.inputs[1])
        )
    except KeyError as error:
        raise Unsupported(f"casts to ONNX's element type {node.get('to')}") from error
    if dtype == reader.dtype(node.inputs[0]):
        reader.same(node.output, node.inputs[0])
    else:
        reader.network.copied(node.output, node.inputs[0], dtype, node.name)
        if dtype == numpy.float16:
            reader.network.rounded.add(node.output)


@reads("BitCast")
def bits(reader, node):
    from onnx import helper

    add, x = Lowering(reader, node), node.inputs[0]
    try:
        dtype = numpy.dtype(helper.tensor_dtype_to_np_dtype(node.get("to")))
    except KeyError as error:
        raise Unsupported(f"takes bits for ONNX's element type {node.get('to')}") from error
    if dtype.itemsize != add.dtype(x).itemsize:
        raise Unsupported(f"takes the bits of {add.dtype(x)} for {dtype}, of another size")
    result_dtype = numpy.dtype(numpy.uint8) if dtype.kind == "b" else dtype
    result = reader.add_layer("Bits", node, [x], add.shape(x), result_dtype, add.fresh("bits"))
    add.done(add.do("not_equal", result, 0) if dtype.kind == "b" else result)


# ---- products
@reads("Det")
def determinant(reader, node):
    """Gaussian elimination with partial pivoting."""
    add, x = Lowering(reader, node), node.inputs[0]
    *outer, size, columns = add.shape(x)
    if size != columns or size > _MAX_DETERMINANT:
        raise Unsupported(f"works on matrices of {size} by {columns}, expected square ones up to {_MAX_DETERMINANT}")
    count = math.prod(outer)
    remaining, result = add.reshape(x, (count, size, size)), None
    for step in range(size):
        left = size - step
        pivot = add.reshape(add.reduce("argmax", add.do("absolute", add.part(remaining, 2, 0, 1)), [1]), (count,))
        first, pivot_row = add.part(remaining, 1, 0, 1), add.take(remaining, [add.along(count, 0, 1), pivot])
        pivot_row = add.reshape(pivot_row, (count, 1, left))
        pivot_value = add.part(pivot_row, 2, 0, 1)
        swapped = add.cast(add.do("not_equal", pivot, 0), add.dtype(x))
        sign = add.do("subtract", 1, add.do("multiply", swapped, 2)) if left > 1 else None
        factor = add.reshape(pivot_value, (count,))
        factor = factor if sign is None else add.do("multiply", factor, sign)
        result = factor if result is None else add.do("multiply", result, factor)
        if left == 1:
            break
        is_pivot = add.do("equal", add.reshape(pivot, (count, 1, 1)), add.reshape(add.arange(left), (1, left, 1)))
        rows = add.part(add.where(is_pivot, first, remaining), 1, 1, left)
        safe = add.where(add.do("equal", pivot_value, 0), 1, pivot_value)
        factors = add.do("divide", add.part(rows, 2, 0, 1), safe)
        remaining = add.part(add.do("subtract", rows, add.do("multiply", factors, pivot_row)), 2, 1, left)
    add.done(add.reshape(result, tuple(outer)))


_MAX_DETERMINANT = 64


@reads("MatMul")
def matmul(reader, node):
    network, (a, b) = reader.network, node.inputs
    a_shape, b_shape = reader.shape(a), reader.shape(b)
    a_matrix = a_shape if len(a_shape) > 1 else (1, *a_shape)
    b_matrix = b_shape if len(b_shape) > 1 else (*b_shape, 1)
    network.need_same(a_matrix[-1], b_matrix[-2])
    shape = (*network.broadcast(a_matrix[:-2], b_matrix[:-2]), a_matrix[-2], b_matrix[-1])
    result_shape = shape[:-2] + (shape[-2:-1] if len(a_shape) > 1 else ()) + (shape[-1:] if len(b_shape) > 1 else ())
    weights = reader.constant(b)
    if weights is not None and weights.ndim == 2 and reader.dtype(a) == numpy.float32:
        rows = a
        if len(a_shape) != 2:
            rows = network.reshaped(network.fresh(f"{node.output}/rows"), a, (-1, a_matrix[-1]))
        blocks = reader.blocks.get(node.names[1])
        if blocks is not None and blocks.numbers.shape == weights.T.shape:
            result = multiplied_by_blocks(Lowering(reader, node), rows, blocks)
            network.reshaped(node.output, result, result_shape)
            return
        if (halves := as_halves(reader, weights)) is not None:
            network.reshaped(node.output, multiplied_by_halves(Lowering(reader, node), rows, halves.T), result_shape)
            return
        product(reader, node, rows, weights.T, None, result_shape)
        return
    if weights is not None and weights.ndim == 2 and reader.dtype(a) == numpy.float16 == weights.dtype:
        add = Lowering(reader, node)
        add.done(add.reshape(multiplied_by_halves(add, a, weights.T), result_shape))
        return
    a, b = (
        name if matrix == own_shape else network.reshaped(network.fresh(f"{node.output}/matrix"), name, matrix)
        for name, own_shape, matrix in ((a, a_shape, a_matrix), (b, b_shape, b_matrix))
    )
    if result_shape == shape:
        reader.add_layer("MatMul", node, [a, b], shape)
    else:
        matrices = reader.add_layer("MatMul", node, [a, b], shape, output=network.fresh(f"{node.output}/matrices"))
        network.reshaped(node.output, matrices, result_shape)


def product(reader, node, rows, weights, bias, result_shape):
    """rows @ weights.T + bias in float32 with constants, reshaped to `result_shape`."""
    network = reader.network
    shape = (reader.shape(rows)[0], len(weights))
    names = [network.constant(f"{node.output}/weights", weights, "float32"), None]
    if bias is not None:
        names[1] = network.constant(f"{node.output}/bias", bias, "float32")
    if result_shape == shape:
        reader.add_layer("Gemm", node, [rows, *names, None], shape)
    else:
        result = reader.add_layer(
            "Gemm", node, [rows, *names, None], shape, output=network.fresh(f"{node.output}/product")
        )
        network.reshaped(node.output, result, result_shape)


@reads("Gemm")
def gemm(reader, node):
    network, (a, b), c = reader.network, node.inputs[:2], node.input(2)
    dtype, alpha, beta = reader.dtype(a), node.get("alpha", 1.0), node.get("beta", 1.0)
    if node.get("transA", 0):
        a = network.transposed(network.fresh(f"{node.output}/a"), a, (1, 0))
    weights, bias = reader.constant(b), reader.constant(c)
    columns = reader.shape(b)[0 if node.get("transB", 0) else 1]
    bias_is_row = c is None or (
        bias is not None and bias.size in (1, columns) and (bias.ndim < 2 or bias.shape[-1] == bias.size)
    )
    if weights is not None and dtype == numpy.float16 and bias_is_row:
        add, weights = Lowering(reader, node), weights if node.get("transB", 0) else weights.T
        if bias is not None:
            bias = numpy.broadcast_to(bias.reshape(-1).astype("float32") * beta, (columns,))
        add.done(multiplied_by_halves(add, a, weights * dtype.type(alpha), bias))
        return
    if weights is not None and dtype == numpy.float32 and bias_is_row:
        weights = weights if node.get("transB", 0) else weights.T
        bias = None if bias is None else numpy.broadcast_to(bias.reshape(-1) * dtype.type(beta), (columns,))
        blocks = reader.blocks.get(node.names[1])
        if blocks is not None and blocks.numbers.shape == weights.shape and alpha == 1.0:
            add = Lowering(reader, node)
            add.done(multiplied_by_blocks(add, a, blocks, bias))
            return
        if alpha == 1.0 and (halves := as_halves(reader, weights)) is not None:
            add = Lowering(reader, node)
            add.done(multiplied_by_halves(add, a, halves, bias))
            return
        if alpha != 1.0:
            weights = weights * dtype.type(alpha)
        product(reader, node, a, weights, bias, (reader.shape(a)[0], columns))
        return
    if node.get("transB", 0):
        b = network.transposed(network.fresh(f"{node.output}/b"), b, (1, 0))

    def scaled(name, factor):
        if factor == 1.0:
            return name
        constant = network.constant(f"{node.output}/factor", factor, dtype)
        return network.binary("multiply", node.name, name, constant, network.fresh(f"{node.output}/scaled"))

    is_last = c is None and alpha == 1.0
    result = reader.add_layer(
        "MatMul",
        node,
        [a, b],
        (reader.shape(a)[0], columns),
        output=node.output if is_last else network.fresh(f"{node.output}/product"),
    )
    if c is not None:
        network.binary("add", node.name, scaled(result, alpha), scaled(c, beta), node.output)
    elif not is_last:
        reader.same(node.output, scaled(result, alpha))


# ---- rearrangements: views
@reads("Reshape")
def reshape(reader, node):
    source, target = node.inputs[0], numbers_of(reader, node, 1, "shape")
    source_shape = reader.shape(source)
    if not node.get("allowzero", 0):
        if any(size == 0 for size in target[len(source_shape) :]):
            raise Unsupported(f"keeps a dimension that {reader.shape_text(source_shape)} does not have")
        target = [source_shape[d] if size == 0 else size for d, size in enumerate(target)]
    reshaped(reader, node, source, target)


def reshaped(reader, node, source, shape):
    source_shape = reader.shape(source)
    try:
        shape = sizes.reshaped(source_shape, shape)
    except ValueError as error:
        raise Unsupported(f"does not make {shape} of {source_shape}") from error
    reader.network.need_same_count(source_shape, shape)
    if shape == source_shape:
        reader.same(node.output, source)
    elif shuffled(reader, node, shape):
        return
    elif (
        len(source_shape) == 4
        and len(shape) == 2
        and source_shape[0] == shape[0]
        and reader.dtype(source) == numpy.float32
    ):
        reader.add_layer(
            "Flatten", node, [source], shape
        )  # of an image, or a plain reshape (passes.lower_plain_tensors)
    else:
        reader.network.reshaped(node.output, source, shape)


@reads("Flatten")
def flatten(reader, node):
    source_shape = reader.shape(node.inputs[0])
    axis = axis_of(reader, node, node.inputs[0], default=1)
    reshaped(reader, node, node.inputs[0], (math.prod(source_shape[:axis]), math.prod(source_shape[axis:])))


@reads("Squeeze")
def squeeze(reader, node):
    shape, axes = reader.shape(node.inputs[0]), numbers_of(reader, node, 1, "axes")
    if axes is None:
        axes = [d for d, size in enumerate(shape) if size == 1]
        for size in shape:
            if sizes.is_open(size):
                reader.network.need(
                    size,
                    2,
                    lambda: (
                        f"drops all dimensions of one element of {sizes.shape_text(shape)}, also those that are open:"
                        " export it with axes, or call it with larger sizes"
                    ),
                    equal=False,
                )
    else:
        axes = [axis % len(shape) for axis in axes]
    reshaped(reader, node, node.inputs[0], [size for d, size in enumerate(shape) if d not in axes])


@reads("Unsqueeze")
def unsqueeze(reader, node):
    shape, axes = list(reader.shape(node.inputs[0])), numbers_of(reader, node, 1, "axes")
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    reshaped(reader, node, node.inputs[0], shape)


@reads("Transpose")
def transpose(reader, node):
    rank = len(reader.shape(node.inputs[0]))
    order = node.get("perm", range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        raise Unsupported(f"has perm {list(order)} for {rank} dimensions")
    reader.network.transposed(node.output, node.inputs[0], order)


@reads("Expand")
def expand(reader, node):
    target = numbers_of(reader, node, 1, "shape")
    shape = sizes.broadcast(reader.shape(node.inputs[0]), target)
    reader.network.need_broadcast(target, shape)
    reader.network.expanded(node.output, node.inputs[0], shape)


@reads("Slice")
def slices(reader, node):
    network, source = reader.network, node.inputs[0]
    starts, ends = numbers_of(reader, node, 1, "starts"), numbers_of(reader, node, 2, "ends")
    axes = numbers_of(reader, node, 3, "axes") or range(len(starts))
    steps = numbers_of(reader, node, 4, "steps") or [1] * len(starts)
    view, shape, strides = network.as_view(source), list(reader.shape(source)), list(network.as_view(source).strides)
    offset = view.offset
    if [axis % len(shape) for axis in axes] == [1] and steps[0] == 1:
        first, count = sliced(reader, node, shape, 1, starts[0], ends[0])
        if channels_sliced(reader, node, node.output, first, count):
            return
    for start, end, axis, step in zip(starts, ends, axes, steps):
        first, count = sliced(reader, node, shape, axis, start, end, step)
        offset += first * strides[axis]
        shape[axis], strides[axis] = count, strides[axis] * step
    network.view(node.output, source, shape, strides, offset)


def sliced(reader, node, shape, axis, start, end, step=1):
    """Returns (first index, number of elements) of a slice of that axis."""
    shape = tuple(shape)
    if reader.open_inputs and not sizes.is_open(shape[axis]):
        if any(sizes.is_open(index) and abs(index) > shape[axis] for index in (start, end)):
            reader.open_inputs.beyond_an_end = True

    def need(one, other):
        reader.network.need(
            one,
            other,
            lambda: (
                f"slices {sizes.shape_text(shape)} along axis {axis} from {sizes.size_text(start)} to"
                f" {sizes.size_text(end)}, and is compiled for {sizes.size_text(one)} >= {sizes.size_text(other)}: call"
                " it with such sizes"
            ),
            equal=False,
        )

    if step < 0 and end < -shape[axis]:
        need(-shape[axis] - 1, end)
        slice_end = None
    else:
        if step < 0:
            need(end, -shape[axis])
        slice_end = end
    counted = not reader.network.counted.keys().isdisjoint(sizes.variables(sizes.terms_of(shape[axis])))
    return sizes.sliced(shape[axis], start, slice_end, step, need, *([0] if counted else []))


@reads("Split")
def split(reader, node):
    network, source = reader.network, node.inputs[0]
    axis, view, shape = axis_of(reader, node, source, default=0), network.as_view(source), list(reader.shape(source))
    parts = explicit_parts = numbers_of(reader, node, 1, "split")
    if parts is None:
        part = -(-shape[axis] // len(node.outputs))
        before = part * (len(node.outputs) - 1)
        parts = [part] * (len(node.outputs) - 1) + [shape[axis] - before]
    even = node.opset < 18 and explicit_parts is None  # before opset 18 parts are equal

    def text():
        return (
            f"splits {sizes.shape_text(reader.shape(source))} along axis {axis} into"
            f" {', '.join(map(sizes.size_text, parts))}, which fits at some sizes only: call it with such sizes"
        )

    network.need(parts[0] * len(parts) if even else sum(parts), shape[axis], text)
    for size in parts:
        network.need(size, int(explicit_parts is None), text, equal=False)
    first = 0
    for name, size in zip(node.outputs, parts):
        shape[axis] = size
        if axis != 1 or not channels_sliced(reader, node, name, first, size):
            network.view(name, source, shape, view.strides, view.offset + first * view.strides[axis])
        first += size


@reads("Concat")
def concatenate(reader, node):
    """Copies each part to its place; passes.py removes copies whose producer can write there directly."""
    network, shapes = reader.network, [reader.shape(name) for name in node.inputs]
    axis = axis_of(reader, node, node.inputs[0])
    result_shape = list(shapes[0])
    for d in range(len(result_shape)):
        for shape in shapes[1:]:
            result_shape[d] = result_shape[d] + shape[d] if d == axis else sizes.same(result_shape[d], shape[d])
    for shape in shapes[1:]:
        network.need_joined(shapes[0], shape, axis)
    if any(sizes.is_zero(shape[axis]) for shape in shapes):  # empty slices that exporters leave behind
        node.inputs = [name for name, shape in zip(node.inputs, shapes) if not sizes.is_zero(shape[axis])]
        if len(node.inputs) == 1:
            reader.same(node.output, node.inputs[0])
        elif node.inputs:
            concatenate(reader, node)
        else:
            raise Unsupported(f"makes a tensor without elements, of the shape {reader.shape_text(result_shape)}")
        return
    if concatenated(reader, node, axis, result_shape):
        return
    network.declare(node.output, result_shape, reader.dtype(node.inputs[0]))
    strides, offset = network.as_view(node.output).strides, 0
    for name, shape in zip(node.inputs, shapes):
        size, shape = shape[axis], (*result_shape[:axis], shape[axis], *result_shape[axis + 1 :])
        part = network.view(network.fresh(f"{node.output}/part"), node.output, shape, strides, offset * strides[axis])
        reader.add_layer("Copy", node, [name], shape, output=part)
        offset += size


@reads("Shape", "Size")
def shape_of(reader, node):
    """The reader makes a constant for a tensor of known shape."""
    raise Unsupported(f"works on {node.inputs[0]!r}, whose shape is not fixed")


@reads("ConstantOfShape")
def constant_of_shape(reader, node):
    """A broadcast view of one element."""
    from onnx import numpy_helper

    value = numpy.float32(0) if node.get("value") is None else numpy_helper.to_array(node.get("value"))
    name = reader.network.constant(f"{node.output}/value", value.reshape(()))
    reader.network.expanded(node.output, name, numbers_of(reader, node, 0, "input"))


# ---- by index
@reads("Gather")
def gather(reader, node):
    network, (source, indices) = reader.network, node.inputs
    axis, source_shape = axis_of(reader, node, source, default=0), reader.shape(source)
    if reader.dtype(indices) != numpy.int64:
        indices = network.copied(network.fresh(f"{node.output}/indices"), indices, "int64")
    constant = reader.constant(indices)
    if constant is not None and constant.size == 1 and reader.constant(source) is None:  # a single index: a view
        view, index = network.as_view(source), int(constant.reshape(()))
        index = index if index >= 0 else source_shape[axis] + index
        if not 0 <= index < source_shape[axis]:
            raise Unsupported(f"takes element {index} along axis {axis} of {reader.shape_text(source_shape)}")
        network.need_within(source, axis, index, index)
        shape, strides = list(source_shape), list(view.strides)
        shape[axis : axis + 1], strides[axis : axis + 1] = constant.shape, (1,) * constant.ndim
        network.view(node.output, source, shape, strides, view.offset + index * view.strides[axis])
    else:
        reader.add_layer(
            "Gather",
            node,
            [source, indices],
            (*source_shape[:axis], *reader.shape(indices), *source_shape[axis + 1 :]),
            parameters=(axis,),
        )


# ---- reductions
REDUCE = {"ReduceSum": "sum", "ReduceMean": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


def reduced_axes(reader, node):
    """The axes to reduce, non-negative and ascending; None if nothing is reduced."""
    rank, axes = len(reader.shape(node.inputs[0])), numbers_of(reader, node, 1, "axes")
    if not axes and node.get("noop_with_empty_axes", 0):
        return None
    return sorted({axis % rank for axis in axes}) if axes else list(range(rank))


@reads(*REDUCE)
def reduce(reader, node):
    network, source = reader.network, node.inputs[0]
    source_shape, axes = reader.shape(source), reduced_axes(reader, node)
    if axes is None:
        reader.same(node.output, source)
        return
    dtype = reader.dtype(source)
    result = averaged(reader, node, axes) if node.op == "ReduceMean" else None
    if result is not None:
        if node.get("keepdims", 1):
            reader.same(node.output, result)
        else:
            reshaped(reader, node, result, source_shape[:2])
        return
    add = Lowering(reader, node)
    if node.op == "ReduceMean":
        result = integer_mean(add, node.op, source, axes) if dtype.kind in "iu" else add.mean(source, axes)
    else:
        result = add.reduce(REDUCE[node.op], source, axes)
    if node.get("keepdims", 1):
        reader.same(node.output, result)
    else:
        network.reshaped(node.output, result, [size for d, size in enumerate(source_shape) if d not in axes])


@reads("Softmax", "LogSoftmax")
def softmax(reader, node):
    network, source = reader.network, node.inputs[0]
    shape, label = reader.shape(source), node.output
    axis = axis_of(reader, node, source, default=-1 if node.opset >= 13 else 1)
    axes = [axis] if node.opset >= 13 else list(range(axis, len(shape)))
    dtype = reader.dtype(source)
    if axes == [len(shape) - 1] and dtype in (numpy.float16, numpy.float32) and shape[-1] <= MAX_ROW:
        add = Lowering(reader, node)
        parameters, output = (int(node.op == "LogSoftmax"), float_bits(1)), add.fresh(f"{label}/softmax")
        source = add.cast(source, numpy.float32)
        reader.add_layer("Softmax", node, [source, None], shape, numpy.float32, output, parameters=parameters)
        add.done(add.cast(output, dtype))
        return
    largest = network.reduced("max", node.name, source, axes, network.fresh(f"{label}/max"))
    shifted = network.binary("subtract", node.name, source, largest, network.fresh(f"{label}/below"))
    powers = network.unary("exp", node.name, shifted, network.fresh(f"{label}/exp"))
    total = network.reduced("sum", node.name, powers, axes, network.fresh(f"{label}/sum"))
    if node.op == "Softmax":
        network.binary("divide", node.name, powers, total, label)
    else:
        logarithm = network.unary("log", node.name, total, network.fresh(f"{label}/log"))
        network.binary("subtract", node.name, shifted, logarithm, label)


@reads("LayerNormalization", "com.microsoft.LayerNormalization")  # the latter for opsets without it (parsing.py)
def layer_normalization(reader, node):
    network, source = reader.network, node.inputs[0]
    axis, rank = axis_of(reader, node, source, default=-1), len(reader.shape(source))
    axes, label = list(range(axis, rank)), node.output
    dtype = reader.dtype(source)
    if (
        axes == [rank - 1]
        and not any(node.outputs[1:])
        and dtype == numpy.float32
        and reader.shape(source)[-1] <= MAX_ROW
        and all(
            name is None or reader.constant(name) is not None and reader.shape(name) == reader.shape(source)[-1:]
            for name in node.inputs[1:]
        )
    ):
        parameters = (float_bits(node.get("epsilon", 1e-5)),)
        reader.add_layer(
            "Normalize", node, [source, node.inputs[1], node.input(2)], reader.shape(source), parameters=parameters
        )
        return

    def mean(name, what):
        total = network.reduced("sum", node.name, name, axes, network.fresh(f"{label}/sum"))
        count = Lowering(reader, node).constant(math.prod(reader.shape(name)[d] for d in axes), dtype)
        return network.binary("divide", node.name, total, count, network.fresh(f"{label}/{what}"))

    mean_output = mean(source, "mean")
    centred = network.binary("subtract", node.name, source, mean_output, network.fresh(f"{label}/below"))
    square = network.unary("square", node.name, centred, network.fresh(f"{label}/square"))
    epsilon = network.constant(f"{label}/epsilon", node.get("epsilon", 1e-5), dtype)
    variance = network.binary("add", node.name, mean(square, "variance"), epsilon, network.fresh(f"{label}/variance"))
    deviation = network.unary("sqrt", node.name, variance, network.fresh(f"{label}/deviation"))
    scaled = network.binary("divide", node.name, centred, deviation, network.fresh(f"{label}/scaled"))
    optional_outputs = [*node.outputs[1:], "", ""]
    if optional_outputs[0]:
        reader.same(optional_outputs[0], mean_output)
    if optional_outputs[1]:
        network.unary("reciprocal", node.name, deviation, optional_outputs[1])
    weighted = network.binary("multiply", node.name, scaled, node.inputs[1], network.fresh(f"{label}/weighted"))
    reader.same(
        label,
        network.binary("add", node.name, weighted, node.inputs[2], network.fresh(f"{label}/whole"))
        if node.input(2)
        else weighted,
    )
