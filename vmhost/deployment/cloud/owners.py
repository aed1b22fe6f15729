"""Repositories whose owners sign the list of what may run: the lists that wait for signatures.

    metadata/waiting/role-shop.json     {"signed": the next metadata of the role, "signatures": received so far}

The owners' private keys are never here. A list becomes metadata once the role's threshold of owners has signed it. A
list that changes meanwhile has to be signed again.
"""

import json

from vmhost.deployment.artifacts import digest_of, replace_durably
from vmhost.deployment.errors import RefusedError
from vmhost.deployment.trust import canonical, ed25519_matches


class Waiting:
    """The lists in `folder` that wait for signatures. Callers take turns (SignedMetadata)."""

    def __init__(self, folder):
        self._folder = folder

    def stamp(self):
        """A value that differs after each change, by any process; None before the first."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def get(self, role):
        """{"signed", "signatures"}, or None if nothing waits."""
        try:
            return json.loads((self._folder / f"{role}.json").read_bytes())
        except FileNotFoundError:
            return None

    def put(self, role, signed, signatures=()):
        self._folder.mkdir(exist_ok=True)
        data = json.dumps({"signed": signed, "signatures": list(signatures)}).encode()
        replace_durably(self._folder / f"{role}.json", data)

    def remove(self, role):
        (self._folder / f"{role}.json").unlink(missing_ok=True)

    def sign(self, role, keys, identity, signature, note):
        """Takes the signature over the waiting list by the key with this id; returns (signed part, signatures so far).
        `keys`: the owners' TUF keys by id. `note` is called once it is good, with the SHA-256 of the list.
        RefusedError."""
        found = self.get(role)
        if found is None:
            raise RefusedError(f"{role.removeprefix('role-')}: nothing waits for a signature")
        if identity not in keys:
            raise RefusedError("this key is not one of the repository's owners; see: vmhost cloud sign, without --key")
        if not isinstance(signature, str) or not ed25519_matches(keys[identity], signature, canonical(found["signed"])):
            raise RefusedError(
                "the signature does not match the waiting list, which may have changed: fetch it again, and sign that"
            )
        note(digest_of(canonical(found["signed"])))
        signatures = [each for each in found["signatures"] if each["keyid"] != identity and each["keyid"] in keys]
        signatures.append({"keyid": identity, "sig": signature})
        self.put(role, found["signed"], signatures)
        return found["signed"], signatures
