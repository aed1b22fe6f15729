"""Files of the bundle as importlib.resources sees them: an importlib.resources.abc.Traversable."""

import contextlib
import io
import pathlib
from importlib.resources import as_file
from importlib.resources.abc import Traversable

from vmhost.guest import files


class BundlePath(Traversable):
    def __init__(self, path):
        self._path = path.strip("/")

    @property
    def name(self):
        return self._path.rpartition("/")[2]

    def iterdir(self):
        prefix = self._path + "/" if self._path else ""
        seen = {path[len(prefix) :].partition("/")[0] for path in files.names() if path.startswith(prefix)}
        return iter([BundlePath(prefix + name) for name in sorted(seen)])

    def is_dir(self):
        return any(path.startswith(self._path + "/" if self._path else "") for path in files.names())

    def is_file(self):
        return self._path in files.names()

    def joinpath(self, *parts):
        path = "/".join([self._path, *(str(part) for part in parts)]).strip("/")
        return BundlePath(path)

    __truediv__ = joinpath

    def open(self, mode="r", *args, **kwargs):
        if "b" in mode:
            return io.BytesIO(files.read_bytes(self._path))
        return files.open(self._path, mode, *args, **kwargs)

    def read_bytes(self):
        return files.read_bytes(self._path)

    def read_text(self, encoding=None, errors=None):
        return files.read_text(self._path, encoding or "utf-8", errors or "strict")

    def __repr__(self):
        return f"BundlePath({self._path!r})"


@as_file.register(BundlePath)
@contextlib.contextmanager
def _path_of(path):
    """A relative path, which open() and pathlib read from the bundle; nothing is copied."""
    yield pathlib.Path(path._path)
