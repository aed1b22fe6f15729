"""Bad input of users: one clear error each, and no effect on anything else.

Wrong task folders are in tests/bytecode/, altered and foreign bundles in tests/bytecode/test_format.py and
test_signing.py, a host's settings in tests/vmhost/. Here: values, what a task does to its process, and hosts closed at
a bad moment."""

import io
import logging
import sys
import threading

import numpy
import pytest

import vmhost
from tests.batches import each
from tests.hosts import bundle, in_a_process, until
from vmhost.bytecode.format import write_bundle
from vmhost.bytecode.signing import TrustStore, generate_key
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

TASK = r"""
import os, sys, threading, time

def run(value):
    return value

def evaluate(value):
    return RESULTS[value]()

class Number(int):
    pass

class Named:
    def __init__(self):
        self.name = "x"

def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value

def ring():
    value = []
    value.append(value)
    return value

RESULTS = {
    "an object": Named, "a class": lambda: Named, "a function": lambda: run, "a module": lambda: sys,
    "a generator": lambda: (x for x in ()), "a subclass of int": lambda: Number(1),
    "an object deep inside": lambda: {"a": [1, (2, {"b": Named()})]}, "an object as a key": lambda: {Named(): 1},
    "a range": lambda: range(3), "an iterator": lambda: iter([]), "itself": ring, "too deep": lambda: nested(100_000),
    "an exit": lambda: SystemExit("x"), "an open file": lambda: sys.stdout, "a lock": threading.Lock,
}

def recursion(value):
    return recursion(value) + 1

def recursion_in_c(value):
    class Deep:
        def __repr__(self):
            return repr(self)
    return repr(Deep())

def deep_str(value):
    return str(nested(value))

def deep_comparison(value):
    return nested(value) == nested(value)

def deep_free(value):
    nested(value)
    return "freed"

def large(value):
    return b"x" * value

def many(value):
    return list(range(value))

def close_out(value):
    os.close(1)

def dup_over(value):
    os.dup2(2, 1)

def leave(value):
    os._exit(7)

def kill(value):
    os.kill(os.getpid(), 9)

def abort(value):
    os.abort()

def exits(value):
    sys.exit(5)

def quits(value):
    raise SystemExit("bye")

def interrupts(value):
    raise KeyboardInterrupt

def generator_exit(value):
    raise GeneratorExit

class Odd(BaseException):
    def __str__(self):
        raise RuntimeError("no text")

def odd(value):
    raise Odd

def group(value):
    raise ExceptionGroup("both", [ValueError(1), ExceptionGroup("inner", [KeyError("k")])])

def chained(value):
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise LookupError("while dividing") from error

def stopped_by_itself(value):
    import _vmhost
    raise _vmhost.Stopped

def long_message(value):
    raise ValueError("x" * 10_000_000)

def shout(value):
    for number in range(200):
        print(f"line {number} of {value}", "." * 50)
        sys.stderr.write(f"half {number} ")
    sys.stderr.write("\n")
    os.write(1, f"raw {value}\n".encode())
    sys.__stdout__.write(f"old {value}\n")

def endless_line(value):
    while True:
        sys.stdout.write("x" * 1000)

def flood(value):
    while True:
        print("flood")
"""


@pytest.fixture(scope="module")
def host():
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=calm)) as host:
        yield host


@pytest.fixture(scope="module")
def task(host):
    return host.load(bundle(TASK))


class Text(str):
    pass


class Anything:
    pass


def rings():
    ring = []
    ring.append(ring)
    return ring


