"""VMExecutor under asyncio: awaiting a call, and stopping it by cancelling the await."""

import asyncio
import concurrent.futures
import functools

import pytest

import vmhost
from tests.vmhost import functions


@pytest.fixture
def pool():
    with vmhost.VMExecutor(1) as pool:
        assert pool.submit(functions.add, 1, 2).result() == 3
        yield pool


async def started(pool, gate, awaited):
    """An asyncio task of `awaited`, a call of `note_and_wait`, that runs in its VM."""
    task = asyncio.ensure_future(awaited)
    while not gate.exists():
        await asyncio.sleep(0.001)
    return task


def test_run_gives_results_and_errors(pool):
    async def main():
        results = await asyncio.gather(*(pool.run(functions.add, i, y=1) for i in range(20)))
        with pytest.raises(ZeroDivisionError):
            await pool.run(functions.inverse, 0)
        with pytest.raises(functions.Unheard):
            await pool.run(functions.raise_unheard)
        with pytest.raises(vmhost.CrossingError):
            await pool.run(functions.add, object(), 1)
        assert await pool.run(functools.partial(functions.add, 5), 6) == 11
        return results

    assert asyncio.run(main()) == list(range(1, 21))


def test_run_keeps_its_time(pool):
    async def main():
        with pytest.raises(vmhost.TimeLimitError, match="raise timeout_s"):
            await pool.run(functions.spin, timeout_s=0.05)
        with pytest.raises(ValueError, match="timeout_s"):
            await pool.run(functions.add, 1, 2, timeout_s=-1)
        return await pool.run(functions.add, 1, 2, timeout_s=60)

    assert asyncio.run(main()) == 3


WAYS = [
    lambda pool, gate: pool.run(functions.note_and_spin, str(gate)),
    lambda pool, gate: asyncio.get_running_loop().run_in_executor(pool, functions.note_and_spin, str(gate)),
    lambda pool, gate: asyncio.wrap_future(pool.submit(functions.note_and_spin, str(gate))),
]


@pytest.mark.parametrize("way", WAYS, ids=["run", "run_in_executor", "wrap_future"])
def test_a_cancelled_call_stops_and_its_worker_is_free(pool, tmp_path, way):
    gate = tmp_path / "gate"

    async def main():
        task = await started(pool, gate, way(pool, gate))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await pool.run(functions.add, 1, 2)  # on the only worker, which would spin forever

    assert asyncio.run(main()) == 3


@pytest.mark.parametrize("way", WAYS, ids=["run", "run_in_executor", "wrap_future"])
def test_wait_for_stops_the_call(pool, tmp_path, way):
    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(way(pool, tmp_path / "gate"), 0.05)
        return await pool.run(functions.add, 1, 2)

    assert asyncio.run(main()) == 3


def test_a_task_group_that_fails_stops_the_others(pool, tmp_path):
    gate = tmp_path / "gate"

    async def fail():
        while not gate.exists():
            await asyncio.sleep(0.001)
        raise LookupError("enough")

    async def main():
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(pool.run(functions.note_and_spin, str(gate)))
                waiting = group.create_task(pool.run(functions.add, 1, 2))
                group.create_task(fail())
        assert waiting.cancelled()
        return await pool.run(functions.add, 1, 2)

    assert asyncio.run(main()) == 3
    assert pool.statistics().tasks["executor"].queued == 0


def test_a_future_that_asyncio_does_not_await_runs_on(pool, tmp_path):
    gate, go = tmp_path / "gate", tmp_path / "go"
    future = pool.submit(functions.note_and_wait, str(gate), str(go))
    future.add_done_callback(lambda future: None)
    functions.wait_for_file(gate)
    assert not future.cancel()
    go.touch()
    assert future.result() == str(go)


def test_run_ends_with_the_pool(tmp_path):
    gate = tmp_path / "gate"

    async def main(pool):
        task = await started(pool, gate, pool.run(functions.note_and_spin, str(gate)))
        pool.terminate_workers()
        with pytest.raises(concurrent.futures.CancelledError):
            await task
        with pytest.raises(RuntimeError, match="after shutdown"):
            await pool.run(functions.add, 1, 2)

    with vmhost.VMExecutor(1) as pool:
        asyncio.run(main(pool))
