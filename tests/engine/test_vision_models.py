"""Operators of vision networks in the engine, and the networks themselves: against ONNX's reference on every backend,
and ONNX Runtime."""

import functools

import numpy
import pytest
from onnx import helper

from bench.networks import mobilenet_v2, resnet50, shufflenet_v2, squeezenet1_1
from tests import networks
from tests.batches import each
from tests.engine.test_models import agrees, opened, window
from vmhost.engine.onnx import compile_model

FEW_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 40, 2, 2))
SMALL = {
    "resnet50": functools.partial(resnet50, size=33, width=4, classes=10, blocks=(1, 2, 1, 1)),
    "mobilenet_v2": functools.partial(mobilenet_v2, size=36, width=0.5, classes=10, stages=FEW_STAGES),
    "squeezenet1_1": functools.partial(squeezenet1_1, size=40, width=3, classes=10),
    "shufflenet_v2": functools.partial(shufflenet_v2, size=45, channels=(8, 20, 44, 64), blocks=(2, 3), classes=10),
}


@pytest.mark.parametrize(
    "case",
    [
        {"shape": (1, 16, 9, 11), "pads": (1, 1, 1, 1)},
        {"shape": (2, 58, 8, 15), "pads": (1, 1, 1, 1)},
        {"shape": (1, 5, 9, 10)},
        {"shape": (1, 40, 13, 30), "pads": (1, 1, 1, 1), "strides": (2, 2)},
        {"shape": (1, 33, 12, 13), "kernel": (5, 5), "pads": (2, 2, 2, 2)},
        {"shape": (1, 17, 12, 13), "kernel": (5, 5), "strides": (2, 2), "pads": (1, 2, 2, 1)},
        {"shape": (1, 20, 10, 9), "kernel": (2, 7)},
        {"shape": (1, 24, 12, 14), "dilations": (2, 2), "pads": (2, 2, 2, 2)},
        {"shape": (1, 24, 12, 14), "dilations": (2, 3), "strides": (1, 6)},
        {"shape": (1, 16, 12, 7), "strides": (3, 3)},
        {"shape": (1, 130, 3, 2), "kernel": (1, 1)},
        {"shape": (1, 20, 9, 9), "then": (helper.make_node("Relu", ["y"], ["z"]),)},
    ],
    ids=str,
)
def test_a_depthwise_convolution_agrees(case):
    channels = case["shape"][1]
    agrees(window(**case, outputs=channels, group=channels), case["shape"])


