"""The threads of a host on which its functions run that guests call.

A function may block as long as it likes: the guest that asked ends at its deadline, the function goes on. So the
threads are daemons, which neither the host's end nor the process's waits for longer than it wants to."""

import logging
import queue
import threading
import time

_log = logging.getLogger("vmhost")


class FunctionThreads:
    """At most `max_threads` threads, started as they are needed. All methods may be called from any thread."""

    def __init__(self, max_threads):
        self._max_threads = max_threads
        self._lock = threading.Lock()  # of who changes `_threads`; readers take none: Ctrl-C could leave it taken
        self._work = queue.SimpleQueue()
        self._threads = {}  # thread -> name of the function that it runs, None: it waits for one
        self._unfinished = 0  # functions that wait or run
        self._closed = False

    def run(self, name, act):
        """Run `act()`, the function called `name`, on one of the threads. False when they were closed."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < min(self._unfinished + 1, self._max_threads):
                thread = threading.Thread(target=self._serve, name=f"vmhost-function-{len(self._threads)}", daemon=True)
                thread.start()
                self._threads[thread] = None
            self._unfinished += 1
            self._work.put((name, act))
            return True

    @property
    def running(self):
        """The names of the functions that run now."""
        return tuple(name for name in list(self._threads.values()) if name is not None)

    def has(self, thread):
        """Is `thread` one of these?"""
        return thread in self._threads

    def close(self):
        """Take no more; each thread ends when it has done what it was given. Repeating it does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._work.put(None)

    def wait(self, timeout_s):
        """After `close`: wait until the threads are gone, this one excepted. The names of functions that still run
        then."""
        end = time.monotonic() + timeout_s
        threads = [thread for thread in list(self._threads) if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return tuple(name for thread, name in list(self._threads.items()) if name is not None and thread in threads)

    def _serve(self):
        me = threading.current_thread()
        while (work := self._work.get()) is not None:
            name, act = work
            with self._lock:
                self._threads[me] = name
            try:
                act()
            except BaseException:  # a thread that dies of it would leave less for the others
                _log.exception("vmhost: host function %s could not be answered", name)
            work = act = None  # a call that was not answered is answered when nobody has it any more
            with self._lock:
                self._threads[me] = None
                self._unfinished -= 1
        with self._lock:
            del self._threads[me]
