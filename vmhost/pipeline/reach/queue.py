"""The queue of messages, and the audit: two tables of the pipeline's store.

A message is in the queue once, by its channel and id. It waits until it is due, then it is sent, or not; without its
body it stays for as long as caps count it. Each decision about a message, with its reason, is a line of the audit,
written in the same transaction.
"""

import json
import threading
from dataclasses import dataclass

from vmhost.pipeline.values import pack, unpack

WAITING, SENT, NOT_SENT = 0, 1, 2
# decisions in the audit
SENT_WORD = "sent"
RETRY, HELD = "retry", "held"  # the message keeps waiting
CAPPED, EXPIRED, GIVEN_UP, MISSED = "capped", "expired", "given_up", "missed"
OUTSIDE, OVERFLOW = "outside", "overflow"
WORDS = (SENT_WORD, RETRY, HELD, CAPPED, EXPIRED, GIVEN_UP, MISSED, OUTSIDE, OVERFLOW)
MAX_WAITING = 100_000  # of one channel; further ones are refused
MAX_AUDIT = 100_000
_KEEP_MS = 7 * 86_400_000  # how long ended messages stay
STEPS = (
    "CREATE TABLE reach_channels (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
    """
    CREATE TABLE reach_messages (
        number INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT NOT NULL, id TEXT NOT NULL, person TEXT NOT NULL,
        source TEXT NOT NULL, priority INTEGER NOT NULL, state INTEGER NOT NULL, made_ms INTEGER NOT NULL,
        due_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, ended_ms INTEGER, tries INTEGER NOT NULL,
        held TEXT, body BLOB, UNIQUE (channel, id)
    );
    CREATE INDEX reach_waiting ON reach_messages (channel, priority DESC, number) WHERE state = 0;
    CREATE INDEX reach_due ON reach_messages (channel, due_ms) WHERE state = 0;
    CREATE INDEX reach_sent ON reach_messages (channel, person, ended_ms) WHERE state = 1;
    CREATE INDEX reach_ended ON reach_messages (ended_ms) WHERE state != 0;
    CREATE INDEX reach_persons ON reach_messages (person);
    CREATE TABLE reach_audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, channel TEXT NOT NULL, id TEXT NOT NULL,
        person TEXT NOT NULL, source TEXT NOT NULL, what TEXT NOT NULL, why TEXT NOT NULL, tries INTEGER NOT NULL
    );
    CREATE INDEX reach_audit_persons ON reach_audit (person)
    """,
)
AUDIT_COLUMNS = ("at_ms", "channel", "id", "person", "source", "what", "why", "tries")


