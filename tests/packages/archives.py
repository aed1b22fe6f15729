"""Source archives of packages, as PyPI has them: fetched by name, and held to their hash."""

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


def fetch(name, sha256, folder):
    """The Path of the archive called `name` in `folder`, downloaded where it is not there yet.

    The index is the one that uv uses. ValueError if it has another file of that name, OSError if it
    can't be reached, LookupError if it has none."""
    path = folder / name
    if not path.exists():
        project = re.sub(r"[-_.]+", "-", name.rpartition("-")[0]).lower()
        page = f"{_index().rstrip('/')}/{project}/"
        request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            files = json.load(answer)["files"]
        found = next((file for file in files if file["filename"] == name), None)
        if found is None:
            raise LookupError(f"{page} has no {name}")
        with urllib.request.urlopen(urllib.parse.urljoin(page, found["url"]), timeout=60) as answer:
            data = answer.read()
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        path.unlink()
        raise ValueError(f"{name}: SHA-256 is {digest}, expected {sha256}")
    return path
