"""Pushes: messages that the cloud stores until the device has them. Any process may add one.

    push("cloud.sqlite", "device-7", "profiles", body, ttl_s=86_400, collapse="profile")

A push is a row of the cloud's store. It is delivered at once if the device is connected to any process of the server,
otherwise when it connects. A push is deleted when the device has stored it, when `ttl_s` is over, when a newer one with
the same `collapse` text is added for the same device and channel, or when more than `max_waiting` wait for the device
on this channel (the oldest is deleted; with `when_full="refuse"` the caller gets OutboxFullError).

Server processes listen on datagram sockets in the folder `STORE-processes`. A pushing process sends the device's name
to each; a process that misses it finds the push at its next poll, after a few seconds.
"""

import contextlib
import difflib
import logging
import os
import socket
import time
import uuid
from pathlib import Path

from vmhost.stores import Database, reached
from vmhost.stores.ages import Ages, machine_time
from vmhost.stores.epochs import begin_older
from vmhost.stores.outbox import SENT_EPOCHS
from vmhost.tunnel.connection import checked_name
from vmhost.tunnel.errors import OutboxFullError, TunnelConfigurationError
from vmhost.tunnel.limits import ID_CHARACTERS, TAKEN_BYTES, Limits

STEPS = (
    """
    CREATE TABLE tunnel_pushes (
        number INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, channel TEXT NOT NULL, id TEXT NOT NULL,
        collapse TEXT, time_ms INTEGER NOT NULL, expires_ms INTEGER, body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX tunnel_pushes_ids ON tunnel_pushes (device, channel, id);
    CREATE INDEX tunnel_pushes_order ON tunnel_pushes (device, channel, number);
    CREATE INDEX tunnel_pushes_expiry ON tunnel_pushes (expires_ms) WHERE expires_ms IS NOT NULL
    """,
    lambda connection: begin_older(connection, "tunnel.pushes"),
    lambda connection: _to_ages(connection),
)
_log = logging.getLogger("vmhost.tunnel")
MAX_WAITING = 1000
_COMPARED = 10_000  # names of devices that a mistyped one is compared with
EXPIRED, COLLAPSED, DROPPED = "pushes.expired", "pushes.collapsed", "pushes.dropped"
_FULL = ("oldest", "refuse")
_TAKE = 100
_END = 1 << 62  # above all numbers


def _to_ages(connection):
    """`expires_ms` was a time of day. What is left of it counts from now, when the count of ages begins."""
    connection.execute("UPDATE tunnel_pushes SET expires_ms = max(expires_ms - time_ms, 1)")


