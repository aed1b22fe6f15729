"""Prepared models and their measured rates in a host's state folder: the next process that loads a bundle maps packed
weights from there and skips the search.

Folder `models` of the state folder, private to this user: `rates.json`, the measured rates of this machine's cores, and
a file for each prepared model, written by the engine (engine/src/models/kept.c). The file name is a hash of the model's
bytes, the engine, its backend, the CPU and the search. So files never become stale; they are only removed: the least
recently used ones beyond MAX_KEPT, and unfinished ones of a host that was killed. A model that cannot be kept is no
error: it is prepared again."""

import hashlib
import json
import logging
import os
import re
import stat
import tempfile
from pathlib import Path

_log = logging.getLogger("vmhost")
MAX_KEPT = 16
_CPU = Path("/proc/cpuinfo")
_UNFINISHED = re.compile(r"rates\.(?!json$).+|[0-9a-f]{32}\..+")


class KeptModels:
    """The kept models of the state folder at `path`, which no other host uses meanwhile, for models that are prepared
    with `search` (a Policy's). With "measured", rates kept for this machine are set in the engine; if there are none,
    it measures and they are kept. Raises OSError if the folder cannot be used."""

    def __init__(self, path, search="measured"):
        self.path, self._search = Path(path) / "models", search
        self.path.mkdir(mode=0o700, exist_ok=True)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(
                f"{self.path} is a link, another user's, or writable by others, who could put files there; remove it,"
                " or `chmod 700` it"
            )
        for file in self.path.iterdir():
            if _UNFINISHED.fullmatch(file.name):
                file.unlink(missing_ok=True)
        self._here = _machine()
        if search == "measured" and not self._take_rates():
            self._keep_rates()

    def path_of(self, digest):
        """The path for the prepared model of the model file with this SHA-256 (bytes); None if the folder can no longer
        be used."""
        path = self.path / hashlib.sha256(f"{self._here}; {self._search}".encode() + digest).hexdigest()[:32]
        try:
            os.utime(path)
        except FileNotFoundError:
            try:
                self._make_room()
            except OSError as error:
                return self._useless(error)
        except OSError as error:  # such as a read-only file system
            return self._useless(error)
        return path

    def _useless(self, error):
        _log.warning("%s: a prepared model is not kept: %s", self.path, error.strerror)

    def _make_room(self):
        kept = sorted(
            (file for file in self.path.iterdir() if len(file.name) == 32), key=lambda file: file.stat().st_mtime_ns
        )
        for file in kept[: max(0, len(kept) - MAX_KEPT + 1)]:
            file.unlink(missing_ok=True)  # existing mappings stay valid

    def _take_rates(self):
        from vmhost.engine import library

        try:
            kept = json.loads((self.path / "rates.json").read_bytes())
            if kept["machine"] != self._here:
                return False
            library.set_rates(kept["rates"])
            return True
        except OSError, ValueError, KeyError, TypeError, library.EngineError:  # none kept, or damaged
            return False

    def _keep_rates(self):
        from vmhost.engine import library

        text = json.dumps({"machine": self._here, "rates": library.measured_rates()}, indent=1)
        descriptor, unfinished = tempfile.mkstemp(dir=self.path, prefix="rates.")
        try:
            with open(descriptor, "w") as file:
                file.write(text)
            os.replace(unfinished, self.path / "rates.json")
        except OSError as error:  # a full disk: the next process measures again
            _log.warning("%s: the measured rates of this machine's cores are not kept: %s", self.path, error.strerror)
            os.unlink(unfinished)


def _machine():
    """What prepared models and rates depend on besides the model: CPU, engine build and backend."""
    from vmhost.engine import library

    try:
        cpu = next(
            line.partition(":")[2].strip() for line in _CPU.read_text().splitlines() if line.startswith("model name")
        )
    except OSError, StopIteration:
        cpu = "unknown"
    built = Path(library.__file__).with_name("libvme.so").stat()
    backend = next(backend.name for backend in library.backends() if backend.current)
    return f"{cpu}; engine {built.st_size}-{built.st_mtime_ns}; {backend}"
