"""Hosts on the native core, from a user's side: calls, limits, logs, closing and the end of the process."""

import asyncio
import concurrent.futures
import itertools  # noqa: F401 - a script below is read from this source
import logging
import os
import re
import signal
import textwrap
import threading
import time

import pytest

import vmhost
from tests import hosts
from tests.guests import GUESTS
from tests.hosts import stopped_by_its_deadline, until, wedged  # noqa: F401 - the latter for scripts below
from vmhost.bytecode.compiler import compile_sources
from vmhost.bytecode.format import write_bundle
from vmhost.bytecode.signing import generate_key
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

TASK = (
    GUESTS
    + """
import logging

from vmhost import guest

kept = []


def keep(value):
    kept.append(value)
    return list(kept)


def peek(value):
    return open(value).read()


def talk(value):
    print("printed", value)
    logging.getLogger("inside").warning("logged %s", value)


def thing(value):
    return object()


def flood(value):
    for number in range(value):
        print("line", number)


def ask(value):
    return guest.host.price(value)
"""
)


def build(name="echo", version="1.0.0", source=TASK, limits=None, permissions=None):
    return compile_sources(
        {"main": (source, f"{name}@{version}/main.py", False)},
        entry="main:run",
        name=name,
        version=version,
        limits=limits,
        permissions=permissions,
    )


@pytest.fixture
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture
def echo(host):
    return host.load(build())


@pytest.mark.parametrize(
    "value", [None, True, -1, 1 << 80, 0.5, 1j, "ü", b"\0", [1, [2]], (1, ()), {"a": {1: None}}, {1, 2}]
)
def test_values_go_in_and_come_back(echo, value):
    assert echo(value) == value
    assert type(echo(value)) is type(value)


def test_all_ways_of_calling_agree(echo):
    assert echo(1) == 1
    assert echo.submit(2).result() == 2
    assert list(echo.map(range(3000))) == list(range(3000))
    futures = [echo.submit(i) for i in range(500)]
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures)) == list(range(500))

    async def many():
        return await asyncio.gather(*(echo.run(i) for i in range(100)), asyncio.wrap_future(echo.submit(100)))

    assert asyncio.run(many()) == list(range(101))


def test_a_vm_is_kept_for_its_task(host):
    task = host.load(build(limits={"concurrency": 1}))
    assert [task(i, entry="main:keep") for i in range(3)] == [[0], [0, 1], [0, 1, 2]]


def test_fresh_gives_each_call_a_new_vm():
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=TaskPolicy(fresh=True))) as host:
        task = host.load(build())
        assert [task(i, entry="main:keep") for i in range(3)] == [[0], [1], [2]]


def test_a_task_error_has_the_guests_traceback(echo):
    with pytest.raises(vmhost.TaskError, match="echo 1.0.0: ValueError: no such pixel: 7") as caught:
        echo(7, entry="main:fail")
    line = TASK.splitlines().index('    raise ValueError(f"no such pixel: {value}")') + 1
    assert f'File "echo@1.0.0/main.py", line {line}, in inner' in caught.value.guest_traceback
    assert caught.value.guest_traceback in "".join(caught.value.__notes__) + "\n"


def test_an_entry_that_is_not_there(echo):
    with pytest.raises(vmhost.TaskError, match="could not be loaded.*nowhere"):
        echo(1, entry="main:nowhere")


def test_a_module_that_raises_when_it_is_imported(host):
    task = host.load(build(source="raise RuntimeError('not today')\n"))
    with pytest.raises(vmhost.TaskError, match="could not be loaded: RuntimeError: not today"):
        task(1)


@pytest.mark.parametrize("entry, value", [("forever", None), ("sleep", 60)])
def test_a_time_limit_ends_what_runs_too_long_and_nothing_else(host, entry, value):
    slow, other = host.load(build("slow")), host.load(build("other"))
    slow(0)
    waiting = other.submit(0.2, entry="main:sleep")
    error = stopped_by_its_deadline(slow, value, entry, lambda error: "main.py" in (error.guest_traceback or ""))
    assert "did not end within its time" in str(error)
    assert waiting.result() == "slept"
    assert slow("again") == "again"


