"""A task as an author writes it, with most of what the standard library offers: a sealed VM answers what plain Python
answers.

`desk/` is its folder. Each section of it gives a list of values, as text; sections are compared one by one.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.format import TARGET

FOLDER = Path(__file__).parent / "desk"
IN_PLAIN_PYTHON = "import json, sys, main; json.dump(main.run(None), sys.stdout)"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The output of plain Python and of a VM: two dicts of section to list of text."""
    bundle = tmp_path_factory.mktemp("desk") / "desk.vmb"
    compiled = compile_task(FOLDER, target=TARGET, strict=True)
    bundle.write_bytes(compiled.to_bytes())
    # -B: nothing is left in the folder
    plain = subprocess.run(
        [sys.executable, "-B", "-c", IN_PLAIN_PYTHON], cwd=FOLDER, capture_output=True, text=True, timeout=120
    )
    assert plain.returncode == 0, plain.stderr
    with vmhost.Host(allow_unsigned=True) as host:
        return json.loads(plain.stdout), host.load(bundle)(None)


SECTIONS = (
    "enums",
    "tuples",
    "classes",
    "typings",
    "functions",
    "texts",
    "numbers",
    "times",
    "databases",
    "logs",
    "contexts",
    "tracebacks",
    "matches",
    "threads",
    "asyncios",
    "documents",
    "objects",
)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_vm_answers_what_plain_python_answers(answers, section):
    plain, in_a_vm = answers
    assert not plain[section][0].startswith("FAILED"), plain[section]
    assert in_a_vm[section] == plain[section]


def test_every_section_is_compared(answers):
    assert set(answers[0]) == set(answers[1]) == set(SECTIONS)
