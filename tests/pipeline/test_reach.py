"""The reach centre: who gets which message, when, how often, and what is recorded of it."""

import contextlib
import errno
import http.client
import http.server
import json
import os
import queue
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests import warm
from tests.hosts import PROLOGUE, until
from tests.pipeline.stream_tasks import WAIT_S, open_pipeline, stream_task
from vmhost import ConfigurationError
from vmhost.bytecode.compiler import compile_task
from vmhost.cohorts import cohort_of
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import Pipeline
from vmhost.pipeline.reach import page as page_module
from vmhost.pipeline.reach.audience import Audience
from vmhost.pipeline.reach.channels import ChannelError, NobodyThereError, TrackingLog
from vmhost.pipeline.reach.page import PageServer
from vmhost.pipeline.reach.queue import audit
from vmhost.pipeline.reach.settings import channel_settings
from vmhost.pipeline.replay import ReplayClock
from vmhost.stores import StoreFullError

BEGIN_MS = 1_790_000_000_000  # 2026-09-21 13:33:20 UTC
RULE = {
    "name": "left",
    "pattern": [{"name": "view", "event": "view"}, {"name": "leave", "event": "leave"}],
    "within_ms": 60_000,
    "then": ["phone"],
}
QUICK = {"first_wait": "1 ms", "max_wait": "10 ms"}


class Clock:
    def __init__(self, time_s=BEGIN_MS / 1000):
        self.time_s = time_s

    def __call__(self):
        return self.time_s


class Receiver:
    """A host function with a given behaviour for each message, in turn: it raises, or waits for an event."""

    def __init__(self, *does):
        self.does, self.got = list(does), []

    def __call__(self, message):
        self.got.append(message)
        what = self.does.pop(0) if self.does else None
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            what.wait(WAIT_S)

    @property
    def keys(self):
        return [message["key"] for message in self.got]


def leaves(*keys, at_s=0):
    events = []
    for n, key in enumerate(keys):
        time_ms = BEGIN_MS + at_s * 1000 + n * 10
        events += [Event("view", time_ms, "item", key=key), Event("leave", time_ms + 1, "item", key=key)]
    return events


def open_reach(folder, receiver, channel=None, rules=(RULE,), **options):
    functions = {"notify": receiver}
    channels = {"phone": {"native_callback": "notify", **QUICK, **(channel or {})}}
    channels |= options.pop("channels", {})
    return open_pipeline(folder, host={"functions": functions}, rules=rules, channels=channels, **options)


def audited(pipeline, **wanted):
    """(person, what, why) of the audit, oldest first."""
    with pipeline.database.reader() as connection:
        return [(row["person"], row["what"], row["why"]) for row in reversed(audit(connection, **wanted))]


def sent(pipeline):
    assert pipeline.reach.wait(WAIT_S)


def settle(pipeline):
    """Waits until all pending decisions about messages are made."""
    pipeline.flush()
    until(lambda: pipeline.reach.wait(0.5))


# ---- channels that fail, hang and answer twice


def test_a_channel_that_fails_is_tried_again_with_the_same_id_and_then_given_up(tmp_path, caplog):
    receiver = Receiver(*[OSError("no network")] * 4)
    with open_reach(tmp_path, receiver, {"tries": 3}) as pipeline:
        pipeline.append_many(leaves("ann", "bob"))
        sent(pipeline)
        ways = audited(pipeline)
    assert ways == [
        ("ann", "retry", "OSError: no network"),
        ("ann", "retry", "OSError: no network"),
        ("ann", "given_up", "OSError: no network"),
        ("bob", "retry", "OSError: no network"),
        ("bob", "sent", "taken"),
    ]
    assert len({message["id"] for message in receiver.got}) == 2 and "was given up: OSError" in caplog.text


def test_a_failed_message_is_tried_again_where_a_replays_clock_stands_still(tmp_path):
    receiver = Receiver(*[OSError("no network")] * 2)
    with open_reach(tmp_path, receiver, {"tries": 3}, clock=ReplayClock()) as pipeline:
        pipeline.append_many(leaves("ann", "bob"))
        sent(pipeline)
        assert [(person, what) for person, what, _ in audited(pipeline)] == [
            ("ann", "retry"),
            ("ann", "retry"),
            ("ann", "sent"),
            ("bob", "sent"),
        ]


