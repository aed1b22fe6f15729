"""Runs the programs of vmhost.engine.cuda with NumPy, over one arena as a GPU does, so that they are compared with the
CPU's engine without a GPU."""

import math

import numpy
from numpy.lib.stride_tricks import as_strided

from vmhost.engine.cuda import programs

_FUNCTIONS = {
    "load": lambda x, y: y,
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "subtract from": lambda x, y: y - x,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "divide by": lambda x, y: y / x,
    "maximum": numpy.maximum,
    "minimum": numpy.minimum,
    "negative": lambda x, y: -x,
    "absolute": lambda x, y: abs(x),
    "square": lambda x, y: x * x,
    "sqrt": lambda x, y: numpy.sqrt(x),
    "reciprocal": lambda x, y: 1 / x,
    "exp": lambda x, y: numpy.exp(x),
    "log": lambda x, y: numpy.log(x),
    "tanh": lambda x, y: numpy.tanh(x),
    "erf": lambda x, y: numpy.vectorize(math.erf, otypes=["f4"])(x),
    "relu": lambda x, y: numpy.maximum(x, 0),
    "gelu": lambda x, y: x * (1 + numpy.vectorize(math.erf, otypes=["f4"])(x / math.sqrt(2))) / 2,
    "gelu tanh": lambda x, y: 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid": lambda x, y: 1 / (1 + numpy.exp(-x)),
    "silu": lambda x, y: x / (1 + numpy.exp(-x)),
    "mish": lambda x, y: x * numpy.tanh(numpy.log1p(numpy.exp(x))),
    "hard sigmoid": lambda x, y: numpy.clip(x / 6 + 0.5, 0, 1),
    "hard swish": lambda x, y: x * numpy.clip(x / 6 + 0.5, 0, 1),
}
_REDUCTIONS = {"sum": numpy.sum, "prod": numpy.prod, "max": numpy.max, "min": numpy.min}


def run(file, sizes, inputs, *, fused=True):
    """The outputs by name of a ModelFile at these sizes for inputs by name. The arena begins as NaN, so that unwritten
    elements are seen."""
    program = programs.build(file, sizes, fused=fused)
    arena = numpy.full(program.arena_bytes // 4, numpy.nan, "float32")
    for name, shape, offset in program.inputs:
        arena[offset // 4 : offset // 4 + math.prod(shape)] = inputs[name].reshape(-1)
    tensors = file.at(sizes)

    def of(one, shape):
        """The operand as an array of this shape."""
        if one is None:
            return None
        if one.tensor in program.offsets:
            base, at = arena, program.offsets[one.tensor] // 4
        else:
            base, at = file.constant(tensors[one.tensor]).reshape(-1), 0
        return as_strided(base[at + one.offset :], shape, [4 * stride for stride in one.strides])

    at = 0
    while at < len(program.steps):  # launch by launch: first all is read, then all is written, last of them first
        together = program.steps[at : at + program.steps[at].together]
        done = [_done(step, of) for step in together]
        for target, numbers in reversed(done):
            target[...] = numbers
        at += len(together)
    return {
        name: arena[offset // 4 : offset // 4 + math.prod(shape)].reshape(shape).copy()
        for name, shape, offset in program.outputs
    }


def _done(step, of):
    if step.op == "product":
        batch, m, n, k = step.shape
        a, b = of(step.operands[1], (batch, m, k)), of(step.operands[2], (batch, k, n))
        target = of(step.operands[0], (batch, m, n))
        arrays = [target, a, b, of(step.operands[3], (batch, m, n))]
        return target, _chain(step.instructions, arrays, a.astype("f8") @ b.astype("f8"))
    arrays = [of(one, step.shape) for one in step.operands]
    if step.op == "softmax":
        x = arrays[1] * step.scale + (0 if arrays[2] is None else arrays[2])
        powers = numpy.exp(x - x.max(-1, keepdims=True))
        return arrays[0], powers / powers.sum(-1, keepdims=True)
    if step.op == "map":
        return arrays[0], _chain(step.instructions, arrays, None)
    x = numpy.broadcast_to(_chain(step.instructions[: step.before], arrays, None), step.shape)
    first = tuple(slice(0, 1) if d in step.reduced else slice(None) for d in range(len(step.shape)))
    x = _REDUCTIONS[step.reduction](x, axis=step.reduced, keepdims=True)
    kept = [None if one is None else one[first] for one in arrays]
    return kept[0], _chain(step.instructions[step.before :], kept, x)


def _chain(instructions, arrays, x):
    for one in instructions:
        y = arrays[one.operand] if one.operand >= 0 else None
        x = numpy.clip(x, one.low, one.high) if one.function == "clip" else _FUNCTIONS[one.function](x, y)
    return x
