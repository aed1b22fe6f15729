"""Notes that a process keeps for the case of a crash: the native core writes them with the stacks.

The first host of a process with a state folder keeps them: the last lines of the log, masked by its rules for records,
and the loaded tasks with their limits. They are in memory that a signal handler reads. The next host moves the dump of
a crash to the folder `crashes` of the state folder; `vmhost.operations.crash_reports` makes reports of it.
"""

import contextlib
import errno
import json
import logging
import mmap
import os
import platform
import time

from vmhost.runtime import guest_log

_log = logging.getLogger("vmhost")
_LOG_BYTES, _TASKS_BYTES = 16 << 10, 64 << 10
_MAX_DUMPS = 50  # without a report
_notes = []  # the Notes of this process, if it keeps any


def begin(native, folder, masking):
    """Keep this process's notes in the StateFolder `folder`, which holds its crash file."""
    dump = folder.path / "crash.dump"
    error = native.crash_dump_to(dump)
    if error == errno.EEXIST:
        return  # one dump per process
    if error:
        _log.warning("%s: a crash will leave no stacks there: %s", dump, os.strerror(error))
    elif not _notes:
        _notes.append(Notes(native, masking))
        guest_log.tap = _notes[0].lines
        logging.getLogger("vmhost").addHandler(_notes[0])


def loaded(name, version, manifest, limits):
    """Note that a version of a task is loaded."""
    if _notes:
        _notes[0].loaded(name, version, manifest, limits)


def mask_again():
    """The rules of the host may have changed: hides what those of today hide."""
    if _notes:
        _notes[0].lines("", [])


def forget(marks):
    """Removes lines that contain one of `marks` (bytes) from the notes of this process."""
    if _notes:
        _notes[0].forget(marks)


def put_aside(folder):
    """Move the dump of the previous process's crash in the StateFolder `folder` to its folder `crashes`. False: that
    failed, as logged, and the dump must not be overwritten."""
    crashes, dump = folder.path / "crashes", folder.path / "crash.dump"
    try:
        status = dump.lstat()
        if status.st_size == 0:
            return True
        crashes.mkdir(mode=0o700, exist_ok=True)
        kept = sorted(crashes.glob("*.dump"))
        for old in kept[: max(0, len(kept) - _MAX_DUMPS + 1)]:
            with contextlib.suppress(OSError):
                old.unlink()
        dump.rename(crashes / f"{int(status.st_mtime)}-{time.time_ns() % 10**9:09}.dump")
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s: a crash will leave no stacks there: those of the one before cannot be moved: %s", dump, error)
        return False
    return True


class Notes(logging.Handler):
    """The last lines of the log, and the loaded tasks, in memory for the signal handler."""

    def __init__(self, native, masking):
        super().__init__(logging.INFO)
        self._masking, self._masked_by = masking, None  # a CurrentMasking, and the Masking of `_text`
        self._log_room, self._tasks_room = mmap.mmap(-1, _LOG_BYTES), mmap.mmap(-1, _TASKS_BYTES)
        self._text = b""
        self._tasks = {}
        native.crash_note(0, self._log_room)
        native.crash_note(1, self._tasks_room)
        self._put_tasks()

    def emit(self, record):
        if record.name.startswith(("vmhost.task.", "vmhost.vm")):
            return  # arrives through `lines`, whether the logger is enabled or not
        with contextlib.suppress(Exception):  # bad arguments: the handler that shows the line reports them
            self._add([f"{record.name}: {record.getMessage()}"])

    def lines(self, name, lines):
        """Lines that a VM of the task `name` logged."""
        with self.lock:
            self._add([f"vmhost.task.{name}: {text}" if name else f"vmhost.vm: {text}" for _, text in lines])

    def _add(self, lines):
        masking = self._masking.now
        if masking is not self._masked_by:
            self._masked_by = masking
            self._text = masking.text(self._text.decode("utf-8", "replace")).encode()
            self._log_room[:] = bytes(_LOG_BYTES)
        text = "".join(f"{masking.text(line[:1000])}\n" for line in lines)
        self._text = (self._text + text.encode("utf-8", "replace").replace(b"\0", b"?"))[-(_LOG_BYTES - 1) :]
        self._log_room[: len(self._text) + 1] = self._text + b"\0"

    def forget(self, marks):
        with self.lock:
            lines = self._text.split(b"\n")
            self._text = b"\n".join(line for line in lines if not any(mark in line for mark in marks))
            self._log_room[:] = self._text.ljust(_LOG_BYTES, b"\0")

    def loaded(self, name, version, manifest, limits):
        with self.lock:
            self._tasks[f"{name} {version}"] = {
                "entry": manifest.entry,
                "memory_bytes": limits.memory_bytes,
                "wall_s": limits.wall_s,
                "cpu_s": limits.cpu_s,
                "stack_bytes": limits.stack_bytes,
                "concurrency": limits.concurrency,
                "descriptors": limits.descriptors,
                "output_bytes": limits.output_bytes,
            }
            self._put_tasks()

    def _put_tasks(self):
        from vmhost import __version__

        tasks = dict(self._tasks)
        while True:
            text = json.dumps({"vmhost": __version__, "python": platform.python_version(), "tasks": tasks}).encode()
            if len(text) < _TASKS_BYTES or not tasks:
                break
            del tasks[next(iter(tasks))]  # the oldest
        self._tasks_room[: len(text) + 1] = text + b"\0"
