"""Boots a VM, loads a task, makes its first calls and ends it, while the n-th allocation fails; for one n after the
other.

    LD_PRELOAD=failing.so python -m tests.faults.boots core|libraries|backups|making|python|alone|posix|room N…

`core`: allocations that the native core asks of libc, on all threads. `libraries`: the same, those that it asks for
OpenSSL and libzstd among them, with a task that uses them. `backups`: those that CPython makes on the VM's thread in a
call that backs up a database. `making`: those that CPython makes on the VM's threads while it makes the interpreter;
`python`: all its others there. `alone` and `posix` are controls: CPython makes and ends an interpreter on a native
thread, and none of our code is there; what fails is the making, or a second import of the module posix. `room`: no
allocation is made to fail, but the process may have n KiB of addresses more, and the VM is its first. Each n is
printed before it is tried, so a crash is known by its n, and after it how it ended and what was wrong with that. The
last line tells how many allocations there are, once an n was beyond. Run by test_boots.py."""

import ctypes
import faulthandler
import os
import resource
import sys
import time
from pathlib import Path

import vmhost.engine.numpy as np
from tests.hosts import bundle, until
from vmhost.errors import VMHostError, from_core
from vmhost.host import system_code_store
from vmhost.isolation import vm as isolation

WORK = """
import threading
from vmhost import guest

kept = []

def setup():
    global table
    table = {n: str(n) for n in range(10)}

def is_open():
    # what works that must not, whatever had no memory before
    found = []
    def try_it(what, function, *args, **kwargs):
        try:
            function(*args, **kwargs)
        except (PermissionError, AttributeError):
            return
        except MemoryError:
            raise
        found.append(what)
    import _socket, _sqlite3, _io, builtins, mmap, os, posix
    try_it("sqlite", _sqlite3.connect, "file:/etc/passwd?mode=ro", uri=True)
    try_it("socket", lambda: _socket.socket().connect(("127.0.0.1", 9)))
    try_it("FileIO", _io.FileIO, "/etc/passwd")
    try_it("open", builtins.open, "/etc/passwd")
    try_it("posix", posix.stat, "/etc/passwd")
    try_it("mmap", mmap.mmap, 0, 4096)
    try_it("system", lambda: posix.system("true"))
    try_it("attach", lambda: _sqlite3.connect(":memory:").enable_load_extension(True))
    if "VMHOST_FAILING" in posix.environ or b"VMHOST_FAILING" in posix.environ or "VMHOST_FAILING" in os.environ:
        found.append("environment")
    return found

def run(value):
    if hasattr(value, "shape"):     # first: an array beside a text is compared by element
        kept.append(value)
        return [value, value.T * 2]
    if value == "threads":
        done = []
        thread = threading.Thread(target=done.append, args=(1,))
        thread.start()
        thread.join()
        return done
    if value == "files":
        with open("words.txt") as file:
            return file.read().split()
    if value == "sealed":
        return is_open()
    if value == "denied":
        try:
            open("/etc/passwd")
        except PermissionError as error:
            return str(error)
    if value == "raised":
        raise ValueError(table[3])
    if value == "array":
        import vmhost.engine.numpy as np
        return np.ones((3, 4)).T
    print("a line")
    return [value, {"a": (1, 2.5, b"x" * 1000)}, table]

def teardown():
    table.clear()
"""
LIBRARIES = """
def run(value):
    import hashlib, ssl
    from compression import zstd
    if value == "zstd":
        return zstd.decompress(zstd.compress(bytes(3000))) == bytes(3000)
    if value == "hashlib":
        return hashlib.new("sha512", b"x").hexdigest()[:4] + hashlib.scrypt(b"x", salt=b"y", n=16, r=8, p=1).hex()[:4]
    context, incoming, outgoing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return len(outgoing.read()) > 100
"""
# Three ways through the gate of Connection.backup: it adds both of its arguments, or one, or puts its own where they
# stand.
BACKUPS = """
import sqlite3

hoard = []

def setup():
    global source, target
    source, target = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    source.executescript("create table t(x); insert into t values (7)")

def run(value):
    if value == "hoard":        # what CPython keeps to make tuples and floats of without an allocation
        hoard.extend([value] * size for size in range(1, 20) for _ in range(100))
        hoard.extend(tuple(few) for few in hoard[:1900] for _ in range(25))
        hoard.extend(float(n) for n in range(300))
        return len(hoard)
    told = []
    def tell(*about):
        told.append(about)
    source.backup(target)
    source.backup(target, progress=tell)
    source.backup(target, pages=1, progress=tell, sleep=0.001)
    return [len(told) > 1, target.execute("select x from t").fetchone()[0]]
"""
CALLS = ("sealed", "threads", "files", "denied", "raised", list(range(50)), "array", np.ones((2, 3)))
LIBRARY_CALLS = ("zstd", "hashlib", "ssl", "zstd")
BACKUP_CALLS = ("warm", "hoard", "last")
PERMISSIONS = {"read": ["/usr/share"], "write": [], "net": ["localhost:80"], "env": ["HOME"], "host": []}


