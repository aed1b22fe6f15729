"""Arrays and the engine's threads while hosts, VMs and forked children come and go, and when memory runs out."""

import gc
import os

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle, in_a_process, until
from vmhost.engine import _array
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

# Large enough that each is divided among the engine's threads, or needs memory of its own beside its result's.
OPERATORS = {
    "product": "np.matmul(a, a)",
    "sort": "np.sort(a, axis=0)",
    "argsort": "np.argsort(a, axis=None)",
    "partition": "np.partition(a, 7, axis=0)",
    "transform": "np.fft.fft2(a)",
    "solve": "np.linalg.solve(a + 500 * np.eye(500), a)",
    "gather": "a[np.argsort(a[:, 0])]",
}
TASK = """
import vmhost.engine.numpy as np

def echo(value):
    return value

def kept(count, keep=[]):
    keep.append(np.arange(float(count)))
    return keep[-1]

def run(count):
    return np.arange(float(count))

def twos(size):
    a = np.full((size, size), 2.0)
    return float(np.matmul(a, a)[0, 0])
""" + "".join(
    f"""
def {name}(a):
    return {call}

def {name}_beside(given):
    a, megabytes = given
    try:
        ballast = np.empty(megabytes << 20, dtype="uint8")
        {name}(a)
    except MemoryError:
        return "refused"
    return "there was room"
"""
    for name, call in OPERATORS.items()
)


def threads():
    return len(os.listdir("/proc/self/task"))


def test_arrays_outlive_their_vm_and_their_host():
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(TASK, name="maker"))
        given, kept = task(100_000), task(100_000, entry="main:kept")
        numbers = [kept[3], kept.sum()]
        host.unload(task)
    with vmhost.Host(allow_unsigned=True) as other:
        task = other.load(bundle(TASK, name="other"))
        back = task([given, kept[::-2], numbers], entry="main:echo")
        assert np.array_equal(back[0], np.arange(100_000.0)) and np.array_equal(back[1], np.arange(100_000.0)[::-2])
        assert back[2] == [3, 99_999 * 50_000]
    del back
    gc.collect()
    given[0] = kept[0] = 42  # no other reference to them is left
    assert (given[0], kept[0], given.sum()) == (42, 42, kept.sum())
    before = _array._statistics()["live_bytes"]
    del given, kept
    gc.collect()
    assert _array._statistics()["live_bytes"] == before - 1_600_000  # they are charged to the host by now


def test_one_pool_serves_hosts_that_come_and_go():
    live, counts = _array._statistics()["live_bytes"], []
    for turn in range(6):
        with vmhost.Host(allow_unsigned=True) as host, vmhost.Host(allow_unsigned=True) as beside:
            tasks = [one.load(bundle(TASK, name=f"task{turn}")) for one in (host, beside)]
            futures = [task.submit(600, entry="main:twos") for task in tasks for _ in range(2)]
            assert [future.result(60) for future in futures] == [2400.0] * 4
        counts.append(threads())
    gc.collect()
    until(lambda: threads() < counts[0] + 4)  # those of twelve hosts have ended
    assert _array._statistics()["live_bytes"] <= live


@pytest.mark.parametrize("name", OPERATORS)
def test_memory_that_runs_out_at_any_point_of_an_operator(name):
    """With more and more of the limit taken, until nothing is left for the operator: each call ends as it should, and
    the host goes on. The task catches the MemoryError; whether the stop comes before it has returned is a race."""
    a, outcomes = np.array(numpy.random.default_rng(5).random((500, 500))), set()
    policy = Policy(grace_s=10, task=TaskPolicy(breaker=BreakerPolicy(consecutive=100, failure_rate=1)))
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        task = host.load(bundle(TASK, limits={"memory": "24 MiB", "wall_time": "100 s"}))
        for megabytes in range(2, 32):
            try:
                outcomes.add(task([a, megabytes], entry=f"main:{name}_beside"))
            except vmhost.MemoryLimitError:
                outcomes.add("stopped")
        assert "there was room" in outcomes and outcomes & {"stopped", "refused"}
        assert task(10).tolist() == list(range(10))
        assert not [vm for vm in host.statistics().vms if vm.state == "quarantined"]
        until(lambda: sum(vm.counters["buffer_bytes"] for vm in host.statistics().vms if vm.state != "ended") < 1 << 16)


def test_a_fork_while_the_engine_works():
    """Children compute on their own: none waits for a thread or a lock that stayed with the parent."""
    done = in_a_process("""
        import warnings
        import numpy, vmhost.engine.numpy as np
        warnings.simplefilter("ignore", DeprecationWarning)     # CPython's, that a process with threads forks

        a = np.array(numpy.random.default_rng(5).random((256, 256)))
        works = [lambda: np.matmul(a, a), lambda: np.sort(a, axis=0), lambda: np.fft.fft2(a), lambda: np.exp(a).sum(),
                 lambda: np.linalg.solve(a, a), lambda: np.fft.fft(np.resize(a, 66_000)),
                 lambda: np.linalg.svd(a[:70, :70])]
        expected = [work() for work in works]
        over = threading.Event()

        def work_on(work):
            while not over.is_set():
                work()

        # daemons: if a child fails, the process ends and says so
        threads = [threading.Thread(target=work_on, args=[work], daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for turn in range(6):
            child = os.fork()
            if child == 0:
                signal.alarm(60)        # one that hangs is seen
                same = True
                for work, want in zip(works, expected):
                    got = work()
                    pairs = zip(got, want) if isinstance(want, tuple) else [(got, want)]
                    same = same and all(np.allclose(one, two) for one, two in pairs)
                os._exit(0 if same else 3)
            assert os.waitpid(child, 0)[1] == 0, turn
        over.set()
        for thread in threads:
            thread.join()
        for work, want in zip(works, expected):
            got = work()
            assert all(np.allclose(one, two)
                       for one, two in (zip(got, want) if isinstance(want, tuple) else [(got, want)]))
        print("well")
    """)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
