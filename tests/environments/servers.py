"""Hosts in servers and event loops: python -m tests.environments.servers NAME REPORT VMS.

Each reports what probe.py does as far as the server leaves it to the host: answers and stops in its workers, and its
own end at the usual signal."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.environments import probe

_HERE = "tests.environments.servers"


# -- what runs in the servers ------------------------------------------------------------------------------------------


class Service:
    """A host and one task, made at the first use in a process: a server forks its workers."""

    def __init__(self):
        self._host = self._task = self._process = None

    def start(self):
        import vmhost

        if self._process != os.getpid():
            self._process = os.getpid()
            self._host = vmhost.Host(allow_unsigned=True)
            self._task = self._host.load(probe.bundle())
        return self._task

    def answer(self, path):
        import vmhost

        task = self.start()
        if path == "/stop":
            probe.fails_with(vmhost.TimeLimitError, task, 100, timeout_s=1, entry="main:loop")
        elif path == "/memory":
            probe.fails_with(vmhost.MemoryLimitError, task, None, entry="main:hog")
        return task(100)


service = Service()


def wsgi(environ, start_response):
    body = json.dumps(service.answer(environ["PATH_INFO"])).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                service.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return
    result = await asyncio.to_thread(service.answer, scope["path"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(result).encode()})


# -- the servers -------------------------------------------------------------------------------------------------------


def _free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def _get(port, path, end):
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _serves(told, port, *command):
    """Starts the server, asks it, and ends it by SIGTERM."""
    server = subprocess.Popen([sys.executable, "-m", *command], cwd=Path(__file__).parents[2])
    try:
        for path, part in (("/", "answers"), ("/stop", "stop"), ("/memory", "memory_limit")):
            assert _get(port, path, time.monotonic() + 60) == probe.ANSWER
            told(part)
        for _ in range(20):
            assert _get(port, "/", time.monotonic() + 60) == probe.ANSWER
    finally:
        server.terminate()
        status = server.wait(60)
    assert status in (0, -signal.SIGTERM), status
    for part in ("stack_overflow", "many", "end"):  # are as in the plain process
        told(part)


def gunicorn(told, _vms, *options):
    port = _free_port()
    bind = f"--bind=127.0.0.1:{port}"
    _serves(told, port, "gunicorn", "--workers=2", "--threads=4", bind, *options, f"{_HERE}:wsgi")


def gunicorn_preload(told, vms):
    gunicorn(told, vms, "--preload")


def uvicorn(told, _vms):
    port = _free_port()
    _serves(told, port, "uvicorn", f"--port={port}", "--log-level=warning", f"{_HERE}:asgi")


def celery(told, _vms):
    """A worker with forked processes; its messages are files."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROBE_FOLDER"] = folder
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "tests.environments.celery_app",
                "worker",
                "-P",
                "prefork",
                "-c",
                "2",
            ]
        )
        try:
            from tests.environments import celery_app

            for path, part in (("/", "answers"), ("/stop", "stop"), ("/memory", "memory_limit")):
                assert celery_app.answer.delay(path).get(timeout=120) == probe.ANSWER
                told(part)
        finally:
            worker.terminate()
            status = worker.wait(60)
        assert status == 0, status
    for part in ("stack_overflow", "many", "end"):
        told(part)


def gevent(told, vms):
    """All of the probe, in a process whose threads, locks and sockets gevent has replaced."""
    from gevent import monkey

    monkey.patch_all()
    probe.probe(told, vms)
    told("end")


def uvloop(told, vms):
    import uvloop

    import vmhost

    async def calls():
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(probe.bundle())
            results = await asyncio.gather(*(task.run(100) for _ in range(50)))
            assert all(result == probe.ANSWER for result in results)
            told("answers")
            try:
                await task.run(100, timeout_s=1, entry="main:loop")
            except vmhost.TimeLimitError:
                told("stop")
            try:
                await task.run(None, entry="main:hog")
            except vmhost.MemoryLimitError:
                told("memory_limit")

    uvloop.run(calls())
    with vmhost.Host(allow_unsigned=True) as host:
        probe.stack_overflow(host)
        told("stack_overflow")
    probe.many(vms)
    told("many")
    told("end")


if __name__ == "__main__":
    name, report, vms = sys.argv[1:]
    globals()[name](probe.reporter(report), int(vms))
