"""The modules that a task needs: the import closure over its folder and its packages, and what of it a VM lacks.

Every import statement counts, wherever it stands, since a bundle can't be completed later. Exceptions are imports that
never run in a VM (under `if TYPE_CHECKING:` and `if __name__ == "__main__":`). A missing module is

- an error where the task's own code imports it unguarded at the top of a module;
- a warning where that import is in an `if`, a loop or a function of the task: it may never run;
- ignored where the program handles it (`try: import x` with `except ImportError`,
  `contextlib.suppress(ImportError)`), and in installed packages, which import much that never runs;
- replaced in an installed package that imports a module of inert.py unguarded outside of functions: most never use it.
  Not so in a module that is reached only by imports whose failure is handled: it fails, and the other way is taken.

Imports by computed names (`import_module(f"pkg.x{n}")`) bring the modules that fit the constant beginning of the name,
and what a package's texts name ("pkg.part:name"). If a package's computed name shows nothing, its own folder comes
along. Both have a limit, `_COMPUTED_BYTES`.

`Closure.absent` lists all missing modules, so that an import that does run in a VM gives the reason. A name that is
both in the folder and in the standard library is an error; search order does not decide it.
"""

import ast
import difflib
import functools
import hashlib
import importlib.metadata
import re
import sys
from collections import namedtuple
from dataclasses import dataclass, field, replace
from pathlib import Path

from .computed_names import ANYTHING, ModuleNames, fixed_package, matcher
from .conditions import catches_import_error, known_test, plain_name, suppresses_import_error
from .errors import CompileError, Diagnostic
from .inert import binding, modules_of
from .lookup import INSTALLED, Folders, find_module, modules_below, native_module
from .offered import ALIASES, LEFT_OUT, REFUSED, REFUSED_NAMES, left_out, offered_modules
from .postponing import can_replace, postpone, replaced
from .relocation import gives_a_place
from .source import children_of, nodes_of, parse

_REFUSES_VMS = "its C part refuses interpreters with a GIL of their own"
_THIRD_PARTY = {
    "numpy": f"{_REFUSES_VMS}; import vmhost.engine.numpy, which has its names",
    "cffi": f"{_REFUSES_VMS}; call the library on the host, as a host function",
    "cryptography": f"{_REFUSES_VMS}; use hashlib and hmac, or a host function",
    "msgpack": f"{_REFUSES_VMS}; use json or struct",
    "psutil": f"{_REFUSES_VMS}; measure on the host",
    "yaml": f"{_REFUSES_VMS}; use json or tomllib",
    **dict.fromkeys(
        ("jax", "matplotlib", "onnxruntime", "pandas", "PIL", "scipy", "sklearn", "tensorflow", "torch"),
        f"{_REFUSES_VMS}, or NumPy's does; compute on the host, and pass values to the task",
    ),
}
_COMPILES = {
    "builtins.eval": "use json.loads for data, or a table of functions for choices",
    "builtins.exec": "write the code into a module of the task",
    "builtins.compile": "write the code into a module of the task",
    "ast.parse": "parse on the host",
    "types.CodeType": "write the code into a module of the task",
    "importlib.util.spec_from_file_location": "import the module by its name",
    "importlib.machinery.SourceFileLoader": "import the module by its name",
}
_OVER_CODE = {
    "builtins.eval",
    "builtins.exec",
    "types.FunctionType",
    "types.LambdaType",
}  # these work with existing code objects
_MAKES_FUNCTIONS = {"types.FunctionType", "types.LambdaType"}
_PICKLES = {"pickle.dump", "pickle.dumps"}
_BESIDE = "beside the program, nor on sys.path,"
_MAY_NOT_RUN = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Match)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_JUDGED = frozenset((*_MAY_NOT_RUN, *_FUNCTION, ast.Try, ast.TryStar, ast.With, ast.AsyncWith))
# An import runs with its module; may run with it; runs in a call; is guarded: the program expects it to fail.
_CERTAIN, _POSSIBLE, _IN_CALL, _OPTIONAL = range(4)
_COMPUTED_BYTES = 10 << 20  # of sources that one computed import may bring
_NO_PARTS = {"test", "tests", "__main__"}  # of dotted names: modules that computed names do not bring
_IMPORTERS = {"importlib.import_module", "builtins.__import__", "pkgutil.resolve_name", "importlib.util.find_spec"}
_COMPUTES = (b"import_module", b"__import__")
_LISTS_ENTRY_POINTS = {"entry_points", "select"}  # with a keyword `group`
_TAKES_A_GROUP = {"iter_entry_points", "load_setuptools_entrypoints"}
_SCRIPTS = {"console_scripts", "gui_scripts"}  # groups of entry points that commands start
_SOURCELESS = {"inspect.getsource", "inspect.getsourcelines", "inspect.findsource"}

