"""The shipped tasks as ordinary Python: right on data they have not seen, the files they name, their licences."""

import contextlib
import importlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy
import pytest
import yaml

import vmhost.engine.numpy as np

TASKS = Path(__file__).resolve().parents[2] / "tasks"
LEARNED = ("digits", "digits_cnn", "neighbours", "strokes", "vision", "forest")


def load_script(name):
    """`cases` or `prepare` from tasks/, without leaving anything on sys.path."""
    path = list(sys.path)
    try:
        sys.path.insert(0, str(TASKS))
        return importlib.import_module(name)
    finally:
        sys.path[:] = path


@pytest.fixture
def entry(tmp_path):
    """A function that loads a task's entry module, with setup() called as a VM would: with the task's files at hand."""
    before = set(sys.modules)

    def load(name):
        folder = TASKS / name
        for module in folder.glob("*.py"):
            sys.modules.pop(module.stem, None)
        shutil.copytree(folder, tmp_path / name)
        with contextlib.chdir(tmp_path / name):
            sys.path.insert(0, str(folder))
            try:
                module = importlib.import_module("main")
            finally:
                sys.path.remove(str(folder))
            module.setup()
        return module

    yield load
    for name in set(sys.modules) - before:
        if str(TASKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "count", "at_least"),
    [("digits", 500, 0.91), ("neighbours", 40, 0.95), ("strokes", 5, 0.97), ("forest", 1, 0.95)],
)
def test_answers_agree_with_truth_on_held_out_rows(entry, name, count, at_least):
    cases = load_script("cases")
    run = entry(name).run
    asked = cases.cases(name)[:count]
    if name == "forest":
        asked = [({**value, "trees": 24}, truth) for value, truth in asked]  # a tenth of the trees, as good here
    shares = [cases.share_right(run(value), truth) for value, truth in asked]
    assert len(shares) == count
    assert sum(shares) / len(shares) >= at_least


def test_forest_is_the_same_for_the_same_seed_and_not_for_another(entry):
    run = entry("forest").run
    rows = load_script("cases").cases("forest")[0][0]["rows"]
    first, again, other = (run({"rows": rows, "seed": seed, "trees": 2}) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("digits", {"image": [0] * 63}, "expected 64 integers"),
        ("digits", {"image": [17] * 64}, "from 0 to 16"),
        ("digits", {}, 'expected {"image"'),
        ("digits", [1], 'expected {"image"'),
        ("digits", {"image": "12"}, 'expected {"image"'),
        ("digits_cnn", {"image": [0] * 63}, "expected 64 numbers from 0 to 16, row by row, got 63 from 0.0 to 0.0"),
        ("digits_cnn", {"image": [-1] + [0] * 63}, "got 64 from -1.0 to 0.0"),
        ("neighbours", {"image": []}, "expected 64 numbers"),
        ("neighbours", {"image": [0] * 64, "count": 0}, "at least 1 neighbour"),
        (
            "reranking",
            {"history": [600], "candidates": [1]},
            r"history: expected a list of items from 0 to 599, got \[600\]",
        ),
        ("reranking", {"history": [], "candidates": []}, "candidates: expected at least one item"),
        ("strokes", {"images": [[0] * 63]}, r"expected an array \(n, 8, 8\) or \(n, 64\), n > 0, got shape \(1, 63\)"),
        ("strokes", {"images": [[17] + [0] * 63]}, "ink from 0 to 16, got 0.0 to 17.0"),
        ("forest", {"rows": [[1.0] * 30, [1.0]]}, r"rows\[1\]: expected 30 numbers, got 1"),
    ],
)
def test_wrong_values_are_named(entry, name, value, message):
    with pytest.raises(ValueError, match=message):
        entry(name).run(value)


def test_strokes_takes_images_in_any_form_and_answers_each_as_if_alone(entry):
    run = entry("strokes").run
    images = load_script("cases").cases("strokes")[0][0]["images"][:6]
    answers = run({"images": images})
    assert run({"images": images.reshape(6, 8, 8)}) == run({"images": images.tolist()}) == answers
    assert [run({"images": images[number : number + 1]})[0] for number in range(6)] == answers


