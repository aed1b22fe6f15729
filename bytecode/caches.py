"""Where this user's caches lie: the VMs' standard library of an installed vmhost, packages of tasks, and what was
compiled for functions that are sent.

`$VMHOST_CACHE`, else `vmhost` in `$XDG_CACHE_HOME`, else `~/.cache/vmhost`. Where there is none that this user, and no
other, can write, as in a container with a read-only home, a new folder of this process, which is removed when it ends:
a name that others could guess might be theirs already.
"""

import atexit
import functools
import logging
import os
import shutil
import tempfile
from pathlib import Path

_log = logging.getLogger("vmhost")


def usual():
    """The folder by the environment, which may be missing; None if that names none, as without a home."""
    if given := os.environ.get("VMHOST_CACHE"):
        return Path(given).absolute()
    if os.path.isabs(xdg := os.environ.get("XDG_CACHE_HOME", "")):  # its specification ignores relative paths
        return Path(xdg, "vmhost")
    home = os.path.expanduser("~/.cache/vmhost")
    return Path(home) if os.path.isabs(home) else None


def folder():
    """The folder for caches, made where it is missing. OSError: $VMHOST_CACHE cannot be used, or nothing can."""
    path = usual()
    try:
        if path is None:
            raise FileNotFoundError(2, "there is no home folder")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "it cannot be written")
        if not is_only_ours(path.stat()):
            raise PermissionError(13, "it belongs to another user or is writable by others")
    except OSError as error:
        if os.environ.get("VMHOST_CACHE"):
            raise
        return _own(f"{path or 'cache'}: {error.strerror}")
    return path


def is_only_ours(found):
    """Whether no other user can have written a file or folder, by its os.stat_result: VMs run what lies there."""
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


@functools.cache
def _own(why):
    path = Path(tempfile.mkdtemp(prefix="vmhost-"))  # of mode 0700
    atexit.register(_remove, path, os.getpid())
    _log.warning("%s; caches last only as long as this process; set VMHOST_CACHE to a folder that can be written", why)
    return path


def _remove(path, process):
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
