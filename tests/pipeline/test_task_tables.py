"""Collective storage: rows, state and positions together; each position once; generations; hostile names."""

import shutil
import sys

import numpy
import pytest
from pyarrow import parquet

from vmhost.pipeline.events import Event
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import Column, TableError, Tables, quoted
from vmhost.pipeline.values import unpack
from vmhost.stores import Database, Outbox

COLUMNS = {"item": "text", "dwell_ms": Column("integer", index=True), "feature": "json"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tables.db"


@pytest.fixture
def tables(path):
    with Database(path) as database:
        yield Tables(database, buffer_ms=None)


def test_rows_are_read_while_they_wait(tables):
    table = tables.declare("ipv", "1.0", COLUMNS, key="item")
    table.add(7, [{"item": "a", "feature": {"x": [1, None]}}, {"dwell_ms": 5}], key="u")
    table.add(9, {"item": "b"})
    table.add(11, None)
    assert table.read() == [
        {"item": "a", "dwell_ms": None, "feature": {"x": [1, None]}},
        {"item": None, "dwell_ms": 5, "feature": None},
        {"item": "b", "dwell_ms": None, "feature": None},
    ]
    assert len(table) == 3
    assert [row["_id"] for row in table.read(with_ids=True)] == [7 << 20, (7 << 20) + 1, 9 << 20]
    assert len(table.read(key="u")) == 2 and table.read(key="b") == table.read(where="item = ?", parameters=["b"])
    assert table.read(order="dwell_ms DESC", limit=1)[0]["dwell_ms"] == 5


def test_every_type_comes_back(tables):
    columns = {"t": "text", "i": "integer", "r": "real", "b": "bytes", "j": "json", "a": "array"}
    table = tables.declare("types", "1", columns)
    array = numpy.arange(6, dtype="float16").reshape(2, 3)
    row = {"t": "ä\0", "i": -(1 << 63), "r": float("inf"), "b": b"\0", "j": [{"a": None}, "é"], "a": array}
    table.add(1, row)
    (back,) = table.read()
    assert back.pop("a").tobytes() == row.pop("a").tobytes() and back == row


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"t": 1}, "row 0 of position 4: column 't': expected text; got int 1"),
        ({"t": "\ud800"}, "without lone surrogates"),
        ({"i": 1 << 63}, "column 'i': expected an integer of 64 bits"),
        ({"r": float("nan")}, "None stands for NaN"),
        ({"b": "text"}, "column 'b': expected bytes; got str 'text'"),
        ({"j": float("nan")}, "that JSON can express"),
        ({"a": [1]}, "expected an array"),
        ({"x": 1}, "'x' is no column; declare it, or leave it out. Columns: t, i, r, b, j, a"),
        ("text", "expected a dict of columns, got str"),
    ],
)
def test_a_row_that_does_not_fit_takes_nothing_along(tables, row, why):
    table = tables.declare(
        "t", "1", {"t": "text", "i": "integer", "r": "real", "b": "bytes", "j": "json", "a": "array"}
    )
    with pytest.raises(TableError) as caught:
        table.add(4, [row], state={"n": 1})
    assert why in str(caught.value)
    with pytest.raises(TableError):
        table.add(4, [{"t": "right"}, row])
    assert table.read() == [] and table.state("") is None


def test_a_position_counts_once(path):
    for restart in range(2):
        with Database(path) as database:
            table = Tables(database, buffer_ms=None).declare("ipv", "1", {"n": "integer"})
            for flushed in range(2):
                if not table.done(5, "u"):
                    table.add(5, {"n": restart}, key="u", state={"sum": restart})
                table.add(6, [{"n": 1}, {"n": 2}])
                table.add(6, [{"n": 8}, {"n": 9}])
                if flushed:
                    database.flush()
            assert table.read() == [{"n": 0}, {"n": 1}, {"n": 2}]
            assert table.state("u").value == {"sum": 0} and table.state("u").position == 5
            assert table.done(5, "u") and not table.done(6, "u") and not table.done(5, "other")


def test_rows_state_and_position_commit_with_the_events_before_them(path):
    with Database(path) as database:
        events, tables = EventStore(database, batch_ms=None), Tables(database, buffer_ms=None)
        table = tables.declare("ipv", "1", {"n": "integer"})
        position = events.append(Event("click", 5))
        table.add(position, {"n": 1}, key="u", state=(1, 2))
        table.complete_until(position)
        with Database(path, read_only=True) as other, other.reader() as connection:
            query = (
                "SELECT (SELECT count(*) FROM 'ipv.1'), (SELECT count(*) FROM task_states), position FROM task_tables"
            )
            assert connection.execute(query).fetchall() == [(0, 0, 0)]
            assert events.durable_position == 0
            tables.flush()
            assert connection.execute(query).fetchall() == [(1, 1, position)]
            assert events.durable_position == position
    with Database(path) as database:
        table = Tables(database, buffer_ms=None).declare("ipv", "1", {"n": "integer"})
        assert table.position == position and table.state("u").value == (1, 2) and table.state("u").version == "1"
        assert table.done(position) and not table.done(position + 1)


