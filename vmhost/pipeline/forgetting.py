"""Forgetting a person: everything of a key is deleted from the store, and its bytes from all files of the pipeline.

`IN_STORE` and `IN_FILES` list each place that may hold a person's bytes; a new table or file gets an entry there.

A `forget` does these steps. Each can be repeated, and `finish` does so from the first one on when the process died:

1. one transaction deletes what the store holds, and notes the key
2. files beside the store, and those of the host, are rewritten
3. the note is deleted
4. the store's file is rewritten, so that bytes of deleted rows are gone from it, its -wal and its free pages
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vmhost import ConfigurationError, baseline
from vmhost.pipeline import complex_events, feed, intake, store, tables
from vmhost.pipeline.bodies import Bodies, contents_of
from vmhost.pipeline.reach import channels, queue
from vmhost.pipeline.store import KEY, Head, delete_block, keep_position, pack_head, write_marks
from vmhost.pipeline.tables import outbox_id, quoted
from vmhost.pipeline.values import pack, unpack
from vmhost.stores import Database, Outbox

STEPS = (
    """
    CREATE TABLE forget_keys (key TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE forget_folders (kind TEXT, path TEXT, PRIMARY KEY (kind, path)) WITHOUT ROWID
    """,
)
_BEGUN, _ERASED = "forget.begun", "forget.erased"  # counters
_RECORDS, _STATE = "records", "state"  # kinds of folders outside of the pipeline's
_log = logging.getLogger("vmhost.pipeline")


@dataclass(frozen=True)
class Place:
    """`name`: of its number in what `forget` returns; `holds`: tables, or patterns of files; `forget(person,
    connection)`, for files `forget(person)`, returns how many were removed."""

    name: str
    holds: tuple
    forget: Callable


@dataclass
class _Person:
    key: str
    database: Database
    visits: set = field(default_factory=set)  # with an event of the person
    messages: list = field(default_factory=list)  # ids of rows' messages

    @property
    def folder(self):
        return self.database.path.parent

    @property
    def texts(self):
        """The key as it stands in texts: plain, in JSON, and in JSON within JSON."""
        found = {self.key.encode(errors="backslashreplace").decode(), self.key}
        for _ in range(2):
            found |= {json.dumps(text, ensure_ascii=ascii)[1:-1] for text in found for ascii in (True, False)}
        return found

    @property
    def marks(self):
        return {text.encode(errors="surrogatepass") for text in self.texts}

    def files(self, kind, pattern):
        """Files in the folders of a kind that the pipeline has used."""
        with self.database.reader() as connection:
            rows = connection.execute("SELECT path FROM forget_folders WHERE kind = ?", (kind,)).fetchall()
        return [path for (folder,) in rows for path in sorted(Path(folder).glob(pattern)) if path.is_file()]


def note_folders(database, records, state):
    """Notes folders that the pipeline's host writes to. `records`: those of recorded calls; `state`: its state folder,
    or None."""
    database.migrate("pipeline.forgetting", STEPS)
    rows = [(_RECORDS, path) for path in records]
    rows += [(_STATE, os.path.abspath(state))] if state is not None else []
    with database.transaction() as connection:
        connection.executemany("INSERT OR IGNORE INTO forget_folders VALUES (?, ?)", rows)


def forget(database, key, settle=None):
    """Deletes everything of `key` from the store, and its bytes from its files and from those beside it.

    A row is of `key` if its event was, or if the column declared as `key` holds it. Waiting calls and messages go too.
    `settle()`: called when the store holds nothing any more, before files are rewritten; what works with the store has
    written all by then. Returns the number of each, {name of a Place: number}. Raises StoreError as `Database.erase`,
    OSError if a file cannot be rewritten; the next start goes on then. Takes as long as writing the whole store.
    """
    if not key:
        raise ValueError("forget: expected the key of a person or thing; '' stands for events that are nobody's")
    _finish(database)
    with database.lock:
        database.flush()
        return _forget(database, key, settle, again=False)


def finish(database):
    """Finishes a `forget` that was cut off. Called when the store is opened."""
    _finish(database)


def _finish(database):
    _migrate(database)
    with database.lock:
        with database.reader() as connection:
            keys = [key for (key,) in connection.execute("SELECT key FROM forget_keys")]
        for key in keys:
            _forget(database, key, None, again=True)
        counters = database.counters()
        if counters.get(_BEGUN, 0) != counters.get(_ERASED, 0):
            _erase(database)


def _migrate(database):
    for name, steps in (
        ("pipeline.events", store.STEPS),
        ("pipeline.intake", intake.STEPS),
        ("pipeline.tables", tables.STEPS),
        ("pipeline.reach", queue.STEPS),
        ("pipeline.patterns", complex_events.STEPS),
        ("pipeline.forgetting", STEPS),
    ):
        database.migrate(name, steps)
    Outbox(database)


def _forget(database, key, settle, again):
    person = _Person(key, database)
    with database.transaction() as connection:
        if not again:
            database.count(_BEGUN)
        connection.execute("INSERT OR IGNORE INTO forget_keys VALUES (?)", (key,))
        removed = {place.name: place.forget(person, connection) for place in IN_STORE}
    database.forgotten(key)
    if settle is not None:
        settle(person.marks)
    removed |= {place.name: place.forget(person) for place in IN_FILES}
    with database.transaction() as connection:
        connection.execute("DELETE FROM forget_keys WHERE key = ?", (key,))
    _erase(database)
    return removed


def _erase(database):
    database.erase()
    counters = database.counters()
    database.count(_ERASED, counters.get(_BEGUN, 0) - counters.get(_ERASED, 0))


def _forget_dead_letters(person, connection):
    """Deletes the letters of calls of `key`, and of calls whose input held its events: error and traceback may quote
    them."""
    key = person.key
    removed = [(identity,) for (identity,) in connection.execute("SELECT id FROM dead_letters WHERE key = ?", (key,))]
    mark = key.encode(errors="surrogatepass")
    for identity, event in connection.execute("SELECT id, event FROM dead_letters WHERE key != ?", (key,)):
        if mark in event and any(each.get("key") == key for each in _events_of(unpack(event))):
            removed.append((identity,))
    connection.executemany("DELETE FROM dead_letters WHERE id = ?", removed)
    return len(removed)


def _events_of(value):
    events = value.get("events") if isinstance(value, dict) else None
    return [each for each in events if isinstance(each, dict)] if isinstance(events, list) else []


def visits_of(events, key):
    """The visits with a stored event of `key`. `events`: an EventStore."""
    return {one.event.visit for one in events.read(key=key) if one.event.visit}


def _forget_events(person, connection):
    key = person.key
    firsts = connection.execute("SELECT first FROM event_marks WHERE kind = ? AND name = ?", (KEY, key)).fetchall()
    removed, bodies = 0, Bodies()
    for (first,) in firsts:
        data, body, last = connection.execute(
            "SELECT head, body, last FROM event_blocks WHERE first = ?", (first,)
        ).fetchone()
        head = Head(first, data)
        kept = [index for index, whose in enumerate(head.keys) if whose != key]
        removed += len(head.keys) - len(kept)
        person.visits.update(visit for visit, whose in zip(head.visits, head.keys) if whose == key and visit)
        delete_block(connection, first)
        if not kept:
            keep_position(connection, last)
            continue
        contents = contents_of(body, kept)
        columns = [
            [column[index] for index in kept]
            for column in (head.names, head.times, head.pages, head.visits, head.keys, head.ids)
        ]
        offsets = [head.positions[index] - first for index in kept]
        new_head, new_body = pack_head(columns, offsets), bodies.make([pack(value) for value in contents])
        times, visits, keys = columns[1], columns[3], columns[4]
        connection.execute(
            "INSERT INTO event_blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (first, last, len(kept), len(new_head) + len(new_body), min(times), max(times), new_head, new_body),
        )
        write_marks(connection, [(first, visits, keys)])
    return removed


def _forget_rows(person, connection):
    key, epochs, removed = person.key, person.database.epochs(store.EPOCHS), 0
    for task, generation, name, column in connection.execute(
        "SELECT task, generation, sql_name, key FROM task_tables"
    ).fetchall():
        columns = ["_key", *([column] if column is not None else [])]
        where = " OR ".join(f"{quoted(column)} = ?" for column in columns)
        values = [key] * len(columns)
        rows = connection.execute(f"SELECT _id FROM {quoted(name)} WHERE {where}", values).fetchall()
        person.messages += [outbox_id(epochs, task, generation, identity) for (identity,) in rows]
        removed += len(rows)
        connection.execute(f"DELETE FROM {quoted(name)} WHERE {where}", values)
    return removed


def _forget_late_events(person, connection):
    return connection.execute("DELETE FROM late_events WHERE key = ?", (person.key,)).rowcount


def _forget_states(person, connection):
    return connection.execute("DELETE FROM task_states WHERE key = ?", (person.key,)).rowcount


def _forget_outbox(person, connection):
    return Outbox(person.database).forget(person.key, person.messages)


def _forget_messages(person, connection):
    return queue.forget(connection, person.key)


def _forget_matches(person, connection):
    complex_events.forget_saved(connection, person.key, person.visits)
    return 0  # not told apart from others' that end


def _forget_dictionaries(person, connection):
    """All: they are made of what people sent, and cannot be told apart."""
    if not _is_there(connection, "tunnel_dictionaries"):
        return 0
    return connection.execute("DELETE FROM tunnel_dictionaries").rowcount


def _forget_refused(person, connection):
    if not _is_there(connection, "tunnel_refused"):
        return 0
    held = " OR ".join(f"instr({column}, ?)" for column in ("body", "CAST(id AS BLOB)", "CAST(why AS BLOB)"))
    return sum(
        connection.execute(f"DELETE FROM tunnel_refused WHERE {held}", (mark,) * 3).rowcount for mark in person.marks
    )


def _is_there(connection, table):
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None


# ---- files


def _forget_tracking(person):
    return channels.forget_lines(person.folder / channels.TRACKING, person.key)


def _forget_bad_lines(person):
    return feed.forget_bad_lines(person.folder, person.texts)


def _forget_recorded(person):
    removed = 0
    for path in person.files(_RECORDS, "*.baseline"):
        try:
            removed += baseline.forget_calls(path, person.marks)
        except ConfigurationError as error:  # not to be read: it goes as a whole
            _log.warning("%s: deleted, as it may hold what is to be forgotten: %s", path, error)
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _forget_crashes(person):
    """Reports and dumps of crashes that show the person, as a whole."""
    removed = 0
    for path in (*person.files(_STATE, "crash.dump"), *person.files(_STATE, "crashes/*")):
        data = path.read_bytes()
        if any(mark in data for mark in person.marks):
            if path.name == "crash.dump":
                os.truncate(path, 0)  # the process that runs writes there when it crashes
            else:
                path.unlink(missing_ok=True)
            removed += 1
    return removed


IN_STORE = (
    Place("events", ("event_blocks", "event_marks"), _forget_events),
    Place("late_events", ("late_events",), _forget_late_events),
    Place("states", ("task_states",), _forget_states),
    Place("rows", ("task_tables", '"TASK.GENERATION"'), _forget_rows),
    Place("outbox", ("outbox_entries", "outbox_known"), _forget_outbox),
    Place("dead_letters", ("dead_letters",), _forget_dead_letters),
    Place("messages", ("reach_messages", "reach_audit"), _forget_messages),
    Place("matches", ("pattern_state",), _forget_matches),
    Place("dictionaries", ("tunnel_dictionaries",), _forget_dictionaries),
    Place("refused", ("tunnel_refused",), _forget_refused),
)
IN_FILES = (
    Place("tracking_lines", ("tracking/*",), _forget_tracking),
    Place("bad_lines", ("bad-lines.jsonl", "bad-lines.jsonl.1"), _forget_bad_lines),
    Place("recorded_calls", ("*.baseline",), _forget_recorded),
    Place("crash_reports", ("crash.dump", "crashes/*"), _forget_crashes),
)
# Tables without a person's bytes: numbers, names of tasks and channels, and, only while it is forgotten, the key.
HARMLESS = frozenset(
    ("store_identity", "store_age", "store_counters", "store_epochs", "store_versions", "task_versions", "task_calls",
     "task_counters", "reach_channels", "tunnel_received", "tunnel_epoch", "tunnel_known", "tunnel_devices",
     "forget_keys", "forget_folders", "sqlite_sequence")
)  # fmt: skip
