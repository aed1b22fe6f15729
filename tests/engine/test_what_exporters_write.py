"""Forms that exporters write: empty slices, constants in nodes, outputs without shapes, images halved and
doubled, sounds that must be long for a result that is not empty. ONNX Runtime's answers, or its refusals."""

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests import networks
from tests.engine.test_other_models import assert_same, by_onnx_runtime
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model, compiled

random = numpy.random.default_rng(31)


def parsed(text, **weights):
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>\n' + text)
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(numpy.asarray(values), name))
    return model


def floats(*shape):
    return random.standard_normal(shape).astype("float32")


def halved_and_doubled():
    """A U-Net's step: its two branches have one size where height and width are even."""
    text = """m (float[n, 4, h, w] x) => (float[n, 4, H, W] y) {
        small = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)
        large = Resize <mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">
            (small, , scales)
        y = Add(x, large)
    }"""
    return parsed(text, w=floats(4, 4, 3, 3), scales=numpy.float32([1, 1, 2, 2]))


def sound():
    """The result of fewer than 400 samples is empty."""
    text = """m (float[n, samples] x) => (float[n, t, 6] y) {
        one = Unsqueeze(x, axis)
        a = Conv <strides = [20]> (one, w)
        b = Conv <strides = [16]> (a, v)
        flat = Transpose <perm = [0, 2, 1]> (b)
        y = Softmax(flat)
    }"""
    return parsed(text, axis=numpy.int64([1]), w=floats(6, 1, 40), v=floats(6, 6, 19))


def cut_to_nothing():
    """Rotary embeddings of a whole head, without an unrotated part."""
    text = """m (float[n, t, 8] x) => (float[n, t, 8] y) {
        turned = Slice(x, zero, eight, two)
        rest = Slice(x, eight, far, two)
        y = Concat <axis = 2> (turned, rest)
    }"""
    return parsed(text, zero=numpy.int64([0]), eight=numpy.int64([8]), two=numpy.int64([2]), far=numpy.int64([1 << 60]))


def positions():
    """A linear layer on one row of a table for each word, as in DeBERTa."""
    text = """m (float[n, t, 8] x) => (float[n, t, 8] y) {
        shape = Shape(x)
        words = Gather(shape, one)
        words1 = Unsqueeze(words, axis)
        first = Sub(all, words1)
        rows = Slice(table, first, all, axis)
        z = MatMul(rows, w)
        y = Add(x, z)
    }"""
    numbers = {"one": 1, "axis": [0], "all": [40]}
    return parsed(text, table=floats(40, 8), w=floats(8, 8), **{k: numpy.int64(v) for k, v in numbers.items()})


def mask_in_a_node():
    """A buffer of the module, written as a node: GPT-Neo's mask."""
    model = parsed(
        """m (float[n, t, t] x) => (float[n, t, t] y) {
        shape = Shape(x)
        size = Gather(shape, one)
        sizes = Unsqueeze(size, axis)
        some = Slice(big, zeros, sizes, axis)
        cut = Slice(some, zeros, sizes, second)
        y = Where(cut, x, least)
    }""",
        one=numpy.int64(1),
        axis=numpy.int64([0]),
        zeros=numpy.int64([0]),
        second=numpy.int64([1]),
        least=numpy.float32(-9),
    )
    big = numpy_helper.from_array(numpy.tril(numpy.ones((2048, 2048), bool)))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["big"], value=big))
    return model


