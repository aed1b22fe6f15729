"""The lines and branches of tasks that ran, as VMs recorded them for a share of calls (TaskPolicy.coverage).

Bundles have no sources, so this uses functions, lines and byte offsets of code; `vmhost coverage` maps these to the
sources, where there are some.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from vmhost.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_FORMAT = "vmhost coverage 1"
_LINE, _BRANCH, _RETURN = 0, 1, 2


@dataclass
class Ran:
    """Coverage of one function: lines; branches, pairs of byte offsets of its code; offsets of returns."""

    lines: set[int] = field(default_factory=set)
    branches: set[tuple[int, int]] = field(default_factory=set)
    returns: set[int] = field(default_factory=set)


@dataclass
class Coverage:
    """`functions`: a Ran by (file as in "task@version/main.py", qualified name, first line). `full`: the limit was
    reached, so some are missing."""

    functions: dict[tuple[str, str, int], Ran] = field(default_factory=dict)
    full: bool = False

    @classmethod
    def taken(cls, native: "dict[str, Any]") -> "Self":
        """The Coverage in a report of the native core."""
        names = native["functions"]
        made = cls({name: Ran() for name in names}, native["full"])
        for function, kind, begin, end in native["points"]:
            ran = made.functions[names[function]]
            if kind == _LINE:
                ran.lines.add(begin)
            elif kind == _BRANCH:
                ran.branches.add((begin, end))
            else:
                ran.returns.add(begin)
        return made

    def merge(self, other: "Coverage") -> None:
        """Adds the coverage of another process, host or device."""
        for name, theirs in other.functions.items():
            ran = self.functions.setdefault(name, Ran())
            ran.lines |= theirs.lines
            ran.branches |= theirs.branches
            ran.returns |= theirs.returns
        self.full = self.full or other.full

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON."""
        functions = [
            [*name, sorted(ran.lines), sorted(map(list, ran.branches)), sorted(ran.returns)]
            for name, ran in sorted(self.functions.items())
        ]
        text = json.dumps({"format": _FORMAT, "full": self.full, "functions": functions}, separators=(",", ":"))
        Path(path).write_text(text + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Self":
        """Reads a file of `save`. ConfigurationError; OSError."""
        try:
            plain = json.loads(Path(path).read_bytes())
            if plain["format"] != _FORMAT:
                raise ValueError(f"expected the format {_FORMAT!r}")
            made = cls(full=bool(plain["full"]))
            for file, name, first, lines, branches, returns in plain["functions"]:
                ran = Ran(set(map(_whole, lines)), {(_whole(a), _whole(b)) for a, b in branches})
                ran.returns = set(map(_whole, returns))
                made.functions[str(file), str(name), _whole(first)] = ran
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(
                f"{os.fspath(path)}: not what Coverage.save writes ({type(error).__name__}: {error}); take it anew"
            ) from None
        return made


def _whole(value):
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number, got {value!r:.40}")
    return value
