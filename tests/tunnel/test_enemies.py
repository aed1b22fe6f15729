"""Malicious devices with valid credentials: they ask and do not read, claim to be others, and state odd limits. The
server goes on serving the others, and its memory stays bounded."""

import array
import contextlib
import fcntl
import logging
import random
import socket
import ssl
import termios
import threading
import tracemalloc

import pytest

from tests.tunnel.conftest import WAIT_S, bodies, rows, until
from tests.tunnel.test_hostile import mutated, transcript
from vmhost.stores import Database
from vmhost.tunnel import device, frames, offenders
from vmhost.tunnel.addresses import parse
from vmhost.tunnel.backoff import Backoff
from vmhost.tunnel.errors import ProtocolError
from vmhost.tunnel.inbox import Inbox
from vmhost.tunnel.training import train
from vmhost.tunnel.transport import EVENTS_AT_ONCE, UNREAD_BYTES

HELLO = {"epoch": b"raw", "received": {}, "limits": {}, "heartbeat_ms": 30_000}


class Raw:
    """A device that sends the test's frames, one by one."""

    def __init__(self, address, settings, **greeting):
        context = ssl.create_default_context(cafile=settings["ca"])
        if settings.get("certificate"):
            context.load_cert_chain(settings["certificate"], settings["key"])
        plain = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), WAIT_S)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self._decoder, self._frames = frames.Decoder(), []
        self.send(frames.HELLO, frames.VERSION, HELLO | greeting)

    def send(self, *frame):
        self.socket.sendall(frames.encode(*frame))

    def receive(self):
        """The next frame; None at the end."""
        while not self._frames:
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += list(self._decoder.feed(data))
        return self._frames.pop(0)

    def receive_kind(self, kind):
        while (frame := self.receive()) is not None:
            if frame[0] == kind:
                return frame
        raise AssertionError(f"no {frames.NAMES[kind]} came")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()


def connection_of(server, device):
    return server.worker.sessions[device].connection


