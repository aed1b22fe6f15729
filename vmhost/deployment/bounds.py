"""The bounds of a proof: how many calls may fail, how long one may take, how much memory a VM may use.

`rules` are those of a plan (`cloud/plan.py`, proof): `calls`, `within_s`, `max_error`, and optionally `max_time_s`,
`slow_over_s` with `max_slow`, and `max_memory_bytes`. Devices judge their own calls with these functions; the platform
judges its simulation and the devices' reports.
"""

from typing import NamedTuple

SELF_TEST_BOUNDS = ("max_time_s", "max_memory_bytes")  # those of a self-test, which has too few calls for the others


class Counted(NamedTuple):
    """The calls of one version: their number, failures, total seconds, peak bytes of a VM, and the number that took
    longer than the release's `slow_over_s`."""

    calls: int = 0
    failures: int = 0
    wall_s: float = 0.0
    peak_bytes: int = 0
    slow: int = 0

    def plus(self, other):
        """The sum of both."""
        return Counted(
            calls=self.calls + other.calls,
            failures=self.failures + other.failures,
            wall_s=self.wall_s + other.wall_s,
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
            slow=self.slow + other.slow,
        )

    def since(self, before):
        """The counts since `before`; the peak memory is not reset."""
        return Counted(
            calls=self.calls - before.calls,
            failures=self.failures - before.failures,
            wall_s=self.wall_s - before.wall_s,
            peak_bytes=self.peak_bytes,
            slow=self.slow - before.slow,
        )

    def __str__(self):
        if not self.calls:
            return "no calls"
        took = f", {self.wall_s / self.calls * 1000:.3g} ms each" if self.wall_s else ""
        memory = f", {self.peak_bytes / (1 << 20):.1f} MiB" if self.peak_bytes else ""
        return f"{self.calls} calls, {self.failures} failed{took}{memory}"


def why_outside(rules, counted, *, complete=False):
    """The bound that the calls (Counted) exceed, in words, or None. Unless `complete`, only a bound that
    further calls cannot bring back within reach."""
    expected = counted.calls if complete else max(counted.calls, rules.get("calls", 0))
    if counted.failures > rules.get("max_error", 0) * max(counted.calls, rules.get("calls", 0)):
        return f"{counted.failures} of {counted.calls} calls failed"
    max_s = rules.get("max_time_s")
    if max_s is not None and counted.wall_s > max_s * expected:
        mean_s = counted.wall_s / max(1, counted.calls)
        return f"{counted.calls} calls took {mean_s * 1000:.3g} ms each, more than {max_s * 1000:g} ms"
    over_s = rules.get("slow_over_s")
    if over_s is not None and counted.slow > rules.get("max_slow", 0) * expected:
        share = f"{rules.get('max_slow', 0) * 100:g} %"
        return f"{counted.slow} of {counted.calls} calls took longer than {over_s * 1000:g} ms, more than {share}"
    return memory_outside(rules, counted.peak_bytes)


def memory_outside(rules, peak_bytes):
    """In words: a VM exceeded its memory bound; or None."""
    max_bytes = rules.get("max_memory_bytes")
    if max_bytes is not None and peak_bytes > max_bytes:
        return f"a VM had {peak_bytes / (1 << 20):.1f} MiB, more than {max_bytes / (1 << 20):g} MiB"
    return None


def case_outside(rules, name, took_s):
    """In words: one case of a simulation or a self-test took longer than a call may; or None."""
    max_s = rules.get("max_time_s")
    if max_s is not None and took_s > max_s:
        return f"{name} took {took_s * 1000:.3g} ms, more than {max_s * 1000:g} ms"
    return None
