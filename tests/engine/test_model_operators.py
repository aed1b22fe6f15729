"""Operators of models beyond ONNX's own cases: older versions, convolutions of one and three dimensions,
networks that mix them."""

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.engine.test_tensor_models import agrees, runs
from vmhost.engine.onnx import OnnxError, compile_model

X = networks.values((2, 4, 9))
IMAGE = networks.values((2, 4, 6, 7))


def node(op, inputs, output="y", **attributes):
    """A node of these inputs; two blanks stand for an omitted one."""
    return helper.make_node(op, inputs.split(" "), output.split(), **attributes)


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 4, 9), (6, 4, 3), {"pads": [1, 2], "strides": [2]}),
        ((1, 4, 9), (6, 2, 3), {"group": 2, "dilations": [2]}),
        ((1, 4, 9), (4, 1, 3), {"group": 4}),
        ((2, 3, 4, 5, 6), (4, 3, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
        ((1, 4, 5, 5, 5), (2, 2, 2, 2, 2), {"group": 2, "strides": [2, 1, 2]}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("backend")
def test_a_convolution_of_one_or_three_dimensions(shape, weights, attributes):
    """Against the sum over all places of the window of products with strided parts."""
    x, w, b = networks.values(shape), networks.values(weights, 1), networks.values(weights[:1], 2)
    rank, group = len(shape) - 2, attributes.get("group", 1)
    pads, strides, dilations = (
        attributes.get("pads", [0] * 2 * rank),
        attributes.get("strides", [1] * rank),
        attributes.get("dilations", [1] * rank),
    )
    padded = numpy.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    sizes = [(padded.shape[d + 2] - dilations[d] * (weights[d + 2] - 1) - 1) // strides[d] + 1 for d in range(rank)]
    theirs = numpy.zeros((shape[0], weights[0], *sizes)) + b.reshape(-1, *(1,) * rank)
    for tap in numpy.ndindex(*weights[2:]):
        part = padded[
            (
                slice(None),
                slice(None),
                *(
                    slice(at * step, at * step + (size - 1) * stride + 1, stride)
                    for at, step, size, stride in zip(tap, dilations, sizes, strides)
                ),
            )
        ]
        groups = numpy.split(part, group, 1)
        theirs += numpy.concatenate(
            [
                numpy.einsum("ni...,oi->no...", one, both)
                for one, both in zip(groups, numpy.split(w[(slice(None), slice(None), *tap)], group))
            ],
            1,
        )
    [ours] = runs(
        networks.graph_of(
            [node("Conv", "x w b", "c", **attributes), node("Relu", "c")], {"x": x}, ("y",), {"w": w, "b": b}
        ),
        {"x": x},
    )
    networks.assert_close(ours, numpy.maximum(theirs, 0).astype("float32"))


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]},
        {"dilations": [2, 1], "pads": [0, 2, 1, 0], "strides": [3, 1]},
    ],
    ids=str,
)
def test_a_transposed_convolution_between_others(attributes):
    constants = {
        "w": networks.values((4, 4, 3, 3), 1),
        "v": networks.values((4, 3, 3, 3), 2),
        "b": networks.values((3,), 3),
    }
    agrees(
        [
            node("Conv", "x w", "c", pads=[1] * 4),
            node("ConvTranspose", "c v b", "t", **attributes),
            node("LeakyRelu", "t", "y", alpha=0.1),
        ],
        {"x": IMAGE},
        constants,
    )


@pytest.mark.parametrize(("mode", "scale"), [("nearest", 2.0), ("nearest", 1.5), ("linear", 2.0), ("cubic", 0.5)])
def test_a_network_that_goes_down_and_up(mode, scale):
    agrees(
        [
            node("Conv", "x w", "c", pads=[1] * 4),
            node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("Elu", "p", "e"),
            node("Resize", "e  scales", "r", mode=mode),
            node("Pad", "r pads value", "b"),
            node("InstanceNormalization", "b s o", "n"),
            node("PRelu", "n slope", "y"),
        ],
        {"x": IMAGE},
        {
            "w": networks.values((4, 4, 3, 3), 1),
            "scales": numpy.array([1, 1, scale, scale], "float32"),
            "pads": numpy.array([0, 0, 1, 2, 0, 0, 0, 1]),
            "value": numpy.float32(0.5),
            "s": networks.values((4,), 2),
            "o": networks.values((4,), 3),
            "slope": networks.values((4, 1, 1), 4),
        },
    )


