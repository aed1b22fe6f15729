"""Modules that no import statement names: those under `import` of task.yaml, and those that computed names, texts of
packages and entry points may ask for. Functions of a search."""

from ..computed_names import fixed_package, matcher
from ..errors import Diagnostic
from .results import is_installed

MAX_BYTES = 10 << 20  # of sources that one computed import may bring
_NO_PARTS = {"test", "tests", "__main__"}  # of dotted names: modules that computed names do not bring


def add_named(search, name, place):
    """Adds a module, or with "pkg.*" all below a package; `place`, the (file, line) that names it, for errors."""
    package = name.removesuffix(".*")
    problem = search.problems.of(package)
    found = search.looks.find(package)
    if problem is None and found is None:
        return  # of a VM's standard library
    if problem is None and package != name and not found.is_package:
        problem = f"{found.path} is a module, not a package; leave out the `.*`"
    if problem is not None:
        search.errors.add(Diagnostic(*place, f"import: {name}: {problem}"))
        return
    for each in (package, *(search.looks.below(package) if package != name else ())):
        search.add(each)


def add_computed(search, patterns, source, line, in_call):
    """Adds the modules that an import of `source` in line `line`, with a computed name of these patterns, may ask
    for; True if the names show which. `in_call`: defers those that it can."""
    for package, fits in ((fixed_package(each), matcher(each)) for each in patterns):
        if package:
            fitting = {name: size for name, size in search.looks.below(package).items() if fits.fullmatch(name)}
            _add_all(search, fitting, in_call)
    shown = all(map(fixed_package, patterns))
    if not shown and is_installed(source):
        search.computed.setdefault(source.name.partition(".")[0], (source.path, line))
        package = source.name if source.is_package else source.name.rpartition(".")[0]
        _add_all(search, search.looks.below(package), in_call)
    return shown


def _add_all(search, found, in_call):
    if sum(found.values()) <= MAX_BYTES:
        for name in found:
            if not (in_call and search.defer(name)) and search.looks.find(name) is not None:
                search.add(name)


def add_texts(search, source, names, has_computed):
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
            search.looks.find_files(name)
        there = search.looks.find if search.looks.finder.locate is None else search.looks.locate
        while name.count(".") and there(name) is None and name.rpartition(".")[0] != package:
            name = name.rpartition(".")[0]  # it may end with the name of an attribute
        if name.startswith(f"{top}.") and not _NO_PARTS & set(name.split(".")) and there(name) is not None:
            if not search.defer(name):
                search.add(name)


def add_entry_points(search, groups):
    """Adds the modules of the entry points of the packages' groups that fit one of the patterns `groups`."""
    for point in search.looks.finder.entry_points:
        if (
            any(matcher(group).fullmatch(point.group) for group in groups)
            and search.looks.find(point.module) is not None
        ):
            search.add(point.module)
