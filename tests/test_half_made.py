"""What cannot be made whole leaves nothing: each constructor that opens something is made to fail at every line that
calls something, and no file, socket or thread is left."""

import asyncio
import contextlib
import dis
import gc
import itertools
import linecache
import re
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Belongings
from vmhost import DebugPolicy, Host, Policy
from vmhost.pipeline.pipeline import Pipeline
from vmhost.stores import Database
from vmhost.tunnel.tls import make_certificates


class Injected(Exception):
    pass


@contextlib.contextmanager
def failing(function, number):
    """Within the block, `function` raises at the `number`-th of its lines that call something, each counted once; not
    where it notes how to undo what it has just made."""
    code = function.__code__
    lines = {each.positions.lineno for each in dis.get_instructions(code) if each.opname.startswith("CALL")}
    undoing = re.compile(r"\bundo\.|ExitStack\(")
    left = {line for line in lines - {None} if not undoing.search(linecache.getline(code.co_filename, line))}

    def at_line(frame, event, argument):
        nonlocal number
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            number -= 1
            if number == 0:
                raise Injected(f"{Path(code.co_filename).name}:{frame.f_lineno}")
        return at_line

    sys.settrace(lambda frame, event, argument: at_line if frame.f_code is code else None)
    try:
        yield
    finally:
        sys.settrace(None)


def nothing_left_since(before):
    end = time.monotonic() + 20
    while left := Belongings().left_since(before):
        if time.monotonic() > end:
            return left
        gc.collect()
        time.sleep(0.01)
    return []


# Each yields (function to fail in, how to make one and close it).


@contextlib.contextmanager
def tunnel_server(folder, keys):
    from vmhost.tunnel import Server
    from vmhost.tunnel.worker import Worker

    files = {"certificate": f"{keys}/server.pem", "key": f"{keys}/server.key", "client_ca": f"{keys}/ca.pem"}
    server = Server(folder / "store", **files)
    server.prepare()

    async def make():
        await Worker(server).close()

    yield Worker.__init__, lambda: asyncio.run(make())


@contextlib.contextmanager
def tunnel_device(folder, keys, function):
    from vmhost.tunnel import Device
    from vmhost.tunnel.device import AsyncDevice

    files = {"ca": f"{keys}/ca.pem", "certificate": f"{keys}/ann.pem", "key": f"{keys}/ann.key"}

    def make():
        with Device("localhost:1", folder / "store", **files):
            pass

    async def make_async():
        async with AsyncDevice("localhost:1", folder / "store", **files):
            pass

    if function == "Device":
        yield Device.__init__, make
    else:
        yield getattr(AsyncDevice, function), lambda: asyncio.run(make_async())


@contextlib.contextmanager
def pages(folder, keys):
    from vmhost.pipeline.reach.page import PageServer

    yield PageServer.__init__, lambda: PageServer("127.0.0.1:0")._socket.close()


@contextlib.contextmanager
def http_source(folder, keys):
    from vmhost.pipeline import sources
    from vmhost.pipeline.configuration import SourceSettings
    from vmhost.pipeline.http_source import HttpSource

    settings = [SourceSettings("web", http="127.0.0.1:0")]
    with Pipeline(folder / "data", []) as pipeline:
        yield HttpSource.start, lambda: sources.Sources(pipeline, settings)._close()


@contextlib.contextmanager
def control(folder, keys):
    from vmhost.pipeline.control import Control

    def make():
        with Control(pipeline):
            pass

    with Pipeline(folder / "data", []) as pipeline:
        yield Control.__enter__, make


@contextlib.contextmanager
def pipeline(folder, keys):
    channels = {"pages": {"broadcast": "127.0.0.1:0"}, "lines": {"ut": "lines.jsonl"}}
    yield Pipeline.__init__, lambda: Pipeline(folder / "data", [], channels=channels).close()


@contextlib.contextmanager
def stored_pipeline(folder, keys):
    from vmhost.pipeline.stored import StoredPipeline

    Pipeline(folder / "data", []).close()
    yield StoredPipeline.__init__, lambda: StoredPipeline(folder / "data").close()


@contextlib.contextmanager
def dashboard(folder, keys):
    from vmhost.operations import Dashboard

    def make():
        made = Dashboard(host, "127.0.0.1:0")
        made._listening.close()
        made.debugging.ledger.close()

    with Host(policy=Policy(debugging=DebugPolicy(consent="ask")), state=folder / "state") as host:
        yield Dashboard.__init__, make


@contextlib.contextmanager
def platform(folder, keys):
    from tests.deployment.platforms import platform_in
    from vmhost.deployment.cloud.platform import Platform

    platform_in(folder / "cloud").close()
    yield Platform.__init__, lambda: Platform(folder / "cloud").close()


@contextlib.contextmanager
def agent(folder, keys):
    from tests.deployment.platforms import agent_for, platform_in
    from vmhost.deployment.device.agent import Agent

    with platform_in(folder / "cloud") as there:
        yield Agent.__init__, lambda: agent_for(there, "http://127.0.0.1:1", folder / "device", token="none").close()


@contextlib.contextmanager
def agent_memory(folder, keys):
    from vmhost.deployment.device.memory import Memory

    yield Memory.__init__, lambda: Memory(folder).close()


@contextlib.contextmanager
def ledger(folder, keys):
    from vmhost.operations.debugging.ledger import Ledger

    yield Ledger.__init__, lambda: Ledger(folder).close()


@contextlib.contextmanager
def database(folder, keys):
    yield Database.__init__, lambda: Database(folder / "store", shared=True).close()


CASES = {
    "Worker": tunnel_server,
    "Device": lambda *where: tunnel_device(*where, "Device"),
    "AsyncDevice": lambda *where: tunnel_device(*where, "__init__"),
    "AsyncDevice.start": lambda *where: tunnel_device(*where, "start"),
    "PageServer": pages,
    "HttpSource.start": http_source,
    "Control": control,
    "Pipeline": pipeline,
    "StoredPipeline": stored_pipeline,
    "Dashboard": dashboard,
    "Platform": platform,
    "Agent": agent,
    "Memory": agent_memory,
    "Ledger": ledger,
    "Database": database,
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ["ann"])
    return folder


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_made_leaves_nothing(name, tmp_path, keys):
    with CASES[name](tmp_path, keys) as (function, make):
        make()  # what comes once with the first one of its kind
        for number in itertools.count(1):
            before = Belongings()
            try:
                with failing(function, number):
                    make()
            except Injected as error:
                where = str(error)
            else:
                break
            assert not (left := nothing_left_since(before)), f"{where} failed, which left {'; '.join(left)}"
        assert number > 1


def test_a_port_beyond_all_ports_is_an_error_in_one_line(tmp_path):
    from vmhost import ConfigurationError, web_server

    with pytest.raises(ConfigurationError, match="127.0.0.1:70000: cannot listen: .*choose another address"):
        web_server.listening("127.0.0.1", 70000)
