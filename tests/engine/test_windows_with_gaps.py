"""Convolutions whose windows have gaps, drawn at random, against ONNX Runtime: transposed ones with strides, and far
dilations, of which most taps see padding, also in groups of few channels."""

import random

import numpy
import pytest
from onnx import helper, load_model_from_string

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

SEED, CASES = 20261126, 120


def transposed(choose):
    draw = numpy.random.default_rng(choose.randrange(1 << 30))
    groups, each, outputs = choose.choice([(1, 3, 5), (1, 8, 33), (2, 4, 3), (1, 20, 16), (1, 6, 2)])
    rank = choose.choice([1, 2, 2, 3])
    kernel, strides = ([choose.choice(some) for _ in range(rank)] for some in ([1, 2, 3, 4, 5], [1, 2, 2, 3]))
    dilations = [choose.choice([1, 1, 1, 2]) for _ in range(rank)]
    size = [choose.choice([1, 2, 5, 9]) for _ in range(rank)]
    pads = [choose.randrange(min(3, d * (k - 1) + 1)) for _ in range(2) for k, d in zip(kernel, dilations)]
    more = [choose.randrange(stride) for stride in strides]
    made = [
        (n - 1) * s + d * (k - 1) + 1 + m - a - b
        for n, s, d, k, m, a, b in zip(size, strides, dilations, kernel, more, pads, pads[rank:])
    ]
    if min(made) < 1:
        return transposed(choose)
    x = draw.standard_normal((choose.choice([1, 2]), groups * each, *size)).astype("float32")
    constants = {"w": draw.standard_normal((groups * each, outputs, *kernel)).astype("float32")}
    if choose.random() < 0.5:
        constants["b"] = draw.standard_normal(groups * outputs).astype("float32")
    attributes = {"group": groups, "strides": strides, "dilations": dilations, "pads": pads, "output_padding": more}
    nodes = [helper.make_node("ConvTranspose", ["x", *constants], ["t"], **attributes)]
    last = "t"
    if choose.random() < 0.5:
        for name in ("scale", "offset", "mean"):
            constants[name] = draw.standard_normal(groups * outputs).astype("float32")
        constants["variance"] = draw.uniform(0.5, 2, groups * outputs).astype("float32")
        nodes.append(helper.make_node("BatchNormalization", ["t", "scale", "offset", "mean", "variance"], ["n"]))
        last = "n"
    names = choose.choice([[], ["Relu"], ["Sigmoid"], ["Tanh"]])
    for name in names:
        nodes.append(helper.make_node(name, [last], [name]))
        last = name
    if choose.random() < 0.5:  # one that looks at a margin
        size = groups * outputs
        constants["v"] = draw.standard_normal((4, size, *(3,) * rank)).astype("float32")
        nodes.append(helper.make_node("Conv", [last, "v"], ["c"], pads=[1] * 2 * rank))
    nodes[-1].output[0] = "y"
    return networks.graph_of(nodes, {"x": x}, ["y"], constants, opset=17), {"x": x}


def dilated(choose):
    draw = numpy.random.default_rng(choose.randrange(1 << 30))
    groups, each, outputs = choose.choice(
        [(1, 3, 5), (1, 40, 33), (2, 4, 6), (1, 600, 8), (6, 3, 24), (16, 2, 16), (10, 5, 40)]
    )
    kernel = [choose.choice([1, 2, 3, 5]) for _ in range(2)]
    dilations = [choose.choice([1, 2, 5, 9, 14]) for _ in range(2)]
    strides, size = [choose.choice([1, 1, 2]) for _ in range(2)], [choose.choice([1, 6, 16, 17]) for _ in range(2)]
    pads = [choose.choice([d * (k - 1) // 2, d * (k - 1), 0]) for k, d in zip(kernel, dilations)] * 2
    if any(n + 2 * p < d * (k - 1) + 1 for n, p, d, k in zip(size, pads, dilations, kernel)):
        return dilated(choose)
    x = draw.standard_normal((choose.choice([1, 2]), groups * each, *size)).astype("float32")
    constants = {"w": draw.standard_normal((outputs, each, *kernel)).astype("float32")}
    constants["b"] = draw.standard_normal(outputs).astype("float32")
    attributes = {"group": groups, "strides": strides, "dilations": dilations, "pads": pads}
    node = helper.make_node("Conv", ["x", *constants], ["y"], **attributes)
    return networks.graph_of([node], {"x": x}, ["y"], constants, opset=17), {"x": x}


def test_they_make_what_onnx_runtime_makes():
    choose, wrong = random.Random(SEED), []
    cases = [(transposed if number % 2 else dilated)(choose) for number in range(CASES)]
    for number, ((data, given), [theirs]) in enumerate(zip(cases, networks.each_by_onnx_runtime(cases), strict=True)):
        file = compile_model(data, "windows")
        for backend in backends():
            with on_backend(backend):
                ours = numpy.asarray(opened("windows", file)(given)["y"])
            if ours.shape != theirs.shape or numpy.abs(ours - theirs).max() > 5e-5 * max(1, numpy.abs(theirs).max()):
                wrong.append((number, backend, given["x"].shape, theirs.shape))
    assert wrong == []


def with_open_sides(data):
    proto = load_model_from_string(data)
    for port in (*proto.graph.input, *proto.graph.output):
        for number, dimension in enumerate(port.type.tensor_type.shape.dim[2:]):
            dimension.dim_param = f"{port.name}{number}"
    return proto.SerializeToString()


@pytest.mark.parametrize("open_size", [False, True])
@pytest.mark.parametrize(("channels", "outputs", "size"), [(6, 40, (9,)), (5, 3, (6, 7)), (4, 20, (3, 4, 5))])
def test_transposed_ones_do_not_multiply_zeros(channels, outputs, size, open_size):
    """Twice as many taps as strides: each element of the result is a sum of two taps in each dimension."""
    draw, rank = numpy.random.default_rng(SEED), len(size)
    x = draw.standard_normal((1, channels, *size)).astype("float32")
    weights = draw.standard_normal((channels, outputs, *(6,) * rank)).astype("float32")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[3] * rank, pads=[2] * rank + [1] * rank)
    data = networks.graph_of([node], {"x": x}, ["y"], {"w": weights}, opset=17)
    if open_size:
        data = with_open_sides(data)
    [theirs] = networks.by_onnx_runtime(data, [x])
    model = opened("gaps", compile_model(data, "gaps"))
    made, steps = model.run({"x": x}, profile=True)
    networks.assert_close(numpy.asarray(made["y"]), theirs)
    products = sum(step.products for step in steps)
    assert products <= 1.6 * channels * 2**rank * theirs.size
