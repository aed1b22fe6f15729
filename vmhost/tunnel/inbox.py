"""Received messages: on both sides, in SQLite, each message exactly once.

For each sender, epoch and channel the inbox stores the last number, in the same transaction as the message, so that a
message sent again after a cut or crash is recognized. Senders begin an *epoch* whenever they open their store
(`vmhost.stores.epochs`), so that new messages of a restored store are not taken for known ones.

A *consumer* takes the messages of a channel:
- `Table`: rows of a SQL table in the inbox's database. Recognizes ids too: a sender that chooses ids may send a message
  again in another epoch.
- `Transactional(function)`: `function(connection, messages)` writes with the connection of the transaction.
- `Callable(function)`: `function(message)` is called before the transaction, so after a crash it may be called again,
  with the same id. It raises MessageRefused for a message that it will never take, which is stored in
  `tunnel_refused`. After any other error it is called again later, and the channel waits.
- `webhooks.Webhook`: a Callable that sends messages to a web server.
- `postgresql.PostgreSQL`: stores messages elsewhere, with their numbers. Such a consumer has `keep(arrivals)`, which
  returns how many were new, `close()`, and a `write` that does nothing.
"""

import json
import logging
import re
import sqlite3
import time
from collections import Counter
from typing import NamedTuple

from vmhost import callbacks
from vmhost.stores import is_of_store
from vmhost.stores.epochs import begin_older
from vmhost.tunnel.errors import ConsumerError, MessageRefused, TunnelConfigurationError
from vmhost.tunnel.limits import MAX_EPOCHS

_log = logging.getLogger("vmhost.tunnel")

STEPS = (
    """
    CREATE TABLE tunnel_received (
        peer TEXT, epoch BLOB, channel TEXT, number INTEGER NOT NULL, time_ms INTEGER NOT NULL,
        PRIMARY KEY (peer, epoch, channel)
    ) WITHOUT ROWID;
    CREATE TABLE tunnel_refused (
        position INTEGER PRIMARY KEY, peer TEXT NOT NULL, channel TEXT NOT NULL, id TEXT NOT NULL,
        time_ms INTEGER NOT NULL, why TEXT NOT NULL, body BLOB NOT NULL
    );
    CREATE TABLE tunnel_epoch (one INTEGER PRIMARY KEY CHECK (one = 1), epoch BLOB NOT NULL, peer BLOB);
    CREATE TABLE tunnel_dictionaries (
        number INTEGER PRIMARY KEY, channel TEXT NOT NULL, time_ms INTEGER NOT NULL, data BLOB NOT NULL
    )
    """,
    lambda connection: _to_epochs_of_openings(connection),
    "CREATE INDEX IF NOT EXISTS tunnel_refused_peers ON tunnel_refused (peer, position)",
    """
    CREATE TABLE IF NOT EXISTS tunnel_devices (device TEXT PRIMARY KEY, time_ms INTEGER NOT NULL) WITHOUT ROWID;
    INSERT OR IGNORE INTO tunnel_devices SELECT peer, min(time_ms) FROM tunnel_received WHERE peer != '' GROUP BY peer
    """,
)
MAX_REFUSED = 1000  # messages of one sender that are kept
GREETING_EPOCHS = 8  # whose last numbers a device sends in a greeting
GREETING_NUMBERS_BYTES = 6000  # of last numbers in a greeting
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")  # of tables and columns
_ROWS = (64, 8, 1)  # rows of one statement: between statements another thread may take the GIL


class Message(NamedTuple):
    """`peer`: the sending device; "" on a device. `number` increases on a channel within an epoch."""

    peer: str
    channel: str
    number: int
    id: str
    body: bytes


class Arrival(NamedTuple):
    """Messages that arrived together: (number, id, body) of one sender and channel, for one consumer."""

    peer: str
    epoch: bytes
    channel: str
    messages: list
    consumer: object


