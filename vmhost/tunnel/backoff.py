"""When to try again, and at which address, after a connection failed or ended.

Waiting doubles with each failure, with jitter, so that a fleet does not come back all at once. A connection that
lasted, or got something done, sets it back. All addresses are tried before the waiting grows.
"""

import random

FIRST_S, LONGEST_S = 0.25, 60.0
LASTED_S = 10.0  # a connection that lasted so long was a good one


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
        """Seconds to wait; the next address is next."""
        self._at = (self._at + 1) % len(self.addresses)
        self.failures += 1
        rounds = (self.failures - 1) // len(self.addresses)
        return self._random.uniform(0.5, 1.0) * min(self._longest_s, self._first_s * 2 ** min(rounds, 20))

    def ended(self, lasted_s, progress=False):
        """Seconds to wait after a connection that was good ended; the same address is next. `progress`: something was
        acknowledged or answered on it."""
        if progress or lasted_s >= LASTED_S:
            self.failures = 0
            return self._random.uniform(0.0, self._first_s)
        rounds = self.failures // len(self.addresses)
        self.failures += 1
        return self._random.uniform(0.5, 1.0) * min(self._longest_s, self._first_s * 2 ** min(rounds, 20))

    def moved(self, after_s):
        """The other end asked to connect anew: the next address, and how long to wait."""
        self._at = (self._at + 1) % len(self.addresses)
        return self._random.uniform(0.5, 1.0) * after_s

    def woken(self):
        self.failures = 0
