"""Processes of a workload that need not import it: each is forked from a process that has imported it, and has done
nothing else. Its writes are logged, and fail, as `write_log.c` says; that is loaded from the start, but has no folder
before the fork. A sweep of faults starts thousands of processes, most of whose time imports would take.

with Workload(library, "tests.tunnel.fault_workload") as workload:
    process = workload.start(["device", ...], folder, log, WRITE_LOG_LAST=7)    # calls main("device", ...)
    process.wait(60)
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.stores import power_cuts

ROOT = Path(__file__).resolve().parents[2]
_JOB_BYTES_MAX = 100_000
_STATUS_BYTES = 4


class Process:
    """As subprocess.Popen, as far as sweeps use it."""

    def __init__(self, pid, status, stdout, errors):
        self.pid, self.stdout, self.returncode = pid, stdout, None
        self._status, self._errors = status, errors

    def wait(self, timeout=None):
        """subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(os.read(self._status, _STATUS_BYTES)))
            os.close(self._status)
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def terminate(self):
        self._send(signal.SIGTERM)

    def kill(self):
        self._send(signal.SIGKILL)

    def _send(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def errors(self):
        """What it has written to stderr so far."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Kills it if it runs, and closes its files."""
        self.kill()
        self.wait()
        self.stdout.close()
        self._errors.close()


class Workload:
    """`module` has a function `main(*arguments)`, whose arguments are texts."""

    def __init__(self, library, module):
        self._library = library
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.stores.workloads", module, str(theirs.fileno())],
                cwd=ROOT,
                env=os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, arguments, folder, log, **faults):
        """A Process that calls `main(*arguments)`. Its writes in `folder` go into `log`; `faults` as for
        `power_cuts.environment`."""
        changed = set(power_cuts.environment(self._library, folder, log, **faults).items()) - set(os.environ.items())
        job = json.dumps([[str(each) for each in arguments], dict(changed)]).encode()
        (out, its_out), (status, its_status), errors = os.pipe(), os.pipe(), tempfile.TemporaryFile()
        socket.send_fds(self._connection, [job], [its_out, errors.fileno(), its_status])
        os.close(its_out)
        os.close(its_status)
        return Process(int(self._connection.recv(100)), status, open(out), errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()
        self._server.wait()


# ---- the process that has imported the workload


def serve(connection):
    """Comes back in each child, with its arguments and changes of the environment."""
    status_of, is_child = {}, False
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while not is_child:
            for key, _ in selector.select():
                if key.fileobj is not connection:
                    _ended(selector, key.fd, *status_of.pop(key.fd))
                    continue
                job, files, _, _ = socket.recv_fds(connection, _JOB_BYTES_MAX, 3)
                if not job:  # whoever started them has ended
                    for pid, _ in status_of.values():
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                out, err, status = files
                pid = os.fork()
                if pid == 0:
                    for number, file in ((1, out), (2, err)):
                        os.dup2(file, number)
                    is_child = True
                    break
                ended = os.pidfd_open(pid)
                status_of[ended] = pid, status
                selector.register(ended, selectors.EVENT_READ)
                os.close(out)
                os.close(err)
                connection.send(str(pid).encode())
    connection.close()
    for file in (out, err, status, *status_of, *(status for _, status in status_of.values())):
        os.close(file)
    return json.loads(job)


def _ended(selector, ended, pid, status):
    selector.unregister(ended)
    os.close(ended)
    os.write(status, os.waitpid(pid, 0)[1].to_bytes(_STATUS_BYTES))
    os.close(status)


def main():
    workload = importlib.import_module(sys.argv[1])
    arguments, environment = serve(socket.socket(fileno=int(sys.argv[2])))
    # those of the server were made for other files
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", 1, sys.stderr.encoding, sys.stderr.errors, closefd=False)
    os.environ.update(environment)
    workload.main(*arguments)


if __name__ == "__main__":
    main()
