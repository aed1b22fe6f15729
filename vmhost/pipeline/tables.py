"""Collective storage: the results of stream tasks, one SQL table for each task and generation of its columns.

A table has the declared columns, preceded by `_id` (the position of the event that triggered the call, times 2**20,
plus the row's number in the call's result, so that storing the same result again changes nothing), `_key` (the event's
key) and `_stored_ms`. A newer version of a task may add columns to the table; any other change of names, types or `key`
makes a new table, a *generation*. The old one stays, with its state and position, for a rollback. Index, retention and
which columns leave may change at any time.

Rows, state, dead letters, positions and counters wait in memory and are written in one transaction with the events
before them: by count, by time, before a read, at close. `task_tables` lists the tables, `task_states` has the state of
each key, `task_calls` the open calls, `task_counters` how the others ended, `dead_letters` the calls that were given
up.

So after a crash each call is in one of two states: it is open, or it ended in one way, and that way was counted.
"""

import json
import math
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from vmhost.pipeline.store import EPOCHS
from vmhost.pipeline.values import pack, unpack
from vmhost.stores import Outbox, StoreDamagedError, write_rows

MAX_ROWS = 1 << 20  # in the result of one call
MAX_COLUMNS = 1000
_RESERVED = ("_id", "_key", "_stored_ms", "rowid", "oid", "_rowid_")
_SWEEP_MS = 60_000  # interval at which rows beyond their retention are deleted
_SWEEP_ROWS = 1000
_EXPORT_ROWS = 10_000

STEPS = (
    """
    CREATE TABLE task_tables (
        id INTEGER PRIMARY KEY, task TEXT NOT NULL, generation INTEGER NOT NULL, sql_name TEXT NOT NULL UNIQUE,
        columns TEXT NOT NULL, key TEXT, position INTEGER NOT NULL DEFAULT 0, UNIQUE (task, generation)
    );
    CREATE TABLE task_versions (
        task TEXT, version TEXT, id INTEGER NOT NULL, PRIMARY KEY (task, version)
    ) WITHOUT ROWID;
    CREATE TABLE task_states (
        id INTEGER, key TEXT, version TEXT NOT NULL, position INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (id, key)
    ) WITHOUT ROWID;
    CREATE TABLE dead_letters (
        id INTEGER PRIMARY KEY, task TEXT NOT NULL, version TEXT NOT NULL, position INTEGER NOT NULL, key TEXT NOT NULL,
        stored_ms INTEGER NOT NULL, event BLOB NOT NULL, error TEXT NOT NULL, traceback TEXT NOT NULL,
        tries INTEGER NOT NULL
    );
    CREATE INDEX dead_letters_key ON dead_letters (key)
    """,
    """
    CREATE TABLE task_calls (
        id INTEGER, position INTEGER, start INTEGER NOT NULL, PRIMARY KEY (id, position)
    ) WITHOUT ROWID;
    CREATE TABLE task_counters (
        task TEXT, name TEXT, value INTEGER NOT NULL, PRIMARY KEY (task, name)
    ) WITHOUT ROWID
    """,
)
TRIGGERED, STORED, DEAD_LETTERS = "triggered", "stored", "dead_letters"
DEAD_LETTERS_DROPPED = "dead_letters.dropped"


class TableError(ValueError):
    """A declaration or a row that a table cannot take."""


class Column(NamedTuple):
    """`type`: one of TYPES. `index`: searches by this column use an index. `leaves`: its values go to the outbox."""

    type: str
    index: bool = False
    leaves: bool = False


class State(NamedTuple):
    """A task's state for a key; `position` is that of the last event it includes."""

    value: object
    version: str
    position: int


class DeadLetter(NamedTuple):
    task: str
    version: str
    position: int
    key: str
    stored_ms: int
    event: object
    error: str
    traceback: str
    tries: int


# ---- types of columns: SQL type, Python value to SQL value (ValueError says what was expected), and back


