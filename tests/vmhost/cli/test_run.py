"""`vmhost run`: calls, values, tracebacks, limits, Ctrl-C."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.hosts import ROOT, until
from tests.vmhost.cli.command import COMMAND
from vmhost import Host, TimeLimitError
from vmhost.bytecode.format import read_bundle
from vmhost.cli import failures, tracebacks

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


def test_values_of_the_standard_library_and_of_own_classes_are_printed(vmhost, bundle):
    path = bundle(
        """
        import dataclasses, datetime, decimal, enum, typing
        from vmhost.guest import register

        @dataclasses.dataclass
        class Order:
            total: decimal.Decimal
            lines: list

        class Line(typing.NamedTuple):
            name: str

        class Colour(enum.Enum):
            RED = 1

        class Money:
            pass

        class Lost(Exception):
            pass

        register(Money, lambda money: {"cents": 5}, lambda plain: Money())

        def run(value):
            assert value in (None, datetime.date(2024, 5, 3))
            wrong = [Lost("key", 3), ValueError("bad", decimal.Decimal(1))]
            return Order(decimal.Decimal("1.50"), [Line("lamp"), Colour.RED, Money(), {Colour.RED: value}, *wrong])
        """
    )
    expected = {
        "total": {"$decimal": "1.50"},
        "lines": [{"$tuple": ["lamp"]}, "RED", {"cents": 5}, {"RED": {"$date": "2024-05-03"}}],
    }
    expected["lines"].append({"type": "main:Lost", "args": {"$tuple": ["key", 3]}})
    expected["lines"].append({"type": "ValueError", "args": {"$tuple": ["bad", {"$decimal": "1"}]}})
    command = ("run", path, "--allow-unsigned", "--input", '{"$date": "2024-05-03"}')
    code, out, err = vmhost(*command)
    assert code == 0, err
    assert json.loads(out) == expected
    code, out, err = vmhost(*command, "--json")
    assert json.loads(out)["result"] == expected


def test_an_unsigned_or_untrusted_bundle_needs_a_flag(vmhost, bundle):
    path = bundle(ECHO)
    code, out, err = vmhost("run", path)
    assert code == failures.REFUSED and "not signed" in err
    assert vmhost("run", path, "--allow-unsigned")[:2] == (0, "null\n")
    vmhost("keys", "new", "stranger")
    path = bundle(ECHO, "stranger")
    code, out, err = vmhost("run", path)
    assert code == failures.REFUSED and "does not trust" in err


@pytest.mark.parametrize("option", ["--trust", "--allow-unsigned"])
def test_what_a_settings_file_decides_is_refused_beside_it(vmhost, bundle, tmp_path, option):
    (tmp_path / "host.yaml").write_text("allow_unsigned: true\n")
    given = ("--settings", tmp_path / "host.yaml", option, *([tmp_path] if option == "--trust" else []))
    path = bundle(ECHO)
    for command in (("run", path), ("serve", path.parent)):
        code, out, err = vmhost(*command, *given)
        assert code == failures.WRONG_INPUT and f"{option}: with --settings, say so in that file" in err, err
    assert vmhost("run", path, *given[:2])[:2] == (0, "null\n")


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
    ("source", "limits", "code", "message"),
    [
        ("def run(value):\n    while True: pass\n", "{wall_time: 3 s}", failures.LIMIT, "wall_time"),
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
def test_each_way_to_fail_has_its_exit_code(vmhost, bundle, source, limits, code, message):
    got, out, err = vmhost("run", bundle(source, limits=limits), "--allow-unsigned")
    assert (got, out) == (code, "")
    assert message in err


def test_a_timeout_on_the_command_line_counts(vmhost, bundle):
    path = bundle("def run(value):\n    while True: pass\n")
    for timeout in ("200 ms", "2 s", "20 s"):  # a slow machine takes the first for its start
        code, _, err = vmhost("run", path, "--allow-unsigned", "--timeout", timeout)
        assert code == failures.LIMIT and "error: sample 1.0.0:" in err
        if "Traceback" in err:
            break
    assert err.startswith('Traceback (most recent call last):\n  File "sample@1.0.0/main.py", line 2, in run\n')


@pytest.mark.parametrize(
    "options", [(), ("--each", "--input", "[1, 2, 3, 4]"), ("--json",)], ids=["one", "each", "json"]
)
def test_ctrl_c_ends_the_command_at_once(bundle, options):
    path = bundle("def run(value):\n    print('begun')\n    while True: pass\n", limits="{wall_time: 60 s}")
    command = [*COMMAND, "run", str(path), "--allow-unsigned", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert "begun" in running.stderr.readline()
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == failures.INTERRUPTED and "Traceback" not in err
    if "--json" in options:
        assert json.loads(out)["error"]["exit_code"] == failures.INTERRUPTED
    else:
        assert (out, err.splitlines()[-1]) == ("", "vmhost: interrupted")


def test_the_first_task_of_the_docs_runs_as_written(vmhost, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "writing-tasks.md").read_text(encoding="utf-8")
    spec, source, commands = re.findall(r"```\w*\n(.*?)```", page, re.DOTALL)[:3]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "task.yaml").write_text(spec.replace('"3.14"', f'"3.{sys.version_info[1]}"'))
    (tmp_path / "hello" / "main.py").write_text(source)
    lines = [line.removeprefix("$ ") for line in commands.splitlines() if line.startswith("$ ")]
    results = [vmhost(*shlex.split(line)[1:]) for line in lines]
    assert [code for code, *_ in results] == [0, 0]
    assert results[1][1] == '"Hello, Ada"\n'


def test_what_the_docs_say_a_task_can_ask_for_is_there(bundle):
    page = (ROOT / "docs" / "writing-tasks.md").read_text(encoding="utf-8")
    source = next(block for block in re.findall(r"```py\w*\n(.*?)```", page, re.DOTALL) if "vmhost.guest" in block)
    path = bundle(source, more="permissions: {host: [lookup]}\nfiles: [table.csv]\n", files={"table.csv": "1,2"})
    with Host(allow_unsigned=True, functions={"lookup": sum}) as runs:
        task = runs.load(path)

        def called_in_time():
            assert task([1, 2]) == 3
            try:
                return [task([1, 2], timeout_s=0.09)]
            except TimeLimitError:  # a machine too slow to begin the call in time
                return None

        assert until(called_in_time) == [None], "less than a tenth of a second is left"


def test_source_lines_come_only_from_the_folder_that_was_compiled(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    bundle = read_bundle(path, allow_unsigned=True)
    traceback = (
        'Traceback (most recent call last):\n  File "greet@1.0.0/main.py", line 4, in run\n'
        '  File "greet@1.0.0/gone.py", line 1, in gone\n  File "json/decoder.py", line 1, in decode\nKeyError: \'name\''
    )
    assert tracebacks.source_folder(bundle, task_folder) == task_folder
    shown = tracebacks.with_source(traceback, task_folder)
    assert 'line 4, in run\n    return other.greet(value)\n  File "greet@1.0.0/gone.py"' in shown
    assert len(shown.splitlines()) == len(traceback.splitlines()) + 1
    assert tracebacks.with_source(shown, task_folder) == shown, "lines that are there already are not shown twice"
    (task_folder / "other.py").write_text("def greet(value):\n    return 'goodbye ' + value['name']\n")
    assert tracebacks.source_folder(bundle, task_folder) is None
    assert tracebacks.source_folder(bundle, tmp_path) is None


def test_a_task_that_fails_without_input_is_told_why(vmhost, bundle):
    path = bundle("def run(value):\n    return value['name']\n")
    advice = "       without --input, the task is called with null\n"
    code, _, err = vmhost("run", path, "--allow-unsigned")
    assert code == failures.TASK_FAILED and err.endswith(f"'NoneType' object is not subscriptable\n{advice}")
    code, _, err = vmhost("run", path, "--allow-unsigned", "--input", "null")
    assert code == failures.TASK_FAILED and advice not in err
