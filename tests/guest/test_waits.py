"""Threads and waits of a guest: they work as in CPython, and a stop ends every one of them while it waits."""

import time

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

SOURCE = """
import threading
import time

def run(name):
    return globals()[name]()

# --- what works

def locks():
    lock, counter = threading.Lock(), [0]
    def add():
        for _ in range(500):
            with lock:
                value = counter[0]
                time.sleep(0)
                counter[0] = value + 1
    threads = [threading.Thread(target=add) for _ in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return counter[0], lock.locked(), any(thread.is_alive() for thread in threads)

def lock_arguments():
    lock = threading.Lock()
    found = [lock.acquire(), lock.acquire(False), lock.acquire(timeout=0.01), lock.acquire(blocking=False),
             lock.acquire(True, 0)]
    for arguments in ((False, 1), (True, -2)):
        try:
            lock.acquire(*arguments)
        except ValueError as error:
            found.append(str(error))
    lock.release()
    try:
        lock.release()
    except RuntimeError as error:
        found.append(str(error))
    return found

def reentrant():
    lock, found = threading.RLock(), []
    with lock, lock:
        thread = threading.Thread(target=lambda: found.append(lock.acquire(False)))
        thread.start()
        thread.join()
        found.append((lock._is_owned(), lock._recursion_count(), lock.locked()))
    found.append(lock.locked())
    try:
        lock.release()
    except RuntimeError as error:
        found.append(str(error))
    return found

def conditions():
    condition, items, taken = threading.Condition(), [], []
    def take():
        with condition:
            condition.wait_for(lambda: items, timeout=10)
            taken.append(items.pop())
    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads: thread.start()
    for item in range(4):
        with condition:
            items.append(item)
            condition.notify()
    for thread in threads: thread.join()
    with condition:
        timed_out = condition.wait(0.01)
    return sorted(taken), timed_out

def queues():
    import queue
    found = []
    for make in (queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue):
        q = make()
        thread = threading.Thread(target=lambda: [q.put(item) for item in range(3)])
        thread.start()
        found.append(sorted(q.get(timeout=10) for _ in range(3)))
        thread.join()
        try:
            q.get(timeout=0.01)
        except queue.Empty:
            found.append("empty")
    return found

def pool():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(4) as executor:
        return sum(executor.map(lambda x: x * x, range(200)))

def locals_and_names():
    local, found = threading.local(), []
    local.value = "main"
    def work():
        found.append((hasattr(local, "value"), threading.current_thread().name))
    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    return found, local.value

def raises():
    found = []
    threading.excepthook = lambda args: found.append(args.exc_type.__name__)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    return found

def daemons():
    '''Daemons in each kind of wait, which outlive the call and end with the task.'''
    import logging, os, queue, select
    reading, writing = os.pipe()
    lock, event, began = threading.Lock(), threading.Event(), threading.Semaphore(0)
    lock.acquire()

    def loop():
        while True:
            time.sleep(0)

    def stubborn():
        for _ in range(3):
            try:
                time.sleep(1e6)
            except SystemExit:
                pass

    def cleans_up():
        try:
            event.wait()
        finally:
            logging.warning("a daemon cleaned up")

    for wait in (loop, stubborn, cleans_up, lock.acquire, queue.Queue().get, lambda: os.read(reading, 1),
                 lambda: select.select([reading], [], []), lambda: time.sleep(1e6)):
        def begin(wait=wait):
            began.release()
            wait()
        threading.Thread(target=begin, daemon=True).start()
    for _ in range(8):
        began.acquire()
    return [thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()]

def queue_listener():
    '''logging's own daemon.'''
    import logging.handlers, queue
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    lines = queue.Queue()
    listener = logging.handlers.QueueListener(lines, handler)
    listener.start()
    logging.handlers.QueueHandler(lines).handle(logging.makeLogRecord({"msg": "through a queue"}))
    listener.stop()
    return found

def too_many():
    gate, threads = threading.Event(), []
    try:
        for _ in range(200):
            thread = threading.Thread(target=gate.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError as error:
        return len(threads), str(error)
    finally:
        gate.set()
        for thread in threads: thread.join()

def sleeps():
    begin = time.monotonic()
    time.sleep(0.05)
    time.sleep(0)
    try:
        time.sleep(-1)
    except ValueError as error:
        return time.monotonic() - begin, str(error)

def event_loop():
    import asyncio
    async def main():
        await asyncio.sleep(0.001)
        one = await asyncio.gather(*(asyncio.to_thread(lambda i=i: i) for i in range(4)))
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            return one, "timeout"
    return asyncio.run(main())

def pair():
    import select, socket
    a, b = socket.socketpair()
    with a, b:
        a.settimeout(0.01)
        try:
            a.recv(1)
        except TimeoutError as error:
            first = str(error)
        b.sendall(b"x")
        ready = select.select([a], [b], [], 1)
        poll = select.epoll()
        poll.register(a, select.EPOLLIN)
        events = poll.poll(1)
        poll.close()
        return first, ready == ([a], [b], []), events == [(a.fileno(), select.EPOLLIN)], a.recv(1)

def polls():
    '''What select.poll says of a socket before and after something came, of one whose other end is gone, of a closed
    one, and of nonsense.'''
    import select, selectors, socket
    poll, found = select.poll(), []
    a, b = socket.socketpair()
    c, d = socket.socketpair()
    poll.register(a, select.POLLIN)
    poll.register(c.fileno(), select.POLLIN)
    found.append(poll.poll(10))
    b.sendall(b"x")
    d.close()
    events = dict(poll.poll())
    found.append([events[a.fileno()], events[c.fileno()]])
    poll.modify(a, select.POLLOUT | select.POLLIN)
    closed = c.fileno()
    c.close()
    found.append(dict(poll.poll(0)) == {a.fileno(): select.POLLIN | select.POLLOUT, closed: select.POLLNVAL})
    poll.unregister(closed)
    with selectors.PollSelector() as selector:
        selector.register(a, selectors.EVENT_READ)
        found.append([events for key, events in selector.select(1)])
    for wrong in (lambda: poll.register("a"), lambda: poll.register(a, -1), lambda: poll.register(a, 65536),
                  lambda: poll.unregister(closed), lambda: poll.modify(closed, 1), lambda: poll.poll("x"),
                  lambda: poll.poll(2 ** 31), lambda: poll.poll(float("nan"))):
        try:
            wrong()
        except Exception as error:
            found.append(type(error).__name__)
    a.close(), b.close()
    return found

# --- what waits for ever

def wait_sleep():
    time.sleep(60)

def wait_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def wait_lock_with_timeout():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=60)

def wait_reentrant():
    lock, held = threading.RLock(), threading.Event()
    def hold():
        with lock:
            held.set()
            time.sleep(60)
    threading.Thread(target=hold).start()
    held.wait()
    with lock:
        pass

def wait_condition():
    condition = threading.Condition()
    with condition:
        condition.wait_for(lambda: False)

def wait_event():
    threading.Event().wait()

def wait_barrier():
    threading.Barrier(2).wait()

def wait_semaphore():
    threading.Semaphore(0).acquire()

def wait_queue():
    import queue
    queue.Queue().get()

def wait_simple_queue():
    import queue
    queue.SimpleQueue().get()

def wait_join():
    thread = threading.Thread(target=time.sleep, args=(60,))
    thread.start()
    thread.join()

def wait_future():
    from concurrent.futures import Future
    Future().result()

def wait_pipe():
    import os
    reader, writer = os.pipe()
    os.read(reader, 1)

def wait_receive():
    import socket
    a, b = socket.socketpair()
    a.recv(1)

def wait_receive_with_timeout():
    import socket
    a, b = socket.socketpair()
    a.settimeout(60)
    a.recv(1)

def wait_send():
    import socket
    a, b = socket.socketpair()
    a.sendall(bytes(50_000_000))

def wait_select():
    import select, socket
    a, b = socket.socketpair()
    select.select([a], [], [])

def wait_epoll():
    import select, socket
    a, b = socket.socketpair()
    poll = select.epoll()
    poll.register(a, select.EPOLLIN)
    poll.poll()

def wait_poll():
    import select, socket
    a, b = socket.socketpair()
    poll = select.poll()
    poll.register(a, select.POLLIN)
    poll.poll()

def wait_event_loop():
    import asyncio
    asyncio.run(asyncio.sleep(60))

def wait_query():
    import sqlite3
    for_ever = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"
    sqlite3.connect(":memory:").execute(for_ever).fetchall()

def threads_that_spin():
    def spin():
        while True:
            pass
    for _ in range(3):
        threading.Thread(target=spin).start()
    time.sleep(60)
"""

