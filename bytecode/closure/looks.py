"""What a search looked for and found, on which its results depend."""

import sys

from ..lookup import modules_below
from .results import is_installed, is_of_python, lies_in_packages


class Looks:
    """The looks of one search, which a finder answers. A search within another shares what was found, not what was
    asked."""

    def __init__(self, finder, outer=None):
        self.finder = finder
        self._found = {} if outer is None else outer._found  # results of `find`
        self._seen = {} if outer is None else outer._seen  # the same, with modules that turned out not to be Python
        self._asked, self._natives, self._located, self.sizes = set(), {}, {}, {}

    def find(self, name):
        """The Source of the module, or None."""
        self._asked.add(name)
        if name not in self._found:
            library = not self.finder.is_task and is_of_python(name)
            self._found[name] = self._seen[name] = None if library else self.finder.find(name)
        return self._found[name]

    def lose(self, name):
        """From now on the module is not found: it is not Python."""
        self._found[name] = None

    def locate(self, name):
        """(path, is_package) of the module `name` of an installed package, whose text is not read; else None."""
        if name not in self._located:
            found = None if is_of_python(name) else self.finder.locate(name)
            self._located[name] = found if found and lies_in_packages(found[0]) else None
        return self._located[name]

    def native(self, name):
        """The path of the native module `name` of a package, or None."""
        return None if name.partition(".")[0] in sys.stdlib_module_names else self._native(name)

    def _native(self, name):
        found = self.finder.native(name)
        self._natives[name] = found and str(found)
        return self._natives[name]

    def below(self, package):
        """The modules below a package that is found, without its tests: {dotted name: bytes of its source}."""
        source = self.find(package)
        if source is None or not source.is_package:
            return {}
        found = self.sizes[package] = modules_below(package, self.finder.place(source))
        return found

    def find_files(self, name):
        """Lets a folder of files below an installed package be found as a package, as in plain Python: programs name it
        for importlib.resources."""
        if self.finder.is_task and self.find(name) is None:
            outer = self.find(name.rpartition(".")[0])
            if outer and outer.is_package and (found := self.finder.folder_of_files(name, outer)):
                self._found[name] = found

    def identity(self, name):
        """What identifies the module `name` and its text; None if there is none."""
        self.find(name)
        source = self._seen[name]
        return source and (source.path, source.is_package, source.digest)

    def broken(self):
        """The modules that turned out not to be Python."""
        return [name for name in self._asked if self._found[name] is not self._seen[name]]

    def depends(self):
        """What was found, as plain values for `still`; None if modules of the program are among it."""
        asked = [name for name in self._asked if not is_of_python(name)]
        if all(self._seen[name] is None or is_installed(self._seen[name]) for name in asked):
            return {name: self.identity(name) for name in asked}, self._natives, self.sizes, self._located
        return None

    def still(self, depends):
        """Are the folders still as they were for `depends`?"""
        asked, natives, below, located = depends
        return (
            all(self.identity(name) == identity for name, identity in asked.items())
            and all(self._native(name) == path for name, path in natives.items())
            and all(self.locate(name) == place for name, place in located.items())
            and all(self.below(name) == sizes for name, sizes in below.items())
        )