class Pushes:
    """The pushes in `database`, which other processes may have open too. Thread-safe. `running`: as
    `ages.machine_time`, by which pushes expire."""

    def __init__(self, database, *, clock=time.time, running=machine_time):
        self.database = database
        self._clock = clock
        self._ages = Ages(database, running)
        database.migrate("tunnel.pushes", STEPS)
        self._epochs = database.epochs("tunnel.pushes")

    def put(
        self,
        device,
        channel,
        body,
        *,
        identity=None,
        ttl_s=None,
        collapse=None,
        max_waiting=MAX_WAITING,
        when_full="oldest",
    ):
        """Stores a push; returns its id. An id that waits already is stored once."""
        checked_name(device, "device")
        checked_name(channel)
        identity = identity or uuid.uuid4().hex
        if not isinstance(body, bytes) or len(body) > Limits().message_bytes:
            raise TunnelConfigurationError(
                f"push to {device}: expected at most {Limits().message_bytes} bytes, got {type(body).__name__}"
                + (f" of {len(body)}" if isinstance(body, bytes) else "")
            )
        if not isinstance(identity, str) or len(identity) > ID_CHARACTERS:
            raise TunnelConfigurationError(f"push to {device}: the id has more than {ID_CHARACTERS} characters")
        if when_full not in _FULL or (ttl_s is not None and not ttl_s > 0) or max_waiting < 1:
            raise TunnelConfigurationError(
                f"push to {device}: when_full is one of {', '.join(_FULL)}, ttl_s above 0, max_waiting at least 1"
            )
        now_ms = int(self._clock() * 1000)
        with self.database.transaction() as connection:
            age_ms = self._ages.advance(connection)
            expires_ms = None if ttl_s is None else age_ms + max(1, int(ttl_s * 1000))
            if collapse is not None:
                removed = connection.execute(
                    "DELETE FROM tunnel_pushes WHERE device = ? AND channel = ? AND collapse = ? AND id != ?",
                    (device, channel, collapse, identity),
                ).rowcount
                self.database.count(COLLAPSED, removed)
            self._expire(connection, age_ms)
            waiting = connection.execute(
                "SELECT count(*) FROM tunnel_pushes WHERE device = ? AND channel = ?", (device, channel)
            ).fetchone()[0]
            if waiting >= max_waiting:
                if when_full == "refuse":
                    raise OutboxFullError(
                        f"{waiting} pushes wait for {device} on {channel} already; the limit is {max_waiting}"
                    )
                connection.execute(
                    "DELETE FROM tunnel_pushes WHERE number IN (SELECT number FROM tunnel_pushes "
                    "WHERE device = ? AND channel = ? ORDER BY number LIMIT ?)",
                    (device, channel, waiting - max_waiting + 1),
                )
                self.database.count(DROPPED, waiting - max_waiting + 1)
            if not self._epochs.is_begun(connection):
                self._begin_epoch(connection)
            connection.execute(
                "INSERT OR IGNORE INTO tunnel_pushes (device, channel, id, collapse, time_ms, expires_ms, body) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (device, channel, identity, collapse, now_ms, expires_ms, body),
            )
        return identity

    def _begin_epoch(self, connection):
        spans = self._spans(connection)
        self._epochs.drop(connection, [first for first, end, _ in spans if not self._is_used(connection, first, end)])
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'tunnel_pushes'").fetchone()
        self._epochs.begin(connection, (row[0] if row else 0) + 1)

    def _spans(self, connection):
        """(first number, first number of the next epoch, epoch), in order."""
        found = self._epochs.all(connection)
        return [(first, end, epoch) for (first, epoch), (end, _) in zip(found, [*found[1:], (_END, None)])]

    @staticmethod
    def _is_used(connection, first, end, where="1", given=()):
        return connection.execute(
            f"SELECT 1 FROM tunnel_pushes WHERE number >= ? AND number < ? AND {where} LIMIT 1", (first, end, *given)
        ).fetchone()

    def _sent_epochs(self, connection, device):
        """The `_spans` of the device's oldest pushes, as `Outbox.sent_epochs`."""
        spans, found = self._spans(connection), []
        if len(spans) <= SENT_EPOCHS:
            return spans
        for span in spans:
            if self._is_used(connection, *span[:2], "device = ?", (device,)):
                found.append(span)
                if len(found) == SENT_EPOCHS:
                    break
        return found

    def reached(self, received):
        """{channel: the last push that a device has}, by its greeting: {epoch: {channel: number}}."""
        return reached(self._epochs.all(), received)

    def _expire(self, connection, age_ms):
        removed = connection.execute("DELETE FROM tunnel_pushes WHERE expires_ms <= ?", (age_ms,)).rowcount
        self.database.count(EXPIRED, removed)

    def expire(self):
        with self.database.transaction() as connection:
            self._expire(connection, self._ages.advance(connection))

    def channels(self, device):
        """{channel: number of its newest push} of the pushes that wait for the device."""
        with self.database.reader() as connection:
            return dict(
                connection.execute(
                    "SELECT channel, max(number) FROM tunnel_pushes WHERE device = ? GROUP BY channel", (device,)
                )
            )

    def take(self, device, channel, after=0, limit=_TAKE):
        """(epoch, [(number, id, body)]): waiting pushes of one epoch, oldest first, of at most TAKEN_BYTES; they stay
        until acknowledged. None while epochs sent earlier are not acknowledged."""
        where = (
            "device = ? AND channel = ? AND number > ? AND number < ? AND ifnull(expires_ms > ?, 1) "
            "ORDER BY number LIMIT ?"
        )
        with self.database.reader() as connection:
            now_ms = self._ages.now_ms(connection)
            for first, end, epoch in self._sent_epochs(connection, device):
                given = (device, channel, max(after, first - 1), end, now_ms)
                sizes = connection.execute(f"SELECT length(body) FROM tunnel_pushes WHERE {where}", (*given, limit))
                count = fitting(size for (size,) in sizes)
                if count:
                    return epoch, connection.execute(
                        f"SELECT number, id, body FROM tunnel_pushes WHERE {where}", (*given, count)
                    ).fetchall()
        return None

    def acknowledge(self, kept):
        """`kept`: (device, channel, number): the device has stored everything up to the number."""
        with self.database.transaction() as connection:
            connection.executemany("DELETE FROM tunnel_pushes WHERE device = ? AND channel = ? AND number <= ?", kept)

    def waiting(self):
        """[(device, channel, number of pushes, bytes)]."""
        with self.database.reader() as connection:
            return connection.execute(
                "SELECT device, channel, count(*), sum(length(body)) FROM tunnel_pushes GROUP BY device, channel"
            ).fetchall()


