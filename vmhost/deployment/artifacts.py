"""Files by their SHA-256: bundles, proofs, models, deltas. What a static server serves, and what a device keeps."""

import hashlib
import os
import re
import tempfile
from pathlib import Path

from vmhost.deployment.errors import DamagedError

_DIGEST = re.compile("[0-9a-f]{64}")
_CHUNK = 1 << 20


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_digest(text):
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


class ArtifactFolder:
    """Files below `folder`, each as `ab/abcdef…`: written whole or not at all, never changed."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest):
        if not is_digest(digest):
            raise ValueError(f"expected a SHA-256 in hexadecimal, got {digest!r}")
        return self.folder / digest[:2] / digest

    def __contains__(self, digest):
        return self.path(digest).exists()

    def put(self, data):
        """Keeps the bytes; returns their digest. On the disk when it returns."""
        digest = digest_of(data)
        path = self.path(digest)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)
                    os.fsync(file.fileno())
                os.replace(partial, path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
        return digest

    def take(self, partial, digest):
        """Moves the complete file `partial` in, after a check of its digest; DamagedError, and then it is deleted."""
        found = digest_of_file(partial)
        if found != digest:
            Path(partial).unlink(missing_ok=True)
            raise DamagedError(f"{partial}: expected the SHA-256 {digest}, got {found}; it was deleted")
        path = self.path(digest)
        path.parent.mkdir(exist_ok=True)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
        return path

    def read(self, digest):
        """The bytes; DamagedError where they are not what was put there. FileNotFoundError."""
        data = self.path(digest).read_bytes()
        if digest_of(data) != digest:
            raise DamagedError(f"{self.path(digest)}: damaged: its SHA-256 is another one; delete it")
        return data

    def remove(self, digest):
        self.path(digest).unlink(missing_ok=True)

    def digests(self):
        """All that are here."""
        return [path.name for path in self.folder.glob("??/*") if is_digest(path.name)]


def sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path, data):
    """The file `path` holds `data` from now on, also after a power cut, or what it held before; never a mixture."""
    path = Path(path)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
