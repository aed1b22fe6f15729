"""Equal layers run once: which layers are equal, which are not, and that answers are the same bytes either way."""

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model, compiled, equal, passes
from vmhost.engine.onnx.network import Layer, Network


def steps(model):
    """Kinds of the compiled model's steps, without inputs and outputs."""
    return [
        step.kind for step in opened("net", compile_model(model, "net")).steps if step.kind not in ("Input", "Output")
    ]


def apart(model):
    """The model file without merging."""
    merge = passes.merge_equal
    try:
        passes.merge_equal = lambda network: None
        return compile_model(model, "net")
    finally:
        passes.merge_equal = merge


def answers(data, inputs):
    return {name: numpy.asarray(value) for name, value in opened("net", data, search="fixed")(inputs).items()}


def run_once(model, count, inputs):
    """Asserts that `count` layers were removed, and that the answers are the same bytes."""
    result = compiled(model, "net")
    assert result.savings.saved["run once"][0] == count
    one, other = answers(result.data, inputs), answers(apart(model), inputs)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes()


X = networks.values((2, 3, 4))


def test_chains_of_equal_nodes_are_one():
    nodes = []
    for branch in "ab":
        nodes += [
            helper.make_node("Transpose", ["x"], [f"{branch}t"], perm=[2, 0, 1]),
            helper.make_node("Sqrt", [f"{branch}t"], [f"{branch}s"]),
            helper.make_node("Mul", [f"{branch}s", f"{branch}two"], [branch]),
        ]
    nodes.append(helper.make_node("Add", ["a", "b"], ["y"]))
    two = {"atwo": numpy.float32(2), "btwo": numpy.float32(2)}
    model = networks.graph_of(nodes, {"x": X}, ["y"], two)
    run_once(model, 2, {"x": numpy.abs(X)})  # the transposes are views
    other = networks.graph_of(nodes, {"x": X}, ["y"], two | {"btwo": numpy.float32(-2)})
    run_once(other, 1, {"x": numpy.abs(X)})  # the products are not equal


def test_equal_rasters_run_once():
    """A concatenation copies each part, here an input, which no layer computes in place."""
    nodes = [
        helper.make_node("Concat", ["x", "z"], ["a"], axis=1),
        helper.make_node("Concat", ["x", "z"], ["b"], axis=1),
        helper.make_node("Concat", ["z", "x"], ["c"], axis=1),
        helper.make_node("Exp", ["a"], ["ea"]),
        helper.make_node("Neg", ["b"], ["nb"]),
        helper.make_node("Abs", ["c"], ["ac"]),
        helper.make_node("Add", ["ea", "nb"], ["s"]),
        helper.make_node("Add", ["s", "ac"], ["y"]),
    ]
    run_once(networks.graph_of(nodes, {"x": X, "z": X}, ["y"]), 2, {"x": X, "z": networks.values((2, 3, 4), 1)})


def test_equal_outputs_are_two_tensors():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("Exp", ["x"], ["c"]),
        helper.make_node("Neg", ["c"], ["d"]),
    ]
    model = networks.graph_of(nodes, {"x": X}, ["a", "b", "d"])
    run_once(model, 1, {"x": X})
    assert sorted(steps(model)).count("Unary") == 2  # the other output is a copy


def test_an_output_gives_its_name_to_an_equal_one_before_it():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Exp", ["x"], ["c"]),
    ]
    run_once(networks.graph_of(nodes, {"x": X}, ["c", "b"]), 1, {"x": X})
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["a"], axis=0),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Concat", ["x", "x"], ["c"], axis=0),
    ]
    run_once(networks.graph_of(nodes, {"x": X}, ["c", "b"]), 2, {"x": X})


def test_equal_convolutions_are_one():
    """Weights are equal by their numbers, not by their names; with other ones, strides or activations they differ."""
    w = networks.values((4, 3, 3, 3), 1)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Conv", ["x", "w"], ["b"]),
        helper.make_node("Relu", ["a"], ["ra"]),
        helper.make_node("Relu", ["b"], ["rb"]),
        helper.make_node("Conv", ["x", "u"], ["c"]),
        helper.make_node("Add", ["ra", "rb"], ["s"]),
        helper.make_node("Add", ["s", "c"], ["y"]),
    ]
    model = networks.graph(nodes, {"x": (1, 3, 8, 8)}, {"y": None}, {"v": w, "w": w.copy(), "u": -w})
    run_once(model, 2, {"x": networks.values((1, 3, 8, 8))})
    assert steps(model).count("Conv") == 2


