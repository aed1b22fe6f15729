"""Runs scripts in processes of their own that need not import anything first: each is forked from a process that has
imported what such scripts begin with, and has done nothing else. That saves a quarter of a second of processor time
each. Output, exit status and end of a script are those of `python -c`.

A test process has one such server, from when it is first needed until it ends."""

import atexit
import json
import os
import selectors
import socket
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOB_BYTES_MAX = 100_000  # of a message
PRELOADED = ("vmhost", "vmhost.host", "vmhost.limits", "vmhost.runtime.service", "psutil", "tests.hosts")

# ---- in the test process

_server = None  # (socket, environment)


def environment():
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def files():
    """The numbers of this process's files that stay open between tests."""
    return () if _server is None else (str(_server[0].fileno()),)


def run(script, arguments, timeout_s):
    """The CompletedProcess of `python -c SCRIPT ARGUMENTS` in ROOT, text in and out; None: the environment is not the
    server's, or the script is too long."""
    global _server
    if _server is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            ).returncode = 0  # ends with this process: nobody waits for it
        atexit.register(ours.close)
        _server = ours, environment()
    server, known = _server
    job = json.dumps([script, *arguments]).encode()
    if environment() != known or len(job) > JOB_BYTES_MAX:
        return None
    pipes = [os.pipe(), os.pipe()]
    socket.send_fds(server, [job], [end for _, end in pipes])
    for _, end in pipes:
        os.close(end)
    pid = int(server.recv(100))
    try:
        out, err = _read([end for end, _ in pipes], time.monotonic() + timeout_s)
    except TimeoutError:
        os.kill(pid, 9)  # the server waits for it, so the number is still its own
        raise subprocess.TimeoutExpired(script, timeout_s) from None
    finally:
        status = int(server.recv(100))
    return subprocess.CompletedProcess(
        [sys.executable, "-c", script, *arguments], os.waitstatus_to_exitcode(status), out, err
    )


def _read(ends, until):
    """All that comes out of the pipes, as text, until nobody has them open; they are closed."""
    found = {end: bytearray() for end in ends}
    try:
        with selectors.DefaultSelector() as selector:
            for end in ends:
                selector.register(end, selectors.EVENT_READ)
            while selector.get_map():
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                for key, _ in selector.select(left):
                    if more := os.read(key.fd, 1 << 16):
                        found[key.fd] += more
                    else:
                        selector.unregister(key.fd)
    finally:
        for end in ends:
            os.close(end)
    return [found[end].decode() for end in ends]


# ---- the server


def serve(connection):
    """Comes back in each child, with its script and arguments."""
    while True:
        job, files, _, _ = socket.recv_fds(connection, 2 * JOB_BYTES_MAX, 2)
        if not job:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            connection.close()
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            return json.loads(job)
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        connection.send(str(os.waitpid(pid, 0)[1]).encode())


def main():
    for name in PRELOADED:
        __import__(name)
    script, *arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[:] = ["-c", *arguments]
    sys.path[0] = ""
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    try:
        exec(compile(script, "<string>", "exec"), vars(module))
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))  # from the script on
        sys.exit(1)


if __name__ == "__main__":
    main()
