"""Stops, seen from outside: the caller has the documented answer, other tasks are not affected, the process ends
normally.

Each case is a task that does not end by itself. The ways in which a call is stopped: its deadline, its CPU time,
`stop()`, closing the host, and the end of the process."""

import concurrent.futures

import pytest

import vmhost
from tests.guests import GUESTS
from tests.hosts import bundle, in_a_process, until
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

TASK = (
    GUESTS
    + """
import asyncio
import queue
import select
import socket
import sqlite3
from vmhost.guest import deadline


def stubborn_once(value):
    try:
        while True:
            pass
    except BaseException:
        pass
    return "went on"


def in_finally(value):
    try:
        while True:
            pass
    finally:
        for _ in range(1000):
            pass


def sleeps(value):
    while True:
        time.sleep(0.001)


def large_result(value):
    result = None
    for _ in range(8):
        result = [result] * 10
    while deadline() > 0.02:
        pass
    return result


def lock(value):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def timed_lock(value):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=60)


def own_lock(value):
    lock = threading.RLock()
    holds = threading.Event()

    def hold():
        with lock:
            holds.set()
            time.sleep(60)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    with lock:
        pass


def get(value):
    queue.Queue().get()


def simple_get(value):
    queue.SimpleQueue().get()


def put(value):
    full = queue.Queue(1)
    full.put(1)
    full.put(2)


def event(value):
    threading.Event().wait()


def condition(value):
    condition = threading.Condition()
    with condition:
        condition.wait()


def barrier(value):
    threading.Barrier(2).wait()


def join(value):
    thread = threading.Thread(target=time.sleep, args=(60,))
    thread.start()
    thread.join()


def selects(value):
    one, other = socket.socketpair()
    with one, other:
        select.select([one], [], [])


def receives(value):
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)


def sends(value):
    one, other = socket.socketpair()
    with one, other:
        while True:
            one.sendall(b"x" * 65536)


def sql(value):
    sqlite3.connect(":memory:").execute(
        "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n").fetchall()


def huge_number(value):
    return len(str(7 ** (1 << 26)))


def asynchronous(value):
    async def never():
        await asyncio.get_running_loop().create_future()

    asyncio.run(never())


async def coroutine(value):
    await asyncio.sleep(60)


async def busy_coroutine(value):
    while True:
        await asyncio.sleep(0)


def recursion(value):
    def down():
        try:
            down()
        except RecursionError:
            pass
        down()

    while True:
        try:
            down()
        except RecursionError:
            pass


def generator(value):
    def numbers():
        while True:
            try:
                yield
            finally:
                pass

    for _ in numbers():
        pass


class Endless:
    def __del__(self):
        while True:
            pass


def finalizer(value):
    Endless()


def sort(value):
    class Slow:
        def __lt__(self, other):
            while True:
                pass

    sorted([Slow(), Slow()])


def executor(value):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        pool.submit(time.sleep, 60).result()


def group(value):
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(asyncio.sleep(60))

    asyncio.run(main())


def twice(loop):
    threading.Thread(target=loop).start()
    loop()


def named_like_imports(value):
    import _vmhost
    code = _vmhost.relocated_code(forever.__code__, "<frozen importlib._bootstrap>", None, None, 0, True)
    twice(lambda: type(forever)(code, {})(None))


def code_of_imports(value):
    from _frozen_importlib import _ModuleLock
    from types import SimpleNamespace

    def loop():
        never = SimpleNamespace(acquire=bool, release=bool)
        names = {"_thread": threading, "_BlockingOnManager": lambda *arguments: threading.RLock()}
        lock = SimpleNamespace(lock=threading.RLock(), count=1, owner=0, waiters=[], has_deadlock=bool, wakeup=never)
        type(loop)(_ModuleLock.acquire.__code__, names)(lock)

    twice(loop)
"""
)

SOFT = [
    "forever",
    "in_finally",
    "sleep",
    "sleeps",
    "lock",
    "timed_lock",
    "own_lock",
    "get",
    "simple_get",
    "put",
    "event",
    "condition",
    "barrier",
    "join",
    "selects",
    "receives",
    "sends",
    "sql",
    "asynchronous",
    "coroutine",
    "busy_coroutine",
    "recursion",
    "generator",
    "sort",
    "executor",
    "group",
    "stubborn_once",
    "large_result",
    "finalizer",
    "named_like_imports",
    "code_of_imports",
]

