"""Threads append events, load, change and withdraw a task, forget a person, and read, all at once: the task that stays
gets each visit, each call of the changing task ends once, and nothing is left of the person."""

import random
import threading

import pytest

from tests.pipeline.stream_tasks import ROWS, TABLE, WAIT_S, open_pipeline, stream_task
from vmhost.pipeline.events import Event

WAYS = ("stored", "dead_letters", "dropped_by_overload", "forgotten", "expired")
SLOW = ROWS.replace("    return", "    import time\n    time.sleep(0.002)\n    return")
VERSIONS = [
    ("on: [click], queue: 50", TABLE),
    ("on: [[click], [view]], queue: 20, overload: coalesce", "columns: {visit: text, count: integer, more: text}"),
    ("on: [view, '*', click], level: time, within: 1 s, queue: 30", "columns: {visit: text, count: real}"),
    ("on: [click], events: none, queue: 5, overload: oldest", TABLE),
]
FORGOTTEN = "Rumpelstilzchen"


class Storm:
    def __init__(self, tmp_path, pipeline, seed, visits):
        self.pipeline, self.seed, self._visits, self._path = pipeline, seed, visits, tmp_path
        self.exits, self.errors, self._stop = [], [], threading.Event()
        self._lock, self._time_ms = threading.Lock(), 1_790_000_000_000
        self._versions = [
            stream_task(tmp_path, SLOW if n % 2 else ROWS, trigger, "guest", version=f"{n}.0.0", table=table)
            for n, (trigger, table) in enumerate(VERSIONS)
        ]

    def _append(self, who):
        dice = random.Random(f"{self.seed} {who}")
        for number in range(self._visits):
            key = dice.choice((FORGOTTEN, "bob", "eve"))
            visit = f"{key}-{who}-{number}"
            for name in ("page_enter", "view", "click", "page_scroll", "page_exit"):
                with self._lock:
                    self._time_ms += 1
                    self.pipeline.append(Event(name, self._time_ms, "item", visit, key, f"{visit}-{name}", key))
            if key != FORGOTTEN:
                self.exits.append(visit)

    def _change(self):
        dice, here, pipeline = random.Random(f"{self.seed} changes"), False, self.pipeline
        while not self._stop.is_set():
            if not here:
                pipeline.load(dice.choice(self._versions), from_stored=dice.random() < 0.5)
                here = True
            elif dice.random() < 0.7:
                pipeline.change(dice.choice(self._versions))
                pipeline.explain("guest")
            else:
                pipeline.withdraw("guest", drain=dice.random() < 0.5)
                here = False
        if not here:
            pipeline.load(self._versions[0])

    def _look(self):
        while not self._stop.wait(0.005):
            self.pipeline.statistics()
            self.pipeline.table("steady").read(limit=5)

    def _forget(self):
        while not self._stop.wait(0.02):
            self.pipeline.forget(FORGOTTEN)

    def _guarded(self, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:
            self.errors.append(repr(error))

    def rage(self):
        appenders = [threading.Thread(target=self._guarded, args=(self._append, who)) for who in range(2)]
        others = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._change, self._look, self._forget)
        ]
        for thread in (*appenders, *others):
            thread.start()
        for thread in appenders:
            thread.join()
        self._stop.set()
        for thread in others:
            thread.join()


def run(tmp_path, seed, visits):
    steady = stream_task(tmp_path, ROWS, "on: [page_enter, '*', page_exit], queue: 100000", "steady", concurrency=2)
    with open_pipeline(tmp_path, steady, batch_ms=20) as pipeline:
        storm = Storm(tmp_path, pipeline, seed, visits)
        storm.rage()
        assert storm.errors == [], f"seed {seed}"
        assert pipeline.wait(WAIT_S), f"seed {seed}"
        pipeline.forget(FORGOTTEN)
        rows = [(row["visit"], row["count"]) for row in pipeline.table("steady").read()]
        assert sorted(rows) == sorted((visit, 5) for visit in storm.exits), f"seed {seed}"
        files = [file for file in (tmp_path / "data").iterdir() if not file.name.endswith("-shm")]
        content = b"".join(file.read_bytes() for file in files)
        assert FORGOTTEN.encode() not in content, f"seed {seed}"
    for name, counts in pipeline.final["tasks"].items():
        assert counts["triggered"] == sum(counts[way] for way in WAYS), f"seed {seed}: {name}: {counts}"


def test_a_storm(tmp_path):
    run(tmp_path, 1, 100)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_storms(tmp_path, seed):
    run(tmp_path, seed, 400)
