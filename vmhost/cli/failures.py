"""How a command fails: the one error it prints, and its exit code.

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | the task raised, or an answer was wrong |
| 2 | the command line or an input is wrong: no such file, not JSON, not a task folder, a key that cannot be read |
| 3 | the task cannot be compiled, or the bundle is refused |
| 4 | the call was stopped at a limit: time or memory |
| 5 | the host could not run the call: queue full, breaker open, VM lost, host closed |
| 6 | `doctor` found something wrong with this machine |
| 130 | interrupted with Ctrl-C |
| 141 | the reader of stdout went away |
"""

import functools
import os
import sys

import click

from vmhost.cli.output import Output

DONE, TASK_FAILED, WRONG_INPUT, REFUSED, LIMIT, HOST_FAILED, UNHEALTHY = range(7)
INTERRUPTED, PIPE_CLOSED = 130, 141


class Failure(Exception):
    """A command cannot go on: `message` for the user, `kind` the error's name for programs, and the exit code."""

    def __init__(self, message, exit_code=WRONG_INPUT, kind="InputError"):
        super().__init__(message)
        self.message, self.exit_code, self.kind = message, exit_code, kind


def exit_code(error):
    """The exit code for an error of ours, or None if it is not one."""
    import bytecode.errors
    import vmhost

    if isinstance(error, Failure):
        return error.exit_code
    for kinds, code in (
        ((vmhost.TaskError, vmhost.PermissionDenied, vmhost.CrossingError), TASK_FAILED),
        ((vmhost.TimeLimitError, vmhost.MemoryLimitError), LIMIT),
        ((vmhost.BundleError, bytecode.errors.BundleError, bytecode.errors.CompileError), REFUSED),
        ((bytecode.errors.TaskSpecError,), REFUSED),
        ((bytecode.errors.BytecodeError,), WRONG_INPUT),
        ((vmhost.errors.ConfigurationError,), WRONG_INPUT),
        ((vmhost.VMHostError,), HOST_FAILED),
    ):
        if isinstance(error, kinds):
            return code
    return None


def command(function):
    """A command's function, given an `Output` for `as_json`, whose errors are printed once and become exit codes."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
    @functools.wraps(function)
    def reported(*args, as_json, **kwargs):
        output = Output(as_json)
        try:
            code = function(output, *args, **kwargs)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # What is still buffered has no reader: Python must not try again, and complain, when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from error
            code = exit_code(error)
            if code is None:
                raise
            report(output, error, code)
            return code

    return reported


def _was_interrupted(error):
    """Whether `error` was raised while a KeyboardInterrupt was on its way: what Ctrl-C hits may fail at being left.

    threading.Condition does: "cannot release un-acquired lock", when it is hit just before it waits.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def report(output, error, code):
    """Prints the error: on stderr for people, with the task's traceback if it has one; on stdout as JSON."""
    kind = error.kind if isinstance(error, Failure) else type(error).__name__
    frames = getattr(error, "guest_traceback", None)
    item = getattr(error, "item", None)  # of the list that `run --each` was given, from 0
    if output.as_json:
        document = {"type": kind, "message": str(error), "exit_code": code}
        if item is not None:
            document["item"] = item
        if frames:
            document["traceback"] = frames
        output.document({"error": document})
        return
    if frames:
        output.remark(frames.rstrip())
    first, *rest = str(error).splitlines() or [kind]
    output.error(first if item is None else f"item {item}: {first}")
    for line in rest:
        output.remark(f"       {line}")
