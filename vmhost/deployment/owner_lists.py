"""Checks on an owner's own machine of the list that an owner signs: a compromised platform may lie.

A list is the signed part of the repository's role in The Update Framework's metadata: the bundles, self-tests and files
that may run. It must contain nothing else, above all no other keys. Changes are shown relative to the list that the
same key signed last (`Signed`), not to what the platform claims; without one, the whole list is shown.
"""

import json
import os
from datetime import UTC, datetime, timedelta

from vmhost.deployment.artifacts import is_digest, replace_durably
from vmhost.deployment.errors import RefusedError

MAX_LIFE = timedelta(days=366)
_KEYS = {"_type", "spec_version", "version", "expires", "targets"}


def check(signed, repository, now_s):
    """RefusedError unless `signed` is a list of the repository and nothing else."""
    try:
        if signed.keys() != _KEYS or signed["_type"] != "targets" or signed["spec_version"].partition(".")[0] != "1":
            raise ValueError(f"it has {', '.join(sorted(signed))}")
        if type(signed["version"]) is not int or signed["version"] < 1:
            raise ValueError("no version")
        expires = datetime.strptime(signed["expires"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        if expires > datetime.fromtimestamp(now_s, UTC) + MAX_LIFE:
            raise ValueError(f"it would be valid until {signed['expires']}")
        for path, entry in signed["targets"].items():
            parts = path.split("/")
            if len(parts) != 4 or parts[0] != repository or not all(parts) or not path.isprintable():
                raise ValueError(f"{path!r:.200} is not a path of {repository}")
            if entry.keys() != {"length", "hashes"} or entry["hashes"].keys() != {"sha256"}:
                raise ValueError(f"{path}: more than a length and a SHA-256")
            if type(entry["length"]) is not int or not is_digest(entry["hashes"]["sha256"]):
                raise ValueError(f"{path}: no length, or no SHA-256")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(
            f"{repository}: what the platform wants signed is no list of {repository}'s ({error}); do not sign it, and "
            "ask whoever runs the platform"
        ) from None


def changes(before, signed):
    """(new or changed paths, removed paths) from the targets `before` to those of the list."""
    now = signed["targets"]
    return sorted(path for path, each in now.items() if before.get(path) != each), sorted(before.keys() - now.keys())


class Signed:
    """The targets that each key signed last, by repository, stored below `folder`."""

    def __init__(self, folder):
        self._folder = folder

    def _path(self, keyid, repository):
        return self._folder / f"{repository}-{keyid[:32]}.json"

    def last(self, keyid, repository):
        """{path: its entry in the list}; {} where the key has signed none here. RefusedError if it cannot be
        read."""
        path = self._path(keyid, repository)
        try:
            return dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise RefusedError(
                f"{path}: cannot be read ({error}); without it, all of the next list is shown"
            ) from error

    def keep(self, keyid, repository, signed):
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        replace_durably(self._path(keyid, repository), json.dumps(signed["targets"]).encode())
