"""Keeps a process that serves lines of JSON running: after a crash it starts a new one.

Lines go through the supervisor, which gives each to the process once. The process begins each answer with the number of
its line and a tab, so the supervisor knows which lines have theirs, whatever they say. Requests that a crashed process
was working on are answered with VMLostError; lines that it never got go to the next process. A process that ends by
itself, or by SIGTERM or SIGINT, is not replaced. Signals for the supervisor are passed on, and it ends with its
process.

One thread does it all: it polls input, signals, both pipes of the process, and its end.
"""

import collections
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

from vmhost.lines import exit_codes, requests
from vmhost.lines.signals import ENDING, HANDLED, Signals

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 10.0
_CALM_S = 30.0  # after a process that ran this long the next one starts at once
_MAX_CRASHES_IN_A_ROW = 20  # in a row, without an answer in between
_log = logging.getLogger("vmhost")


class Supervisor:
    """Runs `command`, whose stdin and stdout are lines; answers go to `out`. `on_crash(pid, signal)` is called when the
    process died of a signal, before the next one starts; its result is the message to those who wait for an answer.
    `signals`: of this process. A process that has not ended `signals.grace_s` after SIGTERM or SIGINT is killed."""

    def __init__(
        self,
        command: Sequence[str],
        out: BinaryIO,
        on_crash: Callable[[int, int], str],
        signals: Signals,
        wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._command, self._on_crash, self._signals, self._first_wait_s = list(command), on_crash, signals, wait_s
        self._answers = requests.Answers(out)
        self._unsent: collections.deque[tuple[str, bytes]] = collections.deque()  # (id, line) for the process
        self._left = b""  # of the first of them, what the process has not got
        self._child: _Child | None = None
        self._wait_s, self._in_a_row = wait_s, 0
        self._start_at = 0.0  # when the next process starts
        self._ended = False  # the input has ended
        self._ended_by: signal.Signals | None = None
        self._kill_at = float("inf")
        self.crashes = 0

    def run(self, descriptor: int) -> int:
        """Passes on lines from `descriptor` until they end; returns the exit status of the last process, -N if it died
        of signal N. BrokenPipeError, OutputError: answers cannot be written."""
        self._signals.begin()
        lines = requests.Lines()
        code = None
        try:
            while code is None:
                if self._child is None and time.monotonic() >= self._start_at:
                    self._start()
                ready = self._poll(descriptor)
                if self._signals.fileno() in ready:
                    self._pass_on_signals()
                if descriptor in ready and not self._ended:
                    data = requests.read(descriptor)
                    self._ended = not data
                    self._add(lines.take(data))
                code = self._serve(ready) if self._child is not None else self._code_without_child()
        finally:
            if self._child is not None:
                self._child.close()
        self._refuse_rest(descriptor, lines)
        self._answers.check()
        return code

    def _start(self):
        try:
            self._child = _Child(self._command)
        except OSError as error:
            self._start_at = time.monotonic() + _LONGEST_WAIT_S
            _log.error("no process can be started, next try in %g s: %s", _LONGEST_WAIT_S, error)

    def _poll(self, descriptor):
        """The descriptors that are ready; returns when something is due at the latest."""
        poll, child = select.poll(), self._child
        poll.register(self._signals, select.POLLIN)
        if not self._ended and not self._unsent:
            poll.register(descriptor, select.POLLIN)
        due = self._kill_at
        if child is not None:
            poll.register(child.end, select.POLLIN)
            if not child.answers_ended:
                poll.register(child.answers, select.POLLIN)
            if self._unsent and not child.is_deaf:
                poll.register(child.requests, select.POLLOUT)
        else:
            due = min(due, self._start_at)
        left_s = max(0.0, due - time.monotonic())
        return {found for found, _ in poll.poll(None if left_s == float("inf") else left_s * 1000)}

    def _pass_on_signals(self):
        for number in self._signals.take():
            if self._child is not None:
                self._child.send_signal(number)
            if number in ENDING and self._ended_by is None:
                self._ended_by = number
                self._kill_at = time.monotonic() + self._signals.grace_s

    def _add(self, lines):
        for line in lines:
            if line is None:
                self._answers.write(requests.too_long().encode())
            else:
                self._unsent.append((requests.id_of(line), line + b"\n"))

    def _serve(self, ready):
        """One round with the process. Its exit status if it has ended and is not replaced."""
        child = self._child
        if child.answers in ready:
            for answer in child.read_answers():
                self._answers.write(answer)
        if child.requests in ready:
            self._send(child)
        if time.monotonic() >= self._kill_at:
            child.kill()
            self._kill_at = float("inf")
        if child.end in ready:
            return self._end_child()
        if self._answers.failed and self._ended_by is None:  # nobody reads any more
            self._ended_by, self._kill_at = signal.SIGTERM, time.monotonic() + self._signals.grace_s
            child.send_signal(signal.SIGTERM)
        if self._ended and not self._unsent:
            child.end_requests()
        return None

    def _send(self, child):
        while self._unsent:
            key, line = self._unsent[0]
            self._left = self._left or line
            sent = child.write(self._left)
            self._left = self._left[sent:]
            if self._left:
                return
            self._unsent.popleft()
            child.take(key)

    def _end_child(self):
        """The process has ended. Its exit status if there is to be no other."""
        child, self._child, self._left = self._child, None, b""
        while not child.answers_ended and requests.is_ready(child.answers):
            for answer in child.read_answers():
                self._answers.write(answer)
        code = child.close()
        by_itself = code >= 0 or -code in HANDLED
        if self._ended_by is not None:
            message = f"{self._ended_by.name} ended the server, and the call had not ended in time"
        elif by_itself:
            how = f"with status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            message = f"the process that served it ended {how}"
        if not by_itself:
            self.crashes += 1
            if self._ended_by is None or -code != signal.SIGKILL:
                message = self._on_crash(child.pid, -code)
        kind = "VMLostError" if not by_itself or self._ended_by is None else "ClosedError"
        for key in child.pending.values():
            self._answers.write(requests.failed(key, {"type": kind, "message": message}).encode())
        self._in_a_row = 0 if child.answered else self._in_a_row + 1
        if by_itself or self._ended_by is not None or self._in_a_row >= _MAX_CRASHES_IN_A_ROW:
            return code
        if self._ended and not self._unsent:
            return code
        calm = time.monotonic() - child.began > _CALM_S
        self._wait_s = self._first_wait_s if calm else min(self._wait_s * 2, _LONGEST_WAIT_S)
        self._start_at = time.monotonic() + self._wait_s
        return None

    def _code_without_child(self):
        if self._ended_by is None:
            return None
        return exit_codes.INTERRUPTED if self._ended_by == signal.SIGINT else exit_codes.DONE

    def _refuse_rest(self, descriptor, lines):
        """Answers the lines that no process will get, as far as they have come."""
        if not self._ended and requests.is_ready(descriptor):
            self._add(lines.take(requests.read(descriptor)))
        for key, _ in self._unsent:
            self._answers.write(requests.failed(key, requests.ENDING).encode())


class _Child:
    """One process: its pipes, the lines that it has got, and those without an answer."""

    def __init__(self, command):
        # A session of its own: Ctrl-C in the terminal reaches it by the supervisor only. The signals stay blocked until
        # its handlers are set.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.began = time.monotonic()
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)
        self.requests, self.answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self.requests, False)
        self.pending = {}  # number of a line -> its id as JSON, until it is answered
        self.answered = self.answers_ended = self.is_deaf = False
        self._lines = 0
        self._half = []  # an answer that has not ended yet, in pieces

    def write(self, data):
        """Passes on what fits of `data`; the number of bytes."""
        try:
            return os.write(self.requests, data)
        except BlockingIOError:
            return 0
        except OSError:  # it reads no more: it ends
            self.is_deaf = True
            return 0

    def take(self, key):
        """It has got a whole line, of a request with this id."""
        self._lines += 1
        self.pending[self._lines] = key

    def read_answers(self):
        """The answers that have come, without their numbers."""
        data = os.read(self.answers, requests.READ_BYTES)
        self.answers_ended = not data
        *ended, rest = data.split(b"\n")
        for part in ended:
            line = b"".join([*self._half, part])
            self._half.clear()
            number, tab, answer = line.partition(b"\t")
            if tab and number.isdigit() and self.pending.pop(int(number), None) is not None:
                self.answered = True
                yield answer + b"\n"
            else:  # printed by something else in the process
                print(line.decode(errors="backslashreplace"), file=sys.stderr)
        self._half.append(rest)

    def end_requests(self):
        """No more lines come."""
        self.is_deaf = True
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()

    def close(self):
        """Its exit status; kills it first if it still runs."""
        self._process.kill()  # nothing if it has ended
        code = self._process.wait()
        self.end_requests()
        self._process.stdout.close()
        os.close(self.end)
        return code
