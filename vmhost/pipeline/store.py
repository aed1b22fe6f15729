"""The event store: events in order of arrival, each at a position, bounded by age, count and bytes.

Events are stored in blocks of at most BLOCK_EVENTS, one SQL row each: `head` has the columns name, time, page, visit,
key and id, `body` the contents (`vmhost.pipeline.bodies`). `event_marks` records in which blocks a visit or a key
occurs. A block is written once; only `forget` rewrites it.

`durability="each"`: an event is on the disk when `append` returns. `"batch"`: it is after `flush()`, after any other
commit of the database, or after some events or time; until then it is in memory, where `read` sees it. Positions start
at 1 and grow. They are reused only if the process died before their events were durable.

Bounds apply to events on the disk: whole blocks are deleted, oldest first, in the transaction that adds new ones.
"""

import itertools
import threading
import time

import msgpack

from vmhost.pipeline import passes
from vmhost.pipeline.bodies import Bodies, contents_of
from vmhost.pipeline.events import Event, StoredEvent
from vmhost.pipeline.values import pack, unpack
from vmhost.stores import StoreDamagedError, write_rows

BLOCK_EVENTS = 256
_READ_BLOCKS = 16  # read at a time, so that a slow reader holds no old snapshot of the store
DURABILITIES = ("batch", "each")

STEPS = (
    """
    CREATE TABLE event_blocks (
        first INTEGER PRIMARY KEY, last INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
        earliest_ms INTEGER NOT NULL, latest_ms INTEGER NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL
    );
    CREATE TABLE event_marks (kind INTEGER, name TEXT, first INTEGER, PRIMARY KEY (kind, name, first)) WITHOUT ROWID
    """,
    "",  # bodies may be compressed
)
VISIT, KEY = 0, 1  # kinds of marks
_LAST_POSITION = "events.last_position"
DROPPED = "events.dropped"
EPOCHS = "pipeline.events"  # `Database.epochs` of positions: in which opening of the store an event was stored


class _Block:
    """Events to be written, at positions from `first` on: their columns, and in `packed` the packed contents of each.
    The lists only grow.
    """

    __slots__ = ("first", "columns", "packed")

    def __init__(self, first):
        self.first = first
        self.columns = ([], [], [], [], [], [])  # names, times, pages, visits, keys, ids
        self.packed = []

    def __len__(self):
        return len(self.packed)


class _Written:
    """Blocks written by a transaction, and the store's totals once it is committed."""

    def __init__(self, store, blocks, notes, count, size, latest_ms):
        self.store, self.blocks, self.notes = store, blocks, notes
        self.count, self.size, self.latest_ms = count, size, latest_ms

    def committed(self):
        store = self.store
        with store._lock:
            store._writing = []
            if self.blocks:
                store._durable = self.blocks[-1].first + len(self.blocks[-1]) - 1
        store._count, store._bytes, store._latest_ms = self.count, self.size, self.latest_ms

    def undone(self):
        self.store._requeue(self.blocks, self.notes)


def _column(values):
    """A column in its stored form: a list of one value where all are equal; else texts joined by NUL, which pack ten
    times faster than a list; else the list.
    """
    first = values[0]
    if values.count(first) == len(values):
        return [first]
    try:
        text = "\0".join(values)
    except TypeError:
        return values  # ids, some of them None
    return text if text.count("\0") == len(values) - 1 else values


def _spread(column, count):
    if isinstance(column, str):
        return column.split("\0")
    return column * count if len(column) == 1 else column


class Head:
    """The columns of a block: lists of equal length, and the position of each event."""

    __slots__ = ("positions", "names", "times", "pages", "visits", "keys", "ids")

    def __init__(self, first, data):
        self.names, self.times, self.pages, self.visits, self.keys, self.ids, holes = unpack(data)
        count = len(self.times)
        for column in ("names", "pages", "visits", "keys", "ids"):
            setattr(self, column, _spread(getattr(self, column), count))
        self.positions = [first + offset for offset in holes] if holes else range(first, first + count)

    def event(self, index, contents):
        return StoredEvent(
            self.positions[index],
            Event(
                self.names[index],
                self.times[index],
                self.pages[index],
                self.visits[index],
                contents,
                self.ids[index],
                self.keys[index],
            ),
        )


def pack_head(columns, offsets=None):
    """`columns`: as from `passes.columns`. `offsets`: from the block's first position, where they are not 0, 1, 2 …"""
    names, times, pages, visits, keys, ids = columns
    columns = [_column(names), times, _column(pages), _column(visits), _column(keys), _column(ids), offsets]
    return msgpack.Packer(buf_size=4096).pack(columns)  # subclasses of str become str


