"""Output for terminals, made with rich: consoles, tables, progress. Importing rich takes longer than most commands, so
`output.py` imports this file only when it is needed.

A table that does not fit the terminal is printed as one block per row, so that nothing is cut off. Colour and motion
appear on terminals only (NO_COLOR is respected).
"""

import os
import sys

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 120


class _Console(Console):
    """A console that leaves a closed pipe to the command, which ends quietly with the exit code for it."""

    def on_broken_pipe(self):
        raise  # noqa: PLE0704 - within an except clause of the caller


def for_stdout():
    """A Console that writes to the stdout of the moment."""
    return _Console(width=_width(sys.stdout), highlight=False, _environ=_environment())


def for_stderr():
    """The same for stderr."""
    return _Console(stderr=True, width=_width(sys.stderr), highlight=False, _environ=_environment())


def progress(console, disable):
    """A progress display on `console`: a context manager."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=disable,
    )


def fitting(console, title, columns, rows):
    """The rows as a table if the console is wide enough, else as a block of `name: value` lines per row."""
    names = [column.removesuffix(">") for column in columns]
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, name in zip(columns, names):
        table.add_column(name, justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # The title is separate from the table, which would wrap it to its own width.
    renderables = [Text(title, style="bold")] if title else []
    if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
        return Group(*renderables, table)
    for row in rows:
        renderables.append(Text(row[0], style="bold"))
        renderables += [Text(f"  {name}: {cell}") for name, cell in zip(names[1:], row[1:])]
    return Group(*renderables)


def below(table, lines):
    """The table with lines of text below it."""
    return Group(table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def _width(stream):
    """None if rich should measure the terminal or use $COLUMNS; a generous width for files and pipes."""
    return None if stream.isatty() or "COLUMNS" in _environment() else PIPE_COLUMNS


def _environment():
    """The environment for rich, without sizes of a terminal that are none: rich prints nothing in zero columns."""
    sizes = ("COLUMNS", "LINES")
    return {name: value for name, value in os.environ.items() if name not in sizes or value.strip("0").isdigit()}
