"""Rate limits: a token bucket per key, for a bounded number of keys."""

import threading
import time
from collections import OrderedDict

_MAX_KEYS = 100_000


class RateLimit:
    """`per_s` requests a second per key, in bursts of up to `burst`. Threads may share it."""

    def __init__(self, per_s, burst, clock=time.monotonic):
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets = OrderedDict()  # key -> (requests left, at what time)
        self._lock = threading.Lock()

    def wait_s(self, key):
        """0.0 if the request is allowed, and counts it; else the seconds until the next one is."""
        with self._lock:
            now = self._clock()
            left, since = self._buckets.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._per_s)
            allowed = left >= 1
            self._buckets[key] = (left - allowed, now)
            if len(self._buckets) > _MAX_KEYS:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - left) / self._per_s
