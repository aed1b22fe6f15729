"""Convolutions with one channel and several outputs for each group, as in FastViT: depthwise ones whose channels are
shuffled, against ONNX Runtime."""

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

NODE = helper.make_node


def model(multiple, last, channels=24):
    draw = numpy.random.default_rng(multiple)
    x = draw.standard_normal((2, channels, 9, 11)).astype("float32")
    constants = {
        "w": draw.standard_normal((multiple * channels, 1, 3, 5)).astype("float32"),
        "b": draw.standard_normal(multiple * channels).astype("float32"),
        "v": draw.standard_normal((7, multiple * channels, 1, 1)).astype("float32"),
        "s": draw.standard_normal((multiple * channels, 1, 1)).astype("float32"),
    }
    options = {"group": channels, "strides": [2, 1], "pads": [1, 2, 1, 2]}
    nodes = [NODE("Conv", ["x", "w", "b"], ["c"], **options)]
    if last == "scaled":  # as by batch normalization, and read by another convolution
        nodes += [NODE("Mul", ["c", "s"], ["m"]), NODE("Sigmoid", ["m"], ["n"]), NODE("Conv", ["n", "v"], ["y"])]
    elif last == "added":
        nodes += [NODE("Conv", ["x", "w"], ["d"], **options), NODE("Add", ["c", "d"], ["y"])]
    else:
        nodes += [NODE(last, ["c"], ["y"])]
    outputs = ["y"] if last != "Neg" else ["c", "y"]
    return networks.graph_of(nodes, {"x": x}, outputs, constants, opset=17), {"x": x}


CASES = [(multiple, last) for multiple in (2, 3, 4, 6, 8) for last in ("scaled", "added", "Relu", "Neg")]


def test_they_make_what_onnx_runtime_makes():
    cases = [model(*case) for case in CASES]
    for case, (data, given), theirs in zip(CASES, cases, networks.each_by_onnx_runtime(cases), strict=True):
        file = compile_model(data, "multiples")
        for backend in backends():
            with on_backend(backend):
                ours = opened("multiples", file)(given).values()
            for one, other in zip(ours, theirs, strict=True):
                assert numpy.abs(numpy.asarray(one) - other).max() < 1e-5 * numpy.abs(other).max(), (case, backend)


@pytest.mark.parametrize("multiple", [2, 4, 3])
def test_they_run_as_depthwise_ones(multiple):
    data, _ = model(multiple, "Relu")
    steps = opened("multiples", compile_model(data, "multiples")).steps
    algorithms = [step.algorithm for step in steps if step.kind.startswith("Conv")]
    assert algorithms == ["depthwise"] * multiple
    assert sum(step.products for step in steps) == multiple * 24 * 15 * 2 * 5 * 11