def _text(value):
    if type(value) is not str:
        raise ValueError("text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("text without lone surrogates") from None
    return value


def _integer(value):
    if type(value) not in (int, bool) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer of 64 bits")
    return int(value)


def _real(value):
    if type(value) not in (float, int) or math.isnan(value):
        raise ValueError("a real number; None stands for NaN, which SQL does not have")
    return float(value)


def _bytes(value):
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError("bytes")
    return bytes(value)


def _json(value):
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value that JSON can express ({error})") from None


def _array(value):
    if not hasattr(value, "dtype"):
        raise ValueError("an array")
    return pack(value)


_TYPES = {
    "text": ("TEXT", _text, None),
    "integer": ("INTEGER", _integer, None),
    "real": ("REAL", _real, None),
    "bytes": ("BLOB", _bytes, None),
    "json": ("TEXT", _json, json.loads),
    "array": ("BLOB", _array, unpack),
}
TYPES = tuple(_TYPES)


def quoted(name):
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _checked_columns(task, columns, key):
    """{name: Column}; raises TableError with what is wrong."""
    checked, seen = {}, {}
    if not columns or len(columns) > MAX_COLUMNS:
        raise TableError(f"{task}: expected 1 to {MAX_COLUMNS} columns, got {len(columns)}")
    for name, column in columns.items():
        if isinstance(column, str):
            column = Column(column)
        elif isinstance(column, dict):
            try:
                column = Column(**column)
            except TypeError:
                raise TableError(f"{task}: column {name!r}: expected type, index, leaves; got {column!r}") from None
        if not _is_name(name) or name.lower() in _RESERVED:
            raise TableError(
                f"{task}: {name!r} cannot be a column; expected text that is not empty, without NUL, and none of "
                f"{', '.join(_RESERVED)}"
            )
        if column.type not in _TYPES:
            raise TableError(f"{task}: column {name!r}: expected one of {', '.join(TYPES)}, got {column.type!r}")
        if (other := seen.setdefault(_folded(name), name)) != name:
            raise TableError(
                f"{task}: columns {other!r} and {name!r} differ in case only, which SQL does not see; rename one"
            )
        checked[name] = column
    if key is not None and key not in checked:
        raise TableError(f"{task}: key: {key!r} is no column; expected one of {', '.join(checked)}")
    return checked


def outbox_id(epochs, task, generation, identity):
    """task/epoch/position/n of the row with this `_id`. With the epoch of the event's position, a row that is made
    again after a crash has its id again, and one made in a restored store has another. Events from before epochs were
    stored have none. `epochs`: those of the positions."""
    name = task if generation == 1 else f"{task}.{generation}"
    position = identity // MAX_ROWS
    epoch = epochs.of(position)
    return "/".join([name, *([] if epoch is None else [epoch.hex()]), str(position), str(identity % MAX_ROWS)])


def _is_text(value):
    """Whether the value is a text that SQL takes, without lone surrogates."""
    try:
        return isinstance(value, str) and (value.isascii() or bool(value.encode()))
    except UnicodeEncodeError:
        return False


def _is_name(name):
    return _is_text(name) and name != "" and "\0" not in name


def _folded(name):
    """The name as SQLite compares identifiers: ASCII letters in one case."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


class Tables:
    """The tables of stream tasks in `database`. Thread-safe.

    `buffer_rows`, `buffer_ms`: at most so many rows and states wait in memory, for at most so long. `outbox`: the
    `vmhost.stores.Outbox` that gets the leaving columns, in the transaction that commits the row: an entry of the
    channel `task` with the id task/epoch/position/n (from the second generation on task.generation/epoch/position/n;
    `outbox_id`) and the body {column: value}, packed by `vmhost.pipeline.values`. `clock`: seconds since 1970.
    """

    with_every_commit = False

    def __init__(
        self, database, *, buffer_rows=1000, buffer_ms=1000, outbox=None, max_dead_letters=10_000, clock=time.time
    ):
        self.database = database
        self.buffer_rows = buffer_rows
        self.max_dead_letters = max_dead_letters
        self.outbox = Outbox(database, clock=clock) if outbox is None else outbox
        self._clock = clock
        self._lock = threading.Lock()  # guards what waits; taken after the database's, never before
        self._waiting = 0
        self._tables = []
        self._progress = {}  # id of a generation: _Progress, shared by versions that share the table
        self._counts, self._uncounted = {}, {}  # counters of each task; their part that is not written yet
        self._letters = []  # rows of dead letters
        self.epochs = database.epochs(EPOCHS)
        database.migrate("pipeline.tables", STEPS)
        database.attach(self)
        if buffer_ms is not None:
            database.flush_every(buffer_ms)

    def now_ms(self):
        return int(self._clock() * 1000)

    # ---- declarations

    def declare(self, task, version, columns, *, key=None, retention_ms=None):
        """The Table of the task's `version`: `columns` is {name: Column, a type's name, or a dict of Column's fields}.

        A version that was declared before gets its table again. Tables of two versions may be in use at once.
        TableError for columns that SQL cannot have.
        """
        if not _is_name(task):
            raise TableError(f"{task!r} cannot be a task's name; expected text that is not empty, without NUL")
        columns = _checked_columns(task, columns, key)
        self.flush()
        with self.database.transaction() as connection:
            row = self._generation(connection, task, version, columns, key)
            if row is None:
                identity = self._make(connection, task, columns, key)
            else:
                identity = row[0]
                self._widen(connection, row, columns)
            connection.execute("INSERT OR REPLACE INTO task_versions VALUES (?, ?, ?)", (task, version, identity))
            self._index(connection, identity, columns, key)
        table = Table(self, identity, task, version, columns, key, retention_ms)
        with self._lock:
            self._tables.append(table)
        return table

    def withdraw(self, table):
        """Writes what the Table holds, and drops it from memory. Its rows stay."""
        self.flush()
        with self._lock:
            self._tables.remove(table)

    def gather_calls(self, table):
        """Moves the open calls of all generations of the task to this Table."""
        with self.database.reader() as connection:
            found = connection.execute("SELECT id FROM task_tables WHERE task = ?", (table.task,)).fetchall()
        for (identity,) in found:
            table.adopt(self._progress_of(identity))

    def counts(self, task):
        """The Counter of how the task's calls ended since the store was made."""
        counts = self._counts.get(task)
        if counts is None:
            with self.database.reader() as connection:
                found = connection.execute("SELECT name, value FROM task_counters WHERE task = ?", (task,)).fetchall()
            counts = self._counts.setdefault(task, Counter(dict(found)))
        return counts

    def count(self, task, name, n=1):
        """Adds to a counter of the task, with the next flush."""
        self.counts(task)
        with self._lock:
            self._count(task, name, n)

    def _count(self, task, name, n=1):
        self._counts[task][name] += n
        uncounted = self._uncounted.get(task)
        if uncounted is None:
            uncounted = self._uncounted[task] = Counter()
        uncounted[name] += n

    def _progress_of(self, identity):
        progress = self._progress.get(identity)
        if progress is None:
            with self.database.reader() as connection:
                (position,) = connection.execute(
                    "SELECT position FROM task_tables WHERE id = ?", (identity,)
                ).fetchone()
                calls = connection.execute(
                    "SELECT position, start FROM task_calls WHERE id = ? ORDER BY position", (identity,)
                ).fetchall()
            progress = self._progress.setdefault(identity, _Progress(identity, position, dict(calls)))
        return progress

    def _generation(self, connection, task, version, columns, key):
        """The row of `task_tables` for the table that takes these columns, or None."""
        known = "SELECT t.* FROM task_tables t JOIN task_versions v USING (id) WHERE v.task = ? AND v.version = ?"
        newest = "SELECT * FROM task_tables WHERE task = ? ORDER BY generation DESC LIMIT 1"
        for row, again in (
            (connection.execute(known, (task, version)).fetchone(), True),
            (connection.execute(newest, (task,)).fetchone(), False),
        ):
            if row is None or row[5] != key:
                continue
            there = json.loads(row[4])
            same = all(there.get(name, column.type) == column.type for name, column in columns.items())
            if same and (there.keys() <= columns.keys() or (again and columns.keys() <= there.keys())):
                return row
        return None

    def _make(self, connection, task, columns, key):
        (generation,) = connection.execute(
            "SELECT ifnull(max(generation), 0) + 1 FROM task_tables WHERE task = ?", (task,)
        ).fetchone()
        (identity,) = connection.execute("SELECT ifnull(max(id), 0) + 1 FROM task_tables").fetchone()
        name = f"{task}.{generation}"
        if _folded(name).startswith("sqlite_"):
            name = f"_{name}"  # SQLite reserves such names
        if any(_folded(name) == _folded(other) for (other,) in connection.execute("SELECT name FROM sqlite_schema")):
            name = f"{name}.{identity}"  # names of two tasks differ in case only
        declared = "".join(f", {quoted(column)} {_TYPES[columns[column].type][0]}" for column in columns)
        connection.execute(
            f"CREATE TABLE {quoted(name)} "
            f"(_id INTEGER PRIMARY KEY, _key TEXT NOT NULL, _stored_ms INTEGER NOT NULL{declared})"
        )
        types = json.dumps({column: columns[column].type for column in columns})
        connection.execute(
            "INSERT INTO task_tables (id, task, generation, sql_name, columns, key) VALUES (?, ?, ?, ?, ?, ?)",
            (identity, task, generation, name, types, key),
        )
        return identity

    def _widen(self, connection, row, columns):
        there = json.loads(row[4])
        for name, column in columns.items():
            if name not in there:
                if any(_folded(name) == _folded(other) for other in there):
                    raise TableError(f"{row[1]}: column {name!r} differs in case only from one of its table; rename it")
                connection.execute(f"ALTER TABLE {quoted(row[3])} ADD COLUMN {quoted(name)} {_TYPES[column.type][0]}")
                there[name] = column.type
        connection.execute("UPDATE task_tables SET columns = ? WHERE id = ?", (json.dumps(there), row[0]))

    def _index(self, connection, identity, columns, key):
        (name,) = connection.execute("SELECT sql_name FROM task_tables WHERE id = ?", (identity,)).fetchone()
        wanted = ["_key", *(column for column in columns if columns[column].index or column == key)]
        for column in wanted:
            connection.execute(
                f"CREATE INDEX IF NOT EXISTS {quoted(f'{name}:{column}')} ON {quoted(name)} ({quoted(column)})"
            )

    def generations(self):
        """The tables: dicts of task, generation, sql_name, columns ({name: type}), key, position, versions."""
        self.flush()
        with self.database.reader() as connection:
            versions = {}
            for identity, version in connection.execute("SELECT id, version FROM task_versions ORDER BY version"):
                versions.setdefault(identity, []).append(version)
            return [
                dict(
                    task=task,
                    generation=generation,
                    sql_name=name,
                    columns=json.loads(columns),
                    key=key,
                    position=position,
                    versions=versions.get(identity, []),
                )
                for identity, task, generation, name, columns, key, position in connection.execute(
                    "SELECT id, task, generation, sql_name, columns, key, position FROM task_tables "
                    "ORDER BY task, generation"
                )
            ]

    # ---- writing

    @property
    def pending(self):
        return bool(
            self._letters
            or self._uncounted
            or any(table._rows for table in self._tables)
            or any(progress.changed for progress in self._progress.values())
        )

    def flush(self):
        """Makes waiting rows, state and positions durable, and the events before them."""
        self.database.flush()

    def write(self, connection):
        """Called by the database inside of a transaction."""
        with self._lock:
            batches = [table._take() for table in self._tables if table._rows]
            steps = [progress.take() for progress in self._progress.values() if progress.changed]
            letters, self._letters = self._letters, []
            counts, self._uncounted = self._uncounted, {}
            self._waiting = 0
        if not (batches or steps or letters or counts):
            return None
        written = _Written(self, batches, steps, letters, counts)
        try:
            for batch in batches:
                batch.table._write(connection, batch)
            _write_steps(connection, steps)
            if letters:
                self._write_letters(connection, letters)
            write_rows(
                connection,
                "INSERT INTO task_counters",
                [(task, name, n) for task, new in counts.items() for name, n in new.items()],
                "ON CONFLICT (task, name) DO UPDATE SET value = value + excluded.value",
            )
        except BaseException:
            written.undone()
            raise
        return written

    def sweep(self):
        """Deletes rows beyond their retention, at most once a minute; each flush does so too."""
        now = self.now_ms()
        if any(table.is_to_be_swept(now) for table in self._tables):
            with self.database.transaction() as connection:
                for table in list(self._tables):
                    table._sweep(connection)

    def _make_room(self):
        if self._waiting >= self.buffer_rows:
            self.flush()

    def dead_letter(self, task, version, position, event, error, traceback="", tries=1, key=""):
        """Stores a call that was given up; beyond `max_dead_letters` the oldest are deleted and counted. Durable on
        return.

        `event`: any value that can cross into a VM, as the call got it. `error`, `traceback`: text.
        """
        values = self._letter(task, version, position, event, error, traceback, tries, key)
        with self.database.transaction() as connection:
            self._write_letters(connection, [values])

    def _letter(self, task, version, position, event, error, traceback, tries, key):
        error, traceback = (text.encode(errors="backslashreplace").decode() for text in (error, traceback))
        return (task, version, position, key, self.now_ms(), pack(event), error, traceback, tries)

    def _write_letters(self, connection, letters):
        write_rows(
            connection,
            "INSERT INTO dead_letters (task, version, position, key, stored_ms, event, error, traceback, tries)",
            letters,
        )
        (count,) = connection.execute("SELECT count(*) FROM dead_letters").fetchone()
        if count > self.max_dead_letters:
            excess = count - self.max_dead_letters
            connection.execute(
                "DELETE FROM dead_letters WHERE id IN (SELECT id FROM dead_letters ORDER BY id LIMIT ?)", (excess,)
            )
            self.database.count(DEAD_LETTERS_DROPPED, excess)

    def dead_letters(self, task=None):
        """The DeadLetters, oldest first; waiting ones are written first."""
        self.flush()
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT task, version, position, key, stored_ms, event, error, traceback, tries FROM dead_letters "
                "WHERE ifnull(? = task, 1) ORDER BY id",
                (task,),
            ).fetchall()
        return [DeadLetter(*row[:5], unpack(row[5]), *row[6:]) for row in rows]

    def connect(self):
        """A read-only `sqlite3.Connection` that sees all rows added so far. The caller closes it."""
        self.flush()
        return self.database.connect()

    def close(self):
        """Writes what waits; the database stays open."""
        self.flush()
        self.database.detach(self)


