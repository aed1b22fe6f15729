"""The networks of shipped tasks: in a VM they are as accurate as stated, and give the same as a plain NumPy forward
pass."""

import json
from pathlib import Path

import numpy
import pytest

import vmhost
from tasks import cases
from tasks.training import digits_cnn, ipv, reranking, vision
from tasks.training.onnx_files import read_weights
from vmhost.compiler import compile_folder
from vmhost.engine import _array
from vmhost.engine.models import Model
from vmhost.engine.onnx import compile_model

TASKS = Path(__file__).resolve().parents[2] / "tasks"


@pytest.fixture(scope="module")
def task():
    """A function that loads a shipped task by name into a host."""
    with vmhost.Host(allow_unsigned=True) as host:
        yield lambda name: host.load(compile_folder(TASKS / name, strict=True).to_bytes())


def committed(file):
    """A shipped ONNX file: the engine's Model, its weights, its remark."""
    data = (TASKS / file).read_bytes()
    return Model(file, _array._model_open(compile_model(data, file))), *read_weights(data)


@pytest.mark.parametrize(
    "module", [digits_cnn, ipv, reranking, vision], ids=lambda module: module.__name__.rpartition(".")[2]
)
def test_file_and_page_say_the_same_about_seed_and_quality(module):
    _, _, remark = committed(module.FILE)
    page = (TASKS / module.FILE).with_name("README.md").read_text()
    assert f"seed {module.SEED}" in remark and f"seed {module.SEED}" in page
    figure = remark.split(": ")[1].split()[0].replace("%", " %")
    assert figure in page, f"the file says {remark}"


def test_digits_cnn_reads_held_out_images_in_a_vm(task):
    asked = cases.cases("digits_cnn")
    answers = list(task("digits_cnn").map([value for value, _ in asked]))
    assert len(answers) == 500
    assert sum(answer == truth for answer, (_, truth) in zip(answers, asked)) / 500 >= 0.99
    _, weights, _ = committed(digits_cnn.FILE)
    images, _ = digits_cnn.examples(cases.read_digits()[cases.DIGITS_FOR_TRAINING :])
    plain = digits_cnn.scores(weights, images)
    sure = numpy.sort(plain, axis=1)[:, -1] - numpy.sort(plain, axis=1)[:, -2] > 1e-3  # else rounding decides
    assert numpy.asarray(answers)[sure].tolist() == plain.argmax(axis=1)[sure].tolist()


def test_digits_cnn_scores_are_those_of_the_plain_forward_pass():
    model, weights, _ = committed(digits_cnn.FILE)
    images, _ = digits_cnn.examples(cases.read_digits()[-20:])
    ours = numpy.concatenate([numpy.asarray(model({"image": image[None, None]})["scores"]) for image in images])
    plain = digits_cnn.scores(weights, images)
    assert abs(ours - plain).max() <= 1e-4 * abs(plain).max()


def test_reranking_puts_what_is_clicked_in_front_in_a_vm(task):
    seen = cases.read_shoppers()
    answers = task("reranking").map([value for value, _ in cases.cases("reranking")])
    scores = [
        [dict(zip(answer["items"], answer["scores"]))[item] for item in shown]
        for answer, (_, shown, _) in zip(answers, seen)
    ]
    catalogue = json.loads((TASKS / "reranking/catalogue.json").read_text())
    by_sales = reranking.area([[catalogue["sales"][item] for item in shown] for _, shown, _ in seen], seen)
    by_network = reranking.area(scores, seen)
    print(f"AUC on {len(seen)} held-out shoppers: by sales {by_sales:.3f}, by the network {by_network:.3f}")
    assert by_network > 0.92 and by_network > by_sales + 0.2
    _, weights, _ = committed(reranking.FILE)
    weights = {name.removesuffix(".table"): values for name, values in weights.items()}
    plain = reranking.scores(weights, (numpy.asarray(catalogue["categories"]),), seen[:50])
    for ours, theirs in zip(scores, plain):
        assert abs(ours - theirs[: len(ours)]).max() <= 1e-4 * max(1, abs(theirs).max())


def test_reranking_takes_any_number_of_items(task):
    ask = task("reranking")
    history, some = [item * 7 % 600 for item in range(45)], list(range(0, 600, 13))  # more than the model's 30 and 20
    whole = ask({"history": history, "candidates": some})
    assert sorted(whole["items"]) == some and whole["scores"] == sorted(whole["scores"], reverse=True)
    for item, score in list(zip(whole["items"], whole["scores"]))[::9]:
        alone = ask({"history": history[:30], "candidates": [item]})
        assert alone["items"] == [item] and alone["scores"] == pytest.approx([score], abs=1e-4)


def test_reranking_without_a_history_goes_by_sales(task):
    sales = json.loads((TASKS / "reranking/catalogue.json").read_text())["sales"]
    assert task("reranking")({"history": [], "candidates": [5, 400, 17]})["items"] == sorted(
        [5, 400, 17], key=lambda item: -sales[item]
    )