def test_the_time_in_which_a_call_waited_for_a_vm_is_told_apart():
    with vmhost.Host(allow_unsigned=True, policy=Policy(max_vms=1)) as host:
        task = host.load(build("slow"))
        # on a slow machine a short time is over before the call has begun
        assert task(1) == 1
        error = stopped_by_its_deadline(task, None, "forever", lambda error: "waited" not in str(error))
        assert "did not end within its time; raise" in str(error)
        for timeout_s in (0.5, 5, 50):
            running = task.submit(None, entry="main:forever")
            until(running.running)
            queued = task.submit(1, timeout_s=0.05)
            with pytest.raises(
                vmhost.TimeLimitError, match=r"waited [\d.]+ s for a VM, all of its time; raise timeout_s, sub"
            ):
                queued.result()
            late = task.submit(None, entry="main:forever", timeout_s=timeout_s)
            time.sleep(timeout_s / 4)  # it is told if it waited for a tenth of its time
            running.stop()
            told = str(late.exception())
            if "all of its time" not in told:
                break
        assert re.search(r"within its time, of which it waited \d[.\d]* s for a VM; raise", told), told


def test_limits_of_the_bundle_hold(host):
    task = host.load(build(limits={"wall_time_s": 0.1, "memory_bytes": 32 << 20}))
    with pytest.raises(vmhost.TimeLimitError):
        task(None, entry="main:forever")
    cpu = host.load(build("cpu", limits={"cpu_time_s": 0.1}))
    with pytest.raises(vmhost.TimeLimitError) as caught:
        cpu(None, entry="main:forever")
    assert caught.value.resource == "cpu"


def test_the_deadline_counts_from_submission(host):
    task = host.load(build(limits={"concurrency": 1}))
    task(0)
    blocker = task.submit(60, entry="main:sleep")
    waiting = task.submit(1, timeout_s=0.05)
    with pytest.raises(vmhost.TimeLimitError):
        waiting.result()
    assert not blocker.done()
    blocker.stop()


def test_a_memory_limit_ends_a_hog_and_nothing_else(host):
    task = host.load(build(limits={"memory_bytes": 32 << 20}))
    with pytest.raises(vmhost.MemoryLimitError):
        task(None, entry="main:hog")
    assert task("again") == "again"


def test_what_was_not_granted_is_denied(echo):
    with pytest.raises(vmhost.PermissionDenied, match="/etc/passwd"):
        echo("/etc/passwd", entry="main:peek")


def test_what_was_granted_is_not(host, tmp_path):
    (tmp_path / "data.txt").write_text("granted")
    task = host.load(build(permissions={"read": [str(tmp_path)]}))
    assert task(str(tmp_path / "data.txt"), entry="main:peek") == "granted"


def signed(bundle, key):
    return write_bundle(bundle.manifest, bundle.modules, bundle.files, bundle.texts, key)


def test_a_host_from_a_file_runs_what_its_keys_signed(tmp_path):
    mine, other = generate_key(), generate_key()
    mine.save(tmp_path / "mine")
    (tmp_path / "echo.vmb").write_bytes(signed(build(), mine))
    (tmp_path / "other.vmb").write_bytes(signed(build("other"), other))
    (tmp_path / "host.yaml").write_text("trust: mine.pub\nload: [echo.vmb]\nstate: state\nlimits: {wall_time: 3 s}\n")
    with vmhost.Host.from_file(tmp_path / "host.yaml") as host:
        task = host.task("echo")
        assert task(1) == 1
        with pytest.raises(vmhost.TimeLimitError):
            task(None, entry="main:forever")
        with pytest.raises(vmhost.BundleError, match="other.vmb: signed with the key .* does not trust"):
            host.load(tmp_path / "other.vmb")
        with pytest.raises(vmhost.BundleError, match="not signed"):
            host.load(build("unsigned"))
        assert host.tasks == ("echo",)


