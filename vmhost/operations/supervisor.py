"""Keeps a process that serves lines of JSON running: after a crash a new one takes its place.

Lines go through the supervisor, which knows what was asked and not answered. What a process that crashed was working on
is answered with VMLostError; lines that it never got go to the next one. A process that ends by itself is not replaced.
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
_CALM_S = 30.0  # a process that ran so long has the next one start at once
_CRASHES_MOST = 20  # in a row, without an answer between them


class Supervisor:
    """Runs `command`, whose stdin and stdout are lines; answers go to `out`. `on_crash(pid, signal)` is called when the
    process died of a signal, before the next one begins; what it returns is told to those who wait for an answer."""

    def __init__(
        self,
        command: Sequence[str],
        out: BinaryIO,
        on_crash: Callable[[int, int], str],
        wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._command, self._out, self._on_crash, self._first_wait_s = list(command), out, on_crash, wait_s
        self._lock = threading.Lock()  # of what is pending, and of `out`
        self._pending: collections.Counter[str] = collections.Counter()  # ids as JSON
        self._changed = threading.Condition()
        self._process: subprocess.Popen | None = None
        self._ended = False  # no more lines come
        self._code: int | None = None  # what the last process ended with
        self.crashes = 0

    def run(self, lines: BinaryIO) -> int:
        """Pass on `lines` until they end; the exit status of the last process, -N: it died of signal N."""
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
        """End the process as SIGTERM does."""
        with self._changed:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def _send(self, line):
        """False: there is no process any more, and there will be none."""
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
            except OSError, ValueError:  # it is gone: the next one gets the line, if nobody has answered it
                with self._lock:
                    if self._pending[name] == 0:
                        return True
                    self._pending[name] -= 1
                with self._changed:
                    self._changed.wait_for(lambda gone=process: self._process is not gone)

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
            told = ""
            if code < 0:
                self.crashes += 1
                told = self._on_crash(process.pid, -code)
            with contextlib.suppress(OSError):
                process.stdin.close()
            self._give_up(told or f"the process that served it ended with status {code}")
            in_a_row = 0 if answers else in_a_row + 1
            again = crashed and in_a_row < _CRASHES_MOST
            with self._changed:
                again = again and not self._ended
                self._process = None
                if not again:
                    self._code = code
                self._changed.notify_all()
                if not again:
                    return
                wait_s = self._first_wait_s if time.monotonic() - began > _CALM_S else min(wait_s * 2, _LONGEST_WAIT_S)
                self._changed.wait_for(lambda: self._ended, wait_s)

    def _pass_on(self, process):
        """Answers of the process go out until it ends; how many there were."""
        answers = 0
        with process.stdout:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # half of one: it is told that it was lost
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
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more: the lines end soon
            self._out.write(line)
            self._out.flush()


def _id_of(line):
    """The id of a line as JSON, "null": it has none."""
    try:
        found = json.loads(line)
        return json.dumps(found.get("id")) if isinstance(found, dict) else "null"
    except ValueError, RecursionError:
        return "null"
