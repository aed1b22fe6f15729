"""Read access to a pipeline's store, whether or not a pipeline runs on it.

with StoredPipeline("data") as stored:
    stored.status()
    names, rows = stored.rows("ipv", limit=20)

It sees what was committed; events in memory of a running pipeline appear with its next flush.
"""

import json
from datetime import datetime
from pathlib import Path

from vmhost.pipeline.feed import ASIDE_NAME
from vmhost.pipeline.pipeline import STORE_NAME
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import TYPES, Column, Table, Tables, quoted
from vmhost.pipeline.values import unpack
from vmhost.stores import Database, Outbox, StoreAccessError

DROPPED_EVENTS = "events.dropped"


class StoredPipeline:
    """The store in `folder`, read only. StoreAccessError if there is none; StoreError."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.path = self.folder / STORE_NAME
        if not self.path.exists():
            raise StoreAccessError(f"{self.path}: no such file; a pipeline that runs in {self.folder} makes it")
        self.database = Database(self.path, read_only=True)
        try:
            self.events = EventStore(self.database)
            self._tables = Tables(self.database)
        except BaseException:
            self.database.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.database.close()

    # ---- numbers

    def status(self):
        """A dict: `events`, `outbox` (numbers), `tables` and `dead_letters` (of each task), `late_events`, `counters`
        (all that the store keeps), `bad_lines`, `bytes` (on the disk)."""
        with self.database.reader() as connection:
            count, size, first, last, earliest_ms, latest_ms = connection.execute(
                "SELECT ifnull(sum(count), 0), ifnull(sum(bytes), 0), min(first), max(last), min(earliest_ms), "
                "max(latest_ms) FROM event_blocks"
            ).fetchone()
            counters = dict(connection.execute("SELECT name, value FROM store_counters"))
            entries, waiting = self._optional(
                connection, "outbox_entries", "SELECT count(*), ifnull(sum(length(body)), 0) FROM outbox_entries"
            )
            (late,) = self._optional(connection, "late_events", "SELECT count(*) FROM late_events", (0,))
            letters = dict(connection.execute("SELECT task, count(*) FROM dead_letters GROUP BY task"))
            kept = self._counts(connection)
        tables = {}
        for one in self.generations():
            tables[one["name"]] = {name: one[name] for name in ("task", "generation", "rows", "position", "versions")}
        return {
            "folder": str(self.folder),
            "bytes": sum(path.stat().st_size for path in self._files()),
            "events": {
                "stored": count,
                "bytes": size,
                "first_position": first,
                "position": max(last or 0, counters.get("events.last_position", 0)),
                "earliest_ms": earliest_ms,
                "latest_ms": latest_ms,
                "dropped": counters.get(DROPPED_EVENTS, 0),
            },
            "late_events": late,
            "tables": tables,
            "tasks": kept,
            "dead_letters": letters,
            "outbox": {"entries": entries, "bytes": waiting},
            "bad_lines": self._bad_lines(),
            "counters": counters,
        }

    def _files(self):
        return [path for path in self.folder.glob(f"{STORE_NAME}*") if path.is_file()]

    def _bad_lines(self):
        """The number of lines in the current file."""
        try:
            with open(self.folder / ASIDE_NAME, "rb") as file:
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0

    @staticmethod
    def _optional(connection, table, sql, otherwise=(0, 0)):
        """The row of a query; `otherwise` where the table does not exist yet."""
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is None:
            return otherwise
        return connection.execute(sql).fetchone()

    @staticmethod
    def _counts(connection):
        """{task: {counter: value}} of calls, in stores that have it."""
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'task_counters'").fetchone() is None:
            return {}
        found = {}
        for task, name, value in connection.execute("SELECT task, name, value FROM task_counters"):
            found.setdefault(task, {})[name] = value
        return found

    # ---- tables

    def generations(self):
        """The tables: dicts of name (for `rows`), task, generation, sql_name, columns ({name: type}), key, position,
        versions, rows. The newest table of a task has the task's name, others `task.generation`."""
        found = self._tables.generations()
        newest = {one["task"]: one["generation"] for one in found}
        with self.database.reader() as connection:
            for one in found:
                is_newest = one["generation"] == newest[one["task"]]
                one["name"] = one["task"] if is_newest else f"{one['task']}.{one['generation']}"
                (one["rows"],) = connection.execute(f"SELECT count(*) FROM {quoted(one['sql_name'])}").fetchone()
        return found

    def table(self, name):
        """The Table `name`, read-only. KeyError lists the names that exist."""
        found = {one["name"]: one for one in self.generations()}
        if name not in found:
            raise KeyError(f"{self.path}: there is no table {name!r}; there are {', '.join(found) or 'none yet'}")
        one = found[name]
        with self.database.reader() as connection:
            (identity,) = connection.execute(
                "SELECT id FROM task_tables WHERE sql_name = ?", (one["sql_name"],)
            ).fetchone()
        columns = {column: Column(kind) for column, kind in one["columns"].items() if kind in TYPES}
        versions = one["versions"]
        return Table(self._tables, identity, one["task"], versions[-1] if versions else "", columns, one["key"], None)

    def rows(self, name, *, limit=None, key=None, with_ids=False):
        """The rows of a table as dicts, the latest first. KeyError."""
        return self.table(name).read(key=key, order="_id DESC", limit=limit, with_ids=with_ids)

    # ---- events

    def last_events(self, limit, **selection):
        """The last events as StoredEvents, oldest first; `selection`: visit, page, key, name, as `find` takes them."""
        found, stop = [], self.events.position
        span = 4 * limit
        while stop > 0 and len(found) < limit:
            after = max(0, stop - span)
            found[:0] = self.find(after, stop, **selection)
            stop, span = after, span * 4
        return found[-limit:]

    def find(self, after=0, until=None, *, name=None, visit=None, page=None, key=None, since_ms=None, until_ms=None):
        """The events after the position `after`, up to `until`, that meet all conditions, in order of position."""
        read = self.events.read(after, until=until, visit=visit, page=page, key=key, until_ms=until_ms)
        for stored in read:
            if (name is None or stored.event.name == name) and (since_ms is None or stored.event.time_ms >= since_ms):
                yield stored

    def late_events(self):
        """Refused events, oldest first: (why, stored_ms, Event)."""
        from vmhost.pipeline.events import Event

        with self.database.reader() as connection:
            rows = connection.execute("SELECT why, stored_ms, event FROM late_events ORDER BY id").fetchall()
        return [(why, stored_ms, Event(*unpack(event))) for why, stored_ms, event in rows]

    def dead_letters(self, task=None):
        """The calls that were given up: `tables.DeadLetter`s, oldest first."""
        return self._tables.dead_letters(task)

    def outbox(self, limit=100):
        """The oldest outbox entries that wait to be sent: `vmhost.stores.Entry`s. Nothing is acknowledged."""
        return Outbox(self.database).take(limit=limit)


def moment_ms(text):
    """Milliseconds since 1970 of "2026-11-25", "2026-11-25T10:30" (local time unless it has an offset) or an integer of
    milliseconds. ValueError."""
    if text.isdecimal() and len(text) > 8:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"expected a moment such as 2026-11-25, 2026-11-25T10:30 or milliseconds since 1970, got {text!r:.60}"
        ) from error


def bad_lines(folder, limit):
    """The last lines that were set aside, as dicts."""
    try:
        lines = (Path(folder) / ASIDE_NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[-limit:]]
