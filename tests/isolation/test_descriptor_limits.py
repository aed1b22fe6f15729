"""A VM has a limited number of descriptors, whatever they are of, and leaves some to the rest of the process."""

import vmhost
from tests.hosts import bundle, in_a_process

GUEST = """
import errno
import os
import select
import socket
import sqlite3


def _databases(folder):
    connection = sqlite3.connect(f"{folder}/database")
    connection.execute("create table if not exists numbers (number)")
    connection.commit()
    return connection


WAYS = {
    "file": lambda folder: open(f"{folder}/file"),
    "descriptor": lambda folder: os.fdopen(os.open(f"{folder}/file", os.O_RDONLY)),
    "duplicate": lambda folder: os.fdopen(os.dup(kept.fileno())),
    "pipe": lambda folder: [os.fdopen(end) for end in os.pipe()],
    "socket": lambda folder: socket.socket(),
    "pair": lambda folder: socket.socketpair(),
    "accepted": lambda folder: [caller := socket.create_connection(server.getsockname()), server.accept()[0]],
    "epoll": lambda folder: select.epoll(),
    "folder": lambda folder: os.scandir(folder),
    "database": _databases,
}


def _close(made):
    for one in made if isinstance(made, (list, tuple)) else [made]:
        one.close()


def _fill(make, folder):
    made = []
    while True:
        try:
            made.append(make(folder))
        except (OSError, sqlite3.OperationalError) as error:
            return made, getattr(error, "errno", None) == errno.EMFILE, str(error)


def run(folder):
    global kept, server
    with open(f"{folder}/file", "w") as kept, socket.create_server(("127.0.0.1", 0)) as server:
        found = {}
        for name, make in WAYS.items():
            counts = []
            for _ in (1, 2):
                made, met, text = _fill(make, folder)
                counts.append(len(made))
                for one in made:
                    _close(one)
            found[name] = counts, met, text
        with open(f"{folder}/database", "a"):
            pass
    try:
        held = [open(f"{folder}/file") for _ in range(16)]
        with open(f"{folder}/made", "w"):
            pass
    except OSError:
        pass
    return found, os.path.exists(f"{folder}/made")


def accepts_later(folder):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        held, met, _ = _fill(lambda folder: open(f"{folder}/file"), folder)
        try:
            server.accept()
            met = False
        except OSError as error:
            met = met and error.errno == errno.EMFILE
        _close(held)
        server.settimeout(10)
        server.accept()[0].close()
    return met


def hoard(folder):
    global held
    held, met, _ = _fill(lambda folder: open(f"{folder}/file"), folder)
    return len(held), met
"""
PERMISSIONS = {"net": ["127.0.0.1:*"], "listen": ["127.0.0.1:*"]}


def _task(host, folder, name="task", **limits):
    permissions = PERMISSIONS | {"read": [str(folder)], "write": [str(folder)]}
    return host.load(bundle(GUEST, name, limits=limits, permissions=permissions))


def test_each_kind_counts_and_is_counted_no_more_when_it_is_closed(tmp_path):
    with vmhost.Host(allow_unsigned=True) as host:
        found, made = _task(host, tmp_path, descriptors=16, concurrency=1)(str(tmp_path))
        (vm,) = [vm for vm in host.statistics().vms if vm.task]
    each = {name: counts for name, (counts, _, _) in found.items()}
    assert each == {name: [14, 14] for name in each} | {name: [7, 7] for name in ("pipe", "pair", "accepted")}
    assert all(met for name, (_, met, _) in found.items() if name != "database")
    assert "16 of 16 descriptors" in found["file"][2] and "limits: {descriptors" in found["file"][2]
    assert found["database"][2] == "unable to open database file"
    assert not made  # nothing is created on the disk for a file that cannot be opened
    assert vm.descriptors == 0


def test_a_connection_waits_until_there_is_room_for_it(tmp_path):
    (tmp_path / "file").touch()
    with vmhost.Host(allow_unsigned=True) as host:
        assert _task(host, tmp_path, descriptors=16)(str(tmp_path), entry="main:accepts_later") is True


def test_a_vm_has_64_unless_the_task_or_the_host_says_otherwise(tmp_path):
    (tmp_path / "file").touch()
    with vmhost.Host(allow_unsigned=True) as host:
        assert _task(host, tmp_path)(str(tmp_path), entry="main:hoard") == (64, True)
        assert _task(host, tmp_path, "more", descriptors=90)(str(tmp_path), entry="main:hoard") == (90, True)
        counts = {vm.task: vm.descriptors for vm in host.statistics().vms if vm.task}
    assert counts == {"task": 64, "more": 90}
    capped = vmhost.Policy(limits={"descriptors": 20})
    with vmhost.Host(allow_unsigned=True, policy=capped) as host:
        assert _task(host, tmp_path, descriptors=90)(str(tmp_path), entry="main:hoard") == (20, True)


def test_others_boot_and_open_files_beside_a_task_that_takes_all_it_can(tmp_path):
    (tmp_path / "file").touch()
    done = in_a_process(
        """
        import resource
        from pathlib import Path
        from tests.isolation.test_descriptor_limits import _task
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        folder = Path(sys.argv[1])
        with vmhost.Host(allow_unsigned=True) as host:
            greedy = _task(host, folder, "greedy", descriptors=100_000, concurrency=1)
            count, met = greedy(str(folder), entry="main:hoard")
            print(100 < count < 256 - 30, met)
            others = [host.load(bundle("def run(value): return value", f"other{number}")) for number in range(4)]
            print([other(number) for number, other in enumerate(others)], open(folder / "file").read() == "")
        """,
        str(tmp_path),
    )
    assert done.stdout.splitlines() == ["True True", "[0, 1, 2, 3] True"], done.stderr
