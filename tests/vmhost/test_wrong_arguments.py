"""Every public constructor and call with a wrong argument: one error of the documented type that names the argument,
the expected and the given value."""

import asyncio

import pytest

import vmhost
from tests import warm
from tests.batches import each
from tests.hosts import bundle
from vmhost import BreakerPolicy, ConfigurationError, Host, Limits, Policy, TaskPolicy, VMExecutor, limits
from vmhost.settings.host import read_host_yaml

NAN, HUGE = float("nan"), 10**5000
OBJECT = object()

MADE = [
    (Limits, {"memory_bytes": "64 MiB"}, "limits: memory_bytes: expected 4 MiB to 256 TiB, got '64 MiB'"),
    (Limits, {"memory_bytes": 2**63}, "memory_bytes: expected 4 MiB to 256 TiB"),
    (Limits, {"memory_bytes": None}, "memory_bytes: expected"),
    (Limits, {"memory_bytes": HUGE}, "memory_bytes: expected 4 MiB to 256 TiB, got a number of about 5001 digits"),
    (Limits, {"stack_bytes": 2**63}, "stack_bytes: expected 96 KiB to 256 MiB"),
    (Limits, {"wall_s": -1}, "wall_s: expected a time above 0"),
    (Limits, {"wall_s": True}, "wall_s: expected a time above 0"),
    (Limits, {"cpu_s": NAN}, "cpu_s: expected a time above 0"),
    (Limits, {"concurrency": 0}, "concurrency: expected a whole number from 1 to 1024, got 0"),
    (Limits, {"concurrency": 2.0}, "got 2.0"),
    (Policy, {"limits": {"memory": "1 MiB"}}, "Policy: limits: memory: expected 4 MiB to 256 TiB, got '1 MiB'"),
    (Policy, {"limits": {"memory": "9" * 400 + " MiB"}}, "Policy: limits: memory: expected less than 2\\*\\*63 bytes"),
    (
        Policy,
        {"limits": {"memory": float("inf")}},
        "Policy: limits: memory: expected less than 2\\*\\*63 bytes, got inf",
    ),
    (Policy, {"limits": {"speed": 1}}, "unknown limit `speed`; expected concurrency"),
    (Policy, {"limits": {1: 1}}, "unknown limit `1`"),
    (Policy, {"limits": 5}, "Policy: limits: expected a mapping such as .* or Limits, got 5"),
    (Policy, {"limits": {"wall_time": HUGE}}, "wall_time: expected"),
    (Policy, {"max_vms": 0}, "Policy: max_vms: expected a whole number from 1 to 4096, got 0"),
    (Policy, {"max_vms": "8"}, "max_vms: expected"),
    (Policy, {"max_vms": True}, "max_vms: expected"),
    (Policy, {"warm": -1}, "warm: expected a whole number from 0"),
    (Policy, {"idle_s": 0}, "idle_s: expected"),
    (Policy, {"idle_s": NAN}, "idle_s: expected a number above 0, got nan"),
    (Policy, {"grace_s": "1 s"}, "grace_s: expected a number above 0, got '1 s'"),
    (Policy, {"pressure_percent": 101}, "pressure_percent: expected a number above 0, up to 100"),
    (Policy, {"memory_bytes": 1.5}, "memory_bytes: expected"),
    (Policy, {"allow": "read"}, "allow: expected a list with any of read, write"),
    (Policy, {"allow": ["root"]}, "allow: expected"),
    (Policy, {"allow": [["read"]]}, "allow: expected"),
    (Policy, {"search": []}, "search: expected measured or fixed"),
    (Policy, {"task": BreakerPolicy()}, "Policy: task: expected a TaskPolicy"),
    (Policy, {"tasks": [1]}, "Policy: tasks: expected a mapping"),
    (Policy, {"tasks": {"a": {}}}, "Policy: tasks: 'a': expected the name of a task and its TaskPolicy, got {}"),
    (TaskPolicy, {"weight": 0}, "TaskPolicy: weight: expected a number above 0"),
    (TaskPolicy, {"priority": 101}, "priority: expected a whole number from -100"),
    (TaskPolicy, {"queue": 0}, "queue: expected"),
    (TaskPolicy, {"queue": 100_000_001}, "queue: expected a whole number from 1 to 100000000, got 100000001"),
    (BreakerPolicy, {"consecutive": 2**63}, r"consecutive: expected a whole number from 1 to 2\*\*63 - 1, got 9223"),
    (Policy, {"memory_bytes": 2**63}, r"memory_bytes: expected a whole number from 1 to 2\*\*63 - 1, got 9223"),
    (limits.RecordPolicy, {"folder": "f", "max_bytes": 2**63}, r"max_bytes: expected a whole number from 1 to 2\*\*63"),
    (Policy, {"allow": ["read", "read"]}, "allow: expected a list with any of read, .*, each once, got"),
    (TaskPolicy, {"fresh": 1}, "fresh: expected True or False, got 1"),
    (TaskPolicy, {"ready": None}, "ready: "),
    (TaskPolicy, {"limits": {"memory": 1}}, "TaskPolicy: limits: memory: expected 4 MiB"),
    (TaskPolicy, {"breaker": True}, "breaker: expected a BreakerPolicy"),
    (BreakerPolicy, {"consecutive": 0}, "BreakerPolicy: consecutive: expected"),
    (BreakerPolicy, {"failure_rate": 1.5}, "failure_rate: .* up to 1, got 1.5"),
    (BreakerPolicy, {"window_s": "30 s"}, "window_s: expected"),
    (BreakerPolicy, {"slow_s": -1}, "slow_s: expected"),
    (BreakerPolicy, {"enabled": 0}, "enabled"),
    (BreakerPolicy, {"failures": "error"}, "failures: expected a list with any of error, load"),
    (BreakerPolicy, {"failures": ["lost"]}, "failures: expected"),
    (BreakerPolicy, {"caller_errors": [ValueError]}, "caller_errors: expected a list of at most 64 names"),
    (BreakerPolicy, {"caller_errors": ["a b"]}, "names"),
    (BreakerPolicy, {"caller_errors": ["A\n"]}, "caller_errors: expected"),
    (Host, {"trust": 5}, "trust: expected a TrustStore or the path of a file or folder of public keys, got 5"),
    (Host, {"trust": "a\0b"}, "trust: expected"),
    (Host, {"trust": []}, "trust: expected"),
    (Host, {"policy": {}}, "policy: expected a Policy, got {}"),
    (Host, {"policy": Policy}, "policy: expected a Policy"),
    (Host, {"functions": [1]}, r"functions: expected a mapping of names to functions, got \[1\]"),
    (Host, {"functions": {1: print}}, "functions: expected names"),
    (Host, {"functions": {"a": 1}}, "functions: a: expected a callable, got int"),
    (Host, {"allow_unsigned": "no"}, "allow_unsigned: expected True or False"),
    (Host, {"state": 5}, "state: expected the path of a folder, got 5"),
    (Host, {"state": "a\0b"}, "state: expected the path of a folder"),
    (VMExecutor, {"permissions": {"net": True}}, "permissions: net: expected a list of names, got True"),
    (VMExecutor, {"permissions": [1]}, "expected a mapping"),
    (VMExecutor, {"permissions": {"nett": []}}, "permissions: unknown kind 'nett'"),
    (VMExecutor, {"permissions": {1: []}}, "unknown kind 1"),
    (VMExecutor, {"permissions": {"read": "/data"}}, "permissions: read: expected a list of names, got '/data'"),
    (VMExecutor, {"permissions": {"read": ["a\0b"]}}, "permissions: read: expected an absolute path"),
    (VMExecutor, {"permissions": {"net": ["x"]}}, "an address"),
    (
        VMExecutor,
        {"permissions": {"env": [5]}},
        "permissions: env: expected the name of an environment variable, such as LANG, got 5",
    ),
    (VMExecutor, {"limits": 5}, "limits: expected a mapping"),
    (VMExecutor, {"limits": {"memory": "1 MiB"}}, "limits: memory: expected 4 MiB"),
    (VMExecutor, {"limits": {"stack": 2**63}}, "limits: stack: expected"),
    (VMExecutor, {"limits": [("memory", 1)]}, "limits: expected a mapping"),
]


