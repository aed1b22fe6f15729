"""A Pad before a convolution becomes the convolution's own padding, where it can; results are ONNX Runtime's."""

import numpy
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

SHAPE, OPEN = [1, 4, 9, 7], [1, 4, "height", "width"]


def copies(pads, kernel=(3, 3), value=0.0, mode="constant", shape=SHAPE, added=None, **attributes):
    """The number of the compiled steps that only move elements; checks the results. `pads` are the Pad's, `added` the
    convolution's own."""
    random = numpy.random.default_rng(3)
    channels = 4 + pads[1] + pads[5]
    weights = random.standard_normal((8, channels, *kernel)).astype("float32")
    nodes = [
        helper.make_node("Pad", ["x", "pads", "value"] if mode == "constant" else ["x", "pads"], ["wide"], mode=mode),
        helper.make_node("Conv", ["wide", "weights"], ["y"], **attributes, **({"pads": added} if added else {})),
    ]
    graph = helper.make_graph(
        nodes,
        "border",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(numpy.array(pads), "pads"),
            numpy_helper.from_array(numpy.float32(value), "value"),
            numpy_helper.from_array(weights, "weights"),
        ],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    x = random.standard_normal(SHAPE).astype("float32")
    [expected] = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    ours = opened("border", compile_model(data, "border"))
    numpy.testing.assert_allclose(numpy.asarray(ours({"x": x})["y"]), expected, rtol=1e-5, atol=1e-5)
    return sum(step.kind in ("Copy", "Fill") for step in ours.steps)


@pytest.mark.parametrize("shape", [SHAPE, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize(
    "case",
    [
        dict(pads=[0, 0, 0, 0, 0, 0, 0, 0], kernel=(1, 1)),
        dict(pads=[0, 0, 1, 1, 0, 0, 1, 1]),
        dict(pads=[0, 0, 0, 0, 0, 0, 1, 1], strides=[2, 2]),
        dict(pads=[0, 0, 1, 0, 0, 0, 0, 1], added=[0, 1, 2, 1]),
        dict(pads=[0, 0, 1, 1, 0, 0, 1, 1], auto_pad="VALID"),
    ],
)
def test_a_border_of_zeros_is_the_convolutions_padding(case, shape):
    assert copies(shape=shape, **case) == 0


@pytest.mark.parametrize(
    "case",
    [
        dict(pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.5),
        dict(pads=[0, 0, 3, 0, 0, 0, 3, 0]),  # wider than the kernel reaches
        dict(pads=[0, 1, 1, 1, 0, 0, 1, 1]),  # of channels too
        dict(pads=[0, 0, 1, 1, 0, 0, 1, 1], auto_pad="SAME_UPPER"),
    ],
)
def test_any_other_border_is_made(case):
    assert copies(**case) > 0


def test_borders_that_crop_or_reflect():
    copies(pads=[0, 0, -1, 0, 0, 0, 0, -2])
    copies(pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")
