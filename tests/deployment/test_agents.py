"""Real agents against a real platform: versions are pulled, proven, switched to and reported; and failures of that."""

import contextlib
import http.server
import itertools
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.deployment.platforms import Clock, WorkingCopy, agent_for, nothing_left, platform_in
from tests.pipeline.stream_tasks import clicks
from vmhost import ConfigurationError, Host, TaskError
from vmhost.access import AccessDeniedError
from vmhost.deployment import orders
from vmhost.deployment.bounds import Counted
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device import proof
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.deployment.errors import DeploymentError, RefusedError
from vmhost.deployment.trust import TrustError
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import Pipeline

PLAN = "steps: [{percent: 100, min_reports: 9}]\nmax_error: 100 %\nproof: {calls: 0}\n"
TRIPLE = "def run(value):\n    return value * 3\n"
# Works for the platform, whose simulation has no such file, and fails on a device.
FAILS_THERE = "import os\nkind = os.environ.get('KIND')\ndef run(value):\n    return value * {None: 3}[kind]\n"
MAY_READ_KIND = {
    "task.yaml": 'name: rank\nversion: 1.1.0\nentry: main:run\npython: "3.14"\npermissions: {env: [KIND]}\n'
}
MAY_READ_KIND_130 = MAY_READ_KIND["task.yaml"].replace("1.1.0", "1.3.0")
WORKS = (
    "import os, time\n\ndef run(value):\n    time.sleep(value[0] * int(os.environ.get('KIND', 1)))\n"
    "    return len(bytes(value[1]))\n"
)
STREAM_TASK = """
name: clicks
version: {version}
entry: main:run
python: "3.14"
permissions: {{host: [table_rows]}}
trigger: {{on: [click]}}
table: {{columns: {{visit: text, version: text}}}}
"""
ROWS = 'def run(value):\n    return {{"visit": value["visit"], "version": "{}"}}\n'
CASE = {"one": {"input": 1}}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A platform with versions that were pushed: 1.0.0 doubles, 1.1.0 fails on devices of a kind, 1.2.0 triples,
    1.3.0 takes the seconds and bytes that its input says."""
    folder = tmp_path_factory.mktemp("built")
    with nothing_left(), platform_in(folder / "cloud") as platform, serving(platform) as address:
        copy = WorkingCopy(folder / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
        copy.release("1.0.0", cases=CASE)
        copy.release("1.1.0", main=FAILS_THERE, **MAY_READ_KIND)
        copy.release("1.2.0", main=TRIPLE)
        clicks = WorkingCopy(
            folder / "clicks", f"{address}/git/shop", platform.access.add_token("ann", "test"), "clicks"
        )
        for version in ("2.0.0", "2.1.0"):
            spec = STREAM_TASK.format(version=version)
            clicks.release(version, main=ROWS.format(version), **{"task.yaml": spec})
        copy.release("1.3.0", main=WORKS, cases={"one": {"input": [0.2, 0]}}, **{"task.yaml": MAY_READ_KIND_130})
        assert platform.releases.version("shop/rank", "1.3.0").took_s["one"] >= 0.2
        yield platform, address


@pytest.fixture
def cloud(built):
    """The same, without the releases and devices of other tests, as if no simulation had waited for a processor."""
    platform, address = built
    with platform.database.transaction() as connection:
        for table in ("releases", "assignments", "devices", "history", "health", "calls"):
            connection.execute(f"DELETE FROM deploy_{table}")
        connection.execute("UPDATE deploy_versions SET bad = NULL")
    platform.releases._load()
    for version in platform.releases.versions.values():
        version.took_s = dict.fromkeys(version.took_s, 0.2)
    return platform, address


@pytest.fixture
def agent(cloud, tmp_path):
    with agent_for(*cloud, tmp_path / "device") as agent:
        yield agent


def release(platform, version, plan=PLAN):
    return platform.releases.start("shop/rank", version, Plan.read(plan), "ann", "test")


def state(platform, release, device="kitchen-1"):
    rows = {each["device"]: each for each in platform.releases.devices_of(release.id)}
    return rows[device]["state"] if device in rows else None


def test_a_device_pulls_proves_and_runs_what_it_should_have(cloud, agent):
    platform, _ = cloud
    agent.step()
    assert agent.host.tasks == ()
    first = release(platform, "1.0.0")
    agent.step()
    assert agent.host.task("rank")(21) == 42
    assert state(platform, first) == "proven"
    [known] = platform.devices.list()
    assert known["tasks"]["shop/rank"]["version"] == "1.0.0" and known["facts"]["python"] == "3.14"
    second = release(platform, "1.2.0")
    platform.releases.act(first.id, "next", "ann")  # makes room for it
    agent.step()
    assert agent.host.task("rank")(21) == 63 and state(platform, second) == "proven"


def test_a_version_that_fails_its_proof_never_gets_a_call(cloud, agent, monkeypatch):
    platform, _ = cloud
    first = release(platform, "1.0.0")
    agent.step()
    platform.releases.act(first.id, "next", "ann")
    second = release(platform, "1.1.0")
    monkeypatch.setenv("KIND", "old")
    agent.step()
    assert agent.host.task("rank").version == "1.0.0"
    [failed] = platform.releases.devices_of(second.id)
    assert failed["state"] == "failed" and "KeyError: 'old'" in failed["reason"]
    agent.step()  # the platform assigns the previous version; it keeps that
    assert agent.store.current()["shop/rank"]["version"] == "1.0.0"
    # given a second chance, it takes it
    monkeypatch.delenv("KIND")
    platform.releases.retry("kitchen-1", second.id, "ann")
    agent.step()
    assert agent.host.task("rank").version == "1.1.0" and state(platform, second) == "proven"


def test_a_rolled_back_version_leaves_the_device_at_once_and_without_a_download(cloud, agent):
    platform, _ = cloud
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    second = release(platform, "1.2.0")
    agent.step()
    assert agent.host.task("rank")(1) == 3
    platform.releases.act(second.id, "roll_back", "ann", "wrong factor")
    pulled = []
    agent._transfers.download = lambda *arguments: pulled.append(arguments)
    agent.step()
    assert agent.host.task("rank")(1) == 2 and pulled == []


def test_the_first_version_rolled_back_leaves_nothing(cloud, agent):
    platform, _ = cloud
    first = release(platform, "1.0.0")
    agent.step()
    platform.releases.act(first.id, "roll_back", "ann")
    agent.step()
    assert agent.host.tasks == () and agent.store.current() == {}


def test_success_means_calls_that_went_well(cloud, agent):
    platform, _ = cloud
    first = release(platform, "1.0.0", PLAN.replace("calls: 0", "calls: 3, within: 1 h, max_error: 0"))
    agent.step()
    assert state(platform, first) == "running"
    for value in (1, 2, 3):
        agent.host.task("rank")(value)
    agent.step()
    assert state(platform, first) == "proven"


@pytest.mark.parametrize(
    "bound, call, reason",
    [
        ("max_time: 300 ms", [0.5, 0], "ms each, more than 300 ms"),
        ("max_memory: 16 MiB", [0, 32 << 20], "MiB, more than 16 MiB"),
        ("slow: {over: 200 ms, max: 10 %}", [0.5, 0], "2 of 2 calls took longer than 200 ms, more than 10 %"),
    ],
)
def test_success_means_calls_within_their_time_and_memory(cloud, agent, monkeypatch, bound, call, reason):
    platform, _ = cloud
    # On a busy machine the self-test alone might exceed the bound.
    monkeypatch.setattr(proof, "case_outside", lambda rules, name, took_s: None)
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    second = release(platform, "1.3.0", PLAN.replace("calls: 0", f"calls: 2, within: 1 h, {bound}"))
    agent.step()
    assert agent.host.task("rank").version == "1.3.0"
    for _ in range(2):
        agent.host.task("rank")(call)
    agent.step()
    [failed] = platform.releases.devices_of(second.id)
    assert (failed["state"], agent.host.task("rank").version) == ("failed", "1.0.0") and reason in failed["reason"]


def test_calls_within_their_bounds_prove_it_and_say_what_they_took(cloud, agent):
    platform, _ = cloud
    bounds = "calls: 2, within: 1 h, max_time: 30 s, max_memory: 60 MiB"
    first = release(platform, "1.3.0", PLAN.replace("calls: 0", bounds))
    agent.step()
    for _ in range(2):
        agent.host.task("rank")([0, 1 << 20])
    agent.step()
    [proven] = platform.releases.devices_of(first.id)
    assert proven["state"] == "proven" and re.fullmatch(r"2 calls, 0 failed, .* ms each, .* MiB", proven["reason"])


def test_a_self_test_that_takes_too_long_on_the_device_fails_there(cloud, agent, monkeypatch):
    platform, _ = cloud
    first = release(platform, "1.3.0", PLAN.replace("calls: 0", "max_time: 3 s"))
    monkeypatch.setenv("KIND", "20")
    agent.step()
    [failed] = platform.releases.devices_of(first.id)
    assert failed["state"] == "failed" and "self-test one took" in failed["reason"] and agent.host.tasks == ()


def test_another_release_of_a_version_is_proven_within_bounds_of_its_own(cloud, agent, monkeypatch):
    platform, _ = cloud
    first = release(platform, "1.3.0")
    agent.step()
    assert state(platform, first) == "proven"
    platform.releases.act(first.id, "next", "ann")
    monkeypatch.setenv("KIND", "20")
    second = release(platform, "1.3.0", PLAN.replace("calls: 0", "max_time: 3 s"))
    agent.step()
    [failed] = platform.releases.devices_of(second.id)
    assert failed["state"] == "failed" and "self-test one took" in failed["reason"]
    monkeypatch.delenv("KIND")
    platform.releases.retry("kitchen-1", second.id, "ann")
    agent.step()
    [proven] = platform.releases.devices_of(second.id)
    assert (proven["state"], proven["reason"]) == ("proven", "its self-test passed")


def test_a_version_that_went_back_is_proven_within_the_bounds_of_its_new_release(cloud, agent, monkeypatch):
    platform, _ = cloud
    for version in ("1.3.0", "1.0.0"):
        found = release(platform, version)
        agent.step()
        assert state(platform, found) == "proven"
        platform.releases.act(found.id, "next", "ann")
    monkeypatch.setenv("KIND", "20")
    again = release(platform, "1.3.0", PLAN.replace("calls: 0", "max_time: 3 s"))
    agent.step()
    [failed] = platform.releases.devices_of(again.id)
    assert failed["state"] == "failed" and "self-test one took" in failed["reason"]
    assert agent.host.task("rank")(2) == 4  # what ran before still does


def test_a_device_that_lost_its_memory_repeats_the_self_test_before_it_calls_anything_proven(
    cloud, tmp_path, monkeypatch
):
    platform, address = cloud
    first = release(platform, "1.3.0", PLAN.replace("calls: 0", "max_time: 3 s"))
    with agent_for(platform, address, tmp_path / "device") as agent:
        agent.step()
        assert state(platform, first) == "proven"
    for path in (tmp_path / "device").glob("agent.db*"):
        path.unlink()
    put_back(platform)
    monkeypatch.setenv("KIND", "20")
    with agent_for(platform, address, tmp_path / "device") as agent:
        agent.step()
        [failed] = platform.releases.devices_of(first.id)
        assert failed["state"] == "failed" and "self-test one took" in failed["reason"]


def test_a_release_whose_bounds_the_simulation_was_beyond_is_refused(cloud):
    platform, _ = cloud
    with pytest.raises(RefusedError, match="in the platform's simulation one took .* ms, more than 100 ms; make it"):
        release(platform, "1.3.0", "proof: {max_time: 100 ms}")
    with pytest.raises(RefusedError, match="in the platform's simulation a VM had .* MiB, more than 1 MiB"):
        release(platform, "1.3.0", "proof: {max_memory: 1 MiB}")


def test_calls_in_other_processes_of_the_device_prove_a_version(cloud, agent):
    platform, _ = cloud
    first = release(platform, "1.0.0", PLAN.replace("calls: 0", "calls: 3, within: 1 h"))
    agent.step()
    with Host(trust=agent._trust) as host, BundleStore(agent.settings.folder).follow(host) as following:
        for value in range(3):
            host.task("rank")(value)
        following.report()
        agent.step()
    assert state(platform, first) == "proven"


def test_failing_calls_take_a_new_version_back(cloud, agent):
    platform, _ = cloud
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    second = release(platform, "1.2.0", PLAN.replace("calls: 0", "calls: 4, within: 1 h, max_error: 0.3"))
    agent.step()
    assert agent.host.task("rank").version == "1.2.0"
    for _ in range(3):
        with pytest.raises(TaskError):
            agent.host.task("rank")(None)
    agent.step()
    assert state(platform, second) == "failed" and agent.host.task("rank").version == "1.0.0"


def test_a_task_that_nobody_calls_counts_when_its_time_is_over(cloud, agent):
    platform, _ = cloud
    first = release(platform, "1.0.0", PLAN.replace("calls: 0", "calls: 3, within: 1 ms"))
    agent.step()
    agent.step()
    assert state(platform, first) == "proven"


def test_a_person_goes_back_and_the_platform_respects_it(cloud, agent):
    platform, _ = cloud
    with pytest.raises(DeploymentError, match="no version to go back to"):
        agent.go_back("shop/rank")
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    second = release(platform, "1.2.0")
    agent.step()
    agent.go_back("shop/rank")
    assert agent.host.task("rank").version == "1.0.0"
    for _ in range(3):
        agent.step()
    assert state(platform, second) == "declined" and agent.host.task("rank").version == "1.0.0"


def test_a_device_that_starts_without_a_platform_runs_what_it_had(cloud, agent, tmp_path):
    platform, address = cloud
    release(platform, "1.0.0")
    agent.step()
    agent.close()
    with agent_for(platform, "http://127.0.0.1:9", tmp_path / "device") as again:
        assert again.host.task("rank")(2) == 4
        wait_s = again.step()
        assert again.failed and wait_s >= 1
        assert again.step() > 0 and again.host.task("rank")(2) == 4


def test_a_proof_by_time_only_says_so(cloud, agent):
    platform, _ = cloud
    found = release(platform, "1.0.0", PLAN.replace("calls: 0", "calls: 3, within: 1 ms"))
    agent.step()
    agent.step()
    [device] = platform.releases.devices_of(found.id)
    assert (device["state"], device["reason"][:40]) == ("proven", "by time only: no calls in 0.001 s, where")


def put_back(platform):
    """The platform is as before the devices reported."""
    with platform.database.transaction() as connection:
        connection.execute("UPDATE deploy_assignments SET state = 'offered'")
    platform.releases._load()


def test_a_platform_that_was_put_back_hears_again_of_what_is_proven(cloud, agent):
    platform, _ = cloud
    first = release(platform, "1.0.0")
    agent.step()
    put_back(platform)
    agent.step()
    assert state(platform, first) == "proven" and not len(agent.memory.outbox)


@pytest.mark.parametrize("lost", ["platform", "memory"])
def test_what_calls_had_to_prove_is_proven_by_calls_again_where_that_was_lost(cloud, tmp_path, lost):
    platform, address = cloud
    first = release(platform, "1.0.0", PLAN.replace("calls: 0", "calls: 2, within: 1 h"))
    words = platform.add_file("shop/rank", "words.txt", "shared", b"words", None, "ann")
    with contextlib.ExitStack() as stack:
        stack.callback(platform.remove_file, words, "ann")
        agent = stack.enter_context(agent_for(platform, address, tmp_path / "device"))
        agent.step()
        if lost == "platform":
            for value in range(2):
                agent.host.task("rank")(value)
            agent.step()
            assert state(platform, first) == "proven"
            put_back(platform)
        else:
            agent.close()
            for path in (tmp_path / "device").glob("agent.db*"):
                path.unlink()
            agent = stack.enter_context(agent_for(platform, address, tmp_path / "device"))
            assert list(agent.store.current()["shop/rank"]["files"]) == ["words.txt"]
        agent.step()
        assert state(platform, first) == "running" and not agent.failed
        for value, then in enumerate(("running", "proven")):
            agent.host.task("rank")(value)
            agent.step()
            assert state(platform, first) == then
        [row] = platform.releases.devices_of(first.id)
        assert row["reason"].startswith("2 calls, 0 failed")


def test_a_listed_self_test_cannot_be_left_out(cloud, agent):
    platform, _ = cloud
    release(platform, "1.0.0")
    wanted = agent._ask()["wanted"]
    for each in wanted.values():
        each["proof"] = None
    with pytest.raises(TrustError, match="proof.json: is listed, and the platform's answer leaves it out"):
        agent._apply(wanted)
    assert agent.store.current() == {}


def test_damaged_files_and_a_damaged_memory_are_pulled_and_begun_anew(cloud, agent, tmp_path):
    platform, address = cloud
    release(platform, "1.0.0")
    agent.step()
    [entry] = agent.store.current().values()
    agent.close()
    folder = tmp_path / "device"
    path = agent.store.artifacts.path(entry["digest"])
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with agent_for(platform, address, folder) as again:
        assert again.host.tasks == ()
        again.step()
        assert again.host.task("rank")(2) == 4
    (folder / "agent.db").write_bytes(b"not a database" * 1000)
    for name in ("agent.db-wal", "agent.db-shm"):
        (folder / name).unlink(missing_ok=True)
    with agent_for(platform, address, folder) as again:
        assert again.host.task("rank")(2) == 4  # by the bundle store's list
        again.step()
        # its secret has a second copy, so the platform knows it
        assert not again.failed and again.host.task("rank")(2) == 4


def test_two_agents_in_one_folder_and_two_devices_of_one_name_are_refused(cloud, agent, tmp_path):
    platform, address = cloud
    agent.step()
    with pytest.raises(ConfigurationError, match="already in use"):
        agent_for(platform, address, tmp_path / "device")
    with agent_for(platform, address, tmp_path / "impostor") as impostor:
        impostor.step()
        assert impostor.failed
    with pytest.raises(RefusedError, match="another device has this name"):
        platform.devices.enrol("kitchen-1", "x" * 40)
    with pytest.raises(AccessDeniedError):
        platform.check("kitchen-1", "x" * 40, {})


def test_a_bundle_that_the_metadata_does_not_list_never_runs_whoever_offers_it(cloud, agent, monkeypatch):
    """An attacker who has even the key of orders cannot make a device run his code."""
    platform, _ = cloud
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    release(platform, "1.2.0")
    old = platform.releases.version("shop/rank", "1.0.0")
    check, digest = platform.check, platform.files.put(b"anything else")

    def lying(device, secret, request):
        answer = check(device, secret, request)
        answer["wanted"]["shop/rank"] |= {"digest": digest, "size": 13, "proof": old.proof, "deltas": []}
        signed = orders.signed_part(device, request["nonce"], request["profile"], answer)
        return answer | {"order": platform.metadata.sign_order(signed)}

    monkeypatch.setattr(platform, "check", lying)
    agent.step()
    assert agent.failed and "does not list" in agent._problem
    assert agent.host.task("rank").version == "1.0.0" and digest not in agent.store.artifacts
    monkeypatch.undo()
    agent.step()
    assert not agent.failed and agent.host.task("rank").version == "1.2.0"


def test_expired_metadata_stops_new_versions_and_nothing_else(cloud, tmp_path):
    platform, address = cloud
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    clock = Clock(time.time())
    with agent_for(platform, address, tmp_path / "device", clock=clock) as agent:
        agent.step()
        clock.now_s += 10 * 365 * 86400  # the device's clock goes wrong
        second = release(platform, "1.2.0")
        agent.step()
        assert agent.failed and agent.host.task("rank")(1) == 2
        agent.step()
        [known] = platform.devices.list()
        assert "expired" in known["facts"]["problem"] and "set the clock" in known["facts"]["problem"]
        clock.now_s -= 10 * 365 * 86400
        agent.step()
        assert agent.host.task("rank")(1) == 3 and state(platform, second) == "proven"
        agent.step()
        assert "problem" not in platform.devices.list()[0]["facts"]


def test_files_shared_and_exclusive_reach_whom_they_are_for(cloud, agent, tmp_path):
    platform, address = cloud
    release(platform, "1.0.0")
    shared = platform.add_file("shop/rank", "words.txt", "shared", b"many words", {"os": "linux"}, "ann")
    own = platform.add_file("shop/rank", "own.bin", "exclusive", b"of kitchen-1 alone", {"allow": ["kitchen-1"]}, "ann")
    with pytest.raises(RefusedError, match="name its devices"):
        platform.add_file("shop/rank", "own.bin", "exclusive", b"x", {"os": "linux"}, "ann")
    agent.step()
    files = agent.store.current()["shop/rank"]["files"]
    assert {name: Path(path).read_bytes() for name, path in files.items()} == {
        "words.txt": b"many words",
        "own.bin": b"of kitchen-1 alone",
    }
    with agent_for(platform, address, tmp_path / "other", device="kitchen-2") as other:
        other.step()
        assert list(other.store.current()["shop/rank"]["files"]) == ["words.txt"]
        # its address is a ticket that was made for another device, and ends
        digest = next(each["digest"] for each in platform.task_files.list() if each["id"] == own)
        for url in (
            f"/files/{digest[:2]}/{digest}",
            platform.task_files.ticket(digest, "a").replace("device=a", "device=b"),
        ):
            assert other._transfers.fetch(url, 1000) is None
        assert other._transfers.fetch(platform.task_files.ticket(digest, "a"), 1000) == b"of kitchen-1 alone"
    # a newer one of the same name replaces it, a removed one ends; the version stays
    platform.add_file("shop/rank", "words.txt", "shared", b"more words", {}, "ann")
    platform.remove_file(own, "ann")
    agent.step()
    files = agent.store.current()["shop/rank"]["files"]
    assert {name: Path(path).read_bytes() for name, path in files.items()} == {"words.txt": b"more words"}
    assert agent.host.task("rank")(2) == 4
    for each in platform.task_files.list():
        platform.remove_file(each["id"], "ann")
    assert shared


def test_a_host_of_another_process_follows_the_bundle_store(cloud, agent):
    import vmhost

    platform, _ = cloud
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    store = BundleStore(agent.settings.folder)
    with vmhost.Host(trust=agent.settings.keys) as host, contextlib.closing(store.follow(host)) as follower:
        assert host.task("rank")(1) == 2
        second = release(platform, "1.2.0")
        agent.step()
        follower.look()
        assert host.task("rank")(1) == 3
        platform.releases.act(second.id, "roll_back", "ann")
        agent.step()
        follower.look()
        assert host.task("rank")(1) == 2


def test_a_device_that_is_where_it_should_be_asks_by_its_digest_alone(cloud, agent, monkeypatch):
    platform, _ = cloud
    first = release(platform, "1.0.0")
    asked = []
    post = agent._transfers.post
    monkeypatch.setattr(agent._transfers, "post", lambda *a: asked.append(sorted(a[1])) or post(*a))
    free = itertools.count(60_000_000_000, 50_000_000)  # other programs write to the disk: that alone is not reported
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=next(free)))

    def in_short():
        asked.clear()
        wait_s = agent.step()
        assert not agent.failed and wait_s < 60
        return asked == [["profile"]]

    agent.step()
    assert not in_short() and in_short() and in_short()  # the round after the last change settles it
    agent.host.task("rank")(1)
    assert not in_short() and first.called.calls == 1 and in_short()  # the new counts are reported
    platform.releases.act(first.id, "next", "ann")
    assert not in_short() and in_short()
    platform.profiles._known.clear()  # the platform was restarted
    assert not in_short() and in_short()
    second = release(platform, "1.2.0")
    assert not in_short() and state(platform, second) == "proven" and agent.host.task("rank")(1) == 3
    platform.devices.forget("kitchen-1")
    agent.step()
    assert not agent.failed and platform.devices.count() == 1


def test_a_pipeline_follows_the_bundle_store_and_reports_its_calls(cloud, agent, tmp_path):
    platform, _ = cloud

    def take(version):
        found = platform.releases.start("shop/clicks", version, Plan.read(PLAN), "ann", "test")
        agent.step()
        assert state(platform, found) == "proven"
        return found

    first = take("2.0.0")
    release(platform, "1.0.0")
    agent.step()
    assert agent.host.tasks == ("rank",)  # the other task's host functions are missing here
    with (
        Pipeline(tmp_path / "data", [], trust=agent._trust) as pipeline,
        BundleStore(agent.settings.folder).follow(pipeline) as following,
    ):
        assert pipeline.tasks == ("clicks",)
        pipeline.append_many(clicks("a", "b"))
        assert pipeline.wait(60)
        following.report()
        agent.step()
        assert first.called.calls == 2
        platform.releases.act(first.id, "next", "ann")
        second = take("2.1.0")
        following.look()
        pipeline.append_many(clicks("c", begin_ms=1_790_000_001_000))
        assert pipeline.wait(60)
        rows = [(row["visit"], row["version"]) for row in pipeline.table("clicks").read()]
        assert rows == [("a", "2.0.0"), ("b", "2.0.0"), ("c", "2.1.0")]
        platform.releases.act(second.id, "roll_back", "ann")
        platform.releases.act(first.id, "roll_back", "ann")
        agent.step()
        following.look()
        assert pipeline.tasks == ()


RULES = "name: comes\npattern: [{{name: it, event: click}}]\nwithin_ms: 60000\nthen: [{}]\n"


def test_a_pipeline_takes_up_rule_packs_as_they_come(cloud, agent, tmp_path, caplog):
    platform, _ = cloud
    platform.releases.start("shop/clicks", "2.0.0", Plan.read(PLAN), "ann", "test")
    store, sent = BundleStore(agent.settings.folder), {"a": [], "b": []}
    channels = {name: (lambda message, name=name: sent[name].append(message["key"])) for name in sent}

    def give(text):
        identity = platform.add_file("shop/clicks", "clicks.rules.yaml", "shared", text.encode(), {}, "ann")
        agent.step()
        following.look()
        return identity

    def click(key):
        pipeline.append(Event("click", 1_790_000_000_000 + len(key), "page", f"{key}-1", key=key))
        assert pipeline.wait(60) and pipeline.reach.wait(60)

    agent.step()
    with (
        Pipeline(tmp_path / "data", [], trust=agent._trust, channels=channels, rules=store.rules()) as pipeline,
        store.follow(pipeline) as following,
    ):
        click("1")
        packs = [give(RULES.format("a"))]
        click("22")
        packs.append(give(RULES.format("b")))
        click("333")
        packs.append(give("name: wrong\n"))  # the previous packs stay
        assert "the previous ones stay" in caplog.text
        click("4444")
        for identity in packs:
            platform.remove_file(identity, "ann")
        agent.step()
        following.look()
        click("55555")
    assert sent == {"a": ["22"], "b": ["333", "4444"]}


class _Liar(http.server.BaseHTTPRequestHandler):
    """Sends half of a file, wrongly, and closes."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(bytes(400))

    def log_message(self, *arguments):
        pass


