"""A process whose working folder was removed: what needs it says so in one line."""

import subprocess
import sys

import pytest

from tests.hosts import ROOT

PROGRAM = """
import os
import vmhost
import vmhost.engine.numpy as np
from vmhost.engine import runs
from vmhost.engine.embedding import EmbeddingVariable, SSDStorage, restore, save

os.rmdir(os.getcwd())

def own(value):
    return value + 1

def outcome(act):
    try:
        return act()
    except (vmhost.VMHostError, OSError) as error:
        return f"{type(error).__name__}: {error}"

def pool(call, **options):
    with vmhost.VMExecutor(max_workers=1, **options) as executor:
        return call(executor)

def table(**options):
    return EmbeddingVariable(2, optimizer="sgd", name="items", **options)

if __name__ == "__main__":
    for act in (
        lambda: pool(lambda executor: executor.submit(len, "abc").result()),
        lambda: pool(lambda executor: executor.submit(own, 1).result()),
        lambda: pool(len, permissions={"read": ["data"]}),
        lambda: save([table()], "there"),
        lambda: restore([table()], "there"),
        lambda: table(storage=SSDStorage("there", memory=1 << 20, quota=32 << 20)),
        lambda: runs.save("there", {"weight": np.zeros(2)}),
    ):
        print(outcome(act))
"""


def test_what_needs_it_says_that_it_is_gone(tmp_path):
    script, gone = tmp_path / "program.py", tmp_path / "gone"
    script.write_text(PROGRAM)
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, script],
        cwd=gone,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == "3"  # it needs no folder
    assert len(others) == 6
    for line in others:
        assert "the working folder of this process was removed: change to another" in line, line


@pytest.mark.parametrize("arguments", [["init", "."], ["run", "task.vmb"], ["bench", "nothing"]])
def test_commands_end_with_one_line(tmp_path, arguments):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); from vmhost.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=gone,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    if arguments[0] == "init":
        assert done.stderr == "vmhost: the working folder was removed; go to one that exists\n"
