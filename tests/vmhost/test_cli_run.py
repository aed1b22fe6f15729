"""The command line with VMs: calls, values, tracebacks, limits, Ctrl-C, doctor and the demo."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bytecode.compiler import compile_task
from vmhost import demo as demonstration
from vmhost import Host, host
from vmhost.cli import failures, keys, main

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from vmhost.cli import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def own_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("VMHOST_KEYS", str(tmp_path / "own keys"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def vmhost(capfd):
    """Runs a command line: gives (exit code, stdout, stderr) of the process: what a task wrote there is seen."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def bundle(tmp_path):
    """A function that compiles source text as the module `main` of a task and gives the bundle's path."""

    def compile_text(source, sign=None, limits="{memory: 32 MiB, wall_time: 20 s}", name="sample", more="", files=()):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "task.yaml").write_text(
            f'name: {name}\nversion: 1.0.0\nentry: main:run\npython: "3.{sys.version_info[1]}"\nlimits: {limits}\n'
            + more
        )
        for file, text in dict(files).items():
            (folder / file).write_text(text)
        (folder / "main.py").write_text(textwrap.dedent(source))
        path = tmp_path / f"{name}.vmb"
        path.write_bytes(compile_task(folder).to_bytes(keys.signing_key(sign) if sign else None))
        return path

    return compile_text


ECHO = "def run(value):\n    return value\n"


def test_a_signed_bundle_runs_and_its_result_is_all_of_stdout(vmhost, bundle):
    vmhost("keys", "new", "me", "--trust")
    path = bundle(
        "def run(value):\n    print('thinking')\n    return {'name': value['name'], 'seen': (1, b'x')}\n", "me"
    )
    code, out, err = vmhost("run", path, "--input", '{"name": "Ada"}')
    assert code == 0
    assert json.loads(out) == {"name": "Ada", "seen": {"$tuple": [1, {"$bytes": "eA=="}]}}
    assert out.count("\n") == 1
    assert "vmhost.task.sample: thinking" in err


def test_an_unsigned_or_untrusted_bundle_needs_a_flag(vmhost, bundle):
    path = bundle(ECHO)
    code, out, err = vmhost("run", path)
    assert code == failures.REFUSED and "not signed" in err
    assert vmhost("run", path, "--allow-unsigned")[:2] == (0, "null\n")
    vmhost("keys", "new", "stranger")
    path = bundle(ECHO, "stranger")
    code, out, err = vmhost("run", path)
    assert code == failures.REFUSED and "does not trust" in err


def test_input_comes_from_a_file_or_stdin_or_the_command_line(vmhost, bundle, tmp_path, monkeypatch):
    path = bundle(ECHO)
    (tmp_path / "value.json").write_text('{"a": {"$set": [1]}}')
    assert json.loads(vmhost("run", path, "--allow-unsigned", "--input", tmp_path / "value.json")[1]) == {
        "a": {"$set": [1]}
    }
    ended = subprocess.run(
        [*COMMAND, "run", path, "--allow-unsigned", "--input", "-", "--json"],
        input=b"[1.5]",
        capture_output=True,
        cwd=ROOT,
        timeout=60,
    )
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["result"], document["task"]) == (0, [1.5], "sample 1.0.0")
    assert 0 < document["elapsed_s"] < 60


def test_any_text_comes_out_as_json_whatever_the_terminal_can_say(bundle):
    path = bundle(ECHO)
    for encoding in ("utf-8", "ascii"):
        ended = subprocess.run(
            [*COMMAND, "run", path, "--allow-unsigned", "--input", '"\\ud800 \u00e9"'],
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            cwd=ROOT,
            timeout=60,
        )
        assert (ended.returncode, json.loads(ended.stdout)) == (0, "\ud800 \u00e9"), ended.stderr


def test_each_item_is_a_call_and_results_keep_their_order(vmhost, bundle):
    path = bundle("def run(value):\n    return 10 // value\n")
    code, out, _ = vmhost("run", path, "--allow-unsigned", "--each", "--input", "[1, 2, 5]")
    assert (code, json.loads(out)) == (0, [10, 5, 2])
    code, out, err = vmhost("run", path, "--allow-unsigned", "--each", "--input", "[1, 0, 5]")
    assert (code, out) == (failures.TASK_FAILED, "") and "error: item 1: sample 1.0.0: ZeroDivisionError" in err
    code, out, err = vmhost("run", path, "--allow-unsigned", "--each", "--input", "[1, 0, 5]", "--json")
    assert json.loads(out)["error"]["item"] == 1


