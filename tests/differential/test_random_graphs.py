"""Some random graphs, and earlier failing ones; `make differential` runs random ones for an hour."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.differential.fusions import DTYPES, FAMILIES
from tests.engine.test_tensor_models import agrees
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [20261126, 20261326])
def test_random_graphs_give_what_onnx_runtime_computes(seed, tmp_path):
    """In a process of its own: ONNX Runtime opens files and starts threads that it keeps."""
    command = [sys.executable, "-m", "tests.differential", "--seed", str(seed), "--count", "60", "--seconds", "40"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = (line for line in done.stdout.splitlines() if "graphs," in line)
    assert int(last.split()[-2]) < 12, done.stdout  # refused


@pytest.mark.parametrize("seed", [0, 20261129])
def test_families_of_operators_in_every_dtype_give_what_onnx_runtime_or_the_reference_computes(seed, tmp_path):
    """As many as there are families and dtypes."""
    count = len(FAMILIES) * len(DTYPES)
    command = [sys.executable, "-m", "tests.differential", "--fusions", "--seed", str(seed), "--count", str(count)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = (line for line in done.stdout.splitlines() if "graphs," in line)
    assert int(last.split()[-2]) < count // 20, done.stdout  # refused by either


@pytest.mark.parametrize("seed", [200, 20261127])
def test_rearrangements_over_open_sizes_give_what_onnx_runtime_computes_or_are_refused(seed, tmp_path):
    command = [sys.executable, "-m", "tests.differential", "--rearrangements", "--seed", str(seed), "--count", "100"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = (line for line in done.stdout.splitlines() if "graphs," in line)
    assert int(last.split()[-2]) < 70, done.stdout  # refused by either when compiling


@pytest.mark.parametrize(
    "weights, pads, group", [((3, 3, 1, 5), [1, 2, 1, 2], 1), ((3, 3, 1, 1), [1] * 4, 1), ((3, 1, 1, 3), [1] * 4, 3)]
)
def test_convolutions_with_padding_beyond_their_window(weights, pads, group):
    inputs, constants = {"x": networks.values((2, 3, 3, 8))}, {"w": networks.values(weights, 1)}
    agrees([helper.make_node("Conv", ["x", "w"], ["y"], pads=pads, group=group)], inputs, constants)


@pytest.mark.parametrize(
    "node, constants",
    [
        (helper.make_node("Trilu", ["x", "c"], ["y"], upper=1), {"c": numpy.array(1)}),
        (helper.make_node("Trilu", ["x", "c"], ["y"], upper=0), {"c": numpy.array(-1)}),
        (helper.make_node("Pad", ["x", "c"], ["y"], mode="edge"), {"c": numpy.array([1, 2, 0, 3])}),
        (helper.make_node("Pad", ["x", "c"], ["y"], mode="reflect"), {"c": numpy.array([1, 2, 0, 3])}),
        (helper.make_node("Pad", ["x", "c"], ["y"], mode="wrap"), {"c": numpy.array([1, 2, 0, 3])}),
        (helper.make_node("CumSum", ["x", "c"], ["y"], exclusive=1), {"c": numpy.array(0)}),
        (helper.make_node("CumSum", ["x", "c"], ["y"], exclusive=1, reverse=1), {"c": numpy.array(1)}),
    ],
)
def test_what_constants_depended_on_sizes_for_works_on_open_ones(node, constants):
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "open", [port("x", 1, ["rows", "columns"])], [port("y", 1, ["a", "b"])],
        [helper.make_tensor(name, 7, array.shape, array.reshape(-1)) for name, array in constants.items()],
    )  # fmt: skip
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    model = opened("open", compile_model(data, "open"))
    for shape in ((4, 7), (6, 5)):
        x = networks.values(shape)
        networks.assert_close(model({"x": x})["y"], networks.expected(data, {"x": x})[0])
