"""The cloud's side: accepts connections of devices, stores their messages, answers their requests, and pushes.

server = Server("cloud.sqlite", certificate="server.pem", key="server.key", client_ca="ca.pem")
server.consume("features", Table("features"))
server.answer("classify", classify)
server.run("0.0.0.0:7443", processes=2)
"""

import asyncio
import contextlib
import signal
import socket
import threading
from pathlib import Path

from vmhost import callbacks
from vmhost.stores import Database
from vmhost.tunnel import addresses, inbox, processes, pushes, tls
from vmhost.tunnel.connection import checked_name
from vmhost.tunnel.errors import NoAnswerError, OfflineError, TunnelConfigurationError
from vmhost.tunnel.keeper import TRIES
from vmhost.tunnel.limits import Limits
from vmhost.tunnel.spinning import SPIN_US, loop_factory
from vmhost.tunnel.streams import BlockingStream, Stream
from vmhost.tunnel.worker import Worker


class Server:
    """The cloud's end of the tunnel: accepts devices, stores their messages, answers their requests, pushes to them.

    `store`: the path of a SQLite store, made if missing; all processes of the server share it. `certificate`, `key`:
    PEM files of the server's certificate and of its private key; None: the key is in the certificate's file.
    `client_ca`: the CA of devices' certificates, whose common names are the devices' names. `identify`: instead of
    certificates, a function from a token to the device's name, or None for an unknown token. `why_blocked`: a function
    from a device's name to the reason why it is refused in spite of that, or None; connected ones are looked at every
    second. `limits`: a Limits. `priorities`: {channel: 0 to 7}; 0 goes first, 4 is the default. `max_connections`: of
    one process. `pending_bytes`: bound of all devices' received messages that are not stored yet; beyond it nothing
    more is read from devices that have more than an equal share. `device_pending_bytes`: the same for one device.
    `tries`: how often a consumer may fail for a message, while it takes messages of others, before the message goes to
    `tunnel_refused`; None: any number. `greeting_s`: how long a device may take to say who it is. `threads`: on which
    functions that answer requests run. `post_quantum`: see `tls.server_context`. `spin_us`: how long its loop polls
    before it sleeps (`spinning`); 0: not at all.

    `identify` and `why_blocked` run on the loop, so they must be quick.
    """

    def __init__(
        self,
        store,
        *,
        certificate,
        key=None,
        client_ca=None,
        identify=None,
        why_blocked=None,
        limits=None,
        priorities=None,
        max_connections=19_000,
        pending_bytes=64 << 20,
        device_pending_bytes=4 << 20,
        tries=TRIES,
        greeting_s=10.0,
        threads=8,
        post_quantum=False,
        spin_us=SPIN_US,
    ):
        if client_ca is None and identify is None:
            raise TunnelConfigurationError("a server identifies devices by client_ca or identify; give one of them")
        for name, function in (("identify", identify), ("why_blocked", why_blocked)):
            if function is not None and callbacks.is_async(function):
                raise TunnelConfigurationError(f"{name}: expected a function that is not async")
        self.store = Path(store)
        self.context = tls.server_context(certificate, key, client_ca, post_quantum)
        self.identify = identify
        self.why_blocked = why_blocked or (lambda device: None)
        self.limits = limits or Limits()
        self.priorities = dict(priorities or {})
        self.max_connections = max_connections
        self.pending_bytes, self.device_pending_bytes, self.tries = pending_bytes, device_pending_bytes, tries
        self.greeting_s, self.threads = greeting_s, threads
        self._loops = loop_factory(spin_us)
        self.consumers, self.answers, self.streams = {}, {}, {}
        self.processes = 1
        self.worker = None

    # ---- handlers

    def consume(self, channel, consumer):
        """Messages on the channel go to `consumer` (`inbox`: a function, a Table, a Transactional). "*": all channels
        without one of their own. A channel without a consumer is refused; its messages stay on the devices."""
        self.consumers[checked_name(channel)] = inbox.consumer(consumer)

    def answer(self, channel, function=None, *, quick=False):
        """`function(request)` answers requests on the channel; its result must be expressible in msgpack. An `async`
        function runs on the loop, any other on a thread; `quick`: on the loop too, so it must not block. As a
        decorator: `@server.answer("classify")`."""
        if function is None:
            return lambda given: self.answer(channel, given, quick=quick) or given
        if quick:
            if callbacks.is_async(function):
                raise TunnelConfigurationError(
                    f"answer to {channel}: expected a function that is not async, or no quick"
                )
            inner = function

            def function(request):
                return inner(request)

            function.quick = True
        self.answers[checked_name(channel)] = function

    def stream(self, channel, function=None):
        """`function(stream)` serves streams that devices open on the channel. An `async` function runs on the loop,
        with a `streams.Stream`; any other on a thread, with a `streams.BlockingStream`."""
        if function is None:
            return lambda given: self.stream(channel, given) or given
        self.streams[checked_name(channel)] = function

    def push(self, device, channel, body, **settings):
        """As `pushes.push`, for this server's store."""
        return pushes.push(self.store, device, channel, body, **settings)

    # ---- devices connected to this process

    async def ask(self, device, channel, value, timeout_s=None):
        """The device's answer (`Device.answer`). For `async` handlers, which run on the server's loop; from other
        threads use `server.call(server.ask(...))`. OfflineError, NoAnswerError, AnswerError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._at_work().ask(device, channel, value, timeout_s)
        except TimeoutError:
            raise NoAnswerError(f"{device}: no answer within {timeout_s:g} s") from None

    async def open_stream(self, device, channel, value=None):
        """A `streams.Stream` to the device (`Device.stream`). Call it as `ask`. OfflineError, TunnelError."""
        return self._at_work().open_stream(device, channel, value)

    def call(self, coroutine):
        """The result of `ask` or `open_stream`, for other threads; a stream becomes a `streams.BlockingStream`."""
        try:
            worker = self._at_work()
        except OfflineError:
            coroutine.close()
            raise
        result = worker.call(coroutine)
        return BlockingStream(result, worker.call) if isinstance(result, Stream) else result

    def _at_work(self):
        if self.worker is None:
            raise OfflineError("the server does not serve in this process")
        return self.worker

    # ---- serving

    def prepare(self):
        """Makes the store. StoreError."""
        with contextlib.suppress(OSError):
            self.store.parent.mkdir(parents=True, exist_ok=True)
        with Database(self.store, shared=True) as database:
            made = inbox.Inbox(database)
            made.prepare(self.consumers.values())
            pushes.Pushes(database)
        pushes.processes_folder(self.store).mkdir(mode=0o700, exist_ok=True)

    def run(self, address="127.0.0.1:7443", *, processes=1, drain_s=5.0, ready=None):
        """Serves until SIGTERM or SIGINT, then drains for at most `drain_s`. `ready(addresses)` is called when it
        listens. Returns 0, or 1 if a process had to be killed."""
        self.processes = processes
        bound = bind(address, reuse=processes > 1)
        try:
            self.prepare()
            if processes > 1:
                return _supervise(self, bound, processes, drain_s, ready)
            asyncio.run(self._serve_until_signal(bound, drain_s, ready), loop_factory=self._loops)
            return 0
        finally:
            for each in bound:
                each.close()

    async def _serve_until_signal(self, bound, drain_s, ready=None):
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        loop.set_task_factory(callbacks.guarded_task)
        async with self.serving(bound) as worker:
            if ready is not None:
                ready(worker.addresses)
            await stopped.wait()
            await worker.drain(drain_s)

    @contextlib.asynccontextmanager
    async def serving(self, bound):
        """A Worker that serves on bound sockets, on the running loop."""
        self.worker = worker = Worker(self)
        try:
            await worker.listen(bound)
            yield worker
        finally:
            await worker.close()
            self.worker = None

    @contextlib.contextmanager
    def running(self, address="127.0.0.1:0", *, drain_s=0.0):
        """Serves on a thread within the block; yields the address as text."""
        self.prepare()
        bound = bind(address)
        started, stop, failed = threading.Event(), None, []
        loop = None

        async def serve():
            nonlocal stop, loop
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            loop.set_task_factory(callbacks.guarded_task)
            async with self.serving(bound) as worker:
                started.set()
                await stop.wait()
                if drain_s:
                    await worker.drain(drain_s)

        def work():
            try:
                asyncio.run(serve(), loop_factory=self._loops)
            except BaseException as error:
                failed.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=work, name="tunnel-server")
        try:
            thread.start()
            started.wait()
            if failed:
                raise failed[0]
            yield addresses.shown(*bound[0].getsockname()[:2])
        finally:
            if thread.ident is not None:
                started.wait()  # also where an interrupt ended the first wait
                if not failed:
                    loop.call_soon_threadsafe(stop.set)
                thread.join()
            for each in bound:
                each.close()
        if failed:
            raise failed[0]


def bind(address, reuse=False):
    """Sockets bound to the addresses, not listening. TunnelConfigurationError."""
    bound = []
    try:
        for host, port in addresses.parse(address):
            try:
                family, kind, _, _, where = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                listener = socket.socket(family, kind)
                bound.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.setblocking(False)
                listener.bind(where)
            except OSError as error:
                raise TunnelConfigurationError(
                    f"{addresses.shown(host, port)}: cannot listen there: {error.strerror}; choose another"
                ) from error
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _supervise(server, bound, count, drain_s, ready):
    """Forks `count` processes that listen on the same ports, and restarts one that dies."""
    where = ",".join(addresses.shown(*each.getsockname()[:2]) for each in bound)

    def child():
        own = bind(where, reuse=True)
        try:
            asyncio.run(server._serve_until_signal(own, drain_s), loop_factory=server._loops)
        finally:
            for each in own:
                each.close()

    # The sockets of this process hold the port, but do not listen, so they get no connections.
    return processes.supervise(
        child, count, drain_s + 5.0, lambda: ready and ready([each.getsockname()[:2] for each in bound])
    )
