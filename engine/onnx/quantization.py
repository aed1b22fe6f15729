"""Readers of quantized models: QuantizeLinear/DequantizeLinear pairs around ordinary operators, operators on quantized
tensors (QLinearConv and the like, also com.microsoft's), and operators with quantized weights and inputs quantized at
run time (MatMulInteger, ConvInteger, DynamicQuantizeLinear).

DequantizeLinear makes float32, and its operand is recorded. If a QuantizeLinear reads the result of an operator on such
tensors, the operator is computed on the bytes, and the float32 layers become dead (passes.drop_dead). Other operators
are computed in float32. Images of bytes are stored channels last and viewed in ONNX's order (integer_products.py)."""

import copy
import math
from typing import NamedTuple

import numpy

from .integer_products import convolved, largest, multiplied, pooled
from .lowering import Lowering
from .narrow_products import blocks_of
from .network import float_bits
from .readers import Unsupported, reads, reads_early

_BYTES = (numpy.uint8, numpy.int8)
# Operators that move elements, so that they apply to the bytes unchanged.
_MOVES = {
    "Reshape",
    "Transpose",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Gather",
    "Expand",
    "Identity",
    "DepthToSpace",
    "SpaceToDepth",
    "Tile",
    "Dropout",  # does nothing at inference
}
_BIAS_MAX = 1 << 30  # leaves as much room for the sum of products that the bias is added to
_BOUNDED = ("Conv", "Gemm", "MatMul", "Add", "Mul", "AveragePool", "GlobalAveragePool")  # can fuse an activation
# Elementwise operators, computed by a table of 256 entries.
_TABLES = {
    "Sigmoid",
    "Tanh",
    "HardSwish",
    "HardSigmoid",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "Gelu",
    "Relu",
    "Clip",
    "Exp",
    "Log",
    "Sqrt",
    "Abs",
    "Neg",
    "Erf",
    "Softplus",
    "Softsign",
    "Mish",
    "Swish",
    "Reciprocal",
    "ThresholdedRelu",
}


class Quantized(NamedTuple):
    """A tensor of integers, `source`, that stands for the values (source - zero) * scale. `scale` and `zero` have one
    element, or one per index along `axis`. `dtype` is the source's."""

    source: str
    scale: numpy.ndarray
    zero: numpy.ndarray
    axis: int
    dtype: numpy.dtype

    @property
    def plain(self):
        """Whether it holds bytes with a single scale and zero point."""
        return self.scale.size == 1 and self.zero.size == 1 and self.dtype in _BYTES

    def same(self, other):
        return (
            self.dtype == other.dtype
            and numpy.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))
            and numpy.array_equal(self.zero.reshape(-1), other.zero.reshape(-1))
        )

    @property
    def limits(self):
        info = numpy.iinfo(self.dtype)
        return int(info.min), int(info.max)


def _quantized(reader, source, scale, zero, axis=1):
    """The Quantized with these tensors; None if the scale or zero point is computed at run time."""
    scales, dtype = reader.constant(scale), reader.dtype(source)
    zeros = numpy.zeros((), dtype) if zero is None else reader.constant(zero)
    if scales is None or zeros is None:
        return None
    return Quantized(source, scales.astype("float32"), zeros.astype("int64"), axis, dtype)


def _target(reader, scale, zero, dtype=numpy.uint8):
    """How a node quantizes its result: a Quantized without a source; None if the scale or zero point is computed."""
    scales, zeros = reader.constant(scale), None if zero is None else reader.constant(zero)
    if scales is None or (zero is not None and zeros is None):
        return None
    zeros = numpy.zeros((), dtype) if zeros is None else zeros
    return Quantized("", scales.astype("float32"), zeros.astype("int64"), 1, zeros.dtype)


# ---- elementwise, in memory order
def _in_memory_order(add, name, order=None):
    """Returns (a dense tensor of the same elements, its order of dimensions). A tensor that is dense in another order,
    such as an image channels last, is not copied unless `order` is given."""
    if order is None:
        strides = add.network.as_view(name).strides
        order = sorted(range(len(strides)), key=lambda d: (-int(strides[d]), d))
        if not add.network.is_dense(add.transpose(name, order)):
            order = list(range(len(order)))
    transposed = name if order == list(range(len(order))) else add.transpose(name, order)
    return (transposed if add.network.is_dense(transposed) else add.copy(transposed)), order


