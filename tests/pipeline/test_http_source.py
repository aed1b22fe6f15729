"""Events by HTTP: accepted ones, refused ones with status and reason, and the end."""

import contextlib
import http.client
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from tests.pipeline.stream_tasks import GATED, WAIT_S, Gate, open_pipeline, stream_task
from vmhost import ConfigurationError
from vmhost.pipeline import http_source
from vmhost.pipeline.configuration import SourceSettings
from vmhost.pipeline.sources import Sources
from vmhost.pipeline.stored import StoredPipeline, bad_lines
from vmhost.stores import StoreFullError

TOKEN = "0123456789abcdef"
LINES = b'{"name": "click", "time_ms": 1790000000000}\n\n{"name": "click", "time_ms": 1790000000001}\n'


@contextlib.contextmanager
def served(pipeline, **settings):
    with Sources(pipeline, [SourceSettings("web", http="127.0.0.1:0", **settings)]) as sources:
        yield sources


def post(sources, body=LINES, headers=None, path="/events", method="POST", kind=None):
    """(status, what it says, headers)"""
    _, _, host = sources.sources["web"].url.split("/")[:3]
    connection = http.client.HTTPConnection(host, timeout=WAIT_S)
    try:
        headers = dict(headers or {}) | ({"Content-Type": kind} if kind else {})
        connection.request(method, path, body, headers, encode_chunked=not isinstance(body, bytes))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), dict(response.getheaders())
    finally:
        connection.close()


@pytest.fixture
def pipeline(tmp_path):
    with open_pipeline(tmp_path) as pipeline:
        yield pipeline


ONE = {"name": "click", "time_ms": 1_790_000_000_000, "visit": "a"}


@pytest.mark.parametrize(
    ("body", "kind", "taken"),
    [
        (LINES, "application/x-ndjson", 2),
        (LINES, "text/plain;charset=UTF-8", 2),
        (json.dumps(ONE).encode(), "application/x-www-form-urlencoded", 1),
        (json.dumps(ONE, indent=2).encode(), "application/json", 1),
        (json.dumps([ONE, ONE, ONE]).encode(), "application/json; charset=utf-8", 3),
    ],
)
def test_one_event_a_list_or_lines_are_taken(pipeline, body, kind, taken):
    with served(pipeline) as sources:
        assert post(sources, body, kind=kind)[:2] == (200, {"taken": taken, "durable": False})
        assert sources.statistics()["web"]["taken"] == taken
    assert pipeline.statistics()["position"] == taken


def test_events_are_on_the_disk_before_the_answer_where_it_says_so(tmp_path, pipeline):
    with served(pipeline) as sources:
        assert post(sources, path="/events?durable=true")[1] == {"taken": 2, "durable": True}
        with StoredPipeline(pipeline.folder) as stored:
            assert stored.status()["events"]["stored"] == 2
    with open_pipeline(tmp_path / "each", durability="each") as each, served(each) as sources:
        assert post(sources)[1] == {"taken": 2, "durable": True}


@pytest.mark.parametrize(
    ("body", "kind", "status", "expected"),
    [
        (LINES + b'{"name": 3, "time_ms": 1}', None, 400, {"line": 4, "error": "line 4: not an event: Expected `str`"}),
        (
            LINES + b'{"name": "x", "time_ms": 18446744073709551616}',
            None,
            400,
            {"line": 4, "error": "line 4: event 'x'"},
        ),
        (b"[" + json.dumps(ONE).encode() + b", {}]", "application/json", 400, {"error": "field `name` - at `$[1]`"}),
        (json.dumps([ONE, ONE | {"time_ms": 1 << 70}]).encode(), "application/json", 400, {"event": 2}),
        (b"[]", "application/json", 400, {"error": "expected 1 to 10,000 events, got 0"}),
        (b" \n", None, 400, {"error": "no events; send one"}),
        (b"x" * 5000, None, 413, {"error": "the body is longer than 4,096 bytes"}),
    ],
)
def test_what_cannot_be_taken_is_refused_as_a_whole(pipeline, body, kind, status, expected):
    with served(pipeline, max_body_bytes=4096) as sources:
        got, answer, _ = post(sources, body, kind=kind)
        assert (got, answer["taken"]) == (status, 0)
        assert expected["error"] in answer["error"] if "error" in expected else True
        assert {name: answer[name] for name in expected if name != "error"} == {
            name: value for name, value in expected.items() if name != "error"
        }
        assert sources.statistics()["web"]["refused"] == 1
    assert pipeline.statistics()["position"] == 0


def test_a_body_of_unknown_length_is_bounded_too(pipeline):
    with served(pipeline, max_body_bytes=4096) as sources:
        status, answer, _ = post(sources, iter([b"x" * 1000] * 6))
        assert (status, answer["taken"]) == (413, 0)


def test_bad_lines_can_be_put_aside(pipeline):
    with served(pipeline, bad_lines="aside") as sources:
        status, answer, _ = post(sources, b"{\n" + LINES)
    assert (status, answer["taken"], [one["line"] for one in answer["aside"]]) == (200, 2, [1])
    [noted] = bad_lines(pipeline.folder, 10)
    assert (noted["source"], noted["line"], noted["text"]) == ("web", 1, "{")