def test_in_a_replay_what_is_due_after_its_last_event_is_not_waited_for(tmp_path):
    quiet = {"from": "00:00", "to": "23:59"}
    with open_reach(tmp_path, Receiver(), {"quiet": quiet}, clock=ReplayClock()) as pipeline:
        pipeline.append_many(leaves("ann"))
        assert pipeline.reach.wait()
        assert [what for _, what, _ in audited(pipeline)] == ["held"]


def test_a_function_that_exits_is_tried_again(tmp_path):
    receiver = Receiver(SystemExit(3), KeyboardInterrupt())
    with open_reach(tmp_path, receiver, {"tries": 3}) as pipeline:
        pipeline.append_many(leaves("ann", "bob"))
        sent(pipeline)
        ways = audited(pipeline)
    assert [(person, what) for person, what, _ in ways] == [("ann", "retry")] * 2 + [("ann", "sent"), ("bob", "sent")]
    assert ways[0][2] == "CallbackError: the function ended by SystemExit: 3"


def test_an_async_function_is_refused(tmp_path):
    async def notify(message):
        pass

    with pytest.raises(ConfigurationError, match="channel phone: expected a function that is not async"):
        open_reach(tmp_path, notify)
    with pytest.raises(ConfigurationError, match="channel other: expected a function that is not async"):
        open_reach(tmp_path, Receiver(), channels={"other": notify})


def test_a_channel_that_hangs_holds_up_no_other_and_what_it_took_is_not_sent_again(tmp_path):
    go, other = threading.Event(), queue.SimpleQueue()
    receiver = Receiver(go)
    rule = RULE | {"then": ["phone", "other"]}
    with open_reach(tmp_path, receiver, {"timeout": "20 ms"}, [rule], channels={"other": other.put}) as pipeline:
        pipeline.append_many(leaves("ann", "bob"))
        pipeline.flush()
        assert [other.get(timeout=WAIT_S)["key"] for _ in range(2)] == ["ann", "bob"]
        go.set()
        sent(pipeline)
        assert ("ann", "sent", "taken") in audited(pipeline, channel="phone")
    assert sorted(receiver.keys) == ["ann", "bob"]


def test_the_end_does_not_wait_for_a_channel_that_never_returns(tmp_path, monkeypatch):
    monkeypatch.setattr("vmhost.pipeline.pipeline._SENDING_S", 0.2)
    go, receiver = threading.Event(), Receiver()
    with open_reach(tmp_path, Receiver(go), {"timeout": "20 ms"}) as pipeline:
        pipeline.append_many(leaves("ann"))
    try:
        with open_reach(tmp_path, receiver) as pipeline:  # it waited for this start
            sent(pipeline)
        assert receiver.keys == ["ann"]
    finally:
        go.set()


@contextlib.contextmanager
def gateway(answer, bodies=None):
    """A push gateway: `answer(handler)` sends what it likes. Yields its address and the ids that came; `bodies` gets
    what came with them."""
    requests, stopped = [], threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if bodies is not None:
                bodies.append(body)
            requests.append((self.headers["Idempotency-Key"], self.headers.get("Authorization")))
            answer(self, len(requests), stopped)

        def log_message(self, *arguments):
            pass

    class Server(http.server.ThreadingHTTPServer):
        block_on_close = True

        def handle_error(self, request, address):
            pass  # the other end has gone

    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}/send?to=all", requests
        finally:
            stopped.set()
            listening.shutdown()
            thread.join()


def simple(status, headers=()):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def drips(handler, number, stopped):
    """An answer without an end, a byte at a time; the next one is quick."""
    if number > 1:
        return simple(200)(handler)
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not stopped.wait(0.01):
            handler.wfile.write(b"X")


def twice(handler, number, stopped):
    """Two answers to one request."""
    simple(200)(handler)
    with contextlib.suppress(OSError):
        simple(500)(handler)


def then_hangs_up(handler, number, stopped):
    """The first request is taken, and not answered."""
    if number > 1:
        simple(200)(handler)
    handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "ways"),
    [
        (drips, ["retry", "sent"]),
        (twice, ["sent"]),
        (then_hangs_up, ["retry", "sent"]),
        (lambda handler, number, _: simple(503 if number == 1 else 201)(handler), ["retry", "sent"]),
        (
            lambda handler, number, _: simple(429 if number == 1 else 200, [("Retry-After", "0")])(handler),
            ["retry", "sent"],
        ),
        (lambda handler, number, _: simple(302, [("Location", "http://127.0.0.1:1/")])(handler), ["given_up"]),
    ],
)
def test_a_push_gateway_that_behaves_badly(tmp_path, answer, ways):
    (tmp_path / "token").write_text("secret\n")
    with gateway(answer) as (address, requests):
        channel = {"push": address, "timeout": "2 s", "token_file": str(tmp_path / "token"), **QUICK}
        with open_pipeline(tmp_path, rules=[RULE], channels={"phone": channel}) as pipeline:
            pipeline.append_many(leaves("ann"))
            sent(pipeline)
            assert [what for _, what, _ in audited(pipeline)] == ways
    assert len(requests) == len(ways) and len(set(requests)) == 1 and requests[0][1] == "Bearer secret"


