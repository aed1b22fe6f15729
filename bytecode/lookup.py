"""Where the modules of a program lie, and whether what was found earlier still holds.

Needs no compiler: a process that finds its code in the cache imports this and not the closure.
"""

import functools
import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from .format import is_module_name

INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages
_NO_PARTS = {"test", "tests", "__main__"}  # of dotted names: modules that computed names do not bring


class Folders:
    """The folders `roots`, to be searched for modules, first match first. `asked`, `natives`, `digests` and `sizes`
    hold all that was found so far, as plain values, for `still_hold`."""

    def __init__(self, roots):
        self._roots = tuple(map(str, map(Path, roots)))
        self.asked = {}  # dotted name -> (path, is_package) or None
        self.natives = {}  # dotted name -> path of the native module, or None
        self.digests = {}  # path -> SHA-256 of the text
        self.sizes = {}  # package -> {module below it: bytes}
        self._files = functools.cache(lambda folder: frozenset(files_in(folder)))
        self._native_files = functools.cache(_native_files)

    def find(self, name):
        """As `find_module`, in the first folder that has the module."""
        found = self.asked[name] if name in self.asked else self.ask(name)
        return found and (Path(found[0]), found[1])

    def ask(self, name):
        """The same as a plain value, looked up now. Fewer calls than `find_module`: most folders are asked often."""
        self.asked[name] = None
        if is_module_name(name):
            *outer, last = name.split(".")
            for root in self._roots:
                folder = os.path.join(root, *outer)
                names, inner = self._files(folder), os.path.join(folder, last)
                if last in names:
                    path = os.path.join(inner, "__init__.py")
                    if "__init__.py" in self._files(inner) and os.path.isfile(path):
                        self.asked[name] = path, True
                        break
                if f"{last}.py" in names and os.path.isfile(f"{inner}.py"):
                    self.asked[name] = f"{inner}.py", False
                    break
                if last in names and find_module(Path(folder), last) is not None:
                    self.asked[name] = inner, True
                    break
        return self.asked[name]

    def read(self, path):
        """The text of a module that was found; empty for a folder without `__init__.py`."""
        if os.path.isdir(path):
            text = b""
        else:
            with open(path, "rb", buffering=0) as file:
                text = file.read()
        self.digests[str(path)] = hashlib.sha256(text).digest()
        return text

    def native(self, name):
        """The Path of the native module `name`, or None."""
        if name not in self.natives:
            *outer, last = name.split(".")
            roots = self._roots if all(part.isidentifier() for part in (*outer, last)) else ()
            found = (self._native_files(os.path.join(root, *outer)).get(last) for root in roots)
            self.natives[name] = next(filter(None, found), None)
        found = self.natives[name]
        return found and Path(found)

    def below(self, package):
        """As `modules_below`, for a package that is found; else {}."""
        path, is_package = self.find(package) or (None, False)
        self.sizes[package] = modules_below(package, path) if is_package else {}
        return self.sizes[package]

    def found(self):
        """All that was found, as plain values."""
        return self.asked, self.natives, self.digests, self.sizes


def still_hold(roots, found):
    """Whether another search of these folders would give what `Folders.found` gave."""
    (asked, natives, digests, sizes), now = found, Folders(roots)
    try:
        for name in asked:
            now.ask(name)
        for path in digests:
            now.read(path)
    except OSError:
        return False
    return (
        now.asked == asked
        and now.digests == digests
        and all(now.native(name) == (path and Path(path)) for name, path in natives.items())
        and all(now.below(package) == there for package, there in sizes.items())
    )


def find_module(folder, name):
    """The source file of the module `name` in a folder and whether it is a package: (Path, bool), or None.

    A folder without `__init__.py` that contains Python files at any depth counts as a package; its path is the folder.
    """
    parts = name.split(".")
    if not is_module_name(name):
        return None  # for example from import_module("../x")
    base = folder.joinpath(*parts)
    if (base / "__init__.py").is_file():
        return base / "__init__.py", True
    if base.with_name(base.name + ".py").is_file():
        return base.with_name(base.name + ".py"), False
    if base.is_dir() and next(base.rglob("*.py"), None) is not None:
        return base, True
    return None


def native_module(roots, name, files=None):
    """The file of the native module `name` under one of the folders `roots`, or None. `files(folder)`: as files_in."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for root in roots:
        folder = os.path.join(root, *parts[:-1])
        for file in (files or files_in)(folder):
            if file.startswith(f"{parts[-1]}.") and file.endswith(tuple(EXTENSION_SUFFIXES)):
                return Path(folder, file)
    return None


def _native_files(folder):
    """{name: path} of the native modules in a folder."""
    found = {}
    for file in files_in(folder):
        if file.endswith(tuple(EXTENSION_SUFFIXES)):
            found.setdefault(file.partition(".")[0], os.path.join(folder, file))
    return found


def modules_below(package, path):
    """The modules below a package at `path`, its folder or a file in it, without its tests: {dotted name: bytes of its
    source}."""
    folder = str(path if path.is_dir() else path.parent)
    rows = []
    for here, folders, files in os.walk(folder):
        folders[:] = (each for each in folders if each not in _NO_PARTS)
        outer = here[len(folder) + 1 :].split(os.sep) if here != folder else []
        for file in files:
            stem, suffix = os.path.splitext(file)
            if suffix == ".py" and stem not in _NO_PARTS and (outer or stem != "__init__"):
                parts = outer if stem == "__init__" else [*outer, stem]
                rows.append(([*outer, file], ".".join([package, *parts]), os.path.join(here, file)))
    return {name: os.stat(file).st_size for _, name, file in sorted(rows)}


def files_in(folder):
    """The names in the folder, sorted."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
