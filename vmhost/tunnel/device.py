"""The device's side: a connection to the cloud that is kept up, and an outbox that survives cuts, crashes and outages.

    with Device("cloud.example:7443", "device.sqlite", ca="ca.pem", certificate="me.pem", key="me.key") as cloud:
        cloud.send("features", b"...")                                  # on the disk when it returns
        label = cloud.ask("classify", image, timeout_s=0.5, fallback=small_model)

`Device` is for threads, `AsyncDevice` for asyncio; both do the same.
"""

import asyncio
import contextlib
import functools
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor

from vmhost import callbacks
from vmhost.stores import StoreError
from vmhost.tunnel import addresses, events, inbox, tls
from vmhost.tunnel import connection as protocol
from vmhost.tunnel.answering import Answering
from vmhost.tunnel.backoff import Backoff
from vmhost.tunnel.device_store import DeviceStore
from vmhost.tunnel.errors import (
    AnswerError,
    MessageTooLargeError,
    NoAnswerError,
    OfflineError,
    TunnelConfigurationError,
    TunnelError,
)
from vmhost.tunnel.heartbeat import Interval
from vmhost.tunnel.histogram import Histogram
from vmhost.tunnel.inbox import Arrival
from vmhost.tunnel.keeper import Keeper
from vmhost.tunnel.loop_thread import LoopEndedError, LoopThread
from vmhost.tunnel.spinning import SPIN_US, loop_factory
from vmhost.tunnel.streams import BlockingStream, Stream, serve
from vmhost.tunnel.transport import Reading, Transport
from vmhost.tunnel.turns import Turns

_log = logging.getLogger("vmhost.tunnel")
CONNECT_S = 15.0  # time limit from connecting to the cloud's welcome
_TICK_S = 0.5


