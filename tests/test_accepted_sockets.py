"""Each server of ours sends at once: the sockets that it accepts have TCP_NODELAY. Else an answer in two parts would
wait for an acknowledgement of its first one, which a client may delay by 40 ms."""

import contextlib
import os
import re
import socket
import stat
import threading
import urllib.parse
from pathlib import Path

import pytest

import vmhost
from tests.deployment.platforms import platform_in
from tests.hosts import until
from tests.pipeline.stream_tasks import open_pipeline
from vmhost.deployment.cloud.server import serving
from vmhost.operations import Dashboard
from vmhost.pipeline.configuration import SourceSettings
from vmhost.pipeline.reach.page import PageServer
from vmhost.pipeline.sources import Sources
from vmhost.tunnel import Server
from vmhost.tunnel.tls import make_certificates

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def events(folder):
    with (
        open_pipeline(folder) as pipeline,
        Sources(pipeline, [SourceSettings("web", http="127.0.0.1:0")]) as sources,
    ):
        yield sources.sources["web"].url


@contextlib.contextmanager
def pages(folder):
    server = PageServer("127.0.0.1:0")
    server.start()
    try:
        yield server.url
    finally:
        server.close()


@contextlib.contextmanager
def dashboard(folder):
    with vmhost.Host() as host, Dashboard(host, "127.0.0.1:0") as shown:
        yield shown.url


@contextlib.contextmanager
def platform(folder):
    with platform_in(folder / "platform") as opened, serving(opened) as address:
        yield address


@contextlib.contextmanager
def tunnel(folder):
    make_certificates(folder, ["ann"])
    server = Server(
        folder / "store", certificate=folder / "server.pem", key=folder / "server.key", client_ca=folder / "ca.pem"
    )
    with server.running() as address:
        yield f"tls://{address}"


@contextlib.contextmanager
def shop(folder):
    from tasks.ipv.browser import Shop

    with Shop(1, 1) as opened:
        answering = threading.Thread(target=opened.serve_forever)
        answering.start()
        try:
            yield opened.address
        finally:
            opened.shutdown()
            answering.join()


SERVERS = {
    "vmhost/pipeline/http_source.py": events,
    "vmhost/pipeline/reach/page.py": pages,
    "vmhost/operations/server.py": dashboard,
    "vmhost/deployment/cloud/server.py": platform,
    "vmhost/tunnel/worker.py": tunnel,
    "tasks/ipv/browser.py": shop,
}
OTHERS = {"vmhost/pipeline/control.py", "vmhost/web_server.py"}  # a UNIX socket, what HTTP servers are made of


def accepted(peer):
    """What this process's socket that is connected with `peer` says of TCP_NODELAY; None if there is none yet."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(number))) as one:
                if one.family != socket.AF_INET or one.getpeername() != peer:
                    continue
                return bool(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return None


@pytest.mark.parametrize("server", SERVERS)
def test_accepted_sockets_send_at_once(tmp_path, server):
    with SERVERS[server](tmp_path) as url:
        address = urllib.parse.urlsplit(url)
        with socket.create_connection((address.hostname, address.port), 30) as client:
            until(lambda: accepted(client.getsockname()))


def test_each_server_is_listed():
    listening = re.compile(r"\.listen\(\d|web_server\.config\(|(create|start)_server\(|class \w+\(\w*HTTPServer\)")
    found = {
        str(path.relative_to(ROOT))
        for folder in ("vmhost", "tasks", "engine", "bytecode")
        for path in (ROOT / folder).rglob("*.py")
        if listening.search(path.read_text())
    }
    assert found == SERVERS.keys() | OTHERS
