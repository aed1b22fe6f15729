"""A stream of bytes on a channel, in both directions, for as long as the connection lasts.

Each direction has a window of its own: a slow reader stops only its writer.
"""

import asyncio

from vmhost import callbacks
from vmhost.tunnel import events
from vmhost.tunnel.errors import StreamBrokenError, TunnelError


class Stream:
    """`value`: the value that it was opened with. `device`: the other end; "" on a device. `among`: {number: Stream} of
    the open streams, which it joins and leaves. Belongs to the loop's thread.

    async for piece in stream: ...
    await stream.write(data)
    await stream.end()
    """

    def __init__(self, transport, number, channel, value, among, device=""):
        self.number, self.channel, self.value, self.device = number, channel, value, device
        self._transport = transport
        self._came = bytearray()  # not a list of pieces, which may have one byte each
        self._ended = self._local_end = False
        self._error = None
        self._changed = asyncio.Event()
        self._among = among
        among[number] = self

    async def read(self):
        """The next bytes that arrive; b"" at the end. StreamBrokenError."""
        while not self._came:
            if self._error is not None:
                raise StreamBrokenError(f"stream on {self.channel}: {self._error}")
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._came)
        self._came.clear()
        self._transport.connection.consumed(self.number, len(data))
        self._transport.flush()
        return data

    def __aiter__(self):
        return self

    async def __anext__(self):
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def write(self, data):
        """Sends all of `data`, waiting while the other end has no room. StreamBrokenError."""
        view = memoryview(data)
        while True:
            if self._error is not None:
                raise StreamBrokenError(f"stream on {self.channel}: {self._error}")
            sent = self._transport.connection.write_stream(self.number, view)
            self._transport.flush()
            view = view[sent:]
            if not view:
                return
            self._changed.clear()
            await self._changed.wait()

    async def end(self):
        """Ends the writing direction; the other one stays open."""
        if not self._local_end and self._error is None:
            self._local_end = True
            self._transport.connection.end_stream(self.number)
            self._transport.flush()
            self._leave()

    def abort(self, why):
        """Ends both directions; the other end gets StreamBrokenError with `why`."""
        if self._error is None:
            self._error = why
            if not self._transport.closed:
                self._transport.connection.end_stream(self.number, why)
                self._transport.flush()
            self._changed.set()
            self._leave()

    def _leave(self):
        over = self._error is not None or (self._ended and self._local_end)
        if over and self._among.get(self.number) is self:
            del self._among[self.number]

    # ---- called by the transport's owner

    def happened(self, event):
        if isinstance(event, events.StreamData):
            self._came += event.data
        elif isinstance(event, events.StreamEnded):
            self._ended = True
            self._error = event.error if self._error is None else self._error
            self._leave()
        self._changed.set()

    def broken(self, why):
        if not (self._ended and self._local_end):
            self._error = self._error or why
        self._changed.set()
        self._leave()


async def serve(stream, function, blocking, log):
    """Lets `function` serve the stream: an `async` one gets the stream itself, another one runs through `await
    blocking(function)`. Then ends the stream, or aborts it with the error, which also goes to `log(error)`."""
    try:
        if callbacks.is_async(function):
            await callbacks.awaited(function(stream))
        else:
            await blocking(function)
        await stream.end()
    except (asyncio.CancelledError, GeneratorExit) as error:
        stream.abort("the other end gave up" if isinstance(error, asyncio.CancelledError) else "the function ended")
        raise
    except Exception as error:
        if not isinstance(error, TunnelError):
            log(error)
        stream.abort(callbacks.error_text(error))


class BlockingStream:
    """A Stream for threads: `read`, `write`, `end` and `abort` block; iterating yields pieces. At the end of a `with`
    block it ends; if the block fails, the other end gets the error."""

    def __init__(self, stream, run):
        self._stream, self._run = stream, run
        self.channel, self.value = stream.channel, stream.value

    def read(self):
        """The next bytes that arrive; b"" at the end. StreamBrokenError."""
        return self._run(self._stream.read())

    def __iter__(self):
        while data := self.read():
            yield data

    def write(self, data):
        """Sends all of `data`, waiting while the other end has no room. StreamBrokenError."""
        self._run(self._stream.write(data))

    def end(self):
        """Ends the writing direction; the other one stays open."""
        self._run(self._stream.end())

    def abort(self, why):
        """Ends both directions; the other end gets StreamBrokenError with `why`."""

        async def abort():
            self._stream.abort(why)

        self._run(abort())

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            self.end()
        else:
            self.abort(callbacks.error_text(error))
