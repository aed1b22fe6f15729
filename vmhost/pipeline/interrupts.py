"""Ctrl-C while a thread is inside a pipeline: KeyboardInterrupt is raised where that is safe.

Python raises KeyboardInterrupt in the main thread after any call, even the one that has just acquired the lock of a
`with`. That lock is then never released (CPython 3.14: in every second try of a loop that does nothing else), and the
pipeline's threads wait for it for ever. So while a pipeline is open, an interrupt that finds the main thread in this
package, in `vmhost.stores` or in `vmhost.tunnel` is deferred: waits and `append` raise it (`check`); otherwise it is
sent again until the main thread is outside.
"""

import math
import signal
import threading
import time

_PACKAGES = ("vmhost.pipeline", "vmhost.stores", "vmhost.tunnel")
_AGAIN_S = 0.005  # interval at which a deferred interrupt is sent again
_IGNORE_S = 0.05  # a signal arrives within this time of being sent


class _Interrupts:
    """Open pipelines hold it open; the handler is installed from the first to the last of them."""

    def __init__(self):
        self._users = 0
        self._kept = False  # a deferred interrupt waits to be raised
        self._sending = None  # the thread that sends it again
        self._sent = False  # it has been sent again
        self._settled = threading.Event()  # it has been raised
        self._ignored_until_s = 0.0

    def open(self):
        """Called on the main thread, where Ctrl-C raises KeyboardInterrupt. True if `close` is to be called."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, self.heard):
            return False  # asyncio, a command or an application has its own handler
        if self._users == 0:
            self._ignored_until_s = 0.0
        self._users += 1
        signal.signal(signal.SIGINT, self.heard)
        return True

    def close(self):
        """Raises a deferred interrupt. Off the main thread the handler stays installed, which does no harm."""
        self._users -= 1
        if self._users == 0 and threading.current_thread() is threading.main_thread():
            try:
                self.check()
            finally:
                if signal.getsignal(signal.SIGINT) == self.heard:
                    signal.signal(signal.SIGINT, signal.default_int_handler)

    def heard(self, number, frame):
        """The handler of SIGINT: raises KeyboardInterrupt, or defers it."""
        if time.monotonic() < self._ignored_until_s:
            return  # sent again, but raised meanwhile
        if not _is_inside(frame):
            self._raise()
        if not self._kept:
            self._kept = True
            self._sent = False
            self._settled.clear()
            self._sending = threading.Thread(target=self._send, name="vmhost-pipeline-interrupt", daemon=True)
            self._sending.start()

    heard.defers_interrupts = True  # for vmhost.tunnel.loop_thread, which ends its calls itself

    def check(self):
        """Raises a deferred interrupt, on the main thread. Called where that is safe."""
        if self._kept and threading.current_thread() is threading.main_thread():
            self._raise()

    def _raise(self):
        sending, self._ignored_until_s = self._sending, math.inf
        self._kept, self._sending = False, None
        self._settled.set()
        if sending is not None:
            sending.join()
        self._ignored_until_s = time.monotonic() + _IGNORE_S if self._sent else 0.0
        raise KeyboardInterrupt

    def _send(self):
        main = threading.main_thread()
        while not self._settled.wait(_AGAIN_S) and main.is_alive():
            self._sent = True
            signal.pthread_kill(main.ident, signal.SIGINT)


def _is_inside(frame):
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_PACKAGES):
            return True
        frame = frame.f_back
    return False


_interrupts = _Interrupts()
open, close, heard, check = _interrupts.open, _interrupts.close, _interrupts.heard, _interrupts.check
