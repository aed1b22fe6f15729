"""Forgetting a person: everything of a key is deleted from the store, and its bytes from the store's files."""

from vmhost.pipeline import intake, store, tables
from vmhost.pipeline.bodies import Bodies, contents_of
from vmhost.pipeline.reach import channels, queue
from vmhost.pipeline.store import KEY, Head, delete_block, keep_position, pack_head, write_marks
from vmhost.pipeline.tables import outbox_id, quoted
from vmhost.pipeline.values import pack, unpack
from vmhost.stores import Outbox

_BEGUN, _ERASED = "forget.begun", "forget.erased"  # counters


def forget(database, key):
    """Deletes the events, late events, state, rows, outbox entries, dead letters and messages of `key`, in one
    transaction. Then rewrites the file, so that their bytes disappear from it, its -wal and the tracking log.

    A row is of `key` if its event was, or if the column declared as `key` holds it. Waiting calls and messages go too.
    Returns the number of each: {"events", "late_events", "states", "rows", "outbox", "dead_letters", "messages"}.
    Raises StoreError as `Database.erase`. Takes as long as writing the whole store.
    """
    if not key:
        raise ValueError("forget: expected the key of a person or thing; '' stands for events that are nobody's")
    database.migrate("pipeline.events", store.STEPS)
    database.migrate("pipeline.intake", intake.STEPS)
    database.migrate("pipeline.tables", tables.STEPS)
    database.migrate("pipeline.reach", queue.STEPS)
    outbox = Outbox(database)
    removed = {}
    with database.lock:
        database.flush()
        with database.transaction() as connection:
            database.count(_BEGUN)
            removed["events"] = _forget_events(connection, key)
            removed["late_events"] = connection.execute("DELETE FROM late_events WHERE key = ?", (key,)).rowcount
            removed["states"] = connection.execute("DELETE FROM task_states WHERE key = ?", (key,)).rowcount
            removed["rows"], identities = _forget_rows(connection, database.epochs(store.EPOCHS), key)
            removed["outbox"] = outbox.forget(key, identities)
            removed["dead_letters"] = _forget_dead_letters(connection, key)
            removed["messages"] = queue.forget(connection, key)
        database.forgotten(key)
        _erase(database)
    channels.forget_lines(database.path.parent / channels.TRACKING, key)
    return removed


def finish(database):
    """Finishes a `forget` that was cut off between deleting and erasing. Called when the store is opened."""
    counters = database.counters()
    if counters.get(_BEGUN, 0) != counters.get(_ERASED, 0):
        with database.lock:
            _erase(database)


def _erase(database):
    database.erase()
    counters = database.counters()
    database.count(_ERASED, counters.get(_BEGUN, 0) - counters.get(_ERASED, 0))


def _forget_dead_letters(connection, key):
    """Deletes the letters of calls of `key`, and of calls whose input held its events: error and traceback may quote
    them."""
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


def _forget_events(connection, key):
    firsts = connection.execute("SELECT first FROM event_marks WHERE kind = ? AND name = ?", (KEY, key)).fetchall()
    removed, bodies = 0, Bodies()
    for (first,) in firsts:
        data, body, last = connection.execute(
            "SELECT head, body, last FROM event_blocks WHERE first = ?", (first,)
        ).fetchone()
        head = Head(first, data)
        kept = [index for index, whose in enumerate(head.keys) if whose != key]
        removed += len(head.keys) - len(kept)
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


def _forget_rows(connection, epochs, key):
    """(number of rows deleted, ids of their messages)"""
    removed, identities = 0, []
    for task, generation, name, column in connection.execute(
        "SELECT task, generation, sql_name, key FROM task_tables"
    ).fetchall():
        columns = ["_key", *([column] if column is not None else [])]
        where = " OR ".join(f"{quoted(column)} = ?" for column in columns)
        values = [key] * len(columns)
        rows = connection.execute(f"SELECT _id FROM {quoted(name)} WHERE {where}", values).fetchall()
        identities += [outbox_id(epochs, task, generation, identity) for (identity,) in rows]
        removed += len(rows)
        connection.execute(f"DELETE FROM {quoted(name)} WHERE {where}", values)
    return removed, identities
