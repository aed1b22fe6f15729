"""The platform with real devices: a fleet of connections, a push, an agent process. Functions yield Results."""

import asyncio
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.measure import Figure, Result

CONNECTIONS = 5000
POLL_S = 20.0  # interval of each device's requests
_SECRET = "s" * 40
_NOWHERE = "http://127.0.0.1:9"  # no server there
_BETA = "steps: [{devices: [device-1]}]\n"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_FOLLOWED = {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))}


class _Served:
    """A platform in a process of its own, as run by `vmhost cloud serve`; with `tunnel_keys` also by the tunnel."""

    def __init__(self, folder, poll_s, tunnel_keys=None):
        command = [
            sys.executable,
            "-m",
            "vmhost",
            "cloud",
            "serve",
            folder,
            "--listen",
            "127.0.0.1:0",
            "--poll",
            str(poll_s),
        ]
        if tunnel_keys is not None:
            command += ["--tunnel", "127.0.0.1:0", "--tunnel-keys", tunnel_keys]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | _FOLLOWED)
        line = self.process.stdout.readline()
        found = re.search(r"at (http://([0-9.]+):([0-9]+))", line)
        self.address, self.host, self.port = found[1], found[2], int(found[3])
        found = re.search(r"tunnel at \S*:([0-9]+);", line)
        self.tunnel = found and f"localhost:{found[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.stdout.close()