def test_bounds_of_zero_have_a_sign():
    nodes = [
        helper.make_node("Clip", ["x", "low"], ["a"]),
        helper.make_node("Clip", ["x", "minus"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=0),
    ]
    run_once(
        networks.graph_of(nodes, {"x": X}, ["y"], {"low": numpy.float32(0), "minus": numpy.float32(-0.0)}), 0, {"x": X}
    )


def test_what_draws_numbers_is_never_merged():
    """There is no such operator yet: the pass keeps equal layers of an unknown operator."""
    network = Network(["x"])
    for name in ("x", "a", "b", "c", "d"):
        network.declare(name, (2,), "float32")
    network.layers = [
        Layer("RandomUniform", "", ["x"], "a"),
        Layer("RandomUniform", "", ["x"], "b"),
        Layer("Copy", "", ["x"], "c"),
        Layer("Copy", "", ["x"], "d"),
    ]
    equal.merge_equal(network)
    assert [layer.output for layer in network.layers] == ["a", "b", "c"]


def test_random_nodes_are_not_taken_for_one():
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"]),
        helper.make_node("RandomNormalLike", ["x"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    data = compile_model(networks.graph_of(nodes, {"x": X}, ["y"]), "net")
    assert answers(data, {"x": X})["y"].any()


def test_a_whole_that_is_read_before_it_is_done_stays():
    network = Network(["x"])
    for name, shape in {"x": (2,), "whole": (4,), "other": (4,), "read": (2,), "again": (2,)}.items():
        network.declare(name, shape, "float32")
    for whole in ("whole", "other"):
        network.view(f"{whole}/front", whole, (2,), (1,))
        network.view(f"{whole}/back", whole, (2,), (1,), 2)
    network.layers = [
        Layer("Copy", "", ["x"], "whole/front"),
        Layer("Copy", "", ["x"], "whole/back"),
        Layer("Copy", "", ["x"], "other/front"),
        Layer("Unary", "", ["other/front"], "read", parameters=(0, 10)),
        Layer("Copy", "", ["x"], "other/back"),
    ]
    network.outputs = ["whole", "read", "other/back"]
    count = len(network.layers)
    equal.merge_equal(network)
    assert len(network.layers) == count


@st.composite
def graphs(draw):
    """Nodes over few tensors and few operators, so that many are equal; and the outputs, which may be too."""
    nodes, names = [], ["x"]
    for _ in range(draw(st.integers(3, 12))):
        name = f"t{len(nodes)}"
        match draw(st.sampled_from(["Neg", "Abs", "Add", "Transpose", "Concat"])):
            case "Add" | "Concat" as op:
                sources = [draw(st.sampled_from(names)), draw(st.sampled_from(names))]
                nodes.append(
                    helper.make_node(
                        "Max" if op == "Add" else "Concat", sources, [name], **({"axis": 0} if op == "Concat" else {})
                    )
                )
                if op == "Concat":  # and half of it, so that all tensors have one shape
                    nodes.append(helper.make_node("Slice", [name, "start", "end"], [f"{name}h"]))
                    name += "h"
            case "Transpose":
                nodes.append(helper.make_node("Transpose", [draw(st.sampled_from(names))], [name], perm=[1, 0]))
            case op:
                nodes.append(helper.make_node(op, [draw(st.sampled_from(names))], [name]))
        names.append(name)
    return nodes, draw(st.lists(st.sampled_from(names[1:]), min_size=1, max_size=3, unique=True))


@given(graphs())
@settings(deadline=None, max_examples=60)
def test_merged_networks_give_the_same_bytes(given):
    nodes, outputs = given
    x = networks.values((3, 3))
    model = networks.graph_of(nodes, {"x": x}, outputs, {"start": numpy.array([2]), "end": numpy.array([5])})
    one, other = answers(compile_model(model, "net"), {"x": x}), answers(apart(model), {"x": x})
    for name in outputs:
        assert one[name].tobytes() == other[name].tobytes()
        numpy.testing.assert_array_equal(one[name], dict(zip(outputs, networks.expected(model, {"x": x})))[name])
