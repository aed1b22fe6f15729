"""A fault at each write of platform and agent: killed there, or the disk is full or read-only there. Then all that was
asked for has happened once."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.platforms import WorkingCopy, nothing_left, platform_in
from tests.stores import power_cuts
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.stores import Database

ROOT = Path(__file__).resolve().parents[2]
FAULTS = {
    "killed": lambda number: {"WRITE_LOG_LAST": number},
    "full": lambda number: {"WRITE_LOG_FAILS": number, "WRITE_LOG_FAILURES": 5},
    "read-only": lambda number: {"WRITE_LOG_READ_ONLY": number, "PATIENCE_S": 1},  # until it is started again
}
KINDS = pytest.mark.parametrize("kind", FAULTS)
SAMPLED = 2  # faults of each kind and end in `make test`


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return power_cuts.build(tmp_path_factory.mktemp("write_log"))


def workload(library, folder, *arguments, **faults):
    """(status, stdout, how many writes there were in `folder`) of a process of the workload. Status 0: it did all."""
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.deployment.deployment_workload", *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=power_cuts.environment(library, folder, log, **faults),
        capture_output=True,
        text=True,
        timeout=power_cuts.CHILD_S + 60,
    )
    may_end = (0, 1) if "WRITE_LOG_READ_ONLY" in faults else (0, -signal.SIGKILL)
    assert done.returncode in may_end, f"status {done.returncode}: {done.stderr[-3000:]}"
    return done.returncode, done.stdout, sum(1 for _ in power_cuts.records(log))


# ---- the platform


class Platforms:
    """Platforms in folders of their own, which all get the same push."""

    def __init__(self, library, folder):
        self.library, self.folder = library, folder
        self.work = WorkingCopy(folder / "work", "http://nobody", "")
        self.work.commit("1.0.0", plan="steps: [{percent: 100, min_reports: 2}]\nmax_error: 100 %\nproof: {calls: 0}\n")

    def run(self, name, **faults):
        """(whether it ended before it was done, what it holds at the end, its writes)"""
        folder = self.folder / name / "all"
        folder.mkdir(parents=True)
        arguments = ("platform", folder / "cloud", self.work.folder)
        status, held, writes = workload(self.library, folder, *arguments, **faults)
        if status:
            _, held, _ = workload(self.library, folder, *arguments)
        return bool(status), json.loads(held), writes


def platforms_with_faults(library, folder, kind, choose):
    platforms = Platforms(library, folder)
    killed, right, writes = platforms.run("counting")
    assert not killed and writes > 100
    assert right["used"] == 2 and right["devices"] == ["a", "b", "c"] and not right["left"], right
    assert right["sums"] == [["", 20, 2], ["canary", 10, 1]] and not right["listed"], right
    numbers = choose(range(1, writes + 1))
    deaths = 0
    for number in numbers:
        killed, held, _ = platforms.run(str(number), **FAULTS[kind](number))
        deaths += killed
        wrong = {key: (held[key], each) for key, each in right.items() if held[key] != each}
        assert not wrong, f"{kind} at write {number} of {writes}: got, expected {wrong}"
    assert not deaths if kind == "full" else deaths >= len(numbers) // 2


@KINDS
def test_a_platform_with_a_fault_at_some_writes(library, tmp_path, kind):
    dice = random.Random(f"platform {kind}")
    platforms_with_faults(library, tmp_path, kind, lambda all_: dice.sample(all_, SAMPLED))


@pytest.mark.stress
@KINDS
def test_a_platform_with_a_fault_at_each_write(library, tmp_path, kind):
    platforms_with_faults(library, tmp_path, kind, lambda all_: all_)


# ---- the agent


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with nothing_left(), platform_in(folder / "cloud") as platform, serving(platform) as address:
        copy = WorkingCopy(folder / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
        for version, factor in (("1.0.0", 2), ("1.1.0", 3)):
            padding = {"own.txt": os.urandom(50_000).hex()}  # a piece of its own
            padding["task.yaml"] = (
                f'name: rank\nversion: {version}\nentry: main:run\npython: "3.14"\nfiles: [own.txt]\n'
            )
            case = {"input": 1, "expect": factor}
            copy.release(
                version, main=f"def run(value):\n    return value * {factor}\n", cases={"one": case}, **padding
            )
        yield platform, address


class Devices:
    """Devices that get 1.0.0, then 1.1.0, each by releases of its own."""

    def __init__(self, cloud, library, folder):
        self.platform, self.address = cloud
        self.library, self.folder = library, folder

    def run(self, name, **faults):
        """(whether it ended before it was done, its writes)"""
        platform, folder = self.platform, self.folder / name
        folder.mkdir()
        plan = Plan.of({"steps": [{"devices": [name], "min_reports": 1}], "audience": {"allow": [name], "os": "none"}})
        releases = [platform.releases.start("shop/rank", each, plan, "ann", "") for each in ("1.0.0", "1.1.0")]
        settings = {
            "device": name,
            "platform": self.address,
            "token": platform.access.add_token("fleet", "test"),
            "folder": "state",
            "keys": str(platform.folder / "keys" / "bundles.pub"),
            "root": str(platform.folder / "metadata" / "1.root.json"),
        }
        (folder / "agent.yaml").write_text(json.dumps(settings))
        state = folder / "state"
        status, _, writes = workload(self.library, state, "device", folder / "agent.yaml", **faults)
        if status:
            workload(self.library, state, "device", folder / "agent.yaml")
        self.check(name, releases, state)
        return bool(status), writes

    def check(self, name, releases, state):
        for release in releases:
            assert (release.state, release.counts.proven, release.counts.reached) == ("done", 1, 1), vars(
                release.counts
            )
            [row] = self.platform.releases.devices_of(release.id)
            assert (row["device"], row["state"]) == (name, "proven")
        [mine] = [each for each in self.platform.devices.list(limit=10_000) if each["device"] == name]
        assert mine["facts"].get("problem") is None, mine
        assert mine["tasks"]["shop/rank"]["version"] == "1.1.0", mine
        store = BundleStore(state)
        assert store.artifacts.read(store.current()["shop/rank"]["digest"])
        with Database(state / "agent.db") as database:
            database.check()
        left = [*(state / "partial").iterdir(), *state.rglob("tmp*")]
        assert not left, left


def devices_with_faults(cloud, library, folder, kind, choose):
    devices = Devices(cloud, library, folder)
    killed, writes = devices.run(f"{kind}-counting")
    assert not killed and writes > 50
    numbers = choose(range(1, writes + 1))
    deaths = 0
    for number in numbers:
        try:
            deaths += devices.run(f"{kind}-{number}", **FAULTS[kind](number))[0]
        except AssertionError as error:
            raise AssertionError(f"{kind} at write {number} of {writes}: {error}") from error
    assert not deaths if kind == "full" else deaths >= len(numbers) // 2


@KINDS
def test_an_agent_with_a_fault_at_some_writes(cloud, library, tmp_path, kind):
    dice = random.Random(f"agent {kind}")
    devices_with_faults(cloud, library, tmp_path, kind, lambda all_: dice.sample(all_[: len(all_) * 3 // 4], SAMPLED))


@pytest.mark.stress
@KINDS
def test_an_agent_with_a_fault_at_each_write(cloud, library, tmp_path, kind):
    devices_with_faults(cloud, library, tmp_path, kind, lambda all_: all_)
