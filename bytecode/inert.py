"""Modules that a VM lacks and packages import at their top without using them: the names they have.

Where such an import is sure to run, the compiler replaces it by one of `vmhost.guest.inert`: the names are there, and
refuse when they are used. Where a package expects the import to fail (`except ImportError`) nothing changes: it has
another way. The names are those of the running Python's modules; no code of a module comes into a VM."""

import ast
import functools
import json
import subprocess
import sys

from .offered import REFUSED, left_out
from .texts import compile_text, text_digest

INERT = frozenset(
    """
    ctypes ctypes.util ctypes.wintypes concurrent.interpreters concurrent.futures.process
    concurrent.futures.interpreter multiprocessing multiprocessing.connection multiprocessing.context
    multiprocessing.dummy multiprocessing.managers multiprocessing.pool multiprocessing.process multiprocessing.queues
    multiprocessing.reduction multiprocessing.shared_memory multiprocessing.spawn multiprocessing.synchronize
    multiprocessing.util
    runpy code codeop doctest py_compile compileall symtable site cmd curses pty readline rlcompleter webbrowser
    pydoc cProfile profile pstats trace tracemalloc tabnanny pyclbr modulefinder
    fcntl grp pwd resource syslog dbm shelve
""".split()
)
_GET = "__import__('vmhost.guest.inert').guest.inert.get"

# Prints {module: {name: description}}: ["value", literal], ["size", bytes] for C's types, ["error", builtin base],
# ["class"], ["function"] or ["object"]. Runs in a process of its own: some of the modules change it.
_LISTS = """
import ast, importlib, json, sys, types
try:
    from ctypes import sizeof
except ImportError:
    sizeof = None
found = {}
for module in sys.argv[1:]:
    try:
        there = vars(importlib.import_module(module))
    except Exception:
        continue
    names = found[module] = {}
    for name, value in there.items():
        if name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, type) and issubclass(value, BaseException):
            known = (each.__name__ for each in value.__mro__ if each.__module__ == "builtins")
            names[name] = ["error", next(known)]
        elif isinstance(value, type):
            try:
                names[name] = ["size", sizeof(value)]
            except TypeError:
                names[name] = ["class"]
        elif type(value) in (int, str, bool, type(None)):
            names[name] = ["value", value]
        else:
            names[name] = ["function" if callable(value) else "object"]
print(json.dumps(found, sort_keys=True))
"""


@functools.cache
def names():
    """{module: {name: description}} of the modules of INERT that this Python has."""
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", _LISTS, *sorted(INERT)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def table(module):
    """Digest and marshalled code of the text that gives a VM the names of a module and why they refuse."""
    reason = left_out(module) or REFUSED[module]
    return text_digest("inert", module), compile_text("eval", repr((reason, names()[module])), "<inert>")


def modules_of(node, alias, name):
    """The inert modules that the import `node` of the missing module `name` needs (`alias`: only this part of a
    `from … import`); () where it cannot be replaced."""
    if name not in INERT or name not in names():
        return ()
    if isinstance(node, ast.ImportFrom):
        aliases = node.names if alias is None else [alias]
        if any(each.name == "*" for each in aliases):
            return ()
        if alias is not None:
            return _with_parents(name)
        return {*_with_parents(name), *(f"{name}.{each.name}" for each in aliases if f"{name}.{each.name}" in names())}
    return _with_parents(name)


def _with_parents(name):
    parts = name.split(".")
    return {prefix for at in range(1, len(parts) + 1) if (prefix := ".".join(parts[:at])) in names()}


def binding(node, alias, name):
    """The statement that binds what the import `node` binds for its part `alias`, of the inert module `name`."""
    if isinstance(node, ast.ImportFrom):
        bound = alias.asname or alias.name
        if name != node.module:  # `from concurrent import interpreters`
            return f"{bound} = {_GET}({name!r})"
        return f"{bound} = {_GET}({name!r}, {alias.name!r})"
    if alias.asname:
        return f"{alias.asname} = {_GET}({name!r})"
    top = name.partition(".")[0]
    if top in INERT:
        return f"{top} = {_GET}({top!r})" if top == name else f"{top} = {_GET}({name!r}) and {_GET}({top!r})"
    parent = name.rpartition(".")[0]
    return f"import {parent}; {name} = {_GET}({name!r})"
