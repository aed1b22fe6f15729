"""Finds, or builds, the standard-library bundle that all VMs boot from.

A checkout has it in `vmhost/data/`, built by set-up. An installed vmhost has none: the bundle fits exactly one Python,
and an installation outlives updates of its Python. There it is built at first use, which takes two seconds, and kept in
the user's cache folder (`vmhost/bytecode/caches.py`), under a name that identifies the Python and the sources.

A device image replaces this file (`vmhost/image/device`): its bundle is already mapped.
"""

import hashlib
import logging
import os
import platform
import sys
import tempfile
from pathlib import Path

from vmhost import bytecode
from vmhost.bytecode import caches
from vmhost.bytecode.acceptance import accept, is_accepted, note
from vmhost.bytecode.errors import BundleError, BytecodeError
from vmhost.bytecode.format import read_bundle
from vmhost.errors import ConfigurationError
from vmhost.isolation import vm as isolation

_log = logging.getLogger("vmhost")
IN_CHECKOUT = Path(__file__).parents[1] / "data" / "stdlib.vmb"


def system_bundle(in_checkout=IN_CHECKOUT):
    """The path of the bundle, which is built first if neither the checkout nor the cache has one.

    ConfigurationError: the cache folder can't be written, is open to other users, or the library doesn't compile.
    """
    if in_checkout.is_file():
        return in_checkout
    name = cached_name()
    folder = caches.usual()
    try:
        if folder is None or not (folder / name).is_file():  # one that was made before may lie where nothing is written
            folder = caches.folder()
        path = folder / name
        _check_owner(folder)
        if not path.is_file():
            _make(path)
        _check_owner(path)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: the standard-library bundle cannot be kept here ({error.strerror}); "
            "set VMHOST_CACHE to a folder that you own"
        ) from error
    return path


def cached_name():
    """The name of the bundle in the cache folder: the Python and the sources that determine it."""
    return f"stdlib-{platform.python_version()}-{_sources_digest()}.vmb"


def boot_code_store(native, in_checkout=IN_CHECKOUT):
    """The bundle's native code store; attaches the engine to `native`, where VMs find it. ConfigurationError."""
    try:
        # Built on this machine by set-up or this user, so unsigned; verified if that is not known.
        path = system_bundle(in_checkout)
        bundle = read_bundle(path, allow_unsigned=True)
        if not is_accepted(bundle, path):
            _log.info("%s: not made here: its code is verified, once", path)
        accept(bundle, path)
    except BundleError as error:
        raise ConfigurationError(f"{error}; run `make build`") from error
    from vmhost.engine import library  # imported late: only hosts that run VMs pay for cffi

    native.engine_attach(library.table_address(), library.array_module_path())
    library.find_lapack()
    return isolation.code_store_of(bundle, native)


def abandoned_threads():
    """Threads of the process that still work in a foreign library (LAPACK) for calls that a stop has ended."""
    library = sys.modules.get("vmhost.engine.library")  # none until a host attaches the engine
    return 0 if library is None else library.abandoned_threads()


def add_model(store, name, data, search, kept=None, spend=False):
    """Prepares the bytes of a model file for the VMs of the native code store, as `name`. `search`: a Policy's; `kept`:
    the path that keeps the prepared model (vmhost/runtime/kept_models.py), or None; `spend`: the bytes are writable and
    not used afterwards. Raises ValueError if they are invalid."""
    from vmhost.engine import library

    try:
        model = library.Model(data, search, kept, spend)
    except library.EngineError as error:
        raise ValueError(str(error)) from error
    store.add_model(name, model.address)  # takes its own reference while `model` still has one


def kept_models(folder, search):
    """The KeptModels in a host's state folder, for a Policy's `search`; None if the folder cannot be used."""
    from vmhost.runtime.kept_models import KeptModels  # imported late: few hosts have models

    try:
        return KeptModels(folder, search)
    except OSError as error:
        _log.warning("%s: prepared models are not kept: %s", folder, error)
        return None


def _make(path):
    from vmhost.stdlib.build import build_stdlib

    try:
        data = build_stdlib()
    except BytecodeError as error:
        raise ConfigurationError(f"the standard library of {sys.prefix} does not compile for VMs: {error}") from error
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # readers see none or all of it
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(unfinished, path)
        note(read_bundle(data, allow_unsigned=True), path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _sources_digest():
    """What determines the bundle besides the Python: compiler, guest runtime, patches, `vmhost.engine.numpy`."""
    digest = hashlib.sha256(sys.version.encode())
    here = Path(__file__).parents[1]
    for root in (Path(bytecode.__file__).parent, here / "guest", here / "stdlib", here / "engine"):
        for source in sorted((*root.rglob("*.py"), *root.rglob("*.patch"))):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _check_owner(path):
    """The bundle runs unsigned in every VM, so no other user may have written it."""
    if not caches.is_only_ours(path.stat()):
        raise ConfigurationError(
            f"{path} belongs to another user or is writable by others; set VMHOST_CACHE to a folder "
            "that only you can write"
        )
