"""ClusterExecutor on a real Ray cluster: its results are those of VMExecutor, and each call ends once."""

import asyncio
import collections
import concurrent.futures
import datetime
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

import vmhost
import vmhost.ray
from tests.ray_cluster import functions
from tests.ray_cluster.conftest import add_node

pytestmark = [
    pytest.mark.ray,
    # Ray's own, of its versions to come and of pipes that it leaves to the collector
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parents[2]
SOON_S = 60


def executor(**options):
    """One with a core of each node. No call of a test that fails runs on."""
    return vmhost.ray.ClusterExecutor(**{"cores": 1, "limits": {"wall_time": f"{SOON_S} s"}} | options)


def wait_until(holds):
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def test_primes_are_those_of_vms_here(connected):
    with vmhost.VMExecutor(2) as here:
        expected = list(here.map(functions.is_prime, range(100_000), chunksize=1000))
    with executor() as pool:
        assert list(pool.map(functions.is_prime, range(100_000))) == expected
        one_by_one = [pool.submit(functions.is_prime, number) for number in range(3000)]
        assert [each.result() for each in one_by_one] == expected[:3000]
        nodes = pool.statistics().nodes
    assert len({each.node for each in nodes}) == 2
    assert all(each.ended > 0 and each.lost == 0 for each in nodes)


def test_functions_and_values_are_those_of_vms_here(connected):
    point = functions.Point(1, 2)
    given = [
        None, True, -1 << 80, 1.5, 2j, "text", b"bytes", (1, [2, {3: {4}}]), frozenset({1}),
        datetime.datetime(2026, 1, 2, 3), {datetime.date(2020, 1, 1): {1}}, collections.Counter("aab"),
        functions.Colour.RED, {functions.Colour.RED: point},
        {point}, [point] * 3, ValueError("x", 1), LookupError, b"x" * 200_000,
    ]  # fmt: skip
    with vmhost.VMExecutor(1) as here, executor() as pool:
        for each in (here, pool):
            assert each.submit(functions.of_point, point).result() == functions.Point(2, 1)
            assert each.submit(functions.keyed, point).result() == functions.keyed(point)
            assert each.submit(functions.uses_more, 4).result() == 8
            assert list(each.map(functions.adds(5), range(3))) == [5, 6, 7]
            assert list(each.map(functions.is_prime, range(10), chunksize=4)) == [*map(functions.is_prime, range(10))]
        for value in given:
            found, expected = (each.submit(functions.echoes, value).result() for each in (pool, here))
            assert repr(found) == repr(expected) and type(found) is type(expected)
        array = memoryview(b"".join(number.to_bytes(4, "little") for number in range(6))).cast("i", (2, 3))
        assert memoryview(pool.submit(functions.echoes, array).result()).tolist() == [[0, 1, 2], [3, 4, 5]]
        for bad in (object(), sys, [print]):
            words = []
            for each in (here, pool):
                with pytest.raises(vmhost.CrossingError) as raised:
                    each.submit(functions.echoes, bad)
                words.append(str(raised.value).partition(": ")[2])
            assert words[0] == words[1]


def test_errors_are_those_of_vms_here(connected):
    with vmhost.VMExecutor(1) as here, executor(limits={"wall_time": "2 s"}) as pool:
        for each in (here, pool):
            with pytest.raises(LookupError) as raised:
                each.submit(functions.fails, 3).result()
            assert raised.value.args == ("no", 3)
            assert "functions.py" in raised.value.__cause__.guest_traceback
            with pytest.raises(functions.Refused, match="three"):
                each.submit(functions.refuses, 3).result()
            got = []
            with pytest.raises(functions.Refused):
                got.extend(each.map(functions.refuses, range(10), chunksize=5))
            with pytest.raises(vmhost.CrossingError, match="generator"):
                each.submit(functions.makes_generator).result()
        with pytest.raises(vmhost.TimeLimitError):
            pool.submit(functions.spins).result()
        with pytest.raises(vmhost.TimeLimitError):
            asyncio.run(pool.run(functions.spins, timeout_s=0.2))
        assert asyncio.run(pool.run(functions.of_point, functions.Point(1, 2))) == functions.Point(2, 1)


def test_calls_are_cancelled_and_stopped(connected):
    with executor(nodes=1) as pool:
        running = pool.submit(functions.spins)
        waiting = [pool.submit(functions.is_prime, 7) for _ in range(50)]
        assert waiting[-1].cancel() and waiting[-1].cancelled()
        wait_until(running.running)
        assert not running.cancel()
        running.stop()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result(SOON_S)
        assert [each.result(SOON_S) for each in waiting[:-1]] == [True] * 49
        ended = []
        waiting[0].add_done_callback(ended.append)
        assert concurrent.futures.wait(waiting, SOON_S).not_done == set()
        wait_until(lambda: ended)
        last = [pool.submit(functions.spins), *(pool.submit(functions.is_prime, 7) for _ in range(9))]
        wait_until(last[0].running)
        pool.shutdown(wait=False, cancel_futures=True)
        wait_until(last[-1].cancelled)  # also one that waits on the node
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(functions.is_prime, 7)
        pool.terminate_workers()
    assert all(each.done() for each in last)


def test_a_node_has_a_bounded_number_of_calls(connected):
    with executor(nodes=1) as pool:
        calls = [pool.submit(functions.waits, 0.01) for _ in range(400)]
        while not calls[-1].done():
            (node,) = pool.statistics().nodes
            assert node.calls_out <= max(node.window, 100)
            time.sleep(0.02)
        assert node.window < 400 and {each.result() for each in calls} == {0.01}


def test_two_executors_at_once(connected):
    with executor() as one, executor(nodes=1) as other:
        both = [one.map(functions.is_prime, range(2000)), other.map(functions.is_prime, range(2000))]
        assert list(both[0]) == list(both[1])


@pytest.mark.parametrize("idempotent", [False, True])
def test_each_call_ends_once_when_a_node_dies(connected, idempotent):
    ended, lock = collections.Counter(), threading.Lock()
    with executor(idempotent=idempotent) as pool:

        def note(number):
            def act(_):
                with lock:
                    ended[number] += 1

            return act

        calls = [pool.submit(functions.slow_double, number) for number in range(4000)]
        for number, call in enumerate(calls):
            call.add_done_callback(note(number))
        wait_until(lambda: sum(each.done() for each in calls) > 100)
        (victim,) = connected.worker_nodes
        name = victim.node_id
        connected.remove_node(victim, allow_graceful=False)  # SIGKILL for its processes
        lost = 0
        for number, call in enumerate(calls):
            error = call.exception(2 * SOON_S)
            if error is None:
                assert call.result() == 2 * number
            else:
                assert type(error) is vmhost.ray.NodeLostError
                assert error.node == name and name in str(error) and "slow_double" in str(error)
                lost += 1
        wait_until(lambda: len(ended) == len(calls))
        assert set(ended.values()) == {1}
        assert lost == 0 if idempotent else 0 < lost < 2000
        assert pool.submit(functions.is_prime, 7).result() is True  # the other node serves on
        add_node(connected)
        wait_until(lambda: all(each.node for each in pool.statistics().nodes))  # a new one joins
        assert list(pool.map(functions.is_prime, range(2000)))[7] is True


def test_an_actor_that_dies_is_replaced(connected):
    with executor(nodes=1) as pool:
        process = pool._workers.nodes[0].process
        call = pool.submit(functions.spins)
        wait_until(call.running)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(vmhost.ray.NodeLostError, match="idempotent=True"):
            call.result(SOON_S)
        assert pool.submit(functions.uses_more, 4).result(SOON_S) == 8


def test_a_node_that_fails_at_a_message_is_replaced(connected, monkeypatch):
    with executor(nodes=1) as pool:
        with monkeypatch.context() as context:
            context.setattr(pool._workers, "contents_from", lambda position: [None])
            with pytest.raises(vmhost.ray.NodeLostError, match="NoneType"):
                pool.submit(functions.uses_more, 4).result(SOON_S)
        assert pool.submit(functions.uses_more, 4).result(SOON_S) == 8


def test_a_time_limit_holds_where_a_node_does_not_answer(connected):
    with executor(nodes=1) as pool:
        pool.submit(functions.is_prime, 7).result()
        os.kill(pool._workers.nodes[0].process, signal.SIGSTOP)
        with pytest.raises(vmhost.TimeLimitError, match="does not answer"):
            asyncio.run(asyncio.wait_for(pool.run(functions.is_prime, 7, timeout_s=0.1), SOON_S))
        os.kill(pool._workers.nodes[0].process, signal.SIGKILL)
        assert pool.submit(functions.is_prime, 7).result(SOON_S) is True


def test_a_call_that_was_stopped_does_not_run_again(connected):
    with executor(nodes=1, idempotent=True) as pool:
        call = pool.submit(functions.spins)
        wait_until(call.running)
        os.kill(pool._workers.nodes[0].process, signal.SIGSTOP)
        call.stop()
        os.kill(pool._workers.nodes[0].process, signal.SIGKILL)
        with pytest.raises(concurrent.futures.CancelledError):
            call.result(SOON_S)


def test_time_limits_share_a_thread(connected):
    with executor(nodes=1) as pool:
        running = pool.submit(functions.spins)
        wait_until(running.running)
        before = threading.active_count()

        async def many():
            calls = [asyncio.ensure_future(pool.run(functions.is_prime, 7, timeout_s=2)) for _ in range(200)]
            for bad, error in (("1", TypeError), (-1, ValueError), (float("nan"), ValueError), (10**400, ValueError)):
                with pytest.raises(error, match="timeout_s: expected a number of seconds"):
                    await pool.run(functions.is_prime, 7, timeout_s=bad)
            while pool.statistics().queued < 150:
                await asyncio.sleep(0.01)
            assert threading.active_count() <= before + 2
            return await asyncio.gather(*calls, return_exceptions=True)

        assert {type(each) for each in asyncio.run(many())} == {vmhost.TimeLimitError}
        running.stop()
        assert asyncio.run(pool.run(functions.is_prime, 7, timeout_s=float("inf"))) is True


def test_shutdown_ends_the_actor_after_the_last_call(connected):
    pool = executor(nodes=1)
    process = pool._workers.nodes[0].process
    call = pool.submit(functions.waits, 0.2)
    pool.shutdown(wait=False)
    assert call.result() == 0.2
    wait_until(lambda: not is_alive(process))
    pool.shutdown()


def test_a_callback_may_shut_down(connected):
    pool = executor(nodes=1)
    ended = threading.Event()

    def end(_):
        pool.shutdown()
        ended.set()

    pool.submit(functions.is_prime, 7).add_done_callback(end)
    assert ended.wait(SOON_S)
    pool.shutdown()


def test_a_program_that_leaves_the_cluster_ends_its_executors(two_nodes):
    pool = executor(address=two_nodes.address, nodes=1)
    call = pool.submit(functions.spins)
    wait_until(call.running)
    ray.shutdown()
    with pytest.raises(vmhost.ray.NodeLostError):
        call.result(SOON_S)
    with pytest.raises((vmhost.ray.NodeLostError, concurrent.futures.BrokenExecutor), match="left the Ray cluster"):
        pool.submit(functions.is_prime, 7).result(SOON_S)
    pool.shutdown()
    assert not ray.is_initialized()  # nor is there a new cluster on this machine


def test_a_cluster_has_several_addresses(two_nodes):
    port = two_nodes.address.rpartition(":")[2]
    with executor(address=two_nodes.address, nodes=1), executor(address=f"localhost:{port}", nodes=1) as pool:
        assert pool.submit(functions.is_prime, 7).result() is True
        with pytest.raises(vmhost.ConfigurationError, match="this process is connected to the cluster at"):
            executor(address="127.0.0.1:1")


PACKAGE = {
    "site-packages/lazy_package/__init__.py": """
def within():
    from .parts import one
    return one.above()

def tried():
    try:
        from . import fails
    except ImportError as error:
        return str(error)

def __getattr__(name):
    import importlib
    if name == "later":
        return importlib.import_module(".later", __name__)
    raise AttributeError(name)
""",
    "site-packages/lazy_package/parts/one.py": "def above():\n    from .. import two\n    return two.NAME\n",
    "site-packages/lazy_package/two.py": "from . import two as me\nNAME = me.__name__\n",
    "site-packages/lazy_package/later.py": "NAME = __name__\n",
    "site-packages/lazy_package/fails.py": "import numpy\n",
    "program/uses_lazy_package.py": """
import lazy_package

def within(_):
    return lazy_package.within()

def tried():
    return lazy_package.tried()

def later():
    return lazy_package.later.NAME
""",
}


def test_what_packages_import_in_functions_is_had_from_the_program(connected, tmp_path, monkeypatch):
    for path, text in PACKAGE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for folder in ("site-packages", "program"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    program = importlib.import_module("uses_lazy_package")
    try:
        with executor(nodes=1, cores=2) as pool:
            assert set(pool.map(program.within, range(20), chunksize=1)) == {"lazy_package.two"}
            assert "numpy" in pool.submit(program.tried).result(SOON_S)
            os.kill(pool._workers.nodes[0].process, signal.SIGKILL)  # the next one has none of it
            wait_until(lambda: pool.statistics().nodes[0].lost and pool.statistics().nodes[0].node)
            assert pool.submit(program.later).result(SOON_S) == "lazy_package.later"
            assert pool.submit(program.within, 1).result(SOON_S) == "lazy_package.two"
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] in ("lazy_package", "uses_lazy_package")]:
            del sys.modules[name]


