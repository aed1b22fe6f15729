"""stdout, for the answers of commands: writes a whole text or raises an error with the reason. For `vmhost` and a
device's `vmrun`."""

import contextlib
import json
import os
import sys


class OutputError(Exception):
    """stdout cannot be written, for example because its disk is full."""


@contextlib.contextmanager
def written():
    """A context for writing to stdout: OutputError if that fails. BrokenPipeError, when the reader is gone, is left to
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
    """Writes the text and a newline, and flushes."""
    with written():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def write_json(plain, indent=None):
    """Writes plain data as JSON."""
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=indent)
    with written():
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # a lone surrogate, or a terminal without UTF-8: JSON has escapes for both
            text = json.dumps(plain, allow_nan=False, indent=indent)
    write(text)


def abandon():
    """Discards what is still buffered, so that Python does not flush it at exit and complain."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