@pytest.mark.parametrize(
    ("channels", "outputs", "group", "case"),
    [
        (6, 9, 3, {}),
        (12, 80, 2, {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        (8, 16, 8, {"pads": (1, 1, 1, 1)}),
        (64, 64, 4, {"kernel": (1, 1)}),
        (6, 4, 2, {"dilations": (2, 2)}),
    ],
)
def test_a_grouped_convolution_agrees(channels, outputs, group, case):
    agrees(window(shape=(2, channels, 10, 13), outputs=outputs, group=group, **case), (2, channels, 10, 13))


@each("channels", [1, 3, 16, 70])
@each(
    "case",
    [
        {},
        {"pads": (1, 1, 1, 1)},
        {"pads": (1, 1, 1, 1), "count_include_pad": 1},
        {"strides": (2, 2), "ceil_mode": 1, "pads": (1, 0, 1, 0)},
        {"strides": (2, 3), "ceil_mode": 1, "pads": (0, 1, 1, 1), "count_include_pad": 1},
        {"kernel": (2, 2), "strides": (2, 2)},
        {"auto_pad": "SAME_UPPER", "strides": (2, 2)},
    ],
    ids=str,
)
def test_an_average_pool_agrees(channels, case):
    """ONNX's reference loops over the elements in Python."""
    shape = (2, channels, 12, 15)
    agrees(window("AveragePool", shape, **case), shape, by_onnx_runtime=True)


def test_a_largest_pool_of_many_channels_agrees():
    agrees(window("MaxPool", (1, 150, 14, 15), strides=(2, 2), ceil_mode=1, pads=(1, 1, 0, 0)), (1, 150, 14, 15))


@each("channels", [1, 3])
@each("case", [{}, {"strides": (2, 2), "pads": (1, 1, 1, 1)}, {"dilations": (2, 3)}, {"kernel": (1, 2)}], ids=str)
def test_a_largest_pool_of_few_channels_agrees(channels, case):
    agrees(window("MaxPool", (2, channels, 12, 15), **case), (2, channels, 12, 15))


def build(*nodes, shape=(2, 6, 7, 5), outputs=("y",), constants=None):
    return networks.graph(
        nodes,
        {"x": shape},
        dict.fromkeys(outputs),
        {
            "w": networks.values((shape[1], shape[1], 3, 3), 1),
            "low": numpy.float32(-0.5),
            "high": numpy.float32(0.75),
            **(constants or {}),
        },
    )


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs.split(" "), outputs.split(), **attributes)


def test_bounds_go_into_what_makes_their_operand():
    shape = (2, 6, 7, 5)
    agrees(build(node("Conv", "x w", "c", pads=[1] * 4), node("Clip", "c low high", "y")), shape)
    agrees(build(node("Clip", "x low", "y")), shape)
    agrees(build(node("MaxPool", "x", "m", kernel_shape=[3, 3]), node("Clip", "m  high", "y")), shape)
    agrees(build(node("Add", "x x", "a"), node("Clip", "a low high", "y")), shape)
    assert (
        len(compile_model(build(node("Conv", "x w", "c"), node("Clip", "c low high", "y")), "a"))
        <= len(compile_model(build(node("Conv", "x w", "y")), "a")) + 64
    )


WIDE = 1024  # channels whose pixels would lie a whole way of the nearest cache apart: they get a line between them
WIDE_CHAINS = {
    "products": ({"y": None}, [node("Conv", "x wide", "a"), node("Relu", "a", "b"), node("Conv", "b narrow", "y")]),
    "operators on images": (
        {"y": (2, WIDE)},
        [
            node("Conv", "x wide", "a"),
            node("MaxPool", "a", "b", kernel_shape=[3, 3], pads=[1] * 4),
            node("Conv", "b deep", "c", group=WIDE, pads=[1] * 4),
            node("Add", "b c", "d"),
            node("GlobalAveragePool", "d", "e"),
            node("Flatten", "e", "y"),
        ],
    ),
    "a window and a residual": (
        {"y": None},
        [
            node("Conv", "x wide", "a"),
            node("Conv", "a around", "b", pads=[1] * 4),
            node("Conv", "b wider", "c"),
            node("Add", "c a", "d"),
            node("Conv", "d narrow", "y"),
        ],
    ),
    "an output and an operator on tensors": (
        {"y": None, "n": None},
        [
            node("Conv", "x wide", "y"),
            node("Exp", "y", "z"),
            node("ReduceMean", "z", "m", axes=[1]),
            node("Conv", "y narrow", "c"),
            node("Add", "c m", "n"),
        ],
    ),
    "parts": (
        {"y": None},
        [
            node("Conv", "x wide", "a"),
            node("Conv", "x wide", "b"),
            node("Concat", "a b", "c", axis=1),
            node("Conv", "c widest", "y"),
        ],
    ),
    "flattened": ({"y": (2, 20 * WIDE)}, [node("Conv", "x wide", "a"), node("Flatten", "a", "y")]),
    "flattened pixels": (
        {"y": (2, WIDE)},
        [node("Conv", "x wide", "a"), node("MaxPool", "a", "b", kernel_shape=[5, 4]), node("Flatten", "b", "y")],
    ),
}


@pytest.mark.parametrize("chain", WIDE_CHAINS)
def test_pixels_that_lie_apart_are_the_same_pixels(chain):
    outputs, nodes = WIDE_CHAINS[chain]
    agrees(
        networks.graph(
            nodes,
            {"x": (2, 6, 5, 4)},
            outputs,
            {
                "wide": networks.values((WIDE, 6, 1, 1), 1),
                "narrow": networks.values((5, WIDE, 1, 1), 2) / 16,
                "deep": networks.values((WIDE, 1, 3, 3), 3) / 4,
                "around": networks.values((32, WIDE, 3, 3), 4) / 64,
                "wider": networks.values((WIDE, 32, 1, 1), 5) / 8,
                "widest": networks.values((7, 2 * WIDE, 1, 1), 6) / 16,
            },
        ),
        (2, 6, 5, 4),
    )


CURVES = {
    "sigmoid": [node("Sigmoid", "c", "y")],
    "silu": [node("Sigmoid", "c", "s"), node("Mul", "c s", "y")],
    "gelu": [
        node("Div", "c root", "r"),
        node("Erf", "r", "e"),
        node("Add", "e one", "o"),
        node("Mul", "c o", "m"),
        node("Mul", "m half", "y"),
    ],
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(
    ("channels", "outputs", "group", "size", "algorithm"),
    [
        (6, 6, 1, 7, "direct"),
        (64, 64, 1, 28, "winograd"),
        (16, 16, 16, 9, "depthwise"),
        (6, 9, 3, 12, "direct"),
    ],
)
def test_curves_go_into_the_convolution_that_makes_their_operand(curve, channels, outputs, group, size, algorithm):
    shape = (2, channels, size, size)
    model = build(
        node("Conv", "x v", "a", pads=[1] * 4, group=group),
        node("Add", "a b", "c"),
        *CURVES[curve],
        shape=shape,
        constants={
            "v": networks.values((outputs, channels // group, 3, 3), 3) / 8,
            "b": networks.values((1, outputs, 1, 1), 4),
            "root": numpy.float32(2**0.5),
            "one": numpy.float32(1),
            "half": numpy.float32(0.5),
        },
    )
    [step] = [step for step in opened(compile_model(model, "model.onnx")).steps if step.kind not in ("Input", "Output")]
    assert step.kind == f"Conv+{curve}" and step.algorithm.startswith(algorithm)
    agrees(model, shape)


IMAGE = node(
    "MaxPool", "x", "i", kernel_shape=[1, 1]
)  # what follows lies as an image, which the model's input itself does not


@pytest.mark.parametrize("source", ["x", "i"])
@pytest.mark.parametrize("backwards", [False, True])
def test_values_put_together_are_read_as_one(backwards, source):
    """Convolutions write next to each other; so do a repeated value and one that already has a place."""
    inputs = f"a {source} b a".split()[:: -1 if backwards else 1]
    nodes = [
        IMAGE,
        node("Conv", "x w", "a", pads=[1] * 4),
        node("Relu", "a", "b"),
        node("Concat", " ".join(inputs), "c", axis=1),
        node("Concat", "c b", "d", axis=-3),
        node("Conv", "d v", "y", pads=[1] * 4),
        node("Add", f"b {source}", "z"),
    ]
    agrees(build(*nodes, outputs=("y", "z", "c"), constants={"v": networks.values((5, 30, 3, 3), 3)}), (2, 6, 7, 5))


@pytest.mark.parametrize("source", ["x", "i"])
def test_parts_are_read_where_they_lie(source):
    nodes = [
        IMAGE,
        node("Split", f"{source} sizes", "a b c", axis=1),
        node("Conv", "b v", "d", pads=[1] * 4),
        node("Concat", "d a", "e", axis=1),
        node("MaxPool", "c", "f", kernel_shape=[3, 3], pads=[1] * 4),
        node("Concat", "e f c b", "y", axis=1),
        node("Add", "b d", "z"),
        node("Slice", f"{source} from to axes", "s"),
        node("AveragePool", "s", "t", kernel_shape=[2, 2]),
    ]
    agrees(
        build(
            *nodes,
            shape=(2, 9, 7, 5),
            outputs=("y", "z", "b", "t"),
            constants={
                "sizes": numpy.array([2, 3, 4]),
                "v": networks.values((3, 3, 3, 3), 3),
                "from": numpy.array([-7]),
                "to": numpy.array([2**40]),
                "axes": numpy.array([1]),
            },
        ),
        (2, 9, 7, 5),
    )


@pytest.mark.parametrize("source", ["x", "i"])
@pytest.mark.parametrize("groups", [2, 3])
def test_channels_are_shuffled(groups, source):
    nodes = [
        IMAGE,
        node("Reshape", f"{source} five", "a"),
        node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "b four", "c"),
        node("Conv", "c w", "y", pads=[1] * 4),
    ]
    agrees(
        build(
            *nodes,
            shape=(1, 12, 6, 4),
            outputs=("y", "c"),
            constants={"five": numpy.array([1, groups, 12 // groups, 6, 4]), "four": numpy.array([1, 12, 6, 4])},
        ),
        (1, 12, 6, 4),
    )


@pytest.mark.parametrize("source", ["x", "i"])
def test_means_over_height_and_width(source):
    agrees(
        networks.graph(
            [IMAGE, node("ReduceMean", source, "y", axes=[2, 3], keepdims=0)], {"x": (2, 6, 7, 5)}, {"y": (2, 6)}
        ),
        (2, 6, 7, 5),
    )
    agrees(build(IMAGE, node("ReduceMean", source, "y", axes=[-1, -2])), (2, 6, 7, 5))


def test_planes_and_groups_are_normalized_as_rows():
    constants = {"s": networks.values((6,), 1), "b": networks.values((6,), 2), "rows": numpy.array([2, 3, -1])}
    constants |= {
        "back": numpy.array([2, 6, 7, 5]),
        "ones": numpy.ones(3, "float32"),
        "none": numpy.zeros(3, "float32"),
    }
    groups = (
        node("Reshape", "x rows", "r"),
        node("InstanceNormalization", "r ones none", "n"),
        node("Reshape", "n back", "y"),
    )
    for nodes, steps in (((node("InstanceNormalization", "x s b", "y"),), 3), (groups, 1)):
        model = build(*nodes, constants=constants)
        agrees(model, (2, 6, 7, 5))
        kinds = [step.kind for step in opened(compile_model(model, "normal")).steps]
        assert "Normalize" in kinds and "Reduce" not in kinds and kinds.count("Binary") == steps - 1


def test_normalization_that_follows_no_convolution():
    constants = {
        "s": networks.values((6,), 1),
        "b": networks.values((6,), 2),
        "m": networks.values((6,), 3),
        "v": networks.values((6,), 4) ** 2,
    }
    agrees(
        build(node("BatchNormalization", "x s b m v", "n"), node("Relu", "n", "y"), constants=constants), (2, 6, 7, 5)
    )
    agrees(
        build(
            node("Conv", "x w", "c"),
            node("BatchNormalization", "c s b m v", "y"),
            outputs=("y", "c"),
            constants=constants,
        ),
        (2, 6, 7, 5),
    )


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_agree_on_every_backend(name):
    size = SMALL[name].keywords["size"]
    agrees(SMALL[name]().SerializeToString(), (1, 3, size, size))


def test_shuffled_channels_stay_on_images():
    """Each of the network's shuffles is one step, and no image is copied."""
    steps = opened(compile_model(SMALL["shufflenet_v2"]().SerializeToString(), "net")).steps
    kinds = [step.kind for step in steps]
    assert kinds.count("Shuffle") == 5 and "Copy" not in kinds


@pytest.mark.parametrize("make", [resnet50, mobilenet_v2, squeezenet1_1, shufflenet_v2])
def test_networks_agree_with_onnx_runtime(make):
    model, inputs = make().SerializeToString(), [networks.values((1, 3, 224, 224), seed) for seed in range(3)]
    ours = opened(compile_model(model, "network.onnx"))
    for x, theirs in zip(inputs, networks.by_onnx_runtime(model, inputs)):
        output = ours({"input": x})["output"]
        networks.assert_close(output, theirs)
        assert int(output.argmax()) == theirs.argmax()
