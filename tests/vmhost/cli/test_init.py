"""`vmhost init`."""

import json
import shlex

import pytest

from tests import warm
from vmhost.cli import failures


def test_what_it_makes_compiles_runs_and_passes_its_test(vmhost, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = vmhost("init", "tasks of mine/word_count")
    assert (code, err) == (0, "")
    compile_command, run_command = (shlex.split(line)[1:] for line in out.splitlines()[1:])
    assert vmhost(*compile_command)[0] == 0
    code, out, _ = vmhost(*run_command)
    assert (code, json.loads(out)) == (0, {"mean": 3.0, "min": 1, "max": 6})
    code, _, err = vmhost("run", "word_count.vmb", "--allow-unsigned")
    error, advice = err.splitlines()[-2:]
    assert code == failures.TASK_FAILED and 'expected {"numbers": [1, 2, 3]}' in error and "without --input" in advice
    folder = tmp_path / "tasks of mine" / "word_count"
    done = warm.run("-m", "unittest", cwd=folder, timeout=60)
    assert done.returncode == 0 and "Ran 2 tests" in done.stderr, done.stderr
    _, out, _ = vmhost("inspect", "word_count.vmb", "--json")
    assert json.loads(out)["task"] == "word_count 0.1.0" and "test_main" not in out


def test_nothing_is_overwritten(vmhost, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "main.py").write_text("precious")
    (tmp_path / "file").touch()
    for name in ("mine", "file"):
        code, out, err = vmhost("init", name)
        assert (code, out) == (failures.WRONG_INPUT, "")
        assert err == f"error: {name}: is there already; nothing was written. Give another name, or remove it first\n"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["main.py"]
    (tmp_path / "empty").mkdir()
    assert vmhost("init", "empty")[0] == 0


def test_a_name_that_no_task_can_have_and_a_place_that_cannot_be_written(vmhost, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = vmhost("init", "Word Count")
    assert code == failures.WRONG_INPUT
    assert "'Word Count' cannot name a task; expected a name of lower-case letters, digits, '-' and '_'" in err
    (tmp_path / "file").touch()
    code, _, err = vmhost("init", "file/task")
    assert code == failures.WRONG_INPUT and "cannot be written: Not a directory" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("example", "task", "prints"),
    [
        ("digits", "digits", "0\n"),
        ("stream", "visits", "lamp"),
        ("train", "learn", "numbers.onnx: 4"),
    ],
)
def test_an_example_compiles_and_runs_as_printed(vmhost, tmp_path, monkeypatch, example, task, prints):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = vmhost("init", "numbers", "--example", example, "--json")
    made = json.loads(out)
    assert code == 0 and len(made["next"]) >= 2
    assert {path.name for path in (tmp_path / "numbers").iterdir()} == set(made["files"])
    for line in made["next"]:
        program, *arguments = shlex.split(line)
        if program == "python":
            done = warm.run(*arguments, cwd=tmp_path, timeout=200)
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            assert program == "vmhost"
            code, out, err = vmhost(*arguments)
        assert code == 0, err
    assert prints in out, out
    if "test_main.py" in made["files"]:
        assert vmhost("test", "numbers")[0] == 0
    # the README's commands are those that are printed, under the shipped task's own name
    readme = (tmp_path / "numbers" / "README.md").read_text()
    if example != "digits":
        shown = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
        assert shown == [line.replace("numbers", task) for line in made["next"]]


def test_an_example_that_there_is_not_is_refused(vmhost, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vmhost("init", "more", "--example", "nothing")[0] == failures.WRONG_INPUT
