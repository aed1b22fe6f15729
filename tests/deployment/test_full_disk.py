"""A full disk, of a device and of the platform: tasks run on, pushes get an error; once there is room, all goes on.

The disk is a small file system in a namespace of a process of its own, which runs platform and agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROLOGUE = """
import os, sys
from pathlib import Path
from tests.deployment.platforms import SPEC, WorkingCopy, agent_for, platform_in
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.stores import StoreError

small, large = map(Path, sys.argv[1:])
PLAN = Plan.of({"steps": [{"percent": 100, "min_reports": 9}]})
CASE = {"one": {"input": 1}}

def fill(leave=0):
    with open(small / "filler", "ab", 0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    os.truncate(small / "filler", (small / "filler").stat().st_size - leave)

def free():
    (small / "filler").unlink()

def times(factor):
    return f"def run(value):\\n    return value * {factor}\\n"
"""
DEVICE = """
with platform_in(large / "cloud") as platform, serving(platform) as address:
    copy = WorkingCopy(large / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
    copy.release("1.0.0", cases=CASE)
    (copy.folder / "model.bin").write_bytes(os.urandom(500_000))  # a piece of its own
    spec = SPEC.format(name="rank", version="1.1.0") + "files: [model.bin]\\n"
    copy.release("1.1.0", main=times(3), **{"task.yaml": spec})
    first = platform.releases.start("shop/rank", "1.0.0", PLAN, "ann", "")
    with agent_for(platform, address, small / "device") as agent:
        agent.step()
        platform.releases.act(first.id, "next", "ann")
        second = platform.releases.start("shop/rank", "1.1.0", PLAN, "ann", "")
        for leave in (0, 4096, 24576, 102400, 409600):
            fill(leave)
            agent.step()
            assert agent.failed and agent.host.task("rank")(2) == 4, leave
        agent.step()
        assert "no room" in platform.stuck()[0]["reason"], platform.stuck()
    fill()
    with agent_for(platform, address, small / "device") as agent:  # a device that boots with a full disk
        assert agent.host.task("rank")(2) == 4
        agent.step()
        assert agent.failed
        free()
        agent.step()
        assert agent.host.task("rank")(2) == 6 and not platform.stuck()[1:]
        assert [each["state"] for each in platform.releases.devices_of(second.id)] == ["proven"]
        assert (small / "device" / "reserve").exists()
"""
PLATFORM = """
with platform_in(small / "cloud") as platform, serving(platform) as address:
    copy = WorkingCopy(large / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
    copy.release("1.0.0", cases=CASE)
    first = platform.releases.start("shop/rank", "1.0.0", PLAN, "ann", "")
    with agent_for(platform, address, large / "device") as agent:
        agent.step()
        refused = 0
        for number, leave in enumerate((0, 4096, 24576, 49152), 1):
            fill(leave)
            copy.commit(f"1.{number}.0", main=times(number + 2))
            status, said = copy.push(copy.branch, f"1.{number}.0", check=False)
            if status:
                refused += 1
                assert "No space left" in said or "cannot take it now" in said, said
            agent.step()
            assert agent.host.task("rank")(2) == 4
            fill()
            try:
                platform.releases.act(first.id, "pause", "ann")
            except StoreError:
                assert platform.releases.release(first.id).state == "running"  # not done, and not half done
        assert refused >= 3
        free()
        copy.push(copy.branch, *(f"1.{number}.0" for number in range(1, 5)))
        platform.releases.act(first.id, "halt", "ann")
        platform.releases.start("shop/rank", "1.4.0", PLAN, "ann", "")
        platform.sync_metadata()
        agent.step()
        assert agent.host.task("rank")(2) == 12, agent._problem
        assert sorted(each.version for each in platform.releases.versions.values()) == [f"1.{n}.0" for n in range(5)]
        assert not list((small / "cloud").rglob("tmp*")) and not list((small / "cloud").rglob(".partial-*"))
    fill()
with platform_in(small / "cloud"):
    pass
"""


@pytest.mark.parametrize(("program", "size"), [(DEVICE, "8m"), (PLATFORM, "8m")], ids=["device", "platform"])
def test_a_full_disk_stops_what_is_new_until_there_is_room(tmp_path, program, size):
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    mount = f"mount -t tmpfs -o size={size} none {tmp_path / 'small'}"
    if subprocess.run([*namespace, "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("this user may mount nothing, not even in a namespace of its own")
    command = [sys.executable, "-c", PROLOGUE + program, tmp_path / "small", tmp_path / "large"]
    done = subprocess.run(
        [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
