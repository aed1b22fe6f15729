"""Cuts the standard library's modules so that parts of them are loaded on demand.

Applied when the standard-library bundle is built, after `patches/`: a class or function in PARTS is moved out of its
module into a separate part, and the module gets a `__getattr__` that runs the part when the name is first looked up
(`deferred.definitions`). Lines and files stay the same, as do `__module__`, `__qualname__`, `__all__`,
`from module import *` and `dir()`; `vars(module)` shows the difference. Regular expressions that a module compiles
during its import are compiled here, so that the compiler of `re` is loaded only for a task's own.

An idle VM then holds only what it uses: most definitions of `import typing` or `import asyncio` are never used
(docs/decisions/memory-of-an-idle-vm.md).

`split` refuses a cut if the module needs the name during its import, so a Python with other sources fails the build
instead of a task.

This file imports only the standard library: the builder loads it by its path, in a process that is no VM.
"""

import ast
import importlib
import pkgutil
import re

_ASK = "_deferred_"  # the global of a cut module that looks up a deferred name
EVERYTHING = "*"  # all other classes and functions that the import does not need, one part each

# module -> its parts: each is a text of names that are loaded together
PARTS = {
    "annotationlib": [EVERYTHING],
    "collections": ["Counter", "ChainMap", "UserDict", "UserList", "UserString"],
    "dataclasses": [EVERYTHING],
    "enum": [
        "EnumCheck CONTINUOUS NAMED_FLAGS UNIQUE verify",
        "_test_simple_enum",
        "_old_convert_",
        "_dataclass_repr",
        "_make_class_unpicklable",
        "show_flag_values",
        "unique",
    ],
    "functools": [
        "total_ordering _convert _gt_from_lt _le_from_lt _ge_from_lt _ge_from_le _lt_from_le _gt_from_le "
        "_lt_from_gt _ge_from_gt _le_from_gt _le_from_ge _gt_from_ge _lt_from_ge",
        "partialmethod",
        "cached_property",
        "singledispatch",
        "singledispatchmethod",
        "_singledispatchmethod_get",
        "_find_impl _compose_mro _c3_mro _c3_merge",
        "_unwrap_partialmethod",
        "_unwrap_partial",
    ],
    "re": ["PatternError error", "Scanner"],
    "typing": [
        EVERYTHING,
        *(
            "Hashable Awaitable Coroutine AsyncIterable AsyncIterator Iterable Iterator Reversible "
            "Sized Container Collection AbstractSet MutableSet Mapping MutableMapping Sequence "
            "MutableSequence ByteString Tuple List Deque Set FrozenSet MappingView KeysView ItemsView "
            "ValuesView Dict DefaultDict OrderedDict Counter ChainMap Generator AsyncGenerator Type "
            "_NamedTuple _TypedDict"
        ).split(),
    ],
    "weakref": [EVERYTHING],
}

# Packages whose __init__ only imports all names of its modules: a module is loaded when one of its names is used.
FACADES = ("asyncio",)
NO_PART_OF_FACADES = ("__main__", "tools", "windows_events", "windows_utils")


class SplitError(Exception):
    """A source cannot be cut according to PARTS."""


def split(module_name, source):
    """(source of the module, {name of a part: its source}) for a module of the standard library."""
    if module_name in FACADES:
        return _facade(module_name, source), {}
    source = compile_patterns(source)
    if module_name not in PARTS:
        return source, {}
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    groups = _groups(module_name, tree.body)
    home = {name: number for number, group in enumerate(groups) for name in group}
    rest, cut = [], [[] for _ in groups]
    for statement in tree.body:
        numbers = {home.get(name) for name in _bound(statement)}
        if numbers <= {None}:
            rest.append(statement)
        elif len(numbers) == 1:
            cut[numbers.pop()].append(statement)
        else:
            raise SplitError(
                f"{module_name}, line {statement.lineno}: binds names of several parts; look at PARTS in "
                "vmhost/stdlib/splitting.py"
            )
    edits = []
    for statement in rest:
        _redirect(module_name, statement, home.keys(), False, edits)
    for group, statements in zip(groups, cut):
        for statement in statements:
            _redirect(module_name, statement, home.keys() - group, True, edits)
    first = next(
        statement
        for statement in rest
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Assign))
        and getattr(statement, "module", None) != "__future__"
    )
    heads = {name: min(group) for group in groups for name in sorted(group) if name != min(group)}
    edits.append(
        (
            _End(first),
            f"; from vmhost.guest.deferred import definitions as {_ASK}; "
            f"__getattr__, __dir__ = {_ASK}(globals(), {_part(module_name, '')!r}, "
            f"{' '.join(['', *sorted(home), ''])!r}, {heads!r}); {_ASK} = __getattr__",
        )
    )
    _apply(edits, lines)
    parts, kept = {}, list(lines)
    for group, statements in zip(groups, cut):
        alone = ["\n"] * len(lines)
        for statement in statements:
            for number in range(_first_line(statement), statement.end_lineno):
                alone[number], kept[number] = lines[number], "\n"
        parts[_part(module_name, min(group))] = "".join(alone)
    text = "".join(kept)
    if any("__getattr__" in _bound(statement) for statement in rest):
        text = text.replace("\ndef __getattr__(", "\ndef _own_getattr(", 1)
    return text, parts


