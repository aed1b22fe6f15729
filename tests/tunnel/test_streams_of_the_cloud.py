"""Streams and requests that the cloud begins, to devices by their names."""

import asyncio
import threading

import pytest

from tests.tunnel.conftest import WAIT_S, until
from tests.tunnel.proxy import Proxy
from vmhost.tunnel import AsyncDevice, NoAnswerError, OfflineError, StreamBrokenError

LARGE = b"abcdefgh" * 100_000  # several windows


def upper(stream):
    for piece in stream:
        stream.write(piece.upper())


def fails(stream):
    stream.read()
    raise ValueError("not this")


def everything(stream):
    """Writes LARGE from a thread of its own, and reads until the end."""
    writing = threading.Thread(target=lambda: (stream.write(LARGE), stream.end()))
    writing.start()
    back = b"".join(stream)
    writing.join()
    return back


def test_the_cloud_opens_streams_to_devices_for_threads(make_server, make_device):
    server = make_server()
    with server.running() as address:
        device = make_device(address)
        device.stream("upper", upper)
        device.stream("fails")(fails)
        received = []
        device.stream("value", lambda stream: received.append(stream.value))
        device.answer("state", lambda value: {"uptime": value})
        device.answer("slow", lambda value: done.wait(WAIT_S))
        done = threading.Event()
        with device:
            device.wait_connected(WAIT_S)
            assert everything(server.call(server.open_stream("ann", "upper"))) == LARGE.upper()
            with server.call(server.open_stream("ann", "value", {"from": 7})) as stream:
                assert stream.read() == b"", "the device has ended it"
            assert received == [{"from": 7}]
            for channel, why in (("fails", "ValueError: not this"), ("none", "nobody takes streams on channel none")):
                stream = server.call(server.open_stream("ann", channel))
                with pytest.raises(StreamBrokenError, match=why):
                    stream.write(b"x")
                    stream.read()
            assert server.call(server.ask("ann", "state", 5, WAIT_S)) == {"uptime": 5}
            with pytest.raises(NoAnswerError, match=r"ann: no answer within 0\.05 s"):
                server.call(server.ask("ann", "slow", None, 0.05))
            done.set()
            session = server.worker.sessions["ann"].owner
            until(lambda: not session.streams and not device._inner._streams and not session.asked)
        until(lambda: not server.worker.sessions)
        with pytest.raises(OfflineError, match="ann is not connected"):
            server.call(server.open_stream("ann", "upper"))
    with pytest.raises(OfflineError, match="does not serve"):
        server.call(server.ask("ann", "state", 5))


def test_a_device_serves_streams_on_its_loop_while_it_has_some_of_its_own(make_server, settings_of, tmp_path):
    server = make_server()
    server.stream("upper", upper)  # on a thread of the server's

    async def lower(stream):
        async for piece in stream:
            await stream.write(piece.lower())

    async def use(address):
        device = AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann"))
        device.stream("lower", lower)
        async with device:
            await device.wait_connected(WAIT_S)

            async def own():
                stream = await device.open_stream("upper")
                writing = asyncio.create_task(stream.write(LARGE))
                writing.add_done_callback(lambda done: asyncio.ensure_future(stream.end()))
                return b"".join([piece async for piece in stream])

            def of_the_cloud():
                return everything(server.call(server.open_stream("ann", "lower")))

            assert await asyncio.gather(own(), asyncio.to_thread(of_the_cloud), own()) == [
                LARGE.upper(), LARGE.lower(), LARGE.upper(),
            ]  # fmt: skip

    with server.running() as address:
        asyncio.run(use(address.replace("127.0.0.1", "localhost")))


def test_a_cut_breaks_streams_at_both_ends_and_new_ones_open(make_server, make_device):
    server, broken, began = make_server(), [], threading.Event()

    def waits(stream):
        began.set()
        try:
            stream.read()
        except StreamBrokenError as error:
            broken.append(str(error))

    with server.running() as address, Proxy(address) as proxy:
        device = make_device(proxy.address)
        device.stream("waits", waits)
        device.stream("upper", upper)
        with device:
            device.wait_connected(WAIT_S)
            stream = server.call(server.open_stream("ann", "waits"))
            assert began.wait(WAIT_S)
            proxy.cut()
            with pytest.raises(StreamBrokenError):
                stream.read()
            until(lambda: broken)
            device.wait_connected(WAIT_S)
            until(lambda: "ann" in server.worker.sessions)
            assert everything(server.call(server.open_stream("ann", "upper"))) == LARGE.upper()


def test_a_device_ends_while_it_serves(make_server, make_device):
    server, ended = make_server(), threading.Event()

    def reads(stream):
        try:
            stream.read()
        finally:
            ended.set()

    async def sleeps(stream):
        await asyncio.sleep(3600)

    with server.running() as address:
        device = make_device(address)
        device.stream("reads", reads)
        device.stream("sleeps", sleeps)
        with device:
            device.wait_connected(WAIT_S)
            streams = [server.call(server.open_stream("ann", channel)) for channel in ("reads", "sleeps")]
            until(lambda: len(device._inner._serving) == 2)
        assert ended.is_set()
        for stream in streams:
            with pytest.raises(StreamBrokenError):
                stream.read()
