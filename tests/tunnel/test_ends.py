"""Both ends over real sockets: requests, pushes, streams, priorities, and what goes wrong with connections."""

import asyncio
import contextlib
import datetime
import os
import re
import socket
import threading

import pytest

from tests.tunnel.conftest import WAIT_S, bodies, rows, until
from tests.tunnel.proxy import Proxy
from vmhost.stores import Database
from vmhost.tunnel import (
    AnswerError,
    AsyncDevice,
    MessageRefused,
    NoAnswerError,
    OfflineError,
    OutboxFullError,
    Rule,
    StreamBrokenError,
    TunnelConfigurationError,
    pushes,
)
from vmhost.tunnel.backoff import Backoff
from vmhost.tunnel.connection import Connection
from vmhost.tunnel.pushes import Pushes
from vmhost.tunnel.tls import make_certificates


class Heard:
    """Collects what a handler gets; `wait(n)` waits for n of them."""

    def __init__(self):
        self.values = []
        self._changed = threading.Condition()

    def __call__(self, message):
        with self._changed:
            self.values.append(message.body)
            self._changed.notify_all()

    def wait(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.values) >= count, WAIT_S), self.values


# ---- requests


@pytest.fixture
def answering(make_server):
    server = make_server()
    server.answer("double", lambda request: request.value * 2)
    server.answer("who", lambda request: request.device, quick=True)
    stuck = threading.Event()

    @server.answer("never")
    async def never(request):
        await asyncio.sleep(3600)

    @server.answer("fails")
    async def fails(request):
        raise ValueError("no such thing")

    @server.answer("unsayable")
    def unsayable(request):
        return object()

    yield server
    stuck.set()


def test_values_cross_as_they_are(answering, make_device):
    with answering.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        for value in (None, True, 7, -1.5, "text", b"bytes", [1, [2]], {"a": {"b": None}, 5: 6}):
            answering.answer("echo", lambda request: request.value)
            assert device.ask("echo", value, timeout_s=WAIT_S) == value
        assert device.ask("double", "ab", timeout_s=WAIT_S) == "abab"
        assert device.ask("who", None, timeout_s=WAIT_S) == "ann"
        large = bytes(range(256)) * 8000  # in fragments, both ways
        assert device.ask("echo", large, timeout_s=WAIT_S) == large


def test_a_cloud_whose_clock_is_faster_says_no_more_than_the_devices_own(answering, make_device, monkeypatch):
    """Either end may be the first to see that a request's time is over."""
    request = Connection.request
    monkeypatch.setattr(Connection, "request", lambda self, channel, value, _: request(self, channel, value, 0.001))
    with answering.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        with pytest.raises(NoAnswerError, match=f"no answer within {WAIT_S:g} s"):
            device.ask("never", 1, timeout_s=WAIT_S)
        with pytest.raises(AnswerError):
            device.ask("never", 1)  # without a time limit: the other end's answer cannot be a timeout


def test_what_cannot_be_answered(answering, make_device, caplog):
    with answering.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        with pytest.raises(AnswerError, match="ValueError: no such thing"):
            device.ask("fails", 1, timeout_s=WAIT_S)
        with pytest.raises(AnswerError, match="nobody answers on channel other"):
            device.ask("other", 1, timeout_s=WAIT_S)
        with pytest.raises(AnswerError, match="TypeError"):
            device.ask("unsayable", 1, timeout_s=WAIT_S)
        with pytest.raises(NoAnswerError, match="no answer within 0.05 s"):
            device.ask("never", 1, timeout_s=0.05)
        with pytest.raises(TunnelConfigurationError, match="cannot be sent"):
            device.ask("double", object(), timeout_s=WAIT_S)
        assert device.ask("double", 4, timeout_s=WAIT_S) == 8, "the connection goes on"


def test_the_fallback_answers_where_the_cloud_does_not(answering, make_device):
    def small(value):
        return "small", value

    with answering.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        assert device.ask("double", 2, timeout_s=WAIT_S, fallback=small) == 4
        assert device.ask("never", 2, timeout_s=0.05, fallback=small) == ("small", 2)
        assert device.ask("fails", 2, timeout_s=WAIT_S, fallback=small) == ("small", 2)


def test_offline_the_fallback_answers_at_once(make_device):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"localhost:{closed.getsockname()[1]}"
    with make_device(address) as device:
        until(lambda: device.last_error)
        with pytest.raises(OfflineError, match=address):
            device.ask("double", 2, timeout_s=WAIT_S)
        assert device.ask("double", 2, timeout_s=WAIT_S, fallback=lambda value: -value) == -2