def test_a_traceback_has_the_tasks_own_lines(vmhost, bundle, tmp_path, monkeypatch):
    path = bundle("def run(value):\n    return deeper(value)\n\ndef deeper(value):\n    return value['missing']\n")
    code, out, err = vmhost("run", path, "--allow-unsigned", "--input", "{}")
    assert (code, out) == (failures.TASK_FAILED, "")
    assert 'File "sample@1.0.0/main.py", line 5, in deeper' in err
    assert "value['missing']" not in err, "a bundle has no source"
    assert "error: sample 1.0.0: KeyError: 'missing'" in err
    assert "vmhost/" not in err, "frames of the host are no business of the task's author"
    _, _, err = vmhost("run", path, "--allow-unsigned", "--input", "{}", "--source", tmp_path / "sample")
    assert "line 5, in deeper\n    return value['missing']\n" in err
    monkeypatch.chdir(tmp_path)
    _, out, _ = vmhost("run", path, "--allow-unsigned", "--input", "{}", "--json")
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"]) == ("TaskError", failures.TASK_FAILED)
    assert "return value['missing']" in error["traceback"], "the folder is in the current one"


@pytest.mark.parametrize(
    ("source", "limits", "code", "says"),
    [
        ("def run(value):\n    while True: pass\n", "{wall_time: 300 ms}", failures.LIMIT, "wall_time"),
        (
            "def run(value):\n    x = []\n    while True: x.append(bytes(65536))\n",
            "{memory: 16 MiB}",
            failures.LIMIT,
            "limits.memory",
        ),
        ("def run(value):\n    open('/etc/passwd')\n", "{}", failures.TASK_FAILED, "open('/etc/passwd'): not granted"),
        ("def run(value):\n    return object()\n", "{}", failures.TASK_FAILED, "a `object` cannot cross"),
        ("import json\nraise RuntimeError('no start')\ndef run(value): pass\n", "{}", failures.TASK_FAILED, "no start"),
    ],
    ids=["time", "memory", "permission", "result", "import"],
)
def test_each_way_to_fail_has_its_exit_code(vmhost, bundle, source, limits, code, says):
    got, out, err = vmhost("run", bundle(source, limits=limits), "--allow-unsigned")
    assert (got, out) == (code, "")
    assert says in err


def test_a_timeout_on_the_command_line_counts(vmhost, bundle):
    path = bundle("def run(value):\n    while True: pass\n")
    code, _, err = vmhost("run", path, "--allow-unsigned", "--timeout", "200 ms")
    assert code == failures.LIMIT and "error: sample 1.0.0:" in err


@pytest.mark.parametrize("each", [(), ("--each", "--input", "[1, 2, 3, 4]")], ids=["one", "each"])
def test_ctrl_c_ends_the_command_at_once(bundle, each):
    path = bundle("def run(value):\n    print('begun')\n    while True: pass\n", limits="{wall_time: 60 s}")
    command = [*COMMAND, "run", str(path), "--allow-unsigned", *each]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert "begun" in running.stderr.readline()
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == failures.INTERRUPTED
    assert out == "" and "Traceback" not in err
    assert err.splitlines()[-1] == "vmhost: interrupted"


def test_the_first_task_of_the_docs_runs_as_written(vmhost, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "writing-tasks.md").read_text(encoding="utf-8")
    spec, source, commands = re.findall(r"```\w*\n(.*?)```", page, re.DOTALL)[:3]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "task.yaml").write_text(spec.replace('"3.14"', f'"3.{sys.version_info[1]}"'))
    (tmp_path / "hello" / "main.py").write_text(source)
    results = [vmhost(*shlex.split(command)[1:]) for command in commands.strip().splitlines()]
    assert [code for code, *_ in results] == [0, 0]
    assert results[1][1] == '"Hello, Ada"\n'


def test_what_the_docs_say_a_task_can_ask_for_is_there(bundle):
    page = (ROOT / "docs" / "writing-tasks.md").read_text(encoding="utf-8")
    source = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "vmhost.guest" in block)
    path = bundle(source, more="permissions: {host: [lookup]}\nfiles: [table.csv]\n", files={"table.csv": "1,2"})
    with Host(allow_unsigned=True, functions={"lookup": sum}) as runs:
        assert runs.load(path)([1, 2]) == 3
        assert runs.load(path)([1, 2], timeout_s=0.05) is None, "less than a tenth of a second is left"


