"""The standard-library bundle, and the tables of what a sealed VM offers.

`python -m vmhost.bytecode.stdlib OUT.vmb` compiles the running Python's own standard library (its .py sources), minus what has
no use in a VM, plus the guest runtime of `vmhost/guest/` and `vmhost.engine.numpy`, into one unsigned bundle that only this exact Python accepts.
Same Python, same sources: same bytes.

The guest runtime shapes the bundle in two ways, and both are read as files, since this package imports nothing of
vmhost's: `vmhost/guest/overlays/<dotted name>.py` stands in for that stdlib module, and `vmhost/guest/patches.py` may
define `patch(module_name, source) -> source`, which sees every other stdlib source as text before it is compiled, and
`system_texts(module_names) -> [(mode, text)]`, the texts that those modules compile at run time.
"""

import argparse
import functools
import os
import platform
import runpy
import sys
import sysconfig
import tempfile
from pathlib import Path

from .acceptance import note
from .errors import BytecodeError
from .format import Manifest, Module, module_path, read_bundle, write_bundle
from .source import compile_source
from .texts import compile_text, text_digest

# Native modules, built in or from lib-dynload, that a VM may load. Which of their names remain, and under which
# permissions they work, is the business of the isolation layer.
NATIVE_MODULES = frozenset("""
    _abc _ast _asyncio _bisect _blake2 _bz2 _codecs _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr
    _codecs_tw _collections _contextvars _csv _datetime _decimal _elementtree _functools _hashlib _heapq _hmac _io _json
    _locale _lzma _md5 _multibytecodec _opcode _operator _pickle _random _sha1 _sha2 _sha3 _signal _socket
    _sqlite3 _sre _ssl _stat _statistics _string _struct _sysconfig _thread _tokenize _types _typing _uuid
    _warnings _weakref _zoneinfo _zstd array atexit binascii builtins cmath errno gc itertools marshal math mmap posix
    pyexpat select sys time unicodedata zlib
    vmhost.engine._array
""".split())

_NO_PROCESSES = "a VM starts no processes; run the work in the task itself, or start the process on the host"
_NO_COMPILER = "a VM has no compiler"
_NO_TERMINAL = "a VM has no terminal"
_NO_INTERPRETERS = "a VM makes no interpreters of its own; give the work to another task"
_HOST_TOOL = "it is a tool for development; use it on the host"
_PROCESS_WIDE = "it reaches what all VMs of the process share"
_OTHER_SYSTEM = "it belongs to another operating system"
_NO_GUI = "a VM has no display"

