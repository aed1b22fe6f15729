"""A SQLite database with one writer: durable transactions, schema versions, one process at a time.

`Database` opens `path` in WAL mode with `synchronous=FULL`: a transaction is on the disk when it returns. There is one
writing connection, behind a lock; readers have their own read-only connections, and neither waits for the other.
Writes that belong together use one `transaction()`; a nested one joins it.

Components that buffer their writes in memory join as a *part* (`attach`): `flush()` writes all parts in one
transaction. A part with `with_every_commit` is written by each transaction, so that no committed data refers to data
that is only in memory.

Beside `path` are SQLite's `-wal` and `-shm`, and `-lock`, which is locked by the process that has the store open and
records the number of commits. The database counts its commits too. If it has fewer, files were cut or replaced:
`StoreDamagedError`.

A copy of the files does not know what the original did afterwards. So each opening has a random `opening`, and whoever
gives out numbers that others remember stores with them in which opening it did (`epochs`).
"""

import contextlib
import fcntl
import os
import sqlite3
import struct
import threading
import uuid
from pathlib import Path
from urllib.parse import quote

from vmhost.stores.epochs import OPENING_BYTES, Epochs
from vmhost.stores.errors import (
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreForeignError,
    StoreInUseError,
    StoreVersionError,
    store_error,
)

APPLICATION_ID = 0x766D6873  # "vmhs"; `file` and `PRAGMA application_id` show it
_NOTE = struct.Struct("<16sQ")  # in `-lock`: the database's id, the number of commits
_WAL_LIMIT = 16 << 20  # bytes that `-wal` keeps on the disk after a checkpoint
_BUSY_S = 5.0
_IDLE_READERS = 4

_OWN_STEPS = (
    """
    CREATE TABLE store_identity (one INTEGER PRIMARY KEY CHECK (one = 1), id BLOB NOT NULL, commits INTEGER NOT NULL);
    CREATE TABLE store_counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    """,
    """
    CREATE TABLE store_epochs (
        name TEXT, first INTEGER, epoch BLOB NOT NULL, PRIMARY KEY (name, first)
    ) WITHOUT ROWID
    """,
)


