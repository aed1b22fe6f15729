"""Messages from many devices into a SQLite table, with what a user would pick instead of the tunnel: websockets, HTTP/2
and MQTT, all with TLS, each message acknowledged after it is on the disk.

All use group commit, like the tunnel: messages that arrive during a transaction go into the next one. None of them
recognizes duplicates. With MQTT the program behind the broker acknowledges, by a message of its own: the broker's
PUBACK only says that the broker has the message in memory.
"""

import asyncio
import contextlib
import queue
import random
import sqlite3
import threading
import time

import msgpack

from bench.tunnel_peers import HTTP2, MQTT, run_until_ended, whole_body

_BODY = 128


class Committer(threading.Thread):
    """Stores bodies in a table, and calls `done()` of each piece when it is on the disk."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self._path = path
        self._queue = queue.SimpleQueue()
        self.start()

    def put(self, piece, done):
        self._queue.put((piece, done))

    def run(self):
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS messages (position INTEGER PRIMARY KEY, body BLOB)")
        while True:
            found = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(found) < 5000:
                    found.append(self._queue.get_nowait())
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO messages (body) VALUES (?)",
                [(body,) for piece, _ in found for body in msgpack.unpackb(piece)],
            )
            connection.execute("COMMIT")
            for _, done in found:
                done()


def _awaitable(loop):
    """(a future, a function that sets it from another thread)"""
    future = loop.create_future()
    return future, lambda: loop.call_soon_threadsafe(future.set_result, None)


def _serve_websockets(ready, folder):
    from websockets.asyncio.server import serve

    async def main():
        committer, loop = Committer(folder.path / "websockets.sqlite"), asyncio.get_running_loop()

        async def keep(connection):
            async for piece in connection:
                future, done = _awaitable(loop)
                committer.put(piece, done)
                await future
                await connection.send(b"")

        async with serve(
            keep, "127.0.0.1", 0, ssl=folder.server_context(), compression=None, ping_interval=None, backlog=1024
        ) as server:
            ready.put(server.sockets[0].getsockname()[1])
            await asyncio.Event().wait()

    run_until_ended(main())


async def websockets(folder, count):
    """(functions that send a piece and await its acknowledgement, one per device; a function that ends them)"""
    from websockets.asyncio.client import connect

    port, _ = folder.serve(_serve_websockets, folder)
    context = folder.client_context()
    connections = []
    for _ in range(count):
        connections.append(await connect(f"wss://localhost:{port}", ssl=context, compression=None, ping_interval=None))

    def device(connection):
        async def keep(piece):
            await connection.send(piece)
            await connection.recv()

        return keep

    async def end():
        for each in connections:
            each.transport.abort()

    return [device(each) for each in connections], end


_committer = None


async def application(scope, receive, send):
    """granian's application, in its own process: stores POSTed bodies, and answers when they are on the disk."""
    global _committer
    if scope["type"] != "http":
        return
    if piece := await whole_body(receive):
        if _committer is None:
            import os

            _committer = Committer(os.environ["BENCH_TUNNEL_STORE"])
        future, done = _awaitable(asyncio.get_running_loop())
        _committer.put(piece, done)
        await future
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def http2(folder, count):
    import os

    import httpx

    os.environ["BENCH_TUNNEL_STORE"] = str(folder.path / "http.sqlite")
    server = HTTP2(folder)
    server.begin("bench.tunnel_ingest:application")
    context = folder.client_context()
    context.set_alpn_protocols(["h2"])
    clients = []
    for _ in range(count):
        clients.append(httpx.AsyncClient(http2=True, verify=context, timeout=60))
        await clients[-1].post(server.url, content=b"")

    def device(client):
        async def keep(piece):
            await client.post(server.url, content=piece)

        return keep

    async def end():
        for each in clients:
            await each.aclose()
        server.finish()

    return [device(each) for each in clients], end


def _serve_mqtt(ready, folder, broker):
    import aiomqtt

    async def main():
        committer, loop = Committer(folder.path / "mqtt.sqlite"), asyncio.get_running_loop()
        done_pieces = asyncio.Queue()
        async with broker.made() as client:

            async def acknowledge():
                while True:
                    await client.publish(await done_pieces.get(), b"")

            acknowledging = asyncio.create_task(acknowledge())
            await client.subscribe("in/#", qos=1)
            ready.put(True)
            try:
                async for message in client.messages:
                    topic = "ack/" + str(message.topic)[3:]
                    committer.put(
                        message.payload, lambda topic=topic: loop.call_soon_threadsafe(done_pieces.put_nowait, topic)
                    )
            except aiomqtt.MqttError:
                acknowledging.cancel()

    run_until_ended(main())


async def mqtt(folder, count):
    broker = MQTT(folder)
    broker.begin()
    folder.serve(_serve_mqtt, folder, broker)
    clients = []
    for number in range(count):
        client = await broker.made().__aenter__()
        await client.subscribe(f"ack/{number}")
        clients.append((number, client, aiter(client.messages)))

    def device(number, client, acknowledgements):
        async def keep(piece):
            await client.publish(f"in/{number}", piece, qos=1)
            await anext(acknowledgements)

        return keep

    async def end():
        for _, client, _ in clients:
            with contextlib.suppress(Exception):
                await client.__aexit__(None, None, None)
        broker.finish()

    return [device(*each) for each in clients], end


PEERS = (("websockets", websockets), ("httpx, HTTP/2", http2), ("aiomqtt, QoS 1", mqtt))


async def rates(folder, made, count, batches, seconds, rounds):
    """{batch: [messages per second]}; each device sends the next piece when the last one is acknowledged."""
    devices, end = await made(folder, count)
    found = {}
    try:
        for batch in batches:
            piece = msgpack.packb([random.randbytes(_BODY) for _ in range(batch)])
            kept, going = 0, True

            async def live(keep):
                nonlocal kept
                while going:
                    await keep(piece)
                    kept += batch

            tasks = [asyncio.create_task(live(keep)) for keep in devices]
            await asyncio.sleep(seconds / 3)
            found[batch] = []
            for _ in range(rounds):
                before, began = kept, time.perf_counter()
                await asyncio.sleep(seconds)
                found[batch].append((kept - before) / (time.perf_counter() - began))
            going = False
            await asyncio.wait(tasks, timeout=30)
    finally:
        await end()
    return found
