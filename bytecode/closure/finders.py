"""Where the modules of a task, and those of a running program, lie."""

import functools
import importlib.metadata
from dataclasses import replace
from pathlib import Path

from ..lookup import INSTALLED, Folders, find_module, native_module
from ..postponing import postpone
from .results import Source, is_installed, is_of_python

_SCRIPTS = {"console_scripts", "gui_scripts"}  # groups of entry points that commands start


class TaskFinder:
    """Finds modules in the folder of a task, and in the folder `packages` of its requirements, if there is one.

    Paths of packages are relative: messages, and the bundle's copies of them, are the same on all machines."""

    is_task, locate = True, None

    def __init__(self, folder, packages):
        self._folder, self._packages = folder, packages and Path(packages)

    def find(self, name):
        """The Source of the module, or None. A module of the task hides a package."""
        found = find_module(self._folder, name)
        if found or self._packages is None or is_of_python(name):
            return found and _read(name, *found)
        found = find_module(self._packages, name)
        return found and replace(_read(name, *found), path=self._shown(found[0]))

    def native(self, name):
        """The path of the native module, or None."""
        found = self._packages and native_module([self._packages], name)
        return found and self._shown(found)

    def place(self, source):
        """The folder in which the Source of a package, or of a module, lies."""
        path = Path(source.path)
        if self._packages is not None and is_installed(source):
            path = self._packages.parent / path
        return path if path.is_dir() else path.parent

    def folder_of_files(self, name, outer):
        """The Source of a folder of files in the package `outer`, as plain Python has it; else None."""
        if self._packages is None:
            return None
        folder = self.place(outer) / name.rpartition(".")[2]
        if folder.is_dir() and any(path.is_file() for path in folder.iterdir()):
            return Source(name, self._shown(folder), True, b"")
        return None

    @functools.cached_property
    def entry_points(self):
        """Those of the packages."""
        if self._packages is None:
            return ()
        found = importlib.metadata.distributions(path=[str(self._packages)])
        points = [point for each in found for point in each.entry_points if point.group not in _SCRIPTS]
        return tuple(sorted(points, key=lambda point: (point.group, point.name, point.value)))

    @property
    def tops(self):
        """What may be imported of the packages."""
        there = () if self._packages is None else self._packages.iterdir()
        return {path.stem for path in there if path.suffix in ("", ".py")}

    def _shown(self, path):
        return str(path.relative_to(self._packages.parent))


class ProgramFinder:
    """Finds modules of a running program: `given`, the Source of one, and others in the folders `roots`. `lazily`:
    imports of packages that can wait are taken out, and noted in `later`. `defers`: `locate` finds what a VM is to ask
    for."""

    is_task, entry_points, tops = False, (), frozenset()

    def __init__(self, given, roots, lazily, defers):
        self.roots, self.folders, self.later = tuple(roots), Folders(roots), {}
        self.native, self.locate = self.folders.native, self._located if defers else None
        self._lazily, self._is_of_package = lazily, functools.cache(self._lies_in_packages)
        self._given = given

    def find(self, name):
        """The Source of the module, or None."""
        if name == self._given.name:
            return self._waiting(self._given)
        if (found := self.folders.find(name)) is not None:
            return self._waiting(Source(name, str(found[0]), found[1], self.folders.read(found[0])).nameable())
        if self._given.name.startswith(name + "."):
            return Source(name, f"<{name}>", True, b"")  # a parent package that is not under the roots
        return None

    def place(self, source):
        """The folder in which the Source of a package, or of a module, lies."""
        path = Path(source.path)
        return path if path.is_dir() else path.parent

    def _located(self, name):
        """(path, is_package) of a module, without reading it; or None."""
        found = None if name == self._given.name else self.folders.find(name)
        return found and (str(found[0]), found[1])

    def _lies_in_packages(self, top):
        found = None if not top or is_of_python(top) else self.folders.find(top)
        return found is not None and any(part in INSTALLED for part in found[0].parts)

    def _waiting(self, source):
        if not self._lazily or is_installed(source):
            return source
        new, found = postpone(source.text, source.path, self._is_of_package)
        if found:
            self.later[source.name] = found
        return replace(source, text=new)


def _read(name, path, is_package):
    text = b"" if path.is_dir() else path.read_bytes()
    return Source(name, str(path), is_package, text)
