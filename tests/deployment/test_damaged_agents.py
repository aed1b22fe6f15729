"""Agents whose files are damaged or lost start anyway, tell it once, and are known to the platform as before."""

import logging
import os

import pytest

from tests.deployment.platforms import add_version, agent_for, nothing_left, platform_in
from vmhost.deployment.cloud.plan import WHOLE_FLEET, Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.agent import MAX_CRASHES, Agent
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.deployment.device.memory import Memory
from vmhost.operations.crash_reports import CrashFolder


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    with nothing_left(), platform_in(tmp_path_factory.mktemp("damage")) as platform, serving(platform) as address:
        add_version(platform, "shop/rank", "1")
        platform.releases.start("shop/rank", "1", Plan.of(WHOLE_FLEET), "ann", "")
        yield platform, address


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("profile", b"\xff\xfe not UTF-8"),
        ("current.json", b"{"),
        ("current.json", b'{"tasks": {"shop/rank": {"name": 7}}}'),
        ("artifacts", b"a file"),
        ("partial", b"a file"),
        ("health", b"a file"),
        ("fleet", b"a file"),
        ("metadata", b"a file"),
        ("metadata/root.json", b"\xff"),
        ("secret", b"\xff"),
    ],
)
def test_a_damaged_file_ends_no_start(cloud, tmp_path, caplog, name, content):
    folder, device = tmp_path / "device", f"d-{abs(hash((name, content)))}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    store = BundleStore(folder / "other")
    assert store.headers() == {}
    with caplog.at_level(logging.ERROR), agent_for(*cloud, folder, device) as agent:
        agent.step()
        BundleStore(folder).headers()
    told = [record.message for record in caplog.records if "was put aside" in record.message]
    assert len(told) == (name != "secret")
    caplog.clear()
    with agent_for(*cloud, folder, device):
        assert not [record for record in caplog.records if "was put aside" in record.message]


def test_a_profile_that_is_no_text_gives_no_header(tmp_path):
    store = BundleStore(tmp_path)
    (tmp_path / "profile").write_bytes(b"\xff")
    assert store.headers() == {}
    store.write_profile("kitchen-1 x")
    assert store.headers() == {"vmhost-tasks": "kitchen-1 x"}


def test_a_device_that_lost_its_store_is_still_known(cloud, tmp_path):
    platform, _ = cloud
    folder = tmp_path / "device"
    with agent_for(*cloud, folder, "lost-1") as agent:
        agent.step()
        secret = agent.memory.value("secret")
    for path in folder.glob("agent.db*"):
        path.unlink()
    with agent_for(*cloud, folder, "lost-1", token="vmh_none") as agent:
        agent.step()
        assert agent.memory.value("secret") == secret
        assert platform.devices.identify("lost-1", secret)
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600


def test_what_a_killed_process_left_half_written_is_removed_after_an_hour(cloud, tmp_path):
    platform, address = cloud
    device, other = tmp_path / "device", tmp_path / "cloud"
    with agent_for(platform, address, device), platform_in(other):
        pass
    old, young = set(), set()
    for folder in (device, device / "metadata", other, other / "keys", other / "metadata", other / "repositories"):
        old.add(folder / ".partial-old")
        young.add(folder / ".partial-young")
    (device / "artifacts" / "ab").mkdir(exist_ok=True)
    (other / "files" / "ab").mkdir(exist_ok=True)
    old |= {device / "artifacts" / "ab" / ".partial-old", other / "files" / "ab" / ".partial-old"}
    for path in old | young:
        path.touch()
    (other / "repositories" / ".partial-shop").mkdir()
    old.add(other / "repositories" / ".partial-shop")
    for path in old:
        os.utime(path, (0, 0))
    with agent_for(platform, address, device), platform_in(other):
        pass
    assert not any(path.exists() for path in old) and all(path.exists() for path in young)


DUMP = "VMHCRASH 1\nsignal 11\npid 42\ntime 1795713214\nvm 7\ntask rank\nversion 1\nphase 3\n== end\n"


class Killed(BaseException):
    """As if the process ended there."""


def test_a_list_is_taken_for_a_lost_memory_as_a_whole(cloud, tmp_path, monkeypatch):
    platform, _ = cloud
    folder = tmp_path / "device"
    digests = {task: platform.files.put(task.encode()) for task in ("shop/one", "shop/two")}

    def entry(task):
        return {"name": task, "version": "1", "digest": digests[task], "release": 1}

    with agent_for(*cloud, folder, "lost-2") as agent:
        for task in digests:
            agent.store.artifacts.put(task.encode())
        agent.store.write({task: entry(task) for task in digests})
    for path in folder.glob("agent.db*"):
        path.unlink()
    calls = []

    def set_task(self, task, **slots):
        calls.append(task)
        if len(calls) == 2:
            raise Killed
        return real(self, task, **slots)

    real = Memory.set_task
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "set_task", set_task)
        with pytest.raises(Killed):
            agent_for(*cloud, folder, "lost-2")
    remembered = []
    monkeypatch.setattr(Agent, "_load_or_go_back", lambda self, task: remembered.append(task))
    with agent_for(*cloud, folder, "lost-2"):
        assert remembered == sorted(digests)


def test_a_version_that_crashed_too_often_is_given_up_though_the_agent_was_killed_meanwhile(cloud, tmp_path):
    folder = tmp_path / "device"
    entry = {"name": "rank", "version": "1", "digest": "0" * 64, "release": 1, "size": 1, "proof": None, "rules": {}}
    with agent_for(*cloud, folder, "crashed-1") as agent:
        counted = {"state": "proven", "crashes": MAX_CRASHES, "crash": "SIGSEGV"}
        agent.memory.set_task("shop/rank", current=entry | counted)
    with agent_for(*cloud, folder, "crashed-1") as agent:
        assert agent.memory.has_given_up("shop/rank", 1)
        [report] = agent.memory.outbox.take("report", limit=10)
        assert b"the process crashed 3 times: SIGSEGV" in report.body


def test_a_crash_report_that_was_made_before_a_kill_is_sent(cloud, tmp_path, monkeypatch):
    folder = tmp_path / "device"
    with agent_for(*cloud, folder, "crashed-2") as agent:
        assert agent.memory.value("crashes") is None
    (folder / "host" / "crashes").mkdir(exist_ok=True)
    (folder / "host" / "crashes" / "1.dump").write_text(DUMP)
    real = CrashFolder.collect

    def collect(self):
        real(self)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CrashFolder, "collect", collect)
        with pytest.raises(Killed):
            agent_for(*cloud, folder, "crashed-2")
    assert not list((folder / "host" / "crashes").glob("*.dump"))
    for _ in range(2):
        with agent_for(*cloud, folder, "crashed-2") as agent:
            assert len(agent.memory.value("crashes")) == 1
