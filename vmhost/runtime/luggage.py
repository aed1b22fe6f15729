"""What a function takes along into a VM: the bytecode of its module and of what that imports.

Made once for each state of the sources, and kept in the user's cache folder for later processes, which then need no
compiler: vmhost/runtime/packing.py, which makes it, is imported only where nothing fits.
"""

import os
import threading
from dataclasses import replace
from pathlib import Path

from vmhost.bytecode.compilations import Compilations
from vmhost.runtime import program_packages
from vmhost.runtime.kept_luggage import ModuleSource, keep, kept_luggage, stamp

_MAKERS = tuple(
    Path(__file__).with_name(name) for name in ("luggage.py", "kept_luggage.py", "packing.py", "program_packages.py")
)
_compiled = {}  # (ModuleSource, roots, is_own) -> ({path: stamp}, Luggage)
_compiled_lock = threading.Lock()


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
    luggage, paths = (key and kept_luggage(kept, key, roots, packages)) or (None, None)
    if luggage is None:
        from vmhost.runtime.packing import pack  # imported late: it brings the compiler

        packed = pack(source, roots, packages, is_own, kept)
        luggage, paths = packed.luggage, packed.found[2]
        if key and packed.is_final:
            keep(kept, key, packed)
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


def _stamps(files):
    """`files`, paths as keys, with stamps that change when a file is written as values."""
    return {path: stamp(path) for path in files}
