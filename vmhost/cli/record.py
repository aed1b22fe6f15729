"""`vmhost record`: runs a program in plain Python and records the source texts that packages compile in the functions
given to its VMExecutors."""

import os
import subprocess
import sys
from pathlib import Path

import click

from vmhost.cli import failures


@click.command(
    short_help="Run PROGRAM, and record the source texts that its VMs will need.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("program", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(program, arguments):
    """Run a PROGRAM that uses VMExecutor in plain Python.

    Every source text that packages compile in its functions is written to PROGRAM.recorded.json next to it, and sent to
    its VMs from then on. ARGUMENTS are the program's.
    """
    if not program.is_file():
        advice = failures.did_you_mean(program) if not program.exists() else ": is no file"
        raise click.UsageError(f"{program}: no such program{advice}; give a Python file")
    if program.suffix != ".py":
        raise click.UsageError(f"{program}: expected a Python file, NAME.py")
    from vmhost.runtime.program_packages import record_path

    environment = {**os.environ, "VMHOST_RECORD": "1"}
    record = record_path(program)
    before = _state(record)
    done = subprocess.run([sys.executable, str(program), *arguments], env=environment)
    if done.returncode < 0:
        raise click.ClickException(f"{program}: ended by signal {-done.returncode}; {record} was not written")
    if done.returncode == 0 and _state(record) == before:
        raise click.ClickException(f"{record}: was not written; did {program} make no VMExecutor, or fail above?")
    return failures.TASK_FAILED if done.returncode else failures.DONE


def _state(path):
    """A value that differs when the file was written again."""
    if not path.is_file():
        return None
    state = path.stat()
    return state.st_ino, state.st_mtime_ns, state.st_size
