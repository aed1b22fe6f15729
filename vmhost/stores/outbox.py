"""The outbox: data that is to leave the device, kept until it is acknowledged as sent.

An entry has an id; one whose id is known is dropped, so that putting it again, for example after a crash, sends nothing
twice. Ids of acknowledged entries stay known, the newest `max_known` of them. Beyond `max_bytes` of bodies, or older
than `max_age_ms` (`ages`), the oldest entries are dropped, and counted ("outbox.dropped"). Delivery is at least once: a
sender that takes an entry and dies before the acknowledgement gets it again; the receiver deduplicates by epoch and
number, or by id. An entry keeps the epoch in which it was put (`epochs`).
"""

import time
from typing import NamedTuple

from vmhost.stores.ages import Ages, machine_time
from vmhost.stores.epochs import begin_older

STEPS = (
    """
    CREATE TABLE outbox_entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, channel TEXT NOT NULL, key TEXT NOT NULL,
        time_ms INTEGER NOT NULL, body BLOB NOT NULL
    );
    CREATE INDEX outbox_keys ON outbox_entries (key);
    CREATE TABLE outbox_known (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE)
    """,
    "CREATE INDEX outbox_channels ON outbox_entries (channel, number)",
    lambda connection: begin_older(connection, "outbox"),
    "ALTER TABLE outbox_entries ADD COLUMN age_ms INTEGER NOT NULL DEFAULT 0",
)
BYTES, DROPPED, DUPLICATES = "outbox.bytes", "outbox.dropped", "outbox.duplicates"
_TAKE = 100
SENT_EPOCHS = 16  # that may be on their way at a time: receivers remember a bounded number of them


class Entry(NamedTuple):
    """`number` grows with each entry; `key` is its owner, `time_ms` the time it was put."""

    number: int
    id: str
    channel: str
    key: str
    time_ms: int
    body: bytes


