"""ONNX to the engine's model file: what becomes of a graph, and what is refused."""

import struct
import sys
from collections import Counter

import numpy
import pytest
from onnx import TensorProto, helper

from bench.networks import bert
from bytecode.errors import CompileError
from bytecode.models import compile_model
from bytecode.models.writing import OPS
from tests import networks

OPERATORS = {number: name for name, number in OPS.items()}
TENSOR, NODE, HEADER = 192, 128, 128        # bytes of records


def operators(model):
    """(operator, has an addend, ends with ReLU) of each node of the compiled model."""
    data = compile_model(model, "model.onnx")
    tensors, nodes = struct.unpack_from("<2I", data, 24)
    found = []
    for number in range(nodes):
        at = HEADER + TENSOR * tensors + NODE * number
        op, _, inputs = struct.unpack_from("<3I", data, at + 8)
        found.append((OPERATORS[op], inputs == 4 and number_of(data, at) is not None, bool(struct.unpack_from("<i", data, at + 24 + 44)[0])))
    return found


def number_of(data, at):
    """The fourth operand of the node whose record is at `at`, or None."""
    tensors, nodes, inputs, outputs = struct.unpack_from("<4I", data, 24)
    first = struct.unpack_from("<I", data, at + 12)[0]
    operand = struct.unpack_from("<I", data, HEADER + TENSOR * tensors + NODE * nodes + 4 * (inputs + outputs + first + 3))[0]
    return None if operand == 0xFFFFFFFF else operand


def refused(model, *messages):
    with pytest.raises(CompileError) as caught:
        compile_model(model, "model.onnx")
    found = [str(diagnostic) for diagnostic in caught.value.diagnostics]
    assert len(found) == len(messages), found
    for text, message in zip(found, messages):
        assert text.startswith("model.onnx: ") and message in text


def test_resnet18_becomes_convolutions_with_everything_in_them():
    found = operators(networks.small())
    assert [name for name, _, _ in found].count("Conv") == 20 and len(found) == 24
    assert {name for name, _, _ in found} == {"Conv", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm"}
    assert sum(addend for _, addend, _ in found) == 8 and sum(relu for _, _, relu in found) == 17


@pytest.mark.parametrize("fused", [True, False])
def test_a_layer_of_bert_is_nine_steps(fused):
    """No transpose, reshape, bias, residual, scale or mask is a step of its own; those besides are embeddings, the mask and the ends."""
    found = Counter(name for name, _, _ in operators(bert(16, 2, 32, 4, 64, 100, fused=fused).SerializeToString()))
    assert {name: found[name] for name in ("Gemm", "Attention", "MatMul", "Softmax", "Activate", "Normalize", "Copy")} == {
        "Gemm": 2 * 6 + 1, "Attention": 2, "MatMul": 0, "Softmax": 0, "Activate": 0, "Normalize": 2 * 2 + 1, "Copy": 1}
    assert sum(found.values()) == 27


def test_what_others_read_is_not_fused():
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Add", ["c", "r"], ["s"])]
    model = networks.graph(nodes, {"x": (1, 2, 3, 3)}, {"s": None}, {"w": numpy.ones((2, 2, 1, 1), "float32")})
    assert operators(model) == [("Conv", False, False), ("Relu", False, False), ("Binary", False, False)]


def test_constants_are_computed_and_dead_nodes_dropped():
    nodes = [helper.make_node("Constant", [], ["one"], value_float=1.0), helper.make_node("Mul", ["w", "one"], ["w2"]),
             helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Conv", ["i", "w2"], ["y"]), helper.make_node("Relu", ["x"], ["unused"])]
    model = networks.graph(nodes, {"x": (1, 2, 3, 3)}, {"y": None}, {"w": numpy.ones((2, 2, 1, 1), "float32")})
    assert operators(model) == [("Conv", False, False)]


def test_an_output_that_is_another_one_is_a_copy():
    """In either order: what an identity gave its name to was looked for in a circle once."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Identity", ["a"], ["b"])]
    for outputs in (["a", "b"], ["b", "a"]):
        found = operators(networks.graph_of(nodes, {"x": numpy.ones(2, "float32")}, outputs))
        assert [name for name, _, _ in found] == ["Unary", "Copy"]


def test_the_same_model_gives_the_same_bytes():
    assert compile_model(networks.small(), "a") == compile_model(networks.small(), "b")


def test_all_unsupported_operators_are_named_at_once():
    nodes = [helper.make_node("Det", ["x"], ["a"], "volume"), helper.make_node("NonZero", ["x"], ["b"]),
             helper.make_node("Conv", ["x", "w"], ["y"], "two"), helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT)]
    refused(networks.graph(nodes, {"x": (1, 2, 3, 3), "w": (2, 2, 1, 1)}, {"y": None, "a": (1, 2), "c": (4, "found")}),
            "operator Det (node 'volume') is not supported", "operator NonZero (node 'b') is not supported",
            "operator Conv (node 'two') has weights that are not constant")


def test_an_input_that_is_no_tensor_is_refused():
    graph = helper.make_graph([helper.make_node("SequenceAt", ["x", "place"], ["y"])], "test", [
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, (1, 2)), helper.make_tensor_value_info("place", TensorProto.INT64, ())], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))])
    refused(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString(),
            "x: expected a tensor with a number of dimensions", "operator SequenceAt (node 'y') is not supported")


def test_what_is_no_model_is_refused():
    refused(b"no model", "not an ONNX model: ")


def test_without_onnx_the_error_says_what_to_install(monkeypatch):
    advice = "models need the packages onnx and onnx-ir; install them: pip install 'vmhost[models]'"
    compile_model(networks.small(), "model.onnx")
    monkeypatch.delitem(sys.modules, "bytecode.models.cleaning")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx_ir", None)
        refused(networks.small(), advice)
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(networks.small(), advice)
