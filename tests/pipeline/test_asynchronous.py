"""Pipelines under asyncio: the same as without, and a loop that goes on while the store or a task takes its time."""

import asyncio
import threading

import pytest

from tests.pipeline.stream_tasks import GATED, ROWS, WAIT_S, Gate, clicks, stream_task
from vmhost.pipeline import AsyncPipeline, Pipeline, PipelineError
from vmhost.stores import StoreInUseError


def opened(folder, *bundles, **options):
    return AsyncPipeline(folder / "data", bundles, allow_unsigned=True, **options)


def test_events_become_rows(tmp_path):
    async def main():
        async with opened(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
            await pipeline.append(clicks("a")[0])
            await pipeline.append_many(clicks("b", "c"))
            await pipeline.append_line(b'{"name": "click", "time_ms": 1790000000000, "visit": "d"}')
            assert await pipeline.wait(WAIT_S)
            await pipeline.flush()
            assert (await pipeline.statistics())["position"] == 4
            assert (await pipeline.explain("clicks"))["task"] == "clicks"
            assert await pipeline.dead_letters() == []
            rows = await pipeline.read("clicks", limit=3)
            assert (await pipeline.forget("b"))["events"] == 1
            return [row["visit"] for row in rows]

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_tasks_come_and_go(tmp_path):
    async def main():
        async with opened(tmp_path) as pipeline:
            await pipeline.load(stream_task(tmp_path, ROWS))
            await pipeline.change(stream_task(tmp_path, ROWS, version="1.1.0"))
            assert (await pipeline.explain("clicks"))["version"] == "1.1.0"
            await pipeline.withdraw("clicks")
            with pytest.raises(PipelineError):
                await pipeline.explain("clicks")

    asyncio.run(main())


def test_a_pipeline_is_an_async_context_manager_too(tmp_path):
    async def main():
        async with Pipeline(tmp_path / "data", [], allow_unsigned=True) as pipeline:
            await pipeline.append_many(clicks("a"))
        assert pipeline.pipeline.final["position"] == 2  # the click, and the visit's end
        with pytest.raises(PipelineError, match="the pipeline is closed"):
            await pipeline.append_many(clicks("b"))

    asyncio.run(main())


def test_the_loop_goes_on_while_the_store_takes_its_time(tmp_path):
    """A transaction that holds the store acts like a slow disk."""

    async def main():
        async with opened(tmp_path, durability="each") as pipeline:
            database, held, done = pipeline.pipeline._database, threading.Event(), threading.Event()

            def hold():
                with database.lock:
                    held.set()
                    done.wait(WAIT_S)

            holder = threading.Thread(target=hold)
            holder.start()
            held.wait(WAIT_S)
            appended = asyncio.create_task(pipeline.append(clicks("a")[0]))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not appended.done()
            done.set()
            await appended
            holder.join()

    asyncio.run(main())


def test_opening_and_closing_do_not_hold_the_loop_either(tmp_path):
    gate, turns = Gate(), []

    async def count():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def main():
        counting = asyncio.create_task(count())
        bundle = stream_task(tmp_path, GATED, functions="gate")
        pipeline = opened(tmp_path, bundle, host={"functions": {"gate": gate}})
        async with pipeline:
            opening = len(turns)
            await pipeline.append_many(clicks("a"))
            await asyncio.to_thread(gate.wait_for, 1)
            closing = asyncio.create_task(pipeline.close())
            before = len(turns)
            while len(turns) < before + 100:
                await asyncio.sleep(0)
            assert not closing.done()
            gate.open()
            await closing
        counting.cancel()
        return opening

    assert asyncio.run(main()) > 1


def test_a_wait_can_be_given_up(tmp_path):
    gate = Gate()

    async def main():
        bundle = stream_task(tmp_path, GATED, functions="gate")
        async with opened(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline:
            await pipeline.append_many(clicks("a"))
            assert not await pipeline.wait(0.01)
            waiting = asyncio.create_task(pipeline.wait())
            await asyncio.to_thread(gate.wait_for, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            gate.open()
            assert await pipeline.wait(WAIT_S)

    asyncio.run(main())


def test_events_keep_their_order(tmp_path):
    async def main():
        async with opened(tmp_path, stream_task(tmp_path, ROWS, "on: [click], queue: 1000")) as pipeline:
            visits = [f"v{n}" for n in range(100)]
            await asyncio.gather(*(pipeline.append(event) for event in clicks(*visits)))
            assert await pipeline.wait(WAIT_S)
            return [row["visit"] for row in await pipeline.read("clicks")] == visits

    assert asyncio.run(main())


def test_one_that_is_cancelled_while_it_opens_leaves_nothing_open(tmp_path):
    async def main():
        async def use():
            async with opened(tmp_path):
                raise AssertionError("not reached")

        using = asyncio.create_task(use())
        await asyncio.sleep(0)
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        while True:  # the store is free as soon as the other thread has closed it
            try:
                async with opened(tmp_path):
                    return
            except StoreInUseError:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_it_must_be_open(tmp_path):
    async def main():
        pipeline = opened(tmp_path)
        with pytest.raises(RuntimeError, match="use it within `async with`"):
            await pipeline.statistics()
        async with pipeline:
            with pytest.raises(RuntimeError, match="is open already"):
                await pipeline.__aenter__()
            await pipeline.close()
            await pipeline.close()

    asyncio.run(main())
