"""Readers of ONNX's losses of log-probabilities and class numbers."""

import math

import numpy

from .lowering import Lowering
from .readers import Unsupported, reads


def _loss(add, logarithms, target, weights):
    """Inputs: [n, classes, any …] and a class for each position. Positions of the class `ignore_index` are ignored."""
    dtype, ignored = add.dtype(logarithms), add.node.get("ignore_index")
    target = add.cast(target, numpy.int64)
    target_shape = add.shape(target)
    not_ignored = None if ignored is None else add.do("not_equal", target, ignored)
    valid = target if not_ignored is None else add.where(not_ignored, target, 0)
    positions = [add.along(size, d, len(target_shape)) for d, size in enumerate(target_shape)]
    loss = add.do("negative", add.take(logarithms, [positions[0], valid, *positions[1:]]))
    factors = None
    if weights is not None:
        factors = add.take(weights, [valid])
    elif not_ignored is not None:
        factors = add.constant(1, dtype)
    if not_ignored is not None:
        factors = add.where(not_ignored, factors, 0)
    if factors is not None:
        loss = add.do("multiply", loss, factors)
    reduction, axes = add.node.get("reduction", "mean"), list(range(len(target_shape)))
    if reduction == "none":
        return loss
    total = add.reduce("sum", loss, axes)
    if reduction == "mean":
        divisor = add.constant(math.prod(target_shape), dtype) if factors is None else add.reduce("sum", factors, axes)
        total = add.do("divide", total, divisor)
    elif reduction != "sum":
        raise Unsupported(f"has the reduction {reduction!r}")
    return add.reshape(total, ())


@reads("NegativeLogLikelihoodLoss")
def likelihood_loss(reader, node):
    add = Lowering(reader, node)
    add.done(_loss(add, node.inputs[0], node.inputs[1], node.input(2)))


@reads("SoftmaxCrossEntropyLoss")
def entropy_loss(reader, node):
    add = Lowering(reader, node)
    logarithms = add.operator("LogSoftmax", node.inputs[0], axis=1)
    add.done(_loss(add, logarithms, node.inputs[1], node.input(2)))
    if len(node.outputs) > 1 and node.outputs[1]:
        add.done(logarithms, node.outputs[1])
