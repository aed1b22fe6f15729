"""`engine.load` by name in plain Python: beside the calling module, in the current folder, in a folder or bundle that
is named; as in a VM."""

import importlib.util
import shutil
from pathlib import Path

import numpy
import pytest

import vmhost
from tests import networks
from vmhost import engine, task_models
from vmhost.bytecode.errors import TaskSpecError
from vmhost.compiler import compile_folder
from vmhost.engine.task_models import look_in

MAIN = """
from vmhost import engine

def run(value):
    name, inputs, options = value
    return engine.load(name, **options)(inputs)
"""
OPTIONS = {"threads": 1, "ftz": False, "precision": "float32"}


@pytest.fixture
def folder(tmp_path):
    """A task's folder with the models `first` and `second`, away from the current folder."""
    folder = tmp_path / "task"
    (folder / "networks").mkdir(parents=True)
    (folder / "main.py").write_text(MAIN)
    for seed, name in enumerate(("first", "second")):
        (folder / "networks" / f"{name}.onnx").write_bytes(networks.small(seed=seed))
    (folder / "task.yaml").write_text(
        'name: small\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\n'
        "models: {first: networks/first.onnx, second: networks/second.onnx}\n"
    )
    return folder


def module_at(path):
    spec = importlib.util.spec_from_file_location("module_of_a_task", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(model, name="first"):
    x = networks.values((1, 3, 32, 32))
    networks.assert_close(
        model({"input": x})["output"],
        networks.expected(networks.small(seed=("first", "second").index(name)), {"input": x})[0],
    )


def test_the_same_call_gives_the_same_in_plain_python_and_in_a_vm(folder):
    x = {"input": networks.values((1, 3, 32, 32))}
    plain = module_at(folder / "main.py")
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(compile_folder(folder).to_bytes())
        for name in ("first", "second"):
            networks.assert_close(
                plain.run((name, x, OPTIONS))["output"], numpy.asarray(task((name, x, OPTIONS))["output"])
            )
        for wrong, told in (("third", "no model 'third'; it has first, second"), ("../first", "no model")):
            with pytest.raises(LookupError, match=told):
                plain.run((wrong, x, OPTIONS))
            with pytest.raises(vmhost.TaskError, match="no model"):
                task((wrong, x, OPTIONS))
        for given in (
            lambda: plain.run(("first", x, {"precision": "int8"})),
            lambda: task(("first", x, {"precision": "int8"})),
        ):
            with pytest.raises(
                (ValueError, vmhost.TaskError), match="precision: expected float32, got 'int8'; .*leave it out"
            ):
                given()


def test_a_module_of_a_package_in_the_folder_finds_it_too(folder):
    (folder / "parts" / "deep").mkdir(parents=True)
    shutil.copy(folder / "main.py", folder / "parts" / "deep" / "inner.py")
    assert module_at(folder / "parts" / "deep" / "inner.py").run(
        ("second", {"input": networks.values((1, 3, 32, 32))}, {})
    )["output"].shape == (1, 10)


def test_the_current_folder_serves_who_is_in_no_task(folder, monkeypatch):
    with pytest.raises(LookupError, match="no model file 'first', and no task.yaml beside the caller .*look_in"):
        engine.load("first")
    monkeypatch.chdir(folder)
    answers(engine.load("first"))


def test_a_folder_or_a_bundle_can_be_named_and_others_come_back_afterwards(folder, tmp_path, monkeypatch):
    bundle = tmp_path / "small.vmb"
    bundle.write_bytes(compile_folder(folder).to_bytes())
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "networks" / "first.onnx").write_bytes(networks.small(seed=1))
    monkeypatch.chdir(other)
    with look_in(bundle):
        answers(engine.load("first"))
        with look_in(str(folder)):
            answers(engine.load("second"), "second")
        with pytest.raises(LookupError, match="small.vmb: this task has no model 'third'; it has first, second"):
            engine.load("third")
    x = networks.values((1, 3, 32, 32))
    networks.assert_close(
        engine.load("first")({"input": x})["output"], networks.expected(networks.small(seed=1), {"input": x})[0]
    )


def test_a_model_file_is_opened_by_its_path_wherever_that_is_done(folder, monkeypatch):
    (folder / "first.vmm").write_bytes(task_models.model_file(folder, "first"))
    answers(engine.load(folder / "first.vmm"))
    answers(engine.load(str(folder / "first.vmm")))
    monkeypatch.chdir(folder)
    answers(engine.load("first.vmm"))
    answers(engine.load(Path("first.vmm")))


def test_a_changed_onnx_file_is_compiled_again(folder):
    with look_in(folder):
        answers(engine.load("first"))
        (folder / "networks" / "first.onnx").write_bytes(networks.small(seed=1))
        x = networks.values((1, 3, 32, 32))
        networks.assert_close(
            engine.load("first")({"input": x})["output"], networks.expected(networks.small(seed=1), {"input": x})[0]
        )


def test_a_wrong_folder_says_what_the_compiler_says(folder):
    (folder / "task.yaml").write_text("name: 7\n")
    with look_in(folder), pytest.raises(TaskSpecError, match="task.yaml:1"):
        engine.load("first")
