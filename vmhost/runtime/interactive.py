"""A module for a function that was typed in: at the prompt, in a notebook's cell, or with `python -c`.

Such a program's own module has no file, and running its cells again in a VM would repeat their effects. So `sketch`
writes a module with the function's definition and the definitions, imports and plain values that it needs, in their
current state. Where possible its lines have the same numbers as in the cell.
"""

import __future__

import ast
import inspect
import linecache
import math
import symtable
import textwrap
import types

from vmhost.errors import CrossingError

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MANY = (list, tuple, dict, set, frozenset)


def sketch(home, name):
    """(source text, file name for tracebacks) of a module with the global `name` of `home` and all that it needs.

    Raises CrossingError for a definition without source, or one that uses an object that cannot be written as source.
    """
    return _Sketch(home).of(name)


class _Sketch:
    def __init__(self, home):
        self._home = home
        self._globals = vars(home)
        self._prelude = {}  # name -> statement
        self._pieces = {}  # name -> (first line, text), each after those that it depends on
        self._future = False

    def of(self, name):
        self._need(name, name)
        value = inspect.unwrap(self._globals[name])
        code = getattr(value, "__code__", None)
        prelude = list(self._prelude.values())
        if self._future:
            prelude.insert(0, "from __future__ import annotations")
        text, at = "; ".join(prelude) + "\n", 2
        for first, piece in self._pieces.values():
            text += "\n" * max(0, first - at) + piece
            at = text.count("\n") + 1
        return text, code.co_filename if code is not None else f"<{self._home.__name__}>"

    def _need(self, name, user):
        """Add the global `name`, which `user` uses, to the sketch."""
        if name in self._prelude or name in self._pieces or name not in self._globals or name.startswith("__"):
            return
        value = self._globals[name]
        if isinstance(value, types.ModuleType):
            self._prelude[name] = f"import {value.__name__} as {name}"
        elif _is_plain(value):
            self._prelude[name] = f"{name} = {value!r}"
        elif getattr(value, "__module__", None) == self._home.__name__ and hasattr(value, "__qualname__"):
            self._define(name, value, user)
        else:
            self._import(name, value, user)

    def _import(self, name, value, user):
        module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(path, str) or not path.replace(".", "").isidentifier():
            raise CrossingError(
                f"{user} cannot travel to a VM: it uses the global {name}, an object of class "
                f"{type(value).__qualname__}, which stays on the host; pass what is needed of it as an argument"
            )
        top, _, rest = path.partition(".")
        self._prelude[name] = f"from {module} import {top} as {name}" + (f"; {name} = {name}.{rest}" if rest else "")

    def _define(self, name, value, user):
        source, first = _source_of(value, user)
        tree = ast.parse(source)
        known_as = value.__name__
        if len(tree.body) != 1 or not isinstance(tree.body[0], _DEFINITIONS):
            raise CrossingError(
                f"{user} cannot travel to a VM: {name} is part of a longer statement; define it with def"
            )
        code = getattr(inspect.unwrap(value), "__code__", None)
        self._future = self._future or code is not None and bool(code.co_flags & __future__.annotations.compiler_flag)
        self._pieces[name] = None  # stops recursion
        for used in sorted(_globals_of(source)):
            if used != name:
                self._need(used, name)
        del self._pieces[name]  # so that it is inserted after its dependencies
        if isinstance(tree.body[0], ast.Assign) or known_as == name:
            renamed = ""
        else:
            renamed = f"{name} = {known_as}\n"
        self._pieces[name] = first, source.rstrip("\n") + "\n" + renamed


def _source_of(value, user):
    """(source, first line) of a function or class that was typed in; raises CrossingError."""
    try:
        if isinstance(value, type):
            return _class_source(value)
        lines, first = inspect.getsourcelines(inspect.unwrap(value))
        return textwrap.dedent("".join(lines)), max(first, 1)
    except (OSError, TypeError, IndexError, SyntaxError) as error:
        raise CrossingError(
            f"{user} cannot travel to a VM: the source of {value.__qualname__} is not to be had; put "
            "it into a module and import it"
        ) from error


def _class_source(cls):
    """Like inspect for a class in a file: a typed-in class has no file, but its methods lead to the source."""
    for member in vars(cls).values():
        member = getattr(member, "__func__", member)
        member = inspect.unwrap(member) if callable(member) else member
        if getattr(getattr(member, "__code__", None), "co_qualname", "").startswith(f"{cls.__qualname__}."):
            try:
                lines, _ = inspect.findsource(member)
            except OSError:
                continue
            return _block_at(lines, cls)
    for entry in list(linecache.cache.values()):
        if len(entry) == 4 and entry[1] is None and len(entry[2]) >= cls.__firstlineno__:  # a cell, not a file
            for node in ast.parse("".join(entry[2])).body:
                if (
                    isinstance(node, ast.ClassDef)
                    and node.name == cls.__name__
                    and cls.__firstlineno__ in (node.lineno, *(decorator.lineno for decorator in node.decorator_list))
                ):
                    return _block_at(entry[2], cls)
    raise OSError("source not available")


def _block_at(lines, cls):
    first = cls.__firstlineno__
    return textwrap.dedent("".join(inspect.getblock(lines[first - 1 :]))), first


def _globals_of(source):
    """The names of the globals that the definition `source` reads, anywhere in it."""
    names, tables = set(), [symtable.symtable(source, "<cell>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names.update(
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
        )
    return names


def _is_plain(value):
    """Whether `value` can be written as its repr()."""
    try:
        return _has_plain_repr(value)
    except RecursionError:
        return False  # it contains itself, or is too deep


def _has_plain_repr(value):
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is complex:
        return math.isfinite(value.real) and math.isfinite(value.imag)
    if type(value) is dict:
        return all(_has_plain_repr(key) and _has_plain_repr(item) for key, item in value.items())
    return type(value) in _PLAIN or type(value) in _MANY and all(map(_has_plain_repr, value))