def _in_onnx_order(add, name, order):
    return add.transpose(name, [order.index(d) for d in range(len(order))]) if order != sorted(order) else name


def _byte_layer(add, op, operands, dtype, parameters):
    return add.reader.add_layer(
        op, add.node, operands, add.shape(operands[0]), dtype, add.fresh(op.lower()), parameters=parameters
    )


def quantized_float(add, name, target, low=None, high=None):
    """Quantizes float32 to bytes."""
    lowest, highest = target.limits
    source, order = _in_memory_order(add, name)
    zero, scale = int(target.zero.reshape(())), float(target.scale.reshape(()))
    parameters = (zero, lowest if low is None else low, highest if high is None else high, float_bits(scale))
    return _in_onnx_order(add, _byte_layer(add, "Quantize", [source], target.dtype, parameters), order)


def dequantized(add, quantized):
    source, order = _in_memory_order(add, quantized.source)
    parameters = (0, 0, 0, float_bits(float(quantized.scale.reshape(()))), int(quantized.zero.reshape(())))
    return _in_onnx_order(add, _byte_layer(add, "Dequantize", [source], numpy.float32, parameters), order)


def _looked_up(add, quantized, target, function=None):
    """Applies `function` to the values by a table indexed by the bytes, and quantizes the results as `target`."""
    low, _ = quantized.limits
    numbers = numpy.arange(256).astype("uint8").view(quantized.dtype).astype("int64")  # indexed by the unsigned byte
    values = (numbers - int(quantized.zero.reshape(()))).astype("float32") * quantized.scale.reshape(())
    values = values if function is None else function(values)
    lowest, highest = target.limits
    table = numpy.rint(values / target.scale.reshape(())) + int(target.zero.reshape(()))
    table = numpy.clip(numpy.nan_to_num(table, nan=lowest), lowest, highest).astype(target.dtype).view("uint8")
    source, order = _in_memory_order(add, quantized.source)
    result = _byte_layer(add, "LookUp", [source, add.constant(table, numpy.uint8)], target.dtype, ())
    return _in_onnx_order(add, result, order)


def _as_target(add, quantized, target):
    return quantized.source if quantized.same(target) else _looked_up(add, quantized, target)


def _combined(add, op, a, b, target, low, high):
    """The sum or product of two tensors of equal shape, or None."""
    if add.shape(a.source) != add.shape(b.source):
        return None
    source, order = _in_memory_order(add, a.source)
    other, _ = _in_memory_order(add, b.source, order)
    scales = [float(numpy.float32(operand.scale.reshape(()))) for operand in (a, b)]
    zeros = [int(operand.zero.reshape(())) for operand in (a, b)]
    target_scale = float(target.scale.reshape(()))
    if op == "Add":
        numbers = (float_bits(scales[0] / target_scale), zeros[0], float_bits(scales[1] / target_scale), zeros[1])
    else:
        factor = numpy.float32(numpy.float32(scales[0]) * numpy.float32(scales[1])) / numpy.float32(target_scale)
        numbers = (float_bits(factor), zeros[0], float_bits(1), zeros[1])
    parameters = (int(target.zero.reshape(())), low, high, *numbers)
    layer = "QuantizedAdd" if op == "Add" else "QuantizedMultiply"
    return _in_onnx_order(add, _byte_layer(add, layer, [source, other], target.dtype, parameters), order)


# ---- operators between DequantizeLinear and QuantizeLinear
def _bounds(reader, node, target):
    """The target's integers that the activation can give, (low, high); None if they are unknown."""
    low, high = target.limits
    zero, scale = int(target.zero.reshape(())), float(target.scale.reshape(()))
    if node.op == "Relu":
        return max(low, zero), high
    if node.op == "Clip":
        limits = (
            [node.get("min"), node.get("max")]
            if node.opset < 11
            else [reader.constant(node.input(number)) for number in (1, 2)]
        )
        if node.opset >= 11 and any(
            node.input(number) and (limits[number - 1] is None or limits[number - 1].size != 1) for number in (1, 2)
        ):
            return None
        ends = [None if limit is None else round(float(numpy.reshape(limit, ())) / scale) + zero for limit in limits]
        return max(low, low if ends[0] is None else ends[0]), min(high, high if ends[1] is None else ends[1])
    return None