WAITS = [
    line.split("(")[0][4:] for line in SOURCE.splitlines() if line.startswith(("def wait_", "def threads_that_spin"))
]


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host
        assert host.close() == ()  # nothing had to be quarantined


def load(host, name):
    return host.load(
        compile_sources(
            {"main": (SOURCE, "main.py", False)},
            entry="main:run",
            name=name.replace("_", "-"),
            version="1",
            limits={"wall_time_s": 60.0},
        )
    )


@pytest.fixture(scope="module")
def task(host):
    return load(host, "waits")


def test_locks_exclude(task):
    assert task("locks") == (3000, False, False)


def test_lock_arguments_and_errors_are_cpythons(task):
    assert task("lock_arguments") == [
        True,
        False,
        False,
        False,
        False,
        "can't specify a timeout for a non-blocking call",
        "timeout value must be a non-negative number",
        "release unlocked lock",
    ]


def test_reentrant_locks(task):
    assert task("reentrant") == [False, (True, 2, True), False, "cannot release un-acquired lock"]


def test_conditions(task):
    assert task("conditions") == ([0, 1, 2, 3], False)


def test_queues(task):
    assert task("queues") == [[0, 1, 2], "empty"] * 4


def test_thread_pools(task):
    assert task("pool") == sum(x * x for x in range(200))


