"""Where a command's output goes: results to stdout, as text or one JSON document; progress and errors to stderr."""

import functools

from vmhost.lines import stdout


class Output:
    """A command's stdout and stderr.

    `as_json` is the flag `--json`: then `document()` prints, and the tables and lines for people do not.
    """

    def __init__(self, as_json=False):
        self.as_json = as_json
        self.documents = 0  # printed so far

    @functools.cached_property
    def console(self):
        """rich's Console for stdout."""
        from vmhost.cli import terminal

        return terminal.for_stdout()

    @functools.cached_property
    def remarks(self):
        """rich's Console for stderr."""
        from vmhost.cli import terminal

        return terminal.for_stderr()

    def document(self, document):
        """Prints one JSON document with `--json`; otherwise nothing."""
        if self.as_json:
            self.json_text(document, indent=2)

    def json_text(self, plain, indent=None):
        """Prints plain data as JSON on stdout."""
        self.documents += 1
        stdout.write_json(plain, indent)

    def line(self, text="", style=None):
        """Prints a line for a person."""
        if not self.as_json:
            from rich.text import Text

            with stdout.written():
                self.console.print(Text(text), style=style, soft_wrap=True)

    def remark(self, text, style=None):
        """Prints a line on stderr, whatever the format of the result."""
        from rich.text import Text

        self.remarks.print(Text(text), style=style, soft_wrap=True)

    def error(self, text):
        """Prints the one-line error message on stderr."""
        from rich.text import Text

        self.remarks.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)

    def table(self, title, columns, rows):
        """Prints rows of text under columns; a column whose name ends in `>` is right-aligned."""
        if self.as_json:
            return
        from vmhost.cli import terminal

        with stdout.written():
            self.console.print(terminal.fitting(self.console, title, columns, rows), soft_wrap=True)

    def progress(self):
        """A progress display on stderr, as a context manager; silent without a terminal or with JSON."""
        from vmhost.cli import terminal

        return terminal.progress(self.remarks, disable=not self.remarks.is_terminal or self.as_json)


def counted(number, noun, plural=None):
    """ "1 row", "2,000 rows"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