class Table:
    """Rows in the SQL table `name`: position (increasing), device, channel, id, time_ms (when it was stored), body."""

    def __init__(self, name):
        if not NAME.fullmatch(name) or name.lower().startswith(("sqlite_", "tunnel_")):
            raise TunnelConfigurationError(
                f"table {name!r}: expected letters, digits and _, not beginning with a digit, sqlite_ or tunnel_"
            )
        self.name = name

    @property
    def schema(self):
        return (
            f"tunnel.table.{self.name}",
            (
                f"""
                CREATE TABLE {self.name} (
                    position INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, channel TEXT NOT NULL,
                    id TEXT NOT NULL, time_ms INTEGER NOT NULL, body BLOB NOT NULL
                );
                CREATE UNIQUE INDEX {self.name}_ids ON {self.name} (device, channel, id)
                """,
            ),
        )

    def write(self, connection, messages, time_ms):
        """Returns {device: number of messages with known ids}."""
        (highest,) = connection.execute(f"SELECT ifnull(max(position), 0) FROM {self.name}").fetchone()
        written = _write_rows(
            connection,
            f"INSERT OR IGNORE INTO {self.name} (device, channel, id, time_ms, body) VALUES",
            "(?, ?, ?, ?, ?)",
            [(each.peer, each.channel, each.id, time_ms, each.body) for each in messages],
        )
        if written == len(messages):
            return {}
        known = Counter(each.peer for each in messages)
        known.subtract(
            dict(
                connection.execute(
                    f"SELECT device, count(*) FROM {self.name} WHERE position > ? GROUP BY device", (highest,)
                )
            )
        )
        return +known


class Transactional:
    """`schema`: (name, steps) for `Database.migrate`, if the function needs tables of its own."""

    def __init__(self, function, schema=None):
        _must_be_plain(function)
        self._function, self.schema = function, schema

    def write(self, connection, messages, time_ms):
        self._function(connection, messages)


class Callable:
    """See above."""

    schema = None

    def __init__(self, function):
        _must_be_plain(function)
        self.function = function

    def write(self, connection, messages, time_ms):
        pass

    def close(self):
        """Called when the keeper has ended its threads."""


def _must_be_plain(function):
    if callbacks.is_async(function):
        raise TunnelConfigurationError(
            f"consumer {getattr(function, '__qualname__', function)!r}: expected a function that is not async; "
            "AsyncDevice.on takes async ones"
        )


def consumer(of):
    """Returns `of` if it is a consumer, or else a consumer that calls it."""
    if hasattr(of, "write") and hasattr(of, "schema"):
        return of
    if callable(of):
        return Callable(of)
    raise TunnelConfigurationError(f"a consumer: expected a function, a Table or a Transactional, got {of!r}")


def _write(consumer, connection, messages, time_ms):
    """Returns {device: number of messages with known ids}. ConsumerError: the consumer refuses the messages."""
    try:
        return callbacks.call(consumer.write, connection, messages, time_ms) or {}
    except sqlite3.Error as error:
        if is_of_store(error):
            raise
        raise ConsumerError(f"{type(error).__name__}: {error}") from error


def _to_epochs_of_openings(connection):
    """Until now a store had one epoch, until it was found to be older than what was sent from it."""
    connection.execute("ALTER TABLE tunnel_received ADD COLUMN seen INTEGER NOT NULL DEFAULT 0")
    connection.execute(
        "CREATE TABLE tunnel_known (peer TEXT PRIMARY KEY, numbers INTEGER NOT NULL, ids INTEGER NOT NULL)"
        " WITHOUT ROWID"
    )
    for name in ("outbox", "tunnel.pushes"):
        begin_older(connection, name)
    connection.execute("DROP TABLE tunnel_epoch")


def _latest_epochs(connection, peer):
    """The peer's epochs, that of the latest message first. By a count of commits: a clock may be wrong."""
    rows = connection.execute(
        "SELECT epoch FROM tunnel_received WHERE peer = ? GROUP BY epoch ORDER BY max(seen) DESC, max(time_ms) DESC",
        (peer,),
    )
    return [epoch for (epoch,) in rows]


class _Known:
    """Counts the messages of a transaction that are dropped because they are known."""

    def __init__(self):
        self.numbers, self.ids = Counter(), Counter()  # by peer

    @property
    def total(self):
        return self.numbers.total() + self.ids.total()

    def count(self, connection):
        """Adds to the peers' counts. Returns log lines about ids: each time a count gets another digit. Numbers come
        again after each cut."""
        lines = []
        for peer in self.numbers.keys() | self.ids.keys():
            (ids,) = connection.execute(
                "INSERT INTO tunnel_known VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
                "numbers = numbers + excluded.numbers, ids = ids + excluded.ids RETURNING ids",
                (peer, self.numbers[peer], self.ids[peer]),
            ).fetchone()
            if len(str(ids)) > len(str(ids - self.ids[peer])) or ids == self.ids[peer] > 0:
                lines.append(
                    f"{peer or 'the cloud'}: messages with known ids are dropped, {ids:,} so far; ids that "
                    "the sender chose have to be unique"
                )
        return lines


