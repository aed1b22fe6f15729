"""Writes many rows with few statements.

`sqlite3` releases the GIL for each step of a statement, and each time must get it back from busy threads: a hundred
steps of one row each take a hundred times as long as one step of a hundred rows.
"""

import functools
import itertools

_MAX_ROWS = 512  # of one statement
_ANY_NUMBER = 32  # above, a statement's rows are a power of two, so that the cache holds all variants
_MAX_PARAMETERS = 30_000  # SQLite's limit is 32,766


def write_rows(connection, before, rows, after=""):
    """Executes `before VALUES (?, …), (?, …), … after` for `rows`, a sequence of tuples of one length, in order."""
    left, done = len(rows), 0
    if not left:
        return
    width = len(rows[0])
    size = max(1, min(_MAX_ROWS, 1 << (_MAX_PARAMETERS // width).bit_length() - 1))
    while left:
        while size > left and size > _ANY_NUMBER:
            size >>= 1
        size = min(size, left)
        values = itertools.chain.from_iterable(rows[done : done + size])
        connection.execute(_statement(before, after, width, size), tuple(values))
        done += size
        left -= size


@functools.lru_cache(4096)
def _statement(before, after, width, count):
    row = f"({', '.join('?' * width)})"
    return f"{before} VALUES {', '.join([row] * count)} {after}"
