"""Damaged files of an agent's folder: each is put aside as NAME.damaged-N, so that the agent starts without it.

What the agent can make again is checked here: folders that are none, a list of current versions and a profile that
cannot be read, a root that is no JSON. Its store has rules of its own (memory.py).
"""

import itertools
import json
from pathlib import Path

from vmhost.deployment.profile import REQUEST_HEADER

_FOLDERS = ("artifacts", "partial", "metadata", "health", "fleet", "host")


def put_damaged_aside(folder):
    """What was put aside, in words, for the log."""
    folder, told = Path(folder), []
    for name in _FOLDERS:
        path = folder / name
        if path.exists() and not path.is_dir():
            told.append(_put_aside(path, "expected a folder"))
    for name, check in _FILES.items():
        path = folder / name
        try:
            if path.exists():
                check(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            told.append(_put_aside(path, f"{type(error).__name__}: {error}"[:200]))
    return told


def _put_aside(path, why):
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            path.rename(aside)
            return f"{path}: is damaged ({why}); it was put aside as {aside.name}"
    raise AssertionError


def _check_list(data):
    for entry in json.loads(data)["tasks"].values():
        if not all(isinstance(entry[name], str) for name in ("name", "version", "digest")):
            raise ValueError("an entry without name, version or digest")
        if type(entry["release"]) is not int or not all(isinstance(each, str) for each in entry["files"].values()):
            raise ValueError("an entry with an invalid release or file")


def _check_profile(data):
    if not data.isascii() or not data.decode().isprintable():
        raise ValueError(f"no value of the header {REQUEST_HEADER}")


_FILES = {
    "current.json": _check_list,
    "profile": _check_profile,
    "metadata/root.json": json.loads,
}