def _write_rows(connection, head, row, rows):
    """Returns how many were written."""
    at = written = 0
    for count in _ROWS:
        statement = None
        while len(rows) - at >= count:
            statement = statement or f"{head} {', '.join([row] * count)}"
            values = [value for each in rows[at : at + count] for value in each]
            written += connection.execute(statement, values).rowcount
            at += count
    return written


def _lasts(connection, keys):
    """{(peer, epoch, channel): last number stored, or None}."""
    found, at = {}, 0
    for count in _ROWS:
        statement = None
        while len(keys) - at >= count:
            some = keys[at : at + count]
            # As one text, since between two rows of a result another thread may take the GIL, too.
            statement = statement or (
                "SELECT json_group_object(ordinal, number) FROM (WITH keys (ordinal, peer, epoch, channel) AS "
                f"(VALUES {', '.join(['(?, ?, ?, ?)'] * count)}) SELECT ordinal, number FROM keys "
                "JOIN tunnel_received USING (peer, epoch, channel))"
            )
            values = [value for ordinal, key in enumerate(some) for value in (ordinal, *key)]
            numbers = json.loads(connection.execute(statement, values).fetchone()[0])
            found.update((key, numbers.get(str(ordinal))) for ordinal, key in enumerate(some))
            at += count
    return found


