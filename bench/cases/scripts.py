"""Whole numerical scripts, unchanged but for the import: in a VM and in the host with `vmhost.engine.numpy`, against
NumPy."""

import numpy

from bench import contenders
from bench.functions import ROOT, load
from bench.measure import Result, interleaved, seconds
from tasks.cases import DIGITS_FOR_TRAINING, read_digits


def _values():
    rows = read_digits()
    images, labels = (numpy.array(column) for column in zip(*rows[:DIGITS_FOR_TRAINING]))
    asked, truth = (numpy.array(column) for column in zip(*rows[DIGITS_FOR_TRAINING:]))
    return {
        "clusters": ("k-means and whitened principal components", {"images": images, "labels": labels}),
        "tracking": ("Kalman filter and smoother", {"count": 400}),
        "bank": ("bank of FIR filters", {"seconds": 4.0}),
        "regression": ("logistic regression", {"images": images, "labels": labels, "asked": asked, "truth": truth}),
    }


def _with_numpy(name):
    """The script's entry function, with NumPy instead of the engine."""
    source = (ROOT / "tasks" / name / "main.py").read_text()
    names = {"__name__": name}
    exec(compile(source.replace("import vmhost.engine.numpy as np", "import numpy as np"), f"{name}.py", "exec"), names)
    return names["run"]


def run(quick):
    rounds = 3 if quick else 15
    results = []
    with contenders.host(max_vms=1) as host:
        for name, (title, value) in _values().items():
            task, ours, theirs = host.load(contenders.bundle(name)), load(name), _with_numpy(name)
            measures = {
                "in a VM": lambda: 1000 * seconds(lambda: task(value)),
                "in the host": lambda: 1000 * seconds(lambda: ours(value)),
                "NumPy": lambda: 1000 * seconds(lambda: theirs(value)),
                "NumPy again": lambda: 1000 * seconds(lambda: theirs(value)),
            }
            figures = interleaved(measures, rounds, "ms", "less")
            ratio, itself = (
                figures[contender].advantage_over(figures["NumPy"]) for contender in ("in a VM", "NumPy again")
            )
            results.append(
                Result(
                    f"script: {title}",
                    figures,
                    promises=(
                        (
                            f"{ratio:.2f}x NumPy (reach 1, less the spread of NumPy against itself: {itself:.2f}x)",
                            ratio >= min(1, itself),
                        ),
                    ),
                )
            )
    return results