def fused(add, node, target):
    """Computes the float32 node on quantized tensors, with a result quantized as `target`; None if that is not
    possible. The node's `names` are keys of the reader's `quantized`."""
    reader, quantized = add.reader, add.reader.quantized
    low, high = target.limits
    if target.scale.size != 1 or target.dtype not in _BYTES or not node.names:
        return None
    producer = reader.producers.get(node.names[0])
    if node.op in ("Relu", "Clip") and producer is not None and node.names[0] not in quantized:
        limits = _bounds(reader, node, target)
        if producer.op not in _BOUNDED or limits is None or limits[0] > limits[1]:
            return None
        low, high = limits
        node = producer
    product, bias = _with_bias(reader, node)
    operands = [quantized.get(name) for name in product.names]
    if operands[0] is None:
        return None
    if product.op in ("Conv", "MatMul", "Gemm"):
        return _product(add, product, bias, target, low, high)
    if not all(operand is not None and operand.plain for operand in operands[: 1 + (node.op in ("Add", "Mul"))]):
        return None
    if node.op in ("Add", "Mul") and len(operands) == 2:
        return _combined(add, node.op, *operands, target, low, high)
    if node.op in ("AveragePool", "GlobalAveragePool"):
        return pooled(add, node, operands[0], target, low, high)
    if node.op == "Concat" and all(operand is not None and operand.plain for operand in operands):
        return _joined(add, [_as_target(add, operand, target) for operand in operands], node.get("axis", 0))
    if node.op == "MaxPool" and not any(node.outputs[1:]):
        result = largest(add, node, operands[0].source)
        return result and _as_target(add, operands[0]._replace(source=result), target)
    if node.op in _MOVES:
        moved = copy.copy(node)
        moved.inputs, moved.outputs = [operands[0].source, *node.inputs[1:]], [add.fresh("moved")]
        return _as_target(add, operands[0]._replace(source=add.read(moved)), target)
    if node.op in _TABLES and all(reader.constant(name) is not None for name in node.inputs[1:] if name is not None):
        return _looked_up(add, operands[0], target, lambda values: _computed(reader, node, values))
    return None


def _joined(add, names, axis):
    """Concatenates bytes in the memory order of the first tensor; for images, channels last."""
    first, order = _in_memory_order(add, names[0])
    parts = [first, *(_in_memory_order(add, name, order)[0] for name in names[1:])]
    return _in_onnx_order(add, add.joined(parts, order.index(axis % len(order))), order)


def _with_bias(reader, node):
    """(the product, the name of its bias) if the node adds a constant to a matrix product; else (the node, None)."""
    if node.op == "Add":
        for name, other, index in zip(node.names, node.names[::-1], (1, 0)):
            product, bias = reader.producers.get(name), reader.constant(node.inputs[index])
            if (
                product is not None
                and name not in reader.quantized
                and product.op == "MatMul"
                and bias is not None
                and bias.ndim <= 1
            ):
                return product, other
    return node, None


