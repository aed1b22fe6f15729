"""Keys that the platform makes when it first needs them: one process makes them, the others wait and read."""

import contextlib
import fcntl
from pathlib import Path

from vmhost.bytecode import signing


@contextlib.contextmanager
def turn(folder):
    """Held by one thread of one process at a time, while it looks for a key in `folder` and makes it if missing."""
    with open(Path(folder) / "turns", "ab") as turns:
        fcntl.flock(turns, fcntl.LOCK_EX)
        yield


def make(path, name):
    """Makes a private key and its public one, unless it exists. A public key alone is what a killed process left."""
    if not path.exists():
        path.with_name(f"{path.name}.pub").unlink(missing_ok=True)
        signing.generate_key().save(path, name)