KILLED = """
    from vmhost.pipeline import Event, Pipeline

    rule = {"name": "left", "pattern": [{"name": "leave", "event": "leave"}]}
    rule |= {"within_ms": 1000, "then": ["phone"]}
    channel = {"push": sys.argv[1], "first_wait": "1 ms"}
    with Pipeline(sys.argv[2], [], rules=[rule], channels={"phone": channel}, durability="each") as pipeline:
        for number in range(60):  # those that are known by their ids are not taken again
            pipeline.append(Event("leave", 1_790_000_000_000 + number, key=f"person-{number}", id=f"e{number}"))
"""


def test_a_message_is_neither_lost_nor_another_one_after_kill_9(tmp_path):
    kills, process = iter((1, 7, 20, 21, 40)), []

    def answer(handler, number, stopped):
        simple(200)(handler)
        if number == process[-1][1]:
            process[-1][0].kill()  # it has sent this one, and never gets the answer

    with gateway(answer) as (address, requests):
        for kill_at in (*kills, None):
            started = subprocess.Popen(
                [sys.executable, "-c", PROLOGUE + textwrap.dedent(KILLED), address, tmp_path / "p"]
            )
            process.append((started, None if kill_at is None else len(requests) + kill_at))
            assert started.wait(WAIT_S) in ((0,) if kill_at is None else (0, -signal.SIGKILL))
    people = {}
    for identity, _ in requests:
        people[identity] = people.get(identity, 0) + 1
    assert len(people) == 60 <= len(requests)
    with contextlib.closing(sqlite3.connect(tmp_path / "p" / "pipeline.sqlite")) as connection:
        rows = connection.execute("SELECT person, id, state FROM reach_messages").fetchall()
    assert sorted(person for person, _, _ in rows) == sorted(f"person-{number}" for number in range(60))
    assert {identity for _, identity, _ in rows} == people.keys() and all(state == 1 for *_, state in rows)


def test_messages_of_two_devices_have_ids_of_their_own(tmp_path):
    receiver = Receiver()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with open_reach(tmp_path / name, receiver) as pipeline:
            pipeline.append_many(leaves("ann"))
    assert len({message["id"] for message in receiver.got}) == 2


def test_a_gateway_gets_any_rules_name_and_contents_that_json_cannot_say(tmp_path):
    bodies = []

    def answer(handler, number, stopped):
        simple(200)(handler)

    def read(text):
        return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))

    with gateway(answer, bodies) as (address, requests):
        channels = {"phone": {"push": address, **QUICK}, "lines": {"ut": "lines.jsonl"}}
        rule = RULE | {"name": "离开", "then": ["phone", "lines"]}
        with open_pipeline(tmp_path, rules=[rule], channels=channels) as pipeline:
            view, leave = leaves("ann")
            contents = {"price": float("nan"), ("a", 1): {"far": [float("inf"), b"x"]}}
            view = msgspec.structs.replace(view, contents=contents)
            pipeline.append_many([view, leave])
            sent(pipeline)
            assert audited(pipeline, channel="phone") == [("ann", "sent", "status 200")]
    (identity, _), (body,) = requests[0], map(read, bodies)
    assert body == read((tmp_path / "data" / "tracking" / "lines.jsonl").read_text())
    assert urllib.parse.unquote(identity) == body["id"] and ":rule:离开:" in body["id"]
    assert body["steps"]["view"][0]["contents"] == {"price": None, "('a', 1)": {"far": [None, "b'x'"]}}


def test_what_was_handed_over_is_not_again_where_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("vmhost.pipeline.reach.sending._STORE_RETRY_S", 0.001)
    receiver, full = Receiver(), [3]
    with open_reach(tmp_path, receiver) as pipeline:
        end = pipeline.reach.queue.end

        def ends(*arguments):
            full[0] -= 1
            if full[0] >= 0:
                raise StoreFullError("no space left on the device")
            return end(*arguments)

        pipeline.reach.queue.end = ends
        pipeline.append_many(leaves("ann"))
        sent(pipeline)
        assert audited(pipeline) == [("ann", "sent", "taken")]
    assert receiver.keys == ["ann"] and full[0] == -1


