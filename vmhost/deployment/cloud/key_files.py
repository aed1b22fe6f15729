"""Keys that the platform makes when it first needs them: one process makes them, the others wait and read."""

import contextlib
import fcntl
from pathlib import Path


@contextlib.contextmanager
def turn(folder):
    """Held by one thread of one process at a time, while it looks for a key in `folder` and makes it if missing."""
    with open(Path(folder) / "turns", "ab") as turns:
        fcntl.flock(turns, fcntl.LOCK_EX)
        yield
