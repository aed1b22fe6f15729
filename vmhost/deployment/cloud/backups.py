"""Backups of a platform: `back_up` writes one archive, `restore` makes a platform of it, `go_on` makes one that was put
back by other means usable.

A restored platform does not know what its original did after the backup, but devices do: they refuse metadata with
lower versions than they have seen, and count a release as done by its number. So it goes on at numbers that no earlier
platform can have reached: versions of metadata at the seconds since 1970, releases at the seconds since 2026. No
platform makes as many for long. What devices say is not needed for this, so no device can raise the numbers.

A wrong clock would give numbers that were used before, or that no later restoration reaches, and tokens that have
expired would be good again. So the clock must be later than what the copy knows, and by less than a year.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from pathlib import Path

from vmhost.deployment.artifacts import sync_folder, sync_tree
from vmhost.deployment.cloud import schema
from vmhost.deployment.cloud.metadata import SignedMetadata, offline_keys
from vmhost.deployment.cloud.postgresql import PostgreSQLDatabase
from vmhost.deployment.errors import RefusedError
from vmhost.stores import Database

_YEAR_2026_S = 1_767_225_600
_MAX_BEHIND_S = 3600.0  # two machines' clocks may differ by so much
_MAX_AHEAD_S = 366 * 86400.0
# Where the tables have the time of something that happened, in ms.
_TIMES = (("deploy_history", "time_ms"), ("deploy_devices", "seen_ms"), ("access_audit", "time_ms"))
# What a backup holds, beside the tables. Commits, bundles and keys come after the tables that name them: they are only
# added to, so that all that a row names is there.
_PARTS = ("repositories", "files", "exclusive", "keys", "metadata")
_NEEDED = ("metadata/1.root.json", "keys/snapshot", "keys/timestamp")  # what no platform makes again
_TABLES = ("platform.db", "postgresql")  # in the folder, or where they are
_END = "end-of-backup"  # the archive's last member: how many come before it, and the SHA-256 of all bytes before it
_PARTIAL = ".partial-vmhost-"  # begins the names of folders for what is not complete yet
_NUMBERED = ("deploy_releases", "deploy_files")  # tables whose `id` devices remember


def back_up(folder, archive, tell=lambda text: None):
    """Writes the platform in `folder` to the file `archive`, which must not exist. The platform may be running. The
    archive has the platform's keys, but not the offline ones, nor tables in PostgreSQL. Returns its size in bytes.
    `tell(text)` is called for each folder beside the archive that a killed process left there, and that was removed.

    RefusedError; OSError."""
    folder, archive = Path(folder), Path(archive)
    _must_hold_platform(folder)
    if archive.exists():
        raise RefusedError(f"{archive}: exists already; give the name of a new file")
    if archive.resolve().is_relative_to(folder.resolve()):
        raise RefusedError(
            f"{archive}: lies in the platform's folder, and later backups would hold it; name another file"
        )
    with _partial_folder(archive.absolute().parent, tell) as partial:
        with open(os.open(partial / "archive", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:  # hard links too become files
                _add_tables(tar, folder, partial)
                metadata = SignedMetadata(folder / "metadata", folder / "keys", time.time)
                with metadata.turn():  # a key and the metadata that names it belong together
                    for part in _PARTS:
                        _add_tree(tar, folder / part, part)
                file.flush()
                _add_end(tar, partial / "archive")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial / "archive", archive)  # unlike a rename, this replaces nothing
        except FileExistsError:
            raise RefusedError(f"{archive}: exists already; give the name of a new file") from None
        sync_folder(archive.absolute().parent)
    return archive.stat().st_size


def restore(archive, folder, clock=time.time, trust_clock=False, tell=lambda text: None):
    """Makes the platform in `folder`, which must not exist or be empty, of a backup, and lets it go on. With its tables
    in PostgreSQL, restore these first. `trust_clock`, result: as of `go_on`; `tell`: as of `back_up`. RefusedError;
    OSError; StoreError."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RefusedError(f"{folder}: is not empty; give the name of a new folder")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with _partial_folder(folder.absolute().parent, tell) as partial:
        try:
            with tarfile.open(archive, "r:") as tar:
                tar.extractall(partial, _checked(tar, archive), filter="data")
        except tarfile.TarError as error:
            raise RefusedError(f"{archive}: is no backup of a platform, or is damaged: {error}") from None
        complete = go_on(partial, clock, offline=offline_keys(folder / "keys"), trust_clock=trust_clock)
        sync_tree(partial)
        partial.chmod(0o755)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
        partial.rename(folder)
        sync_folder(folder.absolute().parent)
    return complete