def test_a_wait_without_an_end_ends_where_the_store_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("vmhost.pipeline.reach.sending._STORE_RETRY_S", 0.001)
    receiver, is_full = Receiver(), [True]
    with open_reach(tmp_path, receiver) as pipeline:
        end = pipeline.reach.queue.end

        def ends(*arguments):
            if is_full[0]:
                raise StoreFullError("no space left on the device")
            return end(*arguments)

        pipeline.reach.queue.end = ends
        pipeline.append_many(leaves("ann"))
        with pytest.raises(StoreFullError):
            pipeline.reach.wait()
        assert not pipeline.reach.wait(0.01)
        is_full[0] = False
        until(lambda: pipeline.reach.wait(0.5))
        assert pipeline.reach.wait()
    assert receiver.keys == ["ann"]


def test_a_line_whose_sync_fails_is_there_once_after_the_next_try(tmp_path, monkeypatch):
    log, sync, left = TrackingLog(tmp_path, "lines.jsonl"), os.fsync, [1]

    def failing(descriptor):
        if left.pop() if left else 0:
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    message = {"id": "a", "key": "ann", "contents": {}, "rule": "r", "time_ms": 1}
    with pytest.raises(OSError):
        log.send(message)
    assert log.send(message) is None and log.send(message) == "there already"
    assert len((tmp_path / "tracking" / "lines.jsonl").read_text().splitlines()) == 1


# ---- when, how often, to whom


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_ahead_holds_nothing_up(tmp_path, restarts):
    """A device that starts with a wrong clock, set right later: caps and times to wait are not of that year."""
    clock, receiver = Clock(BEGIN_MS / 1000 + 4 * 365 * 86_400), Receiver(None, OSError("no network"))
    options = {"clock": clock, "channel": {"cap": {"count": 1, "per": "1 h"}, "first_wait": "1 h", "max_wait": "1 h"}}
    with contextlib.ExitStack() as stack:
        pipeline = stack.enter_context(open_reach(tmp_path, receiver, **options))
        pipeline.append_many(leaves("ann", "bob"))
        until(lambda: audited(pipeline) == [("ann", "sent", "taken"), ("bob", "retry", "OSError: no network")])
        clock.time_s = BEGIN_MS / 1000
        if restarts:
            pipeline.close()
            pipeline = stack.enter_context(open_reach(tmp_path, receiver, **options))
        until(lambda: receiver.keys == ["ann", "bob", "bob"])
        clock.time_s += 3601
        pipeline.append_many(leaves("ann", at_s=1))
        until(lambda: receiver.keys[3:] == ["ann"])


def test_caps_quiet_hours_priorities_and_expiry(tmp_path):
    clock = Clock()
    receiver = Receiver()
    quiet = {"from": "22:00", "to": "08:00", "zone": "UTC", "urgent": 8}
    rules = [
        RULE,
        RULE | {"name": "urgent", "priority": 8},
        RULE | {"name": "soon", "expires_ms": 1000, "priority": 2},
    ]
    rules[1]["pattern"] = [{"name": "view", "event": "fire"}]
    rules[2]["pattern"] = [{"name": "view", "event": "offer"}]
    cap = [{"count": 2, "per": "1 h"}, {"count": 3, "per": "1 d"}]
    with open_reach(tmp_path, receiver, {"cap": cap, "quiet": quiet}, rules, clock=clock) as pipeline:
        pipeline.append_many(leaves("ann", "ann", "ann", "bob"))
        sent(pipeline)
        assert receiver.keys == ["ann", "ann", "bob"]  # the third is beyond the cap
        assert audited(pipeline, what="capped") == [("ann", "capped", "2 messages were sent within 1 h already")]
        clock.time_s += 9 * 3600  # 22:33
        at_ms = round(clock.time_s * 1000)
        pipeline.append_many(
            [
                Event("view", at_ms, key="eve"),
                Event("leave", at_ms + 1, key="eve"),
                Event("offer", at_ms + 2, key="eve"),
                Event("fire", at_ms + 3, key="eve"),
            ]
        )
        settle(pipeline)
        assert [message["rule"] for message in receiver.got[3:]] == ["urgent"]
        assert {why for _, what, why in audited(pipeline, what="held")} == {"quiet hours from 22:00 to 08:00"}
        with pipeline.database.reader() as connection:
            rows = connection.execute("SELECT DISTINCT due_ms FROM reach_messages WHERE state = 0").fetchall()
        assert rows == [(1_790_064_000_000,)]  # 08:00 of the next day
        clock.time_s = 1_790_064_000.0
        sent(pipeline)
        assert [message["rule"] for message in receiver.got[4:]] == ["left"]
        assert [what for _, what, _ in audited(pipeline, person="eve")] == ["sent", "held", "held", "sent", "expired"]


