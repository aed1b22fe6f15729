"""Calls that wait for a VM, oldest first. Operations take constant time, or, with `one_of_a_key`, O(log n).

A call has a `position`, unique among the waiting ones, and a `key`.
"""

import heapq
from collections import OrderedDict


class WaitingCalls:
    """`one_of_a_key`: at most one call of each key runs at a time; `take` skips keys until `free` is called for
    them."""

    def __init__(self, one_of_a_key=False):
        self._one_of_a_key = one_of_a_key
        self._calls = OrderedDict()  # position: call
        self._of_key = {}  # key: OrderedDict of its calls
        self._busy = set()  # keys with a running call
        self._first = []  # heap of (position, key): the first call of each key that is not busy, and outdated entries

    def __len__(self):
        return len(self._calls)

    def __iter__(self):
        """Iterates over a copy of the calls."""
        return iter(list(self._calls.values()))

    def add(self, call, first=False):
        """Adds a call at the end, or at the begin."""
        of_key = self._of_key.setdefault(call.key, OrderedDict())
        self._calls[call.position] = of_key[call.position] = call
        if first:
            self._calls.move_to_end(call.position, last=False)
            of_key.move_to_end(call.position, last=False)
        if self._one_of_a_key and next(iter(of_key)) == call.position:
            self._offer(call.key)

    def remove(self, call):
        del self._calls[call.position]
        of_key = self._of_key[call.key]
        del of_key[call.position]
        if not of_key:
            del self._of_key[call.key]
        elif self._one_of_a_key:
            self._offer(call.key)

    def oldest(self, key=None):
        """The call that has waited longest, of all or of a key; None if there is none."""
        calls = self._calls if key is None else self._of_key.get(key)
        return next(iter(calls.values())) if calls else None

    def take(self):
        """Removes and returns the oldest call that may run; None if there is none."""
        if not self._one_of_a_key:
            call = self.oldest()
        else:
            call = None
            while call is None and self._first:
                position, key = heapq.heappop(self._first)
                first = self.oldest(key) if key not in self._busy else None
                call = first if first is not None and first.position == position else None
            if call is not None:
                self._busy.add(call.key)
        if call is not None:
            self.remove(call)
        return call

    def hold(self, key):
        """Marks `key` as busy, as if a call of it had been taken."""
        if self._one_of_a_key:
            self._busy.add(key)

    def free(self, key):
        """A call of `key` that was taken has ended, or waits again."""
        if self._one_of_a_key:
            self._busy.discard(key)
            self._offer(key)

    def _offer(self, key):
        if key not in self._busy and (call := self.oldest(key)) is not None:
            heapq.heappush(self._first, (call.position, key))
