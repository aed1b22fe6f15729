"""Builds the standard-library bundle that VMs boot from: `python -m vmhost.stdlib OUT.vmb`.

It has the running Python's own standard library (its .py sources), minus modules without use in a VM
(`vmhost.bytecode.offered`), plus the guest runtime and `vmhost.engine.numpy`; only this exact Python accepts it. The
same Python and sources give the same bytes.

Beside this file: `overlays/<dotted name>.py` replaces that module; `patches/` changes sources; `system_texts.py` lists
the texts that modules compile at run time; `splitting.py` cuts modules into parts that are loaded on demand."""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

from vmhost.bytecode.acceptance import note
from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.format import Manifest, Module, module_path, read_bundle, write_bundle
from vmhost.bytecode.offered import engine_sources, guest_sources, library_sources
from vmhost.bytecode.source import compile_source
from vmhost.bytecode.texts import compile_text, text_digest
from vmhost.stdlib.patches import PatchError, patch
from vmhost.stdlib.splitting import SplitError, split
from vmhost.stdlib.system_texts import RecordingError, system_texts

_OVERLAYS = Path(__file__).parent / "overlays"


class LibraryError(BytecodeError):
    """This Python's standard library is not the expected one: patches or cuts do not fit."""


def build_stdlib():
    """The bytes of the standard-library bundle. BytecodeError."""
    try:
        return _bundle()
    except (PatchError, SplitError, RecordingError) as error:
        raise LibraryError(str(error)) from error


def _bundle():
    name, version = "stdlib", platform.python_version()
    sources = {module: (path, None, is_package) for module, (path, is_package) in library_sources().items()}
    sources.update(guest_sources())
    sources.update(engine_sources())
    for path in sorted(_OVERLAYS.glob("*.py")):
        is_package = sources.get(path.stem, (None, None, False))[2]
        sources[path.stem] = (path, path.read_bytes(), is_package)

    modules = {}
    for module, (path, source, is_package) in sorted(sources.items()):
        if source is None:
            source = patch(module, path.read_bytes().decode()).encode()
        parts = {}
        if module.partition(".")[0] != "vmhost":
            text, parts = split(module, source.decode())
            source = text.encode()
        filename = f"{name}@{version}/{module_path(module, is_package)}.py"
        for part, source_of_part in ((module, source), *parts.items()):
            modules[part] = Module(
                is_package and part == module, compile_source(source_of_part, filename, str(path), docstrings=False)
            )
    library = [module for module in modules if module.partition(".")[0] != "vmhost"]
    texts = {text_digest(mode, text): compile_text(mode, text) for mode, text in system_texts(library)}
    manifest = Manifest(name=name, version=version, kind="stdlib", exact_python=version)
    return write_bundle(manifest, modules, texts=texts)


def main(arguments=None):
    """`python -m vmhost.stdlib OUT.vmb`; exit status 0, 1 if it can't be compiled or written, 2 for wrong usage, 130
    after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m vmhost.stdlib", description="Build the standard-library bundle.")
    parser.add_argument("out", type=Path, metavar="OUT.vmb")
    out = parser.parse_args(arguments).out
    try:
        data = build_stdlib()
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out.parent, delete=False) as file:  # readers see the old or the new file
            file.write(data)
        os.chmod(file.name, 0o644)  # readable by all users of the checkout
        os.replace(file.name, out)
        note(read_bundle(data, allow_unsigned=True), out)
    except (BytecodeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # set-up prints a message
        return 130
    print(f"{out}: {len(data):,} bytes, Python {platform.python_version()}")
    return 0
