"""Reads one module of a search."""

import ast

from ..computed_names import ANYTHING, ModuleNames
from ..conditions import catches_import_error, known_test, plain_name, suppresses_import_error
from ..errors import CompileError, Diagnostic
from ..inert import binding, modules_of
from ..offered import LEFT_OUT, REFUSED, REFUSED_NAMES, offered_modules
from ..postponing import can_replace, statements
from ..relocation import gives_a_place
from ..source import children_of, nodes_of, parse
from .computed import add_computed, add_entry_points, add_texts
from .results import CERTAIN, IN_CALL, OPTIONAL, POSSIBLE, is_installed

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
_MAY_NOT_RUN = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Match)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_JUDGED = frozenset((*_MAY_NOT_RUN, *_FUNCTION, ast.Try, ast.TryStar, ast.With, ast.AsyncWith))
_IMPORTERS = {"importlib.import_module", "builtins.__import__", "pkgutil.resolve_name", "importlib.util.find_spec"}
_COMPUTES = (b"import_module", b"__import__")
_LISTS_ENTRY_POINTS = {"entry_points", "select"}  # with a keyword `group`
_TAKES_A_GROUP = {"iter_entry_points", "load_setuptools_entrypoints"}
_SOURCELESS = {"inspect.getsource", "inspect.getsourcelines", "inspect.findsource"}


class Reader:
    """Reads one module: adds its imports to the search, and reports what a VM can't do.

    Nothing here recurses: compilers accept sums of thousands of terms and hundreds of elifs, which nest as deep.
    """

    def __init__(self, search, source, tree):
        self._search, self._source, self._tree, self._nodes = search, source, tree, nodes_of(tree)
        self._looks = search.looks
        self._own = not is_installed(source)
        self._level = CERTAIN  # of the node being read
        self._in_call = False  # is the node in a function?
        self._imported = {}  # local name -> dotted name it stands for
        self._functions = set()  # names that are only ever bound to functions
        self._codes = set()  # names that are bound to code objects
        self._names = None  # ModuleNames, where something is imported by a computed name
        self._inert = []  # imports that are replaced by inert modules: triples for `statements`
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
            add_texts(self._search, self._source, self._module_names(), has_computed)
        pending = [(statement, CERTAIN, False) for statement in self._tree.body]
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
            self._search.replaced[self._source.name] = statements(self._inert, binding)

    # Imports

    def _import_from(self, node):
        base = self._absolute(node)
        if base is None:
            return
        shown = f"from {'.' * node.level}{node.module or ''} import "
        if not self._import(base, node, shown + ", ".join(alias.name for alias in node.names)):
            return
        ours = self._looks.find(base) is not None
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if alias.name == "*":
                for name in self._listed(base) if ours else ():
                    if self._looks.find(f"{base}.{name}") is not None:
                        self._search.add(f"{base}.{name}", self._level == OPTIONAL)
            elif ours:
                native = None if self._own else self._looks.native(inner)
                if self._looks.find(inner) is not None or native is not None:
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
        if self._in_call and not self._own and search.defer(name, self._level == OPTIONAL):
            return True
        problem = search.problems.of(name, self._own)
        if problem is not None and not self._own and self._level < IN_CALL and hasattr(node, "names"):
            inert = modules_of(node, alias, name)
            if inert and can_replace(self._source.text, node):
                search.inert |= inert
                self._inert.append((node, alias, name))
                told = f"{problem}; here it can be imported, and refuses when it is used"
                search.lack(name, told, f"{self._source.path}:{node.lineno}", self._level)
                return False
        if self._level == CERTAIN:
            search.uses.setdefault(self._source.name, {}).setdefault(name, where)
        if problem is None:
            search.add(name, self._level == OPTIONAL)
            return True
        missing = search.problems.first_missing(name)
        search.lack(missing, problem, f"{self._source.path}:{node.lineno}", self._level)
        if missing != name and self._level == CERTAIN:
            search.uses[self._source.name].setdefault(missing, where)
        self._refuse(node, f"{shown}: {problem}", alias)
        return False

    def _refuse(self, node, message, alias=None):
        gaps = self._search.gaps
        if not self._own or self._level == OPTIONAL:
            return
        if self._level > CERTAIN:
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
        source = self._looks.find(package)
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
            level = max(level, POSSIBLE)
        if isinstance(node, _FUNCTION):
            level = max(level, IN_CALL)
        if isinstance(node, (ast.Try, ast.TryStar)):
            guarded = any(catches_import_error(handler.type) for handler in node.handlers)
            tried = OPTIONAL if guarded else level
            # A guarded handler never runs if all imports work; otherwise it does run, since one failed.
            handled = level
            if guarded and self._imports_succeed(node.body):
                handled = OPTIONAL
            elif not guarded or not any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in node.body):
                handled = max(level, POSSIBLE)
            return [
                *((statement, tried) for statement in node.body + node.orelse),  # `else` runs after `try` worked
                *((handler, handled) for handler in node.handlers),
                *((statement, level) for statement in node.finalbody),
            ]
        if isinstance(node, (ast.With, ast.AsyncWith)):
            level = OPTIONAL if any(suppresses_import_error(item.context_expr) for item in node.items) else level
        return [(child, level) for child in children_of(node)]

    def _imports_succeed(self, body):
        """Does `body` import something, and is all of it there? Then a handler for ImportError never runs."""
        names = []
        for statement in body:
            if isinstance(statement, ast.Import):
                names += [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and not statement.level:
                names.append(statement.module)
        return bool(names) and all(self._search.problems.of(name) is None for name in names)

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
                add_entry_points(self._search, self._module_names().patterns(group))
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
            if not (in_call and self._search.defer(name)) and self._search.problems.of(name, self._own) is None:
                self._search.add(name)
        if asks_only and computed == list(ANYTHING) and not self._own:
            return  # few load what they ask for
        if computed and not add_computed(self._search, computed, self._source, node.lineno, in_call):
            self._warn(
                node,
                f"{shown}: the compiler can't see which module this imports; name it under `import` in task.yaml, or"
                " import it by name as well, so that it is in the bundle",
            )

    def _import_named(self, name, node, shown, may_fail):
        """An import by the constant `name`. `may_fail`: the name may end with those of attributes, or the program only
        asks whether the module is there."""
        if may_fail:
            while "." in name and self._looks.find(name) is None and self._looks.find(name.rpartition(".")[0]):
                name = name.rpartition(".")[0]
            if self._in_call and not self._own and self._search.defer(name):
                return
            if self._looks.find(name) is not None and self._search.problems.of(name, self._own) is None:
                self._search.add(name)
        elif self._import(name, node, shown) and isinstance(listed := _fromlist(node), (ast.List, ast.Tuple)):
            for item in listed.elts:
                inner = f"{name}.{getattr(item, 'value', '')}"
                if self._looks.find(inner) is not None:
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


def _reads_expressions(call):
    """Is this call of `ast.parse` for an expression? Those a VM can parse."""
    return any(
        keyword.arg == "mode" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "eval"
        for keyword in call.keywords
    )
