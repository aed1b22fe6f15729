"""`vmhost pipeline status`: the contents of a folder, and the state of its running pipeline."""

import time
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.pipeline import stores

_COUNTS = ("triggered", "stored", "retries", "dropped_by_overload", "dead_letters")


@click.command(short_help="Show the contents of a folder, and the state of its pipeline.")
@click.argument("folder", type=click.Path(path_type=Path))
@failures.command
def status(output, folder):
    """Show the contents of the store in FOLDER and, if a pipeline is running there, its state."""
    from vmhost.pipeline.control import ControlError, NotRunningError, ask

    with stores.stored(folder) as stored:
        held = stored.status()
    try:
        running = ask(folder, "status")
    except NotRunningError:
        running = None
    except ControlError as error:
        running = {"error": {"type": error.kind, "message": str(error)}}
    output.document({"stored": held, "running": running})
    _print_stored(output, folder, held)
    _print_running(output, folder, running)


def _print_stored(output, folder, held):
    events = held["events"]
    output.line(f"{folder}: {stores.size(held['bytes'])} on the disk", style="bold")
    span = ""
    if events["stored"]:
        span = f", from {stores.moment(events['earliest_ms'])} to {stores.moment(events['latest_ms'])}"
    output.line(f"  {events['stored']:,} events{span}; {events['dropped']:,} dropped by retention")
    counters = held["counters"]
    output.line(
        f"  {counters.get('intake.late', 0) + counters.get('intake.after_close', 0):,} came too late, "
        f"{counters.get('intake.after_exit', 0):,} in time but after their visit's exit (taken), "
        f"{counters.get('intake.duplicates', 0):,} twice; {held['bad_lines']:,} bad lines put aside"
    )
    outbox = held["outbox"]
    output.line(f"  {outbox['entries']:,} entries wait to leave, {stores.size(outbox['bytes'])}")
    letters = held["dead_letters"]
    rows = [
        (
            name,
            f"{one['rows']:,}",
            f"{letters.get(one['task'], 0):,}",
            f"{one['position']:,}",
            ", ".join(one["versions"]),
        )
        for name, one in held["tables"].items()
    ]
    if rows:
        output.table("", ("table", "rows>", "dead letters>", "done up to>", "versions"), rows)


def _print_running(output, folder, running):
    if running is None:
        output.line("no pipeline is running there")
        return
    if "error" in running:
        output.line(f"a pipeline is running there, but: {running['error']['message']}")
        return
    minutes, seconds = divmod(int(time.time() - running["since_ms"] / 1000), 60)
    output.line(f"at work: process {running['pid']}, for {minutes} min {seconds} s", style="bold")
    if running["store_error"]:
        output.line(f"  the store cannot be written: {running['store_error']}", style="red")
    for line in source_lines(running["sources"]):
        output.line(f"  {line}")
    output.table("", TASK_COLUMNS, task_rows(running["tasks"]))


TASK_COLUMNS = ("task", "triggered>", "unfinished>", "stored>", "retries>", "dropped>", "dead letters>")


def task_rows(tasks):
    """The rows of a table with TASK_COLUMNS, from `Pipeline.statistics()["tasks"]`."""
    rows = []
    for name, task in tasks.items():
        triggered, *others = (f"{task[count]:,}" for count in _COUNTS)
        rows.append((name, triggered, f"{task['unfinished']:,}", *others))
    return rows


_WAITS = {"queues": "waits: the tasks' queues are full", "disk": "waits: the disk is full"}


def source_lines(sources):
    """A sentence about each source, from `Sources.statistics()`."""
    for name, source in sources.items():
        text = f"{name}: {source['taken']:,} events taken"
        if source["aside"]:
            text += f", {source['aside']:,} bad lines put aside"
        if source.get("refused"):
            text += f", {source['refused']:,} requests refused"
        if source.get("url"):
            text += f"; POST {source['url']}"
        if source["waits"]:
            text += f"; {_WAITS[source['waits']]}"
        yield text
