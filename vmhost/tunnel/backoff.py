"""When to try again, and at which address, after a connection failed or ended.

The wait doubles with each failure, with jitter, so that a fleet does not reconnect all at once. A connection that
lasted, or made progress, resets it. All addresses are tried before the wait grows.
"""

import random

FIRST_S, LONGEST_S = 0.25, 60.0
LASTED_S = 10.0  # a connection that lasted this long counts as good


class Backoff:
    def __init__(self, addresses, *, first_s=FIRST_S, longest_s=LONGEST_S, randomness=None):
        self.addresses = list(addresses)
        self._first_s, self._longest_s = first_s, longest_s
        self._random = randomness or random.Random()
        self._at = 0
        self.failures = 0

    @property
    def address(self):
        return self.addresses[self._at]

    def failed(self):
        """Returns the seconds to wait; the next try is at the next address."""
        self._at = (self._at + 1) % len(self.addresses)
        self.failures += 1
        rounds = (self.failures - 1) // len(self.addresses)
        return self._random.uniform(0.5, 1.0) * min(self._longest_s, self._first_s * 2 ** min(rounds, 20))

    def ended(self, lasted_s, progress=False):
        """Returns the seconds to wait after a good connection ended; the next try is at the same address. `progress`:
        something was acknowledged or answered on it."""
        if progress or lasted_s >= LASTED_S:
            self.failures = 0
            return self._random.uniform(0.0, self._first_s)
        rounds = self.failures // len(self.addresses)
        self.failures += 1
        return self._random.uniform(0.5, 1.0) * min(self._longest_s, self._first_s * 2 ** min(rounds, 20))

    def moved(self, after_s):
        """The other end asked to reconnect: returns the seconds to wait; the next try is at the next address."""
        self._at = (self._at + 1) % len(self.addresses)
        return self._random.uniform(0.5, 1.0) * after_s

    def woken(self):
        self.failures = 0
