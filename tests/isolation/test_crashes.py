"""A crash of the process is attributed to the right task, in every phase of a VM and on each of its threads, and to no
task when the host itself crashed. Tasks have no way to crash by design, so a signal is sent to the thread that the
guest names."""

import signal

import pytest

from tests.hosts import in_a_process

TASK = """
import threading, time
from vmhost import guest

PHASE = "{phase}"

def here():
    guest.host.here(threading.get_native_id())
    while True:
        pass

def setup():
    if PHASE == "load":
        here()

def teardown():
    if PHASE == "end":
        here()

def run(value):
    if PHASE == "thread":
        thread = threading.Thread(target=here)
        thread.start()
        thread.join()
    if PHASE == "call":
        here()
    return value
"""

CRASH = """
    import ctypes, faulthandler
    from tests.isolation.test_crashes import TASK
    phase, number, state = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    faulthandler.enable()
    kill = lambda thread: ctypes.CDLL(None).tgkill(os.getpid(), thread, number)
    host = vmhost.Host(allow_unsigned=True, state=state, functions={"here": kill})
    granted = {"host": ["here"]}
    good = host.load(bundle(TASK.format(phase="none"), "good", permissions=granted))
    good(1)
    busy = good.submit(1)
    bad = host.load(bundle(TASK.format(phase=phase), "bad", "2.0.0", permissions=granted))
    print("ready", flush=True)
    if phase == "host":
        kill(threading.get_native_id())
    bad(1)
    host.unload("bad")
    time.sleep(60)
"""

NEXT = """
    from tests.isolation.test_crashes import TASK
    with vmhost.Host(allow_unsigned=True, state=sys.argv[1], functions={"here": print}) as host:
        print([(crash.task, crash.version, crash.phase, crash.signal) for crash in host.crashes])
        for name, version in (("good", "1.0.0"), ("bad", "2.0.0"), ("bad", "2.0.1")):
            task = host.load(bundle(TASK.format(phase="none"), name, version, permissions={"host": ["here"]}))
            try:
                print(task(1))
            except vmhost.BreakerOpenError as error:
                print("BreakerOpenError", str(host.crashes[0].signal) in str(error))
"""


@pytest.mark.parametrize(
    ("phase", "number", "message"),
    [
        ("call", signal.SIGABRT, [("bad", "2.0.0", "call", "SIGABRT")]),
        ("load", signal.SIGSEGV, [("bad", "2.0.0", "load", "SIGSEGV")]),
        ("end", signal.SIGBUS, [("bad", "2.0.0", "end", "SIGBUS")]),
        ("thread", signal.SIGFPE, [("bad", "2.0.0", "call", "SIGFPE")]),
        ("host", signal.SIGSEGV, []),
    ],
)
def test_the_next_host_is_told_and_that_tasks_breaker_is_open(tmp_path, phase, number, message):
    crashed = in_a_process(CRASH, phase, int(number), tmp_path)
    assert crashed.returncode == -number, crashed.stderr
    assert "Fatal Python error" in crashed.stderr, "faulthandler, which was there before, has its turn too"
    after = in_a_process(NEXT, tmp_path)
    assert after.stdout.splitlines() == [str(message), "1", "BreakerOpenError True" if message else "1", "1"], (
        after.stderr
    )
    again = in_a_process(NEXT, tmp_path)
    assert again.stdout.splitlines()[0] == "[]", "a crash is told once"