@each(("make", "given", "message"), MADE, ids=range(len(MADE)))
def test_what_cannot_be_made_is_one_configuration_error(make, given, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(**given)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"max_workers": "2"}, TypeError, "max_workers: expected a whole number or None, got '2'"),
        ({"max_workers": 0}, ValueError, "greater than 0"),
        ({"initializer": 5}, TypeError, "initializer must be a callable, got 5"),
        ({"initargs": 5}, TypeError, "initargs: expected a tuple of arguments, got 5"),
        ({"thread_name_prefix": "a\0b"}, ValueError, "thread_name_prefix: expected a name without NUL"),
        ({"thread_name_prefix": "\ud800"}, ValueError, "thread_name"),
    ],
)
def test_what_pools_take_as_well_is_refused_as_they_do(given, error, message):
    with pytest.raises(error, match=message):
        VMExecutor(**given)


_REQUIRED = {limits.RecordPolicy: {"folder": "baselines"}}


def test_every_field_of_a_policy_is_checked():
    for policy in (Limits, BreakerPolicy, limits.RecordPolicy, vmhost.DebugPolicy, TaskPolicy, Policy):
        for name in policy.__dataclass_fields__:
            with pytest.raises(ConfigurationError, match=f"{policy.__name__}: {name}: ".replace("Limits", "limits")):
                policy(**_REQUIRED.get(policy, {}) | {name: OBJECT})


