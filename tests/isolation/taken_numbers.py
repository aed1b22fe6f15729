"""A host whose files and sockets come to numbers that a guest gave up: what the guest still reaches through what is
left of it.

Run by test_descriptors.py in a process of its own, since a guest that closes the host's descriptors would take the
tests along. Prints one JSON line per case: its name, what the guest got, and what happened to the host's."""

import fcntl
import json
import os
import re
import socket
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import vmhost
from vmhost.bytecode.compiler import compile_sources

SECRET = b"SECRET" * 20

GUEST = '''
import _socket, errno, gc, io, os, select, socket, threading
import vmhost.guest
from vmhost.guest import host

OWN = "own file"

def run(asked):
    name, *args = asked
    return globals()[name](*args)

def outcome(call, *args, **keywords):
    """What a call gave, as a text."""
    try:
        return repr(call(*args, **keywords))
    except vmhost.guest.PermissionDenied as error:
        return "denied"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    except Exception as error:
        return type(error).__name__

def after(number, call, *args, kind="file"):
    """What `call` gives when the host has everything up to `number`, and what became of the host's."""
    host.occupy([number, kind])
    got = outcome(call, *args)
    return got, host.look(None)

FILE_METHODS = {
    "read": (6,), "readall": (), "readinto": (bytearray(6),), "write": (b"x",), "seek": (3,), "tell": (),
    "truncate": (0,), "isatty": (), "_isatty_open_only": (), "seekable": (), "close": (), "fileno": (), "readable": (),
    "writable": (), "readline": (), "readlines": (), "writelines": ([b"x"],), "flush": (), "__enter__": (),
    "__exit__": (None, None, None), "__iter__": (), "__next__": (), "__del__": (), "_checkClosed": (),
    "_checkReadable": (), "_checkSeekable": (), "_checkWritable": (), "_dealloc_warn": (None,), "__init__": (0,),
    "__getstate__": (), "__reduce__": (), "__reduce_ex__": (2,), "__repr__": (), "__str__": (), "__format__": ("",),
}
SOCKET_METHODS = {
    "recv": (6,), "recv_into": (bytearray(6),), "recvfrom": (6,), "recvfrom_into": (bytearray(6),), "recvmsg": (6,),
    "recvmsg_into": ([bytearray(6)],), "send": (b"x",), "sendall": (b"x",), "sendto": (b"x", ("127.0.0.1", 9)),
    "sendmsg": ([b"x"],), "sendmsg_afalg": (), "_accept": (), "accept": (), "bind": (("127.0.0.1", 0),), "listen": (),
    "connect": (("127.0.0.1", 9),), "connect_ex": (("127.0.0.1", 9),), "close": (), "detach": (), "fileno": (),
    "getpeername": (), "getsockname": (), "getsockopt": (1, 3), "setsockopt": (1, 2, 1), "getblocking": (),
    "setblocking": (True,), "gettimeout": (), "settimeout": (None,), "shutdown": (2,), "__del__": (), "__init__": (),
    "__repr__": (), "__str__": (), "__format__": ("",), "__getstate__": (), "__reduce__": (), "__reduce_ex__": (2,),
    "__enter__": (), "__exit__": (None, None, None), "_real_close": (), "_decref_socketios": (), "dup": (),
    "makefile": (), "sendfile": (io.BytesIO(b"x"),), "_sendfile_use_sendfile": (None,),
    "_sendfile_use_send": (io.BytesIO(b"x"),), "_check_sendfile_params": (io.BytesIO(b"x"), 0, None),
    "get_inheritable": (), "set_inheritable": (True,),
}
EPOLL_METHODS = {
    "poll": (0,), "register": (0, 1), "modify": (0, 1), "unregister": (0,), "close": (), "fileno": (), "fromfd": (0,),
    "__enter__": (), "__exit__": (None, None, None), "__repr__": (), "__str__": (), "__format__": ("",),
    "__getstate__": (), "__reduce__": (), "__reduce_ex__": (2,), "__init__": (),
}
PLAIN = {"__class__", "__new__", "__subclasshook__", "__init_subclass__", "__dir__", "__sizeof__", "__eq__", "__ne__",
         "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__getattribute__", "__setattr__", "__delattr__"}

def unfiled():
    """Methods that this Python has and the tables above have not."""
    return sorted(
        f"{type.__name__}.{name}" for type, methods in ((io.FileIO, FILE_METHODS), (socket.socket, SOCKET_METHODS),
                                                        (_socket.socket, SOCKET_METHODS), (select.epoll, EPOLL_METHODS))
        for name in dir(type) if callable(getattr(type, name)) and name not in methods and name not in PLAIN)

def file_method(name, path, closefd):
    number = os.open(path, os.O_RDWR)
    file = io.FileIO(number, "r+", closefd=closefd)
    os.close(number)
    return after(number, getattr(file, name), *FILE_METHODS[name])

def socket_method(name, of):
    one, other = socket.socketpair()
    end = one
    if of == "_socket":
        end = _socket.socket(fileno=one.detach())
    end.settimeout(0.2)
    number = end.fileno()
    os.close(number)
    return after(number, getattr(end, name), *SOCKET_METHODS[name], kind="socket")

def epoll_method(name):
    epoll = select.epoll()
    number = epoll.fileno()
    os.close(number)
    return after(number, getattr(epoll, name), *EPOLL_METHODS[name], kind="epoll")

def double_close(path):
    file = open(path, "rb", buffering=0)
    number = file.fileno()
    os.close(number)
    return after(number, file.close)

def double_close_of_two(path):
    number = os.open(path, os.O_RDWR)
    one, other = io.FileIO(number), io.FileIO(number)
    one.close()
    return after(number, other.close)

def double_close_of_a_socket(_):
    one, other = socket.socketpair()
    number = one.fileno()
    copy = _socket.socket(fileno=number)
    copy.close()
    return after(number, one.close, kind="socket")

def dropped(path):
    file = open(path, "rb", buffering=0)
    number = file.fileno()
    os.close(number)
    host.occupy([number, "file"])
    del file
    gc.collect()
    return "dropped", host.look(None)

def dropped_socket(_):
    one, other = socket.socketpair()
    number = one.fileno()
    _socket.close(number)
    host.occupy([number, "socket"])
    del one
    gc.collect()
    return "dropped", host.look(None)

def dropped_epoll(_):
    epoll = select.epoll()
    number = epoll.fileno()
    os.close(number)
    host.occupy([number, "epoll"])
    del epoll
    gc.collect()
    return "dropped", host.look(None)

def buffered_writer(path):
    file = open(path, "wb")
    file.write(b"late")
    number = file.fileno()
    os.close(number)
    return after(number, file.close)

def text_reader(path):
    file = open(path)
    number = file.fileno()
    os.close(number)
    return after(number, file.read)

def made_again(path):
    file = io.FileIO(path)
    number = file.fileno()
    os.close(number)
    return after(number, file.__init__, path)

def made_in_the_midst(path, by_opener):
    """The code that gives an object its descriptor gives it another first, which the object lets go of."""
    file, seen = io.FileIO(path), []
    def make(*_):
        file.__init__(path)
        seen.append(file.fileno())
        seen.append(io.FileIO(file.fileno(), closefd=False))
        return os.open(path, os.O_RDONLY)
    class Number:
        __index__ = make
    if by_opener:
        file.__init__(path, opener=make)
    else:
        file.__init__(Number())
    return after(seen[0], seen[1].read, 6)

def made_again_in_vain(path):
    """What the object had is closed first, whatever comes of its making."""
    file = io.FileIO(path)
    number = file.fileno()
    assert outcome(file.__init__, path + "/missing") == "ENOTDIR"
    return after(number, file.fileno)

def closed_while_it_is_named(path):
    """The object is closed in the midst of its making, which then fails; another one still has its number."""
    seen = []
    class File(io.FileIO):
        @property
        def name(self):
            return "name"
        @name.setter
        def name(self, _):
            seen.append(self.fileno())
            seen.append(io.FileIO(self.fileno(), closefd=False))
            self.close()
            raise ValueError
    assert outcome(File, path) == "ValueError"
    return after(seen[0], seen[1].read, 6)

def closed_by_its_own_flush(path):
    class File(io.FileIO):
        def flush(self):
            if not self.closed:
                os.close(self.fileno())
                host.occupy([number, "file"])
    file = File(path)
    number = file.fileno()
    return outcome(file.close), host.look(None)

def closed_by_its_own_name(path):
    class File(io.FileIO):
        name = property(lambda self: "name",
                        lambda self, name: os.close(self.fileno()) if not closed.append(self.fileno()) else None)
    closed = []
    got = outcome(File, path)
    return after(closed[0], os.read, closed[0], 6)

def opener_of_a_folder(path):
    opened = []
    def opener(name, flags):
        opened.append(os.open(os.path.dirname(path), os.O_RDONLY))
        return opened[-1]
    got = outcome(io.FileIO, "anything", opener=opener)
    assert got == "EISDIR", got
    return after(opened[0], os.read, opened[0], 6)

def buffer_that_closes(path):
    number = os.open(path, os.O_RDWR)
    file = io.FileIO(number, closefd=False)
    room = bytearray(6)
    class Buffer:
        def __buffer__(self, flags):
            os.close(number)
            host.occupy([number, "file"])
            return memoryview(room)
    return outcome(file.readinto, Buffer()) + repr(room), host.look(None)

def bytes_that_close(path):
    number = os.open(path, os.O_RDWR)
    class Buffer:
        def __buffer__(self, flags):
            os.close(number)
            host.occupy([number, "file"])
            return memoryview(b"x")
    return outcome(os.write, number, Buffer()), host.look(None)

def tls(_):
    import ssl
    one, other = socket.socketpair()
    number = one.fileno()
    connection = ssl.create_default_context()._wrap_socket(one, False, "localhost")
    one.setblocking(False)
    one.close()
    return after(number, connection.do_handshake, kind="socket")

def waiting_read(_):
    """A thread that waits for a pipe reads what came to the number meanwhile?"""
    reader, writer = os.pipe()
    return waiting(lambda: os.read(reader, 6), reader, lambda: os.close(reader), lambda: os.write(writer, b"x"), "file")

def waiting_file(_):
    reader, writer = os.pipe()
    file = io.FileIO(reader)
    return waiting(lambda: file.read(6), reader, file.close, lambda: os.write(writer, b"x"), "file")

def waiting_socket(_):
    one, other = socket.socketpair()
    number = one.fileno()
    return waiting(lambda: one.recv(6), number, lambda: os.close(number), lambda: other.send(b"x"), "socket")

def waiting_select(_):
    one, other = socket.socketpair()
    number = one.fileno()
    def wait():
        select.select([number], [], [])
        return one.recv(6)
    return waiting(wait, number, one.close, lambda: other.send(b"x"), "socket")

def waiting(use, number, close, wake, kind):
    got = []
    began = threading.Event()
    def body():
        began.set()
        got.append(outcome(use))
    thread = threading.Thread(target=body)
    thread.start()
    began.wait()
    host.settled(None)
    close()
    host.occupy([number, kind])
    wake()
    thread.join(20)
    return str(got), host.look(None)

class Liar:
    """Names one descriptor when it is looked at and another when it is used."""
    def __init__(self, own, other, flips):
        self.own, self.other, self.flips, self.looks = own, other, flips, 0
    def fileno(self):
        self.looks += 1
        return self.own if not self.flips or self.looks == 1 else self.other
    def __index__(self):
        self.looks += 1
        return self.other if not self.flips or self.looks > 1 else self.own
    __int__ = __index__

LIES = {
    "read": lambda lie, own: os.read(lie, 6), "pread": lambda lie, own: os.pread(lie, 6, 0),
    "readinto": lambda lie, own: os.readinto(lie, bytearray(6)),
    "readv": lambda lie, own: os.readv(lie, [bytearray(6)]),
    "preadv": lambda lie, own: os.preadv(lie, [bytearray(6)], 0), "write": lambda lie, own: os.write(lie, b"x"),
    "pwrite": lambda lie, own: os.pwrite(lie, b"x", 0), "writev": lambda lie, own: os.writev(lie, [b"x"]),
    "pwritev": lambda lie, own: os.pwritev(lie, [b"x"], 0), "lseek": lambda lie, own: os.lseek(lie, 3, 0),
    "fstat": lambda lie, own: os.fstat(lie).st_size, "fstatvfs": lambda lie, own: os.fstatvfs(lie) and None,
    "ftruncate": lambda lie, own: os.ftruncate(lie, 0), "truncate": lambda lie, own: os.truncate(lie, 0),
    "stat": lambda lie, own: os.stat(lie).st_size, "chmod": lambda lie, own: os.chmod(lie, 0o777),
    "utime": lambda lie, own: os.utime(lie, (1, 1)), "statvfs": lambda lie, own: os.statvfs(lie) and None,
    "listdir": lambda lie, own: os.listdir(lie), "scandir": lambda lie, own: list(os.scandir(lie)),
    "fsync": lambda lie, own: os.fsync(lie), "fdatasync": lambda lie, own: os.fdatasync(lie),
    "close": lambda lie, own: os.close(lie), "dup": lambda lie, own: os.read(os.dup(lie), 6),
    "sendfile_from": lambda lie, own: os.sendfile(own, lie, 0, 6),
    "sendfile_to": lambda lie, own: os.sendfile(lie, own, 0, 6),
    "copy_from": lambda lie, own: os.copy_file_range(lie, own, 6, 0, 0),
    "copy_to": lambda lie, own: os.copy_file_range(own, lie, 6, 0, 0),
    "set_blocking": lambda lie, own: os.set_blocking(lie, False),
    "set_inheritable": lambda lie, own: os.set_inheritable(lie, True),
    "fallocate": lambda lie, own: os.posix_fallocate(lie, 0, 1000),
    "get_blocking": lambda lie, own: os.get_blocking(lie), "get_inheritable": lambda lie, own: os.get_inheritable(lie),
    "isatty": lambda lie, own: os.isatty(lie), "select": lambda lie, own: select.select([lie], [], [], 0) and None,
    "epoll": lambda lie, own: select.epoll().register(lie),
    "file": lambda lie, own: io.FileIO(lie, closefd=False).read(6),
    "open": lambda lie, own: open(lie, "rb", buffering=0, closefd=False).read(6),
    "opener": lambda lie, own: open("x", "rb", 0, opener=lambda *_: lie).read(6),
    "socket": lambda lie, own: socket.socket(fileno=lie).recv(6), "socket.close": lambda lie, own: _socket.close(lie),
    "socket.dup": lambda lie, own: os.read(_socket.dup(lie), 6), "access": lambda lie, own: os.access(lie, os.R_OK),
}

def lie(name, path, number, flips):
    own = os.open(path, os.O_RDWR)
    got = outcome(LIES[name], Liar(own, number, flips), own)
    size = os.fstat(own).st_size if outcome(os.fstat, own) != "EBADF" else 0
    text = os.pread(own, 100, 0).decode() if size else ""
    outcome(os.close, own)
    return got + text, host.look(None)

def scandir_of_a_descriptor(path):
    number = os.open(os.path.dirname(path), os.O_RDONLY)
    got = outcome(os.scandir, number)
    os.close(number)
    return got, []

def stdout_that_goes(_):
    """os.write(1, …) is a line of the log, also where the data takes sys.stdout away meanwhile."""
    import sys
    kept = sys.stdout
    class Data:
        def __buffer__(self, flags):
            sys.stdout = None
            return memoryview(b"")
    try:
        return outcome(os.write, 1, Data()), []
    finally:
        sys.stdout = kept

def option(level, name):
    one, other = socket.socketpair()
    return outcome(one.getsockopt, level, name, 64), outcome(one.setsockopt, level, name, bytes(16))

def family_of_another(port):
    """Addresses are read by the family that the object says, and granted by what the socket is."""
    one = socket.socket()
    return outcome(socket.socket, socket.AF_UNIX, socket.SOCK_STREAM, 0, one.fileno()), outcome(socket.socket, fileno=0)

def race(path):
    """Threads that use what another one closes, while the host opens and closes as fast as it can."""
    current, got, over = [open(path, "rb", buffering=0)], set(), threading.Event()
    def use():
        while not over.is_set():
            file = current[0]
            got.add(outcome(file.read, 6))
            by_number = outcome(os.pread, told_number(file), 6, 0)
            # between the two calls the file may be closed, and the host may have got its number
            got.add("the host's number" if by_number == "denied" else by_number)
    def told_number(file):
        try:
            return file.fileno()
        except ValueError:
            return -1
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(3000):
        file, current[0] = current[0], open(path, "rb", buffering=0)
        if turn % 2:
            os.close(file.fileno())
        outcome(file.close)
    over.set()
    for thread in threads:
        thread.join()
    current[0].close()
    return str(sorted(got)), []

def together(*calls):
    """What each of `calls` gave in a thread of its own, all at once."""
    got, begin = [], threading.Barrier(len(calls))
    def body(call):
        begin.wait()
        got.append(outcome(call))
    threads = [threading.Thread(target=body, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got

def made_and_closed(_):
    """Threads make one socket again and close it, with a default timeout, which is set when its number is known."""
    end, kept, got = _socket.socket(), socket.socket(), set()
    def again(*calls):
        for _ in range(2000):
            got.update(outcome(call) for call in calls)
    socket.setdefaulttimeout(5)
    try:
        together(lambda: again(end.__init__, end.close), lambda: again(end.close, end.__init__),
                 lambda: again(end.close), lambda: again(lambda: end.__init__(fileno=kept.fileno()), end.detach))
    finally:
        socket.setdefaulttimeout(None)
        end.close()
        for number in range(1024):      # a socket that is made again leaves its descriptor open, as in CPython
            outcome(os.close, number)
    return str(sorted(got)), []

def made_while_tls_takes_it(_):
    """A connection uses the number that it holds, although its socket gets another one while it is made."""
    import ssl
    context, changed = ssl.create_default_context(), []
    for _ in range(120):
        pair = socket.socketpair()
        numbers = [one.detach() for one in pair]
        end, made = socket.socket(fileno=numbers[0]), []
        def connect():
            try:        # which lets others run before it asks for the number
                made.append(context._wrap_socket(end, False, "localhost"))
            except OSError:
                made.append(None)       # it saw that
        together(lambda: _socket.socket.__init__(end, fileno=numbers[1]), connect)
        for number in numbers:
            os.close(number)
        outcome(end.close)
        outcome(end.setblocking, False)
        host.occupy([max(numbers), "socket"])
        if made[0] is not None:
            outcome(made[0].do_handshake)
        changed += host.look(None)
    return "", changed

def left_open(path):
    kept.append(os.open(path, os.O_RDONLY))
    kept.extend(os.pipe())
    kept.append(open(path))
    kept.append(socket.socketpair())
    kept.append(select.epoll())

kept = []
'''


