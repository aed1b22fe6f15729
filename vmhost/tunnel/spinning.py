"""An asyncio loop that polls for a short time before it sleeps.

Waking a sleeping core takes longer than a small request: on an idle machine the two wake-ups of a request and its
answer are more than half of its time. A spinning loop polls the kernel for at most `spin_s` before it sleeps. It spins
only

- while most recent waits were short. After two long ones it sleeps at once, until four in a row were short, so a loop
  with little to do costs nothing.
- while spinning helps. If the kernel gives the core to another thread meanwhile, or the event comes just after the spin
  (its sender needs this core), the machine is busy: cores do not sleep, and spinning takes time from others. The loop
  then stops spinning for a while, longer each time.
"""

import asyncio
import os
import selectors
import time

SPIN_US = 200.0
# `_hope`: a short wait adds 1, a long one subtracts _MISS; the loop spins from _SPIN_FROM on.
_MAX_HOPE, _SPIN_FROM, _MISS = 8, 4, 4
_TAKEN_S = 200e-6  # a poll takes 1 to 2 us; if it takes this long, the core was taken away
# `_harm`: a useless spin adds _HARM, a useful one subtracts 1; a pause begins at _MAX_HARM.
_HARM, _MAX_HARM = 4, 12
_REST_S, _LONGEST_REST_S = 0.05, 1.6
_GOOD = 1000  # spins between two pauses after which the second is as short as the first


class SpinningSelector(selectors.DefaultSelector):
    """`spins`: number of spins. `clock()`: seconds."""

    def __init__(self, spin_s, clock=time.perf_counter):
        super().__init__()
        self.spin_s = spin_s
        self.spins = 0
        self._clock = clock
        self._hope = self._harm = 0
        self._rest_s, self._rests_until = _REST_S, 0.0
        self._good_until = 0  # value of `spins`; a pause before it is longer than the last

    def select(self, timeout=None):
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        began = now = self._clock()
        spun = self._hope >= _SPIN_FROM and began >= self._rests_until
        if spun:
            self.spins += 1
            end = began + (self.spin_s if timeout is None else min(timeout, self.spin_s))
            while now < end:
                found = super().select(0)
                before, now = now, self._clock()
                if now - before > _TAKEN_S:
                    self._harmed(now)
                if found:
                    self._hope = min(_MAX_HOPE, self._hope + 1)
                    self._harm = max(0, self._harm - 1)
                    return found
            if timeout is not None:
                timeout = max(0.0, timeout - (now - began))
        found = super().select(timeout)
        now = self._clock()
        # A sleeper is woken late, by about the time that it may spin.
        if found and now - began < 2 * self.spin_s:
            self._hope = min(_MAX_HOPE, self._hope + 1)
            if spun:
                self._harmed(now)
        else:
            self._hope = max(0, self._hope - _MISS)
        return found

    def _harmed(self, now):
        self._harm += _HARM
        if self._harm < _MAX_HARM:
            return
        self._harm = 0
        self._rest_s = min(_LONGEST_REST_S, self._rest_s * 2) if self.spins < self._good_until else _REST_S
        self._rests_until, self._good_until = now + self._rest_s, self.spins + _GOOD


def loop_factory(spin_us=SPIN_US):
    """A factory for `asyncio.run(..., loop_factory=...)`: its loops spin for at most `spin_us`, or never if that is 0
    or the process has one core."""
    if spin_us <= 0 or (os.process_cpu_count() or 1) < 2:
        return asyncio.SelectorEventLoop
    return lambda: asyncio.SelectorEventLoop(SpinningSelector(spin_us / 1e6))
