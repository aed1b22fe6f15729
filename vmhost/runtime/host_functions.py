"""Threads of a host that run the host functions called by guests.

A function may block as long as it likes: the calling guest ends at its deadline, the function continues. So the
threads are daemons, and neither the host's close nor the process's exit has to wait for them."""

import _thread
import logging
import time

from vmhost.runtime import native_threads

_log = logging.getLogger("vmhost")


class FunctionThreads:
    """At most `max_threads` threads, started on demand. All methods may be called from any thread."""

    def __init__(self, max_threads):
        self._max_threads = max_threads
        # For changes of what follows. Readers and `close` take none: Ctrl-C could leave it locked.
        self._lock = native_threads.Lock()
        self._work = native_threads.SimpleQueue()
        self._threads = {}  # thread -> name of its current function; None: idle
        self._unfinished = self._queued = 0  # functions queued or running; queued
        self._closed = False

    def run(self, name, act):
        """Run `act()`, the function called `name`, on one of the threads. False if closed."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < min(self._unfinished + 1, self._max_threads):
                mine = []  # the thread, for itself
                thread = native_threads.new_thread(self._serve, f"vmhost-function-{len(self._threads)}", (mine,))
                mine.append(thread)
                thread.start()
                self._threads[thread] = None
            self._unfinished += 1
            self._queued += 1
            self._work.put((name, act))
            return True

    @property
    def running(self):
        """The names of the functions that are running."""
        return tuple(name for name in list(self._threads.values()) if name is not None)

    def has(self, ident):
        """Whether the thread with this get_ident() is one of these."""
        return any(thread.ident == ident for thread in list(self._threads))

    def close(self):
        """Accept no more; each thread ends after its queued functions. Can be repeated."""
        self._closed = True
        self._work.put(None)  # each thread that ends passes it on

    def wait(self, timeout_s):
        """After `close`: wait for the threads to end, except the calling one. Returns the names of functions that are
        still running."""
        end = time.monotonic() + timeout_s
        threads = [thread for thread in list(self._threads) if thread.ident != native_threads.get_ident()]
        for thread in threads:
            thread.join(min(max(0.0, end - time.monotonic()), _thread.TIMEOUT_MAX))
        return tuple(name for thread, name in list(self._threads.items()) if name is not None and thread in threads)

    def _serve(self, mine):
        (me,) = mine
        while True:
            work = self._work.get()
            with self._lock:
                if work is None:
                    self._work.put(None)
                    if self._queued:
                        continue  # `close` came before a function that was queued at the same time
                    del self._threads[me]
                    return
                self._queued -= 1
                self._threads[me] = work[0]
            name, act = work
            try:
                act()
            except BaseException:  # the thread must survive for the next function
                _log.exception("vmhost: host function %s could not be answered", name)
            work = act = None  # dropping the last reference to an unanswered call answers it
            with self._lock:
                self._threads[me] = None
                self._unfinished -= 1