@pytest.mark.parametrize(
    ("opset", "nodes", "constants"),
    [
        (10, [node("Pad", "x", pads=[0, 0, 2, 0, 1, -1], value=1.5)], {}),
        (2, [node("Pad", "x", pads=[0, 0, 2, 0, 0, 1], mode="reflect")], {}),
        (9, [node("TopK", "x", "y i", axis=1, k=3)], {}),
        (10, [node("TopK", "x k", "y i")], {"k": numpy.array([2])}),
        (11, [node("Hardmax", "x")], {}),
        (12, [node("Hardmax", "x", axis=2)], {}),
        (11, [node("ReduceL2", "x", axes=[-1], keepdims=0)], {}),
        (9, [node("Upsample", "x scales")], {"scales": numpy.array([1, 1, 2], "float32")}),
        (
            10,
            [node("Scatter", "x j u", axis=-1)],
            {"j": numpy.array([[[0, -1]]]), "u": numpy.ones((1, 1, 2), "float32")},
        ),
        (
            21,
            [node("GroupNormalization", "x s b", num_groups=2)],
            {"s": networks.values((4,), 1), "b": networks.values((4,), 2)},
        ),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else None,
)
def test_versions_of_operators(opset, nodes, constants):
    if nodes[0].op_type in (
        "Upsample",
        "Hardmax",
        "GroupNormalization",
        "TopK",
        "Pad",
        "Scatter",
    ):  # whose reference knows the newest only
        [ours] = runs(networks.graph_of(nodes, {"x": X}, ("y",), constants, opset), {"x": X})
        networks.assert_close(ours, OLDER[nodes[0].op_type](opset))
    else:
        agrees(nodes, {"x": X}, constants, opset=opset)


def _scattered():
    result = X.copy()
    result[0, 0, [0, -1]] = 1
    return result


def _hardmax(opset):
    rows = X.reshape(2, -1) if opset < 12 else X.reshape(8, 9)
    return (numpy.arange(rows.shape[1]) == rows.argmax(1)[:, None]).astype("float32").reshape(X.shape)


def _groups():
    rows = X.reshape(2, 2, 2, 9)
    normalized = (rows - rows.mean((2, 3), keepdims=True)) / numpy.sqrt(rows.var((2, 3), keepdims=True) + 1e-5)
    return (normalized * networks.values((4,), 1).reshape(2, 2, 1) + networks.values((4,), 2).reshape(2, 2, 1)).reshape(
        X.shape
    )


OLDER = {
    "Pad": lambda opset: (
        numpy.pad(X, ((0, 0), (0, 1), (2, 0)), constant_values=1.5)[..., :-1]
        if opset > 2
        else numpy.pad(X, ((0, 0), (0, 0), (2, 1)), mode="reflect")
    ),
    "TopK": lambda opset: -numpy.sort(-X, 1)[:, :3] if opset < 10 else -numpy.sort(-X, 2)[..., :2],
    "Hardmax": _hardmax,
    "Upsample": lambda opset: numpy.repeat(X, 2, 2),
    "Scatter": lambda opset: _scattered(),
    "GroupNormalization": lambda opset: _groups(),
}


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("abc,cd,de->abe", [(2, 3, 4), (4, 5), (5, 6)]),
        ("ii", [(4, 4)]),
        ("ba,ca", [(2, 3), (4, 3)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ab,cd->a", [(2, 3), (4, 5)]),
        ("i...,...->i...", [(2, 3), (3,)]),
        ("aab,b->a", [(3, 3, 4), (4,)]),
        ("ab,ab,ab->b", [(2, 3)] * 3),
        ("abc,abd->abcd", [(2, 3, 4), (2, 3, 5)]),
    ],
)
def test_sums_of_products(equation, shapes):
    inputs = {f"x{number}": networks.values(shape, number) for number, shape in enumerate(shapes)}
    [ours] = runs(networks.graph_of([node("Einsum", " ".join(inputs), equation=equation)], inputs, ("y",)), inputs)
    networks.assert_close(ours, numpy.einsum(equation, *inputs.values()))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_places_may_be_of_either_integer(dtype):
    agrees(
        [node("GatherElements", "x i", "g", axis=1), node("ScatterElements", "x i g", "y", axis=1, reduction="mul")],
        {"x": networks.values((3, 5)), "i": numpy.array([[0, 1, 1], [2, -1, 2], [4, 0, 4]], dtype)},
    )


def test_a_place_that_is_not_there_is_the_callers_error():
    inputs = {"x": numpy.ones((3, 5), "int64"), "i": numpy.array([[5]])}
    for op, names in (("GatherElements", "x i"), ("ScatterElements", "x i i")):
        with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1 with size 5"):
            runs(networks.graph_of([node(op, names, axis=1)], inputs, ("y",)), inputs)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Resize", "x  s")], "sizes that are not constant"),
        ([node("CumSum", "x n")], "has axis computed at run time from other values than sizes"),
    ],
)
def test_what_has_to_be_constant_is_named(nodes, message):
    inputs = {"x": networks.values((1, 1, 3)), "n": numpy.array(1), "s": networks.values((3,))}
    with pytest.raises(OnnxError, match=message):
        compile_model(networks.graph_of(nodes, inputs, ("y",)), "model.onnx")
