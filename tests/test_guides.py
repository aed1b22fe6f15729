"""The guides in docs/guides/, and the pages whose blocks need nothing that is not on the page: each is followed from
top to bottom (tests/pages.py), here in the checkout; tests/test_pages_from_a_wheel.py follows all from a wheel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages, warm

ROOT = Path(__file__).resolve().parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
SELF_CONTAINED = [ROOT / "docs" / f"{name}.md" for name in ("cli", "writing-tasks", "host", "pipeline", "streams")]


def runner(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder / "home"), "COLUMNS": "200"}

    def run(arguments, given):
        program, *arguments = pages.at_home(arguments, environment["HOME"])
        if program == "cp":
            shutil.copy(*(folder / one for one in arguments))
            return ""
        assert program in ("vmhost", "python"), program
        arguments = [*(["-m", "vmhost"] if program == "vmhost" else []), *arguments]
        if given is None:
            done = warm.run(*arguments, cwd=folder, env=environment, timeout=120, merged=True)
        else:
            done = subprocess.run(
                [sys.executable, *arguments],
                input=given,
                cwd=folder,
                env=environment,
                timeout=120,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}"
        return done.stdout

    return run


@pytest.mark.parametrize("page", [*GUIDES, *SELF_CONTAINED], ids=lambda page: page.stem)
def test_a_guide_can_be_followed(page, tmp_path):
    pages.follow(page.read_text(encoding="utf-8"), tmp_path, runner(tmp_path))


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```console\n$ python -c 'print(12)'\nthirteen\n```\n", "printed:  12"),
        ("```console\n$ python -c 'print(12)'\n```\n", "12"),
        ("```console\n$ python -c 'print(12)'\n13\n```\n", "printed:  12"),
        ("```console\n$ python -c 'print(1.3, \"KiB\")'\n2.7 KiB\n```\n", "printed:  1.3"),
        ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "SystemExit"),
        ("```yml\na: 1\n```\n", "neither a file"),
        ("```python\nraise SystemExit(3)\n```\n", "script_1.py"),
        ("```python\n# a/b.py\nprint(3)\n```\n```console\n$ python a/b.py\n4\n```\n", "printed:  3"),
    ],
)
def test_a_page_that_says_something_else_is_found(page, complaint, tmp_path):
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        pages.follow(page, tmp_path, runner(tmp_path))
