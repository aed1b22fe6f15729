"""The cost of many devices: messages per second into a table, memory of idle connections, handshakes, bytes of
features.

Devices are minimal: a connection, a transport, and a list in place of the outbox. The server is the real one, in a
process of its own; the clients share the machine's cores with it.
"""

import asyncio
import base64
import contextlib
import gc
import gzip
import json
import os
import random
import resource
import ssl
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import tunnel_ingest
from bench.measure import Figure, Result
from bench.tunnel_peers import Folder, mosquitto, serve_tunnel
from vmhost.tunnel import connection as protocol
from vmhost.tunnel import events
from vmhost.tunnel.compression import Compression, train
from vmhost.tunnel.tls import device_context
from vmhost.tunnel.transport import Reading, Transport


class PlainDevice:
    """`on_kept(device, number)` is called when the cloud has stored everything up to the number. `settings`: of its
    Connection."""

    def __init__(self, loop, context, reading, name, *, on_kept=None, **settings):
        self.sent = 0
        self.on_kept = on_kept
        self.welcomed = loop.create_future()
        self._name = name
        connection = protocol.Connection(client=True, now=loop.time(), heartbeat_s=600, **settings)
        self.transport = Transport(
            loop, context, connection, reading, self._events, self._closed, self._secured,
            server_side=False, server_hostname="localhost",
        )  # fmt: skip

    def _secured(self, transport):
        greeting = {"epoch": os.urandom(8), "received": {}, "token": self._name}
        known = transport.connection.compression
        transport.connection.hello(greeting | ({"dictionaries": known.numbers} if known else {}))
        transport.flush()

    def _events(self, transport, found):
        for event in found:
            if isinstance(event, events.Welcomed):
                self.welcomed.set_result(None)
            elif isinstance(event, events.Acknowledged):
                if self.on_kept is not None:
                    self.on_kept(self, event.number)

    def _closed(self, transport, why):
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(why))

    def send(self, bodies):
        messages = []
        for body in bodies:
            self.sent += 1
            messages.append((self.sent, str(self.sent), body))
        self.transport.connection.offer("features", messages)
        self.transport.flush()


async def _connected(loop, context, port, count, **settings):
    """`count` devices, connected a hundred at a time, from several addresses."""
    reading = Reading(loop)
    devices = []
    for start in range(0, count, 100):
        made = [
            PlainDevice(loop, context, reading, f"device-{number}", **settings)
            for number in range(start, min(count, start + 100))
        ]
        for number, device in enumerate(made, start):
            local = (f"127.0.0.{2 + number // 10_000}", 0)
            await loop.create_connection(lambda device=device: device.transport, "127.0.0.1", port, local_addr=local)
        await asyncio.gather(*(device.welcomed for device in made))
        devices += made
    return devices


def _files(wanted):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))


def _settled(transport):
    transport.lose("the measurement is over")


# ---- messages a second


def throughput(quick):
    """From 1,000 devices into a table, each message acknowledged after it is durable."""
    _files(20_000)
    count, seconds, rounds = (100, 0.5, 2) if quick else (1000, 3.0, 3)
    found = {}
    folder = Folder()
    try:
        port, _ = folder.serve(serve_tunnel, folder)
        context = device_context(folder.keys / "ca.pem")
        for batch in (10, 1):
            rates = asyncio.run(_rates(context, port, count, batch, seconds, rounds))
            found[batch] = Figure(tuple(rates), "messages/s", "more")
        peers = {}
        for name, made in tunnel_ingest.PEERS:
            if made is tunnel_ingest.mqtt and mosquitto() is None:
                continue
            try:
                peers[name] = asyncio.run(tunnel_ingest.rates(folder, made, count, (10, 1), seconds, rounds))
            except ImportError as error:
                print(f"tunnel: {name} is left out: {error}; `make bench-peers` installs it", file=sys.stderr)
    finally:
        folder.close()
    for batch, wanted in ((10, 20_000), (1, 8_000)):
        figure = found[batch]
        figures = {"vmhost": figure} | {
            name: Figure(tuple(each[batch]), "messages/s", "more") for name, each in peers.items()
        }
        yield Result(
            f"tunnel: messages from {count:,} devices, {'in tens' if batch > 1 else 'singly'}, fsynced",
            figures,
            ((f"{wanted:,} a second: {figure.median:,.0f}", figure.median >= wanted),),
            note="bodies of 128 bytes; clients on the same cores",
        )


