"""The platform's side of The Update Framework: signs which bundles may run.

Keys of root and targets are made in `keys/offline/`, to be taken away once the platform is set up; they are needed to
rotate keys, to add a repository and once a year. Keys of snapshot, timestamp and of each repository's role stay.

A repository's role lists every version of its tasks that may run: all that are ready and not bad. Rolling back takes a
version out, so that a device refuses it even where somebody else tells it to run it. `sync` makes the metadata of
what the release engine says, and signs anew what expires soon; killed in between, it begins again.
"""

import contextlib
import fcntl
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vmhost.bytecode import signing
from vmhost.deployment.artifacts import digest_of, replace_durably
from vmhost.deployment.errors import RefusedError
from vmhost.deployment.trust import canonical

_ROLES = ("root", "targets", "snapshot", "timestamp")
SPEC_VERSION = "1.0.31"
LIFE = {
    "root": timedelta(days=365),
    "targets": timedelta(days=365),
    "snapshot": timedelta(days=14),
    "timestamp": timedelta(days=2),
    "role": timedelta(days=60),
}


def key_of(key):
    """(key id, TUF's key object) of a SigningKey."""
    plain = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": key.public.hex()}}
    return digest_of(canonical(plain)), plain


def bundle_path(task, version, target):
    return f"{task}/{version}/{target}.vmb"


def proof_path(task, version):
    return f"{task}/{version}/proof.json"


