"""ONNX to the engine's model file: the compiled form of a graph, and refused ones."""

import os
import struct
import sys
from collections import Counter

import numpy
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from bench.networks import bert
from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model, compiled
from vmhost.engine.onnx.writing import OPS
from vmhost.task_models import model_file

OPERATORS = {number: name for name, number in OPS.items()}
TENSOR, NODE, HEADER = 192, 128, 128  # bytes of records


def operators(model):
    """(operator, has an addend, ends with ReLU) of each node of the compiled model."""
    data = compile_model(model, "model.onnx")
    tensors, nodes = struct.unpack_from("<2I", data, 24)
    found = []
    for number in range(nodes):
        at = HEADER + TENSOR * tensors + NODE * number
        op, _, inputs = struct.unpack_from("<3I", data, at + 8)
        found.append(
            (
                OPERATORS[op],
                inputs == 4 and number_of(data, at) is not None,
                bool(struct.unpack_from("<i", data, at + 24 + 44)[0]),
            )
        )
    return found


def number_of(data, at):
    """The fourth operand of the node whose record is at `at`, or None."""
    tensors, nodes, inputs, outputs = struct.unpack_from("<4I", data, 24)
    first = struct.unpack_from("<I", data, at + 12)[0]
    operand = struct.unpack_from(
        "<I", data, HEADER + TENSOR * tensors + NODE * nodes + 4 * (inputs + outputs + first + 3)
    )[0]
    return None if operand == 0xFFFFFFFF else operand


def refused(model, *messages):
    with pytest.raises(OnnxError) as caught:
        compile_model(model, "model.onnx")
    found = [f"{caught.value.file}: {message}" for message in caught.value.messages]
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
    """No transpose, reshape, bias, residual, scale or mask is a step of its own; those besides are embeddings, the mask
    and the ends."""
    found = Counter(name for name, _, _ in operators(bert(16, 2, 32, 4, 64, 100, fused=fused).SerializeToString()))
    assert {
        name: found[name] for name in ("Gemm", "Attention", "MatMul", "Softmax", "Activate", "Normalize", "Copy")
    } == {
        "Gemm": 2 * 6 + 1,
        "Attention": 2,
        "MatMul": 0,
        "Softmax": 0,
        "Activate": 0,
        "Normalize": 2 * 2 + 1,
        "Copy": 1,
    }
    assert sum(found.values()) == 27


def test_what_others_read_is_not_fused():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["c", "r"], ["s"]),
    ]
    model = networks.graph(nodes, {"x": (1, 2, 3, 3)}, {"s": None}, {"w": numpy.ones((2, 2, 1, 1), "float32")})
    assert operators(model) == [("Conv", False, False), ("Relu", False, False), ("Binary", False, False)]


def test_constants_are_computed_and_dead_nodes_dropped():
    nodes = [
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Mul", ["w", "one"], ["w2"]),
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Conv", ["i", "w2"], ["y"]),
        helper.make_node("Relu", ["x"], ["unused"]),
    ]
    model = networks.graph(nodes, {"x": (1, 2, 3, 3)}, {"y": None}, {"w": numpy.ones((2, 2, 1, 1), "float32")})
    assert operators(model) == [("Conv", False, False)]


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 5)])
def test_a_pool_of_a_constant_has_the_shape_of_onnx(shape):
    """ONNX's reference implementation, which computes constants, pools two dimensions whatever the rank."""
    c, x = (
        numpy.random.default_rng(5).standard_normal(shape).astype("float32"),
        numpy.ones((1,) * len(shape), "float32"),
    )
    nodes = [helper.make_node("GlobalMaxPool", ["c"], ["p"]), helper.make_node("Add", ["p", "x"], ["y"])]
    model = networks.graph(nodes, {"x": x.shape}, {"y": None}, {"c": c})
    expected = c.max(axis=tuple(range(2, len(shape))), keepdims=True) + 1
    numpy.testing.assert_array_equal(opened("m", compile_model(model, "m"))({"x": x})["y"], expected)


