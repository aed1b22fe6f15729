"""What compiling a model saves, on networks whose numbers are known by hand; and where it is shown."""

import json
from pathlib import Path

import numpy
import pytest
from onnx import helper

from tests import networks, warm
from vmhost.engine.onnx import compiled

ROOT = Path(__file__).parents[2]


def rearranging():
    """Two equal branches that slice a transpose of x (4x6 of float32), and another one of theirs, side by side."""
    nodes = []
    for branch, op in (("a", "Neg"), ("b", "Neg"), ("c", "Abs")):
        nodes += [
            helper.make_node("Transpose", ["x"], [f"{branch}t"], perm=[1, 0]),
            helper.make_node("Slice", [f"{branch}t", "start", "end"], [f"{branch}s"]),
            helper.make_node(op, [f"{branch}s"], [branch]),
        ]
    nodes += [
        helper.make_node("Concat", ["a", "b", "c"], ["whole"], axis=0),
        helper.make_node("Reshape", ["whole", "shape"], ["y"]),
    ]
    constants = {"start": numpy.array([0]), "end": numpy.array([2]), "shape": numpy.array([24])}
    return networks.graph_of(nodes, {"x": networks.values((4, 6))}, ["y"], constants)


def test_rearrangements():
    """Three transposes of 96 bytes, slices of 32 and one reshape, which moves nothing; the copy of a (equal to b) and b
    stay, that of c does not."""
    savings = compiled(rearranging(), "net").savings
    assert (savings.nodes, savings.computed, savings.operators, savings.steps) == (11, 0, 3 + 3 + 1 + 3 + 3, 4)
    assert savings.saved == {
        "unused": (0, 0),
        "read through": (7, 3 * 2 * 96 + 3 * 2 * 32),
        "run once": (1, 2 * 32),
        "fused": (0, 0),
        "made in place": (1, 2 * 32),
        "layouts": (0, 0),
    }
    assert savings.bytes == 896
    assert (
        str(savings)
        == "11 nodes, 13 operators, 4 steps; 7 read through (0.8 KiB), 1 run once (0.1 KiB), 1 made in place (0.1 KiB)"
    )


def test_what_is_fused_computed_and_of_no_use():
    """A convolution takes in the sum and the ReLU behind it, of 64 bytes: the sum would read two of these and write
    one, ReLU read and write one."""
    nodes = [
        helper.make_node("Mul", ["w", "two"], ["w2"]),
        helper.make_node("Conv", ["x", "w2"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
        helper.make_node("Exp", ["s"], ["unread"]),
    ]
    model = networks.graph(
        nodes, {"x": (1, 1, 4, 4)}, {"y": None}, {"w": numpy.ones((1, 1, 1, 1), "float32"), "two": numpy.float32(2)}
    )
    savings = compiled(model, "net").savings
    assert (savings.nodes, savings.needed, savings.computed, savings.steps) == (5, 4, 1, 1)
    assert savings.saved["fused"] == (2, 3 * 64 + 2 * 64)
    assert savings.saved["unused"] == (0, 0) and savings.operators == 3  # the unused node does not count


def test_every_operator_is_a_step_or_saved():
    for model in (rearranging(), networks.small()):
        savings = compiled(model, "net").savings
        assert savings.operators == savings.steps + sum(operators for operators, _ in savings.saved.values())


def test_open_sizes_are_told():
    savings = compiled(networks.images(), "net").savings
    assert savings.sizes == {"batch": 11} and str(savings).endswith(" (at batch = 11)")


@pytest.fixture
def task(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "main.py").write_text("def run(value):\n    return value\n")
    (folder / "net.onnx").write_bytes(rearranging())
    (folder / "task.yaml").write_text(
        'name: saving\nversion: "1"\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
    )
    return folder


def test_the_compiler_tells_it(task, tmp_path):
    command = [ROOT / "tools" / "compile_cloud.py", task, "-o", tmp_path / "out.vmb"]
    said = warm.run(*command).stdout
    assert said.splitlines()[1] == f"model net: {compiled(rearranging(), 'net').savings}"
    document = json.loads(warm.run(*command, "--json").stdout)
    assert (
        document["bundles"][0]["savings"]["net"]["saved"]["run once"] == {"operators": 1, "bytes": 64}
        and document["bundles"][0]["savings"]["net"]["bytes"] == 896
    )
