"""What memory a process may use: control groups of version 1 and 2, as the machine and as a container sees them."""

import pytest

from vmhost.runtime import machine

MIB = 1 << 20
NO_LIMIT = "9223372036854771712"  # version 1 writes this


class Tree:
    """Files of /proc and of mounted control groups."""

    def __init__(self, folder):
        self.process = folder / "proc"
        self.process.mkdir()
        self.mount = folder / "mounted"
        self._mounts = []

    def sees(self, *groups):
        (self.process / "cgroup").write_text("".join(f"{group}\n" for group in groups))

    def mounts(self, root, kind, options):
        point = self.mount / kind
        self._mounts.append(f"35 31 0:32 {root} {point} rw,relatime shared:9 - {kind} {kind} {options}\n")
        (self.process / "mountinfo").write_text("22 1 0:1 / / rw - ext4 /dev/root rw\n" + "".join(self._mounts))

    def group(self, kind, path, stat, **numbers):
        folder = self.mount / kind / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in numbers.items():
            (folder / f"memory.{name}").write_text(f"{text}\n")
        (folder / "memory.stat").write_text(stat)

    def limits(self):
        return list(machine._limits(str(self.process)))


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_version_1_as_the_machine_sees_it(tree):
    tree.sees("5:devices:/", "4:cpu,memory:/shop/web", "0::/")
    tree.mounts("/", "cgroup", "rw,cpu,memory")
    tree.group("cgroup", "shop/web", "cache 9\n", limit_in_bytes=NO_LIMIT, usage_in_bytes=5 * MIB)
    stat = f"inactive_file 7\ntotal_inactive_file {20 * MIB}\n"
    tree.group("cgroup", "shop", stat, limit_in_bytes=256 * MIB, usage_in_bytes=120 * MIB)
    tree.group("cgroup", "", "", limit_in_bytes=NO_LIMIT, usage_in_bytes=900 * MIB)
    assert tree.limits() == [(256 * MIB, 100 * MIB)]


def test_version_2_with_limits_at_several_levels(tree):
    tree.sees("0::/shop/web")
    tree.mounts("/", "cgroup2", "rw")
    tree.group("cgroup2", "shop/web", "inactive_file 1048576\n", max=300 * MIB, high=200 * MIB, current=51 * MIB)
    tree.group("cgroup2", "shop", "", max=250 * MIB, high="max", current=60 * MIB)
    assert tree.limits() == [(200 * MIB, 50 * MIB), (250 * MIB, 60 * MIB)]


@pytest.mark.parametrize(
    "seen, root",
    [
        pytest.param("0::/", "/", id="namespace of its own"),
        pytest.param("0::/docker/0123", "/docker/0123", id="path of the machine, mounted at the group"),
        pytest.param("0::/docker/0123", "/elsewhere", id="path of the machine, mounted somewhere else"),
        pytest.param("0::/../..", "/", id="a group outside the namespace"),
    ],
)
def test_a_container_sees_its_limit(tree, seen, root):
    tree.sees(seen)
    tree.mounts(root, "cgroup2", "rw,nsdelegate")
    tree.group("cgroup2", "", "anon 5\ninactive_file 0\n", max=64 * MIB, current=10 * MIB)
    assert tree.limits() == [(64 * MIB, 10 * MIB)]


def test_no_groups_and_no_proc_are_no_limit(tree):
    assert tree.limits() == []
    tree.sees("4:memory:/a", "0::/")
    assert tree.limits() == []


def test_the_limit_decides_over_the_machine(monkeypatch):
    whole = machine.memory_bytes()
    monkeypatch.setattr(machine, "_limits", lambda: [(64 * MIB, 60 * MIB), (whole * 2, 1)])
    assert machine.memory_bytes() == 64 * MIB
    assert machine.memory_used_percent() >= 93.75
