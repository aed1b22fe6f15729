"""The packages that a task requires: locked with hashes, installed aside, and what of them goes into a bundle.

`requirements` in task.yaml names them as pip does. `lock` writes `requirements.lock` beside task.yaml: one exact
version of each package, of what these need in turn, and the hashes of their files. From then on the lock decides:
`installed` puts exactly these files into a folder of the user's cache, which is made once for each lock. The same
folder and lock give the same bundle on any machine.

uv or pip does the resolving and the installing, whichever is there; indexes, proxies and credentials are their matter.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath

from .errors import TaskSpecError
from .replacing import replace_file

LOCK_NAME = "requirements.lock"
_MARK = "# The packages of this task. Made by `vmhost lock` for: "
_LEFT_OUT = {".py", ".pyc", ".pyo", ".pyi", ".pyx", ".pxd", ".c", ".h", ".cpp", ".so", ".dylib", ".dll", ".a"}
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^ \\\n]+)", re.MULTILINE)  # a line of a lock file
_UNKNOWN_SIGNER = re.compile("invalid peer certificate|CERTIFICATE_VERIFY_FAILED")  # as uv and pip say it
_CERTIFICATES = (
    "the index shows a certificate that nobody known has signed, as behind a company's proxy: set UV_SYSTEM_CERTS=true"
    " so that uv asks this machine's certificates, or SSL_CERT_FILE (uv) or PIP_CERT (pip) to a file that has it"
)
_TESTS = {"test", "tests", "testing"}
_METADATA = {"METADATA", "entry_points.txt"}


@dataclass(frozen=True)
class Package:
    """An installed distribution: its name and version, its licence as its makers wrote it, the top-level names that it
    brings, and the files beside its modules, as paths below the folder of packages. `data`: its modules, where they
    only hold files together (each is an `__init__`), so that programs open what is in them without importing any."""

    name: str
    version: str
    licence: str
    top_level: tuple
    files: tuple
    data: tuple


def lock(spec, upgrade=False):
    """Resolves the requirements of the TaskSpec `spec` and writes its lock file; returns its Path.

    Without `upgrade`, versions of an older lock are kept where they still fit. TaskSpecError if there are no such
    packages, or neither uv nor pip is there."""
    path = spec.folder / LOCK_NAME
    resolver = _resolver(spec)
    with tempfile.TemporaryDirectory(prefix="vmhost-lock-") as work:
        asked = Path(work, "requirements.in")
        asked.write_text("".join(f"{requirement}\n" for requirement in spec.requirements))
        pins = resolver.pins(asked, path if path.exists() and not upgrade else None)
    text = f"{_MARK}{json.dumps(list(spec.requirements))}, Python {_version()}\n{pins}"
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise TaskSpecError([f"{path}: can't be written: {error.strerror}"]) from error
    return path


def lock_of(spec):
    """The versions that the task's lock file pins, by the packages' names; {} where there is none."""
    path = spec.folder / LOCK_NAME
    return dict(sorted(_PIN.findall(path.read_text()))) if path.exists() else {}


def installed(spec):
    """The folder with the packages that the lock file of the TaskSpec `spec` names; None if it requires none.

    A task without a lock file gets one. TaskSpecError if the lock is another task's or damaged, or the packages can't
    be had."""
    if not spec.requirements:
        return None
    path = spec.folder / LOCK_NAME
    if not path.exists():
        lock(spec)
    text = _checked_lock(spec, path)
    key = hashlib.sha256(f"{sys.implementation.cache_tag}\0{sys.platform}\0{text}".encode()).hexdigest()[:32]
    home = _cache() / key
    folder = home / "site-packages"
    if folder.is_dir():
        return folder
    resolver = _resolver(spec)
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.with_name(f"{key}.lock"), "w") as taking_turns:  # two compilers of one task
        fcntl.flock(taking_turns, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=home.parent))
        try:
            resolver.install(path, partial / "site-packages")
            shutil.rmtree(home, ignore_errors=True)
            os.replace(partial, home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def packages_in(folder):
    """Every Package that is installed in the folder, sorted by name."""
    found = []
    for distribution in importlib.metadata.distributions(path=[str(folder)]):
        metadata = distribution.metadata
        paths = sorted({PurePosixPath(path) for path in distribution.files or () if ".." not in path.parts})
        modules = [path for path in paths if path.suffix == ".py"]
        native = [path for path in paths if path.name.endswith(tuple(EXTENSION_SUFFIXES))]
        top_level = {path.parts[0].partition(".")[0] for path in modules + native}
        is_data = modules and not native and all(path.name == "__init__.py" for path in modules)
        found.append(
            Package(
                name=metadata["Name"],
                version=metadata["Version"],
                licence=_licence(metadata),
                top_level=tuple(sorted(top_level)),
                files=tuple(str(path) for path in paths if _comes_along(path)),
                data=tuple(".".join(path.parts[:-1]) for path in modules) if is_data else (),
            )
        )
    return tuple(sorted(found, key=lambda package: package.name.lower()))


def files_of(package, folder):
    """What goes into a bundle of the Package's files: path to bytes. Of its description, only the headers."""
    contents = {}
    for path in package.files:
        data = (Path(folder) / path).read_bytes()
        contents[path] = data.partition(b"\n\n")[0] + b"\n" if path.endswith(".dist-info/METADATA") else data
    return contents


