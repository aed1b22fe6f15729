"""Classic machine learning, as skl2onnx, LightGBM's and XGBoost's converters write it (ai.onnx.ml)."""

import numpy
from onnx import TensorProto, helper

ML = "ai.onnx.ml"
FEATURES = 28
LABELS = ["ant", "bee", "cat", "dog"]
MODELS = {}


def _model(function):
    MODELS[function.__name__] = function
    return function


def ml(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, domain=ML, **attributes)


def port(name, dtype, *shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "classic", inputs, outputs, list(constants))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def rows(random, count=100, features=FEATURES):
    return random.standard_normal((count, features), "float32")


def probabilities(name, labels):
    """The output of ZipMap."""
    kind = TensorProto.STRING if isinstance(labels[0], str) else TensorProto.INT64
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, ())
    return helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_map_type_proto(kind, number)))


def ensemble(random, kind, trees, depth, targets, *, features=FEATURES, modes=("BRANCH_LEQ",), missing=0.0, leaf=0.05):
    """Attributes of trees in which each branch ends early with probability `leaf`. `targets(tree)` are the targets of a
    tree's leaves; `kind`: "class" or "target"."""
    lists = {
        f"nodes_{name}": []
        for name in "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()
    }
    leaves = {f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        nodes = []

        def grow(left):
            at = len(nodes)
            nodes.append(None)
            if left == 0 or (left < depth and random.random() < leaf):
                nodes[at] = ("LEAF", 0, 0.0, 0, 0, 0)
                return at
            feature, threshold = int(random.integers(features)), float(numpy.float32(random.standard_normal()))
            mode, tracks = str(random.choice(modes)), int(random.random() < missing)
            nodes[at] = (mode, feature, threshold, grow(left - 1), grow(left - 1), tracks)
            return at

        grow(depth)
        for number, (mode, feature, threshold, true, false, tracks) in enumerate(nodes):
            row = (tree, number, feature, mode, threshold, true, false, tracks)
            for values, value in zip(lists.values(), row):
                values.append(value)
            for target in targets(tree) if mode == "LEAF" else ():
                weight = float(numpy.float32(random.standard_normal() / trees))
                for values, value in zip(leaves.values(), (tree, number, target, weight)):
                    values.append(value)
    return lists | leaves


def _regressor(random, trees, depth, **options):
    attributes = ensemble(random, "target", trees, depth, lambda tree: [0], **options)
    node = ml("TreeEnsembleRegressor", ["x"], ["y"], n_targets=1, base_values=[0.25], **attributes)
    return model([node], [port("x", TensorProto.FLOAT, "n", FEATURES)], [port("y", TensorProto.FLOAT, "n", 1)])


@_model
def boosted_regression(random):
    """500 trees of depth 6, as XGBoost's converter writes them."""
    return _regressor(random, 500, 6, modes=("BRANCH_LT",)), {"x": rows(random)}


@_model
def boosted_regression_one(random):
    return _regressor(random, 500, 6), {"x": rows(random, 1)}


@_model
def boosted_regression_many(random):
    return _regressor(random, 500, 6), {"x": rows(random, 1000)}


@_model
def boosted_regression_missing(random):
    """With missing numbers, and every kind of comparison."""
    modes = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    x = rows(random)
    x[random.random(x.shape) < 0.1] = numpy.nan
    x[random.random(x.shape) < 0.05] = numpy.inf
    x[random.random(x.shape) < 0.05] = 0.0
    return _regressor(random, 100, 7, modes=modes, missing=0.5, leaf=0.2), {"x": x}


def classifier(random, labels, trees, depth, targets, transform, mapped=True, features=FEATURES):
    attributes = ensemble(random, "class", trees, depth, targets, features=features)
    texts = isinstance(labels[0], str)
    key = "classlabels_strings" if texts else "classlabels_int64s"
    named = TensorProto.STRING if texts else TensorProto.INT64
    nodes = [
        ml(
            "TreeEnsembleClassifier",
            ["x"],
            ["label", "scores"],
            post_transform=transform,
            **{key: labels},
            **attributes,
        )
    ]
    outputs = [port("label", named, "n")]
    if mapped:
        nodes.append(ml("ZipMap", ["scores"], ["probabilities"], **{key: labels}))
        outputs.append(probabilities("probabilities", labels))
    else:
        outputs.append(port("scores", TensorProto.FLOAT, "n", len(labels)))
    given = {"x": rows(random, features=features)}
    return model(nodes, [port("x", TensorProto.FLOAT, "n", features)], outputs), given


@_model
def boosted_classes(random):
    """A tree for each class in turn, as written by LightGBM's converter."""
    return classifier(random, [0, 1, 2, 3], 200, 6, lambda tree: [tree % 4], "SOFTMAX")


@_model
def boosted_two_classes(random):
    return classifier(random, [0, 1], 200, 6, lambda tree: [0], "LOGISTIC", mapped=False)


@_model
def forest_with_texts(random):
    """A random forest whose leaves have all classes; labels are texts."""
    return classifier(random, LABELS, 50, 8, lambda tree: [0, 1, 2, 3], "NONE")


@_model
def forest_regression(random):
    attributes = ensemble(random, "target", 60, 9, lambda tree: [0, 1, 2])
    node = ml("TreeEnsembleRegressor", ["x"], ["y"], n_targets=3, aggregate_function="AVERAGE", **attributes)
    return model([node], [port("x", TensorProto.FLOAT, "n", FEATURES)], [port("y", TensorProto.FLOAT, "n", 3)]), {
        "x": rows(random)
    }


# ---- linear models
def _numbers(random, *shape):
    return random.standard_normal(shape, "float32").ravel().tolist()


@_model
def logistic_regression(random):
    """With an imputer and a scaler in front, as a scikit-learn pipeline."""
    x = rows(random)
    x[random.random(x.shape) < 0.1] = numpy.nan
    nodes = [
        ml("Imputer", ["x"], ["a"], imputed_value_floats=_numbers(random, FEATURES), replaced_value_float=float("nan")),
        ml("Scaler", ["a"], ["b"], offset=_numbers(random, FEATURES), scale=_numbers(random, FEATURES)),
        ml(
            "LinearClassifier",
            ["b"],
            ["label", "scores"],
            coefficients=_numbers(random, 4, FEATURES),
            intercepts=_numbers(random, 4),
            classlabels_strings=LABELS,
            post_transform="LOGISTIC",
        ),
        ml("Normalizer", ["scores"], ["normal"], norm="L1"),
        ml("ZipMap", ["normal"], ["probabilities"], classlabels_strings=LABELS),
    ]
    outputs = [port("label", TensorProto.STRING, "n"), probabilities("probabilities", LABELS)]
    return model(nodes, [port("x", TensorProto.FLOAT, "n", FEATURES)], outputs), {"x": x}


@_model
def linear_regression(random):
    node = ml(
        "LinearRegressor",
        ["x"],
        ["y"],
        targets=3,
        coefficients=_numbers(random, 3, FEATURES),
        intercepts=_numbers(random, 3),
    )
    return model([node], [port("x", TensorProto.FLOAT, "n", FEATURES)], [port("y", TensorProto.FLOAT, "n", 3)]), {
        "x": rows(random)
    }


# ---- support vector machines
def machine(random, classes, kernel, probable, features=8):
    per_class = [int(n) for n in random.integers(5, 12, classes)]
    count, pairs = sum(per_class), classes * (classes - 1) // 2
    labels = LABELS[:classes]
    more = {"prob_a": [-1.5] * pairs, "prob_b": [0.1] * pairs} if probable else {}
    nodes = [
        ml(
            "SVMClassifier",
            ["x"],
            ["label", "scores"],
            kernel_type=kernel,
            kernel_params=[0.125, 0.5, 3.0],
            vectors_per_class=per_class,
            support_vectors=_numbers(random, count, features),
            coefficients=_numbers(random, classes - 1, count),
            rho=_numbers(random, pairs),
            classlabels_strings=labels,
            post_transform="NONE",
            **more,
        )
    ]
    columns = classes if probable or classes == 2 else pairs
    outputs = [port("label", TensorProto.STRING, "n"), port("scores", TensorProto.FLOAT, "n", columns)]
    return model(nodes, [port("x", TensorProto.FLOAT, "n", features)], outputs), {"x": rows(random, 50, features)}


@_model
def support_vectors(random):
    return machine(random, 4, "RBF", False)


@_model
def support_vectors_probable(random):
    return machine(random, 4, "RBF", True)


@_model
def support_vectors_two(random):
    return machine(random, 2, "SIGMOID", False)


@_model
def support_vector_regression(random):
    node = ml(
        "SVMRegressor",
        ["x"],
        ["y"],
        kernel_type="POLY",
        kernel_params=[0.125, 0.5, 3.0],
        n_supports=20,
        support_vectors=_numbers(random, 20, 8),
        coefficients=_numbers(random, 20),
        rho=[0.5],
        post_transform="NONE",
    )
    return model([node], [port("x", TensorProto.FLOAT, "n", 8)], [port("y", TensorProto.FLOAT, "n", 1)]), {
        "x": rows(random, 50, 8)
    }


# ---- features
@_model
def columns_of_texts(random):
    """Numbers and texts side by side, as in ColumnTransformer: scaled and one-hot encoded, before a forest."""
    categories = (["red", "green", "blue"], ["S", "M", "L", "XL"])
    nodes = [ml("Scaler", ["numbers"], ["scaled"], offset=_numbers(random, 3), scale=_numbers(random, 3))]
    constants, parts = [], ["scaled"]
    for column, texts in enumerate(categories):
        constants.append(helper.make_tensor(f"column{column}", TensorProto.INT64, [1], [column]))
        constants.append(helper.make_tensor(f"shape{column}", TensorProto.INT64, [2], [-1, len(texts)]))
        nodes += [
            ml("ArrayFeatureExtractor", ["texts", f"column{column}"], [f"texts{column}"]),
            ml("OneHotEncoder", [f"texts{column}"], [f"hot{column}"], cats_strings=texts, zeros=1),
            helper.make_node("Reshape", [f"hot{column}", f"shape{column}"], [f"flat{column}"]),
        ]
        parts.append(f"flat{column}")
    nodes.append(helper.make_node("Concat", parts, ["features"], axis=1))
    attributes = ensemble(random, "class", 10, 4, lambda tree: [0, 1], features=10)
    nodes.append(
        ml(
            "TreeEnsembleClassifier",
            ["features"],
            ["label", "scores"],
            classlabels_strings=["no", "yes", "maybe"],
            **attributes,
        )
    )
    nodes.append(ml("ZipMap", ["scores"], ["probabilities"], classlabels_strings=["no", "yes", "maybe"]))
    inputs = [port("numbers", TensorProto.FLOAT, "n", 3), port("texts", TensorProto.STRING, "n", 2)]
    outputs = [port("label", TensorProto.STRING, "n"), probabilities("probabilities", LABELS)]
    known = [[*texts, "unheard of"] for texts in categories]
    given = numpy.array([[str(random.choice(texts)) for texts in known] for _ in range(40)], object)
    return model(nodes, inputs, outputs, constants), {"numbers": rows(random, 40, 3), "texts": given}


@_model
def encoded_labels(random):
    """Texts to numbers and back, with unknown ones."""
    nodes = [
        ml("LabelEncoder", ["x"], ["a"], keys_strings=LABELS, values_int64s=[3, 1, 4, 1], default_int64=9),
        ml("LabelEncoder", ["a"], ["b"], keys_int64s=[1, 3, 4], values_floats=[0.5, 1.5, -2.0], default_float=7.0),
        ml("CategoryMapper", ["a"], ["c"], cats_int64s=[3, 1], cats_strings=["three", "one"], default_string="other"),
    ]
    outputs = [port("b", TensorProto.FLOAT, "n"), port("c", TensorProto.STRING, "n")]
    given = numpy.array([str(random.choice([*LABELS, "eel"])) for _ in range(30)], object)
    return model(nodes, [port("x", TensorProto.STRING, "n")], outputs), {"x": given}


def _one_row(name):
    def one_row(random):
        model, given = MODELS[name](random)
        return model, {key: value[:1] for key, value in given.items()}

    one_row.__name__ = f"{name}_one"
    return _model(one_row)


for _name in ("logistic_regression",):
    _one_row(_name)
