"""What a search for modules gives: their sources, and those that are missing."""

import functools
import hashlib
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import CompileError, Diagnostic
from ..lookup import INSTALLED

# An import runs with its module; may run with it; runs in a call; is guarded: the program expects it to fail.
CERTAIN, POSSIBLE, IN_CALL, OPTIONAL = range(4)


@dataclass(frozen=True)
class Source:
    """One module found: `path` for messages, `text` its source (empty for a folder without `__init__.py`)."""

    name: str
    path: str
    is_package: bool
    text: bytes

    @functools.cached_property
    def digest(self):
        return hashlib.sha256(self.text).digest()

    def nameable(self):
        """This Source; CompileError if its path is not UTF-8, as VMs name files."""
        try:
            self.path.encode()
        except UnicodeEncodeError:
            shown = self.path.encode(errors="backslashreplace").decode()
            why = "its path is not UTF-8, and VMs cannot name it; rename it"
            raise CompileError([Diagnostic(shown, 0, why)]) from None
        return self


# Of a statement, as a syntax tree's node has them.
Place = namedtuple("Place", ("lineno", "col_offset", "end_lineno", "end_col_offset"))


@dataclass(frozen=True)
class Absent:
    """A missing module that is imported: the reason, and the first place that imports it. `certain`: importing the
    module at that place always runs this import. "pkg.*" stands for the modules `names` of the package, which are left
    out since nothing names them; `where` is its import by a computed name, "" if it has none."""

    name: str
    reason: str
    where: str
    certain: bool
    names: tuple = ()


@dataclass(frozen=True)
class Closure:
    """`sources` maps dotted names to Source; `errors` and `warnings` are sorted tuples of Diagnostic; `absent` is a
    tuple of Absent, sorted by name; `inert` has the modules that are replaced by inert ones where packages import them,
    and `replaced` the places of these imports: {path: lines}; `later` maps own modules to the imports in them that
    wait: {name: Postponed}; `deferred` maps modules of packages that are left out until a VM imports them to (path,
    is_package); `found`, of a running program's module, is what `lookup.still_hold` takes."""

    sources: dict
    errors: tuple
    warnings: tuple
    absent: tuple = ()
    inert: tuple = ()
    replaced: dict = field(default_factory=dict)
    later: dict = field(default_factory=dict)
    deferred: dict = field(default_factory=dict)
    found: tuple = field(default=(), compare=False)


def is_installed(source):
    """Does the Source lie in a folder of installed packages?"""
    return lies_in_packages(source.path)


def lies_in_packages(path):
    return any(part in INSTALLED for part in Path(path).parts)


def is_of_python(name):
    """Is the module of the standard library, or of vmhost?"""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top == "vmhost"