class _Device:
    """One kept connection, and a device's requests on it."""

    def __init__(self, name, server):
        self.name, self._server = name, server

    async def connect(self):
        self._reader, self._writer = await asyncio.open_connection(self._server.host, self._server.port)

    async def ask(self, method, path, body=b""):
        headers = {"host": "x", "x-vmhost-device": self.name, "authorization": f"Bearer {_SECRET}"}
        lines = [f"{name}: {value}" for name, value in (headers | {"content-length": len(body)}).items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        self._writer.write(head.encode() + body)
        try:
            answer = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError, ConnectionError:  # idle for too long: retry, as an agent does
            self._writer.close()
            await self.connect()
            self._writer.write(head.encode() + body)
            answer = await self._reader.readuntil(b"\r\n\r\n")
        headers = answer.decode("latin-1").lower()
        data = await self._reader.readexactly(int(re.search(r"content-length: (\d+)", headers)[1]))
        return int(headers.split(" ", 2)[1]), data

    async def check(self, tasks, reports):
        body = {"facts": {"python": _PYTHON}, "tasks": tasks, "reports": reports, "epoch": "1"}
        status, data = await self.ask("POST", "/api/v1/device/check", json.dumps(body).encode())
        assert status == 200, data
        return json.loads(data)["wanted"].get("shop/rank")

    async def live(self, bundles, joining, ready, go):
        """Runs until the release is proven here; returns the final version."""
        async with joining:
            await self.connect()
            assert await self.check({}, []) is None
        ready.release()
        await go.wait()
        await asyncio.sleep(random.uniform(0, POLL_S))
        while (wanted := await self.check({}, [])) is None:
            await asyncio.sleep(random.uniform(0.8, 1.2) * POLL_S)
        digest = wanted["digest"]
        status, data = await self.ask("GET", f"/files/{digest[:2]}/{digest}")
        assert status == 200 and hashlib.sha256(data).hexdigest() == digest
        bundles.append(len(data))
        has = {"shop/rank": {"version": wanted["version"], "digest": digest, "release": wanted["release"]}}
        reports = [
            [1, {"release": wanted["release"], "state": "taken"}],
            [2, {"release": wanted["release"], "state": "proven"}],
        ]
        assert (await self.check(has, reports))["state"] == "proven"
        self._writer.close()
        return wanted["version"]


def _add_version(platform, data):
    digest = platform.files.put(data)
    with platform.releases.change() as connection:
        identity = connection.execute(
            'INSERT INTO deploy_versions (task, version, "commit", tag, state, who, time_ms, report) '
            "VALUES ('shop/rank', '1.0.0', '', '1.0.0', 'ready', 'bench', 0, '{}') RETURNING id"
        ).fetchone()[0]
        connection.execute("INSERT INTO deploy_bundles VALUES (?, ?, ?, ?)", (identity, _PYTHON, digest, len(data)))


def connections(quick):
    """This many devices, each with a connection of its own, while a release goes to all of them in three steps."""
    from vmhost.deployment.cloud.platform import Platform
    from vmhost.deployment.device.transfers import Transfers

    number = 200 if quick else CONNECTIONS
    with tempfile.TemporaryDirectory() as folder:
        token = Platform.make(folder)
        with Platform(folder) as platform:
            platform.add_repository("shop", "bench")
            with platform.database.transaction():
                for index in range(number):
                    platform.devices.enrol(f"device-{index}", _SECRET)
            _add_version(platform, os.urandom(30_000))
        with _Served(folder, 1) as server:
            process = psutil.Process(server.process.pid)
            before = process.cpu_times()
            ask = Transfers(server.address)
            headers = {"authorization": f"Bearer {token}"}
            steps = [
                {"count": number // 50},
                {"percent": 20, "min_reports": number // 50},
                {"percent": 100, "min_reports": number // 2},
            ]

            async def run():
                joining, ready, go, bundles = asyncio.Semaphore(64), asyncio.Semaphore(0), asyncio.Event(), []
                devices = [_Device(f"device-{index}", server) for index in range(number)]
                lives = [asyncio.create_task(device.live(bundles, joining, ready, go)) for device in devices]
                for _ in range(number):
                    waiting = asyncio.create_task(ready.acquire())
                    done, _ = await asyncio.wait([waiting, *lives[:1]], return_when=asyncio.FIRST_COMPLETED)
                    assert waiting in done, await asyncio.gather(*lives)
                open_now = len([each for each in process.net_connections("tcp") if each.status == "ESTABLISHED"])
                began = time.perf_counter()
                body = {"task": "shop/rank", "version": "1.0.0", "plan": {"steps": steps}}
                await asyncio.to_thread(ask.post, "/api/v1/releases", body, headers)
                go.set()
                versions = await asyncio.gather(*lives)
                return versions, open_now, time.perf_counter() - began

            versions, open_now, took_s = asyncio.run(run())
            after, memory = process.cpu_times(), process.memory_full_info().uss
            release = ask.ask("GET", "/api/v1/releases/1", None, headers)
            ask.close()
    right = versions == ["1.0.0"] * number and release["state"] == "done" and release["devices"]["proven"] == number
    cpu_s = after.user + after.system - before.user - before.system
    yield Result(
        f"deployment: {number:,} connections, from the release to the last device that runs it",
        {"vmhost": Figure((took_s,), "s", "less")},
        promises=((f"every one ends right: {release['devices']['proven']:,} proven, {release['state']}", right),),
        note=f"{open_now:,} connections at once, each asks every {POLL_S:g} s; "
        f"the platform took {cpu_s:.1f} s of CPU and {memory >> 20} MiB",
    )


def first_device(quick):
    """From `git push` until the task is current on the first device, which is told by the tunnel; beside it, by
    polling."""
    found = {how: _push_times(2 if quick else 8, how == "tunnel") for how in ("tunnel", "polls by HTTP")}
    figures = {how: Figure(tuple(times[1:]), "s", "less") for how, times in found.items()}
    median = figures["tunnel"].median
    yield Result(
        "deployment: git push to the first device that runs it",
        figures,
        promises=((f"under 5 s on the tunnel: {median:.2f}", median < 5),),
        note="a task without models, beta of one device; nobody polls on the tunnel: the device is told, and all it "
        "asks and pulls goes by the tunnel; by HTTP it asks every 0.5 s; commit and push by git are in it",
    )


def _push_times(number, by_tunnel):
    """Seconds from each of `number` pushes until its version is current on the one device, an agent's process."""
    from vmhost.deployment.cloud.platform import Platform
    from vmhost.deployment.demonstration import WorkingCopy
    from vmhost.deployment.device.bundle_store import BundleStore
    from vmhost.tunnel.tls import make_certificates

    times = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Platform.make(folder / "cloud")
        with Platform(folder / "cloud") as platform:
            platform.add_repository("shop", "bench")
            platform.access.add_account("ann", "releaser", "bench")
            platform.access.add_account("fleet", "fleet", "bench")
            tokens = {who: platform.access.add_token(who, "bench") for who in ("ann", "fleet")}
        if by_tunnel:
            make_certificates(folder / "keys", ["device-1"])
        with _Served(folder / "cloud", 3600 if by_tunnel else 0.5, folder / "keys" if by_tunnel else None) as server:
            device = folder / "device"
            device.mkdir()
            settings = {
                "device": "device-1",
                "platform": _NOWHERE if by_tunnel else server.address,
                "token": tokens["fleet"],
                "folder": "state",
                "keys": str(folder / "cloud/keys/bundles.pub"),
                "root": str(folder / "cloud/metadata/1.root.json"),
            }
            if by_tunnel:
                settings["tunnel"] = {"address": server.tunnel, "keys": str(folder / "keys")}
            (device / "agent.yaml").write_text(json.dumps(settings))
            program = ["vmhost", "agent"] if by_tunnel else ["vmhost.deployment.device"]
            with open(device / "log", "wb") as log:
                agent = subprocess.Popen(
                    [sys.executable, "-m", *program, "agent.yaml"],
                    cwd=device,
                    stdout=log,
                    stderr=log,
                    env=os.environ | _FOLLOWED,
                )
            store = BundleStore(device / "state")
            try:

                def wait(holds, began):
                    while not holds():
                        assert agent.poll() is None and time.perf_counter() < began + 120, (device / "log").read_text()
                        time.sleep(0.01)

                wait(store.headers, time.perf_counter())  # its first request was answered
                copy = WorkingCopy(folder / "shop", server.address, "ann", tokens["ann"])
                for minor in range(number):
                    version = f"1.{minor}.0"
                    began = time.perf_counter()
                    copy.push(version, {"sizes": f"SIZE = {minor}", "size": "10"}, _BETA)
                    wait(lambda: store.current().get("shop/rank", {}).get("version") == version, began)
                    times.append(time.perf_counter() - began)
            finally:
                agent.terminate()
                agent.wait()
    return times


def agent(quick):
    """Private memory of an agent's process beyond that of a Host's, and its share of a core when idle."""
    from vmhost.bytecode import signing

    program = (
        "import time\nfrom vmhost import Host, Policy\nfrom vmhost.bytecode.signing import TrustStore\n"
        "host = Host(trust=TrustStore.load('keys.pub'), policy=Policy(warm=0), state='host')\n"
        "from vmhost.deployment.device import heap\nheap.give_back()\n"  # as an agent does
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    memory, idle = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        signing.generate_key().save(folder / "keys", "bench")
        settings = {
            "device": "a",
            "platform": "https://127.0.0.1:9",
            "token": "x",
            "folder": "state",
            "keys": "keys.pub",
        }
        (folder / "agent.yaml").write_text(json.dumps(settings))
        idle_s = 3 if quick else 15
        for _ in range(1 if quick else 3):
            found = []
            for command in (
                [sys.executable, "-c", program],
                [sys.executable, "-m", "vmhost.deployment.device", "agent.yaml"],
            ):
                shutil.rmtree(folder / "state", ignore_errors=True)
                process = subprocess.Popen(
                    command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | _FOLLOWED
                )
                try:
                    process.stdout.readline()
                    time.sleep(2)
                    known = psutil.Process(process.pid)
                    found.append(known.memory_full_info().uss)
                    if len(found) == 2:
                        before = known.cpu_times()
                        time.sleep(idle_s)
                        after = known.cpu_times()
                        used_s = after.user + after.system - before.user - before.system
                        idle.append(100 * used_s / idle_s)
                finally:
                    process.kill()
                    process.wait()
                    process.stdout.close()
            memory.append((found[1] - found[0]) / 1e6)
    yield Result(
        "deployment: private memory of an agent beyond its Host",
        {"vmhost": Figure(tuple(memory), "MB", "less")},
        promises=(
            (f"under 8 MB: {sorted(memory)[len(memory) // 2]:.1f}", sorted(memory)[len(memory) // 2] < 8),
            (f"idle under 0.1 % of a core: {sorted(idle)[len(idle) // 2]:.3f} %", sorted(idle)[len(idle) // 2] < 0.1),
        ),
        note="with TLS and SQLite, its platform away; AWS says less than 5 MB for all of Greengrass's nucleus lite",
    )


ROWS = (connections, first_device, agent)
