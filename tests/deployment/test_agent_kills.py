"""kill -9 of agent and platform in the middle of their work: nothing is lost, neither is stuck."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.deployment.platforms import SPEC, WorkingCopy, add_version, nothing_left, platform_in
from vmhost.deployment.cloud import platform as platform_module
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.stores import Database

PLAN = Plan.of({"steps": [{"percent": 100}], "max_error": 1.0})
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    with nothing_left(), platform_in(folder / "cloud") as platform, serving(platform) as address:
        copy = WorkingCopy(folder / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
        for version, factor in (("1.0.0", 2), ("1.1.0", 3)):
            # large files, which are pieces of their own: one common to both versions, one of each
            padding = {"both.txt": "0123456789abcdef" * 10_000, "own.txt": os.urandom(100_000).hex()}
            padding["task.yaml"] = SPEC.format(name="rank", version=version) + "files: [both.txt, own.txt]\n"
            main = f"FACTOR = {factor}\ndef run(value):\n    return value * FACTOR\n"
            copy.release(version, main=main, cases={"one": {"input": 1, "expect": factor}}, **padding)
        yield platform, address


def vmhost(*arguments, **more):
    return subprocess.Popen([sys.executable, "-m", "vmhost", *map(str, arguments)], env=ENVIRONMENT, **more)


def kill_agents(cloud, folder, kills, seed):
    """Releases 1.0.0 and 1.1.0 in turn, and kills the agent `kills` times meanwhile; then lets it end, and looks."""
    platform, address = cloud
    chance = random.Random(seed)
    device = f"device-{seed}"
    settings = {
        "device": device,
        "platform": address,
        "token": platform.access.add_token("fleet", "test"),
        "folder": "state",
        "keys": str(platform.folder / "keys" / "bundles.pub"),
    }
    folder.mkdir(exist_ok=True)
    (folder / "agent.yaml").write_text(json.dumps(settings))
    store = None
    for number in range(kills):
        if number % 4 == 0:
            for release in platform.releases.of_task("shop/rank"):
                if release.state == "running":
                    platform.releases.act(release.id, "next", "test")
            version = ("1.0.0", "1.1.0")[number // 4 % 2]
            platform.releases.start("shop/rank", version, PLAN, "ann", "test")
        with vmhost("agent", folder / "agent.yaml", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as agent:
            time.sleep(chance.uniform(0.2, 0.9))  # where the kill falls is left to chance
            agent.kill()
        store = BundleStore(folder / "state")
        for entry in store.current().values():  # current bundles are whole, at every moment
            assert store.artifacts.read(entry["digest"])
    for _ in range(2):  # nothing that the kills left blocks it
        with vmhost(
            "agent", "--once", folder / "agent.yaml", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as agent:
            _, output = agent.communicate(timeout=120)
            assert agent.returncode == 0, output
    newest = platform.releases.of_task("shop/rank")[0]
    assert store.current()["shop/rank"]["version"] == newest.version.version, output
    [mine] = [each for each in platform.releases.devices_of(newest.id) if each["device"] == device]
    assert mine["state"] == "proven", mine


def test_an_agent_that_is_killed_again_and_again_ends_right(cloud, tmp_path):
    kill_agents(cloud, tmp_path / "device", kills=5, seed=1)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(100, 110))
def test_agents_that_are_killed_hundreds_of_times_end_right(cloud, tmp_path, seed):
    print(f"seed {seed}")
    kill_agents(cloud, tmp_path / "device", kills=40, seed=seed)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def serve(folder, port):
    process = vmhost(
        "cloud", "serve", folder, "--listen", f"127.0.0.1:{port}", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert b"platform" in process.stdout.readline()
    return process


def kill_platform_in_pushes(folder, kills, seed):
    chance = random.Random(seed)
    with platform_in(folder / "cloud") as platform:
        token = platform.access.add_token("ann", "test")
    port = free_port()
    work = WorkingCopy(folder / "work", f"http://127.0.0.1:{port}/git/shop", token)
    version = 0
    work.commit("1.0.0", plan="steps: [{percent: 100}]")
    for _ in range(kills):
        with serve(folder / "cloud", port) as process:
            push = subprocess.Popen(
                ["git", "push", "-q", work._url, work.branch, f"1.0.{version}"],
                cwd=work.folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(chance.uniform(0.05, 1.6))  # where the kill falls is left to chance
            process.kill()
            push.wait(60)
        if push.returncode == 0:  # the push succeeded: the version is promised
            with platform_in(folder / "cloud") as platform:
                assert platform.releases.version("shop/rank", f"1.0.{version}")
            version += 1
            work.commit(f"1.0.{version}", plan="steps: [{percent: 100}]")
    with serve(folder / "cloud", port) as process:
        status, output = work.push(work.branch, f"1.0.{version}", check=False)
        assert status == 0 or "is there already" in output, output
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    with platform_in(folder / "cloud") as platform:
        # a version for each tag, a tag and a release for each version
        repo = platform.open_repository("shop")
        tags = {name.decode() for name in repo.refs.as_dict(b"refs/tags")}
        repo.close()
        assert tags == {f"1.0.{number}" for number in range(version + 1)}
        assert {each.version for each in platform.releases.versions.values()} == tags
        assert {each.version.version for each in platform.releases.releases.values()} == tags
        platform.database.check()


def test_a_platform_that_is_killed_in_pushes_keeps_tags_and_versions_together(tmp_path):
    kill_platform_in_pushes(tmp_path, kills=2, seed=2)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(200, 204))
def test_a_platform_that_is_killed_hundreds_of_times_ends_right(tmp_path, seed):
    print(f"seed {seed}")
    kill_platform_in_pushes(tmp_path, kills=50, seed=seed)


def test_a_version_whose_tag_was_written_before_the_kill_is_published_and_another_is_dropped(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        for tag in ("1", "2"):
            add_version(platform, "shop/rank", tag)
        with platform.database.transaction() as connection:
            connection.execute("UPDATE deploy_versions SET state = 'built'")
        repo = platform.open_repository("shop")
        (platform.folder / "repositories" / "shop.git" / "refs" / "tags" / "3.lock").touch()
        repo.refs[b"refs/tags/1"] = b"c0ffee" + b"0" * 34
        repo.close()
    with platform_in(tmp_path / "cloud") as platform:
        assert [each.version for each in platform.releases.versions.values()] == ["1"]
        repo = platform.open_repository("shop")
        repo.refs[b"refs/tags/3"] = b"c0ffee" + b"0" * 34  # the lock that was left blocks nobody
        repo.close()


def test_a_second_platform_on_one_database_is_refused(tmp_path):
    with platform_in(tmp_path / "cloud"):
        port = free_port()
        arguments = ("cloud", "serve", tmp_path / "cloud", "--listen", f"127.0.0.1:{port}")
        with vmhost(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as second:
            _, output = second.communicate(timeout=60)
        assert second.returncode != 0 and b"another process has the store open" in output


def test_a_file_that_was_added_before_a_kill_is_offered_by_the_other_processes(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed():
        raise Killed

    with platform_in(tmp_path / "cloud"):
        pass
    monkeypatch.setattr(platform_module, "_open_database", lambda folder: Database(folder / "platform.db", shared=True))
    with Platform(tmp_path / "cloud") as first, Platform(tmp_path / "cloud") as second:
        monkeypatch.setattr(first, "_files_changed", killed)
        with pytest.raises(Killed):
            first.add_file("shop/rank", "words", "shared", b"words", {}, "ann")
        second.releases.refresh()
        assert [each["name"] for each in second.task_files.list()] == ["words"]
        with pytest.raises(Killed):
            first.remove_file(1, "ann")
        second.releases.refresh()
        assert second.task_files.list() == []
