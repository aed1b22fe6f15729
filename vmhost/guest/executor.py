"""The entry points of `vmhost.VMExecutor` inside a VM.

They are dynamic attributes of this module: `vmhost.guest.executor:<flags> <module>:<path>`, with `/` for each dot,
since the core splits entry points at dots. So a user's function `setup` is never taken for a task's setup(), and the
initializer can run first. Flags: `i`, run the initializer if this VM has not yet; `r`, the call has many rows of
arguments; `m`, the first argument describes the function, to which no name leads (vmhost/runtime/made_functions.py).
"""

import sys
from _types import CellType, FunctionType, MethodType

import _vmhost

from vmhost.guest import codec
from vmhost.guest.boot import is_async, run_to_end
from vmhost.guest.classes import EMPTY, FUNCTION, MODULE, NAMED, VALUE

_initialized = False
_failure = None


class InitializerError(Exception):
    """The initializer of the executor failed in this VM."""


def __getattr__(name):
    flags, space, target = name.partition(" ")
    if not space:
        raise AttributeError(f"module 'vmhost.guest.executor' has no attribute {name!r}")
    if "i" in flags:
        _initialize()
    if "m" in flags:
        return _over_rows(_call_made) if "r" in flags else _call_made
    if "r" in flags:
        return _over_rows(_vmhost.entry_for(f"{__name__}: {target}"))
    return find(target.replace("/", "."))


def find(target):
    """The callable "module:path"."""
    name, _, path = target.partition(":")
    found = _imported(name)
    for part in path.split("."):
        found = getattr(found, part)
    return _with_a_frame(found) if name == "builtins" and path in _OF_A_FRAME else found


def _imported(name):
    """The module."""
    if name.startswith("_") and not name.startswith("__"):
        try:
            __import__(name[1:])  # what a program calls `csv.reader` is `_csv.reader`, after what csv has set up
        except ImportError:
            pass
    try:
        __import__(name)
    except Exception as error:
        if name == "__mp_main__":
            error.add_note(
                "a VM imports the program's own module to find the function; what the program does, and "
                'must not do again there, stands under `if __name__ == "__main__":`'
            )
        raise
    return sys.modules[name]


_codes = {}  # (module, path) -> code


def _code_at(module, path):
    """The code that constants of these indices lead to, from the module's code on."""
    code = _codes.get((module, path))
    if code is None:
        code = _vmhost.code(module)
        for index in path:
            code = code.co_consts[index]
        _codes[module, path] = code
    return code


def _call_made(spec, *args, **kwargs):
    function = _make(*spec)
    return (run_to_end(function) if is_async(function) else function)(*args, **kwargs)


def _make(functions, cells):
    """The first of the functions."""
    made, made_cells = [], [CellType() for _ in cells]
    for module, path, name, qualname, _, _, own in functions:
        home = _imported(module)
        code = _code_at(module, tuple(path))
        function = FunctionType(code, vars(home), name, None, tuple(made_cells[index] for index in own))
        function.__qualname__ = qualname
        made.append(function)

    def value_of(item):
        kind = item[0]
        if kind == VALUE:
            return item[1]
        if kind == FUNCTION:
            return made[item[1]]
        if kind == NAMED:
            return find(f"{item[1]}:{item[2]}")
        if kind == MODULE:
            return _imported(item[1])
        return MethodType(value_of(item[1]), value_of(item[2]))

    for function, (_, _, _, _, defaults, keywords, _) in zip(made, functions):
        function.__defaults__ = defaults and tuple(map(value_of, defaults))
        function.__kwdefaults__ = {name: value_of(item) for name, item in keywords.items()} or None
    for cell, item in zip(made_cells, cells):
        if item[0] != EMPTY:
            cell.cell_contents = value_of(item)
    return made[0]


# They use the frame that calls them, and a VM's calls come without one.
_OF_A_FRAME = ("eval", "exec", "globals", "locals", "vars", "dir")


def _with_a_frame(function):
    """`function`, called from a frame of an empty module."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return type(call)(
        call.__code__, {"__name__": "__main__", "__builtins__": sys.modules["builtins"]}, None, None, call.__closure__
    )


def _over_rows(function):
    """`function` for each row; returns (results, None), or (results before the error, report of the error)."""

    def call_rows(rows, keywords):
        results = []
        try:
            for row in rows:
                results.append(function(*row, **keywords))
        except Exception as error:
            error.__traceback__ = error.__traceback__.tb_next  # without this frame
            report = _vmhost.report(error)
            report.pop("error", None)  # if the host did not know its class, it would get nothing at all
            return results, report
        return results, None

    return call_rows


def _told(part):
    """A part of the initializer, from the host."""
    given, answer = _vmhost.host_call("initializer", part)
    if not given:
        raise InitializerError(answer)
    return answer


def _initialize():
    """Run the executor's initializer, once; report a failure to the host. InitializerError then, and ever after."""
    global _initialized, _failure
    if _initialized:
        return
    if _failure is not None:
        raise InitializerError(_failure)
    target = _told("target")
    # Its arguments may be of classes of the program's own module.
    codec.main = target.partition(" ")[2].partition(":")[0].replace("/", ".")
    try:
        arguments, keywords = _told("arguments")
    finally:
        codec.main = None
    try:
        _vmhost.entry_for(f"{__name__}:{target}")(*arguments, **keywords)
    except _vmhost.Stopped:
        raise
    except BaseException as error:
        report = _vmhost.report(error)
        _failure = f"{report['type']}: {report['message']}"
        _vmhost.host_call("initializer failed", report)
        raise InitializerError(_failure) from error
    _initialized = True
