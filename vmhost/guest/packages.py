"""importlib.metadata for the packages in the task's bundle."""

import csv
import pathlib
from importlib.metadata import Distribution, FileHash, PackagePath, Prepared

from vmhost.guest import files


class BundledDistribution(Distribution):
    """A package whose metadata is in the folder NAME-VERSION.dist-info of the bundle."""

    def __init__(self, folder):
        self._folder = folder

    def read_text(self, filename):
        path = f"{self._folder}/{filename}"
        return files.read_text(path) if path in files.names() else None

    def locate_file(self, path):
        return pathlib.Path(path)

    @property
    def files(self):
        """As installed, with the sources, which the bundle has compiled."""
        record = self.read_text("RECORD")
        return None if record is None else [self._made(*row) for row in csv.reader(record.splitlines())]

    def _made(self, name, digest, size):
        path = PackagePath(name)
        path.hash, path.size, path.dist = FileHash(digest) if digest else None, int(size) if size else None, self
        return path


def distributions(name=None):
    """An iterator over the packages called `name`; None: all."""
    wanted = None if name is None else Prepared.normalize(name)
    for path in files.names():
        folder, _, last = path.rpartition("/")
        if last == "METADATA" and folder.endswith(".dist-info") and "/" not in folder:
            if wanted in (None, Prepared.normalize(folder.removesuffix(".dist-info").rpartition("-")[0])):
                yield BundledDistribution(folder)
