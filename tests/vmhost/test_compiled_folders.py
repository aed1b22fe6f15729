"""Task folders with ONNX models to bundles: both compilers together."""

import numpy
import pytest
from onnx import helper

from tests import networks
from vmhost.bytecode.errors import CompileError
from vmhost.bytecode.format import read_bundle
from vmhost.compiler import compile_folder
from vmhost.engine.onnx import compiled


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "task.yaml").write_text(
        'name: small\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\nmodels: {first: a.onnx, second: b.onnx}\n'
    )
    (tmp_path / "main.py").write_text("def run(value):\n    return value\n")
    for seed, name in enumerate("ab"):
        (tmp_path / f"{name}.onnx").write_bytes(networks.small(seed=seed))
    return tmp_path


def test_a_bundle_carries_the_model_files(folder):
    task = compile_folder(folder)
    alone = {name: compiled(networks.small(seed=seed), "net") for seed, name in enumerate(("first", "second"))}
    assert read_bundle(task.to_bytes(), allow_unsigned=True).models == {name: net.data for name, net in alone.items()}
    assert {name: str(savings) for name, savings in task.savings.items()} == {
        name: str(net.savings) for name, net in alone.items()
    }


def test_what_is_wrong_with_models_is_told_as_of_sources(folder):
    nodes = [helper.make_node("ImageDecoder", ["x"], ["a"], "photo"), helper.make_node("ImageDecoder", ["x"], ["b"])]
    model = networks.graph_of(nodes, {"x": numpy.zeros(4, "uint8")}, ("a", "b"), opset=20)
    (folder / "a.onnx").write_bytes(model)
    (folder / "b.onnx").write_bytes(b"no model")
    (folder / "main.py").write_text("import numpy\ndef run(value):\n    return value\n")
    with pytest.raises(CompileError) as caught:
        compile_folder(folder)
    source, *models, last = map(str, caught.value.diagnostics)
    assert "main.py:1: import numpy: a VM can't load it" in source
    assert models == [
        f"{folder}/a.onnx: operator ImageDecoder (2 nodes, 'photo', 'b') is not supported",
    ]
    assert last.startswith(f"{folder}/b.onnx: not an ONNX model: ")