# Modules without a file: the text sets its own path, installs a finder, or puts modules into sys.modules.
_MAKES_MODULES = re.compile(rb"^__path__ *=|\bsys\.meta_path\b|\bsys\.modules\[[^\]\n]*\] *=", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One module found: `path` for messages, `text` its source (empty for a folder without `__init__.py`)."""

    name: str
    path: str
    is_package: bool
    text: bytes

    @functools.cached_property
    def digest(self):
        return hashlib.sha256(self.text).digest()


_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")  # of a statement, as a syntax tree's node has them
_Place = namedtuple("_Place", _PLACE)


@dataclass(frozen=True)
class Absent:
    """A missing module that is imported: the reason, and the first place that imports it. `certain`: importing the
    module at that place always runs this import. "pkg.*" stands for the modules `names` of the package, which are left
    out since nothing names them; `where` is its import by a computed name, "" if it has none."""

    name: str
    reason: str
    where: str
    certain: bool
    names: tuple = ()


@dataclass(frozen=True)
class Closure:
    """`sources` maps dotted names to Source; `errors` and `warnings` are sorted tuples of Diagnostic; `absent` is a
    tuple of Absent, sorted by name; `inert` has the modules that are replaced by inert ones where packages import them,
    and `replaced` the places of these imports: {path: lines}; `later` maps own modules to the imports in them that
    wait: {name: Postponed}; `deferred` maps modules of packages that are left out until a VM imports them to (path,
    is_package); `found`, of a running program's module, is what `lookup.still_hold` takes."""

    sources: dict
    errors: tuple
    warnings: tuple
    absent: tuple = ()
    inert: tuple = ()
    replaced: dict = field(default_factory=dict)
    later: dict = field(default_factory=dict)
    deferred: dict = field(default_factory=dict)
    found: tuple = field(default=(), compare=False)


def close_over_folder(folder, entry, packages=None, also=(), named=None):
    """The Closure of the module `entry` within the task folder `folder`. Reports problems instead of raising.

    `packages` is a folder called site-packages with the task's requirements; `also` lists modules in it that are
    included without being imported. `named` maps further modules, "pkg.part" or "pkg.*" for all below a package, to the
    (file, line) that names them. A module of the task hides a package.
    """

    def find(name):
        found = find_module(folder, name)
        if found or packages is None or _is_of_python(name.partition(".")[0]):
            return found and _read(name, *found)
        found = find_module(Path(packages), name)
        # relative paths: messages, and the bundle's copies of them, are the same on all machines
        return found and replace(_read(name, *found), path=str(found[0].relative_to(Path(packages).parent)))

    search = _Search(find, is_task=True, packages=packages)
    for name in also:
        if search.find(name) is not None:
            search.add(name)
    for name, place in (named or {}).items():
        search.add_named(name, place)
    closure = search.run(entry)
    root = Path(folder).resolve()
    outside = [
        Diagnostic(source.path, 0, "is a link that leads out of the task's folder; copy the file there")
        for source in closure.sources.values()
        if not is_installed(source) and not Path(source.path).resolve().is_relative_to(root)
    ]
    return replace(closure, errors=(*outside, *closure.errors))


def closure_of_module(
    module_name,
    source,
    roots,
    filename=None,
    is_package=False,
    gap=None,
    also=(),
    lazily=False,
    kept=None,
    defers=False,
):
    """The Closure of a module of the running program.

    `source` is the module's text (bytes or str), `filename` its name in tracebacks, `roots` the folders to search for
    other modules, first match first; `also` lists modules there that are included without being imported. Modules that
    are neither there nor offered to a VM, and installed packages that are not pure Python, are refused: CompileError
    with each place. An import inside a function is no error: it raises if it runs.

    With `gap`, the text of an expression, an impossible import at the top of one of the program's own modules is no
    error either: the returned sources bind its names to `gap(__name__, "file:line: ...")`, on the same line. `lazily`:
    imports of installed packages that can wait are left out (postponing.py). `defers`: what installed packages import
    in functions, or name in texts, is left out as well: a VM asks for it. `kept`: the Compilations that keep what
    imports of installed packages bring."""
    text = source.encode() if isinstance(source, str) else source
    given = _nameable(Source(module_name, str(filename or f"<{module_name}>"), is_package, text))
    later = {}
    folders = Folders(roots)

    def find(name):
        if name == module_name:
            return waiting(given)
        if (found := folders.find(name)) is not None:
            return waiting(_nameable(Source(name, str(found[0]), found[1], folders.read(found[0]))))
        if module_name.startswith(name + "."):
            return Source(name, f"<{name}>", True, b"")  # a parent package that is not under the roots
        return None

    def locate(name):
        found = None if name == module_name else folders.find(name)
        return found and (str(found[0]), found[1])

    @functools.cache
    def is_of_package(top):
        found = None if not top or _is_of_python(top) else folders.find(top)
        return found is not None and any(part in INSTALLED for part in found[0].parts)

    def waiting(source):
        if not lazily or is_installed(source):
            return source
        new, found = postpone(source.text, source.path, is_of_package)
        if found:
            later[source.name] = found
        return replace(source, text=new)

    search = _Search(
        find,
        is_task=False,
        native_part=folders.native,
        gaps=None if gap is None else {},
        kept=kept,
        locate=locate if defers else None,
    )
    search.place = tuple(roots)
    for name in also:
        if search.find(name) is not None:
            search.add(name)
    closure = search.run(module_name)
    failure = search.failure(module_name)  # where it is an installed package's
    if closure.errors or failure is not None:
        raise CompileError(closure.errors or [failure])
    gaps = search.gaps or {}

    def bind(source):
        def bound(node, alias, message):
            name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            return f"{name} = {gap}(__name__, {f'{source.path}:{node.lineno}: {message}'!r})"

        return bound

    filled = {
        name: replace(source, text=_fill(source, gaps[name], bind(source)))
        for name, source in closure.sources.items()
        if name in gaps
    }
    folders.sizes.update(search.sizes)
    return replace(closure, sources=closure.sources | filled, later=later, found=folders.found())


def _fill(source, gaps, bind):
    """The text of `source` with the gaps of _statements."""
    return replaced(source.text, _statements(gaps, bind))


def _statements(gaps, bind):
    """(import, text of the statements in its place) for gaps: triples of an import, its impossible alias (None: all of
    them), and what `bind(import, alias, …)` needs to give the statement that stands for it."""
    bad = {}
    for node, alias, message in gaps:
        for name in node.names if alias is None else [alias]:
            bad.setdefault(node, {})[name] = message
    statements = []
    for node, reasons in bad.items():
        good = [alias for alias in node.names if alias not in reasons]
        parts = []
        if good:
            parts.append(
                ast.unparse(
                    ast.Import(good) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, good, node.level)
                )
            )
        parts += [bind(node, alias, message) for alias, message in reasons.items() if alias.name != "*"]
        statements.append((node, "; ".join(parts or ["pass"])))
    return statements


