"""Access that task.yaml grants works, and no other: paths, addresses, environment names, own descriptors."""

import os
import socket
import struct
import threading

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

SOURCE = """
import errno, os
import vmhost.guest

def run(asked):
    name, *args = asked
    try:
        return globals()[name](*args)
    except vmhost.guest.PermissionDenied as error:
        return f"denied: {error.args[1]}"

def read(path):
    with open(path) as file:
        return file.read()

def write(path, text, mode="w"):
    with open(path, mode) as file:
        file.write(text)

def names(path):
    return sorted(os.listdir(path)), sorted(entry.name for entry in os.scandir(path))

def size(path):
    return os.stat(path).st_size

def real(path):
    return os.path.realpath(path, strict=True)

def unpacked(path):
    import io, tarfile
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("inside/file")
        member.size, member.mtime = 4, 1000
        archive.addfile(member, io.BytesIO(b"data"))
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        archive.extractall(path)
    return os.stat(path + "/inside/file").st_mtime

def status(path):
    return os.lstat(path).st_mode

def exists(path):
    return os.path.exists(path)

def offset(key, folder):
    import datetime, zoneinfo
    zoneinfo.reset_tzpath([folder])
    try:
        return str(datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo(key)))
    except zoneinfo.ZoneInfoNotFoundError as error:
        return str(error)

def move(a, b):
    os.rename(a, b)

def remove(path):
    os.remove(path)

def tree(path):
    os.makedirs(path + "/a/b")
    with open(path + "/a/b/c", "x") as file:
        file.write("deep")
    found = [(len(folders), files) for _, folders, files in os.walk(path)]
    import shutil
    shutil.rmtree(path + "/a")
    return found

def truncate_through(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_TRUNC)

def descriptors(path):
    descriptor = os.open(path, os.O_RDWR)
    copy = os.dup(descriptor)
    os.write(descriptor, b"own")
    os.lseek(copy, 0, os.SEEK_SET)
    with open(copy, "rb") as file:
        text = file.read(3)
    os.close(descriptor)
    try:
        os.read(descriptor, 1)
    except OSError as error:
        return text if error.errno == errno.EBADF else error

def reused(path):
    '''A number that was the guest's and is the host's by now is not the guest's.'''
    with open(path, "rb") as file:
        number = file.fileno()
    return number

def use(number):
    os.fstat(number)
    return "used"

def opener(path):
    with open("relative", opener=lambda name, flags: os.open(path, flags)) as file:
        return file.read()

def database(path):
    import sqlite3
    connection = sqlite3.connect(path)
    connection.execute("create table if not exists t (x)")
    connection.execute("insert into t values (1)")
    connection.commit()
    count = connection.execute("select count(*) from t").fetchone()[0]
    connection.close()
    return count

def attach(path):
    import sqlite3
    try:
        sqlite3.connect(":memory:").execute("attach ? as other", (path,))
    except sqlite3.DatabaseError as error:
        return f"denied: {error}"

def vacuum(path):
    import sqlite3
    try:
        sqlite3.connect(":memory:").execute("vacuum into ?", (path,))
    except sqlite3.DatabaseError as error:
        return f"denied: {error}"

def fetch(host, port, timeout=None):
    import socket
    with socket.create_connection((host, port), timeout=timeout) as connection:
        return connection.recv(100)

def fetch_async(host, port):
    import asyncio
    async def main():
        reader, writer = await asyncio.open_connection(host, port)
        data = await reader.read(100)
        writer.close()
        return data
    return asyncio.run(main())

def exchange(port):
    '''Two sockets of the task, both granted.'''
    import socket, threading
    server = socket.create_server(("127.0.0.1", port))
    received = []
    def serve():
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(65536):
                received.append(len(data))
    thread = threading.Thread(target=serve)
    thread.start()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x" * 3_000_000)
    thread.join()
    server.close()
    return sum(received)

def environment():
    return dict(os.environ), os.getenv("PATH")

def set_environment(name, value):
    os.environ[name] = value
    return os.environ[name]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("granted")
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "outside").mkdir()
    (folder / "drop" / "in").mkdir(parents=True)
    (folder / "drop" / "kept").write_text("written, not read")
    (folder / "in" / "text").write_text("granted")
    (folder / "outside" / "secret").write_text("secret")
    (folder / "in" / "Here").write_bytes(  # a time zone of one offset (RFC 8536)
        b"TZif" + bytes(16) + struct.pack(">6I", 0, 0, 0, 0, 1, 4) + struct.pack(">iBB", 5400, 0, 0) + b"HET\0"
    )
    (folder / "in" / "link").symlink_to(folder / "outside" / "secret")
    (folder / "in" / "link_inside").symlink_to(folder / "in" / "text")
    (folder / "out" / "link").symlink_to(folder / "outside" / "made")
    (folder / "out" / "folder").symlink_to(folder / "outside")
    (folder / "input").write_text("begins like a granted name")
    return folder


@pytest.fixture(scope="module")
def server():
    """The port of a server on this machine that greets and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(scope="module")
