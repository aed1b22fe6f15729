"""A pipe's wrong end raises an error, as in plain CPython: no call waits for something that never comes."""

import pytest

import vmhost
from tests.hosts import bundle

SOURCE = """
import errno, io, os

CALLS = {
    "os.write": lambda reader, writer: os.write(reader, b"x"),
    "os.writev": lambda reader, writer: os.writev(reader, [b"x"]),
    "os.read": lambda reader, writer: os.read(writer, 1),
    "os.readv": lambda reader, writer: os.readv(writer, [bytearray(1)]),
    "os.readinto": lambda reader, writer: os.readinto(writer, bytearray(1)),
    "FileIO.write": lambda reader, writer: io.FileIO(reader, "w", closefd=False).write(b"x"),
    "FileIO.read": lambda reader, writer: io.FileIO(writer, "r", closefd=False).read(1),
    "FileIO.readall": lambda reader, writer: io.FileIO(writer, "r", closefd=False).readall(),
    "FileIO.readinto": lambda reader, writer: io.FileIO(writer, "r", closefd=False).readinto(bytearray(1)),
}

def run(name):
    reader, writer = os.pipe()
    try:
        return CALLS[name](reader, writer)
    except OSError as error:
        return type(error).__name__, errno.errorcode[error.errno], error.args[1]
    finally:
        os.close(reader)
        os.close(writer)
"""
PLAIN = {}
exec(compile(SOURCE, "plain", "exec"), PLAIN)


@pytest.fixture(scope="module")
def task():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle(SOURCE))


@pytest.mark.parametrize("name", PLAIN["CALLS"])
def test_the_wrong_end_of_a_pipe_is_refused_at_once(task, name):
    assert task(name, timeout_s=20) == PLAIN["run"](name) == ("OSError", "EBADF", "Bad file descriptor")
