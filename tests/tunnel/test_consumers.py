"""Consumers outside of the server's store: PostgreSQL, web servers, and one that dies between its commit and ours."""

import base64
import contextlib
import hashlib
import hmac
import http.server
import socket
import threading
from pathlib import Path

import psycopg
import pytest

from tests.postgresql_server import PostgreSQLServer
from tests.tunnel.conftest import WAIT_S, rows, until
from tests.tunnel.proxy import Proxy
from vmhost.stores import StoreError
from vmhost.tunnel import PostgreSQL, TunnelConfigurationError, Webhook

psycopg.conninfo.conninfo_to_dict("")  # now: with it come libraries that stay open
ROOT = Path(__file__).resolve().parents[2]


# ---- anywhere


class Elsewhere:
    """Like PostgreSQL: it keeps messages and their numbers together. `fail` has the failures of the next calls."""

    schema = None

    def __init__(self):
        self.kept, self.lasts, self.fail = [], {}, []
        self.closed = 0

    def write(self, connection, messages, time_ms):
        pass

    def keep(self, arrivals):
        failure = self.fail.pop(0) if self.fail else None
        if failure == "before":
            raise StoreError("the database is away")
        new = 0
        for each in arrivals:
            key = each.peer, each.epoch, each.channel
            for number, _, body in each.messages:
                if number > self.lasts.get(key, 0):
                    self.lasts[key] = number
                    if body == b"bad":
                        raise ValueError("bad")
                    self.kept.append((each.peer, body))
                    new += 1
        if failure == "after":
            raise StoreError("the connection was lost after the commit")
        return new

    def close(self):
        self.closed += 1


def test_what_was_committed_elsewhere_counts_once(make_server, make_device, caplog):
    consumer = Elsewhere()
    consumer.fail = ["before", "after", None, "after"]
    server = make_server(table=None)
    server.consume("*", consumer)
    with server.running() as address, Proxy(address, cut_after=(3_000, 9_000)) as proxy:
        with make_device(proxy.address) as device:
            for number in range(200):
                device.send("c", b"%d" % number)
            assert device.wait_sent(WAIT_S)
        assert server.worker.statistics()["counts"]["retries"] >= 2
    assert consumer.kept == [("ann", b"%d" % number) for number in range(200)]
    assert consumer.closed == 1
    assert "wait until the store can be written: the database is away" in caplog.text


def test_who_sends_what_cannot_be_kept_waits_alone(make_server, make_device):
    consumer = Elsewhere()
    server = make_server(table=None)
    server.consume("*", consumer)
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        ann.send("c", b"bad")
        until(lambda: server.worker.statistics()["counts"]["retries"])
        bob.send("c", b"good")
        assert bob.wait_sent(WAIT_S)
    assert ("bob", b"good") in consumer.kept


# ---- webhooks


class Hooks:
    """A web server that answers as `answers` says, then 200, and collects what it accepted."""

    def __init__(self):
        self.taken, self.answers, self.seen = [], [], []
        hooks = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hooks.seen.append(body)
                answer = hooks.answers.pop(0) if hooks.answers else 200
                if answer == "hang up":
                    self.close_connection = True
                    return
                if answer == 200:
                    hooks.taken.append((self.path, dict(self.headers), body))
                self.send_response(answer)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/in?a=b"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123").decode()


def test_a_webhook_gets_each_message_signed_and_in_order(make_server, make_device, tmp_path):
    with Hooks() as hooks:
        hooks.answers = [200, 503, "hang up", 200, 422]
        server = make_server(table=None)
        server.consume("c", Webhook(hooks.url, secret=SECRET, headers={"X-Shop": "7"}))
        with server.running() as address, make_device(address) as device:
            device.send_many("c", [b"1", b"2", b"bad", b"3"], identities=["a", "b\r\nx: y", "c", "d"])
            assert device.wait_sent(WAIT_S)
    assert hooks.seen == [b"1", b"2", b"2", b"2", b"bad", b"3"]
    assert [body for _, _, body in hooks.taken] == [b"1", b"2", b"3"]
    path, headers, body = hooks.taken[1]
    assert path == "/in?a=b" and headers["X-Shop"] == "7"
    assert headers["webhook-id"] == "ann/c/b%0D%0Ax%3A%20y" and headers["tunnel-id"] == "b%0D%0Ax%3A%20y"
    assert headers["tunnel-device"] == "ann" and headers["tunnel-channel"] == "c"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.digest(b"0123456789abcdef0123", signed, hashlib.sha256)
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    found = rows(tmp_path / "cloud.sqlite", "SELECT id, why, body FROM tunnel_refused")
    assert found == [("c", f"{hooks.url}: the answer was 422", b"bad")]


