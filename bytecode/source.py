"""One source file to marshalled code, with CPython's own compiler.

`marshal.dumps(compile(...))` is the same over hash seeds, machines and what else the process has imported (measured;
`tests/bytecode/test_reproducible.py` holds it to that), so nothing is normalised afterwards. The compiler is given the
name that tracebacks shall show, so no code object is rewritten either.
"""

import contextlib
import marshal

from .errors import CompileError, Diagnostic


def compile_source(source, filename, shown, optimize=0):
    """Marshalled code of the module `source` (bytes, or a syntax tree made from them).

    `filename` is what tracebacks will say, `shown` what errors say now. CompileError with file and line for what CPython
    refuses: syntax, encoding, null bytes, nesting too deep.
    """
    with reporting(shown):
        return marshal.dumps(compile(source, filename, "exec", dont_inherit=True, optimize=optimize))


@contextlib.contextmanager
def reporting(shown):
    """Turns what `compile` and `ast.parse` raise inside it into CompileError, with the file `shown` and a line."""
    try:
        yield
    except SyntaxError as error:
        message = f"{type(error).__name__}: {error.msg}"
        raise CompileError([Diagnostic(shown, error.lineno or 0, message)]) from error
    except (RecursionError, MemoryError) as error:
        raise CompileError([Diagnostic(shown, 0, "nested too deeply for the compiler; split the expression")]) from error
    except ValueError as error:
        raise CompileError([Diagnostic(shown, 0, f"can't be compiled: {error}")]) from error
