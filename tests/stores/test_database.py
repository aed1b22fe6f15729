"""`Database`: transactions that last, migrations, one process at a time, one clear error for each kind of damage."""

import sqlite3
import threading

import pytest

from vmhost.stores import (
    Database,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreForeignError,
    StoreInUseError,
    StoreVersionError,
    reached,
)

STEPS = ("CREATE TABLE things (name TEXT)",)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "things.db"


def names(database):
    with database.reader() as connection:
        return [name for (name,) in connection.execute("SELECT name FROM things ORDER BY rowid")]


def filled(path, *values):
    with Database(path) as database:
        database.migrate("things", STEPS)
        for value in values:
            with database.transaction() as connection:
                connection.execute("INSERT INTO things VALUES (?)", (value,))


def test_what_was_committed_is_there_again(path):
    filled(path, "a", "b")
    with Database(path) as database:
        database.migrate("things", STEPS)
        assert names(database) == ["a", "b"]


def test_a_block_that_raises_is_undone(path):
    filled(path, "a")
    with Database(path) as database:
        with pytest.raises(ZeroDivisionError), database.transaction() as connection:
            connection.execute("INSERT INTO things VALUES ('b')")
            1 / 0
        assert names(database) == ["a"]


def test_a_block_within_a_block_is_part_of_it(path):
    filled(path)
    with Database(path) as database:
        with database.transaction() as outer:
            outer.execute("INSERT INTO things VALUES ('a')")
            with database.transaction() as inner:
                inner.execute("INSERT INTO things VALUES ('b')")
        assert names(database) == ["a", "b"]
        with pytest.raises(StoreError, match="undone too"), database.transaction() as outer:
            outer.execute("INSERT INTO things VALUES ('c')")
            with pytest.raises(ZeroDivisionError), database.transaction():
                1 / 0
        assert names(database) == ["a", "b"]


def test_commits_are_synced(path):
    filled(path)
    with Database(path) as database, database.transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_run_once_and_in_order(path):
    filled(path, "a")
    steps = (*STEPS, "ALTER TABLE things ADD COLUMN size INTEGER DEFAULT 3", lambda c: c.execute("DELETE FROM things"))
    with Database(path) as database:
        database.migrate("things", steps[:2])
        with database.reader() as connection:
            assert connection.execute("SELECT * FROM things").fetchall() == [("a", 3)]
        database.migrate("things", steps)
        database.migrate("things", steps)
        assert names(database) == []


def test_a_step_that_fails_changes_nothing(path):
    filled(path, "a")
    with Database(path) as database:
        with pytest.raises(StoreError, match="no such table: strange"):
            database.migrate("things", (*STEPS, "DELETE FROM things; DELETE FROM strange"))
        assert names(database) == ["a"]
        database.migrate("things", STEPS)


def test_a_newer_schema_is_refused(path):
    with Database(path) as database:
        database.migrate("things", (*STEPS, "CREATE TABLE more (a)"))
    with Database(path) as database:
        with pytest.raises(StoreVersionError, match="things has schema version 2, this vmhost knows versions up to 1"):
            database.migrate("things", STEPS)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE store_versions SET version = 99 WHERE name = 'store'")
    connection.close()
    with pytest.raises(StoreVersionError, match="store has schema version 99"):
        Database(path)


def test_one_writer_at_a_time(path):
    filled(path, "a")
    with Database(path):
        with pytest.raises(StoreInUseError, match="another process has the store open"):
            Database(path)
        with Database(path, read_only=True) as reading:
            assert names(reading) == ["a"]
            with pytest.raises(StoreError, match="read_only=True"), reading.transaction():
                pass
    Database(path).close()


def test_a_foreign_database_is_not_touched(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreForeignError, match="another program"):
            Database(path, read_only=read_only)
    assert path.read_bytes() == before


def test_junk_is_no_database(path):
    path.write_bytes(b"junk" * 5000)
    with pytest.raises(StoreDamagedError, match="no SQLite database"):
        Database(path)
    assert path.read_bytes() == b"junk" * 5000


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match="check that its folder exists"):
        Database(tmp_path / "none" / "a.db")


def test_readers_and_the_writer_do_not_wait_for_each_other(path):
    filled(path, "a")
    with Database(path) as database:
        with database.reader() as connection:
            rows = connection.execute("SELECT name FROM things UNION ALL SELECT 'end'")
            assert rows.fetchone() == ("a",)
            with database.transaction() as writer:
                writer.execute("INSERT INTO things VALUES ('b')")
            assert rows.fetchall() == [("end",)]
        assert names(database) == ["a", "b"]
        with database.transaction() as writer:
            writer.execute("INSERT INTO things VALUES ('c')")
            assert names(database) == ["a", "b"]


def test_readers_cannot_write(path):
    filled(path)
    with Database(path) as database, pytest.raises(StoreError, match="readonly"), database.reader() as connection:
        connection.execute("INSERT INTO things VALUES ('b')")


def test_threads_share_it(path):
    filled(path)
    with Database(path) as database:

        def work(n):
            for i in range(20):
                with database.transaction() as connection:
                    connection.execute("INSERT INTO things VALUES (?)", (f"{n}-{i}",))
                assert f"{n}-{i}" in names(database)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(names(database)) == 80


def test_after_close_it_says_so(path):
    database = Database(path)
    database.close()
    database.close()
    with pytest.raises(StoreClosedError), database.transaction():
        pass
    with pytest.raises(StoreClosedError), database.reader():
        pass


def test_counters_add_up(path):
    with Database(path) as database:
        database.count("lost", 2)
        database.count("lost")
        assert database.counters() == {"lost": 3}


