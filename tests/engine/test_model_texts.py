"""Texts that go into models and come out, and dicts of labels."""

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

from bench import other_models
from bench.other_models import classic
from tests.batches import each
from tests.engine.test_other_models import assert_same, by_onnx_runtime
from vmhost.engine import _array
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model


def compiled(nodes, inputs, outputs, constants=()):
    return compile_model(classic.model(nodes, inputs, outputs, constants).SerializeToString(), "texts.onnx")


def encoder(shape=("n",)):
    node = classic.ml("LabelEncoder", ["x"], ["y"], keys_strings=["a", "b"], values_int64s=[5, 6], default_int64=-7)
    inputs, outputs = [classic.port("x", TensorProto.STRING, *shape)], [classic.port("y", TensorProto.INT64, *shape)]
    return opened("texts", compiled([node], inputs, outputs))


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (("n",), ["a", "b", "A", ""], [5, 6, -7, -7]),
        (("n",), numpy.array(["b", "a"]), [6, 5]),
        (("n",), numpy.array(["b", "c"], object), [6, -7]),
        (("n", 1), ["a", "c"], [[5], [-7]]),
        (("n", 1), [["a"], ["c"]], [[5], [-7]]),
        (("n", 2), [("a", "b"), ("c", "a")], [[5, 6], [-7, 5]]),
    ],
)
def test_texts_are_lists_of_str(shape, given, expected):
    assert encoder(shape)({"x": given})["y"].tolist() == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([["a"], [1]], r"texts: input 'x': expected str in lists of lists as the shape \('n', 2\) has them, got a int"),
        ([b"a"], "got a bytes"),
        ([["a", "b"], ["a"]], "inhomogeneous|shape"),
        ("a", r"expected shape \(n, 2\), got \(\)"),
        ([["a"]], r"expected shape \(n, 2\), got \(1, 1\)"),
        (None, "got a NoneType"),
    ],
)
def test_what_are_no_texts_says_so(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        encoder(("n", 2))({"x": given})


def test_ports_tell_of_texts_and_labels():
    model, given = other_models.make("classic/forest_with_texts")
    model = opened("forest", compile_model(model.SerializeToString(), "forest"))
    label, probabilities = model.outputs
    assert (label.dtype, label.labels) == ("str", None)
    assert (probabilities.dtype, probabilities.labels) == ("float32", ("ant", "bee", "cat", "dog"))
    assert str(probabilities).endswith("labels=('ant', 'bee', 'cat', 'dog'))")
    answers, steps = model.run(given, profile=True)
    assert answers["label"][0] == max(answers["probabilities"][0], key=answers["probabilities"][0].get)
    assert "Trees" in {step.kind for step in steps}
    model.warmup({"n": 3})


def test_texts_may_be_of_any_language():
    node = classic.ml(
        "LabelEncoder", ["x"], ["y"], keys_strings=["größe", "尺寸"], values_strings=["størrelse", "מידה"]
    )
    ports = [[classic.port(name, TensorProto.STRING, 2)] for name in "xy"]
    assert opened("texts", compiled([node], *ports))({"x": ["尺寸", "größe"]}) == {"y": ["מידה", "størrelse"]}


TEXTS, NUMBERS = TensorProto.STRING, TensorProto.FLOAT


@pytest.mark.parametrize(
    ("nodes", "inputs", "output", "message"),
    [
        ([helper.make_node("Identity", ["x"], ["y"])], {"x": TEXTS}, TEXTS, "returns texts of an input"),
        (
            [helper.make_node("Cast", ["x"], ["y"], to=1)],
            {"x": TEXTS},
            NUMBERS,
            "operator Cast .* works on the texts 'x'",
        ),
        (
            [helper.make_node("Equal", ["x", "z"], ["y"])],
            {"x": TEXTS, "z": TEXTS},
            TensorProto.BOOL,
            "compares two computed texts",
        ),
        (
            [classic.ml("LabelEncoder", ["x"], ["y"], keys_strings=["a"], values_int64s=[1])],
            {"x": TensorProto.INT64},
            TensorProto.INT64,
            "looks up texts in numbers",
        ),
        (
            [classic.ml("OneHotEncoder", ["x"], ["y"], cats_int64s=[1])],
            {"x": TEXTS},
            NUMBERS,
            "has categories that are numbers, for texts",
        ),
    ],
)
def test_what_cannot_be_done_with_texts_is_refused(nodes, inputs, output, message):
    ports = [classic.port(name, kind, 2) for name, kind in inputs.items()]
    shape = (2, 1) if output == NUMBERS and nodes[0].domain == classic.ML else (2,)
    with pytest.raises(OnnxError, match=message):
        compiled(nodes, ports, [classic.port("y", output, *shape)])


def test_texts_are_compared_with_what_the_model_says():
    constant = helper.make_tensor("c", TEXTS, [1], [b"a"])
    nodes = [helper.make_node("Equal", ["x", "c"], ["y"])]
    ports = [classic.port("x", TEXTS, "n")], [classic.port("y", TensorProto.BOOL, "n")]
    model = opened("texts", compiled(nodes, *ports, [constant]))
    assert model({"x": ["a", "b", ""]})["y"].tolist() == [True, False, False]


# ---- classifiers: labels and what becomes of scores, as ONNX Runtime has them
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
LABELS = (  # labels, those that have scores, are all scores positive
    ([0, 1], [0], False),
    ([3, 7], [0], True),
    ([0, 1], [1], True),
    ([0, 1, 2], [0, 1, 2], False),
    ([5, 6, 7], [0, 2], 0),
)


def classified(labels, ids, positive, transform):
    """(a model that classifies, its inputs)."""
    random = numpy.random.default_rng(3)
    model, given = classic.classifier(random, labels, 3, 3, lambda tree: ids, transform, mapped=False, features=4)
    weights = next(item for item in model.graph.node[0].attribute if item.name == "class_weights")
    if positive:
        weights.floats[:] = [abs(weight) for weight in weights.floats]
    if transform == "PROBIT" and ids != [0]:  # of probabilities
        weights.floats[:] = [0.05 + abs(weight) % 0.2 for weight in weights.floats]
    return model.SerializeToString(), given


@pytest.fixture(scope="module")
def by_runtime():
    """{(transform, number of the row of LABELS): what ONNX Runtime answers}, of those that it can be asked about."""
    asked = {
        (transform, number): classified(*row, transform)
        for transform in TRANSFORMS
        for number, row in enumerate(LABELS)
        if transform != "PROBIT" or row[1] != [0]
    }
    return by_onnx_runtime(asked)


@each("transform", TRANSFORMS)
@each("number", range(len(LABELS)))
def test_scores_become_labels_and_probabilities(by_runtime, number, transform):
    data, given = classified(*LABELS[number], transform)
    if transform == "PROBIT" and LABELS[number][1] == [0]:
        with pytest.raises(OnnxError, match="has one score and the post_transform PROBIT"):
            compile_model(data, "model")
        return
    answers = opened("model", compile_model(data, "model"))(given)
    for name, theirs in by_runtime[transform, number]:
        assert_same(answers[name], theirs, 1e-3 if transform == "PROBIT" else 1e-5)  # theirs lose digits


def test_paths_of_trees_are_told_as_texts(by_trees):
    """As skl2onnx writes decision paths: leaves' numbers, more than once each, looked up behind an ensemble, of whose
    result ONNX's shape inference says nothing."""
    data, given, [(name, theirs)] = by_trees
    assert_same(opened("paths", compile_model(data, "paths"))(given)[name], theirs)


@pytest.fixture(scope="module")
def by_trees():
    leaves = {"target_nodeids": [1, 1, 2, 2], "target_treeids": [0] * 4, "target_ids": [0] * 4}
    tree = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["leaf"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * 3,
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_weights=[1.0, 1.0, 2.0, 2.0],
        **leaves,
    )
    looked_up = helper.make_node(
        "LabelEncoder",
        ["leaf"],
        ["path"],
        domain="ai.onnx.ml",
        keys_floats=[1.0, 2.0],
        values_strings=["110", "101"],
        default_string="0",
    )
    ports = [
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("path", TensorProto.STRING, ["n", 1])],
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(
        helper.make_graph([tree, looked_up], "paths", *ports), opset_imports=opsets, ir_version=9
    ).SerializeToString()
    given = {"x": numpy.float32([[0, 0], [0, 1], [1, 0.5]])}
    return model, given, by_onnx_runtime({"paths": (model, given)})["paths"]


def test_forms_of_texts():
    model, given = other_models.make("classic/columns_of_texts")
    run = opened("texts", compile_model(model.SerializeToString(), "texts"))
    numbers, rows = given["numbers"][:3], given["texts"][:3].tolist()
    expected = run({"numbers": numbers, "texts": rows})
    for form in (tuple(map(tuple, rows)), [tuple(row) for row in rows], numpy.array(rows, object)):
        assert run({"numbers": numbers, "texts": form}) == expected
    assert [list(row) for row in expected["probabilities"]] == [["no", "yes", "maybe"]] * 3
    for form in ([rows[0], rows[1][:1]], [rows[0], [1, 2]], rows[0], [[]], []):
        with pytest.raises((TypeError, ValueError)):
            run({"numbers": numbers, "texts": form})


def test_numbers_of_texts_and_labelled_rows():
    numbers = {"a": 3, "b": 1 << 40}
    assert _array._text_numbers(numbers, ["b", "x", "a"]).tolist() == [1 << 40, -1, 3]
    assert _array._text_numbers(numbers, (("a",), ["b"])).tolist() == [[3], [1 << 40]]
    for other in (["a", 1], [["a"], ["a", "b"]], [[]], [], "a", None):
        assert _array._text_numbers(numbers, other) is None
    for wrong in ({"a": "no number"}, {"a": 1 << 70}):
        with pytest.raises((TypeError, OverflowError)):
            _array._text_numbers(wrong, ["a"])
    assert _array._labelled_rows(("a", 7), [[1.5, 2], [3, 4]]) == [{"a": 1.5, 7: 2}, {"a": 3, 7: 4}]
    for labels, rows in ((("a",), [[1, 2]]), (("a",), [1]), ((1.5,), [[1]]), (["a"], [[1]]), (("a",), ([1],))):
        with pytest.raises((TypeError, ValueError)):
            _array._labelled_rows(labels, rows)


def test_open_sizes_that_inputs_disagree_on_are_told():
    model, given = other_models.make("classic/columns_of_texts")
    del model.graph.input[1:], model.graph.node[:], model.graph.output[:]
    port = onnx.helper.make_tensor_value_info
    model.graph.input.append(port("others", onnx.TensorProto.FLOAT, ("n", 3)))
    model.graph.output.append(port("y", onnx.TensorProto.FLOAT, ("n", 3)))
    model.graph.node.append(onnx.helper.make_node("Add", ["numbers", "others"], ["y"]))
    run, x = opened("sum", compile_model(model.SerializeToString(), "sum")), given["numbers"]
    numpy.testing.assert_array_equal(run({"others": x, "numbers": x})["y"], x + x)
    for wrong, error, told in (
        ({"numbers": x, "others": x[:2]}, ValueError, "'others': expected shape"),
        ({"numbers": x[:0], "others": x}, ValueError, "'others': expected shape"),
        ({"numbers": x, "others": x[:, :2]}, ValueError, "'others': expected shape"),
        ({"numbers": x, "others": x.astype("float64")}, TypeError, "'others': expected float32"),
        ({"numbers": x}, ValueError, "'others' is missing"),
        ({"numbers": x, "others": x, "more": x}, ValueError, "no input 'more'"),
    ):
        with pytest.raises(error, match=told):
            run(wrong)
