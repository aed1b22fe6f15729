"""Models of bfloat16 compile, compute in float32, and keep the weights of products in two bytes."""

import numpy
import pytest
from onnx import TensorProto, helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

K, N = 96, 160
BRAIN, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT


def rounded(*shape, seed=0):
    """Random numbers with the digits of bfloat16, as float32."""
    numbers = numpy.random.default_rng(seed).standard_normal(shape).astype("float32")
    return (numbers.view("uint32") & 0xFFFF0000).view("float32")


def model_of(nodes, weights, kind, of_weights=BRAIN):
    ports = [helper.make_tensor_value_info(name, kind, ["rows", size]) for name, size in (("x", K), ("y", N))]
    constants = [
        helper.make_tensor(name, of_weights, values.shape, values.reshape(-1)) for name, values in weights.items()
    ]
    graph = helper.make_graph(nodes, "brain", [ports[0]], [ports[1]], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


WEIGHTS = {"w": rounded(K, N), "b": rounded(N, seed=1)}
CASES = {
    "weights": ([helper.make_node("Cast", ["w"], ["v"], to=FLOAT), helper.make_node("MatMul", ["x", "v"], ["p"]),
                 helper.make_node("Cast", ["b"], ["c"], to=FLOAT), helper.make_node("Add", ["p", "c"], ["y"])], FLOAT),
    "inside": ([helper.make_node("Cast", ["x"], ["z"], to=BRAIN), helper.make_node("MatMul", ["z", "w"], ["p"]),
                helper.make_node("Add", ["p", "b"], ["q"]), helper.make_node("Cast", ["q"], ["y"], to=FLOAT)], FLOAT),
    "whole": ([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], BRAIN),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("name", CASES)
def test_products_are_right_and_their_weights_small(name, rows):
    nodes, kind = CASES[name]
    data = compile_model(model_of(nodes, WEIGHTS, kind), name)
    assert len(data) < K * N * 2 + 10_000  # two bytes a weight
    model = opened(name, data)
    assert str(model.inputs[0].dtype) == str(model.outputs[0].dtype) == "float32"
    x = networks.values((rows, K))
    expected = x @ WEIGHTS["w"] + WEIGHTS["b"]
    numpy.testing.assert_allclose(numpy.asarray(model({"x": x})["y"]), expected, rtol=1e-5, atol=1e-4)


def test_weights_beyond_float16_keep_their_range():
    weights = {"w": WEIGHTS["w"] * 2.0**30, "b": WEIGHTS["b"]}
    nodes, kind = CASES["whole"]
    x = networks.values((3, K))
    y = numpy.asarray(opened("large", compile_model(model_of(nodes, weights, kind), "large"))({"x": x})["y"])
    numpy.testing.assert_allclose(y, x @ weights["w"], rtol=1e-4, atol=1e5)


def test_models_of_float32_are_left_alone():
    data = model_of(CASES["whole"][0], WEIGHTS, FLOAT, FLOAT)  # weights with the same digits
    model = opened("wide", compile_model(data, "wide"))
    assert "NarrowProduct" not in {step.kind for step in model.steps}
