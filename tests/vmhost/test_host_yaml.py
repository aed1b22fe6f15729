"""host.yaml: every setting reaches the host, and mistakes are named with file, line and key."""

import math

import pytest

import vmhost
from tests.hosts import bundle, until
from vmhost.bytecode.format import write_bundle
from vmhost.errors import ConfigurationError
from vmhost.limits import BreakerPolicy, Policy
from vmhost.settings.host import read_host_yaml

FULL = """\
trust: keys
allow_unsigned: true
state: state
load: [build/digits.vmb]
vms: {max: 6, warm: 2, max_warm: 3, idle_time: 5 min, memory: 1 GiB, pressure: 80, boot_tries: 4}
grace_time: 250 ms
queue: 500
limits: {memory: 256 MiB, wall_time: 10 s}
allow: [read, host]
search: fixed
functions: {root: "math:sqrt"}
breaker: {consecutive: 7, open_time: 3 s}
tasks:
  digits: {weight: 2, priority: 50, queue: 50, fresh: true, ready: 1, limits: {concurrency: 1}, breaker: {slow: 20 ms}}
  other:
"""


def write(tmp_path, text):
    path = tmp_path / "host.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_it_says_arrives(tmp_path):
    settings = read_host_yaml(write(tmp_path, FULL))
    assert settings.trust == tmp_path / "keys"
    assert settings.state == tmp_path / "state"
    assert settings.load == (tmp_path / "build/digits.vmb",)
    assert settings.allow_unsigned
    assert settings.functions == {"root": math.sqrt}
    policy = settings.policy
    assert (policy.max_vms, policy.warm, policy.max_warm, policy.idle_s, policy.memory_bytes) == (6, 2, 3, 300, 1 << 30)
    assert (policy.pressure_percent, policy.boot_tries, policy.grace_s, policy.allow) == (80, 4, 0.25, ("read", "host"))
    assert (policy.limits, policy.search) == ({"memory": "256 MiB", "wall_time": "10 s"}, "fixed")
    digits, other = policy.for_task("digits"), policy.for_task("other")
    assert (digits.weight, digits.priority, digits.queue, digits.fresh, digits.ready) == (2, 50, 50, True, 1)
    assert digits.limits == {"concurrency": 1}
    assert digits.breaker == BreakerPolicy(consecutive=7, open_s=3, slow_s=0.02)
    assert (other.queue, other.breaker.consecutive) == (500, 7)
    assert policy.for_task("never named") == policy.task == other