def test_a_full_buffer_is_written(tables):
    table = tables.declare("ipv", "1", {"n": "integer"})
    tables.buffer_rows = 10
    with tables.database.reader() as connection:
        for position in range(1, 30):
            table.add(position, {"n": 1})
            assert connection.execute("SELECT count(*) FROM 'ipv.1'").fetchone()[0] >= position - 10


def test_a_newer_version_adds_columns_and_keeps_rows_state_and_position(tables):
    old = tables.declare("ipv", "1", {"a": "text"})
    old.add(1, {"a": "x"}, key="u", state=1)
    old.complete_until(1)
    new = tables.declare("ipv", "2", {"a": "text", "b": Column("real", index=True)})
    assert new.generation == 1 and new.position == 1 and new.state("u").version == "1"
    new.add(2, {"a": "y", "b": 1.5}, key="u", state=2)
    assert old.state("u").value == 2
    old.add(3, {"a": "z"})
    assert new.read() == [{"a": "x", "b": None}, {"a": "y", "b": 1.5}, {"a": "z", "b": None}]
    back = tables.declare("ipv", "1", {"a": "text"})
    assert back.generation == 1 and back.read() == [{"a": "x"}, {"a": "y"}, {"a": "z"}]


@pytest.mark.parametrize(
    ("columns", "key"),
    [({"a": "integer", "b": "text"}, None), ({"a": "text"}, None), ({"a": "text", "c": "text"}, None), (None, "a")],
    ids=["type", "removed", "renamed", "key"],
)
def test_any_other_change_makes_a_new_table_and_the_old_one_stays(tables, columns, key):
    declared = {"a": "text", "b": "text"}
    old = tables.declare("ipv", "1", declared)
    old.add(1, {"a": "x"}, key="u", state=1)
    old.complete_until(1)
    new = tables.declare("ipv", "2", columns or declared, key=key)
    assert new.generation == 2 and new.position == 0 and new.state("u") is None and new.read() == []
    new.add(2, {"a": None})
    back = tables.declare("ipv", "1", declared)
    assert back.generation == 1 and back.position == 1 and back.state("u").value == 1 and len(back) == 1
    assert [(one["generation"], one["versions"]) for one in tables.generations()] == [(1, ["1"]), (2, ["2"])]


HOSTILE = ['a"; DROP TABLE task_tables; --', "select", "naïve 表 🙂", "a.b'c", "[x]", "sqlite_stat", "%s?", ":p", " "]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_kind(tables, name):
    table = tables.declare(name, "1", {name: Column("text", index=True), "other": "text"}, key=name)
    table.add(1, {name: name, "other": "x"}, key=name)
    assert table.read(key=name) == [{name: name, "other": "x"}]
    wider = tables.declare(name, "2", {name: "text", "other": "text", name + "'2": "text"}, key=name)
    assert wider.read() == [{name: name, "other": "x", name + "'2": None}]


def test_tasks_whose_names_differ_in_case_only(tables):
    first, second = tables.declare("ipv", "1", {"a": "text"}), tables.declare("IPV", "1", {"a": "text"})
    first.add(1, {"a": "x"})
    assert second.read() == [] and first.read() == [{"a": "x"}]


@pytest.mark.parametrize(
    ("columns", "key", "why"),
    [
        ({}, None, "expected 1 to 1000 columns, got 0"),
        ({"a": "txt"}, None, "column 'a': expected one of text, integer, real, bytes, json, array, got 'txt'"),
        ({"a": {"type": "text", "size": 3}}, None, "expected type, index, leaves"),
        ({"a": "text", "A": "text"}, None, "differ in case only"),
        ({"_ID": "text"}, None, "cannot be a column"),
        ({"a\0b": "text"}, None, "cannot be a column"),
        ({"a": "text"}, "b", "'b' is no column; expected one of a"),
    ],
)
def test_declarations_that_cannot_be(tables, columns, key, why):
    with pytest.raises(TableError) as caught:
        tables.declare("t", "1", columns, key=key)
    assert why in str(caught.value)
    assert tables.generations() == []


def test_rows_go_after_their_retention(path):
    now = [1000.0]
    with Database(path) as database:
        tables = Tables(database, buffer_ms=None, clock=lambda: now[0])
        table = tables.declare("ipv", "1", {"n": "integer"}, retention_ms=86_400_000)
        for position in range(1, 4):
            table.add(position, {"n": position})
            assert len(table) == min(position, 2)
            now[0] += 50_000


