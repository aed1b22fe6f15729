"""The guides in docs/guides/: each page is followed from top to bottom in a folder of its own, as a reader would.

A block whose first line is a comment with a path becomes that file. The commands of a `console` block run, and print
what stands below them, but for numbers; `…` is anything. Blocks of `sh` are shown only: set-up, or what needs the
network."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).resolve().parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.(?:py|yaml))\n")


def run(command, folder):
    program, *arguments = shlex.split(command)
    assert program in ("vmhost", "python"), command
    done = warm.run(
        *(["-m", "vmhost"] if program == "vmhost" else []),
        *arguments,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "VMHOST_KEYS": str(folder / "keys"), "COLUMNS": "200"},
        timeout=120,
        merged=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def as_pattern(line):
    """A pattern of the lines that may be printed: numbers may differ from the page's, and `…` matches anything."""
    pieces = re.split(r"(…|\d[\d,]*(?:\.\d+)?)", line)
    return "".join(
        ".*" if piece == "…" else r"\d[\d,.]*" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces)
    )


def follow(text, folder):
    """Follows the page `text` in `folder`. AssertionError for the first command that prints something else."""
    for kind, block in _BLOCK.findall(text):
        if kind == "console":
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *expected = part.splitlines()
                printed = run(command, folder).rstrip().splitlines()
                for line, wanted in zip(printed, expected):
                    assert re.fullmatch(as_pattern(wanted), line), f"{command}\nprinted:  {line}\nthe page: {wanted}"
                assert len(printed) == len(expected), f"{command}\n" + "\n".join(printed)
        elif named := _FILE.match(block):
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
        else:
            assert kind == "sh", f"neither a file, a console nor `sh`:\n{block}"


@pytest.mark.parametrize("page", GUIDES, ids=[page.stem for page in GUIDES])
def test_a_guide_can_be_followed(page, tmp_path):
    (tmp_path / "tasks").symlink_to(ROOT / "tasks")
    follow(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```console\n$ python -c 'print(12)'\nthirteen\n```\n", "printed:  12"),
        ("```console\n$ python -c 'print(12)'\n```\n", "12"),
        ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "SystemExit"),
        ("```yaml\na: 1\n```\n", "neither a file"),
    ],
)
def test_a_page_that_says_something_else_is_found(page, complaint, tmp_path):
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        follow(page, tmp_path)