def test_a_cut_ends_the_requests_that_wait(answering, make_device):
    with answering.running() as address, Proxy(address) as proxy, make_device(proxy.address) as device:
        device.wait_connected(WAIT_S)
        failed = []

        def ask():
            with pytest.raises(OfflineError) as caught:
                device.ask("never", 1, timeout_s=WAIT_S)
            failed.append(caught.value)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: answering.worker.sessions["ann"].owner.tasks)
        proxy.cut()
        thread.join(WAIT_S)
        assert failed
        device.wait_connected(WAIT_S)
        assert device.ask("double", 1, timeout_s=WAIT_S) == 2, "the next one goes over a new connection"


def test_the_cloud_asks_a_device(make_server, make_device):
    server = make_server()
    with server.running() as address:
        device = make_device(address)
        device.answer("state", lambda value: {"uptime": value})
        with device:
            device.wait_connected(WAIT_S)

            async def ask():
                return await server.worker.ask("ann", "state", 5, WAIT_S)

            assert asyncio.run_coroutine_threadsafe(ask(), server.worker.loop).result(WAIT_S) == {"uptime": 5}
            with pytest.raises(OfflineError, match="bob is not connected"):
                server.worker.ask("bob", "state", 5)


def test_async_device(answering, settings_of, tmp_path):
    async def use(address):
        device = AsyncDevice(address.replace("127.0.0.1", "localhost"), tmp_path / "ann.sqlite", **settings_of("ann"))
        async with device:
            await device.wait_connected(WAIT_S)
            await device.send_many("c", [b"1", b"2"], identities=["one", "two"])
            values = await asyncio.gather(*(device.ask("double", n, timeout_s=WAIT_S) for n in range(100)))
            assert values == [n * 2 for n in range(100)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(device.ask("never", 1), 0.05)
            assert await device.wait_sent(WAIT_S)

    with answering.running() as address:
        asyncio.run(use(address))
    assert rows(tmp_path / "cloud.sqlite") == [("ann", "c", "one", b"1"), ("ann", "c", "two", b"2")]


# ---- messages


def test_an_id_counts_once_also_from_a_new_store(make_server, make_device, tmp_path):
    server = make_server()
    with server.running() as address:
        for number in range(2):  # the device lost its store in between
            with make_device(address, tmp_path / f"store-{number}.sqlite") as device:
                device.send("c", b"first", identity="chosen")
                device.send("c", b"other %d" % number)
                assert device.wait_sent(WAIT_S)
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"first", b"other 0", b"other 1"]


def test_a_store_from_a_backup_counts_anew(make_server, make_device, tmp_path):
    """Its numbers were used before: new messages with these numbers are not taken for known ones."""
    server = make_server()
    store = tmp_path / "ann.sqlite"
    with server.running() as address:
        with make_device(address) as device:
            device.send("c", b"1")
            assert device.wait_sent(WAIT_S)
        backup = store.read_bytes()
        with make_device(address) as device:
            device.send_many("c", [b"2", b"3"])
            assert device.wait_sent(WAIT_S)
        store.write_bytes(backup)
        for side in ("-wal", "-shm", "-lock"):
            (tmp_path / f"ann.sqlite{side}").unlink(missing_ok=True)
        with make_device(address) as device:
            device.send("c", b"4")
            assert device.wait_sent(WAIT_S)
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"1", b"2", b"3", b"4"]


def test_a_callable_gets_ids_and_may_refuse(make_server, make_device, tmp_path):
    taken, tries = [], []

    def take(message):
        if message.body == b"bad":
            raise MessageRefused("not a number")
        if message.body == b"2" and len(tries) < 2:
            tries.append(1)
            raise RuntimeError("try again")
        taken.append((message.peer, message.id, message.body))

    server = make_server(table=None)
    server.consume("c", take)
    with server.running() as address, make_device(address) as device:
        device.send_many("c", [b"1", b"bad", b"2", b"3"], identities=["a", "b", "c", "d"])
        assert device.wait_sent(WAIT_S)
    assert taken == [("ann", "a", b"1"), ("ann", "c", b"2"), ("ann", "d", b"3")] and len(tries) == 2
    assert rows(tmp_path / "cloud.sqlite", "SELECT peer, id, why, body FROM tunnel_refused") == [
        ("ann", "b", "not a number", b"bad")
    ]


