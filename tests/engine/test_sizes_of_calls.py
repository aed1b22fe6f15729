"""Models that work at some sizes only: what rearranges elements fits where the model is read and not elsewhere. A call
at other sizes is refused with the node, the shapes and what to do, and gives no other elements."""

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

node = helper.make_node
CONSTANTS = {
    "all": [-1],
    "by 4": [-1, 4],
    "1, 1": [1, 1],
    "end": [1 << 62],
    "first, by 4": [0, -1, 4],
    "by 2": [2, -1],
    "zero": [0],
    "2": [2],
    "5": [5],
    "8": [8],
    "axis": [1],
    "behind": [-3],
    "of 2": [1, 2, 1],
    "third": 3,
}


def pooled(x, y):
    return node("MaxPool", [x], [y], kernel_shape=[8], strides=[8])


# nodes from x to z, shape of x, sizes that work, sizes that do not and what is said of them
MODELS = {
    "rows of four": (
        [node("Reshape", ["x", "by 4"], ["z"], name="fold")],
        ("b", "n"),
        [{"b": 2, "n": 6}, {"b": 1, "n": 8}],
        [
            ({"b": 3, "n": 6}, r"Reshape 'fold' makes \[\(b\*n // 4\), 4\] of \[b, n\]"),
            ({"b": 1, "n": 2}, "at some sizes only: call it with such sizes"),
        ],
    ),
    "rows of four of each": (
        [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "first, by 4"], ["z"], name="fold")],
        ("b", "n"),
        [{"b": 3, "n": 8}],
        [({"b": 4, "n": 6}, r"Reshape 'fold' makes \[b, \(n // 4\), 4\] of \[b, n\]")],
    ),
    "halves of a reversed tensor": (
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Reshape", ["t", "by 2"], ["z"], name="half")],
        ("b", "n"),
        [{"b": 4, "n": 3}],
        [({"b": 3, "n": 3}, r"Reshape 'half' makes \[2, \(b\*n // 2\)\] of \[n, b\]")],
    ),
    "a dimension that is one somewhere": (  # 11 // 8 is
        [pooled("x", "p"), node("Squeeze", ["p", "2"], ["z"], name="drop")],
        (2, 3, "n"),
        [{"n": 8}, {"n": 15}],
        [({"n": 16}, r"Squeeze 'drop' makes \[2, 3\] of \[2, 3, \(n // 8\)\]")],
    ),
    "dimensions of one, whichever": (
        [node("Squeeze", ["x"], ["z"], name="drop")],
        ("b", 1, "n"),
        [{"b": 2, "n": 3}],
        [({"b": 1, "n": 3}, "Squeeze 'drop' drops all dimensions of one element of .*: export it with axes")],
    ),
    "a slice of the middle": (
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node("Slice", ["t", "2", "5", "zero"], ["s"], name="middle"),
            node("Neg", ["s"], ["z"]),
        ],
        ("b", "n"),
        [{"b": 2, "n": 5}, {"b": 2, "n": 9}],
        [({"b": 2, "n": 4}, r"Slice 'middle' slices \[n, b\] along axis 0 from 2 to 5, and is compiled for n >= 5")],
    ),
    "a slice of a slice": (  # beyond the one, within the other
        [
            node("Slice", ["x", "zero", "8", "axis"], ["s"], name="front"),
            node("Slice", ["s", "2", "5", "zero"], ["z"], name="rows"),
        ],
        ("b", "n"),
        [{"b": 6, "n": 9}],
        [({"b": 4, "n": 9}, "Slice 'rows' .* is compiled for b >= 5"), ({"b": 6, "n": 5}, "Slice 'front' .* n >= 8")],
    ),
    "the last three": (
        [node("Slice", ["x", "behind", "end", "axis"], ["z"], name="last")],
        ("b", "n"),
        [{"b": 2, "n": 5}],
        [({"b": 2, "n": 2}, "Slice 'last' .*n - 3 >= 0")],
    ),
    "parts of given lengths": (  # 11 // 5 is 2
        [
            node("AveragePool", ["x"], ["p"], kernel_shape=[5], strides=[5]),
            node("Split", ["p", "1, 1"], ["z", "rest"], axis=2, name="parts"),
        ],
        (2, 3, "n"),
        [{"n": 10}],
        [({"n": 15}, r"Split 'parts' splits \[2, 3, \(n // 5\)\] along axis 2 into 1, 1, which fits at some sizes")],
    ),
    "an element at a fixed place": (
        [node("Gather", ["x", "third"], ["z"], axis=1, name="pick")],
        ("b", "n"),
        [{"b": 2, "n": 4}],
        [({"b": 2, "n": 3}, r"Gather 'pick' takes elements 3 to 3 along axis 1 of \[b, n\]")],
    ),
    "broadcast to a length": (  # 13 // 8 and 11 // 8 are 1
        [pooled("x", "p"), node("Expand", ["p", "of 2"], ["z"], name="spread")],
        (2, 2, "n"),
        [{"n": 8}, {"n": 24}],
        [],
    ),
    "joined at a side": (  # 11 // 8 and 11 // 7 are 1
        [
            pooled("x", "p"),
            node("AveragePool", ["x"], ["q"], kernel_shape=[7], strides=[8]),
            node("Concat", ["p", "q"], ["z"], axis=1, name="join"),
        ],
        (2, 2, "n"),
        [{"n": 8}, {"n": 9}],
        [({"n": 23}, r"Concat 'join' joins \[2, 2, \(n // 8\)\] and \[2, 2, .*\] along axis 1")],
    ),
}


