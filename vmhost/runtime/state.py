"""The state folder of a host: what must survive a restart. One process at a time may hold it.

Files: `lock` (flock, contains the owner's process id), `breakers.msgpack` (breakers that are not closed, and crashes of
tasks that have not been loaded since), and `crash.map`, in which the native core records what each VM runs, in case the
process crashes. Files are replaced as a whole, so a crash leaves the old or the new one.
"""

import contextlib
import fcntl
import io
import logging
import math
import os
import stat
import time
import weakref
from pathlib import Path

import msgpack

from vmhost.errors import ConfigurationError

_log = logging.getLogger("vmhost")
_FORMAT = 1
_MAX_BYTES = 64 << 20  # of a file that is read; thousands of open breakers take some hundred KB
_open_folders = weakref.WeakSet()
_FORKED_CHILD_S = 2  # longest wait for the lock of an owner that has ended


def _has_ended(owner):
    """Whether no process has the number `owner`, a text."""
    if not owner.isdigit():
        return False
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return True
    except OverflowError, PermissionError:
        return False
    return False


class StateFolder:
    """The folder `path`, created if missing and locked until `close()`, or the end of the object or the process.

    ConfigurationError if another host or process holds it, or it cannot be used.
    """

    def __init__(self, path):
        self.path = Path(path)
        self._lock = None
        try:
            self._take()
            self._breakers, self._crashes = self._read()
        except OSError as error:
            self.close()
            raise ConfigurationError(
                f"{self.path}: expected a folder that can be written, got {error}; choose another folder for `state`"
            ) from error
        except BaseException:
            self.close()
            raise

    def _take(self):
        """Lock the folder. A file object holds the lock, so that an interruption between two steps releases it."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "lock"
        with contextlib.suppress(FileExistsError):
            os.mknod(file, 0o600 | stat.S_IFREG)
        self._lock = io.FileIO(file, "r+")
        _open_folders.add(self)
        deadline = time.monotonic() + _FORKED_CHILD_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                owner = os.pread(self._lock.fileno(), 32, 0).decode("ascii", "replace").strip()
                # a child that the ended owner forked closes its copy of the lock as soon as it is scheduled
                if _has_ended(owner) and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                whose = (
                    "this process"
                    if owner == str(os.getpid())
                    else f"process {owner}"
                    if owner.isdigit()
                    else "another process, which is just starting"
                )
                raise ConfigurationError(
                    f"{self.path}: already in use as the state folder of a host of {whose}; close that host, or "
                    "give each host a state folder of its own"
                ) from error
        with contextlib.suppress(OSError):  # a full disk: only the message above lacks the process id
            os.ftruncate(self._lock.fileno(), 0)
            os.pwrite(self._lock.fileno(), str(os.getpid()).encode(), 0)

    @property
    def crash_map(self):
        return self.path / "crash.map"

    def _read(self):
        """Saved breakers by (name, version, digest), crashes by (name, version).

        Damaged or unreadable data is moved aside and logged; the result is empty then. OSError: it cannot be moved
        aside."""
        file = self.path / "breakers.msgpack"
        try:
            return _checked(_content(file))
        except FileNotFoundError:
            return {}, {}
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
            MemoryError,
            msgpack.UnpackException,
        ) as error:
            aside = file.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                aside.rmdir()  # an empty folder would block the rename
            file.replace(aside)
            _log.error(
                "%s: not what this version of vmhost keeps there (%s: %s); which breakers were open is not known. It is"
                " %s now",
                file,
                type(error).__name__,
                error,
                aside.name,
            )
            return {}, {}

    def breaker(self, key):
        """The saved state of the breaker `key` (name, version, digest), or None."""
        return self._breakers.get(key)

    def save_breaker(self, key, saved):
        """Save `saved` for `key`; None: the breaker is closed."""
        if self._breakers.get(key) == saved:
            return
        if saved is None:
            self._breakers.pop(key, None)
        else:
            self._breakers[key] = saved
        self._write()

    def add_crash(self, name, version, reason):
        """The previous process crashed in task `name` `version`; kept until `take_crash`."""
        self._crashes[name, version] = reason
        self._try_to_write()

    def take_crash(self, name, version):
        """Why `name` `version` must start with an open breaker; None: it need not. Deletes the record."""
        reason = self._crashes.pop((name, version), None)
        if reason is not None:
            self._try_to_write()
        return reason

    def _try_to_write(self):
        try:
            self._write()
        except OSError as error:
            _log.error("%s: a crash cannot be saved, a restart will not know of it: %s", self.path, error)

    def _write(self):
        file = self.path / "breakers.msgpack"
        new = file.with_suffix(".new")
        try:
            new.write_bytes(
                msgpack.packb(
                    {
                        "format": _FORMAT,
                        "breakers": [[list(key), saved] for key, saved in self._breakers.items()],
                        "crashes": [[list(key), reason] for key, reason in self._crashes.items()],
                    }
                )
            )
            new.replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise

    def close(self):
        """Release the folder. Can be repeated."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _content(file):
    """The unpacked contents of `file`. OSError, ValueError, msgpack's errors."""
    with io.FileIO(
        file, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    ) as opened:  # does not block on a pipe
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            raise ValueError(f"expected a file of at most {_MAX_BYTES >> 20} MiB")
        return msgpack.unpackb(opened.readall())


def _checked(content):
    """The breakers and crashes in a file's contents. ValueError, TypeError, KeyError, AttributeError."""
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']!r}, expected {_FORMAT}")
    breakers = {_key(key, 3): saved for key, saved in content["breakers"]}
    for saved in breakers.values():
        numbers = saved["open_s"], saved["until"]
        if not (
            type(saved["reason"]) is str
            and type(saved["trips"]) is int
            and saved["trips"] >= 0
            and all(type(number) in (int, float) and math.isfinite(number) and number >= 0 for number in numbers)
        ):
            raise ValueError("a breaker's state has wrong values")
    crashes = {_key(key, 2): reason for key, reason in content["crashes"]}
    if not all(type(reason) is str for reason in crashes.values()):
        raise ValueError("a crash's reason is no text")
    return breakers, crashes


def _key(key, length):
    if len(key) != length or not all(type(part) in (str, bytes) for part in key):
        raise ValueError("a task's name, version or digest has the wrong type")
    return tuple(key)


def _let_go_in_a_child():
    """A forked child inherits the lock's descriptor, and would keep the folder locked as long as it lives."""
    for folder in list(_open_folders):
        folder.close()


os.register_at_fork(after_in_child=_let_go_in_a_child)
