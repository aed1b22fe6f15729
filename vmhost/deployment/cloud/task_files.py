"""Files of a task besides its bundles: models, dictionaries, a device's own data.

A *shared* file is for many devices, selected by an audience, and has one address on the static server or CDN. An
*exclusive* one is for one or few devices: it is stored separately, and its address has a ticket for one device, valid
for an hour. Of a task's files with one name, a device gets the newest whose audience it is in.
"""

import hashlib
import hmac
import json
import os
import re
import secrets

from vmhost.cohorts import cohort_of
from vmhost.deployment import identifiers
from vmhost.deployment.artifacts import ArtifactFolder
from vmhost.deployment.cloud import key_files
from vmhost.deployment.cloud.audience import Audience, Facts
from vmhost.deployment.errors import MissingError, RefusedError

KINDS = ("shared", "exclusive")
TICKET_S = 3600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def file_path(task, digest):
    """The path of the file in signed metadata."""
    return f"{task}/files/{digest}"


class TaskFiles:
    """The files in `database`; shared ones are in `shared` (an ArtifactFolder), exclusive ones below `folder`."""

    def __init__(self, database, shared, folder, clock):
        self._database, self._shared, self._clock = database, shared, clock
        self._exclusive = ArtifactFolder(folder / "exclusive")
        self.is_listed = lambda path: True  # whether signed metadata already lists a file
        with key_files.turn(folder / "keys"):
            self._key = _ticket_key(folder / "keys" / "tickets")
        self.load()

    def load(self):
        """Reads the committed state. Called after the transaction of an `add` or `remove` has ended."""
        with self._database.reader() as connection:
            rows = connection.execute(
                "SELECT id, task, name, kind, digest, size, audience, who, time_ms FROM deploy_files ORDER BY id"
            ).fetchall()
        names = ("id", "task", "name", "kind", "digest", "size", "audience", "who", "time_ms")
        self._files = [
            dict(zip(names, row)) | {"audience": Audience(json.loads(row[6]), is_stored=True)} for row in rows
        ]

    def add(self, task, name, kind, data, audience, who):
        """Stores the bytes as a file of the task; returns its id. RefusedError."""
        identifiers.check_task(task)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RefusedError(f"{name!r:.100}: expected a file's name of letters, digits and ._-, at most 128")
        if kind not in KINDS:
            raise RefusedError(f"{kind!r:.100}: expected one of {', '.join(KINDS)}")
        plain = Audience(audience).plain
        if kind == "exclusive" and not plain.keys() & {"allow", "cohorts"}:
            raise RefusedError("an exclusive file: name its devices, by `allow` or `cohorts` in its audience")
        digest = (self._shared if kind == "shared" else self._exclusive).put(data)
        with self._database.transaction() as connection:
            identity = connection.execute(
                "INSERT INTO deploy_files (task, name, kind, digest, size, audience, who, time_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                (task, name, kind, digest, len(data), json.dumps(plain), who, int(self._clock() * 1000)),
            ).fetchall()[0][0]
        return identity

    def remove(self, identity):
        """Stops offering the file to devices; its bytes stay while anything else uses them."""
        with self._database.transaction() as connection:
            if not connection.execute("DELETE FROM deploy_files WHERE id = ?", (identity,)).rowcount:
                raise MissingError(f"file {identity}: there is no such file")

    def task_of(self, identity):
        """The task of a file; MissingError."""
        for each in self._files:
            if each["id"] == identity:
                return each["task"]
        raise MissingError(f"file {identity}: there is no such file")

    def list(self, task=None):
        return [each | {"audience": each["audience"].plain} for each in self._files if task in (None, each["task"])]

    def targets(self, repository):
        """The entries of the repository's files in its signed metadata."""
        return {
            file_path(each["task"], each["digest"]): {"length": each["size"], "hashes": {"sha256": each["digest"]}}
            for each in self._files
            if each["task"].startswith(f"{repository}/")
        }

    def choose(self, task, device, facts, named):
        """{name: {"digest", "size", "url"}} for the device; `url` is None for a shared file, which has no ticket."""
        about = Facts(device, facts, cohort_of(task, device), named)
        found = {}
        for each in self._files:
            listed = each["task"] == task and self.is_listed(file_path(task, each["digest"]))
            if listed and about in each["audience"]:
                url = self.ticket(each["digest"], device) if each["kind"] == "exclusive" else None
                found[each["name"]] = {"digest": each["digest"], "size": each["size"], "url": url}
        return found

    # ---- tickets

    def ticket(self, digest, device):
        until = int(self._clock()) + TICKET_S
        return f"/exclusive/{digest}?device={device}&until={until}&ticket={self._sign(digest, device, until)}"

    def _sign(self, digest, device, until):
        return hmac.new(self._key, f"{digest}\n{device}\n{until}".encode(), hashlib.sha256).hexdigest()

    def open_by_ticket(self, digest, device, until, ticket):
        """The path of the file; None if the ticket is invalid or has expired."""
        if not until.isdecimal() or len(until) > 12 or int(until) < self._clock():
            return None
        if not hmac.compare_digest(self._sign(digest, device, int(until)).encode(), ticket.encode()):
            return None
        path = self._exclusive.path(digest)
        return path if path.exists() else None


def _ticket_key(path):
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) == 32:
            return key
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)  # interrupted write: a new key ends old tickets
    with open(descriptor, "wb") as file:
        key = secrets.token_bytes(32)
        file.write(key)
    return key
