"""A fault at each write of platform and agent: killed there, or the disk is full or read-only there. Then all that was
asked for has happened once."""

import contextlib
import json
import os
import random
import shutil

import pytest

from tests.deployment.fault_tries import FAULTS, Workloads, chosen, sweep
from tests.deployment.platforms import WorkingCopy, add_version, nothing_left, platform_in
from vmhost.bytecode.signing import generate_key
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.stores import Database

KINDS = pytest.mark.parametrize("kind", FAULTS)
PLAN = "steps: [{percent: 100, min_reports: 2}]\nmax_error: 100 %\nproof: {calls: 0}\n"
PARTS = 8  # of the faults of a kind and end: each ends within the time that a test has, and for as many processes
PART = pytest.mark.parametrize("part", range(PARTS))
SAMPLED = 2  # faults of each kind and end in `make test`


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def workloads(tmp_path_factory):
    with contextlib.closing(Workloads(tmp_path_factory.mktemp("workloads"))) as workloads:
        yield workloads


# ---- the platform


class Platforms:
    """Platforms in folders of their own, which all get the same push."""

    def __init__(self, workloads, folder):
        self.workloads, self.folder = workloads, folder
        self.work = WorkingCopy(folder / "work", "http://nobody", "")
        self.work.commit("1.0.0", plan=PLAN)

    def run(self, name, **faults):
        """(whether it ended before it was done, what it holds at the end, its writes)"""
        folder = self.folder / name / "all"
        folder.mkdir(parents=True)
        arguments = ("platform", folder / "cloud", self.work.folder)
        status, held, writes = self.workloads.run(folder, *arguments, **faults)
        if status:
            _, held, _ = self.workloads.run(folder, *arguments)
        return bool(status), json.loads(held), writes


def platforms_with_faults(workloads, folder, kind, choose):
    platforms = Platforms(workloads, folder)
    killed, right, writes = platforms.run("counting")
    assert not killed and writes > 100
    assert right["used"] == 2 and right["devices"] == ["a", "b", "c"] and not right["left"], right
    assert right["sums"] == [["", 20, 2], ["canary", 10, 1]] and not right["listed"], right

    def attempt(number):
        killed, held, _ = platforms.run(f"{kind}-{number}", **FAULTS[kind](number))
        wrong = {key: (held[key], each) for key, each in right.items() if held[key] != each}
        assert not wrong, f"of {writes} writes: got, expected {wrong}"
        shutil.rmtree(folder / f"{kind}-{number}")
        return killed

    tries, deaths = sweep(f"platform {kind}", choose(range(1, writes + 1)), attempt)
    assert not deaths if kind == "full" else deaths >= tries // 2


@KINDS
def test_a_platform_with_a_fault_at_some_writes(workloads, tmp_path, kind):
    dice = random.Random(f"platform {kind}")
    platforms_with_faults(workloads, tmp_path, kind, lambda all_: dice.sample(all_, SAMPLED))


@pytest.mark.stress
@PART
@KINDS
def test_a_platform_with_a_fault_at_each_write(workloads, tmp_path, kind, part):
    platforms_with_faults(workloads, tmp_path, kind, lambda all_: chosen(all_)[part::PARTS])


# ---- an owner's signature


@pytest.fixture(scope="module")
def signing(tmp_path_factory):
    """(a platform's folder, an owner's key): a version with a plan and a file wait there for the owner's signature."""
    folder = tmp_path_factory.mktemp("signing")
    ann = generate_key()
    ann.save(folder / "ann", "ann")
    with nothing_left(), platform_in(folder / "all" / "cloud") as platform:
        platform.metadata.set_owners("shop", [ann.public])
        add_version(platform, "shop/rank", "1")
        platform.add_file("shop/rank", "words", "shared", b"words", {}, "ann")
        with platform.database.transaction() as connection:
            connection.execute("UPDATE deploy_versions SET plan = ?", (json.dumps(Plan.read(PLAN).plain),))
        platform.releases.announce()
    return folder / "all", folder / "ann"


class Signatures:
    """An owner signs in copies of the platform in a folder."""

    def __init__(self, signing, workloads, folder):
        (self.made, self.key), self.workloads, self.folder = signing, workloads, folder

    def run(self, name, **faults):
        """(whether it ended before it was done, its writes)"""
        folder = self.folder / name / "all"
        shutil.copytree(self.made, folder)
        status, held, writes = self.workloads.run(folder, "sign", folder / "cloud", self.key, **faults)
        if status:
            _, held, _ = self.workloads.run(folder, "sign", folder / "cloud", self.key)
        right = {"waiting": None, "releases": [["1", "running"]], "noted": 1, "offered": ["words"], "listed": True}
        assert json.loads(held) == right
        return bool(status), writes


def signatures_with_faults(signing, workloads, folder, kind, choose):
    signatures = Signatures(signing, workloads, folder)
    killed, writes = signatures.run("counting")
    assert not killed and writes > 20

    def attempt(number):
        killed, _ = signatures.run(f"{kind}-{number}", **FAULTS[kind](number))
        shutil.rmtree(folder / f"{kind}-{number}")
        return killed

    tries, deaths = sweep(f"signature {kind}", choose(range(1, writes + 1)), attempt)
    assert not deaths if kind == "full" else deaths >= tries // 2


@KINDS
def test_a_signature_with_a_fault_at_some_writes(signing, workloads, tmp_path, kind):
    dice = random.Random(f"signature {kind}")
    signatures_with_faults(signing, workloads, tmp_path, kind, lambda all_: dice.sample(all_, SAMPLED))


@pytest.mark.stress
@KINDS
def test_a_signature_with_a_fault_at_each_write(signing, workloads, tmp_path, kind):
    signatures_with_faults(signing, workloads, tmp_path, kind, chosen)


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

    def __init__(self, cloud, workloads, folder):
        self.platform, self.address = cloud
        self.workloads, self.folder = workloads, folder

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
        status, _, writes = self.workloads.run(state, "device", folder / "agent.yaml", **faults)
        if status:
            self.workloads.run(state, "device", folder / "agent.yaml")
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


def devices_with_faults(cloud, workloads, folder, kind, choose, part=""):
    devices = Devices(cloud, workloads, folder)
    killed, writes = devices.run(f"{kind}-counting{part}")
    assert not killed and writes > 50

    killed_before_the_last = []  # a run may have fewer writes than the first

    def attempt(number):
        killed, _ = devices.run(f"{kind}-{number}", **FAULTS[kind](number))
        shutil.rmtree(folder / f"{kind}-{number}")
        if number <= writes * 3 // 4:
            killed_before_the_last.append(killed)
        return killed

    _, deaths = sweep(f"agent {kind}", choose(range(1, writes + 1)), attempt)
    assert not deaths if kind == "full" else sum(killed_before_the_last) >= len(killed_before_the_last) // 2


@KINDS
def test_an_agent_with_a_fault_at_some_writes(cloud, workloads, tmp_path, kind):
    dice = random.Random(f"agent {kind}")
    devices_with_faults(cloud, workloads, tmp_path, kind, lambda all_: dice.sample(all_[: len(all_) * 3 // 4], SAMPLED))


@pytest.mark.stress
@PART
@KINDS
def test_an_agent_with_a_fault_at_each_write(cloud, workloads, tmp_path, kind, part):
    devices_with_faults(cloud, workloads, tmp_path, kind, lambda all_: chosen(all_)[part::PARTS], part)
