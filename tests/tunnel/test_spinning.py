"""A loop spins only where that helps: against a simulated kernel and clock."""

import selectors

import pytest

from vmhost.tunnel.spinning import SpinningSelector

LOOK_S, WAKE_S, SPIN_S = 2e-6, 60e-6, 200e-6


@pytest.fixture
def simulate(monkeypatch):
    """simulate(arrival, lost_s) -> a Machine."""
    machines = []

    def make(*given):
        machines.append(Machine(monkeypatch, *given))
        return machines[-1]

    yield make
    for each in machines:
        each.selector.close()


class Machine:
    """`arrival(now, asleep)`: in how many seconds the next thing comes: asked when a wait begins, and again when
    the loop goes to sleep. `lost_s`: how long another process has the core within each look."""

    def __init__(self, monkeypatch, arrival, lost_s=0.0):
        self.now, self.burnt_s, self.waits_s = 0.0, 0.0, []
        self._arrival, self._lost_s = arrival, lost_s
        self._due = None
        monkeypatch.setattr(selectors.DefaultSelector, "select", self._select)
        self.selector = SpinningSelector(SPIN_S, clock=lambda: self.now)

    def _select(self, timeout=None):
        if timeout == 0:
            self.now += LOOK_S + self._lost_s
            self.burnt_s += LOOK_S
            return ["event"] if self.now >= self._due else []
        self._due = max(self.now, self._due if self._asleep is None else self.now + self._asleep)
        if timeout is not None and self._due > self.now + timeout:
            self.now += timeout
            return []
        self.now = self._due + WAKE_S
        return ["event"]

    def wait(self, timeout=None):
        began = self.now
        self._due = began + self._arrival(began, False)
        self._asleep = self._arrival(began, True)
        found = self.selector.select(timeout)
        self.waits_s.append(self.now - began)
        self.now += 10e-6  # the loop's work for it
        return found


def test_answers_that_come_soon_are_not_slept_for(simulate):
    machine = simulate(lambda now, asleep: None if asleep else 40e-6)
    for _ in range(1000):
        assert machine.wait() == ["event"]
    assert max(machine.waits_s[4:]) <= 40e-6 + 2 * LOOK_S, "the first four find out that it is worth it"


@pytest.mark.parametrize("pause_s", [0.0005, 0.01, 1.0])
def test_a_loop_with_little_to_do_spins_not_once(simulate, pause_s):
    machine = simulate(lambda now, asleep: None if asleep else pause_s)
    for _ in range(1000):
        machine.wait()
        machine.wait(timeout=pause_s / 10)  # a timer of the loop's
    assert machine.selector.spins == 0


def test_after_a_burst_two_waits_at_most_are_spun_for_nothing(simulate):
    left = 0

    def arrival(now, asleep):
        return None if asleep else 20e-6 if left > 0 else 0.05

    machine = simulate(arrival)
    for _ in range(100):
        for left in range(20, -10, -1):  # noqa: B007
            machine.wait()
    assert machine.burnt_s <= 100 * (20 * (20e-6 + LOOK_S) + 2 * (SPIN_S + LOOK_S))


@pytest.mark.parametrize(
    "arrival, lost_s",
    [
        (lambda now, asleep: 20e-6 if asleep else 1.0, 0.0),  # the sender runs only when this process sleeps
        (lambda now, asleep: 20e-6 if asleep else 50e-6, 0.002),  # the kernel gives the core to others
    ],
)
def test_on_a_busy_machine_it_rests(simulate, arrival, lost_s):
    machine = simulate(arrival, lost_s)
    while machine.now < 60.0:
        machine.wait()
    assert machine.selector.spins * (SPIN_S + lost_s) < 0.01 * machine.now


def test_a_spin_takes_nothing_from_a_timeout(simulate):
    machine = simulate(lambda now, asleep: None if asleep else 30e-6)
    for _ in range(10):
        machine.wait()
    machine._arrival = lambda now, asleep: None if asleep else 1.0
    for timeout in (50e-6, 0.01):
        assert machine.wait(timeout) == []
        assert timeout <= machine.waits_s[-1] < timeout + 2 * LOOK_S
