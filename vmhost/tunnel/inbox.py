"""Received messages: on both sides, in SQLite, each message exactly once.

For each sender and channel the inbox stores the last number, in the same transaction as the message, so that a message
sent again after a cut or crash is recognized. Senders count in *epochs*: a sender that loses its store, or restores an
old one, begins a new epoch, in which numbers start again.

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

import os
import re
import time
from typing import NamedTuple

from vmhost.tunnel.errors import MessageRefused, TunnelConfigurationError

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
)
MAX_REFUSED = 10_000
MAX_EPOCHS = 8  # remembered for one sender
GREETING_NUMBERS_BYTES = 6000  # of last numbers in a greeting
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
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name) or name.lower().startswith(("sqlite_", "tunnel_")):
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
        _write_rows(
            connection,
            f"INSERT OR IGNORE INTO {self.name} (device, channel, id, time_ms, body) VALUES",
            "(?, ?, ?, ?, ?)",
            [(each.peer, each.channel, each.id, time_ms, each.body) for each in messages],
        )


class Transactional:
    """`schema`: (name, steps) for `Database.migrate`, if the function needs tables of its own."""

    def __init__(self, function, schema=None):
        self._function, self.schema = function, schema

    def write(self, connection, messages, time_ms):
        self._function(connection, messages)


class Callable:
    """See above. A coroutine function is refused, as it would need a loop."""

    schema = None

    def __init__(self, function):
        self.function = function

    def write(self, connection, messages, time_ms):
        pass

    def close(self):
        """Called when the keeper has ended its threads."""


def consumer(of):
    """Returns `of` if it is a consumer, or else a consumer that calls it."""
    if hasattr(of, "write") and hasattr(of, "schema"):
        return of
    if callable(of):
        return Callable(of)
    raise TunnelConfigurationError(f"a consumer: expected a function, a Table or a Transactional, got {of!r}")


def _write_rows(connection, head, row, rows):
    at = 0
    for count in _ROWS:
        statement = None
        while len(rows) - at >= count:
            statement = statement or f"{head} {', '.join([row] * count)}"
            connection.execute(statement, [value for each in rows[at : at + count] for value in each])
            at += count


class Inbox:
    """The inbox in `database`. Thread-safe."""

    def __init__(self, database, *, clock=time.time):
        self.database = database
        self._clock = clock
        database.migrate("tunnel", STEPS)

    def prepare(self, consumers):
        """Makes the consumers' tables."""
        for each in consumers:
            if each.schema is not None:
                self.database.migrate(*each.schema)

    # ---- epochs

    def epoch(self):
        """The epoch of the messages that this side sends."""
        with self.database.transaction() as connection:
            row = connection.execute("SELECT epoch FROM tunnel_epoch").fetchone()
            return row[0] if row else self._begin(connection)

    def new_epoch(self):
        """Begins a new epoch, as the other end knows numbers that this side has not given out."""
        with self.database.transaction() as connection:
            return self._begin(connection)

    def _begin(self, connection):
        epoch = os.urandom(8)
        connection.execute(
            "INSERT INTO tunnel_epoch VALUES (1, ?, NULL) ON CONFLICT (one) DO UPDATE SET epoch = excluded.epoch",
            (epoch,),
        )
        return epoch

    def received(self, peer, epoch):
        """{channel: last number stored}."""
        with self.database.reader() as connection:
            return dict(
                connection.execute(
                    "SELECT channel, number FROM tunnel_received WHERE peer = ? AND epoch = ?", (peer, epoch)
                )
            )

    @staticmethod
    def for_greeting(received):
        """The part of `received` that fits into a greeting, the highest numbers first. Messages of the others are sent
        again, and recognized by their numbers."""
        left, found = GREETING_NUMBERS_BYTES, {}
        for channel, number in sorted(received.items(), key=lambda each: -each[1]):
            left -= len(channel.encode()) + 12
            if left < 0:
                break
            found[channel] = number
        return found

    def peer_epoch(self):
        """On a device: the cloud's epoch as last seen, or None."""
        with self.database.reader() as connection:
            row = connection.execute("SELECT peer FROM tunnel_epoch").fetchone()
        return row[0] if row else None

    def set_peer_epoch(self, epoch):
        with self.database.transaction() as connection:
            connection.execute("UPDATE tunnel_epoch SET peer = ?", (epoch,))

    # ---- messages

    def keep(self, arrivals):
        """Writes the new messages of the Arrivals, in one transaction. Durable on return. Returns how many messages
        were new."""
        now_ms = int(self._clock() * 1000)
        with self.database.transaction() as connection:
            lasts, fresh = {}, {}
            new = 0
            for each in arrivals:
                key = (each.peer, each.epoch, each.channel)
                last = lasts.get(key)
                if last is None:
                    row = connection.execute(
                        "SELECT number FROM tunnel_received WHERE peer = ? AND epoch = ? AND channel = ?", key
                    ).fetchone()
                    last = row[0] if row else 0
                    if row is None:
                        self._forget_epochs(connection, each.peer)
                news = fresh.setdefault(each.consumer, [])
                for number, identity, body in each.messages:
                    if number > last:
                        news.append(Message(each.peer, each.channel, number, identity, body))
                        last = number
                        new += 1
                lasts[key] = last
            for consumer, messages in fresh.items():
                if messages:
                    consumer.write(connection, messages, now_ms)
            _write_rows(
                connection,
                "INSERT OR REPLACE INTO tunnel_received (peer, epoch, channel, number, time_ms) VALUES",
                "(?, ?, ?, ?, ?)",
                [(*key, last, now_ms) for key, last in lasts.items()],
            )
        return new

    def _forget_epochs(self, connection, peer):
        epochs = connection.execute(
            "SELECT epoch FROM tunnel_received WHERE peer = ? GROUP BY epoch ORDER BY max(time_ms) DESC", (peer,)
        ).fetchall()
        for (epoch,) in epochs[MAX_EPOCHS:]:
            connection.execute("DELETE FROM tunnel_received WHERE peer = ? AND epoch = ?", (peer, epoch))

    def call(self, arrival):
        """Calls a Callable consumer for the new messages of an Arrival, and stores their numbers. Returns how many
        there were. An error of the function is raised; the messages before it are stored."""
        key = (arrival.peer, arrival.epoch, arrival.channel)
        last = self.received(arrival.peer, arrival.epoch).get(arrival.channel, 0)
        done, refused, new = [], [], 0
        try:
            for number, identity, body in arrival.messages:
                if number > last:
                    try:
                        arrival.consumer.function(Message(arrival.peer, arrival.channel, number, identity, body))
                    except MessageRefused as error:
                        refused.append((identity, body, str(error)))
                    new += 1
                done.append((number, identity, body))
        finally:
            if done:
                self._called(key, done[-1][0], refused)
        return new

    def _called(self, key, number, refused):
        now_ms = int(self._clock() * 1000)
        peer, _, channel = key
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO tunnel_received VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET number = max(number, excluded.number), time_ms = excluded.time_ms",
                (*key, number, now_ms),
            )
            connection.executemany(
                "INSERT INTO tunnel_refused (peer, channel, id, time_ms, why, body) VALUES (?, ?, ?, ?, ?, ?)",
                [(peer, channel, identity, now_ms, why, body) for identity, body, why in refused],
            )
            if refused:
                connection.execute(
                    "DELETE FROM tunnel_refused WHERE position <= (SELECT max(position) FROM tunnel_refused) - ?",
                    (MAX_REFUSED,),
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
