"""Over a link with a round trip of 50 ms that loses 2 % of its packets and is cut every 10 seconds: what arrives, how
often, and how late.

The link is `tunnel_bridge`. Each contender sends messages of 3 KB, ten per second, all at the same time over the same
link; the time counts from when a message was due until its sender knows that it arrived. Peers get the usual recovery
code: they reconnect at once when the connection is lost, and send again what was not acknowledged.
"""

import asyncio
import contextlib
import multiprocessing
import os
import random
import sqlite3
import sys
import time

from bench.measure import Figure, Result
from bench.tunnel_bridge import FAR, Bridge
from bench.tunnel_peers import HTTP2, MQTT, Folder, mosquitto, quiet_peers, run_until_ended, serve_tunnel
from vmhost.tunnel import AsyncDevice
from vmhost.tunnel import connection as protocol
from vmhost.tunnel.tls import device_context, server_context

_SIZE, _EVERY_S = 3000, 0.1
_AGAIN_S = 0.05  # reconnect delay of peers
_PATIENCE_S = 30.0  # time for the remaining messages at the end


class Tunnel:
    name = "vmhost"

    def __init__(self, folder):
        self._folder = folder
        self.again = 0

    async def start(self):
        port, _ = self._folder.serve(serve_tunnel, self._folder)
        keys = self._folder.keys
        loop = asyncio.get_running_loop()
        self._device = device = AsyncDevice(
            f"{self._folder.name}:{port}",
            self._folder.path / "device.sqlite",
            ca=keys / "ca.pem",
            certificate=keys / "d0.pem",
            key=keys / "d0.key",
        )
        self._waiting = {}  # id -> future
        acknowledged = device.store.acknowledged

        def kept(pairs):
            entries = [
                each for channel, number in pairs for each in device.store.outbox.take(channel) if each.number <= number
            ]
            for each in entries:
                loop.call_soon_threadsafe(self._kept, each.id)
            return acknowledged(pairs)

        device.store.acknowledged = kept
        await device.start()
        await device.wait_connected(20)

    def _kept(self, identity):
        future = self._waiting.pop(identity, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def keep(self, number, data):
        future = self._waiting[f"m{number}"] = asyncio.get_running_loop().create_future()
        await self._device.send("features", data, identity=f"m{number}")
        await future

    async def close(self):
        counts = self._device.statistics()["counts"]
        self.again = counts["sent"] - counts["acknowledged"]
        await self._device.close()


def _serve_websockets(ready, folder):
    from websockets.asyncio.server import serve

    async def keep(connection):
        async for message in connection:
            await connection.send(message[:16])

    async def main():
        async with serve(keep, folder.host, 0, ssl=folder.server_context(), compression=None) as server:
            ready.put(server.sockets[0].getsockname()[1])
            await asyncio.Event().wait()

    run_until_ended(main())


class WebSockets:
    name = "websockets"

    def __init__(self, folder):
        self._folder = folder
        self._waiting = {}  # number -> (future, data)
        self.again = 0

    async def start(self):
        self._port, _ = self._folder.serve(_serve_websockets, self._folder)
        self._connection, self._connected = None, asyncio.Event()
        self._runner = asyncio.create_task(self._run())
        await self._connected.wait()

    async def _run(self):
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        while True:
            with contextlib.suppress(OSError, WebSocketException, EOFError):
                async with connect(
                    f"wss://{self._folder.name}:{self._port}", ssl=self._folder.client_context(), compression=None
                ) as self._connection:
                    for _, data in list(self._waiting.values()):
                        self.again += 1
                        await self._connection.send(data)
                    self._connected.set()
                    async for answer in self._connection:
                        future, _ = self._waiting.pop(int(answer), (None, None))
                        if future is not None and not future.done():
                            future.set_result(None)
            self._connection = None
            await asyncio.sleep(_AGAIN_S)

    async def keep(self, number, data):
        from websockets.exceptions import WebSocketException

        data = b"%16d" % number + data[16:]
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, data
        if self._connection is not None:
            with contextlib.suppress(OSError, WebSocketException):
                await self._connection.send(data)
        await future

    async def close(self):
        self._runner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._runner


class Posts(HTTP2):
    def __init__(self, folder):
        super().__init__(folder)
        self.again = 0

    async def keep(self, number, data):
        import httpx

        while True:
            try:
                await self._client.post(self.url + "keep", content=data)
                return
            except httpx.HTTPError, OSError, RuntimeError:
                self.again += 1
                await asyncio.sleep(_AGAIN_S)


class Publishes(MQTT):
    def __init__(self, folder):
        super().__init__(folder)
        self.again = 0

    async def start(self):
        self.begin()
        self._there = asyncio.Event()
        self._runner = asyncio.create_task(self._run())
        await self._there.wait()

    async def _run(self):
        import aiomqtt

        while True:
            with contextlib.suppress(aiomqtt.MqttError, OSError):
                async with self.made() as self._client:
                    self._there.set()
                    async for _ in self._client.messages:
                        pass
            self._there.clear()
            await asyncio.sleep(_AGAIN_S)

    async def keep(self, number, data):
        import aiomqtt

        while True:
            await self._there.wait()
            try:
                await self._client.publish("keep", data, qos=1)
                return
            except aiomqtt.MqttError, OSError:
                self.again += 1
                await asyncio.sleep(_AGAIN_S)

    async def close(self):
        self._runner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._runner
        self.finish()


CONTENDERS = (Tunnel, WebSockets, Posts, Publishes)


def cut_links(quick):
    seconds, every_s = (6, 2) if quick else (60, 10)
    for cut in ("resets", "black holes"):
        try:
            measured = _in_a_process(cut, seconds, every_s)
        except PermissionError as error:
            print(f"tunnel: the lossy link is left out: {error}; root may make namespaces", file=sys.stderr)
            return
        link = measured.pop("link")
        rows, ids = measured.pop("rows")
        count = seconds * 10
        ours = sorted(measured["vmhost"]["times"])
        for what, at in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
            figures = {name: Figure((_at(each["times"], at) * 1000,), "ms", "less") for name, each in measured.items()}
            promises = []
            if what == "p50":
                promises.append((f"each once: {rows} rows, {ids} ids of {count} sent", (rows, ids) == (count, count)))
            if what == "p99" and cut == "resets":
                promises.append((f"under 500 ms: {_at(ours, at) * 1000:.0f}", _at(ours, at) < 0.5))
            left = ", ".join(f"{name} {each['again']} again, {each['never']} never" for name, each in measured.items())
            yield Result(
                f"tunnel: 3 KB up, 50 ms, 2 % lost, cut by {cut}, {what}",
                figures,
                tuple(promises),
                note=f"{link['packets']} packets, {link['dropped']} dropped, {link['cuts']} cuts; {left}",
            )
    yield from heartbeats(quick)


def _at(times, at):
    return sorted(times)[min(len(times) - 1, int(len(times) * at))]


def _in_a_process(*arguments):
    """Runs in a process of its own, since it leaves the machine's network."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_measure_there, args=(answers, *arguments))
    child.start()
    try:
        found = answers.get(timeout=arguments[1] + 120)
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()
    if isinstance(found, Exception):
        raise found
    return found


def _measure_there(answers, cut, seconds, every_s):
    quiet_peers()
    try:
        bridge = Bridge(cut_every_s=every_s, cut=cut)
        folder = Folder(FAR, bridge.enter_far)
        try:
            found = asyncio.run(_all(folder, bridge, seconds))
            found["link"] = bridge.close()
            connection = sqlite3.connect(folder.path / "cloud.sqlite")
            found["rows"] = connection.execute("SELECT count(*), count(DISTINCT id) FROM messages").fetchone()
            connection.close()
        finally:
            folder.close()
        answers.put(found)
    except Exception as error:
        answers.put(error if isinstance(error, PermissionError) else RuntimeError(f"{type(error).__name__}: {error}"))


async def _all(folder, bridge, seconds):
    contenders = []
    for made in CONTENDERS:
        contender = made(folder)
        if made is Publishes and mosquitto() is None:
            continue
        try:
            await contender.start()
        except ImportError as error:
            print(f"tunnel: {contender.name} is left out: {error}; `make bench-peers` installs it", file=sys.stderr)
            continue
        contenders.append(contender)
    bridge.begin()
    found = {each.name: {"times": [], "again": 0, "never": 0} for each in contenders}
    tasks = []

    async def one(contender, number, due):
        try:
            await contender.keep(number, random.randbytes(_SIZE))
        except asyncio.CancelledError:
            found[contender.name]["never"] += 1  # counts with the time that it had
            raise
        finally:
            found[contender.name]["times"].append(time.perf_counter() - due)

    began = time.perf_counter()
    for number in range(int(seconds / _EVERY_S)):
        due = began + number * _EVERY_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks += [asyncio.create_task(one(each, number, due)) for each in contenders]
    _, pending = await asyncio.wait(tasks, timeout=_PATIENCE_S)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for contender in contenders:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(5):
                await contender.close()
        found[contender.name]["again"] = contender.again
    return found


def heartbeats(quick):
    """The cost of heartbeats: a ping and its answer in TLS, with TCP and IP headers and acknowledgements."""
    import ssl

    folder = Folder()
    try:
        keys = folder.keys
        contexts = server_context(keys / "server.pem", keys / "server.key"), device_context(keys / "ca.pem")
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = contexts[1].wrap_bio(down, up, server_hostname="localhost")
        far = contexts[0].wrap_bio(up, down, server_side=True)
        for _ in range(4):
            for end in (near, far):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        down.read(), up.read()
        device, cloud = protocol.Connection(client=True), protocol.Connection(client=False)
        device.hello({"epoch": b"x", "received": {}})
        cloud.receive(device.data_to_send(), 0)
        cloud.welcome({"epoch": b"y", "received": {}, "time_ms": 0, "device": "d"})
        device.receive(cloud.data_to_send(), 0)
        device.probe(30)
        near.write(device.data_to_send())
        size = len(ping := up.read()) + 2 * 52  # its packet, and the acknowledgement of the answer
        up.write(ping)
        cloud.receive(far.read(), 30)
        far.write(cloud.data_to_send())
        size += len(down.read()) + 52  # the answer acknowledges the ping
    finally:
        folder.close()
    figures = {
        "every 30 s": Figure((size * 120 / 1024,), "KiB an hour", "less"),
        "every 10 min": Figure((size * 6 / 1024,), "KiB an hour", "less"),
    }
    yield Result("tunnel: cost of heartbeats", figures, (), note=f"{size} bytes for each, both ways")


ROWS = (cut_links,)
if __name__ == "__main__":
    for result in cut_links("--quick" in sys.argv):
        print(
            result.name, {name: round(f.median, 1) for name, f in result.figures.items()}, result.promises, result.note
        )
    os._exit(0)
