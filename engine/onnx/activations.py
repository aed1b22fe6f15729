"""Readers of ONNX's elementwise operators, lowered to one or more of the engine's operations."""

import math

import numpy

from . import sizes
from .lowering import Lowering
from .readers import Unsupported, reads
from .tensor_operators import activated


@reads("Max", "Min", "Sum", "Mean")
def variadic(reader, node):
    add, result = Lowering(reader, node), node.inputs[0]
    op = {"Max": "maximum", "Min": "minimum"}.get(node.op, "add")
    for name in node.inputs[1:]:
        result = add.do(op, result, name)
    add.done(add.do("divide", result, len(node.inputs)) if node.op == "Mean" else result)


@reads("Mod")
def remainder(reader, node):
    """With the divisor's sign, or, with fmod, the dividend's."""
    add = Lowering(reader, node)
    add.done(add.do("fmod" if node.get("fmod", 0) else "remainder", *node.inputs))


@reads("BitShift")
def shift(reader, node):
    add = Lowering(reader, node)
    add.done(add.do("left_shift" if node.get("direction") == "LEFT" else "right_shift", *node.inputs))


@reads("IsInf")
def is_infinite(reader, node):
    add, [x] = Lowering(reader, node), node.inputs
    signs = [
        value for value, key in ((math.inf, "detect_positive"), (-math.inf, "detect_negative")) if node.get(key, 1)
    ]
    if len(signs) == 2:
        add.done(add.do("isinf", x))
    else:
        add.done(add.do("equal", x, signs[0] if signs else math.nan))


