"""`vmhost pipeline`: run stream tasks over events, and show what they have stored."""

import contextlib
import sys
from pathlib import Path

import click

from vmhost.cli import failures, keys

_BATCH = 100  # events that are taken in one transaction, where they come from a file


@click.group()
def command():
    """Store events, trigger stream tasks, and show what they made."""


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--events", "source", default="-", help="A file of events, one JSON object a line; - is stdin. [default: -]"
)
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to trust. [default: vmhost keys trust]"
)
@click.option("--allow-unsigned", is_flag=True, help="Load bundles that nobody signed.")
@click.option("--keep-visits", is_flag=True, help="At the end, leave visits without exit open for the next run.")
@failures.command
def run(output, folder, bundles, source, trust, allow_unsigned, keep_visits):
    """Take events into the store in FOLDER, and run the stream tasks in BUNDLES that they trigger.

    Events are lines of JSON: {"name": "click", "time_ms": 1790000000000, "page": "item", "visit": "v1"}, and any of
    contents, id, key. The command ends with the events, when all calls have ended.
    """
    from vmhost.pipeline.pipeline import Pipeline

    with _store_errors(), contextlib.ExitStack() as stack:
        lines = stack.enter_context(_lines(source))
        pipeline = Pipeline(folder, bundles, trust=keys.trust_store(trust), allow_unsigned=allow_unsigned)
        stack.push(pipeline)
        for batch in _batches(lines, source):
            pipeline.append_many(batch)
        pipeline.close(keep_visits=keep_visits)
        figures = pipeline.final
    output.document(figures)
    columns = ("task", "triggered>", "stored>", "retries>", "dropped>", "dead letters>")
    named = ("triggered", "stored", "retries", "dropped_by_overload", "dead_letters")
    rows = [(name, *(f"{task[each]:,}" for each in named)) for name, task in figures["tasks"].items()]
    output.table("", columns, rows)
    intake = figures["intake"]
    output.line(
        f"{figures['position']:,} events in {folder}; {intake['late'] + intake['after_close']:,} late, "
        f"{intake['duplicates']:,} duplicates; rows: vmhost pipeline table {folder} NAME"
    )
    return failures.TASK_FAILED if any(task["dead_letters"] for task in figures["tasks"].values()) else failures.DONE


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("name")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many rows.")
@failures.command
def table(output, folder, name, limit):
    """Show the rows that the stream task NAME has stored, the latest first."""
    from vmhost.pipeline.pipeline import rows_in

    with _store_errors():
        try:
            columns, rows = rows_in(folder, name, limit)
        except KeyError as error:
            raise failures.Failure(error.args[0]) from None
    output.document([dict(zip(columns, map(_plain, row))) for row in rows])
    output.table(name, columns, [[_shown(value) for value in row] for row in rows])


@contextlib.contextmanager
def _store_errors():
    from vmhost.stores import StoreError

    try:
        yield
    except StoreError as error:
        raise failures.Failure(str(error), failures.HOST_FAILED, type(error).__name__) from error


@contextlib.contextmanager
def _lines(source):
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(source, "rb")
    except OSError as error:
        advice = failures.did_you_mean(Path(source))
        raise failures.Failure(f"{source}: cannot be read: {error.strerror}{advice}") from error
    with file:
        yield file


def _batches(lines, source):
    """Lists of Events. Those before a line that is none are given before the Failure."""
    most = 1 if source == "-" else _BATCH  # who pipes events in wants each to count at once
    batch = []
    for number, line in enumerate(lines, 1):
        try:
            batch += [_event(line, source, number)] if line.strip() else []
        except failures.Failure:
            yield batch
            raise
        if len(batch) >= most:
            yield batch
            batch = []
    yield batch


def _event(line, source, number):
    import msgspec

    from vmhost.pipeline.events import Event

    try:
        return msgspec.json.decode(line, type=Event)
    except (msgspec.MsgspecError, ValueError) as error:
        where = "stdin" if source == "-" else source
        raise failures.Failure(f"{where}:{number}: not an event: {error}; the events before it were taken") from None


def _plain(value):
    return value.hex() if isinstance(value, bytes) else value


def _shown(value):
    text = f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"