def test_what_waits_goes_by_priority(tmp_path):
    go, receiver = threading.Event(), Receiver()
    receiver.does = [go]
    high = RULE | {"name": "high", "priority": 9, "pattern": [{"name": "view", "event": "fire"}]}
    with open_reach(tmp_path, receiver, rules=[RULE, high]) as pipeline:
        pipeline.append_many([*leaves("ann", "bob"), Event("fire", BEGIN_MS + 100, key="eve")])
        pipeline.flush()
        go.set()
        sent(pipeline)
    first, *others = receiver.keys
    assert [key for key in others if key != "eve"] in (["bob"], ["ann", "bob"]) and "eve" in receiver.keys[:2]


def test_audiences(tmp_path):
    """CEL over the device's profile, and people by a hash, always the same ones."""
    receiver, people = Receiver(), [f"user{n}" for n in range(60)]
    definitions = {
        "android": {"where": 'profile.os == "android" && profile.app >= 20'},
        "tenth": {"where": {"field": "os", "op": "==", "value": "android"}, "percent": 10, "salt": "spring"},
    }
    options = {"audiences": definitions, "profile": {"os": "android", "app": 21}}
    with open_reach(tmp_path, receiver, {"audience": "tenth"}, [RULE | {"audience": "android"}], **options) as pipeline:
        pipeline.append_many(leaves(*people))
        sent(pipeline)
        outside = audited(pipeline, what="outside")
    wanted = [name for name in people if cohort_of("spring", name) <= 100]
    assert receiver.keys == wanted and 0 < len(wanted) < 20 and len(outside) == 60 - len(wanted)
    assert "it takes the first 100" in outside[0][2]
    later = Audience("x", {"percent": 20, "salt": "spring"}, {})
    assert all(later.why_not(name) is None for name in wanted)
    assert Audience("x", definitions["android"], {"os": "ios", "app": 30}).why_not("ann") is not None
    assert Audience("x", definitions["android"], {}).why_not("ann") is not None
    assert Audience("x", {"percent": 100, "of": "device"}, {"device": "d"}).why_not("ann") is None
    counts = [sum(cohort_of(salt, f"u{n}") <= 50 for n in range(4000)) for salt in "ab"]
    assert all(150 < count < 250 for count in counts)


# ---- tasks: called by channels, and their results


ECHO = (
    "def run(message):\n    return {'title': 'for ' + message['key'], 'of': message.get('rule', message.get('task'))}\n"
)
FAILS = "def run(message):\n    raise ValueError('never')\n"


def plain_task(folder, source, name="remind"):
    (folder / name).mkdir()
    (folder / name / "main.py").write_text(source)
    (folder / name / "task.yaml").write_text(f'name: {name}\nversion: 1.0.0\nentry: main:run\npython: "3.14"\n')
    path = folder / f"{name}.vmb"
    path.write_bytes(compile_task(folder / name).to_bytes())
    return str(path)


def test_a_match_runs_a_task_whose_result_goes_on(tmp_path):
    receiver = Receiver()
    channels = {
        "task": {"walle_task": plain_task(tmp_path, ECHO), "then": ["phone"]},
        "fails": {"walle_task": plain_task(tmp_path, FAILS, "fails"), "tries": 2, **QUICK},
    }
    rule = RULE | {"then": ["task", "fails"]}
    with open_reach(tmp_path, receiver, rules=[rule], channels=channels) as pipeline:
        pipeline.append_many(leaves("ann"))
        sent(pipeline)
        ways = audited(pipeline, channel="fails")
    (message,) = receiver.got
    assert message["message"] == {"title": "for ann", "of": "left"} == message["row"] and message["key"] == "ann"
    assert [what for _, what, _ in ways] == ["retry", "given_up"] and "ValueError: never" in ways[1][2]


