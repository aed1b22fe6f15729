"""Serves the bundles in a folder: calls come in as lines of JSON, answers go out as lines of JSON, in the order in
which the calls end.

    {"id": 7, "task": "digits", "input": VALUE, "timeout_s": 0.5}      id, input and timeout_s are optional
    {"id": 7, "result": VALUE}
    {"id": 7, "error": {"type": "TaskError", "message": "...", "traceback": "..."}}

For values see `json_values`. Every non-empty line gets one answer, even when the server is interrupted. A line of more
than MAX_LINE_BYTES is refused, and not kept in memory. While nobody reads the answers, no more lines are read. The
folder is scanned about once a second: a new bundle is loaded, a replaced one supersedes its older version, a removed
one is unloaded when its calls have ended. A bundle that the host refuses, for example a partly written one, is logged
once; the one loaded from that file before continues to serve."""

import contextlib
import json
import logging
import os
import select
import threading
import time

from vmhost.bytecode.fields import shown
from vmhost.errors import ConfigurationError, VMHostError
from vmhost.lines import json_values
from vmhost.lines.stdout import OutputError

LOOK_EVERY_S = 1.0
MAX_LINE_BYTES = 16 << 20
# A file refused so soon after it was written may still be growing without a change of its times and size: try it again.
_SETTLED_NS = 100_000_000
_READ_BYTES = 1 << 20
_LONGEST_S = 1e9
_log = logging.getLogger("vmhost")


class FolderServer:
    """Runs calls of the tasks in `folder` on `host`; writes answers to the text file `out`. ConfigurationError: no such
    folder."""

    def __init__(self, host, folder, out):
        self._host = host
        self._folder = os.fspath(folder)
        self._out = out
        self._seen = {}  # name of a file -> its stamp, which changes when it is replaced
        self._tasks = {}  # name of a file -> name of the task that was loaded from it
        self._versions = {}  # the same -> its version
        self._logged_refusals = {}  # name of a file -> the refusal logged last
        self._scan_error = None  # the error of reading the folder logged last
        self._unfinished = 0
        self._failed = None  # the error after which no more answers are written
        self._lock = threading.Lock()
        try:
            self._scan()
        except OSError as error:
            raise ConfigurationError(f"{folder}: expected a folder of bundles, got {error.strerror}") from error
        if not self._seen:
            _log.info("%s: no bundles yet; files NAME.vmb put there are served within a second", folder)

    def run(self, descriptor, when_idle=None):
        """Serves lines from the file `descriptor` until its end; then all calls have been submitted.

        `when_idle()` is called about once a second while nothing comes and nothing runs. BrokenPipeError if nobody
        reads the answers any more, OutputError if they cannot be written."""
        lines = _Lines()
        while True:
            ready = select.select([descriptor], [], [], LOOK_EVERY_S)[0]
            self.check()
            data = os.read(descriptor, _READ_BYTES) if ready else b""
            changed = self._rescan() if not ready or b"\n" in data or not data else True
            if not ready:
                if when_idle is not None and not changed and not self._unfinished:
                    when_idle()
                continue
            for line in lines.take(data):
                if line is None:
                    self._answer(
                        "null", error=_input_error(f"a line of more than {MAX_LINE_BYTES:,} bytes; send less at a time")
                    )
                elif line.strip():
                    self._take(line)
            if not data:
                return

    def check(self):
        """BrokenPipeError or OutputError if answers could not be written so far. Call it again when the host is
        closed."""
        if self._failed is not None:
            raise self._failed

    # -- the folder -----------------------------------------------------------------------------------------------

    def _rescan(self):
        """Scans the folder again; has it changed? Logs once that it cannot be read."""
        try:
            changed = self._scan()
        except OSError as error:
            if self._scan_error != error.strerror:
                self._scan_error = error.strerror
                _log.error(
                    "%s: cannot be read any more: %s; loaded tasks continue to serve", self._folder, error.strerror
                )
            return False
        self._scan_error = None
        return changed

    def _scan(self):
        """Loads and unloads bundles that changed in the folder; has any? OSError."""
        found = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # gone since
                    if entry.name.endswith(".vmb") and entry.is_file():
                        state = entry.stat()
                        found[entry.name] = (state.st_mtime_ns, state.st_size, state.st_ino)
        if found == self._seen:
            return False
        new = sorted((mark, name) for name, mark in found.items() if self._seen.get(name) != mark)
        self._seen = found
        for _, name in new:  # of two bundles of one task, the one written last serves
            self._load(name)
        for name in [name for name in self._tasks if name not in found]:
            self._forget(name)
        for name in self._logged_refusals.keys() - found.keys():
            del self._logged_refusals[name]
        return True

    def _load(self, name):
        try:
            task = self._host.load(os.path.join(self._folder, name))
        except Exception as error:  # whatever it is, the other tasks continue to serve
            problem = str(error) if isinstance(error, VMHostError) else f"{name}: {type(error).__name__}: {error}"
            if self._logged_refusals.get(name) != problem:
                self._logged_refusals[name] = problem
                _log.error("%s", problem)
            if abs(time.time_ns() - self._seen[name][0]) < _SETTLED_NS:
                self._seen[name] = None
            return
        self._logged_refusals.pop(name, None)
        if self._tasks.get(name) not in (None, task.name):
            self._forget(name)
        if self._tasks.get(name) != task.name or self._versions.get(name) != task.version:
            _log.info("%s: serving %s %s", name, task.name, task.version)
        self._tasks[name] = task.name
        self._versions[name] = task.version

    def _forget(self, name):
        """The file is gone, or has another task now. Unloads its task, unless another file has one of that name."""
        task = self._tasks.pop(name)
        self._versions.pop(name, None)
        others = [
            (self._seen[other], other)
            for other, found in self._tasks.items()
            if found == task and self._seen.get(other)
        ]
        if others:
            self._load(max(others)[1])
        else:
            with contextlib.suppress(KeyError):
                self._host.unload(task, drain=True)
            _log.info("%s: gone, and with it %s", name, task)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _take(self, line):
        key = "null"  # JSON, echoed in the answer
        try:
            plain = _parsed(line)
            if isinstance(plain, dict) and "id" in plain:  # first, so that a bad input is answered under its id
                key = json_values.dumps(json_values.from_plain(plain["id"]))
            task, value, timeout_s = self._parse_request(_value(plain, line), line)
        except Exception as error:  # a ValueError has the reason; no line may end the server
            self._answer(key, error=_input_error(str(error) or type(error).__name__))
            return
        try:
            future = task.submit(value, timeout_s=timeout_s)
        except Exception as error:
            self._answer(key, error=_error(error))
            return
        with self._lock:
            self._unfinished += 1
        future.add_done_callback(lambda future: self._done(key, future))

    def _parse_request(self, asked, line):
        """(Task, value, seconds or None) in a line's value `asked`; ValueError."""
        if not isinstance(asked, dict) or not isinstance(asked.get("task"), str):
            raise ValueError('expected an object such as {"task": "digits", "input": 1}, got ' + _shortened(line))
        unknown = asked.keys() - {"id", "task", "input", "timeout_s"}
        if unknown:
            raise ValueError(f"unknown keys {shown(sorted(map(str, unknown)))}; known are id, task, input, timeout_s")
        timeout_s = asked.get("timeout_s")
        if timeout_s is not None and (
            isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0
        ):
            raise ValueError(f"timeout_s: expected seconds above zero, got {shown(timeout_s)}")
        if timeout_s is not None:
            timeout_s = float(min(timeout_s, _LONGEST_S))
        try:
            return self._host.task(asked["task"]), asked.get("input"), timeout_s
        except KeyError:
            names = ", ".join(sorted(self._host.tasks)) or "none"
            raise ValueError(f"no task {shown(asked['task'])}; loaded are: {names}") from None

    def _done(self, key, future):
        with self._lock:
            self._unfinished -= 1
        try:
            value = future.result()
        except Exception as error:
            self._answer(key, error=_error(error))
            return
        try:
            text = json_values.dumps(value)
        except Exception as error:
            self._answer(
                key,
                error={
                    "type": type(error).__name__,
                    "message": f"the task returned a value that JSON cannot express: {error}",
                },
            )
        else:
            self._write(f'{{"id": {key}, "result": {text}}}\n')

    def _answer(self, key, error):
        self._write(f'{{"id": {key}, "error": {json.dumps(error)}}}\n')

    def _write(self, line):
        with self._lock:
            if self._failed is None:
                try:
                    self._out.write(line)
                    self._out.flush()
                except BrokenPipeError as error:
                    self._failed = error
                except OSError as error:
                    self._failed = OutputError(f"the answers cannot be written: {error.strerror}")


