"""Networks for tests of the GPU: the click networks of the bench, exported, and networks of one operator."""

import functools

import numpy
import onnx
from onnx import TensorProto, helper

from bench import click_networks


@functools.cache
def click_network(kind, seed=0):
    """The bytes of the model file of "deepfm", "din" or "dlrm"."""
    import vmhost.engine.numpy as np
    from vmhost.engine import nn
    from vmhost.engine.onnx import compile_model

    nn.seed(seed)
    model, _ = click_networks.ours(kind)
    [(keys, numbers, _)] = click_networks.batches(1, 4, 0)
    count = click_networks.TABLES if kind != "din" else click_networks.VISITS + 1
    ids = {f"k{i}": np.asarray(keys[:, i].copy()) for i in range(count)}
    exported, _ = nn.export(model, {"numbers": np.asarray(numbers), "ids": ids}, ("y",), with_lookups=True)
    return compile_model(exported, f"{kind}.onnx")


def inputs_of(model, batch, seed):
    rng = numpy.random.default_rng(seed)
    return {
        port.name: rng.normal(size=[batch if isinstance(one, str) else one for one in port.shape]).astype("float32")
        for port in model.inputs
    }


def _weights(*shape):
    return numpy.random.default_rng(shape[0]).normal(size=shape).astype("float32") / 4


# name: (nodes as (operator, inputs, output, attributes), constants, shape of x, of y)
_X = ["batch", 12]
OPERATORS = {
    **{
        name.lower(): ([(name, ["x"], "y", {})], {}, _X, _X)
        for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Erf")
    },
    "sqrt": ([("Abs", ["x"], "a", {}), ("Sqrt", ["a"], "y", {})], {}, _X, _X),
    "log": ([("Abs", ["x"], "a", {}), ("Log", ["a"], "y", {})], {}, _X, _X),
    "reciprocal": ([("Reciprocal", ["x"], "y", {})], {}, _X, _X),
    "clip": (
        [("Clip", ["x", "low", "high"], "y", {})],
        {"low": numpy.float32(-0.5), "high": numpy.float32(0.7)}, _X, _X,
    ),
    "broadcast": (
        [("Add", ["x", "row"], "a", {}), ("Sub", ["row", "a"], "b", {}), ("Div", ["b", "one"], "c", {}),
         ("Mul", ["c", "x"], "d", {}), ("Max", ["d", "row"], "e", {}), ("Min", ["x", "e"], "y", {})],
        {"row": _weights(12), "one": numpy.float32(3)}, _X, _X,
    ),
    "gemm": (
        [("Gemm", ["x", "w", "b"], "y", {"transB": 1})],
        {"w": _weights(7, 12), "b": _weights(7)}, _X, ["batch", 7],
    ),
    "gemm relu": (
        [("Gemm", ["x", "w", "b"], "a", {}), ("Relu", ["a"], "y", {})],
        {"w": _weights(12, 33), "b": _weights(33)}, _X, ["batch", 33],
    ),
    "gemm sigmoid": (
        [("MatMul", ["x", "w"], "a", {}), ("Add", ["a", "b"], "s", {}), ("Sigmoid", ["s"], "y", {})],
        {"w": _weights(12, 8), "b": _weights(8)}, _X, ["batch", 8],
    ),
    "no bias": ([("MatMul", ["x", "w"], "y", {})], {"w": _weights(12, 1)}, _X, ["batch", 1]),
    "residual": (
        [("MatMul", ["x", "w"], "a", {}), ("Add", ["a", "x"], "s", {}), ("Relu", ["s"], "y", {})],
        {"w": _weights(12, 12)}, _X, _X,
    ),
    "matmul of two": (
        [("Reshape", ["x", "s"], "a", {}), ("Transpose", ["a"], "t", {"perm": [0, 2, 1]}),
         ("MatMul", ["a", "t"], "m", {}), ("Flatten", ["m"], "y", {})],
        {"s": numpy.asarray([0, 3, 4])}, _X, ["batch", 9],
    ),
    **{
        f"reduce {name.lower()}": (
            [("Reshape", ["x", "s"], "a", {}), (f"Reduce{name}", ["a"], "y", {"axes": [1], "keepdims": 0})],
            {"s": numpy.asarray([0, 3, 4])}, _X, ["batch", 4],
        )
        for name in ("Mean", "Max", "Min", "Prod")
    },
    "reduce all": ([("ReduceMax", ["x"], "y", {"axes": [0, 1], "keepdims": 1})], {}, _X, [1, 1]),
    "long reduction": (
        [("MatMul", ["x", "w"], "a", {}), ("ReduceMean", ["a"], "y", {"axes": [1], "keepdims": 1})],
        {"w": _weights(12, 1500)}, _X, ["batch", 1],
    ),
    "softmax": ([("Softmax", ["x"], "y", {"axis": 1})], {}, _X, _X),
    "attention of three": (
        [("Reshape", ["x", "s"], "a", {}), ("Mul", ["a", "row"], "b", {}), ("Softmax", ["b"], "c", {"axis": 2}),
         ("Mul", ["c", "a"], "d", {}), ("ReduceSum", ["d", "axes"], "y", {"keepdims": 0})],
        {"s": numpy.asarray([0, 3, 4]), "row": _weights(4), "axes": numpy.asarray([2])}, _X, ["batch", 3],
    ),
    "concatenation": (
        [("Relu", ["x"], "r", {}), ("Concat", ["x", "r", "x"], "c", {"axis": 1}),
         ("Slice", ["c", "f", "t", "d"], "y", {})],
        {"f": numpy.asarray([5]), "t": numpy.asarray([30]), "d": numpy.asarray([1])}, _X, ["batch", 25],
    ),
    "the input itself": ([("Identity", ["x"], "y", {})], {}, _X, _X),
}  # fmt: skip


@functools.cache
def one_operator(name):
    """The bytes of the model file of one of OPERATORS, or of a pair of nodes' list and so on."""
    from vmhost.engine.onnx import compile_model

    return compile_model(as_onnx(*OPERATORS[name]), f"{name}.onnx")


def as_onnx(nodes, constants, x, y, dtype=TensorProto.FLOAT):
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], **attributes) for kind, inputs, output, attributes in nodes],
        "network",
        [helper.make_tensor_value_info("x", dtype, x)],
        [helper.make_tensor_value_info("y", dtype, y)],
        [onnx.numpy_helper.from_array(numpy.asarray(array), key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()
