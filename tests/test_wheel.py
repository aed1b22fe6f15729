"""The wheel of `make wheels`: what it may run on, and that it runs from an environment that has nothing else."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import installed, pages

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return installed.wheel(tmp_path_factory)


def test_it_is_named_after_the_oldest_glibc_that_it_runs_on(wheel):
    found = re.fullmatch(r"vmhost-[\d.]+-cp314-cp314-manylinux_2_(\d+)_(x86_64|aarch64)\.whl", wheel.name)
    assert found and int(found[1]) <= 35, wheel.name


def test_it_brings_no_library_of_others_and_no_bundle_of_one_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "vmhost",
        re.match(r"vmhost-[\d.]+", wheel.name)[0] + ".dist-info",
    }
    assert [name for name in names if name.endswith(".vmb")] == []
    assert "vmhost/engine/libvme.so" in names and "vmhost/tasks/digits/task.yaml" in names


def test_the_readmes_first_code_runs_in_an_environment_with_nothing_else(wheel, tmp_path, tmp_path_factory):
    programs = installed.environment(tmp_path_factory, wheel)
    (_, code), (_, output), *_ = pages.blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "first.py").write_text(code)
    environ = installed.environ(programs, tmp_path / "home")
    done = subprocess.run(["python", "first.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    assert list((tmp_path / "home").rglob("stdlib-*.vmb")), "the bundle is made at first use"
    doctor = subprocess.run(["vmhost", "doctor"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


def test_a_python_that_cannot_carry_vmhost_is_told_in_one_line(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho it is Python 3.9.1, and vmhost needs 3.14 or newer\nexit 1\n")
    old.chmod(0o755)
    for python, reason in ((old, "it is Python 3.9.1"), (tmp_path / "none", "No such file or directory")):
        command = [sys.executable, ROOT / "tools" / "wheels.py", "--out", tmp_path, python]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith(f"wheels: {python}: {reason}"), done.stderr
        assert done.stderr.count("\n") == 1
