"""Readers of ai.onnx.ml's operators on rows of features, including linear models and support vector machines. trees.py
has tree ensembles, texts.py key look-ups."""

import numpy

from .classifiers import classifier_outputs, label_output, labels_of, score_output, transformed
from .lowering import Lowering
from .readers import Unsupported, reads

_ROWS = "works on {} dimensions, expected rows of features"


def _rows(add, x):
    """The operand as [rows, features] of float32."""
    x_shape = add.shape(x)
    if len(x_shape) not in (1, 2):
        raise Unsupported(_ROWS.format(len(x_shape)))
    x = x if len(x_shape) == 2 else add.reshape(x, (1, *x_shape))
    return add.cast(x, numpy.float32)


@reads("ai.onnx.ml.Scaler")
def scaler(reader, node):
    add = Lowering(reader, node)
    x = add.cast(node.inputs[0], numpy.float32)
    offset, scale = (
        numpy.array(node.get(name, [0.0 if name == "offset" else 1.0]), "float32") for name in ("offset", "scale")
    )
    add.done(add.do("multiply", add.do("subtract", x, offset), scale))


@reads("ai.onnx.ml.Normalizer")
def normalizer(reader, node):
    add, norm = Lowering(reader, node), node.get("norm", "MAX")
    x = _rows(add, node.inputs[0])
    if norm == "MAX":
        magnitude = add.reduce("max", x, [1])
    elif norm == "L1":
        magnitude = add.reduce("sum", add.do("absolute", x), [1])
    elif norm == "L2":
        magnitude = add.do("sqrt", add.reduce("sum", add.do("square", x), [1]))
    else:
        raise Unsupported(f"has the unknown norm {norm!r}")
    add.done(add.do("divide", x, add.where(add.do("equal", magnitude, 0), add.constant(1, "float32"), magnitude)))


