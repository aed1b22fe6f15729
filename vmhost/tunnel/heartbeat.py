"""Liveness: whether the other end is still there, and how often to ping.

`Watch` belongs to one connection. An idle device pings before its promised interval is over. A device that waits for an
answer pings soon after it began to wait, and considers the connection dead if nothing comes. The cloud closes a
connection after a silence of two and a half times the promised interval.

`Interval` belongs to a device: how long a connection may be idle before a middlebox forgets it. It grows while pings
after idle times are answered, and shrinks when one is not.
"""

MIN_S, MAX_S = 5.0, 600.0
_GRACE = 2.5
_PROBE_S = 1.0  # a ping is sent when an answer takes longer than this, and than four round trips
_PATIENCE_S = 4.0  # minimum time limit for the answer to a ping


class Interval:
    """Seconds between pings of an idle connection, learned from connections that died."""

    def __init__(self, start_s=30.0, min_s=MIN_S, max_s=MAX_S):
        self.seconds = start_s
        self._min_s, self._max_s = min_s, max_s
        self._died_s = None  # an idle time that a connection did not survive

    def survived(self, idle_s):
        """A ping after this idle time was answered."""
        if idle_s >= self.seconds * 0.9:
            ceiling = self._max_s if self._died_s is None else self._died_s * 0.8
            self.seconds = max(self._min_s, min(self.seconds * 1.5, ceiling, self._max_s))

    def died(self, idle_s):
        """A ping after this idle time was not answered. Short idle times are ignored: they say nothing about
        middleboxes."""
        if idle_s >= self._min_s:
            self._died_s = idle_s if self._died_s is None else min(self._died_s, idle_s)
            self.seconds = max(self._min_s, min(self.seconds, idle_s * 0.5))

    def moved(self):
        """The network has changed: starts learning anew."""
        self._died_s = None


class Watch:
    """The liveness of one connection. Times are seconds of any monotonic clock."""

    def __init__(self, *, client, heartbeat_s, now):
        self.client = client
        self.heartbeat_s = heartbeat_s
        self.last_heard = self.last_sent = now
        self.rtt_s = None
        self.ping_number = 0
        self.idle_before_ping_s = 0.0
        self.answered_idle_s = None  # idle time before the last ping that was answered
        self._pinged = None  # when the unanswered ping was sent
        self._expecting = None  # since when an answer is expected
        self._peer_promise_s = heartbeat_s

    @property
    def promised_ms(self):
        return int(self.heartbeat_s * 1000)

    def heard(self, now):
        self.last_heard = now
        self._expecting = None

    def sent(self, now):
        self.last_sent = now

    def expect(self, now):
        """Something was sent that the other end will answer."""
        if self._expecting is None:
            self._expecting = now

    def heard_promise(self, promise_ms):
        self._peer_promise_s = min(max(promise_ms / 1000, MIN_S), MAX_S)

    def pong(self, number, now):
        if number == self.ping_number and self._pinged is not None:
            sample = now - self._pinged
            self.rtt_s = sample if self.rtt_s is None else 0.8 * self.rtt_s + 0.2 * sample
            self.answered_idle_s = self.idle_before_ping_s
            self._pinged = None

    @property
    def patience_s(self):
        return max(_PATIENCE_S, 8 * (self.rtt_s or 0.0))

    def probe(self, now):
        """True if a ping is to be sent now."""
        if self._pinged is not None:
            return False
        self.ping_number += 1
        self._pinged = now
        self.idle_before_ping_s = now - self.last_heard
        return True

    def _probe_at(self):
        if self._expecting is not None:
            return self._expecting + max(_PROBE_S, 4 * (self.rtt_s or 0.0))
        return max(self.last_heard, self.last_sent) + self.heartbeat_s

    def next_tick(self):
        """The earliest time at which `tick` has something to do."""
        if not self.client:
            return self.last_heard + self._peer_promise_s * _GRACE
        if self._pinged is not None:
            return max(self._pinged, self.last_heard) + self.patience_s
        return self._probe_at()

    def tick(self, now, expecting):
        """None, "ping" or "silent": what is due."""
        if not self.client:
            return "silent" if now >= self.last_heard + self._peer_promise_s * _GRACE else None
        if not expecting:
            self._expecting = None
        elif self._expecting is None:
            self._expecting = now
        if self._pinged is not None:
            if self.last_heard > self._pinged:
                return None if now < self.last_heard + self.patience_s else "silent"
            return "silent" if now >= self._pinged + self.patience_s else None
        if now >= self._probe_at() and self.probe(now):
            return "ping"
        return None
