"""A CA with certificates for a server and some devices, and both ends made with them."""

import functools
import sqlite3
import time

import pytest

from vmhost.tunnel import Device, Server, Table, offenders
from vmhost.tunnel.addresses import parse
from vmhost.tunnel.backoff import Backoff
from vmhost.tunnel.tls import make_certificates

WAIT_S = 60  # a test's longest wait for an expected event: a bound against hanging
DEVICES = ("ann", "bob", "cyd")


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tunnel-keys")
    make_certificates(folder, DEVICES)
    return folder


@pytest.fixture(autouse=True)
def no_waits_for_offenders(monkeypatch):
    """Enemies of tests come again at once."""
    monkeypatch.setattr(offenders, "FIRST_WAIT_S", 0.0)


@pytest.fixture
def make_server(keys, tmp_path):
    """make_server(**settings) -> a Server that keeps the messages of all channels in the table `messages`."""

    def make(store=tmp_path / "cloud.sqlite", table="messages", **settings):
        given = {"certificate": keys / "server.pem", "key": keys / "server.key", "client_ca": keys / "ca.pem"}
        server = Server(store, **(given | settings))
        if table:
            server.consume("*", Table(table))
        return server

    return make


@pytest.fixture
def settings_of(keys):
    """settings_of("ann") -> a Device's settings for its identity and trust."""

    def settings(name):
        return {"ca": keys / "ca.pem", "certificate": keys / f"{name}.pem", "key": keys / f"{name}.key"}

    return settings


@pytest.fixture
def make_device(settings_of, tmp_path):
    """make_device(address, **settings) -> a Device, named ann, that tries again soon."""

    def make(address, store=None, name="ann", **settings):
        address = address.replace("127.0.0.1", "localhost")
        quick = Backoff(parse(address), first_s=0.01, longest_s=0.05)
        return Device(
            address, store or tmp_path / f"{name}.sqlite", **({"backoff": quick} | settings_of(name) | settings)
        )

    return make


def until(condition):
    """Waits until `condition()` holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


def rows(store, query="SELECT device, channel, id, body FROM messages ORDER BY position", *parameters):
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.close()


bodies = functools.partial(rows, query="SELECT body FROM messages ORDER BY position")
