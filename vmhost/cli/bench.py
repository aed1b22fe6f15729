"""`vmhost bench`: runs the checkout's `bench/`, which measures against what a user would pick instead.

The measurements are no part of the installed package: they compare with the tasks and tools of the checkout.
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
    # All arguments, --help and --json too, are for bench/ itself: one place says which there are.
    try:
        root = checkout()
    except failures.Failure as failure:
        raise click.UsageError(failure.message) from failure
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root).returncode


def checkout():
    """The root of the checkout that this package, or the current folder, is in."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / "bench" / "__main__.py").is_file():
            return root
    raise failures.Failure(
        "the measurements are in bench/ of the project's checkout, which is not here; go there and run it again"
    )