class _Batch(NamedTuple):
    table: object
    rows: list


class _Step(NamedTuple):
    progress: object
    position: int
    begun: dict
    ended: set
    states: dict


class _Progress:
    """The progress of calls for one table: events up to `position` were looked at; of the calls that they triggered,
    those in `open` have not ended ({position: position at which the match began}, ascending). `states`: {key: (version,
    position, packed value)}. These, `_begun` and `_ended` are not written yet; those in `writing` are being written.
    The lock of Tables is held.
    """

    __slots__ = ("identity", "position", "committed", "open", "states", "writing", "_begun", "_ended")

    def __init__(self, identity, position, open_calls):
        self.identity, self.position, self.committed, self.open = identity, position, position, open_calls
        self._begun, self._ended = {}, set()
        self.states, self.writing = {}, {}

    @property
    def changed(self):
        return bool(self._begun or self._ended or self.states or self.position > self.committed)

    def begin(self, position, start, looked_at=True):
        self.open[position] = self._begun[position] = start
        self._ended.discard(position)
        if looked_at and position > self.position:
            self.position = position

    def end(self, position):
        """False if no such call is open."""
        if self.open.pop(position, None) is None:
            return False
        if self._begun.pop(position, None) is None:
            self._ended.add(position)
        return True

    def take(self):
        step = _Step(self, self.position, self._begun, self._ended, self.states)
        self._begun, self._ended, self.states, self.writing = {}, set(), {}, self.states
        return step

    def undone(self, step):
        for position, start in step.begun.items():
            if position in self.open:
                self._begun[position] = start
            else:
                self._ended.discard(position)  # it ended meanwhile, and its begin was never written
        self._ended |= {position for position in step.ended if position not in self.open}
        self.states = step.states | self.states
        self.writing = {}


