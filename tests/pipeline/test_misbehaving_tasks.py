"""Many events, and tasks that fail, are slow, take too much memory or never end: every event is accounted for."""

import collections

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task
from vmhost import BreakerPolicy, Policy, TaskPolicy
from vmhost.pipeline.events import Event

HOG = '    if value["visit"] == "hog":\n        {}\n    return'
TASKS = {  # name: what it does with hogs, its trigger, its limits
    "good": ("pass", "queue: 100000", ""),
    "fails": ("raise ValueError(value)", "queue: 100000, retries: 2", ""),
    "slow": ("import time; time.sleep(0.02)", "queue: 8, overload: oldest", ""),
    "large": ("list(range(10**9))", "queue: 100000, retries: 0", ", memory: 16 MiB"),
    "endless": ("while True: pass", "queue: 100000, retries: 0", ", cpu_time: 100 ms"),
}
WAYS = ("stored", "dead_letters", "dropped_by_overload", "forgotten", "expired")


def run(tmp_path, count, hogs):
    """`count` events. Of each `count / hogs` one makes tasks misbehave, and of each 100 one is an ordinary call."""
    bundles = [
        stream_task(
            tmp_path,
            ROWS.replace("    return", HOG.format(what)),
            f"on: [[click], [hog]], events: none, {message}",
            name,
            limits=limits,
        )
        for name, (what, message, limits) in TASKS.items()
    ]
    sent = collections.Counter()
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))  # an open one lets calls wait
    with open_pipeline(tmp_path, *bundles, host={"policy": policy}) as pipeline:
        for begin in range(0, count, 500):
            batch = []
            for n in range(begin, begin + 500):
                name = "hog" if n % (count // hogs) == 7 else "click" if n % 100 == 0 else "view"
                visit = "hog" if name == "hog" else f"v{n // 50}"
                batch.append(Event(name, 1_790_000_000_000 + n, "p", visit))
                sent[name] += 1
            pipeline.append_many(batch)
        assert pipeline.wait(WAIT_S * 10)
        pipeline.close()
    calls = sent["hog"] + sent["click"]
    for name, counts in pipeline.final["tasks"].items():
        assert counts["triggered"] == calls == sum(counts[way] for way in WAYS), f"{name}: {counts}"
        wanted = {"dead_letters": 0, "dropped_by_overload": 0, "retries": 0}
        if name in ("fails", "large", "endless"):
            wanted["dead_letters"] = sent["hog"]
        if name == "fails":
            wanted["retries"] = 2 * sent["hog"]
        if name == "slow":
            del wanted["dropped_by_overload"]
        assert {way: counts[way] for way in wanted} == wanted, f"{name}: {counts}"
    assert pipeline.final["position"] >= count


def test_a_few_thousand(tmp_path):
    run(tmp_path, 5_000, 5)


@pytest.mark.stress
def test_a_million(tmp_path):
    run(tmp_path, 1_000_000, 200)


def test_calls_behind_one_that_hangs_lose_no_try(tmp_path):
    """Short calls are handed to the host ahead of time; where one of them hangs, those behind it wait out their time
    there without having begun."""
    source = ROWS.replace("    return", '    while value["visit"] == "hog":\n        pass\n    return')
    task = stream_task(
        tmp_path, source, "on: [click], events: none, queue: 1000, retries: 0", limits=", wall_time: 3 s"
    )
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
    with open_pipeline(tmp_path, task, host={"policy": policy}) as pipeline:
        pipeline.append_many(clicks(*(f"v{n}" for n in range(100))))
        assert pipeline.wait(WAIT_S)
        pipeline.append_many(clicks("hog", *(f"w{n}" for n in range(20)), begin_ms=1_790_000_001_000))
        assert pipeline.wait(WAIT_S)
        assert [letter.key for letter in pipeline.dead_letters()] == ["hog"]
        assert len(pipeline.table("clicks")) == 120


@pytest.mark.parametrize(
    ("source", "limits"),
    [("def run(value):\n    raise RuntimeError\n", ""), (ROWS, ", wall_time: 1 us")],
    ids=["its breaker is open", "its time is over before"],
)
def test_the_end_does_not_wait_for_calls_that_do_not_begin(source, limits, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("vmhost.pipeline.execution.STUCK_S", 0.5)
    bundle = stream_task(tmp_path, source, "on: [click], queue: 1000, retries: 9", limits=limits)
    with open_pipeline(tmp_path, bundle) as pipeline:
        pipeline.append_many(clicks(*map(str, range(200))))
        assert pipeline.drain(WAIT_S)
        pipeline.close()
    counts = pipeline.final["tasks"]["clicks"]
    left = counts["unfinished"]
    assert counts["triggered"] == 200 == left + sum(counts[way] for way in WAYS)
    assert left > 0 or limits  # on a slow machine each call of a microsecond may have had its ten tries
    assert (f"{left} calls do not begin" in caplog.text) == (left > 0)
    mended = stream_task(tmp_path, ROWS, "on: [click], queue: 1000, retries: 9", version="1.0.1")
    with open_pipeline(tmp_path, mended) as pipeline:
        assert pipeline.wait(WAIT_S)
        pipeline.close()
    counts = pipeline.final["tasks"]["clicks"]
    assert counts["unfinished"] == 0 and counts["stored"] + counts["dead_letters"] == 200


def test_a_task_whose_breaker_stays_open_does_not_hold_up_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("vmhost.pipeline.execution.STUCK_S", 0.2)
    broken = stream_task(tmp_path, "def run(value):\n    raise RuntimeError\n", "on: [click], queue: 8", "broken")
    good = stream_task(tmp_path, ROWS, "on: [click], queue: 8", "good")
    with open_pipeline(tmp_path, broken, good) as pipeline:
        events = clicks(*map(str, range(300)))
        while events:
            room = pipeline.wait_for_room(WAIT_S)
            assert room > 0
            pipeline.append_many(events[:room], bounded=False)
            events = events[room:]
        assert pipeline.drain(WAIT_S)
        pipeline.close()
    tasks = pipeline.final["tasks"]
    assert tasks["good"]["stored"] == 300 and tasks["good"]["dropped_by_overload"] == 0
    assert tasks["broken"]["dropped_by_overload"] > 200 and tasks["broken"]["triggered"] == 300


def test_a_call_that_cannot_be_handed_over_ends_as_a_dead_letter(tmp_path, monkeypatch):
    def broken(value):
        raise ZeroDivisionError("of the pipeline's own")

    monkeypatch.setattr("vmhost.pipeline.visits.Value.crossing", broken)
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS, "on: [click], retries: 0")) as pipeline:
        pipeline.append_many(clicks("a", "b"))
        assert pipeline.wait(WAIT_S)
        assert [letter.error for letter in pipeline.dead_letters()] == ["ZeroDivisionError: of the pipeline's own"] * 2


def test_a_wait_tells_of_an_open_breaker_and_of_calls_without_a_row(tmp_path, caplog):
    broken = "def run(value):\n    raise RuntimeError\n"
    bundle = stream_task(tmp_path, broken, "on: [click], queue: 1000, retries: 0")
    with open_pipeline(tmp_path, bundle) as pipeline:
        pipeline.append_many(clicks(*map(str, range(300))))
        while not (waited := pipeline.wait(0.2)).refused:
            assert not waited and waited.left.keys() == {"clicks"}
        assert not waited and waited.refused == waited.left
        for _ in range(3):
            assert not pipeline.wait(0.2)
        assert caplog.text.count("calls of clicks, whose breaker is open") == 1
        pipeline.close(drain=False)
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        assert pipeline.wait(WAIT_S)
        pipeline.change(stream_task(tmp_path, broken, "on: [click], retries: 0", version="1.0.1"))
        pipeline.append_many(clicks("bad", begin_ms=1_790_000_002_000))
        waited = pipeline.wait(WAIT_S)
        assert waited and (waited.left, waited.refused, waited.lost) == ({}, {}, {"clicks": 1})
