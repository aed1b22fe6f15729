"""Answers to requests of the other end, by functions of the application: each request gets one answer or one error.

Async functions run as tasks on the loop, plain ones on threads. What threads have answered is sent in turns (`Reading`
of the transport): at once for who asked little, and with all others that are behind for who asked much.
"""

import asyncio
import contextlib
from collections import Counter, deque
from functools import partial

from vmhost import callbacks
from vmhost.tunnel.transport import EVENTS_AT_ONCE


class Answering:
    """`reading`: the loop's Reading. `threads`: Turns. All methods belong to the loop's thread."""

    def __init__(self, loop, reading, threads):
        self._loop, self._reading, self._threads = loop, reading, threads
        self._ended = deque()  # of _OnThread, filled by threads
        self._is_woken = False
        self._behind = {}  # transport -> deque of _OnThread whose function ended

    def begin(self, transport, event, function, given, key, failed, ended):
        """Answers the request `event` with `function(given)`. A plain function runs in the turn of `key`. Whatever it
        raises becomes the other end's error, after `failed(error, late)`. `ended(answered)` is called at the end. A
        request whose function still runs when its time is over, or when the other end gave up, counts as open until
        the function ends. Returns what has `cancel()`, for when the other end gave up or the connection ended, and
        `done()`."""
        if callbacks.is_async(function):
            return asyncio.Task(
                _answered(transport, event, function, given, failed, ended), loop=self._loop, eager_start=True
            )
        one = _OnThread(transport, event, failed, ended)
        if event.timeout_s is not None:
            one.timer = self._loop.call_later(event.timeout_s, one.late)
        one.running = self._threads.submit(key, callbacks.call, function, given)
        one.running.add_done_callback(partial(self._function_ended, one))
        return one

    def _function_ended(self, one, _):
        """Runs on any thread."""
        self._ended.append(one)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self):
        self._is_woken = False  # first: who appends from now on wakes the loop again
        counts = Counter()
        while self._ended:
            one = self._ended.popleft()
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

    __slots__ = ("_ended", "_failed", "_is_open", "number", "running", "timer", "transport")

    def __init__(self, transport, event, failed, ended):
        self.transport, self.number = transport, event.number
        self._failed, self._ended = failed, ended
        self._is_open = True  # whether the other end waits for an answer
        self.timer = self.running = None

    def settle(self):
        """The function ended."""
        connection = self.transport.connection
        if not self._is_open or self.running.cancelled():  # cancelled: by the shutdown of the threads
            connection.forget_request(self.number)
        elif (error := self.running.exception()) is not None:
            self._fail(error, late=False)
        else:
            try:
                connection.answer(self.number, self.running.result())
            except Exception as error:  # msgpack cannot express it
                self._fail(error, late=False)
            else:
                self._end(answered=True)

    def done(self):
        """Whether there was an answer or an error, or nobody waits for one."""
        return not self._is_open

    def late(self):
        self._fail(TimeoutError(), late=True)
        self.running.cancel()
        self.transport.flush()

    def cancel(self):
        if self._is_open:
            self.transport.connection.fail(self.number, "cancelled", ended=False)
            self._end(answered=False)
            self.running.cancel()

    def _fail(self, error, late):
        self._failed(error, late)
        self.transport.connection.fail(self.number, error_text(error), late, ended=not late)
        self._end(answered=False)

    def _end(self, answered):
        self._is_open = False
        if self.timer is not None:
            self.timer.cancel()
        self._ended(answered)


async def _answered(transport, event, function, given, failed, ended):
    connection, number = transport.connection, event.number
    answered = False
    try:
        async with asyncio.timeout(event.timeout_s) as deadline:
            value = await callbacks.awaited(function(given))
        connection.answer(number, value)
        answered = True
    except Exception as error:
        failed(error, deadline.expired())
        connection.fail(number, error_text(error), deadline.expired())
    except asyncio.CancelledError:  # the other end gave up, or the connection ended
        pass
    finally:
        connection.fail(number, "the function ended")  # nothing, if there was an answer or an error
        transport.flush()
        ended(answered)


def error_text(error):
    """What the other end is told about an error."""
    return f"{type(error).__name__}: {error}".encode(errors="replace").decode()
