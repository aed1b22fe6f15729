"""Models have the names of ONNX Runtime's InferenceSession, and answer as it does."""

import json
import subprocess
import sys

import numpy
import pytest
from onnx import TensorProto, helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

ASKED = """
import json, sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
ports = session.get_inputs(), session.get_outputs()
print(json.dumps([[(port.name, port.type, port.shape) for port in some] for some in ports]))
"""


def two_outputs():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])
    k = helper.make_tensor_value_info("k", TensorProto.INT64, [3])
    outputs = [
        helper.make_tensor_value_info("total", TensorProto.FLOAT, ["rows", 3]),
        helper.make_tensor_value_info("wide", TensorProto.DOUBLE, ["rows", 3]),
        helper.make_tensor_value_info("large", TensorProto.BOOL, ["rows", 3]),
    ]
    nodes = [
        helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["total"]),
        helper.make_node("Cast", ["total"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Greater", ["total", "f"], ["large"]),
    ]
    graph = helper.make_graph(nodes, "two", [x, k], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def test_inputs_and_outputs_are_told_as_onnx_runtime_tells_them(tmp_path):

    (tmp_path / "model.onnx").write_bytes(two_outputs())
    asked = subprocess.run(
        [sys.executable, "-c", ASKED, tmp_path / "model.onnx"], capture_output=True, env={"HOME": str(tmp_path)}
    )
    inputs, outputs = json.loads(asked.stdout)
    model = opened("two", compile_model(two_outputs(), "two"))
    assert [[port.name, port.type, port.shape] for port in model.get_inputs()] == inputs
    assert [[port.name, port.type, port.shape] for port in model.get_outputs()] == outputs


def test_run_gives_lists_of_the_outputs_that_are_named():
    model = opened("two", compile_model(two_outputs(), "two"))
    feed = {"x": networks.values((2, 3)), "k": numpy.array([1, -1, 0])}
    theirs = networks.expected(two_outputs(), feed)
    for ours, expected in zip(model.run(None, feed), theirs, strict=True):
        ours = numpy.asarray(ours)
        assert ours.dtype == expected.dtype and (ours == expected).all()
    large, total = model.run(["large", "total"], feed, None)
    assert numpy.array_equal(large, theirs[2]) and numpy.array_equal(total, theirs[0])
    assert list(model.run(feed)) == ["total", "wide", "large"]


def test_what_is_asked_wrongly_is_told():
    model = opened("two", compile_model(two_outputs(), "two"))
    feed = {"x": networks.values((2, 3)), "k": numpy.array([1, -1, 0])}
    with pytest.raises(ValueError, match="no output 'sum'; expected 'total', 'wide', 'large'"):
        model.run(["sum"], feed)
    with pytest.raises(TypeError, match="a list of names or None, got 'total'"):
        model.run("total", feed)
    with pytest.raises(TypeError, match="the feed is missing; expected 'x', 'k'"):
        model.run(None)
    with pytest.raises(TypeError, match="run_options: expected None"):
        model.run(None, feed, object())
