"""Dictionaries trained on a channel's traffic."""

import sqlite3

from vmhost.stores import Database
from vmhost.tunnel import frames
from vmhost.tunnel.compression import Compression, train
from vmhost.tunnel.errors import TunnelConfigurationError
from vmhost.tunnel.inbox import Inbox, Table


def train_channel(store, channel, table="messages", samples=2000, size=32 << 10):
    """Trains a dictionary on the channel's latest messages in the SQL table, and stores it; the server sends it to each
    device once. Returns a dict of figures. TunnelConfigurationError if there are too few messages."""
    name = Table(table).name
    with Database(store, shared=True) as database:
        with database.reader() as connection:
            if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)).fetchone():
                raise TunnelConfigurationError(f"{store}: there is no table {name}")
            try:
                rows = connection.execute(
                    f"SELECT id, body FROM {name} WHERE channel = ? ORDER BY position DESC LIMIT ?", (channel, samples)
                ).fetchall()
            except sqlite3.OperationalError as error:
                raise TunnelConfigurationError(f"{store}: table {name}: {error}") from error
        # Every fourth message is held out, to measure the dictionary.
        packed = [frames.pack((frames.MESSAGES, 0, [1, identity, body])) for identity, body in rows]
        learned = [body for at, body in enumerate(packed) if at % 4] or packed
        data = train(learned, size)
        number = Inbox(database).keep_dictionary(channel, None, data)
    before, after = Compression(), Compression([(channel, number, data)])
    held_out = packed[::4]

    def mean(compression):
        sizes = [len(found[1]) if (found := compression.pack(channel, body)) else len(body) for body in held_out]
        return round(sum(sizes) / len(sizes))

    return {
        "number": number,
        "bytes": len(data),
        "samples": len(learned),
        "plain_bytes": round(sum(map(len, held_out)) / len(held_out)),
        "packed_before": mean(before),
        "packed_after": mean(after),
    }
