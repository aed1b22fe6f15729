"""Which failures a breaker attributes to the task, and which to the caller (docs/decisions/breaker.md)."""

import pytest

import vmhost
from tests.hosts import bundle, until
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

TASK = """
import json, time

class BadOrder(Exception):
    pass

class Worse(BadOrder):
    pass

class Named(type):
    @property
    def __module__(cls):
        raise RuntimeError("never asked")

class Odd(Exception, metaclass=Named):
    pass

ERRORS = {"value": ValueError, "unicode": lambda: UnicodeDecodeError("utf-8", b"", 0, 1, ""),
          "json": lambda: json.JSONDecodeError("", "", 0), "type": TypeError, "key": KeyError, "index": IndexError,
          "runtime": RuntimeError, "zero": ZeroDivisionError, "own": BadOrder, "worse": Worse, "exit": SystemExit,
          "group": lambda: ExceptionGroup("", [ValueError()]), "odd": Odd}

def run(value):
    raise ERRORS[value]()

def fine(value):
    return value

def odd_result(value):
    return run

def sleep(value):
    time.sleep(value)

def burn(value):
    while True:
        pass

def grow(value):
    return b"x" * (1 << 30)
"""


@pytest.fixture(scope="module")
def load():
    """load(**breaker) -> a task of its own, whose breaker opens at two failures in a row."""
    tasks, hosts = iter(range(10**6)), []

    def new_task(limits=None, source=TASK, **breaker):
        policy = Policy(
            task=TaskPolicy(breaker=BreakerPolicy(consecutive=2, open_s=300, **breaker)), warm=1, max_warm=1
        )
        hosts.append(vmhost.Host(allow_unsigned=True, policy=policy))
        return hosts[-1].load(bundle(source, name=f"blame{next(tasks)}", limits=limits))

    yield new_task
    for host in hosts:
        host.close(drain=False)


def opened(task, value=None, times=3, **call):
    """Is the breaker of `task` open after this number of calls, each of which fails?"""
    for _ in range(times):
        try:
            task(value, **call)
        except vmhost.BreakerOpenError:
            return True
        except vmhost.VMHostError:
            continue
        raise AssertionError("it did not fail")
    return task._host.statistics().tasks[task.name].breaker.state != "closed"


@pytest.mark.parametrize("error", ["value", "unicode", "json", "type", "key", "index"])
def test_what_bad_input_raises_is_the_callers(load, error):
    task = load()
    assert not opened(task, error, times=6)
    assert task(1, entry="main:fine") == 1
    counted = task._host.statistics().tasks[task.name]
    assert (counted.calls, counted.failures, counted.breaker.state) == (7, 6, "closed")


@pytest.mark.parametrize("error", ["runtime", "zero", "own", "exit", "group", "odd"])
def test_any_other_exception_is_the_tasks(load, error):
    assert opened(load(), error)


@pytest.mark.parametrize(
    ("error", "breaker", "opens"),
    [
        ("worse", {"caller_errors": ["main.BadOrder"]}, False),
        ("own", {"caller_errors": ["main.Worse"]}, True),
        ("own", {"caller_errors": ["BadOrder"]}, True),
        ("own", {"caller_errors": ["main.BadOrderly"]}, True),
        ("value", {"caller_errors": []}, True),
        ("value", {"caller_errors": ["KeyError"]}, True),
        ("runtime", {"caller_errors": ["Exception"]}, False),
        ("exit", {"caller_errors": ["Exception"]}, True),
        ("runtime", {"failures": ["load", "time"]}, False),
        ("runtime", {"failures": []}, False),
        ("runtime", {"failures": ["error"]}, True),
    ],
)
def test_which_exceptions_count_is_configured(load, error, breaker, opens):
    assert opened(load(**breaker), error) is opens


def test_arguments_that_cannot_cross_never_reach_it(load):
    task = load()
    assert not opened(task, object(), times=6)
    assert task(1, entry="main:fine") == 1


def test_results_that_cannot_cross_are_the_tasks(load):
    assert opened(load(), entry="main:odd_result")
    assert not opened(load(failures=["error"]), entry="main:odd_result")


def test_entries_that_the_caller_made_up_are_the_callers(load):
    assert not opened(load(), entry="main:nowhere", times=6)
    assert not opened(load(), entry="nowhere:run", times=6)
    assert opened(load(source="raise RuntimeError('not today')\ndef run(value): pass\n"))
    assert opened(
        load(source="raise ValueError('not today')\ndef run(value): pass\n")
    )  # no input of a caller is in sight


def test_a_callers_own_timeout_is_the_callers_and_a_limit_is_the_tasks(load):
    assert not opened(load(), 60, entry="main:sleep", timeout_s=0.02, times=4)
    assert not opened(load(limits={"wall_time": "60 s"}), 60, entry="main:sleep", timeout_s=0.02, times=4)
    # while a VM boots, which takes longer than that on a slow machine, the time of calls passes in the queue
    assert opened(load(limits={"wall_time": "0.1 s"}), 60, entry="main:sleep", times=200)
    assert opened(load(limits={"wall_time": "0.1 s"}), 60, entry="main:sleep", timeout_s=30, times=200)
    assert opened(load(limits={"cpu_time": "0.05 s"}), entry="main:burn")
    assert opened(load(limits={"memory": "8 MiB"}), entry="main:grow")
    assert not opened(load(limits={"memory": "8 MiB"}, failures=["error"]), entry="main:grow")


def test_time_that_passed_in_the_queue_says_nothing_about_the_task(load):
    task = load(limits={"wall_time": "3 s", "concurrency": 1})
    assert task(1, entry="main:fine") == 1
    futures = [task.submit(60, entry="main:sleep")]
    until(lambda: futures[0].running() or futures[0].done())
    futures += [task.submit(1, entry="main:fine") for _ in range(5)]
    assert [type(future.exception()) for future in futures[:1]] == [vmhost.TimeLimitError]
    for future in futures[1:]:
        future.exception()
    assert task._host.statistics().tasks[task.name].breaker.state == "closed"


def test_a_probe_that_its_caller_spoils_proves_nothing():
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(consecutive=1, open_s=1e-6, max_open_s=1e-6, probes=1)))
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        task = host.load(bundle(TASK))
        with pytest.raises(vmhost.TaskError, match="RuntimeError"):
            task("runtime")
        state = lambda: host.statistics().tasks["task"].breaker.state  # noqa: E731
        for _ in range(3):
            with pytest.raises(vmhost.TaskError, match="ValueError"):
                task("value")
            assert state() == "half-open"
        assert task(1, entry="main:fine") == 1
        assert state() == "closed"
