"""The whole pipeline after kill -9 at random moments: each event that was promised ended in exactly one way."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task

ROOT = Path(__file__).resolve().parents[2]


def kill(folder, seed, rounds, workload="pipeline_workload"):
    command = [sys.executable, "-m", f"tests.pipeline.{workload}", str(folder), str(seed), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    report = json.loads(done.stdout)
    assert report["events"] >= report["promised"] > 0
    return report


def test_killed_at_random_moments(tmp_path):
    kill(tmp_path, 1, 5)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 12))
def test_killed_hundreds_of_times(tmp_path, seed):
    kill(tmp_path, seed, 60)


def test_killed_with_matches_under_way(tmp_path):
    assert kill(tmp_path, 1, 8, "rules_workload")["matches"] > 0


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 8))
def test_killed_hundreds_of_times_with_matches_under_way(tmp_path, seed):
    assert kill(tmp_path, seed, 60, "rules_workload")["matches"] > 0


class Meanwhile:
    """A part of the database that calls a function while a commit is written."""

    with_every_commit = True

    def __init__(self, happen):
        self.pending, self._happen = True, happen

    def write(self, connection):
        if self.pending:
            self.pending = False
            self._happen()


def test_what_comes_during_a_commit_is_not_counted_before_it_is_stored(tmp_path):
    """The files as they are right after a commit, in which an event came too late to be written, but was triggered on.

    Other events have the same positions after the restart."""
    bundle = stream_task(tmp_path, ROWS)
    with open_pipeline(tmp_path, bundle, batch_ms=60_000) as pipeline:
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)

        def happen():
            pipeline.append_many(clicks("b", begin_ms=1_790_000_000_100))
            assert pipeline.wait(WAIT_S)

        database = pipeline._database
        database._parts.insert(1, Meanwhile(happen))  # right after the events
        pipeline.flush()
        copied = shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")
    for name in copied.glob("*-shm"):
        name.unlink()
    with open_pipeline(copied.parent, bundle) as pipeline:
        assert pipeline.statistics()["position"] == 1
        pipeline.append_many(clicks("c", begin_ms=1_790_000_000_200))
        assert pipeline.wait(WAIT_S)
        rows = [row["visit"] for row in pipeline.table("clicks").read()]
        assert (rows, pipeline.statistics()["position"]) == (["a", "c"], 2)


def test_calls_beyond_one_that_hangs_are_not_made_again(tmp_path):
    """They have ended: neither their rows nor their dead letters come twice, nor are they counted again."""
    source = ROWS.replace(
        "    return",
        "    import time\n    if value['visit'] == 'slow': time.sleep(3600)\n"
        "    if value['visit'] == 'bad': raise ValueError\n    return",
    )
    bundle = stream_task(tmp_path, source, "on: [click], queue: 2, retries: 0", concurrency=2)
    pipeline = open_pipeline(tmp_path, bundle)
    pipeline.append_many(clicks("slow"))
    for n, visit in enumerate(["a", "bad"] * 10):
        pipeline.append_many(clicks(visit, begin_ms=1_790_000_000_100 + n))
        with pipeline._idle:
            assert pipeline._idle.wait_for(lambda: pipeline._tasks["clicks"].unfinished == 1, WAIT_S)
    pipeline.close(drain=False)
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        assert pipeline.wait(WAIT_S)
        assert len(pipeline.table("clicks").read()) == 11 and len(pipeline.dead_letters()) == 10
    counts = pipeline.final["tasks"]["clicks"]
    assert (counts["triggered"], counts["stored"], counts["dead_letters"], counts["dropped_by_overload"]) == (
        21,
        11,
        10,
        0,
    )
