"""The event store against `sqlite3` used directly: events per second, durable in batches of 100, and the cost of
reading.

Both write to a file in WAL mode with `synchronous=FULL`, one transaction per batch. The peer runs one `executemany` per
batch into one table without an index, with rows prepared in advance.
"""

import os
import sqlite3
import tempfile
from pathlib import Path

from bench.measure import Result, interleaved, per_call_us, per_second
from vmhost.pipeline.events import Event
from vmhost.pipeline.store import EventStore
from vmhost.stores import Database

BATCH = 100
SIZES = (100, 1100)  # bytes of contents
VISIT = 19  # events of a visit; five visits at a time
REACH = 0.9


def _events(count, size):
    return [
        Event(
            name=("page_enter", "page_scroll", "exposure", "click")[n % 4],
            time_ms=1_790_000_000_000 + n * 40,
            page=f"item{n % 3}",
            visit=f"visit-{n // (VISIT * 5)}-{n % 5}",
            contents=os.urandom(size),
            key=f"user-{n % 5}",
        )
        for n in range(count)
    ]


def _direct(path, batches, rows):
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "CREATE TABLE events (position INTEGER PRIMARY KEY, name, time_ms, page, visit, key, contents)"
        )

        def work():
            for batch in batches:
                connection.execute("BEGIN")
                connection.executemany(
                    "INSERT INTO events (name, time_ms, page, visit, key, contents) VALUES (?, ?, ?, ?, ?, ?)", batch
                )
                connection.execute("COMMIT")

        return per_second(work, rows)
    finally:
        connection.close()


def _stored(path, batches, rows):
    with Database(path) as database:
        store = EventStore(database, durability="each")

        def work():
            for batch in batches:
                store.append_many(batch)

        return per_second(work, rows)


def _fresh(function, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        return function(Path(folder) / "events.db", *arguments)


def _batches(things):
    return [things[start : start + BATCH] for start in range(0, len(things), BATCH)]


def _storing(size, count, rounds):
    events = _events(count, size)
    rows = [(e.name, e.time_ms, e.page, e.visit, e.key, e.contents) for e in events]
    ours, theirs = _batches(events), _batches(rows)
    figures = interleaved(
        {
            "vmhost": lambda: _fresh(_stored, ours, count),
            "sqlite3 executemany": lambda: _fresh(_direct, theirs, count),
        },
        rounds,
        "events/s",
        "more",
    )
    ratio = figures["vmhost"].advantage_over(figures["sqlite3 executemany"])
    return Result(
        f"events stored, durable in batches of {BATCH}, contents {size} B",
        figures,
        promises=((f"{REACH}x executemany", ratio >= REACH),),
    )


def _reading(count, rounds):
    """One visit out of the whole store, which a triggered call may need to read."""
    events = _events(count, 1100)
    with tempfile.TemporaryDirectory() as folder, Database(Path(folder) / "events.db") as database:
        store = EventStore(database)
        store.append_many(events)
        store.flush()
        visit = events[len(events) // 2].visit
        figures = interleaved(
            {"vmhost": lambda: per_call_us(lambda: list(store.read(visit=visit)), 200)}, rounds, "us", "less"
        )
    return Result(f"the {VISIT} events of a visit read, out of {count:,} on the disk", figures)


def _rounds(quick):
    """(events, rounds)"""
    return (2_000, 2) if quick else (20_000, 9)


def storing(quick):
    for size in SIZES:
        yield _storing(size, *_rounds(quick))


def reading(quick):
    yield _reading(*_rounds(quick))


ROWS = (storing, reading)
