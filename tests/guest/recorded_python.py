"""`python recorded_python.py PROGRAM OUT` runs PROGRAM, and writes what it has exec and eval compile to OUT.

OUT is a marshalled list of (mode, text).
"""

import builtins
import marshal
import sys

seen = {}


def recorder(mode, run):
    def recorded(source, /, globals=None, locals=None, **options):
        if isinstance(source, str):
            text, source = source, compile(source, "<string>", mode, dont_inherit=True)
            seen[mode, text] = None
        if globals is None:
            globals = sys._getframe(1).f_globals
        return run(source, globals, locals, **options)

    return recorded


def main(program, out):
    with open(program, encoding="utf-8") as file:
        code = compile(file.read(), "program.py", "exec", dont_inherit=True)
    main_module = type(sys)("__main__")
    sys.modules["__main__"] = main_module
    run = exec
    builtins.exec, builtins.eval = recorder("exec", exec), recorder("eval", eval)
    run(code, main_module.__dict__)
    with open(out, "wb") as file:
        marshal.dump(list(seen), file)


if __name__ == "__main__":
    main(*sys.argv[1:])
