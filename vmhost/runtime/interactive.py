"""A module for a function that was typed in: at the prompt, in a notebook's cell, or with `python -c`.

Such a program's own module has no file, and running its cells again in a VM would repeat their effects. So a Sketch
writes a module with the function's definition and the definitions, imports and plain values that it needs, in their
current state. Where possible its lines have the same numbers as in the cell.
"""

import __future__

import ast
import dis
import enum
import functools
import inspect
import linecache
import logging
import math
import re
import symtable
import textwrap
import types

from vmhost.errors import CrossingError
from vmhost.guest import kinds

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MANY = (list, tuple, dict, set, frozenset)


class Sketch:
    """The text of a module for one function of `home`. CrossingError for a definition without source, or one that uses
    an object that cannot be written as source."""

    def __init__(self, home):
        self._home = home
        self._globals = vars(home)
        self._prelude = {}  # name -> statement
        self._pieces = {}  # name -> (first line, text), each after those that it depends on
        self._made = {}  # id of a closure -> its name in the sketch
        self._uses = []  # (function that gives a value as it is now, the value, its text if it can change in place)
        self._future = False

    def of_global(self, name):
        """(source text, file name for tracebacks) of a module with the global `name` and all that it needs."""
        self._need(name, name)
        return self._text(self._globals[name])

    def of_function(self, function, name):
        """The same for a function that no global refers to; the module has it as `name`."""
        self._make(name, function, function.__qualname__)
        return self._text(function)

    def is_current(self):
        """Whether all that the sketch used is still the same."""
        try:
            return all(
                get() is value and (text is None or self._expression(value, "it") == text)
                for get, value, text in self._uses
            )
        except CrossingError:
            return False

    def _text(self, value):
        code = getattr(inspect.unwrap(value), "__code__", None)
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
        if name in self._prelude or name in self._pieces or name.startswith("__"):
            return
        self._uses.append((lambda: self._globals.get(name, _NOTHING), self._globals.get(name, _NOTHING), None))
        if name not in self._globals:
            return
        value = self._globals[name]
        if isinstance(value, types.ModuleType):
            self._prelude[name] = f"import {value.__name__} as {name}"
        elif _is_closure(value):
            self._make(name, value, user)
        elif (
            not _is_plain(value)
            and getattr(value, "__module__", None) == self._home.__name__
            and hasattr(value, "__qualname__")
            and not isinstance(value, types.MethodType)
        ):
            self._define(name, value, user)
        elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or _is_special(value):
            self._import(name, value, user)
        else:
            self._prelude[name] = None  # stops recursion
            text = self._expression(value, f"{user} cannot travel to a VM: it uses the global {name}, ")
            del self._prelude[name]  # so that it is inserted after its dependencies
            self._uses.append((lambda: value, value, text))
            if self._pieces and "\0" in text:
                self._pieces[name] = 0, f"{name} = {text}\n".replace("\0", "")
            else:
                self._prelude[name] = f"{name} = {text}".replace("\0", "")

    def _expression(self, value, why):
        """Source that gives `value`. `\\0` marks it if it needs a piece of the sketch. CrossingError."""
        try:
            return self._written(value, 0)
        except TypeError, ValueError, RecursionError:
            raise CrossingError(
                f"{why}an object of class {type(value).__qualname__}, which stays on the host; pass what is needed of"
                " it as an argument"
            ) from None

    def _written(self, value, depth):
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
        if _is_plain(value):
            return repr(value)
        if type(value) in _MANY:
            return self._container(value, depth)
        if isinstance(value, re.Pattern):
            return f"__import__('re').compile({value.pattern!r}, {value.flags})"
        if type(value) is logging.Logger:
            return f"__import__('logging').getLogger({value.name!r})"
        if type(value) is logging.RootLogger:
            return "__import__('logging').getLogger()"
        if isinstance(value, enum.Enum) and isinstance(value.name, str) and "|" not in value.name:
            return f"{self._name_of_class(type(value))}[{value.name!r}]"
        packed = kinds.pack(value)
        if packed is not None:
            kind, detail, payload = packed
            parts = f"{kind}, {self._written(detail, depth + 1)}, {self._written(payload, depth + 1)}"
            return f"__import__('vmhost.guest.kinds', fromlist=['unpack']).unpack({parts})"
        raise TypeError("no source gives it")

    def _container(self, value, depth):
        parts = [self._written(each, depth + 1) for each in value]
        if type(value) is dict:
            parts = [f"{key}: {self._written(each, depth + 1)}" for key, each in zip(parts, value.values())]
            return "{" + ", ".join(parts) + "}"
        inner = ", ".join(parts)
        return f"{type(value).__name__}([{inner}])"

    def _name_of_class(self, cls):
        if cls.__module__ != self._home.__name__:
            return f"__import__({cls.__module__!r}, fromlist=['_']).{cls.__qualname__}"
        if self._globals.get(cls.__name__) is not cls:
            raise TypeError("no global refers to its class")
        self._need(cls.__name__, cls.__name__)
        return f"\0{cls.__name__}"

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
        try:
            tree = ast.parse(source)
        except SyntaxError:  # a line of a longer statement
            tree = ast.Module([])
        known_as = value.__name__
        if len(tree.body) != 1 or not isinstance(tree.body[0], _DEFINITIONS):
            self._make(name, value, user)  # a lambda in a longer statement
            return
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
        self._pieces[name] = first, source.rstrip("\n") + "\n" + renamed + self._as_now(name, value)

    def _as_now(self, name, value):
        """Statements that give a function its own defaults, and a class its attributes, where their definition may
        evaluate to others now."""
        if type(value) is type:
            text = ""
            for each, part in vars(value).items():
                inner = getattr(part, "__func__", part)
                if isinstance(inner, types.FunctionType):
                    place = f"{name}.{each}" if inner is part else f"vars({name})[{each!r}].__func__"
                    text += self._defaults(place, inner)
                elif not each.startswith("__") and _is_plain(part) and "__dataclass_fields__" not in vars(value):
                    text += f"{name}.{each} = {part!r}\n"
            return text
        place = name
        while hasattr(value, "__wrapped__"):
            value, place = value.__wrapped__, f"{place}.__wrapped__"
        return self._defaults(place, value) if isinstance(value, types.FunctionType) else ""

    def _defaults(self, place, function, has_none=False):
        """Statements that give the function at `place` its defaults. `has_none`: its definition there has none."""
        text = ""
        for part in "__defaults__", "__kwdefaults__":
            value = getattr(function, part)
            if value:
                why = f"{function.__qualname__} cannot travel to a VM: among its defaults is "
                try:
                    written = self._expression(value, why)
                except CrossingError:
                    if has_none:
                        raise
                    continue  # what the definition evaluates to
                self._uses.append((functools.partial(getattr, function, part), value, written))
                written = written.replace("\0", "")
                text += f"{place}.{part} = {written}\n"
        return text

    def _make(self, name, function, user):
        """Define a closure, or a function that is part of a longer statement, as what a new function returns: its
        variables are the parameters."""
        if id(function) in self._made:
            if self._made[id(function)] != name:
                self._pieces[name] = 0, f"{name} = {self._made[id(function)]}\n"
            return
        self._made[id(function)] = name
        source, own_name, first = _own_source(function, user)
        self._pieces[name] = None  # stops recursion
        for used in sorted(_globals_of_code(function.__code__)):
            if used != name:
                self._need(used, name)
        values = []
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            values.append((variable, self._variable(variable, cell, function, name)))
        del self._pieces[name]
        inner = textwrap.indent(source.rstrip("\n"), " ")
        maker, names = f"_make_{name}", ", ".join(variable for variable, _ in values)
        given = ", ".join(text for _, text in values)
        result = own_name if own_name is not None else "made"
        if own_name is None:
            inner = " made = (" + source + ")"
        text = f"def {maker}({names}):\n{inner}\n return {result}\n{name} = {maker}({given})\n"
        self._pieces[name] = first - 1, text + self._defaults(name, function, True)

    def _variable(self, variable, cell, function, name):
        """Source that gives the variable of a closure."""
        where = f"{function.__qualname__} cannot travel to a VM: its variable {variable} is "
        try:
            value = cell.cell_contents
        except ValueError:
            raise CrossingError(f"{where}not set") from None
        self._uses.append((lambda: cell.cell_contents, value, None))
        if value is function:
            return "None"  # the definition itself binds the name
        if isinstance(value, types.ModuleType):
            return f"__import__({value.__name__!r}, fromlist=['_'])"
        if isinstance(value, types.FunctionType) and value.__module__ == self._home.__name__:
            known = self._globals.get(value.__name__)
            inner = value.__name__ if known is value else f"_of_{name}_{variable}"
            if known is value:
                self._need(inner, name)
            else:
                self._make(inner, value, name)
            return inner
        if isinstance(value, type) and self._globals.get(value.__name__) is value:
            self._need(value.__name__, name)
            return value.__name__
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            self._import(f"_of_{name}_{variable}", value, name)
            return f"_of_{name}_{variable}"
        text = self._expression(value, where)
        self._uses.append((lambda: value, value, text))
        return text.replace("\0", "")


