"""The guides in docs/guides/: each page is followed from top to bottom in a folder of its own, as a reader would.

A block whose first line is a comment with a path becomes that file. The commands of a `console` block run, and print
what stands below them; `…` is anything. Whole numbers below 100 are as on the page, others within a factor of two.
Blocks of `sh` are shown only: set-up, or what needs the network."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).resolve().parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FILE = re.compile(r"# ([\w/]+\.(?:py|yaml))\n")


def run(command, folder):
    """What `command` prints: `vmhost` or `python` with arguments, or two of them with ` | ` between."""
    printed = None
    for part in command.split(" | "):
        program, *arguments = shlex.split(part)
        assert program in ("vmhost", "python"), command
        arguments = [*(["-m", "vmhost"] if program == "vmhost" else []), *arguments]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "VMHOST_KEYS": str(folder / "keys"),
            "COLUMNS": "200",
        }
        if printed is None:
            done = warm.run(*arguments, cwd=folder, env=environment, timeout=120, merged=True)
        else:
            done = subprocess.run(
                [sys.executable, *arguments],
                input=printed,
                cwd=folder,
                env=environment,
                timeout=120,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        printed = done.stdout
    return printed


def agrees(line, wanted):
    """May `line` be printed where the page has `wanted`? How long a call waited for a VM depends on the machine."""
    line = re.sub(r", of which it waited \S+ s for a VM", "", line)
    pieces = re.split(rf"(…|{_NUMBER.pattern})", wanted)
    pattern = "".join(
        "(?:.*)" if piece == "…" else f"({_NUMBER.pattern})" if i % 2 else re.escape(piece)
        for i, piece in enumerate(pieces)
    )
    found = re.fullmatch(pattern, line)
    return found is not None and all(map(_near, found.groups(), filter(_NUMBER.fullmatch, pieces[1::2])))


def _near(number, wanted):
    number, wanted = number.replace(",", ""), wanted.replace(",", "")
    if number.isdigit() and wanted.isdigit() and int(wanted) < 100:
        return int(number) == int(wanted)
    return float(wanted) / 2 <= float(number) <= float(wanted) * 2


def follow(text, folder):
    """Follows the page `text` in `folder`. AssertionError for the first command that prints something else."""
    for kind, block in _BLOCK.findall(text):
        if kind == "console":
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *expected = part.splitlines()
                printed = run(command, folder).rstrip().splitlines()
                for line, wanted in zip(printed, expected):
                    assert agrees(line, wanted), f"{command}\nprinted:  {line}\nthe page: {wanted}"
                assert len(printed) == len(expected), f"{command}\n" + "\n".join(printed)
        elif named := _FILE.match(block):
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
        else:
            assert kind == "sh", f"neither a file, a console nor `sh`:\n{block}"


@pytest.mark.parametrize("page", GUIDES, ids=[page.stem for page in GUIDES])
def test_a_guide_can_be_followed(page, tmp_path):
    follow(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```console\n$ python -c 'print(12)'\nthirteen\n```\n", "printed:  12"),
        ("```console\n$ python -c 'print(12)'\n```\n", "12"),
        ("```console\n$ python -c 'print(12)'\n13\n```\n", "printed:  12"),
        ("```console\n$ python -c 'print(1.3, \"KiB\")'\n2.7 KiB\n```\n", "printed:  1.3"),
        ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "SystemExit"),
        ("```yaml\na: 1\n```\n", "neither a file"),
    ],
)
def test_a_page_that_says_something_else_is_found(page, complaint, tmp_path):
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        follow(page, tmp_path)