def _part(module_name, head):
    """The bundle's name of a part; not importable, because there is no package `vmhost.parts`."""
    return f"vmhost.parts.{module_name.replace('.', '_')}__{head}"


def _groups(module_name, statements):
    """The sets of names that form the parts of a module."""
    listed = [set(group.split()) for group in PARTS[module_name] if group != EVERYTHING]
    bound = [name for statement in statements for name in _bound(statement)]
    missing = set().union(*listed) - set(bound)
    if missing:
        raise SplitError(
            f"{module_name}: nothing at its top level binds {', '.join(sorted(missing))}; this Python "
            "differs: look at PARTS in vmhost/stdlib/splitting.py"
        )
    if EVERYTHING not in PARTS[module_name]:
        return listed
    known = set().union(*listed)
    more = {
        statement.name
        for statement in statements
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef))
        and bound.count(statement.name) == 1
        and statement.name not in known
        and statement.name != "__getattr__"
    }
    more -= {name for statement in statements for name in _unaskable(statement)}
    while True:  # names that the import itself needs stay
        needed = set()
        for statement in statements:
            if not _bound(statement) & (known | more):
                for node in _now(statement):
                    needed |= _names(node) & more
        if not needed:
            return listed + [{name} for name in sorted(more)]
        more -= needed


def _names(node):
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.name} if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else set()


def _unaskable(statement):
    """The names in a statement that a call cannot replace: those that functions also bind, and names in patterns."""
    for node in ast.walk(statement):
        if isinstance(node, ast.pattern):
            for inner in ast.walk(node):
                yield from _names(inner)
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif node is not statement and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def _now(node):
    """The nodes below `node` that run together with it: not the bodies of functions."""
    yield node
    later = node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else ()
    later = later if isinstance(later, (list, tuple)) else [later]
    for child in ast.iter_child_nodes(node):
        if not any(child is one for one in later) and not isinstance(child, (ast.arg, ast.expr_context)):
            yield from _now(child)


class _End:
    """The position after a statement, as a node of length zero."""

    def __init__(self, statement):
        self.lineno = self.end_lineno = statement.end_lineno
        self.col_offset = self.end_col_offset = statement.end_col_offset


def _first_line(statement):
    return min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", ()))]) - 1


