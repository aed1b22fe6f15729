"""Errors of task specs, compiling and bundles.

Every message says in a few sentences what, where, expected, got, and the remedy. `vmhost` wraps these once, with
`raise ... from`.
"""

from dataclasses import dataclass


class BytecodeError(Exception):
    """Base of all errors of this package."""


class BundleError(BytecodeError):
    """A bundle can't be read, isn't trusted, is damaged, or isn't for this host."""


class SigningError(BytecodeError):
    """A key or a trust store can't be read, written or used."""


class TaskSpecError(BytecodeError):
    """A `task.yaml` is wrong. `problems` holds one line per finding, `file:line: key: what`."""

    def __init__(self, problems):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Diagnostic:
    """One finding of the compiler: `file` as the author knows it, `line` from 1 (0: the whole file)."""

    file: str
    line: int
    message: str

    def __str__(self):
        location = f"{self.file}:{self.line}" if self.line else self.file
        return f"{location}: {self.message}"


class CompileError(BytecodeError):
    """Sources can't become a bundle. `diagnostics` holds all the findings that prevent it."""

    def __init__(self, diagnostics):
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))
