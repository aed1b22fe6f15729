"""`vmhost pipeline tables` and `table`: the results of stream tasks."""

from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.output import counted
from vmhost.cli.pipeline import stores

_limit = click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many rows.")
_key = click.option("--key", help="Only rows of this person or thing.")


@click.command(short_help="List the tables in FOLDER, show one, or export it to Parquet.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@_limit
@_key
@click.option(
    "--parquet", type=click.Path(path_type=Path, dir_okay=False), help="Write all rows of the table to this file."
)
@failures.command
def tables(output, folder, name, limit, key, parquet):
    """List the tables of the store in FOLDER; with NAME, show that table's rows, the latest first.

    A pipeline may be running there: it is flushed first. NAME is a task's name, or `task.1` for an older generation of
    its table."""
    if name is None:
        if parquet is not None or key is not None:
            raise failures.Failure("--parquet and --key go with the NAME of a table")
        _list(output, folder)
    elif parquet is not None:
        _export(output, folder, name, parquet, key)
    else:
        _show(output, folder, name, limit, key)


@click.command(short_help="Show a stream task's rows, the latest first.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name")
@_limit
@_key
@failures.command
def table(output, folder, name, limit, key):
    """Show the rows of the stream task NAME, the latest first."""
    _show(output, folder, name, limit, key)


def _list(output, folder):
    stores.flushed(folder)
    with stores.stored(folder) as stored:
        found = stored.generations()
    output.document(found)
    rows = []
    for one in found:
        columns = ", ".join(f"{name} {kind}" for name, kind in one["columns"].items())
        rows.append((one["name"], f"{one['rows']:,}", one["sql_name"], ", ".join(one["versions"]), columns))
    if rows:
        output.table("", ("table", "rows>", "in SQL", "versions", "columns"), rows)
    else:
        output.line(f"no tables in {folder} yet: a pipeline makes them for its stream tasks")


def _show(output, folder, name, limit, key):
    stores.flushed(folder)
    with stores.stored(folder) as stored:
        table = _table(stored, name)
        rows = table.read(key=key, order="_id DESC", limit=limit)
        columns = list(table.columns)
    output.document([{column: stores.plain(value) for column, value in row.items()} for row in rows])
    if rows:
        output.table(name, columns, [[stores.shown(value) for value in row.values()] for row in rows])
    else:
        output.line(f"{name} has no rows" + (f" of {key!r}" if key is not None else ""))


def _export(output, folder, name, path, key):
    stores.flushed(folder)
    with stores.stored(folder) as stored:
        table = _table(stored, name)
        try:
            count = table.export(path, key=key)
        except OSError as error:
            raise failures.Failure(f"{path}: cannot be written: {error.strerror or error}") from error
    output.document({"table": name, "rows": count, "path": str(path), "bytes": path.stat().st_size})
    output.line(f"{counted(count, 'row')} of {name} in {path}, {stores.size(path.stat().st_size)}")


def _table(stored, name):
    try:
        return stored.table(name)
    except KeyError as error:
        raise failures.Failure(error.args[0]) from None
