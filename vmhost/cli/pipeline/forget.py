"""`vmhost pipeline forget`: removes a person's events, state, rows and outbox entries from the store."""

from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.pipeline import stores


@click.command(short_help="Remove everything of a person or thing from FOLDER.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@failures.command
def forget(output, folder, key, yes):
    """Remove events, late events, state, rows, dead letters and outbox entries of KEY from the store in FOLDER, and
    their bytes from its files. If a pipeline is running there, it does the work. This takes as long as writing the
    whole store."""
    from vmhost.pipeline.control import NotRunningError, ask

    with stores.stored(folder):
        pass  # the store exists
    if not key:
        raise failures.Failure("KEY: expected the key of a person or thing; '' stands for events that are nobody's")
    if not yes and not output.as_json and _is_terminal():
        click.confirm(f"Remove everything of {key!r} from {folder}, for good?", abort=True, err=True)
    with stores.errors():
        try:
            removed = ask(folder, "forget", timeout_s=None, key=key)
        except NotRunningError:
            removed = _forget_at_rest(folder, key)
    output.document({"key": key, "removed": removed})
    found = [f"{name.replace('_', ' ')} {count:,}" for name, count in removed.items() if count]
    if found:
        output.line(f"removed of {key!r}: {', '.join(found)}")
    else:
        output.line(f"nothing of {key!r} is in {folder}")


def _is_terminal():
    import sys

    return sys.stdin is not None and sys.stdin.isatty()


def _forget_at_rest(folder, key):
    from vmhost.pipeline.forgetting import forget
    from vmhost.pipeline.pipeline import STORE_NAME
    from vmhost.stores import Database

    with Database(Path(folder) / STORE_NAME) as database:
        return forget(database, key)
