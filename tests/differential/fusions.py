"""Families of operators in every dtype, each result combined with another operand and followed by what the compiler may
fuse with it: `python -m tests.differential --fusions`. The seed counts through families and dtypes; operands, axes and
what follows are drawn."""

import math
import random

import numpy

from tests.differential.graphs import FLOATS, KIND, Graph, Value, fixed, is_fixed
from tests.engine.test_integer_means import right

DTYPES = (
    "float32", "int8", "float16", "int16", "float64", "int32", "float32", "int64", "uint8", "uint16", "bool", "uint32",
    "uint64",
)  # fmt: skip
_ROUNDED = ("float16", "float32", "float64")


class Fusion(Graph):
    """A model of one family; `right` has outputs that are known exactly, where the references are wrong."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        self.nodes, self.constants, self.values, self.ports, self.number = [], {}, [], [], 0
        self.labels, self.right = {}, {}
        self.opens = self.random.random() < 0.3
        families = tuple(FAMILIES)
        self.family, self.dtype = families[seed % len(families)], DTYPES[seed // len(families) % len(DTYPES)]
        value = FAMILIES[self.family](self)
        if not self.right:
            for _ in range(self.random.choice([0, 1, 1, 2])):
                value = combined(self, value)
                value = self.random.choice(ENDINGS)(self, value) or value

    def size(self):
        """An open one may be 0 in the second call, except where sums of nothing differ between the references."""
        size = super().size()
        keeps = is_fixed(size) or self.family in ("reduction", "mean") or self.random.random() < 0.7
        return size if keeps else (size[0], 0)

    def given(self, shape, dtype=None):
        value = Value(f"x{len(self.ports)}", dtype or self.dtype, tuple(shape))
        self.ports.append(value)
        return value

    def floats(self, shape):
        """An input of the dtype; as float32 if it is of integers."""
        value = self.given(shape)
        return value if value.dtype in _ROUNDED else self.cast(value, "float32")

    def cast(self, value, dtype):
        return self.add("Cast", [value.name], value, dtype=dtype, to=KIND[dtype])

    def shape(self, *ranks):
        return [self.size() for _ in range(self.random.choice(ranks))]

    def some(self, *shape, dtype, **bounds):
        return self.constant(self.draw(*shape, dtype=dtype, **bounds))


# ---- families
def convolution(g):
    rank, groups = g.random.choice([1, 2, 2, 2, 3]), g.random.choice([1, 1, 2, 4])
    sides = [g.random.choice([4, 5, 8]) for _ in range(rank)]
    x = g.floats([g.size(), fixed(4), *map(fixed, sides)])
    outputs, kernel = g.random.choice([4, 8, 20]), g.random.choice([1, 3])
    weights = g.draw(outputs, 4 // groups, *[kernel] * rank) / numpy.float32(math.sqrt(4 * kernel**rank))
    inputs = [x.name, g.constant(weights.astype(x.dtype))]
    if g.random.random() < 0.5:
        inputs.append(g.some(outputs, dtype=x.dtype))
    stride, pad = g.random.choice([1, 1, 2]), kernel // 2
    shape = [fixed((n + 2 * pad - kernel) // stride + 1) for n in sides]
    return g.add("Conv", inputs, x, [x.shape[0], fixed(outputs), *shape], exact=False,
                 pads=[pad] * 2 * rank, strides=[stride] * rank, group=groups)  # fmt: skip


def transposed_convolution(g):
    x = g.floats([g.size(), fixed(3), fixed(4), fixed(5)])
    stride = g.random.choice([1, 2])
    inputs = [x.name, g.constant((g.draw(3, 4, 2, 2) / 3).astype(x.dtype))]
    shape = [x.shape[0], fixed(4), *(fixed((n - 1) * stride + 2) for n in (4, 5))]
    return g.add("ConvTranspose", inputs, x, shape, exact=False, strides=[stride] * 2)


def gemm(g):
    rows, inner, columns = g.random.choice([1, 3, 8]), g.random.choice([1, 4, 8]), g.random.choice([1, 5, 8])
    first, second = g.random.randrange(2), g.random.randrange(2)
    x = g.floats([fixed(inner), fixed(rows)] if first else [fixed(rows), fixed(inner)])
    inputs = [x.name, g.some(*((columns, inner) if second else (inner, columns)), dtype=x.dtype)]
    bias = g.random.choice([None, (), (1,), (columns,), (1, columns), (rows, 1), (rows, columns)])
    inputs += [] if bias is None else [g.some(*bias, dtype=x.dtype)]
    return g.add("Gemm", inputs, x, [fixed(rows), fixed(columns)], exact=False, transA=first, transB=second,
                 alpha=g.random.choice([1.0, 1.0, 0.5]), beta=g.random.choice([1.0, 1.0, 2.0]))  # fmt: skip


def product(g):
    x = g.floats([*g.shape(1, 1, 2), g.size(), fixed(6)])
    columns = g.random.choice([1, 4, 33])
    return g.add("MatMul", [x.name, g.some(6, columns, dtype=x.dtype)], x, [*x.shape[:-1], fixed(columns)], exact=False)


def pool(g):
    x = g.floats([g.size(), fixed(4), fixed(6), fixed(5)])
    if g.random.random() < 0.3:
        op = g.random.choice(["GlobalAveragePool", "GlobalMaxPool"])
        return g.add(op, [x.name], x, [*x.shape[:2], fixed(1), fixed(1)], exact=op == "GlobalMaxPool")
    op, stride = g.random.choice(["MaxPool", "AveragePool"]), g.random.choice([1, 2])
    shape = [fixed((n - 2) // stride + 1) for n in (6, 5)]
    return g.add(op, [x.name], x, [*x.shape[:2], *shape], exact=op == "MaxPool", kernel_shape=[2, 2],
                 strides=[stride] * 2)  # fmt: skip


def normalized(g):
    """By an operator of its own."""
    x = g.floats([g.size(), fixed(4), *(fixed(g.random.choice([1, 3])) for _ in range(g.random.choice([1, 2])))])
    scale, bias = (g.some(4, dtype=x.dtype) for _ in range(2))
    kind = g.random.randrange(4)
    if kind == 0:
        statistics = [g.some(4, dtype=x.dtype), g.constant(abs(g.draw(4, dtype=x.dtype)) + x_type(x)(0.5))]
        return g.add("BatchNormalization", [x.name, scale, bias, *statistics], x, exact=False)
    if kind == 1:
        return g.add("InstanceNormalization", [x.name, scale, bias], x, exact=False, epsilon=0.1)
    if kind == 2:  # only ONNX Runtime's is right, which has float32: ONNX 1.23's reference omits channels
        x = x if x.dtype == "float32" else g.cast(x, "float32")
        return g.add("LRN", [x.name], x, exact=False, size=3)
    size = x.shape[-1][0]
    inputs = [x.name, *(g.some(size, dtype=x.dtype) for _ in range(g.random.choice([1, 2])))]
    return g.add("LayerNormalization", inputs, x, exact=False, epsilon=0.1)


def x_type(value):
    return numpy.dtype(value.dtype).type


def composed_normalization(g):
    """As exporters decompose it, with a scale and a bias that may be wider than the rows."""
    rows, width = g.size(), g.random.choice([1, 1, 4, 8])
    x = g.floats([rows, fixed(width)])
    axes, one = g.constant(numpy.array([-1])), x_type(x)
    mean = g.node("ReduceMean", [x.name, axes])
    centred = g.node("Sub", [x.name, mean]) if g.random.random() < 0.7 else x.name
    square = g.node("Mul", [centred, centred])
    variance = g.node("Add", [g.node("ReduceMean", [square, axes]), g.constant(one(0.1))])
    scaled = g.node("Div", [centred, g.node("Sqrt", [variance])])
    wide = g.random.choice([width, 8]) if width == 1 else width
    for op in ("Mul", "Add")[: g.random.choice([1, 2, 2])]:
        scaled = g.node(op, [scaled, g.some(wide, dtype=x.dtype)])
    return g.keep(scaled, x, [rows, fixed(wide)], exact=False)


def softmax(g):
    x = g.floats(g.shape(2, 3, 4))
    op = g.random.choice(["Softmax", "Softmax", "LogSoftmax"])
    return g.add(op, [x.name], x, exact=False, axis=g.random.randrange(-1, x.rank))


def reduction(g):
    ops = ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"]
    return reduced(g, g.random.choice(ops))


def mean(g):
    return reduced(g, g.random.choice(["ReduceMean", "ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]))


def reduced(g, op):
    x = g.given(g.shape(1, 2, 3, 4))
    x = g.cast(x, "int32") if x.dtype == "bool" else x
    axes = sorted(g.random.sample(range(x.rank), g.random.randrange(1, x.rank + 1)))
    keep, floats = g.random.randrange(2), x.dtype in _ROUNDED
    inputs = [x.name, g.constant(numpy.array([axis - g.random.choice([0, x.rank]) for axis in axes]))]
    if op == "ReduceLogSum" and floats:
        inputs[0] = g.node("Add", [g.node("Abs", [x.name]), g.constant(x_type(x)(1))])
    shape = [fixed(1) if d in axes else size for d, size in enumerate(x.shape) if keep or d not in axes]
    exact = op in ("ReduceMax", "ReduceMin") or not floats
    result = g.add(op, inputs, x, shape, exact=exact, keepdims=keep)
    if not floats and op in ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):

        def answer(call):
            [port] = g.ports
            numbers = g.inputs(call)[port.name].astype(x.dtype)
            kept = [d for d in range(x.rank) if d not in axes]
            rows = numbers.transpose(*kept, *axes).reshape(-1, math.prod(numbers.shape[d] for d in axes))
            found = numpy.array([right(op, row.tolist(), x.dtype) for row in rows], x.dtype)
            return found.reshape([size[call] for size in shape])

        g.right[result.name] = answer
    return result


def unary(g):
    x = g.given(g.shape(1, 2, 3, 4))
    if x.dtype == "bool":
        return g.add("Not", [x.name], x)
    if x.dtype not in _ROUNDED:
        signed = ["Neg", "Relu"] if x.dtype.startswith("int") else ["BitwiseNot"]
        return g.add(g.random.choice(["Abs", "Sign", *signed]), [x.name], x)
    exact = ["Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu"]
    rounded = ["Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Atan", "Exp", "Softplus", "Elu", "Selu", "HardSwish", "Gelu"]
    rounded += ["HardSigmoid", "LeakyRelu", "Softsign", "Mish", "Celu", "Asinh", "Sinh"]
    op = g.random.choice(exact + rounded)
    return g.add(op, [x.name], x, exact=op in exact)


def arithmetic(g):
    x = g.given(g.shape(1, 2, 3, 4))
    if x.dtype == "bool":
        return g.add(g.random.choice(["And", "Or", "Xor", "Equal"]), [x.name, g.given(x.shape).name], x)
    floats = x.dtype in _ROUNDED
    other = g.some(dtype=x.dtype, low=1, high=5)
    if floats:
        other = g.constant(abs(g.draw(dtype=x.dtype)) + x_type(x)(0.5))
        return g.add(g.random.choice(["Add", "Sub", "Mul", "Div"]), [x.name, other], x, exact=False)
    ops = ["Add", "Sub", "Mul", "Div", "Mod"]
    if x.dtype.startswith("u"):
        ops += ["BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"]
    op = g.random.choice(ops)
    attributes = {"direction": g.random.choice(["LEFT", "RIGHT"])} if op == "BitShift" else {}
    return g.add(op, [x.name, other], x, **attributes)


def compared(g):
    x = g.given(g.shape(1, 2, 3))
    if x.dtype == "bool":
        return g.add("Not", [x.name], x)
    op = g.random.choice(["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"])
    return g.add(op, [x.name, g.given(x.shape).name], x, dtype="bool")


def converted(g):
    x = g.given(g.shape(1, 2, 3))
    to = g.random.choice([name for name in KIND if name != x.dtype])
    if x.dtype in _ROUNDED and numpy.dtype(to).kind in "iu":  # numbers beyond the dtype differ from machine to machine
        x = g.add("Abs", [x.name], x)
    return g.cast(x, to)


def accumulated(g):
    x = g.given(g.shape(1, 2, 3))
    if x.dtype not in ("float32", "float64", "int32", "int64"):
        x = g.cast(x, "int32" if x.dtype not in _ROUNDED else "float32")
    axis = g.constant(numpy.int64(g.random.randrange(x.rank)))
    return g.add("CumSum", [x.name, axis], x, exact=x.dtype not in _ROUNDED, exclusive=g.random.randrange(2),
                 reverse=g.random.randrange(2))  # fmt: skip


def chosen(g):
    x = g.given(g.shape(1, 2, 3))
    return g.add("Where", [g.given(x.shape, "bool").name, x.name, g.given(x.shape).name], x)


def moved(g):
    """Rearranged: a view of it, or a copy."""
    x = g.given(g.shape(2, 3, 4))
    kind, axis = g.random.randrange(6), g.random.randrange(x.rank)
    small = min(x.shape[axis])
    if kind == 0 or (kind == 1 and small == 0):
        order = g.random.sample(range(x.rank), x.rank)
        return g.add("Transpose", [x.name], x, [x.shape[d] for d in order], perm=order)
    if kind == 1:
        indices = g.draw(3, dtype="int64", low=-small, high=small)
        shape = [fixed(3) if d == axis else size for d, size in enumerate(x.shape)]
        return g.add("Gather", [x.name, g.constant(indices)], x, shape, axis=axis)
    if kind == 2:
        shape = [tuple(2 * n for n in size) if d == axis else size for d, size in enumerate(x.shape)]
        return g.add("Concat", [x.name, x.name], x, shape, axis=axis)
    if kind == 3:
        times = [g.random.choice([1, 2]) for _ in x.shape]
        shape = [tuple(n * each for n in size) for size, each in zip(x.shape, times)]
        return g.add("Tile", [x.name, g.constant(numpy.array(times))], x, shape)
    if kind == 4:
        constants = [g.constant(numpy.array([number])) for number in (-1, -(1 << 31), axis, -1)]
        return g.add("Slice", [x.name, *constants], x)
    before = [g.random.choice([0, 1, 2]) for _ in x.shape]
    shape = [tuple(n + width for n in size) for size, width in zip(x.shape, before)]
    mode = g.random.choice(["constant", "edge"])
    return g.add("Pad", [x.name, g.constant(numpy.array(before + [0] * x.rank))], x, shape, mode=mode)


def quantized(g):
    x = g.cast(g.given(g.shape(2, 3)), "float32") if g.dtype != "float32" else g.given(g.shape(2, 3))
    scale, kind = g.constant(numpy.float32(0.03125)), g.random.choice(["uint8", "int8"])
    zero = g.constant(numpy.array(3, kind))
    made = g.node("QuantizeLinear", [x.name, scale, zero])
    return g.add("DequantizeLinear", [made, scale, zero], x, exact=False)


def integer_product(g):
    x = g.given([g.size(), fixed(8)], g.random.choice(["uint8", "int8"]))
    kind = g.random.choice(["uint8", "int8"])
    weights = g.some(8, 5, dtype=kind, low=-64, high=64)
    return g.add("MatMulInteger", [x.name, weights], x, [x.shape[0], fixed(5)], "int32")


def largest(g):
    x = g.given(g.shape(1, 2, 3))
    x = x if x.dtype in ("float32", "float64", "int32", "int64") else g.cast(x, "float32")
    axis = g.random.randrange(x.rank)
    if g.random.random() < 0.5 or min(x.shape[axis]) == 0:
        shape = [fixed(1) if d == axis else size for d, size in enumerate(x.shape)]
        return g.add(g.random.choice(["ArgMax", "ArgMin"]), [x.name], x, shape, "int64", axis=axis)
    count = g.random.randrange(1, min(x.shape[axis]) + 1)
    shape = [fixed(count) if d == axis else size for d, size in enumerate(x.shape)]
    names = g.node("TopK", [x.name, g.constant(numpy.array([count]))], 2, axis=axis)
    return g.keep(names[0], x, shape)


def resized(g):
    x = g.floats([g.size(), fixed(3), fixed(4), fixed(5)])
    x = g.cast(x, "float32") if x.dtype != "float32" else x
    scales = g.constant(numpy.array([1, 1, 2, 2], "float32"))
    return g.add("Resize", [x.name, "", scales], x, [*x.shape[:2], fixed(8), fixed(10)], exact=False,
                 mode=g.random.choice(["linear", "cubic"]))  # fmt: skip


FAMILIES = {
    function.__name__: function
    for function in (
        convolution, transposed_convolution, gemm, product, pool, normalized, composed_normalization, softmax,
        reduction, mean, unary, arithmetic, compared, converted, accumulated, chosen, moved, quantized,
        integer_product, largest, resized,
    )
}  # fmt: skip


# ---- combined with another operand
def operand(g, value):
    """(name, shape of the result, whether it is exact) of an operand that broadcasts with the value."""
    kind = g.random.randrange(8)
    narrow = [size if is_fixed(size) else fixed(1) for size in value.shape]
    if kind == 0:
        return g.given(value.shape, value.dtype).name, value.shape, True
    if kind == 1:
        return g.some(dtype=value.dtype), value.shape, True
    if kind == 2:  # one number for each channel, as a normalization has
        shape = [size[0] if d == 1 else 1 for d, size in enumerate(narrow)][min(1, value.rank - 1) :]
        return g.some(*shape, dtype=value.dtype), value.shape, True
    if kind == 3:
        shape = [size for size, _ in narrow][g.random.randrange(value.rank + 1) :]
        return g.some(*shape, dtype=value.dtype), value.shape, True
    if kind == 4 and value.rank < 6:  # more dimensions, as a cost volume has
        extra = [fixed(g.random.choice([1, 2])) for _ in range(g.random.choice([1, 2]))]
        wide = [*extra, *(size if g.random.random() < 0.5 else fixed(1) for size in value.shape)]
        name = g.given(wide, value.dtype).name
        return name, [*extra, *value.shape], True
    if kind == 5:  # wider than the value
        wide = [fixed(3) if size == (1, 1) else size for size in value.shape]
        return g.given(wide, value.dtype).name, wide, True
    if kind == 6 and value.rank and value.dtype in (*FLOATS, "float16", "int32"):
        axes = g.constant(numpy.array([g.random.randrange(value.rank)]))
        return g.node("ReduceMax", [value.name, axes], keepdims=1), value.shape, value.exact
    return value.name, value.shape, value.exact


def combined(g, value):
    name, shape, exact = operand(g, value)
    inputs = [value.name, name] if g.random.random() < 0.7 else [name, value.name]
    if value.dtype == "bool":
        return g.add(g.random.choice(["And", "Or", "Xor"]), inputs, value, shape, exact=exact)
    op = g.random.choice(["Add", "Add", "Mul", "Sub", "Max", "Min"])
    rounds = value.dtype in _ROUNDED and op in ("Add", "Mul", "Sub")
    return g.add(op, inputs, value, shape, exact=exact and not rounds)


# ---- followed by what may be fused
def activation(g, value):
    if value.dtype in _ROUNDED:
        op = g.random.choice(
            ["Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "HardSigmoid", "Elu", "Gelu"]
        )
        return g.add(op, [value.name], value, exact=op == "Relu")


def bounded(g, value):
    if value.dtype != "bool":
        low, high = sorted(g.draw(2, dtype=value.dtype))
        inputs = [value.name, g.constant(low), g.constant(high)]
        if g.random.random() < 0.4:
            inputs[g.random.choice([1, 2])] = ""
        return g.add("Clip", inputs, value)


def composed_activation(g, value):
    if value.dtype not in _ROUNDED:
        return None
    one = x_type(value)
    kind = g.random.randrange(4)
    if kind == 0:
        gate = g.node("Sigmoid", [value.name])
    elif kind == 1:
        total = g.node("Add", [value.name, g.constant(one(3))])
        gate = g.node("Div", [g.node("Clip", [total, g.constant(one(0)), g.constant(one(6))]), g.constant(one(6))])
    elif kind == 2:
        inner = g.node("Erf", [g.node("Div", [value.name, g.constant(one(math.sqrt(2)))])])
        gate = g.node("Mul", [g.node("Add", [inner, g.constant(one(1))]), g.constant(one(0.5))])
    else:
        gate = g.node("Tanh", [g.node("Softplus", [value.name])])
    return g.add("Mul", [value.name, gate], value, exact=False)


def rearranged(g, value):
    if value.rank:
        order = g.random.sample(range(value.rank), value.rank)
        return g.add("Transpose", [value.name], value, [value.shape[d] for d in order], perm=order)


def flattened(g, value):
    if value.rank:
        rest = tuple(math.prod(size[call] for size in value.shape[1:]) for call in (0, 1))
        return g.add("Flatten", [value.name], value, [value.shape[0], rest], axis=1)


def summed(g, value):
    if value.rank and value.dtype in (*_ROUNDED, "int32", "int64"):
        axis, op = g.random.randrange(value.rank), g.random.choice(["ReduceSum", "ReduceMax", "ReduceMean"])
        if op == "ReduceMean" and value.dtype not in _ROUNDED:
            op = "ReduceMin"
        shape = [fixed(1) if d == axis else size for d, size in enumerate(value.shape)]
        exact = op in ("ReduceMax", "ReduceMin") or value.dtype not in _ROUNDED
        return g.add(op, [value.name, g.constant(numpy.array([axis]))], value, shape, exact=exact)


def multiplied(g, value):
    if value.dtype in _ROUNDED and value.rank >= 2 and is_fixed(value.shape[-1]):
        weights = g.draw(value.shape[-1][0], 5) / numpy.float32(math.sqrt(value.shape[-1][0]))
        inputs = [value.name, g.constant(weights.astype(value.dtype))]
        result = g.add("MatMul", inputs, value, [*value.shape[:-1], fixed(5)], exact=False)
        return g.add("Add", [result.name, g.some(5, dtype=value.dtype)], result)


def as_other(g, value):
    to = g.random.choice(["float32", "float64", "int32", "float16"])
    if to != value.dtype and (to != "int32" or value.exact):
        return g.cast(value, to)


ENDINGS = (
    activation, activation, bounded, bounded, composed_activation, rearranged, flattened, summed, multiplied, as_other,
)  # fmt: skip
