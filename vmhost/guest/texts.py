"""Replaces run-time compilation in a VM's standard library.

Three ways, in this order:

1. The cloud compiler has seen the text: a bundle has its code under the text's digest, and that runs.
2. The standard library generates text of this shape (methods of a dataclass, `__new__` of a named tuple):
   `assembler.py` parses it, and native code writes the instructions that the compiler would have written.
3. The text is an expression (a forward reference, a plural form, an argument in a logging configuration):
   `expressions.py` parses and evaluates it.

Text that packages give to `compile`, `exec` and `eval` can only go the first way. `recorded` finds what
`vmhost compile --record` has collected, even where generated names and numbers differ.

Anything else is impossible in a VM: NoCompilerError names the construct and the alternative.

The guest's boot calls `install` once, before the first class is defined; patched modules (`stdlib/patches/`) call the
rest. This module imports almost only built-in modules, because `collections` needs it early.
"""

import builtins
import sys
from _sha2 import sha256
from keyword import iskeyword

_getframe = sys._getframe  # bound now: tests of packages remove it
_FunctionType = type(lambda: None)
_CodeType = type((lambda: None).__code__)
# As in bytecode/recording.py, which a VM does not have; tests/bytecode/test_recording.py compares the two.
_FUTURES = 0x1FE0000  # flags of a code object: what its module imported from __future__
_ONLY_AST, _TYPE_COMMENTS = 0x400, 0x1000  # flags of the compiler
_GENERATED = "[0-9a-f]{32}|-?[0-9]+"  # what programs put into names to make them unique: UUIDs, counters

_find_text = None
_writer = None
_read = {}  # parsed expressions by text; annotations repeat
counts = {"precompiled": 0, "assembled": 0, "evaluated": 0}  # texts since boot, by way taken


class NoCompilerError(RuntimeError):
    """Something in a VM needs a compiler, and there is none."""


def install(find_text, writer):
    """Give this module its native functions.

    find_text(digest: bytes) -> code object or None: looks up a text's code by `digest` in the task's bundle, then in
    the system's.
    writer: has `namedtuple_code`, `method_code` and `coroutine_code`, which make code objects from recipes (see
    `vmhost/isolation/seal/function_code.c`); `_vmhost` in a VM. They check their arguments, so anyone may call them.
    """
    global _find_text, _writer
    _find_text = find_text
    _writer = writer


def digest(mode, text):
    """The key of a precompiled text: SHA-256 over mode ("exec", "eval"), a zero byte and the text."""
    return sha256(f"{mode}\0{text}".encode()).digest()


def precompiled(mode, text):
    """The code object of a text that the cloud compiler has seen, or None."""
    if _find_text is None:
        return None
    code = _find_text(digest(mode, text))
    if code is not None:
        counts["precompiled"] += 1
    return code


def compiled(source, mode, flags, filename="<string>"):
    """The code for `compile(source, filename, mode, flags)`; `flags` includes those of the caller's code."""
    if flags & _ONLY_AST:
        return parsed(source, filename, mode, flags)
    if not isinstance(source, (str, bytes, bytearray, memoryview)):
        from ast import AST, dump

        if isinstance(source, AST):
            source, mode = dump(source, include_attributes=True), f"tree {mode}"
    code = _recorded("compile", mode, flags & _FUTURES, source)
    if type(filename) is not str or filename == "<string>":
        return code
    return _writer.relocated_code(code, filename, None, None, 0, True)


