"""The platform's side of The Update Framework: it signs which bundles may run.

Keys of root and targets are made in a folder beside the platform's, never below it (`offline_keys`), and should be
moved away once the platform is set up; they are needed to rotate keys, to add a repository, and once a year. Keys of
snapshot, timestamp and each repository's role stay.

The role `releases` signs no metadata, but orders (orders.py). Platforms from before it have it once a repository is
added, or by `rotate`.

A repository's role is signed with a key of the platform's, or by its owners (`set_owners`): then a new list waits for
their signatures (owners.py), and a version not listed yet cannot be released.

A repository's role lists every version of its tasks that may run: all that are ready and not bad. A rollback removes a
version, so that a device refuses it even if somebody else offers it. `sync` makes the metadata from the state of the
release engine, and renews what expires soon; if it is killed, the next call does it again.

Devices refuse metadata with lower versions than they have seen. A platform that was restored does not know what they
have seen, so it goes on at `floor`, a version that was not reached before (backups.py).
"""

import contextlib
import fcntl
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vmhost.bytecode import signing
from vmhost.deployment.artifacts import digest_of, replace_durably
from vmhost.deployment.cloud import key_files
from vmhost.deployment.cloud.owners import Waiting
from vmhost.deployment.errors import MissingError, RefusedError
from vmhost.deployment.orders import ROLE as RELEASES
from vmhost.deployment.trust import canonical

_ROLES = ("root", "targets", "snapshot", "timestamp")
SPEC_VERSION = "1.0.31"
LIFE = {
    "root": timedelta(days=365),
    "targets": timedelta(days=365),
    "snapshot": timedelta(days=14),
    "timestamp": timedelta(days=2),
    "role": timedelta(days=60),
    "owned": timedelta(days=365),  # a repository's role signed by its owners
}
_SKEW = timedelta(hours=1)  # a clock that is set by less changes nothing


def key_of(key):
    """(key id, TUF's key object) of a SigningKey."""
    return key_of_public(key.public)


def key_of_public(public):
    """(key id, TUF's key object) for the 32 bytes of a public key."""
    plain = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public.hex()}}
    return digest_of(canonical(plain)), plain


def bundle_path(task, version, target):
    return f"{task}/{version}/{target}.vmb"


def proof_path(task, version):
    return f"{task}/{version}/proof.json"


def offline_keys(keys):
    """The folder of the offline keys of the platform in FOLDER, whose other keys are in `keys`: FOLDER-offline-keys, or
    `keys/offline` if it is there, as older platforms have it."""
    older = Path(keys) / "offline"
    platform = Path(keys).absolute().parent
    return older if older.is_dir() else platform.with_name(f"{platform.name}-offline-keys")


def _floor_in(path):
    text = path.read_bytes() if path.exists() else b"0"
    if not (text.isdigit() and len(text) < 20):
        raise RefusedError(f"{path}: is damaged: expected a number, got {text[:40]!r}; take it from a backup")
    return int(text)


