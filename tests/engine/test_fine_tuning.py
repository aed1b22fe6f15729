"""Models whose last blocks are trained: the split, the trained part's results beside ONNX Runtime's, its
training, weights in files, and refused models."""

import numpy
import onnxruntime
import pytest
from onnx import helper

import vmhost.engine.numpy as np
from tests import networks
from tests.batches import each
from vmhost.engine import nn, optim
from vmhost.engine.models import opened
from vmhost.engine.nn.fine_tuning import OPERATORS, FineTuned
from vmhost.engine.onnx import OnnxError, compile_model, trainable

X = numpy.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("float32")
DRAWN = numpy.random.default_rng(1)


def drawn(*shape):
    return (DRAWN.normal(size=shape) * 0.5).astype("float32")


def model_of(nodes, weights, opset=18, stem=0):
    """Of a stem that this number draws: a frozen convolution of x to h, [2, 4, 8, 8], and `nodes` from h to y."""
    first = helper.make_node("Conv", ["x", "stem.w"], ["stem.y"], "stem", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    drawn_stem = numpy.random.default_rng(stem).normal(size=(4, 3, 3, 3)) * 0.5
    weights = {"stem.w": drawn_stem.astype("float32"), **weights}
    return networks.graph(
        [first, helper.make_node("Relu", ["stem.y"], ["h"]), *nodes], {"x": X.shape}, {"y": None}, weights, opset
    )


def node(kind, inputs, output="y", **attributes):
    return helper.make_node(kind, inputs.split(), [output], output, **attributes)


def tuned(data, *patterns):
    frozen, part, _ = trainable.split(data, "model.onnx", None, patterns)
    return FineTuned(opened("model", compile_model(frozen, "model.onnx")), part)


SCALED = [node("Mul", "h w", "a")]  # [2, 4, 8, 8]
W = {"w": numpy.float32([[[0.7]], [[-1.2]], [[0.4]], [[2.0]]])}
POSITIVE = [*SCALED, node("Mul", "a a", "b"), node("Add", "b one", "p")]
ONE, AXES = {"one": numpy.float32([1.0])}, {"axes": numpy.int64([2, 3])}
FLAT = [*SCALED, node("Flatten", "a", "f")]  # [2, 256]
CASES = {
    "Conv, strides, groups": (
        [node("Conv", "h w b", kernel_shape=[3, 3], strides=[2, 2], group=2, pads=[1, 0, 1, 2], dilations=[2, 1])],
        {"w": drawn(6, 2, 3, 3), "b": drawn(6)},
    ),
    "Gemm": (
        [*FLAT, node("Gemm", "f m c", alpha=0.5, beta=2.0, transB=1)],
        {**W, "m": drawn(5, 256), "c": drawn(5)},
    ),
    "MatMul, Softmax": ([*FLAT, node("MatMul", "f m", "s"), node("Softmax", "s")], {**W, "m": drawn(256, 5)}),
    "LogSoftmax": ([*SCALED, node("LogSoftmax", "a", axis=1)], W),
    "BatchNormalization": (
        [*SCALED, node("BatchNormalization", "a w1 w2 w3 w4", epsilon=1e-3)],
        {**W, "w1": drawn(4), "w2": drawn(4), "w3": drawn(4), "w4": numpy.float32([1, 2, 0.5, 0.1])},
    ),
    "LayerNormalization": (
        [*SCALED, node("LayerNormalization", "a g k", axis=-1)],
        {**W, "g": drawn(8), "k": drawn(8)},
    ),
    "MaxPool": ([*SCALED, node("MaxPool", "a", kernel_shape=[3, 2], strides=[2, 1])], W),
    "AveragePool": ([*SCALED, node("AveragePool", "a", kernel_shape=[2, 2])], W),
    "GlobalAveragePool": ([*SCALED, node("GlobalAveragePool", "a")], W),
    "ReduceMean of all": (
        [*SCALED, node("ReduceMean", "a none", "m"), node("Add", "m h")],
        {**W, "none": numpy.int64([])},
    ),
    "ReduceMean of none": (
        [*SCALED, node("ReduceMean", "a none", noop_with_empty_axes=1)],
        {**W, "none": numpy.int64([])},
    ),
    "Flatten from behind": ([*SCALED, node("Flatten", "a", axis=-1)], W),
    "Conv without its kernel's shape": ([node("Conv", "h w")], {"w": drawn(5, 4, 3, 3)}),
    "ReduceMean": ([*SCALED, node("ReduceMean", "a axes", keepdims=0)], {**W, **AXES}),
    "Clip": ([*SCALED, node("Clip", "a low high")], {**W, "low": numpy.float32(0), "high": numpy.float32(0.5)}),
    "Reshape, Transpose": (
        [*SCALED, node("Reshape", "a to", "r"), node("Transpose", "r", perm=[0, 2, 1])],
        {**W, "to": numpy.int64([0, -1, 16])},
    ),
    "Squeeze, Unsqueeze": (
        [*SCALED, node("GlobalAveragePool", "a", "g"), node("Squeeze", "g axes", "s"), node("Unsqueeze", "s at")],
        {**W, **AXES, "at": numpy.int64([0, -1])},
    ),
    "Concat, Sub, Div, Neg": (
        [
            *POSITIVE,
            node("Sub", "p a", "s"),
            node("Div", "s p", "d"),
            node("Neg", "d", "n"),
            node("Concat", "n h", axis=1),
        ],
        {**W, **ONE},
    ),
    "Pow, Sqrt, Log, Exp": (
        [*POSITIVE, node("Pow", "p half", "q"), node("Sqrt", "q", "s"), node("Log", "s", "l"), node("Exp", "l")],
        {**W, **ONE, "half": numpy.float32(1.5)},
    ),
    **{
        kind: ([*SCALED, node(kind, "a", **attributes)], W)
        for kind, attributes in {
            "Dropout": {},
            "Elu": {"alpha": 0.7},
            "Erf": {},
            "HardSigmoid": {"alpha": 0.3},
            "HardSwish": {},
            "Identity": {},
            "LeakyRelu": {"alpha": 0.2},
            "Relu": {},
            "Sigmoid": {},
            "Softplus": {},
            "Tanh": {},
        }.items()
    },  # fmt: skip
    "Gelu": ([*SCALED, node("Gelu", "a", "g"), node("Gelu", "g", approximate="tanh")], W),
}


BENT = ("Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "MaxPool", "Relu")  # no slope at some places


@each("name", CASES)
def test_the_trained_part_computes_what_onnx_runtime_does(name):
    nodes, weights = CASES[name]
    data = model_of(nodes, weights, 20 if name == "Gelu" else 18)
    network = tuned(data, "w")
    [expected] = onnxruntime.InferenceSession(data).run(None, {"x": X})
    assert list(network.weights) == ["w"]
    given = network({"x": np.asarray(X)})["y"]
    assert given.shape == expected.shape and numpy.allclose(given, expected, atol=1e-5)
    # and a gradient goes through it, which finite differences confirm
    generator, found = numpy.random.default_rng(2), network.frozen({"x": np.asarray(X)})
    target, direction = (generator.normal(size=shape).astype("float32") for shape in (expected.shape, W["w"].shape))
    if name.startswith("Conv"):
        direction = generator.normal(size=weights["w"].shape).astype("float32")
    target, before = np.asarray(target), network.weights["w"].copy()
    _, gradient = nn.value_and_grad(network, lambda: (network.trained(found)["y"] * target).sum())()
    slope, sides, step = float((gradient["weights"]["w"] * direction).sum()), [], 3e-3
    for sign in (1, -1):
        network.weights["w"] = before + np.asarray(sign * step * direction)
        sides.append(float((network.trained(found)["y"].astype("float64") * target).sum()))
    if name in BENT:
        assert numpy.isfinite(slope) and slope != 0
    else:
        assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=0.05, abs=0.05)


def test_every_operator_that_the_compiler_lets_through_is_there_and_tried():
    assert tuple(sorted(OPERATORS)) == trainable.OPERATORS
    assert {one.op_type for nodes, _ in CASES.values() for one in nodes} >= set(OPERATORS)


CLASSIFIER = [node("GlobalAveragePool", "h", "g"), node("Flatten", "g", "f"), node("Gemm", "f fc.weight fc.bias")]
HEAD = {"fc.weight": drawn(4, 3), "fc.bias": drawn(3)}


def test_the_last_layer_learns_and_the_rest_stays(tmp_path):
    data = model_of(CLASSIFIER, HEAD)
    network = tuned(data, "fc.*")
    assert set(network.weights) == {"fc.weight", "fc.bias"}
    found = network.frozen({"x": np.asarray(X)})
    assert set(found) == {"f"}  # pooled and flat already: what does not depend on the weights is done once
    labels, optimizer = np.asarray([2, 0]), optim.Adam(0.1)
    step = nn.value_and_grad(network, lambda: nn.cross_entropy(network.trained(found)["y"], labels))
    losses = []
    for _ in range(60):
        loss, gradients = step()
        optimizer.update(network, gradients)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    network.save(tmp_path)
    again = tuned(data, "fc.*")
    assert not (again({"x": np.asarray(X)})["y"] == network({"x": np.asarray(X)})["y"]).all()
    assert again.load(tmp_path)
    assert (again({"x": np.asarray(X)})["y"] == network({"x": np.asarray(X)})["y"]).all()
    other = tuned(model_of(CLASSIFIER, HEAD, stem=1), "fc.*")
    assert not other.load(tmp_path) and not tuned(data, "fc.weight").load(tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="safetensors"):
        again.load(tmp_path)
    assert (again({"x": np.asarray(X)})["y"] == network({"x": np.asarray(X)})["y"]).all()


WRONG = [
    (CLASSIFIER, HEAD, ("fc.weigth",), 18, "has no weight 'fc.weigth' to train; it has fc.bias, fc.weight, stem.w"),
    (CLASSIFIER, HEAD, ("fc.bias",), 12, "has opset 12; training takes opset 13"),
    (
        [node("Mul", "h w", "m"), node("Sin", "m")],
        W,
        ("w",),
        18,
        "Sin 'y': depends on trainable weights, but cannot be trained",
    ),
    (
        [node("Mul", "h w", "m"), node("Cast", "i", to=1)],
        {**W, "i": numpy.int64([1])},
        ("w",),
        18,
        "no output depends on",
    ),
    ([node("Reshape", "h to")], {"to": numpy.int64([2, -1])}, ("to",), 18, "to: only float32 weights can be trained"),
    (
        [*SCALED, node("MaxPool", "a", kernel_shape=[2, 2], ceil_mode=1)],
        W,
        ("w",),
        18,
        "MaxPool 'y': pools with ceil_mode or pads",
    ),
    (
        [node("Reshape", "h to", "r"), node("Conv", "r w")],
        {"to": numpy.int64([2, 4, 64]), "w": drawn(4, 4, 3)},
        ("w",),
        18,
        "only windows of two dimensions",
    ),
    (
        [node("Mul", "w w", "v"), node("Conv", "h v")],
        {"w": drawn(4, 4, 1, 1)},
        ("w",),
        18,
        "has no kernel_shape",
    ),
    (
        [node("Conv", "h w", kernel_shape=[1, 1], auto_pad="SAME_UPPER")],
        {"w": drawn(4, 4, 1, 1)},
        ("w",),
        18,
        "auto_pad cannot be trained",
    ),
]


@pytest.mark.parametrize(("nodes", "weights", "patterns", "opset", "says"), WRONG)
def test_what_cannot_be_trained_is_told_when_the_task_is_compiled(nodes, weights, patterns, opset, says):
    with pytest.raises(OnnxError, match=says):
        trainable.split(model_of(nodes, weights, opset), "model.onnx", None, patterns)


def test_a_part_of_another_model_is_refused():
    frozen, _, _ = trainable.split(model_of(SCALED[:0] + CASES["Relu"][0], W), "a.onnx", None, ["w"])
    _, part, _ = trainable.split(model_of(CLASSIFIER, HEAD), "b.onnx", None, ["fc.*"])
    with pytest.raises(ValueError, match="the trainable part is that of another model"):
        FineTuned(opened("a", compile_model(frozen, "a.onnx")), part)
    with pytest.raises(ValueError, match="no trainable part of a model"):
        FineTuned(opened("a", compile_model(frozen, "a.onnx")), part[:50])


def test_all_weights_of_an_exported_network_can_be_trained_by_their_names():
    nn.seed(4)
    model = nn.Sequential(nn.Linear(6, 5), nn.gelu, nn.LayerNorm(5), nn.Linear(5, 3), nn.softmax)
    x = np.asarray(DRAWN.normal(size=(4, 6)).astype("float32"))
    data = nn.export(model, {"x": x})
    names = {f"layers.{i}.{one}" for i in (0, 2, 3) for one in ("weight", "bias")}
    for patterns, wanted in ((["*"], names), (["layers.3.*"], {"layers.3.weight", "layers.3.bias"})):
        frozen, part, _ = trainable.split(data, "net.onnx", None, patterns)
        assert set(trainable.trained_names(part)) >= wanted
        network = FineTuned(opened("net", compile_model(frozen, "net.onnx")), part)
        assert wanted <= set(network.weights)
        assert numpy.allclose(network({"x": x})["output"], model(x), atol=1e-6)
        step = nn.value_and_grad(
            network, lambda network=network: nn.cross_entropy(network({"x": x})["output"], [0, 1, 2, 0])
        )
        gradients = step()[1]["weights"]
        assert all(float(np.abs(gradients[name]).sum()) > 0 for name in wanted)
