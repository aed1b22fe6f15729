"""One process of the server: an asyncio loop with its connections, and the threads that store received messages."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from vmhost import callbacks
from vmhost.stores import Database, StoreError
from vmhost.tunnel import addresses, events, pushes
from vmhost.tunnel import connection as protocol
from vmhost.tunnel.answering import Answering
from vmhost.tunnel.compression import Compression
from vmhost.tunnel.errors import (
    AnswerError,
    MessageTooLargeError,
    OfflineError,
    ProtocolError,
    TunnelConfigurationError,
    TunnelError,
)
from vmhost.tunnel.histogram import Histogram
from vmhost.tunnel.inbox import Arrival, Inbox
from vmhost.tunnel.keeper import Keeper
from vmhost.tunnel.limits import memory
from vmhost.tunnel.offenders import Offenders
from vmhost.tunnel.streams import BlockingStream, Stream, serve
from vmhost.tunnel.tls import certified_device
from vmhost.tunnel.transport import ASKED, EVENTS_AT_ONCE, UNREAD_BYTES, Reading, Transport
from vmhost.tunnel.turns import Turns

_log = logging.getLogger("vmhost.tunnel")
_SWEEP_S = 1.0
_SWEPT_AT_ONCE = 20  # connections, before the loop serves others
_POLL_S = 5.0  # how often to poll for pushes without a notification
_LOG_LINES_PER_S = 10  # log lines about what devices cause
_STREAMS_PER_THREAD = 16  # a thread that serves a stream mostly waits


class _Session:
    """An accepted device on a transport."""

    __slots__ = ("asked", "device", "greeted_at", "pending_bytes", "pumping", "streams", "tasks", "wanted")

    def __init__(self, device, greeted_at):
        self.device, self.greeted_at = device, greeted_at
        self.pending_bytes = 0  # of received messages that are not stored yet
        self.pumping = False
        self.wanted = False
        self.asked = {}  # number of our request -> future
        self.tasks = {}  # number of the device's request -> what can be cancelled
        self.streams = {}


class Request:
    """A device's request: `device`, `channel`, `value`, `timeout_s`."""

    __slots__ = ("channel", "device", "timeout_s", "value")

    def __init__(self, device, channel, value, timeout_s):
        self.device, self.channel, self.value, self.timeout_s = device, channel, value, timeout_s


