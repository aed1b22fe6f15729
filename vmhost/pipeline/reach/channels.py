"""Adapters: how a channel delivers a message. `send(message)` returns a remark for the audit, or None. After an error
it is tried again; a ChannelError says when, or that it is final.

| kind | |
| --- | --- |
| `push` | a POST of JSON to an address; the header `Idempotency-Key` has the message's id |
| `poplayer`, `broadcast` | server-sent events to the open pages of a person, or of all (page.py) |
| `walle_task` | calls a task of the host with the message |
| `ut` | a line of JSON in a file in the pipeline's folder; an id that is in it is not written again |
| `native_callback` | calls a host function with the message |
| `log` | a line of the log `vmhost.pipeline.reach` |
"""

import contextlib
import email.utils
import http.client
import json
import logging
import math
import os
import queue
import socket
import threading
import time
import urllib.parse
from pathlib import Path

from vmhost import BreakerOpenError, ClosedError, ConfigurationError, QueueFullError, callbacks
from vmhost.settings.tokens import read_token

TRACKING = "tracking"  # folder of `ut` files, in the pipeline's folder
_LINES_BYTES = 16 << 20  # a larger `ut` file is renamed to NAME.old, which replaces the one before
_NEW = ".new"  # ends the name of a file that is being rewritten
_KNOWN_IDS = 100_000
_ENDED = 1000
_MAX_WAIT_S = 3600.0  # longest wait that a receiver may ask for by Retry-After
_HEADER_SAFE = "".join(map(chr, range(33, 127))).replace("%", "")
_log = logging.getLogger("vmhost.pipeline.reach")


class ChannelError(Exception):
    """A message was not delivered. `final`: it never will be. `counts` False: it was not tried, as the channel is busy
    or nobody is there. `wait_s`: when to try again."""

    def __init__(self, message, final=False, counts=True, wait_s=None):
        super().__init__(message)
        self.final, self.counts, self.wait_s = final, counts, wait_s


class NobodyThereError(ChannelError):
    """No page of the person is open; the message waits until one is."""

    def __init__(self, message):
        super().__init__(message, counts=False)


def text_of(message):
    """A message as JSON: numbers that are not finite become null; keys that are not texts, and other values, become
    their repr."""
    try:
        return json.dumps(message, ensure_ascii=False, default=repr, allow_nan=False)
    except TypeError, ValueError:
        return json.dumps(_in_json(message), ensure_ascii=False, default=repr)


def _in_json(value):
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _in_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Log:
    def __init__(self, name):
        self._name = name

    def send(self, message):
        _log.info("%s: %s", self._name, text_of(message))


class Function:
    """A host function, called on a thread of its own: one that does not return in time blocks only its channel, and is
    not called again before it has returned. Its late result counts then."""

    def __init__(self, function, timeout_s):
        self._function, self._timeout_s = function, timeout_s
        self._calls = self._thread = None
        self._late = None  # a call that did not return in time
        self._ended = {}  # outcome of late calls, by id

    def send(self, message):
        identity = message["id"]
        if self._late is not None:
            if not self._late.ended.wait(self._timeout_s):
                raise ChannelError("a call before this one has not returned yet", counts=False)
            self._ended[self._late.identity], self._late = self._late, None
            if len(self._ended) > _ENDED:  # their messages have expired
                del self._ended[next(iter(self._ended))]
        call = self._ended.pop(identity, None)
        if call is None:
            call = self._begin(identity, message)
            if not call.ended.wait(self._timeout_s):
                self._late = call
                raise ChannelError(f"the function has not returned within {self._timeout_s:g} s", counts=False)
        if call.error is not None:
            raise call.error

    def _begin(self, identity, message):
        if self._thread is None:
            self._calls = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._run, name="vmhost-reach-function", daemon=True)
            self._thread.start()
        call = _Call(identity, message)
        self._calls.put(call)
        return call

    def _run(self):
        while (call := self._calls.get()) is not None:
            try:
                callbacks.call(self._function, call.message)
            except Exception as error:
                call.error = error
            call.ended.set()

    def close(self):
        if self._thread is not None:
            self._calls.put(None)
            if self._late is None:
                self._thread.join()


