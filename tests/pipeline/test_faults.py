"""A fault at each write of a pipeline: killed there, or the disk is full or read-only from there on. What is stored and
sent at the end is what it would have been without."""

import random
import shutil
import signal

import pytest

from tests.pipeline import fault_workload
from tests.stores import power_cuts
from tests.stores.workloads import Workload
from vmhost.pipeline.replay import ReplayClock

KINDS = {
    "killed": lambda number: {"WRITE_LOG_LAST": number},
    "full": lambda number: {"WRITE_LOG_FAILS": number},
    "full for a while": lambda number: {"WRITE_LOG_FAILS": number, "WRITE_LOG_FAILURES": 40},
    "read-only": lambda number: {"WRITE_LOG_READ_ONLY": number},
}
SAMPLED = 2  # faults of each kind in `make test`
PARTS = 8  # of the faults of a kind, for as many processes


class Trials:
    def __init__(self, folder, workload):
        self.folder, self.workload = folder, workload
        fault_workload.prepare(folder / "made")
        status, errors = self.run(whole := self.new("whole"))
        assert status == 0, errors
        self.expected = fault_workload.found(whole)
        self.writes = sum(1 for _ in power_cuts.records(whole / "log"))
        assert self.writes > 100 and all(self.expected["tables"].values()) and self.expected["sent"]

    def new(self, name):
        folder = shutil.copytree(self.folder / "made", self.folder / str(name))
        (folder / "data").mkdir()
        return folder

    def run(self, folder, **faults):
        """(exit status, stderr) of a process."""
        with self.workload.start([folder], folder / "data", folder / "log", **faults) as process:
            return process.wait(power_cuts.CHILD_S + 60), process.errors

    def fails(self, kind, number):
        """Whether the fault was met; AssertionError if it left a trace."""
        folder = self.new(f"{kind} {number}")
        where = f"{kind} at write {number} of {self.writes}"
        status, errors = self.run(folder, **KINDS[kind](number))
        assert status in (0, -signal.SIGKILL, fault_workload.STORE_FAILED), f"{where}: status {status}: {errors}"
        if met := status != 0:
            status, errors = self.run(folder)
            assert status == 0, f"{where}, started again: status {status}: {errors}"
        found = fault_workload.found(folder)
        for what, expected in self.expected.items():
            assert found[what] == expected, f"{where}: {what}"
        shutil.rmtree(folder)
        return met


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with Workload(power_cuts.build(folder), "tests.pipeline.fault_workload") as workload:
        yield Trials(folder, workload)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_some_writes(trials, kind):
    numbers = random.Random(kind).sample(range(1, trials.writes * 3 // 4), SAMPLED)
    met = [trials.fails(kind, number) for number in numbers]
    assert all(met) or kind.startswith("full")


def test_events_that_are_fed_again_are_counted_and_make_nothing(trials):
    folder = trials.new("again")
    assert trials.run(folder)[0] == 0
    with fault_workload.opened(folder, ReplayClock()) as pipeline:
        pipeline.append_many(list(fault_workload.events()))
        assert pipeline.statistics()["intake"]["duplicates"] == fault_workload.COUNT
    assert fault_workload.found(folder) == trials.expected


@pytest.mark.stress
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_each_write(trials, kind, part):
    for number in range(1 + part, trials.writes + 1, PARTS):
        trials.fails(kind, number)
