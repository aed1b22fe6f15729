"""The circuit breaker of one task version: closed, open, half-open.

A closed breaker adds no cost to a call: it reads the native counters of the task's lane (`observe`) only when a call
has failed. All methods may be called from any thread. The clock is injected. State can be saved and restored; times are
saved as wall-clock seconds, since a monotonic clock has no meaning after a restart.
"""

import time
from collections import deque
from dataclasses import dataclass

from vmhost.runtime import native_threads

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of one lane since its creation. `failures` includes `lost`; `slow`: calls longer than the slow limit."""

    calls: int = 0
    failures: int = 0
    lost: int = 0
    slow: int = 0


class Breaker:
    """The breaker of one task version under `policy` (a BreakerPolicy).

    `on_change(breaker)` is called after each change of state, with no lock held.
    """

    def __init__(self, policy, on_change=lambda breaker: None, *, clock=time.monotonic, wall=time.time):
        self.policy = policy
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        self._lock = native_threads.RLock()  # reentrant: a finalizer that runs meanwhile may call the task
        self.state = CLOSED
        self.reason = None
        self.trips = 0
        self.refused = 0  # calls
        self._open_until = 0.0
        self._open_s = policy.open_s
        self._probes_left = 0
        self._probes_won = 0
        self._round = 0
        self._seen = Counts()
        self._forgiven = 0
        self._in_a_row = 0
        self._bad = deque()
        self._slow = deque()

    # -- closed ---------------------------------------------------------------------------------------------------

    def observe(self, counts):
        """Update from the lane's totals `counts`; open the breaker if the policy says so.

        Totals that were already seen count once.
        """
        with self._lock:
            new_calls = counts.calls - self._seen.calls
            if new_calls <= 0:
                return
            failures = counts.failures - self._seen.failures
            lost = counts.lost - self._seen.lost
            slow = counts.slow - self._seen.slow
            self._seen = counts
            forgiven = min(lost, self._forgiven)
            self._forgiven -= forgiven
            failures -= forgiven
            lost -= forgiven
            if self.state != CLOSED or not self.policy.enabled:
                return
            reason = self._judge(counts, new_calls, failures, lost, slow)
            if reason is None:
                return
            self._open(reason)
        self._on_change(self)

    def _judge(self, counts, new_calls, failures, lost, slow):
        """The reason to open the breaker, or None."""
        policy = self.policy
        now = self._clock()
        if lost:
            return "a VM of this task was lost"
        row = self._in_a_row + failures
        self._in_a_row = row if failures >= new_calls else min(failures, row)
        if self._in_a_row >= policy.consecutive:
            return f"{self._in_a_row} calls in a row failed"
        for window, number, rate, what in (
            (self._bad, failures, policy.failure_rate, "failed"),
            (self._slow, slow, policy.slow_rate, f"took longer than {policy.slow_s} s"),
        ):
            if number <= 0:
                continue
            window.append((now, number, counts.calls - new_calls))
            while window[0][0] < now - policy.window_s:
                window.popleft()
            bad = sum(entry[1] for entry in window)
            calls = counts.calls - window[0][2]
            if calls >= policy.min_calls and bad > rate * calls:
                return f"{bad} of the last {calls} calls {what}"
        return None

    def forgive(self, number):
        """`number` lost calls, soon to appear in the totals, are not the task's fault."""
        with self._lock:
            self._forgiven += number

    def trip(self, reason):
        """Open now, whatever the counts: a VM of this task wedged, or the process crashed in it."""
        with self._lock:
            if not self.policy.enabled:
                return
            self._open(reason)
        self._on_change(self)

    def _open(self, reason):
        if self.state == HALF_OPEN:
            self._open_s = min(self._open_s * 2, self.policy.max_open_s)
        elif self.state == CLOSED:
            self._open_s = self.policy.open_s
        self.state = OPEN
        self.reason = reason
        self.trips += 1
        self._round += 1
        self._open_until = self._clock() + self._open_s

    # -- open and half-open ---------------------------------------------------------------------------------------

    def admit(self):
        """Let a call pass: a token for `probe_ended`, or None if the breaker is closed (no report needed).

        Raises `Refused`, whose `retry_in_s` is the time to wait, if the call may not pass.
        """
        with self._lock:
            changed = False
            if self.state == CLOSED:
                return None
            if self.state == OPEN:
                left = self._open_until - self._clock()
                if left > 0:
                    raise Refused(self.reason, left)
                self.state = HALF_OPEN
                self._round += 1
                self._probes_left = self.policy.probes
                self._probes_won = 0
                changed = True
            if self._probes_left <= 0:
                raise Refused(f"{self.reason}; {self.policy.probes} calls are being tried", 0.0)
            self._probes_left -= 1
            token = self._round
        if changed:
            self._on_change(self)
        return token

    def count_refused(self):
        """A caller got `Refused` as its call's end."""
        with self._lock:
            self.refused += 1

    def probe_ended(self, token, succeeded):
        """The probe admitted as `token` has ended. `succeeded` None: no evidence (cancelled, host closed)."""
        with self._lock:
            if self.state != HALF_OPEN or token != self._round:
                return
            if succeeded is None:
                self._probes_left += 1
                return
            if succeeded:
                self._probes_won += 1
                if self._probes_won < self.policy.probes:
                    return
                self._close()
            else:
                self._open(f"a probe failed after: {self.reason.removeprefix('a probe failed after: ')}")
        self._on_change(self)

    def reset(self):
        """Close manually."""
        with self._lock:
            self._close()
        self._on_change(self)

    def _close(self):
        self.state = CLOSED
        self.reason = None
        self._open_s = self.policy.open_s
        self._round += 1
        self._in_a_row = 0
        self._bad.clear()
        self._slow.clear()

    # -- across restarts ------------------------------------------------------------------------------------------

    def saved(self):
        """The state that must survive a restart, as a dict of plain values; None when closed."""
        with self._lock:
            if self.state == CLOSED:
                return None
            return {
                "reason": self.reason,
                "trips": self.trips,
                "open_s": self._open_s,
                "until": self._wall() + max(0.0, self._open_until - self._clock()),
            }

    def restore(self, saved):
        """Restore what `saved()` returned in an earlier process. Half-open is restored as open and due."""
        with self._lock:
            if not self.policy.enabled:
                return
            left = min(max(0.0, saved["until"] - self._wall()), self.policy.max_open_s)
            self.state = OPEN
            self.reason = saved["reason"]
            self.trips = saved["trips"]
            self._open_s = saved["open_s"]
            self._open_until = self._clock() + left
        self._on_change(self)


class Refused(Exception):
    """The breaker refuses calls now."""

    def __init__(self, reason, retry_in_s):
        super().__init__(reason)
        self.reason = reason
        self.retry_in_s = retry_in_s