def test_doctor_finds_this_machine_fit(vmhost):
    code, out, _ = vmhost("doctor", "--json")
    document = json.loads(out)
    assert (code, document["healthy"]) == (0, True), [f for f in document["findings"] if f["status"] == "wrong"]
    names = {finding["name"] for finding in document["findings"]}
    assert {
        "Python",
        "cores",
        "memory",
        "native core",
        "standard library",
        "a VM boots",
        "a VM compiles nothing",
    } <= names


def test_doctor_says_what_is_wrong_and_goes_on(vmhost, monkeypatch, tmp_path):
    (tmp_path / "stdlib.vmb").write_bytes(b"PK")
    monkeypatch.setattr(host, "SYSTEM_BUNDLE", tmp_path / "stdlib.vmb")
    monkeypatch.setattr(host, "_system_images", {})
    code, out, _ = vmhost("doctor")
    assert code == failures.UNHEALTHY
    assert "WRONG  standard library:" in out and "stdlib.vmb: truncated" in out
    assert "make it again: python -m bytecode.stdlib" in out
    assert "trusted keys" in out, "the checks after it were made"


@pytest.fixture
def short_demo(monkeypatch):
    """The demonstration with less work: each way of running each task, seconds in all."""
    monkeypatch.setattr(
        demonstration, "WORK",
        (("digits", "light", 500, 50), ("neighbours", "light", 6, 4), ("strokes", "middle", 4, 2), ("forest", "heavy", 1, 1)),
    )
    monkeypatch.setattr(demonstration, "ROUNDS", 1)


def test_the_demo_checks_answers_and_stops_what_misbehaves(vmhost, short_demo):
    code, out, _ = vmhost("demo", "--json")
    document = json.loads(out)
    assert (code, document["wrong"]) == (0, [])
    assert {task["name"]: (task["calls"], task["errors"]) for task in document["tasks"]} == {
        "digits": (500, 0),
        "neighbours": (6, 0),
        "strokes": (4, 0),
        "forest": (1, 0),
    }
    assert all(task["right"] > 0.9 and task["speed_up"] > 0 and task["vms"] >= 1 for task in document["tasks"])
    assert {stop["name"]: stop["got"] for stop in document["stops"]} == {
        "runaway": "TimeLimitError",
        "hog": "MemoryLimitError",
    }


def test_the_demo_says_what_was_wrong(vmhost, monkeypatch):
    monkeypatch.setattr(demonstration, "WORK", (("digits", "light", 500, 50),))
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(demonstration, "_load_cases", wrong_truth(demonstration._load_cases))
    code, out, err = vmhost("demo")
    assert code == failures.TASK_FAILED
    assert "error: digits: expected more than 90 % right answers" in err
    assert "busy before the run (load 99.0)" in out
    code, out, err = vmhost("demo", "--json")
    assert (code, err) == (failures.TASK_FAILED, "") and len(json.loads(out)["wrong"]) == 1


def wrong_truth(load):
    def load_wrong(folder):
        module = load(folder)
        right = module.cases
        module.cases = lambda name: [(value, 11 if name == "digits" else truth) for value, truth in right(name)]
        return module

    return load_wrong


def test_ctrl_c_ends_the_demo_in_the_middle():
    with subprocess.Popen(
        [*COMMAND, "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            while "All tasks at once" not in running.stderr.readline():
                assert running.poll() is None
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert (running.returncode, out, err.strip()) == (failures.INTERRUPTED, "", "vmhost: interrupted")


def test_the_demo_on_a_terminal_shows_its_tables_and_leaves_the_screen_tidy(tmp_path):
    script = (
        "import sys; from vmhost import demo; from vmhost.cli import main\n"
        "demo.WORK = (('digits', 'light', 500, 50), ('neighbours', 'light', 6, 4))\n"
        "sys.exit(main(['demo']))"
    )
    control, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=terminal, stderr=terminal, env=environment
    ) as running:
        os.close(terminal)
        try:
            while True:
                try:
                    shown += os.read(control, 65536)
                except OSError:  # the last writer closed the terminal
                    break
            assert running.wait(timeout=60) == 0, shown.decode()
        finally:
            running.kill()
            os.close(control)
    text = shown.decode()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is shown again"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for words in ("calls in", "Stopped on the way", "TimeLimitError", "speed-up", "Every answer was checked"):
        assert words in plain
