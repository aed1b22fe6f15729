"""Requests and answers of a server of lines: how bytes become lines, what a request's id is, how answers are written.

`FolderServer` and the supervisor of such a process share these, so that both see the same lines and ids."""

import errno
import json
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator

from vmhost.errors import ConfigurationError
from vmhost.lines import json_values
from vmhost.lines.stdout import OutputError

_log = logging.getLogger("vmhost")
MAX_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 20
NO_ID = "null"  # the id, as JSON, of a request without one
ENDING = {"type": "ClosedError", "message": "the server is ending and takes no new calls; send it to the next one"}


def stdin_descriptor():
    """The descriptor of stdin. ConfigurationError if it is closed, or cannot be read."""
    try:
        descriptor = sys.stdin.fileno()
        os.read(descriptor, 0)
        return descriptor
    except AttributeError, ValueError:  # None; closed
        raise ConfigurationError("stdin is closed; calls come there, as lines of JSON") from None
    except OSError as error:
        raise ConfigurationError(f"stdin: cannot be read: {error.strerror or error}") from error


def read(descriptor):
    """What can be read now; b"" at the end, which an error is too: its terminal is gone, for example."""
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError as error:
        _log.error("stdin: cannot be read any more, so no more calls come: %s", error.strerror)
        return b""


def is_ready(descriptor):
    """Whether `read` would return at once."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class Lines:
    """Cuts incoming bytes into lines. The bytes kept of an unfinished line are bounded by MAX_LINE_BYTES."""

    def __init__(self):
        self._parts, self._size = [], 0

    def take(self, data: bytes) -> Iterator[bytes | None]:
        """The lines that end in `data`, without line ends, and without blank ones; None for one that is too long. b""
        ends the last line."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            yield from self._line()
        if data:
            self._add(rest)
        elif self._size:  # the last line, which has no line end
            yield from self._line()

    def _add(self, part):
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _line(self):
        line = b"".join(self._parts) if self._size <= MAX_LINE_BYTES else None
        self._parts, self._size = [], 0
        if line is None or line.strip():
            yield line


def id_of(line):
    """The id of the request in `line` as JSON, which its answer repeats; NO_ID if none can be read."""
    try:
        return id_in(json_values.parse(line.decode()))
    except Exception:
        return NO_ID


def id_in(plain):
    """The same for a line's JSON; an exception for an id that is no value."""
    if not isinstance(plain, dict) or "id" not in plain:
        return NO_ID
    return json_values.dumps(json_values.from_plain(plain["id"]))


def too_long():
    """The line that answers one of more than MAX_LINE_BYTES."""
    message = f"a line of more than {MAX_LINE_BYTES:,} bytes; send less at a time"
    return failed(NO_ID, {"type": "InputError", "message": message})


def failed(key, error):
    """The line that answers the request with the id `key` with an error, a dict."""
    return f'{{"id": {key}, "error": {json.dumps(error)}}}\n'


class Answers:
    """Writes answers to the file `out`, whole lines only. From any thread."""

    def __init__(self, out):
        self._out = out
        self._lock = threading.Lock()
        self._failed = None  # the error after which no more answers are written

    def write(self, line):
        """Writes the line, text or bytes as `out` takes them; after an error, nothing."""
        with self._lock:
            if self._failed is None:
                try:
                    if self._out is None:
                        raise OSError(errno.EBADF, "stdout is closed")
                    self._out.write(line)
                    self._out.flush()
                except BrokenPipeError as error:
                    self._failed = error
                except OSError as error:
                    self._failed = OutputError(f"the answers cannot be written: {error.strerror}")

    def wait(self):
        """Returns when no answer is being written: whoever does not read answers must not send more and more calls."""
        with self._lock:
            pass

    @property
    def failed(self):
        return self._failed is not None

    def check(self):
        """BrokenPipeError if nobody reads the answers any more, OutputError if they could not be written so far."""
        if self._failed is not None:
            raise self._failed
