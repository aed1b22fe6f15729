"""A CPython process that stands in for a sealed VM: no compiler after the seal, and the patched standard library.

`python -S -P sealed_python.py PROGRAM [TEXTS]` compiles PROGRAM, seals the process, then runs it. Importing may still
compile files of the standard library and the guest (a VM has them as bytecode); everything else that compiles text or
builds a code object fails. TEXTS is a marshalled list of (mode, text) to compile beforehand, as the cloud compiler
would.

With SEALED_EXCEPT=folder:folder in the environment, files below these may compile, and the standard library's own
_colorize is used: for CPython's tests, which compile what they test (`cpython_suite.py`).
"""

import _imp
import marshal
import os
import sys
from _frozen_importlib import (
    ModuleSpec,
    spec_from_loader,
)  # importlib.machinery would import modules that are to be edited
from _frozen_importlib_external import PathFinder

ROOT = __file__.rpartition("/tests/")[0]
GUEST = f"{ROOT}/vmhost/guest"
STDLIB = f"{ROOT}/vmhost/stdlib"


class Package:
    """vmhost and vmhost.guest without what the host's side of them imports."""

    create_module = staticmethod(lambda spec: None)
    exec_module = staticmethod(lambda module: None)


class Patched:
    """A module of the standard library, edited."""

    def __init__(self, path, patch):
        self.path = path
        self.patch = patch

    create_module = staticmethod(lambda spec: None)

    def exec_module(self, module):
        with open(self.path, encoding="utf-8") as file:
            source = self.patch(module.__name__, file.read())
        exec(seal.compile(source, self.path), module.__dict__)


class Finder:
    def __init__(self, patch, patched):
        self.patch = patch
        self.patched = patched

    def find_spec(self, name, path=None, target=None):
        if name in ("vmhost", "vmhost.guest"):
            spec = ModuleSpec(name, Package, is_package=True)
            spec.submodule_search_locations = [GUEST]
            return spec
        overlay = f"{STDLIB}/overlays/{name}.py"
        if not seal.exempt and os.path.exists(overlay):
            return spec_from_loader(name, Patched(overlay, lambda name, source: source), origin=overlay)
        if name not in self.patched:
            return None
        found = PathFinder.find_spec(name, path)
        spec = spec_from_loader(
            name,
            Patched(found.origin, self.patch),
            origin=found.origin,
            is_package=found.submodule_search_locations is not None,
        )
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class Seal:
    """The audit hook, and the callers that it lets pass."""

    def __init__(self):
        self.open = False
        self.exempt = tuple(filter(None, os.environ.get("SEALED_EXCEPT", "").split(":")))

    def compile(self, source, path):
        was_open, self.open = self.open, True
        try:
            return compile(source, path, "exec", dont_inherit=True)
        finally:
            self.open = was_open

    def close(self):
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if event not in ("compile", "code.__new__") or self.open:
            return
        if sys._getframe(1).f_code.co_filename.startswith(("<frozen importlib", *self.exempt)):
            return
        raise PermissionError(f"sealed: {event}{arguments[-1:]!r}")


seal = Seal()


def writer():
    """The native core, which writes code objects from recipes; loaded by its file, as its packages are missing."""
    suffix = _imp.extension_suffixes()[0]
    spec = ModuleSpec("vmhost.isolation._core", None, origin=f"{ROOT}/vmhost/isolation/_core{suffix}")
    core = _imp.create_dynamic(spec)
    _imp.exec_dynamic(core)
    return core


def main(program, texts_file=None):
    assert not {"collections", "types", "dataclasses"} & set(sys.modules), (
        "a module was imported before it could be edited"
    )
    patches = {"__file__": f"{STDLIB}/patches/__init__.py"}
    with open(patches["__file__"], encoding="utf-8") as file:
        exec(compile(file.read(), patches["__file__"], "exec"), patches)
    sys.meta_path.insert(0, Finder(patches["patch"], patches["patched_modules"]()))

    from vmhost.guest import texts

    codes = {}
    if texts_file:
        with open(texts_file, "rb") as file:
            for mode, text in marshal.load(file):
                codes[texts.digest(mode, text)] = compile(text, "<string>", mode, dont_inherit=True)
    with open(program, encoding="utf-8") as file:
        code = compile(file.read(), "program.py", "exec", dont_inherit=True)
    texts.install(codes.get, writer())
    seal.close()
    main_module = type(sys)("__main__")
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    main(*sys.argv[1:])
