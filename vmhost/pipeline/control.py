"""The control socket: other processes ask a running pipeline for its status or for what a task waits for, or to forget.

with Control(pipeline, sources):     # in the pipeline's process
    ...
ask("data", "status")                # in another process of the same user

The socket is `control.sock` in the pipeline's folder. A request is one line of JSON, {"do": "explain", "name": "ipv"};
the answer is one line too, {"result": ...} or {"error": {"type": ..., "message": ...}}.
"""

import contextlib
import json
import logging
import os
import socket
import struct
import threading
import time

from vmhost import ConfigurationError
from vmhost.stores import StoreError

NAME = "control.sock"
_MAX_BYTES = 1 << 20
_MAX_ADDRESS_BYTES = 107
_QUICK_S = 10.0  # time limit of requests that do not wait for the disk
_PEER = struct.Struct("3i")
_log = logging.getLogger("vmhost.pipeline")


class NotRunningError(Exception):
    """No running pipeline has a control socket in the folder."""


class ControlError(Exception):
    """The pipeline refused the request; `kind` is the name of its error."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


@contextlib.contextmanager
def _address(folder):
    """The socket's path in few characters: an address of a Unix socket has room for 107 bytes."""
    path = os.path.join(folder, NAME)
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        yield path
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


class Control:
    """Answers requests about `pipeline` within its `with`. `sources()` returns their statistics."""

    def __init__(self, pipeline, sources=dict):
        self.pipeline, self._sources = pipeline, sources
        self._since_ms = int(time.time() * 1000)
        self._socket = None
        self._thread = threading.Thread(target=self._serve, name="vmhost-pipeline-control", daemon=True)
        self._answering = set()
        self._lock = threading.Lock()

    def __enter__(self):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self.pipeline.folder) as address:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address)  # left by a process that died: this process holds the store's lock
                listening.bind(address)
                os.chmod(address, 0o600)
            listening.listen(16)
            self._socket = listening
            self._thread.start()
        except OSError as error:
            listening.close()
            _log.warning("%s: no control socket: %s", self.pipeline.folder, error.strerror)
            return self
        except BaseException:
            listening.close()
            raise
        return self

    def __exit__(self, *error):
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.pipeline.folder / NAME)
        with self._lock:
            answering = list(self._answering)
        for thread in answering:
            thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            with self._lock:
                self._answering.add(thread)
            thread.start()

    def _answer(self, connection):
        try:
            with connection:
                connection.settimeout(_QUICK_S)
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                if _PEER.unpack(peer)[1] not in (0, os.geteuid()):
                    return
                with contextlib.suppress(OSError):
                    reply = self._reply(_line(connection))
                    connection.sendall(json.dumps(reply).encode() + b"\n")
        finally:
            with self._lock:
                self._answering.discard(threading.current_thread())

    def _reply(self, line):
        try:
            asked = json.loads(line)
            what = asked.pop("do")
            if what not in _ANSWERS:
                raise ValueError(f"do: expected one of {', '.join(_ANSWERS)}, got {what!r:.80}")
            return {"result": _ANSWERS[what](self, **asked)}
        except (ConfigurationError, StoreError) as error:
            return {"error": {"type": type(error).__name__, "message": str(error)}}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return {"error": {"type": "InputError", "message": f"{error}"}}

    def _status(self):
        return {
            "pid": os.getpid(),
            "since_ms": self._since_ms,
            "store_error": str(self.pipeline.store_error) if self.pipeline.store_error else None,
            "sources": self._sources(),
            **self.pipeline.statistics(),
        }

    def _explain(self, name):
        return self.pipeline.explain(name)

    def _flush(self):
        self.pipeline.flush()

    def _forget(self, key):
        return self.pipeline.forget(key)


_ANSWERS = {
    "status": Control._status,
    "explain": Control._explain,
    "flush": Control._flush,
    "forget": Control._forget,
}


def _line(connection):
    """Reads up to the end of a line. OSError."""
    received = bytearray()
    while not received.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part or len(received) > _MAX_BYTES:
            raise OSError("the line did not end")
        received += part
    return bytes(received)


def ask(folder, what, *, timeout_s=_QUICK_S, **arguments):
    """The answer of the pipeline that runs on `folder`. NotRunningError, ControlError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            with _address(folder) as address:
                connection.connect(address)
            connection.sendall(json.dumps({"do": what, **arguments}).encode() + b"\n")
            answer = json.loads(_line(connection))
        except TimeoutError:
            raise ControlError("TimeoutError", f"{folder}: its pipeline does not answer within {timeout_s} s") from None
        except PermissionError as error:
            raise ControlError("PermissionError", f"{folder}: the pipeline there is another user's") from error
        except (OSError, ValueError) as error:
            raise NotRunningError(f"{folder}: no pipeline is running there") from error
    if "error" in answer:
        raise ControlError(answer["error"]["type"], answer["error"]["message"])
    return answer["result"]
