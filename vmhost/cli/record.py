"""`vmhost record`: runs a program in plain Python and keeps the texts that packages compile in the functions that it
gives to its VMExecutors."""

import os
import subprocess
import sys
from pathlib import Path

import click

from vmhost.cli import failures


@click.command(
    short_help="Run PROGRAM, and keep the texts that its VMs will need.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("program", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(program, arguments):
    """Run a PROGRAM that has a VMExecutor, in plain Python.

    Every text that packages compile in its functions is written to PROGRAM.recorded.json beside it, and travels to its
    VMs from then on. ARGUMENTS are the program's.
    """
    if not program.is_file():
        advice = failures.did_you_mean(program) if not program.exists() else ": is no file"
        raise click.UsageError(f"{program}: no such program{advice}; give a Python file")
    if program.suffix != ".py":
        raise click.UsageError(f"{program}: expected a Python file, NAME.py")
    environment = {**os.environ, "VMHOST_RECORD": "1"}
    done = subprocess.run([sys.executable, str(program), *arguments], env=environment)
    return failures.TASK_FAILED if done.returncode else failures.DONE
