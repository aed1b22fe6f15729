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
along. Both have a limit, `MAX_BYTES` of computed.py.

`Closure.absent` lists all missing modules, so that an import that does run in a VM gives the reason. A name that is
both in the folder and in the standard library is an error; search order does not decide it.

A search (search.py) reads one module after the other (reader.py). Finders (finders.py) know where modules lie: a task's
in its folder and among its packages, a program's in the folders of sys.path.
"""

import ast
from dataclasses import replace
from pathlib import Path

from ..errors import CompileError, Diagnostic
from ..postponing import replaced, statements
from .computed import add_named
from .finders import ProgramFinder, TaskFinder
from .results import Absent, Closure, Source, is_installed
from .search import Search

__all__ = ["Absent", "Closure", "Source", "close_over_folder", "closure_of_module", "is_installed"]


def close_over_folder(folder, entry, packages=None, also=(), named=None):
    """The Closure of the module `entry` within the task folder `folder`. Reports problems instead of raising.

    `packages` is a folder called site-packages with the task's requirements; `also` lists modules in it that are
    included without being imported. `named` maps further modules, "pkg.part" or "pkg.*" for all below a package, to the
    (file, line) that names them. A module of the task hides a package.
    """
    search = Search(TaskFinder(folder, packages))
    search.add_also(also)
    for name, place in (named or {}).items():
        add_named(search, name, place)
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
    given = Source(module_name, str(filename or f"<{module_name}>"), is_package, text).nameable()
    finder = ProgramFinder(given, roots, lazily, defers)
    search = Search(finder, gaps=None if gap is None else {}, kept=kept)
    search.add_also(also)
    closure = search.run(module_name)
    failure = search.failure(module_name)  # where it is an installed package's
    if closure.errors or failure is not None:
        raise CompileError(closure.errors or [failure])
    gaps = search.gaps or {}
    filled = {name: _filled(source, gaps[name], gap) for name, source in closure.sources.items() if name in gaps}
    finder.folders.sizes.update(search.looks.sizes)
    return replace(closure, sources=closure.sources | filled, later=finder.later, found=finder.folders.found())


def _filled(source, gaps, gap):
    """The Source with statements that call `gap` in place of its impossible imports."""

    def bound(node, alias, message):
        name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
        return f"{name} = {gap}(__name__, {f'{source.path}:{node.lineno}: {message}'!r})"

    return replace(source, text=replaced(source.text, statements(gaps, bound)))
