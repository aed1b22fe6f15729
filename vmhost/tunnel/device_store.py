"""A device's persistent state: the outbox, received messages, dictionaries.

It may be a store of its own, or the one of a pipeline: then the pipeline's outbox is sent by the tunnel. All methods
block. Thread-safe.
"""

import os
import time
import uuid

from vmhost.stores import Database, Outbox, reached
from vmhost.stores.ages import machine_time
from vmhost.tunnel.compression import Compression
from vmhost.tunnel.connection import checked_name
from vmhost.tunnel.errors import OutboxFullError, TunnelConfigurationError
from vmhost.tunnel.inbox import Inbox
from vmhost.tunnel.limits import ID_CHARACTERS
from vmhost.tunnel.pushes import fitting

_END = 1 << 62  # above all numbers


class _Commits:
    """A part of the database that writes nothing; it is notified of each commit."""

    pending = False
    with_every_commit = True

    def __init__(self, changed):
        self.changed = changed

    def write(self, connection):
        return self

    def committed(self):
        self.changed()

    def undone(self):
        pass


class DeviceStore:
    """`store`: a path, or an open Database, which `close` leaves open. `rules`: {channel: Rule}. `outbox`: settings of
    Outbox (max_bytes, max_age_ms). `running`: as `ages.machine_time`."""

    def __init__(self, store, *, rules=None, outbox=None, clock=time.time, running=machine_time):
        self._own = not isinstance(store, Database)
        if self._own:
            if not isinstance(store, (str, os.PathLike)):
                raise TunnelConfigurationError(f"store: expected a path or a Database, got {type(store).__name__}")
            store = Database(store)
        self.database = store
        self._part = None
        try:
            self.outbox = Outbox(store, clock=clock, running=running, **(outbox or {}))
            self.inbox = Inbox(store, clock=clock)
        except BaseException:
            if self._own:
                store.close()
            raise
        self.rules = dict(rules or {})
        self.put_bytes = 0  # bytes put since a reader reset it to 0
        self._estimates = {}  # channel -> [entries, bytes], upper bounds since the last count

    @property
    def epoch(self):
        """The epoch of messages put from now on."""
        return self.database.opening

    def watch(self, changed):
        """`changed()` is called after each commit, on any thread."""
        self._part = _Commits(changed)
        self.database.attach(self._part)

    def close(self):
        if self._part is not None:
            self.database.detach(self._part)
        if self._own:
            self.database.close()

    # ---- sending

    def put(self, channel, bodies, identities=None):
        """Stores bodies (bytes) for the channel, all or none; returns their ids. Durable on return. OutboxFullError."""
        checked_name(channel)
        for body in bodies:
            if not isinstance(body, (bytes, bytearray, memoryview)):
                raise TunnelConfigurationError(
                    f"message on {channel}: expected bytes, got {type(body).__name__}; pack it first, with JSON say"
                )
        identities = identities or [uuid.uuid4().hex for _ in bodies]
        for identity in identities:
            if not isinstance(identity, str) or not 1 <= len(identity) <= ID_CHARACTERS:
                raise TunnelConfigurationError(
                    f"message on {channel}: the id has to be a text of 1 to {ID_CHARACTERS} characters"
                )
        bodies = [bytes(body) for body in bodies]
        self.put_bytes += sum(map(len, bodies))
        with self.database.transaction() as connection:
            rule = self.rules.get(channel)
            if rule is not None:
                self._make_room(connection, channel, rule, len(bodies), sum(map(len, bodies)))
            self.outbox.put_many((identity, channel, body, "") for identity, body in zip(identities, bodies))
        return identities

    def _make_room(self, connection, channel, rule, count, size):
        def counted():
            row = connection.execute(
                "SELECT count(*), ifnull(sum(length(body)), 0) FROM outbox_entries WHERE channel = ?", (channel,)
            ).fetchone()
            return list(row)

        def full(held):
            return (rule.max_count is not None and held[0] + count > rule.max_count) or (
                rule.max_bytes is not None and held[1] + size > rule.max_bytes
            )

        if rule.max_age_s is not None:
            self.outbox.drop_older(channel, int(rule.max_age_s * 1000))
        held = self._estimates.get(channel) or counted()
        if full(held):
            held = counted()
        while full(held):
            if rule.when_full == "refuse":
                raise OutboxFullError(
                    f"channel {channel}: {held[0]} messages of {held[1]} bytes wait to be sent; its rule takes "
                    f"{rule.max_count or 'any number'} of {rule.max_bytes or 'any'} bytes"
                )
            dropped = self.outbox.drop(channel, held[0] if rule.when_full == "replace" else max(1, held[0] // 64))
            if not dropped:
                break  # larger than the channel's whole bound: it is kept alone
            held = counted()
        self._estimates[channel] = [held[0] + count, held[1] + size]

    def channels(self):
        return self.outbox.channels()

    def take(self, channel, after, limit=100):
        """(epoch, entries): the oldest entries after `after`, of one epoch and at most TAKEN_BYTES. None while epochs
        sent earlier are not acknowledged."""
        for first, end, epoch in self.outbox.sent_epochs():
            after, end = max(after, first - 1), end or _END
            with self.database.reader() as connection:
                sizes = connection.execute(
                    "SELECT length(body) FROM outbox_entries WHERE channel = ? AND number > ? AND number < ? "
                    "ORDER BY number LIMIT ?",
                    (channel, after, end, limit),
                )
                count = fitting(size for (size,) in sizes)
            if count:
                return epoch, self.outbox.take(channel, limit=count, after=after)
        return None

    def acknowledged(self, pairs):
        """The cloud has stored everything up to these numbers: [(channel, number)]."""
        with self.database.transaction():
            return sum(self.outbox.acknowledge_until(channel, number) for channel, number in pairs)

    def sent_epochs(self):
        """The epochs of the oldest entries that wait; the cloud's welcome has its last numbers of them."""
        return [epoch for _, _, epoch in self.outbox.sent_epochs()]

    def welcomed(self, received):
        """Takes the cloud's last numbers, {epoch: {channel: number}}. Returns ({channel: last entry that it has}, how
        many entries that removed)."""
        found = reached(self.outbox.epochs(), received)
        return found, self.acknowledged(found.items()) if found else 0

    # ---- receiving

    def received(self):
        """{the cloud's epoch: {channel: last number}} of received messages, for a greeting."""
        return self.inbox.received_of("")

    def compression(self):
        return Compression(self.inbox.dictionaries())
