"""Readers of ONNX's operators that draw random numbers. With a seed every run draws the same numbers, without one it
does not."""

import numpy

from .lowering import Lowering
from .network import float_bits
from .readers import Unsupported, reads

_UNIFORM, _NORMAL = range(2)


def drawn(add, shape, dtype, kind, first, second):
    """Random float32 or float64 numbers."""
    seed = add.node.get("seed")
    compute_dtype = numpy.float64 if dtype == numpy.float64 else numpy.float32
    shape_operand = add.network.expanded(add.fresh("shape"), add.constant(0, numpy.bool_), shape)
    streams = sum(layer.op == "Chance" for layer in add.network.layers)
    seeded = (0, 0) if seed is None else (1, float_bits(seed))
    parameters = (kind, float_bits(first), float_bits(second), *seeded, streams)
    return add.reader.add_layer(
        "Chance", add.node, [shape_operand], shape, compute_dtype, add.fresh("drawn"), parameters=parameters
    )


def _dtype_of(node, default):
    from onnx import helper

    number = node.get("dtype")
    if number is None:
        return numpy.dtype(default)
    try:
        return numpy.dtype(helper.tensor_dtype_to_np_dtype(number))
    except KeyError as error:
        raise Unsupported(f"has the element type {number}") from error


_BOUNDS = {"RandomUniform": (_UNIFORM, "low", 0.0, "high", 1.0), "RandomNormal": (_NORMAL, "mean", 0.0, "scale", 1.0)}


@reads("RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike")
def random_numbers(reader, node):
    add, (kind, *bounds) = Lowering(reader, node), _BOUNDS[node.op.removesuffix("Like")]
    template = node.inputs[0] if node.op.endswith("Like") else None
    default = numpy.float32 if template is None or add.dtype(template).kind != "f" else add.dtype(template)
    dtype, shape = _dtype_of(node, default), node.get("shape") if template is None else add.shape(template)
    if dtype.kind != "f":
        raise Unsupported(f"draws {dtype}, expected floats")
    if shape is None:
        raise Unsupported("has no shape")
    numbers = drawn(add, shape, dtype, kind, node.get(bounds[0], bounds[1]), node.get(bounds[2], bounds[3]))
    add.done(add.cast(numbers, dtype))


@reads("Bernoulli")
def bernoulli(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    dtype = _dtype_of(node, add.dtype(x))
    numbers = drawn(add, add.shape(x), add.dtype(x), _UNIFORM, 0.0, 1.0)
    add.done(add.cast(add.do("less", numbers, add.cast(x, add.dtype(numbers))), dtype))


@reads("Multinomial")
def multinomial(reader, node):
    """Gumbel-max sampling: the class with the largest log-probability plus Gumbel noise."""
    add, x = Lowering(reader, node), node.inputs[0]
    (rows, count), samples = add.shape(x), node.get("sample_size", 1)
    if samples < 1:
        raise Unsupported(f"has the sample_size {samples}, expected at least 1")
    numbers = drawn(add, (rows, samples, count), add.dtype(x), _UNIFORM, 0.0, 1.0)
    noise = add.do("negative", add.do("log", add.do("negative", add.do("log", numbers))))
    logarithms = add.reshape(add.cast(x, add.dtype(noise)), (rows, 1, count))
    best = add.reshape(add.reduce("argmax", add.do("add", noise, logarithms), [2]), (rows, samples))
    add.done(add.cast(best, _dtype_of(node, numpy.int32)))
