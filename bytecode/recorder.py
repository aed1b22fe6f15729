"""Run by `recording.record` in a process of its own: notes each text that is given to `compile`, `exec` and `eval`.

    python recorder.py ENTRY_MODULE SCRIPT OUT       SCRIPT may be empty

Texts of the import system, of `runpy` and of what shows tracebacks are left out: they are source files. So are those of
named tuples and dataclasses, which a VM makes without a compiler.
"""

import builtins
import functools
import importlib
import json
import runpy
import sys
from types import CodeType

_FUTURES = 0x1FE0000
_SOURCE_FILES = {"runpy", "importlib._bootstrap", "importlib._bootstrap_external", "linecache", "traceback", "tokenize"}
_LEFT_OUT = _SOURCE_FILES | {"collections", "dataclasses"}
_noted = {}


def _note(mode, flags, source, caller):
    """Notes a text; `flags` has those of the caller's code, where it inherits them."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = bytes(source).decode("utf-8", "replace")
    if isinstance(source, str) and caller.f_globals.get("__name__") not in _LEFT_OUT:
        _noted[mode, flags & _FUTURES, source] = None


def _listening(name):
    original = getattr(builtins, name)

    @functools.wraps(original)
    def listening(source, *args, **kwargs):
        caller = sys._getframe(1)
        if not isinstance(source, CodeType):
            source = source.lstrip(" \t") if name == "eval" and isinstance(source, str) else source
            futures = caller.f_code.co_flags & _FUTURES
            _note(name, futures, source, caller)
            source = _compile(source, "<string>", name, futures, True)
        if not args and not {"globals", "locals"} & kwargs.keys():
            names = caller.f_locals  # of a function, exec gets a copy
            args = caller.f_globals, names if isinstance(names, dict) else dict(names)
        return original(source, *args, **kwargs)

    return listening


def _listening_compile(source, filename, mode, flags=0, dont_inherit=False, optimize=-1, **others):
    caller = sys._getframe(1)
    flags |= 0 if dont_inherit else caller.f_code.co_flags & _FUTURES
    if mode in ("exec", "eval", "single") and not flags & 0x400:  # PyCF_ONLY_AST makes no code
        _note(mode, flags, source, caller)
    return _compile(source, filename, mode, flags, True, optimize, **others)


def main(entry, script, out):
    """Imports the module, runs the script, writes the texts."""
    sys.path.pop(0)  # the folder of this file
    builtins.compile, builtins.exec, builtins.eval = _listening_compile, _listening("exec"), _listening("eval")
    importlib.import_module(entry)
    if script:
        sys.argv = [script]
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
    texts = [{"mode": mode, "futures": futures, "text": text} for mode, futures, text in _noted]
    with open(out, "w", encoding="utf-8", errors="surrogatepass") as file:
        json.dump(texts, file)


_compile = builtins.compile
if __name__ == "__main__":
    main(*sys.argv[1:])
