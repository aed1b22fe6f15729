"""Which packages the functions of the running program find in VMs, and the texts that these compile.

A program's functions find what the program itself can import. A script may declare its requirements (PEP 723). If this
environment lacks some of them, or a lock file lies next to the script, the locked packages, with the versions and
hashes of the lock, replace everything that is installed.

Packages compile texts while they are imported: these are recorded in a separate process, once for each state of the
sources, and cached in the user's cache folder (vmhost/runtime/packing.py). Texts compiled during calls are written by
`vmhost record SCRIPT` to a file next to the script (vmhost/recording_executor.py).

Imports are late where most programs need none of it: they have no block.
"""

import os
import sys
import threading
from pathlib import Path

from vmhost.runtime.working_folder import absolute

IN_RECORDER = "VMHOST_IN_RECORDER"  # set in the process that records imports: it creates no VMs
_BEGINS_BLOCK = b"# /// script"
_lock = threading.Lock()
_read = {}  # script path -> ({path: stamp} of script and lock, folder)


def script():
    """The Path of the file that the program runs; None if there is none."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(absolute(file)) if file and file.endswith(".py") else None
    return path if path is not None and path.is_file() else None


def record_path(path):
    """The file for texts that packages compile during calls of the script at `path`."""
    from vmhost.bytecode.recording import RECORD_NAME

    return path.with_name(f"{path.stem}.{RECORD_NAME}")


def locked():
    """The folder with the packages that replace this environment's in VMs, or None. BytecodeError for an invalid block,
    or packages that are not available."""
    path = script()
    if path is None:
        return None
    with _lock:
        known = _read.get(path)
        if known is not None and all(_stamp(each) == stamp for each, stamp in known[0].items()):
            return known[1]
        stamps, text = {path: _stamp(path)}, path.read_bytes()
        folder = _folder_of_block(path, text, stamps) if _BEGINS_BLOCK in text else None
        _read[path] = stamps, folder
        return folder


def _folder_of_block(path, text, stamps):
    """The folder for a script's block; adds the lock file's stamp to `stamps`."""
    from vmhost.bytecode.packages import LOCK_NAME, Requirements, installed
    from vmhost.bytecode.script_block import read_script_block

    lock = path.with_name(f"{path.stem}.{LOCK_NAME}")
    block, folder = read_script_block(text.decode("utf-8", "replace"), path), None
    if block is not None and (lock.exists() or not all(map(_is_installed, block.names()))):
        folder = installed(Requirements.of_script(path, block))
    stamps[lock] = _stamp(lock)
    return folder


def locked_data(folder):
    """The packages without modules, only files, in a folder returned by `locked`."""
    if folder is None:
        return []
    from vmhost.bytecode.packages import packages_in

    return [name for package in packages_in(folder) for name in package.data]


def _is_installed(name):
    from importlib import metadata

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _stamp(path):
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
