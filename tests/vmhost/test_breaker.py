"""The breaker on its own: the test sets the clock, and counters like a lane's."""

import pytest

from vmhost.limits import BreakerPolicy
from vmhost.runtime.breaker import CLOSED, HALF_OPEN, OPEN, Breaker, Counts, Refused


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(**policy):
    clock = Clock()
    changes = []
    breaker = Breaker(BreakerPolicy(**policy), lambda b: changes.append(b.state), clock=clock, wall=clock)
    return breaker, clock, changes


def test_opens_after_failures_in_a_row_and_tells_once():
    breaker, _, changes = make(consecutive=3, min_calls=100)
    for failures in (1, 2):
        breaker.observe(Counts(calls=failures, failures=failures))
    assert breaker.state == CLOSED
    breaker.observe(Counts(calls=3, failures=3))
    breaker.observe(Counts(calls=4, failures=4))
    assert breaker.state == OPEN
    assert changes == [OPEN]
    assert "3 calls in a row" in breaker.reason


def test_a_success_in_between_breaks_the_row():
    breaker, _, _ = make(consecutive=3, min_calls=100)
    breaker.observe(Counts(calls=2, failures=2))
    breaker.observe(Counts(calls=4, failures=3))
    breaker.observe(Counts(calls=5, failures=4))
    assert breaker.state == CLOSED


def test_the_same_totals_count_once():
    breaker, _, _ = make(consecutive=2)
    for _ in range(5):
        breaker.observe(Counts(calls=1, failures=1))
    assert breaker.state == CLOSED


def test_opens_at_the_failure_rate_of_the_window_only():
    breaker, clock, _ = make(consecutive=100, min_calls=10, failure_rate=0.5, window_s=30)
    breaker.observe(Counts(calls=5, failures=5))  # 5 of 5, long ago
    clock.now += 31
    breaker.observe(Counts(calls=13, failures=8))  # 3 of 8: too few calls
    breaker.observe(Counts(calls=17, failures=9))  # 4 of 12
    assert breaker.state == CLOSED
    breaker.observe(Counts(calls=27, failures=17))  # 12 of 22
    assert breaker.state == OPEN
    assert breaker.reason == "12 of the last 22 calls failed"


def test_slow_calls_open_it():
    breaker, _, _ = make(slow_s=0.1, slow_rate=0.5, min_calls=10)
    breaker.observe(Counts(calls=10, slow=5))
    assert breaker.state == CLOSED
    breaker.observe(Counts(calls=12, slow=7))
    assert breaker.state == OPEN
    assert "took longer than 0.1 s" in breaker.reason


def test_one_lost_vm_opens_it_unless_forgiven():
    breaker, _, _ = make()
    breaker.forgive(2)
    breaker.observe(Counts(calls=2, failures=2, lost=2))
    assert breaker.state == CLOSED
    breaker.observe(Counts(calls=3, failures=3, lost=3))
    assert breaker.state == OPEN


def test_refuses_until_its_time_then_admits_so_many_probes():
    breaker, clock, changes = make(open_s=5, probes=2)
    breaker.trip("test")
    with pytest.raises(Refused) as refused:
        breaker.admit()
    assert refused.value.retry_in_s == pytest.approx(5)
    clock.now += 5
    first, second = breaker.admit(), breaker.admit()
    with pytest.raises(Refused, match="2 calls are being tried"):
        breaker.admit()
    breaker.probe_ended(first, True)
    assert breaker.state == HALF_OPEN
    breaker.probe_ended(second, True)
    assert breaker.state == CLOSED
    assert breaker.admit() is None
    assert changes == [OPEN, HALF_OPEN, CLOSED]


def test_a_failed_probe_opens_it_for_twice_as_long_up_to_the_most():
    breaker, clock, _ = make(open_s=5, max_open_s=12, probes=1)
    breaker.trip("test")
    for expected in (10, 12, 12):
        clock.now += 12
        breaker.probe_ended(breaker.admit(), False)
        with pytest.raises(Refused) as refused:
            breaker.admit()
        assert refused.value.retry_in_s == pytest.approx(expected)
    assert breaker.reason == "a probe failed after: test"


def test_a_cancelled_probe_gives_its_place_back():
    breaker, clock, _ = make(probes=1)
    breaker.trip("test")
    clock.now += 60
    breaker.probe_ended(breaker.admit(), None)
    assert breaker.admit() is not None


def test_a_probe_of_an_earlier_round_counts_for_nothing():
    breaker, clock, _ = make(probes=1)
    breaker.trip("test")
    clock.now += 60
    stale = breaker.admit()
    breaker.trip("again")
    clock.now += 600
    breaker.admit()
    breaker.probe_ended(stale, True)
    assert breaker.state == HALF_OPEN


def test_state_survives_a_restart_by_the_wall_clock():
    breaker, clock, _ = make(open_s=5)
    breaker.trip("it wedged")
    saved = breaker.saved()
    later, later_clock, _ = make(open_s=5)
    later_clock.now += 3
    later.restore(saved)
    assert later.state == OPEN
    with pytest.raises(Refused, match="it wedged") as refused:
        later.admit()
    assert refused.value.retry_in_s == pytest.approx(2)
    assert make()[0].saved() is None


def test_disabled_never_opens():
    breaker, _, _ = make(enabled=False, consecutive=1)
    breaker.trip("test")
    breaker.observe(Counts(calls=9, failures=9, lost=9))
    assert breaker.state == CLOSED
