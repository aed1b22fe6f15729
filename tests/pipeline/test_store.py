"""The event store: what is appended is read in order, by visit, page, key and time, in memory or on the disk."""

import enum
import threading

import pytest

from vmhost.pipeline.events import Event
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.store import BLOCK_EVENTS, EventStore
from vmhost.stores import Database


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.db"


def event(n, **fields):
    values = dict(name="click", time_ms=1000 + n, page=f"p{n % 4}", visit=f"v{n % 3}", contents=n, key=f"k{n % 2}")
    return Event(**(values | fields))


@pytest.mark.parametrize("flushed", [0, 300, 700])
def test_events_are_read_as_they_came(path, flushed):
    events = [event(n, id=f"i{n}" if n % 5 else None) for n in range(700)]
    with Database(path) as database:
        store = EventStore(database, batch_ms=None, batch_count=10_000)
        assert [store.append(one) for one in events[:30]] == list(range(1, 31))
        assert store.append_many(events[30:flushed]) == range(31, 1 + max(flushed, 30))
        if flushed:
            store.flush()
        store.append_many(events[max(flushed, 30) :])
        expected = list(enumerate(events, 1))

        def read(*args, **filters):
            return [(stored.position, stored.event) for stored in store.read(*args, **filters)]

        assert read() == expected
        assert read(BLOCK_EVENTS + 3, limit=5) == expected[BLOCK_EVENTS + 3 :][:5]
        assert read(690, until=695) == expected[690:695]
        assert read(visit="v1") == [pair for pair in expected if pair[1].visit == "v1"]
        assert read(299, key="k1", page="p3") == [
            pair for pair in expected[299:] if pair[1].key == "k1" and pair[1].page == "p3"
        ]
        assert read(until_ms=1100, visit="v0", limit=3) == [pair for pair in expected if pair[1].visit == "v0"][:3]
        assert read(visit="none") == read(limit=0) == read(700) == []
        assert read() == expected
    with Database(path) as database:
        store = EventStore(database)
        assert store.position == store.durable_position == 700
        assert [(stored.position, stored.event) for stored in store.read()] == expected


def test_contents_keep_their_types_and_their_moment(path):
    contents = {"a": (1, [2, {3}]), 4: 5j, "big": 1 << 80, "raw": b"\0"}
    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        store.append(event(1, contents=contents))
        expected = {"a": (1, [2, {3}]), 4: 5j, "big": 1 << 80, "raw": b"\0"}
        contents["a"][1].append("later")
        assert next(store.read()).event.contents == expected
        store.flush()
        assert next(store.read()).event.contents == expected


def test_contents_that_cannot_be_stored_take_nothing_along(path):
    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        with pytest.raises(ValueError, match="event 'click': contents: builtins.object cannot be stored"):
            store.append_many([event(1), event(2, contents=[object()])])
        assert store.position == 0 and not store.pending
        assert store.append(event(3)) == 1


@pytest.mark.parametrize(
    "fields",
    [{"visit": "\ud800"}, {"key": 5}, {"name": None}, {"page": b""}, {"id": 7}, {"time_ms": 1.5}, {"time_ms": 1 << 63}],
    ids=str,
)
def test_fields_that_cannot_be_stored_are_refused_at_once(path, fields):
    """Otherwise the errors would appear when events are written, and block all others."""
    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        for batch in ([event(1, **fields)], [event(1), event(2, **fields)]):
            with pytest.raises(ValueError, match="expected text in name, page, visit, key and id, and a whole number"):
                store.append_many(batch)
        intake = Intake(store, clock=lambda: 1.0)
        intake.take([event(1 << 40, time_ms=1 << 40)])
        with pytest.raises((ValueError, TypeError)):
            intake.take([event(2, **fields)])
        intake.take([event(1 << 40, time_ms=1 << 40)])
        store.flush()