def constants_of(nodes):
    used = {name for one in nodes for name in one.input}
    return [numpy_helper.from_array(numpy.array(CONSTANTS[name], "int64"), name) for name in CONSTANTS if name in used]


def port(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, shape, rank, within):
    """The nodes as a model, or as a body of one whose output is what they make: `rank` dimensions."""
    inputs, constants = [port("x", shape)], constants_of(nodes)
    outer = nodes
    made = port("z", None)
    if within == "If":
        other = [node(one.op_type, [f"{name}!" if name in _made(nodes) else name for name in one.input],
                      [f"{name}!" for name in one.output], name=one.name + "!") for one in nodes]  # fmt: skip
        for copy, one in zip(other, nodes):
            copy.attribute.extend(one.attribute)
        other.append(node("Neg", ["z!"], ["other"]))
        branches = {
            "then_branch": helper.make_graph(nodes, "then", [], [made]),
            "else_branch": helper.make_graph(other, "else", [], [port("other", None)]),
        }
        inputs.append(port("flag", [], TensorProto.BOOL))
        outer = [node("If", ["flag"], ["out"], **branches)]
    elif within == "Loop":
        constants += [
            numpy_helper.from_array(numpy.array(2, "int64"), "trips"),
            numpy_helper.from_array(numpy.array(True), "goes"),
            numpy_helper.from_array(numpy.array(0, "int64"), "last"),
        ]
        body = helper.make_graph(
            [*nodes, node("Identity", ["on"], ["on2"]), node("Neg", ["h"], ["h2"])],
            "body",
            [port("k", [], TensorProto.INT64), port("on", [], TensorProto.BOOL), port("h", None)],
            [port("on2", [], TensorProto.BOOL), port("h2", None), made],
        )
        outer = [
            node("Loop", ["trips", "goes", "x"], ["unused", "rows"], body=body),
            node("Gather", ["rows", "last"], ["out"], axis=0),
        ]
    elif within == "Scan":
        constants += [
            numpy_helper.from_array(numpy.zeros(2, "float32"), "steps"),
            numpy_helper.from_array(numpy.array(0, "int64"), "last"),
        ]
        body = helper.make_graph(nodes, "body", [port("step", [])], [made])
        outer = [
            node("Scan", ["steps"], ["rows"], body=body, num_scan_inputs=1),
            node("Gather", ["rows", "last"], ["out"], axis=0),
        ]
    else:
        outer = [*nodes, node("Identity", ["z"], ["out"])]
    graph = helper.make_graph(outer, "sizes", inputs, [port("out", [f"d{d}" for d in range(rank)])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def _made(nodes):
    return {name for one in nodes for name in one.output}


def given_at(shape, sizes, within, flag=True):
    given = {"x": networks.values([sizes.get(size, size) for size in shape])}
    return given | {"flag": numpy.array(flag)} if within == "If" else given


@pytest.mark.parametrize("within", ["", "If", "Loop", "Scan"])
@pytest.mark.parametrize("name", MODELS)
def test_other_sizes_are_refused_and_give_no_other_elements(name, within):
    nodes, shape, works, refused = MODELS[name]
    plain = networks.graph(nodes, {"x": shape}, {"z": ()}, CONSTANTS, 18)
    expected = [networks.expected(plain, given_at(shape, sizes, ""))[0] for sizes in works]
    run = opened(name, compile_model(model_of(nodes, shape, expected[0].ndim, within), name))
    for sizes, right in zip(works, expected):
        made = numpy.asarray(run(given_at(shape, sizes, within))["out"])
        assert made.shape == right.shape
        numpy.testing.assert_allclose(made, right, 1e-4, 1e-5, err_msg=str(sizes))
    for sizes, message in refused:
        told = ", ".join(f"{key} = {size}" for key, size in sizes.items())
        with pytest.raises(ValueError, match=f"this model does not work at {told}: .*{message}"):
            run(given_at(shape, sizes, within))
    for sizes in works:  # the model goes on
        run(given_at(shape, sizes, within))


def test_an_order_of_more_dimensions_than_there_are_is_told():
    nodes = [node("Squeeze", ["x"], ["s"]), node("Transpose", ["s"], ["z"], perm=[2, 0, 1], name="turn")]
    data = networks.graph(nodes, {"x": (1, 3, "n")}, {"z": ("a", "b", "c")}, {}, 18)
    with pytest.raises(OnnxError, match=r"Transpose \(node 'turn'\) has perm \[2, 0, 1\] for 2 dimensions"):
        compile_model(data, "turned")