def test_a_channel_without_a_consumer_stays_on_the_device(make_server, make_device, tmp_path, caplog):
    server = make_server(table=None)
    server.consume("taken", lambda message: None)
    with server.running() as address, make_device(address) as device:
        device.send("lost", b"?")
        device.send("taken", b"!")
        until(lambda: not device.store.outbox.size("taken")[0] and "no consumer" in caplog.text)
        assert [entry.channel for entry in device.store.outbox.take()] == ["lost"]
    with make_server().running() as address, make_device(address) as device:
        assert device.wait_sent(WAIT_S), "a server that takes it gets it"


@pytest.mark.parametrize("when_full", ["oldest", "refuse", "replace"])
def test_rules_of_a_full_outbox(make_device, when_full):
    rules = {"c": Rule(max_count=3, when_full=when_full), "d": Rule(max_bytes=1000)}
    with make_device("localhost:1", rules=rules) as device:
        for number in range(3):
            device.send("c", b"%d" % number)
        with pytest.raises(OutboxFullError, match="channel c: 3 messages") if when_full == "refuse" else _nothing():
            device.send("c", b"new")
        kept = [entry.body for entry in device.store.outbox.take("c")]
        assert kept == {"oldest": [b"1", b"2", b"new"], "refuse": [b"0", b"1", b"2"], "replace": [b"new"]}[when_full]
        for _ in range(30):
            device.send("d", bytes(100))
        assert device.store.outbox.size("d")[1] <= 1000
        with pytest.raises(TunnelConfigurationError, match="expected bytes, got str"):
            device.send("c", "text")


_nothing = contextlib.nullcontext


def test_a_full_disk_of_the_cloud_holds_messages_up(make_server, make_device, tmp_path, monkeypatch, caplog):
    from vmhost.stores import StoreFullError
    from vmhost.tunnel.inbox import Inbox

    full, tried = threading.Event(), threading.Event()
    full.set()
    keep = Inbox.keep

    def no_room(self, arrivals):
        if full.is_set():
            tried.set()
            raise StoreFullError("the disk is full")
        return keep(self, arrivals)

    monkeypatch.setattr(Inbox, "keep", no_room)
    server = make_server()
    with server.running() as address, make_device(address) as device:
        device.send_many("c", [b"%d" % n for n in range(10)])
        assert tried.wait(WAIT_S)
        assert len(device.store.outbox) == 10, "nothing is acknowledged that is not kept"
        full.clear()
        assert device.wait_sent(WAIT_S)
    assert "wait until the store can be written" in caplog.text
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"%d" % n for n in range(10)]


# ---- pushes


def test_pushes_reach_a_device_that_is_there_and_one_that_comes_back(make_server, make_device, tmp_path):
    server, received = make_server(), Heard()
    with server.running() as address:
        server.push("ann", "news", b"1")
        device = make_device(address)
        device.on("news", received)
        with device:
            received.wait(1)
            server.push("ann", "news", b"2")
            server.push("bob", "news", b"not for ann")
            received.wait(2)
        server.push("ann", "news", b"3")
        device = make_device(address)
        device.on("news", received)
        with device:
            received.wait(3)
            server.push("ann", "news", b"4")
            received.wait(4)
    assert received.values == [b"1", b"2", b"3", b"4"]


def test_expiry_collapse_and_bounds_of_pushes(tmp_path):
    running = [1_000_000]
    with Database(tmp_path / "cloud.sqlite") as database:
        pushes = Pushes(database, running=lambda: ("boot", running[0]))
        pushes.put("ann", "c", b"stays")
        pushes.put("ann", "c", b"expires", ttl_s=10)
        pushes.put("ann", "c", b"old", collapse="k")
        pushes.put("ann", "c", b"new", collapse="k")
        pushes.put("ann", "other", b"apart", collapse="k")
        pushes.put("ann", "c", b"again", identity="same")
        pushes.put("ann", "c", b"again", identity="same")

        def waiting(channel="c"):
            return [body for _, _, body in pushes.take("ann", channel)[1]]

        assert waiting() == [b"stays", b"expires", b"new", b"again"] and waiting("other") == [b"apart"]
        running[0] += 11_000
        assert waiting() == [b"stays", b"new", b"again"]
        for number in range(4):
            pushes.put("ann", "c", b"%d" % number, max_waiting=3)
        assert waiting() == [b"1", b"2", b"3"]
        with pytest.raises(OutboxFullError, match="3 pushes wait for ann on c"):
            pushes.put("ann", "c", b"x", max_waiting=3, when_full="refuse")
        assert database.counters() == {"pushes.collapsed": 1, "pushes.expired": 1, "pushes.dropped": 4}


