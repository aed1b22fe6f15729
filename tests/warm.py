"""Runs Python in processes of their own that need not import anything first: each is forked from a process that has
imported what scripts with hosts, and the `vmhost` command, begin with, and has done nothing else. That saves a quarter
of a second of processor time each. Output, exit status and end are those of a Python that starts anew.

A test process has one such server, from when it is first needed until it ends."""

import atexit
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import time
import traceback
import types
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JOB_BYTES_MAX = 100_000  # of a message
PRELOADED = (
    "vmhost.cli.compile", "vmhost.cli.debug", "vmhost.cli.terminal", "vmhost.compiler", "vmhost.host", "vmhost.limits",
    "vmhost.operations.debugging.ledger", "vmhost.runtime.service", "psutil", "ssl", "tests.hosts", "urllib.request",
)  # fmt: skip
# Variables that Python, its libraries or the C library read when a process starts; others are set in a child.
AT_THE_START = ("PYTHON", "LD_", "MALLOC", "ASAN", "UBSAN", "TSAN", "OPENBLAS", "OMP_", "LANG", "LC_", "TZ")
SET_ALL_THE_SAME = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHON_COLORS")
STRICT = ["-W", "error"]  # warnings are errors, but for those of the common imports

# ---- in the test process

_server = None  # (socket, environment)
_kept = set()  # open files of this process that lead to such servers


def keep(*files):
    """These stay open between tests."""
    _kept.update(files)


def let_go(*files):
    for file in files:
        _kept.discard(file)
        file.close()


def files():
    """The descriptors of this process that stay open between tests."""
    return {str(file.fileno()) for file in _kept}


def run(*arguments, cwd=None, env=None, timeout=240, merged=False):
    """subprocess.run([sys.executable, *arguments], capture_output=True, text=True, ...), without a standard input.
    `merged`: standard error goes where standard output goes.
    A new Python runs what the server cannot: options but STRICT at first, -c and -m, and variables that a process
    reads at its start."""
    arguments, env = [str(each) for each in arguments], dict(os.environ if env is None else env)
    server, started_with = _started()
    job = json.dumps([arguments, str(cwd or os.getcwd()), env]).encode()
    differ = {name for name, _ in {*env.items()} ^ {*started_with.items()}}
    if (
        len(job) > JOB_BYTES_MAX
        or not _is_a_program(arguments[2:] if arguments[:2] == STRICT else arguments)
        or any(name.startswith(AT_THE_START) for name in differ.difference(SET_ALL_THE_SAME))
    ):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=env,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
        )
    pipes = [os.pipe()] if merged else [os.pipe(), os.pipe()]
    socket.send_fds(server, [job], [end for _, end in (pipes * 2)[:2]])
    for _, end in pipes:
        os.close(end)
    pid = int(server.recv(100))
    try:
        out, *err = _read([end for end, _ in pipes], time.monotonic() + timeout)
    except TimeoutError:
        os.kill(pid, 9)  # the server waits for it, so the number is still its own
        raise subprocess.TimeoutExpired(arguments, timeout) from None
    finally:
        status = int(server.recv(100))
    return subprocess.CompletedProcess([sys.executable, *arguments], os.waitstatus_to_exitcode(status), out, *err)


def _is_a_program(arguments):
    return arguments[0] in ("-c", "-m") or arguments[0].endswith(".py")


def _started():
    global _server
    if _server is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            ).returncode = 0  # it ends with this process, which does not wait for it
        keep(ours)
        atexit.register(ours.close)
        _server = ours, environment
    return _server


def _read(ends, until):
    """Reads the pipes to their end, as text, and closes them."""
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
    """Comes back in each child, with its job."""
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
    arguments, cwd, environment = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments[:2] == STRICT:
        del arguments[:2]
        sys.warnoptions[:] = ["error"]
        warnings.simplefilter("error")
    first, *arguments = arguments
    # the server's were made for other files
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", 1, sys.stderr.encoding, sys.stderr.errors, closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0:1] = ["" if first == "-c" else cwd, *filter(None, environment.get("PYTHONPATH", "").split(":"))]
    module = types.ModuleType("__main__")
    if first == "-m":
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    if first == "-c":
        text, name, arguments[:1] = arguments[0], "<string>", [first]
    else:
        text, name, arguments[:0] = Path(first).read_bytes(), first, [first]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        module.__file__ = first
    sys.argv[:] = arguments
    sys.modules["__main__"] = module
    try:
        exec(compile(text, name, "exec"), vars(module))
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))  # from the script on
        sys.exit(1)


if __name__ == "__main__":
    main()