def test_a_token_is_asked_for(pipeline):
    with served(pipeline, token=TOKEN) as sources:
        for headers in ({}, {"Authorization": "Bearer 0123456789abcdeF"}, {"Authorization": f"Basic {TOKEN}"}):
            status, answer, answered = post(sources, headers=headers)
            assert (status, answer["taken"], answered["www-authenticate"]) == (401, 0, "Bearer")
        assert post(sources, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200


def test_pages_elsewhere_may_not_post_from_a_browser(pipeline):
    with served(pipeline, origins=("http://localhost:3000",)) as sources:
        status, answer, answered = post(sources, headers={"Origin": "http://elsewhere.example"})
        assert (status, "access-control-allow-origin" in answered) == (403, False)
        assert "http://elsewhere.example may not" in answer["error"]
        assert post(sources, headers={"Host": "elsewhere.example"})[0] == 403  # a name that leads to loopback
        for method, status in (("OPTIONS", 200), ("POST", 200)):
            got, _, answered = post(sources, method=method, headers={"Origin": "http://localhost:3000"})
            assert (got, answered["access-control-allow-origin"]) == (status, "http://localhost:3000")
        assert pipeline.statistics()["position"] == 2


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/", "POST", {}, 404),
        ("/events", "GET", {}, 405),
        ("/events", "POST", {"Content-Encoding": "gzip"}, 415),
        ("/events?durable=maybe", "POST", {}, 400),
    ],
)
def test_other_requests_are_refused(pipeline, path, method, headers, status):
    with served(pipeline) as sources:
        got, answer, _ = post(sources, path=path, method=method, headers=headers)
        assert got == status and answer["error"]


def test_a_body_that_does_not_come_is_not_waited_for(pipeline, monkeypatch):
    monkeypatch.setattr(http_source, "_BODY_S", 0.05)
    with served(pipeline) as sources:
        url = sources.sources["web"].url
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), WAIT_S) as connection:
            connection.sendall(b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_has_not_come_does_not_hold_up_the_end(pipeline):
    with served(pipeline) as sources:
        url = sources.sources["web"].url
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), WAIT_S) as connection:
            connection.sendall(b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
            while not sources.sources["web"]._app.state.events._limits:
                assert not sources.wait(0.01)
            sources.stop()
            assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
            assert sources.wait(WAIT_S)


@pytest.mark.parametrize("host", ["[", "", "127.0.0.1.elsewhere.example", "elsewhere.example:80", "\xff"])
def test_a_host_that_is_not_this_one_is_refused(pipeline, host):
    with served(pipeline) as sources:
        assert post(sources, headers={"Host": host})[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:80"])
def test_names_of_this_host_are_taken(pipeline, host):
    with served(pipeline) as sources:
        assert post(sources, headers={"Host": host})[0] == 200


def test_full_queues_are_told_to_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr(http_source, "_ROOM_S", 0.05)
    gate = Gate()
    bundle = stream_task(tmp_path, GATED, "on: [click], queue: 1", functions="gate")
    with open_pipeline(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline, served(pipeline) as sources:
        one = json.dumps(ONE).encode()
        assert post(sources, one)[0] == 200
        gate.wait_for(1)
        assert post(sources, one)[0] == 200  # it waits
        status, answer, answered = post(sources, one)
        assert (status, answer["taken"], answered["retry-after"]) == (503, 0, "1")
        gate.open()
        assert pipeline.wait(WAIT_S)
        assert post(sources, one)[0] == 200


def test_a_full_disk_is_told(pipeline, monkeypatch):
    def full(events, bounded):
        raise StoreFullError("the disk is full")

    with served(pipeline) as sources:
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "append_many", full)
            assert post(sources)[0] == 507
        assert post(sources)[0] == 200


def test_a_request_that_is_under_way_at_the_end_is_answered(tmp_path):
    gate = Gate()
    bundle = stream_task(tmp_path, GATED, "on: [click], queue: 1", functions="gate")
    one, answers = json.dumps(ONE).encode(), []
    with open_pipeline(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline, served(pipeline) as sources:
        for _ in range(2):
            assert post(sources, one)[0] == 200
            gate.wait_for(1) if not answers else None
            answers.append(200)
        client = threading.Thread(target=lambda: answers.append(post(sources, one)[0]))
        client.start()
        while not sources.sources["web"]._app.state.events.waiting:
            assert not sources.wait(0.01)
        sources.stop()
        gate.open()
        client.join(WAIT_S)
        assert sources.wait(WAIT_S)
    assert answers[2] in (200, 503)


def test_a_port_that_is_taken_is_told(pipeline):
    with served(pipeline) as sources:
        port = sources.sources["web"].url.split(":")[2].split("/")[0]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: cannot listen: Address already in use"):
            Sources(pipeline, [SourceSettings("web", http=f"127.0.0.1:{port}")])


def test_many_clients_at_once_lose_nothing(pipeline):
    def send(sources, answers):
        for _ in range(10):
            answers.append(post(sources)[0])

    answers = []
    with served(pipeline) as sources:
        clients = [threading.Thread(target=send, args=(sources, answers)) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(WAIT_S)
    assert answers == [200] * 80
    assert pipeline.statistics()["position"] == 160


def test_without_the_extra_it_says_how_to_get_it(tmp_path):
    import subprocess
    import sys

    script = "import sys\nsys.modules['starlette'] = None\nimport vmhost.pipeline.http_source\n"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(root)}
    )
    assert "events by HTTP need Starlette and uvicorn: pip install 'vmhost[web]'" in done.stderr
