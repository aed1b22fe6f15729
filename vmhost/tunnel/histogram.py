"""Latencies, counted in 120 buckets, from 1 us to some minutes; each is a fifth wider than the one before."""

import math

_FIRST_S, _GROWTH = 1e-6, 1.2
_LOG = math.log(_GROWTH)
_BUCKETS = 120


class Histogram:
    __slots__ = ("count", "counts", "highest_s", "total_s")

    def __init__(self):
        self.counts = [0] * _BUCKETS
        self.count = 0
        self.total_s = self.highest_s = 0.0

    def add(self, seconds):
        at = int(math.log(seconds / _FIRST_S) / _LOG) + 1 if seconds > _FIRST_S else 0
        self.counts[at if at < _BUCKETS else _BUCKETS - 1] += 1
        self.count += 1
        self.total_s += seconds
        if seconds > self.highest_s:
            self.highest_s = seconds

    def percentile(self, percent):
        """The latency in seconds that `percent` of all do not exceed, to the accuracy of the buckets."""
        wanted, seen = self.count * percent / 100, 0
        for at, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(self.highest_s, _FIRST_S * _GROWTH**at)
        return 0.0

    def merge(self, other):
        for at, count in enumerate(other.counts):
            self.counts[at] += count
        self.count += other.count
        self.total_s += other.total_s
        self.highest_s = max(self.highest_s, other.highest_s)

    def plain(self):
        """A dict of numbers, in milliseconds."""
        if not self.count:
            return {"count": 0}
        return {
            "count": self.count,
            "mean_ms": round(self.total_s / self.count * 1000, 3),
            **{f"p{percent}_ms": round(self.percentile(percent) * 1000, 3) for percent in (50, 90, 99)},
            "max_ms": round(self.highest_s * 1000, 3),
        }
