"""A consumer that writes into PostgreSQL: a message and its number are in one transaction, so it counts exactly once.

    server.consume("features", PostgreSQL("host=db dbname=shop user=tunnel", "features"))

It needs psycopg (`pip install vmhost[tunnel-postgresql]`). Each server process has one connection for each such
consumer, opened at the first message, and again after a failure; until then messages stay on the devices. All messages
that arrive during a transaction go into the next one.

The database has two tables: the consumer's own, made if missing, and `tunnel_received`, with the last number of each
device, epoch and channel. The row there is locked first, so several processes, and several servers with stores of their
own, may take messages of the same device.
"""

import re
from collections import Counter

from vmhost import callbacks
from vmhost.stores import StoreError
from vmhost.tunnel.errors import TunnelConfigurationError
from vmhost.tunnel.inbox import Message

CONNECT_S = 10
_SILENT_MS = 20_000  # TCP time-out for unacknowledged data
_STATEMENT_MS = 60_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,54}")
_RECEIVED = """
    CREATE TABLE IF NOT EXISTS tunnel_received (
        peer text, epoch bytea, channel text, number bigint NOT NULL, time timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (peer, epoch, channel)
    )
"""
_LOCK = 0x766D6873  # advisory lock, held while tables are made
_NO_ZERO = "\N{SYMBOL FOR NULL}"  # replaces NUL, which ids may have but PostgreSQL's texts may not


class PostgreSQL:
    """`dsn`: a connection string of libpq, or a function that returns one. `table`: for rows with position
    (increasing), device, channel, id, time, body. `write`: instead of it, a function of (cursor, messages) that writes
    with the cursor of the transaction. `schema`: SQL that makes its tables, and may run several times."""

    schema = None  # no tables in the server's own store

    def __init__(self, dsn, table=None, *, write=None, schema=None):
        if (table is None) == (write is None):
            raise TunnelConfigurationError("PostgreSQL: give a table, or a function that writes; not both")
        if table is not None and (not _NAME.fullmatch(table) or table.lower().startswith(("tunnel_", "pg_"))):
            raise TunnelConfigurationError(
                f"PostgreSQL table {table!r}: expected up to 55 letters, digits and _, not beginning with a digit, "
                "tunnel_ or pg_"
            )
        if write is not None and callbacks.is_async(write):
            raise TunnelConfigurationError("PostgreSQL: write: expected a function that is not async")
        try:
            import psycopg
        except ImportError as error:
            raise TunnelConfigurationError(
                "PostgreSQL: psycopg is not installed; pip install 'vmhost[tunnel-postgresql]'"
            ) from error
        if not callable(dsn):
            try:
                psycopg.conninfo.conninfo_to_dict(dsn)
            except psycopg.ProgrammingError as error:
                raise TunnelConfigurationError(
                    f"PostgreSQL: the connection string cannot be read: {str(error).strip()}; expected one such as "
                    "host=db dbname=shop user=tunnel"
                ) from None
        self._psycopg = psycopg
        self._dsn, self._table, self._function = dsn, table, write
        self._schema = _table_schema(table) if table is not None else schema
        self._connection = None
        self._known = {}

    def write(self, connection, messages, time_ms):
        """Writes no message: the server's own store keeps only the numbers. Returns {device: messages with known ids}
        of the latest `keep`."""
        known, self._known = self._known, {}
        return known

    def keep(self, arrivals):
        """Writes the new messages of the Arrivals, in one transaction; returns their number. Used by one thread at a
        time. StoreError: the database is not reachable; any other error: it refuses the data."""
        psycopg = self._psycopg
        try:
            with self._connected() as connection, connection.transaction(), connection.cursor() as cursor:
                return self._keep(cursor, arrivals)
        except psycopg.OperationalError as error:
            self.close()
            raise StoreError(f"PostgreSQL: {str(error).strip().splitlines()[0]}") from error
        except psycopg.InterfaceError as error:
            self.close()
            raise StoreError(f"PostgreSQL: {error}") from error

    def _connected(self):
        """A context for one use of the connection, which it leaves open."""
        if self._connection is None or self._connection.closed:
            dsn = callbacks.call(self._dsn) if callable(self._dsn) else self._dsn
            connection = self._psycopg.connect(
                dsn,
                autocommit=True,
                client_encoding="UTF8",
                connect_timeout=CONNECT_S,
                tcp_user_timeout=_SILENT_MS,
                options=f"-c statement_timeout={_STATEMENT_MS} -c synchronous_commit=on",
            )
            try:
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                    connection.execute(_RECEIVED)
                    if self._schema:
                        connection.execute(self._schema)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return _Borrowed(self._connection)

    def _keep(self, cursor, arrivals):
        keys = sorted({(each.peer, each.epoch, each.channel) for each in arrivals})  # sorted: no deadlock
        peers, epochs, channels = map(list, zip(*keys))
        given = "unnest(%s::text[], %s::bytea[], %s::text[]) AS given (peer, epoch, channel)"
        cursor.execute(
            f"INSERT INTO tunnel_received (peer, epoch, channel, number) SELECT *, 0 FROM {given} "
            "ORDER BY peer, epoch, channel ON CONFLICT DO NOTHING",
            (peers, epochs, channels),
        )
        cursor.execute(
            f"SELECT peer, epoch, channel, number FROM tunnel_received JOIN {given} USING (peer, epoch, channel) "
            "ORDER BY peer, epoch, channel FOR UPDATE OF tunnel_received",
            (peers, epochs, channels),
        )
        lasts = {(peer, bytes(epoch), channel): number for peer, epoch, channel, number in cursor.fetchall()}
        messages = []
        for each in arrivals:
            key = (each.peer, each.epoch, each.channel)
            for number, identity, body in each.messages:
                if number > lasts[key]:
                    lasts[key] = number
                    identity = identity.replace("\0", _NO_ZERO)
                    messages.append(Message(each.peer, each.channel, number, identity, body))
        if messages:
            self._write(cursor, messages)
        cursor.execute(
            "UPDATE tunnel_received SET number = new.number, time = now() FROM "
            "unnest(%s::text[], %s::bytea[], %s::text[], %s::bigint[]) AS new (peer, epoch, channel, number) "
            "WHERE tunnel_received.peer = new.peer AND tunnel_received.epoch = new.epoch "
            "AND tunnel_received.channel = new.channel",
            (peers, epochs, channels, [lasts[key] for key in keys]),
        )
        return len(messages)

    def _write(self, cursor, messages):
        if self._function is not None:
            callbacks.call(self._function, cursor, messages)
            return
        cursor.execute(
            f"INSERT INTO {self._table} (device, channel, id, body) SELECT * FROM "
            "unnest(%s::text[], %s::text[], %s::text[], %s::bytea[]) ON CONFLICT (device, channel, id) DO NOTHING "
            "RETURNING device",
            (
                [each.peer for each in messages],
                [each.channel for each in messages],
                [each.id for each in messages],
                [each.body for each in messages],
            ),
        )
        known = Counter(each.peer for each in messages)
        known.subtract(device for (device,) in cursor.fetchall())
        self._known = +known

    def close(self):
        """Closes the connection; the next `keep` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Borrowed:
    def __init__(self, connection):
        self._connection = connection

    def __enter__(self):
        return self._connection

    def __exit__(self, *error):
        return None


def _table_schema(table):
    return f"""
        CREATE TABLE IF NOT EXISTS {table} (
            position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device text NOT NULL, channel text NOT NULL,
            id text NOT NULL, time timestamptz NOT NULL DEFAULT now(), body bytea NOT NULL,
            UNIQUE (device, channel, id)
        )
    """
