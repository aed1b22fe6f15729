"""The lines of a task that held its memory when it reached its limit, from samples of its allocations
(TaskPolicy.memory_lines).

Bundles have no sources: a line is named by its file in the bundle ("digits@1.0.0/main.py"), as in tracebacks.
"""

from typing import NamedTuple

from vmhost.profile import Frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHOWN = 5


class HeldMemory(NamedTuple):
    """Memory that one line of the task's own code holds. `held_bytes`: an estimate. `inner`: the frame in the standard
    library, or in one of the task's packages, that allocated the largest part on its behalf; None: the line itself did.
    A `frame` of file "" and line 0 is for all memory that no line allocated."""

    frame: Frame
    held_bytes: int
    inner: Frame | None = None


class MemoryLines(NamedTuple):
    """`held`: largest first. `asked_bytes`: the size of the request that reached the limit, `asked`: its line, None if
    unknown."""

    held: tuple[HeldMemory, ...]
    asked_bytes: int
    asked: Frame | None

    @property
    def held_bytes(self) -> int:
        """The sum over all lines."""
        return sum(each.held_bytes for each in self.held)

    def sentence(self) -> str:
        """The line that held most, as a sentence for a log."""
        if not self.held:
            return f"a request of {_size(self.asked_bytes)}"
        first = self.held[0]
        return (
            f"{_size(first.held_bytes)} of {_size(self.held_bytes)} are held by {_place(first.frame)}; the request "
            f"that met it: {_size(self.asked_bytes)}"
        )

    def plain(self) -> "dict[str, Any]":
        """Plain values for JSON."""
        return {
            "held": [
                {"bytes": each.held_bytes, "at": _plain(each.frame), "inner": each.inner and _plain(each.inner)}
                for each in self.held
            ],
            "asked": {"bytes": self.asked_bytes, "at": self.asked and _plain(self.asked)},
        }

    def text(self, most: int = _SHOWN) -> str:
        """Readable lines: the lines that held most, and the request."""
        total = self.held_bytes or 1
        lines = [
            f"{_size(each.held_bytes):>10} {each.held_bytes / total:4.0%}  {_place(each.frame)}"
            + (f" through {_place(each.inner)}" if each.inner else "")
            for each in self.held[:most]
        ]
        rest = sum(each.held_bytes for each in self.held[most:])
        if rest:
            lines.append(f"{_size(rest):>10} {rest / total:4.0%}  elsewhere")
        where = f" by {_place(self.asked)}" if self.asked else ""
        lines.append(f"the request that met the limit: {_size(self.asked_bytes)}{where}")
        return "\n".join(lines)


def read(text: str, task: str, version: str) -> MemoryLines:
    """Parses the native core's report (profile/holdings.h)."""
    own = f"{task}@{version}/"
    held: dict[Frame, int] = {}
    inner: dict[Frame, dict[Frame | None, int]] = {}
    asked, asked_bytes = None, 0
    for line in text.split("\n"):
        if not line:
            continue
        what, *fields = line.split("\x1f")
        kind, _, number = what.partition(" ")
        size = int(number)
        stack = [Frame(name, file, int(at)) for file, at, name in zip(fields[::3], fields[1::3], fields[2::3])]
        mine = next((frame for frame in stack if frame.file.startswith(own)), None)
        if kind == "asked":
            asked, asked_bytes = mine or next(iter(stack), None), size
            continue
        frame = mine or Frame("", "", 0)
        held[frame] = held.get(frame, 0) + size
        by = inner.setdefault(frame, {})
        way = stack[0] if mine is not None and stack[0] is not mine else None
        by[way] = by.get(way, 0) + size
    held_lines = [
        HeldMemory(frame, size, max(inner[frame].items(), key=lambda item: item[1])[0]) for frame, size in held.items()
    ]
    return MemoryLines(tuple(sorted(held_lines, key=lambda each: -each.held_bytes)), asked_bytes, asked)


def _plain(frame):
    return {"file": frame.file, "line": frame.line, "function": frame.name}


def _place(frame):
    return (
        f"{frame.file}:{frame.line} ({frame.name})"
        if frame.file
        else "no line of the task (its imports, the VM itself)"
    )


def _size(size_bytes):
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes} B"