def test_a_push_that_failed_on_the_device_comes_again(make_server, make_device):
    server, received, tries = make_server(), Heard(), []

    def take(message):
        tries.append(message.id)
        if len(tries) < 3:
            raise RuntimeError("not yet")
        received(message)

    with server.running() as address:
        device = make_device(address)
        device.on("news", take)
        with device:
            server.push("ann", "news", b"1", identity="chosen")
            received.wait(1)
    assert tries == ["chosen"] * 3


# ---- streams, flow control, priorities


def test_streams_in_both_directions(make_server, settings_of, tmp_path):
    server = make_server()

    @server.stream("upper")
    async def upper(stream):
        assert stream.value == {"name": "x"} and stream.device == "ann"
        async for piece in stream:
            await stream.write(piece.upper())

    @server.stream("fails")
    async def fails(stream):
        await stream.read()
        raise ValueError("not this")

    async def use(address):
        async with AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann")) as device:
            await device.wait_connected(WAIT_S)
            stream = await device.open_stream("upper", {"name": "x"})
            data = b"abcdefgh" * 200_000  # many windows

            async def write():
                await stream.write(data)
                await stream.end()

            writing = asyncio.create_task(write())
            back = b"".join([piece async for piece in stream])
            await writing
            assert back == data.upper()
            for channel, why in (("fails", "ValueError: not this"), ("none", "nobody takes streams")):
                stream = await device.open_stream(channel)
                await stream.write(b"x")
                with pytest.raises(StreamBrokenError, match=why):
                    while await stream.read():
                        pass

    with server.running() as address:
        asyncio.run(use(address.replace("127.0.0.1", "localhost")))


def test_streams_for_threads(make_server, make_device):
    server = make_server()
    received = []

    @server.stream("upper")
    async def upper(stream):
        try:
            async for piece in stream:
                await stream.write(piece.upper())
        except StreamBrokenError as error:
            received.append(str(error))

    with server.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        with device.open_stream("upper", {"name": "x"}) as stream:
            data = b"abcd" * 10_000
            stream.write(data)
            stream.end()
            assert b"".join(stream) == data.upper()
        with pytest.raises(KeyError), device.open_stream("upper") as stream:
            raise KeyError("of the program")
        until(lambda: received)
    assert "KeyError: 'of the program'" in received[0]


def test_who_does_not_read_stops_nobody_else(make_server, settings_of, tmp_path):
    """A stream that nobody reads, and a consumer that hangs: other channels go on, and memory is bounded."""
    server = make_server()
    go_on = threading.Event()
    server.consume("slow", lambda message: go_on.wait(WAIT_S))
    server.answer("echo", lambda request: request.value, quick=True)

    @server.stream("deaf")
    async def deaf(stream):
        await asyncio.sleep(3600)

    async def use(address):
        async with AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann")) as device:
            await device.wait_connected(WAIT_S)
            stream = await device.open_stream("deaf")
            writing = asyncio.create_task(stream.write(bytes(4 << 20)))
            for _ in range(40):
                await device.send("slow", bytes(100_000))
            await device.send("quick", b"here")
            for number in range(50):
                assert await device.request("echo", number, WAIT_S) == number
            while await asyncio.to_thread(device.store.outbox.size, "quick") != (0, 0):
                await asyncio.sleep(0)
            assert not writing.done()
            transport = next(iter(server.worker.transports))
            channels = transport.connection._incoming.values()
            assert max(channel.window for channel in channels) <= server.limits.window_bytes
            go_on.set()
            assert await device.wait_sent(WAIT_S)
            writing.cancel()

    with server.running() as address:
        asyncio.run(use(address.replace("127.0.0.1", "localhost")))


def test_a_small_message_goes_before_a_large_one(make_server):
    """Among waiting messages the channel with the higher priority goes first, between two fragments of another one."""
    from tests.tunnel.test_hostile import greeted
    from vmhost.tunnel import events

    device, cloud = greeted(client=True)
    device._priorities = {"small": 0, "large": 7}
    device.request("large", bytes(99_000))
    first = device.data_to_send(1)
    device.request("small", "now")
    order, sent = [], len(first)
    for event in cloud.receive(first, 0):
        order.append(event)
    while data := device.data_to_send(1):
        sent += len(data)
        for event in cloud.receive(data, 0):
            assert isinstance(event, events.Requested)
            order.append((event.channel, sent))
    assert [channel for channel, _ in order] == ["small", "large"]
    assert order[0][1] < 70_000, "more than one fragment went before it"