def test_files_come_from_the_nearest_server_and_from_the_next_where_that_fails_or_lies(cloud, tmp_path):
    platform, address = cloud
    release(platform, "1.0.0")
    with http.server.HTTPServer(("127.0.0.1", 0), _Liar) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        lies = f"http://127.0.0.1:{server.server_port}/eu/"
        before = platform.files_urls
        platform.files_urls = (("us", "http://127.0.0.1:9/files/"), (None, "/files/"), ("eu", lies))
        try:
            for region, device in (("eu", "a"), ("us", "b"), (None, "c")):
                facts = {"region": region} if region else {}
                with agent_for(platform, address, tmp_path / device, device=device, facts=facts) as agent:
                    agent.step()
                    assert not agent.failed and agent.host.task("rank")(2) == 4
                    asked, server.asked[:] = list(server.asked), []
                    assert bool(asked) == (region == "eu") and all(path.startswith("/eu/") for path in asked)
        finally:
            platform.files_urls = before
            server.shutdown()
            thread.join()


def test_a_hint_makes_the_agent_ask_at_once_and_stop_ends_it(cloud, tmp_path):
    platform, address = cloud
    with agent_for(platform, address, tmp_path / "device", poll_s=3600.0) as agent:
        asked = threading.Semaphore(0)
        step = agent.step

        def counted():
            try:
                return step()
            finally:
                asked.release()

        agent.step = counted
        thread = threading.Thread(target=agent.run)
        thread.start()
        assert asked.acquire(timeout=60)
        release(platform, "1.0.0")
        agent.hint()
        assert asked.acquire(timeout=60)
        agent.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert agent.store.current()["shop/rank"]["version"] == "1.0.0"


