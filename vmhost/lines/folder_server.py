"""Serves the bundles in a folder: calls come in as lines of JSON, answers go out as lines of JSON, in the order in
which the calls end.

    {"id": 7, "task": "digits", "input": VALUE, "timeout_s": 0.5}      id, input and timeout_s are optional
    {"id": 7, "result": VALUE}
    {"id": 7, "error": {"type": "TaskError", "message": "...", "traceback": "..."}}

For values see `json_values`. Every non-empty line gets one answer, even when the server is interrupted. A line of more
than requests.MAX_LINE_BYTES is refused, and not kept in memory. While nobody reads the answers, no more lines are read.
The folder is scanned about once a second: a new bundle is loaded, a replaced one supersedes its older version, a
removed one is unloaded when its calls have ended. A bundle that the host refuses, for example a partly written one, is
logged once; the one loaded from that file before continues to serve.

SIGTERM and SIGINT end the server: lines read before are answered within the grace time, then with an error; lines read
later are answered with an error at once."""

import contextlib
import json
import logging
import math
import os
import select
import signal
import threading
import time

from vmhost.bytecode.fields import shown
from vmhost.errors import ClosedError, ConfigurationError, VMHostError
from vmhost.lines import json_values, requests
from vmhost.lines.signals import Signals

LOOK_EVERY_S = 1.0
GRACE_S = 30.0
# A file refused so soon after it was written may still be growing without a change of its times and size: try it again.
_SETTLED_NS = 100_000_000
_LONGEST_S = 1e9
_log = logging.getLogger("vmhost")


class FolderServer:
    """Runs calls of the tasks in `folder` on `host`; writes answers to the text file `out`. ConfigurationError: no such
    folder.

    `reload()` is called at SIGHUP. `numbered`: each answer begins with the number of its line, from 1, and a tab, for a
    supervisor that must know which lines have theirs."""

    def __init__(self, host, folder, out, *, reload=None, numbered=False):
        self._host = host
        self._folder = os.fspath(folder)
        self._answers = requests.Answers(out)
        self._reload = reload
        self._numbered = numbered
        self._lines = 0  # read so far
        self._seen = {}  # name of a file -> its stamp, which changes when it is replaced
        self._tasks = {}  # name of a file -> name of the task that was loaded from it
        self._versions = {}  # the same -> its version
        self._logged_refusals = {}  # name of a file -> the refusal logged last
        self._scan_error = None  # the error of reading the folder logged last
        self._unfinished = 0  # calls without an answer
        self._ending = False  # new calls are refused
        self._finishing = False  # it ends with its calls
        self._overdue = None  # why calls end now, once their time is over
        self._signals = None
        self._lock = threading.Lock()  # guards `_unfinished`
        try:
            self._scan()
        except OSError as error:
            raise ConfigurationError(f"{folder}: expected a folder of bundles, got {error.strerror}") from error
        if not self._seen:
            _log.info("%s: no bundles yet; files NAME.vmb put there are served within a second", folder)

    def run(self, descriptor, signals=None, when_idle=None):
        """Serves lines from the file `descriptor` until its end, or until one of `signals` (Signals) ends the server;
        returns that signal, or None. Then all calls have been answered.

        `when_idle()` is called about once a second while nothing comes and nothing runs. BrokenPipeError if nobody
        reads the answers any more, OutputError if they cannot be written."""
        with contextlib.ExitStack() as stack:
            self._signals = signals or stack.enter_context(Signals(GRACE_S))
            self._signals.begin()
            return self._serve(descriptor, when_idle)

    def _serve(self, descriptor, when_idle):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        lines, has_ended, ended_by, end = requests.Lines(), False, None, math.inf
        while self._unfinished or not self._finishing:
            left_s = max(0.0, min(LOOK_EVERY_S, end - time.monotonic()))
            ready = [found for found, _ in poll.poll(left_s * 1000)]
            self.check()
            for number in self._signals.take() if self._signals.fileno() in ready else ():
                if number == signal.SIGHUP:
                    self._read_settings()
                elif ended_by is None:
                    ended_by, end = number, time.monotonic() + self._signals.grace_s
                    self._ending = self._finishing = True
                    advice = "; a second Ctrl-C ends them at once" if number == signal.SIGINT else ""
                    _log.info("%s: no new calls; the others have %g s%s", number.name, self._signals.grace_s, advice)
                elif number == signal.SIGINT:
                    end = 0.0
            if time.monotonic() >= end:
                self._overdue = f"{ended_by.name} ended the server, and the call had not ended in time"
                self._host.close(drain=False)
            data = requests.read(descriptor) if descriptor in ready else None
            changed = bool(data and b"\n" not in data) or not self._finishing and self._rescan()
            if data is not None:
                for line in lines.take(data):
                    self._take(line)
                if not data:
                    has_ended = self._finishing = True
                    poll.unregister(descriptor)
            elif not ready and when_idle is not None and not changed and not self._unfinished:
                when_idle()
        if not has_ended and requests.is_ready(descriptor):
            for line in lines.take(requests.read(descriptor)):
                self._take(line)
        return ended_by

    def _read_settings(self):
        if self._reload is None:
            _log.info("SIGHUP: there is no file of settings to read again")
            return
        try:
            self._reload()
        except Exception as error:  # whatever it is, the tasks continue to serve
            _log.error("SIGHUP: %s", error if isinstance(error, VMHostError) else f"{type(error).__name__}: {error}")
        self._seen = {}  # so that each bundle is loaded under the settings of now
        self._rescan()

    def check(self):
        """BrokenPipeError or OutputError if answers could not be written so far. Call it again when the host is
        closed."""
        self._answers.check()

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
        """Answers a line, now or when its call has ended. None: it was too long."""
        self._answers.wait()
        self._lines += 1
        number = f"{self._lines}\t" if self._numbered else ""
        if line is None:
            self._answers.write(number + requests.too_long())
            return
        if self._ending:
            self._answers.write(number + requests.failed(requests.id_of(line), requests.ENDING))
            return
        key = requests.NO_ID
        try:
            plain = _parsed(line)
            key = requests.id_in(plain)  # first, so that a bad input is answered under its id
            task, value, timeout_s = self._parse_request(_value(plain, line), line)
        except Exception as error:  # a ValueError has the reason; no line may end the server
            problem = {"type": "InputError", "message": str(error) or type(error).__name__}
            self._answers.write(number + requests.failed(key, problem))
            return
        try:
            future = task.submit(value, timeout_s=timeout_s)
        except Exception as error:
            self._answers.write(number + requests.failed(key, _error(error)))
            return
        with self._lock:
            self._unfinished += 1
        future.add_done_callback(lambda future: self._done(number, key, future))

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

    def _done(self, number, key, future):
        try:
            self._answers.write(number + self._answer(key, future))
        finally:
            with self._lock:
                self._unfinished -= 1
                last = self._finishing and not self._unfinished
            if last:
                self._signals.wake()

    def _answer(self, key, future):
        """The line that answers the call that has ended."""
        try:
            value = future.result()
        except Exception as error:
            overdue = self._overdue if isinstance(error, ClosedError) else None
            return requests.failed(key, _error(error) | ({"message": overdue} if overdue else {}))
        try:
            return f'{{"id": {key}, "result": {json_values.dumps(value)}}}\n'
        except Exception as error:
            message = f"the task returned a value that JSON cannot express: {error}"
            return requests.failed(key, {"type": type(error).__name__, "message": message})


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


def _error(error):
    answer = {"type": type(error).__name__, "message": str(error)}
    frames = getattr(error, "guest_traceback", None)
    return answer | {"traceback": frames} if frames else answer
