"""Imports at the top of a program's own module that wait in a VM until something uses them.

The text of such a module gets, on the same line, `httpx = LAZY.module(...)` for `import httpx`, a module object that is
filled at its first use, and `LAZY.names(...)` for `from httpx import Client` if nothing in the module mentions Client:
`vmhost.guest.lazy` has both. Only imports of installed packages wait, and none whose names the module's own import
uses: in a decorator, a base class, a constant, or in a function that such an expression calls.
"""

import ast
import tokenize
from dataclasses import dataclass

from .conditions import known_test

LAZY = "__import__('vmhost.guest.lazy', fromlist=['module'])"


@dataclass(frozen=True)
class Postponed:
    """An import that waits: the dotted names of its modules, and its place, "FILE:LINE"."""

    modules: tuple
    where: str


def can_replace(text, node):
    """Whether the statement `node` of the module `text` (bytes) can be replaced in place."""
    lines = text.splitlines(keepends=True)
    encoding, _ = tokenize.detect_encoding(iter(lines).__next__)
    after = lines[node.end_lineno - 1][node.end_col_offset :].strip()
    ends = not after or after.startswith((b"#", b";") if node.lineno == node.end_lineno else b"#")
    return encoding == "utf-8" and ends


def replaced(text, statements):
    """`text` with other statements in the place of nodes, as (node, text) pairs; no line gets another number."""
    lines = text.splitlines(keepends=True)
    for node, new in sorted(statements, key=lambda item: (item[0].lineno, item[0].col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        middle = new.encode() + b"\n" * (last - first)
        lines[first : last + 1] = [lines[first][: node.col_offset] + middle + lines[last][node.end_col_offset :]]
    return b"".join(lines)


def statements(gaps, bind):
    """(import, text of the statements in its place) for gaps: triples of an import, its impossible alias (None: all of
    them), and what `bind(import, alias, …)` needs to give the statement that stands for it."""
    bad = {}
    for node, alias, message in gaps:
        for name in node.names if alias is None else [alias]:
            bad.setdefault(node, {})[name] = message
    found = []
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
        found.append((node, "; ".join(parts or ["pass"])))
    return found


def postpone(text, path, is_installed):
    """(text, {name that it binds: Postponed}) of a module in which the imports of packages wait that can.
    `is_installed(name)`: whether a top-level module is one of an installed package."""
    if b"import" not in text:
        return text, {}
    try:
        tree = ast.parse(text)
    except SyntaxError, ValueError, RecursionError, MemoryError:
        return text, {}  # reported when it is compiled
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    imports = [node for node in imports if all(map(is_installed, _tops(node))) and can_replace(text, node)]
    if not imports:
        return text, {}
    early, mentioned = _used_at_import(tree), None
    statements, found = [], {}
    for node in imports:
        where = f"{path}:{node.lineno}"
        if isinstance(node, ast.Import):
            bound = {alias.asname or alias.name.partition(".")[0]: alias for alias in node.names}
            if early.isdisjoint(bound) and not any(alias.asname and "." in alias.name for alias in node.names):
                statements.append(
                    (node, "; ".join(_of_module(name, alias.name, where) for name, alias in bound.items()))
                )
                found.update((name, Postponed((alias.name,), where)) for name, alias in bound.items())
            continue
        if mentioned is None:
            mentioned = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
            mentioned |= {"*"} | ({"__getattr__"} & {getattr(each, "name", None) for each in tree.body})
        bound = {alias.asname or alias.name: alias.name for alias in node.names}
        if mentioned.isdisjoint(bound) and "__getattr__" not in mentioned:
            names = f"{LAZY}.names(globals(), {node.module!r}, {bound!r}, {where!r})"
            statements.append((node, names))
            found.update((name, Postponed((node.module,), where)) for name in bound)
    return replaced(text, statements), found


def _tops(node):
    if isinstance(node, ast.ImportFrom):
        return ["" if node.level else node.module.partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names]


def _of_module(name, module, where):
    return f"{name} = {LAZY}.module({module!r}, {where!r})"


def _used_at_import(tree):
    """The names that the module's own import may load or rebind."""
    found, defined, pending = set(), {}, list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defined.setdefault(node.name, []).append(node)
            pending += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.ClassDef):
            defined.setdefault(node.name, []).append(node)
            pending += [*node.decorator_list, *node.bases, *node.keywords, *node.body]
        elif isinstance(node, ast.If) and (known := known_test(node.test)) is not None:
            pending += node.body if known else node.orelse
        elif isinstance(node, ast.AnnAssign):
            pending += [node.target, *([] if node.value is None else [node.value])]
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
        else:
            pending += ast.iter_child_nodes(node)
    waiting = list(found)
    while waiting:
        for node in defined.pop(waiting.pop(), ()):
            new = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - found
            found |= new
            waiting += new
    return found
