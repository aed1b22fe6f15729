"""No operator of the engine's headers is missing in the tests that call them all from C: a failure names the place for
a new one."""

import importlib
import re
from pathlib import Path

import pytest

from tests.engine.library import library

ROOT = Path(__file__).parents[2]
OPERATOR = re.compile(r"^VME_API vme_status (vme_\w+)\(vme_context \*context,([^;]*)\);", re.MULTILINE)


def operators():
    """Functions of a context and tensors, but for those of embedding tables."""
    found = {
        name
        for header in (ROOT / "engine" / "include").glob("vme*.h")
        for name, parameters in OPERATOR.findall(header.read_text())
        if ("vme_tensor" in parameters or "vme_region" in parameters) and "vme_embedding" not in parameters
    }
    assert len(found) > 25
    return found


def of_tables():
    text = (ROOT / "engine" / "include" / "vme_embedding.h").read_text()
    found = set(re.findall(r"^VME_API [\w *]*?\b(vme_embedding_\w+)\(", text, re.MULTILINE))
    assert len(found) > 15
    return found


RUNS = {"vme_session_new", "vme_session_run"}  # all operators of models are within


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("tests/native/engine/test_fuzz.c", operators()),
        ("tests/native/engine/test_polls.c", operators() | RUNS),
        ("tests/engine/stack.c", operators() | RUNS),
        ("tests/native/engine/test_model.c", RUNS),
        ("tests/native/engine/test_embedding.c", of_tables()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_operator_is_called(path, wanted):
    text = re.sub(r"/\*.*?\*/", "", (ROOT / path).read_text(), flags=re.DOTALL)
    called = set(re.findall(r"\b(vme_\w+)\b", text))
    assert sorted(wanted - called) == []


# The tests that compare operators' values with NumPy's. Files of whole programs, models and linear algebra
# repeat some of them.
OF_VALUES = (
    "array_expressions",
    "arrays_against_numpy",
    "bits",
    "copy",
    "elementwise",
    "fft",
    "index",
    "matmul",
    "padding",
    "random",
    "random_generator",
    "reduce",
    "scan",
    "sort",
    "tables",
    "transform",
)


@pytest.mark.parametrize("name", OF_VALUES)
def test_every_operator_test_runs_on_each_backend(name):
    module = importlib.import_module(f"tests.engine.test_{name}")
    marks = module.pytestmark if isinstance(module.pytestmark, list) else [module.pytestmark]
    assert any(mark.name == "usefixtures" and "backend" in mark.args for mark in marks)


def test_the_fixture_forces_the_backend(backend):
    assert library.vme_backend_current() == backend
