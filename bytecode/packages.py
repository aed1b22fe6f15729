"""The packages that a task or a script requires: locking with hashes, installing, and selecting for a bundle.

`requirements` in task.yaml names them in pip's syntax, as does a script's block (script_block.py). `lock` writes a lock
file beside it: one exact version of each package and of its dependencies, and the hashes of their files. `installed`
then installs exactly these files into a folder of the user's cache, once per lock. The same task folder and lock give
the same bundle on any machine.

`pkg @ file:wheels/pkg-1.0.whl` names a package's own file, below the folder of the lock file; `file:///...` one of this
machine. The lock has the former as it is written, so that it holds on any machine; uv and pip get whole addresses.

uv or pip resolves and installs, whichever is there; indexes, proxies and credentials are theirs.
"""

import csv
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from . import caches
from .errors import TaskSpecError
from .fields import shown
from .replacing import replace_file
from .script_block import project_name
from .task_table import REQUIREMENT

LOCK_NAME = "requirements.lock"
WITH_LOCK_NAME = "requirements.with.lock"
_LEFT_OUT = {".py", ".pyc", ".pyo", ".pyi", ".pyx", ".pxd", ".c", ".h", ".cpp", ".so", ".dylib", ".dll", ".a"}
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^ \\\n]+)", re.MULTILINE)  # a line of a lock file
_PINNED = re.compile(  # a whole entry of a lock file, lines joined
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]*\])?==[A-Za-z0-9.+!_-]+( ?; ?[A-Za-z0-9_.<>=!~()'\" -]+?)?"
    r"( --hash=sha(256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128}))+"
)
_FILE = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*) ?(\[[^\]\n]*\])? ?@ ?file:([^\s;\\]+)", re.MULTILINE
)  # name, extras, path
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_ONLY_WHEELS = ("--only-binary", ":all:")  # installing a wheel runs nothing of it
_UNKNOWN_SIGNER = re.compile("invalid peer certificate|CERTIFICATE_VERIFY_FAILED")  # in messages of uv and pip
_CERTIFICATES = (
    "no known authority has signed the index's certificate, as behind a company's proxy: set UV_SYSTEM_CERTS=true so"
    " that uv uses this machine's certificates, or SSL_CERT_FILE (uv) or PIP_CERT (pip) to a file that has it"
)
_OF_INSTALLERS = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}
_TESTS = {"test", "tests", "testing"}
_METADATA = {"METADATA", "RECORD", "entry_points.txt", "top_level.txt"}


@dataclass(frozen=True)
class Package:
    """An installed distribution: name, version, the licence as its authors wrote it, the top-level names that it
    provides, and the files beside its modules, as paths below the folder of packages. `data`: its modules if all are an
    `__init__` that only makes a folder of files a package; programs open the files without importing the modules."""

    name: str
    version: str
    licence: str
    top_level: tuple
    files: tuple
    data: tuple


@dataclass(frozen=True)
class Requirements:
    """A program's requirements: `names` of packages in pip's syntax; `place`, their source location, for messages;
    `lock`, the Path of the lock file; `command`, which rewrites it. `older`: lock files whose versions are kept where
    they fit. `follows`: a lock file for other names is rewritten, not refused. `of`: "task" or "script"."""

    names: tuple
    place: str
    lock: Path
    command: str
    older: tuple = ()
    follows: bool = False
    of: str = "task"

    @classmethod
    def of_task(cls, spec, more=()):
        """Those of a TaskSpec and `more`; these use another lock file. TaskSpecError if `more` has invalid ones."""
        own, command = spec.folder / LOCK_NAME, f"vmhost lock {shlex.quote(str(spec.folder))}"
        place = f"{spec.file}:{spec.lines.get('requirements', 1)}: requirements"
        names = tuple(dict.fromkeys((*spec.requirements, *more)))
        if names == spec.requirements:
            return cls(names, place, own, command, (own,))
        check_names(more, "--with")
        command += "".join(f" --with {shlex.quote(name)}" for name in more)
        path = spec.folder / WITH_LOCK_NAME
        return cls(names, f"{spec.file}: requirements and --with", path, command, (path, own), follows=True)

    @classmethod
    def of_script(cls, path, block):
        """Those of the script at `path` with this ScriptBlock. TaskSpecError for invalid ones."""
        place = f"{path}:{block.line}: dependencies"
        names = tuple(each for each in block.dependencies if project_name(each) != "vmhost")  # every VM has its own
        check_names(names, place)
        own = path.with_name(f"{path.stem}.{LOCK_NAME}")
        return cls(names, place, own, f"vmhost lock {shlex.quote(str(path))}", (own,), of="script")


