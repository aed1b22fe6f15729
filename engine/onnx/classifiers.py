"""Common parts of ai.onnx.ml's classifiers and regressors: labels and post-transforms. Where ONNX is vague they follow
ONNX Runtime."""

import math

import numpy

from .network import CURVES, float_bits
from .readers import Unsupported

# Constant of Winitzki's approximation of the inverse error function, as in ONNX Runtime.
_ERF_INVERSE = 0.147


def labels_of(node):
    """The classes' labels: a list of texts or of integers."""
    for name in ("classlabels_strings", "classlabels_int64s", "classlabels_ints"):
        if node.get(name):
            return list(node.get(name))
    raise Unsupported("has no labels of classes")


def transformed(add, scores, transform):
    """`scores` [rows, classes] in float32 after `post_transform`."""
    if transform == "NONE":
        return scores
    if transform not in ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"):
        raise Unsupported(f"has the unknown post_transform {transform!r}")
    if transform == "SOFTMAX":
        return add.reader.add_layer(
            "Softmax",
            add.node,
            [scores, None],
            add.shape(scores),
            output=add.fresh("softmax"),
            parameters=(0, float_bits(1.0)),
        )
    if transform == "LOGISTIC":
        return _logistic(add, scores)
    if transform == "PROBIT":
        return _probit(add, scores)
    largest = add.reduce("max", scores, [1])
    powers = add.do("exp", add.do("subtract", scores, largest))
    nonzero = add.do("greater", add.do("absolute", scores), 1e-7)
    total = add.reduce("sum", add.where(nonzero, powers, 0), [1])
    small = add.do("multiply", scores, add.do("exp", add.do("negative", largest)))
    return add.do("divide", add.where(nonzero, powers, small), total)


def _logistic(add, scores):
    return add.reader.add_layer(
        "Activate",
        add.node,
        [scores],
        add.shape(scores),
        output=add.fresh("logistic"),
        parameters=(CURVES.index("sigmoid"),),
    )


def _probit(add, scores):
    """sqrt(2) times the inverse error function of 2 * scores - 1."""
    x = add.do("subtract", add.do("multiply", scores, 2), 1)
    log = add.do("log", add.do("multiply", add.do("subtract", add.constant(1, "float32"), x), add.do("add", x, 1)))
    half = add.do("add", add.do("multiply", log, 0.5), 2 / (3.14159 * _ERF_INVERSE))
    root = add.do("sqrt", add.do("subtract", add.do("square", half), add.do("multiply", log, 1 / _ERF_INVERSE)))
    magnitude = add.do("sqrt", add.do("subtract", root, half))
    sign = add.where(add.do("less", x, 0), add.constant(-1, "float32"), 1)
    return add.do("multiply", add.do("multiply", magnitude, sign), math.sqrt(2))


def label_output(add, labels, index):
    """The node's first output: one label for each row, by class number `index`."""
    if not add.node.outputs[0]:
        return
    texts = isinstance(labels[0], str)
    from .texts import numbers_of_texts

    values = numbers_of_texts(add.reader, labels) if texts else numpy.array(labels, "int64")
    rows = add.reshape(index, (add.shape(index)[0],))
    result = (
        rows if not texts and labels == list(range(len(labels))) else add.take(add.constant(values, "int64"), [rows])
    )
    if texts:
        add.network.texts.add(result)
    add.done(result)


def score_output(add, scores):
    if len(add.node.outputs) > 1 and add.node.outputs[1]:
        add.done(scores, add.node.outputs[1])


def classifier_outputs(add, labels, scores, transform):
    """Both outputs, from `scores` with a column for each label."""
    label_output(add, labels, add.reduce("argmax", scores, [1]))
    score_output(add, transformed(add, scores, transform))


def binary_outputs(add, labels, score, transform, positive):
    """Both outputs for two classes, from the second one's score [rows, 1], a probability if `positive`."""
    label_output(add, labels, add.cast(add.do("greater", score, 0.5 if positive else 0), numpy.int64))
    if transform == "PROBIT":
        raise Unsupported("has one score and the post_transform PROBIT, which does not define the other class's score")
    if positive and transform != "LOGISTIC":
        other = add.do("subtract", add.constant(1, "float32"), score)
        score_output(add, add.joined([other, score], 1))
    else:
        score_pair = add.joined([add.do("negative", score), score], 1)
        score_output(add, _logistic(add, score_pair) if transform == "LOGISTIC" else score_pair)