def test_dead_letters_are_kept_and_bounded(path):
    with Database(path) as database:
        tables = Tables(database, buffer_ms=None, max_dead_letters=2, clock=lambda: 5.0)
        for n in range(3):
            tables.dead_letter("ipv", "1", n, {"position": (n,)}, "boom", "Traceback …", tries=2, key="u")
        first, second = tables.dead_letters("ipv")
        assert (first.position, second.position, tables.dead_letters("other")) == (1, 2, [])
        assert first.event == {"position": (1,)} and first.tries == 2 and first.stored_ms == 5000
        assert database.counters() == {"dead_letters.dropped": 1}


def test_sql_sees_what_waits_and_cannot_write(tables):
    table = tables.declare("ipv", "1", {"n": "integer"})
    table.add(1, {"n": 3})
    connection = tables.connect()
    try:
        assert connection.execute(f'SELECT n FROM "{table.sql_name}"').fetchall() == [(3,)]
        with pytest.raises(Exception, match="readonly"):
            connection.execute("DELETE FROM task_tables")
    finally:
        connection.close()


def test_what_leaves_goes_to_the_outbox_once(path):
    columns = {"item": "text", "feature": Column("json", leaves=True), "code": Column("bytes", leaves=True)}
    row = {"item": "secret", "feature": {"x": [1]}, "code": b"\1"}
    with Database(path) as database:
        tables = Tables(database, buffer_ms=None)
        table = tables.declare("ipv", "1", columns)
        table.add(3, [row, {"item": "only"}, {"code": b""}], key="u")
        assert len(tables.outbox) == 0
        tables.flush()
        entries = tables.outbox.take("ipv")
        assert [(entry.id, entry.key) for entry in entries] == [("ipv/3/0", "u"), ("ipv/3/2", "u")]
        assert [unpack(entry.body) for entry in entries] == [{"feature": {"x": [1]}, "code": b"\1"}, {"code": b""}]
        tables.outbox.acknowledge(["ipv/3/0"])
    with Database(path) as database:
        tables = Tables(database, buffer_ms=None)
        tables.declare("ipv", "1", columns).add(3, row)
        tables.declare("ipv", "2", columns, key="item").add(3, row)
        tables.flush()
        assert [entry.id for entry in tables.outbox.take()] == ["ipv/3/2", "ipv.2/3/0"]


def whole(file):
    with parquet.ParquetFile(file, pre_buffer=False) as opened:  # leaves no thread behind
        return opened.read(use_threads=False)


def test_a_table_is_exported_to_parquet(tables, tmp_path, monkeypatch):
    monkeypatch.setattr("vmhost.pipeline.tables._EXPORT_ROWS", 3)
    table = tables.declare("ipv", "1", {"item": "text", "n": "integer", "f": "json", "e": "bytes", "r": "real"})
    for n in range(8):
        table.add(n, {"item": f"ä{n}", "n": n if n else None, "f": {"x": n}, "e": bytes([n]), "r": n / 2}, key="u")
    file = tmp_path / "ipv.parquet"
    assert table.export(file) == 8 and list(tmp_path.glob("*.partial")) == []
    rows = whole(file).to_pylist()
    assert [row["_id"] >> 20 for row in rows] == list(range(8)) and rows[0]["n"] is None and rows[0]["_key"] == "u"
    assert rows[5]["item"] == "ä5" and rows[5]["f"] == '{"x":5}' and rows[5]["e"] == b"\5" and rows[5]["r"] == 2.5
    assert table.export(file, where="n > ?", parameters=[5]) == 2
    assert table.export(file, key="nobody") == 0 and whole(file).num_rows == 0
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'vmhost\[parquet\]'"):
        table.export(file)


def test_ids_of_what_leaves_are_the_same_after_a_crash_and_new_after_a_restore(tmp_path):
    """A copy of the store was put back: its positions are used again, for other events."""
    path, copy = tmp_path / "store.db", tmp_path / "copy"

    def opened():
        database = Database(path)
        store, tables = EventStore(database, batch_ms=None), Tables(database, buffer_ms=None)
        return database, store, tables.declare("t", "1", {"n": {"type": "integer", "leaves": True}})

    def ids(*positions):
        """Makes the rows of events, which are appended if they are missing."""
        database, store, table = opened()
        for position in positions:
            while store.position < position:
                store.append(Event("click", store.position + 1))
            table.add(position, {"n": position})
        table.complete_until(max(positions))
        database.flush()
        found = [entry.id for entry in Outbox(database).take()]
        with database.transaction() as connection:  # as if they had not been made
            connection.execute("DELETE FROM outbox_entries")
            connection.execute("DELETE FROM outbox_known")
            connection.execute(f"DELETE FROM {quoted(table.sql_name)}")
        database.close()
        return found

    before = ids(1, 2)
    shutil.copyfile(path, copy)
    since = ids(1, 2, 3)
    assert since[:2] == before and ids(1, 2, 3) == since, "made again"
    for side in ("-lock", "-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    shutil.copyfile(copy, path)
    restored = ids(1, 2, 3)
    assert restored[:2] == before and restored[2] != since[2]
    assert restored[2].startswith("t/") and restored[2].endswith("/3/0")