def test_thread_locals_and_names(task):
    assert task("locals_and_names") == ([(False, "worker")], "main")


def test_an_error_in_a_thread_reaches_its_hook(task):
    assert task("raises") == ["ZeroDivisionError"]


def test_daemon_threads_end_with_the_task(caplog):
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            compile_sources({"main": (SOURCE, "main.py", False)}, entry="main:run", name="waits", version="1")
        )
        assert task("daemons") == [True] * 8
    assert [record.getMessage() for record in caplog.records] == ["a daemon cleaned up"]  # no VM was quarantined


def test_poll(task):
    namespace = {}
    exec(SOURCE, namespace)
    assert task("polls") == namespace["polls"]()  # CPython's own


def test_logging_through_a_queue(task):
    assert task("queue_listener") == ["through a queue"]


def test_threads_are_counted(task):
    started, text = task("too_many")
    assert started == 60 and "at most 60" in text
    assert task("locks")[0] == 3000


def test_sleep(task):
    took, text = task("sleeps")
    assert took >= 0.05 and text == "sleep length must be non-negative"


def test_event_loops(task):
    assert task("event_loop") == ([0, 1, 2, 3], "timeout")


def test_socket_pairs_need_no_permission(task):
    assert task("pair") == ("timed out", True, True, b"x")


@pytest.mark.parametrize("name", WAITS)
def test_a_stop_ends_the_wait(host, name):
    task = load(host, name)
    begin = time.monotonic()
    with pytest.raises(vmhost.TimeLimitError):
        task(name, timeout_s=0.3)
    assert time.monotonic() - begin < 50  # it would wait for a minute
    assert host.statistics().quarantined == ()