_NOTHING = object()
_MAX_DEPTH = 50


def _is_closure(value):
    """Whether it is a function that was made inside another, and none that a decorator of it has made."""
    return (
        isinstance(value, types.FunctionType)
        and not hasattr(value, "__wrapped__")
        and "<locals>" in value.__code__.co_qualname
    )


def _is_special(value):
    """Whether it is imported by name, such as typing's objects."""
    return (
        isinstance(getattr(value, "__module__", None), str)
        and isinstance(getattr(value, "__qualname__", None), str)
        and not isinstance(value, (enum.Enum, types.MethodType))
    )


def _own_source(function, user):
    """(source, name or None for a lambda, first line) of a function's own definition, without decorators."""
    code = function.__code__
    try:
        lines, _ = inspect.findsource(function)
    except OSError, TypeError, IndexError:
        lines = []
    text = "".join(lines)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = ast.Module([])
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                found.append(node)
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            found.append(node)
    if len(found) > 1:
        found = [node for node in found if _is_of(node, code)]
    if not found:
        raise CrossingError(
            f"{user} cannot travel to a VM: the source of {function.__qualname__} is not to be had; put it into a"
            " module and import it"
        )
    node = found[0]
    defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
    rows = [line.encode() for line in lines]
    for each in sorted(defaults, key=lambda each: (each.lineno, each.col_offset), reverse=True):
        begin, end = each.lineno - 1, each.end_lineno - 1
        kept = rows[begin][: each.col_offset] + b"None" + b"\n" * (end - begin) + rows[end][each.end_col_offset :]
        rows[begin : end + 1] = kept.splitlines(keepends=True)
    text = b"".join(rows).decode()
    if isinstance(node, ast.Lambda):
        again = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Lambda)]
        place = node.lineno, node.col_offset
        return (
            next(ast.get_source_segment(text, each) for each in again if (each.lineno, each.col_offset) == place),
            None,
            node.lineno,
        )
    block = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    return textwrap.dedent("".join(block)), node.name, node.lineno


def _is_of(node, code):
    """Whether the code's positions lie within the node, and it has the node's parameters."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    columns = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]
    begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    body = node.body if isinstance(node.body, ast.AST) else node.body[0]
    return names == list(code.co_varnames[: code.co_argcount]) and all(
        begin <= place <= end for place in columns if place >= (body.lineno, 0) and place != (code.co_firstlineno, 0)
    )


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
    cells = [*linecache.cache.values(), *getattr(linecache, "_interactive_cache", {}).values()]
    for entry in reversed(cells):  # the newest of those that were run again
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


def _globals_of_code(code):
    """The names of the globals that code reads, anywhere in it."""
    names, pending = set(), [code]
    while pending:
        each = pending.pop()
        pending += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
        names.update(step.argval for step in dis.get_instructions(each) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return names


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