POLICY = Policy(grace_s=0.5, task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True, policy=POLICY) as host:
        yield host


@pytest.fixture(scope="module")
def task(host):
    return host.load(bundle(TASK))


@pytest.fixture(scope="module")
def other(host):
    return host.load(bundle(TASK, "other"))


@pytest.mark.parametrize("entry", SOFT)
def test_a_deadline_ends_it_and_other_tasks_do_not_notice(task, other, entry):
    task(0)
    witness = other.submit(entry)
    with pytest.raises(vmhost.TimeLimitError) as caught:
        task(None, entry=f"main:{entry}", timeout_s=0.1)
    assert caught.value.resource == "wall"
    assert witness.result() == entry
    assert task("next") == "next"


@pytest.mark.parametrize("entry", ["forever", "sleep", "lock", "selects", "coroutine", "stubborn_once"])
def test_stop_ends_it(task, entry):
    future = task.submit(None, entry=f"main:{entry}")
    until(future.running)
    future.stop()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(timeout=60)
    assert task("next") == "next"


@pytest.mark.parametrize("entry", ["forever", "sleep", "get", "coroutine"])
def test_closing_ends_it(entry):
    host = vmhost.Host(allow_unsigned=True)
    future = host.load(bundle(TASK)).submit(None, entry=f"main:{entry}")
    until(future.running)
    assert host.close(drain=False) == ()
    with pytest.raises(vmhost.ClosedError):
        future.result(timeout=0)


@pytest.mark.parametrize("entry", ["stubborn", "regex"])
def test_what_cannot_be_stopped_is_quarantined_its_breaker_opens_and_the_process_leaves(entry):
    done = in_a_process(
        """
        from tests.guests import GUESTS
        host = vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=0.1))
        bad, good = host.load(bundle(GUESTS, "bad")), host.load(bundle(GUESTS, "good"))
        bad(0)
        def refused():
            try:
                bad(1)
            except vmhost.BreakerOpenError:
                return True
        print("answered", wedged(bad, sys.argv[1], refused))
        print(good(2))
        print([(vm.task, vm.state) for vm in host.close()], flush=True)
        sys.exit(4)
    """,
        entry,
    )
    assert done.stdout.splitlines() == ["answered True", "2", "[('bad', 'quarantined')]"], done.stderr
    assert done.returncode == 4


STUCK = """
import json, re

def run(value):
    return value

def total(value):
    return sum(range(10 ** 12))

def search(value):
    return re.match("(a+)+$", "a" * 64 + "b")

def parse(value):
    return json.loads("[" + "1," * 20_000_000 + "1]")       # seconds, on a core that eight others want
"""


