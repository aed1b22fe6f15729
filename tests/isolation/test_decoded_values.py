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
