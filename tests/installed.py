"""A wheel, and environments of its own into which it is installed, as a user's: with what it requires, some extras, and
nothing else. Nothing is fetched: the packages are those of the checkout's environment, by links."""

import fcntl
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

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


def environment(folder, wheel, extras=()):
    """Makes an environment in `folder` with the wheel; the path of its programs."""
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
    return folder / "bin"


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
