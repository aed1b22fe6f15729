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