def output_of_no_shape():
    model = parsed("m (float[n, 3] x) => (float[n, 3] y) { y = Exp(x) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def cut_at_a_number():
    """At most a fixed number of words, or found elements, is kept: all, if there are fewer."""
    text = "m (float[n, t] x) => (float[n, T] y) { a = Slice(x, zero, end, axis) y = Exp(a) }"
    return parsed(text, zero=numpy.int64([0]), end=numpy.int64([32]), axis=numpy.int64([1]))


def whole_quotients():
    """Lengths behind convolutions, as sums and divisions."""
    text = """m (float[n, t, 6] x) => (float[n, h, 6] y) {
        shape = Shape(x)
        length = Gather(shape, one)
        less = Sub(length, three)
        half = Div(less, two)
        more = Add(half, one)
        sizes = Unsqueeze(more, axis)
        part = Slice(x, axis, sizes, one1)
        whole = Concat <axis = 0> (all, sizes, six)
        y = Reshape(part, whole)
    }"""
    numbers = {"one": 1, "three": 3, "two": 2, "axis": [0], "one1": [1], "all": [-1], "six": [6]}
    return parsed(text, **{name: numpy.int64(value) for name, value in numbers.items()})


CASES = {
    "a picture halved and doubled": (halved_and_doubled(), [(1, 4, 16, 40), (2, 4, 6, 10)]),
    "a sound": (sound(), [(2, 1600), (1, 900)]),
    "cut to nothing": (cut_to_nothing(), [(2, 5, 8)]),
    "positions of as many words": (positions(), [(2, 5, 8), (1, 40, 8)]),
    "a mask in a node": (mask_in_a_node(), [(1, 7, 7)]),
    "cut at a number": (cut_at_a_number(), [(2, 31), (1, 32), (3, 33), (1, 100), (1, 1)]),
    "whole quotients": (whole_quotients(), [(2, 9, 6), (1, 8, 6), (3, 3, 6)]),
    "an output of no shape": (output_of_no_shape(), [(2, 3)]),
}


@pytest.fixture(scope="module")
def expected():
    given = {(name, shape): floats(*shape) for name, (_, shapes) in CASES.items() for shape in shapes}
    answers = by_onnx_runtime(
        {case: (CASES[case[0]][0].SerializeToString(), {"x": value}) for case, value in given.items()}
    )
    return {case: (given[case], dict(answer)["y"]) for case, answer in answers.items()}


@pytest.mark.parametrize("name", CASES)
def test_it_answers_as_onnx_runtime_does(expected, name):
    model, shapes = CASES[name]
    ours = opened(name, compile_model(model.SerializeToString(), name))
    for shape in shapes:
        x, y = expected[name, shape]
        assert_same(ours({"x": x})["y"], y)


def test_a_picture_that_does_not_come_back_to_its_size_is_the_callers_error():
    model = opened("halved", compile_model(halved_and_doubled().SerializeToString(), "halved"))
    with pytest.raises(ValueError, match="^this model does not work at n = 1, h = 7, w = 8: "):
        model({"x": floats(1, 4, 7, 8)})
    assert model({"x": floats(1, 4, 8, 8)})["y"].shape == (1, 4, 8, 8)


def test_what_no_size_makes_fit_is_refused():
    text = """m (float[n, 4] x) => (float[n, 4] y) {
        a = Concat <axis = 0> (x, x)
        y = Add(a, x)
    }"""
    with pytest.raises(OnnxError, match=r"works on tensors of the sizes (n and 2\*n|2\*n and n) as if they were equal"):
        compile_model(parsed(text).SerializeToString(), "odd")


def test_constants_of_nodes_that_differ_in_little_are_not_taken_for_each_other():
    a, b = numpy.array([[1, 2, 3], [4, 5, 6]], "float32"), numpy.array([[3, 1, 2], [9, 7, 8]], "float32")
    whole = a.view("int32")  # of the same bytes
    constants = {"a": a, "b": b, "whole": whole, "axis": numpy.int64(1), "other": numpy.int64(0)}
    nodes, wanted = [], {}
    for op, inputs, attributes, value in (
        ("Sub", ["a", "b"], {}, a - b),
        ("Sub", ["b", "a"], {}, b - a),
        ("Sub", ["a", "a"], {}, a - a),
        ("CumSum", ["a", "axis"], {}, a.cumsum(1)),
        ("CumSum", ["a", "other"], {}, a.cumsum(0)),
        ("CumSum", ["a", "axis"], {"reverse": 1}, a[:, ::-1].cumsum(1)[:, ::-1]),
        ("Cast", ["a"], {"to": TensorProto.FLOAT}, a),
        ("Cast", ["whole"], {"to": TensorProto.FLOAT}, whole.astype("float32")),
        ("Clip", ["a", "", "least"], {}, numpy.minimum(a, 2)),
        ("Clip", ["a", "least"], {}, numpy.maximum(a, 2)),
    ):
        number = len(wanted)
        nodes.append(helper.make_node(op, inputs, [f"c{number}"], **attributes))
        nodes.append(helper.make_node("Add", ["x", f"c{number}"], [f"y{number}"]))
        wanted[f"y{number}"] = value
    x = networks.values((2, 3))
    model = networks.graph_of(nodes, {"x": x}, list(wanted), constants | {"least": numpy.float32(2)})
    result = compiled(model, "net")
    assert result.savings.computed == len(wanted)
    made = opened("net", result.data)({"x": x})
    for name, value in wanted.items():
        numpy.testing.assert_allclose(made[name], x + value, rtol=1e-6, err_msg=name)


def test_nodes_in_any_order_are_put_in_order():
    """As converters to float16 write them; in a branch, too."""
    branch = [helper.make_node("Add", ["b", "a"], ["c"]), helper.make_node("Exp", ["a"], ["b"])]
    other = [helper.make_node("Identity", ["a"], ["c2"])]
    nodes = [
        helper.make_node("Abs", ["chosen"], ["y"]),
        helper.make_node(
            "If",
            ["flag"],
            ["chosen"],
            then_branch=helper.make_graph(branch, "then", [], [helper.make_empty_tensor_value_info("c")]),
            else_branch=helper.make_graph(other, "else", [], [helper.make_empty_tensor_value_info("c2")]),
        ),
        helper.make_node("Greater", ["total", "zero"], ["flag"]),
        helper.make_node("ReduceSum", ["a"], ["total"], keepdims=0),
        helper.make_node("Neg", ["x"], ["a"]),
    ]
    x = numpy.linspace(-1, 0.5, 6, dtype="float32").reshape(2, 3)
    data = networks.graph(nodes, {"x": (2, 3)}, {"y": (2, 3)}, {"zero": numpy.float32(0)})
    made = opened("sorted", compile_model(data, "sorted")).run(None, {"x": x})[0]
    numpy.testing.assert_allclose(made, numpy.abs(numpy.exp(-x) - x), rtol=1e-5)


def test_nodes_that_wait_for_each_other_are_refused():
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    data = networks.graph_of(nodes, {"x": numpy.zeros(3, "float32")}, ["b"])
    with pytest.raises(OnnxError, match="is no valid ONNX model: .*topologically sorted"):
        compile_model(data, "round")


def test_layer_normalization_before_its_opset_is_that_of_onnx_runtimes_optimizer():
    x, scale = numpy.random.default_rng(1).normal(size=(2, 8)).astype("float32"), numpy.arange(8, dtype="float32")
    nodes = [helper.make_node("LayerNormalization", ["x", "scale"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    data = networks.graph_of(nodes, {"x": x}, ["y"], {"scale": scale}, opset=13)
    made = opened("old", compile_model(data, "old")).run(None, {"x": x})[0]
    centred = x - x.mean(axis=-1, keepdims=True)
    expected = -centred / numpy.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * scale
    numpy.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "given"), [("Gelu", {}), ("Gelu", {"approximate": "tanh"}), ("Mish", {})])
def test_curves_of_float16_are_computed_in_float32(op, given):
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", 9]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **given)], "half", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    x = (floats(4, 9) * 3).astype("float16")
    [theirs] = networks.expected(model.SerializeToString(), {"x": x})
    assert_same(opened("half", compile_model(model.SerializeToString(), "half"))({"x": x})["y"], theirs, 2e-3)