class _Call:
    def __init__(self, identity, message):
        self.identity, self.message, self.error = identity, message, None
        self.ended = threading.Event()


class Webhook:
    """Each request has `headers`, and a token from a file that is read each time. Redirects are not followed."""

    def __init__(self, settings):
        self._url, self._timeout_s = settings.target, settings.timeout_ms / 1000
        self._headers, self._token_file = settings.headers, settings.token_file
        parts = urllib.parse.urlsplit(self._url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = lambda: made(parts.hostname, parts.port, timeout=self._timeout_s)

    def send(self, message):
        key = urllib.parse.quote(message["id"], safe=_HEADER_SAFE, errors="surrogatepass")  # rules have any names
        headers = {"Content-Type": "application/json", **self._headers, "Idempotency-Key": key}
        body = text_of(message).encode(errors="replace")
        try:
            if self._token_file is not None:
                headers["Authorization"] = f"Bearer {read_token(self._token_file)}"
            status, asked = self._post(body, headers)
        except (OSError, http.client.HTTPException, ValueError, ConfigurationError) as error:
            parsed = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ChannelError(f"{self._url}: {parsed}") from error
        if 200 <= status < 300:
            return f"status {status}"
        final = 300 <= status < 500 and status not in (408, 425, 429)
        raise ChannelError(f"{self._url}: status {status}", final, wait_s=_wait_s(asked))

    def _post(self, body, headers):
        """(status, Retry-After). Ends within the time limit, whatever the receiver does."""
        connection, over, answer = self._connection(), threading.Event(), None
        with contextlib.closing(connection):
            connection.connect()
            timer = threading.Timer(self._timeout_s, _cut, (connection.sock, over))
            timer.daemon = True
            timer.start()
            try:
                connection.request("POST", self._path, body, headers)
                answer = connection.getresponse()
            except OSError, http.client.HTTPException:
                if not over.is_set():
                    raise
            finally:
                timer.cancel()
                timer.join()
            if over.is_set():  # a part of an answer may look like one with few headers
                raise TimeoutError(f"no answer within {self._timeout_s:g} s")
            return answer.status, answer.headers.get("Retry-After")


def _cut(connected, over):
    over.set()
    with contextlib.suppress(OSError):  # already closed
        connected.shutdown(socket.SHUT_RDWR)


def _wait_s(asked):
    """The seconds in a header Retry-After, which has seconds or a date; None for neither."""
    if asked is None:
        return None
    try:
        wait_s = float(asked)
    except ValueError:
        try:
            wait_s = email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
        except ValueError, TypeError, OverflowError:
            return None
    return min(max(wait_s, 0.0), _MAX_WAIT_S) if wait_s == wait_s else None


class TaskCall:
    """Calls a task of the host; a result other than None goes on to other channels."""

    def __init__(self, task, timeout_s):
        self._task, self._timeout_s = task, timeout_s

    def send(self, message):
        future = None
        try:
            future = self._task.submit(message)
            return future.result(self._timeout_s)
        except (BreakerOpenError, QueueFullError, ClosedError) as error:
            raise ChannelError(f"{type(error).__name__}: {error}", counts=False) from error
        except TimeoutError as error:
            if future is not None:
                future.stop()
            raise ChannelError(
                f"{type(error).__name__}: {error or f'not ended within {self._timeout_s:g} s'}"
            ) from error


class TrackingLog:
    """Lines of JSON in `folder`/tracking/`name`, on the disk when `send` returns. Remembers the ids of the last 100,000
    lines, over restarts too. A file of 16 MiB becomes NAME.old."""

    def __init__(self, folder, name):
        self._path = Path(folder) / TRACKING / name
        self._lock = _lock_of(self._path.parent)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._ids = dict.fromkeys(self._read_ids())
        except OSError as error:
            raise ConfigurationError(f"{error.filename or self._path}: {error.strerror}") from error

    def _read_ids(self):
        listed = []
        for path in (self._old, self._path):
            try:
                lines = path.read_bytes().split(b"\n")
            except FileNotFoundError:
                continue
            listed += [identity for line in lines if (identity := _id_of(line)) is not None]
        return listed[-_KNOWN_IDS:]

    @property
    def _old(self):
        return self._path.with_name(f"{self._path.name}.old")

    def send(self, message):
        identity = message["id"]
        with self._lock:
            if identity in self._ids:
                return "there already"
            line = text_of(message).encode(errors="replace") + b"\n"
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # the process died while it wrote the last line
                try:
                    if os.write(descriptor, line) != len(line):
                        raise ChannelError(f"{self._path}: the disk is full")
                    os.fsync(descriptor)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, size)  # it is sent again
                    raise
            finally:
                os.close(descriptor)
            self._ids[identity] = None
            if len(self._ids) > _KNOWN_IDS:
                del self._ids[next(iter(self._ids))]
            if size + len(line) >= _LINES_BYTES:
                os.replace(self._path, self._old)
            return None