def test_results_of_a_stream_task_reach_people_and_its_calls_are_for_an_audience(tmp_path):
    source = 'def run(value):\n    return [{"visit": value["key"], "count": 1}, {"visit": value["key"], "count": 2}]\n'
    receiver = Receiver()
    reach = {"clicks": {"then": ["phone"], "audience": "some", "message": {"title": "hello"}}}
    bundle = stream_task(tmp_path, source, "on: [click]")
    audiences = {"some": {"percent": 50}}
    keys = [f"u{n}" for n in range(20)]
    channels = {"phone": {"native_callback": "notify"}}
    options = {
        "channels": channels,
        "audiences": audiences,
        "reach": reach,
        "host": {"functions": {"notify": receiver}},
    }
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        pipeline.append_many([Event("click", BEGIN_MS + n, "item", key, key=key) for n, key in enumerate(keys)])
        assert pipeline.wait(WAIT_S)
    inside = [key for key in keys if cohort_of("some", key) <= 500]
    assert sorted((one["key"], one["row"]["count"]) for one in receiver.got) == sorted(
        (key, count) for key in inside for count in (1, 2)
    )
    assert receiver.got[0]["message"] == {"title": "hello"} and len({one["id"] for one in receiver.got}) == 2 * len(
        inside
    )
    assert pipeline.final["tasks"]["clicks"]["outside"] == 20 - len(inside) > 0


def test_the_tracking_log_has_each_id_once_and_forgets(tmp_path):
    channels = {"track": {"ut": "tracking.jsonl"}}
    rule = RULE | {"then": ["track"]}
    path = tmp_path / "data" / "tracking" / "tracking.jsonl"
    with open_pipeline(tmp_path, rules=[rule], channels=channels) as pipeline:
        pipeline.append_many(leaves("ann", "bob"))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["ann", "bob"]
    path.write_text(f'{lines[0]}\n{lines[1]}\n{{"id": "cut sho')
    with open_pipeline(tmp_path, rules=[rule], channels=channels) as pipeline:
        with pipeline.database.transaction() as connection:  # as if it died before it noted that these were sent
            connection.execute("DELETE FROM reach_messages")
            connection.execute("UPDATE reach_channels SET position = 0")
        pipeline.reach._positions["track"] = 0
        pipeline.append_many(leaves("eve", at_s=100))
        sent(pipeline)
        assert [why for _, what, why in audited(pipeline) if what == "sent"][-3:].count("there already") == 2
        assert [json.loads(line)["key"] for line in path.read_text().splitlines() if line != '{"id": "cut sho'] == [
            "ann",
            "bob",
            "eve",
        ]
        assert pipeline.forget("ann")["messages"] == 1
        assert b"ann" not in path.read_bytes() and audited(pipeline, person="ann") == []


# ---- pages


class PageReader:
    """A page as in a browser: reads the stream, and confirms the messages that it has shown."""

    def __init__(self, url, key):
        self.address = urllib.parse.urlsplit(url).netloc
        self.connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        self.connection.request("GET", f"/messages?key={key}")
        self.stream = self.connection.getresponse()
        assert self.stream.status == 200, self.stream.read()
        self.page = json.loads(self.next()["data"])["page"]

    def next(self):
        found = {}
        while (line := self.stream.fp.readline().decode().strip()) or not found:
            if self.chunk(line):
                continue
            name, _, value = line.partition(": ")
            if name:
                found[name] = value
        return found

    @staticmethod
    def chunk(line):
        return line and all(digit in "0123456789abcdef" for digit in line)

    def shows(self, identity):
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        connection.request("POST", "/seen", json.dumps({"id": identity, "page": self.page}))
        answer = connection.getresponse()
        assert answer.status == 200 and json.loads(answer.read()) == {"seen": True}
        connection.close()

    def close(self):
        self.stream.close()
        self.connection.close()


@contextlib.contextmanager
def page_server():
    server = PageServer("127.0.0.1:0")
    server.start()
    try:
        yield server
    finally:
        server.close()


def test_a_broadcast_does_not_wait_for_a_page_that_shows_nothing():
    with page_server() as server, ThreadPoolExecutor(1) as pool:
        silent, ann = PageReader(server.url, "silent"), PageReader(server.url, "ann")

        def broadcast(name, timeout_s):
            shown = pool.submit(server.pages.show, "broadcast", {"id": name}, None, timeout_s)
            ann.shows(json.loads(ann.next()["data"])["id"])
            return shown.result()

        assert broadcast("first", 0.5) == 1  # after this time
        for name in ("second", "third"):
            assert broadcast(name, 1e6) == 1  # at once
        for _ in range(3):
            last = json.loads(silent.next()["data"])["id"]
        silent.shows(last)  # from now on it is waited for
        shown = pool.submit(server.pages.show, "broadcast", {"id": "fourth"}, None, 1e6)
        ann.shows(json.loads(ann.next()["data"])["id"])
        silent.shows(json.loads(silent.next()["data"])["id"])
        assert shown.result() == 2
        silent.close(), ann.close()