class EventStore:
    """The events in `database`. Thread-safe.

    `batch_count`, `batch_ms`: with `durability="batch"`, at most so many events are held in memory, for at most so
    long. `max_age_ms` counts from the latest event's time, or from the clock where that is earlier, so that one event
    from the future does not delete all others. None: no bound. `clock`: seconds since 1970.
    """

    with_every_commit = True

    def __init__(
        self,
        database,
        *,
        durability="batch",
        batch_count=4000,
        batch_ms=1000,
        max_age_ms=None,
        max_count=None,
        max_bytes=None,
        clock=time.time,
    ):
        if durability not in DURABILITIES:
            raise ValueError(f"durability: expected one of {', '.join(DURABILITIES)}, got {durability!r}")
        self.database = database
        self.durability = durability
        self.batch_count = batch_count
        self._clock = clock
        self.max_age_ms, self.max_count, self.max_bytes = max_age_ms, max_count, max_bytes
        self._lock = threading.Lock()  # guards what is in memory; taken after the database's, never before
        self._bodies = Bodies()
        self._waiting = []  # blocks to be written, in order; the last one takes more events
        self._waiting_count = 0
        self._writing = []  # blocks of the current transaction
        self._notes = {}  # counters of the database, to be set with the events that wait
        database.migrate("pipeline.events", STEPS)
        with database.reader() as connection:
            self._count, self._bytes, last, self._latest_ms = connection.execute(
                "SELECT ifnull(sum(count), 0), ifnull(sum(bytes), 0), ifnull(max(last), 0), ifnull(max(latest_ms), 0) "
                "FROM event_blocks"
            ).fetchone()
        self._last = max(last, database.counters().get(_LAST_POSITION, 0))
        self._durable = self._last
        self._epochs = database.epochs(EPOCHS)
        self._epochs.start(self._last + 1)
        database.attach(self)
        if durability == "batch" and batch_ms is not None:
            database.flush_every(batch_ms)

    # ---- writing

    @property
    def position(self):
        """Position of the last event appended; 0 before the first."""
        return self._last

    @property
    def durable_position(self):
        """Events up to here are on the disk."""
        return self._durable

    @property
    def pending(self):
        """Whether some events or notes are in memory only."""
        return bool(self._waiting or self._notes)

    def append(self, event):
        """Stores one event and returns its position. ValueError for contents that cannot be stored; StoreError if
        waiting events cannot be written. The event was not taken then.
        """
        return self.append_many((event,))[0]

    def append_many(self, events):
        """Stores the events, all or none of them, in one transaction; returns their positions as a range.

        Raises as `append`.
        """
        return self._append(list(events))[0]

    def make_room(self):
        """Waits for the disk if the next append would. Called before taking a lock that others need. StoreError."""
        if self.durability == "batch" and self._waiting_count >= self.batch_count:
            with self.database.lock:  # a flush in progress may suffice
                if self._waiting_count >= self.batch_count:
                    self.flush()

    def append_stored(self, events, notes=None):
        """As `append_many`, for a list, which may be empty; returns the events as StoredEvents with packed contents.
        `notes`: counters of the database that are set in the transaction which makes the events durable."""
        return list(map(StoredEvent, *self._append(events, notes)))

    def _append(self, events, notes=None):
        """(positions, events, the packed contents of each or None)"""
        if self.durability == "each":
            return self._append_each(events, notes)
        self.make_room()
        taken = self._take(events, notes)
        if self._waiting_count * 2 >= self.batch_count and not self._writing:
            self.database.flush_soon()  # so that `append` rarely waits for the disk
        return taken

    def _append_each(self, events, notes):
        with self.database.lock:  # no other commit in between, so that a failure can be undone
            taken = self._take(events, notes)
            try:
                self.flush()
            except BaseException:
                with self._lock:
                    self._waiting, self._waiting_count, self._notes = [], 0, {}
                    self._last = self._durable
                raise
        return taken

    def _take(self, events, notes=None):
        with self._lock:
            if not events:
                self._notes |= notes or {}
                return range(self._last + 1, self._last + 1), (), ()
            columns = passes.columns(events)
            plain = passes.pack_contents(events)
            packed = plain if plain is not None else list(map(self._pack, events))
            first, done = self._last + 1, 0
            while done < len(packed):
                if not self._waiting or len(self._waiting[-1]) >= BLOCK_EVENTS:
                    self._waiting.append(_Block(first + done))
                block = self._waiting[-1]
                part = slice(done, done + BLOCK_EVENTS - len(block))
                for there, new in zip(block.columns, columns):
                    there += new[part]
                block.packed += packed[part]
                done = part.stop
            self._waiting_count += len(packed)
            self._last += len(packed)
            self._notes |= notes or {}
            return range(first, self._last + 1), events, itertools.repeat(None) if plain is None else plain

    @staticmethod
    def _pack(event):
        try:
            return pack(event.contents)
        except ValueError as error:
            raise ValueError(f"event {event.name!r}: contents: {error}") from None

    def flush(self):
        """Makes appended events durable. StoreError: they still wait then."""
        self.database.flush()

    def write(self, connection):
        """Writes the waiting events, inside of a transaction of the database."""
        with self._lock:
            if not self.pending:
                return None
            blocks, notes = self._waiting, self._notes
            self._writing = blocks
            self._waiting, self._waiting_count, self._notes = [], 0, {}
        try:
            connection.executemany("INSERT OR REPLACE INTO store_counters VALUES (?, ?)", notes.items())
            return self._write_blocks(connection, blocks, notes)
        except BaseException:
            self._requeue(blocks, notes)
            raise

    def _write_blocks(self, connection, blocks, notes):
        if not blocks:
            return _Written(self, blocks, notes, self._count, self._bytes, self._latest_ms)
        rows = list(map(self._row, blocks))
        self._epochs.begin(connection, blocks[0].first)
        write_rows(connection, "INSERT INTO event_blocks", rows)
        write_marks(connection, ((block.first, block.columns[3], block.columns[4]) for block in blocks))
        size = sum(row[3] for row in rows)
        count = sum(map(len, blocks))
        latest_ms = max(self._latest_ms, max(max(block.columns[1]) for block in blocks))
        gone_count, gone_size = self._drop_oldest(connection, self._count + count, self._bytes + size, latest_ms)
        left = self._count + count - gone_count, self._bytes + size - gone_size
        return _Written(self, blocks, notes, *left, latest_ms)

    def _requeue(self, blocks, notes):
        with self._lock:
            self._notes = notes | self._notes
            self._waiting[:0] = blocks
            self._waiting_count += sum(map(len, blocks))
            self._writing = []

    def _row(self, block):
        """The block's row in `event_blocks`. With durability "each" bodies are not compressed, to keep commits fast."""
        first, count, times = block.first, len(block), block.columns[1]
        head, body = pack_head(block.columns), self._bodies.make(block.packed, compress=self.durability == "batch")
        return first, first + count - 1, count, len(head) + len(body), min(times), max(times), head, body

    def _drop_oldest(self, connection, count, size, latest_ms):
        """Deletes blocks until the bounds hold; returns how many events and bytes were deleted."""
        gone_count = gone_size = 0
        oldest_ms = None
        if self.max_age_ms is not None:
            oldest_ms = min(latest_ms, int(self._clock() * 1000)) - self.max_age_ms
        while True:
            over = (self.max_count is not None and count - gone_count > self.max_count) or (
                self.max_bytes is not None and size - gone_size > self.max_bytes
            )
            if not over and oldest_ms is None:
                break
            row = connection.execute(
                "SELECT first, last, count, bytes, latest_ms FROM event_blocks ORDER BY first LIMIT 1"
            ).fetchone()
            if row is None or not (over or row[4] < oldest_ms):
                break
            delete_block(connection, row[0])
            gone_count += row[2]
            gone_size += row[3]
        if gone_count:
            self.database.count(DROPPED, gone_count)
            keep_position(connection, self._last)
        return gone_count, gone_size

    # ---- reading

    def read(self, after=0, limit=None, *, until=None, visit=None, page=None, key=None, until_ms=None):
        """The events at positions above `after`, in order of position, as StoredEvents, those in memory included.

        `until`: up to this position. `visit`, `page`, `key`: only events of these. `until_ms`: only events up to this
        time. Reads lazily: events appended meanwhile may be included or not; events deleted by bounds meanwhile are
        not. StoreDamagedError.
        """
        if limit is not None and limit <= 0:
            return
        with self._lock:
            memory = [(block.first, len(block), block) for block in (*self._writing, *self._waiting)]
        stop = self._last if until is None else until
        disk_stop = min(stop, memory[0][0] - 1) if memory else stop
        left = limit

        def wanted(visits, pages, keys, times, positions):
            return [
                index
                for index, position in enumerate(positions)
                if after < position <= stop
                and (visit is None or visits[index] == visit)
                and (page is None or pages[index] == page)
                and (key is None or keys[index] == key)
                and (until_ms is None or times[index] <= until_ms)
            ]

        for first, head_data, body in self._blocks(after, disk_stop, visit, key):
            try:
                head = Head(first, head_data)
                indexes = wanted(head.visits, head.pages, head.keys, head.times, head.positions)
                found = contents_of(body, indexes[:left])
            except (ValueError, TypeError, IndexError) as error:
                raise StoreDamagedError(
                    f"{self.database.path}: the events from position {first} on are unreadable: {error}; restore a "
                    "backup"
                ) from error
            for index, contents in zip(indexes, found):
                yield head.event(index, contents)
            if left is not None:
                left -= len(found)
                if left <= 0:
                    return
        for first, count, block in memory:
            names, times, pages, visits, keys, ids = block.columns
            for index in wanted(visits, pages, keys, times, range(first, first + count))[:left]:
                contents = unpack(block.packed[index])
                event = Event(
                    names[index], times[index], pages[index], visits[index], contents, ids[index], keys[index]
                )
                yield StoredEvent(first + index, event)
                if left is not None:
                    left -= 1
            if left is not None and left <= 0:
                return

    def at(self, position):
        """The StoredEvent at a position; None if it was removed."""
        found = next(self.read(position - 1, 1, until=position), None)
        return found if found is not None and found.position == position else None

    def _blocks(self, after, stop, visit, key, columns="b.first, b.head, b.body", earliest_ms=None):
        """(first, head, body) of the blocks on the disk that may have such events, in order."""
        here = after - BLOCK_EVENTS
        earliest_ms = -(1 << 63) if earliest_ms is None else earliest_ms
        mark = (VISIT, visit) if visit else (KEY, key) if key else None
        if mark:
            sql = (
                f"SELECT {columns} FROM event_marks m CROSS JOIN event_blocks b ON b.first = m.first "
                "WHERE m.kind = ? AND m.name = ? AND m.first > ? AND m.first <= ? AND b.last > ? "
                f"ORDER BY m.first LIMIT {_READ_BLOCKS}"
            )
        else:
            sql = (
                f"SELECT {columns} FROM event_blocks b WHERE b.first > ? AND b.first <= ? AND b.last > ? "
                f"AND b.latest_ms >= {earliest_ms:d} ORDER BY b.first LIMIT {_READ_BLOCKS}"
            )
        while True:
            with self.database.reader() as connection:
                rows = connection.execute(sql, (*(mark or ()), here, stop, after)).fetchall()
            yield from rows
            if len(rows) < _READ_BLOCKS:
                return
            here = rows[-1][0]

    def heads(self, after=0, earliest_ms=None):
        """Heads of the blocks with an event at a position above `after`, in order; with `earliest_ms`, only blocks with
        an event at this time or later. Events on the disk only.
        """
        for first, head in self._blocks(after, self._durable, None, None, "b.first, b.head", earliest_ms):
            yield Head(first, head)

    def heads_with(self, visits, until):
        """Heads of the blocks on the disk with an event of one of the `visits`, in order, up to a position."""
        with self.database.reader() as connection:
            firsts = set()
            for visit in visits:
                firsts.update(
                    connection.execute(
                        "SELECT first FROM event_marks WHERE kind = ? AND name = ? AND first <= ?",
                        (VISIT, visit, until),
                    ).fetchall()
                )
        for (first,) in sorted(firsts):
            with self.database.reader() as connection:
                row = connection.execute("SELECT head FROM event_blocks WHERE first = ?", (first,)).fetchone()
            if row is not None:
                yield Head(first, row[0])

    def forgotten(self, key):
        """Called by `forget`: counts anew what is left on the disk."""
        with self.database.reader() as connection:
            self._count, self._bytes = connection.execute(
                "SELECT ifnull(sum(count), 0), ifnull(sum(bytes), 0) FROM event_blocks"
            ).fetchone()

    def statistics(self):
        """{"stored", "bytes", "waiting", "position", "durable_position", "dropped"}: events, on the disk or waiting."""
        return {
            "stored": self._count,
            "bytes": self._bytes,
            "waiting": self._last - self._durable,
            "position": self._last,
            "durable_position": self._durable,
            "dropped": self.database.counters().get(DROPPED, 0),
        }

    def close(self):
        """Flushes; the database stays open."""
        self.flush()
        self.database.detach(self)


def write_marks(connection, blocks):
    """Records which visits and keys are in `blocks`: (first position, visits, keys) of each."""
    marks = []
    for first, visits, keys in blocks:
        marks += [(VISIT, name, first) for name in set(visits) if name]
        marks += [(KEY, name, first) for name in set(keys) if name]
    marks.sort()  # the order of the table
    write_rows(connection, "INSERT OR IGNORE INTO event_marks", marks)


def delete_block(connection, first):
    """Deletes a block and its marks."""
    (data,) = connection.execute("SELECT head FROM event_blocks WHERE first = ?", (first,)).fetchone()
    head = Head(first, data)
    marks = [(VISIT, name, first) for name in set(head.visits)] + [(KEY, name, first) for name in set(head.keys)]
    connection.executemany("DELETE FROM event_marks WHERE kind = ? AND name = ? AND first = ?", marks)
    connection.execute("DELETE FROM event_blocks WHERE first = ?", (first,))


def keep_position(connection, position):
    """Prevents that positions are used again when the last block was deleted."""
    connection.execute(
        "INSERT INTO store_counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
        (_LAST_POSITION, position),
    )
