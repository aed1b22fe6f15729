"""Depthwise convolutions of fewer channels than a vector has, on every backend: against sums over the window."""

import numpy
import pytest
from onnx import helper, numpy_helper

from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

RANDOM = numpy.random.default_rng(5)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def summed(x, w, b, stride, addend):
    pad = w.shape[-1] // 2
    padded = numpy.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = numpy.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return numpy.maximum(numpy.einsum("nchwij,cij->nchw", windows, w[:, 0]) + b[:, None, None] + addend, 0)


@pytest.mark.parametrize("channels", [1, 3, 5, 8, 13, 16])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_a_depthwise_convolution_of_few_channels(channels, kernel, stride):
    x, w, b = floats(2, channels, 7, 13), floats(channels, 1, kernel, kernel), floats(channels)
    addend = floats(2, channels, -(-7 // stride), -(-13 // stride))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], group=channels, strides=[stride] * 2, pads=[kernel // 2] * 4),
        helper.make_node("Add", ["a", "z"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    ports = {"x": x, "z": addend, "y": addend}
    of = {name: helper.make_tensor_value_info(name, 1, values.shape) for name, values in ports.items()}
    weights = [numpy_helper.from_array(values, name) for name, values in (("w", w), ("b", b))]
    graph = helper.make_graph(nodes, "few", [of["x"], of["z"]], [of["y"]], weights)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    compiled = compile_model(data, "few")
    for backend in backends():
        with on_backend(backend):
            made = opened("few", compiled)({"x": x, "z": addend})["y"]
            numpy.testing.assert_allclose(made, summed(x, w, b, stride, addend), rtol=1e-4, atol=1e-5)
