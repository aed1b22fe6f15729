"""`vmhost test`: runs the tests in task folders, each folder in a process of its own.

In one process, the tests of all tasks would import the first task's `main`.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import click

from vmhost.cli import failures


@click.command(short_help="Run the tests in task FOLDERs.")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER...")
@failures.command
def command(output, folders):
    """Run the tests (test*.py) in each task FOLDER in a process of its own: with pytest where it is installed, else
    with unittest. Exit code 1 if one fails."""
    for folder in folders:
        if not (folder / "task.yaml").is_file():
            raise failures.Failure(f"{folder}: no task folder, it has no task.yaml{failures.did_you_mean(folder)}")
        if not any(folder.rglob("test*.py")):
            raise failures.Failure(f"{folder}: no test*.py in it; docs/guides/test-a-task.md has an example")
    if importlib.util.find_spec("pytest") is not None:
        runner = ["pytest", "-q", "--rootdir=."]
    else:
        runner = ["unittest", "discover"]
    results = []
    for folder in folders:
        done = subprocess.run(
            [sys.executable, "-m", *runner],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )
        results.append({"folder": str(folder), "passed": done.returncode == 0, "output": done.stdout})
        output.line(f"{folder}: {_ending(done.returncode)}\n{done.stdout.rstrip()}")
    output.document({"tasks": results})
    return failures.DONE if all(result["passed"] for result in results) else failures.TASK_FAILED


def _ending(status):
    """What a process of tests says by its status. One that did not end by itself has printed no reason."""
    if status < 0:
        return f"FAILED, ended by signal {-status}"
    return "passed" if status == 0 else "FAILED" if status == 1 else f"FAILED, with status {status}"
