"""A pipeline for asyncio: blocking work, such as the store's, runs on threads and never blocks the loop.

async with AsyncPipeline("data", ["build/ipv.vmb"]) as pipeline:
    await pipeline.append(Event("page_enter", 1_790_000_000_000, "item", "visit-1"))
    rows = await pipeline.read("ipv", limit=10)
"""

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor

from vmhost import callbacks
from vmhost.pipeline.pipeline import Pipeline, PipelineError

_WAIT_S = 0.5  # how often a wait checks for cancellation


class AsyncPipeline:
    """Wraps `Pipeline(folder, bundles, **options)`: `async with` opens it, and closes it at the end of the block.

    Its methods are Pipeline's, with `await`, and raise the same errors. One thread takes the events, in the order of
    the calls of `append` and its like. Cancelling an `await` does not undo it: the events may have been taken. Use
    it from one event loop.
    """

    def __init__(self, folder, bundles, **options):
        self._open = functools.partial(Pipeline, folder, bundles, **options)
        self._pipeline = None
        self._writing = self._reading = None

    @classmethod
    def from_file(cls, path):
        """As `Pipeline.from_file`; `async with` reads the file."""
        pipeline = cls(None, ())
        pipeline._open = functools.partial(Pipeline.from_file, path)
        return pipeline

    @classmethod
    def around(cls, pipeline):
        """Wraps a Pipeline that is already open."""
        wrapper = cls(None, ())
        wrapper._open = lambda: pipeline
        return wrapper

    @property
    def pipeline(self):
        """The wrapped Pipeline, for calls that have no method here. RuntimeError before `async with`."""
        if self._pipeline is None:
            raise RuntimeError("the AsyncPipeline is not open; use it within `async with`")
        return self._pipeline

    async def __aenter__(self):
        if self._pipeline is not None:
            raise RuntimeError("this AsyncPipeline is open already; make another one")
        self._writing = ThreadPoolExecutor(1, "vmhost-pipeline-append")
        self._reading = ThreadPoolExecutor(4, "vmhost-pipeline-read")
        opening = asyncio.get_running_loop().run_in_executor(self._writing, self._open)
        try:
            self._pipeline = await asyncio.shield(opening)
        except BaseException:
            # cancelled during opening: close the pipeline on the thread that opened it
            opening.add_done_callback(self._close_unused)
            raise
        return self

    def _close_unused(self, opening):
        if not opening.cancelled() and opening.exception() is None:
            self._writing.submit(opening.result().close, drain=False)
        self._writing.shutdown(wait=False)
        self._reading.shutdown(wait=False)

    async def __aexit__(self, error_type, error, traceback):
        await self.close(drain=error_type is None)

    async def _write(self, function, *arguments, **named):
        return await self._on(self._writing, function, *arguments, **named)

    async def _read(self, function, *arguments, **named):
        return await self._on(self._reading, function, *arguments, **named)

    async def _on(self, executor, function, *arguments, **named):
        call = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    # ---- events

    async def append(self, event):
        await self._write(self.pipeline.append, event)

    async def append_many(self, events, *, bounded=True):
        await self._write(self.pipeline.append_many, events, bounded=bounded)

    async def append_line(self, line):
        await self._write(self.pipeline.append_line, line)

    async def flush(self):
        """Returns when everything appended so far is durable."""
        await self._write(self.pipeline.flush)

    async def wait(self, timeout_s=None):
        """Waits until no call is open. Returns a Waited, as Pipeline; false after `timeout_s`."""
        return await self._until(self.pipeline.wait, timeout_s)

    async def wait_for_room(self, timeout_s=None):
        return await self._until(self.pipeline.wait_for_room, timeout_s)

    async def _until(self, wait, timeout_s):
        """Waits in short steps, so that a cancelled wait frees its thread soon."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            left = _WAIT_S if end is None else min(_WAIT_S, end - loop.time())
            found = await self._read(wait, max(left, 0))
            if found or (end is not None and loop.time() >= end):
                return found

    # ---- tasks

    async def load(self, bundle, *, from_stored=False):
        await self._write(self.pipeline.load, bundle, from_stored=from_stored)

    async def change(self, bundle):
        await self._write(self.pipeline.change, bundle)

    async def withdraw(self, name, *, drain=True):
        await self._write(self.pipeline.withdraw, name, drain=drain)

    async def forget(self, key):
        return await self._write(self.pipeline.forget, key)

    # ---- reading

    async def read(self, name, **selection):
        """The rows of the table `name`, uncommitted ones included, as `Table.read`. KeyError."""
        return await self._read(lambda: self.pipeline.table(name).read(**selection))

    async def dead_letters(self, name=None):
        return await self._read(self.pipeline.dead_letters, name)

    async def explain(self, name):
        return await self._read(self.pipeline.explain, name)

    async def statistics(self):
        return await self._read(self.pipeline.statistics)

    # ---- the tunnel

    def on(self, channel, function=None):
        """Messages that the cloud pushes on the channel go to `function(message)`; an `async` one runs on this loop. As
        a decorator: `@pipeline.on("news")`. PipelineError without a tunnel."""
        if function is None:
            return lambda given: self.on(channel, given) or given
        loop, taken = asyncio.get_running_loop(), function
        if callbacks.is_async(function):

            def taken(message):
                return asyncio.run_coroutine_threadsafe(function(message), loop).result()

        self._tunnel().on(channel, taken)

    async def send(self, channel, body, *, identity=None):
        """As `vmhost.tunnel.Device.send`."""
        return await self._write(self._tunnel().send, channel, body, identity=identity)

    async def ask(self, channel, value, *, timeout_s=None, fallback=None):
        """As `vmhost.tunnel.Device.ask`; `fallback` runs on a thread."""
        return await self._read(self._tunnel().ask, channel, value, timeout_s=timeout_s, fallback=fallback)

    async def wait_sent(self, timeout_s=None):
        """Waits until the outbox is empty, rows in memory included. False after `timeout_s`."""
        return await self._until(self._tunnel().wait_sent, timeout_s)

    def _tunnel(self):
        if self.pipeline.tunnel is None:
            raise PipelineError("this pipeline has no tunnel; give it `tunnel` (docs/pipeline-yaml.md)")
        return self.pipeline.tunnel

    # ---- closing

    async def close(self, drain=True, keep_visits=None):
        """As `Pipeline.close`. Runs to completion even when cancelled."""
        if self._writing is None:
            return
        writing, reading, self._writing = self._writing, self._reading, None
        loop = asyncio.get_running_loop()
        closing = loop.run_in_executor(
            writing, functools.partial(self.pipeline.close, drain=drain, keep_visits=keep_visits)
        )
        try:
            await asyncio.shield(closing)
        finally:
            writing.shutdown(wait=False)
            reading.shutdown(wait=False)
