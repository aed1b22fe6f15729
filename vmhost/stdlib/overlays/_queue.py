"""_queue without native waits, which could not be stopped: its SimpleQueue waits on locks, like the rest of a VM."""

from _thread import allocate_lock
from collections import deque
from time import monotonic
from types import GenericAlias

__all__ = ["Empty", "SimpleQueue"]


class Empty(Exception):
    """Raised by get() if the queue is empty and nothing came in time."""


class SimpleQueue:
    """Simple, unbounded, reentrant FIFO queue."""

    def __new__(cls):
        self = super().__new__(cls)
        self._items = deque()
        self._waiting = deque()     # one locked lock per waiting get()
        return self

    def put(self, item, block=True, timeout=None):
        """Puts the item on the queue; never blocks."""
        self._items.append(item)
        self._wake()

    def put_nowait(self, item):
        """Puts the item on the queue."""
        self.put(item)

    def get(self, block=True, timeout=None):
        """Removes and returns an item. Waits for one, at most `timeout` seconds; Empty if there is none."""
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        end = None if timeout is None else monotonic() + timeout
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                left = None if end is None else end - monotonic()
                if not block or left is not None and left <= 0:
                    raise Empty from None
            self._wait(left)

    def get_nowait(self):
        """Removes and returns an item; Empty if there is none."""
        return self.get(block=False)

    def empty(self):
        """Is the queue empty? (Unreliable if others use it.)"""
        return not self._items

    def qsize(self):
        """The number of items in the queue (unreliable if others use it)."""
        return len(self._items)

    def _wait(self, left):
        lock = allocate_lock()
        lock.acquire()
        self._waiting.append(lock)
        try:
            if not self._items:     # else one was put before the lock was visible
                lock.acquire() if left is None else lock.acquire(timeout=left)
        finally:
            try:
                self._waiting.remove(lock)
            except ValueError:      # taken by a put(): if its item is still there, wake the next
                if self._items:
                    self._wake()

    def _wake(self):
        try:
            self._waiting.popleft().release()
        except IndexError:
            pass

    __class_getitem__ = classmethod(GenericAlias)
