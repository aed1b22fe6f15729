"""A consumer for rows that pipelines send: each becomes a row of a SQL table, with a column for each of its values.

    server.consume("clicks", Rows("clicks"))            # SELECT visit, count FROM clicks

The table has the columns of `Table` but `body`; a column is added when the first row brings it. What SQL has no type
for is text: lists, dicts and arrays are JSON, integers beyond 64 bits are digits.
"""

import json
from collections import Counter

import msgpack

from vmhost.tunnel import arrays
from vmhost.tunnel.errors import ConsumerError
from vmhost.tunnel.inbox import NAME, Table

MAX_COLUMNS = 200  # a device could add columns without end
_OWN = ("position", "device", "channel", "id", "time_ms")
_INTEGER = 4  # the extension for integers beyond 64 bits, as in vmhost/pipeline/values.py


class Rows(Table):
    """Rows in the SQL table `name`: position, device, channel, id, time_ms, and their own columns."""

    @property
    def schema(self):
        return (
            f"tunnel.rows.{self.name}",
            (
                f"""
                CREATE TABLE {self.name} (
                    position INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, channel TEXT NOT NULL,
                    id TEXT NOT NULL, time_ms INTEGER NOT NULL
                );
                CREATE UNIQUE INDEX {self.name}_ids ON {self.name} (device, channel, id)
                """,
            ),
        )

    def write(self, connection, messages, time_ms):
        """As `Table.write`. ConsumerError for a message that is no row."""
        there = {name.lower() for _, name, *_ in connection.execute(f"PRAGMA table_info({self.name})")}
        known = Counter()
        for each in messages:
            row = _row(each)
            for name in row:
                if name.lower() not in there:
                    if len(there) >= MAX_COLUMNS:
                        raise ConsumerError(f"{each.id}: the table {self.name} has {MAX_COLUMNS} columns already")
                    connection.execute(f'ALTER TABLE {self.name} ADD COLUMN "{name}"')
                    there.add(name.lower())
            names = ", ".join((*_OWN[1:], *(f'"{name}"' for name in row)))
            written = connection.execute(
                f"INSERT OR IGNORE INTO {self.name} ({names}) VALUES ({', '.join('?' * (len(_OWN) - 1 + len(row)))})",
                (each.peer, each.channel, each.id, time_ms, *row.values()),
            )
            known[each.peer] += not written.rowcount
        return +known


def _row(message):
    try:
        row = msgpack.unpackb(message.body, ext_hook=_extended, unicode_errors="surrogatepass")
    except Exception as error:  # msgpack raises many types
        raise ConsumerError(f"{message.id}: expected a packed row: {type(error).__name__}: {error}") from None
    names = {name.lower() for name in row if type(name) is str} if type(row) is dict else ()
    if type(row) is not dict or len(names) != len(row) or not all(map(NAME.fullmatch, names)) or names & {*_OWN}:
        raise ConsumerError(f"{message.id}: expected a row: a map of names of columns, none of {', '.join(_OWN)}")
    return {name: _cell(value) for name, value in row.items()}


def _extended(code, data):
    return int.from_bytes(data, "little", signed=True) if code == _INTEGER else arrays.extended(code, data)


def _cell(value):
    if value is None or type(value) in (bool, float, bytes):
        return value
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    if type(value) is not str:
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return value.encode(errors="replace").decode()  # SQLite's texts have no surrogates


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else repr(value)
