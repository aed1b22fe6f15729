"""Large bytes and str cross with their memory. Other holders of the value do not notice: neither the task nor
another caller."""

import tracemalloc

import pytest

import vmhost
from tests.hosts import bundle, in_a_process

LARGE = 300_032  # more than the 64 KiB from which memory is handed over (handover.h)

TASK = f"""
import sys

LARGE = {LARGE}
CONSTANT = "k" * LARGE
kept = []

def data(size=LARGE):
    return bytes(range(256)) * (size // 256)

def text(size=LARGE):
    return "t" * size

def keep(value):
    kept.append(value)
    return value

def twice(value):
    return [value, value]
"""

# what a task may return; the same expressions make the expected value here
RESULTS = [
    "data()",
    "text()",
    "[bytes(65536), 'x' * 65536]",
    "[bytes(65535), 'x' * 65535]",
    "bytes(1_000_003)",
    "{'image': data(), 'text': text(), 'n': 1}",
    "[1, data(), [text()], 2]",
    "(data(), (text(), {'deep': [data()]}))",
    "twice(data())",
    "[twice(text()), twice(data())]",
    "keep(data())",
    "[keep(text())]",
    "keep([data(), 1])",
    "[keep({1: data()})]",
    "keep((text(), data()))",
    "[CONSTANT, CONSTANT]",
    "'\u00e9' * LARGE",
    "['\U0001f600' * LARGE, data()]",
    "{data(): data(), text(): text()}",
    "{(data(), 1): data(), (text(),): 2}",
    "{data(), text()}",
    "{(data(), text())}",
    "data(4 * LARGE)[:LARGE]",
    "bytes(bytearray(data()))",
    "''.join([text(), text()])",
    "sys.intern(text())",
    "keep(sys.intern(text(70_000)))",
]
TASK += "".join(f"\ndef make_{number}(value):\n    return {text}\n" for number, text in enumerate(RESULTS))
TASK += "\ndef what_was_kept(value):\n    return kept[-1]\n\ndef run(value):\n    return value\n"


@pytest.fixture(scope="module")
def task():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle(TASK, "maker", limits={"memory_bytes": 256 << 20, "concurrency": 1}))


@pytest.mark.parametrize("number", range(len(RESULTS)), ids=RESULTS)
def test_a_large_result_is_what_the_task_made_and_the_task_keeps_its_own(task, number):
    names = {}
    exec(TASK, names)
    expected = names[f"make_{number}"](None)
    future = task.submit(None, entry=f"main:make_{number}")
    first, again = future.result(), future.result()
    assert first == expected and again == expected and type(first) is type(expected)
    del first, again
    assert future.result() == expected, "a result may be asked for again when its first readers are gone"
    if names["kept"]:
        for _ in range(2):
            assert task(None, entry="main:what_was_kept") == names["kept"][-1]


@pytest.mark.parametrize(
    "value", [bytes(LARGE), "a" * LARGE, ["a" * 65535, "a" * 65536], {"a" * LARGE: "b" * LARGE}, "\u00e9" * LARGE]
)
def test_a_large_argument_comes_back(task, value):
    assert task(value) == value


def test_memory_that_is_given_away_is_paid_for_no_longer():
    source = "def run(size):\n    return [bytes(size), {'text': 'x' * size}]\n"
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source, "giver", limits={"memory_bytes": 64 << 20, "concurrency": 1}))
        results = [task(10_000_000) for _ in range(10)]  # in total three times the VM's limit
        assert all(len(data) == len(rest["text"]) == 10_000_000 for data, rest in results)
        [vm] = [vm for vm in host.statistics().vms if vm.task == "giver"]
        assert 0 < vm.live_bytes < 10_000_000


def test_results_that_nobody_asks_for_are_let_go_of():
    ended = in_a_process("""
        import ctypes, psutil
        # M_MMAP_THRESHOLD: what is freed is the system's at once, not libc's to keep
        ctypes.CDLL(None).mallopt(-3, 1 << 20)
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle("def run(size): return bytes(range(256)) * (size // 256)",
                                    limits={"memory_bytes": 256 << 20}))
            rss = []
            for _ in range(6):
                futures = [task.submit(30_000_128) for _ in range(5)]
                until(lambda: all(future.done() for future in futures))
                del futures
                rss.append(psutil.Process().memory_info().rss)
            # those of the last round go when the host's thread has told of them all
            until(lambda: psutil.Process().memory_info().rss < rss[2] + 60_000_000)
    """)
    assert ended.returncode == 0, ended.stderr


def test_the_memory_itself_changes_hands():
    """The host's value lies where the task made it. In a process with CPython's default allocators, whatever this one
    has."""
    ended = in_a_process(
        """
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle('''
                def run(size):
                    data, text = bytes(size), "x" * size
                    return {"data": data, "text": text, "at": [id(data), id(text)]}
            '''))
            value = task(1_000_000)
            assert value["at"] == [id(value["data"]), id(value["text"])], "copied"
    """,
        PYTHONMALLOC="default",
        PYTHONDEVMODE="",
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("allocator", ["malloc", "debug", "pymalloc_debug"])
def test_other_allocators_get_copies(allocator):
    ended = in_a_process(
        """
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle("def run(size): return [bytes(range(256)) * size, 'x' * size * 256]"))
            assert task(1000) == [bytes(range(256)) * 1000, "x" * 256_000]
    """,
        PYTHONMALLOC=allocator,
    )
    assert ended.returncode == 0, ended.stderr


def test_tracemalloc_in_the_host_sees_whole_lives(task):
    """While tracemalloc counts, memory is copied: its counts would be wrong otherwise."""
    tracemalloc.start()
    try:
        value = task(None, entry="main:make_0")
        assert value == bytes(range(256)) * (LARGE // 256)
        assert tracemalloc.get_object_traceback(value) is not None
    finally:
        tracemalloc.stop()
    del value
    assert task(None, entry="main:make_0") == bytes(range(256)) * (LARGE // 256)
