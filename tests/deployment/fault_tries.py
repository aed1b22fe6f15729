"""Processes of deployment_workload.py in which a write fails or is the last one. Each is forked from a process that has
imported all that they need, and has done nothing else: a try is then ten times cheaper.

Variables that choose among the tries of a sweep, and let one go on that was stopped:

    VMHOST_FAULTS=120-240           only faults at these writes
    VMHOST_FAULTS_PASSED=FILE       tries that this file names are left out; each one that passes is added
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import warm
from tests.stores import power_cuts

ROOT = Path(__file__).resolve().parents[2]
FAULTS = {
    "killed": lambda number: {"WRITE_LOG_LAST": number},
    "full": lambda number: {"WRITE_LOG_FAILS": number, "WRITE_LOG_FAILURES": 5},
    # until it is started again; an agent that can write no report goes on quietly
    "read-only": lambda number: {"WRITE_LOG_READ_ONLY": number, "PATIENCE_S": 0.2, "LAST_S": 10},
}


class Workloads:
    """Runs workloads in processes of their own, one after the other. `folder`: where results of builds are kept."""

    def __init__(self, folder):
        self.library, self._builds = power_cuts.build(folder), folder / "builds"
        self._builds.mkdir()
        self._server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.settimeout(power_cuts.CHILD_S + 60)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.deployment.deployment_workload", str(theirs.fileno())],
                cwd=ROOT,
                env=os.environ | {"LD_PRELOAD": str(self.library), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        warm.keep(self._server)

    def run(self, folder, *arguments, **faults):
        """(status, stdout, how many writes there were in `folder`). Status 0: it did all."""
        log = folder.with_name(f"{folder.name}.log")
        log.unlink(missing_ok=True)
        names = {"WRITE_LOG": log, "WRITE_LOG_FOLDER": f"{folder}/", "BUILDS": self._builds} | faults
        job = json.dumps([list(map(str, arguments)), {name: str(each) for name, each in names.items()}]).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._server, [job], [out.fileno(), err.fileno()])
            self._server.recv(100)  # its process id
            status = os.waitstatus_to_exitcode(int(self._server.recv(100)))
            out.seek(0)
            err.seek(0)
            said, complained = out.read().decode(), err.read().decode()
        may_end = (0, 1) if "WRITE_LOG_READ_ONLY" in faults else (0, -signal.SIGKILL)
        assert status in may_end, f"status {status}: {complained[-3000:]}"
        writes = sum(1 for _ in power_cuts.records(log)) if log.exists() else 0  # read-only from the first on: none
        return status, said, writes

    def close(self):
        warm.let_go(self._server)
        self._process.wait(60)


def chosen(numbers):
    """Those of `numbers` that VMHOST_FAULTS names; all of them without it."""
    first, _, last = os.environ.get("VMHOST_FAULTS", "").partition("-")
    return [each for each in numbers if int(first) <= each <= int(last or first)] if first else list(numbers)


def passed():
    """The tries that have passed before, as lines of text."""
    path = os.environ.get("VMHOST_FAULTS_PASSED")
    with contextlib.suppress(FileNotFoundError):
        return set(Path(path).read_text().splitlines()) if path else set()
    return set()


def note_passed(line):
    if path := os.environ.get("VMHOST_FAULTS_PASSED"):
        with open(path, "a") as file:
            file.write(f"{line}\n")


def sweep(what, numbers, attempt):
    """Calls `attempt(number)`, which returns whether the process ended early, for each of `numbers`, also after one
    failed. Returns (tries, of which ended early); AssertionError with all that failed."""
    known, failed, tries, deaths = passed(), [], 0, 0
    for number in numbers:
        line = f"{what} {number}"
        if line in known:
            continue
        tries += 1
        try:
            deaths += attempt(number)
            note_passed(line)
        except AssertionError as error:
            failed.append(f"{line} (VMHOST_FAULTS={number} repeats it): {error}")
    assert not failed, f"{len(failed)} of {tries} tries: " + "\n".join(failed[:20])
    return tries, deaths
