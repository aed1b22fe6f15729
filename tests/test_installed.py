"""The packages as `pip install .` lays them out, in a folder of their own, away from the checkout.

Compiling the native parts is left out: those of the checkout are put beside.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import vmhost
from vmhost.stdlib import patches

ROOT = Path(__file__).resolve().parent.parent
SHORT_DEMO = (
    "import sys; from vmhost.cli import demonstration as demo; from vmhost.cli import main\n"
    "demo.WORK = (('digits', 'light', 60, 20),); demo.ROUNDS = 1\n"
    "sys.exit(main(['demo']))"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site-packages")
    subprocess.run([sys.executable, "setup.py", "-q", "build_py", "--build-lib", folder], cwd=ROOT, check=True)
    for library in (
        *ROOT.glob("vmhost/isolation/*.so"),
        *ROOT.glob("vmhost/engine/*.so"),
        *ROOT.glob("vmhost/pipeline/*/*.so"),
        ROOT / "vmhost" / "data" / "stdlib.vmb",
    ):
        target = folder / "vmhost" / library.relative_to(ROOT / "vmhost")
        target.parent.mkdir(exist_ok=True)
        shutil.copy(library, target)
    return folder


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder that the source distribution unpacks to, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("sdist")
    command = ["setup.py", "-q", "egg_info", "--egg-base", folder, "sdist", "--dist-dir", folder]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*", recurse_symlinks=True) if path.is_file()}


def test_a_source_distribution_holds_each_file_once(unpacked):
    assert [(unpacked / "vmhost" / name).is_symlink() for name in ("bytecode", "engine")] == [True, True]
    assert (unpacked / "vmhost/engine/library.py").samefile(unpacked / "engine/library.py")


def test_a_source_distribution_installs_what_the_checkout_does(unpacked, installed, tmp_path):
    subprocess.run([sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path], cwd=unpacked, check=True)
    of_build = {path for path in files_below(installed) if not path.endswith((".so", "data/stdlib.vmb"))}
    assert files_below(tmp_path) == of_build
    assert "vmhost/engine/library.py" in of_build and "vmhost/bytecode/format.py" in of_build


def run(installed, folder, program):
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_one_package_is_installed(installed):
    """PyPI has another `bytecode`: modules installed under our short names would be mixed with it."""
    assert [path.name for path in installed.iterdir()] == ["vmhost"]


def test_the_patches_of_the_standard_library_are_installed(installed, tmp_path):
    done = run(installed, tmp_path, "from vmhost.stdlib import patches; print(*patches.patch_names(), patches.FOLDER)")
    assert done.stdout.split() == [*patches.patch_names(), str(installed / "vmhost" / "stdlib" / "patches")], (
        done.stderr
    )


def test_the_trigger_engine_runs_away_from_the_checkout(installed, tmp_path):
    program = (
        "from vmhost.pipeline import triggers; engine = triggers.TriggerEngine(); engine.add('key', [['a']])\n"
        "print(triggers.__file__, engine.feed('a', '', 'v', 1, 2))"
    )
    done = run(installed, tmp_path, program)
    assert done.stdout.startswith(str(installed)) and done.stdout.endswith(" (('key', 2),)\n"), done.stderr


def test_the_matcher_of_patterns_runs_away_from_the_checkout(installed, tmp_path):
    program = (
        "from vmhost.pipeline import patterns; from vmhost.pipeline.events import Event\n"
        "engine = patterns.PatternEngine(); engine.add('r', {'pattern': [{'name': 'a', 'event': 'a'}]})\n"
        "print(patterns.__file__, engine.feed(Event('a', 1), 7)[0].first)"
    )
    done = run(installed, tmp_path, program)
    assert done.stdout.startswith(str(installed)) and done.stdout.endswith(" 7\n"), done.stderr


def test_the_demo_runs_away_from_the_checkout(installed, tmp_path):
    done = run(installed, tmp_path, f"import vmhost; print(vmhost.__file__)\n{SHORT_DEMO}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed)) and "Every answer was checked" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert vmhost.__version__ == project["version"]
