"""Files by their SHA-256: bundles, proofs, models, deltas. Served by a static server, stored by a device."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from vmhost.deployment import pieces
from vmhost.deployment.errors import DamagedError

_DIGEST = re.compile("[0-9a-f]{64}")
_RECIPE = ".pieces"  # suffix of its file name


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_digest(text):
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


class ArtifactFolder:
    """Files below `folder`, each as `ab/abcdef…`: written completely or not at all, never changed. A bundle with large
    files may be stored in pieces (pieces.py), with the recipe `ab/abcdef….pieces`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest):
        if not is_digest(digest):
            raise ValueError(f"expected a SHA-256 in hexadecimal, got {digest!r}")
        return self.folder / digest[:2] / digest

    def __contains__(self, digest):
        if self.path(digest).exists():
            return True
        recipe = self.recipe(digest)
        return recipe is not None and all(self.path(each).exists() for each in pieces.needed(recipe))

    def _make_folder_of(self, path):
        try:
            path.parent.mkdir()
        except FileExistsError:
            return
        sync_folder(self.folder)  # else a power cut may take the folder, with the file in it

    # ---- in pieces

    def _recipe_path(self, digest):
        path = self.path(digest)
        return path.with_name(path.name + _RECIPE)

    def recipe(self, digest):
        """The recipe for the file; None if it is stored whole, or not at all."""
        try:
            recipe = json.loads(self._recipe_path(digest).read_bytes())
            pieces.check(recipe)
        except FileNotFoundError, ValueError:
            return None
        return recipe

    def put_in_pieces(self, data):
        """Stores a bundle, in pieces if it has large files; returns its digest."""
        found = pieces.split(data)
        if found is None:
            return self.put(data)
        recipe, parts = found
        for part in parts.values():
            self.put(part)
        digest = digest_of(data)
        self.put_recipe(digest, recipe)
        return digest

    def put_recipe(self, digest, recipe):
        """Stores a file as the recipe for the pieces here; DamagedError if they make another file."""
        found = digest_of(pieces.join(recipe, self.read))
        if found != digest:
            raise DamagedError(f"the pieces of {digest} make another file, {found}")
        path = self._recipe_path(digest)
        self._make_folder_of(path)
        replace_durably(path, json.dumps(recipe, separators=(",", ":")).encode())

    def needed(self, digest):
        """All digests that the file needs: its own, and those of its pieces."""
        recipe = self.recipe(digest)
        return {digest} if recipe is None else {digest, *pieces.needed(recipe)}

    def put(self, data):
        """Stores the bytes; returns their digest. On the disk on return."""
        digest = digest_of(data)
        path = self.path(digest)
        if not path.exists():
            self._make_folder_of(path)
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
        """Moves the complete file `partial` in, after a check of its digest. DamagedError, with the file deleted."""
        found = digest_of_file(partial)
        if found != digest:
            Path(partial).unlink(missing_ok=True)
            raise DamagedError(f"{partial}: expected the SHA-256 {digest}, got {found}; it was deleted")
        path = self.path(digest)
        self._make_folder_of(path)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
        return path

    def read(self, digest):
        """The bytes; DamagedError if they have another digest. FileNotFoundError."""
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            if (recipe := self.recipe(digest)) is None:
                raise
            data = pieces.join(recipe, self.read)
        if digest_of(data) != digest:
            raise DamagedError(f"{self.path(digest)}: damaged: its SHA-256 is another one; delete it")
        return data

    def remove(self, digest):
        """Removes the file. Its pieces stay, as other files may need them."""
        self.path(digest).unlink(missing_ok=True)
        self._recipe_path(digest).unlink(missing_ok=True)

    def remove_damaged(self, digest):
        """Removes the file, and those of its pieces that are damaged."""
        for each in self.needed(digest) - {digest}:
            path = self.path(each)
            if path.exists() and digest_of_file(path) != each:
                path.unlink()
        self.remove(digest)

    def digests(self):
        """All digests here, those of pieces included."""
        names = {path.name.removesuffix(_RECIPE) for path in self.folder.glob("??/*")}
        return [name for name in names if is_digest(name)]


def sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder):
    """The files below the folder are on the disk on return."""
    for path, _, names in os.walk(folder):
        for name in names:
            with open(Path(path) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(path)


def remove_partials(folder, patterns, older_s=3600.0):
    """Removes what killed processes left half written: files and folders `.partial-...` in folders that match a pattern
    below `folder`. Younger ones may be another process's, which is still writing."""
    for pattern in patterns:
        for path in Path(folder).glob(f"{pattern}/.partial-*"):
            with contextlib.suppress(OSError):  # another process removes it too
                if time.time() - path.stat().st_mtime > older_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace_durably(path, data):
    """Replaces the file atomically: even after a power cut it has either `data` or its old contents."""
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