def test_caps_may_be_limits():
    with Host(allow_unsigned=True, policy=Policy(limits=Limits(memory_bytes=8 << 20, wall_s=2))) as host:
        task = host.load(bundle("def run(value): return value\n", limits={"memory": "64 MiB", "cpu_time": "1 s"}))
        assert (task.limits.memory_bytes, task.limits.wall_s, task.limits.cpu_s) == (8 << 20, 2, 1)
        assert task(1) == 1
    with VMExecutor(1, limits=Limits(memory_bytes=8 << 20)) as executor, pytest.raises(vmhost.MemoryLimitError):
        executor.submit(bytes, 1 << 28).result()


@pytest.fixture(scope="module")
def host():
    with Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture(scope="module")
def task(host):
    return host.load(bundle("def run(value): return value\n"))


CALLS = [
    ({"timeout_s": "1"}, TypeError, "timeout_s: expected a number of seconds or None, got"),
    ({"timeout_s": []}, TypeError, "timeout_s: expected"),
    ({"timeout_s": -1}, ValueError, "timeout_s: expected a number of seconds from 0 on, got -1"),
    ({"timeout_s": NAN}, ValueError, "got nan"),
    ({"timeout_s": HUGE}, ValueError, "timeout_s: expected a number of seconds, got"),
    ({"priority": "1"}, TypeError, "priority: expected a whole number"),
    ({"priority": None}, TypeError, "priority: expected"),
    ({"priority": 1.5}, TypeError, "priority: expected"),
    ({"priority": 8}, ValueError, "-8 to 7, got 8"),
    ({"priority": 2**70}, ValueError, "priority: expected -8 to 7"),
    ({"entry": 5}, TypeError, 'entry: expected "module:function"'),
    ({"entry": "main:run\0x"}, ValueError, 'entry: expected "module:function", got'),
    ({"entry": "\ud800"}, ValueError, 'entry: expected "module:function"'),
    ({"entry": "nowhere"}, vmhost.TaskError, "the entry point could not be loaded"),
    ({"bogus": 1}, TypeError, "bogus"),
]


