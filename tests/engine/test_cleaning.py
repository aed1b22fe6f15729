"""The first clean-up of an ONNX graph, by onnx-ir: what it removes, what it must keep, and that its errors are one
sentence."""

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compiled

X = networks.values((2, 3))
DOMAIN = "own"


def refused(model):
    with pytest.raises(OnnxError) as caught:
        compiled(model, "net")
    assert len(caught.value.messages) == 1
    return str(caught.value)


def with_functions(nodes, functions, opset=17):
    """A model x -> y, of (2, 3) both, that has functions of its own: (name, nodes from a to b, opset)."""
    definitions = [
        helper.make_function(
            DOMAIN, name, ["a"], ["b"], body, [helper.make_opsetid("", own), helper.make_opsetid(DOMAIN, 1)]
        )
        for name, body, own in functions
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3))] for name in "xy"]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        helper.make_graph(nodes, "test", *ports), functions=definitions, opset_imports=opsets, ir_version=8
    ).SerializeToString()


def test_what_no_output_needs_stands_in_nobodys_way():
    nodes = [
        helper.make_node("Det", ["square"], ["d"]),
        helper.make_node("NonZero", ["d"], ["n"]),
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Neg", ["i"], ["y"]),
    ]
    model = networks.graph_of(nodes, {"x": X}, ["y"], {"square": numpy.eye(2, dtype="float32")})
    result = compiled(model, "net")
    assert (result.savings.nodes, result.savings.needed, result.savings.operators, result.savings.steps) == (4, 2, 1, 1)
    assert str(result.savings) == "4 nodes, 2 needed, 1 operators, 1 steps"
    numpy.testing.assert_array_equal(opened("net", result.data)({"x": X})["y"], -X)


def test_functions_are_written_out():
    twice = [
        helper.make_node("Square", ["a"], ["c"], domain=DOMAIN),
        helper.make_node("Square", ["c"], ["b"], domain=DOMAIN),
    ]
    nodes = [
        helper.make_node("Fourth", ["x"], ["h"], domain=DOMAIN),
        helper.make_node("Fourth", ["h"], ["y"], domain=DOMAIN),
    ]
    result = compiled(
        with_functions(nodes, [("Fourth", twice, 17), ("Square", [helper.make_node("Mul", ["a", "a"], ["b"])], 17)]),
        "net",
    )
    assert (result.savings.nodes, result.savings.needed, result.savings.steps) == (2, 4, 4)
    numpy.testing.assert_allclose(opened("net", result.data)({"x": X})["y"], X**16, rtol=1e-5)


def test_a_function_of_another_opset_is_written_out_where_its_operators_are_the_same():
    """As onnxscript's functions in a model that skl2onnx writes."""
    nodes = [helper.make_node("Square", ["x"], ["y"], domain=DOMAIN)]
    data = with_functions(nodes, [("Square", [helper.make_node("Mul", ["a", "a"], ["b"])], 18)], opset=17)
    numpy.testing.assert_allclose(opened("net", compiled(data, "net").data)({"x": X})["y"], X**2, rtol=1e-5)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (
            [
                ("f", [helper.make_node("g", ["a"], ["b"], domain=DOMAIN)], 17),
                ("g", [helper.make_node("f", ["a"], ["b"], domain=DOMAIN)], 17),
            ],
            "Cycle detected",
        ),
        ([("f", [helper.make_node("Neg", ["a"], ["b"])], 12)], "Opset import"),
    ],
)
def test_functions_that_cannot_be_written_out_are_one_error(functions, expected):
    said = refused(with_functions([helper.make_node("f", ["x"], ["y"], domain=DOMAIN)], functions))
    assert said.startswith("net: is no valid ONNX model: ") and expected in said and "\n" not in said


def test_training_is_not_cleaned_away():
    """Without the unused outputs it would look like inference, which computes other numbers."""
    names = ["x", "scale", "bias", "mean", "variance"]
    nodes = [helper.make_node("BatchNormalization", names, ["y", "m", "v"], training_mode=1)]
    model = networks.graph(
        nodes, {"x": (1, 3, 4, 4)}, {"y": None}, {name: numpy.ones(3, "float32") for name in names[1:]}
    )
    x = numpy.random.default_rng(1).random((1, 3, 4, 4), "float32")
    made = numpy.asarray(opened("net", compiled(model, "net").data)({"x": x})["y"])
    numpy.testing.assert_allclose(made.mean((0, 2, 3)), 1, atol=1e-5)  # the bias
    numpy.testing.assert_allclose(made.std((0, 2, 3)), 1, atol=1e-3)