class Worker:
    """`server`: the Server that it belongs to. All methods but `statistics` belong to the loop's thread."""

    def __init__(self, server):
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.sessions = {}  # device -> transport
        self.early = {}  # transport -> deadline of its greeting
        self.transports = set()
        self.draining = False
        self.counts = dict.fromkeys(
            ("connections", "greeted", "refused", "closed", "resumed", "messages", "requests", "pushed",
             "failed_requests", "streams", "received_bytes", "sent_bytes", "unlogged"),
            0,
        )  # fmt: skip
        self.latencies = {}  # (what, channel) -> Histogram
        self._reading = Reading(self.loop, EVENTS_AT_ONCE)
        self._offenders = Offenders()
        self._listening = []
        self._pending_bytes = 0
        self._paused = set()
        self._arrived = {}  # transport -> {channel: deque of (number, when, bytes)}, of messages not stored yet
        self._newest_push = 0
        self._polled_at = 0.0
        self._log_lines_left = _LOG_LINES_PER_S
        self._status = self._sweeper = None
        share = max(1, server.threads // 2)  # of one device
        with contextlib.ExitStack() as undo:  # undone when a later step fails
            self.database = Database(server.store, shared=True)
            undo.callback(self.database.close)
            self.inbox = Inbox(self.database)
            self.pushes = pushes.Pushes(self.database)
            self.inbox.prepare(server.consumers.values())
            self.compression = Compression(self.inbox.dictionaries())
            self._heard, self._heard_path = pushes.listen(server.store)
            undo.callback(pushes.unlisten, self._heard, self._heard_path)
            self._readers = ThreadPoolExecutor(2, thread_name_prefix="tunnel-reader")
            self._answerers = Turns(server.threads, "tunnel-answer", share)
            self._answering = Answering(self.loop, self._reading, self._answerers, self._failed, self._request_ended)
            self._streamers = Turns(server.threads * _STREAMS_PER_THREAD, "tunnel-stream", share)
            self._keeper = Keeper(self.inbox, self.pushes, self._kept, tries=server.tries)
            undo.callback(self._keeper.close)
            self.loop.add_reader(self._heard, self._read_notices)
            undo.callback(self.loop.remove_reader, self._heard)
            undo.pop_all()

    # ---- listening

    async def listen(self, sockets):
        """Accepts connections on bound sockets. TunnelConfigurationError."""
        for each in sockets:
            try:
                self._listening.append(await self.loop.create_server(self._accept, sock=each, backlog=1024))
            except OSError as error:  # another process that had bound the address, too, was faster
                raise TunnelConfigurationError(
                    f"{addresses.shown(*each.getsockname()[:2])}: cannot listen there: {error.strerror}; choose another"
                ) from error
        self._sweeper = self.loop.create_task(self._sweep())
        folder = pushes.processes_folder(self.server.store)
        path = f"{os.getpid()}.{self._heard_path.name.split('.')[1]}.status"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with pushes.short_address(folder, path) as name:
            listening.bind(name)
        self._status_path = folder / path
        # cleanup_socket=False: asyncio would look for the socket under the name it was bound by, which is gone by then
        self._status = await asyncio.start_unix_server(self._send_status, sock=listening, cleanup_socket=False)

    async def _send_status(self, reader, writer):
        writer.write(json.dumps(self.statistics()).encode())
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()

    @property
    def addresses(self):
        return [each.getsockname()[:2] for server in self._listening for each in server.sockets]

    def _accept(self):
        connection = protocol.Connection(
            client=False,
            limits=self.server.limits,
            priorities=self.server.priorities,
            compression=self.compression,
            now=self.loop.time(),
        )
        transport = Transport(
            self.loop,
            self.server.context,
            connection,
            self._reading,
            self._events,
            self._closed,
            self._secured,
            server_side=True,
        )
        self.counts["connections"] += 1
        self.transports.add(transport)
        self.early[transport] = self.loop.time() + self.server.greeting_s
        if len(self.transports) > self.server.max_connections:
            self.loop.call_soon(transport.abort, f"more than {self.server.max_connections} connections")
        return transport

    def _secured(self, transport):
        self.counts["resumed"] += bool(transport.tls.session_reused)

    # ---- events

    def _events(self, transport, found):
        for event in found:
            if transport.closed:  # by an earlier event: counts of later ones would never be undone
                return
            _HANDLERS[type(event)](self, transport, event)

    def _greeted(self, transport, event):
        greeting = event.greeting
        try:
            device = self._identify(transport, greeting)
        except Exception as error:
            if not isinstance(error, (ValueError, PermissionError)):
                self._log_limited("a device could not be identified", error)
            self.counts["refused"] += 1
            transport.connection.close(protocol.IDENTITY, str(error) or "not accepted")
            return
        transport.owner = _Session(device, time.monotonic())
        wait_s = self._offenders.wait_s(device, self.loop.time())
        if wait_s:
            self.early[transport] = self.loop.time() + wait_s + self.server.greeting_s
            self.loop.call_later(wait_s, self._look_up, transport, greeting)
        else:
            self._look_up(transport, greeting)

    def _look_up(self, transport, greeting):
        if transport.closed:
            return
        future = self._readers.submit(self._load_device, transport.owner, greeting)
        future.add_done_callback(
            lambda done: self.loop.call_soon_threadsafe(self._accept_device, transport, greeting, done)
        )

    def _identify(self, transport, greeting):
        device = certified_device(transport.tls.getpeercert(), time.time())
        if device is None:
            if self.server.identify is None:
                raise PermissionError("a client certificate is required; the device sent none")
            if not greeting.get("token"):
                raise PermissionError("a token or a client certificate is required; the device sent neither")
            device = callbacks.call(self.server.identify, greeting["token"])
        if device is None:
            raise PermissionError("the token is not known")
        device = protocol.checked_name(device, "device")
        if (why := callbacks.call(self.server.why_blocked, device)) is not None:
            raise PermissionError(f"{device} is blocked: {why}")
        return device

    def _load_device(self, session, greeting):
        """Runs on a reader's thread: the store's knowledge of the device."""
        with contextlib.suppress(StoreError):  # of a full disk, which keeps nobody from connecting
            self.inbox.connected(session.device)
        received = self.inbox.received_of(session.device, [*(greeting.get("epochs") or []), greeting["epoch"]])
        waiting = self.pushes.channels(session.device)
        return received, waiting, self.pushes.reached(greeting["received"]) if waiting else {}

    def _accept_device(self, transport, greeting, done):
        if transport.closed or transport.connection.closed:
            return
        session = transport.owner
        try:
            received, waiting, reached = done.result()
        except StoreError as error:
            _log.error("tunnel: %s", error)
            transport.connection.close(protocol.TROUBLE, "the server's store cannot be read")
            transport.flush()
            transport.lose("the store cannot be read")
            return
        self.early.pop(transport, None)
        old = self.sessions.get(session.device)
        self.sessions[session.device] = transport
        if old is not None:
            old.connection.close(protocol.REPLACED, "the device has a newer connection")
            old.flush()
            old.lose("replaced by a newer connection")
        self.counts["greeted"] += 1
        self._end_other_connections(session)
        known = greeting.get("dictionaries") or []
        newest = {channel: self.compression.newest(channel) for channel in self.compression._newest}
        if self.compression.numbers:
            transport.connection.compression = self.compression.only(number for number in known if type(number) is int)
        transport.connection.welcome(
            {
                "epoch": self.database.opening,
                "received": received,
                "time_ms": int(time.time() * 1000),
                "device": session.device,
            }
        )
        for channel, number in newest.items():
            if number not in known:
                data = next(data for _, each, data in self.inbox.dictionaries() if each == number)
                with contextlib.suppress(TunnelError):  # the device works without it
                    transport.connection.send_dictionary(channel, number, data)
        if self.draining:
            transport.connection.drain(0.1, "this server is going down")
        for channel, number in reached.items():
            if channel in waiting:
                self._keeper.pushed(session.device, channel, number)
                transport.connection.resume(channel, number)
        transport.flush()
        if waiting:
            self._pump(transport)

    def _end_other_connections(self, session):
        """Ends the device's connections to other processes."""
        if self.server.processes > 1:
            pushes.notify(self.server.store, f"\0{session.device}\0{os.getpid()}\0{session.greeted_at}")

    def _received(self, transport, event):
        session, server = transport.owner, self.server
        consumer = server.consumers.get(event.channel) or server.consumers.get("*")
        if consumer is None:
            transport.connection.refuse(event.channel, "no consumer for this channel")
            return
        size = memory(event.messages)
        arrived = self._arrived.setdefault(transport, {}).setdefault(event.channel, deque())
        arrived.append((event.messages[-1][0], self.loop.time(), size))
        self._pending_bytes += size
        session.pending_bytes += size
        if session.pending_bytes > self._allowed_bytes():
            self._paused.add(transport)
            transport.pause_reading(ASKED)
        self._keeper.put(transport, Arrival(session.device, event.epoch, event.channel, event.messages, consumer))
        self.counts["messages"] += len(event.messages)

    def _allowed_bytes(self):
        """How much may wait of one device: less only if much waits, and then for who has more than an equal share."""
        server = self.server
        if self._pending_bytes <= server.pending_bytes:
            return server.device_pending_bytes
        return min(server.device_pending_bytes, server.pending_bytes // max(1, len(self._arrived)))

    def _kept(self, kept, new):
        """Called on a thread of the keeper."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._acknowledge, kept, new)

    def _acknowledge(self, kept, new):
        now = self.loop.time()
        touched = set()
        was_full = self._pending_bytes > self.server.pending_bytes // 2
        for transport, channel, number in kept:
            channels = self._arrived.get(transport, {})
            if waiting := channels.get(channel):
                histogram = self.latency("kept", channel)
                while waiting and waiting[0][0] <= number:
                    _, since, size = waiting.popleft()
                    histogram.add(now - since)
                    self._pending_bytes -= size
                    transport.owner.pending_bytes -= size
                if not waiting:
                    del channels[channel]
                    if not channels:
                        del self._arrived[transport]
            if not transport.closed:
                transport.connection.applied(channel, number)
                touched.add(transport)
        for transport in touched:
            transport.flush()
        is_full = self._pending_bytes > self.server.pending_bytes // 2
        self._resume(self._paused & touched if is_full or not was_full else self._paused)

    def _resume(self, paused):
        """Reads on from those of whom little enough waits now."""
        allowed = self._allowed_bytes() // 2
        for transport in [each for each in paused if each.owner.pending_bytes <= allowed]:
            self._paused.discard(transport)
            transport.resume_reading(ASKED)

    def latency(self, what, channel):
        histogram = self.latencies.get((what, channel))
        if histogram is None:
            if len(self.latencies) >= 256:
                channel = "(others)"
            histogram = self.latencies.setdefault((what, channel), Histogram())
        return histogram

    # ---- requests

    def _requested(self, transport, event):
        session = transport.owner
        self.counts["requests"] += 1
        function = self.server.answers.get(event.channel)
        if function is None:
            transport.connection.fail(event.number, f"nobody answers on channel {event.channel}")
            return
        asked = Request(session.device, event.channel, event.value, event.timeout_s)
        if getattr(function, "quick", False):
            began = self.loop.time()
            try:
                transport.connection.answer(event.number, callbacks.call(function, asked))
            except Exception as error:
                self._failed(event, error)
                transport.connection.fail(event.number, callbacks.error_text(error))
            else:
                self.latency("answered", event.channel).add(self.loop.time() - began)
            return
        answer = self._answering.begin(transport, event, function, asked, session.device)
        if not answer.done():
            session.tasks[event.number] = answer

    def _request_ended(self, transport, event, began, answered):
        transport.owner.tasks.pop(event.number, None)
        if answered:
            self.latency("answered", event.channel).add(self.loop.time() - began)

    def _failed(self, event, error, late=False):
        self.counts["failed_requests"] += 1
        if late:
            self._log_limited(f"{event.channel}: the answer took more than {event.timeout_s:g} s")
        elif not isinstance(error, AnswerError):
            self._log_limited(f"answering on {event.channel} failed", error)

    def _cancelled(self, transport, event):
        if (task := transport.owner.tasks.pop(event.number, None)) is not None:
            task.cancel()

    def ask(self, device, channel, value, timeout_s=None):
        """Asks a device connected to this process; returns a future. OfflineError."""
        transport = self._transport_of(device)
        number = transport.connection.request(channel, value, timeout_s)
        future = self.loop.create_future()
        asked = transport.owner.asked
        asked[number] = future

        def ended(done):
            if asked.pop(number, None) is not None and not transport.closed:
                transport.connection.cancel(number)
                transport.flush()

        future.add_done_callback(ended)
        transport.flush()
        return future

    def _transport_of(self, device):
        transport = self.sessions.get(device)
        if transport is None or transport.closed:
            raise OfflineError(f"{device} is not connected to this process")
        return transport

    def _answered(self, transport, event):
        future = transport.owner.asked.pop(event.number, None)
        if future is not None and not future.done():
            if event.error is None:
                future.set_result(event.value)
            else:
                future.set_exception(AnswerError(event.error))

    # ---- streams

    def _stream_opened(self, transport, event):
        session = transport.owner
        function = self.server.streams.get(event.channel)
        if function is None:
            transport.connection.end_stream(event.stream, f"nobody takes streams on channel {event.channel}")
            return
        self.counts["streams"] += 1
        stream = Stream(transport, event.stream, event.channel, event.value, session.streams, session.device)
        task = self.loop.create_task(self._serve_stream(session, stream, function))
        session.tasks["stream", event.stream] = task

    async def _serve_stream(self, session, stream, function):
        def blocking(function):
            given = BlockingStream(stream, self.call)
            return asyncio.wrap_future(self._streamers.submit(session.device, callbacks.call, function, given))

        def log(error):
            self._log_limited(f"a stream on {stream.channel} failed", error)

        try:
            await serve(stream, function, blocking, log)
        finally:
            session.tasks.pop(("stream", stream.number), None)

    def open_stream(self, device, channel, value=None):
        """A Stream to a device connected to this process. OfflineError, TunnelError."""
        transport = self._transport_of(device)
        number = transport.connection.open_stream(channel, value)
        self.counts["streams"] += 1
        stream = Stream(transport, number, channel, value, transport.owner.streams, device)
        transport.flush()
        return stream

    def call(self, coroutine):
        """The coroutine's result; called on another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def _stream_event(self, transport, event):
        stream = transport.owner.streams.get(event.stream)
        if stream is not None:
            stream.happened(event)
        elif isinstance(event, events.StreamData):
            transport.connection.consumed(event.stream, len(event.data))

    # ---- pushes

    def _read_notices(self):
        for _ in range(1000):
            try:
                notice = self._heard.recv(512)
            except BlockingIOError:
                return
            except OSError:
                return
            name = notice.decode("utf-8", "replace")
            if name.startswith("\0"):
                _, device, process, greeted_at = (name.split("\0") + ["", "", ""])[:4]
                transport = self.sessions.get(device)
                if (
                    transport is not None
                    and process != str(os.getpid())
                    and transport.owner.greeted_at < float(greeted_at or 0)
                ):
                    transport.connection.close(protocol.REPLACED, "the device has a newer connection")
                    transport.flush()
                    transport.lose("replaced by a newer connection")
            elif (transport := self.sessions.get(name)) is not None:
                self._pump(transport)

    def _pump(self, transport):
        """Sends the device's waiting pushes, as far as there is room."""
        session = transport.owner
        session.wanted = True
        if transport.connection.queued_bytes > UNREAD_BYTES:
            return  # the device is not reading; its acknowledgement comes back here
        if not session.pumping and not transport.closed:
            session.pumping = True
            session.wanted = False
            positions = transport.connection.positions()
            future = self._readers.submit(self._waiting, session.device, positions)
            future.add_done_callback(lambda done: self.loop.call_soon_threadsafe(self._offer, transport, done))

    def _waiting(self, device, positions):
        found = []
        for channel, newest in self.pushes.channels(device).items():
            after, room = positions.get(channel, (0, 1))
            if newest > after and room:
                taken = self.pushes.take(device, channel, after)
                if taken is not None:
                    found.append((channel, *taken))
        return found

    def _offer(self, transport, done):
        session = transport.owner
        session.pumping = False
        if transport.closed:
            return
        try:
            found = done.result()
        except StoreError as error:
            _log.error("tunnel: pushes cannot be read: %s", error)
            return
        more = session.wanted
        for channel, epoch, messages in found:
            try:
                taken = transport.connection.offer(channel, messages, epoch)
            except MessageTooLargeError as error:
                _log.error("tunnel: %s: a push is dropped: %s", session.device, error)
                self._keeper.pushed(session.device, channel, messages[0][0])
                transport.connection.resume(channel, messages[0][0])
                taken = 1
            except TunnelError as error:
                self._log_limited(f"{session.device}: pushes wait: {error}")
                taken = 0
            self.counts["pushed"] += taken
            more = more or bool(taken)
        transport.flush()
        if more:
            self._pump(transport)

    def _pushes_acknowledged(self, transport, event):
        self._keeper.pushed(transport.owner.device, event.channel, event.number)
        self._pump(transport)

    def _pushes_refused(self, transport, event):
        self._log_limited(f"{transport.owner.device}: pushes on {event.channel} wait: {event.why}")

    def _nothing(self, transport, event):
        pass

    def _unexpected(self, transport, event):
        raise ProtocolError(f"{type(event).__name__} is not for the cloud")

    # ---- closed connections

    def _closed(self, transport, why):
        self.transports.discard(transport)
        early = self.early.pop(transport, None) is not None
        self._paused.discard(transport)
        for waiting in self._arrived.pop(transport, {}).values():
            self._pending_bytes -= sum(size for _, _, size in waiting)
        self.counts["closed"] += 1
        for name in ("received_bytes", "sent_bytes"):
            self.counts[name] += transport.connection.counts[name]
        session = transport.owner
        closed = transport.connection.closed
        if session is not None and closed is not None and closed.code == protocol.PROTOCOL and not closed.by_peer:
            self._offenders.broke(session.device, self.loop.time())
        if early or (closed is not None and closed.code in (protocol.PROTOCOL, protocol.IDENTITY, protocol.TROUBLE)):
            if not (early and why == "the other end closed the connection" and not transport.secured):
                self._log_limited(f"{session.device if session else transport.peer}: {why}")
        if session is None:
            return
        if self.sessions.get(session.device) is transport:
            del self.sessions[session.device]
        for stream in list(session.streams.values()):
            stream.broken(why)
        for key, task in list(session.tasks.items()):
            if not isinstance(key, tuple):
                task.cancel()
        for future in list(session.asked.values()):
            if not future.done():
                future.set_exception(OfflineError(f"{session.device}: {why}"))
        session.asked.clear()

    def _log_limited(self, text, error=None):
        """Limits the log lines per second, so that a device that keeps causing them does not fill the log."""
        if self._log_lines_left > 0:
            self._log_lines_left -= 1
            _log.log(logging.WARNING if error is None else logging.ERROR, "tunnel: %s", text, exc_info=error)
        else:
            self.counts["unlogged"] += 1

    async def _sweep(self):
        last = self.loop.time()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self.loop.time()
            # After a pause of the loop itself (a laptop that slept), silence says nothing about the other ends.
            late = now - last > _SWEEP_S * 5
            last = now
            self._log_lines_left = _LOG_LINES_PER_S
            for transport, due in list(self.early.items()):
                if now >= due:
                    transport.abort(f"no greeting within {self.server.greeting_s:g} s")
            async for device, transport in _some_at_a_time(self.sessions.items()):
                if (why := self._why_blocked(device)) is not None:
                    transport.connection.close(protocol.IDENTITY, f"{device} is blocked: {why}")
                    transport.flush()
                    transport.lose("blocked")
            if not late:
                async for transport in _some_at_a_time(self.transports):
                    if transport.connection.next_tick() <= now and not transport.held_up:
                        transport.connection.tick(now)
                        if transport.connection.closed:
                            transport.abort(transport.connection.closed.why)
            if now - self._polled_at > _POLL_S:
                self._polled_at = now
                with contextlib.suppress(RuntimeError):
                    self._readers.submit(self._poll_pushes)

    def _why_blocked(self, device):
        try:
            return callbacks.call(self.server.why_blocked, device)
        except Exception as error:  # who is connected stays so; greetings are refused meanwhile
            self._log_limited(f"{device}: whether it is blocked is not known", error)
            return None

    def _poll_pushes(self):
        """Runs on a reader's thread: looks for pushes without a notification, and deletes expired ones."""
        try:
            with self.database.reader() as connection:
                devices = connection.execute(
                    "SELECT device, max(number) FROM tunnel_pushes WHERE number > ? GROUP BY device",
                    (self._newest_push,),
                ).fetchall()
            self.pushes.expire()
            dictionaries = self.inbox.dictionaries()
        except StoreError as error:
            _log.error("tunnel: %s", error)
            return
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._polled, devices, dictionaries)

    def _polled(self, devices, dictionaries):
        for device, newest in devices:
            self._newest_push = max(self._newest_push, newest)
            if (transport := self.sessions.get(device)) is not None:
                self._pump(transport)
        known = set(self.compression.numbers)
        for channel, number, data in dictionaries:
            if number not in known:
                self.compression.add(channel, number, data)

    # ---- shutdown

    async def drain(self, within_s):
        """Stops accepting, asks devices to reconnect elsewhere, and waits for at most `within_s` until they have."""
        self.draining = True
        for server in self._listening:
            server.close()
        end = self.loop.time() + within_s
        for transport in list(self.sessions.values()):
            transport.connection.drain(min(1.0, within_s / 4), "this server is going down")
            transport.flush()
        while self.sessions and self.loop.time() < end:
            await asyncio.sleep(0.02)

    async def close(self, drain_s=0.0):
        if drain_s and not self.draining:
            await self.drain(drain_s)
        for server in self._listening:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self.loop.run_in_executor(None, self._keeper.close)
        await asyncio.sleep(0)  # lets acknowledgements go out
        for transport in list(self.transports):
            if transport.connection.open:
                transport.connection.close(protocol.BYE, "the server shuts down")
                transport.flush()
            transport.lose("the server shuts down")
        self.loop.remove_reader(self._heard)
        pushes.unlisten(self._heard, self._heard_path)
        if self._status is not None:
            self._status.close()
            with contextlib.suppress(OSError):
                os.unlink(self._status_path)
        await self.loop.run_in_executor(None, self._stop_threads)
        self.database.close()
        for _ in range(3):  # closed transports release their sockets
            await asyncio.sleep(0)

    def _stop_threads(self):
        self._readers.shutdown(wait=True)
        self._answerers.shutdown()
        self._streamers.shutdown()

    def statistics(self):
        """A dict of plain values."""
        counts = dict(self.counts)
        for transport in list(self.transports):
            for name in ("received_bytes", "sent_bytes"):
                counts[name] += transport.connection.counts[name]
        return {
            "process": os.getpid(),
            "connected": len(self.sessions),
            "connections": len(self.transports),
            "draining": self.draining,
            "pending_bytes": self._pending_bytes,
            "store_error": str(self._keeper.error) if self._keeper.error else None,
            "counts": counts | self._keeper.counts | {"duplicates": self.inbox.duplicates},
            "latencies": {f"{what} {channel}": each.plain() for (what, channel), each in self.latencies.items()},
            "devices": sorted(self.sessions)[:1000],
        }


async def _some_at_a_time(items):
    """Yields what there is now; the loop serves others in between."""
    for at, each in enumerate(list(items), 1):
        yield each
        if at % _SWEPT_AT_ONCE == 0:
            await asyncio.sleep(0)


_HANDLERS = {
    events.Greeted: Worker._greeted,
    events.Received: Worker._received,
    events.Acknowledged: Worker._pushes_acknowledged,
    events.Requested: Worker._requested,
    events.Answered: Worker._answered,
    events.Cancelled: Worker._cancelled,
    events.StreamOpened: Worker._stream_opened,
    events.StreamData: Worker._stream_event,
    events.StreamEnded: Worker._stream_event,
    events.StreamWritable: Worker._stream_event,
    events.ChannelRefused: Worker._pushes_refused,
    events.Draining: Worker._nothing,
    events.Closed: Worker._nothing,
    events.DictionaryCame: Worker._nothing,
    events.Welcomed: Worker._nothing,
}