def test_an_output_that_is_another_one_is_a_copy():
    """In either order: resolving the name of an identity's output once looped without end."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Identity", ["a"], ["b"])]
    for outputs in (["a", "b"], ["b", "a"]):
        found = operators(networks.graph_of(nodes, {"x": numpy.ones(2, "float32")}, outputs))
        assert [name for name, _, _ in found] == ["Unary", "Copy"]


def test_the_same_model_gives_the_same_bytes():
    assert compile_model(networks.small(), "a") == compile_model(networks.small(), "b")


def test_all_unsupported_operators_are_named_at_once():
    nodes = [
        helper.make_node("RegexFullMatch", ["t"], ["a"], "letters", pattern="a*"),
        helper.make_node("Cast", ["x"], ["t"], to=TensorProto.STRING),
        helper.make_node("Resize", ["x", "", "", "w"], ["y"], "larger"),
    ]
    nodes = [nodes[1], nodes[0], helper.make_node("Cast", ["a"], ["c"], to=TensorProto.FLOAT), nodes[2]]
    refused(
        networks.graph(nodes, {"x": (1, 2, 3, 3), "w": (4,)}, {"y": None, "c": None}, opset=20),
        "operator RegexFullMatch (node 'letters') is not supported",
        "operator Resize (node 'larger') has sizes that are not constant",
    )


def test_an_input_that_is_no_tensor_is_refused():
    graph = helper.make_graph(
        [helper.make_node("SequenceAt", ["x", "place"], ["y"])],
        "test",
        [
            helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, (1, 2)),
            helper.make_tensor_value_info("place", TensorProto.INT64, ()),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))],
    )
    refused(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString(),
        "input x: is a sequence or an optional, whose length is unknown; take its tensors as inputs",
    )


@pytest.mark.parametrize("data", [b"no model", b""])
def test_what_is_no_model_is_refused(data):
    refused(data, "not an ONNX model: ")


def model_of(nodes, inputs=None, outputs=None, weights=(), **versions):
    """The ModelProto of these nodes, from x to y of 2 by 3 float32 unless told otherwise."""

    def ports(described):
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in described.items()]

    graph = helper.make_graph(
        nodes,
        "test",
        ports(inputs or {"x": (TensorProto.FLOAT, (2, 3))}),
        ports({"y": (TensorProto.FLOAT, (2, 3))} if outputs is None else outputs),
        list(weights),
    )
    domains = [helper.make_opsetid("", versions.get("opset", 20)), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=versions.get("ir_version", 10))


X = networks.values((2, 3))
RELU = [helper.make_node("Relu", ["x"], ["y"])]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (model_of(RELU, ir_version=99), "is of ONNX's format version 99, the onnx package here"),
        (model_of(RELU, opset=99), "uses version 99 of ONNX's operators, the onnx package here"),
        (model_of(RELU, outputs={}), "has no outputs"),
        (
            model_of(
                [helper.make_node("Constant", [], ["y"], value_floats=[1.0] * 3)],
                {"x": (TensorProto.FLOAT, (2, 3))},
                {"y": (TensorProto.FLOAT, (3,))},
                [numpy_helper.from_array(numpy.ones((2, 3), "float32"), "x")],
            ),
            "has no inputs",
        ),
        (
            model_of([helper.make_node("Relu", ["y"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]),
            "is no valid ONNX model: ",
        ),
        (
            model_of(RELU, {"x": (TensorProto.FLOAT, (0, 3))}, {"y": (TensorProto.FLOAT, (0, 3))}),
            "x, y: expected at most 8 dimensions of fixed sizes of at least 1",
        ),
        (
            model_of([helper.make_node("Fused", ["x"], ["y"], domain="com.microsoft")]),
            "operator com.microsoft.Fused (node 'y') is not supported",
        ),
    ],
)
def test_a_model_that_cannot_be_compiled_is_called_what_it_is(model, message):
    refused(model.SerializeToString(), message)


def test_shapes_that_do_not_fit_are_told_in_onnx_s_words_and_ours():
    weights = numpy_helper.from_array(numpy.ones((4, 4), "float32"), "w")
    refused(
        model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], weights=[weights]).SerializeToString(),
        "contradicts itself, says ONNX's shape inference: ",
        "operator MatMul (node 'y') ",
    )


@pytest.mark.parametrize("shape", [(5, 6), (2,), ("n",), ("n", "m", 3)])
def test_shapes_that_a_model_says_of_its_outputs_are_not_believed(shape):
    """skl2onnx writes wrong ones, which ONNX Runtime warns of."""
    data = model_of(RELU, outputs={"y": (TensorProto.FLOAT, shape)}).SerializeToString()
    model = opened("model", compile_model(data, "model"))
    assert model.outputs[0].shape == (2, 3)
    assert numpy.asarray(model({"x": X})["y"]).tolist() == numpy.maximum(X, 0).tolist()


def test_sparse_weights_are_refused():
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], outputs={"y": (TensorProto.FLOAT, (2, 4))})
    values = [
        numpy_helper.from_array(numpy.array([1, 2], "float32"), "w"),
        numpy_helper.from_array(numpy.array([0, 5]), "places"),
    ]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(*values, [3, 4]))
    refused(model.SerializeToString(), "has sparse weights (w), which the engine does not have; export them dense")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn"),
        (TensorProto.INT4, "int4"),
        (TensorProto.STRING, "string"),
    ],
)
@pytest.mark.parametrize("op", ["Identity", "Softmax", "Add", "ReduceSum", "Clip", "Pad"])
def test_element_types_that_the_engine_lacks_are_named(kind, name, op):
    operands = {"Add": ["x", "x"], "Pad": ["x", "widths"]}.get(op, ["x"])
    nodes = [helper.make_node(op, operands, ["y"])]
    shape = {"ReduceSum": (1, 1), "Pad": (4, 3)}.get(op, (2, 3))
    model = model_of(
        nodes,
        {"x": (kind, (2, 3))},
        {"y": (kind, shape)},
        [numpy_helper.from_array(numpy.array([1, 0, 1, 0]), "widths")],
    )
    told = {"Identity": "output y: returns texts"}.get(op, f"operator {op} (node 'y') works on the texts 'x'")
    refused(model.SerializeToString(), told if name == "string" else f"x: the engine has no element type {name}")


def test_what_is_wrong_with_many_nodes_is_one_line():
    """The errors of a quantized model of 364 nodes were once 364 lines."""
    names = ["x", *(f"a{number}" for number in range(49)), "y"]
    nodes = [
        helper.make_node(
            "QLinearGlue" if number % 10 else "Unglue",
            [source],
            [made_of],
            f"node{number}",
            domain="com.microsoft",
        )
        for number, (source, made_of) in enumerate(zip(names, names[1:]))
    ]
    refused(
        model_of(nodes).SerializeToString(),
        "operator com.microsoft.Unglue (5 nodes, 'node0', 'node10', 'node20' and 2 more) is not supported",
        "operator com.microsoft.QLinearGlue (45 nodes, 'node1', 'node2', 'node3' and 42 more) is not supported",
    )


def test_shapes_that_onnx_does_not_follow_are_asked_for_again():
    """Pads that the graph computes: ONNX's inference fails there, and the error named the convolution after them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "last"], ["n"]),
        helper.make_node("Sub", ["n", "n"], ["zero"]),
        helper.make_node("Concat", ["zero", "zero", "one", "one"] * 2, ["p"], axis=0),
        helper.make_node("Pad", ["x", "p"], ["padded"]),
        helper.make_node("Conv", ["padded", "w"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    ]
    constants = {"last": numpy.array([2]), "one": numpy.array([1]), "w": numpy.ones((2, 2, 3, 3), "float32")}
    weights = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    model = model_of(
        nodes, {"x": (TensorProto.FLOAT, (1, 2, 4, 4))}, {"y": (TensorProto.FLOAT, (1, 2, None, None))}, weights
    )
    assert [name for name, _, _ in operators(model.SerializeToString())][-2:] == ["Conv", "MaxPool"]


def outside(folder, values, location="weights.data"):
    """A model whose weights lie in another file, which is written into `folder`; `values` is what is in it."""
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        outputs={"y": (TensorProto.FLOAT, (2, 4))},
        weights=[numpy_helper.from_array(numpy.zeros((3, 4), "float32"), "w")],
    )
    external_data_helper.set_external_data(model.graph.initializer[0], location)
    model.graph.initializer[0].ClearField("raw_data")
    if values is not None:
        (folder / location).write_bytes(values.astype("float32").tobytes())
    return model.SerializeToString()


