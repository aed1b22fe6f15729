"""Which packages the functions of the running program find in VMs, and the texts that these compile.

A program's functions find what the program itself can import. A script may declare its requirements (PEP 723). If this
environment lacks some of them, or a lock file lies next to the script, the locked packages, with the versions and
hashes of the lock, replace everything that is installed.

Packages compile texts while they are imported: these are recorded in a separate process, once for each state of the
sources, and cached in the user's cache folder. Texts compiled during calls are written by `vmhost record SCRIPT` to a
file next to the script (vmhost/recording_executor.py).
"""

import importlib.metadata
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from vmhost.bytecode.closure import is_installed
from vmhost.bytecode.packages import LOCK_NAME, Requirements, cache_folder, files_of, installed, packages_in
from vmhost.bytecode.recording import RECORD_NAME, Program, Recorded, read_record, record_imports
from vmhost.bytecode.script_block import read_script_block
from vmhost.runtime.working_folder import absolute

IN_RECORDER = "VMHOST_IN_RECORDER"  # set in the process that records imports: it creates no VMs
_COMPILES = re.compile(
    rb"(?:(?<![.\w])|builtins\.)(?:exec|eval|compile)\b|\bast\b|\b(?:getsource(?:lines)?|findsource)\b"
)
_log = logging.getLogger("vmhost")
_lock = threading.Lock()
_read = {}  # script path -> (stamps of script and lock, folder)


@dataclass(frozen=True)
class Luggage:
    """What packages bring besides their modules: texts, digest to marshalled code; and files, path to bytes."""

    texts: dict
    files: dict


def script():
    """The Path of the file that the program runs; None if there is none."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(absolute(file)) if file and file.endswith(".py") else None
    return path if path is not None and path.is_file() else None


def record_path(path):
    """The file for texts that packages compile during calls of the script at `path`."""
    return path.with_name(f"{path.stem}.{RECORD_NAME}")


def locked():
    """The folder with the packages that replace this environment's in VMs, or None. BytecodeError for an invalid block,
    or packages that are not available."""
    path = script()
    if path is None:
        return None
    lock = path.with_name(f"{path.stem}.{LOCK_NAME}")
    with _lock:
        stamps = _stamp(path), _stamp(lock)
        known = _read.get(path)
        if known is not None and known[0] == stamps:
            return known[1]
        block = read_script_block(path.read_bytes().decode("utf-8", "replace"), path)
        folder = None
        if block is not None and (lock.exists() or not all(map(_is_installed, block.names()))):
            folder = installed(Requirements.of_script(path, block))
        _read[path] = (_stamp(path), _stamp(lock)), folder
        return folder


def locked_data(folder):
    """The packages without modules, only files, in a folder returned by `locked`."""
    return [] if folder is None else [name for package in packages_in(folder) for name in package.data]


def luggage(closure, module):
    """What the packages in the Closure of `module` bring."""
    sites = {}
    for name, source in closure.sources.items():
        if is_installed(source):
            parts = Path(source.path).parts[: -name.count(".") - 1 - source.is_package]
            sites.setdefault(str(Path(*parts)), set()).add(name)
    files = {}
    for site, names in sites.items():
        tops = {name.partition(".")[0] for name in names}
        for package in packages_in(site, tops):
            package_texts = files_of(package, site)
            files.update((path, data) for path, data in package_texts.items() if _is_of(path, tops))
    texts, path = {}, script()
    records = [_of_imports(closure, module, tuple(sites))] if sites else []
    if path is not None and not os.environ.get(IN_RECORDER):
        records.append(read_record(record_path(path)))
    for record in records:
        texts |= record.texts
        files |= record.files(closure.sources)
    return Luggage(texts, files)


def _of_imports(closure, module, sites):
    package_texts = [source for source in closure.sources.values() if is_installed(source)]
    if os.environ.get(IN_RECORDER) or not any(_COMPILES.search(source.text) for source in package_texts):
        return Recorded()
    texts = {name: source.text for name, source in closure.sources.items()}
    program = Program(
        entry=module,
        roots=sites,
        modules=tuple(source.name for source in package_texts),
        absent={name: each.reason for each in closure.absent for name in each.names or (each.name,)},
        replaced=closure.replaced,
        path=None,
        sources=tuple(
            (source.name, source.text, source.path, source.is_package)
            for source in closure.sources.values()
            if not is_installed(source)
        ),
        folder=absolute(),
        environment={IN_RECORDER: "1"},
    )
    kept = cache_folder("texts")
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _log.debug("%s: can't be written: %s", kept, error.strerror)
    found, problems = record_imports(replace(program, path=kept / f"{program.stamp(texts)}.json"), texts)
    for problem in problems:
        _log.warning("%s", problem)
    return found


def _is_of(path, top_level):
    first = path.partition("/")[0]
    return first in top_level or first.endswith(".dist-info")


def _is_installed(name):
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _stamp(path):
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
