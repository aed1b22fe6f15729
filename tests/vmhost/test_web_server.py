"""Connections of our HTTP servers: silent ones do not last, and do not keep others out."""

import contextlib
import http.client
import socket
import ssl
import threading

import pytest
import uvicorn

from tests.hosts import until
from vmhost import web_server
from vmhost.tunnel.tls import make_certificates


async def _hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@contextlib.contextmanager
def _served(app=_hello, **options):
    """The port of a server on a thread of its own, and the server."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        server = uvicorn.Server(web_server.config(app, log_config=None, log_level="critical", **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1], server
        finally:
            server.should_exit = True
            thread.join()


def _connection(port, source="127.0.0.2"):
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def _status(port, source="127.0.0.1"):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, 30, (source, 0))) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status


def _is_closed(connected):
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_silent_connection_is_closed_when_its_first_request_is_due():
    with _served(first_request_s=0.2) as (port, _):
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"):
            with _connection(port) as connected:
                connected.sendall(sent)
                assert _is_closed(connected)


def _answered(port):
    """A connection that had an answer; None if it was closed before, as this client was too slow."""
    connected, data = _connection(port), b""
    with contextlib.suppress(ConnectionError):
        connected.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        while more := connected.recv(1000):
            data += more
            if data.endswith(b"hi"):
                return connected
    connected.close()
    return None


def test_a_further_request_that_does_not_end_is_closed_too():
    with _served(first_request_s=0.2) as (port, _), until(lambda: _answered(port)) as connected:
        connected.sendall(b"GET / HT")
        assert _is_closed(connected)


def test_silent_connections_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 20)
    with _served() as (port, _), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(_connection(port, f"127.0.0.{2 + number % 10}")) for number in range(60)]
        assert _status(port) == _status(port, "127.0.0.200") == 200
        assert _is_closed(silent[0])  # the oldest idle ones made room


def test_an_address_has_a_bounded_number_of_connections_and_a_proxy_has_not(monkeypatch):
    monkeypatch.setattr(web_server, "MAX_PER_ADDRESS", 3)
    with _served() as (port, server), contextlib.ExitStack() as stack:
        held = [stack.enter_context(_connection(port)) for _ in range(5)]
        proxied = [stack.enter_context(_connection(port, "127.0.0.1")) for _ in range(5)]
        assert _is_closed(held[0]) and _is_closed(held[1])
        assert _status(port) == 200
        for connected in (*held[2:], *proxied):
            connected.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connected.recv(1000).startswith(b"HTTP/1.1 200")


def test_only_requests_under_way_count_as_busy():
    entered, go = threading.Semaphore(0), threading.Event()

    async def slow(scope, receive, send):
        import asyncio

        if scope["path"] == "/slow":
            entered.release()
            await asyncio.to_thread(go.wait)
        await _hello(scope, receive, send)

    with _served(slow, max_busy=1) as (port, _), contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(_connection(port))
        assert _status(port) == 200  # ten silent ones are not busy
        slow_one = stack.enter_context(_connection(port))
        slow_one.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        entered.acquire()
        assert _status(port) == 503
        go.set()
        assert slow_one.recv(1000).startswith(b"HTTP/1.1 200")


def test_accepted_sockets_send_at_once():
    found = []

    async def look(scope, receive, send):
        for protocol in server.server_state.connections:
            connected = protocol.transport.get_extra_info("socket")
            found.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await _hello(scope, receive, send)

    with _served(look) as (port, server):
        assert _status(port) == 200
    assert found and all(found)


@pytest.fixture
def tls(tmp_path):
    """(options of a server with TLS, the context of a client)"""
    make_certificates(tmp_path, ["client"])
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.check_hostname = False
    return {"ssl_certfile": tmp_path / "server.pem", "ssl_keyfile": tmp_path / "server.key"}, context


def test_requests_by_tls_are_answered_those_that_come_with_the_end_of_the_handshake_too(tls):
    options, context = tls
    with _served(**options) as (port, _):
        for _ in range(20):
            with context.wrap_socket(_connection(port), do_handshake_on_connect=False) as connected:
                connected.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                answer = b"".join(iter(lambda connected=connected: connected.recv(1000), b""))
                assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"hi")
        with _connection(port) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)


def test_a_handshake_has_a_time_and_counts_as_a_connection(tls, monkeypatch):
    options, context = tls
    with _served(first_request_s=0.3, **options) as (port, _), _connection(port) as silent:
        silent.sendall(b"\x16\x03")
        assert _is_closed(silent)
    monkeypatch.setattr(web_server, "MAX_PER_ADDRESS", 3)
    with _served(**options) as (port, server), contextlib.ExitStack() as stack:
        held = [stack.enter_context(_connection(port)) for _ in range(5)]
        assert _is_closed(held[0]) and _is_closed(held[1])
        with context.wrap_socket(_connection(port, "127.0.0.3")) as connected:
            connected.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connected.recv(1000).startswith(b"HTTP/1.1 200")


def test_who_reads_no_answer_is_left(monkeypatch):
    began = threading.Event()
    monkeypatch.setattr(web_server, "STALLED_S", 0.2)

    async def large(scope, receive, send):
        began.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    with _served(large) as (port, server), _connection(port) as connected:
        connected.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert began.wait(60)
        until(lambda: not server.server_state.connections)
        monkeypatch.undo()  # who reads may be slow
        with _connection(port) as reader:
            reader.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            read = sum(map(len, iter(lambda: reader.recv(1 << 20), b"")))
            assert read > 1000 << 16


@pytest.mark.parametrize("limit", [16, 256, 100_000])
def test_connections_leave_descriptors_for_the_process(monkeypatch, limit):
    monkeypatch.setattr(web_server.resource, "getrlimit", lambda what: (limit, limit))
    assert 8 <= web_server.max_connections() <= max(8, min(web_server.MAX_CONNECTIONS, limit - 64))
