"""Which tasks may run: a client of The Update Framework 1.0 (theupdateframework.github.io/specification) for devices.

`Metadata(folder, fetch)` keeps the trusted roles (root, timestamp, snapshot, targets and delegated ones) in `folder`,
starting with the `root.json` given to the device. `refresh()` is the specification's detailed client workflow, section
5: thresholds of signatures, rotation of roots one by one, versions that never decrease, expiry. `target(path)` finds
the entry of a target file, through delegations. Nothing unverified is ever written.

TrustError says why metadata cannot be trusted; the device then continues with what it has.
"""

import fnmatch
import hashlib
import json
import os
import re
import time
from datetime import UTC, datetime

from vmhost.bytecode import ed25519
from vmhost.deployment.artifacts import replace_durably
from vmhost.deployment.errors import DeploymentError

SPEC = "1"
MAX_ROOTS = 256  # new roots in one refresh
MAX_DELEGATIONS = 32
MAX_BYTES = {"root": 512_000, "timestamp": 16_384, "snapshot": 2_000_000}
_MAX_TARGETS_BYTES = 5_000_000
_ROLE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class TrustError(DeploymentError):
    """Metadata with missing signatures, older than the trusted one, expired, or malformed."""


def canonical(value):
    """The bytes of OLPC's canonical JSON, which is what is signed."""
    if isinstance(value, str):
        return b'"' + value.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'
    if value is None or isinstance(value, bool):
        return {None: b"null", True: b"true", False: b"false"}[value]
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if isinstance(value, dict):
        return b"{" + b",".join(canonical(key) + b":" + canonical(value[key]) for key in sorted(value)) + b"}"
    raise TrustError(f"canonical JSON has no {type(value).__name__}")


def ed25519_matches(key, signature, message):
    """Whether the signature (hexadecimal) over the bytes is by the TUF key. Only Ed25519 is supported."""
    if key.get("keytype") != "ed25519" or key.get("scheme") != "ed25519":
        return False
    try:
        public, signed = bytes.fromhex(key["keyval"]["public"]), bytes.fromhex(signature)
    except ValueError, KeyError, TypeError:
        return False
    return ed25519.matches(public, signed, message)