class Inbox:
    """The inbox in `database`. Thread-safe."""

    def __init__(self, database, *, clock=time.time):
        self.database = database
        self._clock = clock
        self.duplicates = 0  # messages dropped by this process, as they are known
        database.migrate("tunnel", STEPS)

    def prepare(self, consumers):
        """Makes the consumers' tables."""
        for each in consumers:
            if each.schema is not None:
                self.database.migrate(*each.schema)

    # ---- what was received

    def received(self, peer, epoch):
        """{channel: last number stored}."""
        with self.database.reader() as connection:
            return dict(
                connection.execute(
                    "SELECT channel, number FROM tunnel_received WHERE peer = ? AND epoch = ?", (peer, epoch)
                )
            )

    def received_of(self, peer, epochs=None):
        """{epoch: {channel: last number stored}}, as far as a greeting has room for it. `epochs`: which; None: those
        of the latest messages. Messages of the others are sent again, and recognized by their numbers."""
        with self.database.reader() as connection:
            if epochs is None:
                epochs = _latest_epochs(connection, peer)[:GREETING_EPOCHS]
        left, found = GREETING_NUMBERS_BYTES, {}
        for epoch in dict.fromkeys(epochs):
            numbers = {}
            for channel, number in sorted(self.received(peer, epoch).items(), key=lambda each: -each[1]):
                left -= len(channel.encode()) + 12
                if left >= 0:
                    numbers[channel] = number
            if numbers:
                left -= len(epoch) + 4
                found[epoch] = numbers
        return found

    def connected(self, device):
        """Remembers that a device of this name was accepted, since when."""
        with self.database.reader() as connection:
            if connection.execute("SELECT 1 FROM tunnel_devices WHERE device = ?", (device,)).fetchone():
                return
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO tunnel_devices VALUES (?, ?)", (device, int(self._clock() * 1000))
            )

    # ---- messages

    def keep(self, arrivals):
        """Writes the new messages of the Arrivals, in one transaction. Durable on return. Returns how many messages
        were new."""
        now_ms = int(self._clock() * 1000)
        known = _Known()
        with self.database.transaction() as connection:
            keys = list(dict.fromkeys((each.peer, each.epoch, each.channel) for each in arrivals))
            lasts, fresh = _lasts(connection, keys), {}
            for peer in dict.fromkeys(key[0] for key in keys if lasts[key] is None):
                self._forget_epochs(connection, peer)
            new = 0
            for each in arrivals:
                key = (each.peer, each.epoch, each.channel)
                last = lasts[key] or 0
                news = fresh.setdefault(each.consumer, [])
                for number, identity, body in each.messages:
                    if number > last:
                        news.append(Message(each.peer, each.channel, number, identity, body))
                        last = number
                        new += 1
                    else:
                        known.numbers[each.peer] += 1
                lasts[key] = last
            for consumer, messages in fresh.items():
                if messages:
                    known.ids.update(_write(consumer, connection, messages, now_ms))
            _write_rows(
                connection,
                "INSERT OR REPLACE INTO tunnel_received (peer, epoch, channel, number, time_ms, seen) VALUES",
                "(?, ?, ?, ?, ?, ?)",
                [(*key, last, now_ms, self.database.commits) for key, last in lasts.items()],
            )
            lines = known.count(connection)
            self.duplicates += known.total
        for line in lines:
            _log.warning("tunnel: %s", line)
        return new

    def _forget_epochs(self, connection, peer):
        for epoch in _latest_epochs(connection, peer)[MAX_EPOCHS:]:
            connection.execute("DELETE FROM tunnel_received WHERE peer = ? AND epoch = ?", (peer, epoch))

    def call(self, arrival, gives_up, took):
        """Calls a Callable consumer for the new messages of an Arrival, and stores their numbers. Returns how many
        there were. `took()` is called after each one that the function returned for, `gives_up(number, error)` after a
        failure: it returns why the message is to be refused, or None. Then ConsumerError is raised, and the messages
        before are stored."""
        key = (arrival.peer, arrival.epoch, arrival.channel)
        last = self.received(arrival.peer, arrival.epoch).get(arrival.channel)
        is_first, last = last is None, last or 0
        done, refused, new = [], [], 0
        try:
            for number, identity, body in arrival.messages:
                if number > last:
                    try:
                        message = Message(arrival.peer, arrival.channel, number, identity, body)
                        callbacks.call(arrival.consumer.function, message)
                    except MessageRefused as error:
                        refused.append((identity, body, str(error)))
                    except Exception as error:
                        if (why := gives_up(number, error)) is None:
                            raise ConsumerError(str(error)) from error
                        refused.append((identity, body, why))
                    else:
                        took()
                    new += 1
                done.append((number, identity, body))
        finally:
            if done:
                self._called(key, done[-1][0], refused, len(done) - new, is_first)
        return new

    def _called(self, key, number, refused, known, is_first):
        now_ms = int(self._clock() * 1000)
        peer, _, channel = key
        with self.database.transaction() as connection:
            if is_first:
                self._forget_epochs(connection, peer)
            connection.execute(
                "INSERT INTO tunnel_received VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET number = max(number, excluded.number), time_ms = excluded.time_ms, seen = excluded.seen",
                (*key, number, now_ms, self.database.commits),
            )
            if known:
                counted = _Known()
                counted.numbers[peer] = known
                counted.count(connection)
                self.duplicates += known
            connection.executemany(
                "INSERT INTO tunnel_refused (peer, channel, id, time_ms, why, body) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (peer, channel, identity, now_ms, why.encode(errors="replace").decode(), body)
                    for identity, body, why in refused
                ],
            )
            if refused:
                connection.execute(
                    "DELETE FROM tunnel_refused WHERE position IN (SELECT position FROM tunnel_refused WHERE peer = ? "
                    "ORDER BY position DESC LIMIT -1 OFFSET ?)",
                    (peer, MAX_REFUSED),
                )

    def refuse(self, arrival, why):
        """Stores the message of an Arrival in `tunnel_refused`, as its consumer does not take it."""
        ((number, identity, body),) = arrival.messages
        last = self.received(arrival.peer, arrival.epoch).get(arrival.channel)
        if number > (last or 0):
            self._called(
                (arrival.peer, arrival.epoch, arrival.channel), number, [(identity, body, why)], 0, last is None
            )

    # ---- dictionaries

    def dictionaries(self):
        """(channel, number, bytes) of each stored dictionary."""
        with self.database.reader() as connection:
            return connection.execute(
                "SELECT channel, number, data FROM tunnel_dictionaries ORDER BY number"
            ).fetchall()

    def keep_dictionary(self, channel, number, data):
        """Stores a dictionary and keeps the latest of this channel; number None: the next one. Returns its number."""
        with self.database.transaction() as connection:
            if number is None:
                number = connection.execute("SELECT ifnull(max(number), 0) + 1 FROM tunnel_dictionaries").fetchone()[0]
            connection.execute(
                "INSERT OR REPLACE INTO tunnel_dictionaries VALUES (?, ?, ?, ?)",
                (number, channel, int(self._clock() * 1000), data),
            )
            connection.execute(
                "DELETE FROM tunnel_dictionaries WHERE channel = ? AND number NOT IN (SELECT number FROM "
                "tunnel_dictionaries WHERE channel = ? ORDER BY number DESC LIMIT 4)",
                (channel, channel),
            )
        return number
