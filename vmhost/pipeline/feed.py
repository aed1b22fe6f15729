"""A feed brings the events of one source into a pipeline: it decodes lines of JSON, refuses bad ones or sets them
aside, and waits while the tasks' queues or the disk are full.
"""

import json
import logging
import os
import threading
import time
from pathlib import Path

import msgspec

from vmhost.pipeline import interrupts
from vmhost.pipeline.events import Event
from vmhost.stores import StoreFullError

MAX_LINE_BYTES = 16 << 20
ASIDE_NAME = "bad-lines.jsonl"
MAX_ASIDE_BYTES = 16 << 20  # beyond it the file becomes bad-lines.jsonl.1, and a new one begins
_MAX_KEPT_CHARS = 10_000  # of a bad line
_AT_ONCE = 100  # events of one transaction
_POLL_S = 0.2  # how often a waiting feed checks whether it is to stop
_log = logging.getLogger("vmhost.pipeline")


class BadLineError(ValueError):
    """A line that is not an event: `source`, `line` (from 1), `reason`."""

    def __init__(self, source, line, reason):
        super().__init__(f"{source}:{line}: not an event: {reason}")
        self.source, self.line, self.reason = source, line, reason


def decoded(line):
    """The Event in a line of JSON. ValueError says why it is none."""
    try:
        return msgspec.json.decode(line, type=Event)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(str(error)) from None


class Feed:
    """Brings the events of one source into `pipeline`. Not thread-safe.

    `bad_lines`: "stop" raises BadLineError for a line that is not an event, after taking those before it; "aside"
    records it in `bad-lines.jsonl` in the pipeline's folder and goes on. `when_full`: "wait" until the queue of each
    task has room, or "drop", which leaves it to the tasks' overload rules. `stop`: an object whose `is_set()` says that
    nothing more is to be taken.
    """

    def __init__(self, pipeline, name, *, bad_lines="stop", when_full="wait", stop=None):
        self.pipeline, self.name = pipeline, name
        self.bad_lines, self.when_full = bad_lines, when_full
        self.stop = threading.Event() if stop is None else stop
        self.taken = 0  # events
        self.aside = 0  # lines
        self.line = 0  # number of the last line read
        self.waits = None  # what the feed waits for: "queues", "disk"; None while it does not wait

    def statistics(self):
        return {"taken": self.taken, "aside": self.aside, "line": self.line, "waits": self.waits}

    def take_lines(self, lines):
        """Takes the next lines of JSON of the source. An empty line is skipped; None stands for a line that was too
        long. Returns False if `stop` came first; the remaining lines were not taken. BadLineError, StoreError,
        PipelineError."""
        events, numbers = [], []
        for line in lines:
            if line is not None and not line.strip():
                self.line += 1
                continue
            try:
                if line is None:
                    raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
                events.append(decoded(line))
            except ValueError as error:
                if not self._take(events, numbers):
                    return False
                self.line += 1
                events, numbers = [], []
                self._bad(self.line, line, str(error))
                continue
            self.line += 1
            numbers.append((self.line, line))
        return self._take(events, numbers)

    def take(self, events, notes=None):
        """Takes Events in order, in batches that depend on their number alone: calls beyond a task's queue wait.
        Returns False if `stop` came first; `notes` are stored with the last ones (Pipeline.append_many). ValueError,
        StoreError, PipelineError."""
        done = 0
        while done < len(events):
            if not self._room(len(events) - done):
                return False
            end = min(done + _AT_ONCE, len(events))
            if not self._append(events[done:end], **({"notes": notes} if notes and end == len(events) else {})):
                return False
            done = end
        return True if events or not notes else self._append([], notes=notes)

    def _take(self, events, numbers):
        done = 0
        while done < len(events):
            room = self._room(len(events) - done)
            if not room:
                return False
            part = events[done : done + room]
            try:
                if not self._append(part):
                    return False
            except ValueError as error:  # contents, a time or a text that the store cannot take
                if isinstance(error, BadLineError):
                    raise
                for event, (number, line) in zip(part, numbers[done : done + room]):
                    try:
                        if not self._append([event]):
                            return False
                    except ValueError as error:
                        self._bad(number, line, str(error))
            done += room
        return True

    def _room(self, wanted):
        """The number of events that may be taken now; 0 if `stop` came first."""
        wanted = min(wanted, _AT_ONCE)
        if self.when_full == "drop":
            return 0 if self.stop.is_set() else wanted
        while not self.stop.is_set():
            room = self.pipeline.wait_for_room(_POLL_S)
            if room:
                self.waits = None
                return min(wanted, room)
            self.waits = "queues"
        return 0

    def _append(self, events, **notes):
        """False if `stop` came while the disk was full."""
        while True:
            try:
                self.pipeline.append_many(events, bounded=self.when_full == "drop", **notes)
            except StoreFullError as error:
                if self.waits != "disk":
                    self.waits = "disk"
                    _log.error("%s: waits until there is room: %s", self.name, error)
                if self.stop.is_set():
                    return False
                time.sleep(_POLL_S)
                interrupts.check()
                continue
            if self.waits == "disk":
                _log.info("%s: goes on", self.name)
            self.waits = None
            self.taken += len(events)
            return True

    def _bad(self, number, line, reason):
        if self.bad_lines != "aside":
            raise BadLineError(self.name, number, reason)
        try:
            put_aside(self.pipeline.folder, self.name, number, line, reason)
        except OSError as error:
            where = Path(self.pipeline.folder) / ASIDE_NAME
            raise BadLineError(
                self.name, number, f"{reason} (and it cannot be put aside: {where}: {error.strerror})"
            ) from error
        self.aside += 1


def forget_bad_lines(folder, texts):
    """Removes the bad lines in `folder` that contain one of `texts`, as the owner of a line is unknown. Returns their
    number."""
    from vmhost.pipeline.reach.channels import rewrite_lines  # late: channels are in few pipelines

    def keeps(line):
        try:
            note = json.loads(line)
            said = f"{note['text']}\n{note['error']}\n{note['source']}"
        except ValueError, KeyError, TypeError, RecursionError:
            said = line.decode(errors="backslashreplace")
        return not any(text in said for text in texts)

    with _aside_lock:
        paths = [path for name in (ASIDE_NAME, f"{ASIDE_NAME}.1") if (path := Path(folder) / name).exists()]
        return sum(rewrite_lines(path, keeps) for path in paths)


_aside_lock = threading.Lock()


def put_aside(folder, source, number, line, reason):
    """Records a line that is not an event in `bad-lines.jsonl` in `folder`. OSError."""
    text = "" if line is None else bytes(line).decode(errors="backslashreplace")
    note = {"source": source, "line": number, "at_ms": int(time.time() * 1000), "error": reason}
    note["text"] = text[:_MAX_KEPT_CHARS]
    path = Path(folder) / ASIDE_NAME
    with _aside_lock:
        if path.exists() and path.stat().st_size > MAX_ASIDE_BYTES:
            path.replace(f"{path}.1")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab") as file:
            file.write(json.dumps(note).encode() + b"\n")
