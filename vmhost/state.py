"""The state folder of a host: what must survive a restart. One process at a time may hold it.

Files: `lock` (flock, holds the owner's process id), `breakers.msgpack` (breakers that are not closed, and crashes of
tasks that were not loaded since), and `crash.map`, where the native core keeps what each VM runs, for the case that
the process crashes. Files are replaced whole, so a crash leaves the old or the new one.
"""

import fcntl
import os
from pathlib import Path

import msgpack

from vmhost.errors import ConfigurationError

_FORMAT = 1


class StateFolder:
    """The folder `path`, made if missing and locked until `close()`.

    ConfigurationError when another process holds it.
    """

    def __init__(self, path):
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: expected a folder that can be written, got {error}; "
                                     "choose another folder for `state`") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            self._lock = None
            whose = ("this process" if owner == str(os.getpid()) else
                     f"process {owner}" if owner else "another process, which is just starting")
            raise ConfigurationError(f"{self.path}: already in use as the state folder of a host of {whose}; close that host, or "
                                     "give each host a state folder of its own") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self._breakers, self._crashes = self._read()

    @property
    def crash_map(self):
        return self.path / "crash.map"

    def _read(self):
        """Saved breakers by (name, version, digest), crashes by (name, version).

        A damaged file is put aside: nothing is known then.
        """
        file = self.path / "breakers.msgpack"
        try:
            content = msgpack.unpackb(file.read_bytes())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            return ({tuple(key): saved for key, saved in content["breakers"]},
                    {tuple(key): reason for key, reason in content["crashes"]})
        except FileNotFoundError:
            return {}, {}
        except (ValueError, KeyError, TypeError, msgpack.UnpackException):
            file.replace(file.with_suffix(".damaged"))
            return {}, {}

    def breaker(self, key):
        """What was saved for the breaker `key` (name, version, digest), or None."""
        return self._breakers.get(key)

    def save_breaker(self, key, saved):
        """Keep `saved` (None: the breaker is closed) for `key`."""
        if self._breakers.get(key) == saved:
            return
        if saved is None:
            self._breakers.pop(key, None)
        else:
            self._breakers[key] = saved
        self._write()

    def add_crash(self, name, version, reason):
        """The process before this one crashed in task `name` `version`; kept until `take_crash`."""
        self._crashes[name, version] = reason
        self._write()

    def take_crash(self, name, version):
        """Why `name` `version` must start with its breaker open, None: it need not. Forgotten once told."""
        reason = self._crashes.pop((name, version), None)
        if reason is not None:
            self._write()
        return reason

    def _write(self):
        file = self.path / "breakers.msgpack"
        new = file.with_suffix(".new")
        new.write_bytes(msgpack.packb({
            "format": _FORMAT, "breakers": [[list(key), saved] for key, saved in self._breakers.items()],
            "crashes": [[list(key), reason] for key, reason in self._crashes.items()]}))
        new.replace(file)

    def close(self):
        """Give the folder free. Repeating it does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
