"""The platform's signed metadata as devices get it, and files that a thief signs."""

import json

from vmhost.deployment.cloud.metadata import key_of
from vmhost.deployment.trust import canonical


def sign_all(platform):
    """Does what the platform does every second."""
    platform.metadata._due = platform.metadata._now()
    platform.sync_metadata()


class Repository:
    """The files that a device gets: the platform's, unless the test replaces them."""

    def __init__(self, platform):
        self.folder, self.instead = platform.metadata.folder, {}

    def __call__(self, name, max_bytes):
        if name in self.instead:
            return self.instead[name]
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def plain(self, name):
        return json.loads(self(name, 1 << 20))


def signed(plain, *keys):
    """The bytes of metadata with another content, signed by these keys."""
    message = canonical(plain["signed"])
    plain["signatures"] = [{"keyid": key_of(key)[0], "sig": key.sign(message)[32:].hex()} for key in keys]
    return json.dumps(plain).encode()