def test_a_web_server_that_is_away_holds_messages_up(make_server, make_device, caplog):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    server = make_server(table=None)
    server.consume("c", Webhook(f"http://127.0.0.1:{port}/"))
    with server.running() as address, make_device(address) as device:
        device.send("c", b"1")
        until(lambda: server.worker.statistics()["counts"]["retries"] >= 1)
        assert len(device.store.outbox) == 1
    assert f"http://127.0.0.1:{port}/: Connection refused" in caplog.text


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: Webhook("ftp://x/"), "expected http://HOST"),
        (lambda: Webhook("http://me:secret@x/"), "no password"),
        (lambda: Webhook("http://x:port/"), "expected http://HOST"),
        (lambda: Webhook("http://x/", secret="whsec_###"), "is not whsec_ and base64"),
        (lambda: Webhook("http://x/", secret=b"short"), "at least 16 are safe"),
        (lambda: PostgreSQL("", "a; DROP TABLE b"), "expected up to 55 letters"),
        (lambda: PostgreSQL("", "tunnel_received"), "not beginning with a digit"),
        (lambda: PostgreSQL("nonsense", "t"), "the connection string cannot be read"),
        (lambda: PostgreSQL(""), "give a table, or a function that writes"),
    ],
)
def test_wrong_settings_of_consumers(made, text):
    with pytest.raises(TunnelConfigurationError, match=text):
        made()


# ---- PostgreSQL itself


@pytest.fixture(scope="module")
def cluster():
    with contextlib.closing(PostgreSQLServer()) as server:
        yield server


@pytest.mark.stress  # fetches PostgreSQL where the machine has none: 60 MB
def test_postgresql_has_each_message_once(cluster, make_server, make_device, tmp_path):
    """Through a connection that is cut, a database that crashes and comes back, and a server that is started anew."""
    sent = 0
    with Proxy("127.0.0.1:1", cut_after=(6_000, 20_000)) as proxy, make_device(proxy.address) as device:
        for _ in range(3):
            server = make_server(table=None)
            server.consume("*", PostgreSQL(cluster.dsn(), "features"))
            with server.running() as address:
                proxy.retarget(address)
                for _ in range(3):
                    device.send_many("c", [b"%d" % number for number in range(sent, sent + 100)])
                    sent += 100
                    until(lambda: server.worker.counts["messages"])
                    cluster.crash()
                    device.send_many("c", [b"%d" % number for number in range(sent, sent + 100)])
                    sent += 100
                    cluster.start()
                assert device.wait_sent(WAIT_S), device.statistics()
            proxy.retarget("127.0.0.1:1")
    found = cluster.rows("SELECT device, channel, body FROM features ORDER BY position")
    assert found == [("ann", "c", b"%d" % number) for number in range(sent)]


@pytest.mark.stress
def test_postgresql_takes_ids_once_zeros_and_functions_that_write(cluster, make_server, make_device, tmp_path):
    failed = []

    def write(cursor, messages):
        cursor.executemany("INSERT INTO sums VALUES (%s, %s)", [(each.peer, len(each.body)) for each in messages])
        if not failed:
            failed.append(1)
            raise RuntimeError("after writing")

    server = make_server(table=None)
    server.consume("ids", PostgreSQL(cluster.dsn(), "ids"))
    server.consume(
        "sums", PostgreSQL(cluster.dsn, write=write, schema="CREATE TABLE IF NOT EXISTS sums (d text, n int)")
    )
    with server.running() as address:
        for number in range(2):  # the device lost its store in between
            with make_device(address, tmp_path / f"store-{number}.sqlite") as device:
                device.send_many("ids", [b"first", b"zero"], identities=["chosen", "a\0b"])
                device.send("sums", bytes(5))
                assert device.wait_sent(WAIT_S)
    assert cluster.rows("SELECT id, body FROM ids ORDER BY position") == [("chosen", b"first"), ("a␀b", b"zero")]
    assert cluster.rows("SELECT * FROM sums") == [("ann", 5), ("ann", 5)]
    assert failed == [1]