class Metadata:
    """The trusted metadata in `folder`, which has `root.json`. `fetch(name, max_bytes)` returns the bytes of a file of
    the repository, or None; its errors pass through. `clock`: seconds since 1970.
    """

    def __init__(self, folder, fetch, clock=time.time, matches=ed25519_matches):
        self._folder, self._fetch, self._clock, self._matches = folder, fetch, clock, matches
        self._trusted = {}  # role -> its signed part

    # ---- sections 5.3 to 5.6

    def refresh(self):
        """Brings root, timestamp, snapshot and targets up to date. TrustError."""
        self._trusted = {}
        now = datetime.fromtimestamp(self._clock(), UTC)
        self._load_root(now)
        self._load_timestamp(now)
        self._load_snapshot(now)
        self._load_targets("targets", "root", now)

    def _load_root(self, now):
        data = (self._folder / "root.json").read_bytes()
        root = self._read(data, "root")
        self._verify(root, root["signed"], "root", "root")
        trusted = root["signed"]
        for _ in range(MAX_ROOTS):
            version = trusted["version"] + 1
            data = self._fetch(f"{version}.root.json", MAX_BYTES["root"])
            if data is None:
                break
            root = self._read(data, "root")
            self._verify(root, trusted, "root", "root")
            self._verify(root, root["signed"], "root", "root")
            if root["signed"]["version"] != version:
                raise TrustError(f"root: expected version {version}, got {root['signed']['version']}")
            trusted = root["signed"]
            self._keep("root", data)
        self._must_be_fresh(trusted, "root", now)
        self._trusted["root"] = trusted

    def _load_timestamp(self, now):
        known = self._local("timestamp", "root")
        data = self._must_fetch("timestamp.json", MAX_BYTES["timestamp"])
        found = self._read(data, "timestamp")
        self._verify(found, self._trusted["root"], "timestamp", "timestamp")
        signed = found["signed"]
        if known is not None:
            if signed["version"] < known["version"]:
                raise TrustError(f"timestamp: version {signed['version']} is older than {known['version']}")
            before, after = known["meta"]["snapshot.json"]["version"], signed["meta"]["snapshot.json"]["version"]
            if after < before:
                raise TrustError(f"timestamp: names snapshot {after}, which is older than {before}")
        if known is None or signed["version"] > known["version"]:
            self._must_be_fresh(signed, "timestamp", now, keep=("timestamp", data))
            known = signed
        self._must_be_fresh(known, "timestamp", now)
        self._trusted["timestamp"] = known

    def _load_snapshot(self, now):
        meta = self._trusted["timestamp"]["meta"]["snapshot.json"]
        known = self._local("snapshot", "root")
        if known is None or known["version"] != meta["version"]:
            data = self._must_fetch(self._name("snapshot", meta), meta.get("length", MAX_BYTES["snapshot"]))
            found = self._read(data, "snapshot", meta)
            self._verify(found, self._trusted["root"], "snapshot", "snapshot")
            signed = found["signed"]
            for name, entry in (known or {"meta": {}})["meta"].items():
                if name not in signed["meta"]:
                    raise TrustError(f"snapshot: no longer names {name}")
                if signed["meta"][name]["version"] < entry["version"]:
                    raise TrustError(f"snapshot: names an older {name} than before")
            if signed["version"] != meta["version"]:
                raise TrustError(f"snapshot: expected version {meta['version']}, got {signed['version']}")
            self._must_be_fresh(signed, "snapshot", now, keep=("snapshot", data))
            known = signed
        elif not self._local_matches("snapshot", meta):
            raise TrustError("snapshot: the one that is trusted is not the one that the timestamp names")
        self._must_be_fresh(known, "snapshot", now)
        self._trusted["snapshot"] = known

    def _load_targets(self, role, parent, now):
        """Loads a targets role, the top one or a delegated one, with the signatures that its parent requires."""
        meta = self._trusted["snapshot"]["meta"].get(f"{role}.json")
        if meta is None:
            raise TrustError(f"{role}: the snapshot does not name it")
        known = self._local(role, parent)
        if known is None or known["version"] != meta["version"] or not self._local_matches(role, meta):
            data = self._must_fetch(self._name(role, meta), meta.get("length", _MAX_TARGETS_BYTES))
            found = self._read(data, "targets", meta)
            self._verify(found, self._trusted[parent], role, role)
            known = found["signed"]
            if known["version"] != meta["version"]:
                raise TrustError(f"{role}: expected version {meta['version']}, got {known['version']}")
            self._must_be_fresh(known, role, now, keep=(role, data))
        self._must_be_fresh(known, role, now)
        self._trusted[role] = known
        return known

    # ---- section 5.7

    def target(self, path):
        """{"length", "hashes", "custom"} of the target file; None if no authorized role lists it. After `refresh`.
        TrustError."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        todo, seen = [("targets", "root")], set()
        while todo and len(seen) <= MAX_DELEGATIONS:
            role, parent = todo.pop()
            if role in seen:
                continue
            seen.add(role)
            # If it was loaded for another parent, it was verified with that one's keys: verify it again.
            signed = self._trusted["targets"] if role == "targets" else self._load_targets(role, parent, now)
            if path in signed["targets"]:
                return signed["targets"][path]
            found = []
            for delegation in _delegations(signed):
                if _delegates(delegation, path):
                    found.append((delegation["name"], role))
                    if delegation.get("terminating"):
                        todo.clear()
                        break
            todo += reversed(found)
        return None

    def target_file(self, path, entry):
        """The target's path in the repository: with its digest in the name where snapshots are consistent."""
        if not self._trusted["root"].get("consistent_snapshot", True):
            return path
        folder, slash, name = path.rpartition("/")
        return f"{folder}{slash}{next(iter(entry['hashes'].values()))}.{name}"

    def delegates(self, role):
        """Whether the top role, targets, has this one. After `refresh`."""
        return any(each["name"] == role for each in _delegations(self._trusted["targets"]))

    def must_be_signed(self, role, signed, signatures):
        """TrustError unless enough keys of a role of targets signed `signed`, plain data that is no metadata."""
        envelope = {"signed": signed, "signatures": signatures if isinstance(signatures, list) else []}
        self._verify(envelope, self._trusted["targets"], role, signed["_type"])

    # ---- reading and verifying

    def _read(self, data, kind, meta=None):
        """The envelope in `data`, whose signed part is of this kind; checked against length and hashes where known."""
        if meta is not None:
            if "length" in meta and len(data) != meta["length"]:
                raise TrustError(f"{kind}: expected {meta['length']} bytes, got {len(data)}")
            _must_match(data, meta.get("hashes"), kind)
        try:
            envelope = json.loads(data)
            signed = envelope["signed"]
            if signed["_type"] != kind or signed["spec_version"].partition(".")[0] != SPEC:
                raise TrustError(f"{kind}: expected metadata of this kind and of version {SPEC} of the specification")
            if (
                type(signed["version"]) is not int
                or signed["version"] < 1
                or not isinstance(envelope["signatures"], list)
            ):
                raise TrustError(f"{kind}: expected a version from 1 on, and signatures")
            _expiry(signed)
            if kind == "root":
                for role in ("root", "timestamp", "snapshot", "targets"):
                    _must_be_role(signed["roles"][role], signed["keys"])
            if kind == "timestamp":
                _must_be_meta(signed["meta"]["snapshot.json"])
            if kind == "snapshot":
                for entry in signed["meta"].values():
                    _must_be_meta(entry)
            if kind == "targets":
                for entry in signed["targets"].values():
                    if type(entry["length"]) is not int or entry["length"] < 0 or not entry["hashes"]:
                        raise TrustError("targets: a target without length or hashes")
                for delegation in _delegations(signed):
                    _must_be_role(delegation, signed["delegations"]["keys"])
                    if not _ROLE_NAME.fullmatch(delegation["name"]) and not isinstance(delegation["name"], str):
                        raise TrustError(f"targets: a role cannot be called {delegation['name']!r:.100}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TrustError(f"{kind}: not metadata ({type(error).__name__}: {error})") from None
        return envelope

    def _verify(self, envelope, delegator, role, what):
        """TrustError unless a threshold of the keys that the delegator names for the role signed."""
        if delegator["_type"] == "root":
            keys, entry = delegator["keys"], delegator["roles"][role]
        else:
            keys = delegator["delegations"]["keys"]
            entry = next((each for each in _delegations(delegator) if each["name"] == role), None)
            if entry is None:
                raise TrustError(f"{what}: no role delegates to it")
        message, signed_by, seen = canonical(envelope["signed"]), set(), set()
        for signature in envelope["signatures"]:
            try:
                identity, text = signature["keyid"], signature["sig"]
            except TypeError, KeyError:
                raise TrustError(f"{what}: a signature without key or value") from None
            if identity in seen:
                raise TrustError(f"{what}: two signatures by the key {identity!r:.20}")
            seen.add(identity)
            if identity in entry["keyids"] and identity in keys and self._matches(keys[identity], text, message):
                signed_by.add(identity)
        if len(signed_by) < entry["threshold"]:
            raise TrustError(f"{what}: {len(signed_by)} of the {entry['threshold']} signatures that it needs are good")

    def _must_be_fresh(self, signed, role, now, keep=None):
        """TrustError if it has expired; otherwise keeps `keep`, (role, bytes)."""
        if _expiry(signed) <= now:
            raise TrustError(
                f"{role}: expired at {signed['expires']}; this device's clock says {now:%Y-%m-%dT%H:%M:%SZ}: set the "
                "clock, or have the platform sign anew"
            )
        if keep is not None:
            self._keep(*keep)

    def _must_fetch(self, name, max_bytes):
        data = self._fetch(name, max_bytes)
        if data is None:
            raise TrustError(f"{name}: the platform does not have it")
        return data

    def _name(self, role, meta):
        consistent = self._trusted["root"].get("consistent_snapshot", True)
        return f"{meta['version']}.{role}.json" if consistent else f"{role}.json"

    def _path(self, role):
        safe = role if _ROLE_NAME.fullmatch(role) else hashlib.sha256(role.encode()).hexdigest()
        return self._folder / f"{safe}.json"

    def _keep(self, role, data):
        os.makedirs(self._folder, exist_ok=True)
        replace_durably(self._path(role), data)

    def _local(self, role, parent):
        """The signed part of the stored file if its signatures are still valid; else None."""
        try:
            data = self._path(role).read_bytes()
            kind = role if role in ("timestamp", "snapshot") else "targets"
            envelope = self._read(data, kind)
            self._verify(envelope, self._trusted[parent], role, role)
        except OSError, TrustError:
            return None
        return envelope["signed"]

    def _local_matches(self, role, meta):
        try:
            data = self._path(role).read_bytes()
            _must_match(data, meta.get("hashes"), role)
        except OSError, TrustError:
            return False
        return "length" not in meta or len(data) == meta["length"]


def is_target(data, entry):
    """Whether the bytes are the target with this entry of `Metadata.target`."""
    try:
        _must_match(data, entry["hashes"], "target")
    except TrustError:
        return False
    return len(data) == entry["length"]


def _must_match(data, hashes, what):
    for name, digest in (hashes or {}).items():
        if name not in hashlib.algorithms_available or hashlib.new(name, data).hexdigest() != digest:
            raise TrustError(f"{what}: its {name} does not match")


def _must_be_meta(entry):
    if type(entry["version"]) is not int or entry["version"] < 1:
        raise TrustError("metadata without a version")


def _must_be_role(entry, keys):
    threshold, ids = entry["threshold"], entry["keyids"]
    if type(threshold) is not int or threshold < 1 or len(set(ids)) != len(ids) or not isinstance(keys, dict):
        raise TrustError("a role with an invalid threshold or invalid keys")


def _delegations(signed):
    return (signed.get("delegations") or {}).get("roles") or ()


def _delegates(delegation, path):
    """Whether the role is responsible for the target: by glob patterns, whose `*` stays within a folder, or by hash
    prefixes."""
    if "path_hash_prefixes" in delegation:
        digest = hashlib.sha256(path.encode()).hexdigest()
        return any(digest.startswith(prefix) for prefix in delegation["path_hash_prefixes"])
    parts = path.split("/")
    for pattern in delegation.get("paths", ()):
        wanted = pattern.split("/")
        if len(wanted) == len(parts) and all(map(fnmatch.fnmatchcase, parts, wanted)):
            return True
    return False


def _expiry(signed):
    return datetime.strptime(signed["expires"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