def test_a_caller_is_answered_when_grace_is_over_however_long_its_vm_stays_in_c():
    """All VMs share one core, so each waits for it most of the time. That puts off when a VM is given up, five seconds
    at most; it once put off the answers, too."""
    done = in_a_process("""
        import asyncio, contextlib
        from concurrent.futures import ThreadPoolExecutor
        from tests.isolation.test_stops import STUCK
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        host = vmhost.Host(allow_unsigned=True,
                           policy=Policy(max_vms=8, grace_s=1, task=TaskPolicy(breaker=BreakerPolicy(enabled=False))))
        limits = {"memory": "2 GiB", "concurrency": 1}
        tasks = [host.load(bundle(STUCK, f"task{number}", limits=limits)) for number in range(8)]
        for task in tasks:
            assert task(1) == 1
        late, stalls = [], []
        def watch():                    # a machine that stands still is late for all
            while True:
                began = time.monotonic()
                time.sleep(0.1)
                if (stalled := time.monotonic() - began - 0.1) > 0.5:
                    stalls.append(stalled)
        threading.Thread(target=watch, daemon=True).start()
        @contextlib.contextmanager
        def measured(what, timeout_s=1.0, grace_s=1.0):
            began = time.monotonic()
            try:
                yield timeout_s
                print(what, "returned")
            except (vmhost.TimeLimitError, vmhost.VMLostError):
                late.append((round(time.monotonic() - began - timeout_s - grace_s, 2), what))
        def called(task, entry):
            with measured(f"{entry}, called") as timeout_s:
                task(None, timeout_s=timeout_s, entry=f"main:{entry}")
        def submitted(task, entry):
            with measured(f"{entry}, submitted") as timeout_s:
                task.submit(None, timeout_s=timeout_s, entry=f"main:{entry}").result()
        def mapped(task, entry):
            with measured(f"{entry}, mapped") as timeout_s:
                list(task.map([None, None], timeout_s=timeout_s, entry=f"main:{entry}"))
        def awaited(task, entry):
            async def main():
                with measured(f"{entry}, awaited") as timeout_s:
                    await task.run(None, timeout_s=timeout_s, entry=f"main:{entry}")
            asyncio.run(main())
        def queued(task, entry):        # behind one that wedges the task's only VM
            until(lambda: task._current.lane.running)
            with measured(f"{entry}, queued behind a wedged one", grace_s=0.0) as timeout_s:
                task(None, timeout_s=timeout_s)
        ways = [(called, "total"), (called, "search"), (called, "parse"), (submitted, "search"), (mapped, "total"),
                (awaited, "search"), (called, "total"), (submitted, "total")]
        with ThreadPoolExecutor(16) as threads:
            futures = [threads.submit(way, task, entry) for task, (way, entry) in zip(tasks, ways)]
            futures += [threads.submit(queued, task, entry) for task, (_, entry) in zip(tasks[:2], ways)]
            for future in futures:
                future.result()
        print(len(late), round(sum(stalls), 2), max(late), flush=True)
        os._exit(0)
    """)
    assert (done.stderr, done.returncode) == ("", 0)
    number, stalled_s, worst = done.stdout.split(maxsplit=2)
    assert number == "10", done.stdout
    assert eval(worst)[0] < 3 + float(stalled_s), f"seconds later than deadline and grace: {worst}"


def test_threads_left_spinning_keep_their_vm_from_ending_but_nobody_else():
    done = in_a_process("""
        from tests.guests import GUESTS
        host = vmhost.Host(allow_unsigned=True)
        bad, good = host.load(bundle(GUESTS, "bad")), host.load(bundle(GUESTS, "good"))
        print(bad(3, entry="main:leave_threads"), good(2))
        print([(vm.task, vm.state) for vm in host.close()], flush=True)
        sys.exit(4)
    """)
    assert done.stdout.splitlines() == ["left 2", "[('bad', 'quarantined')]"], done.stderr
    assert done.returncode == 4


KEEPS = """
import os, re, threading, time

def run(value):
    return value

def keep(go):
    threading.Thread(target=match, args=(go,)).start()

def match(go):
    while not os.path.exists(go):
        time.sleep(0.001)
    re.match("(a+)+$", "a" * 64 + "b")      # inside C for years, and with the GIL
"""


def test_what_a_vm_is_handed_and_cannot_begin_ends_in_time_and_so_does_closing(tmp_path):
    """A thread that a task left behind keeps the GIL of its idle VM: no phase begins, so the deadline of a phase does
    not apply."""
    done = in_a_process(
        """
        from tests.isolation.test_stops import KEEPS
        host = vmhost.Host(allow_unsigned=True)
        names = "late", "cancelled", "two"
        go = os.path.join(sys.argv[1], "go")
        def cpu_s():
            return {vm.task: vm.cpu_s for vm in host.statistics().vms}
        late, cancelled, two = tasks = [host.load(bundle(KEEPS, name, permissions={"read": [go]})) for name in names]
        for task in tasks:
            task(go, entry="main:keep")
        before = cpu_s()
        open(go, "w").close()
        until(lambda: all(cpu_s()[name] > before[name] + 0.1 for name in names))
        first, second = two.submit(1), two.submit(2)
        print(second.result())
        try:
            late(1, timeout_s=0.05)
        except vmhost.TimeLimitError:
            print("TimeLimitError")
        call, lane = cancelled.submit(1), cancelled._current.lane
        print(lane.unfinished, lane.queued, lane.running)
        print(call.cancel(), call.cancelled(), lane.unfinished)
        print(first.result())       # by another VM, once the one that it was handed to is given up
        print(sorted((vm.task, vm.state) for vm in host.close()), flush=True)
        sys.exit(4)
    """,
        tmp_path,
    )
    assert done.stdout.splitlines() == [
        "2",
        "TimeLimitError",
        "1 0 0",
        "True True 0",
        "1",
        str([(name, "quarantined") for name in ("cancelled", "late", "two")]),
    ], done.stderr
    assert done.returncode == 4


