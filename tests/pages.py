"""Follows a page of the docs from top to bottom in a folder of its own, as a reader would.

| block | |
| --- | --- |
| its first line is a comment with a path | becomes that file |
| `python` | is a program, and runs |
| `console` | its commands run, and print what stands below them; `…` is anything. Whole numbers below 100 are as on the page, others within a factor of two |
| `py`, `yaml`, `text`, `sh` | is shown: a part of a program or of a file, output, or what needs a network, a server or the checkout |
"""  # noqa: E501

import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("py", "yaml", "json", "text", "sh")
_BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")


def blocks(text):
    """(kind, text) of each block of code. Directives of the site, ```{…}, are none."""
    return [(kind, block) for kind, block in _BLOCK.findall(text) if not kind.startswith("{")]


def is_followed(kind, block):
    """Does `follow` do something with the block? Else it is shown only."""
    return kind in ("python", "console") or _FILE.match(block) is not None


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


def follow(text, folder, run):
    """Follows the page `text` in `folder`. `run(arguments, given)`: what the program prints, to which `given` is the
    standard input, None for none; AssertionError where it fails. AssertionError too for the first command that prints
    something else."""
    scripts = 0
    for kind, block in blocks(text):
        if named := _FILE.match(block):
            assert not named[1].startswith("/"), f"{named[1]}: a path outside of the reader's folder"
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
        elif kind == "console":
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *expected = part.splitlines()
                command = command.partition("  #")[0]
                printed = None
                for one in command.split(" | "):
                    printed = run(shlex.split(one), printed)
                lines = printed.rstrip().splitlines()
                for line, wanted in zip(lines, expected):
                    assert agrees(line, wanted), f"{command}\nprinted:  {line}\nthe page: {wanted}"
                if expected[-1:] != ["…"]:
                    assert len(lines) == len(expected), f"{command}\n" + "\n".join(lines)
        elif kind == "python":
            scripts += 1
            (folder / f"script_{scripts}.py").write_text(block)
            run(["python", f"script_{scripts}.py"], None)
        else:
            assert kind in SHOWN, f"neither a file, a program, a console, nor one of {', '.join(SHOWN)}:\n{block}"


def at_home(arguments, home):
    """The arguments, with the path of the home folder for `~/`."""
    return [f"{home}/{one[2:]}" if one.startswith("~/") else one for one in arguments]


def run_in(folder, environment):
    """A function for `follow` that runs the programs of the environment variables' PATH in `folder`."""

    def run(arguments, given):
        done = subprocess.run(
            at_home(arguments, environment["HOME"]),
            cwd=folder,
            env=environment,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}"
        return done.stdout

    return run
