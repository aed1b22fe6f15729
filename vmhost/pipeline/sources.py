"""Sources: where a pipeline's events come from. Each runs on a thread of its own until it ends or is stopped.

with Sources(pipeline, configuration.sources) as sources:
    sources.wait()
"""

import os
import select
import stat
import sys
import threading
import time

from vmhost import ConfigurationError
from vmhost.pipeline import interrupts
from vmhost.pipeline.configuration import STDIN
from vmhost.pipeline.feed import MAX_LINE_BYTES, Feed

_READ_BYTES = 1 << 16
_POLL_S = 0.1  # how often a wait checks for Ctrl-C


class Stop:
    """Tells a thread to end; a thread that waits for a file waits for this too."""

    def __init__(self):
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def fileno(self):
        return self._descriptor

    def is_set(self):
        return self._set

    def set(self):
        if not self._set:
            self._set = True
            os.eventfd_write(self._descriptor, 1)

    def close(self):
        os.close(self._descriptor)


class LineSource:
    """Lines of JSON from the file or named pipe `path`, or from stdin ("-"), one event each. It ends with the file; a
    named pipe ends when its writers have closed it.

    ConfigurationError if the file cannot be read.
    """

    ends = True

    def __init__(self, feed, path):
        self.feed = feed
        self._path = path
        try:
            if path == STDIN:
                if sys.stdin is None:
                    raise ConfigurationError("stdin is closed; name a file of events")
                self._descriptor = os.dup(sys.stdin.fileno())
            else:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                if os.path.isdir(path):
                    os.close(self._descriptor)
                    raise ConfigurationError(f"{path}: expected a file of events, got a folder")
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
        self.read_bytes = 0

    @property
    def live(self):
        """Whether events come as they happen; a file holds those of another time."""
        return not stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    @property
    def size_bytes(self):
        """The size of a file; 0 for a pipe."""
        return os.fstat(self._descriptor).st_size

    def start(self):
        """Does nothing; `run` does all."""

    def run(self):
        """Takes lines until the file ends, or the feed is to stop. BadLineError, StoreError, PipelineError,
        ConfigurationError."""
        stop, lines = self.feed.stop, Lines()
        while not stop.is_set():
            select.select([self._descriptor, stop], [], [])
            if stop.is_set():
                return
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConfigurationError(f"{self._path}: cannot be read: {error.strerror}") from error
            self.read_bytes += len(data)
            if not self.feed.take_lines(lines.ended(data)) or not data:
                return

    def close(self):
        os.close(self._descriptor)

    def statistics(self):
        return self.feed.statistics()


class Lines:
    """Cuts a stream of bytes into lines of at most MAX_LINE_BYTES."""

    def __init__(self):
        self._rest, self._size, self._first = [], 0, True

    def ended(self, data):
        """The lines that `data` completes, None for one that was too long; b"" completes the last one."""
        *ended, rest = data.split(b"\n")
        found = []
        for part in ended:
            self._add(part)
            found.append(self._line())
        if data:
            self._add(rest)
        elif self._size:
            found.append(self._line())
        if found and self._first:
            self._first = False
            if found[0] is not None:
                found[0] = found[0].removeprefix(b"\xef\xbb\xbf")
        return found

    def _add(self, part):
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._rest.clear()
        elif part:
            self._rest.append(part)

    def _line(self):
        line = b"".join(self._rest) if self._size <= MAX_LINE_BYTES else None
        self._rest, self._size = [], 0
        return line


class Sources:
    """Runs the sources of `settings` (SourceSettings) for `pipeline`, from `with` on.

    When one fails, the others stop too. ConfigurationError if one cannot begin: a file cannot be read, a port is in
    use.
    """

    def __init__(self, pipeline, settings):
        self.stop_all = Stop()
        self.sources = {}
        self._threads, self._error, self._lock = [], None, threading.Lock()
        try:
            for one in settings:
                self.sources[one.name] = _made(pipeline, one, self.stop_all)
            for source in self.sources.values():
                source.start()
        except BaseException:
            self._close()
            raise
        for name, source in self.sources.items():
            thread = threading.Thread(target=self._run, args=(source,), name=f"vmhost-source-{name}", daemon=True)
            self._threads.append(thread)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.stop_all.set()
        for thread in self._threads:
            thread.join()
        self._close()

    def _close(self):
        for source in self.sources.values():
            source.close()
        self.stop_all.close()

    def _run(self, source):
        try:
            source.run()
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self.stop_all.set()

    def wait(self, timeout_s=None):
        """Waits until all have ended: returns True, or raises the error of one of them. False after `timeout_s`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_POLL_S if end is None else min(_POLL_S, max(0.0, end - time.monotonic())))
                interrupts.check()
                if end is not None and thread.is_alive() and time.monotonic() >= end:
                    return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def live(self):
        """Whether any brings events as they happen."""
        return any(source.live for source in self.sources.values())

    def stop(self):
        """Asks all to end; `wait` then waits for that. What a source has read but not taken is left."""
        self.stop_all.set()

    def statistics(self):
        """For each source, what it has taken, set aside and refused, and what it waits for."""
        return {name: source.statistics() for name, source in self.sources.items()}


def _made(pipeline, one, stop):
    feed = Feed(pipeline, one.name, bad_lines=one.bad_lines, when_full=one.when_full, stop=stop)
    if one.http is None:
        feed.name = "stdin" if one.file == STDIN else one.file
        return LineSource(feed, one.file)
    from vmhost.pipeline.http_source import HttpSource  # late: Starlette is in the extra `web`

    return HttpSource(feed, one.http, token=one.token, origins=one.origins, max_body_bytes=one.max_body_bytes)