@pytest.mark.parametrize("names", [["a", "b\0c", ""], ["", "", ""], ["\0"], ["ä", "", "b"], ["", "\0\0"]], ids=repr)
def test_names_of_any_text_come_back(path, names):
    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        events = [event(n, name=name, visit=name, page=name, key=name, id=name or None) for n, name in enumerate(names)]
        store.append_many(events)
        store.flush()
        assert [stored.event for stored in store.read()] == events
        for one in events:
            assert one in [stored.event for stored in store.read(visit=one.visit, key=one.key)]


def test_names_of_enums_become_text(path):
    class Name(enum.StrEnum):
        TAP = "tap"

    with Database(path) as database:
        store = EventStore(database, batch_ms=None)
        store.append(event(1, name=Name.TAP))
        store.flush()
        assert type(next(store.read()).event.name) is str


def test_each_is_durable_on_return_and_batch_after_a_commit(path):
    with Database(path) as database:
        each = EventStore(database, durability="each")
        each.append(event(1))
        assert each.durable_position == 1
        database.detach(each)
        batch = EventStore(database, batch_ms=None, batch_count=3)
        batch.append(event(2))
        assert batch.durable_position == 1
        database.count("any other commit")
        assert batch.durable_position == 2
        for n in range(4):
            batch.append(event(n))
        assert batch.durable_position == 5
        with pytest.raises(ValueError, match="durability: expected one of batch, each, got 'never'"):
            EventStore(database, durability="never")


@pytest.mark.parametrize(
    "bounds", [dict(max_count=500), dict(max_bytes=4000), dict(max_age_ms=400)], ids=lambda bounds: next(iter(bounds))
)
def test_the_oldest_go_when_a_bound_is_met(path, bounds):
    with Database(path) as database:
        store = EventStore(database, batch_ms=None, batch_count=50, **bounds)
        for n in range(2000):
            store.append(event(n))
        store.flush()
        statistics = store.statistics()
        kept = [stored.position for stored in store.read()]
        assert kept == list(range(2001 - len(kept), 2001))
        assert statistics["stored"] == len(kept) and statistics["dropped"] == 2000 - len(kept)
        assert statistics["bytes"] <= bounds.get("max_bytes", 1 << 60)
        assert 300 < len(kept) <= 500 if "max_bytes" not in bounds else 100 < len(kept)
        with database.reader() as connection:
            (left,) = connection.execute(
                "SELECT count(*) FROM event_marks WHERE first NOT IN (SELECT first FROM event_blocks)"
            ).fetchone()
        assert left == 0


def test_an_event_from_the_future_takes_no_others_with_it(path):
    with Database(path) as database:
        store = EventStore(database, batch_ms=None, max_age_ms=400, clock=lambda: 1.5)
        store.append_many([event(n) for n in range(300)])
        store.flush()
        for n in (1 << 50, 3):
            store.append(event(n))
            store.flush()
        assert store.statistics()["stored"] == 302


def test_positions_are_not_used_again_when_all_events_went(path):
    with Database(path) as database:
        store = EventStore(database, batch_ms=None, max_count=0)
        store.append_many([event(n) for n in range(10)])
        store.flush()
        assert list(store.read()) == []
    with Database(path) as database:
        assert EventStore(database).append(event(1)) == 11


def test_threads_append_read_and_flush_at_once(path):
    """Readers see a prefix without a gap during writes; each thread's events stay in its order."""
    with Database(path) as database:
        store = EventStore(database, batch_ms=1, batch_count=50)
        failed, done = [], threading.Event()

        def append(worker):
            for n in range(150):
                store.append_many([event(n, key=f"{worker}", contents=n)] * (1 + n % 3))

        def read():
            while not done.is_set():
                positions = [stored.position for stored in store.read()]
                if positions != list(range(1, len(positions) + 1)):
                    failed.append(positions)

        workers = [threading.Thread(target=append, args=(number,)) for number in range(3)]
        reader = threading.Thread(target=read)
        for thread in (reader, *workers):
            thread.start()
        for thread in workers:
            thread.join()
        done.set()
        reader.join()
        assert failed == [] and store.position == 3 * 300
        for worker in range(3):
            found = [stored.event.contents for stored in store.read(key=f"{worker}")]
            assert found == [n for n in range(150) for _ in range(1 + n % 3)]