def test_an_altered_bundle_is_refused_and_nothing_changes(host, echo, tmp_path):
    content = bytearray(signed(build(version="2.0.0"), None))
    content[len(content) // 2] ^= 1
    with pytest.raises(vmhost.BundleError):
        host.load(bytes(content))
    assert (echo.version, echo(1)) == ("1.0.0", 1)


def test_values_that_cannot_cross_are_named(echo):
    with pytest.raises(vmhost.CrossingError, match=r"echo 1\.0\.0: argument: .*object"):
        echo([1, object()])
    with pytest.raises(vmhost.CrossingError, match=r"echo 1\.0\.0: result: .*object"):
        echo(1, entry="main:thing")
    assert echo(1) == 1


def test_stop_ends_a_running_call_and_cancel_a_waiting_one(host):
    task = host.load(build(limits={"concurrency": 1}))
    task(0)
    running, waiting = task.submit(None, entry="main:forever"), task.submit(1)
    assert waiting.cancel()
    until(running.running)
    assert not running.cancel()
    running.stop()
    with pytest.raises(concurrent.futures.CancelledError):
        running.result()
    assert task(2) == 2


def test_cancelling_an_await_stops_the_call(echo):
    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(echo.run(None, entry="main:forever"), 0.1)
        return await echo.run(1)

    assert asyncio.run(main()) == 1


def test_a_wedged_vm_is_quarantined_and_the_host_goes_on():
    script = """
        policy = Policy(grace_s=0.05)
        host = vmhost.Host(allow_unsigned=True, policy=policy)
        bad, good = host.load(build("bad")), host.load(build("good"))
        bad(0)
        def refused():
            try:
                bad(1)
            except vmhost.BreakerOpenError:
                return True
        print("answered", wedged(bad, "stubborn", refused))
        print(good(1))
        print([(vm.task, vm.state) for vm in host.close()])
        sys.exit(5)
    """
    done = in_a_process(script)
    assert done.stdout.splitlines() == ["answered True", "1", "[('bad', 'quarantined')]"]
    assert done.returncode == 5, done.stderr


def in_a_process(script):
    return hosts.in_a_process("from tests.vmhost.test_real_host import *\n" + textwrap.dedent(script))


def test_a_vm_with_a_thread_left_in_it_is_quarantined_and_the_process_leaves():
    done = in_a_process("""
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build())
        print(task(None, entry="main:leave_threads"), task(1))
        print([vm.task for vm in host.close()])
        sys.exit(6)
    """)
    assert (done.returncode, done.stdout) == (6, "left 1\n['echo']\n"), done.stderr


class Lines(logging.Handler):
    """Collects records until there are `number` of them."""

    def __init__(self, number):
        super().__init__()
        self.records, self.number, self.full = [], number, threading.Event()

    def emit(self, record):
        self.records.append(record)
        if len(self.records) >= self.number:
            self.full.set()


def test_what_a_guest_prints_and_logs_reaches_its_logger_and_not_stdout(echo, capfd):
    handler = Lines(2)
    logger = logging.getLogger("vmhost.task.echo")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        echo("this", entry="main:talk")
        assert handler.full.wait(60)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    lines = [record.getMessage() for record in handler.records]
    assert any("printed this" in line for line in lines)
    assert any("logged this" in line for line in lines)
    assert {record.version for record in handler.records} == {"1.0.0"}
    assert capfd.readouterr().out == ""


def test_a_flood_of_lines_is_bounded_and_says_so(echo):
    handler = Lines(10**9)
    logger = logging.getLogger("vmhost.task.echo")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    gate = threading.Lock()
    gate.acquire()
    handler.addFilter(lambda record: gate.acquire(timeout=120) and (gate.release() or True))
    try:
        echo(20_000, entry="main:flood")  # the logger is blocked meanwhile
        gate.release()
        echo(1)
        until(lambda: any("lines were dropped" in record.getMessage() for record in handler.records))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert len(handler.records) < 12_000  # 1 MiB of lines of some 110 bytes each, and what came after the first second
    assert handler.records[0].getMessage() == "line 0"


def test_host_functions_answer_the_guest_that_was_granted_them():
    with vmhost.Host(allow_unsigned=True, functions={"price": {"apple": 3}.__getitem__}) as host:
        task = host.load(build(permissions={"host": ["price"]}))
        assert task("apple", entry="main:ask") == 3
        with pytest.raises(vmhost.TaskError, match="HostFunctionError: KeyError: 'pear'"):
            task("pear", entry="main:ask")
        other = host.load(build("other"))
        with pytest.raises((vmhost.TaskError, vmhost.PermissionDenied), match="price"):
            other("apple", entry="main:ask")
        assert other(1) == 1


def test_a_host_function_that_takes_too_long_does_not_hold_up_the_deadline():
    release = threading.Event()
    with vmhost.Host(allow_unsigned=True, functions={"price": lambda value: release.wait(20)}) as host:
        task = host.load(build(permissions={"host": ["price"]}))
        task(0)
        with pytest.raises(vmhost.TimeLimitError):
            task("apple", entry="main:ask", timeout_s=0.3)
        release.set()
        assert task(1) == 1


def test_a_newer_version_takes_over_while_calls_run(host):
    old = build(source="import time\ndef run(value):\n    time.sleep(value)\n    return 'old'\n")
    new = build(version="2.0.0", source="def run(value):\n    return 'new'\n")
    task = host.load(old)
    futures = [task.submit(0.05) for _ in range(8)]
    assert host.load(new) is task
    assert task(0) == "new"
    assert [future.result() for future in futures] == ["old"] * 8
    assert task.version == "2.0.0"


def test_callers_never_notice_a_change_of_version(host):
    task = host.load(build())
    failures = []
    over = threading.Event()

    def call():
        try:
            while not over.is_set():
                assert task(1) == 1
                assert task.submit(2).result() == 2
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for number in range(6):
        host.load(build(version=f"1.0.{number + 1}"))
        task(number)
    over.set()
    for caller in callers:
        caller.join()
    assert failures == []


def test_calls_run_at_the_same_time():
    all_here = threading.Barrier(4)
    meet = {"price": lambda value: all_here.wait(60) is not None}
    with vmhost.Host(allow_unsigned=True, functions=meet) as host:
        task = host.load(build(limits={"concurrency": 4}, permissions={"host": ["price"]}))
        assert list(task.map(range(4), entry="main:ask")) == [True] * 4


def test_a_queue_that_is_full_says_so_and_loses_nothing():
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=TaskPolicy(queue=5))) as host:
        task = host.load(build(limits={"concurrency": 1}))
        task(0)
        blocker = task.submit(60, entry="main:sleep")
        until(blocker.running)
        waiting = [task.submit(i) for i in range(5)]
        with pytest.raises(vmhost.QueueFullError, match=r"the queue is full \(5 calls may wait\)"):
            task.submit(9)
        blocker.stop()
        assert [future.result() for future in waiting] == list(range(5))


