"""What a function takes along into a VM: the bytecode of its module and of what that imports.

Made once for each state of the sources, and kept in the user's cache folder for later processes, which then need no
compiler: vmhost/runtime/packing.py, which makes it, is imported only where nothing fits.
"""

import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from vmhost.bytecode.compilations import Compilations
from vmhost.bytecode.format import Module
from vmhost.bytecode.lookup import still_hold
from vmhost.bytecode.postponing import Postponed
from vmhost.runtime import program_packages

_MAKERS = tuple(Path(__file__).with_name(name) for name in ("luggage.py", "packing.py", "program_packages.py"))
_compiled = {}  # (ModuleSource, roots, is_own) -> ({path: stamp}, Luggage)
_compiled_lock = threading.Lock()


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


def luggage_of(source, roots, packages, is_own=True):
    """The Luggage of the ModuleSource and of what it imports from the folders `roots`. BytecodeError."""
    with _compiled_lock:
        known = _compiled.get((source, roots, is_own))
    if known is not None and _stamps(known[0]) == known[0]:
        return known[1]
    kept = None if os.environ.get(program_packages.IN_RECORDER) else Compilations.usual(*_MAKERS)
    script = program_packages.script()
    key = kept and kept.key(
        "luggage",
        (source.name, source.text, source.path, source.is_package, is_own),
        (roots, str(packages), str(script)),
    )
    luggage, paths = (key and _kept(kept, key, roots, packages)) or (None, None)
    if luggage is None:
        from vmhost.runtime.packing import pack  # imported late: it brings the compiler

        packed = pack(source, roots, packages, is_own, kept)
        luggage, paths = packed.luggage, packed.found[2]
        if key and packed.is_final:
            _keep(kept, key, packed)
    if kept is not None:
        kept.bound()
    stamps = _stamps({path: None for path in paths if path != source.path})
    with _compiled_lock:
        _compiled[source, roots, is_own] = stamps, luggage
    return luggage


def later_luggage(module, roots):
    """The Luggage of the installed module that an import that waited, or one of a package in a function, needs; `roots`
    is of the Luggage of what imports it. BytecodeError."""
    folders, packages = roots
    source = ModuleSource("__vmhost_later__", f"import {module}".encode(), f"<import {module}>", False, "")
    luggage = luggage_of(source, folders, packages, is_own=False)
    return replace(luggage, modules={name: each for name, each in luggage.modules.items() if name != source.name})


def state_of_packages(site):
    """What identifies the packages installed in a folder, as a plain value."""
    found = {}
    with os.scandir(site) as entries:
        for each in entries:
            if each.name.endswith((".dist-info", ".egg-info", ".egg")):
                found[each.name] = _stamp(os.path.join(each.path, "RECORD"))
    return found


def digest_of(path):
    """The SHA-256 of a file; None if it cannot be read."""
    try:
        return _digest(Path(path).read_bytes())
    except OSError:
        return None


def _digest(data):
    return hashlib.sha256(data).digest()


def _keep(kept, key, packed):
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


def _kept(kept, key, roots, packages):
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


def _stamps(files):
    """`files`, paths as keys, with stamps that change when a file is written as values."""
    return {path: _stamp(path) for path in files}


def _stamp(path):
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