LEFT = {
    "threads that wait": "threading.Thread(target=threading.Event().wait).start()",
    "threads that sleep": "threading.Thread(target=time.sleep, args=(60,)).start()",
    "threads that spin": "threading.Thread(target=spin).start()",
    "an exit handler that loops": "atexit.register(spin)",
    "an exit handler that sleeps": "atexit.register(time.sleep, 60)",
    "a finaliser that loops": "kept.append(Endless())",
    "a weak reference's callback that loops": "kept.append(held); refs.append(weakref.ref(held, lambda _: spin()))",
    "an event loop with tasks": "loops()",
    "an exception hook that loops": (
        "sys.excepthook = sys.unraisablehook = threading.excepthook = lambda *a: spin(); kept.append(Bad())"
    ),
}

LEAVES = """
import asyncio, atexit, sys, threading, time, weakref

kept, refs = [], []

class Held: pass

held = Held()

class Endless:
    def __del__(self):
        spin()

class Bad:
    def __del__(self):
        raise ValueError

def spin():
    while True:
        pass

def loops():
    loop = asyncio.new_event_loop()
    async def never():
        try:
            await asyncio.Event().wait()
        finally:
            spin()
    kept.append((loop, loop.create_task(never())))
    loop.call_soon(loop.stop)
    loop.run_forever()

def run(value):
    {what}
    return value
"""


def test_threads_left_behind_are_all_told_before_one_is_waited_for():
    """Each ends only when it has seen the others stopped: stopped one after the other, the first would never end."""
    source = """
        import threading, time

        told, never = [], threading.Event()

        def leave():
            try:
                never.wait()
            except BaseException:
                told.append(None)
            while len(told) < 60:
                try:
                    time.sleep(0.001)
                except BaseException:       # again and again, until all have gone
                    pass

        def run(value):
            for _ in range(60):
                threading.Thread(target=leave).start()
            return threading.active_count()
    """
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=20)) as host:
        assert host.load(bundle(source))(0) == 61
        assert host.close() == ()


def test_what_a_task_leaves_behind_does_not_keep_its_vm():
    with vmhost.Host(allow_unsigned=True, policy=Policy(max_vms=len(LEFT), grace_s=1)) as host:
        for number, statement in enumerate(LEFT.values()):
            task = host.load(bundle(LEAVES.format(what=statement), f"task{number}"))
            assert task(1) == 1
        kept = [list(LEFT)[int(vm.task.removeprefix("task"))] for vm in host.close()]
    assert kept == []


@pytest.mark.parametrize("ending", ["unload", "close", "drop"])
@pytest.mark.parametrize("what", ["setup", "import"])
def test_a_module_that_never_gets_ready_costs_the_caller_its_deadline_and_no_more(what, ending):
    source = {"setup": "def setup():\n    while True: pass\n", "import": "while True: pass\n"}[what]
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source + "def run(value): return value\n", what))
        with pytest.raises(vmhost.TimeLimitError):
            task(1, timeout_s=0.2)
        if ending == "unload":
            host.unload(what, drain=False)
            until(lambda: not any(vm.task == what for vm in host.statistics().vms))
        assert host.close(drain=ending == "close") == ()


def test_a_teardown_that_loops_is_ended():
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=0.5)) as host:
        task = host.load(bundle("def teardown():\n    while True: pass\ndef run(value): return value\n"))
        assert task(1) == 1
        assert host.close() == ()


def test_cpu_time_counts_every_thread_of_the_call(host):
    task = host.load(
        bundle(
            """
        import threading, time

        def burn():
            while True:
                pass

        def run(value):
            for _ in range(value):
                threading.Thread(target=burn).start()
            time.sleep(60)
    """,
            "burner",
            limits={"cpu_time_s": 0.3},
        )
    )
    with pytest.raises(vmhost.TimeLimitError) as caught:
        task(3)
    assert caught.value.resource == "cpu"