def is_text(value, text):
    """Whether a call's value, which may be an array, is this text."""
    return isinstance(value, str) and value == text


def lib():
    return ctypes.PyDLL(os.environ["VMHOST_FAILING"])


def code_of_the_core(core):
    """(base, first, last) address: of the object, of its executable segment."""
    lines = [line.split() for line in open("/proc/self/maps") if core.__file__ in line]
    [code] = [line[0].split("-") for line in lines if line[1] == "r-xp"]
    return int(lines[0][0].split("-")[0], 16), int(code[0], 16), int(code[1], 16)


def try_once(core, system, store, arm, calls=CALLS, disarm=None):
    """(how boot and calls ended, the errors in that). With `disarm` allocations fail in the last call alone, until
    it has ended."""
    wrong = []
    events = core.Events()
    lane = core.Lane("work", "1", store, "main:run", events)
    if disarm is None:
        arm()
    try:
        vm = core.VM(system, events, permissions=PERMISSIONS)
    except (MemoryError, OSError) as error:
        return type(error).__name__, wrong
    ends = []
    until(lambda: vm.state in ("ready", "failed"))
    if vm.state == "ready":
        vm.attach(lane)
        for number, value in enumerate(calls):
            if disarm is not None and number == len(calls) - 1:
                arm()
            try:
                call = lane.submit(value, 20)
            except MemoryError:
                ends.append("MemoryError")
                continue
            until(lambda: call.done() or vm.state in ("ended", "quarantined"))
            if not call.done():  # attaching failed before the call was there: it waits for another VM
                lane.close(False)
                until(call.done)
                ends.append("no VM")
                break
            try:
                result = call.result()
                ends.append("result")
                if is_text(value, "sealed") and result != []:
                    wrong.append(f"open: {result}")
            except (VMHostError, MemoryError) as error:
                ends.append(type(error).__name__)
        if disarm is not None:
            disarm()
        lane.close(False)
        vm.retire()
        until(lambda: vm.state in ("ended", "quarantined"))
    else:
        until(
            lambda: ends.extend(f"failed boot: {event[2]}" for event in events.wait(1) if event[0] == "failed") or ends
        )
    if vm.state == "quarantined":
        wrong.append("quarantined")
    elif bytes_left(vm):
        wrong.append("bytes left")
    usual = ["TaskError" if is_text(value, "raised") else "result" for value in calls]
    return "nothing" if ends == usual else ",".join(ends), wrong


def while_posix_is_made(failing):
    """Did the allocation fail while os imports the native module posix for the first time?"""
    files = [Path(name).name for name in failing.failing_where().decode("ascii", "replace").split()]
    return (
        next((name for name in files if name not in ("boot.py", "importlib._bootstrap>", "<frozen")), "") == "os.py"
        and files[0] == "boot.py"
    )