@dataclass(frozen=True, slots=True)
class Message:
    """A message for the queue. `outside`: the reason for which it is not to be sent at all."""

    channel: str
    id: str
    person: str
    source: str
    priority: int
    expires_ms: int  # from its making
    body: dict
    outside: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that is due."""

    number: int
    id: str
    person: str
    source: str
    priority: int
    expires_ms: int
    tries: int
    held: str | None
    body: dict


class MessageQueue:
    """The queue in `database`. Thread-safe; each channel has one thread that takes its messages.

    As a part of the database it holds messages of tasks' results (`offer`) until the next commit: they are stored with
    the rows, or before them. An id that is known is not taken again.
    """

    with_every_commit = True

    def __init__(self, database, clock, keep_ms=0):
        self.database, self._clock = database, clock
        self.live = getattr(clock, "live", True)
        self._keep_ms = max(_KEEP_MS, keep_ms)
        self._lock = threading.Lock()
        self._offered = []
        self.offered = lambda: None  # called when offered messages were stored
        database.migrate("pipeline.reach", STEPS)
        database.attach(self)

    def now_ms(self):
        return int(self._clock() * 1000)

    def ms_after(self, wait_ms):
        """When a wait for something outside ends. The clock of a replay stands still after the last event: no such wait
        ends by it, so the wait takes none of its time."""
        return self.now_ms() + (wait_ms if self.live else 0)

    # ---- adding

    def put(self, connection, messages):
        """Called inside of a transaction."""
        now_ms = self.now_ms()
        room = {}
        for one in messages:
            if one.outside is not None:
                if not self._known(connection, one):
                    self._insert(connection, one, NOT_SENT, now_ms)
                    self._audit(connection, now_ms, one.channel, one, OUTSIDE, one.outside, 0)
                continue
            if one.channel not in room:
                sql = "SELECT count(*) FROM reach_messages WHERE channel = ? AND state = 0"
                room[one.channel] = MAX_WAITING - connection.execute(sql, (one.channel,)).fetchone()[0]
            if room[one.channel] > 0:
                room[one.channel] -= self._insert(connection, one, WAITING, now_ms)
            elif not self._known(connection, one):
                self._insert(connection, one, NOT_SENT, now_ms)
                why = f"{MAX_WAITING:,} messages wait for this channel already"
                self._audit(connection, now_ms, one.channel, one, OVERFLOW, why, 0)

    @staticmethod
    def _known(connection, one):
        sql = "SELECT 1 FROM reach_messages WHERE channel = ? AND id = ?"
        return connection.execute(sql, (one.channel, one.id)).fetchone() is not None

    @staticmethod
    def _insert(connection, one, state, now_ms):
        """The number of new messages: 1 or 0."""
        ended_ms, body = (None, pack(one.body)) if state == WAITING else (now_ms, None)
        return connection.execute(
            "INSERT OR IGNORE INTO reach_messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, NULL, ?)",
            (
                *(one.channel, one.id, one.person, one.source, one.priority, state, now_ms, now_ms),
                *(now_ms + one.expires_ms, ended_ms, body),
            ),
        ).rowcount

    def offer(self, messages):
        """Messages for the next commit to store."""
        with self._lock:
            self._offered += messages

    def take_back(self, messages):
        """Removes messages that were offered last and are not to be stored."""
        with self._lock:
            self._offered = [one for one in self._offered if not any(one is other for other in messages)]

    @property
    def pending(self):
        return bool(self._offered)

    def write(self, connection):
        with self._lock:
            offered, self._offered = self._offered, []
        if not offered:
            return None
        try:
            self.put(connection, offered)
        except BaseException:
            self._again(offered)
            raise
        return _Written(self, offered)

    def _again(self, offered):
        with self._lock:
            self._offered[:0] = offered

    def forgotten(self, key):
        with self._lock:
            self._offered = [one for one in self._offered if one.person != key]

    # ---- taking

    def next(self, channel):
        """The due message of a channel that goes first; None."""
        columns = "number, id, person, source, priority, expires_ms, tries, held, body"
        sql = (
            f"SELECT {columns} FROM reach_messages WHERE channel = ? AND state = 0 AND due_ms <= ?"
            " ORDER BY priority DESC, number LIMIT 1"
        )
        with self.database.reader() as connection:
            row = connection.execute(sql, (channel, self.now_ms())).fetchone()
        return None if row is None else Waiting(*row[:-1], unpack(row[-1]))

    def next_due_ms(self, channel):
        """When the next message of a channel is due; None if none waits."""
        sql = "SELECT min(due_ms) FROM reach_messages WHERE channel = ? AND state = 0"
        with self.database.reader() as connection:
            return connection.execute(sql, (channel,)).fetchone()[0]

    def sent_since(self, channel, person, since_ms):
        """How many messages a person was sent after a time."""
        sql = "SELECT count(*) FROM reach_messages WHERE channel = ? AND state = 1 AND person = ? AND ended_ms > ?"
        with self.database.reader() as connection:
            return connection.execute(sql, (channel, person, since_ms)).fetchone()[0]

    def end(self, channel, message, what, why, then=()):
        """Ends a message: it was sent, or never will be. `then`: Messages that follow from it. False if it was
        forgotten meanwhile. StoreError."""
        now_ms, tries = self.now_ms(), message.tries + (what in (SENT_WORD, GIVEN_UP))
        with self.database.transaction() as connection:
            changed = connection.execute(
                "UPDATE reach_messages SET state = ?, ended_ms = ?, tries = ?, held = NULL, body = NULL"
                " WHERE number = ? AND state = 0",
                (SENT if what == SENT_WORD else NOT_SENT, now_ms, tries, message.number),
            ).rowcount
            if changed:
                self._audit(connection, now_ms, channel, message, what, why, tries)
                self.put(connection, then)
        return bool(changed)

    def put_off(self, channel, message, due_ms, what, why, tried=False):
        """Lets a message wait until `due_ms`. The audit records it, unless it was `held` for the same reason before."""
        now_ms = self.now_ms()
        with self.database.transaction() as connection:
            changed = connection.execute(
                "UPDATE reach_messages SET due_ms = ?, tries = ?, held = ? WHERE number = ? AND state = 0",
                (due_ms, message.tries + tried, why if what == HELD else None, message.number),
            ).rowcount
            if changed and (what != HELD or message.held != why):
                self._audit(connection, now_ms, channel, message, what, why, message.tries + tried)

    def due_now(self, channel, person):
        """Makes messages due that are held until a person's page opens."""
        sql = "UPDATE reach_messages SET due_ms = ? WHERE channel = ? AND person = ? AND state = 0 AND held IS NOT NULL"
        with self.database.transaction() as connection:
            connection.execute(sql, (self.now_ms(), channel, person))

    @staticmethod
    def _audit(connection, now_ms, channel, one, what, why, tries):
        connection.execute(
            "INSERT INTO reach_audit VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
            (now_ms, channel, one.id, one.person, one.source, what, why, tries),
        )

    def clock_went_back(self):
        """Sets times in the future back to the present, so that they neither delay messages nor count for caps until
        then."""
        now_ms = self.now_ms()
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE reach_messages SET made_ms = ?1, due_ms = min(due_ms, ?1),"
                " expires_ms = expires_ms - made_ms + ?1 WHERE state = 0 AND made_ms > ?1",
                (now_ms,),
            )
            connection.execute("UPDATE reach_messages SET ended_ms = ?1 WHERE state != 0 AND ended_ms > ?1", (now_ms,))

    def sweep(self):
        """Deletes what is older than any question about it."""
        with self.database.transaction() as connection:
            sql = "DELETE FROM reach_messages WHERE state != 0 AND ended_ms < ?"
            connection.execute(sql, (self.now_ms() - self._keep_ms,))
            connection.execute(
                "DELETE FROM reach_audit WHERE number <= (SELECT max(number) FROM reach_audit) - ?", (MAX_AUDIT,)
            )

    def close(self):
        self.database.detach(self)


