"""A whole pipeline that works until it is killed, and checks of its data afterwards.

Event n is at position n, and triggers each of the tasks. So each task has, for each event that is stored, one row, one
dead letter, or one call that it dropped and counted; whatever was promised is stored.

    python -m tests.pipeline.pipeline_workload FOLDER SEED ROUNDS
"""

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from tests.pipeline.stream_tasks import stream_task
from tests.stores.power_cuts import end_if_hung
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import Pipeline

ROWS = 'def run(value):\n    return {"visit": str(value["position"]), "count": len(value["events"])}\n'
FAILS = ROWS.replace("    return", '    if value["position"] % 7 == 0: raise ValueError("no good")\n    return')
SLOW = ROWS.replace("    return", "    import time\n    time.sleep(0.003)\n    return")
STATE = (
    "def run(value):\n    count = (value['state'] or 0) + 1\n"
    "    return {'rows': {'visit': value['key'], 'count': count}, 'state': count}\n"
)
TASKS = {
    "rows": (ROWS, "on: [click], queue: 100000"),
    "fails": (FAILS, "on: [click], queue: 100000, retries: 1"),
    "slow": (SLOW, "on: [click], queue: 3, events: none"),
    "state": (STATE, "on: [click], queue: 100000, state: true, events: none"),
}
KEYS = 3


def bundles(folder):
    return [stream_task(folder, *what, name) for name, what in TASKS.items()]


def event(n):
    return Event("click", 1_790_000_000_000 + n, f"p{n % 3}", f"v{n // 20}", {"n": n}, f"id{n}", f"k{n % KEYS}")


def open_pipeline(folder, loaded, durability="batch"):
    return Pipeline(folder / "data", loaded, allow_unsigned=True, durability=durability, batch_ms=10)


def work(folder, loaded, seed, promise):
    """Calls `promise(position)` with the last event that is durable."""
    dice = random.Random(seed)
    durability = dice.choice(("batch", "each"))
    pipeline = open_pipeline(folder, loaded, durability)
    n = pipeline.statistics()["position"]
    promise(n)
    while True:
        count = dice.choice((1, 1, 30))
        pipeline.append_many([event(n + more) for more in range(1, count + 1)])
        n += count
        if durability == "each":
            promise(n)
        elif dice.random() < 0.1:
            pipeline.flush()
            promise(n)
        if dice.random() < 0.3:
            pipeline.wait(0.01)


def verify(folder, loaded, promised):
    """AssertionError if an event has not ended as it should. Returns the number of events."""
    with open_pipeline(folder, loaded) as pipeline:
        assert pipeline.wait(60)
        pipeline.close(keep_visits=True)
    counted = pipeline.final["tasks"]
    from vmhost.pipeline.tables import Tables
    from vmhost.stores import Database

    with Database(folder / "data" / "pipeline.sqlite") as database:
        database.check()
        with database.reader() as connection:
            (last,) = connection.execute("SELECT max(last) FROM event_blocks").fetchone()
            (count,) = connection.execute("SELECT sum(count) FROM event_blocks").fetchone()
            open_calls = connection.execute("SELECT count(*) FROM task_calls").fetchone()[0]
            rows = {
                name: connection.execute(f'SELECT _id >> 20, _key, count FROM "{name}.1" ORDER BY _id').fetchall()
                for name in TASKS
            }
        letters = Tables(database).dead_letters()
    assert last >= promised, f"events up to {promised} were promised, they end at {last}"
    assert (count, open_calls) == (last, 0)
    for name, counts in counted.items():
        stored = [position for position, _, _ in rows[name]]
        dead = [letter.position for letter in letters if letter.task == name]
        assert len({*stored, *dead}) == len(stored) + len(dead), f"{name}: an event ended twice"
        found = {"stored": len(stored), "dead_letters": len(dead)}
        assert {way: counts[way] for way in found} == found, f"{name}: {counts}"
        assert counts["triggered"] == last, f"{name}: {counts}"
        assert len(stored) + len(dead) + counts["dropped_by_overload"] == last, f"{name}: {counts}"
        assert name == "slow" or counts["dropped_by_overload"] == 0, f"{name}: {counts}"
        assert dead == ([n for n in range(1, last + 1) if n % 7 == 0] if name == "fails" else [])
    for key in {key for _, key, _ in rows["state"]}:
        counts = [count for _, whose, count in rows["state"] if whose == key]
        assert counts == list(range(1, len(counts) + 1)), f"state of {key}"
    return last


def kill(seed, rounds, work):
    """Lets children `work(seed, promise)` and kills each at a random moment; returns the highest promise."""
    dice, promised, killed = random.Random(seed), 0, 0
    for number in range(rounds):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                work(f"{seed} {number}", lambda position: os.write(writing, b"%d\n" % position))
            finally:
                os._exit(1)  # not reached, unless something raised
        os.close(writing)
        select.select([reading], [], [], 60)  # the first promise
        time.sleep(dice.expovariate(1 / 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        with open(reading, "rb") as pipe:
            promised = max([promised, *map(int, pipe.read().split())])
    assert killed == rounds, f"{rounds - killed} children ended by themselves"
    return promised


def main(folder, seed, rounds):
    loaded = bundles(folder)
    promised = kill(seed, rounds, lambda seed, promise: work(folder, loaded, seed, promise))
    end_if_hung()
    print(json.dumps({"promised": promised, "events": verify(folder, loaded, promised)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