# ---- connections


def test_a_half_open_connection_is_found_and_replaced(make_server, make_device, monkeypatch, tmp_path):
    """The network drops everything silently. An end that waits for an answer pings, and reconnects elsewhere."""
    from vmhost.tunnel import heartbeat

    monkeypatch.setattr(heartbeat, "_PROBE_S", 0.05)
    monkeypatch.setattr(heartbeat, "_PATIENCE_S", 0.2)
    server = make_server()
    with server.running() as address, Proxy(address) as dark, make_device(dark.address) as device:
        device.wait_connected(WAIT_S)
        dark.hold()
        device.send("c", b"into the dark")
        while dark.connections < 2:
            assert not device.wait_sent(0.01)
        monkeypatch.undo()  # a busy machine must not count as silent
        dark.release()
        assert device.wait_sent(WAIT_S)
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"into the dark"]


def test_a_newer_connection_replaces_the_older_one(make_server, make_device, tmp_path):
    server = make_server()
    with server.running() as address, make_device(address) as first:
        first.wait_connected(WAIT_S)
        with make_device(address, tmp_path / "copy.sqlite") as second:
            second.send("c", b"x")
            assert second.wait_sent(WAIT_S)


def test_a_restart_of_the_server_loses_nothing(make_server, make_device, tmp_path):
    with Proxy("127.0.0.1:1") as proxy, make_device(proxy.address) as device:
        for number in range(6):
            with make_server().running() as address:
                proxy.retarget(address)
                device.send("c", b"%d" % number)
                device.wake()
                assert device.wait_sent(WAIT_S)
            proxy.retarget("127.0.0.1:1")
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"%d" % number for number in range(6)]


def test_a_server_starts_while_other_files_are_opened(make_server, monkeypatch):
    """The number that its status socket was bound by is that of another file as soon as it is closed."""
    short_address, others = pushes.short_address, []

    @contextlib.contextmanager
    def taken_at_once(folder, name):
        with short_address(folder, name) as address:
            yield address
        others.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    monkeypatch.setattr(pushes, "short_address", taken_at_once)
    try:
        with make_server().running():
            assert others
    finally:
        for handle in others:
            os.close(handle)


def test_drain_moves_devices_to_another_server(make_server, make_device, tmp_path):
    """Two servers with one store, as two processes are: the one that drains lets its devices go; nothing is lost."""
    first, second = make_server(), make_server()
    with second.running() as there, contextlib.ExitStack() as stack:
        here = stack.enter_context(first.running(drain_s=WAIT_S))
        with Proxy(here) as proxy, make_device(proxy.address) as device:
            device.wait_connected(WAIT_S)
            device.send("c", b"before")
            assert device.wait_sent(WAIT_S)
            proxy.retarget(there)
            stack.close()  # returns when the device has gone
            device.send("c", b"after")
            assert device.wait_sent(WAIT_S)
            assert list(second.worker.sessions) == ["ann"]
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"before", b"after"]


def test_sleep_and_wake(make_server, make_device):
    server = make_server()
    with server.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        device.sleep()
        until(lambda: not server.worker.sessions)
        device.send("c", b"while asleep")
        assert not device.wait_sent(0.2)
        device.wake()
        assert device.wait_sent(WAIT_S)


def test_several_addresses(make_server, make_device, settings_of, tmp_path):
    with make_server().running() as address:
        port = address.rpartition(":")[2]
        several = [("localhost", 1), ("localhost", int(port))]
        quick = Backoff(several, first_s=0.01, longest_s=0.05)
        with make_device(f"localhost:1,localhost:{port}", backoff=quick) as device:
            device.wait_connected(WAIT_S)


def test_a_session_is_resumed(make_server, make_device):
    server = make_server()
    with server.running() as address, Proxy(address) as proxy, make_device(proxy.address) as device:
        device.wait_connected(WAIT_S)
        device.send("c", b"x")
        device.wait_sent(WAIT_S)
        proxy.cut()
        device.send("c", b"y")
        assert device.wait_sent(WAIT_S)
        assert server.worker.counts["resumed"] == 1, "the second handshake was a full one"


# ---- who is let in


