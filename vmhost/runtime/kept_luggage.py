"""Luggage, what a function takes along into a VM, and how it is kept in the user's cache folder for later processes."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vmhost.bytecode.format import Module
from vmhost.bytecode.lookup import still_hold
from vmhost.bytecode.postponing import Postponed


@dataclass(frozen=True)
class ModuleSource:
    """The module to compile; `root` is the folder in which its own imports are found."""

    name: str
    text: bytes
    path: str
    is_package: bool
    root: str


@dataclass(frozen=True)
class Luggage:
    """A module as sent to a VM: `name`, and `modules` and `texts` of a bundle, empty for a module that all VMs have."""

    name: str
    modules: Mapping
    texts: Mapping
    gaps: Mapping = MappingProxyType({})  # names that it cannot import in a VM -> reason
    files: Mapping = MappingProxyType({})  # of packages: path to bytes
    absent: Mapping = MappingProxyType({})  # modules that it imports and a VM does not have -> reason
    # own module -> {name: Postponed}: imports that wait, whose modules are not among these; and where they are found
    later: Mapping = MappingProxyType({})
    roots: tuple = ()
    deferred: frozenset = frozenset()  # modules of packages that are not among these either, until a VM imports them


@dataclass(frozen=True)
class Packed:
    """A Luggage that was made, and what it depends on: `found` as of a Closure, `others`, {path: digest} of further
    files, and `sites`, {folder of packages: state}. `codes`: the keys under which each module's code is kept; `linked`,
    {path in `files`: path on disk}. `is_final`: another process would make the same."""

    luggage: Luggage
    codes: Mapping
    found: tuple
    others: Mapping
    sites: Mapping
    linked: Mapping
    is_final: bool


def state_of_packages(site):
    """What identifies the packages installed in a folder, as a plain value."""
    found = {}
    with os.scandir(site) as entries:
        for each in entries:
            if each.name.endswith((".dist-info", ".egg-info", ".egg")):
                found[each.name] = stamp(os.path.join(each.path, "RECORD"))
    return found


def digest_of(path):
    """The SHA-256 of a file; None if it cannot be read."""
    try:
        return _digest(Path(path).read_bytes())
    except OSError:
        return None


def _digest(data):
    return hashlib.sha256(data).digest()


def keep(kept, key, packed):
    """Keeps the Packed in the Compilations `kept` under `key`."""
    each = packed.luggage
    kept.put(
        key,
        (
            (packed.found, dict(packed.others), dict(packed.sites)),
            [(name, module.is_package, packed.codes[name]) for name, module in each.modules.items()],
            (each.name, dict(each.texts), dict(each.gaps), dict(each.absent), sorted(each.deferred)),
            {own: {name: (at.modules, at.where) for name, at in names.items()} for own, names in each.later.items()},
            {path: data for path, data in each.files.items() if path not in packed.linked},
            {path: (where, _digest(each.files[path])) for path, where in packed.linked.items()},
        ),
    )


def kept_luggage(kept, key, roots, packages):
    """(Luggage, paths of its sources) as kept under `key`; None if there is none, or something has changed."""
    entry = kept.get(key)
    if entry is None:
        return None
    (found, others, sites), codes, (name, texts, gaps, absent, deferred), later, files, linked = entry
    try:
        same = all(state_of_packages(site) == state for site, state in sites.items())
    except OSError:
        return None
    if not same or any(digest_of(path) != digest for path, digest in others.items()) or not still_hold(roots, found):
        return None
    modules = {}
    for module, is_package, code_key in codes:
        code = kept.get(code_key)
        if code is None:
            return None
        modules[module] = Module(is_package, code[0])
        texts.update(code[1])
    for path, (where, digest) in linked.items():
        try:
            files[path] = Path(where).read_bytes()
        except OSError:
            return None
        if _digest(files[path]) != digest:
            return None
    waiting = {own: {each: Postponed(*at) for each, at in names.items()} for own, names in later.items()}
    luggage = Luggage(name, modules, texts, gaps, files, absent, waiting, (roots, packages), frozenset(deferred))
    return luggage, found[2]


def stamp(path):
    """What changes when the file is written; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
