"""Keeps a process that serves lines of JSON running: after a crash it starts a new one.

Lines go through the supervisor, which knows the unanswered requests. Requests that a crashed process was working on are
answered with VMLostError; lines that it never got go to the next process. A process that ends by itself is not
replaced.
"""

import collections
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 10.0
_CALM_S = 30.0  # after a process that ran this long the next one starts at once
_MAX_CRASHES_IN_A_ROW = 20  # in a row, without an answer in between


class Supervisor:
    """Runs `command`, whose stdin and stdout are lines; answers go to `out`. `on_crash(pid, signal)` is called when the
    process died of a signal, before the next one starts; its result is the message to those who wait for an answer."""

    def __init__(
        self,
        command: Sequence[str],
        out: BinaryIO,
        on_crash: Callable[[int, int], str],
        wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._command, self._out, self._on_crash, self._first_wait_s = list(command), out, on_crash, wait_s
        self._lock = threading.Lock()  # guards `_pending` and `out`
        self._pending: collections.Counter[str] = collections.Counter()  # ids of unanswered requests, as JSON
        self._changed = threading.Condition()
        self._process: subprocess.Popen | None = None
        self._ended = False  # the input has ended
        self._code: int | None = None  # exit status of the last process
        self.crashes = 0

    def run(self, lines: BinaryIO) -> int:
        """Passes on `lines` until they end; returns the exit status of the last process, -N if it died of signal N."""
        watcher = threading.Thread(target=self._watch, name="vmhost-supervisor", daemon=True)
        watcher.start()
        try:
            for line in lines:
                if line.strip() and not self._send(line if line.endswith(b"\n") else line + b"\n"):
                    break
        finally:
            with self._changed:
                self._ended = True
                process = self._process
                self._changed.notify_all()
            if process is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            watcher.join()
        assert self._code is not None
        return self._code

    def stop(self) -> None:
        """Ends the process as SIGTERM does."""
        with self._changed:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def _send(self, line):
        """False: there is no process any more, nor will there be one."""
        name = _id_of(line)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._process is not None or self._code is not None)
                process = self._process
                if process is None:
                    return False
            with self._lock:
                self._pending[name] += 1
            try:
                process.stdin.write(line)
                process.stdin.flush()
                return True
            except OSError, ValueError:  # the process has ended: the next one gets the line, unless it was answered
                with self._lock:
                    if self._pending[name] == 0:
                        return True
                    self._pending[name] -= 1
                with self._changed:
                    self._changed.wait_for(lambda failed=process: self._process is not failed)

    def _watch(self):
        wait_s, in_a_row = self._first_wait_s, 0
        while True:
            began = time.monotonic()
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            with self._changed:
                self._process = process
                if self._ended:
                    process.stdin.close()
                self._changed.notify_all()
            answers = self._pass_on(process)
            code = process.wait()
            crashed = code < 0 and -code not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            message = ""
            if code < 0:
                self.crashes += 1
                message = self._on_crash(process.pid, -code)
            with contextlib.suppress(OSError):
                process.stdin.close()
            self._give_up(message or f"the process that served it ended with status {code}")
            in_a_row = 0 if answers else in_a_row + 1
            restart = crashed and in_a_row < _MAX_CRASHES_IN_A_ROW
            with self._changed:
                restart = restart and not self._ended
                self._process = None
                if not restart:
                    self._code = code
                self._changed.notify_all()
                if not restart:
                    return
                wait_s = self._first_wait_s if time.monotonic() - began > _CALM_S else min(wait_s * 2, _LONGEST_WAIT_S)
                self._changed.wait_for(lambda: self._ended, wait_s)

    def _pass_on(self, process):
        """Passes on the answers of the process until it ends; returns their number."""
        answers = 0
        with process.stdout:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # half an answer: the request is reported as lost
                name = _id_of(line)
                with self._lock:
                    if self._pending[name] > 0:
                        self._pending[name] -= 1
                    self._write(line)
                answers += 1
        return answers

    def _give_up(self, why):
        with self._lock:
            for name, count in self._pending.items():
                answer = {"error": {"type": "VMLostError", "message": why}}
                if name != "null":
                    answer = {"id": json.loads(name), **answer}
                for _ in range(count):
                    self._write(json.dumps(answer).encode() + b"\n")
            self._pending.clear()

    def _write(self, line):
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more; the input ends soon
            self._out.write(line)
            self._out.flush()


def _id_of(line):
    """The id of a request as JSON; "null" if it has none."""
    try:
        found = json.loads(line)
        return json.dumps(found.get("id")) if isinstance(found, dict) else "null"
    except ValueError, RecursionError:
        return "null"
