"""Many callers, many tasks, few VMs: good, slow, failing, greedy, endless and stubborn ones at once. Every call has
one end.

`make stress` runs this in several workers. The seed is printed; VMHOST_STRESS_SEED repeats a run, VMHOST_STRESS_S
sets its length.
"""

import collections
import concurrent.futures
import os
import random
import threading
import time

import pytest

import vmhost
from tests.guests import GUESTS
from vmhost.bytecode.compiler import compile_sources
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

SECONDS = float(os.environ.get("VMHOST_STRESS_S", "20"))
NAMES = ("light", "other", "fresh", "single", "endless", "greedy")


def build(name, version="1"):
    limits = {"memory_bytes": 32 << 20, "concurrency": 1 if name == "single" else 4}
    return compile_sources(
        {"main": (GUESTS, f"{name}@{version}/main.py", False)},
        entry="main:run",
        name=name,
        version=version,
        limits=limits,
    )


class Caller(threading.Thread):
    """Calls one task after the other in every way, and counts how what it submitted ended."""

    def __init__(self, host, tasks, seed, until):
        super().__init__()
        self.random = random.Random(seed)
        self.host, self.tasks, self.until = host, tasks, until
        self.submitted, self.ends, self.wrong = 0, collections.Counter(), []

    def run(self):
        calls = (
            self.good,
            self.good,
            self.many,
            self.mapped,
            self.failing,
            self.working,
            self.sleeping,
            self.endless,
            self.greedy,
            self.cancelled,
            self.newer,
        )
        while time.monotonic() < self.until:
            try:
                self.random.choice(calls)(self.tasks[self.random.choice(NAMES)])
            except vmhost.ClosedError:
                return
            except BaseException as error:
                self.wrong.append(error)
                return

    def ended(self, act, *allowed):
        """One call that was submitted: counts its end. Gives the result, None for an error that is `allowed`."""
        self.submitted += 1
        try:
            result = act()
        except (*allowed, vmhost.QueueFullError, vmhost.VMLostError) as error:
            self.ends[type(error).__name__] += 1
            return None
        self.ends["result"] += 1
        return result

    def good(self, task):
        value = self.random.random()
        assert self.ended(lambda: task(value)) in (value, None)

    def many(self, task):
        futures = [task.submit(number) for number in range(30)]
        for number, future in enumerate(futures):
            assert self.ended(future.result) in (number, None)

    def mapped(self, task):
        assert self.ended(lambda: list(task.map(range(50)))) in (list(range(50)), None)

    def failing(self, task):
        self.ended(lambda: task("x", entry="main:fail"), vmhost.TaskError)

    def working(self, task):
        assert self.ended(lambda: task(20_000, entry="main:work")) in (199_990_000, None)

    def sleeping(self, task):
        self.ended(lambda: task(0.01, entry="main:sleep", timeout_s=self.random.random() * 0.02), vmhost.TimeLimitError)

    def endless(self, task):
        assert (
            self.ended(
                lambda: task(None, entry="main:forever", timeout_s=self.random.random() * 0.05), vmhost.TimeLimitError
            )
            is None
        )

    def greedy(self, task):
        assert self.ended(lambda: task(None, entry="main:hog"), vmhost.MemoryLimitError) is None

    def cancelled(self, task):
        future = task.submit(50_000, entry="main:work")
        if not future.cancel():
            future.stop()
        self.ended(future.result, concurrent.futures.CancelledError)

    def newer(self, task):
        if self.random.random() < 0.1:
            self.host.load(build(task.name, f"1.{self.random.randrange(10**9)}"))


@pytest.mark.stress
@pytest.mark.parametrize("drain", [True, False])
def test_every_call_has_one_end(drain):
    seed = int(os.environ.get("VMHOST_STRESS_SEED", random.SystemRandom().randrange(10**9)))
    print(f"VMHOST_STRESS_SEED={seed}")
    calm = BreakerPolicy(enabled=False)
    policy = Policy(
        max_vms=4,
        warm=2,
        max_warm=4,
        quantum_s=0.02,
        task=TaskPolicy(queue=500, breaker=calm),
        tasks={"fresh": TaskPolicy(fresh=True, breaker=calm)},
    )
    host = vmhost.Host(allow_unsigned=True, policy=policy)
    tasks = {name: host.load(build(name)) for name in NAMES}
    callers = [Caller(host, tasks, seed + number, time.monotonic() + SECONDS) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(SECONDS + 60)
    assert not any(caller.is_alive() for caller in callers), "a caller hangs"
    assert [caller.wrong for caller in callers] == [[]] * 8
    assert sum(caller.submitted for caller in callers) == sum(sum(caller.ends.values()) for caller in callers) > 100
    last = [task.submit(10_000, entry="main:work") for task in tasks.values() for _ in range(10)]
    assert host.close(drain=drain) == ()
    for future in last:
        error = future.exception(timeout=0)
        assert error is None if drain else error is None or type(error) is vmhost.ClosedError


@pytest.mark.stress
@pytest.mark.quarantines
def test_hosts_come_and_go_with_stubborn_tasks():
    seed = int(os.environ.get("VMHOST_STRESS_SEED", random.SystemRandom().randrange(10**9)))
    print(f"VMHOST_STRESS_SEED={seed}")
    chance = random.Random(seed)
    before = set(threading.enumerate())
    until = time.monotonic() + SECONDS
    quarantined = 0
    while time.monotonic() < until and quarantined < 20:
        host = vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=0.02))
        bad, good = host.load(build("bad")), host.load(build("good"))
        good(0)
        stubborn = chance.random() < 0.2
        future = bad.submit(None, entry="main:stubborn" if stubborn else "main:forever", timeout_s=0.05)
        others = [good.submit(number) for number in range(20)]
        if chance.random() < 0.5:
            assert type(future.exception(timeout=30)) in (vmhost.TimeLimitError, vmhost.VMLostError)
        left = host.close(drain=chance.random() < 0.5)
        assert all(vm.task == "bad" for vm in left)
        quarantined += len(left)
        assert future.done() and future.exception() is not None
        assert all(future.done() for future in others)
    assert set(threading.enumerate()) == before