def _computed(reader, node, values):
    """Evaluates the node for these values."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    others = {f"c{index}": reader.constant(name) for index, name in enumerate(node.inputs[1:]) if name is not None}
    names = ["x", *(f"c{index}" if name is not None else "" for index, name in enumerate(node.inputs[1:]))]
    proto = helper.make_node(node.op, names, ["y"], **node.attributes)
    graph = helper.make_graph(
        [proto],
        "table",
        [helper.make_empty_tensor_value_info(name) for name in ("x", *others)],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=reader.model.opset_import, ir_version=reader.model.ir_version)
    with numpy.errstate(all="ignore"):
        [result] = ReferenceEvaluator(model).run(None, {"x": values, **others})
    return numpy.asarray(result, numpy.float32)


def _weights_of(reader, quantized, columns_axis):
    """Returns (integers, zero points, scales) of constant weights, the latter two one per output; or None."""
    values = reader.constant(quantized.source) if quantized is not None else None
    if values is None or values.dtype not in _BYTES:
        return None
    count = values.shape[columns_axis]
    for numbers in (quantized.scale, quantized.zero):
        if numbers.size not in (1, count) or (
            numbers.size > 1 and numbers.ndim <= 1 and quantized.axis % values.ndim != columns_axis % values.ndim
        ):
            return None
    return values, *(numpy.broadcast_to(numbers.reshape(-1), (count,)) for numbers in (quantized.zero, quantized.scale))


def _bias_of(reader, name, scales):
    """The named bias in units of the products' scales, as int32. LookupError if it is computed, is not one for each
    column, or is too large in these units."""
    quantized, values = reader.quantized.get(name), reader.constant(reader.name_of(name))
    if quantized is not None and quantized.dtype == numpy.int32 and reader.constant(quantized.source) is not None:
        units = numpy.broadcast_to(quantized.scale.reshape(-1), scales.shape)
        if numpy.allclose(units, scales, rtol=1e-5):
            return _of_columns(reader.constant(quantized.source), scales.shape).astype("int32")
    if values is None:
        raise LookupError
    numbers = numpy.rint(_of_columns(values, scales.shape).astype("float64") / scales)
    if not (abs(numbers) <= _BIAS_MAX).all():
        raise LookupError
    return numbers.astype("int32")


def _of_columns(values, shape):
    """A bias as one number for each column. LookupError if its rows differ."""
    if values.size not in (1, *shape) or math.prod(values.shape[:-1]) != 1:
        raise LookupError
    return numpy.broadcast_to(values.reshape(-1), shape)


def _product(add, node, bias, target, low=None, high=None):
    """A Conv, MatMul or Gemm of quantized tensors: quantized as `target`, or float32 without one; None if it must be
    computed in float32. `bias` is a name in the model, or None to use the node's."""
    reader = add.reader
    operands = [reader.quantized.get(name) for name in node.names[:2]]
    transposed = node.op == "Gemm" and node.get("transB", 0)
    weights = None
    if None not in operands and operands[0].plain:
        weights = _weights_of(reader, operands[1], 0 if node.op == "Conv" or transposed else 1)
    if weights is None or (node.op != "Conv" and weights[0].ndim != 2):
        return None
    if any(node.get(key, default) != default for key, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))):
        return None
    x, (values, zeros, scales) = operands[0], weights
    product_scales = x.scale.reshape(()).astype("float32") * scales.astype("float32")
    bias = bias or (node.names[2] if len(node.names) > 2 else None)
    try:
        bias_values = _bias_of(reader, bias, product_scales) if bias else None
    except LookupError:
        return None
    result = (numpy.float32, product_scales, None)
    if target is not None:
        factors = product_scales / target.scale.reshape(()).astype("float32")
        result = (target.dtype, factors, (int(target.zero.reshape(())), low, high))
    zero = add.constant(x.zero.reshape(1), x.dtype)
    if node.op == "Conv":
        return convolved(add, node, x.source, zero, values, zeros, bias_values, *result)
    return multiplied(add, x.source, zero, values if transposed else values.T, zeros, bias_values, *result)


@reads_early("Conv", "MatMul", "Gemm")
def product_to_float(reader, node):
    """Computes a product of quantized tensors to float32, with exact integer sums. A QuantizeLinear of the result makes
    its own layer from the quantized tensors."""
    if any(name not in reader.quantized for name in node.names[:2]):
        return False
    try:
        result = _product(Lowering(reader, node), node, None, None)
    except Unsupported:
        return False
    if result is not None:
        reader.same(node.output, result)
    return result is not None


