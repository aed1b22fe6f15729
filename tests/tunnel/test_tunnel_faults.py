"""A fault at each write of either end: killed there, or the disk is full there. Then all arrives once, in order."""

import contextlib
import random
import shutil
import signal
import socket
import sqlite3
import subprocess

import pytest

from tests.stores import power_cuts
from tests.stores.workloads import Workload
from tests.tunnel.fault_workload import COUNT

WAIT_S = power_cuts.CHILD_S + 60
ALL = [b"%d" % number for number in range(COUNT)]
FAULTS = {
    "killed": lambda number: {"WRITE_LOG_LAST": number},
    "full": lambda number: {"WRITE_LOG_FAILS": number},
    "full for a while": lambda number: {"WRITE_LOG_FAILS": number, "WRITE_LOG_FAILURES": 40},
}
SAMPLED = 3  # faults of each kind and end in `make test`
PARTS = 8  # of the faults of a kind and end, for as many processes


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    library = power_cuts.build(tmp_path_factory.mktemp("write_log"))
    with Workload(library, "tests.tunnel.fault_workload") as workload:
        yield workload


class Ends:
    """Both ends in `folder`, each a process of its own. `faulty`: which of them gets the fault."""

    def __init__(self, workload, keys, folder, faulty):
        folder.mkdir()
        self.workload, self.keys, self.folder, self.faulty = workload, keys, folder, faulty
        with socket.socket() as free:  # the server's, also of the next process
            free.bind(("127.0.0.1", 0))
            self.address = f"localhost:{free.getsockname()[1]}"

    def start(self, role, **faults):
        folder = self.folder / role
        folder.mkdir(exist_ok=True)
        faults = faults if role == self.faulty else {}
        arguments = role, self.address, folder / "store", self.keys
        process = self.workload.start(arguments, folder, self.folder / f"{role}.log", **faults)
        return self.processes.enter_context(process)

    def run(self, **faults):
        """Until both are done; one that was killed is started again without a fault. Returns how often that was."""
        killed = 0
        with contextlib.ExitStack() as self.processes:
            running = {"server": self.start("server", **faults)}
            if not running["server"].stdout.readline():  # it died before it listened
                self._again(running, "server")
                killed += 1
            running["device"] = self.start("device", **faults)
            while (role := self._ended(running)) is not None:
                self._again(running, role)
                killed += 1
            server = running["server"]
            server.terminate()
            status = server.wait(WAIT_S)
            if status == -signal.SIGKILL:  # at its end
                return killed + 1
            # SIGTERM may have come while it was starting again
            assert status in (0, -signal.SIGTERM), f"status {status} of the server: {server.errors}"
        return killed

    def _ended(self, running):
        """None once the device has ended well; else which end died."""
        while True:
            for role, process in running.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return None if process.wait(0.02) == 0 and role == "device" else role

    def _again(self, running, role):
        process = running[role]
        status = process.wait(WAIT_S)
        assert status == -signal.SIGKILL, f"status {status} of the {role}: {process.errors}"
        running[role] = self.start(role)

    def writes(self):
        return sum(1 for _ in power_cuts.records(self.folder / f"{self.faulty}.log"))

    def check(self):
        """All arrived once, in order, and nothing waits on the device."""
        for role in ("server", "device"):
            with contextlib.closing(sqlite3.connect(self.folder / role / "store")) as store:
                assert [body for (body,) in store.execute("SELECT body FROM came ORDER BY n")] == ALL, role
                assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                if role == "device":
                    assert store.execute("SELECT count(*) FROM outbox_entries").fetchone() == (0,)


def with_faults(workload, keys, folder, role, kind, choose):
    counting = Ends(workload, keys, folder / "counting", role)
    assert counting.run() == 0
    counting.check()
    writes = counting.writes()
    assert writes > 20
    killed, numbers = 0, choose(range(1, writes + 1))
    for number in numbers:
        ends = Ends(workload, keys, folder / str(number), role)
        try:
            killed += ends.run(**FAULTS[kind](number))
            ends.check()
        except (AssertionError, sqlite3.Error, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"{role}, {kind} at write {number} of {writes}: {error}") from error
        shutil.rmtree(ends.folder)
    assert killed >= len(numbers) * 3 // 4 if kind == "killed" else not killed


ROLES = pytest.mark.parametrize("role", ["device", "server"])
KINDS = pytest.mark.parametrize("kind", FAULTS)


@ROLES
@KINDS
def test_a_fault_at_some_writes(workload, keys, tmp_path, role, kind):
    dice = random.Random(f"{role} {kind}")
    with_faults(workload, keys, tmp_path, role, kind, lambda all_: dice.sample(all_[: len(all_) * 3 // 4], SAMPLED))


@pytest.mark.stress
@pytest.mark.parametrize("part", range(PARTS))
@ROLES
@KINDS
def test_a_fault_at_each_write(workload, keys, tmp_path, role, kind, part):
    with_faults(workload, keys, tmp_path, role, kind, lambda all_: all_[part::PARTS])