@each("method", ["call", "submit", "run", "map"])
@each(("given", "error", "message"), CALLS, ids=range(len(CALLS)))
def test_wrong_options_of_a_call(task, method, given, error, message):
    methods = {
        "call": lambda: task(1, **given),
        "submit": lambda: task.submit(1, **given).result(),
        "run": lambda: asyncio.run(task.run(1, **given)),
        "map": lambda: list(task.map([1], **given)),
    }
    with pytest.raises(error, match=message) as caught:
        methods[method]()
    assert len(str(caught.value)) < 400
    assert task(1) == 1


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda host, task: task.map(5), TypeError, "values: expected something to iterate over, got 5"),
        (
            lambda host, task: task.map([1], window="x"),
            TypeError,
            "window: expected a whole number of at least 1, got 'x'",
        ),
        (lambda host, task: task.map([1], window=0), ValueError, "window: expected at least 1, got 0"),
        (lambda host, task: host.load(5), vmhost.BundleError, "expected a path or the bytes of a bundle, got 5"),
        (lambda host, task: host.load("a\0b"), vmhost.BundleError, "expected a path or the bytes of a bundle, got"),
        (lambda host, task: host.load("\ud800"), vmhost.BundleError, "expected a path or the bytes of a bundle, got"),
        (
            lambda host, task: host.load(task),
            vmhost.BundleError,
            "expected a path or the bytes of a bundle, got <vmhost.Task",
        ),
        (lambda host, task: host.unload(None), TypeError, "unload: expected a Task or the name of one, got None"),
        (lambda host, task: host.unload("nope"), KeyError, "nope: no such task is loaded; there are task"),
        (lambda host, task: host.task(5), KeyError, "5: no such task is loaded; there are task"),
        (
            lambda host, task: host.close(timeout_s="1"),
            TypeError,
            "timeout_s: expected a number of seconds or None, got '1'",
        ),
        (lambda host, task: Host.from_file(5), ConfigurationError, "host.yaml: expected a path, got 5"),
        (lambda host, task: Host.from_file("a\0b"), ConfigurationError, "host.yaml: expected a path, got"),
    ],
)
def test_wrong_arguments_of_a_host_and_a_task(host, task, ask, error, message):
    with pytest.raises(error, match=message):
        ask(host, task)
    assert task(1) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vms: {memory: 0x" + "f" * 5000 + "}", "yaml:1: not YAML: expected numbers of at most 64 bits"),
        ("vms: {max: 2.0}", "vms.max: expected a whole number"),
        ("vms: {idle_time: .nan}", "vms.idle_time: expected a time such as 500 ms, got nan"),
        ("limits: {memory: 1 MiB}", "limits.memory: expected 4 MiB to 256 TiB"),
        ("limits: {stack: 9223372036854775808}", "limits.stack: expected"),
        ("limits: {wall_time: 1e10}", "limits.wall_time: expected"),
        ("tasks: {a: {limits: {memory: 1}}}", "tasks.a.limits.memory: expected 4 MiB to 256 TiB, got 1"),
        ('state: "a\\0b"', "state: expected the path of a folder"),
        ('trust: "\\ud800"', "trust: expected the path"),
        ("queue: 1\ngrace_time: 2020-99-99", "yaml:2: not YAML: month must be"),
        ("queue: 1\ngrace_time: !!float x", "yaml:2: not YAML: could not convert"),
        ("queue: 1\ngrace_time: !!timestamp x", "yaml:2: not YAML: the text is not of the type that its tag"),
        ("queue: 1\ngrace_time: !other x", "yaml:2: not YAML: could not determine a constructor for the tag '!other'"),
        ("queue: 1\n? [a]\n: 1", "yaml:2: not YAML: expected a plain text as a key"),
        ("queue: 1\n? {a: 1}\n: 1", "yaml:2: not YAML: expected a plain text as a key"),
        ("breaker: {failures: [lost]}", "breaker.failures.0: expected one of error, load"),
        ("breaker: {caller_errors: [a b]}", "breaker.caller_errors.0: expected"),
        ("breaker: {failure_rate: .nan}", "breaker.failure_rate: expected"),
        ('limits: {wall_time: "5 s\\n"}', "limits.wall_time: expected a time"),
    ],
)
def test_wrong_values_in_host_yaml_are_named_with_their_line(tmp_path, text, message):
    path = tmp_path / "host.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_host_yaml(path)
    assert str(caught.value).startswith(str(path)) and len(str(caught.value)) < 400


GUARDED = """
import sys
import vmhost

def free(value):
    return value + 1

if __name__ == "__main__":
    def guarded(value):
        return value
    alias = lambda value: value
    with vmhost.VMExecutor(1, limits={"wall_time": "200 ms", "memory": "8 MiB"}) as executor:
        print(executor.submit(free, 1).result())
        for function in (guarded, alias):
            try:
                executor.submit(function, 1)
            except vmhost.CrossingError as error:
                print(str(error).partition(": ")[2].removeprefix(__file__ + ":"))
        import time
        for function, value in ((time.sleep, 60), (bytes, 1 << 28)):
            try:
                executor.submit(function, value).result()
            except vmhost.VMHostError as error:
                print(type(error).__name__, error)
"""


def test_a_function_under_the_main_guard_and_advice_without_a_task_yaml(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(GUARDED)
    done = warm.run(script, timeout=120)
    assert done.returncode == 0, done.stderr
    one, guarded, alias, late, large = done.stdout.splitlines()
    message = (
        'is bound under `if __name__ == "__main__":`, which does not run in a VM; define it above, at the top of the'
        " file"
    )
    assert (one, guarded, alias) == ("2", f"9: guarded {message}", f"11: alias {message}")
    assert late.startswith("TimeLimitError ") and late.endswith(
        "raise timeout_s, or `wall_time` in the executor's limits, or make the function faster"
    )
    assert large.startswith("MemoryLimitError ") and large.endswith(
        "raise `memory` in the executor's limits, or make the function smaller"
    )