def fitting(sizes):
    """How many of these sizes, in order, fit into TAKEN_BYTES; at least one."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > TAKEN_BYTES:
            break
        count += 1
    return count


# ---- notifying the server's processes


def processes_folder(store):
    return Path(f"{store}-processes")


def listen(store):
    """A datagram socket that receives the names of devices with new pushes; `unlisten` removes its file."""
    folder = processes_folder(store)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{os.getpid()}.{uuid.uuid4().hex[:8]}.push"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        with short_address(folder, path.name) as name:
            listening.bind(name)
    except BaseException:
        listening.close()
        raise
    return listening, path


def unlisten(listening, path):
    listening.close()
    with contextlib.suppress(OSError):
        os.unlink(path)


def notify(store, *devices):
    """Tells all processes of the server that pushes wait for the devices. Returns how many got it."""
    count = 0
    folder = processes_folder(store)
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".push")]
    except OSError:
        return 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
        for name in names:
            try:
                with short_address(folder, name) as address:
                    for device in devices:
                        sending.sendto(device.encode(), address)
                count += 1
            except ConnectionRefusedError:  # the process died
                with contextlib.suppress(OSError):
                    os.unlink(folder / name)
            except OSError:
                pass  # its queue is full: it polls anyway
    return count


@contextlib.contextmanager
def short_address(folder, name):
    """Within the block: an address of at most 107 bytes, the limit of a Unix socket's."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


def push(store, device, channel, body, **settings):
    """Adds a push to a server's store; returns its id.

    `store`: the path of the server's store. `device`: the name of the device. `channel`, `body`: of the message, bytes.

    Other settings are those of `Pushes.put`: `ttl_s`, `collapse`. Works from any process, even while no server runs. A
    warning is logged if no device of this name has connected yet.
    """
    with Database(store, shared=True) as database:
        identity = Pushes(database).put(device, channel, body, **settings)
        if (warning := _unknown(database, device)) is not None:
            _log.warning("tunnel: %s", warning)
    notify(store, device)
    return identity


def _unknown(database, device):
    """What to say about a device that never connected, None if it did."""
    with database.reader() as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'tunnel_devices'").fetchone():
            names = []
        elif connection.execute("SELECT 1 FROM tunnel_devices WHERE device = ?", (device,)).fetchone():
            return None
        else:
            names = [name for (name,) in connection.execute("SELECT device FROM tunnel_devices LIMIT ?", (_COMPARED,))]
    near = difflib.get_close_matches(device, names, 1)
    return f"{device}: no device of this name has connected yet; the push waits for it" + (
        f". Is it {near[0]}?" if near else ""
    )
