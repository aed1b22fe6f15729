"""Keys that the platform makes when it first needs them: one process makes them, the others wait and read."""

import contextlib
import fcntl
from pathlib import Path

from vmhost.bytecode import signing
from vmhost.deployment.artifacts import replace_durably


@contextlib.contextmanager
def turn(folder):
    """Held by one thread of one process at a time, while it looks for a key in `folder` and makes it if missing."""
    with open(Path(folder) / "turns", "ab") as turns:
        fcntl.flock(turns, fcntl.LOCK_EX)
        yield


def make(path, name):
    """Makes a private key and its public one, and completes what a killed process left."""
    public = path.with_name(f"{path.name}.pub")
    if not path.exists():
        public.unlink(missing_ok=True)
        signing.generate_key().save(path, name)
    elif not public.exists():
        replace_durably(public, signing.format_public_key(name, signing.load_key(path).public).encode())
        public.chmod(0o644)
