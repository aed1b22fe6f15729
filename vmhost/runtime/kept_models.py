"""Prepared models and what was measured for them, in a host's state folder: the next process that loads a bundle maps
packed weights from there and searches nothing.

Folder `models` of the state folder, of this user alone: `rates.json`, what this machine's cores do, and a file for each
prepared model, written by the engine (engine/src/models/kept.c), whose name stands for the model's bytes, the engine,
its backend, the CPU and how algorithms were chosen. What changes with none of these is never stale, so files are only
ever taken away: the longest unused ones, beyond KEPT_MOST, and those that a host had begun when it was killed. What
cannot be kept is no error: models are prepared anew then."""

import hashlib
import json
import logging
import os
import re
import stat
import tempfile
from pathlib import Path

_log = logging.getLogger("vmhost")
KEPT_MOST = 16
_CPU = Path("/proc/cpuinfo")
_UNFINISHED = re.compile(r"rates\.(?!json$).+|[0-9a-f]{32}\..+")


class KeptModels:
    """Of the state folder at `path`, which no other host has meanwhile, for models that are prepared with `search` (a
    Policy's). Where that is "measured", rates that were kept for this machine are the engine's from now on; else it
    measures, and they are kept. OSError: there can be no such folder."""

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
        """The path of what is prepared of the model file with this SHA-256 (bytes); None where the folder has become of
        no use."""
        path = self.path / hashlib.sha256(f"{self._here}; {self._search}".encode() + digest).hexdigest()[:32]
        try:
            os.utime(path)
        except FileNotFoundError:
            try:
                self._make_room()
            except OSError as error:
                return self._useless(error)
        except OSError as error:  # read-only by now, say
            return self._useless(error)
        return path

    def _useless(self, error):
        _log.warning("%s: a prepared model is not kept: %s", self.path, error.strerror)

    def _make_room(self):
        kept = sorted(
            (file for file in self.path.iterdir() if len(file.name) == 32), key=lambda file: file.stat().st_mtime_ns
        )
        for file in kept[: max(0, len(kept) - KEPT_MOST + 1)]:
            file.unlink(missing_ok=True)  # who has it mapped keeps it

    def _take_rates(self):
        from vmhost.engine import library

        try:
            kept = json.loads((self.path / "rates.json").read_bytes())
            if kept["machine"] != self._here:
                return False
            library.set_rates(kept["rates"])
            return True
        except OSError, ValueError, KeyError, TypeError, library.EngineError:  # none yet, or damaged
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
            _log.warning("%s: what this machine's cores do is not kept: %s", self.path, error.strerror)
            os.unlink(unfinished)


def _machine():
    """What prepared models and rates depend on beside the model: the CPU, the engine's build and the backend."""
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
