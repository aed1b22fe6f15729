"""Over a link with a round trip of 50 ms that is cut again and again: what arrives, how often, and after what time.

The link is a proxy on loopback that holds each byte for 25 ms, and resets all its connections every so often. It loses
no packets: TCP would send them again, and a proxy sees bytes only.
"""

import asyncio
import contextlib
import random
import socket
import sqlite3
import struct
import time

from bench.measure import Figure, Result
from bench.tunnel_peers import Folder, serve_tunnel
from vmhost.tunnel import AsyncDevice

_ONE_WAY_S = 0.025


class Link:
    def __init__(self, target, cut_every_s):
        self._target, self._cut_every_s = target, cut_every_s
        self._writers = set()
        self.cuts = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._cutter = asyncio.create_task(self._cut())
        return self

    async def __aexit__(self, *error):
        self._cutter.cancel()
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0.05)

    async def _cut(self):
        while True:
            await asyncio.sleep(self._cut_every_s)
            for writer in list(self._writers):
                self.cuts += 1
                held = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    async def _carry(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _pass(self, reader, writer):
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                loop.call_later(_ONE_WAY_S, self._write, writer, data)
        loop.call_later(_ONE_WAY_S, writer.transport.abort)

    def _write(self, writer, data):
        if not writer.transport.is_closing():
            writer.write(data)


def cut_links(quick):
    """Messages of 3 KB, sent ten a second, each once in the table; time from `send` to the acknowledgement."""
    seconds, every = (4, 1.5) if quick else (40, 10)
    folder = Folder()
    try:
        port, _ = folder.serve(serve_tunnel, folder)
        count, cuts, latencies = asyncio.run(_cut_link(folder, port, seconds, every))
        connection = sqlite3.connect(folder.path / "cloud.sqlite")
        rows = connection.execute("SELECT count(*), count(DISTINCT id) FROM messages").fetchone()
        connection.close()
    finally:
        folder.close()
    once = rows == (count, count)
    p99 = sorted(latencies)[int(len(latencies) * 0.99)]
    figures = {
        "p50": Figure((sorted(latencies)[len(latencies) // 2],), "ms", "less"),
        "p99": Figure((p99,), "ms", "less"),
        "longest": Figure((max(latencies),), "ms", "less"),
    }
    yield Result(
        "tunnel: 3 KB up, round trip of 50 ms, cut by resets",
        figures,
        (
            (f"each once: {rows[0]:,} rows, {rows[1]:,} ids of {count:,} sent", once),
            (f"p99 under 500 ms: {p99:.0f}", p99 < 500),
        ),
        note=f"{cuts} cuts, one every {every:g} s; no loss of packets",
    )


async def _cut_link(folder, port, seconds, every):
    async with Link(port, every) as link:
        keys = folder.keys
        device = AsyncDevice(
            f"localhost:{link.port}",
            folder.path / "device.sqlite",
            ca=keys / "ca.pem",
            certificate=keys / "d0.pem",
            key=keys / "d0.key",
        )
        latencies, sent = [], {}
        acknowledged = device.store.acknowledged

        def kept(pairs):
            now = time.perf_counter()
            entries = [
                each for channel, number in pairs for each in device.store.take(channel, 0) if each.number <= number
            ]
            latencies.extend((now - sent.pop(each.id)) * 1000 for each in entries if each.id in sent)
            return acknowledged(pairs)

        device.store.acknowledged = kept
        async with device:
            await device.wait_connected(20)
            end = time.perf_counter() + seconds
            count = 0
            while time.perf_counter() < end:
                identity = f"message-{count}"
                sent[identity] = time.perf_counter()
                await device.send("features", random.randbytes(3000), identity=identity)
                count += 1
                await asyncio.sleep(0.1)
            if not await device.wait_sent(60):
                raise RuntimeError("messages are left")
        return count, link.cuts, latencies


ROWS = (cut_links,)
