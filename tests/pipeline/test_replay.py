"""Replays: the same rows as the first time, at the time of the events, at the speed that was asked for."""

import json
import threading

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task
from vmhost import ConfigurationError
from vmhost.pipeline import replay as replays
from vmhost.pipeline.events import Event
from vmhost.pipeline.feed import BadLineError, Feed
from vmhost.pipeline.replay import Recording, Replay, ReplayClock

BEGIN_MS = 1_600_000_000_000  # long ago


def replayed(folder, recording, bundle, speed=None, stop=None, **options):
    """(rows, statistics, the Replay)"""
    clock = ReplayClock(speed)
    with open_pipeline(folder, bundle, clock=clock, **options) as pipeline:
        work = Replay(recording, Feed(pipeline, "replay", stop=stop), clock)
        work.run()
        assert pipeline.wait(WAIT_S)
        return pipeline.table("clicks").read(with_ids=True), pipeline.statistics(), work


@pytest.fixture
def bundle(tmp_path):
    return stream_task(tmp_path, ROWS, "on: [click], queue: 1000")


@pytest.fixture
def recorded(tmp_path, bundle):
    """A folder in which a pipeline has taken 300 clicks, one a second, of 30 visits."""
    with open_pipeline(tmp_path / "first", bundle, lateness_ms=10_000) as pipeline:
        events = [
            Event("click", BEGIN_MS + 1000 * n - (5000 if n % 50 == 9 else 0), "item", f"v{n % 30}") for n in range(300)
        ]
        pipeline.append_many(events)
        assert pipeline.wait(WAIT_S)
        rows = pipeline.table("clicks").read()
        pipeline.close(keep_visits=True)
    return tmp_path / "first" / "data", rows


def test_a_replay_gives_the_rows_of_the_first_time(tmp_path, bundle, recorded):
    folder, rows = recorded
    recording = Recording.stored(folder)
    assert (recording.total, recording.unit) == (300, "events")
    again, figures, work = replayed(tmp_path / "again", recording, bundle, lateness_ms=10_000)
    assert [(row["visit"], row["count"]) for row in again] == [(row["visit"], row["count"]) for row in rows]
    assert (work.done, work.events, work.latest_ms) == (300, 300, BEGIN_MS + 299_000)
    assert (figures["intake"]["late"], figures["intake"]["ahead"]) == (0, 0)
    # the pipeline's clock is that of the events: rows were stored "then"
    assert all(BEGIN_MS <= row["_stored_ms"] <= BEGIN_MS + 299_000 for row in again)


def test_a_part_of_the_time_is_replayed(tmp_path, bundle, recorded):
    recording = Recording.stored(recorded[0], BEGIN_MS + 100_000, BEGIN_MS + 110_000)
    assert recording.total == 10
    assert replayed(tmp_path / "again", recording, bundle)[2].events == 10


def test_the_speed_is_kept_and_the_clock_stands_at_the_next_event(tmp_path, bundle, recorded, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(replays.time, "monotonic", lambda: now_s[0])

    def sleep(seconds):
        now_s[0] += seconds

    monkeypatch.setattr(replays.time, "sleep", sleep)
    _, _, work = replayed(tmp_path / "again", Recording.stored(recorded[0]), bundle, speed=60)
    assert 299 / 60 <= now_s[0] - 1000 < 299 / 60 + 1
    clock = ReplayClock(60)
    clock.next_is(BEGIN_MS)
    assert clock.next_is(BEGIN_MS + 60_000) == pytest.approx(1.0)
    now_s[0] += 0.5
    assert clock() == pytest.approx(BEGIN_MS / 1000 + 30)
    now_s[0] += 100
    assert clock() == BEGIN_MS / 1000 + 60  # falling behind does not delay the next event


def test_the_clock_of_a_replay_that_goes_on_is_at_its_last_event(tmp_path):
    """Messages of matches that the start finds would else be of 1970, and expired."""
    with open_pipeline(tmp_path, clock=ReplayClock()) as pipeline:
        pipeline.append_many([Event("click", BEGIN_MS + 7000)])
    clock = ReplayClock()
    with open_pipeline(tmp_path, clock=clock):
        assert clock() == BEGIN_MS / 1000 + 7


def test_lines_are_replayed(tmp_path, bundle):
    path = tmp_path / "events.jsonl"
    lines = [{"name": "click", "time_ms": BEGIN_MS + n, "visit": "a"} for n in range(3)]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    recording = Recording.lines(path)
    rows, _, work = replayed(tmp_path, recording, bundle)
    assert [row["count"] for row in rows] == [1, 2, 3]
    assert work.events == 3 and recording.total == path.stat().st_size
    path.write_text(json.dumps(lines[0]) + "\n{")
    with pytest.raises(BadLineError, match="events.jsonl:2: not an event"):
        list(Recording.lines(path))
    with pytest.raises(ConfigurationError, match="nothing.jsonl: cannot be read: No such file"):
        Recording.lines(tmp_path / "nothing.jsonl")


def test_a_replay_can_be_stopped(tmp_path, bundle, monkeypatch):
    stop, path = threading.Event(), tmp_path / "events.jsonl"
    lines = [{"name": "click", "time_ms": BEGIN_MS + n * 3_600_000, "visit": "a"} for n in range(3)]
    path.write_text("\n".join(map(json.dumps, lines)))
    recording = Recording.lines(path)
    monkeypatch.setattr(replays.time, "sleep", lambda seconds: stop.set())  # while it waits for the next event
    assert replayed(tmp_path, recording, bundle, speed=1, stop=stop)[2].events == 1


def test_a_first_run_is_not_disturbed(tmp_path, bundle, recorded):
    with open_pipeline(tmp_path / "first", bundle) as pipeline:
        replayed(tmp_path / "again", Recording.stored(recorded[0]), bundle)
        pipeline.append_many(clicks("z"))