def check_names(names, place):
    """TaskSpecError if one of the `names` is not valid for `requirements` in task.yaml."""
    wrong = [name for name in names if not REQUIREMENT.accepts(name)]
    if wrong:
        raise TaskSpecError([f"{place}: expected {REQUIREMENT.words}, got {shown(name)}" for name in wrong])


def lock(requirements, upgrade=False):
    """Resolves the Requirements and writes their lock file; returns its Path.

    Without `upgrade`, versions of an older lock are kept where they still fit. TaskSpecError if a package does not
    exist, or neither uv nor pip does."""
    path = requirements.lock
    resolver = _resolver(requirements)
    older = next((each for each in requirements.older if each.exists()), None)
    with tempfile.TemporaryDirectory(prefix="vmhost-lock-") as work:
        asked = Path(work, "requirements.in")
        asked.write_text("".join(f"{_with_address(name, requirements)}\n" for name in requirements.names))
        pins = resolver.pins(asked, older if not upgrade else None)
        for name in requirements.names:
            if found := _FILE.match(name):
                pins = pins.replace(f"@ {_file(found, requirements).as_uri()}", f"@ file:{found[3]}")
    try:
        replace_file(path, f"{_head(requirements)}\n{pins}".encode())
    except OSError as error:
        raise TaskSpecError([f"{path}: can't be written: {error.strerror}"]) from error
    return path


def lock_of(requirements):
    """The versions that the lock file pins, by package name; {} without a lock file."""
    path = requirements.lock
    return dict(sorted(_pins_in(path.read_text()))) if path.exists() else {}


def _pins_in(text):
    return [*_PIN.findall(text), *((name, f"file:{path}") for name, _, path in _FILE.findall(text))]


def _file(found, requirements):
    """The file of a requirement that _FILE has `found`, as an absolute Path. TaskSpecError if it can't be locked."""
    path = requirements.lock.absolute().parent / unquote(found[3])  # an absolute one stays: "///tmp/x" is "/tmp/x"
    path = Path(os.path.normpath(path))
    if not path.is_file():
        problem = (
            "is a folder, which has no hash; build a wheel of it, and name that" if path.is_dir() else "is not there"
        )
        raise TaskSpecError([f"{requirements.place}: {found[1]}: {path} {problem}"])
    if not path.name.endswith(_ARCHIVES):
        raise TaskSpecError(
            [f"{requirements.place}: {found[1]}: expected a wheel or an archive of a source, got {path}"]
        )
    return path


def _with_address(text, requirements):
    """A requirement, or a lock, with whole addresses of files."""

    def whole(found):
        return f"{found[1]}{found[2] or ''} @ {_file(found, requirements).as_uri()}"

    return _FILE.sub(whole, text)


