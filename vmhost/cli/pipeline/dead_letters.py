"""`vmhost pipeline dead-letters`: the calls that were given up."""

from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.pipeline import stores


@click.command(short_help="Show the calls that were given up, and why.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many, the latest.")
@failures.command
def dead_letters(output, folder, name, limit):
    """Show the calls that were given up, of all stream tasks or of NAME: error, traceback, and (with --json) the input
    of the call."""
    stores.flushed(folder)
    with stores.stored(folder) as stored:
        found = stored.dead_letters(name)[-limit:]
    output.document([{**one._asdict(), "event": stores.plain(one.event)} for one in found])
    for one in found:
        output.line(f"{one.task} {one.version}, event at {one.position}, {stores.moment(one.stored_ms)}", style="bold")
        whose = f"; key {stores.printable(one.key)}" if one.key else ""
        output.line(f"  {stores.printable(one.error)}; {one.tries} tries{whose}")
        for line in one.traceback.rstrip().splitlines():
            output.line(f"  {stores.printable(line)}")
    if not found:
        output.line("no dead letters")
