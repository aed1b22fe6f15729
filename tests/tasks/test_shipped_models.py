"""The networks that shipped tasks carry: in a VM they are as good as it says, and give what a plain NumPy forward pass gives."""

from pathlib import Path

import numpy
import pytest

import vmhost
from bytecode.compiler import compile_task
from bytecode.models import compile_model
from engine import _array
from engine.models import Model
from tasks import cases
from tasks.training import digits_cnn
from tasks.training.onnx_files import read_weights

TASKS = Path(__file__).resolve().parents[2] / "tasks"


@pytest.fixture(scope="module")
def task():
    """A function that loads a shipped task by name into a host."""
    with vmhost.Host(allow_unsigned=True) as host:
        yield lambda name: host.load(compile_task(TASKS / name).to_bytes())


def committed(file):
    """A shipped ONNX file: the engine's Model, its weights, its remark."""
    data = (TASKS / file).read_bytes()
    return Model(file, _array._model_open(compile_model(data, file))), *read_weights(data)


@pytest.mark.parametrize("module", [digits_cnn], ids=lambda module: module.__name__.rpartition(".")[2])
def test_file_and_page_say_the_same_about_seed_and_accuracy(module):
    _, _, remark = committed(module.FILE)
    page = (TASKS / module.FILE).with_name("README.md").read_text()
    assert f"seed {module.SEED}" in remark and f"seed {module.SEED}" in page
    figure = remark.split(": ")[1].split("%")[0]
    assert f"{figure} %" in page, f"the file says {remark}"


def test_digits_cnn_reads_held_out_images_in_a_vm(task):
    asked = cases.cases("digits_cnn")
    answers = list(task("digits_cnn").map([value for value, _ in asked]))
    assert len(answers) == 500
    assert sum(answer == truth for answer, (_, truth) in zip(answers, asked)) / 500 >= 0.99
    _, weights, _ = committed(digits_cnn.FILE)
    images, _ = digits_cnn.examples(cases.read_digits()[cases.DIGITS_FOR_TRAINING:])
    plain = digits_cnn.scores(weights, images)
    sure = numpy.sort(plain, axis=1)[:, -1] - numpy.sort(plain, axis=1)[:, -2] > 1e-3       # else rounding decides
    assert numpy.asarray(answers)[sure].tolist() == plain.argmax(axis=1)[sure].tolist()


def test_digits_cnn_scores_are_those_of_the_plain_forward_pass():
    model, weights, _ = committed(digits_cnn.FILE)
    images, _ = digits_cnn.examples(cases.read_digits()[-20:])
    ours = numpy.concatenate([numpy.asarray(model({"image": image[None, None]})["scores"]) for image in images])
    plain = digits_cnn.scores(weights, images)
    assert abs(ours - plain).max() <= 1e-4 * abs(plain).max()