def own_port():
    return free_port()


@pytest.fixture(scope="module")
def task(folder, server, own_port):
    os.environ["VMHOST_TEST_GRANTED"] = "given"
    os.environ["VMHOST_TEST_SECRET"] = "kept"
    permissions = {
        "read": [str(folder / "in" / "**"), str(folder / "out")],
        "write": [str(folder / "out" / "**"), str(folder / "drop")],
        "net": [f"127.0.0.1:{server}", f"localhost:{server}", f"127.0.0.1:{own_port}"],
        "listen": [f"127.0.0.1:{own_port}"],
        "env": ["VMHOST_TEST_GRANTED"],
    }
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            compile_sources(
                {"main": (SOURCE, "main.py", False)},
                entry="main:run",
                name="granted",
                version="1",
                permissions=permissions,
                limits={"concurrency": 1, "wall_time_s": 30.0},
            )
        )
        yield lambda *asked: task(asked)
    del os.environ["VMHOST_TEST_GRANTED"], os.environ["VMHOST_TEST_SECRET"]


def denied(answer):
    return isinstance(answer, str) and answer.startswith("denied: ")


def test_a_granted_file_is_read(task, folder):
    assert task("read", f"{folder}/in/text") == "granted"
    assert task("read", f"{folder}/in/link_inside") == "granted"
    assert task("size", f"{folder}/in/text") == 7
    assert task("names", f"{folder}/in") == (
        ["Here", "link", "link_inside", "text"],
        ["Here", "link", "link_inside", "text"],
    )


def test_time_zones_are_read_where_that_is_granted_and_their_error_says_so_elsewhere(task, folder):
    assert task("offset", "Here", str(folder / "in")) == "2026-01-01 00:00:00+01:30"
    assert task("offset", "There", str(folder / "in")) == "'No time zone found with key There'"
    assert "permissions: {read: [/usr/share/zoneinfo]}" in task("offset", "Elsewhere", str(folder / "outside"))


@pytest.mark.parametrize(
    "path",
    ["outside/secret", "in/link", "in/../outside/secret", "in/../../../../etc/passwd", "input", "out/folder/secret"],
)
def test_no_other_file_is_read(task, folder, path):
    answer = task("read", f"{folder}/{path}")
    assert denied(answer) and "permissions: {read: [...]}" in answer
    assert task("exists", f"{folder}/{path}") is False


def test_a_missing_file_in_a_granted_folder_is_just_missing(task, folder):
    with pytest.raises(vmhost.TaskError, match="FileNotFoundError"):
        task("read", f"{folder}/in/none")


def test_the_way_to_a_granted_folder_is_known(task, folder):
    assert task("real", str(folder / "in" / "text")) == str(folder / "in" / "text")
    assert task("status", str(folder)) == os.lstat(folder).st_mode
    assert task("status", "/") == os.lstat("/").st_mode
    for other in (folder / "outside", folder / "input", folder / "i", "/etc"):
        assert task("status", str(other)).startswith("denied: lstat("), other


def test_archives_are_unpacked_into_a_granted_folder(task, folder):
    assert task("unpacked", str(folder / "out")) == 1000
    assert (folder / "out" / "inside" / "file").read_bytes() == b"data"


