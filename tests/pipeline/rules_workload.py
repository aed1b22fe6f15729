"""A pipeline with rules and a channel that works until it is killed, and checks of its data afterwards.

The rules' matches are those that one engine finds in the stored events without any restart: each is one event of the
store, one message of the queue, and one line of the tracking log.

    python -m tests.pipeline.rules_workload FOLDER SEED ROUNDS
"""

import contextlib
import json
import random
import sqlite3
import sys
from collections import Counter
from pathlib import Path

from tests.hosts import until
from tests.pipeline.pipeline_workload import kill
from tests.stores.power_cuts import end_if_hung
from vmhost.pipeline import complex_events
from vmhost.pipeline.events import Event
from vmhost.pipeline.patterns import PatternEngine
from vmhost.pipeline.pipeline import Pipeline

BEGIN_MS = 1_790_000_000_000
NAMES = ("view", "cart", "order", "scroll")
KEYS = 5
RULES = [
    {
        "name": "orders",
        "pattern": [
            {"name": "view", "event": "view"},
            {"name": "carts", "event": "cart", "times": [1, None]},
            {"name": "order", "event": "order"},
        ],
        "within_ms": 700,
        "skip": "past_last",
        "timeout": ["track"],
    },
    {
        "name": "leaves",  # is complete when its time is over
        "pattern": [
            {"name": "cart", "event": "cart"},
            {"name": "order", "event": "order", "contiguity": "not_followed_by"},
        ],
        "within_ms": 400,
        "skip": "to_next",
    },
    {
        "name": "sums",
        "pattern": [
            {"name": "some", "event": "view", "times": 3},
            {"name": "more", "event": "cart", "where": {"field": "n", "op": "<", "sum_of": ["some", "n"]}},
        ],
        "within_ms": 900,
        "by": "all",
        "skip": "past_last",
    },
]
RULES = [rule | {"then": ["track"]} for rule in RULES]


def event(n):
    dice = random.Random(n)
    name, key = dice.choice(NAMES), f"k{dice.randrange(KEYS)}"
    return Event(name, BEGIN_MS + n * 20, "", "", {"n": dice.randrange(100)}, f"id{n}", key)


def events_of(pipeline):
    """The stored events that are not matches."""
    stored = pipeline._store.read(0)
    return [one for one in stored if not one.event.name.startswith(complex_events.PREFIX)]


def matches_of(pipeline, wanted):
    """How often each match is stored, by its id, once each of `wanted` is and the channels have sent all."""
    matches, position = Counter(), 0

    def are_all_stored():
        nonlocal position
        for one in pipeline._store.read(position):
            position = one.position
            matches[one.event.id] += one.event.name.startswith(complex_events.PREFIX)
        return +matches >= wanted

    until(are_all_stored)
    assert pipeline.reach.wait(60)
    are_all_stored()  # reads what came since: nothing, or a match too many
    return +matches


def open_pipeline(folder, now_ms):
    """`now_ms`: a list whose one value is the clock's time."""
    return Pipeline(
        folder / "data",
        [],
        rules=RULES,
        channels={"track": {"ut": "track.jsonl", "expires": "10000 d"}},
        clock=lambda: now_ms[0] / 1000,
        lateness_ms=1,
        intake={"idle_ms": 1},
        batch_ms=10,
    )


def work(folder, seed, promise):
    """Calls `promise(count)` with the number of durable events."""
    dice, now_ms = random.Random(seed), [BEGIN_MS]
    complex_events.SAVE_S = dice.choice((0.005, 0.05, 5.0))
    pipeline = open_pipeline(folder, now_ms)
    n = len(events_of(pipeline))
    promise(n)
    while True:
        events = [event(n + more) for more in range(dice.choice((1, 1, 10)))]
        pipeline.append_many(events)
        now_ms[0] = events[-1].time_ms
        n += len(events)
        if dice.random() < 0.1:
            pipeline.flush()
            promise(n)
        if dice.random() < 0.1:
            pipeline.wait(0.005)


def verify(folder, promised):
    """AssertionError if a match is missing or duplicated. Returns the numbers of events and matches."""
    now_ms = [BEGIN_MS]
    with open_pipeline(folder, now_ms) as pipeline:
        count = len(events_of(pipeline))
        assert count >= promised, f"{promised} events were promised, there are {count}"
        last_ms = now_ms[0] = BEGIN_MS + count * 20 + 10_000
        pipeline.append_many([Event("end", last_ms, key=f"k{n}") for n in range(KEYS)])  # time is over for all
        seen = events_of(pipeline)
        # a match that times out at two steps, with the same events, is one
        wanted = Counter({complex_events.identity(match) for match in uninterrupted(seen)})
        stored = matches_of(pipeline, wanted)
        pipeline.close(keep_visits=True)
    assert [one.event.id for one in seen[:count]] == [f"id{n}" for n in range(count)]
    assert stored == wanted, f"{stored - wanted} are too many"
    lines = (folder / "data" / "tracking" / "track.jsonl").read_text().splitlines()
    with contextlib.closing(sqlite3.connect(folder / "data" / "pipeline.sqlite")) as connection:
        queued = [identity for (identity,) in connection.execute("SELECT id FROM reach_messages WHERE state = 1")]
    for ids in ([json.loads(line)["id"] for line in lines], queued):
        assert Counter(identity.partition(":")[2] for identity in ids) == wanted
    return {"events": count, "matches": wanted.total()}


def uninterrupted(stored):
    """The reported Matches of the rules, without a restart."""
    engine, matches = PatternEngine(), []
    for rule in RULES:
        engine.add(rule["name"], rule, rule.get("by", "key"), timeouts="timeout" in rule)
    for one in stored:
        matches += engine.feed(one.event, one.position)
    return matches + engine.advance(stored[-1].event.time_ms)


def main(folder, seed, rounds):
    promised = kill(seed, rounds, lambda seed, promise: work(folder, seed, promise))
    end_if_hung()
    print(json.dumps({"promised": promised, **verify(folder, promised)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
