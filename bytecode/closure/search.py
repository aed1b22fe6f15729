"""The walk: reads a module, then the modules that it imports, until all are read."""

from dataclasses import replace

from ..errors import CompileError, Diagnostic
from ..lookup import modules_below
from ..postponing import replaced
from ..source import parse
from .looks import Looks
from .package_imports import PackageImports
from .problems import THIRD_PARTY, Problems
from .reader import Reader
from .results import CERTAIN, OPTIONAL, Absent, Closure, is_installed, is_of_python


class Search:
    """One search for the modules that an entry module needs. `finder`: of finders.py. `gaps`, a dict, collects the
    impossible imports at the top of the program's own modules, which are errors without it. `kept`: see
    closure_of_module. `outer`: the search that started this one."""

    def __init__(self, finder, gaps=None, kept=None, outer=None):
        self.is_task = finder.is_task  # if not, the modules are a running program's, for host and VM
        self.looks = Looks(finder, outer and outer.looks)
        self.gaps, self._is_inner = gaps, outer is not None
        self.sources = dict(outer.sources) if outer else {}
        # module -> the imports that its own import always runs: {dotted name: (file, line)}
        self.uses = {module: dict(used) for module, used in outer.uses.items()} if outer else {}
        self.deferred = {}  # modules of packages that a VM is to ask for -> (path, is_package)
        self.absent, self.levels = {}, {}  # dotted name -> Absent, and the level of the import that it tells of
        self.inert, self.replaced = set(), {}  # the inert modules; module -> [(place, text of a statement there)]
        self.reaches = {}  # module, or None -> those that it brings by imports whose failure it does not handle
        self.computed = {}  # top-level package -> (file, line) of an import by a name that shows nothing
        self.errors, self.warnings = set(), set()
        self._reading = None  # the module being read
        self._waiting = []
        packages = PackageImports(self, kept, lambda: Search(finder, outer=self))
        self.problems = Problems(self.looks, None if self.is_task or outer else packages.problem)

    def add_also(self, names):
        """Adds those of the modules that are found, without an import of them."""
        for name in names:
            if self.looks.find(name) is not None:
                self.add(name)

    def run(self, entry):
        self.add(entry)
        while self._waiting:
            source = self._waiting.pop()
            try:
                tree = parse(source.text, source.path)
            except CompileError as error:
                if is_installed(source):
                    del self.sources[source.name]
                    self.lack(source.name, f"a VM can't have it: {error.diagnostics[0]}", source.path, OPTIONAL)
                    self.looks.lose(source.name)
                else:
                    self.errors.update(error.diagnostics)
                continue
            self._reading = source.name
            Reader(self, source, tree).read()
            self._reading = None

        def order(diagnostic):
            return diagnostic.file, diagnostic.line, diagnostic.message

        if self.is_task:
            self._warn_of_failures()
        if not self._is_inner:
            self._report_left_out()
        sources = {name: self.sources[name] for name in sorted(self.sources)}
        lines = {}
        certain = self._reached() if not self._is_inner else ()
        for name, statements in self.replaced.items() if not self._is_inner else ():
            if name not in sources or name not in certain:
                continue  # of a package that can't be imported, or whose importer has another way where it fails
            source = sources[name]
            sources[name] = replace(source, text=replaced(source.text, statements))
            lines[source.path] = sorted({place.lineno for place, _ in statements})
        return Closure(
            sources,
            tuple(sorted(self.errors, key=order)),
            tuple(sorted(self.warnings, key=order)),
            tuple(self.absent[name] for name in sorted(self.absent)),
            tuple(sorted(self.inert)),
            lines,
            deferred={
                name: self.deferred[name]
                for name in sorted(self.deferred)
                if name not in sources and name not in self.absent
            },
        )

    def _reached(self):
        """The modules that are reached without an import whose failure is handled."""
        found, pending = set(), [None]
        while pending:
            for name in self.reaches.get(pending.pop(), ()):
                if name not in found:
                    found.add(name)
                    pending.append(name)
        return found

    def _warn_of_failures(self):
        """Warns of the task's own imports of packages that always fail."""
        for module, used in self.uses.items():
            if module in self.sources and not is_installed(self.sources[module]):
                for name, (path, line) in used.items():
                    failure = self.failure(name)
                    if failure is not None:
                        self.warnings.add(Diagnostic(path, line, f"import {name}: it will fail in a VM: {failure}"))

    def lack(self, name, reason, where, level):
        """Records that the module `name` is missing; the place that is likeliest to import it wins over others."""
        if name not in self.absent or level < self.levels[name]:
            self.absent[name], self.levels[name] = Absent(name, reason, where, level == CERTAIN), level

    def failure(self, name):
        """Why importing the installed module `name` always fails: a Diagnostic of the failing import; None where it may
        work."""
        seen, pending = set(), [name]
        while pending:
            module = pending.pop()
            if module in seen or not (module in self.sources and is_installed(self.sources[module])):
                continue
            seen.add(module)
            pending += [module[:dot] for dot in range(len(module)) if module[dot] == "."]
            for used, where in self.uses.get(module, {}).items():
                if used in self.absent:
                    return Diagnostic(*where, f"import {used}: {self.absent[used].reason}")
                pending.append(used)
        return None

    def add(self, name, handled=False):
        """Adds the module `name`, which `find` finds, and its parent packages to the closure. `handled`: the module
        that is being read goes on where this import fails."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            if not handled:
                self.reaches.setdefault(self._reading, set()).add(prefix)
            if prefix in self.sources:
                continue
            source = self.looks.find(prefix)
            if source is None:
                continue
            self.sources[prefix] = source
            self._waiting.append(source)
            if length == 1 and self.is_task and is_of_python(prefix):
                whose = "vmhost's guest runtime" if prefix == "vmhost" else f"the standard library's module {prefix}"
                self.errors.add(Diagnostic(source.path, 0, f"has the name of {whose}; rename it"))

    def defer(self, name, handled=False):
        """Leaves the module `name` of an installed package out until a VM asks for it; False where it cannot be
        deferred. `handled`: as in `add`."""
        parts = name.split(".")
        if self.looks.finder.locate is None or parts[0] in THIRD_PARTY or self.looks.locate(name) is None:
            return False
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            if not handled:
                self.reaches.setdefault(self._reading, set()).add(prefix)
            if prefix not in self.sources and (found := self.looks.locate(prefix)) is not None:
                self.deferred[prefix] = found
        return True

    def _report_left_out(self):
        """Records which modules of the installed packages are left out."""
        for top in sorted({name.partition(".")[0] for name, each in self.sources.items() if is_installed(each)}):
            source = self.looks.find(top)  # what is only reported is nothing that the search depends on
            there = (
                modules_below(top, self.looks.finder.place(source)) if source is not None and source.is_package else {}
            )
            known = self.sources.keys() | self.absent.keys() | self.deferred.keys()
            left = {name: size for name, size in there.items() if name not in known}
            if left:
                size = f"{sum(left.values()) / 1e6:.1f} MB"
                advice = f"list those needed in task.yaml, such as import: [{next(iter(left))}], or {top}.* for all"
                reason = f"{len(left)} of {len(there)} modules ({size}) are left out, since no import names them"
                path, line = self.computed.get(top, ("", 0))
                where = f"{path}:{line}" if path else ""
                name = f"{top}.*"
                self.absent[name] = Absent(
                    name, f"{reason}; {advice if self.is_task else 'import them by name'}", where, False, tuple(left)
                )
        there = self.looks.finder.tops - self.sources.keys() - self.absent.keys()
        if left := sorted(name for name in there if self.looks.find(name)):
            reason = "it is among the task's packages, but no import names it: list it in task.yaml, import: [...]"
            self.absent["*"] = Absent("*", reason, "", False, tuple(left))
