"""Agents that reach the platform by a tunnel only; the calls that the tunnel answers, and those it does not."""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route

from tests.deployment.platforms import WorkingCopy, nothing_left, platform_in
from tests.hosts import until
from vmhost import ConfigurationError
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.cloud.tunnel_calls import TunnelCalls
from vmhost.deployment.cloud.web import application
from vmhost.deployment.device.agent import Agent
from vmhost.deployment.device.process import run
from vmhost.deployment.device.settings import Settings, read
from vmhost.deployment.device.tunnel_transfers import TunnelTransfers
from vmhost.deployment.errors import TransferError
from vmhost.deployment.tunnel_channel import CHANNEL, PIECE_BYTES
from vmhost.tunnel import Device, OfflineError, Server
from vmhost.tunnel.tls import make_certificates

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60
NOWHERE = "http://127.0.0.1:9"  # nothing answers there: everything comes by the tunnel
PLAN = "steps: [{percent: 100, min_reports: 9}]\nmax_error: 100 %\nproof: {calls: 0}\n"
DOUBLE = "def run(value):\n    return value * 2\n"
# Larger than a piece of a download, and incompressible.
LARGE = "import random\n\ndef run(value):\n    return value * 3\n\nTEXT = %r\n"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by-tunnel")
    make_certificates(folder / "keys", ["kitchen-1", "kitchen-2"])
    text = random.Random(1).randbytes(PIECE_BYTES).hex()
    with nothing_left(), platform_in(folder / "cloud") as platform:
        with serving(platform) as address:
            copy = WorkingCopy(folder / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
            copy.release("1.0.0", main=DOUBLE)
            copy.release("1.1.0", main=LARGE % text)
        # from here on there is no HTTP server
        keys = folder / "keys"
        server = Server(
            folder / "tunnel.db", certificate=keys / "server.pem", key=keys / "server.key", client_ca=keys / "ca.pem"
        )
        calls = TunnelCalls(application(platform), lambda: platform.releases.generation, server.push)
        server.answer(CHANNEL, calls.answer)
        platform.start_ticking()
        with server.running() as address:
            yield platform, address, keys


def device_of(cloud, folder, name="kitchen-1"):
    _, address, keys = cloud
    return Device(
        address.replace("127.0.0.1", "localhost"),
        folder / "tunnel.sqlite",
        ca=keys / "ca.pem",
        certificate=keys / f"{name}.pem",
        key=keys / f"{name}.key",
    )


def release(platform, version):
    return platform.releases.start("shop/rank", version, Plan.read(PLAN), "ann", "test")


def test_a_release_reaches_a_device_by_the_tunnel_alone_as_soon_as_it_is_made(cloud, tmp_path):
    platform = cloud[0]
    settings = Settings(
        device="kitchen-1",
        platform=NOWHERE,
        folder=tmp_path / "device",
        keys=platform.folder / "keys" / "bundles.pub",
        root=platform.folder / "metadata" / "1.root.json",
        token=platform.access.add_token("fleet", "test"),
        poll_s=3600.0,
    )
    platform.poll_s = 3600.0
    first = release(platform, "1.0.0")
    transfers = TunnelTransfers(NOWHERE)
    with Agent(settings, transfers=transfers) as agent:
        device = transfers.device = device_of(cloud, tmp_path)
        switched = threading.Condition()
        write = agent.store.write

        def written(*given):
            write(*given)
            with switched:
                switched.notify_all()

        def runs(version):
            return agent.store.current().get("shop/rank", {}).get("version") == version

        agent.store.write = written
        device.on(CHANNEL, lambda message: agent.hint())
        with device:
            device.wait_connected(WAIT_S)
            running = threading.Thread(target=agent.run, name="agent")
            running.start()
            try:
                with switched:
                    assert switched.wait_for(lambda: runs("1.0.0"), WAIT_S)
                assert agent.host.task("rank")(21) == 42
                platform.releases.act(first.id, "next", "ann")
                release(platform, "1.1.0")  # the device asks once an hour: it is notified
                with switched:
                    assert switched.wait_for(lambda: runs("1.1.0"), WAIT_S)
                assert agent.host.task("rank")(21) == 63
            finally:
                agent.stop()
                running.join()


def test_a_crash_of_a_device_is_told_by_the_tunnel_alone(cloud, tmp_path):
    """An agent's process is killed by SIGSEGV; the next one sends what it left behind."""
    platform, address, keys = cloud
    settings = {
        "device": "kitchen-2",
        "platform": NOWHERE,
        "folder": str(tmp_path / "device"),
        "keys": str(platform.folder / "keys" / "bundles.pub"),
        "root": str(platform.folder / "metadata" / "1.root.json"),
        "token": platform.access.add_token("fleet", "test"),
        "tunnel": {"address": address.replace("127.0.0.1", "localhost"), "keys": str(keys)},
    }
    (tmp_path / "agent.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "vmhost", "agent", tmp_path / "agent.yaml"]
    with subprocess.Popen(command, cwd=ROOT) as agent:
        until(lambda: any(device["device"] == "kitchen-2" for device in platform.devices.list()))
        agent.send_signal(signal.SIGSEGV)
        assert agent.wait(60) == -signal.SIGSEGV
    assert platform.fleet.crashes(1) == []
    with subprocess.Popen(command, cwd=ROOT) as agent:
        until(lambda: platform.fleet.crashes(1))
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    [crash] = platform.fleet.crashes(1)
    assert crash["device"] == "kitchen-2" and "SIGSEGV" in crash["title"]
    report = platform.fleet.crash("kitchen-2", crash["id"])
    assert report["native"] and report["signal"] == "SIGSEGV"


@contextlib.contextmanager
def pieces(tmp_path):
    """(transfers over an application without a tunnel, the bytes of its file, the calls that came)."""
    data = bytes(range(256)) * (PIECE_BYTES // 256 * 3) + b"end"
    (tmp_path / "file").write_bytes(data)
    made = []

    async def file(request):
        made.append((request.headers.get("range"), request.headers["x-vmhost-device"]))
        return FileResponse(tmp_path / "file")

    async def device(request):
        return JSONResponse({"device": request.headers["x-vmhost-device"], "said": (await request.body()).decode()})

    app = Starlette(
        routes=[
            Route("/files/x", file),
            Route("/metadata/x", file),
            Route("/api/v1/device/check", device, methods=["POST"]),
            Route("/api/v1/devices", device),
        ]
    )
    calls = TunnelCalls(app, lambda: 0)

    class Tunnel:
        def request(self, channel, value, timeout_s):
            if lost:
                raise OfflineError("cut")
            return asyncio.run(calls.answer(SimpleNamespace(device="kitchen-1", value=value)))

    lost = []
    transfers = TunnelTransfers(NOWHERE)
    transfers.device = Tunnel()
    yield transfers, data, made, lost


def test_a_file_comes_in_pieces_and_goes_on_where_it_was(tmp_path):
    with pieces(tmp_path) as (transfers, data, made, lost):
        partial = tmp_path / "partial"
        transfers.download("/files/x", partial, len(data))
        assert partial.read_bytes() == data and len(made) == 4
        partial.write_bytes(data[:1000])
        made.clear()
        transfers.download(f"{NOWHERE}/files/x", partial, len(data))
        assert partial.read_bytes() == data and made[0][0] == f"bytes=1000-{1000 + PIECE_BYTES - 1}"
        assert transfers.fetch("/metadata/x", 1 << 20) == data, "larger than a piece, too"
        assert transfers.fetch("/files/none", 100) is None
        with pytest.raises(TransferError, match="more than"):
            transfers.download("/files/x", tmp_path / "short", len(data) - 1)
        lost.append(True)
        with pytest.raises(TransferError, match="by the tunnel: cut"):
            transfers.download("/files/x", tmp_path / "cut", len(data))


def test_a_device_is_who_the_tunnel_says_and_reaches_what_devices_need(tmp_path):
    with pieces(tmp_path) as (transfers, _, _, _):
        answer = transfers.post("/api/v1/device/check", {"a": 1}, {"X-VMHost-Device": "kitchen-2"})
        assert answer == {"device": "kitchen-1", "said": '{"a": 1}'}
        assert transfers.fetch("/api/v1/devices", 100) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        ["GET", "/files/x", {}, "text"],
        ["GET", "/files/x", {"a": 1}, b""],
        ["GET", "/files/x", {"a": "b\r\nc: d"}, b""],
        ["GET", "/files/%2e%2e/api/v1/devices", {}, b""],
        ["GET", "/files/x", {"range": "bytes=a-"}, b""],
        ["GET", "/files/x", {"range": "bytes=-5"}, b""],
        [1, "/files/x", {}, b""],
        ["GET", "/files/\xe9", {}, b""],
    ],
)
def test_what_is_no_call_is_refused(value):
    calls = TunnelCalls(None, lambda: 0)
    with pytest.raises(ValueError, match="expected"):
        asyncio.run(calls.answer(SimpleNamespace(device="kitchen-1", value=value)))


def test_devices_are_told_of_each_change_one_after_the_other():
    pushes, generation = [], [0]

    def tell(device, channel, body, ttl_s, collapse):
        if device == "kitchen-1":
            raise OSError("full")
        pushes.append(device)
        if len(pushes) == 1:
            generation[0] += 1  # a change while devices are notified

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def use():
        calls = TunnelCalls(app, lambda: generation[0], tell)
        for number in range(3):
            call = SimpleNamespace(device=f"kitchen-{number}", value=["GET", "/files/x", {}, b""])
            assert (await calls.answer(call))[0] == 200
        generation[0] += 1
        while len(pushes) < 4:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(use(), WAIT_S))
    assert pushes == ["kitchen-2", "kitchen-0"] * 2, "a device that cannot be told holds nobody up"


@pytest.mark.parametrize(
    "tunnel", [3, {}, {"address": "a:1"}, {"address": "a:1", "keys": 5}, {"address": "a:1", "keys": "k", "x": 1}]
)
def test_a_wrong_tunnel_in_an_agent_yaml(tmp_path, tunnel):
    plain = {"device": "d", "platform": NOWHERE, "folder": "state", "keys": "bundles.pub", "tunnel": tunnel}
    (tmp_path / "agent.yaml").write_text(json.dumps(plain))
    with pytest.raises(ConfigurationError, match=r"agent\.yaml:1: tunnel"):
        read(tmp_path / "agent.yaml")
    (tmp_path / "agent.yaml").write_text(json.dumps(plain | {"tunnel": {"address": "a:1", "keys": "k"}}))
    assert read(tmp_path / "agent.yaml").tunnel == {"address": "a:1", "keys": tmp_path / "k"}
    with pytest.raises(ConfigurationError, match="run `vmhost agent`"):
        run(tmp_path / "agent.yaml")  # the small program has no tunnel