async def _rates(context, port, count, batch, seconds, rounds):
    loop = asyncio.get_running_loop()
    bodies = [random.randbytes(128) for _ in range(batch)]
    kept = 0
    going = True

    def on_kept(device, number):
        nonlocal kept
        if number == device.sent:
            kept += batch
            if going:
                device.send(bodies)

    devices = await _connected(loop, context, port, count, on_kept=on_kept)
    for device in devices:
        device.send(bodies)
    await asyncio.sleep(seconds / 3)
    rates = []
    for _ in range(rounds):
        before, began = kept, time.perf_counter()
        await asyncio.sleep(seconds)
        rates.append((kept - before) / (time.perf_counter() - began))
    going = False
    for device in devices:
        _settled(device.transport)
    await asyncio.sleep(0.1)
    return rates


# ---- memory


def _resident(pid="self"):
    """Resident bytes, including pages shared with forked processes."""
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in fields if line.startswith("Rss:")) * 1024


def memory(quick):
    """Memory of an idle connection, at each end: growth of the process per connection."""
    held = 500 if quick else 10_000
    # in a new process: memory freed earlier would be reused, and not show
    command = [sys.executable, "-m", "bench.tunnel_load", str(held)]
    ours, theirs = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    for end, at in (("server", 0), ("device", 1)):
        figures = {
            "vmhost": Figure((ours[at] / 1024,), "KiB", "less"),
            "asyncio TLS": Figure((theirs[at] / 1024,), "KiB", "less"),
        }
        yield Result(
            f"tunnel: memory of an idle connection, {end}",
            figures,
            ((f"under 40 KiB: {ours[at] / 1024:.1f}", ours[at] < 40 * 1024),),
            note=f"{held:,} connections held",
        )


def _memory(held):
    _files(20_000)
    folder = Folder()
    try:
        port, pid = folder.serve(serve_tunnel, folder)
        ours, _ = folder.serve(_measure_idle, folder, port, pid, held, within_s=300)
        plain_port, plain_pid = folder.serve(_serve_asyncio_tls, folder)
        theirs, _ = folder.serve(_measure_idle_asyncio, folder, plain_port, plain_pid, min(held, 1000), within_s=300)
    finally:
        folder.close()
    return ours, theirs


def _measure_idle(ready, folder, port, pid, count):
    ready.put(asyncio.run(_idle(device_context(folder.keys / "ca.pem"), port, pid, count)))


def _measure_idle_asyncio(ready, folder, port, pid, count):
    ready.put(asyncio.run(_idle_asyncio(folder.client_context(), port, pid, count)))


async def _idle(context, port, pid, count):
    loop = asyncio.get_running_loop()
    first = await _connected(loop, context, port, 20)
    gc.collect()
    before = _resident(pid), _resident()
    devices = await _connected(loop, context, port, count + 20)
    gc.collect()
    await asyncio.sleep(1.0)
    after = _resident(pid), _resident()
    for device in (*first, *devices):
        _settled(device.transport)
    await asyncio.sleep(0.1)
    return [(after[at] - before[at]) / count for at in range(2)]