def bytes_left(vm, wait_s=1.0):
    """The memory that an ended VM still holds. Libraries free some of theirs as its thread exits, a moment later: this
    function waits for them."""
    end = time.monotonic() + wait_s
    while (left := vm.statistics()["live_bytes"]) != 0 and time.monotonic() < end:
        time.sleep(0.002)
    return left


def each_alone(failing, posix, numbers):
    """Each n in a child of its own, as CPython crashes for a third of them; 0: none fails."""
    failing.failing_alone.restype = ctypes.c_long
    faulthandler.disable()
    for n in (0, *numbers):
        print("n", n, flush=True)
        child = os.fork()
        if child == 0:
            reason = ctypes.c_char_p()
            left = failing.failing_alone(ctypes.c_long(n), ctypes.c_bool(posix), ctypes.byref(reason))
            end = "nothing" if reason.value is None else f"failed boot: {reason.value.decode()}"
            print("=", end, *["wrong: bytes left"] * (left != 0), flush=True)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            print("= crash", flush=True)
    print("total None", flush=True)


def each_with_room(numbers):
    """Each n in a child of its own, since what the first VM leaves is room for the next one."""
    faulthandler.disable()
    compiled, (_, most) = bundle("def run(value): return value"), resource.getrlimit(resource.RLIMIT_AS)

    def leave_room():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (n << 10), most))

    for n in numbers:
        print("n", n, flush=True)
        child = os.fork()
        if child == 0:
            core = isolation.core()
            core.set_error_factory(from_core)
            system, store = system_code_store(core), isolation.code_store_of(compiled, core)
            end, wrong = try_once(core, system, store, leave_room, calls=[1])
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            print("=", end, *(f"wrong: {what}" for what in wrong), flush=True)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            print("= crash", flush=True)
    print("total None", flush=True)


def main(mode, *numbers):
    if mode == "room":
        return each_with_room(map(int, numbers))
    failing = lib()
    failing.failing_python()
    failing.failing_making(mode in ("making", "alone"))
    if mode in ("alone", "posix"):
        return each_alone(failing, mode == "posix", map(int, numbers))
    core = isolation.core()
    core.set_error_factory(from_core)
    source, calls = {"libraries": (LIBRARIES, LIBRARY_CALLS), "backups": (BACKUPS, BACKUP_CALLS)}.get(
        mode, (WORK, CALLS)
    )
    system, store = system_code_store(core), isolation.code_store_of(bundle(source), core)
    store.add_file("words.txt", b"some words")
    failing.failing_disarm.restype = ctypes.c_long
    failing.failing_where.restype = ctypes.c_char_p
    failing.failing_core.argtypes = [ctypes.c_size_t] * 3
    if mode in ("core", "libraries"):
        failing.failing_core(*code_of_the_core(core))
    threads = len(os.listdir("/proc/self/task"))
    total = None
    try_once(core, system, store, lambda: None, calls)  # what is made once per process is made
    for n in map(int, numbers):
        print("n", n, flush=True)
        end, wrong = try_once(
            core,
            system,
            store,
            lambda: failing.failing_arm(n),
            calls,
            failing.failing_disarm if mode == "backups" else None,
        )
        counted = failing.failing_disarm()
        if counted >= 0:
            total = counted
            assert end == "nothing", end
            break
        if wrong and mode == "python" and while_posix_is_made(failing):
            end = f"{end}, while posix is made"
        print("=", end, *(f"wrong: {what}" for what in wrong), flush=True)
    end, wrong = try_once(core, system, store, lambda: None, calls)
    assert end == "nothing" and not wrong, (end, wrong)
    until(lambda: len(os.listdir("/proc/self/task")) <= threads + 1)  # the warden
    print("total", total, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
