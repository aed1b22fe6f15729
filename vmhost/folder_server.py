"""Serves the bundles in a folder: calls come in as lines of JSON, answers go out as lines of JSON, in the order in which they end.

    {"id": 7, "task": "digits", "input": VALUE, "timeout_s": 0.5}      id, input and timeout_s may be left out
    {"id": 7, "result": VALUE}
    {"id": 7, "error": {"type": "TaskError", "message": "...", "traceback": "..."}}

Values are written as `json_values` says. Every line gets one answer, also when the server is interrupted. The folder is looked at
about once a second: a bundle that comes is loaded, one that is replaced takes the place of its older version, one that goes is
unloaded when its calls have ended. A bundle that the host refuses is logged once; what was loaded from that file before serves on.
"""

import json
import logging
import os
import select
import threading

from vmhost import json_values
from vmhost.errors import ConfigurationError, VMHostError

LOOK_EVERY_S = 1.0
_log = logging.getLogger("vmhost")


class FolderServer:
    """Calls of the tasks in `folder` on `host`; answers are written to the text file `out`. ConfigurationError: no such folder."""

    def __init__(self, host, folder, out):
        self._host = host
        self._folder = os.fspath(folder)
        self._out = out
        self._seen = {}             # name of a file -> what tells whether it was replaced
        self._tasks = {}            # name of a file -> name of the task that was loaded from it
        self._unfinished = 0
        self._reader_gone = False
        self._lock = threading.Lock()
        try:
            self._look()
        except OSError as error:
            raise ConfigurationError(f"{folder}: expected a folder of bundles, got {error.strerror}") from error

    def run(self, descriptor, when_idle=None):
        """Serves the lines that come from the file `descriptor` until it ends; then all calls have been submitted.

        `when_idle()` is called about once a second while nothing comes and nothing runs. BrokenPipeError when nobody reads the answers
        any more.
        """
        rest = b""
        while True:
            ready = select.select([descriptor], [], [], LOOK_EVERY_S)[0]
            if self._reader_gone:
                raise BrokenPipeError("nobody reads the answers")
            try:
                changed = self._look()
            except OSError as error:
                _log.error("%s: cannot be read any more: %s; what was loaded serves on", self._folder, error.strerror)
                changed = False
            if not ready:
                if when_idle is not None and not changed and not self._unfinished:
                    when_idle()
                continue
            data = os.read(descriptor, 1 << 16)
            *lines, rest = (rest + data).split(b"\n")
            if not data and rest:       # the last line, without its end
                lines, rest = [rest], b""
            for line in lines:
                if line.strip():
                    self._take(line)
            if not data:
                return

    # -- the folder -----------------------------------------------------------------------------------------------

    def _look(self):
        """Loads and unloads what has changed in the folder; whether anything has. OSError."""
        found = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".vmb") and entry.is_file():
                    state = entry.stat()
                    found[entry.name] = (state.st_mtime_ns, state.st_size, state.st_ino)
        if found == self._seen:
            return False
        new = sorted((mark, name) for name, mark in found.items() if self._seen.get(name) != mark)
        self._seen = found
        for _, name in new:             # of two bundles of one task the one that was written last serves
            self._load(name)
        for name in [name for name in self._tasks if name not in found]:
            self._forget(name)
        return True

    def _load(self, name):
        try:
            task = self._host.load(os.path.join(self._folder, name))
        except VMHostError as error:
            _log.error("%s", error)
            return
        if self._tasks.get(name) not in (None, task.name):
            self._forget(name)
        self._tasks[name] = task.name
        _log.info("%s: serving %s %s", name, task.name, task.version)

    def _forget(self, name):
        task = self._tasks.pop(name)
        if task not in self._tasks.values():
            self._host.unload(task, drain=True)
            _log.info("%s: gone, and with it %s", name, task)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _take(self, line):
        key = None
        try:
            asked = _read(line)
            if isinstance(asked, dict):
                key = asked.get("id")
            if not isinstance(asked, dict) or not isinstance(asked.get("task"), str):
                raise ValueError('expected an object such as {"task": "digits", "input": 1}, got ' + _shortened(line))
            unknown = asked.keys() - {"id", "task", "input", "timeout_s"}
            timeout_s = asked.get("timeout_s")
            if unknown:
                raise ValueError(f"unknown keys {sorted(map(str, unknown))}; known are id, task, input, timeout_s")
            if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or timeout_s <= 0):
                raise ValueError(f"timeout_s: expected seconds above zero, got {timeout_s!r}")
            try:
                task = self._host.task(asked["task"])
            except KeyError:
                names = ", ".join(sorted(self._host.tasks)) or "none"
                raise ValueError(f"no task {asked['task']!r}; loaded are: {names}") from None
        except ValueError as error:
            self._answer(key, error={"type": "InputError", "message": str(error)})
            return
        try:
            future = task.submit(asked.get("input"), timeout_s=timeout_s)
        except Exception as error:
            self._answer(key, error=_error(error))
            return
        with self._lock:
            self._unfinished += 1
        future.add_done_callback(lambda future: self._done(key, future))

    def _done(self, key, future):
        with self._lock:
            self._unfinished -= 1
        try:
            value = future.result()
        except Exception as error:
            self._answer(key, error=_error(error))
            return
        try:
            plain = json_values.to_plain(value)
        except TypeError as error:
            self._answer(key, error={"type": "TypeError", "message": f"the task returned a value that JSON cannot say: {error}"})
        else:
            self._answer(key, result=plain)

    def _answer(self, key, **said):
        text = json.dumps({"id": json_values.to_plain(key), **said}, allow_nan=False)
        try:
            with self._lock:
                self._out.write(text + "\n")
                self._out.flush()
        except BrokenPipeError:
            self._reader_gone = True


def _read(line):
    """The value that the JSON in `line` says; ValueError."""
    try:
        return json_values.loads(line.decode())
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}: {_shortened(line)}") from None
    except RecursionError:
        raise ValueError(f"nested too deeply: {_shortened(line)}") from None


def _shortened(line):
    text = line.decode().strip()
    return repr(text if len(text) <= 60 else text[:60] + "...")


def _error(error):
    told = {"type": type(error).__name__, "message": str(error)}
    frames = getattr(error, "guest_traceback", None)
    return told | {"traceback": frames} if frames else told