def _comes_along(path):
    if path.parts[0].endswith(".dist-info"):
        return path.name in _METADATA and len(path.parts) == 2
    in_package = len(path.parts) > 1 and path.parts[0].isidentifier()
    return in_package and path.suffix not in _LEFT_OUT and path.name != "py.typed" and not _TESTS & set(path.parts)


def _licence(metadata):
    written = metadata.get("License-Expression") or metadata.get("License") or ""
    classified = [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if line.startswith("License :: ")
    ]
    if written and len(written) <= 60 and "\n" not in written:
        return written
    return ", ".join(classified) or (written.strip().splitlines() or ["unknown"])[0][:60]


def _checked_lock(spec, path):
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise TaskSpecError([f"{path}: can't be read: {reason}"]) from error
    first = text.partition("\n")[0]
    wanted = f"{_MARK}{json.dumps(list(spec.requirements))}, Python {_version()}"
    if first != wanted:
        line = spec.lines.get("requirements", 1)
        found = first.removeprefix(_MARK) if first.startswith(_MARK) else "something else"
        raise TaskSpecError(
            [
                f"{spec.file}:{line}: requirements: {path.name} is for {found}, expected "
                f"{wanted.removeprefix(_MARK)}; run `vmhost lock {spec.folder}`"
            ]
        )
    return text


def _version():
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _cache():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "vmhost", "packages")


class _Resolver:
    """uv or pip as a command."""

    def __init__(self, command, spec):
        self.command, self._spec = command, spec

    def _run(self, *arguments):
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            said = [line for line in said if not line.lower().startswith(("warning", "[notice]", "deprecation"))]
            line = self._spec.lines.get("requirements", 1)
            problem = " ".join(said)[-1500:] or "it failed"
            if _UNKNOWN_SIGNER.search(problem):
                problem += f"; {_CERTIFICATES}"
            raise TaskSpecError([f"{self._spec.file}:{line}: requirements: {problem}"])
        return done.stdout


class _Uv(_Resolver):
    def pins(self, asked, old):
        found = asked.with_name(LOCK_NAME)  # uv prefers the versions that its output file names
        if old is not None:
            shutil.copyfile(old, found)
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
        self._run("pip", "compile", "-q", *options, "--python", sys.executable, "-o", str(found), str(asked))
        return found.read_text()

    def install(self, lock_file, folder):
        options = ["--no-deps", "--require-hashes", "--no-compile-bytecode", "--link-mode", "copy"]
        target = ["--python", sys.executable, "--target", str(folder)]
        self._run("pip", "install", "-q", *options, *target, "-r", str(lock_file))


class _Pip(_Resolver):
    def pins(self, asked, old):
        # The report says which files pip would install, with their hashes.
        kept = ["-c", str(_without_hashes(old, asked.with_name("kept.txt")))] if old is not None else []
        report = asked.with_name("report.json")
        options = ["--dry-run", "--ignore-installed", "--disable-pip-version-check", "--report", str(report)]
        self._run("install", "-q", *options, *kept, "-r", str(asked))
        pins = []
        for item in json.loads(report.read_text())["install"]:
            hashes = item["download_info"]["archive_info"]["hashes"]
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            pins.append(f"{name}=={item['metadata']['version']} \\\n    --hash=sha256:{hashes['sha256']}\n")
        return "".join(sorted(pins))

    def install(self, lock_file, folder):
        options = ["--no-deps", "--require-hashes", "--no-compile", "--disable-pip-version-check"]
        self._run("install", "-q", *options, "--target", str(folder), "-r", str(lock_file))


def _without_hashes(lock_file, path):
    path.write_text("".join(f"{name}=={version}\n" for name, version in _PIN.findall(lock_file.read_text())))
    return path


def _resolver(spec):
    """uv on PATH, uv or pip of this Python, in this order."""
    uv = shutil.which("uv")
    if uv:
        return _Uv([uv], spec)
    for module, kind in (("uv", _Uv), ("pip", _Pip)):
        if subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True).returncode == 0:
            return kind([sys.executable, "-m", module], spec)
    line = spec.lines.get("requirements", 1)
    advice = f"install one of them: `pip install uv`, or `{sys.executable} -m ensurepip`"
    raise TaskSpecError([f"{spec.file}:{line}: requirements: neither uv nor pip is there to find packages; {advice}"])