@reads("LeakyRelu", "PRelu")
def leaky(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    slope = node.input(1) or node.get("alpha", 0.01)
    if not isinstance(slope, str) and 0 < slope <= 1:
        add.done(add.do("maximum", x, add.do("multiply", x, slope)))
        return
    if isinstance(slope, str) and node.opset < 7 and len(add.shape(slope)) == 1:
        slope = add.reshape(slope, (-1, *(1,) * (len(add.shape(x)) - 2)))  # one for each channel
    add.done(add.where(add.do("less", x, 0), add.do("multiply", x, slope), x))


def _exponential(add, x, inside, factor):
    """factor * (exp(x * inside) - 1), 0 above zero."""
    below = add.do("minimum", x, 0)
    return add.do("multiply", add.do("expm1", add.do("multiply", below, inside) if inside != 1 else below), factor)


@reads("Elu", "Celu", "Selu")
def exponential(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    alpha = node.get("alpha", 1.67326319217681884765625 if node.op == "Selu" else 1.0)
    result = add.do("add", add.do("maximum", x, 0), _exponential(add, x, 1 / alpha if node.op == "Celu" else 1, alpha))
    add.done(add.do("multiply", result, node.get("gamma", 1.05070102214813232421875)) if node.op == "Selu" else result)


@reads("HardSigmoid", "HardSwish")
def hard_sigmoid(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    swish = node.op == "HardSwish"
    standard = swish or (abs(node.get("alpha", 0.2) - 1 / 6) < 1e-7 and node.get("beta", 0.5) == 0.5)
    if standard and activated(reader, node, "hard swish" if swish else "hard sigmoid", x):
        return
    line = add.do(
        "add",
        add.do("multiply", x, 1 / 6 if swish else node.get("alpha", 0.2)),
        0.5 if swish else node.get("beta", 0.5),
    )
    gate = add.do("minimum", add.do("maximum", line, 0), 1)
    add.done(add.do("multiply", x, gate) if swish else gate)


@reads("Softplus")
def softplus(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    tail = add.do("log1p", add.do("exp", add.do("negative", add.do("absolute", x))))
    add.done(add.do("add", add.do("maximum", x, 0), tail))


@reads("Softsign")
def softsign(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    add.done(add.do("divide", x, add.do("add", add.do("absolute", x), 1)))


@reads("Swish")
def swish(reader, node):
    """x / (1 + exp(-alpha * x))"""
    add, x = Lowering(reader, node), node.inputs[0]
    add.done(add.do("divide", x, add.do("add", add.do("exp", add.do("multiply", x, -node.get("alpha", 1.0))), 1)))


@reads("ThresholdedRelu")
def thresholded(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    add.done(add.where(add.do("greater", x, node.get("alpha", 1.0)), x, 0))


@reads("Shrink")
def shrink(reader, node):
    """Moves values further than `lambd` from zero towards it by `bias`; sets others to 0."""
    add, x = Lowering(reader, node), node.inputs[0]
    limit, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    if add.dtype(x).kind not in "fi":
        raise Unsupported(f"works on {add.dtype(x)}, expected signed numbers")
    below = add.where(add.do("less", x, -limit), add.do("add", x, bias), 0)
    add.done(add.where(add.do("greater", x, limit), add.do("subtract", x, bias), below))


@reads("Trilu")
def triangle(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    shift = reader.constant(node.input(1)) if node.input(1) else numpy.array(0)
    if shift is None:
        raise Unsupported("has a diagonal that is not constant")
    shift, (rows, columns) = int(shift.reshape(())), add.shape(x)[-2:]
    if sizes.is_open(rows) or sizes.is_open(columns):
        diagonals = add.do("subtract", add.along(columns, 1, 2), add.along(rows, 0, 2))
        mask = add.do("greater_equal" if node.get("upper", 1) else "less_equal", diagonals, shift)
    else:
        mask = (numpy.triu if node.get("upper", 1) else numpy.tril)(numpy.ones((rows, columns), bool), shift)
        mask = add.constant(mask, bool)
    add.done(add.where(mask, x, 0))


@reads("EyeLike")
def eye(reader, node):
    from onnx import helper

    add, name = Lowering(reader, node), node.inputs[0]
    dtype = helper.tensor_dtype_to_np_dtype(node.get("dtype")) if node.get("dtype") is not None else reader.dtype(name)
    rows, columns = reader.shape(name)
    if sizes.is_open(rows) or sizes.is_open(columns):
        row = add.do("add", add.reshape(add.arange(rows), (rows, 1)), node.get("k", 0))
        add.done(add.cast(add.do("equal", row, add.reshape(add.arange(columns), (1, columns))), dtype))
        return
    reader.network.constants[node.output] = numpy.eye(rows, columns, k=node.get("k", 0), dtype=dtype)


def _is_whole(value):
    """Whether the constant is a whole number, of any dtype."""
    return value is not None and (value.dtype.kind in "iu" or (value.dtype.kind == "f" and (value % 1 == 0).all()))


@reads("Range")
def arithmetic_sequence(reader, node):
    """The length follows from constants and open sizes, or is given by the model."""
    add, (start, _, delta) = Lowering(reader, node), node.inputs
    if all(_is_whole(reader.constant(name)) for name in node.inputs):
        first, limit, step = (reader.number(name) for name in node.inputs)
        count = -((first - limit) // step)
        if sizes.is_open(count) and count > 0:
            steps = add.cast(add.arange(count), add.dtype(start))
            steps = steps if step == 1 and not sizes.is_open(step) else add.do("multiply", steps, step)
            add.done(
                steps
                if first == 0 and not sizes.is_open(first)
                else add.do("add", steps, add.constant(first, add.dtype(start)))
            )
            return
    [count] = reader.inferred_shape(node.output)
    steps = add.constant(numpy.arange(count), add.dtype(start))
    add.done(add.do("add", add.do("multiply", steps, add.reshape(delta, ())), add.reshape(start, ())))


@reads("SwiGLU")
def swiglu(reader, node):
    """a * sigmoid(alpha * a) * b"""
    add, (a, b) = Lowering(reader, node), node.inputs
    alpha = node.get("alpha", 1.0)
    gate = add.operator("Sigmoid", a if alpha == 1 else add.do("multiply", a, alpha))
    add.done(add.do("multiply", add.do("multiply", a, gate), b))
