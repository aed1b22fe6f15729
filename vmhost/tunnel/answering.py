"""Answers to requests of the other end, by functions of the application: each request gets one answer or one error."""

import asyncio
import contextlib

from vmhost import callbacks


async def answer(transport, event, function, given, threads, key, failed):
    """Answers the request `event` with `function(given)`, which runs on the loop if it is async, else on `threads` (a
    `Turns`) in the turn of `key`. Whatever it raises becomes the other end's error, after `failed(error, late)`. A
    request whose function still runs when its time is over, or when the other end gave up, counts as open until the
    function ends. Returns whether there was an answer."""
    connection, number = transport.connection, event.number
    running = None
    try:
        try:
            async with asyncio.timeout(event.timeout_s) as deadline:
                if callbacks.is_async(function):
                    value = await callbacks.awaited(function(given))
                else:
                    running = threads.submit(key, callbacks.call, function, given)
                    value = await asyncio.wrap_future(running)
            connection.answer(number, value)
            return True
        except Exception as error:
            late = deadline.expired()
            failed(error, late)
            connection.fail(number, f"{type(error).__name__}: {error}", late, ended=False)
            return False
    except asyncio.CancelledError:  # the other end gave up, or the connection ended
        return False
    finally:
        ended = running is None or running.done()
        connection.fail(number, "the function ended", ended=ended)  # nothing, if there was an answer or an error
        if not ended:
            running.add_done_callback(lambda _: _forget_later(transport, number))
        transport.flush()


def _forget_later(transport, number):
    with contextlib.suppress(RuntimeError):  # the loop is closed
        transport.loop.call_soon_threadsafe(transport.connection.forget_request, number)
