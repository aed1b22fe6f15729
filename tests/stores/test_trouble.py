"""Full disks, folders that cannot be written, files that are damaged, two processes: one clear error, nothing lost."""

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from vmhost.pipeline.events import Event
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import Tables
from vmhost.stores import Database, StoreDamagedError, StoreError, StoreFullError, StoreInUseError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def big(n):
    """Contents that do not get smaller when they are compressed."""
    return Event("click", n, contents=bytes([n % 256]) + random.Random(n).randbytes(2000))


def limited(database, pages):
    """Like a disk that is full after this number of pages."""
    database._writer.execute(f"PRAGMA max_page_count = {pages}")


@pytest.mark.parametrize("durability", ["batch", "each"])
def test_after_a_full_disk_it_goes_on(path, durability):
    with Database(path) as database:
        store = EventStore(database, durability=durability, batch_ms=None, batch_count=20)
        tables = Tables(database, buffer_ms=None)
        table = tables.declare("t", "1", {"n": "integer"})
        taken = 0
        limited(database, 60)
        with pytest.raises(StoreFullError, match="the disk is full.*make room; the store then continues by itself"):
            while True:
                store.append(big(taken))
                taken += 1
        assert store.position == taken and [one.event.contents[0] for one in store.read()] == list(range(taken))
        durable = store.durable_position
        assert durable == (taken if durability == "each" else taken - 20)
        table.add(taken, {"n": 1}, state={"n": 1})
        table.complete_until(taken)
        if durability == "batch":
            with pytest.raises(StoreFullError):
                tables.flush()
            assert table.state("").value == {"n": 1}
        with Database(path, read_only=True) as other, other.reader() as connection:
            assert connection.execute("SELECT sum(count) FROM event_blocks").fetchone() == (durable,)
            connection.execute("SELECT 1")
        limited(database, 10_000)
        assert store.append(big(taken)) == taken + 1
        assert table.read() == [{"n": 1}] and store.durable_position == taken + 1
        database.check()
    with Database(path) as database:
        found = [one.event.contents[0] for one in EventStore(database).read()]
        assert found == list(range(taken + 1))


def run(code, *arguments, **options):
    """A Python that runs `code`; it prints what happened."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, **options).stdout.strip()


def test_writes_that_the_system_refuses(path):
    """A limit on the size of files, met in the middle of a transaction."""
    output = run(
        """if True:
        import os, resource, sys
        from vmhost.pipeline.events import Event
        from vmhost.pipeline.store import EventStore
        from vmhost.stores import Database, StoreError
        with Database(sys.argv[1]) as database:
            store = EventStore(database, batch_ms=None)
            store.append(Event("first", 1))
            store.flush()
            none = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, none[1]))
            store.append(Event("second", 2, contents=os.urandom(1_000_000)))
            try:
                store.flush()
            except StoreError as error:
                print(error)
            assert store.durable_position == 1
            resource.setrlimit(resource.RLIMIT_FSIZE, none)
            store.flush()
        """,
        path,
    )
    assert "ulimit -f" in output or "make room" in output
    with Database(path) as database:
        assert [one.event.name for one in EventStore(database).read()] == ["first", "second"]


def test_a_folder_that_cannot_be_written(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir()
    Database(folder / "store.db").close()
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o001)
    code = """if True:
        import os, sys
        from vmhost.stores import Database, StoreAccessError
        if os.getuid() == 0:
            os.setuid(65534)
        for name in ("store.db", "new.db"):
            try:
                Database(sys.argv[1] + name)
            except StoreAccessError as error:
                print(error)
        """
    lines = run(code, f"{folder}/").splitlines()
    folder.chmod(0o755)
    assert len(lines) == 2 and all("this user may read and write it" in line for line in lines), lines


def test_two_processes(path):
    code = """if True:
        import sys
        from vmhost.stores import Database, StoreInUseError
        try:
            Database(sys.argv[1])
        except StoreInUseError as error:
            print(error)
        """
    with Database(path) as database:
        in_use = f"{path}: another process has the store open for writing; end that process first"
        assert run(code, path).startswith(in_use)
        database.count("still", 1)
    assert run(code, path) == ""


def test_a_program_that_holds_the_file_locked(path, monkeypatch):
    monkeypatch.setattr("vmhost.stores.database._BUSY_S", 0.01)
    with Database(path) as database:
        with Database(path, read_only=True):
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreInUseError, match="another program holds a lock on the file"):
                database.count("a")
            other.execute("ROLLBACK")
            other.close()
        database.count("a")
        assert database.counters() == {"a": 1}


@pytest.mark.parametrize("damage", ["pages", "begin", "cut"])
def test_a_damaged_file_is_never_read_as_whole(path, damage):
    """Each way to read says so, or gives what was stored."""
    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        store.append_many([big(n) for n in range(300)])
    data = bytearray(path.read_bytes())
    if damage == "pages":
        for page in range(8, len(data) // 4096, 9):
            data[page * 4096 : page * 4096 + 64] = os.urandom(64)
    elif damage == "begin":
        data[:100] = bytes(100)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(StoreDamagedError), Database(path) as database:
        database.check()
    with pytest.raises(StoreError), Database(path) as database:
        for number, stored in enumerate(EventStore(database, batch_ms=None).read()):
            if stored.event != big(number):
                raise StoreDamagedError("wrong contents, which no checksum guards")


def test_a_block_that_does_not_unpack_is_named(path):
    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        store.append_many([big(n) for n in range(3)])
        store.flush()
        with database.transaction() as connection:
            connection.execute("UPDATE event_blocks SET body = x'93c1'")
        with pytest.raises(StoreDamagedError, match="the events from position 1 on are unreadable"):
            list(store.read())
