"""`vmhost bench`: runs the checkout's `bench/`, which compares with what a user would pick instead.

The measurements are not in the installed package: they need the tasks and tools of the checkout.
"""

import subprocess
import sys
from pathlib import Path

import click

from vmhost.cli import failures


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments):
    """Measure VMs against threads, processes and InterpreterPool."""
    # All arguments, even --help and --json, go to bench/ itself, which defines them.
    try:
        root = checkout()
    except failures.Failure as failure:
        raise click.UsageError(failure.message) from failure
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root).returncode


def checkout():
    """The root of the checkout that has this package or the current folder."""
    for root in (Path(__file__).resolve().parents[2], Path()):
        if (root / "bench" / "__main__.py").is_file():
            return root.absolute()
    raise failures.Failure(
        "the measurements are in bench/ of the project's checkout, which is not here; go there and run it again"
    )