class Database:
    """The store at `path`, created if missing. Threads may share it.

    `read_only`: only `reader()` and `connect()` work, no lock is taken, and a writer may be active elsewhere. Parts may
    attach to read; `migrate` then only checks that the store is not too new, and `flush` does nothing.
    `accept_loss`: opens a store whose last commits are missing, and continues without them.
    `shared`: other processes may also have the store open for writing, all with `shared`; their transactions wait for
    each other.
    Raises StoreInUseError, StoreDamagedError, StoreForeignError, StoreVersionError, StoreAccessError.
    """

    def __init__(self, path, *, read_only=False, accept_loss=False, shared=False):
        self.path = Path(path)
        self.read_only, self.shared = read_only, shared
        self.lock = threading.RLock()  # of the writing connection
        self._parts = []
        self._readers = []
        self._depth = 0
        self._doomed = False
        self._commits = 0
        self._closed = False
        self._writer = None
        self._lock_file = None
        self._turns_file = None  # of a shared store: locked by the process that writes; contains `opening`
        self._turns = 0  # nested uses of `_turn`
        self.opening = None  # bytes; processes that share a store have one, until the last of them closes it
        self._epochs = {}
        self._flusher = None
        self.flush_error = None  # of the last background flush, None if it succeeded
        try:
            if read_only:
                self._open_for_reading()
            else:
                self._take_lock()
                with self._turn():
                    self._open(accept_loss)
        except BaseException:
            self._release()
            raise

    # ---- opening and closing

    def _take_lock(self):
        name = f"{self.path}-lock"
        try:
            self._lock_file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not self.shared:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.opening = os.urandom(OPENING_BYTES)
                return
            self._turns_file = os.open(f"{self.path}-turns", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with self._turn():
                self._share_lock()
        except BlockingIOError:
            raise StoreInUseError(
                f"{self.path}: another process has the store open for writing; end that process first (a program "
                "that only reads opens it with read_only=True)"
            ) from None
        except OSError as error:
            failed = sqlite3.OperationalError(os.strerror(error.errno))
            full = error.errno in (28, 122)  # ENOSPC, EDQUOT
            failed.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_CANTOPEN
            failed.sqlite_errorname = name
            raise store_error(self.path, failed, "opening") from error

    def _share_lock(self):
        """Locks a shared store in this process's turn. A process that finds it unlocked begins an opening; the file of
        the turns needs no sync, as it only has to last as long as the processes."""
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.opening = os.urandom(OPENING_BYTES)
            os.pwrite(self._turns_file, self.opening, 0)
        except BlockingIOError:
            pass
        fcntl.flock(self._lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if self.opening is None:
            self.opening = os.pread(self._turns_file, OPENING_BYTES, 0)

    @contextlib.contextmanager
    def _turn(self):
        """Holds the turn of a shared store: one process at a time. With SQLite alone the others would poll."""
        if self._turns_file is None:
            yield
            return
        if not self._turns:
            fcntl.flock(self._turns_file, fcntl.LOCK_EX)
        self._turns += 1
        try:
            yield
        finally:
            self._turns -= 1
            if not self._turns:
                fcntl.flock(self._turns_file, fcntl.LOCK_UN)

    def _open(self, accept_loss):
        try:
            self._writer = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=1024
            )
            run = self._writer.execute
            identity = run("PRAGMA application_id").fetchone()[0]
            made = identity == 0 and not run("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            if not made:
                self._must_be_ours(identity)
            if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StoreError(
                    f"{self.path}: this file system cannot share memory between processes, which WAL needs"
                )
            run("PRAGMA synchronous = FULL")
            run(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
            run("PRAGMA foreign_keys = OFF")
            # Some builds overwrite deleted data by default: dropping the oldest rows would write as much. See `erase`.
            run("PRAGMA secure_delete = OFF")
            run("PRAGMA trusted_schema = OFF")
            if made:
                self._must_be_new(accept_loss)
                run("BEGIN IMMEDIATE")
                run(f"PRAGMA application_id = {APPLICATION_ID}")
                run("CREATE TABLE store_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID")
                self._steps("store", _OWN_STEPS, 0)
                run("INSERT INTO store_identity VALUES (1, ?, 0)", (uuid.uuid4().bytes,))
                run("COMMIT")
            self._id, self._commits = run("SELECT id, commits FROM store_identity").fetchone()
        except sqlite3.Error as error:
            raise store_error(self.path, error, "opening") from error
        self._check_note(accept_loss)
        self._migrate_own()

    def _open_for_reading(self):
        with self.reader() as connection:
            self._must_be_ours(connection.execute("PRAGMA application_id").fetchone()[0])

    def _must_be_ours(self, identity):
        if identity != APPLICATION_ID:
            raise StoreForeignError(
                f"{self.path}: a database of another program (application_id {identity:#x}, expected "
                f"{APPLICATION_ID:#x}); it was not changed, choose another path"
            )

    def _migrate_own(self):
        version = self._version("store")
        if version != len(_OWN_STEPS):
            self.migrate("store", _OWN_STEPS)

    def _must_be_new(self, accept_loss):
        """Refuses an empty file that once had commits: they were in its -wal, or it was replaced."""
        note = os.pread(self._lock_file, _NOTE.size, 0)
        if len(note) == _NOTE.size and (promised := _NOTE.unpack(note)[1]) and not accept_loss:
            raise StoreDamagedError(
                f"{self.path}: the file is empty, and all {promised} commits are missing; the file or its -wal was cut "
                f"or removed. Put the missing file back, or remove {self.path}-lock too to begin anew"
            )

    def _check_note(self, accept_loss):
        note = os.pread(self._lock_file, _NOTE.size, 0)
        if len(note) == _NOTE.size:
            identity, promised = _NOTE.unpack(note)
            if identity == self._id and promised > self._commits and not accept_loss:
                raise StoreDamagedError(
                    f"{self.path}: the last {promised - self._commits} of {promised} commits are missing; the file or "
                    "its -wal was cut or replaced. Put the missing file back, or open with accept_loss=True to go on "
                    "without them"
                )
        self._note()

    def _note(self):
        """Survives this process, but not a power cut; then it is older than the database, which is harmless."""
        with contextlib.suppress(OSError):  # a full disk: the note stays older
            os.pwrite(self._lock_file, _NOTE.pack(self._id, self._commits), 0)

    def _release(self):
        self._closed = True
        readers, self._readers = self._readers, []
        for connection in (*readers, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # committed data is safe in -wal
                    connection.close()
        self._writer = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        if self._turns_file is not None:
            os.close(self._turns_file)
            self._turns_file = None

    def close(self):
        """Writes the parts and releases the file. Closing again does nothing.

        Raises StoreError if the parts could not be written; the store is closed anyway.
        """
        if self._flusher is not None:
            self._flusher.stop()
        with self.lock:
            if self._closed:
                return
            try:
                if not self.read_only:
                    self.flush()
            finally:
                self._release()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _must_be_open(self, write=True):
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store is closed; open it again")
        if write and self.read_only:
            raise StoreError(f"{self.path}: the store was opened with read_only=True; open it without to write")

    @property
    def commits(self):
        """How many transactions have changed the store; a clock that never goes back. For use in a transaction."""
        return self._commits

    @property
    def identity(self):
        """16 bytes unique to this store, even among stores created at the same path."""
        return self._id

    def epochs(self, name):
        """The `Epochs` of the numbers `name`, one object for all its users."""
        return self._epochs.get(name) or self._epochs.setdefault(name, Epochs(self, name))

    # ---- schema versions

    def _version(self, name, connection=None):
        row = (
            (connection or self._writer)
            .execute("SELECT version FROM store_versions WHERE name = ?", (name,))
            .fetchone()
        )
        return row[0] if row else 0

    def _steps(self, name, steps, done):
        for step in steps[done:]:
            if callable(step):
                step(self._writer)
            else:
                for statement in filter(str.strip, step.split(";")):
                    self._writer.execute(statement)
        self._writer.execute("INSERT OR REPLACE INTO store_versions VALUES (?, ?)", (name, len(steps)))

    def migrate(self, name, steps):
        """Brings the schema `name` up to date: `steps[n]` leads from version n to n + 1, in one transaction.

        A step is SQL without `;` inside its statements, or a function of the connection. A released step never
        changes. Raises StoreVersionError if the store is newer than `steps`.
        """
        if self.read_only:
            with self.reader() as connection:
                self._must_be_known(name, self._version(name, connection), steps)
            return
        with self.transaction():
            done = self._version(name)
            self._must_be_known(name, done, steps)
            if done < len(steps):
                self._steps(name, steps, done)

    def _must_be_known(self, name, version, steps):
        if version > len(steps):
            raise StoreVersionError(
                f"{self.path}: {name} has schema version {version}, this vmhost knows versions up to {len(steps)}; "
                "use the newer vmhost that wrote it"
            )

    # ---- writing

    def attach(self, part):
        """Adds `part`. `part.write(connection)` is called inside a transaction; it returns None if there was nothing to
        write, else an object whose `committed()` or `undone()` is called when the transaction ends. `part.pending`: is
        there something to write? `part.with_every_commit`: write in every transaction, not only in `flush`.
        """
        with self.lock:
            self._parts.append(part)

    def forgotten(self, key):
        """Calls `forgotten(key)` of the parts that have it, so that they drop what they hold of `key`."""
        for part in list(self._parts):
            if hasattr(part, "forgotten"):
                part.forgotten(key)

    def detach(self, part):
        with self.lock:
            if part in self._parts:
                self._parts.remove(part)

    @contextlib.contextmanager
    def transaction(self):
        """The writing connection, inside a transaction that is durable when the block ends, or rolled back if it
        raises. Threads wait for each other. A nested block joins the outer one.
        """
        with self.lock:
            self._must_be_open()
            if self._depth:
                try:
                    yield self._writer
                except BaseException:
                    self._doomed = True
                    raise
                return
            parts = [part for part in self._parts if part.with_every_commit]
            with self._turn(), self._outermost(parts) as connection:
                yield connection

    @contextlib.contextmanager
    def _outermost(self, parts):
        connection, before = self._writer, self._writer.total_changes
        self._depth, self._doomed, after = 1, False, []
        try:
            connection.execute("BEGIN IMMEDIATE")
            if self.shared:
                self._commits = connection.execute("SELECT commits FROM store_identity").fetchone()[0]
            yield connection
            if self._doomed:
                raise StoreError(f"{self.path}: a transaction within this one failed, so this one was undone too")
            # Parts that hold references go first: the other parts may grow meanwhile, and must have all referents.
            for part in sorted(parts, key=lambda part: part.with_every_commit):
                if (written := part.write(connection)) is not None:
                    after.append(written)
            changed = connection.total_changes != before
            if changed:
                connection.execute("UPDATE store_identity SET commits = ?", (self._commits + 1,))
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            for written in after:
                written.undone()
            if isinstance(error, sqlite3.Error):
                raise store_error(self.path, error, "writing") from error
            raise
        finally:
            self._depth = 0
        if changed:
            self._commits += 1
            self._note()
        for written in after:
            written.committed()

    def flush(self):
        """Writes all parts in one transaction. Durable on return. If it raises, the parts keep their data."""
        if self.read_only:
            self._must_be_open(write=False)
            return
        with self.lock:
            self._must_be_open()
            if self._depth:
                raise StoreError(f"{self.path}: flush() inside of a transaction; call it after")
            if any(part.pending for part in self._parts):
                with self._turn(), self._outermost(list(self._parts)):
                    pass

    def flush_every(self, interval_ms):
        """Starts a thread that calls `flush()` at this interval, or at the shortest one asked for. If a flush fails,
        `flush_error` has the error, and it is retried.
        """
        if self.read_only:
            return
        with self.lock:
            if self._flusher is None:
                self._flusher = _Flusher(self, interval_ms / 1000)
            else:
                self._flusher.interval_s = min(self._flusher.interval_s, interval_ms / 1000)

    def flush_soon(self):
        """Makes that thread call `flush()` now, without waiting for it. False without a thread."""
        flusher = self._flusher
        if flusher is None:
            return False
        flusher.wanted.set()
        return True

    def count(self, name, n=1):
        """Adds n to the store's counter `name`."""
        if n:
            with self.transaction() as connection:
                connection.execute(
                    "INSERT INTO store_counters VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                    (name, n),
                )

    def counters(self):
        """{name: value} of all counters."""
        with self.reader() as connection:
            return dict(connection.execute("SELECT name, value FROM store_counters"))

    def erase(self):
        """Rewrites the file, so that bytes of deleted rows are gone from it and from its -wal.

        Takes as long as writing the whole store, and as much space again. Raises StoreInUseError if a reader holds an
        old view of the store; the rows are deleted anyway, and their bytes go with the next call.
        """
        with self.lock:
            self._must_be_open()
            try:
                self._writer.execute("VACUUM")
                busy = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.Error as error:
                raise store_error(self.path, error, "rewriting") from error
            if busy:
                raise StoreInUseError(
                    f"{self.path}: a reader holds an old view of the store, so bytes of deleted rows are still in it; "
                    "close the reader and try again"
                )

    def check(self):
        """Reads the whole file. Raises StoreDamagedError with the first problems found."""
        with self.reader() as connection:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(5)")]
        if found != ["ok"]:
            raise StoreDamagedError(f"{self.path}: the file is damaged: {'; '.join(found)}; restore a backup")

    # ---- reading

    def connect(self):
        """A new read-only `sqlite3.Connection` that sees committed data. The caller closes it."""
        self._must_be_open(write=False)
        try:
            connection = sqlite3.connect(
                f"file://{quote(os.fsencode(self.path.absolute()))}?mode=ro",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise store_error(self.path, error, "opening") from error
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
        except sqlite3.Error as error:
            connection.close()
            raise store_error(self.path, error, "opening") from error
        return connection

    @contextlib.contextmanager
    def reader(self):
        """Lends a read-only connection for the block. An open query keeps -wal from shrinking."""
        self._must_be_open(write=False)
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self.connect()
        try:
            yield connection
        except sqlite3.Error as error:
            raise store_error(self.path, error, "reading") from error
        finally:
            if self._closed or len(self._readers) >= _IDLE_READERS:
                connection.close()
            else:
                self._readers.append(connection)


class _Flusher:
    def __init__(self, database, interval_s):
        self.interval_s = interval_s
        self._database = database
        self._stopped = False
        self.wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-flush", daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            self.wanted.wait(self.interval_s)
            self.wanted.clear()
            if self._stopped:
                return
            try:
                self._database.flush()
                self._database.flush_error = None
            except StoreClosedError:
                return
            except StoreError as error:
                self._database.flush_error = error

    def stop(self):
        self._stopped = True
        self.wanted.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
