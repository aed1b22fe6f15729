"""Threads that work for several devices in turn, so that one with much work delays nobody else for long."""

import concurrent.futures
import threading
from collections import Counter, deque


class Turns:
    """`threads`: started when needed. `most`: how many of them one key's work may take at a time."""

    def __init__(self, threads, name, most=None):
        self._most = most or threads
        self._lock = threading.Lock()
        self._waiting = {}  # key -> deque of pieces of work; the key that is next comes first
        self._running = Counter()
        self._threads, self._working = threads, 0  # how many there may be, and how many look for work
        self._is_shut = False
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)

    def put(self, key, piece):
        """Has `piece.run()` called, which raises nothing, or `piece.dropped()` by `shutdown`. RuntimeError after it,
        and where no thread can be started."""
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the threads were shut down")
            self._waiting.setdefault(key, deque()).append(piece)
            is_started = self._working < self._threads
            self._working += is_started
        if is_started:
            try:
                self._pool.submit(self._work)
            except RuntimeError:
                with self._lock:
                    self._working -= 1
                self.drop(key, piece)
                raise

    def drop(self, key, piece):
        """Takes back a piece. Returns whether it was there: it had not begun."""
        with self._lock:
            queue = self._waiting.get(key, ())
            if piece not in queue:
                return False
            queue.remove(piece)
            if not queue:
                del self._waiting[key]
            return True

    def submit(self, key, function, *given):
        """A concurrent Future of `function(*given)`; what is cancelled before its turn is dropped at once. RuntimeError
        as `put`."""
        piece = _Call(function, given)
        future = piece.future  # before a thread takes it
        self.put(key, piece)
        future.add_done_callback(lambda future: future.cancelled() and self.drop(key, piece))
        return future

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
                piece = queue.popleft()
                if queue:
                    self._waiting[key] = queue  # as the last
                self._running[key] += 1
            piece.run()
            del piece

    def shutdown(self):
        """Drops what has not begun, and waits for the rest."""
        with self._lock:
            self._is_shut = True
            waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for piece in queue:
                piece.dropped()
        self._pool.shutdown(wait=True)


class _Call:
    """A function's call, and the Future of its result."""

    __slots__ = ("_function", "_given", "future")

    def __init__(self, function, given):
        self._function, self._given = function, given
        self.future = concurrent.futures.Future()

    def run(self):
        future, self.future = self.future, None  # its callback holds this object
        if future.set_running_or_notify_cancel():
            try:
                result = self._function(*self._given)
            except BaseException as error:  # for whoever asks for the result
                future.set_exception(error)
            else:
                future.set_result(result)

    def dropped(self):
        self.future.cancel()
