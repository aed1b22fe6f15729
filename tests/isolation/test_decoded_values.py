"""What a task returns, or passes to a host function, is bounded by what it takes in the host, not by what it takes in
the VM or on the way."""

import threading

import pytest

import vmhost
from tests.hosts import bundle

TASK = """
import collections
import threading
import vmhost.engine.numpy as np

MAKE = {
    "deques": lambda: [collections.deque()] * 150_000,
    "sets": lambda: [set()] * 400_000,
    "frozensets": lambda: [frozenset([1])] * 300_000,
    "dicts": lambda: [{}] * 400_000,
    "lists": lambda: [[[]] * 1_000] * 1_500,
    "texts": lambda: ["\\N{SNOWMAN}" * 4] * 1_000_000,
    "arrays": lambda: [np.zeros(1)] * 400_000,
    "counters": lambda: [collections.Counter()] * 300_000,
    "within": lambda: {"a": ([collections.deque()] * 150_000,)},
    "numbers": lambda: [0.5] * 500_000,
    "pairs": lambda: [(number, -1.5) for number in range(50_000)],
    "own deques": lambda: [collections.deque([number]) for number in range(5_000)],
}

def run(name):
    return MAKE[name]()

def passes(name):
    from vmhost.guest import host
    return host.size(MAKE[name]())
"""
TOO_LARGE = ["deques", "sets", "frozensets", "dicts", "lists", "texts", "arrays", "counters", "within"]
LARGE_ON_THE_WAY = ["lists", "texts", "arrays"]  # the VM pays for a message that waits: such a call is stopped
FINE = ["numbers", "pairs", "own deques"]


@pytest.fixture(scope="module")
def task():
    policy = vmhost.Policy(task=vmhost.TaskPolicy(breaker=vmhost.BreakerPolicy(enabled=False)))
    with vmhost.Host(allow_unsigned=True, functions={"size": len}, policy=policy) as host:
        yield host.load(bundle(TASK, limits={"memory": "16 MiB"}, permissions={"host": ["size"]}))


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_would_be_much_larger_in_the_host_is_refused(task, name):
    with pytest.raises(vmhost.MemoryLimitError):
        task(name)
    if name in LARGE_ON_THE_WAY:
        with pytest.raises(vmhost.MemoryLimitError):
            task(name, entry="main:passes")
        return
    with pytest.raises(vmhost.TaskError, match="MemoryError: argument: .* bytes") as caught:
        task(name, entry="main:passes")
    assert caught.value.type_name == "MemoryError"


@pytest.mark.parametrize("name", FINE)
def test_what_is_about_as_large_there_arrives(task, name):
    assert len(task(name)) == task(name, entry="main:passes")


def test_the_message_of_a_second_call_is_not_built_while_the_first_one_waits():
    """It would refuse the object, which cannot cross, if it looked at it."""
    waits, ends = threading.Event(), threading.Event()

    def wait(_):
        waits.set()
        assert ends.wait(60)

    source = """
import threading
import _vmhost

def run(_):
    threading.Thread(target=_vmhost.host_call, args=("wait", None)).start()

def second(_):
    try:
        _vmhost.host_call("wait", object())
    except Exception as error:
        return type(error).__name__, str(error)
"""
    with vmhost.Host(allow_unsigned=True, functions={"wait": wait}) as host:
        task = host.load(bundle(source, limits={"concurrency": 1}, permissions={"host": ["wait"]}))
        task(None)
        assert waits.wait(60)
        try:
            kind, text = task(None, entry="main:second")
        finally:
            ends.set()
    assert (kind, "one at a time" in text) == ("RuntimeError", True)


WAITING = """
from vmhost.guest import host

def run(items):
    value = [0.5] * items
    before = host.live_bytes(None)
    return before, host.live_bytes(value), host.live_bytes(None)

def too_large(bytes):
    return host.live_bytes(b"x" * bytes)

def name(text):
    import _vmhost
    try:
        _vmhost.host_call(text, None)
    except ValueError as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def waiting():
    def live_bytes(_):
        return sum(vm.live_bytes for vm in host.statistics().vms if vm.task == "task")

    with vmhost.Host(allow_unsigned=True, functions={"live_bytes": live_bytes}) as host:
        yield host.load(bundle(WAITING, limits={"memory": "64 MiB"}, permissions={"host": ["live_bytes"]}))


def test_a_message_to_a_host_function_is_paid_for_until_it_is_answered(waiting):
    before, during, after = waiting(1_000_000)
    assert during - before >= 9_000_000  # a tag and eight bytes for each number
    assert after - before < 1_000_000


def test_a_message_that_does_not_fit_beside_what_the_vm_has_is_refused(waiting):
    assert waiting(20 << 20, entry="main:too_large") > 2 * (20 << 20)
    with pytest.raises(vmhost.MemoryLimitError):
        waiting(40 << 20, entry="main:too_large")


@pytest.mark.parametrize("text", ["x" * 1025, "a\0b"])
def test_the_name_of_a_host_function_is_bounded(waiting, text):
    assert "a host function's name has at most 1024" in waiting(text, entry="main:name")
