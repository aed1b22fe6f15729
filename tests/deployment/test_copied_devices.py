"""A device whose store was put back from a copy: what it reports anew is not taken for known, and nothing counts
twice. The same where the platform was put back."""

import json
import shutil
from types import SimpleNamespace

import pytest

from tests.deployment.platforms import add_version, platform_in
from tests.tunnel.test_copied_stores import put_back
from vmhost.deployment.cloud import fleet
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.device import fleet_report
from vmhost.deployment.device.fleet_report import FleetReport
from vmhost.deployment.device.memory import Memory
from vmhost.deployment.errors import RefusedError

SECRET, TASK = "s" * 40, "shop/rank"
EVERYWHERE = {"steps": [{"percent": 100, "min_reports": 9}]}


@pytest.fixture
def platform(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        platform.devices.enrol("a", SECRET)
        yield platform


def released(platform, version):
    for release in platform.releases.of_task(TASK):
        if release.state == "running":
            platform.releases.act(release.id, "next", "ann")
    add_version(platform, TASK, version)
    return platform.releases.start(TASK, version, Plan.of(EVERYWHERE), "ann", "")


def told(platform, memory, tasks=None):
    """What the platform answers the device, which sends what it has to report."""
    epoch, entries = memory.reports(100)
    reports = [[entry.number, json.loads(entry.body)] for entry in entries]
    answer = platform.check(
        "a", SECRET, {"facts": {"python": "3.14"}, "tasks": tasks or {}, "epoch": epoch, "reports": reports}
    )
    memory.outbox.acknowledge([entry.id for entry in entries if entry.number <= answer["acknowledged"]])
    return answer["wanted"].get(TASK)


def lived(platform, memory, version):
    """The state of the device in a release of this version, which it takes and proves."""
    release = released(platform, version)
    assert told(platform, memory)["version"] == version
    for state in ("taken", "proven"):
        memory.report(release.id, state)
        told(platform, memory)
    assert len(memory.outbox) == 0
    return platform.releases.devices_of(release.id)[0]["state"]


def test_reports_of_a_device_that_was_put_back_arrive(platform, tmp_path):
    store, copy = tmp_path / "agent.db", tmp_path / "copy"
    memory = Memory(tmp_path)
    assert lived(platform, memory, "1") == "proven"
    memory.report(10**6, "taken")  # of a release that is unknown: it waits when the copy is made
    memory.close()
    shutil.copyfile(store, copy)
    memory = Memory(tmp_path)
    assert [lived(platform, memory, version) for version in "23"] == ["proven", "proven"]
    memory.close()
    put_back(copy, store)
    memory = Memory(tmp_path)
    assert [lived(platform, memory, version) for version in "45"] == ["proven", "proven"]
    memory.close()


def test_reports_of_several_openings_are_sent_one_after_the_other(platform, tmp_path):
    release, numbers = released(platform, "1"), []
    for state in ("taken", "running", "proven"):
        memory = Memory(tmp_path)
        memory.report(release.id, state)
        memory.close()
    memory = Memory(tmp_path)
    for _ in range(3):
        epoch, entries = memory.reports(100)
        numbers.append((epoch, [entry.number for entry in entries]))
        told(platform, memory)
    assert [each for _, each in numbers] == [[1], [2], [3]] and len({epoch for epoch, _ in numbers}) == 3
    assert memory.reports(100) == (numbers[-1][0], [])  # the platform keeps the last one
    assert platform.releases.devices_of(release.id)[0]["state"] == "proven"
    memory.close()


class Calls:
    """A device's fleet reports, of calls that another process of it counts."""

    def __init__(self, folder, platform):
        self.folder, self.platform, self.total, self.process = folder, platform, 0, "1-first"
        self.count(0)
        self.memory = Memory(folder)
        self.report = FleetReport(self.memory, folder)

    def count(self, more):
        self.total += more
        (self.folder / "fleet").mkdir(exist_ok=True)
        counts = {"rank": ["1", {"call:OK": self.total}, "closed"]}
        (self.folder / "fleet" / f"{self.process}.json").write_text(json.dumps(counts))

    def send(self, more=0, is_answered=True):
        self.count(more)
        if (body := self.report.next(None, {TASK: {"name": "rank"}})) is not None:
            self.platform.take_report("a", SECRET, body)
            if is_answered:
                self.report.confirm()

    def restart(self):
        self.memory.close()
        self.memory = Memory(self.folder)
        self.report = FleetReport(self.memory, self.folder)


def test_counts_of_a_device_that_was_put_back_arrive_once(platform, tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_report, "counted", lambda host, current: {})
    told_of = released(platform, "1")
    told(platform, SimpleNamespace(reports=lambda limit: ("1", []), outbox=SimpleNamespace(acknowledge=len)))
    assert told_of.state == "running"
    device = Calls(tmp_path, platform)
    device.send(10)
    device.send(5, is_answered=False)  # the copy has it, and does not know that it arrived
    device.memory.close()
    shutil.copyfile(tmp_path / "agent.db", tmp_path / "copy")
    device.restart()
    for more in (1, 2, 3):
        device.send()  # the report that waits, or none
        device.send(more)
    device.memory.close()
    put_back(tmp_path / "copy", tmp_path / "agent.db")
    device.restart()
    device.total = 15
    device.send()  # the report that waits is known
    device.process, device.total = "1-second", 0
    device.send(100)
    [sums] = platform.fleet.sums(1)
    assert sums["calls"] == 10 + 5 + 1 + 2 + 3 + 100
    device.memory.close()


def test_the_numbers_of_a_device_are_remembered_for_a_bounded_number_of_openings(platform):
    released(platform, "1")
    platform.check("a", SECRET, {"facts": {"python": "3.14"}, "epoch": "1"})
    body = {"number": 1, "tasks": [{"task": TASK, "version": "1", "counts": {"call:OK": 1}, "breaker": "closed"}]}
    for number in range(2 * fleet.MAX_EPOCHS):
        platform.take_report("a", SECRET, body | {"epoch": str(number)})
        platform.take_report("a", SECRET, body | {"epoch": str(number)})
    with platform.database.reader() as connection:
        assert connection.execute("SELECT count(*) FROM fleet_epochs").fetchone()[0] == fleet.MAX_EPOCHS
    assert platform.fleet.sums(1)[0]["calls"] == 2 * fleet.MAX_EPOCHS
    with pytest.raises(RefusedError):
        platform.take_report("a", SECRET, body)
