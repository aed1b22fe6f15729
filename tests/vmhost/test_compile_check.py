"""`vmhost compile --check`: what prevents ONNX files from being compiled, before there is a task."""

import json
import sys

import pytest
from onnx import TensorProto, helper

import vmhost.engine.onnx
from tests import warm
from vmhost.engine.onnx import OnnxError, compile_model


def run(*arguments):
    return warm.run("-m", "vmhost", "compile", "--check", *arguments)


def check(folder, nodes, *more):
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3))] for name in "xy"]
    ports[0].append(helper.make_tensor_value_info("bytes", TensorProto.UINT8, (9,)))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("here", 1)]
    model = helper.make_model(helper.make_graph(nodes, "checked", *ports), opset_imports=opsets, ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return run(folder / "model.onnx", *more)


def test_all_that_a_model_lacks_is_told_by_operator_with_what_to_do(tmp_path):
    nodes = [helper.make_node("Glue", ["x"], [name], domain="here") for name in "abc"]
    nodes += [
        helper.make_node("Wax", ["a"], ["d"], domain="here"),
        helper.make_node("ImageDecoder", ["bytes"], ["e"]),
        helper.make_node("Cast", ["e"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["f"], ["g"], keepdims=0),
        helper.make_node("Sum", ["b", "c", "d", "g"], ["y"]),
    ]
    done = check(tmp_path, nodes)
    assert done.returncode != 0
    lines = done.stdout.splitlines()
    assert lines[0].endswith("model.onnx: does not compile")
    assert lines[1:3] == [
        "  operator here.Glue (3 nodes, 'a', 'b', 'c') is not supported",
        "  operator here.Wax (node 'd') is not supported",
    ]
    assert lines[3].startswith("    what to do: export without operators of your own")
    assert lines[4] == "  operator ImageDecoder (node 'e') is not supported"
    assert lines[5].startswith("    what to do: export with operators of docs/onnx-operators.md") and len(lines) == 6
    done = check(tmp_path, nodes, "--json")
    [found] = json.loads(done.stdout)["models"]
    assert [len(group["lacks"]) for group in found["groups"]] == [2, 1] and len(found["lacks"]) == 3


def test_a_model_that_compiles_says_what_it_takes(tmp_path):
    done = check(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], "--json")
    assert done.returncode == 0
    [found] = json.loads(done.stdout)["models"]
    assert found["compiles"] and found["inputs"][0] == {"name": "x", "dtype": "float32", "shape": [2, 3]}


def test_a_file_that_is_not_there_is_named(tmp_path):
    (tmp_path / "model.onnx").touch()
    done = run(tmp_path / "modle.onnx")
    assert done.returncode != 0 and "no such file; did you mean" in done.stderr


def test_what_the_engine_would_refuse_is_a_problem_of_the_model(monkeypatch):
    """Each compile opens its result where the library is present."""
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g", [port("x", 1, (2, 3))], [port("y", 1, (2, 3))]
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    monkeypatch.setattr(vmhost.engine.onnx, "write", lambda *network: [b"VMEMODEL"])
    with pytest.raises(OnnxError, match="m.onnx: the engine does not open what the compiler made of it.*report it"):
        compile_model(data, "m.onnx")
    monkeypatch.setitem(sys.modules, "vmhost.engine.models", None)
    assert compile_model(data, "m.onnx") == b"VMEMODEL"
