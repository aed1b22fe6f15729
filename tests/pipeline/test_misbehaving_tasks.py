"""Many events, and tasks that fail, are slow, take too much memory or never end: every event is accounted for."""

import collections

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, open_pipeline, stream_task
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
            f"on: [[click], [hog]], events: none, {said}",
            name,
            limits=limits,
        )
        for name, (what, said, limits) in TASKS.items()
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
