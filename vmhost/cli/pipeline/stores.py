"""Shared parts of `vmhost pipeline`'s commands: opening a folder's store, its errors, and readable values."""

import contextlib
from pathlib import Path

from vmhost.cli import failures
from vmhost.lines import json_values


@contextlib.contextmanager
def errors():
    """Turns errors of stores and of running pipelines into the command's."""
    from vmhost.pipeline.control import ControlError
    from vmhost.stores import StoreError

    try:
        with failures.converted(StoreError, exit_code=failures.HOST_FAILED, kind=None):
            yield
    except ControlError as error:
        raise failures.Failure(str(error), failures.HOST_FAILED, error.kind) from error


@contextlib.contextmanager
def stored(folder):
    """The StoredPipeline of a folder."""
    from vmhost.pipeline.pipeline import STORE_NAME
    from vmhost.pipeline.stored import StoredPipeline

    folder = Path(folder)
    if not (folder / STORE_NAME).exists():
        advice = failures.did_you_mean(folder) if not folder.exists() else ""
        what = "no such folder" if not folder.exists() else f"holds no {STORE_NAME}: no pipeline ran there yet"
        raise failures.Failure(f"{folder}: {what}{advice}")
    with errors(), StoredPipeline(folder) as found:
        yield found


def flushed(folder):
    """Makes a running pipeline flush to the store. Returns whether there is one."""
    from vmhost.pipeline.control import ControlError, NotRunningError, ask

    try:
        ask(folder, "flush")
    except NotRunningError, ControlError:  # such as a full disk: stored data can still be shown
        return False
    return True


def plain(value):
    """A value in JSON's types, as `vmhost run` prints it."""
    try:
        return json_values.to_plain(value)
    except TypeError, ValueError, RecursionError:
        return repr(value)


def shown(value, columns=40):
    """A value in a few characters, on one line."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if hasattr(value, "dtype"):
        return f"{value.dtype} {'x'.join(map(str, value.shape))}"
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= columns else text[: columns - 1] + "…"


def printable(text):
    """The text without control characters, as events come from anywhere."""
    return text if text.isprintable() else repr(text)[1:-1]


def moment(time_ms):
    """A time in milliseconds since 1970 as local time."""
    from datetime import datetime

    try:
        return datetime.fromtimestamp(time_ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except OverflowError, OSError, ValueError, TypeError:
        return "" if time_ms is None else str(time_ms)


def size(count):
    """Bytes in a readable unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return None
