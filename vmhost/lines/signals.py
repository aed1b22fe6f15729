"""Signals that end or reload a server of lines, as bytes in a pipe, which its loop polls beside its input.

SIGTERM asks the server to answer the calls it has and to end; so does SIGINT, and a second SIGINT asks it not to wait
for them. SIGHUP asks it to read its settings again."""

import contextlib
import os
import signal
import threading

from vmhost.lines import exit_codes

ENDING = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*ENDING, signal.SIGHUP)
_WOKEN = b"\0"  # no signal
_MARGIN_S = 5.0  # for what remains to do after the grace time


class Signals:
    """The signals of this process while the context manager is open; elsewhere than on the main thread, which alone
    gets signals, only those of `put`.

    Until `begin()`, SIGTERM and SIGINT raise KeyboardInterrupt: there are no calls yet. `grace_s`: how long calls may
    take after one of them. A process that has not ended some seconds after that, as when nobody reads its answers, is
    ended, with exit code HOST_FAILED. A thread of its own sees to that: a signal that comes just before the main thread
    waits for a lock or a pipe does not wake it."""

    def __init__(self, grace_s):
        self.grace_s = grace_s
        self._reads, self._writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._began = False
        self._before = None
        self._woken_before = None
        self._watcher = None
        self._over = threading.Event()
        self._lock = threading.RLock()  # guards the pipe's end; reentrant for signal handlers

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            watched, self._tells_watcher = os.pipe2(os.O_CLOEXEC)
            self._watcher = threading.Thread(target=self._watch, args=(watched,), name="vmhost signals", daemon=True)
            self._watcher.start()
            os.set_blocking(self._tells_watcher, False)
            self._woken_before = signal.set_wakeup_fd(self._tells_watcher, warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._on_signal) for number in HANDLED}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # a supervisor starts its process with them blocked
        return self

    def __exit__(self, *_):
        for number, handler in (self._before or {}).items():
            signal.signal(number, handler)
        if self._watcher is not None:
            signal.set_wakeup_fd(self._woken_before, warn_on_full_buffer=False)
            self._over.set()
            os.close(self._tells_watcher)
            self._watcher.join()
        with self._lock:
            os.close(self._reads)
            os.close(self._writes)
            self._writes = None

    def begin(self):
        """From now on the loop takes all signals."""
        self._began = True

    def fileno(self):
        return self._reads

    def put(self, number):
        """Delivers the signal `number` to the loop."""
        self._write(bytes([number]))

    def wake(self):
        """Wakes the loop. From any thread."""
        self._write(_WOKEN)

    def take(self):
        """The signals since the last time, in order."""
        try:
            return [signal.Signals(number) for number in os.read(self._reads, 4096) if number]
        except BlockingIOError:
            return []

    def _write(self, data):
        with self._lock, contextlib.suppress(BlockingIOError):  # full: the loop wakes anyway
            if self._writes is not None:
                os.write(self._writes, data)

    def _on_signal(self, number, _):
        if number in ENDING:
            if not self._began:
                raise KeyboardInterrupt
        self.put(number)

    def _watch(self, watched):
        """Ends the process some time after a signal that asked for its end, unless this context manager has ended.
        `watched`: a pipe that Python writes each signal to, in whichever thread it comes."""
        try:
            while data := os.read(watched, 4096):
                if self._began and any(number in ENDING for number in data):
                    if not self._over.wait(self.grace_s + _MARGIN_S):
                        _end(self.grace_s)
                    return
        finally:
            os.close(watched)


def _end(grace_s):
    message = f"error: answers could not be written within {grace_s + _MARGIN_S:g} s; the process ends without them\n"
    try:
        os.write(2, message.encode())
    finally:
        os._exit(exit_codes.HOST_FAILED)