class Outbox:
    """Messages that wait in a Database until they are acknowledged. Threads may share it.

    `database`: a Database. `max_bytes`, `max_age_ms`: bounds of what waits; None: no bound. `max_known`: ids that are
    remembered, to recognize duplicates. `clock`: seconds since 1970. `running`: `ages.machine_time`.
    """

    def __init__(
        self,
        database,
        *,
        max_bytes=64 << 20,
        max_age_ms=None,
        max_known=100_000,
        clock=time.time,
        running=machine_time,
    ):
        self.database = database
        self.max_bytes, self.max_age_ms, self.max_known = max_bytes, max_age_ms, max_known
        self._clock = clock
        self._ages = Ages(database, running)
        database.migrate("outbox", STEPS)
        self._epochs = database.epochs("outbox")

    def put(self, identity, channel, body, key=""):
        """Keeps `body` (bytes) for `channel`; False if the id is known. Joins the current transaction."""
        return self.put_many([(identity, channel, body, key)]) == 1

    def put_many(self, entries):
        """Puts (id, channel, body, key) in order; returns the number of new entries."""
        now_ms = int(self._clock() * 1000)
        new = size = duplicates = 0
        with self.database.transaction() as connection:
            if not self._epochs.is_begun(connection):
                self._begin_epoch(connection)
            age_ms = self._ages.advance(connection)
            for identity, channel, body, key in entries:
                known = connection.execute("SELECT 1 FROM outbox_known WHERE id = ?", (identity,)).fetchone()
                added = not known and connection.execute(
                    "INSERT INTO outbox_entries (id, channel, key, time_ms, age_ms, body) VALUES (?, ?, ?, ?, ?, ?) "
                    "ON CONFLICT (id) DO NOTHING",
                    (identity, channel, key, now_ms, age_ms, body),
                )
                if added and added.rowcount:
                    new += 1
                    size += len(body)
                else:
                    duplicates += 1
            self.database.count(DUPLICATES, duplicates)
            self.database.count(BYTES, size)
            self._drop(connection, age_ms)
        return new

    def _begin_epoch(self, connection):
        empty = [first for first, end, _ in self._spans(connection) if not self._is_used(connection, first, end)]
        self._epochs.drop(connection, empty)
        self._epochs.begin(connection, self._highest(connection) + 1)

    def _spans(self, connection):
        """(first number, first number of the next epoch or None, epoch), in order."""
        all_epochs = self._epochs.all(connection)
        firsts = [first for first, _ in all_epochs[1:]]
        return [(first, end, epoch) for (first, epoch), end in zip(all_epochs, [*firsts, None])]

    @staticmethod
    def _is_used(connection, first, end):
        return connection.execute(
            "SELECT 1 FROM outbox_entries WHERE number >= ? AND (? IS NULL OR number < ?) LIMIT 1", (first, end, end)
        ).fetchone()

    def sent_epochs(self):
        """[(first number, first number of the next epoch or None, epoch)] of the oldest entries; at most SENT_EPOCHS.
        A sender sends no others until these are acknowledged."""
        with self.database.reader() as connection:
            spans = self._spans(connection)
            if len(spans) <= SENT_EPOCHS:
                return spans
            found = []
            for span in spans:
                if self._is_used(connection, *span[:2]):
                    found.append(span)
                    if len(found) == SENT_EPOCHS:
                        break
            return found

    def epochs(self):
        """[(first number, epoch)] of all entries that wait, and possibly of others."""
        return self._epochs.all()

    def _drop(self, connection, now_age_ms):
        """Drops the oldest entries until the bounds hold."""
        while True:
            row = connection.execute(
                "SELECT number, id, age_ms, length(body), "
                "ifnull((SELECT value FROM store_counters WHERE name = ?), 0) "
                "FROM outbox_entries ORDER BY number LIMIT 1",
                (BYTES,),
            ).fetchone()
            if row is None or not (
                row[4] > self.max_bytes or (self.max_age_ms is not None and row[2] < now_age_ms - self.max_age_ms)
            ):
                return
            self._remove(connection, [row[1]])
            self.database.count(DROPPED)

    def _remove(self, connection, identities):
        """Deletes entries and keeps their ids; returns their number."""
        removed = size = 0
        for identity in identities:
            row = connection.execute("SELECT length(body) FROM outbox_entries WHERE id = ?", (identity,)).fetchone()
            if row is not None:
                removed += 1
                size += row[0]
                connection.execute("DELETE FROM outbox_entries WHERE id = ?", (identity,))
                connection.execute("INSERT OR IGNORE INTO outbox_known (id) VALUES (?)", (identity,))
        self.database.count(BYTES, -size)
        connection.execute(
            "DELETE FROM outbox_known WHERE number <= (SELECT max(number) FROM outbox_known) - ?", (self.max_known,)
        )
        return removed

    def take(self, channel=None, *, limit=_TAKE, after=0):
        """The oldest entries, of one channel or of all, with numbers above `after`. They stay until acknowledged."""
        where, given = ("", ()) if channel is None else ("channel = ? AND ", (channel,))
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT number, id, channel, key, time_ms, body FROM outbox_entries "
                f"WHERE {where}number > ? ORDER BY number LIMIT ?",
                (*given, after, limit),
            ).fetchall()
        return [Entry(*row) for row in rows]

    def channels(self):
        """The channels that have entries, sorted."""
        names, name = [], ""
        with self.database.reader() as connection:
            while row := connection.execute(
                "SELECT channel FROM outbox_entries WHERE channel > ? ORDER BY channel LIMIT 1", (name,)
            ).fetchone():
                name = row[0]
                names.append(name)
        return names

    @staticmethod
    def _highest(connection):
        """The highest number that an entry ever had, or 0."""
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'outbox_entries'").fetchone()
        return row[0] if row else 0

    def acknowledge(self, identities):
        """Removes entries that were sent; their ids stay known. Returns how many were removed. Durable on return."""
        with self.database.transaction() as connection:
            return self._remove(connection, identities)

    def acknowledge_until(self, channel, number):
        """`acknowledge` for all entries of the channel with numbers up to `number`."""
        with self.database.transaction() as connection:
            return self._remove(connection, [row[0] for row in self._until(connection, channel, number)])

    def _until(self, connection, channel, number):
        return connection.execute(
            "SELECT id FROM outbox_entries WHERE channel = ? AND number <= ? ORDER BY number", (channel, number)
        ).fetchall()

    def size(self, channel):
        """(number of entries, bytes of their bodies) of a channel."""
        with self.database.reader() as connection:
            return connection.execute(
                "SELECT count(*), ifnull(sum(length(body)), 0) FROM outbox_entries WHERE channel = ?", (channel,)
            ).fetchone()

    def drop_older(self, channel, age_ms):
        """`drop` for all entries of a channel that are older than `age_ms`, by `ages`."""
        with self.database.transaction() as connection:
            (old,) = connection.execute(
                "SELECT count(*) FROM outbox_entries WHERE channel = ? AND age_ms < ?",
                (channel, self._ages.advance(connection) - age_ms),
            ).fetchone()
            return self.drop(channel, old) if old else 0

    def drop(self, channel, count):
        """Drops the oldest `count` entries of a channel, and counts them as dropped; returns how many there were."""
        with self.database.transaction() as connection:
            rows = connection.execute(
                "SELECT id FROM outbox_entries WHERE channel = ? ORDER BY number LIMIT ?", (channel, count)
            ).fetchall()
            self.database.count(DROPPED, len(rows))
            return self._remove(connection, [row[0] for row in rows])

    def forget(self, key, identities=()):
        """Deletes the entries of `key`, those with the ids `identities`, and those of nobody whose id or body contains
        the key, without counting them as dropped; returns how many. Known ids that contain it are forgotten too."""
        mark = key.encode(errors="surrogatepass")
        with self.database.transaction() as connection:
            mine = connection.execute(
                "SELECT id FROM outbox_entries WHERE key = ? OR (key = '' AND (instr(id, ?) OR instr(body, ?)))",
                (key, key, mark),
            ).fetchall()
            identities = {*identities, *(identity for (identity,) in mine)}
            removed = self._remove(connection, identities)
            connection.execute("DELETE FROM outbox_known WHERE ? != '' AND instr(id, ?)", (key, key))
            return removed

    def __len__(self):
        with self.database.reader() as connection:
            return connection.execute("SELECT count(*) FROM outbox_entries").fetchone()[0]