# ---- QuantizeLinear and DequantizeLinear
@reads("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize(reader, node):
    from onnx import helper

    add, (x, scale, zero) = Lowering(reader, node), (*node.inputs, None)[:3]
    if node.get("block_size", 0):
        raise Unsupported("quantizes in blocks")
    dtype_number = node.get("output_dtype", 0)
    dtype = numpy.dtype(helper.tensor_dtype_to_np_dtype(dtype_number)) if dtype_number else numpy.dtype("uint8")
    target = _target(reader, scale, zero, dtype)
    if (
        target is not None
        and target.dtype not in _BYTES
        and target.dtype not in (numpy.int16, numpy.uint16, numpy.int32)
    ):
        raise Unsupported(f"makes {target.dtype}, expected uint8, int8 or 16 bits")
    producer = reader.producers.get(node.names[0])
    result = None
    if target is not None and producer is not None and add.dtype(x) == numpy.float32:
        result = fused(add, producer, target)
    if result is None and target is not None and target.scale.size == 1 and target.dtype in _BYTES:
        result = quantized_float(add, add.cast(x, numpy.float32), target)
    if result is None:
        result = _quantized_by_operators(add, x, scale, zero, dtype)
    add.done(result)


def _quantized_by_operators(add, x, scale, zero, dtype):
    """Quantizes by tensor operators, for scales along an axis or computed at run time."""
    dtype = add.dtype(zero) if zero is not None else dtype
    numbers = add.do("rint", add.do("divide", x, _along(add, add.cast(scale, add.dtype(x)), x)))
    if zero is not None:
        numbers = add.do("add", numbers, add.cast(_along(add, zero, x), add.dtype(x)))
    info = numpy.iinfo(dtype)
    return add.cast(add.do("minimum", add.do("maximum", numbers, float(info.min)), float(info.max)), dtype)


def _along(add, name, x):
    """A scale or zero point reshaped to broadcast to x: along the node's axis, or in blocks."""
    rank, axis = len(add.shape(x)), add.node.get("axis", 1)
    shape = add.shape(name)
    if math.prod(shape) == 1:
        return add.reshape(name, ())
    if len(shape) == rank and add.node.get("block_size", 0):
        block, axis = add.node.get("block_size"), axis % rank
        expanded = add.expand(
            add.reshape(name, (*shape[: axis + 1], 1, *shape[axis + 1 :])),
            (*shape[: axis + 1], block, *shape[axis + 1 :]),
        )
        repeated = add.reshape(expanded, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
        return (
            repeated if shape[axis] * block == add.shape(x)[axis] else add.part(repeated, axis, 0, add.shape(x)[axis])
        )
    return add.reshape(name, [-1 if d == axis % rank else 1 for d in range(rank)])


@reads("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize(reader, node):
    from onnx import helper

    add, (x, scale, zero) = Lowering(reader, node), (*node.inputs, None)[:3]
    quantized = _quantized(reader, x, scale, zero, node.get("axis", 1))
    blocks = node.get("block_size", 0)
    if quantized is not None and not blocks:
        reader.quantized[node.output] = quantized
        if quantized.plain and add.dtype(scale) == numpy.float32:
            add.done(dequantized(add, quantized))
            return
    dtype_number = node.get("output_dtype", 0)
    dtype = numpy.dtype(helper.tensor_dtype_to_np_dtype(dtype_number)) if dtype_number else add.dtype(scale)
    numbers = add.cast(x, numpy.int32) if zero is not None else x
    if zero is not None:
        numbers = add.do("subtract", numbers, add.cast(_along(add, zero, x), numpy.int32))
    result = add.do("multiply", add.cast(numbers, numpy.float32), add.cast(_along(add, scale, x), numpy.float32))
    add.done(add.cast(result, dtype))


@reads_early("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_constant(reader, node):
    """Dequantizes constants, also 4-bit ones, at compile time and records the integers. False if it is not a
    constant."""
    x, scale, zero = (*node.inputs, None)[:3]
    values, scales, zeros = (reader.constant(name) for name in (x, scale, zero))
    if values is None or scales is None or (zero is not None and zeros is None):
        return False
    # differences of bytes are exact in float32 too
    integers = values.astype("float32" if values.dtype in _BYTES else "int32")
    axis, block = node.get("axis", 1), node.get("block_size", 0)

    def along(numbers):
        if numbers.size == 1:
            return numbers.reshape(())
        if block:
            repeated = numpy.repeat(numbers, block, axis % integers.ndim)
            return repeated.take(range(integers.shape[axis % integers.ndim]), axis % integers.ndim)
        return numbers.reshape([-1 if d == axis % integers.ndim else 1 for d in range(integers.ndim)])

    numbers = integers if zeros is None or not zeros.any() else integers - along(zeros.astype(integers.dtype))
    result = numbers.astype("float32", copy=False) * along(scales.astype("float32"))
    reader.network.constants[node.output] = result.astype(scales.dtype, copy=False)
    narrow = blocks_of(values, scales, zeros, axis, block) if block else None
    if narrow is not None:
        reader.blocks[node.output] = narrow
    if not block and values.dtype in (numpy.uint8, numpy.int8, numpy.int32):
        reader.quantized[node.output] = _quantized(reader, x, scale, zero, axis)
    return True


# ---- operators on quantized tensors
def _operator_on_bytes(add, op, operands, target, attributes=None, opset=13):
    """Applies ONNX's operator `op` to quantized tensors and returns bytes."""
    reader = add.reader
    if target is None or any(operand is None for operand in operands):
        raise Unsupported("has scales or zero points that are computed at run time")
    node = copy.copy(add.node)
    node.op, node.domain, node.opset, node.attributes, node.names = op, "", opset, attributes or {}, []
    for operand in operands:
        node.names.append(add.fresh("quantized"))
        reader.network.declare(node.names[-1], add.shape(operand.source), numpy.float32)  # no layer reads it
        reader.quantized[node.names[-1]] = operand
    node.inputs = list(node.names)
    result = fused(add, node, target)
    if result is None:
        node.inputs, node.outputs = [dequantized(add, operand) for operand in operands], [add.fresh("float")]
        result = quantized_float(add, add.read(node), target)
    add.done(result)


@reads("QLinearConv", "com.microsoft.QLinearConv")
def linear_convolution(reader, node):
    add = Lowering(reader, node)
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*node.inputs, None)[:9]
    image, weights = _quantized(reader, x, x_scale, x_zero), _quantized(reader, w, w_scale, w_zero, 0)
    target = _target(reader, y_scale, y_zero)
    if image is None or weights is None or target is None or reader.constant(w) is None:
        raise Unsupported("has weights, scales or zero points that are computed at run time")
    values, zeros, scales = _weights_of(reader, weights, 0)
    product_scales = image.scale.reshape(()) * scales
    result = (target.dtype, product_scales / target.scale.reshape(()), (int(target.zero.reshape(())), *target.limits))
    bias_values = None if bias is None else reader.constant(bias).reshape(-1)
    add.done(
        convolved(add, node, x, add.constant(image.zero.reshape(1), image.dtype), values, zeros, bias_values, *result)
    )


@reads("QLinearMatMul")
def linear_product(reader, node):
    add = Lowering(reader, node)
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    left, right = _quantized(reader, a, a_scale, a_zero), _quantized(reader, b, b_scale, b_zero)
    target = _target(reader, y_scale, y_zero)
    if left is None or right is None or target is None:
        raise Unsupported("has scales or zero points that are computed at run time")
    weights = _weights_of(reader, right, 1) if len(add.shape(b)) == 2 and left.plain else None
    if weights is not None:
        values, zeros, scales = weights
        factors = left.scale.reshape(()) * scales / target.scale.reshape(())
        result = (target.dtype, factors, (int(target.zero.reshape(())), *target.limits))
        zero = add.constant(left.zero.reshape(1), left.dtype)
        add.done(multiplied(add, a, zero, values.T, zeros, None, *result))
        return
    if not left.plain or not right.plain:
        raise Unsupported("has scales per row, or per column of a matrix that is not constant")
    sums = _sums(add, a, a_zero, b, b_zero)
    factor = float(left.scale.reshape(()) * right.scale.reshape(()) / target.scale.reshape(()))
    scaled = add.do("multiply", add.cast(sums, numpy.float32), factor)
    add.done(quantized_float(add, scaled, target._replace(scale=numpy.float32(1))))


def _sums(add, a, a_zero, b, b_zero):
    """(a - a_zero) @ (b - b_zero) in 32 bits, for any matrices."""
    differences = []
    for name, zero, axis in ((a, a_zero, -2), (b, b_zero, -1)):
        difference, rank = add.cast(name, numpy.int32), len(add.shape(name))
        if zero is not None:
            zero_shape = add.shape(zero)
            shape = (
                zero_shape
                if len(zero_shape) != 1 or zero_shape[0] == 1
                else [-1 if d == axis % rank else 1 for d in range(rank)]
            )
            zero = add.reshape(zero, () if math.prod(zero_shape) == 1 else shape)
            difference = add.do("subtract", difference, add.cast(zero, numpy.int32))
        differences.append(difference)
    return add.operator("MatMul", *differences)


@reads("MatMulInteger")
def integer_product(reader, node):
    add, (a, b, a_zero, b_zero) = Lowering(reader, node), (*node.inputs, None, None)[:4]
    values, zeros = reader.constant(b), None if b_zero is None else reader.constant(b_zero)
    if (
        values is None
        or values.ndim != 2
        or (b_zero is not None and (zeros is None or zeros.size not in (1, values.shape[1])))
        or (a_zero is not None and math.prod(add.shape(a_zero)) != 1)
    ):
        add.done(_sums(add, a, a_zero, b, b_zero))
        return
    zeros = numpy.broadcast_to(0 if zeros is None else zeros.astype("int64").reshape(-1), values.shape[1:])
    zero = None if a_zero is None else add.reshape(a_zero, (1,))
    add.done(multiplied(add, a, zero, values.T, zeros, None, numpy.int32, None, None))


@reads("ConvInteger")
def integer_convolution(reader, node):
    add, (x, w, x_zero, w_zero) = Lowering(reader, node), (*node.inputs, None, None)[:4]
    values, zeros = reader.constant(w), None if w_zero is None else reader.constant(w_zero)
    if values is None or (w_zero is not None and zeros is None):
        raise Unsupported("has weights that are computed at run time")
    zeros = numpy.broadcast_to(0 if zeros is None else zeros.astype("int64").reshape(-1), values.shape[:1])
    zero = None if x_zero is None else add.reshape(x_zero, (1,))
    add.done(convolved(add, node, x, zero, values, zeros, None, numpy.int32, None, None))


@reads("DynamicQuantizeLinear")
def quantize_dynamically(reader, node):
    """Bytes with a scale and zero point that cover the values and 0."""
    add, x = Lowering(reader, node), node.inputs[0]
    axes = list(range(len(add.shape(x))))
    low, high = (
        add.reshape(add.do(bound, add.reduce(op, x, axes) if axes else x, 0.0), ())
        for op, bound in (("min", "minimum"), ("max", "maximum"))
    )
    scale = add.do("divide", add.do("subtract", high, low), 255.0)
    scale = add.where(add.do("equal", scale, 0.0), 1.0, scale)
    zero = add.do("rint", add.do("divide", add.do("negative", low), scale))
    zero = add.do("minimum", add.do("maximum", zero, 0.0), 255.0)
    numbers = add.do("add", add.do("rint", add.do("divide", x, scale)), zero)
    outputs = (*node.outputs, "", "")[:3]
    for name, output in (
        (add.cast(add.do("minimum", add.do("maximum", numbers, 0.0), 255.0), numpy.uint8), outputs[0]),
        (scale, outputs[1]),
        (add.cast(zero, numpy.uint8), outputs[2]),
    ):
        if output:
            add.done(name, output)


# ---- operators of ONNX Runtime
@reads("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def linear_sum(reader, node):
    add = Lowering(reader, node)
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*node.inputs, None)[:8]
    operands = [_quantized(reader, a, a_scale, a_zero), _quantized(reader, b, b_scale, b_zero)]
    _operator_on_bytes(add, node.op.removeprefix("QLinear"), operands, _target(reader, y_scale, y_zero))


@reads("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu", "com.microsoft.QLinearSoftmax")
def linear_function(reader, node):
    add = Lowering(reader, node)
    x, x_scale, x_zero, y_scale, y_zero = (*node.inputs, None)[:5]
    names = {"QLinearLeakyRelu": ("alpha",), "QLinearSoftmax": ("axis",)}.get(node.op, ())
    attributes = {name: node.get(name) for name in names if node.get(name) is not None}
    _operator_on_bytes(
        add,
        node.op.removeprefix("QLinear"),
        [_quantized(reader, x, x_scale, x_zero)],
        _target(reader, y_scale, y_zero),
        attributes,
        node.get("opset", 13),
    )


@reads("com.microsoft.QLinearAveragePool", "com.microsoft.QLinearGlobalAveragePool")
def linear_mean(reader, node):
    add = Lowering(reader, node)
    if node.get("channels_last", 0):
        raise Unsupported("has channels_last")
    x, x_scale, x_zero, y_scale, y_zero = (*node.inputs, None)[:5]
    attributes = {key: value for key, value in node.attributes.items() if key != "channels_last"}
    operands = [_quantized(reader, x, x_scale, x_zero)]
    _operator_on_bytes(add, node.op.removeprefix("QLinear"), operands, _target(reader, y_scale, y_zero), attributes)


@reads("com.microsoft.QLinearConcat")
def linear_concatenation(reader, node):
    add = Lowering(reader, node)
    y_scale, y_zero, *rest = node.inputs
    operands = [_quantized(reader, *rest[index : index + 3]) for index in range(0, len(rest), 3)]
    _operator_on_bytes(add, "Concat", operands, _target(reader, y_scale, y_zero), {"axis": node.get("axis")})


@reads("com.microsoft.QGemm")
def linear_gemm(reader, node):
    """Makes bytes, or float32 if the result has no scale."""
    add = Lowering(reader, node)
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*node.inputs, *[None] * 9)[:9]
    left, right = _quantized(reader, a, a_scale, a_zero), _quantized(reader, b, b_scale, b_zero)
    transposed = node.get("transB", 0)
    weights = (
        None
        if left is None or right is None
        else _weights_of(reader, right._replace(axis=1 - transposed), 1 - transposed)
    )
    bias = None if c is None else reader.constant(c)
    if weights is None or (c is not None and bias is None) or node.get("transA", 0):
        raise Unsupported("has weights, a bias, scales or zero points that are computed at run time, or transA")
    values, zeros, scales = weights
    product_scales = (left.scale.reshape(()) * scales * numpy.float32(node.get("alpha", 1.0))).astype("float32")
    if bias is not None:
        try:
            bias = _of_columns(bias, zeros.shape)
        except LookupError:
            raise Unsupported(f"has a bias of shape {bias.shape}, expected one number for each column") from None
    result = (numpy.float32, product_scales, None)
    if y_scale is not None:
        target = _target(reader, y_scale, y_zero)
        if target is None:
            raise Unsupported("has a scale or zero point that is computed at run time")
        result = (
            target.dtype,
            product_scales / target.scale.reshape(()),
            (int(target.zero.reshape(())), *target.limits),
        )
    zero = add.constant(left.zero.reshape(1), left.dtype)
    add.done(multiplied(add, a, zero, values if transposed else values.T, zeros, bias, *result))


@reads("com.microsoft.MatMulIntegerToFloat")
def integer_product_to_float(reader, node):
    add = Lowering(reader, node)
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*node.inputs, *[None] * 7)[:7]
    sums = add.operator("MatMulInteger", a, b, a_zero, *[b_zero] * (b_zero is not None))
    result = add.do("multiply", add.cast(sums, numpy.float32), add.do("multiply", a_scale, b_scale))
    add.done(result if bias is None else add.do("add", result, bias))


@reads("com.microsoft.DynamicQuantizeMatMul")
def dynamic_product(reader, node):
    add = Lowering(reader, node)
    x, b, b_scale, b_zero, bias = (*node.inputs, *[None] * 5)[:5]
    names = [add.fresh(what) for what in ("bytes", "scale", "zero")]
    add.operator("DynamicQuantizeLinear", x, outputs=names)
    x_bytes, scale, zero = (reader.name_of(name) for name in names)
    sums = add.operator("MatMulInteger", x_bytes, b, zero, *[b_zero] * (b_zero is not None))
    result = add.do("multiply", add.cast(sums, numpy.float32), add.do("multiply", scale, b_scale))
    add.done(result if bias is None else add.do("add", result, bias))
