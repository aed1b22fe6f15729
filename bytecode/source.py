"""One source file to marshalled code, with CPython's own compiler.

`marshal.dumps(compile(...))` is the same over hash seeds, machines and what else the process has imported (measured;
`tests/bytecode/test_reproducible.py` holds it to that), so nothing is normalised afterwards. The compiler is given the
name that tracebacks shall show, so no code object is rewritten either.
"""

import ast
import contextlib
import marshal
import threading
import warnings

from .errors import CompileError, Diagnostic

_warnings_lock = threading.Lock()       # warnings.catch_warnings changes what all threads see


def parse(source, shown):
    """The syntax tree of `source` (bytes); CompileError with the file `shown` and a line if it isn't Python."""
    with _reporting(source, shown, []):
        return ast.parse(source)


def compile_source(source, filename, shown, optimize=0, warned=None):
    """Marshalled code of the module `source` (bytes).

    `filename` is what tracebacks will say, `shown` what messages say now. CompileError with file and line for what
    CPython refuses: syntax, encoding, null bytes, nesting too deep. The compiler's warnings are added as Diagnostics to
    the list `warned`, if given, and shown to nobody else.
    """
    with _reporting(source, shown, [] if warned is None else warned):
        return marshal.dumps(compile(source, filename, "exec", dont_inherit=True, optimize=optimize))


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