def parsed(source, filename, mode, flags):
    """The tree for `compile(source, filename, mode, flags)`, where `flags` ask for one: of a recorded text, or of an
    expression."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = bytes(source).decode()
    if not isinstance(source, str):
        from ast import AST

        if isinstance(source, AST):
            return source
        raise TypeError("compile() arg 1 must be a string, bytes or AST object")
    code = precompiled(f"parse {mode} {flags & (_FUTURES | _TYPE_COMMENTS):x}", source)
    if code is None:
        from vmhost.guest import expressions

        return expressions.parse(source, filename, mode)
    from pickle import loads

    return loads(eval(code))


def replaced(code, **changes):
    """`code.replace(**changes)`, for calls of which the compiler has checked that `changes` only alter the code's
    origin: file, name, qualified name, first line."""
    if type(code) is not _CodeType:
        return code.replace(**changes)
    first = changes.get("co_firstlineno", code.co_firstlineno)
    where = (changes.get(name) for name in ("co_filename", "co_name", "co_qualname"))
    return _writer.relocated_code(code, *where, first - code.co_firstlineno, False)


def recorded(function, source):
    """The code for `exec(source)` or `eval(source)`, as `function` says; `source` is not a code object."""
    text = source.lstrip(" \t") if function == "eval" and isinstance(source, str) else source
    return _recorded(function, function, _getframe(1).f_code.co_flags & _FUTURES, text)


def _recorded(function, mode, futures, source):
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = bytes(source).decode()
    if not isinstance(source, str):
        raise TypeError(f"{function}() arg 1 must be a string, bytes or code object")
    mode = f"{mode} {futures:x}" if futures else str(mode)
    code = precompiled(mode, source)
    if code is None:
        code = _of_its_kind(mode, source)
    if code is None and source.startswith("\n"):
        code = _further_down(mode, source)
    if code is None:
        from vmhost.guest import PermissionDenied

        shown, what = source if len(source) <= 80 else source[:77] + "...", "tree" if mode[:5] == "tree " else "text"
        raise PermissionDenied(
            13,
            f"{function}: a VM has no compiler, and nobody has recorded this {what}: {shown!r}; compile the task with "
            "`vmhost compile --record SCRIPT`, where SCRIPT makes the program come here; with a VMExecutor, run the "
            "program once by `vmhost record PROGRAM`",
        )
    return code


def _further_down(mode, text):
    """The code of a text that was recorded with another number of leading empty lines, which programs add to get line
    numbers right; or None."""
    rest = text.lstrip("\n")
    code = precompiled(mode, rest)
    return code and _writer.relocated_code(code, None, None, None, len(text) - len(rest), True)


def _of_its_kind(mode, text):
    """The code of a text that differs from a recorded one only in generated parts, or None."""
    import re

    parts = re.findall(_GENERATED, text)
    if not parts or _find_text is None:
        return None
    kinds = _find_text(digest(f"kinds of {mode}", re.sub(_GENERATED, "\0", text)))
    for original, fixed, tokens in eval(kinds) if kinds is not None else ():
        if any(parts[index] != part for index, part in fixed):
            continue
        renames = {}
        for old, pieces in tokens:
            new = "".join(piece if type(piece) is str else parts[piece] for piece in pieces)
            if type(old) is int:
                if new.lstrip("-")[0] == "0" or len(new) > 100:
                    break  # Python parses it differently, or not at all
                new = int(new)
                consistent = (old < 0) == (new < 0) and renames.setdefault(-old, -new) == -new
            else:
                consistent = new.isidentifier()
            if renames.setdefault(old, new) != new or not consistent:
                break
        else:
            if len(set(renames.values())) == len(renames):
                counts["precompiled"] += 1
                return _writer.renamed_code(_find_text(original), renames)
    return None


def namedtuple_new(text, namespace, fields):
    """`eval(text, namespace)` for `collections.namedtuple`: the function `__new__`."""
    code = precompiled("eval", text)
    if code is not None:
        return eval(code, namespace)
    from vmhost.guest import assembler

    code = assembler.namedtuple_new(_native("namedtuple"), fields)
    counts["assembled"] += 1
    return _FunctionType(code, namespace)


def dataclass_functions(text, globals, variables, definitions):
    """Runs `text` for `dataclasses`: the methods of one class, in the order of `definitions`."""
    code = precompiled("exec", text)
    if code is not None:
        namespace = {}
        exec(code, globals, namespace)
        return namespace["__create_fn__"](**variables)
    from vmhost.guest import assembler

    functions = assembler.dataclass_functions(_native("dataclass"), globals, variables, definitions)
    counts["assembled"] += 1
    return functions


def expression(text):
    """`text` parsed as an expression, for `evaluate`; SyntaxError if it is none."""
    if text.isidentifier() and text.isascii() and not iskeyword(text):
        return text  # most forward references are plain names
    read = _read.get(text)
    if read is None:
        read = precompiled("eval", text)
        if read is None:
            from vmhost.guest import expressions

            read = expressions.parse(text, "<string>", "eval").body
        if len(_read) < 500:
            _read[text] = read
    return read


def evaluate(read, globals, locals=None):
    """`eval` of an expression that `expression` has parsed."""
    if type(read) is _CodeType:
        return eval(read, globals, locals)
    if type(read) is str:
        return name_value(read, globals, globals if locals is None else locals)
    from vmhost.guest import expressions

    counts["evaluated"] += 1
    return expressions.evaluate(read, globals, globals if locals is None else locals)


def name_value(name, globals, locals):
    """The value of a name: looked up in `locals`, `globals` and the builtins, in this order."""
    try:
        return locals[name]
    except KeyError:
        pass
    try:
        return globals[name]
    except KeyError:
        pass
    known = globals.get("__builtins__", builtins)
    try:
        return (known if type(known) is dict else known.__dict__)[name]
    except KeyError:
        raise NameError(f"name {name!r} is not defined", name=name) from None


def evaluate_text(text, globals, locals=None):
    """`eval(text, globals, locals)`."""
    return evaluate(expression(text.lstrip(" \t")), {} if globals is None else globals, locals)


def plural_function(text, formula, namespace):
    """Runs `text` for `gettext.c2py`: a function from a number to the index of its plural form."""
    code = precompiled("exec", text)
    if code is not None:
        exec(code, namespace)
        return namespace["func"]
    from vmhost.guest import expressions

    tree = expressions.parse(formula, "<string>", "eval").body
    as_int = namespace["_as_int"]
    known = {}  # n -> index: programs repeat a few numbers

    def func(n):
        if not isinstance(n, int):
            n = as_int(n)
        index = known.get(n)
        if index is None:
            index = int(expressions.evaluate(tree, {"n": n}, {"n": n}))
            if len(known) < 1000 and type(n) is int:
                known[n] = index
        return index

    # gettext's warnings look for the first caller outside gettext
    return _FunctionType(func.__code__, namespace, "func", None, func.__closure__)


def generator_as_coroutine(function):
    """Make a generator function awaitable, as `types.coroutine` does by changing its flags."""
    function.__code__ = _native("types.coroutine").coroutine_code(function.__code__)
    return function


def _native(construct):
    if _writer is None:
        raise NoCompilerError(
            f"{construct}: the guest runtime is not installed in this interpreter; "
            "call vmhost.guest.texts.install(find_text, writer) while it boots"
        )
    return _writer
