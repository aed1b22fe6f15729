"""How often somebody may ask: a token bucket for each key, the number of keys bounded."""

import threading
import time
from collections import OrderedDict

_MAX_KEYS = 100_000


class RateLimit:
    """`per_s` requests a second for each key, `burst` at once. Threads may share it."""

    def __init__(self, per_s, burst, clock=time.monotonic):
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets = OrderedDict()  # key -> (requests left, when that was)
        self._lock = threading.Lock()

    def wait_s(self, key):
        """0.0 where the request may go on, and is counted; else the seconds until one may."""
        with self._lock:
            now = self._clock()
            left, since = self._buckets.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._per_s)
            allowed = left >= 1
            self._buckets[key] = (left - allowed, now)
            if len(self._buckets) > _MAX_KEYS:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - left) / self._per_s
