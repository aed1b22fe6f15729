"""Sources of lines: files and pipes, lines that are not events, full queues, a requested end."""

import json
import os
import threading

import pytest

from tests.pipeline.stream_tasks import GATED, ROWS, WAIT_S, Gate, open_pipeline, stream_task
from vmhost import ConfigurationError
from vmhost.pipeline import feed as feeds
from vmhost.pipeline.configuration import SourceSettings
from vmhost.pipeline.feed import BadLineError, Feed
from vmhost.pipeline.sources import Lines, Sources
from vmhost.pipeline.stored import bad_lines
from vmhost.stores import StoreFullError


def line(n, visit="a", **more):
    return json.dumps({"name": "click", "time_ms": 1_790_000_000_000 + n, "visit": visit, **more}).encode() + b"\n"


def run(pipeline, path, **settings):
    """Takes all of a file; statistics of the source."""
    with Sources(pipeline, [SourceSettings("events", file=str(path), **settings)]) as sources:
        assert sources.wait(WAIT_S)
        return sources.statistics()["events"]


@pytest.fixture
def pipeline(tmp_path):
    with open_pipeline(tmp_path) as pipeline:
        yield pipeline


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_bytes_are_cut_into_lines_however_they_come(size):
    data = b"\xef\xbb\xbfone\r\n\n\xc3\xa4\nlast"
    lines = Lines()
    found = [line for at in range(0, len(data), size) for line in lines.ended(data[at : at + size])]
    assert [*found, *lines.ended(b"")] == [b"one\r", b"", b"\xc3\xa4", b"last"]


def test_a_line_that_is_too_long_is_not_kept(monkeypatch):
    monkeypatch.setattr("vmhost.pipeline.sources.MAX_LINE_BYTES", 10)
    lines = Lines()
    assert lines.ended(b"x" * 8) == []
    assert lines.ended(b"y" * 8) == []
    assert lines.ended(b"y\nshort\n") == [None, b"short"]


def test_a_file_is_taken_to_its_end(tmp_path, pipeline):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(n) for n in range(250)) + b"\n" + line(250).rstrip())
    assert run(pipeline, path)["taken"] == 251
    assert pipeline.statistics()["position"] == 251


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"name": "cl\n', "Input data was truncated"),
        (b'{"name": "click", "time_ms": "now"}\n', r"Expected `int`, got `str` - at `\$.time_ms`"),
        (b'{"name": "click", "time_ms": 1, "nme": 2}\n', "Object contains unknown field `nme`"),
        (b'{"time_ms": 1}\n', "Object missing required field `name`"),
        (b'{"name": "click\xff", "time_ms": 1}\n', "Invalid|UTF-8"),
        (line(1 << 70), "a whole number of 64 bits in time_ms"),
        (
            b'{"name": "click", "time_ms": 1, "contents": ' + b"[" * 3000 + b"]" * 3000 + b"}\n",
            "recursion limit exceeded",
        ),
        (b"x" * 5000 + b"\n", "longer than 4,000 bytes"),
    ],
)
def test_a_line_that_is_no_event_stops_or_is_put_aside(tmp_path, pipeline, monkeypatch, bad, reason):
    if b"xxx" in bad:
        monkeypatch.setattr("vmhost.pipeline.sources.MAX_LINE_BYTES", 4000)
        monkeypatch.setattr(feeds, "MAX_LINE_BYTES", 4000)
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(0) + line(1) + b"\n" + bad + line(2))
    with pytest.raises(BadLineError, match=reason) as failed:
        run(pipeline, path)
    assert str(failed.value).startswith(f"{path}:4: not an event: ")
    assert pipeline.statistics()["position"] == 2  # those before it were taken

    output = run(pipeline, path, bad_lines="aside")
    assert (output["taken"], output["aside"]) == (3, 1)
    [noted] = bad_lines(pipeline.folder, 10)
    assert (noted["source"], noted["line"]) == (str(path), 4)
    assert noted["error"] in str(failed.value)


