"""The protocol under cuts, half-open links, late bytes, and kills of either side, in simulated time."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.tunnel.simulation import Simulation, run


def fast_folder():
    """A folder in memory if the machine has one: these tests do not test syncs."""
    return Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="tunnel-"))


class Tunnel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = fast_folder()
        self.simulation = Simulation(self.folder)
        self.simulation.connect()

    @rule(channel=st.sampled_from("ab"), size=st.sampled_from((0, 20, 700, 5000, 30_000)), fill=st.integers(0, 255))
    def send(self, channel, size, fill):
        self.simulation.send(channel, bytes([fill]) * size + b"%d" % len(self.simulation.accepted.get(channel, ())))

    @rule(channel=st.sampled_from("pq"), size=st.sampled_from((0, 20, 700, 5000)))
    def push(self, channel, size):
        self.simulation.push(channel, bytes(size) + b"%d" % len(self.simulation.pushed.get(channel, ())))

    @rule()
    def connect(self):
        self.simulation.connect()

    @precondition(lambda self: self.simulation.links)
    @rule(which=st.integers(1, 3), up=st.booleans(), size=st.sampled_from((1, 30, 900, 6000, 100_000)))
    def deliver(self, which, up, size):
        self.simulation.deliver(self.simulation.links[-min(which, len(self.simulation.links))], up, size)

    @precondition(lambda self: self.simulation.links)
    @rule(which=st.integers(1, 3), ends=st.sampled_from(((True, True), (True, False), (False, True))))
    def cut(self, which, ends):
        self.simulation.cut(self.simulation.links[-min(which, len(self.simulation.links))], *ends)

    @rule(count=st.integers(1, 4))
    def keep(self, count):
        self.simulation.keep(count)

    @rule()
    def forget(self):
        self.simulation.forget()

    @rule(seconds=st.sampled_from((0.2, 3.0, 35.0, 200.0)))
    def tick(self, seconds):
        self.simulation.tick(seconds)

    @rule()
    def kill_cloud(self):
        self.simulation.kill_cloud()

    @rule()
    def kill_device(self):
        self.simulation.kill_device()

    @invariant()
    def nothing_twice_and_in_order(self):
        self.simulation.check()

    def teardown(self):
        try:
            self.simulation.settle()
        finally:
            self.simulation.close()
            shutil.rmtree(self.folder)


Tunnel.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTunnel = Tunnel.TestCase


def simulate_lives(seeds, **options):
    for seed in seeds:
        folder = fast_folder()
        try:
            run(folder, seed, **options)
        finally:
            shutil.rmtree(folder)


def test_random_lives():
    simulate_lives(range(40))


def test_lives_of_stores_that_are_copied_and_put_back():
    """Nothing new is taken for known, and what a copy has arrives once."""
    simulate_lives(range(5000, 5030), steps=200, copies=True)


@pytest.mark.stress
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("block", range(8))
def test_thousands_of_random_lives(block, copies):
    """Each has some ten kills of either side."""
    simulate_lives(range(1000 + block * 250, 1250 + block * 250), copies=copies)