def test_what_cannot_be_had_is_one_error(two_nodes):
    with pytest.raises(vmhost.ConfigurationError, match="nothing answers at 127.0.0.1:1 .*ray start --head"):
        vmhost.ray.ClusterExecutor("127.0.0.1:1")
    with pytest.raises(vmhost.ConfigurationError, match='expected "host:port"'):
        vmhost.ray.ClusterExecutor("nowhere")
    for name in ("nodes", "cores"):
        with pytest.raises(vmhost.ConfigurationError, match=f"{name}: expected a number from 1 on"):
            vmhost.ray.ClusterExecutor(two_nodes.address, **{name: 0})
    with pytest.raises(vmhost.ConfigurationError, match="nodes: 3 with 1 cores .* the cluster has 2 such"):
        vmhost.ray.ClusterExecutor(two_nodes.address, nodes=3)
    assert not ray.is_initialized()


def test_a_driver_that_dies_leaves_no_actor_behind(two_nodes):
    program = (
        "import sys, time, vmhost.ray\nfrom tests.ray_cluster import functions\n"
        "pool = vmhost.ray.ClusterExecutor(sys.argv[1], cores=1)\n"
        "call = pool.submit(functions.spins)\n"
        "while not call.running(): time.sleep(0.01)\n"
        "print(*(node.process for node in pool._workers.nodes), flush=True)\ntime.sleep(600)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program, two_nodes.address],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        actors = [int(each) for each in driver.stdout.readline().split()]
        assert len(actors) == 2 and all(map(is_alive, actors))
        driver.kill()
        wait_until(lambda: not any(map(is_alive, actors)))
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False