def _nameable(source):
    """The Source; CompileError if its path is not UTF-8, as VMs name files."""
    try:
        source.path.encode()
    except UnicodeEncodeError:
        shown = source.path.encode(errors="backslashreplace").decode()
        raise CompileError([Diagnostic(shown, 0, "its path is not UTF-8, and VMs cannot name it; rename it")]) from None
    return source


def _read(name, path, is_package):
    text = b"" if path.is_dir() else path.read_bytes()
    return Source(name, str(path), is_package, text)


class _Search:
    """One search for the modules that an entry module needs. `find(name)` gives a Source or None.

    `native_part(name)` gives the path of the native module `name`, or None. `gaps`, a dict, collects the impossible
    imports at the top of the program's own modules, which are errors without it. `packages` is the folder of a task's
    packages, or None. `kept`: see closure_of_module. `locate(name)`: as `find` without reading the module, (path,
    is_package); given where imports are deferred.
    """

    place = ()  # the folders to search, where `kept` is given

    def __init__(self, find, is_task, native_part=lambda top: None, gaps=None, packages=None, kept=None, locate=None):
        self._find, self._kept, self._locate = find, kept, locate
        self._located = {}  # results of `locate`
        self.deferred = {}  # modules of packages that a VM is to ask for -> (path, is_package)
        self._folder = packages
        self.gaps = gaps
        self.absent, self._levels = {}, {}  # dotted name -> Absent, and the level of the import that it tells of
        self.uses = {}  # module -> the imports that its own import always runs: {dotted name: (file, line)}
        self._outer = None  # the search that started this one
        self.inert, self.replaced = set(), {}  # the inert modules; module -> [(place, text of a statement there)]
        self._reading = None  # the module being read
        self.reaches = {}  # module, or None -> those that it brings by imports whose failure it does not handle
        self._computed = {}  # top-level package -> (file, line) of an import by a name that shows nothing
        self._packages = {}  # installed module -> what is wrong with it, or None
        self._native_part = native_part
        self.is_task = is_task  # if not, the modules are a running program's, for host and VM
        self._found = {}  # results of `find`
        self._seen = {}  # the same, with modules that turned out not to be Python
        self._asked, self._natives, self.sizes = set(), {}, {}  # what of the folders this search depends on
        self.sources = {}
        self.errors = set()
        self.warnings = set()
        self._waiting = []

    def run(self, entry):
        self.add(entry)
        while self._waiting:
            source = self._waiting.pop()
            try:
                tree = parse(source.text, source.path)
            except CompileError as error:
                if is_installed(source):
                    del self.sources[source.name]
                    self.lack(source.name, f"a VM can't have it: {error.diagnostics[0]}", source.path, _OPTIONAL)
                    self._found[source.name] = None
                else:
                    self.errors.update(error.diagnostics)
                continue
            self._reading = source.name
            _Reader(self, source, tree).read()
            self._reading = None

        def order(diagnostic):
            return diagnostic.file, diagnostic.line, diagnostic.message

        if self.is_task:
            self._warn_of_failures()
        if self._outer is None:
            self._report_left_out()
        sources = {name: self.sources[name] for name in sorted(self.sources)}
        lines = {}
        certain = self._reached() if self._outer is None else ()
        for name, statements in self.replaced.items() if self._outer is None else ():
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
        if name not in self.absent or level < self._levels[name]:
            self.absent[name], self._levels[name] = Absent(name, reason, where, level == _CERTAIN), level

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

    def find(self, name):
        self._asked.add(name)
        if name not in self._found:
            library = not self.is_task and _is_of_python(name.partition(".")[0])
            self._found[name] = self._seen[name] = None if library else self._find(name)
        return self._found[name]

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
            source = self.find(prefix)
            if source is None:
                continue
            self.sources[prefix] = source
            self._waiting.append(source)
            if length == 1 and self.is_task and (prefix in sys.stdlib_module_names or prefix == "vmhost"):
                whose = "vmhost's guest runtime" if prefix == "vmhost" else f"the standard library's module {prefix}"
                self.errors.add(Diagnostic(source.path, 0, f"has the name of {whose}; rename it"))

    def locate(self, name):
        """(path, is_package) of the module `name` of an installed package, whose text is not read; else None."""
        if name not in self._located:
            found = None if _is_of_python(name.partition(".")[0]) else self._locate(name)
            self._located[name] = found if found and _lies_in_packages(found[0]) else None
        return self._located[name]

    def defer(self, name, handled=False):
        """Leaves the module `name` of an installed package out until a VM asks for it; False where it cannot be
        deferred. `handled`: as in `add`."""
        parts = name.split(".")
        if self._locate is None or parts[0] in _THIRD_PARTY or self.locate(name) is None:
            return False
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            if not handled:
                self.reaches.setdefault(self._reading, set()).add(prefix)
            if prefix not in self.sources and (found := self.locate(prefix)) is not None:
                self.deferred[prefix] = found
        return True

    def add_named(self, name, place):
        """Adds a module, or with "pkg.*" all below a package; `place`, the (file, line) that names it, for errors."""
        package = name.removesuffix(".*")
        problem = self.problem(package)
        found = self.find(package)
        if problem is None and found is None:
            return  # of a VM's standard library
        if problem is None and package != name and not found.is_package:
            problem = f"{found.path} is a module, not a package; leave out the `.*`"
        if problem is not None:
            self.errors.add(Diagnostic(*place, f"import: {name}: {problem}"))
            return
        for each in (package, *(self.below(package) if package != name else ())):
            self.add(each)

    def below(self, package):
        """The modules below a package that is found, without its tests: {dotted name: bytes of its source}."""
        source = self.find(package)
        if source is None or not source.is_package:
            return {}
        found = self.sizes[package] = modules_below(package, self._place(source))
        return found

    def _place(self, source):
        """The folder in which the Source of a package, or of a module, lies."""
        path = Path(source.path)
        if self._folder is not None and is_installed(source):
            path = Path(self._folder).parent / path
        return path if path.is_dir() else path.parent

    def add_computed(self, patterns, source, line, in_call):
        """Adds the modules that an import of `source` in line `line`, with a computed name of these patterns, may ask
        for; True if the names show which. `in_call`: defers those that it can."""
        for package, fits in ((fixed_package(each), matcher(each)) for each in patterns):
            if package:
                fitting = {name: size for name, size in self.below(package).items() if fits.fullmatch(name)}
                self._add_all(fitting, in_call)
        shown = all(map(fixed_package, patterns))
        if not shown and is_installed(source):
            self._computed.setdefault(source.name.partition(".")[0], (source.path, line))
            package = source.name if source.is_package else source.name.rpartition(".")[0]
            self._add_all(self.below(package), in_call)
        return shown

    def _add_all(self, found, in_call):
        if sum(found.values()) <= _COMPUTED_BYTES:
            for name in found:
                if not (in_call and self.defer(name)) and self.find(name) is not None:
                    self.add(name)

    def add_texts(self, source, names, has_computed):
        """Adds the modules of an installed package that texts of its module `source` name. `has_computed`: some of its
        attributes or imports have computed names, so that a plain text may name a part."""
        top = source.name.partition(".")[0]
        package = source.name if source.is_package else source.name.rpartition(".")[0]
        for text in sorted(names.texts):
            [name] = names.absolute(text.partition(":")[0], (package,))
            if not text.startswith(".") and not name.startswith(f"{top}."):
                if not (has_computed and source.is_package):
                    continue
                name = f"{source.name}.{name}"
            if name.startswith(f"{top}."):
                self._find_data(name)
            there = self.find if self._locate is None else self.locate
            while name.count(".") and there(name) is None and name.rpartition(".")[0] != package:
                name = name.rpartition(".")[0]  # it may end with the name of an attribute
            if name.startswith(f"{top}.") and not _NO_PARTS & set(name.split(".")) and there(name) is not None:
                if not self.defer(name):
                    self.add(name)

    def _find_data(self, name):
        """Lets a folder of files below an installed package be found as a package, as in plain Python: programs name it
        for importlib.resources."""
        outer, _, last = name.rpartition(".")
        if self._folder is not None and self.find(name) is None and (found := self.find(outer)) and found.is_package:
            folder = self._place(found) / last
            if folder.is_dir() and any(path.is_file() for path in folder.iterdir()):
                self._found[name] = Source(name, str(folder.relative_to(Path(self._folder).parent)), True, b"")

    def add_entry_points(self, groups):
        """Adds the modules of the entry points of the packages' groups that fit one of the patterns `groups`."""
        for point in self._entry_points:
            if any(matcher(group).fullmatch(point.group) for group in groups) and self.find(point.module) is not None:
                self.add(point.module)

    @functools.cached_property
    def _entry_points(self):
        if self._folder is None:
            return ()
        found = importlib.metadata.distributions(path=[str(self._folder)])
        points = [point for each in found for point in each.entry_points if point.group not in _SCRIPTS]
        return tuple(sorted(points, key=lambda point: (point.group, point.name, point.value)))

    def _report_left_out(self):
        """Records which modules of the installed packages are left out."""
        for top in sorted({name.partition(".")[0] for name, each in self.sources.items() if is_installed(each)}):
            source = self.find(top)  # what is only reported is nothing that the search depends on
            there = modules_below(top, self._place(source)) if source is not None and source.is_package else {}
            known = self.sources.keys() | self.absent.keys() | self.deferred.keys()
            left = {name: size for name, size in there.items() if name not in known}
            if left:
                size = f"{sum(left.values()) / 1e6:.1f} MB"
                advice = f"list those needed in task.yaml, such as import: [{next(iter(left))}], or {top}.* for all"
                reason = f"{len(left)} of {len(there)} modules ({size}) are left out, since no import names them"
                path, line = self._computed.get(top, ("", 0))
                where = f"{path}:{line}" if path else ""
                name = f"{top}.*"
                self.absent[name] = Absent(
                    name, f"{reason}; {advice if self.is_task else 'import them by name'}", where, False, tuple(left)
                )
        if self._folder is not None:
            there = {path.stem for path in Path(self._folder).iterdir() if path.suffix in ("", ".py")}
            if left := sorted(name for name in there - self.sources.keys() - self.absent.keys() if self.find(name)):
                reason = "it is among the task's packages, but no import names it: list it in task.yaml, import: [...]"
                self.absent["*"] = Absent("*", reason, "", False, tuple(left))

    def problem(self, name, own=True):
        """Why the module `name` can't be imported in a VM, or None. Does not add it. `own`: the task's own code imports
        it; the text then advises."""
        top = name.partition(".")[0]
        found = self.find(top)
        if found is not None:
            if top in _THIRD_PARTY and is_installed(found):
                return f"a VM can't load it: {_THIRD_PARTY[top]}"
            problem = self._missing_inside(name)
            if problem is None and not self.is_task and self._outer is None and is_installed(found):
                problem = self._package_problem(name)
            return problem
        native = self.native_file(top)
        if native is not None:
            return _not_pure(top, native)
        if top == "vmhost":
            if name in ("vmhost", "vmhost.guest") or name in offered_modules():
                return None
            return "a VM has vmhost.guest and vmhost.engine only, the host's side stays on the host"
        if name in ALIASES or (name in offered_modules() and (name not in REFUSED or not own)):
            return None  # of refused modules, a VM has some for packages that import more than they use
        reason = REFUSED.get(name) or left_out(name)
        if reason:
            return f"a VM does not have it: {reason}"
        if top in sys.stdlib_module_names:
            if top != name and self.problem(top) is None:
                return f"the standard library has no such module in Python {sys.version_info[0]}.{sys.version_info[1]}"
            return "a VM does not have it"
        if top in _THIRD_PARTY:
            return f"a VM can't load it: {_THIRD_PARTY[top]}"
        near = difflib.get_close_matches(top, offered_modules(), 1, 0.85) if own else ()
        advice = (
            f"did you mean {near[0]!r}?"
            if near
            else (
                "name it under requirements in task.yaml, or do this on the host"
                if self.is_task
                else "VMs take pure Python modules that the program can import, or that its `# /// script` block names"
            )
        )
        where = "in the task's folder, nor among its requirements," if self.is_task else _BESIDE
        return f"neither {where} nor in a VM's standard library; {advice}"

    def _package_problem(self, name):
        """Why importing the module `name` of an installed package always fails; None where it may work, and then adds
        it.
        """
        if name not in self._packages:
            key = self._kept.key("import", name, self.place, self._installed_so_far()) if self._kept else None
            brought = self._kept_import(key) if key else None
            if brought is None:
                brought = self._read_import(name, key)
            self._packages[name] = brought["failure"]
            if brought["failure"] is None:
                self._merge(brought)
        return self._packages[name]

    def _read_import(self, name, key):
        """What importing the module `name` of an installed package brings, as plain values; kept under `key`."""
        inner = _Search(self._find, False, self._native_part, locate=self._locate)
        inner._outer, inner._found, inner._seen, inner.sources = self, self._found, self._seen, dict(self.sources)
        inner.uses = {module: dict(used) for module, used in self.uses.items()}
        inner.run(name)
        self.sizes.update(inner.sizes)
        failure = inner.failure(name)
        brought = {
            "failure": failure and f"a VM can't import it: {failure}",
            "sources": [each for each in inner.sources if each not in self.sources],
            "uses": {module: used for module, used in inner.uses.items() if module not in self.uses},
            "absent": [
                (each.name, each.reason, each.where, inner._levels[each.name]) for each in inner.absent.values()
            ],
            "inert": sorted(inner.inert),
            "replaced": {
                module: [
                    (place.lineno, place.col_offset, place.end_lineno, place.end_col_offset, text)
                    for place, text in each
                ]
                for module, each in inner.replaced.items()
            },
            "reaches": {module: sorted(brings) for module, brings in inner.reaches.items() if module is not None},
            "computed": inner._computed,
            "deferred": inner.deferred,
            "broken": [each for each in inner._asked if self._found[each] is not self._seen[each]],
        }
        asked = [each for each in inner._asked if not _is_of_python(each.partition(".")[0])]
        if key and all(self._seen[each] is None or is_installed(self._seen[each]) for each in asked):
            depends = {each: self._identity(each) for each in asked}, inner._natives, inner.sizes, inner._located
            self._kept.put(key, (depends, brought))
        return brought

    def _kept_import(self, key):
        """What was kept under `key`, if the folders still are as they were for it; else None."""
        found = self._kept.get(key)
        if found is None:
            return None
        (asked, natives, below, located), brought = found
        same = all(self._identity(name) == identity for name, identity in asked.items())
        same = same and all(self._native(name) == path for name, path in natives.items())
        same = same and all(self.locate(name) == place for name, place in located.items())
        return brought if same and all(self.below(name) == sizes for name, sizes in below.items()) else None

    def _merge(self, brought):
        for name in brought["broken"]:
            self._found[name] = None
        self.sources.update((name, self._found[name]) for name in brought["sources"])
        self.uses.update(brought["uses"])
        for module, brings in brought["reaches"].items():
            self.reaches.setdefault(module, set()).update(brings)
        self.inert.update(brought["inert"])
        for module, statements in brought["replaced"].items():
            self.replaced[module] = [(_Place(*place), text) for *place, text in statements]
        self._computed = brought["computed"] | self._computed
        self.deferred.update(brought["deferred"])
        for absent in brought["absent"]:
            self.lack(*absent)

    def _identity(self, name):
        """What identifies the module `name` and its text; None if there is none."""
        self.find(name)
        source = self._seen[name]
        return source and (source.path, source.is_package, source.digest)

    def _installed_so_far(self):
        """A digest of the packages' modules that were found, on which what others bring depends."""
        found = hashlib.sha256()
        for name in sorted(self.sources):
            if is_installed(self.sources[name]):
                found.update(f"{name}\0{self.sources[name].path}\0".encode() + self.sources[name].digest)
        return found.digest()

    def _native(self, name):
        """The path of the native module `name`, as text, or None."""
        found = self._native_part(name)
        self._natives[name] = found and str(found)
        return self._natives[name]

    def native_file(self, name):
        """The file of the native module `name` of a package, or None."""
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        if self._folder is None:
            return self._native(name)
        found = native_module([self._folder], name)
        return found and found.relative_to(Path(self._folder).parent)

    def first_missing(self, name):
        """The first missing one of the parent packages of `name`, or `name` itself."""
        parts = name.split(".")
        prefixes = (".".join(parts[:length]) for length in range(1, len(parts)))
        return next((prefix for prefix in prefixes if self.problem(prefix) is not None), name)

    def _missing_inside(self, name):
        parts = name.split(".")
        for length in range(2, len(parts) + 1):
            prefix, outer = ".".join(parts[:length]), self.find(".".join(parts[: length - 1]))
            if self.find(prefix) is None:
                if _MAKES_MODULES.search(outer.text):
                    return None  # such as six.moves, which six creates: only a run can tell
                if not outer.is_package:
                    return f"{outer.path} is a module, not a package"
                native = self.native_file(prefix) if is_installed(outer) else None
                if native is not None:
                    return _not_pure(prefix, native)
                if self.is_task and not is_installed(outer):
                    return f"the task's folder has no module {prefix}"
                return f"{outer.path} is of a package that has no Python module {prefix}"
        return None


