"""Request and answer over one warm connection, by the tunnel and by what a user would pick instead.

Each contender has a server in a process of its own, with the same certificate, and a client on this process's loop:
`await start()`, `await ask(data) -> data`, `await close()`.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vmhost.tunnel import AsyncDevice, Server, Table
from vmhost.tunnel.spinning import SPIN_US, loop_factory
from vmhost.tunnel.tls import make_certificates

_NO_DELAY = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
_FORK = multiprocessing.get_context("fork")


class Folder:
    """A temporary folder with certificates, and the server processes that use it, at the address `host`. Each calls
    `enter` first."""

    def __init__(self, host="127.0.0.1", enter=None):
        self.host, self.enter = host, enter
        self.name = "localhost" if host == "127.0.0.1" else host  # the name in the server's certificate
        self.path = Path(tempfile.mkdtemp(prefix="bench-tunnel-"))
        self.keys = self.path / "keys"
        make_certificates(self.keys, ["d0"], ("localhost", host))
        self._children = []

    def serve(self, work, *arguments, within_s=30):
        """Runs `work(ready, *arguments)` in a process; returns what it puts into `ready`, usually a port, and its
        id."""
        ready = _FORK.Queue()
        child = _FORK.Process(target=self._work, args=(work, ready, *arguments), daemon=True)
        child.start()
        self._children.append(child)
        return ready.get(timeout=within_s), child.pid

    def _work(self, work, *arguments):
        if self.enter is not None:
            self.enter()
        work(*arguments)

    def client_context(self):
        return ssl.create_default_context(cafile=self.keys / "ca.pem")

    def server_context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.keys / "server.pem", self.keys / "server.key")
        return context

    def close(self):
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.join(5)
            if child.is_alive():
                child.kill()
                child.join()
        shutil.rmtree(self.path, ignore_errors=True)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_for_port(port, within_s=30, host="127.0.0.1"):
    end = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        if time.monotonic() > end:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.02)


def end(process):
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---- the tunnel


def serve_tunnel(ready, folder, settings=None, store="cloud.sqlite"):
    server = Server(
        folder.path / store,
        certificate=folder.keys / "server.pem",
        key=folder.keys / "server.key",
        client_ca=folder.keys / "ca.pem",
        identify=lambda token: token,
        **(settings or {}),
    )
    server.consume("*", Table("messages"))
    server.answer("echo", lambda request: request.value, quick=True)
    server.run(f"{folder.host}:0", ready=lambda addresses: ready.put(addresses[0][1]))


class Tunnel:
    name = "vmhost"

    def __init__(self, folder, spin_us=SPIN_US):
        self._folder, self._spin_us = folder, spin_us
        self.loop_factory = loop_factory(spin_us)

    async def start(self):
        port, _ = self._folder.serve(serve_tunnel, self._folder, {"spin_us": self._spin_us}, f"cloud-{id(self)}.sqlite")
        keys = self._folder.keys
        self._device = AsyncDevice(
            f"{self._folder.name}:{port}",
            self._folder.path / f"device-{port}.sqlite",
            ca=keys / "ca.pem",
            certificate=keys / "d0.pem",
            key=keys / "d0.key",
        )
        await self._device.start()
        await self._device.wait_connected(10)

    async def ask(self, data):
        return await self._device.request("echo", data, 10)

    async def close(self):
        await self._device.close()


# ---- websockets over TLS


def _serve_websockets(ready, folder):
    from websockets.asyncio.server import serve

    async def echo(connection):
        async for message in connection:
            await connection.send(message)

    async def main():
        context = folder.server_context()
        async with serve(echo, folder.host, 0, ssl=context, compression=None) as server:
            ready.put(server.sockets[0].getsockname()[1])
            await asyncio.Event().wait()

    run_until_ended(main())


def quiet_peers():
    """Silences peers that log each cut connection."""
    for name in ("websockets", "mqtt"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def run_until_ended(main):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    quiet_peers()
    asyncio.run(main)


class TunnelWithoutSpin(Tunnel):
    name = "vmhost, spin_us=0"

    def __init__(self, folder):
        super().__init__(folder, 0)


class WebSockets:
    name = "websockets"
    loop_factory = None

    def __init__(self, folder):
        self._folder = folder

    async def start(self):
        from websockets.asyncio.client import connect

        port, _ = self._folder.serve(_serve_websockets, self._folder)
        self._connection = await connect(
            f"wss://{self._folder.name}:{port}", ssl=self._folder.client_context(), compression=None, max_size=1 << 24
        )

    async def ask(self, data):
        await self._connection.send(data)
        return await self._connection.recv()

    async def close(self):
        await self._connection.close()


# ---- HTTP/2: httpx, with granian's server


async def whole_body(receive):
    """The body of an ASGI request."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def application(scope, receive, send):
    """An ASGI application that echoes the request."""
    if scope["type"] != "http":
        return
    body = await whole_body(receive)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/octet-stream")]}
    )
    await send({"type": "http.response.body", "body": body[:16] if scope["path"] == "/keep" else body})


