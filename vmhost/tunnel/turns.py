"""Threads that work for several devices in turn, so that one with much work delays nobody else for long."""

import concurrent.futures
import threading
from collections import Counter, deque


class Turns:
    """`threads`: started when needed. `most`: how many of them one key's work may take at a time."""

    def __init__(self, threads, name, most=None):
        self._most = most or threads
        self._lock = threading.Lock()
        self._waiting = {}  # key -> deque of (future, function, arguments); the key that is next comes first
        self._running = Counter()
        self._threads, self._working = threads, 0  # how many there may be, and how many look for work
        self._is_shut = False
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, key, function, *given):
        """A concurrent Future of `function(*given)`; what is cancelled before its turn is dropped at once. RuntimeError
        after `shutdown`."""
        future = concurrent.futures.Future()
        piece = future, function, given
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the threads were shut down")
            self._waiting.setdefault(key, deque()).append(piece)
            is_started = self._working < self._threads
            self._working += is_started
        future.add_done_callback(lambda future: future.cancelled() and self._drop(key, piece))
        if is_started:
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # no thread could be started
                with self._lock:
                    self._working -= 1
                self._drop(key, piece)
                raise
        return future

    def _drop(self, key, piece):
        with self._lock:
            queue = self._waiting.get(key, ())
            if piece in queue:
                queue.remove(piece)
                if not queue:
                    del self._waiting[key]

    def _work(self):
        """Does what may be done now. Work of a key that has its `most` threads is left to them."""
        key = None
        while True:
            with self._lock:
                if key is not None:
                    self._running[key] -= 1
                    if not self._running[key]:
                        del self._running[key]
                key = next((each for each in self._waiting if self._running[each] < self._most), None)
                if key is None:
                    self._working -= 1
                    return
                queue = self._waiting.pop(key)
                future, function, given = queue.popleft()
                if queue:
                    self._waiting[key] = queue  # as the last
                self._running[key] += 1
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*given)
                except BaseException as error:  # for whoever asks for the result
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, function, given

    def shutdown(self):
        """Drops what has not begun, and waits for the rest."""
        with self._lock:
            self._is_shut = True
            waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for future, _, _ in queue:
                future.cancel()
        self._pool.shutdown(wait=True)
