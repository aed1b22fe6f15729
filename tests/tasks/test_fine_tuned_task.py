"""A task that trains the last layer of its bundle's model, with weights in a granted folder."""

import gc
import shutil

import numpy
import onnxruntime
import pytest

import vmhost
from tests.engine.test_fine_tuning import CLASSIFIER, HEAD, X, model_of
from vmhost.bytecode.errors import CompileError, TaskSpecError
from vmhost.compiler import compile_folder

MAIN = """
import vmhost.engine.numpy as np
from vmhost import engine
from vmhost.engine import nn, optim
from vmhost.guest import resources

def setup():
    global network
    network = nn.FineTuned(engine.load("net"), resources.read_bytes("net.trainable"))

def run(ask):
    there = network.load(ask["folder"])
    losses = []
    if "labels" in ask:
        found, optimizer = network.frozen({"x": ask["x"]}), optim.Adam(0.05)
        step = nn.value_and_grad(network, lambda: nn.cross_entropy(network.trained(found)["y"], ask["labels"]))
        for _ in range(20):
            loss, gradients = step()
            optimizer.update(network, gradients)
            losses.append(float(loss))
        network.save(ask["folder"])
    return {"there": there, "losses": losses, "y": network({"x": ask["x"]})["y"]}
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "task"
    made.mkdir()
    (tmp_path / "state").mkdir()
    (made / "main.py").write_text(MAIN)
    (made / "net.onnx").write_bytes(model_of(CLASSIFIER, HEAD))
    (made / "task.yaml").write_text(
        'name: tuned\nversion: 1.0.0\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
        f'trainable: {{net: ["fc.*"]}}\npermissions: {{read: [{tmp_path}/state], write: [{tmp_path}/state]}}\n'
    )
    return made


def test_a_vm_trains_the_last_layer_and_its_weights_belong_to_the_bundles_model(folder, tmp_path):
    [before] = onnxruntime.InferenceSession((folder / "net.onnx").read_bytes()).run(None, {"x": X})
    ask = {"folder": str(tmp_path / "state"), "x": X}
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(compile_folder(folder).to_bytes())
        first = task(ask)
        assert not first["there"] and numpy.allclose(first["y"], before, atol=1e-5)
        trained = task(ask | {"labels": numpy.array([2, 0])})
        assert trained["losses"][-1] < trained["losses"][0] and not numpy.allclose(trained["y"], before, atol=1e-3)
    with vmhost.Host(allow_unsigned=True) as host:  # another time
        again = host.load(compile_folder(folder).to_bytes())(ask)
        assert again["there"] and (again["y"] == trained["y"]).all()
        (folder / "net.onnx").write_bytes(model_of(CLASSIFIER, HEAD, stem=1))
    with vmhost.Host(allow_unsigned=True) as host:
        assert not host.load(compile_folder(folder).to_bytes())(ask)["there"]
    gc.collect()


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        ("{other: [fc.weight]}", r"task.yaml:6: trainable.other: expected the name of a model under `models`"),
        ("{net: []}", "expected"),
        ("{net: [fc.w]}", r"has no weight 'fc.w' to train; it has fc.bias, fc.weight"),
    ],
)
def test_wrong_trainable_weights_of_task_yaml_are_named(folder, trainable, message):
    text = (folder / "task.yaml").read_text().replace('{net: ["fc.*"]}', trainable)
    (folder / "task.yaml").write_text(text)
    with pytest.raises((TaskSpecError, CompileError), match=message):
        compile_folder(folder)


def test_a_file_of_the_task_does_not_stand_for_the_trainable_part(folder):
    shutil.copy(folder / "main.py", folder / "net.trainable")
    text = (folder / "task.yaml").read_text() + "files: [net.trainable]\n"
    (folder / "task.yaml").write_text(text)
    with pytest.raises(TaskSpecError, match="the file net.trainable is in the task's folder"):
        compile_folder(folder)
