"""Rate limits: a token bucket per key, in fixed room however many keys there are and however long they are."""

import hashlib
import ipaddress
import threading
import time
from collections import OrderedDict

_MAX_KEYS = 100_000


class RateLimit:
    """`per_s` requests a second per key, in bursts of up to `burst`. Threads may share it.

    It keeps a digest of each of the last `max_keys` keys, so that a caller who makes up keys fills nothing."""

    def __init__(self, per_s, burst, clock=time.monotonic, max_keys=_MAX_KEYS):
        self._per_s, self._burst, self._clock, self._max_keys = per_s, burst, clock, max_keys
        self._buckets = OrderedDict()  # digest of the key -> (requests left, at what time)
        self._lock = threading.Lock()

    def wait_s(self, key):
        """0.0 if the request is allowed, and counts it; else the seconds until the next one is."""
        key = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()
        with self._lock:
            now = self._clock()
            left, since = self._buckets.pop(key, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._per_s)
            allowed = left >= 1
            self._buckets[key] = (left - allowed, now)
            if len(self._buckets) > self._max_keys:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - left) / self._per_s


def network_of(address):
    """What one caller has: an IPv4 address, or the /64 network of an IPv6 one. Another text is returned as it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
