"""The outbox: each id leaves once, in order; bounds drop the oldest, counted; it joins the caller's transaction."""

import pytest

from vmhost.stores import Database, Outbox


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.db"


def ids(outbox, *args, **options):
    return [entry.id for entry in outbox.take(*args, **options)]


def test_entries_stay_until_they_are_acknowledged(path):
    with Database(path) as database:
        outbox = Outbox(database, clock=lambda: 7.0)
        assert outbox.put("t/1/0", "t", b"one", key="u")
        outbox.put_many([("t/2/0", "t", b"two", ""), ("s/2/0", "s", b"", "")])
        entry = outbox.take(limit=1)[0]
        assert (entry.id, entry.channel, entry.body, entry.key, entry.time_ms) == ("t/1/0", "t", b"one", "u", 7000)
        assert ids(outbox) == ["t/1/0", "t/2/0", "s/2/0"] and ids(outbox, "s") == ["s/2/0"]
        assert ids(outbox, after=entry.number) == ["t/2/0", "s/2/0"]
    with Database(path) as database:
        outbox = Outbox(database)
        assert outbox.acknowledge(["t/1/0", "strange", "s/2/0"]) == 2
        assert ids(outbox) == ["t/2/0"] and len(outbox) == 1


def test_an_id_that_is_known_is_dropped_also_after_it_was_sent(path):
    for _ in range(2):
        with Database(path) as database:
            outbox = Outbox(database)
            for _ in range(2):
                outbox.put("a", "t", b"1")
                outbox.acknowledge(["a"])
    with Database(path) as database:
        outbox = Outbox(database)
        outbox.put("b", "t", b"1")
        assert not outbox.put("b", "t", b"2") and not outbox.put("a", "t", b"3")
        assert [entry.body for entry in outbox.take()] == [b"1"]
        assert database.counters()["outbox.duplicates"] == 5


def test_what_is_known_is_bounded(path):
    with Database(path) as database:
        outbox = Outbox(database, max_known=10)
        for n in range(50):
            outbox.put(f"{n}", "t", b"")
            outbox.acknowledge([f"{n}"])
        with database.reader() as connection:
            known = [identity for (identity,) in connection.execute("SELECT id FROM outbox_known ORDER BY number")]
        assert known == [f"{n}" for n in range(40, 50)]


def test_the_oldest_go_at_the_bounds_and_are_counted(path):
    now = [0]
    with Database(path) as database:
        outbox = Outbox(database, max_bytes=100, max_age_ms=5000, running=lambda: ("boot", now[0]))
        for n in range(20):
            outbox.put(f"{n}", "t", bytes(10))
        assert ids(outbox) == [f"{n}" for n in range(10, 20)]
        assert not outbox.put("3", "t", b"")  # dropped, so known
        outbox.acknowledge(["15"])
        outbox.put("x", "t", bytes(10))
        assert len(outbox) == 10
        now[0] = 5001
        outbox.put("y", "t", b"")
        assert ids(outbox) == ["y"]
        outbox.put("big", "t", bytes(101))
        assert ids(outbox) == []
        assert database.counters()["outbox.dropped"] == 22


def test_an_entry_is_undone_with_the_transaction(path):
    with Database(path) as database:
        outbox = Outbox(database, max_bytes=100)
        with pytest.raises(ZeroDivisionError), database.transaction():
            outbox.put("a", "t", bytes(60))
            1 / 0
        assert len(outbox) == 0 and outbox.put("a", "t", bytes(60)) and outbox.put("b", "t", bytes(40))
        assert ids(outbox) == ["a", "b"]


def test_a_key_is_forgotten(path):
    with Database(path) as database:
        outbox = Outbox(database)
        outbox.put_many([("a", "t", b"", "u"), ("b", "t", b"", ""), ("c", "t", b"", "v")])
        assert outbox.forget("u", ["b", "none"]) == 2
        assert ids(outbox) == ["c"] and not outbox.put("a", "t", b"")