def _write_steps(connection, steps):
    """Writes the progress of calls for tables, in order."""
    of = [(step.progress.identity, step) for step in steps]
    write_rows(
        connection,
        "DELETE FROM task_calls WHERE (id, position) IN (",
        [(identity, position) for identity, step in of for position in step.ended],
        ")",
    )
    write_rows(
        connection,
        "INSERT OR REPLACE INTO task_calls",
        [(identity, position, start) for identity, step in of for position, start in step.begun.items()],
    )
    write_rows(
        connection,
        "WITH seen (id, position) AS (",
        [(identity, step.position) for identity, step in of],
        ") UPDATE task_tables SET position = seen.position FROM seen "
        "WHERE task_tables.id = seen.id AND task_tables.position < seen.position",
    )
    write_rows(
        connection,
        "INSERT INTO task_states",
        [(identity, key, *state) for identity, step in of for key, state in step.states.items()],
        "ON CONFLICT (id, key) DO UPDATE SET version = excluded.version, position = excluded.position, "
        "value = excluded.value WHERE excluded.position > position",
    )


class _Written:
    def __init__(self, tables, batches, steps, letters, counts):
        self.tables, self.batches, self.steps, self.letters, self.counts = tables, batches, steps, letters, counts

    def committed(self):
        with self.tables._lock:
            for batch in self.batches:
                batch.table._committed(batch)
            for step in self.steps:
                step.progress.committed = max(step.progress.committed, step.position)
                step.progress.writing = {}

    def undone(self):
        tables = self.tables
        with tables._lock:
            for batch in self.batches:
                tables._waiting += batch.table._put_back(batch)
            for step in self.steps:
                step.progress.undone(step)
                tables._waiting += len(step.states)
            tables._letters[:0] = self.letters
            for task, counts in self.counts.items():
                tables._uncounted.setdefault(task, Counter()).update(counts)


