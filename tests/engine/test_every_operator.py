"""No operator of the engine's headers is missing in the tests that call them all from C: whoever adds one is told where it belongs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPERATOR = re.compile(r"^VME_API vme_status (vme_\w+)\(vme_context \*context,([^;]*)\);", re.MULTILINE)


def operators():
    """Functions of a context and tensors, and what runs models."""
    found = {name for header in (ROOT / "engine" / "include").glob("vme*.h") for name, parameters in OPERATOR.findall(header.read_text())
             if "vme_tensor" in parameters or "vme_region" in parameters}
    assert len(found) > 25
    return found


@pytest.mark.parametrize("path", ["tests/native/engine/test_fuzz.c", "tests/native/engine/test_polls.c", "tests/engine/stack.c"])
def test_every_operator_is_called(path):
    text = re.sub(r"/\*.*?\*/", "", (ROOT / path).read_text(), flags=re.DOTALL)
    called = set(re.findall(r"\b(vme_\w+)\b", text))
    assert sorted(operators() - called) == []