@pytest.mark.parametrize("ends", [(False, False), (True, True), (True, False), (False, True)], ids=str)
def test_keys_are_agreed_on_with_and_without_ml_kem(make_server, make_device, ends):
    with make_server(post_quantum=ends[0]).running() as address:
        with make_device(address, post_quantum=ends[1]) as device:
            device.send("c", b"x")
            assert device.wait_sent(WAIT_S)


def test_a_hello_is_small(keys):
    """With ML-KEM it would have 1.2 KB more, as OpenSSL 3.5 and newer would have it."""
    import ssl

    from vmhost.tunnel.tls import device_context

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = device_context(keys / "ca.pem").wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        near.do_handshake()
    assert outgoing.pending < 400


def test_tokens(make_server, make_device, keys, tmp_path):
    from vmhost.tunnel.tokens import Tokens

    file = tmp_path / "tokens"
    file.write_text("# devices\ndora 0123456789abcdefgh\n")
    file.chmod(0o600)
    server = make_server(client_ca=None, identify=Tokens(file))
    plain = {"certificate": None, "key": None}
    with server.running() as address:
        with make_device(address, token="0123456789abcdefgh", **plain) as device:
            device.send("c", b"hello")
            assert device.wait_sent(WAIT_S)
        for token, why in (("wrong", "the token is not known"), (None, "a token or a client certificate is required")):
            with make_device(address, token=token, **plain) as device:
                until(lambda why=why: why in (device.last_error or ""))
                with pytest.raises(OfflineError):
                    device.wait_connected(0.01)
    assert rows(tmp_path / "cloud.sqlite", "SELECT device FROM messages") == [("dora",)]
    file.chmod(0o644)
    with pytest.raises(TunnelConfigurationError, match="chmod 600"):
        Tokens(file)
    file.write_text("dora short\n")
    file.chmod(0o600)
    with pytest.raises(TunnelConfigurationError, match=":1: expected a device"):
        Tokens(file)


@pytest.mark.parametrize(
    ("shift_days", "why"), [(-900, "certificate has expired"), (30, "certificate is not yet valid")]
)
def test_certificates_of_another_time(make_server, make_device, keys, tmp_path, caplog, shift_days, why):
    """An expired certificate, or a wrong clock: the device is refused, and both sides say why."""
    import shutil

    folder = tmp_path / "other-keys"
    folder.mkdir()
    for name in ("ca.pem", "ca.key", "server.pem"):
        shutil.copy(keys / name, folder)
    make_certificates(folder, ["late"], now=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=shift_days))
    server = make_server()
    with server.running() as address:
        late = {"certificate": folder / "late.pem", "key": folder / "late.key"}
        with make_device(address, **late) as device:
            until(lambda: why in caplog.text)
            with pytest.raises(OfflineError):
                device.wait_connected(0.01)
    assert server.worker is None


def test_an_expired_certificate_is_not_let_in_by_a_resumed_session(make_server, make_device, monkeypatch, caplog):
    from vmhost.tunnel import worker

    server = make_server()
    with server.running() as address, Proxy(address) as proxy, make_device(proxy.address) as device:
        device.wait_connected(WAIT_S)
        device.send("c", b"x")
        device.wait_sent(WAIT_S)
        later = worker.time.time() + 900 * 86_400
        monkeypatch.setattr(worker.time, "time", lambda: later)
        proxy.cut()
        until(lambda: "certificate expired" in (device.last_error or ""))
        monkeypatch.undo()


def test_a_server_that_another_ca_signed_is_not_trusted(make_server, make_device, tmp_path):
    make_certificates(tmp_path / "others", [])
    others = tmp_path / "others"
    server = make_server(certificate=others / "server.pem", key=others / "server.key")
    with server.running() as address, make_device(address) as device:
        until(lambda: re.search(r"TLS: .*\(--ca\)", device.last_error or ""))
        with pytest.raises(OfflineError):
            device.wait_connected(0.01)


def test_strangers_get_one_line(make_server, caplog):
    """Plain HTTP, nothing at all, and a connection that says nothing."""
    server = make_server()
    with server.running() as address:
        where = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(where):
            pass
        with socket.create_connection(where) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(1000):
                pass
        until(lambda: not server.worker.transports)
    with make_server(greeting_s=0.1).running() as address:
        where = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(where) as silent:
            silent.settimeout(WAIT_S)
            assert silent.recv(100) == b""
    assert "an HTTP client" in caplog.text and "no greeting within 0.1 s" in caplog.text
    assert len(caplog.records) == 2, caplog.text