class Table:
    """One generation of a stream task's table, as one version of the task writes it. Made by `Tables.declare`."""

    def __init__(self, tables, identity, task, version, columns, key, retention_ms):
        self._tables, self._id = tables, identity
        self.task, self.version, self.columns, self.key, self.retention_ms = task, version, columns, key, retention_ms
        with tables.database.reader() as connection:
            self.generation, self.sql_name = connection.execute(
                "SELECT generation, sql_name FROM task_tables WHERE id = ?", (identity,)
            ).fetchone()
            (self._last_id,) = connection.execute(
                f"SELECT ifnull(max(_id), -1) FROM {quoted(self.sql_name)}"
            ).fetchone()
        self._progress = tables._progress_of(identity)
        tables.counts(task)
        self._rows = []
        self._swept_ms = None
        self._converters = {name: _TYPES[column.type][1] for name, column in columns.items()}
        self._names = list(columns)
        self._leaving = [(name, _TYPES[column.type][2]) for name, column in columns.items() if column.leaves]
        names = "".join(f", {quoted(name)}" for name in self._names)
        self._insert = f"INSERT INTO {quoted(self.sql_name)} (_id, _key, _stored_ms{names})"

    # ---- writing

    @property
    def position(self):
        """All calls triggered by events up to here have ended; 0 for a new table."""
        with self._tables._lock:
            return next(iter(self._progress.open), self._progress.position + 1) - 1

    @property
    def seen_position(self):
        """Events up to here were looked at, though calls may be open. A restart continues after it."""
        return self._progress.position

    @property
    def open_calls(self):
        """{position: position at which its match began} of the open calls, ascending."""
        with self._tables._lock:
            return dict(self._progress.open)

    def is_open(self, position):
        return position in self._progress.open

    @property
    def counts(self):
        """A Counter of how the task's calls ended since the store was made, over all its tables."""
        return self._tables.counts(self.task)

    def begin(self, position, start):
        """The event at `position` triggered a call, which is open until `add`, `give_up` or `end`. Positions grow."""
        with self._tables._lock:
            self._progress.begin(position, start)
            self._tables._count(self.task, TRIGGERED)

    def end(self, position, way):
        """Ends an open call without a row and counts it as `way`. Does nothing for a call that is not open."""
        with self._tables._lock:
            if self._progress.end(position):
                self._tables._count(self.task, way)

    def give_up(self, position, event, error, traceback="", tries=1, key=""):
        """Ends an open call as a dead letter; as `Tables.dead_letter`, but written with the next flush.

        StoreError if waiting rows cannot be written; the call is still open then.
        """
        letter = self._tables._letter(self.task, self.version, position, event, error, traceback, tries, key)
        self._tables._make_room()
        with self._tables._lock:
            if self._progress.end(position):
                self._tables._letters.append(letter)
                self._tables._waiting += 1
                self._tables._count(self.task, DEAD_LETTERS)

    def count(self, name, n=1):
        """Adds to a counter of the task's calls, with the next flush."""
        self._tables.count(self.task, name, n)

    def adopt(self, other, positions=None):
        """Takes over open calls of another generation (a Table, or its _Progress): those at `positions`, or all."""
        own_progress, other_progress = self._progress, getattr(other, "_progress", other)
        if own_progress is other_progress:
            return
        with self._tables._lock:
            for position in list(other_progress.open) if positions is None else positions:
                start = other_progress.open.get(position)
                if other_progress.end(position):
                    own_progress.begin(position, start, looked_at=False)  # earlier events may not have been looked at
            own_progress.open = dict(sorted(own_progress.open.items()))

    def add(self, position, rows, key="", state=None):
        """Takes the result of the call that the event at `position` triggered: None, a row (dict of columns) or a list
        of rows, and the new `state` of `key` unless that is None.

        A position added before, even before a crash, changes nothing. An open call ends as stored. TableError for a row
        that does not fit, StoreError if waiting rows cannot be written; nothing was taken then.
        """
        if not _is_text(key):
            raise TableError(f"{self.task}: position {position}: expected text as the key, got {_short(key)}")
        rows = [rows] if isinstance(rows, dict) else rows or []
        if len(rows) > MAX_ROWS or not 0 <= position < 1 << 43:
            raise TableError(f"{self.task}: {len(rows)} rows at position {position}; at most {MAX_ROWS}, below 2**43")
        now = self._tables.now_ms()
        values = [(position * MAX_ROWS + n, key, now, *self._converted(position, n, row)) for n, row in enumerate(rows)]
        packed = None
        if state is not None:
            try:
                packed = pack(state)
            except ValueError as error:
                raise TableError(f"{self.task}: state for position {position}: {error}") from None
        self._tables._make_room()
        with self._tables._lock:
            self._rows += values
            if packed is not None and not self._seen(key, position):
                self._progress.states[key] = (self.version, position, packed)
            self._tables._waiting += len(values) + (packed is not None)
            if self._progress.end(position):
                self._tables._count(self.task, STORED)

    def _converted(self, position, n, row):
        if not isinstance(row, dict):
            raise TableError(
                f"{self.task}: row {n} of position {position}: expected a dict of columns, got {type(row).__name__}"
            )
        if not row.keys() <= self._converters.keys():
            strange = next(name for name in row if name not in self._converters)
            raise TableError(
                f"{self.task}: row {n} of position {position}: {strange!r} is no column; declare it, or leave it out. "
                f"Columns: {', '.join(self._names)}"
            )
        values = []
        for name, convert in self._converters.items():
            value = row.get(name)
            if value is not None:
                try:
                    value = convert(value)
                except ValueError as error:
                    raise TableError(
                        f"{self.task}: row {n} of position {position}: column {name!r}: expected {error}; got "
                        f"{type(value).__name__} {_short(value)}"
                    ) from None
            values.append(value)
        return values

    def complete_until(self, position):
        """Events up to `position` were looked at: after the next flush a restart continues there. Open calls stay
        open."""
        if position > self._progress.position:
            with self._tables._lock:
                self._progress.position = max(self._progress.position, position)

    def done(self, position, key=""):
        """Whether the result for the event at `position` was taken already, in rows or in the key's state."""
        with self._tables._lock:
            counted = position <= self._progress.position and position not in self._progress.open
        return counted or self._seen(key, position)

    def _seen(self, key, position):
        held = self._held(key)
        return held is not None and held[1] >= position

    def _held(self, key):
        """(version, position, packed value) of a key's state, or None."""
        progress = self._progress
        if (held := progress.states.get(key) or progress.writing.get(key)) is not None:
            return held
        with self._tables.database.reader() as connection:
            return connection.execute(
                "SELECT version, position, value FROM task_states WHERE id = ? AND key = ?", (self._id, key)
            ).fetchone()

    def state(self, key):
        """The last stored State of `key`, or None."""
        with self._tables._lock:
            held = self._held(key)
        if held is None:
            return None
        version, position, packed = held
        try:
            return State(unpack(packed), version, position)
        except ValueError as error:
            raise StoreDamagedError(
                f"{self._tables.database.path}: the state of {self.task} for {key!r} is unreadable: {error}"
            ) from error

    def _take(self):
        batch = _Batch(self, self._rows)
        self._rows = []
        return batch

    def _committed(self, batch):
        if batch.rows:
            self._last_id = max(self._last_id, max(row[0] for row in batch.rows))

    def _put_back(self, batch):
        """Puts a batch back into the waiting rows; returns their number."""
        self._rows[:0] = batch.rows
        return len(batch.rows)

    def _write(self, connection, batch):
        rows = self._new_rows(connection, batch.rows)
        write_rows(connection, self._insert, rows, "ON CONFLICT (_id) DO NOTHING")
        if self._leaving:
            self._tables.outbox.put_many([entry for row in rows if (entry := self._entry(row)) is not None])
        self._sweep(connection)

    def _new_rows(self, connection, rows):
        """The rows whose ids are not in the table, each id once."""
        new, seen = [], set()
        for row in rows:
            identity = row[0]
            if identity in seen:
                continue
            seen.add(identity)
            if (
                identity <= self._last_id
                and connection.execute(f"SELECT 1 FROM {quoted(self.sql_name)} WHERE _id = ?", (identity,)).fetchone()
            ):
                continue
            new.append(row)
        return new

    def _entry(self, row):
        """The outbox entry for a row; None if no column leaves."""
        values = dict(zip(self._names, row[3:]))
        leaving = {
            name: values[name] if convert is None else convert(values[name])
            for name, convert in self._leaving
            if values[name] is not None
        }
        return (
            (outbox_id(self._tables.epochs, self.task, self.generation, row[0]), self.task, pack(leaving), row[1])
            if leaving
            else None
        )

    def is_to_be_swept(self, now):
        return self.retention_ms is not None and (self._swept_ms is None or not 0 <= now - self._swept_ms < _SWEEP_MS)

    def _sweep(self, connection):
        """Deletes rows beyond their retention, from time to time. Ids are in roughly the order of storing."""
        now = self._tables.now_ms()
        if not self.is_to_be_swept(now):
            return
        self._swept_ms = now
        name = quoted(self.sql_name)
        while (
            connection.execute(
                f"DELETE FROM {name} WHERE _id IN (SELECT _id FROM {name} ORDER BY _id LIMIT {_SWEEP_ROWS}) "
                "AND _stored_ms < ?",
                (now - self.retention_ms,),
            ).rowcount
            == _SWEEP_ROWS
        ):
            pass

    # ---- reading

    def read(self, *, key=None, where="", parameters=(), order="_id", limit=None, with_ids=False):
        """The rows as dicts; waiting ones are written first.

        `key`: only rows of this key, by the column declared as `key` or by the event's key. `where`, `order`: SQL;
        `parameters`: for the `?` in `where`. `with_ids`: `_id`, `_key` and `_stored_ms` too.
        """
        names, rows = self._select(key, where, parameters, order, limit, with_ids)
        back = [_TYPES[self.columns[name].type][2] if name in self.columns else None for name in names]
        return [
            {
                name: value if convert is None or value is None else convert(value)
                for name, convert, value in zip(names, back, row)
            }
            for row in rows
        ]

    def _select(self, key=None, where="", parameters=(), order="_id", limit=None, with_ids=False):
        """(names, rows as SQL stores them)"""
        self._tables.flush()
        names = ["_id", "_key", "_stored_ms", *self._names] if with_ids else self._names
        conditions, values = [f"({where})"] if where else [], list(parameters)
        if key is not None:
            conditions.append(" OR ".join(f"{quoted(column)} = ?" for column in self.key_columns))
            conditions[-1] = f"({conditions[-1]})"
            values += [key] * len(self.key_columns)
        sql = f"SELECT {', '.join(map(quoted, names))} FROM {quoted(self.sql_name)}"
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        sql += f" ORDER BY {order}" + (f" LIMIT {int(limit)}" if limit is not None else "")
        with self._tables.database.reader() as connection:
            return names, connection.execute(sql, values).fetchall()

    @property
    def key_columns(self):
        """The columns that say whose a row is."""
        return ("_key",) if self.key is None else ("_key", self.key)

    def export(self, path, **selection):
        """Writes the rows that `read` would give, with `_id`, `_key` and `_stored_ms`, to a Parquet file; returns how
        many. `selection`: as for `read`. `json` columns are written as text, `array` ones as their packed bytes.

        Needs pyarrow: ImportError says how to install it. The file appears only when it is complete.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError("Parquet files need pyarrow: pip install 'vmhost[parquet]'") from error
        kinds = dict(text=pyarrow.string(), integer=pyarrow.int64(), real=pyarrow.float64(), bytes=pyarrow.binary())
        kinds |= dict(json=pyarrow.string(), array=pyarrow.binary())
        fields = [("_id", pyarrow.int64()), ("_key", pyarrow.string()), ("_stored_ms", pyarrow.int64())]
        schema = pyarrow.schema(fields + [(name, kinds[column.type]) for name, column in self.columns.items()])
        whole, partial, count, after = Path(path), Path(f"{path}.partial"), 0, -1
        where, values = selection.pop("where", ""), tuple(selection.pop("parameters", ()))
        try:
            with pyarrow.parquet.ParquetWriter(partial, schema) as writer:
                while rows := self._select(
                    where=f"_id > ?{f' AND ({where})' if where else ''}",
                    parameters=(after, *values),
                    limit=_EXPORT_ROWS,
                    with_ids=True,
                    **selection,
                )[1]:
                    columns = [pyarrow.array(column, kind.type) for column, kind in zip(zip(*rows), schema)]
                    writer.write_table(pyarrow.table(columns, schema=schema))
                    count, after = count + len(rows), rows[-1][0]
            partial.replace(whole)
        finally:
            partial.unlink(missing_ok=True)
        return count

    def __len__(self):
        self._tables.flush()
        with self._tables.database.reader() as connection:
            return connection.execute(f"SELECT count(*) FROM {quoted(self.sql_name)}").fetchone()[0]


def _short(value):
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
