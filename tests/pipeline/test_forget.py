"""`forget`: a person's bytes are removed from the files, and all others' are still there."""

import pytest

from vmhost.pipeline.events import PAGE_ENTER, Event
from vmhost.pipeline.forgetting import forget
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import Tables
from vmhost.stores import Database, Outbox

MARK = "Rumpelstilzchen"


def files(path):
    return b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*") if not file.name.endswith("-shm"))


@pytest.mark.parametrize("buffered", [False, True])
def test_a_person_is_gone_from_the_files(tmp_path, buffered):
    path = tmp_path / "pipeline.db"
    with Database(path) as database:
        store, tables = EventStore(database, batch_ms=None), Tables(database, buffer_ms=None)
        intake = Intake(store, clock=lambda: 2000.0, lateness_ms=1000)
        table = tables.declare("ipv", "1", {"item": "text", "who": {"type": "text", "leaves": True}}, key="item")
        for n in range(300):
            key = MARK if n % 7 == 0 else f"user{n % 5}"
            intake.take([Event(PAGE_ENTER, 1_990_000 + n, "p", f"{key}-{n}", {"text": f"{key} was here"}, key=key)])
        intake.take([Event("click", 1_000, "p", contents=MARK, key=MARK), Event("click", 1_000, key="other")])
        for n, key in enumerate((MARK, "other")):
            table.add(n, {"item": "x", "who": f"{key} row"}, key=key, state={"of": key})
            table.add(n + 5, {"item": key, "who": f"{key} column"})
            tables.dead_letter("ipv", "1", n, {"of": key}, f"{key} failed", key=key)
        if not buffered:
            database.flush()
            assert MARK.encode() in files(path)
        before = [stored for stored in store.read() if stored.event.key != MARK]
        removed = forget(database, MARK)
        assert {name: count for name, count in removed.items() if count} == {
            "events": 43,
            "late_events": 1,
            "states": 1,
            "rows": 2,
            "outbox": 2,
            "dead_letters": 1,
        }
        assert MARK.encode() not in files(path)
        assert list(store.read()) == before and store.statistics()["stored"] == 257
        assert [stored for stored in store.read(visit="user1-1")] == [before[0]]
        assert [visit for visit in intake.open_visits if MARK in visit] == []
        assert [event.key for _, _, event in intake.late_events()] == ["other"]
        assert table.read() == [{"item": "x", "who": "other row"}, {"item": "other", "who": "other column"}]
        assert table.state(MARK) is None and table.state("other").value == {"of": "other"}
        assert [entry.id for entry in Outbox(database).take()] == [
            f"ipv/{database.opening.hex()}/{n}/0" for n in (1, 6)
        ]
        assert [letter.key for letter in tables.dead_letters()] == ["other"]
        database.check()
        assert store.append(Event("click", 5)) == 301
        assert set(forget(database, MARK).values()) == {0}
        with pytest.raises(ValueError, match="expected the key of a person"):
            forget(database, "")


def test_deletes_alone_would_leave_the_bytes(tmp_path):
    """Why the test above is needed: SQLite leaves deleted data in the file."""
    path = tmp_path / "pipeline.db"
    with Database(path) as database:
        Outbox(database).put("a", "t", MARK.encode() * 1000)
        Outbox(database).forget("", ["a"])
        assert MARK.encode() in files(path)
        database.erase()
        assert MARK.encode() not in files(path)
