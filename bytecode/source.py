"""One source file to marshalled code, with CPython's own compiler.

`marshal.dumps(compile(...))` is the same over hash seeds and machines (measured; `tests/bytecode/test_reproducible.py`
holds it to that), but for a few constants that `_settled` sees to. The compiler is given the name that tracebacks shall
show, so no code object is rewritten for that.
"""

import ast
import contextlib
import marshal
import sys
import threading
import warnings
from types import CodeType

from .corrections import compile_corrected
from .errors import CompileError, Diagnostic
from .relocation import with_places

_STATEMENTS_IN = ("body", "orelse", "handlers", "finalbody", "cases")
_warnings_lock = threading.Lock()  # warnings.catch_warnings changes what all threads see


def parse(source, shown):
    """The syntax tree of `source` (bytes); CompileError with the file `shown` and a line if it isn't Python."""
    with _reporting(source, shown, []):
        return ast.parse(source)


def compile_source(source, filename, shown, optimize=0, warned=None, docstrings=True):
    """Marshalled code of the module `source` (bytes).

    `filename` is what tracebacks will say, `shown` what messages say now. CompileError with file and line for what
    CPython refuses: syntax, encoding, null bytes, nesting too deep. The compiler's warnings are added as Diagnostics to
    the list `warned`, if given, and shown to nobody else. Without `docstrings`, `__doc__` is None as `optimize` 2 makes
    it, and asserts stay.
    """
    with _reporting(source, shown, [] if warned is None else warned):
        tree = None
        if not docstrings:
            tree = _without_docstrings(compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True))
        return marshalled(compile_corrected(with_places(source, filename, tree), filename, optimize))


def marshalled(code):
    """A code object as bundles hold it: the same bytes in any process."""
    return marshal.dumps(_settled(code))


def _without_docstrings(tree):
    pending = [tree]  # and all statements in it: no expression holds a docstring
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
        ):  # a second one would become the docstring
            first = body.pop(0)
            if not body and not isinstance(node, ast.Module):
                body.append(ast.copy_location(ast.Pass(), first))
    return tree


def _settled(code):
    """`code`, with those constants shared that CPython shares or not as the process has interned their strings before.

    Two kinds are known. The body of a nested class holds its qualified name as a constant and as `co_qualname`, which
    is interned; that stays one object, written once, only where no equal string was interned already. And a set or
    slice of strings that several functions hold is one object until one of its strings is replaced by an interned one.

    Here both are one object, in any process. Which code objects are rebuilt for it depends on values alone, never on
    identities: a code object that was rebuilt shares its tuples of names with no other, and marshal tells that apart
    too."""
    shared, pending = {}, [code]
    while pending:
        inner = pending.pop()
        if not inner.co_qualname.isidentifier():  # those are interned as constants anyway
            shared[inner.co_qualname] = sys.intern(inner.co_qualname)
        pending += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
    return _with_constants(code, shared, {})


def _with_constants(code, shared, known):
    """`code` with the constants in `shared`, a dict by value that sets and slices are added to; itself if it has none.

    `known`: tuples of constants that are done, by identity, since code objects may share them.
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
    """What two constants have in common if and only if one may stand for the other; a str is its own."""
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
        # CPython says no line for these: it looks for them before it reads
        line = error.lineno or (source.partition(b"\0")[0].count(b"\n") + 1 if b"\0" in source else 0)
        raise CompileError([Diagnostic(shown, line, message)]) from error
    except (RecursionError, MemoryError) as error:
        message = "nested too deeply for the compiler; split the expression"
        raise CompileError([Diagnostic(shown, 0, message)]) from error
    except ValueError as error:
        raise CompileError([Diagnostic(shown, 0, f"can't be compiled: {error}")]) from error
    warned += [Diagnostic(shown, warning.lineno, str(warning.message)) for warning in raised]
