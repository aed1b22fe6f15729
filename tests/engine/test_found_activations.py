"""Activations that exporters decompose become one step again, and similar patterns do not."""

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

NUMBERS = {"a": 0.044715, "c": 0.7978845608028654, "one": 1.0, "half": 0.5, "three": 3.0, "six": 6.0, "two": 2.0}


def node(op, inputs, output):
    return helper.make_node(op, inputs.split(), [output])


CUBE = [node("Pow", "x three", "cube"), node("Mul", "cube a", "p"), node("Add", "x p", "s"), node("Mul", "s c", "i")]
PRODUCTS = [node("Mul", "x x", "q"), node("Mul", "q x", "cube"), *CUBE[1:]]
FACTORED = [
    node("Mul", "x c", "xc"),
    node("Mul", "x a", "xa"),
    node("Mul", "xa x", "p"),
    node("Add", "one p", "s"),
    node("Mul", "xc s", "i"),
]
END = [node("Tanh", "i", "t"), node("Add", "t one", "u"), node("Mul", "x half", "h"), node("Mul", "h u", "y")]
CLIPPED = [node("Add", "x three", "s"), node("Clip", "s zero six", "k")]


def gelu(x):
    return 0.5 * x * (1 + numpy.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def hard_swish(x):
    return x * numpy.clip(x + 3, 0, 6) / 6


@pytest.mark.parametrize(
    ("nodes", "expected", "steps"),
    [
        ([*CUBE, *END], gelu, ["Activate"]),
        ([*PRODUCTS, *END], gelu, ["Activate"]),
        ([*FACTORED, *END], gelu, ["Activate"]),
        ([*CLIPPED, node("Div", "k six", "g"), node("Mul", "x g", "y")], hard_swish, ["Activate"]),
        ([*CLIPPED, node("Mul", "k x", "g"), node("Div", "g six", "y")], hard_swish, ["Activate"]),
        ([helper.make_node("HardSwish", ["x"], ["y"])], hard_swish, ["Activate"]),
        (
            [helper.make_node("HardSigmoid", ["x"], ["y"], alpha=1 / 6)],
            lambda x: numpy.clip(x / 6 + 0.5, 0, 1),
            ["Activate"],
        ),
        ([node("Pow", "x three", "y")], lambda x: x**3, ["Unary", "Binary"]),
        ([node("Pow", "x two", "y")], lambda x: x**2, ["Unary"]),
        # no activations: another constant, and a quotient by a computed value
        ([*CUBE[:3], node("Mul", "s six", "i"), *END], None, None),
        ([*CLIPPED, node("Div", "k two", "g"), node("Mul", "x g", "y")], None, None),
        ([*CLIPPED, node("Div", "six k", "g"), node("Mul", "x g", "y")], None, None),
        ([*CLIPPED, node("Div", "k x", "g"), node("Div", "g six", "y")], None, None),
    ],
)
def test_activations_are_one_step(nodes, expected, steps):
    x = numpy.concatenate([numpy.linspace(-5, 5, 211, dtype="float32"), networks.values((300,), 1) * 3])
    constants = {name: numpy.float32(value) for name, value in NUMBERS.items()} | {"zero": numpy.float32(0)}
    data = networks.graph_of(nodes, {"x": x}, ("y",), constants)
    compiled = compile_model(data, "model")
    theirs = expected(x.astype("float64")) if expected else networks.all_by_onnx_runtime(data, [{"x": x}])[0][0]
    for backend in backends():
        with on_backend(backend):
            model = opened("model", compiled)
            kinds = [step.kind for step in model.steps if step.kind not in ("Input", "Output")]
            assert kinds == steps if steps else "Activate" not in kinds
            ours = numpy.asarray(model({"x": x})["y"])
            finite = numpy.isfinite(theirs)
            assert (numpy.isfinite(ours) == finite).all()
            numpy.testing.assert_allclose(ours[finite], theirs[finite], rtol=2e-6, atol=2e-6)


NORM = [
    helper.make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
    node("Sub", "x m", "c"),
    node("Mul", "c c", "q"),
    helper.make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
    node("Add", "v e", "ve"),
    node("Sqrt", "ve", "r"),
    node("Div", "c r", "n"),
    node("Mul", "n s", "p"),
    node("Add", "p b", "y"),
]


@pytest.mark.parametrize("shape", [(4, 1), (1, 8), (1, 1)])
def test_a_normalization_whose_scale_and_bias_are_wider_than_its_rows(shape):
    x = networks.values(shape)
    constants = {"e": numpy.float32(1e-5), "s": networks.values((8,), 1), "b": networks.values((8,), 2)}
    data = networks.graph_of(NORM, {"x": x}, ("y",), constants, 17)
    networks.assert_close(
        opened("norm", compile_model(data, "norm"))({"x": x})["y"], networks.expected(data, {"x": x})[0]
    )


@pytest.mark.parametrize("act", ["Relu", "Clip"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_an_image_combined_with_an_operand_of_more_dimensions(op, act):
    inputs = {"x": networks.values((1, 3, 6, 6)), "z": networks.values((2, 1, 4, 6, 6), 1)}
    constants = {"w": networks.values((4, 3, 3, 3), 2), "zero": numpy.float32(0), "six": numpy.float32(6)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node(op, "c z", "d"),
        node(act, "d zero six" if act == "Clip" else "d", "y"),
    ]
    data = networks.graph_of(nodes, inputs, ("y",), constants)
    networks.assert_close(opened("wide", compile_model(data, "wide"))(inputs)["y"], networks.expected(data, inputs)[0])