def test_priorities_go_first(host):
    task = host.load(build(limits={"concurrency": 1}))
    task(0)
    blocker = task.submit(60, entry="main:sleep")
    until(blocker.running)
    low = task.submit("low", entry="main:keep", priority=-1)
    high = task.submit("high", entry="main:keep", priority=1)
    blocker.stop()
    assert low.result() == ["high", "low"]
    assert high.result() == ["high"]


def test_a_breaker_opens_half_opens_and_closes():
    breaker = BreakerPolicy(consecutive=3, open_s=3600, probes=2, caller_errors=())
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=TaskPolicy(breaker=breaker))) as host:
        task = host.load(build())
        for _ in range(3):
            with pytest.raises(vmhost.TaskError):
                task(1, entry="main:fail")
        with pytest.raises(vmhost.BreakerOpenError) as caught:
            task(1)
        assert 3500 < caught.value.retry_in_s <= 3600
        task._current.breaker._clock = lambda: time.monotonic() + 3600
        assert [task(i) for i in range(3)] == [0, 1, 2]
        assert host.statistics().tasks["echo"].breaker.state == "closed"


def test_slow_calls_open_the_breaker():
    breaker = BreakerPolicy(slow_s=0.01, slow_rate=0.5, min_calls=5, open_s=60)
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=TaskPolicy(breaker=breaker))) as host:
        task = host.load(build())
        with pytest.raises(vmhost.BreakerOpenError, match="took longer than 0.01 s"):
            for _ in range(100):
                task(0.02, entry="main:sleep")


def test_statistics_show_each_vm(host, echo):
    echo(1)
    with pytest.raises(vmhost.TaskError):
        echo(1, entry="main:fail")
    now = host.statistics()
    [vm] = [vm for vm in now.vms if vm.task == "echo"]
    assert (vm.version, vm.calls, vm.errors) == ("1.0.0", 2, 1)
    assert 0 < vm.live_bytes <= vm.peak_bytes
    assert vm.cpu_s > 0
    assert now.tasks["echo"].ended == {"OK": 1, "TASK_ERROR": 1}


def test_close_ends_every_call_and_leaves_nothing_behind():
    before = set(threading.enumerate())
    for drain in (True, False):
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build(limits={"concurrency": 2}))
        futures = [task.submit(0.02 if drain else 60, entry="main:sleep") for _ in range(20)]
        assert host.close(drain=drain) == ()
        assert [type(future.exception(timeout=0)) for future in futures] == [
            type(None) if drain else vmhost.ClosedError
        ] * 20
        with pytest.raises(vmhost.ClosedError):
            task(1)
    assert set(threading.enumerate()) == before


