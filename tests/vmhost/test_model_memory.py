"""The peak memory of a process that loads a large model: the file's bytes are released while weights are
packed."""

import subprocess
import sys

import numpy
import pytest
from onnx import helper

from tests import networks
from vmhost.compiler import compile_folder
from vmhost.engine import task_models
from vmhost.engine.models import opened

MIB = 1 << 20
ROWS = numpy.arange(0, 8192, 2048)
MAIN = """
from vmhost import engine

def run(value):
    return engine.load("net")(value)
"""
LOADING = """
import sys
{imports}

def told(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what)) << 10

before = told("VmRSS:")
{loading}
print(told("VmHWM:") - before)
"""
WAYS = {
    "engine.load": (
        "from vmhost import engine\nimport vmhost.engine.models, vmhost.engine.task_models",
        "model = engine.load(sys.argv[1] + '/net.vmm')",
    ),
    "Host.load": (
        "import vmhost\nhost = vmhost.Host(allow_unsigned=True)",
        "host.load(sys.argv[1] + '/net.vmb'); host.close()",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a task with a table of 32 MiB that is read as it is, and a product's weights of 32 MiB, which are packed:
    net.vmb, net.vmm."""
    folder = tmp_path_factory.mktemp("large")
    constants = {"table": networks.values((8192, 1024)), "weights": networks.values((1024, 8192), 1)}
    model = networks.graph_of(
        [
            helper.make_node("Gather", ["table", "rows"], ["some"]),
            helper.make_node("MatMul", ["some", "weights"], ["y"]),
        ],
        {"rows": ROWS},
        ["y"],
        constants,
    )
    (folder / "net.onnx").write_bytes(model)
    (folder / "main.py").write_text(MAIN)
    (folder / "task.yaml").write_text(
        'name: large\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
    )
    compiled = compile_folder(folder)
    (folder / "net.vmm").write_bytes(compiled.models["net"])
    (folder / "net.vmb").write_bytes(compiled.to_bytes())
    return folder


@pytest.mark.parametrize("search", WAYS)
def test_no_more_than_a_constant_is_twice_in_memory(folder, search):
    imports, loading = WAYS[search]
    done = subprocess.run(
        [sys.executable, "-c", LOADING.format(imports=imports, loading=loading), str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    weights = 64 * MIB
    assert (
        weights < int(done.stdout) < 1.85 * weights
    )  # one of the two constants is there twice at a time, and a host's first VM is made meanwhile


def test_a_kept_model_and_its_file_are_not_in_memory_together(folder):
    """The second process maps what the first one has kept, all of which is held against its sum; then both have it in
    memory."""
    imports = "from vmhost.engine import library, task_models"
    loading = (
        "model = library.Model(task_models.find(sys.argv[1] + '/net.vmm')[1], kept=sys.argv[1] + '/kept', spend=True)"
    )
    one, two = (
        subprocess.run(
            [
                sys.executable,
                "-c",
                LOADING.format(imports=imports, loading=f"{loading}; print(model.was_kept, told('RssFile:'))"),
                str(folder),
            ],
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        ).stdout.split()
        for _ in range(2)
    )
    assert (one[0], two[0]) == ("False", "True")
    weights = 64 * MIB
    assert weights < int(two[1]) and weights < int(two[2]) < 1.25 * weights


def test_weights_that_are_spent_are_zero_and_answers_are_the_same(folder):
    _, data = task_models.find(folder / "net.vmm")
    whole, size = bytes(data), len(data)
    expected = opened("net", whole, search="fixed")({"rows": ROWS})["y"]
    model = opened("net", data, search="fixed", spend=True)
    assert len(data) == size and data[:1024] == whole[:1024]
    assert data[MIB:-MIB].count(0) == len(data) - 2 * MIB
    assert model({"rows": ROWS})["y"].tobytes() == expected.tobytes()


def test_bytes_that_cannot_be_written_are_not_spent(folder):
    with pytest.raises(BufferError):
        opened("net", (folder / "net.vmm").read_bytes(), spend=True)
