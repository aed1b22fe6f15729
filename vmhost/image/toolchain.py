"""The tools that build an image on this machine: CPython's static library and headers, gcc, and static libraries to
link.

LibSodium (Ed25519), LibTomCrypt (hash functions), OpenSSL and zstd are Debian's, unpacked privately by
tools/device_libraries.sh like the Python, and checked against the digests in tools/device.lock, so that an image is the
same wherever it is made."""

import functools
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from vmhost.image import ImageError

CHECKOUT = Path(__file__).resolve().parents[2]
LIBRARIES = CHECKOUT / ".python" / "device" / "root" / "usr"
LOCK = CHECKOUT / "tools" / "device.lock"
# Native modules that CPython's static library lacks, and the shared libraries that their files need.
SHARED = {"_sqlite3": ("libsqlite3.so.0",), "_ssl": ("libssl.so.3", "libcrypto.so.3"), "_zstd": ("libzstd.so.1",)}


@dataclass(frozen=True)
class Toolchain:
    """Paths: the compiler, CPython's static library, its headers, and further static libraries with theirs.

    `shared_modules`: native modules of SHARED that this Python has as files, by name.
    """

    compiler: str
    strip: str
    nm: str
    readelf: str
    objcopy: str
    python_library: Path
    includes: tuple
    libraries: dict  # name -> path of its archive
    shared_modules: dict

    def archives_of(self, module):
        """The archives with the functions of a module of SHARED, by name; ImageError if one is missing."""
        if module == "_sqlite3":
            advice = "run `make device-libraries`, or install libsqlite3-dev beside the Python"
            return {"libsqlite3.a": _beside(self.python_library, "libsqlite3.a", advice)}
        names = {"_ssl": ("libssl.a", "libcrypto.a", "libzstd.a"), "_zstd": ("libzstd.a",)}[module]
        return {name: _locked(name) for name in names}


def find():
    """The Toolchain of this machine; ImageError names what is missing."""
    if not (CHECKOUT / "setup.py").is_file():
        raise ImageError(
            "an image is made in a checkout of vmhost, whose C sources it is compiled from; this is an installation"
        )
    tools = {name: shutil.which(name) for name in ("gcc", "strip", "nm", "readelf", "objcopy")}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        raise ImageError(f"{', '.join(missing)}: not on PATH; install gcc and binutils")
    python = python_library()
    include = Path(sysconfig.get_path("include"))
    if not all(sorted((LIBRARIES / "lib").glob(f"*/{name}")) for name in _digests()):
        _fetch_libraries()
    # in this order: both have a blake2b_init, and hashes.c needs LibTomCrypt's
    libraries = {name: _locked(name) for name in ("libtomcrypt.a", "libsodium.a")}
    libraries |= {
        name: _beside(python, name, "install zlib1g-dev and libexpat1-dev beside the Python")
        for name in ("libz.a", "libexpat.a")
    }
    return Toolchain(
        *tools.values(), python, (include, include / "internal", LIBRARIES / "include"), libraries, _shared_modules()
    )


@functools.cache
def native_build():
    """The module tools/native_build.py of the checkout, which describes how our C is compiled. Call `find` first."""
    spec = importlib.util.spec_from_file_location("native_build", CHECKOUT / "tools" / "native_build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def _fetch_libraries():
    """Runs `make device-libraries`. ImageError with its last output."""
    done = subprocess.run(
        ["sh", "tools/device_libraries.sh"], cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise ImageError(
            "the static libraries that images are linked with could not be fetched:"
            f" {output[-1] if output else done.returncode}; look at what `make device-libraries` says"
        )


def python_library():
    """The static library of the running Python; ImageError if it has none."""
    name = f"libpython{sysconfig.get_python_version()}.a"
    folders = [sysconfig.get_config_var("LIBPL"), *Path(sysconfig.get_path("stdlib")).glob("config-*")]
    for folder in filter(None, folders):
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise ImageError(
        f"{sys.executable} came without a static library ({name}), which an image is linked from; use a Python that has"
        " it: Debian's python3.14-dev and libpython3.14-dev, or a build from source"
    )


def _shared_modules():
    specs = {name: importlib.util.find_spec(name) for name in SHARED}
    return {name: Path(spec.origin) for name, spec in specs.items() if spec is not None and spec.has_location}


def _beside(python, name, advice):
    """A static library from the same distribution as the Python, built with the same compiler."""
    folder = next((parent for parent in python.parents if parent.name == "lib"), python.parent)
    found = sorted(folder.glob(f"*/{name}")) or sorted(folder.glob(name))
    if not found:
        raise ImageError(f"{folder}: has no {name}; {advice}")
    return found[0]


def _digests():
    """{name of a library: SHA-256 in the lock}."""
    lines = [line.split() for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return {name: digest for digest, name in lines}


def _locked(name):
    """The library unpacked by tools/device_libraries.sh, if its digest is the one in the lock."""
    found = sorted((LIBRARIES / "lib").glob(f"*/{name}"))
    if not found:
        raise ImageError(f"{LIBRARIES}: has no {name}; run `make device-libraries`")
    digest, expected = hashlib.sha256(found[0].read_bytes()).hexdigest(), _digests().get(name)
    if expected != digest:
        raise ImageError(
            f"{found[0]}: expected SHA-256 {expected}, got {digest}; run `make device-libraries`, and if"
            " Debian has a newer one that you want, `sh tools/device_libraries.sh --lock`"
        )
    return found[0]
