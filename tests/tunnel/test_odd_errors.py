"""Errors of the application whose text cannot be made or sent are told as far as they can be, and nobody waits."""

import asyncio
import functools
import io
import logging

import pytest

from tests.tunnel.conftest import WAIT_S, bodies, rows, until
from tests.tunnel.test_poison import Elsewhere
from vmhost.tunnel import AnswerError, Limits, MessageRefused, StreamBrokenError, Transactional, keeper

MOST = 3  # requests and streams that are open at a time: a leaked one is noticed


class Silent(MessageRefused):
    def __str__(self):
        raise ValueError("no text")


class Exits(Exception):
    def __str__(self):
        raise SystemExit(3)


ODD = {
    "silent": Silent,
    "exits": Exits,
    "surrogate": functools.partial(ValueError, "no \udc80 text"),
    "refused": functools.partial(MessageRefused, "no \udc80 text"),
}
TOLD = {
    "silent": r"ended by Silent: \(its text cannot be made\)",
    "exits": r"ended by Exits: \(its text cannot be made\)",
    "surrogate": r"ValueError: no \? text",
    "refused": r"MessageRefused: no \? text",
}


@pytest.fixture(autouse=True)
def setting(monkeypatch):
    """Soon tried again; and the log goes nowhere else, as pytest-xdist cannot carry a surrogate."""
    monkeypatch.setattr(keeper, "FIRST_RETRY_S", 0.002)
    monkeypatch.setattr(keeper, "LONGEST_RETRY_S", 0.02)
    log, handler = logging.getLogger("vmhost.tunnel"), logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(log, "propagate", False)
    log.addHandler(handler)
    yield
    log.removeHandler(handler)


@pytest.fixture
def server(make_server):
    """A server in trouble that must go on: `alive(device)` finds out."""
    server = make_server(limits=Limits(requests=MOST, streams=MOST), tries=3)
    server.answer("double", lambda request: request.value * 2)
    return server


def alive(server, *devices):
    for device in devices:
        device.wait_connected(WAIT_S)  # who asks waits for a second only
        assert device.ask("double", 2, timeout_s=WAIT_S) == 4
        device.send("kept", b"still there")
        assert device.wait_sent(WAIT_S)
        assert device.statistics()["counts"]["cuts"] == 0
    assert bodies(server.store).count((b"still there",)) == len(devices)


def fails(value):
    raise ODD[getattr(value, "value", value)]()


async def fails_on_the_loop(value):
    await asyncio.sleep(0)
    fails(value)


def test_answers_of_the_cloud(server, make_device):
    server.answer("thread", fails)
    server.answer("loop", fails_on_the_loop)
    server.answer("quick", functools.partial(fails), quick=True)
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        for odd, told in TOLD.items():
            for kind in ("thread", "loop", "quick"):
                for _ in range(MOST + 1):
                    with pytest.raises(AnswerError, match=told):
                        ann.request(kind, odd, timeout_s=WAIT_S)
        alive(server, ann, bob)


def test_answers_of_a_device(server, make_device):
    with server.running() as address, make_device(address) as ann:
        ann.answer("thread", fails)
        ann.answer("loop", fails_on_the_loop)
        ann.wait_connected(WAIT_S)
        for odd, told in TOLD.items():
            for kind in ("thread", "loop"):
                for _ in range(MOST + 1):
                    with pytest.raises(AnswerError, match=told):
                        server.call(server.ask("ann", kind, odd, WAIT_S))
        alive(server, ann)


def test_streams(server, make_device):
    told = []

    async def told_why(stream):
        try:
            await stream.read()
        except StreamBrokenError as error:
            told.append(str(error))
            raise

    server.stream("thread", fails)
    server.stream("loop", fails_on_the_loop)
    server.stream("why", told_why)
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        for odd in ODD:
            for kind in ("thread", "loop"):
                for _ in range(MOST + 1):
                    with pytest.raises(StreamBrokenError, match=TOLD[odd].removeprefix("ended by ")):
                        ann.open_stream(kind, odd).read()
            with pytest.raises(type(ODD[odd]())), ann.open_stream("why"):
                fails(odd)
        ann.open_stream("why").abort("no \udc80 text")
        until(lambda: len(told) == len(ODD) + 1)
        assert told[-1].endswith(": no ? text")
        alive(server, ann, bob)


@pytest.mark.parametrize("name", ["identify", "why_blocked"])
def test_who_asks_about_a_device(make_server, make_device, keys, name):
    """A greeting is refused; who is connected stays."""
    odd = []

    def asked(value):
        if odd:
            fails(odd[0])
        return value.removeprefix("token-") if name == "identify" else None

    server = make_server(client_ca=None if name == "identify" else keys / "ca.pem", **{name: asked})
    server.answer("double", lambda request: request.value * 2)
    ann, bob = (
        {"certificate": None, "key": None, "token": f"token-{each}"} if name == "identify" else {}
        for each in ("ann", "bob")
    )
    with (
        server.running() as address,
        make_device(address, **ann) as ann,
        make_device(address, name="bob", **bob) as bob,
    ):
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        for each in ODD:
            odd[:] = [each]
            before = server.worker.counts["refused"]
            ann._inner._loop.call_soon_threadsafe(ann._inner.reconnect)
            until(lambda before=before: server.worker.counts["refused"] >= before + 2)
            until(lambda: "no" in (ann._inner.last_error or "") or "ended by" in (ann._inner.last_error or ""))
            assert bob.ask("double", 2, timeout_s=WAIT_S) == 4
            odd.clear()
            ann.wait_connected(WAIT_S)
        alive(server, bob)


def test_consumers(server, make_device):
    def take(body):
        if body.decode() in ODD:
            fails(body.decode())

    def write(connection, messages):
        for each in messages:
            take(each.body)

    server.consume("function", lambda message: take(message.body))
    server.consume("transaction", Transactional(write))
    server.consume("elsewhere", Elsewhere(lambda peer, body: take(body)))
    kinds = ("function", "transaction", "elsewhere")
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        for kind in kinds:
            for odd in ODD:
                ann.send(kind, odd.encode())
            ann.send(kind, b"good")
        while not ann.wait_sent(0.05):
            for kind in kinds:  # each consumer takes messages of others, so that those of ann are to blame
                bob.send(kind, b"good")
            assert bob.wait_sent(WAIT_S)
        refused = rows(server.store, "SELECT channel, body FROM tunnel_refused ORDER BY position")
        for kind in kinds:
            assert [body.decode() for channel, body in refused if channel == kind] == list(ODD)
        alive(server, ann, bob)
