"""Errors of stores, and the mapping of SQLite's errors to them: what, where, the remedy."""

import sqlite3


class StoreError(Exception):
    """A store that cannot be opened, read or written. Earlier commits are still there."""


class StoreInUseError(StoreError):
    """Another process, or another `Database` of this process, has the store open for writing."""


class StoreDamagedError(StoreError):
    """The file is no SQLite database, parts of it are unreadable, or commits are missing from it."""


class StoreForeignError(StoreError):
    """The file is a database, but not a store of vmhost. It was not changed."""


class StoreVersionError(StoreError):
    """The store was written by a newer vmhost. It was not changed."""


class StoreFullError(StoreError):
    """The disk is full. The transaction was rolled back; the store works again when there is space."""


class StoreAccessError(StoreError):
    """The file or its folder cannot be read or written by this process."""


class StoreClosedError(StoreError):
    """The store was closed."""


# Primary result codes of SQLite -> (error, problem, remedy).
_CODES = {
    sqlite3.SQLITE_FULL: (StoreFullError, "the disk is full", "make room; the store then continues by itself"),
    sqlite3.SQLITE_CORRUPT: (
        StoreDamagedError,
        "the file is damaged",
        "stop, copy the file and its -wal aside, and restore a backup or run `sqlite3 FILE .recover`",
    ),
    sqlite3.SQLITE_NOTADB: (
        StoreDamagedError,
        "the file is no SQLite database, or its beginning is damaged",
        "check the path; restore a backup, or move the file away to begin anew",
    ),
    sqlite3.SQLITE_READONLY: (
        StoreAccessError,
        "the file or its folder is read-only",
        "make both writable for this user",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreAccessError,
        "the file cannot be opened or made",
        "check that its folder exists and that this user may read and write it",
    ),
    sqlite3.SQLITE_PERM: (StoreAccessError, "access was refused", "make the file and its folder writable"),
    sqlite3.SQLITE_BUSY: (
        StoreInUseError,
        "another program holds a lock on the file",
        "end it, or let it use a read-only connection",
    ),
    sqlite3.SQLITE_LOCKED: (StoreInUseError, "a reader of this process blocks it", "close it and try again"),
    sqlite3.SQLITE_IOERR: (
        StoreError,
        "reading or writing failed",
        "check the disk, the quota and the limit on a file's size (ulimit -f), then try again",
    ),
}


def is_of_store(error):
    """Whether a `sqlite3.Error` says that the store cannot be used now, not that a statement or its data is wrong."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _CODES


def store_error(path, error, doing):
    """The StoreError for a `sqlite3.Error` raised while `doing` ("writing", "opening") the store at `path`."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return StoreError(f"{path}: {doing} failed: {error}")
    kind, what, do = _CODES.get(code & 0xFF, (StoreError, "SQLite refused", "see the error above"))
    return kind(f"{path}: {what} ({doing}: {error}, {error.sqlite_errorname}); {do}")