def test_weights_beside_the_model_are_found_there(tmp_path, monkeypatch):
    """Not in the compiler's current folder, where another file of that name was taken without a word."""
    weights = networks.values((3, 4))
    (tmp_path / "model").mkdir()
    (tmp_path / "elsewhere").mkdir()
    outside(tmp_path / "elsewhere", weights + 1)
    data = outside(tmp_path / "model", weights)
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = compiled(data, "model.onnx", tmp_path / "model")
    numpy.testing.assert_allclose(opened("net", found.data)({"x": X})["y"], X @ weights, rtol=1e-5)
    assert found.weight_files == (str(tmp_path / "model" / "weights.data"),)


def test_weights_outside_that_cannot_be_read_say_so(tmp_path):
    def said(folder, values=None, location="weights.data"):
        with pytest.raises(OnnxError) as caught:
            compile_model(outside(tmp_path, values, location), "model.onnx", folder)
        return str(caught.value)

    start = "model.onnx: the weights of tensor 'w' lie in "
    assert said(None).startswith(f"{start}'weights.data', another file; give the model as a file in its folder")
    assert said(tmp_path).startswith(f"{start}'weights.data', which is missing beside the model; copy it there")
    assert said(tmp_path / "nowhere").startswith(f"{start}'weights.data', which is missing")
    (tmp_path / "folder").mkdir()
    assert said(tmp_path, None, "folder").startswith(f"{start}'folder', which can't be read: ")
    (tmp_path / "secret").write_bytes(bytes(48))
    (tmp_path / "below").mkdir()
    assert said(tmp_path / "below", None, "../secret").startswith(f"{start}'../secret', which can't be read: ")
    assert "raw_data size (8 bytes) is too small" in said(tmp_path, numpy.ones(2))


