"""Events that come after the exit of their visit, in time: they count for their person, and the visit is over."""

import json

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, open_pipeline, stream_task
from vmhost.cli import main
from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event

BEGIN_MS = 1_790_000_000_000
RULE = {
    "name": "buys",
    "pattern": [{"name": "cart", "event": "cart"}, {"name": "order", "event": "order"}],
    "within_ms": 60_000,
    "then": [],
}
FEATURES = {"features": {"carts": {"source": "cart", "operator": "count"}}}


def event(name, at_s, visit="v1"):
    return Event(name, BEGIN_MS + at_s * 1000, "item", visit, key="ann")


VISIT = [event(PAGE_ENTER, 0), event("view", 1), event(PAGE_EXIT, 5)]
AFTER = [event("cart", 4), event("order", 6)]


def tasks(folder):
    return (
        stream_task(folder, ROWS, f"on: [[cart], [{PAGE_EXIT}]]", "visits"),
        stream_task(folder, ROWS, "on: [cart], level: time, events: none", "carts"),
    )


def opened(folder, **options):
    return open_pipeline(folder, *tasks(folder), rules=[RULE], features=[FEATURES], channels={}, **options)


def rows(pipeline, name):
    return [(row["visit"], row["count"]) for row in pipeline.table(name).read(order="_id")]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_they_reach_all_but_the_tasks_of_their_visit(tmp_path, size):
    events = [*VISIT, *AFTER]
    with opened(tmp_path) as pipeline:
        for begin in range(0, 5, size):
            pipeline.append_many(events[begin : begin + size])
        assert pipeline.wait(WAIT_S)
        assert rows(pipeline, "visits") == [("v1", 3)] and rows(pipeline, "carts") == [("v1", 0)]
        figures = pipeline.statistics()
        assert figures["rules"]["matched"] == 1
        assert pipeline.features.read("*", "ann", BEGIN_MS + 10_000)[0] == 1
        assert (figures["intake"]["after_exit"], figures["intake"]["after_close"], figures["intake"]["late"]) == (
            2,
            0,
            0,
        )
        pipeline.append_many([event(PAGE_ENTER, 7), event("cart", 8), event(PAGE_EXIT, 9)])  # it begins anew
        assert pipeline.wait(WAIT_S)
        assert rows(pipeline, "visits") == [("v1", 3), ("v1", 2), ("v1", 3)]


def test_a_restart_knows_which_visits_are_over(tmp_path):
    with opened(tmp_path) as pipeline:
        pipeline.append_many(VISIT)
        assert pipeline.wait(WAIT_S)
    with opened(tmp_path) as pipeline:
        pipeline.append_many(AFTER)
        assert pipeline.wait(WAIT_S)
        pipeline.withdraw("visits")
    with open_pipeline(tmp_path, tasks(tmp_path)[1]) as pipeline:
        pipeline.append(event("cart", 7))
        assert pipeline.wait(WAIT_S)
        pipeline.load(tasks(tmp_path)[0])  # catches up with what it missed
        assert pipeline.wait(WAIT_S)
        pipeline.append(event("cart", 8))
        assert pipeline.wait(WAIT_S)
        assert rows(pipeline, "visits") == [("v1", 3)] and len(rows(pipeline, "carts")) == 3


def test_the_status_counts_them_apart(tmp_path, capsys):
    with opened(tmp_path) as pipeline:
        pipeline.append_many([*VISIT, *AFTER, event(PAGE_EXIT, 5)])
        assert pipeline.wait(WAIT_S)
    assert main(["pipeline", "status", str(tmp_path / "data"), "--json"]) == 0
    counters = json.loads(capsys.readouterr().out)["stored"]["counters"]
    assert (counters["intake.after_exit"], counters["intake.after_close"]) == (2, 1)
    assert main(["pipeline", "status", str(tmp_path / "data")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 came too late, 2 in time but after their visit's exit (taken)" in said
