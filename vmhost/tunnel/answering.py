"""Answers to requests of the other end, by functions of the application: each request gets one answer or one error.

Async functions run as tasks on the loop, plain ones on threads. What threads have answered is sent in turns (`Reading`
of the transport): at once for who asked little, and with all others that are behind for who asked much. Who asks
without an end has many requests open, so one of them is few objects, and none of them in a cycle.
"""

import asyncio
import contextlib
from collections import Counter, deque
from functools import partial

from vmhost import callbacks
from vmhost.tunnel.transport import EVENTS_AT_ONCE


class Answering:
    """`reading`: the loop's Reading. `threads`: Turns. All methods belong to the loop's thread, on which
    `failed(event, error, late)` is called for what a function raised, and `ended(transport, event, began, answered)` at
    the end of each request, after `failed`. `began`: the loop's time."""

    def __init__(self, loop, reading, threads, failed, ended):
        self.loop, self.threads, self.failed, self.ended = loop, threads, failed, ended
        self._reading = reading
        self._ready = deque()  # of _OnThread whose function ended, filled by threads
        self._is_woken = False
        self._behind = {}  # transport -> deque of _OnThread whose function ended

    def begin(self, transport, event, function, given, key):
        """Answers the request `event` with `function(given)`. A plain function runs in the turn of `key`. Whatever it
        raises becomes the other end's error. A request whose function still runs when its time is over, or when the
        other end gave up, counts as open until the function ends. Returns what has `cancel()`, for when the other end
        gave up or the connection ended, and `done()`."""
        if callbacks.is_async(function):
            return asyncio.Task(self._answered(transport, event, function, given), loop=self.loop, eager_start=True)
        one = _OnThread(self, transport, event, function, given, key)
        self.threads.put(key, one)
        if event.timeout_s is not None:
            one.timer = self.loop.call_later(event.timeout_s, one.late)
        return one

    async def _answered(self, transport, event, function, given):
        connection, number = transport.connection, event.number
        began, answered = self.loop.time(), False
        try:
            async with asyncio.timeout(event.timeout_s) as deadline:
                value = await callbacks.awaited(function(given))
            connection.answer(number, value)
            answered = True
        except Exception as error:
            self.failed(event, error, deadline.expired())
            connection.fail(number, callbacks.error_text(error), deadline.expired())
        finally:
            connection.fail(number, "the function ended")  # nothing, if there was an answer or an error
            transport.flush()
            self.ended(transport, event, began, answered)

    def settle_later(self, one):
        """Called on any thread: the function of an _OnThread ended."""
        self._ready.append(one)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self):
        self._is_woken = False  # first: who appends from now on wakes the loop again
        counts = Counter()
        while self._ready:
            one = self._ready.popleft()
            transport = one.transport
            counts[transport] += 1
            if (behind := self._behind.get(transport)) is not None:
                behind.append(one)
            elif counts[transport] > EVENTS_AT_ONCE or transport.is_behind:
                self._behind[transport] = deque((one,))
                self._reading.later(partial(self._settle_behind, transport))
            else:
                one.settle()
        for transport in counts:
            transport.flush()

    def _settle_behind(self, transport):
        """The turn of a transport."""
        behind = self._behind[transport]
        for _ in range(min(len(behind), EVENTS_AT_ONCE)):
            behind.popleft().settle()
        if behind:
            self._reading.later(partial(self._settle_behind, transport))
        else:
            del self._behind[transport]
        transport.flush()


class _OnThread:
    """A request that a thread answers."""

    __slots__ = (
        "_answering", "_began", "_error", "_event", "_function", "_given", "_is_open", "_key", "_value", "timer",
        "transport",
    )  # fmt: skip

    def __init__(self, answering, transport, event, function, given, key):
        self._answering, self.transport, self._event = answering, transport, event
        self._function, self._given, self._key = function, given, key
        self._value = self._error = self.timer = None
        self._began = answering.loop.time()
        self._is_open = True  # whether the other end waits for an answer

    def run(self):
        """Called on a thread."""
        try:
            self._value = callbacks.call(self._function, self._given)
        except Exception as error:
            self._error = error
        self._answering.settle_later(self)

    def dropped(self):
        """The threads are shut down."""

    def settle(self):
        """The function ended."""
        connection, number = self.transport.connection, self._event.number
        if not self._is_open:
            connection.forget_request(number)
        elif self._error is not None:
            self._fail(self._error, late=False)
        else:
            try:
                connection.answer(number, self._value)
            except Exception as error:  # msgpack cannot express it
                self._fail(error, late=False)
            else:
                self._end(answered=True)

    def done(self):
        """Whether there was an answer or an error, or nobody waits for one."""
        return not self._is_open

    def late(self):
        self._fail(TimeoutError(), late=True)
        self._drop()
        self.transport.flush()

    def cancel(self):
        if self._is_open:
            self.transport.connection.fail(self._event.number, "cancelled", ended=False)
            self._end(answered=False)
            self._drop()

    def _drop(self):
        if self._answering.threads.drop(self._key, self):
            self.transport.connection.forget_request(self._event.number)

    def _fail(self, error, late):
        self._answering.failed(self._event, error, late)
        self.transport.connection.fail(self._event.number, callbacks.error_text(error), late, ended=not late)
        self._end(answered=False)

    def _end(self, answered):
        self._is_open = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._answering.ended(self.transport, self._event, self._began, answered)