def stop_calls_at_their_end(task, tries, span_s):
    """Each try times out about when the call ends by itself; its neighbour on the same VM must never get the stop."""
    stopped, timeout_s = 0, span_s
    for number in range(tries):
        first = task.submit(span_s, entry="main:spin", timeout_s=timeout_s)
        second = task.submit(number)
        try:
            first.result()
            timeout_s *= 0.98  # so that it stays about the call's length, however long this machine takes for one
        except vmhost.TimeLimitError:
            stopped += 1
            timeout_s *= 1.02
        assert second.result() == number
    return stopped


SPIN = """
import time

def run(value):
    return value

def spin(span_s):
    end = time.perf_counter() + span_s
    while time.perf_counter() < end:
        pass
"""


def test_a_stop_aimed_at_a_call_that_just_ended_never_hits_the_next(host):
    task = host.load(bundle(SPIN, "spin", limits={"concurrency": 1}))
    assert 0 < stop_calls_at_their_end(task, 500, 0.001) < 500


@pytest.mark.stress
def test_a_stop_aimed_at_a_call_that_just_ended_never_hits_the_next_in_10000_tries(host):
    task = host.load(bundle(SPIN, "spin", limits={"concurrency": 1}))
    assert 0 < stop_calls_at_their_end(task, 10_000, 0.001) < 10_000


ENDINGS = {
    "the end of the script": ("", 0, ""),
    "sys.exit(3)": ("sys.exit(3)", 3, ""),
    "an exception": ("raise RuntimeError('ours')", 1, "RuntimeError: ours"),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -2, "KeyboardInterrupt"),
    "sys.exit with a text": ("sys.exit('because')", 1, "because"),
}


@pytest.mark.parametrize(
    ("entry", "ending"),
    [("forever", ending) for ending in ENDINGS]
    + [("stubborn", "sys.exit(3)"), ("stubborn", "an exception"), ("sleep", "the end of the script")],
)
def test_a_process_ends_as_it_would_without_the_calls_under_way(ending, entry):
    statement, status, expected = ENDINGS[ending]
    done = in_a_process(f"""
        from tests.isolation.test_stops import TASK
        host = vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=0.1))
        task = host.load(bundle(TASK))
        future = task.submit(None, entry="main:{entry}")
        until(future.running)
        print("out", flush=True)
        {statement}
    """)
    assert done.returncode == status, done.stderr
    assert done.stdout == "out\n"
    assert expected in done.stderr


def test_a_vm_that_comes_out_of_a_long_c_call_while_the_process_exits_does_not_abort_it():
    """The VM is hidden from CPython by then, which aborts when an unknown interpreter ends."""
    done = in_a_process("""
        import atexit
        def steady(seen=[-1.0]):
            before, seen[0] = seen[0], vm.native.statistics()["cpu_s"]
            time.sleep(0.1)
            return before == seen[0]
        atexit.register(lambda: until(steady))      # runs after vmhost's own, which was registered later
        host = vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=0.05))
        bad = host.load(bundle("import re\\ndef run(value):\\n    return re.match('(a+)+$', 'a' * value + 'b')\\n",
                               "bad"))
        bad(1)
        vm = next(vm for vm in host._service._pool._vms.values() if vm.owner)
        try:
            bad(25, timeout_s=0.05)
        except (vmhost.VMLostError, vmhost.TimeLimitError):
            print("answered", flush=True)
        host.close()
        sys.exit(4)
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("answered\n", "", 4)


def test_a_stop_leaves_no_lock_of_the_import_system_behind():
    """Threads that wait for such a lock are not stopped, so a lock kept by an ended thread would block the others, and
    the VM, forever."""
    done = in_a_process("""
        source = '''
            import threading
            from importlib._bootstrap import _get_module_lock
            def search():
                while True:
                    _get_module_lock("absent")
            def run(value):
                for _ in range(16):
                    threading.Thread(target=search).start()
                search()
        '''
        calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
        with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=20, task=calm)) as host:
            task = host.load(bundle(source))
            for _ in range(4):
                try:
                    task(None, timeout_s=0.2)
                except vmhost.VMHostError as error:
                    print(type(error).__name__, flush=True)
            print(host.close())
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["TimeLimitError"] * 4 + ["()"]