def test_a_page_that_takes_no_messages_is_closed_with_what_waits_for_it():
    with page_server() as server:
        stalled, message = PageReader(server.url, "stalled"), {"id": "x", "text": "x" * (1 << 20)}
        for _ in range(10_000):
            try:
                server.pages.show("broadcast", message, None, 0.001)
            except NobodyThereError:
                break
            except ChannelError:
                assert all(page.lines.qsize() <= page_module._MAX_WAITING for page in server.pages._pages.values())
        assert not server.pages._pages
        stalled.close()


def test_a_poplayer_waits_for_its_person_and_a_broadcast_goes_to_all(tmp_path):
    pages = {"layer": {"poplayer": "127.0.0.1:0", **QUICK}, "all": {"broadcast": "127.0.0.1:0"}}
    with open_pipeline(tmp_path, rules=[RULE | {"then": ["layer", "all"]}], channels=pages) as pipeline:
        (url,) = pipeline.reach.urls.values()
        pipeline.append_many(leaves("ann"))
        settle(pipeline)
        assert [what for _, what, _ in audited(pipeline, channel="all")] == ["missed"]
        assert audited(pipeline, channel="layer") == [("ann", "held", "no page of this person is open")]
        bob, ann = PageReader(url, "bob"), PageReader(url, "ann")
        shown = ann.next()
        message = json.loads(shown["data"])
        assert (shown["event"], message["key"], message["rule"]) == ("poplayer", "ann", "left")
        ann.shows(message["id"])
        sent(pipeline)
        assert audited(pipeline, channel="layer", what="sent") == [("ann", "sent", "shown by 1 page")]
        pipeline.append_many(leaves("eve", at_s=100))
        pipeline.flush()
        for page in (bob, ann):
            shown = page.next()
            assert shown["event"] == "broadcast"
            page.shows(json.loads(shown["data"])["id"])
        settle(pipeline)
        assert audited(pipeline, channel="all")[-1] == ("eve", "sent", "shown by 2 pages")
        bob.close(), ann.close()


def test_two_channels_show_one_message_to_a_page_at_a_time(tmp_path):
    address = "127.0.0.1:0"
    channels = {"layer": {"poplayer": address, **QUICK}, "all": {"broadcast": address, **QUICK}}
    with open_pipeline(tmp_path, rules=[RULE | {"then": ["layer", "all"]}], channels=channels) as pipeline:
        page = PageReader(pipeline.reach.urls[address], "ann")
        pipeline.append_many(leaves("ann"))
        pipeline.flush()
        messages = [page.next() for _ in range(2)]  # both wait until it is shown
        page.shows(json.loads(messages[0]["data"])["id"])
        sent(pipeline)
        assert {one["event"] for one in messages} == {"poplayer", "broadcast"}
        assert audited(pipeline) == [("ann", "sent", "shown by 1 page")] * 2
        page.close()


def test_pages_are_for_this_machine_only(tmp_path):
    with open_pipeline(tmp_path, channels={"layer": {"poplayer": "127.0.0.1:0"}}) as pipeline:
        (url,) = pipeline.reach.urls.values()
        address = urllib.parse.urlsplit(url).netloc

        def asked(method, path, headers, body=None):
            connection = http.client.HTTPConnection(address, timeout=WAIT_S)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.status, answer.read()
            connection.close()
            return content

        assert asked("GET", "/messages", {"Host": "evil.example"})[0] == 403
        assert asked("GET", "/messages", {"Origin": "https://evil.example"})[0] == 403
        assert asked("POST", "/seen", {}, "[" * 3000)[0] == 400
        assert asked("POST", "/seen", {}, '{"id": 3, "page": {}}') == (200, b'{"seen":false}')
        assert asked("POST", "/seen", {}, "x" * 20_000)[0] == 413
        assert asked("GET", "/", {})[0] == 200


