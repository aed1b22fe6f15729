"""The files of the task's bundle: read, opened like files, or accessed through importlib.resources.

Paths are relative, with "/" as separator. "name@version/path" and "/name@version/path" mean the same file, so that
paths derived from a module's `__file__` work.
"""

import io
import posixpath

try:
    from _vmhost import file as _file
    from _vmhost import files as names
except ModuleNotFoundError:  # plain Python: a task's own tests
    from vmhost.guest.testing import file as _file
    from vmhost.guest.testing import files as names

_SHOWN = 5  # files in an error

__all__ = ["names", "open", "read_bytes", "read_text"]


def _inside(path):
    """The path within the bundle."""
    if hasattr(path, "__fspath__"):
        path = path.__fspath__()
    if isinstance(path, bytes):
        path = path.decode("utf-8", "surrogateescape")
    if not isinstance(path, str):
        raise TypeError(f"expected a path, got {type(path).__name__}")
    if "\0" in path:
        raise ValueError("embedded null byte")
    parts = posixpath.normpath(path).lstrip("/").split("/")
    if "@" in parts[0] and len(parts) > 1:
        del parts[0]
    return "/".join(parts)


def read_bytes(path):
    """The bytes of a file of the bundle. FileNotFoundError names files of the same folder."""
    inside = _inside(path)
    data = _file(inside)
    if data is None:
        if any(name.startswith(f"{inside}/") for name in names()):
            raise IsADirectoryError(21, "Is a directory", str(path))
        text = f"no such file in the bundle ({_beside(inside)}); for a file of this machine, give its absolute path"
        raise FileNotFoundError(2, text, str(path))
    return data


def _beside(path):
    """The files in the folder of a path that is not there, in words; if there are none, those of the bundle."""
    folder = path.rpartition("/")[0]
    there = [name for name in names() if name.rpartition("/")[0] == folder]
    where = f"{folder or 'its top folder'} has" if there else "it has"
    there = there or list(names())
    more = f" and {len(there) - _SHOWN} more files" if len(there) > _SHOWN else ""
    return f"{where} {', '.join(there[:_SHOWN]) or 'no files'}{more}"


def read_text(path, encoding="utf-8", errors="strict"):
    return read_bytes(path).decode(encoding, errors)


def open(path, mode="r", encoding=None, errors=None, newline=None):
    """A file of the bundle as a text file, or as a binary one with mode "rb"."""
    return open_file(path, mode, -1, encoding, errors, newline)


def open_file(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
    """Implements builtins.open for a relative path."""
    if set(mode) - set("rbt"):
        if set(mode) <= set("rwaxbt+"):
            from _vmhost import PermissionDenied

            raise PermissionDenied(
                13,
                f"open({str(file)!r}, {mode!r}): the files of a bundle can only be read; to "
                "write, name an absolute path, granted in task.yaml, permissions: {write: [...]}",
            )
        raise ValueError(f"invalid mode: {mode!r}")
    raw = io.BytesIO(read_bytes(file))
    raw.name = str(file)
    if "b" in mode:
        return raw
    text = io.TextIOWrapper(raw, encoding or "utf-8", errors, newline)
    text.mode = mode
    return text


class BundleReader:
    """importlib.resources.files(module): the files below a package's folder, or next to a plain module. They are paths
    that open(), os and pathlib read from the bundle."""

    def __init__(self, folder):
        self._folder = folder

    def files(self):
        from pathlib import Path

        return Path(self._folder)

    def open_resource(self, resource):
        return io.BytesIO(read_bytes(_join(self._folder, resource)))

    def resource_path(self, resource):
        raise FileNotFoundError(resource)

    def is_resource(self, path):
        return _join(self._folder, path) in names()

    def contents(self):
        return [entry.name for entry in self.files().iterdir()]


def _join(folder, name):
    return f"{folder}/{name}" if folder else name