def installed(requirements, is_trusted=True):
    """The folder with the packages that the Requirements' lock file names; None if nothing is required.

    Makes a missing lock file. Unless `is_trusted`, nothing of the task or of a package runs: the lock file must exist
    and have only versions with hashes, and only wheels are installed. TaskSpecError if the lock is for something else
    or damaged, or the packages can't be installed."""
    if not requirements.names:
        return None
    if not is_trusted and not requirements.lock.exists():
        message = f"there is no {requirements.lock.name}; run `{requirements.command}`, and add it"
        raise TaskSpecError([f"{requirements.place}: {message}"])
    if is_trusted and (
        not requirements.lock.exists() or requirements.follows and _read_lock(requirements)[0] != _head(requirements)
    ):
        lock(requirements)
    text = _checked_lock(requirements, is_trusted)
    key = hashlib.sha256(f"{sys.implementation.cache_tag}\0{sys.platform}\0{text}".encode()).hexdigest()[:32]
    home = cache_folder("packages") / key
    folder = home / "site-packages"
    if folder.is_dir():
        return folder
    resolver = _resolver(requirements)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        taking_turns = open(home.with_name(f"{key}.lock"), "w")
    except OSError as error:
        advice = "set VMHOST_CACHE to a folder that can be"
        raise TaskSpecError([f"{home.parent}: can't be written: {error.strerror}; {advice}"]) from error
    with taking_turns:  # another compiler may install the same lock
        fcntl.flock(taking_turns, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=home.parent))
        try:
            checked = partial / LOCK_NAME  # a copy of the checked text: the task's file may change
            checked.write_text(_with_address(text, requirements))
            resolver.install(checked, partial / "site-packages", () if is_trusted else _ONLY_WHEELS)
            shutil.rmtree(home, ignore_errors=True)
            os.replace(partial, home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def packages_in(folder, bringing=None):
    """Every Package installed in the folder, sorted by name; with `bringing`, only those that provide one of these
    top-level names."""
    found = []
    for distribution in importlib.metadata.distributions(path=[str(folder)]):
        if bringing is not None and not _brings(distribution, bringing):
            continue
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


def _brings(distribution, top_level):
    listed = f"\n{distribution.read_text('RECORD') or ''}"
    return any(f"\n{name}/" in listed or f"\n{name}.py," in listed for name in top_level)


def files_of(package, folder):
    """The Package's files for a bundle: path to bytes. Of METADATA, only the headers; of RECORD, what is the same on
    all machines."""
    contents = {}
    for path in package.files:
        data = (Path(folder) / path).read_bytes()
        if path.endswith(".dist-info/METADATA"):
            data = data.partition(b"\n\n")[0] + b"\n"
        elif path.endswith(".dist-info/RECORD"):
            data = _portable_record(data)
        contents[path] = data
    return contents


def _portable_record(data):
    """The lines of a RECORD without what installers add: commands, their own notes, compiled files."""
    rows = csv.reader(io.StringIO(data.decode(errors="replace")))
    kept = io.StringIO()
    csv.writer(kept, lineterminator="\n").writerows(sorted(row for row in rows if row and _is_of_wheel(row[0])))
    return kept.getvalue().encode()


def _is_of_wheel(path):
    parts = PurePosixPath(path).parts
    if ".." in parts or parts[0] == "bin" or path.startswith("/") or "__pycache__" in parts:
        return False
    return not parts[0].endswith(".dist-info") or parts[-1] not in _OF_INSTALLERS


def _comes_along(path):
    if path.parts[0].endswith(".dist-info"):
        return path.name in _METADATA and len(path.parts) == 2
    in_package = len(path.parts) > 1 and path.parts[0].isidentifier()
    return in_package and path.suffix not in _LEFT_OUT and path.name != "py.typed" and not _TESTS & set(path.parts)


def _licence(metadata):
    """The licence on one line, printable."""
    return "".join(each if each.isprintable() else "?" for each in _written_licence(metadata))


def _written_licence(metadata):
    written = metadata.get("License-Expression") or metadata.get("License") or ""
    classified = [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if line.startswith("License :: ")
    ]
    if written and len(written) <= 60 and "\n" not in written:
        return written
    return ", ".join(classified) or (written.strip().splitlines() or ["unknown"])[0][:60]


def _head(requirements):
    """The lock file's first line."""
    return f"{_mark(requirements)}{json.dumps(list(requirements.names))}, Python {_version()}"


def _mark(requirements):
    return f"# The packages of this {requirements.of}. Made by `vmhost lock` for: "


def _read_lock(requirements):
    """The lock file's first line, and its whole text."""
    path = requirements.lock
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise TaskSpecError([f"{path}: can't be read: {reason}"]) from error
    return text.partition("\n")[0], text


def _checked_lock(requirements, is_trusted):
    """The lock file's text; unless `is_trusted`, as `_pinned` makes it."""
    first, text = _read_lock(requirements)
    if not is_trusted:
        text = _pinned(text, requirements)
    wanted = _head(requirements)
    if first != wanted:
        mark = _mark(requirements)
        found = first.removeprefix(mark) if first.startswith(mark) else "something else"
        raise TaskSpecError(
            [
                f"{requirements.place}: {requirements.lock.name} is for {found}, expected "
                f"{wanted.removeprefix(mark)}; run `{requirements.command}`"
            ]
        )
    return text


def _pinned(text, requirements):
    """The entries of a lock file, a line each, as they are checked: versions with hashes. TaskSpecError for others:
    options and addresses could make the installer read any file, or run a package's code."""
    path, entries = requirements.lock, []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = " ".join(line.split())
        if not line or line.startswith("#"):
            continue
        entries.append(line)
        if found := _FILE.match(line):
            _check_file(found, requirements, f"{path}: entry {number}")
            line = f"{found[1]}{found[2] or ''}==0{line[found.end() :]}"
        if not _PINNED.fullmatch(line):
            raise TaskSpecError(
                [f"{path}: entry {number}: expected NAME==VERSION --hash=sha256:..., got {shown(line[:100])}"]
            )
    return "".join(f"{entry}\n" for entry in entries)


def _check_file(found, requirements, where):
    """TaskSpecError unless the file that a lock names is a wheel below the lock's folder."""
    home = requirements.lock.absolute().parent.resolve()
    path = (home / unquote(found[3])).resolve()
    if found[3].startswith("/") or not path.is_relative_to(home):
        message = "expected a file below the task's folder, file:PATH"
        raise TaskSpecError([f"{where}: {found[1]}: {message}, got file:{shown(found[3][:100])}"])
    if not _file(found, requirements).name.endswith(".whl"):
        raise TaskSpecError([f"{where}: {found[1]}: expected a wheel, got {path.name}; build one, and name it"])


def _version():
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def cache_folder(name):
    """The folder `name` in this user's cache of vmhost. TaskSpecError."""
    try:
        return caches.folder() / name
    except OSError as error:
        raise TaskSpecError([f"VMHOST_CACHE: {caches.usual()}: cannot be used: {error.strerror}"]) from error


class _Resolver:
    """uv or pip as a command."""

    def __init__(self, command, requirements):
        self.command, self._place, self._lock = command, requirements.place, requirements.lock

    def _run(self, *arguments, copy=None):
        """`copy`: the file that replaces the lock in the command; messages name the lock."""
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            output = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            output = [line for line in output if not line.lower().startswith(("warning", "[notice]", "deprecation"))]
            problem = " ".join(output).replace(str(copy or self._lock), str(self._lock))[-1500:] or "it failed"
            if _UNKNOWN_SIGNER.search(problem):
                problem += f"; {_CERTIFICATES}"
            raise TaskSpecError([f"{self._place}: {problem}"])
        return done.stdout


class _Uv(_Resolver):
    def pins(self, asked, old):
        found = asked.with_name(LOCK_NAME)  # uv prefers the versions in its output file
        if old is not None:
            shutil.copyfile(old, found)
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
        self._run("pip", "compile", "-q", *options, "--python", sys.executable, "-o", str(found), str(asked))
        return found.read_text()

    def install(self, lock_file, folder, more=()):
        options = ["--no-deps", "--require-hashes", "--no-compile-bytecode", "--link-mode", "copy", *more]
        target = ["--python", sys.executable, "--target", str(folder)]
        self._run("pip", "install", "-q", *options, *target, "-r", str(lock_file), copy=lock_file)


class _Pip(_Resolver):
    def pins(self, asked, old):
        # The report lists the files that pip would install, with hashes.
        kept = ["-c", str(_without_hashes(old, asked.with_name("kept.txt")))] if old is not None else []
        report = asked.with_name("report.json")
        options = ["--dry-run", "--ignore-installed", "--disable-pip-version-check", "--report", str(report)]
        self._run("install", "-q", *options, *kept, "-r", str(asked))
        pins = []
        for item in json.loads(report.read_text())["install"]:
            hashes = item["download_info"]["archive_info"]["hashes"]
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            which = f" @ {item['download_info']['url']}" if item["is_direct"] else f"=={item['metadata']['version']}"
            pins.append(f"{name}{which} \\\n    --hash=sha256:{hashes['sha256']}\n")
        return "".join(sorted(pins))

    def install(self, lock_file, folder, more=()):
        options = ["--no-deps", "--require-hashes", "--no-compile", "--disable-pip-version-check", *more]
        self._run("install", "-q", *options, "--target", str(folder), "-r", str(lock_file), copy=lock_file)


def _without_hashes(lock_file, path):
    path.write_text("".join(f"{name}=={version}\n" for name, version in _PIN.findall(lock_file.read_text())))
    return path


def _resolver(requirements):
    """uv on PATH, then uv or pip of this Python."""
    uv = shutil.which("uv")
    if uv:
        return _Uv([uv], requirements)
    for module, kind in (("uv", _Uv), ("pip", _Pip)):
        if subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True).returncode == 0:
            return kind([sys.executable, "-m", module], requirements)
    advice = f"install one of them: `pip install uv`, or `{sys.executable} -m ensurepip`"
    raise TaskSpecError([f"{requirements.place}: neither uv nor pip is there to find packages; {advice}"])