class AsyncDevice:
    """The device's end of the tunnel, for asyncio: sends messages from its outbox, asks the cloud, takes pushes.

    `address`: "host:port", or several. `store`: a path or a Database (`DeviceStore`). `ca`: the CA of trusted server
    certificates; None: the system's. `certificate`, `key`: this device's. `token`: instead of them, a text or a
    function that returns one. `server_name`: the name in the server's certificate, if it differs from the host.
    `limits`: a Limits. `priorities`: {channel: 0 to 7}; 0 goes first, 4 is the default. `rules`: {channel: Rule},
    bounds of channels in the outbox. `outbox`: bounds of all of it, {"max_bytes": …, "max_age_ms": …}. `batch_ms`: how
    long a message waits for others to be sent with, unless `batch_bytes` wait already. `batch_bytes`: see `batch_ms`.
    `backoff`: the waits between attempts to connect; None: 0.25 s to 60 s, at random. `heartbeat_s`: how often an idle
    connection is tried. `agent`: what the server shows as the device's program. `post_quantum`: see
    `tls.device_context`.

    Use it with `async with`; register handlers (`on`, `answer`) before.
    """

    def __init__(
        self,
        address,
        store,
        *,
        ca=None,
        certificate=None,
        key=None,
        token=None,
        server_name=None,
        limits=None,
        priorities=None,
        rules=None,
        outbox=None,
        batch_ms=0,
        batch_bytes=16_000,
        backoff=None,
        heartbeat_s=30.0,
        agent="vmhost",
        post_quantum=False,
    ):
        self.addresses = addresses.parse(address)
        self.limits, self.priorities = limits, dict(priorities or {})
        self._context = tls.device_context(ca, certificate, key, post_quantum)
        self._token, self._server_name, self._agent = token, server_name, agent
        self._batch_s, self._batch_bytes = batch_ms / 1000, batch_bytes
        self._backoff = backoff or Backoff(self.addresses)
        self._interval = Interval(heartbeat_s)
        self._consumers, self._answers, self._stream_handlers = {}, {}, {}
        self._loop = self._transport = None
        self._sessions = {}  # address -> SSLSession
        self._asked = {}  # number of a request -> future
        self._tasks, self._streams = {}, {}  # (transport, number of a request) -> its answer; number -> stream
        self._serving = set()  # tasks that serve streams opened by the cloud, and async consumers
        self._online = self._wake = self._ended = self._changed = None
        self._sleeping = self._closing = False
        self._pumping = self._wanted = False
        self._pump_timer = self._timer = None
        self._due = math.inf  # when `_timer` checks the deadlines
        self._deadlines = {}  # number of a request -> its deadline
        self._flight_bytes = protocol.FLIGHT_BYTES
        self._refused_channels = set()  # of pushes, on this connection
        self._full_channels = set()  # channels beyond the number that the cloud takes
        self._sent_times = {}  # channel -> [(number, time_ms)]
        self.last_error = None  # why there is no connection
        self._unreachable = False  # the last try to connect failed
        self.counts = dict.fromkeys(
            ("connections", "resumed", "sent", "acknowledged", "received", "requests", "fallbacks", "cuts"), 0
        )
        self.latencies = {}
        self.store = DeviceStore(store, rules=rules, outbox=outbox)  # last: nothing closes it when a later step fails

    # ---- handlers

    def on(self, channel, consumer=None):
        """Messages that the cloud pushes on the channel go to `consumer` (`inbox`: a function of a Message, a Table, a
        Transactional). An `async` function runs on the loop. As a decorator: `@cloud.on("profiles")`."""
        if consumer is None:
            return lambda given: self.on(channel, given) or given
        if callbacks.is_async(consumer):
            consumer = functools.partial(self._consume, consumer)
        consumer = inbox.consumer(consumer)
        if self._loop is not None:
            self.store.inbox.prepare([consumer])
        self._consumers[protocol.checked_name(channel)] = consumer
        if self._loop is not None:
            self._call(self._take_refused, channel)

    def _take_refused(self, channel):
        """What was refused on this connection comes with the next one."""
        if channel in self._refused_channels or channel == "*":
            self.reconnect()

    def _consume(self, function, message):
        """Runs on a thread of the keeper."""

        async def consume():
            if self._closing:
                raise OfflineError("the device is closing")
            task = asyncio.current_task()
            self._serving.add(task)
            try:
                await function(message)
            finally:
                self._serving.discard(task)

        self.run_on_loop(consume())

    def answer(self, channel, function=None):
        """`function(value)` answers the cloud's requests on the channel."""
        if function is None:
            return lambda given: self.answer(channel, given) or given
        self._answers[protocol.checked_name(channel)] = function

    def stream(self, channel, function=None):
        """`function(stream)` serves streams that the cloud opens on the channel. An `async` function runs on the loop,
        with a `streams.Stream`; any other on a thread, with a `streams.BlockingStream`."""
        if function is None:
            return lambda given: self.stream(channel, given) or given
        self._stream_handlers[protocol.checked_name(channel)] = function

    # ---- life

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *error):
        await self.close()

    async def start(self):
        """Begins to connect, as `async with` does; returns before there is a connection."""
        with contextlib.ExitStack() as undo:  # undone when a later step fails
            undo.callback(self.store.close)
            self._loop = asyncio.get_running_loop()
            self._online, self._wake, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._reading = Reading(self._loop)
            self._disk = ThreadPoolExecutor(1, thread_name_prefix="tunnel-disk")
            self._answerers, self._streamers = Turns(4, "tunnel-answer"), Turns(32, "tunnel-stream")
            self._answering = Answering(
                self._loop, self._reading, self._answerers, self._answer_failed, self._request_ended
            )
            self.store.inbox.prepare(self._consumers.values())
            self._compression = self.store.compression()
            self._keeper = Keeper(self.store.inbox, None, self._kept)
            undo.callback(self._keeper.close)
            self.store.watch(self._committed)
            self._runner = self._loop.create_task(self._run())
            undo.pop_all()

    async def close(self):
        """Ends the connection. Unsent messages stay in the outbox."""
        if self._closing:
            return
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake.set()
        transport = self._transport
        if transport is not None and not transport.closed:
            transport.connection.close(protocol.BYE, "the device shuts down")
            transport.flush()
            transport.lose("closed")
        self._runner.cancel()
        self._keeper.end()
        for task in list(self._serving):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._runner
        await asyncio.sleep(0)
        await self._loop.run_in_executor(None, self._stop)
        for _ in range(3):
            await asyncio.sleep(0)

    def _stop(self):
        self._keeper.close()
        self._disk.shutdown(wait=True)
        self._answerers.shutdown()
        self._streamers.shutdown()
        self.store.close()

    @property
    def connected(self):
        """Whether there is a connection now."""
        return self._online is not None and self._online.is_set()

    async def wait_connected(self, timeout_s=None):
        """OfflineError after `timeout_s`, with the reason."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._online.wait()
        except TimeoutError:
            raise OfflineError(self._offline()) from None

    def _offline(self):
        where = ", ".join(addresses.shown(*each) for each in self.addresses)
        return f"{where}: not connected" + (f": {self.last_error}" if self.last_error else "")

    def wake(self):
        """Reconnects now, or pings on an open connection: after the machine slept, or when the network changed."""
        self._backoff.woken()
        self._interval.moved()
        self._sleeping = False
        self._wake.set()
        if self._transport is not None and not self._transport.closed:
            self._transport.connection.probe(self._loop.time())
            self._transport.flush()

    def reconnect(self):
        """Closes the connection and opens a new one."""
        if self._transport is not None:
            self._transport.abort("interrupted")

    def sleep(self):
        """Closes the connection until `wake`; messages sent meanwhile wait in the outbox."""
        self._sleeping = True
        if self._transport is not None and not self._transport.closed:
            self._transport.connection.close(protocol.BYE, "the device sleeps")
            self._transport.flush()
            self._transport.lose("asleep")

    # ---- the connection

    async def _run(self):
        while not self._closing:
            self._wake.clear()
            if self._sleeping:
                await self._wake.wait()
                continue
            began = self._loop.time()
            done = self.counts["acknowledged"] + self.counts["requests"]
            sent = self.counts["sent"]
            self._drained_s = None
            self._replaced = False
            try:
                welcomed = await self._connect()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                welcomed = False
                if not isinstance(error, (OSError, TunnelError)):
                    _log.exception("tunnel: connecting failed")
                self.last_error = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if welcomed:
                progress = self.counts["acknowledged"] + self.counts["requests"] > done
                if progress:
                    self._flight_bytes = min(protocol.FLIGHT_BYTES, self._flight_bytes * 2)
                elif self.counts["sent"] > sent:
                    self._flight_bytes = max(protocol.SMALLEST_FLIGHT_BYTES, self._flight_bytes // 4)
                if self._drained_s is not None:
                    delay = self._backoff.moved(self._drained_s)
                elif self._replaced:  # without a wait the two would replace each other endlessly
                    _log.warning("tunnel: another device with this one's name has connected; is a store or key copied?")
                    delay = self._backoff.ended(0.0, progress=False)
                else:
                    delay = self._backoff.ended(self._loop.time() - began, progress)
            else:
                delay = self._backoff.failed()
                self._unreachable = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    async def _connect(self):
        """One connection, from the first packet to its end. Returns whether the cloud accepted the device."""
        host, port = address = self._backoff.address
        self._ended = self._loop.create_future()
        received = await self._on_disk(self.store.received)
        sent_epochs = await self._on_disk(self.store.sent_epochs)
        connection = protocol.Connection(
            client=True,
            limits=self.limits,
            priorities=self.priorities,
            compression=self._compression,
            heartbeat_s=self._interval.seconds,
            flight_bytes=self._flight_bytes,
            now=self._loop.time(),
        )
        name = self._server_name or host
        token = await self._current_token()
        hello = {
            "epoch": self.store.epoch,
            "epochs": sent_epochs,
            "received": received,
            "token": token,
            "dictionaries": self._compression.numbers,
            "agent": self._agent,
        }

        def secured(transport):
            transport.connection.hello(hello)
            transport.flush()

        def create():
            return Transport(
                self._loop,
                self._context,
                connection,
                self._reading,
                self._events,
                self._lost,
                secured,
                server_side=False,
                server_hostname=name,
                session=self._sessions.get(address),
            )

        welcomed = False
        try:
            async with asyncio.timeout(CONNECT_S):
                _, self._transport = await self._loop.create_connection(create, host, port)
                transport = self._transport
                self._welcome = self._loop.create_future()
                first = asyncio.wait([self._welcome, self._ended], return_when=asyncio.FIRST_COMPLETED)
                await first
                if not self._welcome.done():
                    raise TunnelError(self._ended.result())
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort("no welcome came in time")
            raise TunnelError(f"no welcome within {CONNECT_S:g} s") from None
        welcome = self._welcome.result()
        reached, removed = await self._on_disk(self.store.welcomed, welcome["received"])
        welcomed = True
        self.counts["acknowledged"] += removed  # these arrived on an older connection
        self._changed.set()
        for channel, number in reached.items():
            connection.resume(channel, number)
        self.counts["connections"] += 1
        self.counts["resumed"] += bool(transport.tls.session_reused)
        self._remember_session(address, transport)
        self.device = welcome["device"]
        self.clock_offset_s = welcome["time_ms"] / 1000 - time.time()
        self.last_error, self._unreachable = None, False
        if not transport.closed:
            self._online.set()
            self._pump()
        try:
            while not self._ended.done():
                delay = max(0.005, min(connection.next_tick() - self._loop.time(), _TICK_S))
                await asyncio.wait([self._ended], timeout=delay)
                if not self._ended.done() and connection.next_tick() <= self._loop.time():
                    connection.tick(self._loop.time())
                    if connection.closed:
                        if connection.closed.code == protocol.SILENT:
                            self._interval.died(connection.watch.idle_before_ping_s)
                        transport.abort(connection.closed.why)
                    else:
                        transport.flush()
                if connection.watch.answered_idle_s is not None:
                    self._interval.survived(connection.watch.answered_idle_s)
                    connection.watch.answered_idle_s = None
                    connection.watch.heartbeat_s = self._interval.seconds
        finally:
            self._replaced = connection.closed is not None and connection.closed.code == protocol.REPLACED
            self._online.clear()
            self._remember_session(address, transport)
            if not transport.closed:
                transport.lose("the device shuts down")
        return welcomed

    async def _current_token(self):
        if not callable(self._token):
            return self._token
        if callbacks.is_async(self._token):
            return await callbacks.awaited(self._token())
        return callbacks.call(self._token)

    def _remember_session(self, address, transport):
        session = transport.tls.session
        if session is not None and session.has_ticket:
            self._sessions[address] = session

    async def _on_disk(self, function, *arguments):
        return await self._loop.run_in_executor(self._disk, function, *arguments)

    def _lost(self, transport, why):
        if self._transport is not transport and self._transport is not None:
            return
        self._online.clear()
        self.last_error = why
        self.counts["cuts"] += 1
        for future in list(self._asked.values()):
            if not future.done():
                future.set_exception(OfflineError(f"the connection ended before the answer came: {why}"))
        self._asked.clear()
        self._deadlines.clear()
        for stream in list(self._streams.values()):
            stream.broken(why)
        for answer in list(self._tasks.values()):
            answer.cancel()
        self._sent_times.clear()
        self._refused_channels.clear()
        self._changed.set()
        if not self._ended.done():
            self._ended.set_result(why)

    # ---- sending

    def _committed(self):
        """Called on any thread after a commit of the store."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pump_soon)

    def _pump_soon(self):
        if not self._batch_s or self.store.put_bytes >= self._batch_bytes:
            self._pump()
        elif self._pump_timer is None:
            self._pump_timer = self._loop.call_later(self._batch_s, self._pump)

    def _pump(self):
        """Sends from the outbox, as far as there is room."""
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None
        self._wanted = True
        if self._pumping or not self.connected or self._closing:
            return
        self._pumping, self._wanted = True, False
        self.store.put_bytes = 0
        transport = self._transport
        future = self._disk.submit(self._waiting, transport.connection.positions())
        future.add_done_callback(lambda done: self._call(self._offer, transport, done))

    def _call(self, function, *arguments):
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _waiting(self, positions):
        """Runs on the thread for disk access."""
        found = []
        for channel in self.store.channels():
            after, room = positions.get(channel, (0, True))
            if room:
                taken = self.store.take(channel, after)
                if taken is not None:
                    found.append((channel, *taken))
        return found

    def _offer(self, transport, done):
        self._pumping = False
        if transport.closed or self._closing:
            if self._wanted:
                self._pump()
            return
        try:
            found = done.result()
        except StoreError as error:
            _log.error("tunnel: the outbox cannot be read: %s", error)
            self._loop.call_later(1.0, self._pump)
            return
        more = self._wanted
        for channel, epoch, entries in found:
            times = self._sent_times.setdefault(channel, [])
            try:
                messages = [(entry.number, entry.id, entry.body) for entry in entries]
                taken = transport.connection.offer(channel, messages, epoch)
            except MessageTooLargeError as error:
                _log.error("tunnel: a message is too large and is dropped: %s", error)
                first = entries[0].number
                self._disk.submit(self.store.acknowledged, [(channel, first)])
                transport.connection.resume(channel, first)
                more = True
                continue
            except TunnelError as error:
                if channel not in self._full_channels:
                    _log.warning("tunnel: %s; its messages stay in the outbox", error)
                    self._full_channels.add(channel)
                continue
            times += [(entry.number, entry.time_ms) for entry in entries[:taken]]
            self.counts["sent"] += taken
            more = more or bool(taken)
        transport.flush()
        if more:
            self._pump()

    def _acknowledged(self, transport, event):
        now_ms = time.time() * 1000
        times = self._sent_times.get(event.channel, [])
        histogram = self._latency("sent", event.channel)
        count = 0
        for number, time_ms in times:
            if number > event.number:
                break
            count += 1
            histogram.add(max(0.0, now_ms - time_ms) / 1000)
        del times[:count]
        self.counts["acknowledged"] += count
        self._disk.submit(self._forget, [(event.channel, event.number)])
        self._pump()

    def _forget(self, pairs):
        try:
            self.store.acknowledged(pairs)
        except StoreError as error:
            if self._closing:  # they are sent again on the next connection; the cloud knows them
                return
            _log.error("tunnel: sent messages cannot be removed from the outbox yet: %s", error)
            self._call(self._forget_later, pairs)
        self._call(self._changed.set)

    def _forget_later(self, pairs):
        def again():
            if not self._closing:
                self._disk.submit(self._forget, pairs)

        self._loop.call_later(_TICK_S, again)

    def _latency(self, what, channel):
        histogram = self.latencies.get((what, channel))
        if histogram is None:
            histogram = self.latencies[what, channel] = Histogram()
        return histogram

    async def send(self, channel, body, *, identity=None):
        """Puts a message (bytes) into the outbox; returns its id. It is on the disk on return, and reaches the cloud
        exactly once, in the order of the channel. OutboxFullError, StoreError."""
        identities = None if identity is None else [identity]
        return (await self._on_disk(self.store.put, channel, [body], identities))[0]

    async def send_many(self, channel, bodies, *, identities=None):
        """As `send`, for several messages in one transaction."""
        return await self._on_disk(self.store.put, channel, list(bodies), identities)

    async def wait_sent(self, timeout_s=None):
        """Waits until the outbox is empty, also of what the store still holds in memory, such as a pipeline's rows;
        batches are sent at once. False after `timeout_s`. StoreError if they cannot be written."""
        await self._on_disk(self.store.database.flush)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._changed.clear()
                    if not await self._on_disk(len, self.store.outbox):
                        return True
                    await self._changed.wait()
        except TimeoutError:
            return False

    # ---- requests

    async def request(self, channel, value, timeout_s=None):
        """The cloud's answer. OfflineError, NoAnswerError, AnswerError."""
        transport = self._transport
        if transport is None or not self._online.is_set():
            if not self._may_come_soon():
                raise OfflineError(self._offline())
            began = self._loop.time()
            await self.wait_connected(min(timeout_s, 1.0) if timeout_s is not None else 1.0)
            transport = self._transport
            if timeout_s is not None:
                timeout_s = max(0.001, timeout_s - (self._loop.time() - began))
        try:
            number = transport.connection.request(channel, value, timeout_s)
        except (TypeError, ValueError, OverflowError) as error:
            raise TunnelConfigurationError(f"a request on {channel}: the value cannot be sent: {error}") from error
        began = self._loop.time()
        future = self._asked[number] = self._loop.create_future()
        transport.flush()
        if timeout_s is not None:
            due = self._deadlines[number] = began + timeout_s
            if due < self._due:
                self._watch_until(due)
        try:
            value = await future
        except NoAnswerError:
            raise NoAnswerError(f"no answer within {timeout_s:g} s") from None
        finally:
            if self._transport is transport:
                self._deadlines.pop(number, None)
            if self._asked.get(number) is future:
                del self._asked[number]
                transport.connection.cancel(number)  # the caller was cancelled
                transport.flush()
        self.counts["requests"] += 1
        self._latency("asked", channel).add(self._loop.time() - began)
        return value

    def _may_come_soon(self):
        """Whether a connection was cut and the first try to reconnect is under way."""
        return not self._sleeping and not self._unreachable and not self._closing

    def _watch_until(self, due):
        """Sets one timer for all requests: most are answered long before their deadline, and then cost nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._time_out)

    def _time_out(self):
        self._timer, self._due = None, math.inf
        now = self._loop.time()
        for number in [number for number, due in self._deadlines.items() if due <= now]:
            del self._deadlines[number]
            future = self._asked.pop(number, None)
            if future is not None and not future.done():
                self._transport.connection.cancel(number)
                self._transport.flush()
                future.set_exception(NoAnswerError("no answer came in time"))
        if self._deadlines:
            self._watch_until(min(self._deadlines.values()))

    def _answered(self, transport, event):
        future = self._asked.pop(event.number, None)
        if future is not None and not future.done():
            if event.error is None:
                future.set_result(event.value)
            else:
                late = event.late and event.number in self._deadlines
                future.set_exception((NoAnswerError if late else AnswerError)(event.error))

    async def ask(self, channel, value, *, timeout_s=None, fallback=None):
        """The cloud's answer, or the result of `fallback(value)` if there is none: offline, too late, or the cloud
        failed. Without `fallback` it raises as `request`."""
        try:
            return await self.request(channel, value, timeout_s)
        except OfflineError, NoAnswerError, AnswerError:
            if fallback is None:
                raise
        self.counts["fallbacks"] += 1
        if callbacks.is_async(fallback):
            return await fallback(value)
        return await asyncio.wrap_future(self._answerers.submit("", fallback, value))

    async def open_stream(self, channel, value=None):
        """A `streams.Stream` to the cloud. OfflineError, TunnelError."""
        if not self._online.is_set():
            raise OfflineError(self._offline())
        number = self._transport.connection.open_stream(channel, value)
        stream = Stream(self._transport, number, channel, value, self._streams)
        self._transport.flush()
        return stream

    # ---- events from the cloud

    def _events(self, transport, found):
        for event in found:
            _HANDLERS[type(event)](self, transport, event)

    def _welcomed(self, transport, event):
        if not self._welcome.done():
            self._welcome.set_result(event.greeting)

    def _received(self, transport, event):
        consumer = self._consumers.get(event.channel) or self._consumers.get("*")
        if consumer is None:
            self._refused_channels.add(event.channel)
            transport.connection.refuse(event.channel, "this device has no handler for the channel")
            return
        self.counts["received"] += len(event.messages)
        self._keeper.put(transport, Arrival("", event.epoch, event.channel, event.messages, consumer))

    def _kept(self, kept, new):
        self._call(self._acknowledge, kept)

    def _acknowledge(self, kept):
        for transport, channel, number in kept:
            if not transport.closed:
                transport.connection.applied(channel, number)
                transport.flush()

    def _requested(self, transport, event):
        function = self._answers.get(event.channel)
        if function is None:
            transport.connection.fail(event.number, f"nobody answers on channel {event.channel}")
            return
        answer = self._answering.begin(transport, event, function, event.value, "")
        if not answer.done():
            self._tasks[transport, event.number] = answer

    def _answer_failed(self, event, error, late):
        if not isinstance(error, AnswerError) and not late:
            _log.error("tunnel: answering on %s failed", event.channel, exc_info=error)

    def _request_ended(self, transport, event, began, answered):
        self._tasks.pop((transport, event.number), None)

    def _cancelled(self, transport, event):
        if (answer := self._tasks.pop((transport, event.number), None)) is not None:
            answer.cancel()

    def _stream_event(self, transport, event):
        stream = self._streams.get(event.stream)
        if stream is not None:
            stream.happened(event)
        elif isinstance(event, events.StreamData):
            transport.connection.consumed(event.stream, len(event.data))

    def _stream_opened(self, transport, event):
        function = self._stream_handlers.get(event.channel)
        if function is None:
            transport.connection.end_stream(event.stream, f"nobody takes streams on channel {event.channel}")
            return
        stream = Stream(transport, event.stream, event.channel, event.value, self._streams)
        task = self._loop.create_task(self._serve_stream(stream, function))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve_stream(self, stream, function):
        def blocking(function):
            given = BlockingStream(stream, self.run_on_loop)
            return asyncio.wrap_future(self._streamers.submit("", callbacks.call, function, given))

        def log(error):
            _log.error("tunnel: a stream on %s failed", stream.channel, exc_info=error)

        await serve(stream, function, blocking, log)

    def run_on_loop(self, coroutine):
        """The coroutine's result, for other threads than the loop's. OfflineError before `start` and after `close`."""
        if self._loop is None or self._loop.is_closed():
            coroutine.close()
            raise OfflineError("the device is not started, or closed")
        if asyncio._get_running_loop() is self._loop:
            coroutine.close()
            raise TunnelError("this call blocks, and runs on the loop that it would wait for; await the device's own")
        return asyncio.run_coroutine_threadsafe(callbacks.awaited(coroutine), self._loop).result()

    def _dictionary(self, transport, event):
        try:
            self._compression.add(event.channel, event.number, event.data)
        except ValueError as error:
            _log.error("tunnel: %s", error)
            return
        self._disk.submit(self.store.inbox.keep_dictionary, event.channel, event.number, event.data)

    def _refused(self, transport, event):
        _log.warning(
            "tunnel: the cloud accepts no messages on %s: %s; they stay in the outbox", event.channel, event.why
        )

    def _draining(self, transport, event):
        """The server asks to reconnect elsewhere. Closes once requests, streams and messages have ended, after the
        given time at the latest."""
        if self._drained_s is not None:
            return  # already draining
        self._drained_s = event.after_s
        self._loop.create_task(self._move(transport, event.after_s))

    async def _move(self, transport, after_s):
        end = self._loop.time() + max(0.05, after_s)
        while not transport.closed and self._loop.time() < end:
            if not self._asked and not self._streams and not transport.connection.unacknowledged():
                break
            await asyncio.sleep(0.01)
        if not transport.closed:
            transport.connection.close(protocol.BYE, "moving")
            transport.flush()
            transport.lose("the server asked to connect anew")

    def _nothing(self, transport, event):
        pass

    def statistics(self):
        """A dict of plain values."""
        counts = self.counts | {"duplicates": self.store.inbox.duplicates}
        if self._transport is not None:
            counts |= self._transport.connection.counts
        return {
            "connected": self.connected,
            "last_error": self.last_error,
            "heartbeat_s": self._interval.seconds,
            "counts": counts,
            "latencies": {f"{what} {channel}": each.plain() for (what, channel), each in self.latencies.items()},
        }


_HANDLERS = {
    events.Welcomed: AsyncDevice._welcomed,
    events.Received: AsyncDevice._received,
    events.Acknowledged: AsyncDevice._acknowledged,
    events.Requested: AsyncDevice._requested,
    events.Answered: AsyncDevice._answered,
    events.Cancelled: AsyncDevice._cancelled,
    events.StreamOpened: AsyncDevice._stream_opened,
    events.StreamData: AsyncDevice._stream_event,
    events.StreamEnded: AsyncDevice._stream_event,
    events.StreamWritable: AsyncDevice._stream_event,
    events.DictionaryCame: AsyncDevice._dictionary,
    events.ChannelRefused: AsyncDevice._refused,
    events.Draining: AsyncDevice._draining,
    events.Closed: AsyncDevice._nothing,
    events.Greeted: AsyncDevice._nothing,
}


class Device:
    """As AsyncDevice, for threads: its loop runs on a thread of its own (`loop_thread`). Use it with `with`.

    `address`, `store`: as for AsyncDevice, as are the other arguments. `spin_us`: how long the loop polls before it
    sleeps (`spinning`); 0: not at all."""

    def __init__(self, address, store, *, spin_us=SPIN_US, **settings):
        loops = loop_factory(spin_us)
        self._inner = inner = AsyncDevice(address, store, **settings)
        with contextlib.ExitStack() as undo:  # undone when a later step fails
            undo.callback(inner.store.close)
            self._loop = LoopThread("tunnel-device", inner.start, inner.close, loops, inner.reconnect)
            undo.pop_all()
        self.answer, self.stream = inner.answer, inner.stream

    def on(self, channel, consumer=None):
        """As `AsyncDevice.on`; an `async` function is refused."""
        if consumer is None:
            return lambda given: self.on(channel, given) or given
        self._inner.on(channel, inbox.consumer(consumer))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.close()

    def start(self):
        """Begins to connect, as `with` does; returns before there is a connection."""
        self._loop.start()

    def close(self):
        """Ends the connection. Unsent messages stay in the outbox."""
        self._loop.close()

    def _run(self, coroutine):
        try:
            return self._loop.run(coroutine)
        except LoopEndedError:
            raise OfflineError("the device is closed, or was closed meanwhile") from None

    def send(self, channel, body, *, identity=None):
        """As `AsyncDevice.send`."""
        return self._inner.store.put(channel, [body], None if identity is None else [identity])[0]

    def send_many(self, channel, bodies, *, identities=None):
        """As `AsyncDevice.send_many`."""
        return self._inner.store.put(channel, list(bodies), identities)

    def request(self, channel, value, timeout_s=None):
        """As `AsyncDevice.request`."""
        return self._run(self._inner.request(channel, value, timeout_s))

    def ask(self, channel, value, *, timeout_s=None, fallback=None):
        """As `AsyncDevice.ask`; `fallback` runs on the caller's thread."""
        try:
            return self.request(channel, value, timeout_s)
        except OfflineError, NoAnswerError, AnswerError:
            if fallback is None:
                raise
        self._inner.counts["fallbacks"] += 1
        return fallback(value)

    def open_stream(self, channel, value=None):
        """A `streams.BlockingStream` to the cloud. OfflineError, TunnelError."""
        return BlockingStream(self._run(self._inner.open_stream(channel, value)), self._run)

    def wait_sent(self, timeout_s=None):
        """Waits until the outbox is empty, also of what the store still holds in memory. False after `timeout_s`.
        StoreError."""
        return self._run(self._inner.wait_sent(timeout_s))

    def wait_connected(self, timeout_s=None):
        """OfflineError after `timeout_s`, with the reason."""
        self._run(self._inner.wait_connected(timeout_s))

    def wake(self):
        """As `AsyncDevice.wake`."""
        self._loop.call_soon_threadsafe(self._inner.wake)

    def sleep(self):
        """As `AsyncDevice.sleep`."""
        self._loop.call_soon_threadsafe(self._inner.sleep)

    @property
    def connected(self):
        """Whether there is a connection now."""
        return self._inner.connected

    @property
    def last_error(self):
        """Why there is no connection; None while there is one."""
        return self._inner.last_error

    @property
    def store(self):
        """The DeviceStore with outbox and inbox."""
        return self._inner.store

    def statistics(self):
        """As `AsyncDevice.statistics`."""
        return self._inner.statistics()