def nest(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


ARGUMENTS = {
    "an object": (Anything(), "Anything"),
    "a class": (int, "type"),
    "a function": (nest, "function"),
    "a module": (sys, "module"),
    "a subclass": (Text("x"), "Text"),
    "deep inside": ({"a": [(Anything(),)]}, r"\$.*a.*0.*0.*Anything"),
    "as a key": ({Anything(): 1}, "Anything"),
    "a file": (io.StringIO(), "StringIO"),
    "a thread": (threading.current_thread(), "Thread"),
    "itself": (rings(), "deep|nest"),
    "too deep": (nest(100_000), "deep|nest"),
    "an array of objects": (numpy.array([Anything()]), "object|dtype|format"),
    "an exit": (SystemExit("x"), "SystemExit"),
    "Ellipsis": (..., "ellipsis"),
}


@each("what", ARGUMENTS)
@each("method", ["call", "submit", "map"])
def test_an_argument_that_cannot_cross_is_named_and_nothing_is_submitted(task, what, method):
    value, named = ARGUMENTS[what]
    calls = {
        "call": lambda: task(value),
        "submit": lambda: task.submit(value).result(),
        "map": lambda: list(task.map([1, value])),
    }
    with pytest.raises(vmhost.CrossingError, match=named):
        calls[method]()
    assert task(1) == 1


@pytest.mark.parametrize(
    "what",
    [
        "an object",
        "a class",
        "a function",
        "a module",
        "a generator",
        "a subclass of int",
        "an object deep inside",
        "an object as a key",
        "a range",
        "an iterator",
        "itself",
        "too deep",
        "an exit",
        "an open file",
        "a lock",
    ],
)
def test_a_result_that_cannot_cross_is_named_and_its_vm_goes_on(task, what):
    with pytest.raises(vmhost.CrossingError, match="task 1.0.0: result: "):
        task(what, entry="main:evaluate")
    assert task(1) == 1


@pytest.mark.parametrize(
    ("entry", "value"), [("recursion", 0), ("recursion_in_c", 0), ("deep_str", 100_000), ("deep_comparison", 100_000)]
)
def test_recursion_without_end_is_an_error_of_the_task(task, entry, value):
    with pytest.raises(vmhost.TaskError) as caught:
        task(value, entry=f"main:{entry}")
    assert caught.value.type_name == "RecursionError"
    assert task(1) == 1


def test_deep_structures_are_freed_on_a_small_stack(task):
    assert task(200_000, entry="main:deep_free") == "freed"


def test_huge_results_cross_within_the_limit_and_are_refused_beyond(host, task):
    wide = host.load(bundle(TASK, "wide", limits={"memory_bytes": 512 << 20}))
    assert len(wide(64 << 20, entry="main:large")) == 64 << 20
    assert wide(1_000_000, entry="main:many")[-1] == 999_999
    with pytest.raises(vmhost.MemoryLimitError):
        task(1 << 30, entry="main:large")
    with pytest.raises(vmhost.MemoryLimitError):
        task(100_000_000, entry="main:many")
    assert task(1) == 1


@pytest.mark.parametrize("entry", ["close_out", "dup_over", "leave", "kill", "abort"])
def test_what_would_hurt_the_process_is_denied(task, entry):
    with pytest.raises(vmhost.PermissionDenied):
        task(0, entry=f"main:{entry}")
    assert task(1) == 1


@pytest.mark.parametrize(
    ("entry", "type_name", "message"),
    [
        ("exits", "SystemExit", "5"),
        ("quits", "SystemExit", "bye"),
        ("interrupts", "KeyboardInterrupt", ""),
        ("generator_exit", "GeneratorExit", ""),
        ("odd", "main.Odd", None),
        ("group", "ExceptionGroup", "both (2 sub-exceptions)"),
        ("chained", "LookupError", "while dividing"),
    ],
)
def test_whatever_a_task_raises_is_its_callers_error_and_no_more(task, entry, type_name, message):
    with pytest.raises(vmhost.TaskError) as caught:
        task(0, entry=f"main:{entry}")
    assert caught.value.type_name == type_name
    assert message is None or caught.value.guest_message == message
    assert entry in caught.value.guest_traceback
    assert task(1) == 1


def test_a_task_that_stops_itself_is_an_error_like_any_other(task):
    with pytest.raises(vmhost.TaskError, match="Stopped"):
        task(0, entry="main:stopped_by_itself")
    assert task(1) == 1


def test_a_message_of_any_length_arrives_or_is_cut(task):
    with pytest.raises(vmhost.TaskError) as caught:
        task(0, entry="main:long_message")
    assert caught.value.guest_message.startswith("xxxx")
    assert task(1) == 1


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def lines():
    handler, logger = Lines(), logging.getLogger("vmhost.task")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield handler.lines
    logger.propagate = True
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_output_of_many_vms_at_once_comes_as_whole_lines_to_the_logger_only(lines, capfd):
    with vmhost.Host(allow_unsigned=True) as host:
        talkers = [host.load(bundle(TASK, f"talker{number}")) for number in range(4)]
        for future in [talker.submit(number, entry="main:shout") for number, talker in enumerate(talkers)]:
            future.result()
    until(lambda: sum(line.startswith("line ") for line in lines) >= 4 * 200)
    dots = "." * 50
    for number in range(4):
        assert [line for line in lines if line.startswith("line") and f"of {number} " in line] == [
            f"line {each} of {number} {dots}" for each in range(200)
        ]
        assert f"raw {number}" in lines and f"old {number}" in lines
    assert sum(line == "".join(f"half {each} " for each in range(200)) for line in lines) == 4
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("entry", ["flood", "endless_line"])
def test_a_flood_of_output_is_bounded(lines, entry):
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(TASK, "flooder"))
        with pytest.raises(vmhost.TimeLimitError):
            task(0, entry=f"main:{entry}", timeout_s=0.5)
        other = host.load(bundle(TASK, "other"))
        assert other(1) == 1
    assert all(len(line) <= 8192 + 100 for line in lines)
    assert sum(map(len, lines)) < 200 << 20


