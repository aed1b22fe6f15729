"""VMs and hosts by the hundred: booted, used and ended from eight threads, dropped, forked, loaded and unloaded while
calls run.

Each has a small version in the normal run and a long one for `make stress`. VMHOST_STRESS_CYCLES sets the length of the
latter (10,000 cycles as the README tells, 2,000 unless told)."""

import gc
import os
import random
import threading

import psutil
import pytest

import vmhost
from tests.hosts import bundle, in_a_process, until
from vmhost.host import system_code_store
from vmhost.isolation import vm as isolation
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

CYCLES = int(os.environ.get("VMHOST_STRESS_CYCLES", "2000"))

MIX = [
    "pass",
    "import json, re",
    "import dataclasses, typing, functools",
    "import datetime, decimal",
    "import sqlite3",
    "import asyncio",
    "import threading; threading.Thread(target=len, args=('',)).start()",
]


def boot_run_and_end(cycles, threads):
    """Resident megabytes after each tenth of `cycles`; every VM's memory is given back."""
    core = isolation.core()
    system = system_code_store(core)
    stores = [
        isolation.code_store_of(bundle(f"{imports}\ndef run(value):\n    return value\n"), core) for imports in MIX
    ]
    seed = int(os.environ.get("VMHOST_STRESS_SEED", random.SystemRandom().randrange(10**9)))
    print(f"VMHOST_STRESS_SEED={seed}")
    numbers, lock, wrong, sizes = iter(range(cycles)), threading.Lock(), [], []

    def work(chance):
        while True:
            with lock:
                number = next(numbers, None)
                if number is not None and number % (cycles // 10) == 0:
                    sizes.append(psutil.Process().memory_info().rss >> 20)
            if number is None or wrong:
                return
            try:
                events = core.Events()
                lane = core.Lane("cycle", "1", chance.choice(stores), "main:run", events)
                vm = core.VM(system, events)
                vm.attach(lane)
                assert lane.call(number) == number
                vm.retire()
                until(lambda: vm.state == "ended", timeout_s=60)
                assert vm.statistics()["live_bytes"] == 0
            except BaseException as error:
                wrong.append(error)

    workers = [threading.Thread(target=work, args=(random.Random(seed + number),)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    return sizes


def test_vms_boot_run_and_end_on_many_threads():
    boot_run_and_end(40, 4)


@pytest.mark.stress
def test_vms_boot_run_and_end_on_eight_threads_in_flat_memory():
    sizes = boot_run_and_end(CYCLES, 8)
    print("resident MB after each tenth:", sizes)
    first, second = sum(sizes[2:6]) / 4, sum(sizes[6:10]) / 4
    assert second < first * 1.15 + 8


def drop_hosts(rounds):
    before = threading.active_count()
    for number in range(rounds):
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(bundle("def run(value):\n    while value: pass\n"))
        if number % 3 == 0:
            task(0)
        if number % 3 == 1:
            future = task.submit(1)
            until(future.running)
            del future
        del host, task
        gc.collect()
    until(lambda: threading.active_count() <= before, timeout_s=60)


def test_hosts_that_are_dropped_end_by_themselves():
    drop_hosts(6)


@pytest.mark.stress
@pytest.mark.parametrize(
    "tenth", range(10)
)  # each with the time of a test: ten hosts take a hundred times as long on a loaded machine
def test_many_hosts_are_dropped(tenth):
    drop_hosts(10)


FORK = """
    host = vmhost.Host(allow_unsigned=True)
    task = host.load(bundle("def run(value):\\n    while value is None: pass\\n    return value\\n"))
    print(task(1), flush=True)
    busy = task.submit(None)
    until(busy.running)
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)     # fork() in a process with threads
    for number in range(int(sys.argv[1])):
        child = os.fork()
        if child == 0:
            host.close()
            sys.exit(6)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    print(task(2))
    busy.stop()
    host.close()
"""


def test_a_host_that_forks_goes_on_and_its_child_leaves():
    done = in_a_process(FORK, 2)
    assert (done.returncode, done.stdout) == (0, "1\n2\n"), done.stderr


@pytest.mark.stress
def test_a_host_forks_often():
    done = in_a_process(FORK, 100, timeout_s=300)
    assert (done.returncode, done.stdout) == (0, "1\n2\n"), done.stderr


def many_tasks(number):
    with vmhost.Host(allow_unsigned=True, policy=Policy(max_vms=8)) as host:
        tasks = [
            host.load(bundle(f"def run(value):\n    return value + {each}\n", f"task{each}")) for each in range(number)
        ]
        futures = [task.submit(1000) for task in tasks for _ in range(3)]
        assert [future.result() for future in futures] == [1000 + each for each in range(number) for _ in range(3)]
        assert len(host.statistics().tasks) == number
        for task in tasks[::2]:
            host.unload(task)
        assert [task(1) for task in tasks[1::2][:10]] == [1 + each for each in range(1, number, 2)][:10]


def test_many_distinct_tasks_share_few_vms():
    many_tasks(30)


@pytest.mark.stress
def test_three_hundred_distinct_tasks_share_few_vms():
    many_tasks(300)


def load_and_unload(rounds):
    """One thread loads and unloads a task, others call it: each call gives its result or ClosedError, and nothing else
    is hurt."""
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=calm)) as host, vmhost.Host(allow_unsigned=True) as second:
        steady = host.load(bundle("def run(value):\n    return value\n", "steady"))
        elsewhere = second.load(bundle("def run(value):\n    return -value\n", "steady"))
        over, wrong, counts = threading.Event(), [], {"results": 0, "closed": 0}

        def call():
            while not over.is_set():
                try:
                    try:
                        assert host.task("coming")(3) == 3
                        counts["results"] += 1
                    except vmhost.ClosedError, KeyError:
                        counts["closed"] += 1
                    assert steady(4) == 4
                    assert elsewhere(5) == -5
                except BaseException as error:
                    wrong.append(error)
                    return

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            for number in range(rounds):
                task = host.load(bundle("def run(value):\n    return value\n", "coming", f"1.{number}"))
                assert task(number) == number
                host.unload("coming", drain=number % 2 == 0)
        finally:
            over.set()
            for caller in callers:
                caller.join()
        assert wrong == []
        assert counts["results"] > 0


def test_tasks_come_and_go_while_calls_run():
    load_and_unload(15)


@pytest.mark.stress
def test_tasks_come_and_go_often_while_calls_run():
    load_and_unload(500)
