"""Epochs: in which opening of a store a number was given out.

Numbers that only grow are unique within one store, but not after it was restored, copied or wiped: then numbers that
others know already are given out again, for something else. So a number counts together with its *epoch*, the random
`Database.opening` in which it was given out. `store_epochs` has the first number of each epoch; it is written in the
transaction that uses this number. What was stored before keeps its epoch, whoever opens the store later.
"""

import os

OPENING_BYTES = 8


class Epochs:
    """The epochs of the numbers `name` in `database` (`Database.epochs`). Thread-safe."""

    def __init__(self, database, name):
        self._database, self.name = database, name
        self._first = None  # numbers from here on are of this opening, though perhaps not written yet

    def start(self, first):
        """For numbers that wait in memory: those from `first` on are of this opening. `begin` comes with the
        transaction that writes them."""
        self._first = first

    def begin(self, connection, first):
        """Called in the transaction that uses the number `first`, the next one: it is of this opening, as all later
        ones are. Does nothing if the opening has numbers already."""
        if self.is_begun(connection):
            return
        connection.execute(
            "INSERT OR REPLACE INTO store_epochs VALUES (?, ?, ?)", (self.name, first, self._database.opening)
        )

    def is_begun(self, connection):
        row = connection.execute(
            "SELECT epoch FROM store_epochs WHERE name = ? ORDER BY first DESC LIMIT 1", (self.name,)
        ).fetchone()
        return row is not None and row[0] == self._database.opening

    def all(self, connection=None):
        """[(first number, epoch)], in order. `connection`: of a transaction or a reader."""
        if connection is None:
            with self._database.reader() as connection:
                return self.all(connection)
        return connection.execute(
            "SELECT first, epoch FROM store_epochs WHERE name = ? ORDER BY first", (self.name,)
        ).fetchall()

    def of(self, number):
        """The epoch of a number, None if it is older than epochs."""
        if self._first is not None and number >= self._first:
            return self._database.opening
        with self._database.reader() as connection:
            row = connection.execute(
                "SELECT epoch FROM store_epochs WHERE name = ? AND first <= ? ORDER BY first DESC LIMIT 1",
                (self.name, number),
            ).fetchone()
        return row[0] if row else None

    def drop(self, connection, firsts):
        """Drops epochs none of whose numbers is in use any more, by their first numbers."""
        connection.executemany(
            "DELETE FROM store_epochs WHERE name = ? AND first = ?", [(self.name, first) for first in firsts]
        )


def begin_older(connection, name):
    """Part of migrations: gives an epoch to the numbers from before epochs were stored. If the tunnel has sent some,
    it was with the one epoch of its own."""
    epoch = None
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'tunnel_epoch'").fetchone():
        epoch = connection.execute("SELECT epoch FROM tunnel_epoch").fetchone()
    connection.execute(
        "INSERT OR IGNORE INTO store_epochs VALUES (?, 0, ?)", (name, epoch[0] if epoch else os.urandom(OPENING_BYTES))
    )


def reached(epochs, received):
    """{channel: the last of our numbers that the other end has}. `epochs`: as from `Epochs.all`; `received`: {epoch:
    {channel: its last number}}. A number beyond its epoch was given out by another copy of the store: it says that the
    other end has all that the two have in common."""
    found = {}
    for at, (first, epoch) in enumerate(epochs):
        end = epochs[at + 1][0] if at + 1 < len(epochs) else None
        for channel, number in received.get(epoch, {}).items():
            if end is not None:
                number = min(number, end - 1)
            if number >= first:
                found[channel] = max(number, found.get(channel, 0))
    return found