def test_the_file_of_bad_lines_is_bounded(tmp_path, pipeline, monkeypatch):
    monkeypatch.setattr(feeds, "MAX_ASIDE_BYTES", 1000)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{\n" * 100)
    assert run(pipeline, path, bad_lines="aside")["aside"] == 100
    assert (pipeline.folder / feeds.ASIDE_NAME).stat().st_size < 1300
    assert (pipeline.folder / f"{feeds.ASIDE_NAME}.1").stat().st_size < 1300
    assert bad_lines(pipeline.folder, 1)[0]["line"] == 100


def test_events_wait_while_queues_are_full_so_that_no_call_is_dropped(tmp_path):
    gate, path = Gate(), tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(n, f"v{n}") for n in range(60)))
    bundle = stream_task(tmp_path, GATED, "on: [click], queue: 5", functions="gate")
    with open_pipeline(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline:
        with Sources(pipeline, [SourceSettings("events", file=str(path))]) as sources:
            gate.wait_for(1)
            while sources.statistics()["events"]["waits"] != "queues":
                assert not sources.wait(0.01)
            assert pipeline.statistics()["position"] == 6  # one runs, five wait
            gate.open()
            assert sources.wait(WAIT_S)
        assert pipeline.wait(WAIT_S)
        counts = pipeline.statistics()["tasks"]["clicks"]
    assert (counts["stored"], counts["dropped_by_overload"]) == (60, 0)


def test_visits_that_end_at_once_wait_too(tmp_path):
    """By time, and at the end: more than the queue is long."""
    path = tmp_path / "events.jsonl"
    later = line(3_600_000, "later", name="page_enter")
    path.write_bytes(b"".join(line(n, f"v{n}", name="page_enter") for n in range(60)) + later)
    bundle = stream_task(tmp_path, ROWS, "on: [page_exit], queue: 5")
    with open_pipeline(tmp_path, bundle) as pipeline:
        run(pipeline, path)
        assert pipeline.wait(WAIT_S)
        assert pipeline.statistics()["tasks"]["clicks"]["stored"] == 60
        path.write_bytes(b"".join(line(3_600_100 + n, f"w{n}", name="page_enter") for n in range(60)))
        run(pipeline, path)
        pipeline.close()
    counts = pipeline.final["tasks"]["clicks"]
    assert (counts["stored"], counts["dropped_by_overload"]) == (121, 0)


def test_or_the_overload_rule_drops_calls(tmp_path):
    gate, path = Gate(), tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(n, f"v{n}") for n in range(60)))
    bundle = stream_task(tmp_path, GATED, "on: [click], queue: 5", functions="gate")
    with open_pipeline(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline:
        assert run(pipeline, path, when_full="drop")["taken"] == 60
        gate.open()
        assert pipeline.wait(WAIT_S)
        counts = pipeline.statistics()["tasks"]["clicks"]
    assert (counts["stored"], counts["dropped_by_overload"]) == (6, 54)


def test_a_pipe_is_read_as_it_comes_and_ends_with_its_writer(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        with Sources(pipeline, [SourceSettings("pipe", file=str(path))]) as sources:
            with open(path, "wb", buffering=0) as writer:
                for n in range(3):
                    writer.write(line(n))
                    assert pipeline.wait_for_room(WAIT_S)
                    while pipeline.statistics()["position"] <= n:  # each counts before the next one is written
                        assert not sources.wait(0.01)
                writer.write(line(3).rstrip())
            assert sources.wait(WAIT_S)
        assert pipeline.statistics()["position"] == 4


def test_an_end_that_is_asked_for_comes_while_nothing_is_written(tmp_path, pipeline):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with Sources(pipeline, [SourceSettings("pipe", file=str(path))]) as sources:
        with open(path, "wb"):
            assert not sources.wait(0)
            sources.stop()
            assert sources.wait(WAIT_S)


def test_an_end_that_is_asked_for_comes_while_queues_are_full(tmp_path):
    gate, path = Gate(), tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(n) for n in range(60)))
    bundle = stream_task(tmp_path, GATED, "on: [click], queue: 5", functions="gate")
    with open_pipeline(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline:
        with Sources(pipeline, [SourceSettings("events", file=str(path))]) as sources:
            gate.wait_for(1)
            sources.stop()
            assert sources.wait(WAIT_S)
        gate.open()


def test_a_full_disk_is_waited_for(tmp_path, pipeline, monkeypatch, caplog):
    path, take, tries = tmp_path / "events.jsonl", pipeline.append_many, []
    path.write_bytes(line(0) + line(1))

    def full(events, bounded):
        tries.append(len(events))
        if len(tries) < 3:
            raise StoreFullError("no room")
        take(events, bounded=bounded)

    monkeypatch.setattr(feeds, "_POLL_S", 0.01)
    monkeypatch.setattr(pipeline, "append_many", full)
    with caplog.at_level("INFO", "vmhost.pipeline"):
        assert run(pipeline, path)["taken"] == 2
    assert tries == [2, 2, 2]
    assert [record.message for record in caplog.records] == [
        f"{path}: waits until there is room: no room",
        f"{path}: goes on",
    ]


def test_an_end_that_is_asked_for_comes_while_the_disk_is_full(tmp_path, pipeline, monkeypatch):
    def full(events, bounded):
        raise StoreFullError("no room")

    path = tmp_path / "events.jsonl"
    path.write_bytes(line(0))
    monkeypatch.setattr(feeds, "_POLL_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "append_many", full)
        with Sources(pipeline, [SourceSettings("events", file=str(path))]) as sources:
            while sources.statistics()["events"]["waits"] != "disk":
                assert not sources.wait(0.01)
            sources.stop()
            assert sources.wait(WAIT_S)
            assert sources.statistics()["events"]["taken"] == 0


def test_one_that_fails_ends_the_others(tmp_path, pipeline):
    pipe, path = tmp_path / "pipe", tmp_path / "events.jsonl"
    os.mkfifo(pipe)
    path.write_bytes(b"{")
    settings = [SourceSettings("pipe", file=str(pipe)), SourceSettings("events", file=str(path))]
    with Sources(pipeline, settings) as sources, pytest.raises(BadLineError):
        sources.wait(WAIT_S)


def test_a_source_that_cannot_begin_says_why(tmp_path, pipeline):
    for path, expected in ((tmp_path / "none", "No such file"), (tmp_path, "expected a file of events, got a folder")):
        with pytest.raises(ConfigurationError, match=expected):
            Sources(pipeline, [SourceSettings("events", file=str(path))])


def test_a_feed_of_events_can_be_stopped(pipeline):
    stop = threading.Event()
    feed = Feed(pipeline, "events", stop=stop)
    assert feed.take_lines([line(0)])
    stop.set()
    assert not feed.take_lines([line(1)])
    assert (feed.taken, pipeline.statistics()["position"]) == (1, 1)
