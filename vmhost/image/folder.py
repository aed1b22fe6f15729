"""Makes the folder of an image atomically: it is written next to its final place and then renamed.

It has `vmrun`, `host.vmb`, `stdlib.vmb`, optionally `_sqlite3.so`, `_ssl.so`, `_zstd.so` and `lapack.so`, and
`manifest`, a text with one fact per line, which ends with `file SHA256 CHECKSUM SIZE NAME` of each file and `end
CHECKSUM` of all before it. Equal inputs give equal bytes."""

import contextlib
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from array import array
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.format import read_bundle
from vmhost.bytecode.offered import NATIVE_MODULES
from vmhost.image import ImageError, host_code, link, modules, toolchain
from vmhost.runtime.system_bundle import system_bundle

FORMAT = 3


@dataclass(frozen=True)
class Image:
    """The result: its folder, the size of each file, and the names of the modules in it.

    `lacking`: (path of a bundle, native module behind one that it imports) where no image can have the module: the
    import will raise ModuleNotFoundError, which a task may expect."""

    folder: Path
    sizes: dict
    modules: tuple
    native: tuple
    engine: bool
    glibc: str
    lacking: tuple


@dataclass(frozen=True)
class HostParts:
    """Optional parts of an image's host: the deployment platform's agent, TLS for it, zstd for its deltas, and a YAML
    reader for its settings. Tasks in VMs have none of these."""

    agent: bool = False
    tls: bool = False
    zstd: bool = False
    yaml: bool = False

    @property
    def modules(self):
        """Names of standard modules that it imports if they exist."""
        return (*(("ssl",) if self.tls else ()), *(("compression.zstd",) if self.zstd else ()))

    @property
    def native(self):
        return {name for name, has in (("_sqlite3", self.agent), ("_ssl", self.tls), ("_zstd", self.zstd)) if has}


def make(out, bundles=(), more_modules=(), *, with_engine=False, with_lapack=False, parts=HostParts()):
    """Makes the image `out` for the bundles at the paths `bundles` (none: modules.DEFAULT) and `more_modules`; returns
    an Image. `parts`: HostParts.

    The tensor engine is included if a bundle imports `vmhost.engine.numpy`, or `with_engine`; `with_lapack` also copies
    the OpenBLAS of scipy-openblas32 into it, which decompositions, solvers and others need. An existing image is
    replaced; any other non-empty folder is left alone. ImageError."""
    out = Path(os.path.abspath(out))
    if out.exists() and not (out / "manifest").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ImageError(f"{out}: is there already and is no image; choose another folder, or empty it")
    tools, work = toolchain.find(), None
    try:
        with _written(out):  # first, to report at once that the folder is not writable
            out.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        image, files = _contents(
            out,
            tools,
            bundles,
            (*more_modules, *(("vmhost.engine.numpy",) if with_engine or with_lapack else ())),
            _lapack() if with_lapack else None,
            parts,
        )
        with _written(out):
            for name, data in files.items():
                (work / name).write_bytes(data)
                os.chmod(work / name, 0o755 if name == "vmrun" else 0o644)
            os.chmod(work, 0o755)
            _put_in_place(work, out)
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    return image


@contextlib.contextmanager
def _written(out):
    try:
        yield
    except OSError as error:
        raise ImageError(f"{out}: cannot be written: {error.strerror}; nothing was left there") from error


def _contents(out, tools, bundles, more_modules, lapack, parts):
    """(the Image at `out`, {name of a file: its bytes})."""
    library, linked = modules.Library(system_bundle()), link.offered(tools)
    if "all" in more_modules:
        more_modules = (*(name for name in more_modules if name != "all"), *library.everything(linked))
    unknown = [name for name in more_modules if name not in library.modules and name not in linked]
    if unknown:
        raise ImageError(f"--module: {', '.join(unknown)}: not a module of the standard library that VMs can have")
    host, imports, agent_imports = host_code.host_code(agent=parts.agent, yaml=parts.yaml)
    for_host = {*(imports - modules.SELDOM), *agent_imports, *parts.modules}
    wanted = {*modules.GUEST, *for_host, *more_modules, *(() if bundles else modules.DEFAULT)}
    lacking = []
    for path in bundles:
        imported = modules.imported_by(_read(path))
        needed = library.closure(imported)[1]
        modules.check_native(_required(needed, imported), linked, path)
        lacking += [(path, name) for name in sorted(needed - linked - modules.DISPENSABLE)]
        wanted |= imported
    python, native = library.closure(wanted)
    native = (native | modules.ALWAYS_NATIVE) & linked | parts.native
    engine = "vmhost.engine._array" in native
    executable = link.link(tools, native, engine=engine)
    beside = {name: link.shared_module(tools, name) for name in sorted(native & toolchain.SHARED.keys())}
    glibc = link.needed_glibc(
        tools, *filter(None, (executable, lapack, *(tools.shared_modules[name] for name in beside)))
    )
    files = {"host.vmb": host, "stdlib.vmb": library.cut_to(python), "vmrun": executable.read_bytes()}
    files |= {f"{name}.so": data for name, data in beside.items()}
    if lapack is not None:
        files["lapack.so"] = lapack.read_bytes()
    facts = [
        f"vmhost-image {FORMAT}",
        f"python {platform.python_version()}",
        f"machine {platform.machine()}",
        f"glibc {glibc}",
        f"engine {'yes' if engine else 'no'}",
        f"native {' '.join(sorted(native))}",
        f"absent {' '.join(sorted(NATIVE_MODULES - linked))}",
        *(
            f"file {hashlib.sha256(data).hexdigest()} {_checksum(data)} {len(data)} {name}"
            for name, data in sorted(files.items())
        ),
    ]
    text = ("\n".join(facts) + "\n").encode()
    files["manifest"] = text + f"end {_checksum(text)}\n".encode()
    sizes = {name: len(data) for name, data in files.items()}
    return Image(out, sizes, tuple(sorted(python)), tuple(sorted(native)), engine, glibc, tuple(lacking)), files


def _checksum(data):
    """The checksum that vmrun verifies at its start (native/archive.c): the sum of the 64-bit words, and the sum of all
    prefix sums, modulo 2**64, in hex."""
    words = array("Q", data + bytes(-len(data) % 8))
    if sys.byteorder == "big":
        words.byteswap()
    return f"{sum(words) % 2**64:016x}{sum(accumulate(words)) % 2**64:016x}"


def _lapack():
    """The path of the one library of scipy-openblas32, which needs only glibc."""
    package = importlib.util.find_spec("scipy_openblas32")
    found = sorted(Path(package.origin).parent.glob("lib/libscipy_openblas*.so")) if package is not None else []
    if len(found) != 1:
        raise ImageError(
            "--with-lapack: scipy-openblas32 is not installed in this Python; run `pip install scipy-openblas32`"
        )
    return found[0]


def _required(native, imported):
    """Native modules that a bundle cannot do without: those that it imports itself, and those that only they need."""
    return {name for name in native if name in imported or name in ("_sqlite3", "vmhost.engine._array")}


def _read(path):
    try:
        return read_bundle(path, allow_unsigned=True)
    except BundleError as error:
        raise ImageError(str(error)) from error


def _put_in_place(work, out):
    """Moves the finished folder to `out`; an old image is deleted only then."""
    if not out.exists():
        os.rename(work, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    os.rename(out, old / "image")
    try:
        os.rename(work, out)
    except OSError:
        os.rename(old / "image", out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
