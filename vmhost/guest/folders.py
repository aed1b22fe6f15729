"""Results of os.stat, lstat, access, listdir, scandir and readlink for files and folders of the task's bundle.

The C gates (bundle_files.c) find the entry and call `answer`. Files have no times of their own: they get one that is
valid in every time zone and in zip archives. A bundle is read-only, whatever the mode says."""

import posixpath
import stat
from posix import W_OK, X_OK, stat_result

from _vmhost import files as _names

_TIME = 315619200  # the second day of 1980


def answer(function, path, inside, is_folder, size, mode):
    """`path` is the str or bytes that was passed; `inside`: the path in the bundle, "" for its root."""
    if function in ("stat", "lstat"):
        return _status(inside, is_folder, size)
    if function == "access":
        return not mode & W_OK and not (mode & X_OK and not is_folder)
    if function == "readlink":
        raise OSError(22, "Invalid argument", path)
    if not is_folder:
        raise NotADirectoryError(20, "Not a directory", path)
    if function == "listdir":
        names = _listing(inside)
        return names if isinstance(path, str) else [name.encode() for name in names]
    return _Scan(path, inside)


def _status(inside, is_folder, size):
    kind = stat.S_IFDIR | 0o755 if is_folder else stat.S_IFREG | 0o644
    number = _number(inside)
    times = {
        f"st_{which}time{unit}": value
        for which in "amc"
        for unit, value in (("", float(_TIME)), ("_ns", _TIME * 10**9))
    }
    return stat_result((kind, number, 0, 1, 0, 0, size, _TIME, _TIME, _TIME), times)


def _number(inside):
    """An inode number: the same for a path in every process (FNV-1a)."""
    number = 0xCBF29CE484222325
    for byte in inside.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return number >> 1


def _listing(inside):
    prefix = inside + "/" if inside else ""
    return list(dict.fromkeys(name[len(prefix) :].partition("/")[0] for name in _names() if name.startswith(prefix)))


class _Scan:
    """The result of os.scandir: an iterator and context manager."""

    def __init__(self, path, inside):
        folders = set()
        prefix = inside + "/" if inside else ""
        for name in _names():
            if name.startswith(prefix) and "/" in name[len(prefix) :]:
                folders.add(name[len(prefix) :].partition("/")[0])
        self._entries = iter([Entry(path, prefix, name, name in folders) for name in _listing(inside)])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._entries)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self._entries = iter(())


class Entry:
    """os.DirEntry of a file or folder of the bundle."""

    def __init__(self, path, prefix, name, is_folder):
        self.name = name if isinstance(path, str) else name.encode()
        self.path = posixpath.join(path, self.name)
        self._inside = prefix + name
        self._is_folder = is_folder

    def is_dir(self, *, follow_symlinks=True):
        return self._is_folder

    def is_file(self, *, follow_symlinks=True):
        return not self._is_folder

    def is_symlink(self):
        return False

    def is_junction(self):
        return False

    def stat(self, *, follow_symlinks=True):
        from posix import stat

        return stat(self.path)

    def inode(self):
        return _number(self._inside)

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"