def test_an_empty_file_is_a_host_with_the_defaults(tmp_path):
    settings = read_host_yaml(write(tmp_path, ""))
    assert (settings.policy, settings.trust, settings.functions) == (Policy(), None, {})


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a: [", "host.yaml:1: not YAML"),
        ("vms:\n  max: many\n", "host.yaml:2: vms.max: expected a whole number from 1 to 4096, got 'many'"),
        ("vms: {warmth: 3}\n", "host.yaml:1: vms.warmth: unknown key; did you mean 'warm'?"),
        ("queue: 5\nqueue: 6\n", "host.yaml:2: queue: written twice (first in line 1)"),
        ('{\n\t"queue": 5,\n\t"queue": 6\n}\n', "host.yaml:3: queue: written twice (first in line 2)"),
        ('queue: 5\nstate: "\\U00110000"\n', 'host.yaml:2: not YAML: expected an escape of a character, at most "\\U0'),
        ("load: &all [*all]\n", "host.yaml: not YAML: nested too deeply, or an alias (*name) within the value that it"),
        ("grace_time: soon\n", "host.yaml:1: grace_time: expected a time such as 500 ms, got 'soon'"),
        ("grace_time: 0 s\n", "host.yaml:1: grace_time: expected a quantity above zero"),
        (
            "tasks:\n  digits:\n    limits: {memory: 0 MiB}\n",
            "host.yaml:3: tasks.digits.limits.memory: expected a quantity above",
        ),
        (
            "functions: {f: 'nowhere.at.all:f'}\n",
            "host.yaml:1: functions.f: nowhere.at.all:f cannot be imported: No module named "
            "'nowhere'; if it is yours, put the folder that has it on PYTHONPATH",
        ),
        (
            "functions: {f: 'math:nothing'}\n",
            "host.yaml:1: functions.f: math:nothing cannot be imported: AttributeError: ",
        ),
        ("functions: {f: 'math:pi'}\n", "host.yaml:1: functions.f: expected a function, got math:pi of type float"),
        (
            "allow: [read, exec]\n",
            "host.yaml:1: allow.1: expected one of read, write, net, listen, env, host, tables, got 'exec'",
        ),
        ("search: quick\n", "host.yaml:1: search: expected measured or fixed, got 'quick'"),
        (
            "tasks: {digits: {priority: 101}}\n",
            "host.yaml:1: tasks.digits.priority: expected a whole number from -100 to 100, got 101",
        ),
        ("- a list\n", "host.yaml:1: the file: expected a mapping"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, expected):
    with pytest.raises(vmhost.ConfigurationError) as caught:
        read_host_yaml(write(tmp_path, text))
    assert expected in str(caught.value)


def test_a_host_function_whose_module_is_broken_is_a_mistake_in_the_file(tmp_path, monkeypatch):
    (tmp_path / "broken_functions.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        vmhost.ConfigurationError, match="yaml:1: functions.f: broken_functions:f cannot be imported: SyntaxError"
    ):
        read_host_yaml(write(tmp_path, "functions: {f: 'broken_functions:f'}\n"))


def test_all_problems_come_at_once(tmp_path):
    with pytest.raises(vmhost.ConfigurationError) as caught:
        read_host_yaml(write(tmp_path, "queue: none\nstate: 3\n"))
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_is_bounded_with_what_its_aliases_repeat(tmp_path):
    layers = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    with pytest.raises(ConfigurationError, match="at most 1,000,000 values; aliases"):
        read_host_yaml(write(tmp_path, "\n".join(layers)))
    with pytest.raises(ConfigurationError, match="/dev/zero: expected at most 16 MiB"):
        read_host_yaml("/dev/zero")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(vmhost.ConfigurationError, match="host.yaml: cannot be read"):
        read_host_yaml(tmp_path / "host.yaml")


def test_a_host_from_a_file_without_keys_names_them(tmp_path):
    with pytest.raises(vmhost.ConfigurationError, match="keys.*trust store"):
        vmhost.Host.from_file(write(tmp_path, "trust: keys\n"))


def test_a_running_host_takes_what_changed_and_names_what_needs_a_restart(tmp_path):
    for name in ("digits", "other"):
        data = bundle("def run(value): 1 / value", name=name)
        (tmp_path / f"{name}.vmb").write_bytes(write_bundle(data.manifest, data.modules, data.files, data.texts))
    path = write(tmp_path, "allow_unsigned: true\nload: [digits.vmb]\nbreaker: {consecutive: 1}\n")
    with vmhost.Host.from_file(path) as host:
        with pytest.raises(vmhost.TaskError):
            host.task("digits")(0)
        until(lambda: host.statistics().tasks["digits"].breaker.state == "open")
        before = host.task("digits")._current
        assert host.reload() == () and host.task("digits")._current is before
        write(tmp_path, "allow_unsigned: true\nload: [digits.vmb, other.vmb]\nlimits: {memory: 5 MiB}\nsearch: fixed\n")
        assert host.reload() == (f"{path}:4: search",)
        assert host.tasks == ("digits", "other") and host.policy.search == "measured"
        assert host.task("digits")._current.limits.memory_bytes == 5 << 20
        assert host.statistics().tasks["digits"].breaker.state == "open"
        write(tmp_path, "allow_unsigned: true\nload: []\nlimits: nonsense\n")
        with pytest.raises(ConfigurationError, match="host.yaml:3: limits: expected"):
            host.reload()
        assert host.tasks == ("digits", "other")
        write(tmp_path, "allow_unsigned: true\nload: [other.vmb]\n")
        assert host.reload() == () and host.tasks == ("other",)
    with vmhost.Host() as host, pytest.raises(ConfigurationError, match="not made from a file"):
        host.reload()
