"""Stands in for the native parts of `vmhost.guest` outside a VM, so that a task's modules can be imported and tested as
plain Python. Never used inside a VM.

    from vmhost.guest.testing import stand_in

    with stand_in(folder="hello", functions={"lookup": {"Ada": 36}.get}, deadline_s=0.5):
        assert main.run({"name": "Ada"}) == "Hello, Ada (36)"

Without `stand_in`: files come from the task folder of the calling module, else from the current folder; there is no
deadline and no host function; log lines go to the logger `vmhost.task`. Nothing is limited, denied or stopped here."""

import contextlib
import logging
import math
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["stand_in"]

_SPEC_NAME = "task.yaml"
_logger = logging.getLogger("vmhost.task")
_folder, _functions, _end_s = None, {}, None


@contextlib.contextmanager
def stand_in(
    *,
    folder: str | os.PathLike[str] | None = None,
    functions: "Mapping[str, Callable[[Any], Any]] | None" = None,
    deadline_s: float | None = None,
) -> Iterator[None]:
    """For the whole process, while the context lasts: bundle files come from below `folder`, `functions` are the host's
    functions by name, and `deadline()` counts down from `deadline_s`."""
    global _folder, _functions, _end_s
    before = _folder, _functions, _end_s
    _folder = None if folder is None else Path(folder)
    _functions = dict(functions or {})
    _end_s = None if deadline_s is None else time.monotonic() + deadline_s
    try:
        yield
    finally:
        _folder, _functions, _end_s = before


class PermissionDenied(PermissionError):
    """In a VM: raised for what task.yaml does not grant. Here nothing raises it."""


class Stopped(BaseException):
    """In a VM: raised when the host stops the call. Here nothing raises it."""


PermissionDenied.__module__ = Stopped.__module__ = "vmhost.guest"


class Buffer:
    """Zeroed memory for items of `format` (see struct); use memoryview(buffer)."""

    readonly = False

    def __init__(self, shape, format="B"):
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.format = format
        self.nbytes = math.prod(self.shape) * struct.calcsize(format)
        self._data = bytearray(self.nbytes)

    def __buffer__(self, flags, /):
        view = memoryview(self._data)
        return view.cast(self.format) if len(self.shape) == 1 else view.cast(self.format, self.shape)


def deadline():
    """Seconds left; None without a deadline."""
    return None if _end_s is None else _end_s - time.monotonic()


def host_call(name, value):
    """(True, the result of the host function `name`), or (False, the reason)."""
    function = _functions.get(name)
    if function is None:
        return (
            False,
            (
                f"PermissionDenied: host function {name!r} is not there; give it to"
                " vmhost.guest.testing.stand_in(functions=...)"
            ),
        )
    try:
        return True, function(value)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def identity():
    """(number of the VM, name of the task, its version); placeholders here."""
    return 0, "", ""


_series = []  # [kind, key, value or list of observations]


def metric(kind, key, bounds):
    """The number of the series `key`; creates it."""
    for number, series in enumerate(_series):
        if series[1] == key:
            return number
    _series.append([kind, key, [] if kind == 2 else 0.0])
    return len(_series) - 1


def metric_add(number, value):
    _series[number][2] += value


def metric_set(number, value):
    _series[number][2] = value


def metric_observe(number, value):
    _series[number][2].append(value)


def log(level, line):
    _logger.log(level, "%s", line)


def files():
    """The names of the files below the task's folder."""
    folder = _task_folder()
    return (
        []
        if folder is None
        else sorted(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
    )


def file(path):
    """The bytes of the file `path` below the task's folder; None if there is none."""
    folder = _task_folder()
    found = None if folder is None else (folder / path).resolve()
    return (
        found.read_bytes() if found is not None and found.is_relative_to(folder.resolve()) and found.is_file() else None
    )


def _task_folder():
    """The task's folder, None if there is none."""
    if _folder is not None:
        return _folder
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("vmhost.guest"):
        frame = frame.f_back
    beside = frame.f_globals.get("__file__") if frame is not None else None
    folders = [*Path(os.path.abspath(beside)).parents, Path.cwd()] if beside else [Path.cwd()]
    return next((folder for folder in folders if (folder / _SPEC_NAME).is_file()), None)