class HTTP2:
    name = "httpx, HTTP/2"
    loop_factory = None

    def __init__(self, folder):
        self._folder = folder

    def begin(self, application="bench.tunnel_peers:application"):
        """Starts the server."""
        self._port = free_port()
        keys = self._folder.keys
        self._server = subprocess.Popen(
            [
                sys.executable, "-m", "granian", "--interface", "asginl", "--host", self._folder.host,
                "--port", str(self._port), "--http", "2", "--no-ws", "--log-level", "error",
                "--ssl-certificate", keys / "server.pem", "--ssl-keyfile", keys / "server.key",
                application,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=self._folder.enter,
        )  # fmt: skip
        wait_for_port(self._port, host=self._folder.host)
        self.url = f"https://{self._folder.name}:{self._port}/"

    def finish(self):
        end(self._server)

    async def start(self):
        import httpx

        self.begin()
        self._client = httpx.AsyncClient(http2=True, verify=self._folder.client_context())
        answer = await self._client.post(self.url, content=b"x")
        if answer.http_version != "HTTP/2":
            raise RuntimeError(f"the server speaks {answer.http_version}")

    async def ask(self, data):
        answer = await self._client.post(self.url, content=data)
        return answer.content

    async def close(self):
        await self._client.aclose()
        self.finish()


# ---- MQTT: aiomqtt on mosquitto, QoS 1


def mosquitto():
    """The path of mosquitto: Debian's package, or the one unpacked by `tools/mosquitto.sh`; None without it."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    private = Path(".python/mosquitto/root/usr/sbin/mosquitto")
    return found or (private.resolve() if private.exists() else None)


def _serve_mqtt_answers(ready, folder, port):
    import aiomqtt

    async def main():
        with contextlib.suppress(aiomqtt.MqttError):  # the broker ends
            await answer()

    async def answer():
        async with aiomqtt.Client(
            folder.name, port, tls_context=folder.client_context(), socket_options=_NO_DELAY
        ) as client:
            await client.subscribe("ask", qos=1)
            ready.put(True)
            async for message in client.messages:
                await client.publish("answer", message.payload, qos=1)

    run_until_ended(main())


class MQTT:
    name = "aiomqtt, QoS 1"
    loop_factory = None

    def __init__(self, folder):
        self._folder = folder

    def begin(self):
        """Starts the broker."""
        self._port = free_port()
        settings = self._folder.path / "mosquitto.conf"
        keys = self._folder.keys
        settings.write_text(
            f"listener {self._port} {self._folder.host}\nallow_anonymous true\ncertfile {keys / 'server.pem'}\n"
            f"keyfile {keys / 'server.key'}\ncafile {keys / 'ca.pem'}\npersistence false\nset_tcp_nodelay true\n"
            f"user {'root' if os.getuid() == 0 else 'nobody'}\n"
        )
        program = mosquitto()
        libraries = Path(program).parents[2] / "usr/lib/x86_64-linux-gnu"
        self._broker = subprocess.Popen(
            [program, "-c", settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            preexec_fn=self._folder.enter,
        )
        wait_for_port(self._port, host=self._folder.host)

    def made(self):
        import aiomqtt

        return aiomqtt.Client(
            self._folder.name, self._port, tls_context=self._folder.client_context(), socket_options=_NO_DELAY
        )

    def finish(self):
        end(self._broker)

    async def start(self):
        import aiomqtt  # noqa: F401  reports its absence before anything begins

        self.begin()
        self._folder.serve(_serve_mqtt_answers, self._folder, self._port)
        self._client = self.made()
        await self._client.__aenter__()
        await self._client.subscribe("answer", qos=1)
        self._messages = aiter(self._client.messages)

    async def ask(self, data):
        await self._client.publish("ask", data, qos=1)
        return (await anext(self._messages)).payload

    async def close(self):
        await self._client.__aexit__(None, None, None)
        self.finish()


PEERS = (Tunnel, TunnelWithoutSpin, WebSockets, HTTP2, MQTT)
