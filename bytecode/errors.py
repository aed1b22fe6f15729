"""What goes wrong with task specs, compiling and bundles.

Every message is one sentence or a few that say what, where, expected, got, and what to do. `vmhost` wraps these once,
with `raise ... from`.
"""

from dataclasses import dataclass


class BytecodeError(Exception):
    """Base of all errors of this package."""


class BundleError(BytecodeError):
    """A bundle can't be read, isn't trusted, is damaged, or isn't for this host."""


class SigningError(BytecodeError):
    """A key or a trust store can't be read, written or used."""


class TaskSpecError(BytecodeError):
    """A `task.yaml` is wrong. `problems` holds one line for each thing found, `file:line: key: what`."""

    def __init__(self, problems):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Diagnostic:
    """One finding of the compiler: `file` as the author knows it, `line` from 1 (0: the file as a whole)."""

    file: str
    line: int
    message: str

    def __str__(self):
        location = f"{self.file}:{self.line}" if self.line else self.file
        return f"{location}: {self.message}"


class CompileError(BytecodeError):
    """Sources can't become a bundle. `diagnostics` holds all findings that stood in the way."""

    def __init__(self, diagnostics):
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))
