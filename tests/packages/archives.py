"""Source archives of packages, as PyPI or Debian has them: fetched by name, and held to their hash.

Debian's, `NAME_VERSION.orig.tar.*`, are what the makers publish where they develop; those on PyPI often lack the tests.
"""

import hashlib
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request


def _index():
    """The address of the package index that uv is configured to use."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--emit-index-url", "--no-header", "--quiet"]
    answer = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    _, found, address = answer.stdout.partition("--index-url ")
    if answer.returncode or not found:
        raise OSError(f"uv names no package index: {answer.stderr.strip() or answer.stdout.strip()}")
    return address.split()[0]


def _mirror():
    """The address of Debian's archive that this machine's apt is configured to use."""
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        answer = ""
    for line in answer.splitlines():
        release, component, address = line.split()
        if component == "main" and "debian" in address and "security" not in address and "-" not in release:
            return address
    raise OSError("apt names no mirror of Debian's main archive: this suite can be run on Debian and its kin only")


def _from_debian(name):
    source = name.partition("_")[0]
    address = f"{_mirror().rstrip('/')}/pool/main/{source[0]}/{source}/{name}"
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


def _from_index(name):
    project = re.sub(r"[-_.]+", "-", name.rpartition("-")[0]).lower()
    page = f"{_index().rstrip('/')}/{project}/"
    request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    found = next((file for file in files if file["filename"] == name), None)
    if found is None:
        raise LookupError(f"{page} has no {name}")
    with urllib.request.urlopen(urllib.parse.urljoin(page, found["url"]), timeout=60) as answer:
        return answer.read()


def fetch(name, sha256, folder):
    """The Path of the archive called `name` in `folder`, downloaded where it is not there yet.

    The index is the one that uv uses, Debian's mirror the one that apt uses. ValueError if it has another file of that
    name, OSError if it can't be reached, LookupError if it has none."""
    path = folder / name
    if not path.exists():
        data = _from_debian(name) if ".orig." in name else _from_index(name)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        path.unlink()
        raise ValueError(f"{name}: SHA-256 is {digest}, expected {sha256}")
    return path
