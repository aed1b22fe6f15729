"""Replays of a seeded stream through rules that wait for what does not come, and what must come of them.

python -m tests.pipeline.absence_workload FOLDER EVENTS SEED DIE_AT AFTER
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path

from tests.pipeline.durable_faults import die_at
from tests.stores.power_cuts import end_if_hung
from vmhost.pipeline import complex_events, pipeline
from vmhost.pipeline.events import Event
from vmhost.pipeline.feed import Feed
from vmhost.pipeline.patterns.questions import answer
from vmhost.pipeline.pipeline import Pipeline
from vmhost.pipeline.replay import Recording, Replay, ReplayClock

BEGIN_MS = 1_790_000_000_000
LATENESS_MS = 5_000
RULES = [
    {
        "name": "leaves",
        "pattern": [
            {"name": "cart", "event": "cart"},
            {"name": "order", "event": "order", "contiguity": "not_followed_by"},
        ],
        "within_ms": 60_000,
        "skip": "past_last",
    },
    {
        "name": "waits",
        "pattern": [{"name": "view", "event": "view"}, {"name": "cart", "event": "cart"}],
        "within_ms": 20_000,
        "skip": "to_next",
        "timeout": [],
    },
]


def events(count, seed):
    """In order of time, as `vmhost pipeline match` takes them; people come and go, so that most windows end when nobody
    of their key is there any more."""
    dice, time_ms = random.Random(seed), BEGIN_MS
    for n in range(count):
        time_ms += dice.choice((1, 20, 100, 700, 4_000))
        name = dice.choice(("view", "view", "cart", "cart", "order", "scroll"))
        yield Event(name, time_ms, "", "", None, None, f"k{n // 40 + dice.randrange(6)}")


def lines(path, count, seed):
    path.write_text(
        "".join(json.dumps({"name": e.name, "time_ms": e.time_ms, "key": e.key}) + "\n" for e in events(count, seed))
    )


def matched(count, seed):
    """{(rule, timed out): number} by `vmhost pipeline match`, with the end of the stream."""
    stream = [{"id": n, "at": e.time_ms, "name": e.name, "key": e.key} for n, e in enumerate(events(count, seed), 1)]
    found = Counter()
    for rule in RULES:
        asked = {key: value for key, value in rule.items() if key not in ("name", "timeout")}
        said = answer({"rule": asked, "events": stream, "flush": True})
        found[rule["name"], False] = len(said["matches"])
        if "timeout" in rule:
            found[rule["name"], True] = len(said["timeouts"])
    return +found


def replay(folder, recording, ticks=True):
    """The stored matches, whole, once the recording was replayed into `folder`."""
    if ticks:
        pipeline.TICK_S = 0.001
    complex_events.SAVE_S = 0.01
    clock = ReplayClock()
    with Pipeline(folder, [], rules=RULES, channels={}, clock=clock, lateness_ms=LATENESS_MS, batch_ms=5) as replayed:
        Replay(Recording.lines(recording), Feed(replayed, "replay"), clock).run()
        replayed.end()
        return [
            (one.position, one.event.name, one.event.time_ms, one.event.key, one.event.id, one.event.contents)
            for one in replayed._store.read()
            if one.event.name.startswith(complex_events.PREFIX)
        ]


if __name__ == "__main__":
    end_if_hung()
    folder, count, seed, number, after = Path(sys.argv[1]), *map(int, sys.argv[2:])
    recording = folder / "events.jsonl"
    if not recording.exists():
        lines(recording, count, seed)
    writes = die_at(number, bool(after))
    found = replay(folder / "data", recording)
    print(json.dumps({"writes": writes(), "matches": found}))