def test_the_command_sends_to_a_local_page(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vmhost",
        "reach",
        "test",
        "--listen",
        f"127.0.0.1:{port}",
        "--key",
        "ann",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stderr.readline().split()[1]
        page = PageReader(url, "ann")
        message = json.loads(page.next()["data"])
        page.shows(message["id"])
        report = json.loads(process.stdout.read())
        page.close()
        assert process.wait(WAIT_S) == 0
    assert report["answer"] == "shown by 1 page" and message["message"]["title"] == "A message"


def test_the_commands_show_audit_and_queue(tmp_path):
    clock = Clock(BEGIN_MS / 1000 + 12 * 3600)  # at night
    quiet = {"from": "22:00", "to": "08:00", "zone": "UTC"}
    with open_reach(tmp_path, Receiver(), {"quiet": quiet}, clock=clock) as pipeline:
        pipeline.append_many(leaves("ann"))
        settle(pipeline)

    def answer(*command):
        done = warm.run("-m", "vmhost", "reach", *command, "--json", timeout=WAIT_S)
        return done.returncode, json.loads(done.stdout)

    assert [row["what"] for row in answer("audit", tmp_path / "data", "--key", "ann")[1]] == ["held"]
    assert [row["held"] for row in answer("queue", tmp_path / "data")[1]] == ["quiet hours from 22:00 to 08:00"]
    assert answer("audit", tmp_path / "data", "--what", "lost")[0] == 2


# ---- what cannot be


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        ({"push": "file:///x"}, "push: expected an address such as https://host/path"),
        ({"push": "https://a/b", "log": True}, "expected one of push"),
        ({"push": "https://a/b", "cap": {"count": 0, "per": "1 d"}}, "cap.count: expected a whole number from 1"),
        (
            {"push": "https://a/b", "cap": [{"count": 1, "per": "soon"}]},
            "cap.0.per: expected a time such as 500 ms, 30 min or 7 d, got 'soon'",
        ),
        (
            {"push": "https://a/b", "quiet": {"from": "22:00", "to": "25:00"}},
            'quiet.to: expected a time of day such as "08:00"',
        ),
        ({"push": "https://a/b", "quiet": {"from": "22:00", "to": "08:00", "zone": "Mars"}}, "expected a zone of this"),
        ({"push": "https://a/b", "headers": {"X": "a\r\nY: b"}}, "headers.X: expected a printable ASCII text"),
        ({"push": "https://a/b", "timeout": 0}, "timeout: expected a time above zero"),
        ({"push": "https://a/b", "then": ["x"]}, "then: belongs to channels with walle_task"),
        ({"poplayer": "0.0.0.0:80"}, "expected an address of this machine's loopback"),
        ({"ut": "../x"}, "ut: expected the name of a file"),
        ({"native_callback": "gone"}, "there is no host function 'gone'; there are"),
        ({"log": True, "audience": "gone"}, "there is no audience 'gone'; there are none"),
        ("log", "expected a mapping with one of"),
    ],
)
def test_a_channel_that_cannot_be_is_refused_with_its_place(tmp_path, channel, message):
    with pytest.raises(ConfigurationError) as refused:
        Pipeline(tmp_path / "data", [], channels={"phone": channel})
    assert str(refused.value).startswith("channel phone: ") and message in str(refused.value)


@pytest.mark.parametrize(
    ("audience", "message"),
    [
        ({"where": "profile.os == "}, "audience a: where: "),
        ({"where": "event.os"}, "undeclared reference to 'event.os'"),
        ({"percent": 101}, "percent: expected a number from 0 to 100"),
        ({"of": "device", "percent": 1}, "the profile has no `device`"),
        ({"salt": "x"}, "`of` and `salt` go with `percent`"),
        ({"who": 1}, "who: unknown key; expected one of where"),
    ],
)
def test_an_audience_that_cannot_be_is_refused(tmp_path, audience, message):
    with pytest.raises(ConfigurationError, match="audience a") as refused:
        Pipeline(tmp_path / "data", [], audiences={"a": audience})
    assert message in str(refused.value)


def test_tasks_that_would_call_each_other_without_end_are_refused(tmp_path):
    bundle = plain_task(tmp_path, ECHO)
    channels = {"a": {"walle_task": bundle, "then": ["b"]}, "b": {"walle_task": bundle, "then": ["a"]}}
    with pytest.raises(ConfigurationError, match="channel a: `then` leads back to it"):
        Pipeline(tmp_path / "data", [], channels=channels)


def test_quiet_hours_end_when_clocks_change():
    quiet = channel_settings(
        "x", {"log": True, "quiet": {"from": "22:00", "to": "08:00", "zone": "Europe/Berlin"}}
    ).quiet
    assert quiet.until_ms(1_792_875_600_000) == 1_792_911_600_000  # 25 October 2026, 25 hours long: 07:00 UTC
    assert quiet.until_ms(1_792_911_600_000) is None
    assert ChannelError("x").counts and not ChannelError("x").final