def test_close_stops_a_runaway():
    host = vmhost.Host(allow_unsigned=True)
    task = host.load(build())
    future = task.submit(None, entry="main:forever")
    until(future.running)
    assert host.close(timeout_s=0.1) == ()
    with pytest.raises(vmhost.ClosedError):
        future.result(timeout=0)


def test_calls_race_with_close():
    for _ in range(5):
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build())
        task(0)
        counts = {"answers": 0, "closed": 0}

        def call():
            while True:
                try:
                    assert task(1) == 1
                    counts["answers"] += 1
                except vmhost.ClosedError:
                    counts["closed"] += 1
                    return

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        host.close(drain=False)
        for caller in callers:
            caller.join(60)
            assert not caller.is_alive()
        assert counts["closed"] == 3


@pytest.mark.parametrize("what", ["idle", "forever", "stubborn"])
def test_the_process_leaves_with_its_own_status_when_the_host_was_not_closed(what):
    done = in_a_process(f"""
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build())
        print(task(1), flush=True)
        if {what!r} != "idle":
            future = task.submit(None, entry="main:{what}")
            until(future.running)
        sys.exit(3)
    """)
    assert (done.returncode, done.stdout) == (3, "1\n"), done.stderr


def interrupt(when):
    """Ctrl-C for this process, once `when()` holds."""
    threading.Thread(target=lambda: (until(when), os.kill(os.getpid(), signal.SIGINT))).start()


def test_ctrl_c_ends_a_call_and_the_host_goes_on():
    done = in_a_process("""
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build())
        task(0)
        interrupt(lambda: host.statistics().tasks["echo"].running)
        try:
            task(None, entry="main:forever")
        except KeyboardInterrupt:
            print("interrupted", task(2), host.close())
    """)
    assert (done.returncode, done.stdout) == (0, "interrupted 2 ()\n"), done.stderr


def test_ctrl_c_ends_the_calls_of_a_map_those_too_that_run():
    done = in_a_process("""
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build())
        task(0)
        interrupt(lambda: host.statistics().tasks["echo"].running)
        try:
            list(task.map([None] * 9, entry="main:forever"))
        except KeyboardInterrupt:
            print("interrupted", task(2), host.close())
    """)
    assert (done.returncode, done.stdout) == (0, "interrupted 2 ()\n"), done.stderr


def test_ctrl_c_in_close_can_be_followed_by_a_harder_close():
    done = in_a_process("""
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(build())
        future = task.submit(None, entry="main:forever")
        until(future.running)
        try:
            threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()   # while it waits, not while it begins
            host.close()
        except KeyboardInterrupt:
            host.close(drain=False)
            print(type(future.exception(timeout=0)).__name__)
    """)
    assert (done.returncode, done.stdout) == (0, "ClosedError\n"), done.stderr


def test_ctrl_c_between_any_two_steps_of_close():
    """A lock that was taken in that step, and is never released, would block the second close forever."""
    done = in_a_process("""
        for number in itertools.count(5, 7):
            host = vmhost.Host(allow_unsigned=True)
            future = host.load(build()).submit(None, entry="main:forever")
            sys.settrace(hosts.interrupt_at(number))
            try:
                host.close(timeout_s=0)
                break
            except KeyboardInterrupt:
                host.close(drain=False)
            finally:
                sys.settrace(None)
                print(type(future.exception(timeout=0)).__name__)
    """)
    assert done.returncode == 0 and set(done.stdout.split()) == {"ClosedError"}, done.stderr
    assert len(done.stdout.split()) > 20


def test_an_idle_host_burns_no_cpu(host, echo):
    def idle():
        before = time.process_time()
        time.sleep(0.5)
        return time.process_time() - before < 0.05

    echo(1)
    until(idle)  # VMs may still boot ahead


def test_two_hosts_live_side_by_side(host):
    with vmhost.Host(allow_unsigned=True) as second:
        first_task, second_task = host.load(build()), second.load(build(source="def run(value):\n    return -value\n"))
        assert [first_task(1), second_task(1)] == [1, -1]
    assert host.task("echo")(2) == 2
