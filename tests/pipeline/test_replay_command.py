"""`vmhost pipeline replay`, the command: each run gives the same rows and matches, also one that is killed and
continued, and as many matches as `vmhost pipeline match`."""

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.pipeline.absence_workload import LATENESS_MS, RULES
from tests.pipeline.fault_workload import TASKS
from tests.pipeline.stream_tasks import stream_task
from tests.stores import power_cuts

ROOT = Path(__file__).resolve().parents[2]
BEGIN_MS = 1_790_000_000_000
USED = ("rows", "state", "matched")
SETTINGS = f"""\
folder: unused
allow_unsigned: true
bundles: [{", ".join(f"{name}.vmb" for name in USED)}]
rules: [rules.json]
intake: {{lateness: {LATENESS_MS} ms}}
batch_time: 20 ms
"""


def events(count, seed):
    """In order of time, as `vmhost pipeline match` takes them. People come and go, so that most windows end when nobody
    of their key is there any more; some of their visits have an end."""
    dice, time_ms = random.Random(seed), BEGIN_MS
    for n in range(count):
        time_ms += dice.choice((1, 20, 100, 700, 4_000))
        name = dice.choice(("view", "view", "cart", "cart", "order", "scroll", "page_exit"))
        key = f"k{n // 40 + dice.randrange(6)}"
        yield {"name": name, "time_ms": time_ms, "key": key, "visit": f"visit of {key}", "page": "item"}


class Replays:
    def __init__(self, folder, count, seed):
        self.folder, self.numbers = folder, itertools.count()
        self.library = power_cuts.build(folder)
        self.events = list(events(count, seed))
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in self.events))
        (folder / "rules.json").write_text(json.dumps(RULES))
        (folder / "pipeline.yaml").write_text(SETTINGS)
        for name in USED:
            source, trigger, options = TASKS[name]
            (folder / f"{name}.vmb").write_bytes(stream_task(folder, source, trigger, name, **options))

    def command(self, *arguments, **options):
        command = [sys.executable, "-m", "vmhost", "pipeline", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)

    def new(self):
        return self.folder / f"store {next(self.numbers)}"

    def replay(self, store, *options, **faults):
        """The exit status. `faults`: variables of tests/stores/write_log.c; the log is in `store`.log."""
        environment = power_cuts.environment(self.library, store, f"{store}.log", **faults) if faults else os.environ
        arguments = (self.folder / "events.jsonl", self.folder / "pipeline.yaml", "--folder", store, *options)
        done = self.command("replay", *arguments, env=environment)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    def found(self, store):
        """{table: rows}, and the stored matches as `events`; without the time of storing."""
        with contextlib.closing(sqlite3.connect(store / "pipeline.sqlite")) as connection:
            columns = "_id, _key, visit, count"
            found = {
                name: connection.execute(f'SELECT {columns} FROM "{name}.1" ORDER BY _id').fetchall() for name in USED
            }
        done = self.command("events", store, "--all", "--lines")
        assert done.returncode == 0, done.stderr
        stored = map(json.loads, done.stdout.splitlines())
        return found | {"events": [one for one in stored if one["name"].startswith("rule:")]}

    def matched(self):
        """{name of the event: number} by `vmhost pipeline match`, with the end of the stream."""
        listed = [{"id": n, "at": e["time_ms"], "name": e["name"], "key": e["key"]} for n, e in enumerate(self.events)]
        found = Counter()
        for rule in RULES:
            asked = {key: value for key, value in rule.items() if key not in ("name", "timeout")}
            question = {"rule": asked, "events": listed, "flush": True, "limit": 1_000_000}
            done = self.command("match", "-", input=json.dumps(question))
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            found[f"rule:{rule['name']}"] = len(said["matches"])
            if "timeout" in rule:
                found[f"rule:{rule['name']}:timeout"] = len(said["timeouts"])
        return +found


def same_each_time(folder, count, seed, runs, kills):
    replays = Replays(folder, count, seed)
    first, log = replays.new(), f"{folder / 'store 0'}.log"
    assert replays.replay(first, WRITE_LOG_LAST=1 << 40) == 0
    writes = sum(1 for _ in power_cuts.records(Path(log)))
    os.unlink(log)
    expected = replays.found(first)
    assert all(expected.values())
    assert Counter(one["name"] for one in expected["events"]) == replays.matched()
    for _ in range(runs - 1):
        assert replays.replay(store := replays.new()) == 0
        assert replays.found(store) == expected, f"seed {seed}"
    dice, killed, store = random.Random(seed), 0, replays.new()
    for _ in range(kills):
        last = dice.randrange(1, max(2, 2 * writes // (kills + 1)))
        killed += replays.replay(store, "--continue", WRITE_LOG_LAST=last) != 0
    assert replays.replay(store, "--continue") == 0
    assert killed >= kills * 3 // 4 and replays.found(store) == expected, f"seed {seed}, {killed} kills"


def test_two_replays_and_one_that_is_killed_and_continued(tmp_path):
    same_each_time(tmp_path, 400, seed=1, runs=2, kills=2)


@pytest.mark.stress
def test_twenty_replays_of_many_events_and_one_that_is_killed_fifty_times(tmp_path):
    same_each_time(tmp_path, 50_000, seed=2, runs=20, kills=50)