class SignedMetadata:
    """The metadata in `folder`, signed with the keys in `keys`. Threads may share it. `clock`: seconds since 1970."""

    def __init__(self, folder, keys, clock):
        self.folder, self._keys, self._clock = Path(folder), Path(keys), clock
        self._lock = threading.Lock()
        self._generation = None
        self._due = datetime.min.replace(tzinfo=UTC)

    @contextlib.contextmanager
    def _turn(self):
        """One at a time writes, of all threads and processes."""
        with self._lock, open(self.folder / "turns", "ab") as turns:
            fcntl.flock(turns, fcntl.LOCK_EX)
            yield

    # ---- keys and the roles that are signed offline

    def make(self):
        """Makes keys, root and targets where there are none."""
        self.folder.mkdir(exist_ok=True)
        offline = self._keys / "offline"
        offline.mkdir(mode=0o700, exist_ok=True)
        for path in (offline / "root", offline / "targets", self._keys / "snapshot", self._keys / "timestamp"):
            if not path.exists():
                signing.generate_key().save(path, path.name)
        if not (self.folder / "1.root.json").exists():
            self._write_root(1)

    def _key_path(self, role):
        path = self._keys / role
        offline = self._keys / "offline" / role
        if not path.exists() and not offline.exists():
            raise RefusedError(
                f"{offline}: the offline key of {role} is needed for this; put it there, and take it away afterwards"
            )
        return path if path.exists() else offline

    def _key(self, role):
        path = self._key_path(role)
        new = path.with_name(f"{path.name}.new")
        if new.exists() and key_of(key := signing.load_key(new))[0] in self._named(role):
            return key  # `rotate` was cut between the metadata that names it and its renaming
        return signing.load_key(path)

    def _named(self, role):
        """Ids of the keys that the metadata names for a role."""
        if role in _ROLES:
            known = self._read("root")
            return known["roles"][role]["keyids"] if known else []
        known = self._read("targets")
        roles = known["delegations"]["roles"] if known else []
        return [name for each in roles if each["name"] == role for name in each["keyids"]]

    def _write_root(self, version, new=None, also=()):
        """`new`: {role: key} in the place of those that there are; `also`: keys of the root before, which sign too."""
        keys, roles = {}, {}
        by_role = {role: self._key(role) for role in _ROLES} | (new or {})
        for role, key in by_role.items():
            identity, plain = key_of(key)
            keys[identity] = plain
            roles[role] = {"keyids": [identity], "threshold": 1}
        signed = {"consistent_snapshot": True, "keys": keys, "roles": roles}
        self._write("root", "root", version, LIFE["root"], signed, [by_role["root"], *also])

    def rotate(self, role):
        """A new key for root, targets, snapshot, timestamp or a repository's role (role-NAME); what the old one signed
        is signed anew. The offline keys that this takes must be in their place. Where it is killed: do it again."""
        with self._turn():
            delegated = self._delegated()
            if role not in (*_ROLES, *delegated):
                raise RefusedError(f"{role}: expected one of {', '.join((*_ROLES, *delegated))}")
            self._key("targets" if role in delegated else "root")
            path = self._key_path(role)
            self._put_in_place(role, path)
            new, key = path.with_name(f"{path.name}.new"), signing.generate_key()
            for each in (new, new.with_name(f"{new.name}.pub")):
                each.unlink(missing_ok=True)
            key.save(new, role.removeprefix("role-"))
            if role in (*delegated, "targets"):  # signed by both first, so that it is good before and after
                self._sign_anew(role, LIFE["role" if role in delegated else "targets"], [self._key(role), key])
                self._write_snapshot_and_timestamp(True)
            if role in delegated:
                self._delegate(role, key)
            else:
                also = [self._key("root")] if role == "root" else []
                self._write_root(self._version("root") + 1, {role: key}, also)
            self._put_in_place(role, path)
            self._write_snapshot_and_timestamp(True)
            self._generation = None

    def _put_in_place(self, role, path):
        """The new key takes the place of the old one, which is kept as NAME.old, where the metadata names it."""
        new = path.with_name(f"{path.name}.new")
        if new.exists() and key_of(signing.load_key(new))[0] in self._named(role):
            for end in (".pub", ""):
                target = path.with_name(f"{path.name}{end}")
                replace_durably(target.with_name(f"{target.name}.old"), target.read_bytes())
                if (source := new.with_name(f"{new.name}{end}")).exists():
                    source.replace(target)

    def _delegated(self):
        """Names of the repositories' roles."""
        known = self._read("targets")
        return [each["name"] for each in known["delegations"]["roles"]] if known else []

    def _sign_anew(self, role, life, keys):
        """What it says now, signed with these keys."""
        if (known := self._read(role)) is not None:
            signed = {name: known[name] for name in ("targets", "delegations") if name in known}
            self._write(role, "targets", self._version(role) + 1, life, signed, keys)

    def _delegate(self, role, key):
        """The repository's role is the key's."""
        identity, plain = key_of(key)
        known = self._read("targets")
        delegations = known["delegations"] if known else {"keys": {}, "roles": []}
        others = [each for each in delegations["roles"] if each["name"] != role]
        used = {name for each in others for name in each["keyids"]}
        keys = {name: key for name, key in delegations["keys"].items() if name in used} | {identity: plain}
        entry = {"name": role, "keyids": [identity], "threshold": 1, "terminating": True}
        entry |= {"paths": [f"{role.removeprefix('role-')}/*/*/*"]}
        signed = {"targets": {}, "delegations": {"keys": keys, "roles": [*others, entry]}}
        self._write("targets", "targets", self._version("targets") + 1, LIFE["targets"], signed, [self._key("targets")])

    def add_role(self, repository):
        """Delegates `repository/*` to a key of its own."""
        with self._turn():
            path = self._keys / f"role-{repository}"
            if not path.exists():
                signing.generate_key().save(path, repository)
            if f"role-{repository}" not in self._delegated():
                self._delegate(f"role-{repository}", signing.load_key(path))
                self._generation = None

    # ---- what follows the releases

    def sync(self, releases, repositories, files=lambda repository: {}):
        """The metadata lists what may run now, and is fresh. Quick where nothing changed."""
        if releases.generation == self._generation and self._now() < self._due:
            return
        with self._turn():
            releases.refresh()
            generation = releases.generation
            with releases.database.lock:
                versions = list(releases.versions.values())
            changed = False
            for repository in repositories:
                name = f"role-{repository}"
                targets = files(repository)
                for version in versions:
                    if version.bad is None and version.task.startswith(f"{repository}/"):
                        targets |= _targets_of(version)
                known = self._read(name)
                if known is None or known["targets"] != targets or self._is_old(known, LIFE["role"]):
                    key = self._key(name)
                    self._write(name, "targets", self._version(name) + 1, LIFE["role"], {"targets": targets}, [key])
                    changed = True
            self._write_snapshot_and_timestamp(changed)
            self._generation = generation
            self._due = self._now() + LIFE["timestamp"] / 4

    def _write_snapshot_and_timestamp(self, changed):
        """The timestamp last: until it is written, nobody sees the others."""
        names = ["targets", *self._delegated()]
        meta = {f"{name}.json": {"version": self._version(name)} for name in names if self._version(name)}
        known, key = self._read("snapshot"), self._key("snapshot")
        identity = key_of(key)[0]
        stale = known is None or known["meta"] != meta or self._is_old(known, LIFE["snapshot"])
        if stale or changed or self._signer("snapshot") != identity:
            self._write("snapshot", "snapshot", self._version("snapshot") + 1, LIFE["snapshot"], {"meta": meta}, [key])
        version = self._version("snapshot")
        data = (self.folder / f"{version}.snapshot.json").read_bytes()
        entry = {"version": version, "length": len(data), "hashes": {"sha256": digest_of(data)}}
        known = self._read("timestamp")
        if (
            known is None
            or known["meta"]["snapshot.json"] != entry
            or self._is_old(known, LIFE["timestamp"])
            or self._signer("timestamp") != key_of(self._key("timestamp"))[0]
        ):
            number = 1 + (known["version"] if known else 0)
            signed = {"meta": {"snapshot.json": entry}}
            self._write("timestamp", "timestamp", number, LIFE["timestamp"], signed, [self._key("timestamp")])

    # ---- files

    def _now(self):
        return datetime.fromtimestamp(self._clock(), UTC)

    def _is_old(self, signed, life):
        expires = datetime.strptime(signed["expires"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return expires - self._now() < life / 2

    def _versions(self, role):
        return [int(path.name.partition(".")[0]) for path in self.folder.glob(f"*.{role}.json")]

    def _version(self, role):
        """The newest version that was written, whether or not anything names it yet; 0 where there is none."""
        return max(self._versions(role), default=0)

    def _path(self, role):
        return self.folder / ("timestamp.json" if role == "timestamp" else f"{self._version(role)}.{role}.json")

    def _envelope(self, role):
        path = self._path(role)
        return json.loads(path.read_bytes()) if path.exists() else None

    def _read(self, role):
        envelope = self._envelope(role)
        return envelope and envelope["signed"]

    def _signer(self, role):
        envelope = self._envelope(role)
        return envelope and envelope["signatures"][0]["keyid"]

    def _write(self, name, kind, version, life, signed, keys):
        expires = (self._now() + life).strftime("%Y-%m-%dT%H:%M:%SZ")
        signed = {"_type": kind, "spec_version": SPEC_VERSION, "version": version, "expires": expires} | signed
        message = canonical(signed)
        signatures = [{"keyid": key_of(key)[0], "sig": key.sign(message)[len(key.public) :].hex()} for key in keys]
        data = json.dumps({"signatures": signatures, "signed": signed}, separators=(",", ":")).encode()
        file = "timestamp.json" if name == "timestamp" else f"{version}.{name}.json"
        replace_durably(self.folder / file, data)


def _targets_of(version):
    found = {
        bundle_path(version.task, version.version, target): {"length": size, "hashes": {"sha256": digest}}
        for target, (digest, size) in version.bundles.items()
    }
    if version.proof:
        entry = {"length": version.proof["size"], "hashes": {"sha256": version.proof["digest"]}}
        found[proof_path(version.task, version.version)] = entry
    return found
