"""The store after kill -9 and after power cuts at random moments: promised data is there, and all is consistent."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.crash_workload import verify
from tests.stores import power_cuts
from vmhost.stores import StoreError

WORKLOAD = Path(__file__).with_name("crash_workload.py")
ROOT = WORKLOAD.parents[2]


def kill(path, seed, rounds):
    command = [sys.executable, "-m", "tests.pipeline.crash_workload", "kill", str(path), str(seed), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert int(done.stdout) > 0


def test_killed_at_random_moments(tmp_path):
    kill(tmp_path / "store.db", 1, 20)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 12))
def test_killed_hundreds_of_times(tmp_path, seed):
    kill(tmp_path / "store.db", seed, 100)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return power_cuts.build(tmp_path_factory.mktemp("write_log"))


def cut_often(tmp_path, library, seed, cuts, durability="batch", synchronous="FULL", operations=60):
    """How many of the power cuts lost promised data, and what the first one lost."""
    folder, after, log = tmp_path / "before", tmp_path / "after", tmp_path / "log"
    folder.mkdir()
    after.mkdir()
    arguments = ["work", folder / "store.db", seed, durability, synchronous, operations]
    power_cuts.logged(library, folder, log, "-m", "tests.pipeline.crash_workload", *arguments)
    lost = []
    for number, files in enumerate(power_cuts.states(log, seed, cuts)):
        for old in after.iterdir():
            old.unlink()
        for name, content in files.items():
            (after / name).write_bytes(content)
        lines = files.get("store.db.promises", b"").decode().splitlines()
        promised = [max(column) for column in zip((0, 0), *(map(int, line.split()) for line in lines))]
        try:
            verify(after / "store.db", *promised)
        except (AssertionError, StoreError) as error:
            lost.append(f"seed {seed}, cut {number}: {error}")
    return lost


@pytest.mark.parametrize("durability", ["batch", "each"])
def test_power_cuts(tmp_path, library, durability):
    assert cut_often(tmp_path, library, 1, 40, durability) == []


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 12))
def test_hundreds_of_power_cuts(tmp_path, library, seed):
    assert cut_often(tmp_path, library, seed, 100, "each" if seed % 2 else "batch", operations=300) == []


def test_power_cuts_are_seen_where_nothing_is_synced(tmp_path, library):
    """The tests above would find a store that forgot to sync."""
    assert len(cut_often(tmp_path, library, 1, 20, synchronous="OFF")) > 5