def test_closing_the_host_in_a_callback_and_in_a_host_function_ends_all_calls():
    ended = threading.Event()
    host = vmhost.Host(allow_unsigned=True, functions={"close": lambda value: host.close(drain=False)})
    task = host.load(
        bundle(
            "from vmhost import guest\nimport time\ndef run(value):\n    guest.host.close(value)\n    time.sleep(60)\n"
            "def sleep(value):\n    time.sleep(value)\n",
            permissions={"host": ["close"]},
        )
    )
    waiting = task.submit(60, entry="main:sleep")
    waiting.add_done_callback(lambda future: ended.set())
    until(waiting.running)
    with pytest.raises((vmhost.ClosedError, vmhost.TaskError)):
        task(1)
    assert ended.wait(60)
    assert type(waiting.exception()) is vmhost.ClosedError
    assert host.close() == ()


SWAPS = {
    "code of one task under the signature of another": lambda one, other: (one.manifest, other.modules),
    "the manifest of one with the code of another": lambda one, other: (other.manifest, one.modules),
}


@pytest.mark.parametrize("what", SWAPS)
def test_bundles_put_together_from_two_signed_ones_are_refused(what):
    key = generate_key()
    bundles = [bundle(f"def run(value): return {number}\n", f"task{number}") for number in range(2)]
    signed = [write_bundle(each.manifest, each.modules, {}, each.texts, key) for each in bundles]
    manifest, modules = SWAPS[what](*bundles)
    forged = write_bundle(manifest, modules, {}, {}, generate_key())
    with vmhost.Host(trust=TrustStore.of(ours=key.public)) as host:
        assert [host.load(each)(0) for each in signed] == [0, 1]
        with pytest.raises(vmhost.BundleError, match="sign|trust|key"):
            host.load(forged)
        cut = signed[0][:-20]
        with pytest.raises(vmhost.BundleError):
            host.load(cut)
        with pytest.raises(vmhost.BundleError):
            host.load(b"")
        assert host.task("task0")(0) == 0


def test_the_process_keeps_its_output_when_tasks_reach_for_it():
    done = in_a_process("""
        from tests.test_bad_input import TASK
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle(TASK))
            for entry in ("close_out", "dup_over", "leave", "kill", "abort", "exits", "interrupts"):
                try:
                    task(0, entry="main:" + entry)
                except vmhost.VMHostError as error:
                    print(entry, type(error).__name__)
        print("still here")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{entry} PermissionDenied" for entry in ("close_out", "dup_over", "leave", "kill", "abort")
    ] + ["exits TaskError", "interrupts TaskError", "still here"]