@pytest.mark.parametrize("how", ["answers", "pings"])
def test_who_asks_and_does_not_read_is_not_read_either(make_server, make_device, settings_of, how):
    server = make_server()
    server.answer("big", lambda request: bytes(20_000), quick=True)
    server.answer("echo", lambda request: request.value, quick=True)
    count = 20_000 if how == "answers" else 2_000_000
    with (
        server.running() as address,
        Raw(address, settings_of("ann")) as enemy,
        make_device(address, name="bob") as bob,
    ):
        enemy.receive_kind(frames.WELCOME)
        bob.wait_connected(WAIT_S)
        if how == "answers":
            asked = frames.encode(frames.CHANNEL, 0, "big", 4)
            asked += b"".join(frames.encode(frames.REQUEST, number, 0, 0, None) for number in range(count))
        else:
            asked = b"".join(frames.encode(frames.PING, 1, 30_000) for _ in range(1000)) * (count // 1000)
        sending = threading.Thread(target=lambda: _sent(enemy, asked))
        sending.start()
        connection = connection_of(server, "ann")
        # it rests between half of the bound, where it would read again, and the bound
        until(lambda: connection.queued_bytes > UNREAD_BYTES // 2 or not sending.is_alive())
        highest = 0
        for number in range(200):
            assert bob.ask("echo", number, timeout_s=WAIT_S) == number
            highest = max(highest, connection.queued_bytes)
        assert highest < 8 << 20, "what it does not read piles up"
        # it reads again: the rest comes
        kind, came = (frames.RESPONSE, frames.PONG)[how == "pings"], 0
        while came < min(count, 5000):
            enemy.receive_kind(kind)
            came += 1
        enemy.socket.shutdown(socket.SHUT_RDWR)
        sending.join(WAIT_S)


def _sent(enemy, data):
    with contextlib.suppress(OSError):
        enemy.socket.sendall(data)


def test_requests_that_wait_are_bounded_by_bytes(make_server, settings_of):
    server = make_server()
    stuck = threading.Event()
    server.answer("stuck", lambda request: stuck.wait(WAIT_S))
    with server.running() as address, Raw(address, settings_of("ann")) as enemy:
        try:
            enemy.receive_kind(frames.WELCOME)
            enemy.send(frames.CHANNEL, 0, "stuck", 4)
            for number in range(40):
                body = frames.pack((frames.REQUEST, number, 0, 0, bytes(1_000_000)))
                for at in range(0, len(body), 32_000):
                    enemy.send(frames.FRAGMENT, 0, at + 32_000 >= len(body), body[at : at + 32_000])
            answer = enemy.receive_kind(frames.RESPONSE)
            assert answer[1] == 8 and answer[2] == 1 and "wait already" in answer[3]
            assert connection_of(server, "ann")._asked_bytes <= server.limits.fragments_bytes
        finally:
            stuck.set()


@pytest.mark.parametrize(("identity", "at_once"), [("", 1), ("", 200), ("x" * 250, 40), ("\U0001f600" * 250, 10)])
def test_messages_that_wait_take_the_memory_that_is_allowed(make_server, settings_of, identity, at_once):
    """Messages without bodies: what they take is their ids, and the objects around them."""
    allowed, stuck = 1 << 20, threading.Event()
    server = make_server(table=None, device_pending_bytes=allowed)
    server.consume("*", lambda message: stuck.wait(WAIT_S))
    sent = b"".join(frames.encode(frames.CHANNEL, alias, f"c{alias}", 4) for alias in range(40))
    for start in range(1, 400, at_once):  # more than is allowed, if each counted 100 bytes only
        flat = [each for number in range(start, start + at_once) for each in (number, identity, b"")]
        sent += b"".join(frames.encode(frames.MESSAGES, alias, flat) for alias in range(40))
    with server.running() as address, Raw(address, settings_of("ann")) as enemy:
        try:
            enemy.receive_kind(frames.WELCOME)
            tracemalloc.start()
            sending = threading.Thread(target=_sent, args=(enemy, sent))
            sending.start()
            until(lambda: server.worker._paused)
            held, _ = tracemalloc.get_traced_memory()
            assert server.worker.statistics()["pending_bytes"] >= allowed
            assert held < allowed * 3 // 2
        finally:
            tracemalloc.stop()
            stuck.set()
            enemy.socket.shutdown(socket.SHUT_RDWR)
            sending.join(WAIT_S)


def test_odd_limits_of_a_device_trouble_nobody(make_server, make_device, settings_of, tmp_path, caplog):
    """It takes one channel of 10 bytes, and there are two dictionaries and pushes on three channels for it."""
    server = make_server()
    server.prepare()
    server.answer("a", lambda request: "an answer of more than ten bytes", quick=True)
    with Database(tmp_path / "cloud.sqlite", shared=True) as database:
        for channel in ("c", "d"):
            samples = [b'{"channel": "%s", "number": %d}' % (channel.encode(), n) * 5 for n in range(400)]
            Inbox(database).keep_dictionary(channel, None, train(samples, 2048))
    for channel in ("p", "q", "r"):
        server.push("ann", channel, b"x" * 100)
    limits = {"channels": 1, "message_bytes": 10, "window_bytes": 1, "requests": 1, "streams": 1}
    with server.running() as address, make_device(address, name="bob") as bob:
        for _ in range(3):
            with Raw(address, settings_of("ann"), limits=limits) as enemy:
                enemy.receive_kind(frames.WELCOME)
                enemy.send(frames.CHANNEL, 0, "a", 4)
                enemy.send(frames.REQUEST, 0, 0, 0, None)
                enemy.send(frames.OPEN, 0, 0, None)
                enemy.send(frames.PING, 1, 30_000)
                while (frame := enemy.receive()) is not None and frame[0] not in (frames.PONG, frames.CLOSE):
                    pass
        bob.send("c", b"hello")
        assert bob.wait_sent(WAIT_S)
    assert rows(tmp_path / "cloud.sqlite") and not [each for each in caplog.records if each.exc_info], caplog.text
    assert [each for each in caplog.records if each.name == "asyncio" and each.levelno >= logging.ERROR] == []


def test_a_device_is_who_its_certificate_says(make_server, settings_of, tmp_path):
    """Not who it says it is, nor whose token it has; and ids that others used are its own to use."""
    server = make_server(identify=lambda token: token)
    with server.running() as address:
        for name, greeting in (("bob", {}), ("ann", {"device": "bob", "token": "bob"})):
            with Raw(address, settings_of(name), **greeting) as raw:
                assert raw.receive_kind(frames.WELCOME)[2]["device"] == name
                raw.send(frames.CHANNEL, 0, "c", 4)
                raw.send(frames.MESSAGES, 0, [1, "the same id", name.encode()])
                assert raw.receive_kind(frames.ACK) == [frames.ACK, 0, 1]
    expected = [(name, "c", "the same id", name.encode()) for name in ("bob", "ann")]
    assert rows(tmp_path / "cloud.sqlite") == expected


def test_lies_about_what_was_received_harm_nobody_else(make_server, settings_of, tmp_path):
    """A device that claims pushes which were never sent loses its own; the numbers of others keep their epoch."""
    server = make_server()
    with server.running() as address:
        server.push("bob", "news", b"for bob", identity="once")
        with Raw(address, settings_of("bob")) as bob:
            epoch = bob.receive_kind(frames.WELCOME)[2]["epoch"]
            assert bob.receive_kind(frames.MESSAGES)[2][2] == b"for bob"
        with Raw(address, settings_of("ann"), received={epoch: {"news": 1 << 40, "other": 7}, b"made up": {"a": 1}}):
            pass
        with Raw(address, settings_of("bob"), received={epoch: {"news": 1}}) as bob:  # the acknowledgement was lost
            assert bob.receive_kind(frames.WELCOME)[2]["epoch"] == epoch
            server.push("bob", "news", b"the next", identity="then")
            assert bob.receive_kind(frames.MESSAGES)[2][1:] == ["then", b"the next"]
        server.push("ann", "news", b"1")
        with Raw(address, settings_of("ann"), received={b"an epoch of another store": {"news": 1 << 40}}) as raw:
            assert raw.receive_kind(frames.MESSAGES)[2][2] == b"1"


@pytest.mark.parametrize("item", [b"\x80", b"\x90", b"\x81\xc0\xc0"], ids=["maps", "lists", "maps of one"])
def test_a_frame_of_millions_of_empty_containers_is_refused_in_time(item):
    count = 1_300_000
    body = b"\x95\x08\x00\x00\x00\xdd" + count.to_bytes(4, "big") + item * count
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="is not msgpack: ValueError"):
            frames.checked(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000, f"{peak} bytes for {len(body)}"


def test_pieces_of_a_stream_take_no_more_than_its_window(make_server, settings_of):
    """One byte a frame; and empty ones, which would need no credit."""
    server = make_server()
    go_on = threading.Event()

    @server.stream("deaf")
    async def deaf(stream):
        import asyncio

        while not go_on.is_set():
            await asyncio.sleep(0.01)

    with server.running() as address, Raw(address, settings_of("ann")) as enemy:
        enemy.receive_kind(frames.WELCOME)
        enemy.send(frames.CHANNEL, 0, "deaf", 4)
        enemy.send(frames.OPEN, 0, 0, None)
        enemy.socket.sendall(frames.encode(frames.DATA, 0, b"x") * 50_000)
        until(lambda: server.worker.sessions["ann"].owner.streams)
        stream = server.worker.sessions["ann"].owner.streams[0]
        until(lambda: len(stream._came) == 50_000)
        assert type(stream._came) is bytearray
        enemy.send(frames.DATA, 0, b"")
        closed = enemy.receive_kind(frames.CLOSE)
        assert closed[1] == 1 and "stream 0: 0 bytes" in closed[2]
        go_on.set()


def test_more_channels_than_the_cloud_takes_stay_in_the_outbox(make_server, make_device, caplog):
    from vmhost.tunnel import Limits

    server = make_server(limits=Limits(channels=2))
    with server.running() as address, make_device(address) as device:
        for channel in "abc":
            device.send(channel, b"x")
        until(lambda: len(device.store.outbox) == 1 and "stay in the outbox" in caplog.text)
        assert [entry.channel for entry in device.store.outbox.take()] == ["c"]


def test_a_message_that_is_too_large_for_the_cloud_is_dropped_and_told(make_server, make_device, caplog, tmp_path):
    from vmhost.tunnel import Limits

    server = make_server(limits=Limits(message_bytes=1000))
    with server.running() as address, make_device(address) as device:
        for size in (10, 5000, 20):
            device.send("c", bytes(size))
        assert device.wait_sent(WAIT_S)
    assert [len(body) for _, _, _, body in rows(tmp_path / "cloud.sqlite")] == [10, 20]
    assert "a message is too large and is dropped: channel c: a message of 5000 bytes" in caplog.text


def test_a_device_that_used_hundreds_of_channels_comes_back(make_server, make_device, tmp_path):
    """More than may be open at a time, and more than a greeting can name; in both directions."""
    server, heard = make_server(), []
    names = [f"channel-{number:03}-{'x' * 60}" for number in range(300)]
    with server.running() as address:
        for start in range(0, len(names), 60):
            device = make_device(address)
            device.on("*", lambda message: heard.append(message.channel))
            with device:
                for name in names[start : start + 60]:
                    device.send(name, b"1")
                    server.push("ann", name, b"1")
                assert device.wait_sent(WAIT_S)
                until(lambda: len(heard) == start + 60)
        device = make_device(address)
        device.on("*", lambda message: heard.append(message.channel))
        with device:
            device.send(names[0], b"2")
            server.push("ann", names[1], b"2")
            assert device.wait_sent(WAIT_S)
            until(lambda: len(heard) == 301)
            assert server.worker.sessions["ann"].connection.counts["received_bytes"] < 20_000
    assert sorted(heard) == sorted([*names, names[1]])
    found = rows(tmp_path / "cloud.sqlite", "SELECT channel, body FROM messages ORDER BY position")
    assert sorted(found) == sorted([(name, b"1") for name in names] + [(names[0], b"2")])


def test_who_breaks_the_protocol_again_and_again_waits_for_its_welcome(make_server, settings_of, monkeypatch):
    monkeypatch.setattr(offenders, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(offenders, "LONGEST_WAIT_S", 3600.0)
    with make_server().running() as address:
        for _ in range(2):  # the first time may be a mishap
            with Raw(address, settings_of("bob")) as bob:
                bob.receive_kind(frames.WELCOME)
                bob.send(frames.ACK, 0, 1 << 40)
                bob.receive_kind(frames.CLOSE)
        with Raw(address, settings_of("bob")) as bob, Raw(address, settings_of("ann")) as ann:
            ann.receive_kind(frames.WELCOME)
            ann.send(frames.PING, 1, 30_000)
            ann.receive_kind(frames.PONG)
            bob.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                bob.receive()


def test_the_longest_wait_of_an_offender_ends_before_it_gives_up_connecting():
    assert offenders.LONGEST_WAIT_S < device.CONNECT_S


def test_offenders_are_forgotten_and_bounded(monkeypatch):
    monkeypatch.setattr(offenders, "FIRST_WAIT_S", 1.0)
    known = offenders.Offenders()
    waits = []
    for _ in range(7):
        known.broke("bob", 100.0)
        waits.append(known.wait_s("bob", 100.0))
    assert waits == [0, 1, 2, 4, 8, 10, 10] and known.wait_s("ann", 100.0) == 0
    assert known.wait_s("bob", 104.0) == 6 and known.wait_s("bob", 200.0) == 0
    known.broke("bob", 111.0 + offenders.FORGOTTEN_S)
    assert known.wait_s("bob", 111.0 + offenders.FORGOTTEN_S) == 0
    monkeypatch.setattr(offenders, "MOST", 3)
    for _ in range(2):
        for name in ("a", "b", "c", "d"):
            known.broke(name, 500.0)
    assert len(known._devices) == 3


def fuzz_a_server(make_server, make_device, settings_of, tmp_path, caplog, connections, seed):
    """Mutated frames of all kinds, over TLS, into a server with consumers, answers, streams and pushes."""
    server, chance = make_server(), random.Random(seed)
    server.consume("b", lambda message: None)
    server.answer("a", lambda request: request.value, quick=True)
    server.answer("b", lambda request: request.value)

    @server.stream("a")
    async def upper(stream):
        async for piece in stream:
            await stream.write(piece.upper())

    pieces = [frames.length(len(body)) + body for body in frames.Decoder().bodies(transcript())]
    small = [piece for piece in pieces if len(piece) < 3000]
    with server.running() as address, make_device(address, name="bob") as bob:
        bob.wait_connected(WAIT_S)
        for number in range(connections):
            server.push("ann", "news", b"x") if number % 10 == 0 else None
            with Raw(address, settings_of("ann")) as enemy, contextlib.suppress(OSError):
                enemy.receive_kind(frames.WELCOME)
                enemy.socket.sendall(b"".join(pieces[: chance.choice((2, 6, len(pieces)))]))
                for _ in range(30):
                    enemy.socket.sendall(mutated(chance, chance.choice(small)))
                enemy.socket.settimeout(0.001)
                with contextlib.suppress(ProtocolError):
                    while enemy.receive() is not None:
                        pass
            if number % 20 == 0:
                assert bob.ask("a", number, timeout_s=WAIT_S) == number
                bob.send("c", b"%d" % number)
        assert bob.wait_sent(WAIT_S)
        until(lambda: set(server.worker.sessions) <= {"bob"})
        until(lambda: server.worker._pending_bytes == 0)
        assert set(server.worker._arrived) <= server.worker.transports and not server.worker._paused
    faults = [each for each in caplog.records if each.exc_info or "internal error" in each.getMessage()]
    assert not faults, caplog.text
    found = rows(tmp_path / "cloud.sqlite", "SELECT body FROM messages WHERE device = 'bob' ORDER BY position")
    assert found == [(b"%d" % number,) for number in range(0, connections, 20)]


def test_mutated_frames_into_a_server(make_server, make_device, settings_of, tmp_path, caplog):
    fuzz_a_server(make_server, make_device, settings_of, tmp_path, caplog, 100, 1)


@pytest.mark.stress
def test_a_hundred_thousand_mutated_frames_into_a_server(make_server, make_device, settings_of, tmp_path, caplog):
    fuzz_a_server(make_server, make_device, settings_of, tmp_path, caplog, 3400, 2)


@pytest.mark.parametrize("blindly", [False, True], ids=["", "and acknowledges blindly"])
def test_pushes_for_a_device_that_does_not_read_stay_in_the_store(make_server, make_device, settings_of, blindly):
    """It states windows of two gigabytes, and 24 pushes of a megabyte wait for it, on three channels."""
    server = make_server()
    server.prepare()
    for number in range(24):
        server.push("ann", "pqr"[number % 3], random.randbytes(1 << 20))
    limits = {"window_bytes": (1 << 31) - 1, "message_bytes": (1 << 31) - 1}
    with server.running() as address, make_device(address, name="bob") as bob:
        with Raw(address, settings_of("ann"), limits=limits) as enemy:
            until(lambda: "ann" in server.worker.sessions)
            connection, highest = connection_of(server, "ann"), 0
            for number in range(6000):
                bob.send("c", b"%d" % number)
                assert bob.wait_sent(WAIT_S)
                highest = max(highest, connection.queued_bytes)
                if number >= 60 and highest > 1 << 19:  # pushes may be read later than bob's first messages come
                    break
                for lane in list(connection._by_alias) if blindly else ():
                    if lane.last:
                        enemy.send(frames.ACK, lane.alias, lane.last)
            assert 1 << 19 < highest < 8 << 20
            if blindly:
                return
            enemy.receive_kind(frames.WELCOME)
            last = {}
            while sum(last.values()) < 24:  # it reads, and acknowledges: all come
                frame = enemy.receive_kind(frames.FRAGMENT)
                if frame[2]:
                    last[frame[1]] = last.get(frame[1], 0) + 1
                    enemy.send(frames.ACK, frame[1], last[frame[1]] * 3 - 2 + frame[1])
            assert last == {0: 8, 1: 8, 2: 8}


def test_two_devices_with_one_name_get_slower_and_lose_nothing(make_server, make_device, tmp_path, caplog):
    waits = []

    class Noted(Backoff):
        def ended(self, lasted_s, progress=False):
            waits.append((lasted_s, progress))
            return super().ended(lasted_s, progress)

    server = make_server()
    with server.running() as address:
        where = address.replace("127.0.0.1", "localhost")
        devices = [
            make_device(address, tmp_path / f"copy-{number}.sqlite", backoff=Noted(parse(where), first_s=0.001))
            for number in range(2)
        ]
        with devices[0], devices[1]:
            for number in range(40):
                for device in devices:
                    device.send("c", b"%d" % number)
            for device in devices:
                assert device.wait_sent(WAIT_S)
            until(lambda: len(waits) >= 6)
    assert (0.0, False) in waits, "a connection that another took counts as one that brought nothing"
    assert "another device with this one's name has connected" in caplog.text
    assert sorted(body for (body,) in bodies(tmp_path / "cloud.sqlite")) == sorted(
        b"%d" % number for number in range(40) for _ in range(2)
    )


def test_who_sends_much_at_once_waits_for_its_turn(make_server, settings_of):
    """What both have sent is there before the loop looks: ann's 5,000 requests, then bob's one."""
    server, order, count = make_server(), [], 5000
    server.answer("note", lambda request: order.append(request.device), quick=True)
    with (
        server.running() as address,
        Raw(address, settings_of("ann")) as ann,
        Raw(address, settings_of("bob")) as bob,
    ):
        for each in (ann, bob):
            each.receive_kind(frames.WELCOME)
            each.send(frames.CHANNEL, 0, "note", 4)
            each.send(frames.REQUEST, 0, 0, 0, None)
            each.receive_kind(frames.RESPONSE)
        order.clear()
        stopped, go_on = threading.Event(), threading.Event()

        def stop():
            stopped.set()
            go_on.wait(WAIT_S)

        server.worker.loop.call_soon_threadsafe(stop)
        assert stopped.wait(WAIT_S)
        asked = b"".join(frames.encode(frames.REQUEST, number, 0, 0, None) for number in range(1, count + 1))
        sending = threading.Thread(target=_sent, args=(ann, asked))
        sending.start()
        until(lambda: _unread(server, "ann") >= 30_000)
        bob.send(frames.REQUEST, 1, 0, 0, None)
        until(lambda: _unread(server, "bob"))
        go_on.set()
        bob.receive_kind(frames.RESPONSE)
        assert order.index("bob") <= 2 * EVENTS_AT_ONCE
        for number in range(1, count + 1):
            assert ann.receive_kind(frames.RESPONSE)[1] == number
        sending.join(WAIT_S)
        assert len(order) == count + 1


def _unread(server, device):
    """The bytes that wait in the server's socket."""
    connected = server.worker.sessions[device]._transport.get_extra_info("socket")
    waiting = array.array("i", [0])
    fcntl.ioctl(connected.fileno(), termios.FIONREAD, waiting)
    return waiting[0]
