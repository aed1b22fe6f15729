"""Convolutions of one image that are added, as networks are trained with several branches: one convolution after
compiling, and the same results as ONNX Runtime's."""

import numpy
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

CHANNELS, SIZE = 6, 9


class Graph:
    """Nodes on the image x [1, CHANNELS, SIZE, SIZE], with weights from a seed."""

    def __init__(self, seed=0):
        self.random, self.nodes, self.weights = numpy.random.default_rng(seed), [], {}

    def weight(self, *shape, least=-1.0):
        name = f"w{len(self.weights)}"
        self.weights[name] = self.random.uniform(least, 1, shape).astype("float32")
        return name

    def node(self, op, *inputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [f"n{len(self.nodes)}"], **attributes))
        return f"n{len(self.nodes) - 1}"

    def convolution(self, x, kernel, pads, groups=1, stride=1, dilation=1, bias=True, channels=CHANNELS):
        given = [self.weight(channels, CHANNELS // groups, *kernel)]
        if bias:
            given.append(self.weight(channels))
        return self.node("Conv", x, *given, pads=pads, group=groups, strides=[stride] * 2, dilations=[dilation] * 2)

    def normalized(self, x):
        statistics = [self.weight(CHANNELS), self.weight(CHANNELS), self.weight(CHANNELS)]
        return self.node("BatchNormalization", x, *statistics, self.weight(CHANNELS, least=0.5))

    def scaled(self, x):
        return self.node("Mul", x, self.weight(CHANNELS, 1, 1))

    def steps(self, *outputs):
        """The number of the compiled convolutions and sums; checks the results."""
        graph = helper.make_graph(
            self.nodes,
            "branches",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, SIZE, SIZE])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(values, name) for name, values in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data = model.SerializeToString()
        x = self.random.standard_normal((1, CHANNELS, SIZE, SIZE)).astype("float32")
        expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        ours = opened("branches", compile_model(data, "branches"))
        for name, values in zip(outputs, expected):
            numpy.testing.assert_allclose(numpy.asarray(ours({"x": x})[name]), values, rtol=2e-5, atol=2e-5)
        return sum(step.kind.startswith(("Conv", "Add", "Binary")) for step in ours.steps)


def test_kernels_of_two_sizes_and_the_normalized_image_are_one_convolution():
    graph = Graph()
    wide = graph.normalized(graph.convolution("x", (3, 3), [1, 1, 1, 1], bias=False))
    narrow = graph.normalized(graph.convolution("x", (1, 1), [0, 0, 0, 0], bias=False))
    total = graph.node("Add", graph.node("Add", wide, narrow), graph.normalized("x"))
    assert graph.steps(graph.node("Relu", total)) == 1


def test_a_depthwise_block_with_a_scale_and_the_image_itself_is_one_convolution():
    graph = Graph()
    block = [graph.convolution("x", (3, 3), [1, 1, 1, 1], CHANNELS) for _ in range(3)]
    total = graph.node("Add", graph.node("Add", block[0], block[1]), block[2])
    mixed = graph.node("Sub", total, graph.normalized("x"))
    assert graph.steps(graph.node("Add", "x", graph.scaled(mixed))) == 1


def test_strides_are_kept():
    graph = Graph()
    one = graph.convolution("x", (3, 3), [1, 1, 1, 1], stride=2)
    assert graph.steps(graph.node("Add", one, graph.convolution("x", (1, 1), [0, 0, 0, 0], stride=2))) == 1


@pytest.mark.parametrize(
    "first, second",
    [
        (dict(kernel=(1, 5), pads=[0, 2, 0, 2]), dict(kernel=(5, 1), pads=[2, 0, 2, 0])),  # 25 elements for 10
        (dict(kernel=(3, 3), pads=[1, 1, 1, 1]), dict(kernel=(3, 3), pads=[1, 1, 1, 1], groups=2)),
        (dict(kernel=(3, 3), pads=[1, 1, 1, 1]), dict(kernel=(3, 3), pads=[2, 2, 2, 2], dilation=2)),
    ],
    ids=["a row and a column", "other groups", "other dilations"],
)
def test_other_convolutions_stay_apart(first, second):
    graph = Graph()
    assert graph.steps(graph.node("Add", graph.convolution("x", **first), graph.convolution("x", **second))) == 2


def test_a_branch_that_is_an_output_stays():
    graph = Graph()
    one, two = (graph.convolution("x", (3, 3), [1, 1, 1, 1]) for _ in range(2))
    assert graph.steps(graph.node("Add", one, two), one) == 2


def test_an_activated_branch_stays():
    graph = Graph()
    one = graph.node("Relu", graph.convolution("x", (3, 3), [1, 1, 1, 1]))
    assert graph.steps(graph.node("Add", one, graph.convolution("x", (1, 1), [0, 0, 0, 0]))) == 2


@st.composite
def branches(draw):
    """(groups, stride, [(kernel, pads, dilation) or "image" or "normalized", ...], operators)."""
    stride, result = draw(st.sampled_from([1, 1, 2])), []
    for _ in range(draw(st.integers(2, 4))):
        if stride == 1 and draw(st.integers(0, 3)) == 0:
            result.append(draw(st.sampled_from(["image", "normalized"])))
            continue
        kernel, dilation = (draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from([1, 3, 4]))), 1
        if draw(st.booleans()):
            kernel, dilation = (3, draw(st.sampled_from([1, 3]))), draw(st.sampled_from([1, 2]))
        reach = [dilation * (size - 1) for size in kernel]
        before = [draw(st.integers(0, size)) for size in reach]
        result.append((kernel, [*before, *(size - first for size, first in zip(reach, before))], dilation))
    operators = draw(st.lists(st.sampled_from(["Add", "Sub"]), min_size=len(result), max_size=len(result)))
    return draw(st.sampled_from([1, 2, CHANNELS])), stride, result, operators


@settings(max_examples=120, deadline=None)
@given(branches(), st.integers(0, 99))
def test_sums_of_random_branches(case, seed):
    groups, stride, parts, operators = case
    graph, total = Graph(seed), None
    for part, operator in zip(parts, operators):
        if part == "image":
            made = "x"
        elif part == "normalized":
            made = graph.normalized("x")
        else:
            made = graph.convolution("x", *part[:2], groups, stride, part[2], bias=bool(seed % 2))
        total = made if total is None else graph.node(operator, total, made)
    graph.steps(graph.node("Identity", total))