@contextlib.contextmanager
def _partial_folder(parent, tell):
    """A new folder in `parent` for what is not complete yet, locked as long as this process lives, and removed at the
    end. Removes those that killed processes left there."""
    for left in sorted(parent.glob(f"{_PARTIAL}*")):
        if (lock := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
            if not left.exists():
                tell(f"{left}: removed; a backup or restoration was killed before it was complete")
    path = lock = None
    try:
        while path is None or not path.exists():  # another process may remove it before it is locked
            path = Path(tempfile.mkdtemp(dir=parent, prefix=_PARTIAL))
            lock = _locked(path)
        yield path
    finally:
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked(path):
    """A descriptor that locks the folder; None if another process has it locked, or has removed it, or if folders
    cannot be locked there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.isdir(path):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def go_on(folder, clock=time.time, offline=None, trust_clock=False):
    """Lets the platform in `folder`, whose files come from a copy, go on at numbers that were not used before. It must
    not be running. `offline`: the folder of its offline keys. `trust_clock`: the clock is right, though the copy knows
    of later things, or is older than a year. Returns whether the list of its repositories was signed anew, which takes
    the offline key of targets. RefusedError; StoreError."""
    folder = Path(folder)
    _must_hold_platform(folder)
    if clock() < _YEAR_2026_S + 60:
        raise RefusedError(f"the clock says {_date(clock())}: set it, then try again")
    with _database(folder) as database:
        database.migrate(schema.NAME, schema.STEPS)
        if isinstance(database, Database):
            database.check()
        with database.reader() as connection:
            latest_s = _latest_s(connection)
        if not trust_clock and not -_MAX_BEHIND_S <= clock() - latest_s <= _MAX_AHEAD_S:
            raise RefusedError(
                f"the clock says {_date(clock())}, and the last thing that the copy knows is of {_date(latest_s)}: set "
                "the clock; if it is right, add --trust-clock"
            )
        now_s = max(clock(), latest_s + 1)
        first = int(now_s - _YEAR_2026_S)
        with database.transaction() as connection:
            for table in _NUMBERED:
                _number_from(connection, table, first, sqlite=isinstance(database, Database))
    metadata = SignedMetadata(folder / "metadata", folder / "keys", clock)
    if offline is not None:
        metadata.offline = offline
    return metadata.go_on_from(int(now_s))


def _date(time_s):
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_s))


def _latest_s(connection):
    """When the last thing happened that the tables know; the beginning of 2026 where there is none."""
    found = [connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] for table, column in _TIMES]
    return max([_YEAR_2026_S, *(each / 1000 for each in found if each is not None)])


def _number_from(connection, table, first, sqlite):
    if not sqlite:
        connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), greatest(?, max(id) + 1), false) FROM {table}",
            (first,),
        )
        return
    changed = connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (first - 1, table))
    if not changed.rowcount:
        connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, first - 1))


def _database(folder):
    dsn = folder / "postgresql"
    return PostgreSQLDatabase(dsn.read_text().strip()) if dsn.exists() else Database(folder / "platform.db")


def _must_hold_platform(folder):
    if not any((folder / name).exists() for name in _TABLES):
        raise RefusedError(f"{folder}: holds no platform; make one: vmhost cloud init {folder}")
    for name in _NEEDED:
        if not (folder / name).exists():
            raise RefusedError(f"{folder}: is no whole platform, {name} is missing: put it back from a copy")


def _add_tables(tar, folder, partial):
    """A copy of the tables as of one moment, or the file that says where in PostgreSQL they are."""
    if (folder / "postgresql").exists():
        tar.add(folder / "postgresql", "postgresql")
        return
    copy = sqlite3.connect(partial / "platform.db")
    with contextlib.closing(copy), Database(folder / "platform.db", read_only=True) as database:
        with contextlib.closing(database.connect()) as tables:
            tables.backup(copy)
    tar.add(partial / "platform.db", "platform.db")
    (partial / "platform.db").unlink()


def _add_end(tar, path):
    text = f"{len(tar.getmembers())} {_sha256_of_start(path, tar.offset)}".encode()
    end = tarfile.TarInfo(_END)
    end.size = len(text)
    tar.addfile(end, io.BytesIO(text))


def _sha256_of_start(path, size):
    """The SHA-256 of the file's first `size` bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while size and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _checked(tar, archive):
    """The members of a backup that is all there and undamaged, the end left out. A tar file that was cut off between
    two members looks whole, and one with other bytes in its files too. RefusedError."""
    members = tar.getmembers()
    for each in members:
        top = each.name.partition("/")[0]
        is_file = each.isreg() and not each.issparse()
        if not (is_file and each.name in (*_TABLES, _END) or top in _PARTS and (is_file or each.isdir())):
            raise RefusedError(f"{archive}: is no backup of a platform: it has {each.name[:100]!r}")
    if not any(each.name in _TABLES for each in members):
        raise RefusedError(f"{archive}: is no backup of a platform: it has no tables")
    end = members.pop()
    count, *digest = tar.extractfile(end).read(100).decode("ascii", "replace").split() if end.name == _END else [""]
    if count != str(len(members)):
        raise RefusedError(f"{archive}: its end is missing; copy the backup again, or take another one")
    if digest and digest != [_sha256_of_start(archive, end.offset)]:  # earlier versions wrote none
        raise RefusedError(f"{archive}: its bytes have changed; copy the backup again, or take another one")
    return members


def _add_tree(tar, path, name):
    """Adds a folder while it may change: files that vanish are left out, and so are unfinished ones and locks."""
    if not path.is_dir():
        return
    tar.add(path, name, recursive=False)
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        unfinished = entry.name.startswith(".partial-") or entry.name.endswith(".lock")
        if unfinished or (name, entry.name) == ("keys", "offline"):
            continue
        if entry.is_dir(follow_symlinks=False):
            _add_tree(tar, Path(entry.path), f"{name}/{entry.name}")
        elif entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError), open(entry.path, "rb") as file:
                tar.addfile(tar.gettarinfo(arcname=f"{name}/{entry.name}", fileobj=file), file)
