"""`vmhost pipeline events`: stored events, late ones, and lines that were not events."""

from pathlib import Path

import click
import msgspec

from vmhost.cli import failures
from vmhost.cli.pipeline import stores


@click.command(short_help="Show stored events, late ones, or lines that were set aside.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many, the latest.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--name", help="Only events of this name, such as click.")
@click.option("--visit", help="Only events of this visit of a page.")
@click.option("--page", help="Only events of this page.")
@click.option("--key", help="Only events of this person or thing.")
@click.option("--since", metavar="MOMENT", help="Only events at this time or later, such as 2026-11-25T10:30.")
@click.option("--until", metavar="MOMENT", help="Only events before this time.")
@click.option("--late", is_flag=True, help="Refused events: too late, or of a visit that is over.")
@click.option("--bad", is_flag=True, help="Lines that were not events, and were set aside.")
@click.option("--lines", is_flag=True, help="Print lines of JSON, as `vmhost pipeline run` reads them.")
@failures.command
def events(output, folder, limit, everything, since, until, late, bad, lines, **wanted):
    """Show the events in the store in FOLDER, in order of arrival. A pipeline may be running there."""
    if late and bad:
        raise failures.Failure("--late and --bad are two lists; ask for one")
    if (late or bad) and (any(wanted.values()) or since or until):
        raise failures.Failure("--late and --bad go with --limit and --all only")
    if lines and (output.as_json or bad):
        raise failures.Failure("--lines does not go with --json or --bad")
    stores.flushed(folder)
    with stores.stored(folder) as stored:
        if bad:
            _show_bad(output, folder, None if everything else limit)
            return
        if late:
            found = stored.late_events()[0 if everything else -limit :]
            rows = [{"why": why, "stored_ms": at_ms, **_fields(event)} for why, at_ms, event in found]
            found = [event for _, _, event in found]
        else:
            wanted["since_ms"], wanted["until_ms"] = _moment(since, "--since"), _moment(until, "--until")
            if wanted["until_ms"] is not None:
                wanted["until_ms"] -= 1
            chosen = stored.find(**wanted) if everything else stored.last_events(limit, **wanted)
            if lines:  # one by one: there may be many
                for one in chosen:
                    _print_line(output, one.event)
                return
            chosen = list(chosen)
            rows = [{"position": one.position, **_fields(one.event)} for one in chosen]
    if lines:
        for event in found:
            _print_line(output, event)
        return
    output.document(rows)
    if not rows:
        output.line("no such events")
        return
    first = "why" if late else "position"
    cells = [
        (
            str(row[first]),
            stores.moment(row["time_ms"]),
            *(stores.shown(row[name]) for name in ("name", "page", "visit", "key")),
            stores.shown(row["contents"], 30),
        )
        for row in rows
    ]
    output.table("", (f"{first}>", "time", "name", "page", "visit", "key", "contents"), cells)


def _fields(event):
    return {name: stores.plain(value) for name, value in msgspec.structs.asdict(event).items()}


def _print_line(output, event):
    """Prints an event as a line of JSON, without default values."""
    fields = _fields(event)
    usual = {"page": "", "visit": "", "contents": None, "id": None, "key": ""}
    output.json_text({name: value for name, value in fields.items() if name not in usual or value != usual[name]})


def _moment(text, option):
    from vmhost.pipeline.stored import moment_ms

    if text is None:
        return None
    try:
        return moment_ms(text)
    except ValueError as error:
        raise failures.Failure(f"{option}: {error}") from error


def _show_bad(output, folder, limit):
    from vmhost.pipeline.stored import bad_lines

    found = bad_lines(folder, limit or 0)
    output.document(found)
    if found:
        rows = [
            (
                f"{one['source']}:{one['line']}",
                stores.moment(one["at_ms"]),
                stores.shown(one["error"], 80),
                stores.shown(one["text"]),
            )
            for one in found
        ]
        output.table("", ("line", "put aside", "why", "text"), rows)
    else:
        output.line("no line was put aside")
