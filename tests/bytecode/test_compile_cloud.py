"""The compiler's command line: its files, messages and exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from vmhost.bytecode.format import TARGET, read_bundle
from vmhost.bytecode.signing import TrustStore, generate_key

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, cwd=ROOT):
    return warm.run(ROOT / "tools" / "compile_cloud.py", *arguments, cwd=cwd)


def test_compiles_and_signs(write_task, tmp_path):
    key = generate_key()
    key.save(tmp_path / "ci")
    out = tmp_path / "build" / "sample.vmb"
    done = run(write_task(), "-o", out, "--sign", tmp_path / "ci")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: sample 1.2.0, ")
    assert done.stdout.endswith(f"signed with {tmp_path / 'ci'}\n")
    assert read_bundle(out, TrustStore.load(tmp_path / "ci.pub")).signed_by == "ci"
    assert [path.name for path in out.parent.iterdir()] == ["sample.vmb"]


def test_it_is_the_command_itself(write_task, tmp_path):
    """Same options, same document, same bytes."""
    folder = write_task({"main.py": "def run(value):\n    return eval(value)\n"})
    done = run(folder, "-o", tmp_path / "one.vmb", "--json", "--optimize", "2")
    command = [
        sys.executable,
        "-m",
        "vmhost",
        "compile",
        folder,
        "-o",
        tmp_path / "two.vmb",
        "--json",
        "--optimize",
        "2",
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert done.returncode == 0
    assert done.stdout.replace("one.vmb", "two.vmb") == output
    assert (tmp_path / "one.vmb").read_bytes() == (tmp_path / "two.vmb").read_bytes()
    (bundle,) = json.loads(done.stdout)["bundles"]
    assert bundle["warnings"][0].startswith(f"{folder}/main.py:2: eval: ")
    assert done.stderr == f"warning: {bundle['warnings'][0]}\n"
    script, installed = (
        subprocess.run([sys.executable, *program, "--help"], capture_output=True, text=True, check=True).stdout
        for program in ([ROOT / "tools" / "compile_cloud.py"], ["-m", "vmhost", "compile"])
    )
    assert script.replace("compile_cloud.py", "vmhost compile") == installed


def test_texts_are_recorded_while_a_script_runs(write_task, tmp_path):
    folder = write_task(
        {"main.py": "def run(value):\n    return eval('1 + 2')\n", "use.py": "import main\nmain.run(None)\n"}
    )
    done = run(folder, "-o", tmp_path / "x.vmb", "--record", folder / "use.py")
    assert (done.returncode, "recorded.json: 1 texts" in done.stderr) == (0, True)
    assert json.loads((folder / "recorded.json").read_text())["texts"][0]["text"] == "1 + 2"


def test_default_name_is_the_task_s(write_task, tmp_path):
    done = run(write_task(), cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "sample.vmb").exists()


@pytest.mark.parametrize(
    ("files", "options", "status", "message"),
    [
        ({"main.py": "import numpy\ndef run(v): pass"}, (), 3, "main.py:1: import numpy: a VM can't load it"),
        ({"main.py": "def run(v:"}, (), 3, "main.py:1: SyntaxError"),
        ({"task.yaml": "name: x\n"}, (), 3, "task.yaml:1: entry: is missing"),
        ({"task.yaml": None}, (), 3, "task.yaml: can't read the task's description: No such file"),
        ({"main.py": ""}, (), 3, "task.yaml:3: entry: "),
        ({"main.py": "def run(v): eval(v)"}, ("--strict",), 3, "main.py:1: eval: a VM has no compiler"),
        ({}, ("--target", "3.99"), 3, "--target: expected Python "),
        ({}, ("--sign", "/nothing/key"), 2, "/nothing/key: can't read the signing key"),
    ],
)
def test_problems_are_lines_and_a_status(write_task, tmp_path, files, options, status, message):
    out = tmp_path / "out.vmb"
    folder = write_task(files)
    done = run(folder, "-o", out, *options)
    assert (done.returncode, done.stdout) == (status, "")
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ") and message in first
    assert all(line.startswith("       ") for line in rest)
    assert not out.exists()
    done = run(folder, "-o", out, "--json", *options)
    report = json.loads(done.stdout)["error"]
    assert report["exit_code"] == status and message in report["message"]


def test_output_that_can_not_be_written(write_task, tmp_path):
    (tmp_path / "file").touch()
    done = run(write_task(), "-o", tmp_path / "file" / "x.vmb")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("arguments", [(), ("x", "--optimize", "3"), ("x", "--unknown")])
def test_wrong_usage_is_status_2(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Usage: compile_cloud.py" in done.stderr


@pytest.mark.parametrize("name", ["digits", "forest", "neighbours", "runaway", "hog"])
def test_tasks_that_ship_compile_without_a_warning(tmp_path, name):
    done = run(f"tasks/{name}", "-o", tmp_path / "x.vmb", "--strict", "--target", TARGET)
    assert (done.returncode, done.stderr) == (0, "")