def test_calls_are_counted_by_version_here_and_in_processes_that_follow_the_store(cloud, agent):
    platform, _ = cloud
    first = release(platform, "1.0.0")
    agent.step()
    agent.host.task("rank")(1)
    with Host(trust=agent._trust) as host, BundleStore(agent.settings.folder).follow(host) as following:
        host.task("rank")(2)
        with pytest.raises(TaskError):
            host.task("rank")(None)
        following.report()
    agent.step()
    assert (first.called.calls, first.called.failures) == (3, 1)
    agent.step()  # reported again, counted once
    assert (first.called.calls, first.called.failures) == (3, 1)
    platform.releases.act(first.id, "next", "ann")
    second = release(platform, "1.2.0")
    agent.step()
    agent.step()
    assert (second.called.calls, agent.store.health()) == (0, {"rank": Counted()})
    assert not list((agent.settings.folder / "health").iterdir())  # of a version that is no longer current


def test_files_of_health_that_cannot_be_read_count_as_none(cloud, agent):
    platform, _ = cloud
    release(platform, "1.0.0")
    agent.step()
    folder = agent.settings.folder / "health"
    folder.mkdir()
    for number, data in enumerate((b"", b"[]", b'{"rank": 5}', b'{"rank": [1, "x", 2]}', b"\xff")):
        (folder / f"{number}.json").write_bytes(data)
    assert agent.store.health() == {"rank": Counted()}


def test_a_delta_that_cannot_be_used_is_made_up_for_by_the_whole_bundle(cloud, agent):
    platform, _ = cloud
    platform.releases.act(release(platform, "1.0.0").id, "next", "ann")
    agent.step()
    second = release(platform, "1.2.0")
    with platform.database.reader() as connection:
        deltas = [row[0] for row in connection.execute("SELECT digest FROM deploy_deltas").fetchall()]
    kept = {digest: platform.files.path(digest).read_bytes() for digest in deltas}
    try:
        for number, (digest, data) in enumerate(kept.items()):
            if number % 2:
                platform.files.path(digest).write_bytes(bytes(len(data)))  # damaged there
            else:
                platform.files.path(digest).unlink()  # or gone
        agent.step()
    finally:
        for digest, data in kept.items():
            platform.files.path(digest).write_bytes(data)
    assert agent.host.task("rank")(1) == 3 and state(platform, second) == "proven"
