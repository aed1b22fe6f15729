"""How a command fails: one error message, and an exit code (`vmhost/lines/exit_codes.py`)."""

import contextlib
import functools
import os
import sys
import traceback

import click

from vmhost.cli.output import Output
from vmhost.lines import exit_codes, stdout
from vmhost.lines.exit_codes import (  # noqa: F401  (commands name them by this module)
    DONE,
    HOST_FAILED,
    INTERRUPTED,
    LIMIT,
    PIPE_CLOSED,
    REFUSED,
    TASK_FAILED,
    UNHEALTHY,
    WRONG_INPUT,
)


class Failure(Exception):
    """A command failed: `message` for the user, `kind` is the error's name for programs, and the exit code."""

    def __init__(self, message, exit_code=WRONG_INPUT, kind="InputError"):
        super().__init__(message)
        self.message, self.exit_code, self.kind = message, exit_code, kind


@contextlib.contextmanager
def converted(*errors, exit_code=WRONG_INPUT, kind="InputError"):
    """Within the block, `errors` (classes) become a Failure with their message. `kind` None: the error's own name."""
    try:
        yield
    except errors as error:
        raise Failure(str(error), exit_code, kind or type(error).__name__) from error


def did_you_mean(path):
    """ "; did you mean ...?" for a missing file or folder, if its folder has a similar name; for one that is there, and
    is of the other kind, "; it is a folder" or "; it is a file"."""
    import difflib

    if path.exists():
        return "; it is a folder" if path.is_dir() else "; it is a file"
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1)
    except OSError:
        near = []
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def exit_code(error):
    """The exit code for an error of vmhost, or None for another error."""
    return error.exit_code if isinstance(error, Failure) else exit_codes.exit_code(error)


def command(function):
    """Decorates a command, which gets an `Output` for `as_json`; its errors are printed once and become exit codes."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
    @functools.wraps(function)
    def reported(*args, as_json, **kwargs):
        output = Output(as_json)
        try:
            code = function(output, *args, **kwargs)
            with stdout.written():
                sys.stdout.flush()
            return code
        except BrokenPipeError:
            stdout.abandon()
            return PIPE_CLOSED
        except stdout.OutputError as error:
            stdout.abandon()
            output.error(str(error))
            return HOST_FAILED
        except KeyboardInterrupt:
            return _interrupted(output)
        except Exception as error:
            if _was_interrupted(error):
                return _interrupted(output)
            error = _missing_package(error) or error
            code = exit_code(error)
            if code is None:
                raise
            report(output, error, code)
            return code

    return reported


def _interrupted(output):
    """Reports Ctrl-C. A command that serves has printed its document before."""
    if not output.as_json:
        print(f"{click.get_current_context().find_root().info_name}: interrupted", file=sys.stderr)
    elif not output.documents:
        report(output, Failure("interrupted", INTERRUPTED, "Interrupted"), INTERRUPTED)
    return INTERRUPTED


def _was_interrupted(error):
    """Whether `error` was raised during a KeyboardInterrupt: leaving what Ctrl-C interrupted may fail in turn.

    threading.Condition does that: "cannot release un-acquired lock", if it is interrupted just before it waits.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _missing_package(error):
    """The Failure that names the extra to install, if `error` says that one of its packages is missing; else None."""
    if not isinstance(error, ImportError):
        return None
    from vmhost.extras import extra_with

    text, name = str(error), (error.name or "").partition(".")[0]
    if "vmhost[" not in text:  # not yet told by what imports it
        rooms = {part for frame, _ in traceback.walk_tb(error.__traceback__) for part in _parts(frame)}
        extra = extra_with(name, preferred=rooms)
        if extra is None:
            return None
        text = f"{click.get_current_context().command_path} needs the package {name}: pip install 'vmhost[{extra}]'"
    return Failure(text, HOST_FAILED, "ImportError")


def _parts(frame):
    return frame.f_globals.get("__name__", "").split(".")


def report(output, error, code):
    """Prints the error: on stderr for people, with the task's traceback and lines of `advice` if there are any; on
    stdout as JSON."""
    kind = error.kind if isinstance(error, Failure) else type(error).__name__
    frames = getattr(error, "guest_traceback", None)
    held = getattr(error, "memory_lines", None)
    item = getattr(error, "item", None)  # index in the list given to `run --each`
    if output.as_json:
        document = {"type": kind, "message": str(error), "exit_code": code}
        if item is not None:
            document["item"] = item
        if frames:
            document["traceback"] = frames
        if held is not None:
            document["memory_lines"] = held.plain()
        output.document({"error": document})
        return
    if frames:
        output.remark(frames.rstrip())
    if held is not None:
        output.remark(f"What held the memory:\n{held.text()}")
    first, *rest = str(error).splitlines() or [kind]
    output.error(first if item is None else f"item {item}: {first}")
    for line in (*rest, *getattr(error, "advice", ())):
        output.remark(f"       {line}")