class _Written:
    def __init__(self, messages, offered):
        self._messages, self._offered = messages, offered

    def committed(self):
        self._messages.offered()

    def undone(self):
        self._messages._again(self._offered)


# ---- reading


def audit(connection, limit=100, **wanted):
    """The last lines of the audit, newest first, as dicts. `wanted`: values of columns to select by."""
    chosen = {name: value for name, value in wanted.items() if value is not None}
    where = " AND ".join(f"{name} = ?" for name in chosen) or "1"
    columns = ", ".join(AUDIT_COLUMNS)
    if not _is_there(connection):
        return []
    sql = f"SELECT {columns} FROM reach_audit WHERE {where} ORDER BY number DESC LIMIT ?"
    return [dict(zip(AUDIT_COLUMNS, row)) for row in connection.execute(sql, (*chosen.values(), limit))]


def _is_there(connection):
    """Whether a pipeline with channels ever ran on this store."""
    sql = "SELECT 1 FROM sqlite_schema WHERE name = 'reach_audit'"
    return connection.execute(sql).fetchone() is not None


def waiting(connection, limit=100, channel=None):
    """Waiting messages, in the order in which they are due, as dicts."""
    columns = ("due_ms", "channel", "id", "person", "source", "priority", "tries", "held")
    if not _is_there(connection):
        return []
    where, values = ("AND channel = ?", (channel,)) if channel is not None else ("", ())
    sql = f"SELECT {', '.join(columns)} FROM reach_messages WHERE state = 0 {where} ORDER BY due_ms, number LIMIT ?"
    return [dict(zip(columns, row)) for row in connection.execute(sql, (*values, limit))]


def forget(connection, key):
    """Deletes a person's messages and audit, and messages of others that mention the person. Returns how many
    messages."""
    removed = connection.execute("DELETE FROM reach_messages WHERE person = ?", (key,)).rowcount
    connection.execute("DELETE FROM reach_audit WHERE person = ?", (key,))
    mark = key.encode(errors="surrogatepass")
    holding = [
        (number,)
        for number, body in connection.execute("SELECT number, body FROM reach_messages WHERE body IS NOT NULL")
        if mark in body and _mentions(unpack(body), key)
    ]
    connection.executemany("DELETE FROM reach_messages WHERE number = ?", holding)
    return removed + len(holding)


def _mentions(value, key):
    return json.dumps(key) in json.dumps(value, default=repr)