def test_strokes_sets_a_slanted_stroke_upright(entry):
    entry("strokes")
    descriptors = sys.modules["descriptors"]
    slanted = [[16.0 if column == 7 - row else 0.0 for column in range(8)] for row in range(8)]
    upright = descriptors.enlarged(images := np.asarray([slanted], dtype="float32"), descriptors.slants(images))
    ink = numpy.asarray(upright)[0].sum(axis=0)
    assert numpy.asarray(descriptors.slants(images)).tolist() == [-1.0]
    assert ink[6:10].sum() > 0.9 * ink.sum()


def test_strokes_solves_what_numpy_solves(entry):
    entry("strokes")
    random = numpy.random.default_rng(7)
    half, right = random.normal(size=(12, 9)), random.normal(size=(9, 4))
    found = sys.modules["discriminant"].solve(np.asarray(half.T @ half), np.asarray(right))
    numpy.testing.assert_allclose(numpy.asarray(found), numpy.linalg.solve(half.T @ half, right), rtol=1e-9)


def test_neighbours_finds_what_plain_distances_find(entry):
    """The matrix product's distances against the definition, image by image."""
    main = entry("neighbours")
    images = sys.modules["images"]
    value, _ = load_script("cases").cases("neighbours")[3]
    image = numpy.asarray(value["image"], float).reshape(8, 8)
    framed = numpy.pad(image, 1)
    moved = numpy.asarray(images.shifts([-0.5, 1.0])) @ image.ravel()
    down_half_right_whole = (framed[1:9, 0:8] + framed[2:10, 0:8]) / 2
    assert moved.reshape(4, 8, 8)[1].tolist() == down_half_right_whole.tolist()
    with open(TASKS / "neighbours/references.txt", encoding="ascii") as file:
        pixels, digits = images.read_references(file)
    every = (numpy.asarray(images.shifts(main.STEPS)) @ image.ravel()).reshape(-1, 1, 64)
    distances = ((every - numpy.asarray(pixels)) ** 2).sum(axis=2).min(axis=0)
    assert main.run({**value, "count": 1}) == digits[distances.argmin()]


def test_no_held_out_row_is_in_a_bundle():
    cases = load_script("cases")
    pixel = "0123456789abcdefg"
    known = {line.split()[0] for line in (TASKS / "neighbours/references.txt").read_text().splitlines()}
    asked = {"".join(pixel[ink] for ink in value["image"]) for value, _ in cases.cases("neighbours")}
    assert len(known) == cases.DIGITS_FOR_TRAINING and not known & asked
    training = {tuple(line.split(",")[:-1]) for line in (TASKS / "forest/training.csv").read_text().splitlines()}
    held_out = {tuple(row) for row, _ in cases.read_tumours()[cases.TUMOURS_FOR_TRAINING :]}
    assert len(training) == cases.TUMOURS_FOR_TRAINING and not training & held_out


def test_committed_files_are_what_prepare_makes():
    for path, text in load_script("prepare").files().items():
        committed = (TASKS / path).read_text(encoding="ascii")
        if path != "digits/model.json":
            assert committed == text, f"{path}: run python tasks/prepare.py"
            continue
        ours, prepared = json.loads(committed), json.loads(text)
        assert ours.keys() == prepared.keys()
        for one, other in zip(
            [*ours["weights"], ours["biases"]], [*prepared["weights"], prepared["biases"]], strict=True
        ):
            # another machine's linear algebra may round the last digit of an integer weight the other way
            assert len(one) == len(other) and all(abs(a - b) <= 1 for a, b in zip(one, other))


@pytest.mark.parametrize("name", LEARNED)
def test_each_folder_names_its_source_and_licence(name):
    text = (TASKS / name / "README.md").read_text(encoding="utf-8")
    assert "https://doi.org/10.24432/" in text
    assert "CC BY 4.0" in text


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in TASKS.glob("*/task.yaml")), ids=lambda path: path.name
)
def test_task_yaml_names_its_folder_and_files_that_exist(folder):
    spec = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
    assert spec["name"] == folder.name
    module, function = spec["entry"].split(":")
    assert f"def {function}(" in (folder / f"{module}.py").read_text(encoding="utf-8")
    assert all((folder / file).is_file() for file in (*spec.get("files", []), *spec.get("models", {}).values()))
