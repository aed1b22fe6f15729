"""What importing a module of an installed package brings to a running program's search, and whether it can work. Kept
for later processes."""

import hashlib

from .results import Place, is_installed


class PackageImports:
    """The imports of packages in one search. `search_within()` makes a search for what one brings. `kept`: the
    Compilations that keep it, or None."""

    def __init__(self, search, kept, search_within):
        self._search, self._kept, self._search_within = search, kept, search_within
        self._problems = {}  # module -> what is wrong with it, or None

    def problem(self, name):
        """Why importing the module `name` always fails; None where it may work, and then adds it."""
        if name not in self._problems:
            kept, roots = self._kept, self._search.looks.finder.roots
            key = kept.key("import", name, roots, self._installed_so_far()) if kept else None
            brought = self._kept_import(key) if key else None
            if brought is None:
                brought = self._read_import(name, key)
            self._problems[name] = brought["failure"]
            if brought["failure"] is None:
                self._merge(brought)
        return self._problems[name]

    def _read_import(self, name, key):
        """What the import brings, as plain values; kept under `key`."""
        outer, inner = self._search, self._search_within()
        inner.run(name)
        outer.looks.sizes.update(inner.looks.sizes)
        failure = inner.failure(name)
        brought = {
            "failure": failure and f"a VM can't import it: {failure}",
            "sources": [each for each in inner.sources if each not in outer.sources],
            "uses": {module: used for module, used in inner.uses.items() if module not in outer.uses},
            "absent": [(each.name, each.reason, each.where, inner.levels[each.name]) for each in inner.absent.values()],
            "inert": sorted(inner.inert),
            "replaced": {
                module: [
                    (place.lineno, place.col_offset, place.end_lineno, place.end_col_offset, text)
                    for place, text in each
                ]
                for module, each in inner.replaced.items()
            },
            "reaches": {module: sorted(brings) for module, brings in inner.reaches.items() if module is not None},
            "computed": inner.computed,
            "deferred": inner.deferred,
            "broken": inner.looks.broken(),
        }
        if key and (depends := inner.looks.depends()) is not None:
            self._kept.put(key, (depends, brought))
        return brought

    def _kept_import(self, key):
        """What was kept under `key`, if the folders still are as they were for it; else None."""
        found = self._kept.get(key)
        return found[1] if found is not None and self._search.looks.still(found[0]) else None

    def _merge(self, brought):
        search = self._search
        for name in brought["broken"]:
            search.looks.lose(name)
        search.sources.update((name, search.looks.find(name)) for name in brought["sources"])
        search.uses.update(brought["uses"])
        for module, brings in brought["reaches"].items():
            search.reaches.setdefault(module, set()).update(brings)
        search.inert.update(brought["inert"])
        for module, statements in brought["replaced"].items():
            search.replaced[module] = [(Place(*place), text) for *place, text in statements]
        search.computed = brought["computed"] | search.computed
        search.deferred.update(brought["deferred"])
        for absent in brought["absent"]:
            search.lack(*absent)

    def _installed_so_far(self):
        """A digest of the packages' modules that were found, on which what others bring depends."""
        found, sources = hashlib.sha256(), self._search.sources
        for name in sorted(sources):
            if is_installed(sources[name]):
                found.update(f"{name}\0{sources[name].path}\0".encode() + sources[name].digest)
        return found.digest()
