"""Where a command's words go: results on stdout, as text or one JSON document; progress, remarks, errors on stderr.

A table that does not fit the terminal is printed as one block per row, so nothing is cut off on a narrow one. Colour
and motion appear on terminals only (NO_COLOR is heeded).
"""

import os
import sys

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from vmhost.lines import stdout

PIPE_COLUMNS = 120


class _Console(Console):
    """A console that leaves a reader who went away to the command, which ends quietly with the exit code for it."""

    def on_broken_pipe(self):
        raise  # noqa: PLE0704 - within an except clause of the caller


class Output:
    """A command's stdout and stderr.

    `as_json` is what `--json` says: then `document()` prints, and the tables and lines meant for people do not.
    """

    def __init__(self, as_json=False):
        self.as_json = as_json
        self.console = _Console(width=_width(sys.stdout), highlight=False)
        self.remarks = _Console(stderr=True, width=_width(sys.stderr), highlight=False)

    def document(self, document):
        """Prints one JSON document, unless the command is talking to a person."""
        if self.as_json:
            self.json_text(document, indent=2)

    def json_text(self, plain, indent=None):
        """Prints plain data as JSON on stdout."""
        stdout.write_json(plain, indent)

    def line(self, text="", style=None):
        """Prints a line for a person."""
        if not self.as_json:
            with stdout.written():
                self.console.print(Text(text), style=style, soft_wrap=True)

    def remark(self, text, style=None):
        """Prints a line on stderr, whatever the format of the result."""
        self.remarks.print(Text(text), style=style, soft_wrap=True)

    def error(self, text):
        """Prints the one line that says what went wrong, on stderr."""
        self.remarks.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)

    def table(self, title, columns, rows):
        """Prints rows of text under columns; a column whose name ends in `>` is set flush right."""
        if self.as_json:
            return
        with stdout.written():
            self.console.print(fitting(self.console, title, columns, rows), soft_wrap=True)

    def progress(self):
        """A progress display on stderr: a context manager, still where there is no terminal or JSON is wanted."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.remarks,
            transient=True,
            disable=not self.remarks.is_terminal or self.as_json,
        )


def fitting(console, title, columns, rows):
    """The rows as a table where the console is wide enough for it, else as a block of `name: value` lines per row."""
    names = [column.removesuffix(">") for column in columns]
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, name in zip(columns, names):
        table.add_column(name, justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # The title is no part of the table, which would fold it to its own width.
    renderables = [Text(title, style="bold")] if title else []
    if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
        return Group(*renderables, table)
    for row in rows:
        renderables.append(Text(row[0], style="bold"))
        renderables += [Text(f"  {name}: {cell}") for name, cell in zip(names[1:], row[1:])]
    return Group(*renderables)


def _width(stream):
    """None where rich should measure the terminal or heed $COLUMNS; a generous width for files and pipes."""
    return None if stream.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
