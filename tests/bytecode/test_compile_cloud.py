"""The compiler's command line: what it writes, what it says, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vmhost.bytecode.format import TARGET, read_bundle
from vmhost.bytecode.signing import TrustStore, fingerprint, generate_key

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "compile_cloud.py"), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_compiles_and_signs(write_task, tmp_path):
    key = generate_key()
    key.save(tmp_path / "ci")
    out = tmp_path / "build" / "sample.vmb"
    done = run(write_task(), "-o", out, "--sign", tmp_path / "ci")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: sample 1.2.0, 1 modules, 0 files, ")
    assert fingerprint(key.public) in done.stdout
    assert read_bundle(out, TrustStore.load(tmp_path / "ci.pub")).signed_by == "ci"
    assert [path.name for path in out.parent.iterdir()] == ["sample.vmb"]


def test_json_says_what_was_made(write_task, tmp_path):
    folder = write_task({"main.py": "def run(value):\n    return eval(value)\n"})
    out = tmp_path / "sample.vmb"
    done = run(folder, "-o", out, "--json", "--optimize", "2")
    bundle = json.loads(done.stdout)
    assert (done.returncode, bundle["ok"], bundle["name"], bundle["bytes"]) == (0, True, "sample", out.stat().st_size)
    assert (bundle["modules"], bundle["signed_by"]) == (["main"], None)
    assert bundle["warnings"][0].startswith(f"{folder}/main.py:2: eval: ")
    assert done.stderr == f"warning: {bundle['warnings'][0]}\n"


def test_default_name_is_the_folders(write_task, tmp_path):
    done = run(write_task(), cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "sample.vmb").exists()


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"main.py": "import numpy\ndef run(v): pass"}, (), "main.py:1: import numpy: a VM can't load it"),
        ({"main.py": "def run(v:"}, (), "main.py:1: SyntaxError"),
        ({"task.yaml": "name: x\n"}, (), "task.yaml:1: entry: is missing"),
        ({"task.yaml": None}, (), "task.yaml: can't read the task's description: No such file"),
        ({"main.py": ""}, (), "task.yaml:3: entry: "),
        ({"main.py": "def run(v): eval(v)"}, ("--strict",), "main.py:1: eval: a VM has no compiler"),
        ({}, ("--target", "3.99"), "--target: expected Python "),
        ({}, ("--sign", "/nothing/key"), "/nothing/key: can't read the signing key"),
    ],
)
def test_problems_are_lines_and_status_1(write_task, tmp_path, files, options, message):
    out = tmp_path / "out.vmb"
    folder = write_task(files)
    done = run(folder, "-o", out, *options)
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    assert message in lines[0]
    assert not out.exists()
    done = run(folder, "-o", out, "--json", *options)
    assert json.loads(done.stdout) == {"ok": False, "errors": [line.removeprefix("error: ") for line in lines]}


def test_output_that_can_not_be_written(write_task, tmp_path):
    (tmp_path / "file").touch()
    done = run(write_task(), "-o", tmp_path / "file" / "x.vmb")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("arguments", [(), ("x", "--optimize", "3"), ("x", "--unknown")])
def test_wrong_usage_is_status_2(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: compile_cloud.py" in done.stderr


@pytest.mark.parametrize("name", ["digits", "forest", "neighbours", "runaway", "hog"])
def test_tasks_that_ship_compile_without_a_warning(tmp_path, name):
    done = run(f"tasks/{name}", "-o", tmp_path / "x.vmb", "--strict", "--target", TARGET)
    assert (done.returncode, done.stderr) == (0, "")