def test_nodes_without_names_are_told_by_their_outputs():
    node = helper.make_node("ImageDecoder", ["x"], ["y"])
    assert "operator ImageDecoder (node 'y')" in refused(
        networks.graph_of([node], {"x": numpy.zeros(2, "uint8")}, ["y"], opset=20)
    )


def test_what_onnx_ir_refuses_is_one_error(monkeypatch):
    """onnx-ir wraps errors in its own, which describe the place in onnx-ir in several lines."""
    from onnx_ir.passes import common

    def fails():
        def apply(graph):
            raise RuntimeError("in pass 1\nof 2") from ValueError("two nodes make one tensor\nnamed y")

        return apply

    monkeypatch.setattr(common, "InlinePass", fails)
    square = [helper.make_node("Mul", ["a", "a"], ["b"])]
    model = with_functions([helper.make_node("Square", ["x"], ["y"], domain=DOMAIN)], [("Square", square, 17)])
    assert refused(model) == "net: is no valid ONNX model: two nodes make one tensor"
    compiled(networks.small(), "clean")  # which has no functions, and does not go through it


def test_results_that_nothing_reads_are_left_out():
    """In a graph within a node too; those that an operator always has stay."""
    from vmhost.engine.onnx.cleaning import cleaned

    ports = [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)]
    branch = [
        helper.make_node("Split", ["m"], ["n", "rest"], axis=1, num_outputs=2),
        helper.make_node("Relu", ["rest"], ["r"]),
    ]
    other = [helper.make_node("MaxPool", ["x"], ["n", "places"], kernel_shape=[1, 2])]
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m", "all places"], kernel_shape=[1, 1]),
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=helper.make_graph(branch, "then", [], ports),
            else_branch=helper.make_graph(other, "else", [], ports),
        ),
        helper.make_node("Neg", ["m"], ["unread"]),
    ]
    x = numpy.zeros((1, 1, 2, 2), "float32")
    weights = {"unused": numpy.zeros(2, "float32")}
    model = networks.graph_of(nodes, {"x": x, "c": numpy.array(True)}, ["y"], weights, opset=18)
    graph = cleaned(onnx.load_model_from_string(model)).graph
    assert [list(node.output) for node in graph.node] == [["m"], ["y"]] and not graph.initializer
    inner = [[list(node.output) for node in item.g.node] for item in graph.node[1].attribute]
    assert sorted(inner) == [[["n"]], [["n", "rest"]]]


def test_large_weights_are_not_copied_through_onnx(monkeypatch):
    """Its checks and shape inference write a model out and read it again; onnx-ir does too."""
    given = []
    for module, name in ((onnx.checker, "check_model"), (onnx.shape_inference, "infer_shapes")):
        own = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda model, *a, own=own, **named: given.append(model.ByteSize()) or own(model, *a, **named)
        )
    weights = networks.values((256, 1024))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    model = networks.graph(nodes, {"x": ("n", 256)}, {"y": ("n", 1024)}, {"w": weights})
    x = networks.values((3, 256), 1)
    made = opened("net", compiled(model, "net").data)({"x": x})["y"]
    numpy.testing.assert_allclose(numpy.asarray(made), numpy.maximum(x @ weights, 0), 1e-4, 1e-3)
    assert given and max(given) < 2048


def test_weights_that_look_like_those_that_are_kept_apart_are_data_as_any():
    from vmhost.engine.onnx.parsing import _PLACEHOLDER

    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.INT8, dims=[len(_PLACEHOLDER)])
    tensor.raw_data = _PLACEHOLDER
    model = onnx.load_model_from_string(
        networks.graph_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            {"x": numpy.zeros(len(_PLACEHOLDER), "int8")},
            ["y"],
            {"w": numpy.zeros(len(_PLACEHOLDER), "int8")},
        )
    )
    model.graph.initializer[0].CopyFrom(tensor)
    made = opened("net", compiled(model.SerializeToString(), "net").data)({"x": numpy.zeros(len(_PLACEHOLDER), "int8")})
    assert numpy.asarray(made["y"]).tobytes() == _PLACEHOLDER


@pytest.mark.parametrize(("size", "told"), [(4095, "too small"), (4100, "")])
def test_large_weights_of_another_size_than_they_say_are_one_error(size, told):
    model = onnx.load_model_from_string(
        networks.graph_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            {"x": numpy.zeros(1024, "float32")},
            ["y"],
            {"w": numpy.zeros(1024, "float32")},
        )
    )
    model.graph.initializer[0].raw_data = bytes(size)
    said = refused(model.SerializeToString())
    assert told in said and "w" in said
