"""A wheel, and environments of its own into which it is installed, as a user's: with what it requires, some extras, and
nothing else. Nothing is fetched: the packages are those of the checkout's environment, by links."""

import fcntl
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from vmhost.bytecode.acceptance import note
from vmhost.bytecode.format import read_bundle
from vmhost.runtime import system_bundle

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).with_name("uv")


def wheel(tmp_path_factory):
    """The path of a wheel that `make wheels` makes, one for all processes of a test run."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "wheel"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            command = [sys.executable, ROOT / "tools" / "wheels.py", "--out", folder, sys.executable]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    [made] = folder.glob("*.whl")
    return made


def cache(tmp_path_factory):
    """A folder for `~/.cache`, one for all processes of a test run. Set-up's standard library lies in it as if it had
    been made at first use, which tests/test_wheel.py looks at."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"
    ours = folder / "vmhost"
    ours.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(ours.glob("stdlib-*.vmb")):
            bundle = ours / system_bundle.cached_name()
            shutil.copyfile(system_bundle.IN_CHECKOUT, bundle)
            note(read_bundle(bundle, allow_unsigned=True), bundle)
    return folder


def environment(tmp_path_factory, wheel, extras=()):
    """An environment with the wheel, one for all processes of a test run that need these extras: modules are compiled
    when they are first imported in it. The path of its programs."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    folder /= "-".join(["environment", *sorted(extras)])
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make_environment(folder, wheel, extras)
            (folder / "complete").touch()
    return folder / "bin"


def _make_environment(folder, wheel, extras):
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    install = [UV, "pip", "install", "-q", "--offline", "--no-deps", "--no-config", "--python", folder]
    subprocess.run([*install, wheel], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in required(extras):
        for file in {
            path.parts[0] for path in importlib.metadata.files(name) if path.parts[0] not in ("..", "__pycache__")
        }:
            link, target = packages / file, Path(importlib.metadata.distribution(name).locate_file(file))
            if target.exists() and not link.exists():
                link.symlink_to(target)


def required(extras=()):
    """The names of the packages that vmhost needs with these extras, of all that they need in turn."""
    found, asked = set(), [("vmhost", frozenset(extras))]
    while asked:
        name, wanted = asked.pop()
        try:
            lines = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:  # on other systems
            continue
        if name != "vmhost":
            found.add(name)
        for line in lines:
            extra = re.search(r"""extra == ['"]([\w-]+)['"]""", line)
            if extra is None or extra[1] in wanted:
                needed, of_it = re.match(r"([\w.-]+)(?:\[([^\]]*)\])?", line).groups()
                if needed not in found:
                    asked.append((needed, frozenset((of_it or "").split(","))))
    return found


def environ(programs, home):
    """The environment variables of a user with these programs, who has set nothing."""
    home.mkdir(exist_ok=True)
    return {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(home), "LANG": "C.UTF-8"}
