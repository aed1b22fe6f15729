"""Requests of many devices answered together: a model takes a batch of 32 in little more time than one."""

import asyncio
from collections import deque
from typing import NamedTuple

from vmhost import callbacks
from vmhost.tunnel.errors import TunnelConfigurationError

_NEW_SHARE = 0.2  # of the latest batch in the expected duration of the next


class _Waiting(NamedTuple):
    request: object
    answer: asyncio.Future
    came: float
    over: float  # when the device no longer waits; both in the loop's time


class Batched:
    """For `server.answer(channel, Batched(function))`: `function(requests)` gets a list of up to `most` requests and
    returns a list of their answers, in the same order. It runs on a thread, one batch at a time; what comes meanwhile
    is the next batch.

    A batch leaves when it is full, when its first request has waited for `wait_ms`, or earlier when one of its requests
    would otherwise be late, judging by how long batches took. A batch whose function raises is tried again request by
    request, so one bad value costs nobody else an answer."""

    def __init__(self, function, most=32, wait_ms=2.0):
        if not callable(function) or callbacks.is_async(function):
            raise TunnelConfigurationError("Batched: expected a function of a list of requests that is not async")
        if type(most) is not int or most < 1:
            raise TunnelConfigurationError(f"Batched: most: expected a number of requests from 1 on, got {most!r}")
        if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float) or not 0 <= wait_ms < 60_000:
            raise TunnelConfigurationError(f"Batched: wait_ms: expected 0 to 60,000 milliseconds, got {wait_ms!r}")
        self._function, self._most, self._wait_s = function, most, wait_ms / 1000
        self._loop = None

    async def __call__(self, request):
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the server's processes are forked from the one that made this object
            self._loop, self._waiting, self._working = loop, deque(), None
            self._more, self._took_s = asyncio.Event(), 0.0
        now = loop.time()
        over = float("inf") if request.timeout_s is None else now + request.timeout_s
        waiting = _Waiting(request, loop.create_future(), now, over)
        self._waiting.append(waiting)
        self._more.set()
        if self._working is None:
            self._working = loop.create_task(self._work())
        return await waiting.answer  # cancelled when the device no longer waits

    async def _work(self):
        try:
            while batch := await self._next():
                await self._answer(batch)
        finally:
            self._working = None

    async def _next(self):
        """The next batch, when it is time for it; empty if nothing waits."""
        while True:
            waiting = [each for each in self._waiting if not each.answer.done()]
            self._waiting = deque(waiting)
            if not waiting:
                return []
            left = min(waiting[0].came + self._wait_s, min(each.over for each in waiting) - self._took_s)
            left -= self._loop.time()
            if len(waiting) >= self._most or left <= 0:
                return [self._waiting.popleft() for _ in range(min(self._most, len(waiting)))]
            self._more.clear()
            try:
                async with asyncio.timeout(left):
                    await self._more.wait()
            except TimeoutError:
                pass

    async def _answer(self, batch):
        began = self._loop.time()
        try:
            answers = await self._call(batch)
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0], error)
                return
            for each in batch:
                if not each.answer.done():
                    await self._answer([each])
            return
        took_s = self._loop.time() - began
        self._took_s += (took_s - self._took_s) * (_NEW_SHARE if self._took_s else 1)
        for each, answer in zip(batch, answers):
            if not each.answer.done():
                each.answer.set_result(answer)

    async def _call(self, batch):
        requests = [each.request for each in batch]
        answers = await self._loop.run_in_executor(None, callbacks.call, self._function, requests)
        if not isinstance(answers, list | tuple) or len(answers) != len(batch):
            count = f"{len(answers)} in a {type(answers).__name__}" if hasattr(answers, "__len__") else repr(answers)
            raise TypeError(f"the function of the batch: expected a list of {len(batch)} answers, got {count[:100]}")
        return answers


def _fail(waiting, error):
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