class Numbers:
    """The host's side: takes numbers, and looks whether what is there is as it was."""

    def __init__(self, folder):
        self.path = Path(folder, "secret")
        self.taken = {}

    def occupy(self, asked):
        """Open things of the host's until the number is taken, or one beyond it is."""
        number, kind = asked
        fd = -1
        while fd < number and len(self.taken) < 300:
            if kind == "socket":
                ends = socket.socketpair()
                for end in ends:
                    end.send(SECRET)
                for end in ends:
                    fd = end.detach()
                    self._take(fd)
            else:
                self.path.write_bytes(SECRET)
                fd = os.open(self.path, os.O_RDWR)
                self._take(fd)

    def _take(self, fd):
        self.taken[fd] = self._state(fd)

    @staticmethod
    def _state(fd):
        status = os.fstat(fd)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)
        if not stat.S_ISSOCK(status.st_mode):
            return (
                status.st_ino,
                flags,
                status.st_mode,
                status.st_size,
                os.lseek(fd, 0, os.SEEK_CUR),
                os.pread(fd, 1000, 0),
            )
        with socket.socket(fileno=os.dup(fd)) as end:
            received = end.recv(1000, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            end.send(b"", socket.MSG_DONTWAIT)  # raises where it has been shut down
        return status.st_ino, flags, received

    def work(self, over, wrong):
        """Opens and closes files until `over` is set; `wrong` gets what happened to one meanwhile."""
        while not over.is_set() and not wrong:
            fd = os.open(self.path, os.O_RDONLY)
            try:
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                if os.lseek(fd, 0, os.SEEK_CUR) != 0 or os.pread(fd, 1000, 0) != SECRET or flags & os.O_NONBLOCK:
                    wrong.append(f"{fd} was changed")
                os.close(fd)
            except OSError as error:
                wrong.append(f"{fd}: {error}")

    def look(self, _):
        """What is not as it was, and close all."""
        changed = []
        for fd, state in self.taken.items():
            try:
                now = self._state(fd)
            except OSError as error:
                now = str(error)
            if now != state:
                changed.append(f"{fd}: {state} -> {now}"[:300])
        for fd in self.taken:
            try:
                os.close(fd)
            except OSError as error:
                changed.append(f"{fd}: {error}")
        self.taken = {}
        return changed


def settled(_):
    """Waits until the other thread of the guest is in its wait: the process's threads sleep in poll or a futex."""
    for _ in range(2000):
        states = []
        for thread in os.listdir("/proc/self/task"):
            try:
                states.append(Path(f"/proc/self/task/{thread}/syscall").read_text().split()[0])
            except OSError, IndexError:
                pass
        if any(state == "7" for state in states):  # poll(2), on x86-64
            return
    time.sleep(0.3)


def open_files():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass  # the folder's own, closed by now
    return found


def cases(path, numbers):
    """(name, call of the guest)"""
    tables = {}
    exec(
        compile("import io\n" + GUEST[GUEST.index("FILE_METHODS") : GUEST.index("def unfiled")], "guest", "exec"),
        tables,
    )
    for name in tables["FILE_METHODS"]:
        for closefd in (True, False):
            yield f"file {name} {closefd}", ("file_method", name, path, closefd)
    for name in tables["SOCKET_METHODS"]:
        yield f"socket {name}", ("socket_method", name, "socket")
        if name not in (
            "accept",
            "dup",
            "makefile",
            "sendfile",
            "get_inheritable",
            "set_inheritable",
            "__enter__",
            "__exit__",
        ) and (not name.startswith("_") or name == "_accept" or name == "__del__" or name == "__init__"):
            yield f"_socket {name}", ("socket_method", name, "_socket")
    for name in tables["EPOLL_METHODS"]:
        yield f"epoll {name}", ("epoll_method", name)
    for name in (
        "double_close",
        "double_close_of_two",
        "double_close_of_a_socket",
        "dropped",
        "dropped_socket",
        "dropped_epoll",
        "buffered_writer",
        "text_reader",
        "made_again",
        "made_again_in_vain",
        "closed_while_it_is_named",
        "closed_by_its_own_flush",
        "closed_by_its_own_name",
        "opener_of_a_folder",
        "buffer_that_closes",
        "bytes_that_close",
        "tls",
        "waiting_read",
        "waiting_file",
        "waiting_socket",
        "waiting_select",
        "scandir_of_a_descriptor",
        "stdout_that_goes",
    ):
        yield name, (name, path)
    for by_opener in (False, True):
        yield f"made_in_the_midst {by_opener}", ("made_in_the_midst", path, by_opener)


def main():
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, "own")
        own.mkdir()
        path = str(own / "file")
        Path(path).write_text("own file")
        numbers = Numbers(folder)
        functions = {"occupy": numbers.occupy, "look": numbers.look, "settled": settled}
        permissions = {"read": [str(own)], "write": [str(own)], "net": ["127.0.0.1:*"], "host": list(functions)}
        before = open_files()
        with vmhost.Host(
            policy=vmhost.Policy(task=vmhost.TaskPolicy(breaker=vmhost.BreakerPolicy(enabled=False))),
            allow_unsigned=True,
            functions=functions,
        ) as host:
            task = host.load(
                compile_sources(
                    {"main": (GUEST, "main.py", False)},
                    entry="main:run",
                    name="numbers",
                    version="1",
                    permissions=permissions,
                    limits={"concurrency": 1, "wall_time_s": 60.0},
                )
            )

            def tell(name, call):
                try:
                    got, changed = task(call)
                except vmhost.VMHostError as error:
                    got, changed = "error", [f"{type(error).__name__}: {error}"[:1000]]
                print(json.dumps({"case": name, "got": got, "changed": changed}), flush=True)

            print(json.dumps({"case": "unfiled", "got": "", "changed": task(("unfiled",))}), flush=True)
            only = sys.argv[1:]
            for name, call in cases(path, numbers):
                if not only or name in only:
                    Path(path).write_text("own file")
                    tell(name, call)
            for name in re.findall(r'"([\w.]+)": lambda', GUEST):
                for flips in (False, True):
                    if only and f"lie {name}" not in only:
                        continue
                    Path(path).write_text("own file")
                    numbers.occupy([0, "socket" if name.startswith("socket") else "file"])
                    tell(f"lie {name} {flips}", ("lie", name, path, next(iter(numbers.taken)), flips))
            for level, name in ((1, 26), (1, 50), (1, 52), (1, 77), (6, 35), (6, 19), (0, 64), (41, 64)):
                print(
                    json.dumps({"case": f"option {level} {name}", "got": task(("option", level, name)), "changed": []}),
                    flush=True,
                )
            print(json.dumps({"case": "family", "got": task(("family_of_another", 0)), "changed": []}), flush=True)
            numbers.path.write_bytes(SECRET)
            for name in ("race", "made_and_closed"):
                over, wrong = threading.Event(), []
                worker = threading.Thread(target=numbers.work, args=(over, wrong))
                worker.start()
                try:
                    got, _ = task((name, path))
                finally:
                    over.set()
                    worker.join()
                print(json.dumps({"case": name, "got": got, "changed": wrong}), flush=True)
            got, changed = task(("made_while_tls_takes_it", path))
            print(json.dumps({"case": "made_while_tls_takes_it", "got": got, "changed": changed}), flush=True)
            task(("left_open", path))
        # a VM that is being booted or ended has events of its own; guests make none
        left = [
            f"{number}: {name}"
            for number, name in open_files().items()
            if before.get(number) != name and "eventfd" not in name
        ]
        print(json.dumps({"case": "left open", "got": "", "changed": left}), flush=True)


if __name__ == "__main__":
    main()