@pytest.mark.parametrize(("key", "value"), [("length", "-5"), ("offset", "-1"), ("offset", "there")])
def test_a_place_of_weights_outside_that_is_none_says_so(tmp_path, key, value):
    model = onnx.load_model_from_string(outside(tmp_path, networks.values((3, 4))))
    model.graph.initializer[0].external_data.add(key=key, value=value)
    with pytest.raises(OnnxError, match="model.onnx: does not say where in another file the weights of tensor 'w' lie"):
        compile_model(model.SerializeToString(), "model.onnx", tmp_path)


def convolution(shape, **attributes):
    weights = [numpy_helper.from_array(networks.values((4, 2, 3, 3)), "w")]
    return model_of(
        [helper.make_node("Conv", ["x", "w"], ["c"], **attributes), helper.make_node("Add", ["c", "c"], ["y"])],
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, (None,) * 4)},
        weights,
    ).SerializeToString()


@pytest.mark.parametrize(
    ("shape", "attributes", "says"),
    [
        ((1, 2, 8, 8), {"strides": [(1 << 63) - 1, 1]}, "has the number 9,223,372,036,854,775,807, expected at most"),
        ((1, 2, 1 << 62, 8), {}, "x: no tensor has the shape (1, 2, 4611686018427387904, 8)"),
        ((1, 2, -5, 8), {}, "x: no tensor has the shape (1, 2, -5, 8)"),
        ((1, 2, 8, 8), {"kernel_shape": [3, 1 << 40]}, "makes a tensor of the shape (1, 4, 6, "),
    ],
)
def test_sizes_that_nothing_can_have_are_refused(shape, attributes, says):
    with pytest.raises(OnnxError) as caught:
        compile_model(convolution(shape, **attributes), "model.onnx")
    assert says in str(caught.value)


def test_a_task_is_compiled_anew_when_its_weights_change(tmp_path):
    """`engine.load` outside VMs keeps what it compiled."""
    (tmp_path / "task.yaml").write_text(
        'name: net\nversion: 1.0.0\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
    )
    (tmp_path / "main.py").write_text("def run(value):\n    return value\n")
    for weights in (networks.values((3, 4), 1), networks.values((3, 4), 2)):
        (tmp_path / "net.onnx").write_bytes(outside(tmp_path, weights))
        os.utime(tmp_path / "net.onnx", (1, 1))
        numpy.testing.assert_allclose(opened("net", model_file(tmp_path, "net"))({"x": X})["y"], X @ weights, rtol=1e-5)


def with_function():
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Neg", ["a"], ["b"])]
    function = helper.make_function("own", "Turned", ["a"], ["b"], body, opsets[:1])
    node = helper.make_node("Turned", ["x"], ["y"], domain="own")
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,))] for name in "xy"]
    graph = helper.make_graph([node], "test", *ports)
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8).SerializeToString()


def test_without_onnx_the_error_says_what_to_install(monkeypatch):
    advice = "models need the packages onnx and onnx-ir; install them: pip install 'vmhost[models]'"
    compile_model(networks.small(), "model.onnx")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx_ir", None)
        compile_model(networks.small(), "model.onnx")  # which has no functions
        refused(with_function(), advice)
    monkeypatch.delitem(sys.modules, "vmhost.engine.onnx.cleaning")
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(networks.small(), advice)
