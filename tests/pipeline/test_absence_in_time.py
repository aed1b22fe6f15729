"""Rules that wait for what does not come: time is event time, so each replay finds the same, even if it was killed."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.pipeline.absence_workload import BEGIN_MS, LATENESS_MS, RULES, events, lines, matched, replay
from tests.pipeline.durable_faults import STATUS
from tests.pipeline.stream_tasks import open_pipeline
from vmhost.pipeline.events import Event
from vmhost.pipeline.replay import ReplayClock

ROOT = Path(__file__).resolve().parents[2]


def counts(found):
    return Counter((one[1].split(":")[1], one[1].endswith(":timeout")) for one in found)


def run(folder, number=0, after=0, count=1500, seed=1):
    command = [sys.executable, "-m", "tests.pipeline.absence_workload", folder, count, seed, number, after]
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)


def killed_and_continued(folder, writes, seed, times):
    """Replays into `folder`, each time killed at a random write, and then to the end. Returns the matches."""
    dice, died = random.Random(seed), 0
    folder.mkdir()
    for _ in range(times):
        done = run(folder, dice.randrange(1, max(2, writes // 2)), dice.randrange(2))
        assert done.returncode in (0, STATUS), done.stderr
        died += done.returncode == STATUS
    done = run(folder)
    assert done.returncode == 0 and died, done.stderr
    return json.loads(done.stdout)["matches"]


def test_replays_give_the_same_matches_and_as_many_as_match(tmp_path):
    recording = tmp_path / "events.jsonl"
    lines(recording, 4000, seed=7)
    first = replay(tmp_path / "first", recording)
    assert counts(first) == matched(4000, 7) and min(counts(first).values()) > 50
    for n in range(2):
        assert replay(tmp_path / f"again{n}", recording) == first


def test_a_replay_that_is_killed_at_any_write_goes_on_with_the_same_matches(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = json.loads(run(tmp_path / "whole").stdout)
    assert counts(whole["matches"]) == matched(1500, 1)
    assert killed_and_continued(tmp_path / "killed", whole["writes"], 1, 4) == whole["matches"]


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 12))
def test_killed_many_times(tmp_path, seed):
    (tmp_path / "whole").mkdir()
    whole = json.loads(run(tmp_path / "whole").stdout)
    assert killed_and_continued(tmp_path / "killed", whole["writes"], seed, 12) == whole["matches"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_matches_do_not_depend_on_how_a_stream_is_cut(tmp_path, size):
    stream = list(events(600, 3))
    dice = random.Random(3)
    stream.sort(key=lambda one: one.time_ms + dice.randrange(LATENESS_MS))  # late events come behind later ones
    found = []
    for cut in (size, 600):
        (tmp_path / str(cut)).mkdir()
        with open_pipeline(tmp_path / str(cut), rules=RULES, lateness_ms=LATENESS_MS, clock=lambda: 2e9) as pipeline:
            for begin in range(0, len(stream), cut):
                pipeline.append_many(stream[begin : begin + cut])
            pipeline.live = False
            pipeline.end()
            found.append(
                [
                    (one.event.name, [[e["time_ms"] for e in step] for step in one.event.contents["steps"].values()])
                    for one in pipeline._store.read()
                    if one.event.name.startswith("rule:")
                ]
            )
    assert found[0] == found[1] and len(found[0]) > 50


def test_an_event_with_the_time_of_a_wrong_clock_does_not_end_windows(tmp_path):
    now_s = 1_790_000_000
    with open_pipeline(tmp_path, rules=RULES, clock=lambda: now_s, lateness_ms=0) as pipeline:
        pipeline.append_many(
            [Event("cart", now_s * 1000, key="ann"), Event("scroll", (now_s + 86_400) * 1000, key="bob")]
        )
        pipeline.append(Event("scroll", now_s * 1000 + 1, key="bob"))
        assert pipeline.statistics()["rules"]["matched"] == 0
        pipeline.append(Event("scroll", now_s * 1000 + 60_000, key="bob"))
        assert pipeline.statistics()["rules"]["matched"] == 1


@pytest.mark.parametrize("ticks", [0, 3])
def test_ticks_decide_nothing_where_events_are_not_live(tmp_path, ticks):
    """A second exit of a visit is refused, but moves event time: a window's end lies between it and the last event."""

    def event(name, at_ms, visit="", key="ann"):
        return Event(name, BEGIN_MS + at_ms, "item", visit, key=key)

    clock = ReplayClock()
    with open_pipeline(tmp_path, rules=RULES, lateness_ms=0, clock=clock) as pipeline:
        clock.next_is(BEGIN_MS + 200_000)
        pipeline.append_many([event("cart", 0), event("page_exit", 1, "v"), event("scroll", 59_000, key="bob")])
        pipeline.append_many([event("scroll", 59_500, key="bob"), event("page_exit", 61_000, "v")])
        assert pipeline._intake.event_time_ms == BEGIN_MS + 61_000
        for _ in range(ticks):
            with pipeline._lock:
                pipeline._move_on()
        pipeline.append(event("scroll", 62_000, key="bob"))
        names = [one.event.name for one in pipeline._store.read()]
    assert names == ["cart", "page_exit", "scroll", "scroll", "scroll", "rule:leaves"]