@reads("ai.onnx.ml.Imputer")
def imputer(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    is_integer = node.get("imputed_value_int64s") is not None and add.dtype(x).kind == "i"
    kind, values = ("int64", "int64s") if is_integer else ("float", "floats")
    replaced = node.get(f"replaced_value_{kind}", 0)
    values = numpy.array(node.get(f"imputed_value_{values}"), add.dtype(x))
    missing = (
        add.do("isnan", x)
        if add.dtype(x).kind == "f" and numpy.isnan(replaced)
        else add.do("equal", x, add.constant(replaced, add.dtype(x)))
    )
    add.done(add.where(missing, add.constant(values, add.dtype(x)), x))


@reads("ai.onnx.ml.Binarizer")
def binarizer(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    add.done(add.cast(add.do("greater", x, node.get("threshold", 0.0)), add.dtype(x)))


@reads("ai.onnx.ml.FeatureVectorizer")
def vectorizer(reader, node):
    add = Lowering(reader, node)
    rows = [_rows(add, name) for name in node.inputs]
    add.done(rows[0] if len(rows) == 1 else add.joined(rows, 1))


# ---- linear models
def _linear(add, x, coefficients, intercepts):
    """x @ coefficients.T + intercepts, of float32."""
    names = [add.constant(coefficients, "float32"), None if intercepts is None else add.constant(intercepts, "float32")]
    shape = (add.shape(x)[0], len(coefficients))
    return add.reader.add_layer("Gemm", add.node, [x, *names, None], shape, output=add.fresh("scores"))


def _matrix(node, x_shape, count):
    coefficients = numpy.array(node.get("coefficients"), "float32")
    if coefficients.size != count * int(x_shape[1]):
        raise Unsupported(f"has {coefficients.size} coefficients for {count} targets of {x_shape[1]} features")
    return coefficients.reshape(count, -1)


@reads("ai.onnx.ml.LinearRegressor")
def linear_regressor(reader, node):
    add, count = Lowering(reader, node), node.get("targets", 1)
    x = _rows(add, node.inputs[0])
    scores = _linear(add, x, _matrix(node, add.shape(x), count), node.get("intercepts"))
    add.done(transformed(add, scores, node.get("post_transform", "NONE")))


@reads("ai.onnx.ml.LinearClassifier")
def linear_classifier(reader, node):
    add, labels = Lowering(reader, node), labels_of(node)
    x = _rows(add, node.inputs[0])
    count = len(node.get("coefficients")) // int(add.shape(x)[1])
    scores = _linear(add, x, _matrix(node, add.shape(x), count), node.get("intercepts"))
    transform = node.get("post_transform", "NONE")
    if count == 1 and len(labels) == 2:
        label_output(add, labels, add.cast(add.do("greater", scores, 0), numpy.int64))
        other = add.do("subtract", add.constant(1, "float32"), scores)
        score_output(
            add, transformed(add, scores, transform) if transform == "PROBIT" else add.joined([other, scores], 1)
        )
        return
    if count != len(labels):
        raise Unsupported(f"has {count} rows of coefficients for {len(labels)} labels")
    classifier_outputs(add, labels, scores, transform)


# ---- support vector machines
def _kernels(add, node, x, vectors):
    """The kernel of each row with each support vector, [rows, vectors] in float64, for the precision of sums of squared
    differences."""
    gamma, coef0, degree = (*node.get("kernel_params", []), 0.0, 0.0, 3.0)[:3]
    kind, x = node.get("kernel_type", "LINEAR"), add.cast(x, numpy.float64)
    vectors = vectors.astype("float64")
    products = add.matmul(x, add.constant(numpy.ascontiguousarray(vectors.T), "float64"))
    if kind == "LINEAR":
        return products
    if kind == "RBF":
        squares = add.reduce("sum", add.do("square", x), [1])
        distances = add.do(
            "subtract", add.do("add", squares, (vectors**2).sum(1)[None]), add.do("multiply", products, 2.0)
        )
        return add.do("exp", add.do("multiply", add.do("maximum", distances, 0.0), -gamma))
    inner = add.do("add", add.do("multiply", products, gamma), coef0)
    if kind == "POLY":
        if degree not in (2, 3, 4):
            return add.do("power", inner, degree)
        square = add.do("multiply", inner, inner)
        return square if degree == 2 else add.do("multiply", square, inner if degree == 3 else square)
    if kind == "SIGMOID":
        return add.do("tanh", inner)
    raise Unsupported(f"has the unknown kernel {kind!r}")


@reads("ai.onnx.ml.SVMRegressor")
def support_vector_regressor(reader, node):
    add = Lowering(reader, node)
    x, count = _rows(add, node.inputs[0]), node.get("n_supports", 0)
    coefficients = numpy.array(node.get("coefficients"), "float64")
    rho = numpy.array(node.get("rho"), "float64")
    if count:
        vectors = numpy.array(node.get("support_vectors"), "float32").reshape(count, -1)
        kernels = _kernels(add, node, x, vectors)
    else:
        kernels = add.cast(x, numpy.float64)
    scores = add.do("add", add.matmul(kernels, add.constant(coefficients.reshape(-1, 1), "float64")), rho[:1])
    if node.get("one_class", 0):
        scores = add.where(add.do("greater", scores, 0), add.constant(1, "float64"), -1)
    add.done(transformed(add, add.cast(scores, numpy.float32), node.get("post_transform", "NONE")))


@reads("ai.onnx.ml.SVMClassifier")
def support_vector_classifier(reader, node):
    add, labels = Lowering(reader, node), labels_of(node)
    x, transform = _rows(add, node.inputs[0]), node.get("post_transform", "NONE")
    per_class, rho = node.get("vectors_per_class"), numpy.array(node.get("rho"), "float64")
    coefficients = numpy.array(node.get("coefficients"), "float64")
    classes = len(labels)
    if not per_class:  # one linear model for each class
        weights = coefficients.reshape(classes, -1).T
        scores = add.do("add", add.matmul(add.cast(x, numpy.float64), add.constant(weights, "float64")), rho[:1])
        classifier_outputs(add, labels, add.cast(scores, numpy.float32), transform)
        return
    ends = numpy.cumsum([0, *per_class])
    vectors = numpy.array(node.get("support_vectors"), "float32").reshape(ends[-1], -1)
    coefficients = coefficients.reshape(classes - 1, ends[-1])
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = numpy.zeros((ends[-1], len(pairs)))  # each pair of classes has a machine over their vectors
    for column, (i, j) in enumerate(pairs):
        weights[ends[i] : ends[i + 1], column] = coefficients[j - 1, ends[i] : ends[i + 1]]
        weights[ends[j] : ends[j + 1], column] = coefficients[i, ends[j] : ends[j + 1]]
    products = add.matmul(_kernels(add, node, x, vectors), add.constant(weights, "float64"))
    scores = add.cast(add.do("add", products, rho[: len(pairs)]), numpy.float32)
    votes = numpy.zeros((2, len(pairs), classes), "float32")  # the votes for a score <= 0, and for one > 0
    for column, (i, j) in enumerate(pairs):
        votes[0, column, j], votes[1, column, i] = 1, 1
    wins = add.cast(add.do("greater", scores, 0), numpy.float32)
    # votes[0] + (votes[1] - votes[0]) * wins, summed over pairs
    total = add.do("add", add.matmul(wins, add.constant(votes[1] - votes[0], "float32")), votes[0].sum(0)[None])
    if node.get("prob_a"):
        scores = _probabilities(add, scores, classes, node)
        label_output(add, labels, add.reduce("argmax", total, [1]))
        score_output(add, scores)
        return
    label_output(add, labels, add.reduce("argmax", total, [1]))
    if classes == 2:
        scores = add.joined([add.do("negative", scores), scores], 1)
    score_output(add, transformed(add, scores, transform))


def _probabilities(add, scores, classes, node):
    """Platt's probabilities of each pair, coupled (engine/src/models/coupling.c)."""
    a, b = (numpy.array(node.get(name), "float32") for name in ("prob_a", "prob_b"))
    inner = add.do("add", add.do("multiply", scores, a), b)
    pairs = transformed(add, add.do("negative", inner), "LOGISTIC")
    return add.reader.add_layer(
        "Couple", add.node, [pairs], (add.shape(scores)[0], classes), output=add.fresh("probabilities")
    )