def test_a_granted_folder_is_written(task, folder):
    task("write", f"{folder}/out/made", "text")
    assert (folder / "out" / "made").read_text() == "text"
    task("write", f"{folder}/out/made", " more", "a")
    task("move", f"{folder}/out/made", f"{folder}/out/moved")
    assert (folder / "out" / "moved").read_text() == "text more"
    task("remove", f"{folder}/out/moved")
    assert not (folder / "out" / "moved").exists()


def test_folders_are_made_walked_and_removed(task, folder):
    (folder / "out" / "tree").mkdir()
    assert task("tree", f"{folder}/out/tree") == [(1, []), (1, []), (0, ["c"])]
    assert os.listdir(folder / "out" / "tree") == []


@pytest.mark.parametrize(
    "path", ["in/text", "in/new", "outside/new", "out/link", "out/folder/new", "out/../outside/new"]
)
def test_nothing_else_is_written(task, folder, path):
    assert denied(task("write", f"{folder}/{path}", "text"))
    assert (folder / "in" / "text").read_text() == "granted"
    assert sorted(os.listdir(folder / "outside")) == ["secret"]


def test_nothing_is_moved_in_or_out(task, folder):
    assert denied(task("move", f"{folder}/in/text", f"{folder}/out/text"))
    task("write", f"{folder}/out/a", "a")
    assert denied(task("move", f"{folder}/out/a", f"{folder}/outside/a"))
    assert denied(task("remove", f"{folder}/in/text"))


def test_moving_a_file_does_not_make_it_readable(task, folder):
    (folder / "out" / "deep").mkdir()
    for to in ("out/kept", "out/deep/kept"):
        assert "permissions: {read: [...]}" in task("move", f"{folder}/drop/kept", f"{folder}/{to}")
        assert denied(task("move", f"{folder}/drop/in", f"{folder}/{to}"))
    (folder / "out" / "deep").rmdir()
    task("move", f"{folder}/drop/kept", f"{folder}/drop/in/kept")
    assert (folder / "drop" / "in" / "kept").read_text() == "written, not read"
    task("write", f"{folder}/out/readable", "read")
    task("move", f"{folder}/out/readable", f"{folder}/drop/readable")
    assert (folder / "drop" / "readable").read_text() == "read"


def test_truncating_is_writing(task, folder):
    assert denied(task("truncate_through", f"{folder}/in/text"))
    assert (folder / "in" / "text").read_text() == "granted"


def test_a_guest_uses_its_own_descriptors(task, folder):
    task("write", f"{folder}/out/d", "some text")
    assert task("descriptors", f"{folder}/out/d") == b"own"
    assert task("opener", f"{folder}/in/text") == "granted"


def test_a_number_that_came_back_to_the_host_is_not_the_guests(task, folder):
    number = task("reused", f"{folder}/in/text")
    with open(folder / "outside" / "secret") as file:
        if file.fileno() != number:
            os.dup2(file.fileno(), number)
        try:
            assert denied(task("use", number))
        finally:
            if file.fileno() != number:
                os.close(number)


def test_databases_in_granted_folders(task, folder):
    assert task("database", f"{folder}/out/db") == 1
    assert task("database", f"{folder}/out/db") == 2
    assert denied(task("database", f"{folder}/in/db"))
    assert denied(task("attach", f"{folder}/outside/db"))
    assert denied(task("vacuum", f"{folder}/outside/db"))
    assert sorted(os.listdir(folder / "outside")) == ["secret"]


def test_granted_addresses_are_reached(task, server):
    assert task("fetch", "127.0.0.1", server) == b"hello"
    assert task("fetch", "127.0.0.1", server, 5) == b"hello"
    assert task("fetch", "localhost", server) == b"hello"
    assert task("fetch_async", "127.0.0.1", server) == b"hello"


def test_no_other_address_is_reached(task, server):
    for host, port in [("127.0.0.1", free_port()), ("127.0.0.2", server), ("example.org", server)]:
        answer = task("fetch", host, port)
        assert denied(answer) and "permissions: {net:" in answer


def test_a_task_talks_to_itself_over_granted_addresses(task, own_port):
    assert task("exchange", own_port) == 3_000_000


def test_the_environment_is_what_is_granted(task):
    assert task("environment") == ({"VMHOST_TEST_GRANTED": "given"}, None)
    assert task("set_environment", "NEW", "value") == "value"
    assert "NEW" not in os.environ