class SignedMetadata:
    """The metadata in `folder`, signed with the keys in `keys` and `offline`. Thread-safe. `clock`: seconds since
    1970."""

    def __init__(self, folder, keys, clock):
        self.folder, self._keys, self._clock = Path(folder), Path(keys), clock
        self.offline = offline_keys(keys)
        self._lock = threading.Lock()
        self._synced = None  # (generation of the releases, stamp of the waiting lists) as of the last sync
        self._looked = self._due = datetime.min.replace(tzinfo=UTC)  # when `sync` looked for what expires, and will
        self._waiting = Waiting(self.folder / "waiting")
        self._listed = {}  # role signed by owners -> listed paths
        self._told = {}  # the same, as of the last call of `sync`
        self._order_key = None, None, None  # (when its file was written, key of `releases`, key id)
        self._floor = _floor_in(self.folder / "floor")  # the least version, but root's

    @contextlib.contextmanager
    def turn(self):
        """Held by the one writer, of all threads and processes."""
        with self._lock, open(self.folder / "turns", "ab") as turns:
            fcntl.flock(turns, fcntl.LOCK_EX)
            yield

    def go_on_from(self, floor):
        """Gives no lower versions than `floor` from now on, for the next openings too. Whether the list of repositories
        was signed again; that needs the offline key of targets, and devices that know a newer list want it."""
        with self.turn():
            replace_durably(self.folder / "floor", str(floor).encode())
            self._floor, self._synced = floor, None
            try:
                key = self._key("targets")
            except RefusedError:
                return self._read("targets") is None
            self._sign_again("targets", LIFE["targets"], [key])
            return True

    # ---- keys, and roles signed offline

    def make(self):
        """Makes keys, root and targets, unless they exist."""
        self.folder.mkdir(exist_ok=True)
        self.offline.mkdir(mode=0o700, exist_ok=True)
        for path in (
            self.offline / "root",
            self.offline / "targets",
            self._keys / "snapshot",
            self._keys / "timestamp",
            self._keys / RELEASES,
        ):
            key_files.make(path, path.name)
        if not (self.folder / "1.root.json").exists():
            self._write_root(1)
        if self._read("targets") is None:
            self._delegate_releases()

    def _delegate_releases(self):
        path = self._keys / RELEASES
        key_files.make(path, RELEASES)
        self._delegate(RELEASES, [signing.load_key(path).public])

    def sign_order(self, signed):
        """The signatures of the role `releases` over an order; [] where it is not delegated to yet."""
        path = self._keys / RELEASES
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if self._order_key[0] != stamp:
            key = signing.load_key(path)
            self._order_key = stamp, key, key_of(key)[0]
        _, key, identity = self._order_key
        return [{"keyid": identity, "sig": key.sign(canonical(signed))[len(key.public) :].hex()}]

    def _key_path(self, role):
        path = self._keys / role
        offline = self.offline / role
        if not path.exists() and not offline.exists():
            raise RefusedError(
                f"{offline}: the offline key of {role} is needed for this; put it there, and take it away afterwards"
            )
        return path if path.exists() else offline

    def _key(self, role):
        path = self._key_path(role)
        new = path.with_name(f"{path.name}.new")
        if new.exists() and key_of(key := signing.load_key(new))[0] in self._named(role):
            return key  # `rotate` was killed between writing the metadata and renaming the key
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
        """`new`: {role: key} to replace; `also`: keys of the root before, which must sign too."""
        keys, roles = {}, {}
        by_role = {role: self._key(role) for role in _ROLES} | (new or {})
        for role, key in by_role.items():
            identity, plain = key_of(key)
            keys[identity] = plain
            roles[role] = {"keyids": [identity], "threshold": 1}
        signed = {"consistent_snapshot": True, "keys": keys, "roles": roles}
        self._write("root", "root", version, LIFE["root"], signed, [by_role["root"], *also])

    def rotate(self, role):
        """Replaces the key of root, targets, snapshot, timestamp or a repository's role (role-NAME); re-signs what the
        old one signed. The offline keys that this needs must be in place. If it is killed, call it again."""
        with self.turn():
            delegated = [*self._delegated(), RELEASES]
            if role not in (*_ROLES, *delegated):
                raise RefusedError(f"{role}: expected one of {', '.join((*_ROLES, *delegated))}")
            if role == RELEASES and self._delegation(role)[0] is None:
                self._delegate_releases()
                self._write_snapshot_and_timestamp(True)
                return
            if self._owners_of(role) is not None:
                raise RefusedError(f"{role}: its owners have its keys; see: vmhost cloud owners")
            self._key("targets" if role in delegated else "root")
            path = self._key_path(role)
            self._activate_new_key(role, path)
            new, key = path.with_name(f"{path.name}.new"), signing.generate_key()
            for each in (new, new.with_name(f"{new.name}.pub")):
                each.unlink(missing_ok=True)
            key.save(new, role.removeprefix("role-"))
            if role in (*delegated, "targets"):  # signed by both keys first, so that it is valid before and after
                self._sign_again(role, LIFE["role" if role in delegated else "targets"], [self._key(role), key])
                self._write_snapshot_and_timestamp(True)
            if role in delegated:
                self._delegate(role, [key.public])
            else:
                also = [self._key("root")] if role == "root" else []
                self._write_root(self._version("root") + 1, {role: key}, also)
            self._activate_new_key(role, path)
            self._write_snapshot_and_timestamp(True)
            self._synced = None

    def _activate_new_key(self, role, path):
        """Renames the new key to the old one's name, if the metadata names it; the old one is kept as NAME.old."""
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
        return [each["name"] for each in known["delegations"]["roles"] if each["name"] != RELEASES] if known else []

    def _sign_again(self, role, life, keys):
        """Signs the role's current contents again, with these keys."""
        if (known := self._read(role)) is not None:
            signed = {name: known[name] for name in ("targets", "delegations") if name in known}
            self._write(role, "targets", self._next(role), life, signed, keys)

    def _delegate(self, role, publics, threshold=1):
        """Delegates a repository's role, or `releases`, to these public keys, of which `threshold` must sign."""
        own = dict(map(key_of_public, publics))
        known = self._read("targets")
        delegations = known["delegations"] if known else {"keys": {}, "roles": []}
        others = [each for each in delegations["roles"] if each["name"] != role]
        used = {name for each in others for name in each["keyids"]}
        keys = {name: key for name, key in delegations["keys"].items() if name in used} | own
        entry = {"name": role, "keyids": sorted(own), "threshold": threshold, "terminating": True}
        entry |= {"paths": [] if role == RELEASES else [f"{role.removeprefix('role-')}/*/*/*"]}
        signed = {"targets": {}, "delegations": {"keys": keys, "roles": [*others, entry]}}
        self._write("targets", "targets", self._next("targets"), LIFE["targets"], signed, [self._key("targets")])

    def add_role(self, repository):
        """Delegates `repository/*` to a new key of its own."""
        with self.turn():
            path = self._keys / f"role-{repository}"
            key_files.make(path, repository)
            if f"role-{repository}" not in self._delegated():
                if self._delegation(RELEASES)[0] is None:
                    self._delegate_releases()
                self._delegate(f"role-{repository}", [signing.load_key(path).public])
                self._synced = None

    # ---- repositories with owners

    def _delegation(self, role):
        known = self._read("targets")
        roles = known["delegations"]["roles"] if known else []
        return next((each for each in roles if each["name"] == role), None), known

    def _owners_of(self, role):
        """{key id: TUF's key} of the repository's owners; None if the platform signs."""
        entry, known = self._delegation(role)
        path = self._keys / role
        if entry is None:
            return None
        own = []
        for each in (path, path.with_name(f"{path.name}.new")):
            own += [key_of(signing.load_key(each))[0]] if each.exists() else []
        if set(entry["keyids"]) & set(own):
            return None
        return {identity: known["delegations"]["keys"][identity] for identity in entry["keyids"]}

    def set_owners(self, repository, publics, threshold=1):
        """Makes `threshold` of these keys (32 bytes each) sign for the repository from now on, or the platform's own
        key if there are none. Needs the offline key of targets. The old list counts again once the owners have signed
        it."""
        role, publics = f"role-{repository}", list(publics)
        if publics and (own := self._keys / role).exists() and signing.load_key(own).public in publics:
            raise RefusedError(
                f"{own}.pub: is the platform's own key; owners have keys that are not here, and without owners it signs"
            )
        if publics and not 1 <= threshold <= len(set(publics)):
            raise RefusedError(
                f"threshold: expected 1 to {len(set(publics))}, as many as there are owners; got {threshold}"
            )
        with self.turn():
            if role not in self._delegated():
                raise RefusedError(f"{repository}: there is no such repository")
            if publics:
                self._delegate(role, sorted(set(publics)), threshold)
            else:
                self._delegate(role, [signing.load_key(self._keys / role).public])
            known = self._read(role)
            targets = known["targets"] if known else {}
            self._waiting.remove(role)
            self._publish_or_queue(role, targets)
            self._write_snapshot_and_timestamp(True)
            self._synced = None

    def owners(self, repository):
        """{"publics": {key id: the owner's 32 bytes}; empty where the platform signs, "threshold"}; MissingError."""
        role = f"role-{repository}"
        entry, _ = self._delegation(role)
        if entry is None:
            raise MissingError(f"{repository}: there is no such repository")
        owners = self._owners_of(role) or {}
        publics = {identity: bytes.fromhex(key["keyval"]["public"]) for identity, key in owners.items()}
        return {"publics": publics, "threshold": entry["threshold"]}

    def signing(self, repository):
        """Who signs for the repository, and what waits: {"owners": key ids, "threshold", "waiting": None or {"signed",
        "signed_by": key ids, "added", "removed": paths}}; without owners the platform signs."""
        role = f"role-{repository}"
        with self.turn():
            owners = self._owners_of(role)
            if owners is None:
                return {"owners": [], "threshold": 1, "waiting": None}
            entry, _ = self._delegation(role)
            found, waiting = self._waiting.get(role), None
            if found is not None:
                before, now = (self._read(role) or {"targets": {}})["targets"], found["signed"]["targets"]
                waiting = {
                    "signed": found["signed"],
                    "signed_by": sorted(each["keyid"] for each in found["signatures"]),
                    "added": sorted(path for path, each in now.items() if before.get(path) != each),
                    "removed": sorted(before.keys() - now.keys()),
                }
        return {"owners": sorted(owners), "threshold": entry["threshold"], "waiting": waiting}

    def waiting(self):
        """The waiting lists of all repositories with owners: as `signing`, with `repository`."""
        found = []
        for role in sorted(self._listed):
            repository = role.removeprefix("role-")
            state = self.signing(repository)
            if state["waiting"] is not None:
                found.append({"repository": repository} | state)
        return found

    def sign(self, repository, identity, signature, note=lambda digest: None):
        """Takes an owner's signature over the waiting list. Returns the newly listed paths once enough have signed;
        None before. `note` is called before anything is written, with the SHA-256 of the list. RefusedError.

        If it is killed, `sync` completes what enough owners have signed."""
        role = f"role-{repository}"
        with self.turn():
            owners = self._owners_of(role)
            if owners is None:
                raise RefusedError(f"{repository}: the platform signs for it")
            signed, signatures = self._waiting.sign(role, owners, identity, signature, note)
            entry, _ = self._delegation(role)
            if len(signatures) < entry["threshold"]:
                return None
            before = set((self._read(role) or {"targets": {}})["targets"])
            self._write_envelope(role, signed, signatures)
            self._waiting.remove(role)
            self._write_snapshot_and_timestamp(True)
            self._synced = None
            return sorted(signed["targets"].keys() - before)

    def is_listed(self, path):
        """Whether the target is in the published metadata; not until owners have signed it. As of the last `sync`."""
        listed = self._listed.get(f"role-{path.partition('/')[0]}")
        return listed is None or path in listed

    def _publish_or_queue(self, role, targets):
        """Publishes a list of these targets for the role, or lets it wait for owners. True if something was
        published."""
        known, owners = self._read(role), self._owners_of(role)
        if owners is None:
            self._listed.pop(role, None)
            self._waiting.remove(role)
            if (
                known
                and known["targets"] == targets
                and not self._needs_renewal(known, LIFE["role"])
                and self._is_signed(role)
            ):
                return False
            self._write(role, "targets", self._next(role), LIFE["role"], {"targets": targets}, [self._key(role)])
            return True
        self._listed[role] = frozenset(known["targets"]) if known and self._is_signed(role) else frozenset()
        found, version = self._waiting.get(role), self._next(role)
        if (
            known
            and known["targets"] == targets
            and not self._needs_renewal(known, LIFE["owned"])
            and self._is_signed(role)
        ):
            if found is not None:
                self._waiting.remove(role)
        elif (
            found is None
            or found["signed"]["targets"] != targets
            or found["signed"]["version"] != version
            or self._needs_renewal(found["signed"], LIFE["owned"])
        ):
            self._waiting.put(role, self._signed("targets", version, LIFE["owned"], {"targets": targets}))
        return False

    def _is_signed(self, role):
        """Whether the published list has enough signatures of the current signers."""
        entry, _ = self._delegation(role)
        envelope = self._envelope(role)
        return len({each["keyid"] for each in envelope["signatures"]} & set(entry["keyids"])) >= entry["threshold"]

    # ---- following the releases

    def sync(self, releases, repositories, files=lambda repository: {}):
        """Makes the metadata list what may run now, and renews it. Quick where nothing changed. Whether owners have
        signed another list since the last call."""
        is_known = (releases.generation, self._waiting.stamp()) == self._synced
        if is_known and self._looked - _SKEW <= self._now() < self._due:
            return False
        with self.turn():
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
                        targets |= targets_of(version)
                changed = self._publish_or_queue(name, targets) or changed
            self._write_snapshot_and_timestamp(changed)
            self._synced = (generation, self._waiting.stamp())
            self._looked = self._now()
            self._due = self._looked + LIFE["timestamp"] / 4
            told, self._told = self._told, dict(self._listed)
            return told != self._told

    def _write_snapshot_and_timestamp(self, changed):
        """Writes the timestamp last: until then clients do not see the others."""
        names = ["targets", *self._delegated()]
        meta = {f"{name}.json": {"version": self._version(name)} for name in names if self._version(name)}
        known, key = self._read("snapshot"), self._key("snapshot")
        identity = key_of(key)[0]
        stale = known is None or known["meta"] != meta or self._needs_renewal(known, LIFE["snapshot"])
        if stale or changed or self._signer("snapshot") != identity:
            self._write("snapshot", "snapshot", self._next("snapshot"), LIFE["snapshot"], {"meta": meta}, [key])
        version = self._version("snapshot")
        data = (self.folder / f"{version}.snapshot.json").read_bytes()
        entry = {"version": version, "length": len(data), "hashes": {"sha256": digest_of(data)}}
        known = self._read("timestamp")
        if (
            known is None
            or known["meta"]["snapshot.json"] != entry
            or self._needs_renewal(known, LIFE["timestamp"])
            or self._signer("timestamp") != key_of(self._key("timestamp"))[0]
        ):
            number = max(1 + (known["version"] if known else 0), self._floor)
            signed = {"meta": {"snapshot.json": entry}}
            self._write("timestamp", "timestamp", number, LIFE["timestamp"], signed, [self._key("timestamp")])

    # ---- files

    def _now(self):
        return datetime.fromtimestamp(self._clock(), UTC)

    def _needs_renewal(self, signed, life):
        """Also where a clock that was ahead has signed it for too long."""
        left = datetime.strptime(signed["expires"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) - self._now()
        return not life / 2 <= left <= life + _SKEW or signed["version"] < self._floor

    def _versions(self, role):
        return [int(path.name.partition(".")[0]) for path in self.folder.glob(f"*.{role}.json")]

    def _version(self, role):
        """The newest version written, even if nothing names it yet; 0 if there is none."""
        return max(self._versions(role), default=0)

    def _next(self, role):
        return max(self._version(role) + 1, self._floor)

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

    def _signed(self, kind, version, life, signed):
        expires = (self._now() + life).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"_type": kind, "spec_version": SPEC_VERSION, "version": version, "expires": expires} | signed

    def _write(self, name, kind, version, life, signed, keys):
        signed = self._signed(kind, version, life, signed)
        message = canonical(signed)
        signatures = [{"keyid": key_of(key)[0], "sig": key.sign(message)[len(key.public) :].hex()} for key in keys]
        self._write_envelope(name, signed, signatures)

    def _write_envelope(self, name, signed, signatures):
        data = json.dumps({"signatures": signatures, "signed": signed}, separators=(",", ":")).encode()
        file = "timestamp.json" if name == "timestamp" else f"{signed['version']}.{name}.json"
        replace_durably(self.folder / file, data)


def targets_of(version):
    """{path: its entry in the metadata} of a version's bundles and self-test."""
    found = {
        bundle_path(version.task, version.version, target): {"length": size, "hashes": {"sha256": digest}}
        for target, (digest, size) in version.bundles.items()
    }
    if version.proof:
        entry = {"length": version.proof["size"], "hashes": {"sha256": version.proof["digest"]}}
        found[proof_path(version.task, version.version)] = entry
    return found
