"""Numerical scripts in ordinary NumPy: the same results with NumPy, with `vmhost.engine.numpy` in the host, and in a
sealed VM, unchanged but for the import."""

from pathlib import Path

import numpy
import pytest

import vmhost
from tasks.cases import read_digits, read_tumours
from vmhost.compiler import compile_folder

TASKS = Path(__file__).resolve().parents[2] / "tasks"
SCRIPTS = ("clusters", "tracking", "bank", "regression")
CALLS = (*SCRIPTS, "tumours")  # regression once more, on the other data set


def value(name):
    if name == "tumours":
        rows = read_tumours()
        measured = numpy.array([row for row, _ in rows], dtype=float)
        kinds = numpy.array([kind for _, kind in rows])
        return {
            "images": measured[:400],
            "labels": kinds[:400],
            "asked": measured[400:],
            "truth": kinds[400:],
            "seed": 5,
        }
    if name == "tracking":
        return {"count": 150, "seed": 3}
    if name == "bank":
        return {"seconds": 0.5, "octaves": 5, "seed": 4}
    rows = read_digits()
    images, labels = (numpy.array(column) for column in zip(*rows[:500], strict=True))
    if name == "clusters":
        return {"images": images, "labels": labels, "seed": 1}
    asked, truth = (numpy.array(column) for column in zip(*rows[1500:1600], strict=True))
    return {"images": images, "labels": labels, "asked": asked, "truth": truth, "seed": 2}


def run(call, module):
    """The script's answer in this process, with `module` imported as np."""
    name = folder(call)
    source = (TASKS / name / "main.py").read_text()
    assert source.count("import vmhost.engine.numpy as np\n") == 1
    names = {"__name__": name}
    exec(
        compile(source.replace("import vmhost.engine.numpy as np\n", f"import {module} as np\n"), f"{name}.py", "exec"),
        names,
    )
    return names["run"](value(call))


def folder(call):
    return "regression" if call == "tumours" else call


def same(got, wanted):
    assert got.keys() == wanted.keys()
    for key, right in wanted.items():
        found = numpy.asarray(got[key])
        if found.dtype.kind in "iub":
            numpy.testing.assert_array_equal(found, right, err_msg=key)
        else:
            numpy.testing.assert_allclose(found, right, rtol=1e-7, atol=1e-9, err_msg=key)


@pytest.fixture(scope="module")
def answers():
    return {name: run(name, "numpy") for name in CALLS}


@pytest.mark.parametrize("name", CALLS)
def test_with_the_engine_in_the_host(name, answers):
    same(run(name, "vmhost.engine.numpy"), answers[name])


def test_in_sealed_vms(answers, tmp_path):
    with vmhost.Host(allow_unsigned=True) as host:
        for name in SCRIPTS:
            bundle = tmp_path / f"{name}.vmb"
            bundle.write_bytes(compile_folder(TASKS / name, strict=True).to_bytes())
            task = host.load(bundle)
            for call in CALLS:
                if folder(call) == name:
                    same(task(value(call)), answers[call])


def test_groups_are_digits(answers):
    found = answers["clusters"]
    assert found["purity"] > 0.75 and 0.6 < found["adjusted_rand"] < found["information"] < 1
    assert found["table"].sum() == 500 and (numpy.bincount(found["groups"]) == found["table"].sum(axis=1)).all()
    assert found["silhouettes"].max() == pytest.approx(found["silhouette"].mean())
    nearest = numpy.array(read_digits()[found["exemplars"][0]][0])
    assert numpy.abs(nearest - found["centres"][0]).mean() < 3  # ink from 0 to 16


def test_the_path_is_found_again(answers):
    found = answers["tracking"]
    assert found["smoothed"] < found["filtered"] < found["seen"] / 2
    assert found["within"] > 0.9 and found["caught"] > 0.9
    assert (numpy.diff(found["likelihoods"]) > 0).all() and found["blur"] == pytest.approx(0.8, rel=0.1)
    assert found["consistency"] == pytest.approx(1, abs=0.2) and numpy.abs(found["whiteness"]).max() < 0.2


def test_the_bank_hears_what_was_played(answers):
    found = answers["bank"]
    assert max(found["rebuilt"], found["by_parts"], found["by_blocks"]) < 1e-13
    assert (numpy.diff(found["loudest"]) <= 0).all() and len(set(found["loudest"])) == 5
    assert found["pitch_error"] < 0.01 and found["stop_band"] < -80
    assert numpy.allclose(found["delay"], 64)  # of a symmetric filter: half its length


def test_classes_are_told_and_chances_mean_what_they_say(answers):
    for call, accuracy, error, area in (("regression", 0.85, 0.08, 0.9), ("tumours", 0.95, 0.05, 0.99)):
        found = answers[call]
        assert found["accuracy"] > accuracy and found["calibration_error"] < error and found["areas"].min() > area
        assert (numpy.diff(found["losses"]) <= 0).all() and found["validation"].min() < found["validation"].max()
        assert found["confusion"].trace() / found["confusion"].sum() == pytest.approx(found["accuracy"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_is_of_a_size_to_mean_something(name):
    assert len((TASKS / name / "main.py").read_text().splitlines()) >= 200