class _Lines:
    """Cuts incoming bytes into lines. The bytes kept of an unfinished line are bounded by MAX_LINE_BYTES."""

    def __init__(self):
        self._parts, self._size = [], 0

    def take(self, data):
        """The lines that end in `data`, without line ends; None for one that is too long. b"" ends the last line."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            yield self._line()
        if data:
            self._add(rest)
        elif self._size:  # the last line, which has no line end
            yield self._line()

    def _add(self, part):
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _line(self):
        line = b"".join(self._parts) if self._size <= MAX_LINE_BYTES else None
        self._parts, self._size = [], 0
        return line


def _parsed(line):
    """The JSON in `line` as JSON's own types; ValueError."""
    try:
        return json_values.parse(line.decode())
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}: {_shortened(line)}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {line[error.start]:#04x} at {error.start}: {_shortened(line)}") from None
    except ValueError as error:
        raise ValueError(f"{error}: {_shortened(line)}") from None


def _value(plain, line):
    """The value that `plain` encodes; ValueError."""
    try:
        return json_values.from_plain(plain)
    except RecursionError:
        raise ValueError(f"nested too deeply: {_shortened(line)}") from None
    except ValueError as error:
        raise ValueError(f"{error}: {_shortened(line)}") from None


def _shortened(line):
    text = line[:300].decode(errors="replace").strip()
    return repr(text if len(line) < 300 and len(text) <= 60 else text[:60] + "...")


def _input_error(message):
    return {"type": "InputError", "message": message}


def _error(error):
    answer = {"type": type(error).__name__, "message": str(error)}
    frames = getattr(error, "guest_traceback", None)
    return answer | {"traceback": frames} if frames else answer
