"""Functions of os that take a path or a descriptor, called with invalid ones: a task sees the error that plain CPython
raises."""

import pytest

import vmhost
from tests.hosts import bundle

CALLS = {
    "open": "os.open(wrong, 0)",
    "stat": "os.stat(wrong)",
    "lstat": "os.lstat(wrong)",
    "listdir": "os.listdir(wrong)",
    "access": "os.access(wrong, 0)",
    "mkdir": "os.mkdir(wrong)",
    "rmdir": "os.rmdir(wrong)",
    "remove": "os.remove(wrong)",
    "unlink": "os.unlink(wrong)",
    "readlink": "os.readlink(wrong)",
    "statvfs": "os.statvfs(wrong)",
    "chmod": "os.chmod(wrong, 0)",
    "utime": "os.utime(wrong)",
    "truncate": "os.truncate(wrong, 0)",
    "rename": "os.rename(wrong, 'x')",
    "replace": "os.replace('x', wrong)",
    "io.open": "open(wrong)",
    "scandir": "os.scandir(wrong)",
    "read": "os.read(wrong, 1)",
    "readinto": "os.readinto(wrong, bytearray(1))",
    "readv": "os.readv(wrong, [bytearray(1)])",
    "pread": "os.pread(wrong, 1, 0)",
    "write": "os.write(wrong, b'x')",
    "close": "os.close(wrong)",
    "fsync": "os.fsync(wrong)",
    "fdatasync": "os.fdatasync(wrong)",
    "fstat": "os.fstat(wrong)",
    "lseek": "os.lseek(wrong, 0, 0)",
    "dup": "os.dup(wrong)",
    "ftruncate": "os.ftruncate(wrong, 0)",
    "isatty": "os.isatty(wrong)",
    "get_blocking": "os.get_blocking(wrong)",
    "sendfile": "os.sendfile(wrong, 0, 0, 1)",
    "socket.close": "socket.close(wrong)",
    "epoll.register": "select.epoll().register(wrong)",
}
SOURCE = f"""
import os, select, socket

class GivesNone:
    def __fspath__(self):
        return None

class NoPath:
    __fspath__ = None

class File:
    def fileno(self):
        return 987_654

WRONG = {{"gives none": GivesNone(), "no path": NoPath(), "object": object(), "float": 1.5, "fileno": File()}}
CALLS = {CALLS!r}

def answer(call, wrong):
    try:
        return repr(call(wrong))
    except Exception as error:
        return repr(error)

def run(what):
    call, wrong = what
    return [str(key) + ": " + answer(FUNCTIONS[call], value) for key, value in WRONG.items()]

FUNCTIONS = {{
{"".join(f"    {name!r}: lambda wrong: {call}," + chr(10) for name, call in CALLS.items())}
}}
"""


@pytest.fixture(scope="module")
def task():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle(SOURCE, "wrong"))


@pytest.mark.parametrize("call", CALLS)
def test_the_error_is_the_one_that_cpython_raises(task, call):
    plain = {"__name__": "main"}
    exec(compile(SOURCE, "main.py", "exec"), plain)
    assert task((call, None)) == plain["run"]((call, None))