class _Reader:
    """Reads one module: adds its imports to the search, and reports what a VM can't do.

    Nothing here recurses: compilers accept sums of thousands of terms and hundreds of elifs, which nest as deep.
    """

    def __init__(self, search, source, tree):
        self._search, self._source, self._tree, self._nodes = search, source, tree, nodes_of(tree)
        self._own = not is_installed(source)
        self._level = _CERTAIN  # of the node being read
        self._in_call = False  # is the node in a function?
        self._imported = {}  # local name -> dotted name it stands for
        self._functions = set()  # names that are only ever bound to functions
        self._codes = set()  # names that are bound to code objects
        self._names = None  # ModuleNames, where something is imported by a computed name
        self._inert = []  # imports that are replaced by inert modules: triples for _statements
        given = set()
        for node in self._nodes:
            kind = type(node)  # compared: most nodes are none of these, and isinstance takes several times as long
            if kind is ast.Name:
                if type(node.ctx) is ast.Store:
                    given.add(node.id)
            elif kind is ast.arg:
                given.add(node.arg)
            elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
                self._functions.add(node.name)
            elif kind is ast.ClassDef:
                given.add(node.name)
            elif kind is ast.Assign:
                if isinstance(node.value, ast.Attribute) and node.value.attr == "__code__":
                    self._codes.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif kind is ast.Import:
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._imported[alias.asname or top] = alias.name if alias.asname else top
            elif kind is ast.ImportFrom and not node.level:
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self._bound = given | self._functions  # names that this module binds
        self._functions -= given

    def read(self):
        """Reads the whole module."""
        if not self._own:
            has_computed = "__getattr__" in self._bound or any(each in self._source.text for each in _COMPUTES)
            self._search.add_texts(self._source, self._module_names(), has_computed)
        pending = [(statement, _CERTAIN, False) for statement in self._tree.body]
        while pending:
            node, self._level, self._in_call = pending.pop()
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, node, f"import {alias.name}", alias)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
            elif type(node) is ast.Constant or not self._own and type(node) is ast.Name:
                continue
            elif isinstance(node, ast.expr):
                excused = set()  # called functions, which _call judges, and operands of comparisons
                for part in nodes_of(node):
                    kind = type(part)
                    if kind is ast.Call:
                        excused.add(part.func)
                        self._call(part)
                    elif kind is ast.Compare:
                        excused.update((part.left, *part.comparators))
                    elif self._own and (kind is ast.Attribute or kind is ast.Name):
                        self._name(part, part in excused)
            else:
                in_call = self._in_call or isinstance(node, _FUNCTION)
                pending += [(child, level, in_call) for child, level in self._children(node)]
        if self._inert:
            self._search.replaced[self._source.name] = _statements(self._inert, binding)

    # Imports

    def _import_from(self, node):
        base = self._absolute(node)
        if base is None:
            return
        shown = f"from {'.' * node.level}{node.module or ''} import "
        if not self._import(base, node, shown + ", ".join(alias.name for alias in node.names)):
            return
        ours = self._search.find(base) is not None
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if alias.name == "*":
                for name in self._listed(base) if ours else ():
                    if self._search.find(f"{base}.{name}") is not None:
                        self._search.add(f"{base}.{name}", self._level == _OPTIONAL)
            elif ours:
                native = None if self._own else self._search.native_file(inner)
                if self._search.find(inner) is not None or native is not None:
                    self._import(inner, node, shown + alias.name, alias)
            elif inner in LEFT_OUT or inner in REFUSED:
                self._import(inner, node, shown + alias.name, alias)
            elif base == "vmhost" and self._search.is_task and inner not in offered_modules() and alias.name != "guest":
                self._refuse(
                    node,
                    f"{shown}{alias.name}: a VM has vmhost.guest and vmhost.engine only, the host's side stays on the "
                    "host",
                )
            elif inner in REFUSED_NAMES:
                self._refuse(node, f"{shown}{alias.name}: a VM does not have it: {REFUSED_NAMES[inner]}", alias)

    def _import(self, name, node, shown, alias=None):
        """Adds the module, or reports why it can't be imported; True if it can."""
        search, where = self._search, (self._source.path, node.lineno)
        if self._in_call and not self._own and search.defer(name, self._level == _OPTIONAL):
            return True
        problem = search.problem(name, self._own)
        if problem is not None and not self._own and self._level < _IN_CALL and hasattr(node, "names"):
            inert = modules_of(node, alias, name)
            if inert and can_replace(self._source.text, node):
                search.inert |= inert
                self._inert.append((node, alias, name))
                told = f"{problem}; here it can be imported, and refuses when it is used"
                search.lack(name, told, f"{self._source.path}:{node.lineno}", self._level)
                return False
        if self._level == _CERTAIN:
            search.uses.setdefault(self._source.name, {}).setdefault(name, where)
        if problem is None:
            search.add(name, self._level == _OPTIONAL)
            return True
        missing = search.first_missing(name)
        search.lack(missing, problem, f"{self._source.path}:{node.lineno}", self._level)
        if missing != name and self._level == _CERTAIN:
            search.uses[self._source.name].setdefault(missing, where)
        self._refuse(node, f"{shown}: {problem}", alias)
        return False

    def _refuse(self, node, message, alias=None):
        gaps = self._search.gaps
        if not self._own or self._level == _OPTIONAL:
            return
        if self._level > _CERTAIN:
            if self._search.is_task:
                self._warn(node, f"{message}; it raises ImportError if the task gets there")
        elif (
            gaps is not None
            and isinstance(node, (ast.Import, ast.ImportFrom))
            and (can_replace(self._source.text, node))
        ):
            gaps.setdefault(self._source.name, []).append((node, alias, message))
        else:
            self._search.errors.add(Diagnostic(self._source.path, node.lineno, message))

    def _absolute(self, node):
        if not node.level:
            return node.module
        package = self._source.name.split(".")
        if not self._source.is_package:
            package.pop()
        if node.level > len(package):
            advice = (
                "write `import x`, a module at the top of the folder is in no package"
                if not package
                else ("write the import with fewer dots")
            )
            self._refuse(node, f"a relative import that leads out of the task's folder; {advice}")
            return None
        package = package[: len(package) - node.level + 1]
        return ".".join(package + ([node.module] if node.module else []))

    def _listed(self, package):
        """The literal names in `__all__ = [...]` of a package of the task."""
        source = self._search.find(package)
        try:
            tree = parse(source.text, source.path)
        except CompileError:
            return []  # reported when that module is read
        values = [
            node.value
            for node in tree.body
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
            and any(
                isinstance(target, ast.Name) and target.id == "__all__"
                for target in getattr(node, "targets", None) or [node.target]
            )
        ]
        return [
            item.value
            for value in values
            if isinstance(value, (ast.List, ast.Tuple))
            for item in value.elts
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]

    # What never runs in a VM, and what may fail

    def _children(self, node):
        """The children of `node` to read, each with its level."""
        level = self._level
        if type(node) not in _JUDGED:
            return [(child, level) for child in children_of(node)]
        if isinstance(node, ast.If) and (known := known_test(node.test)) is not None:
            return [(statement, level) for statement in (node.body if known else node.orelse)]
        if isinstance(node, _MAY_NOT_RUN):
            level = max(level, _POSSIBLE)
        if isinstance(node, _FUNCTION):
            level = max(level, _IN_CALL)
        if isinstance(node, (ast.Try, ast.TryStar)):
            guarded = any(catches_import_error(handler.type) for handler in node.handlers)
            tried = _OPTIONAL if guarded else level
            # A guarded handler never runs if all imports work; otherwise it does run, since one failed.
            handled = level
            if guarded and self._imports_succeed(node.body):
                handled = _OPTIONAL
            elif not guarded or not any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in node.body):
                handled = max(level, _POSSIBLE)
            return [
                *((statement, tried) for statement in node.body + node.orelse),  # `else` runs after `try` worked
                *((handler, handled) for handler in node.handlers),
                *((statement, level) for statement in node.finalbody),
            ]
        if isinstance(node, (ast.With, ast.AsyncWith)):
            level = _OPTIONAL if any(suppresses_import_error(item.context_expr) for item in node.items) else level
        return [(child, level) for child in children_of(node)]

    def _imports_succeed(self, body):
        """Does `body` import something, and is all of it there? Then a handler for ImportError never runs."""
        names = []
        for statement in body:
            if isinstance(statement, ast.Import):
                names += [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and not statement.level:
                names.append(statement.module)
        return bool(names) and all(self._search.problem(name) is None for name in names)

    # What needs a compiler, a source or a name at run time

    def _call(self, node):
        name = self._dotted(node.func)
        first = node.args[0] if node.args else None
        if name in _OVER_CODE and self._is_code(first) or name == "ast.parse" and _reads_expressions(node):
            return
        if name in _COMPILES:
            self._warn(node, f"{name.removeprefix('builtins.')}: a VM has no compiler; {_COMPILES[name]}")
        elif name in _SOURCELESS:
            self._warn(node, f"{name}: a bundle holds no source but those that its record reads; of others, OSError")
        elif name in _IMPORTERS:
            self._dynamic_import(node, name.removeprefix("builtins."))
        elif (last := _last_name(node.func)) in _LISTS_ENTRY_POINTS or last in _TAKES_A_GROUP:
            groups = [each.value for each in node.keywords if each.arg == "group"]
            for group in groups or (node.args[:1] if last in _TAKES_A_GROUP else ()):
                self._search.add_entry_points(self._module_names().patterns(group))
        elif name in _MAKES_FUNCTIONS:
            self._warn(
                node,
                f"{name}: a VM makes no new code objects; write the function into a module of the task, and bind "
                "arguments with functools.partial",
            )
        elif name in _PICKLES and (
            isinstance(first, ast.Lambda) or isinstance(first, ast.Name) and first.id in self._functions
        ):
            self._warn(
                node,
                f"{name}: a function is pickled as a name, which only VMs of this task know; pass values, and choose "
                "the function from a table by its name",
            )
        elif (
            name == "copy.replace"
            and self._is_code(first)
            or isinstance(node.func, ast.Attribute)
            and (node.func.attr in ("replace", "__replace__") and self._is_code(node.func.value))
            and not gives_a_place(node)
        ):
            self._warn(node, "code.replace: a VM makes no new code objects; write the variants out as functions")

    def _is_code(self, node):
        """Is the expression visibly a code object: `f.__code__`, or a name bound to one?"""
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "__code__"
            or (isinstance(node, ast.Name) and node.id in self._codes)
        )

    def _name(self, node, is_excused):
        name = self._dotted(node)
        if name in ("builtins.eval", "builtins.exec", "builtins.compile") and not is_excused:  # map(eval, lines)
            self._warn(node, f"{name.removeprefix('builtins.')}: a VM has no compiler; {_COMPILES[name]}")
        elif name in REFUSED_NAMES and isinstance(node, ast.Attribute):
            self._warn(node, f"{name}: a VM does not have it: {REFUSED_NAMES[name]}")

    def _dynamic_import(self, node, shown):
        """Adds what a call of one of _IMPORTERS may import."""
        if not node.args:
            return
        names, more = self._module_names(), {keyword.arg: keyword.value for keyword in node.keywords}
        package, level = None, 0
        if shown == "__import__":
            given = node.args[4] if len(node.args) > 4 else more.get("level")
            level = given.value if isinstance(given, ast.Constant) and isinstance(given.value, int) else 0
        elif given := node.args[1] if len(node.args) > 1 else more.get("package"):
            package = names.patterns(given)
        found = [
            each
            for pattern in names.patterns(node.args[0])
            for each in names.absolute("." * level + pattern.partition(":")[0], package)
        ]
        asks_only = shown == "importlib.util.find_spec"
        if len(found) == 1 and "*" not in found[0]:
            self._import_named(found[0], node, f"{shown}({found[0]!r})", asks_only or shown == "pkgutil.resolve_name")
            return
        computed = [each for each in found if "*" in each]
        in_call = self._in_call and not self._own
        for name in sorted(set(found) - set(computed)):
            if not (in_call and self._search.defer(name)) and self._search.problem(name, self._own) is None:
                self._search.add(name)
        if asks_only and computed == list(ANYTHING) and not self._own:
            return  # few load what they ask for
        if computed and not self._search.add_computed(computed, self._source, node.lineno, in_call):
            self._warn(
                node,
                f"{shown}: the compiler can't see which module this imports; name it under `import` in task.yaml, or"
                " import it by name as well, so that it is in the bundle",
            )

    def _import_named(self, name, node, shown, may_fail):
        """An import by the constant `name`. `may_fail`: the name may end with those of attributes, or the program only
        asks whether the module is there."""
        if may_fail:
            while "." in name and self._search.find(name) is None and self._search.find(name.rpartition(".")[0]):
                name = name.rpartition(".")[0]
            if self._in_call and not self._own and self._search.defer(name):
                return
            if self._search.find(name) is not None and self._search.problem(name, self._own) is None:
                self._search.add(name)
        elif self._import(name, node, shown) and isinstance(listed := _fromlist(node), (ast.List, ast.Tuple)):
            for item in listed.elts:
                inner = f"{name}.{getattr(item, 'value', '')}"
                if self._search.find(inner) is not None:
                    self._search.add(inner)

    def _module_names(self):
        if self._names is None:
            self._names = ModuleNames(self._nodes, self._source.name, self._source.is_package, self._imported)
        return self._names

    def _warn(self, node, message):
        if not self._own:
            return  # an installed package's: much of it never runs
        self._search.warnings.add(Diagnostic(self._source.path, node.lineno, message))

    def _dotted(self, node):
        """The dotted name of an expression, resolved through this module's imports; None if it has none."""
        name = plain_name(node)
        first, dot, rest = (name or "").partition(".")
        if not first or first in self._bound:
            return None
        if first in self._imported:
            return self._imported[first] + dot + rest
        return f"builtins.{name}" if name in ("eval", "exec", "compile", "__import__") else None


def _last_name(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _fromlist(node):
    """The `fromlist` of a call of `__import__`, or None."""
    if len(node.args) > 3:
        return node.args[3]
    return next((each.value for each in node.keywords if each.arg == "fromlist"), None)


def _is_of_python(top):
    return top in sys.stdlib_module_names or top == "vmhost"


def _not_pure(name, path):
    top = name.partition(".")[0]
    return f"a VM can't load it: {_THIRD_PARTY.get(top) or f'it is not pure Python ({path}); use it on the host'}"


def _reads_expressions(call):
    """Is this call of `ast.parse` for an expression? Those a VM can parse."""
    return any(
        keyword.arg == "mode" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "eval"
        for keyword in call.keywords
    )


def is_installed(source):
    """Does the Source lie in a folder of installed packages?"""
    return _lies_in_packages(source.path)


def _lies_in_packages(path):
    return any(part in INSTALLED for part in Path(path).parts)
