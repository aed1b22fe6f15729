"""The entry points of `vmhost.VMExecutor` inside a VM.

They are dynamic attributes of this module: `vmhost.guest.executor:<flags> <module>:<path>`, with `/` for each dot,
since the core splits entry points at dots. So a user's function `setup` is never taken for a task's setup(), and the
initializer can run first. Flags: `i`, run the initializer if this VM has not yet; `r`, the call has many rows of
arguments.
"""

import sys

import _vmhost

from vmhost.guest import codec

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
    if "r" in flags:
        return _over_rows(_vmhost.entry_for(f"{__name__}: {target}"))
    return find(target.replace("/", "."))


def find(target):
    """The callable "module:path"."""
    name, _, path = target.partition(":")
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
    found = sys.modules[name]
    for part in path.split("."):
        found = getattr(found, part)
    return _with_a_frame(found) if name == "builtins" and path in _OF_A_FRAME else found


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
    codec.main = target.partition(":")[0].replace(
        "/", "."
    )  # its arguments may be of classes of the program's own module
    try:
        arguments, keywords = _told("arguments")
    finally:
        codec.main = None
    try:
        _vmhost.entry_for(f"{__name__}: {target}")(*arguments, **keywords)
    except _vmhost.Stopped:
        raise
    except BaseException as error:
        report = _vmhost.report(error)
        _failure = f"{report['type']}: {report['message']}"
        _vmhost.host_call("initializer failed", report)
        raise InitializerError(_failure) from error
    _initialized = True
