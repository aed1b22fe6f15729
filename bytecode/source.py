"""One source file to marshalled code, with CPython's own compiler.

`marshal.dumps(compile(...))` is the same over hash seeds and machines (tested by `tests/bytecode/test_reproducible.py`)
except for a few constants, which `_settled` handles. The compiler gets the file name for tracebacks, so no code object
is rewritten for that.
"""

import ast
import contextlib
import functools
import marshal
import sys
import threading
import warnings
from types import CodeType

from .corrections import compile_corrected
from .errors import CompileError, Diagnostic
from .relocation import with_places

_STATEMENTS_IN = ("body", "orelse", "handlers", "finalbody", "cases")
_warnings_lock = threading.Lock()  # warnings.catch_warnings affects all threads


def parse(source, shown):
    """The syntax tree of `source` (bytes); CompileError with the file `shown` and a line if it isn't Python."""
    with _reporting(source, shown, []):
        return ast.parse(source)


def nodes_of(tree):
    """A list of the tree's nodes in the order of `ast.walk`, which takes several times as long; without those that say
    no more than their class (operators, contexts)."""
    found = [tree]
    for node in found:
        found += children_of(node)
    return found


def children_of(node):
    """The nodes right below a node, with the same exceptions."""
    found = []
    for name in _inner_fields(type(node)):
        value = getattr(node, name, None)
        if type(value) is list:
            found += value if None not in value else [each for each in value if each is not None]
        elif value is not None:
            found.append(value)
    return found


@functools.cache
def _inner_fields(kind):
    """The names of the fields of a class of nodes that hold nodes."""
    types = kind._field_types.items()
    plain = (str, int, object, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, list[ast.cmpop], list[str])
    return tuple(name for name, of in types if of not in plain and of not in (str | None, int | None))


def compile_source(source, filename, shown, optimize=0, warned=None, docstrings=True):
    """Marshalled code of the module `source` (bytes).

    `filename` is the name in tracebacks, `shown` the one in messages. CompileError with file and line for whatever
    CPython refuses: syntax, encoding, null bytes, nesting too deep. The compiler's warnings are added as Diagnostics to
    the list `warned`, if given, and shown nowhere else. Without `docstrings`, `__doc__` is None as with `optimize` 2,
    and asserts stay.
    """
    with _reporting(source, shown, [] if warned is None else warned):
        tree = None
        if not docstrings:
            tree = _without_docstrings(compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True))
        return marshalled(compile_corrected(with_places(source, filename, tree), filename, optimize))


def marshalled(code):
    """A code object's bytes in a bundle; the same in any process."""
    return marshal.dumps(_settled(code))


def _without_docstrings(tree):
    pending = [tree]  # statements only: no expression has a docstring
    while pending:
        node = pending.pop()
        for name in _STATEMENTS_IN:
            pending += getattr(node, name, ())
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        body = node.body
        while (
            body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and (isinstance(body[0].value.value, str))
        ):  # a loop: the next string would become the docstring
            first = body.pop(0)
            if not body and not isinstance(node, ast.Module):
                body.append(ast.copy_location(ast.Pass(), first))
    return tree


def _settled(code):
    """`code` with the sharing of certain constants made independent of the strings that the process has interned.

    Two kinds are known. A nested class's body has its qualified name as a constant and as `co_qualname`, which is
    interned; CPython makes them one object, marshalled once, only if no equal string was interned before. A set or
    slice of strings in several functions is one object until one of its strings is replaced by an interned one.

    Here both are one object, in any process. Which code objects are rebuilt depends only on values, never on
    identities: a rebuilt code object shares its tuples of names with no other, and marshal distinguishes that too."""
    shared, pending = {}, [code]
    while pending:
        inner = pending.pop()
        if not inner.co_qualname.isidentifier():  # CPython interns identifiers among constants anyway
            shared[inner.co_qualname] = sys.intern(inner.co_qualname)
        pending += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
    return _with_constants(code, shared, {})


def _with_constants(code, shared, known):
    """`code` with its constants replaced by those in `shared`; `code` itself if none are. `shared` maps values to
    constants; sets and slices are added to it.

    `known`: finished tuples of constants by identity, since code objects may share them.
    """
    old = code.co_consts
    if id(old) not in known:
        new, changed = [], False
        for constant in old:
            if isinstance(constant, CodeType):
                new.append(_with_constants(constant, shared, known))
                changed = changed or new[-1] is not constant
            elif (type(constant) is str and constant in shared) or (
                isinstance(constant, (frozenset, slice)) and _has_text(constant)
            ):
                new.append(shared.setdefault(_value(constant), constant))
                changed = True
            else:
                new.append(constant)
        known[id(old)] = old, tuple(new) if changed else old
    new = known[id(old)][1]
    return code if new is old else code.replace(co_consts=new)


def _members(constant):
    return (constant.start, constant.stop, constant.step) if isinstance(constant, slice) else constant


def _has_text(constant):
    return isinstance(constant, str) or (
        isinstance(constant, (tuple, frozenset, slice)) and any(map(_has_text, _members(constant)))
    )


def _value(constant):
    """A key that two constants share if and only if they are interchangeable; a str is its own key."""
    if isinstance(constant, str):
        return constant
    if isinstance(constant, (tuple, slice)):
        return type(constant), *map(_value, _members(constant))
    if isinstance(constant, frozenset):
        return frozenset, frozenset(map(_value, constant))
    return type(constant), repr(constant)  # 0.0 is not -0.0, nor 1 True


@contextlib.contextmanager
def _reporting(source, shown, warned):
    try:
        with _warnings_lock, warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", SyntaxWarning)
            yield
    except SyntaxError as error:
        message = f"{type(error).__name__}: {error.msg}"
        # CPython gives no line for null bytes: it checks for them before parsing
        line = error.lineno or (source.partition(b"\0")[0].count(b"\n") + 1 if b"\0" in source else 0)
        raise CompileError([Diagnostic(shown, line, message)]) from error
    except (RecursionError, MemoryError) as error:
        message = "nested too deeply for the compiler; split the expression"
        raise CompileError([Diagnostic(shown, 0, message)]) from error
    except ValueError as error:
        raise CompileError([Diagnostic(shown, 0, f"can't be compiled: {error}")]) from error
    warned += [Diagnostic(shown, warning.lineno, str(warning.message)) for warning in raised]