def _bound(statement):
    """The names that a top-level statement binds, or of which it sets an attribute, if it can move into a part."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if not isinstance(statement, ast.Assign):
        return set()
    targets = [inner for target in statement.targets for inner in getattr(target, "elts", [target])]
    targets = [target.value if isinstance(target, ast.Attribute) else target for target in targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _redirect(module_name, node, deferred, later, edits):
    """Adds to `edits` the lookups of `deferred` names in the code below `node`. `later`: it runs after the import."""
    if isinstance(node, ast.Name) and node.id in deferred:
        if not later or not isinstance(node.ctx, ast.Load):
            raise SplitError(
                f"{module_name}, line {node.lineno}: {node.id} is needed while the module is imported; "
                "take it out of PARTS in vmhost/stdlib/splitting.py"
            )
        edits.append((node, f"{_ASK}({node.id!r})"))
    bound = {node.arg} if isinstance(node, ast.arg) else set(node.names) if isinstance(node, ast.Global) else set()
    if bound & deferred:
        raise SplitError(
            f"{module_name}, line {node.lineno}: hides the deferred name {ast.unparse(node)}; "
            "take it out of PARTS in vmhost/stdlib/splitting.py"
        )
    body = node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else ()
    body = body if isinstance(body, (list, tuple)) else [body]
    for child in ast.iter_child_nodes(node):
        _redirect(module_name, child, deferred, later or any(child is one for one in body), edits)


def _apply(edits, lines):
    """Applies the `edits`, pairs of a node and its replacement, to `lines`; line numbers stay the same."""
    for node, text in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        tail = lines[last].encode()[node.end_col_offset :].decode()
        lines[first] = lines[first].encode()[: node.col_offset].decode() + text + tail
        for number in range(first + 1, last + 1):
            lines[number] = ""
        if last > first:
            lines[last] = "\n" * (last - first)


def compile_patterns(source):
    """`source` with the regular expressions precompiled that it compiles during its import."""
    if "re.compile(" not in source:
        return source
    tree = ast.parse(source)
    constants = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    edits = []
    for node in (node for statement in tree.body for node in _now(statement)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "re.compile"
            and not node.keywords
            and all(_is_constant(argument, constants) for argument in node.args)
        ):
            text, *flags = (
                eval(compile(ast.Expression(_inlined(argument, constants)), "", "eval"), {"re": re})
                for argument in node.args
            )
            edits.append((node, _pattern(text, *flags)))
    lines = source.splitlines(keepends=True)
    _apply(edits, lines)
    return "".join(lines)


def _is_constant(node, constants):
    """Does it consist of literals, flags of `re` and names in `constants` that do?"""
    if isinstance(node, ast.Name):
        return node.id == "re" or node.id in constants and _is_constant(constants[node.id], {})
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "re"
    if isinstance(node, ast.BinOp):
        return _is_constant(node.left, constants) and _is_constant(node.right, constants)
    return isinstance(node, ast.Constant)


def _inlined(node, constants):
    return (
        ast.BinOp(_inlined(node.left, constants), node.op, _inlined(node.right, constants), lineno=1, col_offset=0)
        if isinstance(node, ast.BinOp)
        else constants.get(node.id, node)
        if isinstance(node, ast.Name)
        else node
    )


def _pattern(text, flags=0):
    """An expression for the result of `re.compile(text, flags)`; valid for this Python, which is the bundle's."""
    parsed = re._parser.parse(text, int(flags))
    code = [int(word) for word in re._compiler._code(parsed, int(flags))]
    names = parsed.state.groupdict
    groups = [None] * parsed.state.groups
    for name, number in names.items():
        groups[number] = name
    return (
        f"__import__('_sre').compile({text!r}, {int(flags) | parsed.state.flags}, {code}, "
        f"{parsed.state.groups - 1}, {names!r}, {tuple(groups)!r})"
    )


def _facade(package, source):
    """The source of a package's __init__ with lookups instead of `from .module import *`."""
    homes, modules, own = {}, [], []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom) and statement.level == 1 and statement.names[0].name == "*":
            modules.append(statement.module)
        elif isinstance(statement, ast.If):  # modules that depend on the operating system
            modules += [inner.module for inner in statement.orelse if isinstance(inner, ast.ImportFrom)]
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__":
            own.append(statement)
        elif not isinstance(statement, (ast.Import, ast.Expr, ast.Assign)):
            raise SplitError(f"{package}, line {statement.lineno}: expected imports of all names of its modules only")
    if len(own) != 1 or not modules:
        raise SplitError(
            f"{package}: expected imports of all names of its modules and one __getattr__; look at "
            "FACADES in vmhost/stdlib/splitting.py"
        )
    for module in modules:
        for name in importlib.import_module(f"{package}.{module}").__all__:
            homes[name] = module
    siblings = [
        module.name
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if module.name not in NO_PART_OF_FACADES
    ]
    lines = source.splitlines(keepends=True)
    edits = []
    _redirect(package, own[0], set(siblings), False, edits)
    _apply(edits, lines)
    function = "".join(lines[own[0].lineno - 1 : own[0].end_lineno]).replace("__getattr__(", "_own_getattr(", 1)
    return (
        f"import sys\n"
        f"from vmhost.guest.deferred import facade as {_ASK}\n"
        f"__all__ = {importlib.import_module(package).__all__!r}\n"
        f"{function}\n"
        f"__getattr__, __dir__ = {_ASK}(globals(), {homes!r}, {tuple(siblings)!r}, _own_getattr)\n"
        f"{_ASK} = __getattr__\n"
    )
