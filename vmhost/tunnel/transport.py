"""A connection over TCP and TLS on an asyncio loop, for both ends.

TLS is an `ssl.SSLObject` over memory BIOs: asyncio's own TLS transport takes nine times the memory. All connections of
a loop share one buffer for reading. Little is handed to the kernel at a time, so that a small message does not wait
behind a large one queued there.

Who sends many frames at once delays nobody: a server reads a few, and the rest waits for its turn. All that are behind
take turns in an eighth of the loop's time; in the rest the loop serves the others, or sleeps, and threads run.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import deque

_log = logging.getLogger("vmhost.tunnel")
BUFFER_BYTES = 65_536
EVENTS_AT_ONCE = 16  # of one device in one turn
_EVENTLESS = 16  # frames without an event, such as pings, that count as one
_TURNS_S = 0.001  # of who is behind, before the others are served: timers of a loop are no finer
_PAUSE = 7  # after the turns of who is behind: how many times the time that they took; others are served meanwhile
_BUDGET = 32_768  # bytes taken from the connection at a time
_NOT_SENT = 65_536  # bytes that the kernel may hold unsent
_TCP_NOTSENT_LOWAT = 25
# Frames that wait for the other end to read. Beyond it nothing more is read from that end, as it may cause more frames.
UNREAD_BYTES = 1 << 20
_READ = 16_384  # the size limit of a TLS record


# Why a transport does not read: the other end does not read, the owner asked for it, or it waits for its turn.
UNREAD, ASKED, TURN = 1, 2, 4


class Reading:
    """What all transports of a loop share: the buffer that they read into, and turns for those that are behind.
    `at_once`: how many events one transport causes in a turn."""

    def __init__(self, loop, at_once=1 << 30):
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.at_once = at_once
        self._loop = loop
        self._behind = deque()
        self._is_due = False  # whether `_take_turns` was scheduled

    def later(self, work):
        """Calls `work()` when its turn comes: what it does should take no longer than `at_once` events."""
        self._behind.append(work)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turns)

    def _take_turns(self):
        began = now = time.thread_time()  # what others do on this machine is no reason to wait longer
        try:
            while self._behind and now < began + _TURNS_S:
                self._behind.popleft()()
                now = time.thread_time()
        finally:
            self._is_due = bool(self._behind)
            if self._is_due:
                self._loop.call_later(_PAUSE * (now - began), self._take_turns)


class Transport(asyncio.BufferedProtocol):
    """One end. `connection`: a `connection.Connection`. `reading`: the Reading of the loop.

    `on_events(transport, events)` and `on_closed(transport, why)` are called on the loop; `on_secured(transport)` when
    TLS is up.
    """

    __slots__ = (
        "__weakref__",
        "_in",
        "_out",
        "_paused",
        "_read_pauses",
        "_reading",
        "_transport",
        "closed",
        "connection",
        "loop",
        "on_closed",
        "on_events",
        "on_secured",
        "owner",
        "peer",
        "secured",
        "tls",
    )

    def __init__(self, loop, context, connection, reading, on_events, on_closed, on_secured, **tls):
        self.loop, self.connection, self._reading = loop, connection, reading
        self.on_events, self.on_closed, self.on_secured = on_events, on_closed, on_secured
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, **tls)
        self._transport = None
        self._paused = False
        self._read_pauses = 0  # why reading is paused: bits of UNREAD and ASKED
        self.secured = self.closed = False
        self.owner = None
        self.peer = ""

    # ---- asyncio's side

    def connection_made(self, transport):
        self._transport = transport
        connected = transport.get_extra_info("socket")
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _NOT_SENT)
        transport.set_write_buffer_limits(high=_BUDGET)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) > 1 else str(name or "")
        self._handshake()

    def get_buffer(self, hint):
        return self._reading.buffer

    def buffer_updated(self, size):
        if self.closed:
            return
        self._in.write(self._reading.buffer[:size])
        if not self.secured:
            self._handshake()
            if not self.secured:
                return
        self._read_safely()

    def _read_safely(self):
        try:
            self._read()
        except ssl.SSLError as error:
            self.lose(tls_trouble(error))
        except Exception:
            _log.exception("tunnel: %s: an internal error; the connection is closed", self.peer)
            self.lose("an internal error")

    def eof_received(self):
        return False

    def connection_lost(self, error):
        if not self.closed:
            self.lose(str(error) if error else "the other end closed the connection")

    def pause_writing(self):
        self._paused = True

    def resume_writing(self):
        self._paused = False
        if self._read_pauses:
            self.connection.watch.heard(self.loop.time())  # it has read what was sent
        self.flush()

    # ---- TLS

    def _handshake(self):
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._send_tls()  # sends the alert with the reason
            self.lose(tls_trouble(error))
            return
        else:
            self.secured = True
        self._send_tls()
        if self.secured:
            self.on_secured(self)

    def _send_tls(self):
        if self._out.pending:
            self._transport.write(self._out.read())

    @property
    def _unread(self):
        """Bytes that came and were not read; one more for frames that wait in the connection."""
        return (self._in.pending or self.tls.pending()) + self.connection.has_more

    def _read(self):
        tls, connection = self.tls, self.connection
        found = None
        ended = is_cut = False
        left = self._reading.at_once
        end = connection.counts["received_frames"] + left * _EVENTLESS
        while (unread := self._unread) and left > 0 and connection.counts["received_frames"] < end:
            data = b""
            if not connection.has_more:
                try:
                    data = tls.read(min(unread, _READ))
                except ssl.SSLWantReadError:
                    is_cut = True  # a part of a record
                    break
                except ssl.SSLZeroReturnError:
                    pass
                if not data:
                    ended = True
                    break
            events = connection.receive(data, self.loop.time(), left)
            left -= len(events)
            found = events if found is None else found + events
        if found:
            self.on_events(self, found)
        if self.closed:
            return
        if self._out.pending or connection.has_data:
            self.flush()
            if connection.queued_bytes > UNREAD_BYTES and not self.closed and not connection.client:
                self.pause_reading(UNREAD)
        if connection.closed:
            self.lose(connection.closed.why)
        elif ended:
            self.lose("the other end closed the connection")
        elif self._unread and not is_cut:
            self._read_later()

    def _read_later(self):
        self.pause_reading(TURN)
        self._reading.later(self._read_on)

    def _read_on(self):
        """The turn of a transport that is behind."""
        if self.closed:
            return
        if self._read_pauses == TURN:
            self._read_pauses = 0
            self._read_safely()
            if not self._read_pauses and not self.closed and not self._transport.is_closing():
                self._transport.resume_reading()
        else:
            self._read_pauses &= ~TURN  # `resume_reading` asks for another turn

    # ---- called by the owner

    def flush(self):
        """Writes what the connection has to send, as far as the kernel takes it."""
        if self.closed or not self.secured:
            return
        connection = self.connection
        try:
            while not self._paused and connection.has_data:
                self.tls.write(connection.data_to_send(_BUDGET))
                self._transport.write(self._out.read())
            if self._out.pending:
                self._transport.write(self._out.read())
        except ssl.SSLError as error:
            self.lose(tls_trouble(error))
            return
        if self._read_pauses & UNREAD and connection.queued_bytes <= UNREAD_BYTES // 2:
            self.resume_reading(UNREAD)

    def lose(self, why):
        """Ends the transport; `on_closed` is called once."""
        if self.closed:
            return
        if self.secured and self.connection.has_data and not self._paused:
            self.flush()
            if self.closed:
                return
        self.closed = True
        self.connection.lost(why)
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort() if self._paused else self._transport.close()
            else:
                self._transport.close()
        self.on_closed(self, why)

    def abort(self, why):
        """As `lose`, without last frames: the other end may be unreachable."""
        if not self.closed:
            self.closed = True
            self.connection.lost(why)
            if self._transport is not None:
                self._transport.abort()
            self.on_closed(self, why)

    @property
    def is_behind(self):
        """Whether it waits for its turn to read."""
        return bool(self._read_pauses & TURN)

    @property
    def held_up(self):
        """Whether its owner paused reading."""
        return bool(self._read_pauses & ASKED)

    def pause_reading(self, why):
        """Pauses until `resume_reading` was called for each reason."""
        if not self.closed and self._transport is not None:
            if not self._read_pauses:
                self._transport.pause_reading()
            self._read_pauses |= why

    def resume_reading(self, why):
        was, self._read_pauses = self._read_pauses, self._read_pauses & ~why
        if was and not self._read_pauses and not self.closed and not self._transport.is_closing():
            self.connection.watch.heard(self.loop.time())  # the silence was ours: reading was paused
            self._read_later() if self._unread else self._transport.resume_reading()


def tls_trouble(error):
    """One line about an SSLError, with advice where there is any."""
    text = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    text = str(text).replace("_", " ").lower()
    advice = {
        "http request": "an HTTP client; this port speaks the tunnel's protocol over TLS",
        "wrong version number": "the other end does not speak TLS",
        "certificate has expired": "make a new certificate, or set this machine's clock",
        "certificate is not yet valid": "set this machine's clock",
        "self-signed certificate in certificate chain": "give the CA that signed it (--ca)",
        "unable to get local issuer certificate": "give the CA that signed it (--ca)",
    }
    found = next((do for what, do in advice.items() if what in text), None)
    return f"TLS: {text}" + (f"; {found}" if found else "")