# Standard-library modules (with all that is below them) that are neither in the bundle nor on the list above, and why.
LEFT_OUT = {
    "__hello__": _HOST_TOOL, "__phello__": _HOST_TOOL, "this": _HOST_TOOL,
    "_aix_support": _OTHER_SYSTEM, "_android_support": _OTHER_SYSTEM, "_apple_support": _OTHER_SYSTEM,
    "_ios_support": _OTHER_SYSTEM, "_osx_support": _OTHER_SYSTEM,
    "nturl2path": _OTHER_SYSTEM,
    "asyncio.windows_events": _OTHER_SYSTEM, "asyncio.windows_utils": _OTHER_SYSTEM,
    "encodings.mbcs": _OTHER_SYSTEM, "encodings.oem": _OTHER_SYSTEM,
    "msvcrt": _OTHER_SYSTEM, "winreg": _OTHER_SYSTEM, "winsound": _OTHER_SYSTEM, "nt": _OTHER_SYSTEM,
    "_curses": _NO_TERMINAL, "_pyrepl": _NO_TERMINAL, "curses": _NO_TERMINAL, "getpass": _NO_TERMINAL,
    "pty": _NO_TERMINAL,
    "readline": _NO_TERMINAL, "rlcompleter": _NO_TERMINAL, "termios": _NO_TERMINAL, "tty": _NO_TERMINAL,
    "cmd": _NO_TERMINAL,
    "_tkinter": _NO_GUI, "idlelib": _NO_GUI, "tkinter": _NO_GUI, "turtle": _NO_GUI, "turtledemo": _NO_GUI,
    "antigravity": _NO_GUI, "webbrowser": _NO_GUI,
    "bdb": _HOST_TOOL, "pdb": _HOST_TOOL, "pydoc": _HOST_TOOL, "pydoc_data": _HOST_TOOL, "cProfile": _HOST_TOOL,
    "_lsprof": _HOST_TOOL, "profile": _HOST_TOOL, "pstats": _HOST_TOOL, "trace": _HOST_TOOL, "tabnanny": _HOST_TOOL,
    "pyclbr": _HOST_TOOL, "modulefinder": _HOST_TOOL, "zipapp": _HOST_TOOL, "test": _HOST_TOOL, "venv": _HOST_TOOL,
    "ensurepip": _HOST_TOOL, "lib2to3": _HOST_TOOL, "pip": _HOST_TOOL, "profiling": _HOST_TOOL,
    "asyncio.tools": _HOST_TOOL,
    "_distutils_system_mod": _HOST_TOOL, "_ctypes_test": _HOST_TOOL, "xxlimited": _HOST_TOOL, "xxsubtype": _HOST_TOOL,
    "code": _NO_COMPILER, "codeop": _NO_COMPILER, "compileall": _NO_COMPILER, "doctest": _NO_COMPILER,
    "py_compile": _NO_COMPILER, "runpy": _NO_COMPILER, "symtable": _NO_COMPILER, "_symtable": _NO_COMPILER,
    "timeit": _NO_COMPILER, "site": _NO_COMPILER, "sitecustomize": _NO_COMPILER, "usercustomize": _NO_COMPILER,
    "_posixsubprocess": _NO_PROCESSES, "_multiprocessing": _NO_PROCESSES, "_posixshmem": _NO_PROCESSES,
    "multiprocessing": _NO_PROCESSES, "concurrent.futures.process": _NO_PROCESSES,
    "_interpreters": _NO_INTERPRETERS, "_interpchannels": _NO_INTERPRETERS, "_interpqueues": _NO_INTERPRETERS,
    "concurrent.interpreters": _NO_INTERPRETERS, "concurrent.futures.interpreter": _NO_INTERPRETERS,
    "_ctypes": _PROCESS_WIDE, "ctypes": _PROCESS_WIDE, "_imp": _PROCESS_WIDE, "_remote_debugging": _PROCESS_WIDE,
    "_tracemalloc": _PROCESS_WIDE, "tracemalloc": _PROCESS_WIDE, "faulthandler": _PROCESS_WIDE, "fcntl": _PROCESS_WIDE,
    "grp": _PROCESS_WIDE, "pwd": _PROCESS_WIDE, "resource": _PROCESS_WIDE, "syslog": _PROCESS_WIDE,
    "_dbm": "no build of it runs in a VM; use sqlite3", "_gdbm": "no build of it runs in a VM; use sqlite3",
    "dbm": "no build of it runs in a VM; use sqlite3",
    "shelve": "it stores through dbm and pickle; use sqlite3 or json",
}

# In the bundle because other modules of the standard library import them, but a task has no use for them.
REFUSED = {
    "subprocess": _NO_PROCESSES,
    "marshal": "only the importer of a VM may unmarshal code; use json, struct or array",
    "imp": "Python has no module imp any more; use plain imports",
    "zipimport": "a VM imports from bundles only",
}

_SIGNALS = "signals belong to the whole process; use vmhost.guest.deadline(), or teardown() in the task's module"

# Names that a VM takes out of modules it does offer, where a task is likely to look for them.
REFUSED_NAMES = {
    "concurrent.futures.ProcessPoolExecutor": _NO_PROCESSES,
    "concurrent.futures.InterpreterPoolExecutor": _NO_INTERPRETERS,
    **{f"signal.{name}": _SIGNALS for name in (
        "alarm", "pthread_kill", "pthread_sigmask", "raise_signal", "set_wakeup_fd", "setitimer", "siginterrupt",
        "signal")},
    **{f"os.{name}": _NO_PROCESSES for name in (
        "execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe", "fork", "forkpty", "popen",
        "posix_spawn", "posix_spawnp", "spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp",
        "spawnvpe", "system")},
    **{f"os.{name}": _PROCESS_WIDE for name in ("_exit", "abort", "kill", "killpg", "setuid", "setgid", "nice")},
}

# Modules that exist once another one has been imported, without a file of their own.
ALIASES = frozenset({
    "__main__",
    "collections.abc", "os.path", "pyexpat.errors", "pyexpat.model", "xml.parsers.expat.errors",
    "xml.parsers.expat.model",
})

_VMHOST = Path(__file__).parents[1]        # the package above; in a checkout its folder holds a link to this one
_GUEST, _ENGINE = _VMHOST / "guest", _VMHOST / "engine"
_STUB = b'"""Inside a VM this package holds the guest runtime only."""\n'
_FOR_THE_BUILD = ("patches.py", "policy.py", "splitting.py", "testing.py")        # in vmhost/guest/, but never inside a VM
_NOT_LIBRARY = ("__pycache__", "lib-dynload", "site-packages", "dist-packages")


def left_out(name):
    """Why the stdlib module `name` is not offered to a VM, or None."""
    while name:
        if name in LEFT_OUT:
            return LEFT_OUT[name]
        name = name.rpartition(".")[0]
    return None


@functools.cache
def offered_modules():
    """The names of all modules that a VM can import besides those of its task."""
    return frozenset(NATIVE_MODULES | _library_sources().keys() | _guest_sources().keys() | _engine_sources().keys())