_locks = {}  # by folder: of its files
_locks_lock = threading.Lock()


def _lock_of(folder):
    with _locks_lock:
        return _locks.setdefault(os.path.abspath(folder), threading.Lock())


def _id_of(line):
    try:
        parsed = json.loads(line)
    except ValueError, RecursionError:
        return None
    return parsed.get("id") if isinstance(parsed, dict) and isinstance(parsed.get("id"), str) else None


def forget_lines(folder, key):
    """Removes a person's lines from the files in a `tracking` folder, to which nothing is written meanwhile. Returns
    their number."""
    with _lock_of(folder):
        return sum(
            rewrite_lines(path, lambda line: not _is_of(line, key))
            for path in (sorted(Path(folder).glob("*")) if Path(folder).is_dir() else ())
            if not path.name.endswith(_NEW)
        )


def rewrite_lines(path, keeps):
    """Replaces a file of lines by one with those that `keeps(line)`, if it keeps not all; a crash leaves the old or the
    new one. Returns the number of removed lines."""
    new = path.with_name(f"{path.name}{_NEW}")
    new.unlink(missing_ok=True)  # of a process that died
    lines = path.read_bytes().split(b"\n")
    kept = [line for line in lines if keeps(line)]
    if len(kept) < len(lines):
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(b"\n".join(kept))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return len(lines) - len(kept)


def _is_of(line, key):
    """Whether a line is a person's; a truncated line is if it contains the key."""
    if not line:
        return False
    try:
        parsed = json.loads(line)
    except ValueError, RecursionError:
        return key.encode(errors="surrogatepass") in line
    return isinstance(parsed, dict) and parsed.get("key") == key


class ToPages:
    """The adapter of channels to `pages` (page.Pages): `poplayer` sends to the person's pages, `broadcast` to all."""

    def __init__(self, settings, pages):
        self._kind, self._pages, self._timeout_s = settings.kind, pages, settings.timeout_ms / 1000

    def send(self, message):
        key = message["key"] if self._kind == "poplayer" else None
        count = self._pages.show(self._kind, message, key, self._timeout_s)
        return f"shown by {count} page{'s' if count != 1 else ''}"


def adapter_of(settings, task, folder):
    """The adapter of a channel except `poplayer` and `broadcast`. `task` is for `walle_task`. ConfigurationError."""
    timeout_s = settings.timeout_ms / 1000
    if settings.function is not None:
        return Function(settings.function, timeout_s)
    if settings.kind == "push":
        return Webhook(settings)
    if settings.kind == "walle_task":
        return TaskCall(task, timeout_s)
    if settings.kind == "ut":
        return TrackingLog(folder, settings.target)
    return Log(settings.name)
