"""Source archives of packages, as PyPI has them: fetched by name, and held to their hash."""

import hashlib
import json
import os
import re
import urllib.parse
import urllib.request

_INDEX = "https://pypi.org/simple"


def fetch(name, sha256, folder):
    """The Path of the archive called `name` in `folder`, downloaded where it is not there yet.

    The index is that of UV_DEFAULT_INDEX, else PyPI. ValueError if it has another file of that name, OSError if it
    can't be reached, LookupError if it has none."""
    path = folder / name
    if not path.exists():
        project = re.sub(r"[-_.]+", "-", name.rpartition("-")[0]).lower()
        page = f"{os.environ.get('UV_DEFAULT_INDEX', _INDEX).rstrip('/')}/{project}/"
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