def build_stdlib(guest=_GUEST):
    """The bytes of the standard-library bundle, with the guest runtime in the folder `guest` (left out if absent)."""
    name, version = "stdlib", platform.python_version()
    sources = {module: (path, None, is_package) for module, (path, is_package) in _library_sources().items()}
    sources.update(_guest_sources(guest))
    sources.update(_engine_sources())
    for path in sorted((guest / "overlays").glob("*.py")):
        is_package = sources.get(path.stem, (None, None, False))[2]
        sources[path.stem] = (path, path.read_bytes(), is_package)
    patches, splitting = _load(guest / "patches.py"), _load(guest / "splitting.py")

    modules = {}
    for module, (path, source, is_package) in sorted(sources.items()):
        if source is None:
            source = path.read_bytes()
            if "patch" in patches:
                source = patches["patch"](module, source.decode()).encode()
        parts = {}
        if "split" in splitting and module.partition(".")[0] != "vmhost":
            text, parts = splitting["split"](module, source.decode())
            source = text.encode()
        filename = f"{name}@{version}/{module_path(module, is_package)}.py"
        for part, source_of_part in ((module, source), *parts.items()):
            modules[part] = Module(is_package and part == module,
                                   compile_source(source_of_part, filename, str(path), docstrings=False))
    texts = {}
    if "system_texts" in patches:
        library = [module for module in modules if module.partition(".")[0] != "vmhost"]
        texts = {text_digest(mode, text): compile_text(mode, text) for mode, text in patches["system_texts"](library)}
    manifest = Manifest(name=name, version=version, kind="stdlib", exact_python=version)
    return write_bundle(manifest, modules, texts=texts)


def _library_sources():
    """Dotted name to (path, is_package) of the stdlib modules that go into the bundle."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = {}
    for folder, subfolders, files in os.walk(root):
        inside = Path(folder).relative_to(root).parts
        subfolders[:] = sorted(
            sub for sub in subfolders
            if sub not in _NOT_LIBRARY and sub.isidentifier() and left_out(".".join((*inside, sub))) is None)
        for file in sorted(files):
            stem, suffix = os.path.splitext(file)
            if suffix != ".py" or stem == "__main__" or stem.startswith("_sysconfigdata"):
                continue
            is_package = stem == "__init__"
            module = ".".join(inside if is_package else (*inside, stem))
            if all(part.isidentifier() for part in module.split(".")) and left_out(module) is None:
                sources[module] = (Path(folder, file), is_package)
    return sources


def _guest_sources(guest=_GUEST):
    sources = {}
    for path in sorted(guest.glob("*.py")):
        if path.name not in _FOR_THE_BUILD:
            is_package = path.stem == "__init__"
            name = "vmhost.guest" if is_package else f"vmhost.guest.{path.stem}"
            sources[name] = (path, path.read_bytes(), is_package)
    if sources:
        sources["vmhost"] = (guest, _STUB, True)
        sources.setdefault("vmhost.guest", (guest, _STUB, True))
    return sources


def _engine_sources():
    """The engine's Python that runs inside a VM: the package itself, `vmhost.engine.models` and `vmhost.engine.numpy`."""
    sources = {"vmhost.engine": (_ENGINE / "__init__.py", (_ENGINE / "__init__.py").read_bytes(), True),
               "vmhost.engine.models": (_ENGINE / "models.py", (_ENGINE / "models.py").read_bytes(), False)}
    for path in sorted((_ENGINE / "numpy").rglob("*.py")):
        is_package = path.stem == "__init__"
        parts = ("vmhost", *path.relative_to(_VMHOST).with_suffix("").parts)
        sources[".".join(parts[:-1] if is_package else parts)] = (path, path.read_bytes(), is_package)
    return sources


def _load(path):
    """The names that the file defines; none if there is no such file."""
    return runpy.run_path(str(path)) if path.exists() else {}


def main(arguments=None):
    """`python -m vmhost.bytecode.stdlib OUT.vmb`; exit status 0, 1 if it can't be compiled or written, 2 for wrong usage, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m vmhost.bytecode.stdlib", description="Build the standard-library bundle.")
    parser.add_argument("out", type=Path, metavar="OUT.vmb")
    out = parser.parse_args(arguments).out
    try:
        data = build_stdlib()
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out.parent, delete=False) as file:     # a reader sees the old or the new
            file.write(data)
        os.chmod(file.name, 0o644)      # whoever may use the checkout may read it
        os.replace(file.name, out)
        note(read_bundle(data, allow_unsigned=True), out)
    except (BytecodeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:       # set-up says so
        return 130
    print(f"{out}: {len(data):,} bytes, Python {platform.python_version()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
