"""stdout, where the answers of commands go: all of a text, or one error that says why not. For `vmhost` and a device's
`vmrun` alike."""

import contextlib
import json
import os
import sys


class OutputError(Exception):
    """stdout cannot be written: its disk is full, for one."""


@contextlib.contextmanager
def written():
    """Inside, stdout is written: OutputError where it cannot be. A reader who went away (BrokenPipeError) is left to
    the command."""
    if sys.stdout is None:
        raise OutputError("stdout is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout: cannot be written: {error.strerror}") from error


def write(text):
    """Writes the text and a newline, at once."""
    with written():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def write_json(plain, indent=None):
    """Writes plain data as JSON."""
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=indent)
    with written():
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # half a surrogate pair, or a terminal that is not UTF-8: JSON has escapes for both
            text = json.dumps(plain, allow_nan=False, indent=indent)
    write(text)


def abandon():
    """What is still buffered goes nowhere: Python must not try again, and complain, when it flushes at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