def _serve_asyncio_tls(ready, folder):
    _files(20_000)

    async def main():
        async def talk(reader, writer):
            with contextlib.suppress(OSError):
                await reader.read(1)

        server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=folder.server_context())
        ready.put(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


async def _idle_asyncio(context, port, pid, count):
    async def connect():
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")

    held = [await connect() for _ in range(20)]
    gc.collect()
    before = _resident(pid), _resident()
    for _ in range(count):
        held.append(await connect())
    gc.collect()
    await asyncio.sleep(0.5)
    after = _resident(pid), _resident()
    for _, writer in held:
        writer.transport.abort()
    await asyncio.sleep(0.1)
    return [(after[at] - before[at]) / count for at in range(2)]


# ---- handshakes


def handshakes(quick):
    """Full and resumed, with and without client certificates: milliseconds for both ends, in memory."""
    count = 20 if quick else 200
    folder = Folder()
    try:
        for certificates in (True, False):
            times = {"full": [], "resumed": []}
            for _ in range(count):
                session = _shake(folder, certificates, None, times["full"])
                _shake(folder, certificates, session, times["resumed"])
            figures = {name: Figure(tuple(found), "ms", "less") for name, found in times.items()}
            figures = {"resumed": figures["resumed"], "full": figures["full"]}
            ratio = statistics.median(times["resumed"]) / statistics.median(times["full"])
            promises = ((f"resumed under half: {ratio:.2f}", ratio < 0.5),) if certificates else ()
            yield Result(
                f"tunnel: TLS handshake, {'client certificates' if certificates else 'no client certificates'}",
                figures,
                promises,
            )
    finally:
        folder.close()


_CONTEXTS = {}


def _shake(folder, certificates, session, times):
    from vmhost.tunnel.tls import server_context

    key = folder.path, certificates
    if key not in _CONTEXTS:
        keys = folder.keys
        mine = (keys / "d0.pem", keys / "d0.key") if certificates else (None, None)
        _CONTEXTS[key] = (
            server_context(keys / "server.pem", keys / "server.key", keys / "ca.pem" if certificates else None),
            device_context(keys / "ca.pem", *mine),
        )
    server, device = _CONTEXTS[key]
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    began = time.perf_counter()
    near = device.wrap_bio(down, up, server_hostname="localhost", session=session)
    far = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    times.append((time.perf_counter() - began) * 1000)
    far.write(b"x")
    near.read(1)
    if near.session_reused != (session is not None):
        raise RuntimeError("the session was not resumed")
    return near.session


# ---- bytes


def _features(count, chance):
    """Item page views as made by the shop's task: some 1.3 KB of JSON."""
    made = []
    for _ in range(count):
        time_ms, events_ = 1_790_000_000_000 + chance.randrange(10**8), []
        for _ in range(14):
            time_ms += chance.randrange(200, 5000)
            name = chance.choice(("page_scroll", "exposure", "click"))
            events_.append({"name": name, "time_ms": time_ms, "page": "item", "depth": chance.randrange(100) / 100})
        made.append({"visit": f"visit-{chance.randrange(10**6)}", "item": chance.randrange(10**5), "events": events_})
    return made


def wire_bytes(quick):
    """Bytes in both directions, with headers and TLS records, for features as JSON and for encodings of 128 bytes."""
    chance = random.Random(1)
    features = [json.dumps(each, separators=(",", ":")).encode() for each in _features(1100, chance)]
    learned, sent = features[:1000], features[1000:1040]
    encodings = [chance.randbytes(128) for _ in range(40)]
    folder = Folder()
    try:
        for what, bodies in (("feature of 1.3 KB", sent), ("encoding of 128 bytes", encodings)):
            with_dictionary = Compression([("ipv", 1, train(learned))])
            figures = {}
            for batch in (1, 10):
                figures[f"vmhost, {'singly' if batch == 1 else 'in tens'}"] = _tunnel_bytes(
                    folder, bodies, batch, with_dictionary
                ) / len(bodies)
            figures["gzip JSON, HTTP/1.1"] = _http_bytes(folder, bodies, False) / len(bodies)
            figures["gzip JSON in tens, HTTP/1.1"] = _http_bytes(folder, bodies, True) / len(bodies)
            with contextlib.suppress(ImportError):
                figures["gzip JSON, HTTP/2"] = _http2_bytes(folder, bodies) / len(bodies)
            base = figures["gzip JSON, HTTP/1.1"]
            single, tens = figures["vmhost, singly"] / base, figures["vmhost, in tens"] / base
            promises = (
                (f"singly under 50 % of gzip JSON over HTTP/1.1: {single:.0%}", single < 0.5),
                (f"in tens under 45 %: {tens:.0%}", tens < 0.45),
            )
            yield Result(
                f"tunnel: bytes on the wire, {what}",
                {name: Figure((value,), "bytes", "less") for name, value in figures.items()},
                promises,
            )
    finally:
        folder.close()


def _tunnel_bytes(folder, bodies, batch, compression):
    """Bytes of TLS records, both ways, on an established connection: one batch after the other."""
    from vmhost.tunnel.tls import server_context

    near, far = _ends(server_context(folder.keys / "server.pem", folder.keys / "server.key"), folder)
    device = protocol.Connection(client=True, compression=compression)
    cloud = protocol.Connection(client=False, compression=compression)
    device.hello({"epoch": b"12345678", "received": {}, "token": "x"})
    cloud.receive(device.data_to_send(), 0)
    cloud.welcome({"epoch": b"12345678", "received": {}, "time_ms": 0, "device": "x"})
    device.receive(cloud.data_to_send(), 0)
    total, number = 0, 0
    for start in range(0, len(bodies), batch):
        messages = []
        for body in bodies[start : start + batch]:
            number += 1
            messages.append((1000 + number, f"ipv/{1000 + number}/0", body))
        device.offer("ipv", messages)
        total += _carry(near, far, device.data_to_send())
        found = cloud.receive(_plain.pop(), 0)
        cloud.applied("ipv", found[-1].messages[-1][0])
        total += _carry(far, near, cloud.data_to_send())
        device.receive(_plain.pop(), 0)
    return total


_plain = []


def _carry(source, sink, data):
    """Sends data from one end to the other; returns the bytes of TLS."""
    tls, _, out = source
    tls.write(data)
    wire = out.read()
    other, incoming, _ = sink
    incoming.write(wire)
    parts = []
    while incoming.pending or other.pending():
        parts.append(other.read(16_384))
    _plain.append(b"".join(parts))
    return len(wire)


def _ends(server, folder):
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = device_context(folder.keys / "ca.pem").wrap_bio(down, up, server_hostname="localhost")
    far = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    far.write(b"x")
    near.read(1)
    return (near, down, up), (far, up, down)


def _json_of(bodies):
    texts = []
    for body in bodies:
        try:
            texts.append(json.loads(body))
        except ValueError:  # an encoding, as JSON has no bytes
            texts.append({"encoding": base64.b64encode(body).decode()})
    return gzip.compress(json.dumps(texts if len(texts) > 1 else texts[0], separators=(",", ":")).encode(), 6)


def _http_bytes(folder, bodies, tens):
    """A request with httpx's headers, and a response with the minimum that servers send."""
    near, far = _ends(folder.server_context(), folder)
    total = 0
    step = 10 if tens else 1
    for start in range(0, len(bodies), step):
        content = _json_of(bodies[start : start + step])
        request = (
            b"POST /features HTTP/1.1\r\nHost: cloud.example.org\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
            b"Connection: keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\nContent-Encoding: gzip\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content)
        )
        answer = b"HTTP/1.1 204 No Content\r\nDate: Wed, 25 Nov 2026 12:00:00 GMT\r\nServer: uvicorn\r\n\r\n"
        total += _carry(near, far, request + content) + _carry(far, near, answer)
        _plain.clear()
    return total


def _http2_bytes(folder, bodies):
    """The same over HTTP/2, which compresses headers after the first request."""
    import h2.config
    import h2.connection

    near, far = _ends(folder.server_context(), folder)
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    client.initiate_connection()
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    server.receive_data(client.data_to_send())
    total = 0
    for body in bodies:
        content = _json_of([body])
        stream = client.get_next_available_stream_id()
        headers = [
            (":method", "POST"), (":authority", "cloud.example.org"), (":scheme", "https"), (":path", "/features"),
            ("accept", "*/*"), ("accept-encoding", "gzip, deflate"), ("user-agent", "python-httpx/0.28.1"),
            ("content-encoding", "gzip"), ("content-type", "application/json"),
            ("authorization", "Bearer 0123456789abcdef0123456789abcdef"), ("content-length", str(len(content))),
        ]  # fmt: skip
        client.send_headers(stream, headers)
        client.send_data(stream, content, end_stream=True)
        size = _carry(near, far, client.data_to_send())
        server.receive_data(_plain.pop())
        answer = [(":status", "204"), ("date", "Wed, 25 Nov 2026 12:00:00 GMT"), ("server", "granian")]
        server.send_headers(stream, answer, end_stream=True)
        size += _carry(far, near, server.data_to_send())
        client.receive_data(_plain.pop())
        total += size
    return total


ROWS = (throughput, memory, handshakes, wire_bytes)

if __name__ == "__main__":
    print(json.dumps(_memory(int(sys.argv[1]))))
