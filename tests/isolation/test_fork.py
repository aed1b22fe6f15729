"""fork(2) in a process that runs VMs: the parent goes on; the child has no VMs and says so. It once crashed inside
CPython."""

from tests.hosts import in_a_process

PROGRAM = """
import os
import sys
import warnings

warnings.simplefilter("ignore", DeprecationWarning)     # CPython's, that a process with threads forks
with vmhost.Host(allow_unsigned=True) as host:
    task = host.load(bundle("def run(value):\\n    return value + 1\\n"))
    assert task(1) == 2
    for number in range(10):
        child = os.fork()
        if child == 0:
            try:
                task(1)
            except RuntimeError as error:
                sys.exit(7 if "forked" in str(error) else 8)
            sys.exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert task(number) == number + 1
"""


def test_a_child_lives_without_the_vms_and_the_parent_goes_on():
    done = in_a_process(PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")


FORKS = """
import warnings
from vmhost.isolation.vm import core
from vmhost.runtime.system_bundle import IN_CHECKOUT, boot_code_store

warnings.simplefilter("ignore", DeprecationWarning)
native, ended = core(), threading.Event()
store, events = boot_code_store(native, IN_CHECKOUT), native.Events()
kept = [native.VM(store, events) for _ in range(12)]
until(lambda: all(vm.state == "ready" for vm in kept))

def boot():
    while not ended.is_set():
        native.VM(store, events)        # dropped at once, and so ended when it has booted
        ended.wait(0.02)

def start_threads():        # which wants the runtime's lock, as hiding a VM does
    while not ended.is_set():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def fork():
    for _ in range(100):
        child = os.fork()
        if child == 0:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    print("forked", flush=True)

others = [threading.Thread(target=target, daemon=True)
          for target in (boot, start_threads, start_threads, start_threads)]
forkers = [threading.Thread(target=fork, daemon=True) for _ in range(2)]
for thread in others + forkers:
    thread.start()
for thread in forkers:
    thread.join(100)
assert [vm.state for vm in kept] == ["ready"] * 12
ended.set()
for thread in others:
    thread.join(100)
os._exit(0)
"""


def test_forks_while_vms_boot_hang_nobody():
    """A fork once waited for the GIL under a lock that another thread waited for under the GIL."""
    done = in_a_process(FORKS, timeout_s=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "forked\n" * 2)
