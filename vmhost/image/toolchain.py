"""What of this machine an image is made with: CPython's static library and headers, gcc, and the static libraries that
are linked in.

LibSodium (Ed25519) and LibTomCrypt (hash functions) are Debian's, unpacked privately by tools/device_libraries.sh as
the Python is, and held to the digests in tools/device.lock, so that an image is the same wherever it is made."""

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


@dataclass(frozen=True)
class Toolchain:
    """Paths: the compiler, CPython's static library, its headers, further static libraries with theirs, and the
    Python's `_sqlite3`.

    `sqlite_module` is None where the Python has none in a file of its own.
    """

    compiler: str
    strip: str
    nm: str
    readelf: str
    objcopy: str
    python_library: Path
    includes: tuple
    libraries: dict  # name -> path of its archive
    sqlite_module: Path | None

    def sqlite_library(self):
        """SQLite's archive; ImageError where it is missing."""
        return _beside(
            self.python_library,
            "libsqlite3.a",
            "run `make device-libraries`, or install libsqlite3-dev beside the Python",
        )


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
    if not sorted((LIBRARIES / "lib").glob("*/libsodium.a")):
        _fetch_libraries()
    # in this order: both have a blake2b_init, and hashes.c means LibTomCrypt's
    libraries = {name: _locked(name) for name in ("libtomcrypt.a", "libsodium.a")}
    libraries |= {
        name: _beside(python, name, "install zlib1g-dev and libexpat1-dev beside the Python")
        for name in ("libz.a", "libexpat.a")
    }
    return Toolchain(
        *tools.values(), python, (include, include / "internal", LIBRARIES / "include"), libraries, _sqlite_module()
    )


@functools.cache
def native_build():
    """The module tools/native_build.py of the checkout, which describes how our C is compiled; `find` comes first."""
    spec = importlib.util.spec_from_file_location("native_build", CHECKOUT / "tools" / "native_build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _fetch_libraries():
    """What `make device-libraries` does. ImageError with what it said last."""
    done = subprocess.run(
        ["sh", "tools/device_libraries.sh"], cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ImageError(
            "the static libraries that images are linked with could not be fetched:"
            f" {said[-1] if said else done.returncode}; look at what `make device-libraries` says"
        )


def python_library():
    """CPython's static library of the Python that runs; ImageError if it came without."""
    name = f"libpython{sysconfig.get_python_version()}.a"
    folders = [sysconfig.get_config_var("LIBPL"), *Path(sysconfig.get_path("stdlib")).glob("config-*")]
    for folder in filter(None, folders):
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise ImageError(
        f"{sys.executable} came without a static library ({name}), which an image is linked from; use a Python that has"
        " it: Debian's python3.14-dev and libpython3.14-dev, or a build from source"
    )


def _sqlite_module():
    spec = importlib.util.find_spec("_sqlite3")
    return Path(spec.origin) if spec is not None and spec.has_location else None


def _beside(python, name, advice):
    """A static library of the same packages as the Python: it was built with the same compiler."""
    folder = next((parent for parent in python.parents if parent.name == "lib"), python.parent)
    found = sorted(folder.glob(f"*/{name}")) or sorted(folder.glob(name))
    if not found:
        raise ImageError(f"{folder}: has no {name}; {advice}")
    return found[0]


def _locked(name):
    """The library that tools/device_libraries.sh unpacked, if it is the one that the lock names."""
    found = sorted((LIBRARIES / "lib").glob(f"*/{name}"))
    if not found:
        raise ImageError(f"{LIBRARIES}: has no {name}; run `make device-libraries`")
    digests = dict(
        reversed(line.split()) for line in LOCK.read_text().splitlines() if line and not line.startswith("#")
    )
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digests.get(name) != digest:
        raise ImageError(
            f"{found[0]}: expected SHA-256 {digests.get(name)}, got {digest}; run `make device-libraries`, and if"
            " Debian has a newer one that you want, `sh tools/device_libraries.sh --lock`"
        )
    return found[0]
