"""What was compiled, kept in this user's cache folder for other processes, as .pyc files are.

An entry has the name of a digest of all that determines it, the text of the source among it, and begins with a digest
of the rest. VMs run its code unverified, so only what no other user can have written counts. An entry that is damaged
or another user's is made again; where nothing can be read or written, nothing is kept. Builds of bundles use none of
it.
"""

import contextlib
import functools
import hashlib
import os
import stat
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import msgpack

from . import caches
from .offered import offered_folders

_MAX_BYTES = 128 << 20  # of all entries; beyond, the oldest go
_KEPT = 0.75  # of these, so that not each further entry removes one
_FRESH_S = 24 * 3600  # an entry that is used gets its time renewed when it is older
_DIGEST = hashlib.sha256().digest_size


class Compilations:
    """The entries in one folder."""

    def __init__(self, folder, now):
        self._folder, self._now, self._wrote = folder, now, False

    @classmethod
    def usual(cls, *makers):
        """Those in this user's cache folder; None where that cannot be used. `makers`: the source files of what makes
        and reads the entries, beside the compiler: each state of them has its own."""
        home, now = caches.usual(), _now(makers)
        if home is None or now is None:
            return None
        folder = home / "compiled"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(folder, now) if all(caches.is_only_ours(each.stat()) for each in (home, folder)) else None
        except OSError:
            return None

    def key(self, kind, *parts):
        """The name of the entry of this `kind` that is determined by `parts`, plain values."""
        return hashlib.sha256(self._now + _packed((kind, parts))).hexdigest()

    def get(self, key):
        """The plain value kept under `key`; None if there is none that can be trusted."""
        path = self._folder / key
        try:
            with open(path, "rb", opener=_opened) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or not caches.is_only_ours(found):
                    return None
                data = file.read()
            if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
                return None
        except OSError:
            return None
        if found.st_mtime < time.time() - _FRESH_S:
            with contextlib.suppress(OSError):  # a folder that can only be read serves all the same
                os.utime(path)
        return msgpack.unpackb(data[_DIGEST:], use_list=False, strict_map_key=False, unicode_errors="surrogatepass")

    def put(self, key, value):
        """Keeps the plain value under `key`, if it can be written."""
        data = _packed(value)
        with contextlib.suppress(OSError):
            descriptor, unfinished = tempfile.mkstemp(dir=self._folder)  # of mode 0600; readers see none or all of it
            try:
                with open(descriptor, "wb") as file:
                    file.write(hashlib.sha256(data).digest() + data)
                os.replace(unfinished, self._folder / key)
                self._wrote = True
            except BaseException:
                os.unlink(unfinished)
                raise

    def bound(self):
        """Removes the oldest entries where there are too many bytes, if this object wrote any."""
        if not self._wrote:
            return
        with contextlib.suppress(OSError):
            entries = []
            for each in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):  # another process removes entries too
                    found = each.stat(follow_symlinks=False)
                    entries.append((found.st_mtime_ns, found.st_size, each.path))
            size = sum(each[1] for each in entries)
            entries.sort(reverse=True)
            keep = size if size <= _MAX_BYTES else int(_MAX_BYTES * _KEPT)
            while size > keep:
                _, gone, path = entries.pop()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                size -= gone


def _packed(value):
    return msgpack.packb(value, unicode_errors="surrogatepass")  # paths that are not UTF-8 have surrogates


def _opened(path, flags):
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@functools.cache
def _now(makers):
    """A digest of the compiler, of the files `makers`, and of what VMs offer, which all entries depend on; None if one
    has no sources."""
    found = hashlib.sha256(f"{sys.version}\0{sys.platform}\0{sysconfig.get_path('stdlib')}\0".encode())
    try:
        for folder in offered_folders():
            names = sorted(name for name in os.listdir(folder) if name != "__pycache__")
            found.update(f"{names}\0".encode())
        for path in (*sorted(Path(__file__).parent.rglob("*.py")), *makers):
            found.update(f"\0{path.name}\0".encode() + path.read_bytes())
    except OSError:
        return None
    return found.digest()
