"""Numerical scripts in ordinary NumPy: the same results with NumPy, with `engine.numpy` in the host, and in a sealed VM, unchanged but
for the import."""

from pathlib import Path

import numpy
import pytest

import vmhost
from bytecode.compiler import compile_task
from tasks.cases import read_digits

TASKS = Path(__file__).resolve().parents[2] / "tasks"
SCRIPTS = ("clusters", "tracking", "bank", "regression")


def value(name):
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


def run(name, module):
    """The script's answer in this process, with `module` imported as np."""
    source = (TASKS / name / "main.py").read_text()
    assert source.count("import engine.numpy as np\n") == 1
    names = {"__name__": name}
    exec(compile(source.replace("import engine.numpy as np\n", f"import {module} as np\n"), f"{name}.py", "exec"), names)
    return names["run"](value(name))


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
    return {name: run(name, "numpy") for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_with_the_engine_in_the_host(name, answers):
    same(run(name, "engine.numpy"), answers[name])


def test_in_sealed_vms(answers, tmp_path):
    with vmhost.Host(allow_unsigned=True) as host:
        for name in SCRIPTS:
            bundle = tmp_path / f"{name}.vmb"
            bundle.write_bytes(compile_task(TASKS / name, strict=True).to_bytes())
            same(host.load(bundle)(value(name)), answers[name])


def test_the_answers_are_good(answers):
    assert answers["clusters"]["purity"] > 0.6
    assert answers["tracking"]["smoothed"] < answers["tracking"]["filtered"] < answers["tracking"]["seen"]
    assert answers["tracking"]["within"] > 0.9
    assert answers["bank"]["difference"] < 1e-12 and (numpy.diff(answers["bank"]["loudest"]) >= 0).all()
    assert answers["regression"]["accuracy"] > 0.8 and answers["regression"]["losses"][-1] < 0.1


def test_the_scripts_are_of_a_size_to_mean_something():
    assert sum(len((TASKS / name / "main.py").read_text().splitlines()) for name in SCRIPTS) >= 200