class Part:
    """Writes what it holds to `things`."""

    def __init__(self, with_every_commit):
        self.with_every_commit = with_every_commit
        self.held, self.ended = [], []

    @property
    def pending(self):
        return bool(self.held)

    def write(self, connection):
        if not self.held:
            return None
        connection.executemany("INSERT INTO things VALUES (?)", [(name,) for name in self.held])
        return self

    def committed(self):
        self.ended.append("committed")
        self.held = []

    def undone(self):
        self.ended.append("undone")


def test_parts_are_written_together(path):
    filled(path)
    with Database(path) as database:
        always, seldom = Part(True), Part(False)
        database.attach(always)
        database.attach(seldom)
        always.held, seldom.held = ["a"], ["s"]
        database.count("x")
        assert names(database) == ["a"] and seldom.held == ["s"]
        always.held = ["b"]
        database.flush()
        assert names(database) == ["a", "s", "b"]  # what others refer to comes last
        always.held = ["c"]
        with pytest.raises(ZeroDivisionError), database.transaction():
            1 / 0
        assert always.held == ["c"]
        seldom.held, always.held = ["t"], ["c", None, ...]  # SQLite cannot store the last
        with pytest.raises(StoreError, match="not supported"):
            database.flush()
        assert seldom.ended == ["committed", "undone"]
        assert names(database) == ["a", "s", "b"]
        always.held = ["c"]
    assert always.held == seldom.held == []


def test_a_thread_flushes(path):
    filled(path)
    with Database(path) as database:
        part, written = Part(False), threading.Event()
        part.committed = written.set
        part.held = ["a"]
        database.attach(part)
        database.flush_every(1)
        assert written.wait(60)
        part.held = []


def test_missing_commits_are_found(path, tmp_path):
    """A truncated or lost `-wal`: SQLite itself goes back to an earlier commit without an error."""
    filled(path, "a")
    database = Database(path)
    with database.transaction() as connection:
        connection.execute("INSERT INTO things VALUES ('b')")
    copy = tmp_path / "copy.db"
    for end in ("", "-wal", "-lock"):
        copy.with_name(copy.name + end).write_bytes(path.with_name(path.name + end).read_bytes())
    database.close()
    wal = copy.with_name("copy.db-wal")
    wal.write_bytes(wal.read_bytes()[:-1])
    with pytest.raises(StoreDamagedError, match="the last 1 of 3 commits are missing"):
        Database(copy)
    with Database(copy, accept_loss=True) as again:
        assert names(again) == ["a"]
    with Database(copy) as again:
        assert names(again) == ["a"]


def test_damage_inside_is_found_by_check(path):
    filled(path, *(f"{n}" * 500 for n in range(200)))
    with Database(path) as database:
        database.check()
    data = bytearray(path.read_bytes())
    data[-8000:-4000] = b"\xff" * 4000
    path.write_bytes(data)
    with Database(path) as database:
        with pytest.raises(StoreDamagedError, match="damaged"):
            database.check()


def test_each_opening_has_an_epoch_and_processes_that_share_a_store_have_one(tmp_path):
    with Database(tmp_path / "a") as first:
        pass
    with Database(tmp_path / "a") as second:
        assert len(first.opening) == 8 and first.opening != second.opening
    with Database(tmp_path / "s", shared=True) as first:
        with Database(tmp_path / "s", shared=True) as second:
            assert first.opening == second.opening
        with Database(tmp_path / "s", shared=True) as third:
            assert first.opening == third.opening
    with Database(tmp_path / "s", shared=True) as later:
        assert later.opening != first.opening
        with pytest.raises(StoreInUseError):
            Database(tmp_path / "s")


def test_numbers_have_the_epoch_of_the_opening_that_gave_them_out(tmp_path):
    epochs = []
    for first in (1, 5, 5, 9):  # nothing is given out in the second
        with Database(tmp_path / "a") as database:
            numbers = database.epochs("n")
            with pytest.raises(KeyError), database.transaction() as connection:
                numbers.begin(connection, first)
                raise KeyError  # undone: then the epoch is too
            with database.transaction() as connection:
                numbers.begin(connection, first)
                numbers.begin(connection, first + 1)
            epochs.append(database.opening)
            assert numbers.of(first) == numbers.of(first + 3) == database.opening and numbers.of(0) is None
            assert database.epochs("others").of(first) is None
    with Database(tmp_path / "a") as database:
        numbers = database.epochs("n")
        assert numbers.all() == [(1, epochs[0]), (5, epochs[2]), (9, epochs[3])]
        assert [numbers.of(n) for n in (1, 4, 5, 8, 9, 100)] == [epochs[n] for n in (0, 0, 2, 2, 3, 3)]
        numbers.start(12)
        assert numbers.of(11) == epochs[3] and numbers.of(12) == database.opening


def test_what_the_other_end_has_by_epochs():
    epochs = [(1, b"a"), (5, b"b")]
    assert reached(epochs, {b"a": {"c": 3, "d": 9}, b"b": {"c": 7}, b"unknown": {"c": 100}}) == {"c": 7, "d": 4}
    assert reached(epochs, {b"b": {"c": 2}}) == {}, "a number that this epoch never had"


def test_a_store_from_before_epochs_keeps_its_commits(tmp_path):
    with Database(tmp_path / "a") as database:
        for _ in range(5):
            database.count("n")
        with database.transaction() as connection:
            connection.execute("DROP TABLE store_epochs")
            connection.execute("UPDATE store_versions SET version = 1 WHERE name = 'store'")
        commits = database.commits
    for shared in (False, True):
        with Database(tmp_path / "a", shared=shared) as database:
            assert database.commits > commits and database.counters() == {"n": 5}
            assert database.epochs("n").all() == []
