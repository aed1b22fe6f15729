"""A pipeline with tasks, rules, a channel and an outbox that may die, or find the disk full, at any write.

python -m tests.pipeline.fault_workload FOLDER

replays FOLDER/events.jsonl into FOLDER/data, and goes on where an earlier process ended. Exit status STORE_FAILED: the
store could not be written any more; a later process goes on.
"""

import contextlib
import json
import random
import sqlite3
import sys
import time
from pathlib import Path

from tests.pipeline.absence_workload import RULES
from tests.pipeline.pipeline_workload import FAILS, ROWS, STATE
from tests.pipeline.stream_tasks import stream_task
from tests.stores.power_cuts import end_if_hung
from vmhost.pipeline import complex_events, pipeline
from vmhost.pipeline.events import Event
from vmhost.pipeline.feed import Feed
from vmhost.pipeline.pipeline import Pipeline
from vmhost.pipeline.replay import Recording, Replay, ReplayClock
from vmhost.stores import StoreError, StoreFullError

COUNT = 24
BEGIN_MS = 1_790_000_000_000
WAIT_S = 60
STORE_FAILED = 3
LEAVES = "columns: {visit: {type: text, leaves: true}, count: integer}"
TASKS = {
    "rows": (ROWS, "on: [view], queue: 1000", {"table": LEAVES}),
    "fails": (FAILS, "on: [cart], queue: 1000, retries: 0, level: time", {}),
    "state": (STATE, "on: [view], queue: 1000, state: true, events: none", {}),
    "matched": (ROWS, "on: ['rule:leaves'], queue: 1000, level: time, events: none", {"table": LEAVES}),
}


def events():
    """In order of time, each with an id."""
    dice, time_ms = random.Random(1), BEGIN_MS
    for n in range(COUNT):
        time_ms += dice.choice((20, 700, 30_000))
        key, name = f"k{dice.randrange(3)}", dice.choice(("view", "view", "cart", "order"))
        yield Event(name, time_ms, "item", f"visit {n // 6}", None, f"id{n}", key)


def prepare(folder):
    """Makes the bundles and the recording in `folder`."""
    folder.mkdir(exist_ok=True)
    for name, (source, trigger, options) in TASKS.items():
        (folder / f"{name}.vmb").write_bytes(stream_task(folder, source, trigger, name, **options))
    names = ("name", "time_ms", "page", "visit", "id", "key")
    lines = [json.dumps({name: getattr(event, name) for name in names}) for event in events()]
    (folder / "events.jsonl").write_text("\n".join(lines))


def opened(folder, clock):
    return Pipeline(
        folder / "data",
        [folder / f"{name}.vmb" for name in TASKS],
        allow_unsigned=True,
        rules=[rule | {"then": ["track"]} for rule in RULES],
        channels={"track": {"ut": "track.jsonl", "expires": "10000 d"}},
        clock=clock,
        lateness_ms=5_000,
        batch_ms=5,
    )


def persistently(act, failures=StoreFullError):
    """Goes on after a full disk."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return act()
        except failures:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def work(folder):
    pipeline.TICK_S, complex_events.SAVE_S = 0.05, 0.1
    clock = ReplayClock()
    with contextlib.closing(persistently(lambda: opened(folder, clock))) as running:
        replay = Replay(Recording.lines(folder / "events.jsonl"), Feed(running, "replay"), clock)
        persistently(replay.run)
        assert running.wait(WAIT_S)
        running.end()
        assert running.wait(WAIT_S)
        persistently(running.reach.wait)


def found(folder):
    """What is in the store, without what differs between two runs: epochs and the time of storing."""
    with contextlib.closing(sqlite3.connect(folder / "data" / "pipeline.sqlite")) as store:

        def all_of(query):
            return store.execute(query).fetchall()

        assert all_of("PRAGMA integrity_check") == [("ok",)]
        tables = {name: all_of(f'SELECT _id, _key, visit, count FROM "{name}.1" ORDER BY _id') for name in TASKS}
        outbox = [identity.split("/") for (identity,) in all_of("SELECT id FROM outbox_entries")]
        assert all_of("SELECT count(*) FROM task_calls") == [(0,)]
    lines = (folder / "data" / "tracking" / "track.jsonl").read_text().splitlines()
    return {
        "tables": tables,
        "outbox": sorted([task, int(position), number] for task, _, position, number in outbox),
        "sent": sorted(json.loads(line)["id"].partition(":")[2] for line in lines),
    }


def main(folder):
    end_if_hung()
    try:
        work(Path(folder))
    except StoreError as error:
        print(error, file=sys.stderr)
        sys.exit(STORE_FAILED)


if __name__ == "__main__":
    main(*sys.argv[1:])
