"""The modules that a sealed VM offers to a task, and where the sources of the system bundle are.

`vmhost.stdlib` builds the bundle from this; the import closure uses it to decide what a task can import.
"""

import functools
import os
import sysconfig
from pathlib import Path

# Native modules, built in or from lib-dynload, that a VM may load. The isolation layer decides which of their names
# remain, and under which permissions they work.
NATIVE_MODULES = frozenset(
    """
    _abc _ast _asyncio _bisect _blake2 _bz2 _codecs _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr
    _codecs_tw _collections _contextvars _csv _datetime _decimal _elementtree _functools _hashlib _heapq _hmac _io _json
    _locale _lzma _md5 _multibytecodec _opcode _operator _pickle _random _sha1 _sha2 _sha3 _signal _socket
    _sqlite3 _sre _ssl _stat _statistics _string _struct _sysconfig _thread _tokenize _types _typing _uuid
    _warnings _weakref _zoneinfo _zstd array atexit binascii builtins cmath errno gc itertools marshal math mmap posix
    pyexpat select sys time unicodedata zlib
    vmhost.engine._array
""".split()
)

_NO_PROCESSES = "a VM starts no processes; run the work in the task itself, or start the process on the host"
_NO_COMPILER = "a VM has no compiler"
_NO_TERMINAL = "a VM has no terminal"
_NO_INTERPRETERS = "a VM makes no interpreters of its own; give the work to another task"
_HOST_TOOL = "it is a tool for development; use it on the host"
_PROCESS_WIDE = "it reaches what all VMs of the process share"
_OTHER_SYSTEM = "it belongs to another operating system"
_NO_GUI = "a VM has no display"

# Standard-library modules (with their submodules) that are neither in the bundle nor in the list above, and the reason.
LEFT_OUT = {
    "__hello__": _HOST_TOOL,
    "__phello__": _HOST_TOOL,
    "this": _HOST_TOOL,
    "_aix_support": _OTHER_SYSTEM,
    "_android_support": _OTHER_SYSTEM,
    "_apple_support": _OTHER_SYSTEM,
    "_ios_support": _OTHER_SYSTEM,
    "_osx_support": _OTHER_SYSTEM,
    "nturl2path": _OTHER_SYSTEM,
    "asyncio.windows_events": _OTHER_SYSTEM,
    "asyncio.windows_utils": _OTHER_SYSTEM,
    "encodings.mbcs": _OTHER_SYSTEM,
    "encodings.oem": _OTHER_SYSTEM,
    "msvcrt": _OTHER_SYSTEM,
    "winreg": _OTHER_SYSTEM,
    "winsound": _OTHER_SYSTEM,
    "nt": _OTHER_SYSTEM,
    "_curses": _NO_TERMINAL,
    "_pyrepl": _NO_TERMINAL,
    "curses": _NO_TERMINAL,
    "pty": _NO_TERMINAL,
    "readline": _NO_TERMINAL,
    "rlcompleter": _NO_TERMINAL,
    "cmd": _NO_TERMINAL,
    "_tkinter": _NO_GUI,
    "idlelib": _NO_GUI,
    "tkinter": _NO_GUI,
    "turtle": _NO_GUI,
    "turtledemo": _NO_GUI,
    "antigravity": _NO_GUI,
    "webbrowser": _NO_GUI,
    "pydoc": _HOST_TOOL,
    "pydoc_data": _HOST_TOOL,
    "cProfile": _HOST_TOOL,
    "_lsprof": _HOST_TOOL,
    "profile": _HOST_TOOL,
    "pstats": _HOST_TOOL,
    "trace": _HOST_TOOL,
    "tabnanny": _HOST_TOOL,
    "pyclbr": _HOST_TOOL,
    "modulefinder": _HOST_TOOL,
    "zipapp": _HOST_TOOL,
    "test": _HOST_TOOL,
    "venv": _HOST_TOOL,
    "ensurepip": _HOST_TOOL,
    "lib2to3": _HOST_TOOL,
    "pip": _HOST_TOOL,
    "profiling": _HOST_TOOL,
    "asyncio.tools": _HOST_TOOL,
    "_distutils_system_mod": _HOST_TOOL,
    "_ctypes_test": _HOST_TOOL,
    "xxlimited": _HOST_TOOL,
    "xxsubtype": _HOST_TOOL,
    "code": _NO_COMPILER,
    "codeop": _NO_COMPILER,
    "compileall": _NO_COMPILER,
    "doctest": _NO_COMPILER,
    "py_compile": _NO_COMPILER,
    "runpy": _NO_COMPILER,
    "symtable": _NO_COMPILER,
    "_symtable": _NO_COMPILER,
    "site": _NO_COMPILER,
    "sitecustomize": _NO_COMPILER,
    "usercustomize": _NO_COMPILER,
    "_posixsubprocess": _NO_PROCESSES,
    "_multiprocessing": _NO_PROCESSES,
    "_posixshmem": _NO_PROCESSES,
    "multiprocessing": _NO_PROCESSES,
    "concurrent.futures.process": _NO_PROCESSES,
    "_interpreters": _NO_INTERPRETERS,
    "_interpchannels": _NO_INTERPRETERS,
    "_interpqueues": _NO_INTERPRETERS,
    "concurrent.interpreters": _NO_INTERPRETERS,
    "concurrent.futures.interpreter": _NO_INTERPRETERS,
    "_ctypes": _PROCESS_WIDE,
    "ctypes": _PROCESS_WIDE,
    "_imp": _PROCESS_WIDE,
    "_remote_debugging": _PROCESS_WIDE,
    "_tracemalloc": _PROCESS_WIDE,
    "tracemalloc": _PROCESS_WIDE,
    "fcntl": _PROCESS_WIDE,
    "grp": _PROCESS_WIDE,
    "pwd": _PROCESS_WIDE,
    "resource": _PROCESS_WIDE,
    "syslog": _PROCESS_WIDE,
    "_dbm": "no build of it runs in a VM; use sqlite3",
    "_gdbm": "no build of it runs in a VM; use sqlite3",
    "dbm": "no build of it runs in a VM; use sqlite3",
    "shelve": "it stores through dbm and pickle; use sqlite3 or json",
}

# In the bundle because other modules of the standard library import them; a task may not import them itself.
REFUSED = {
    "subprocess": _NO_PROCESSES,
    "marshal": "only the importer of a VM may unmarshal code; use json, struct or array",
    "imp": "Python has no module imp any more; use plain imports",
    "zipimport": "a VM imports from bundles only",
    "bdb": _HOST_TOOL,
    "pdb": _HOST_TOOL,
    "getpass": _NO_TERMINAL,
    "timeit": _NO_COMPILER,
    "tty": _NO_TERMINAL,
    "termios": _NO_TERMINAL,
    "faulthandler": _PROCESS_WIDE,
}

# Native ones of these that packages import at their top and seldom use: `vmhost/stdlib/overlays` has stand-ins that
# behave as on a machine without a terminal. `ctypes` needs none: many packages do without it where it is missing.
STAND_INS = frozenset({"termios", "faulthandler"})

_SIGNALS = "signals belong to the whole process; use vmhost.guest.deadline(), or teardown() in the task's module"

# Names that a VM removes from modules it does offer, where a task is likely to look for them.
REFUSED_NAMES = {
    "concurrent.futures.ProcessPoolExecutor": _NO_PROCESSES,
    "concurrent.futures.InterpreterPoolExecutor": _NO_INTERPRETERS,
    **{
        f"signal.{name}": _SIGNALS
        for name in (
            "alarm",
            "pthread_kill",
            "pthread_sigmask",
            "raise_signal",
            "set_wakeup_fd",
            "setitimer",
            "siginterrupt",
            "signal",
            "Sigmasks",
            "sigpending",
            "sigwait",
        )
    },
    "os.fwalk": "a VM opens no folders by descriptor; use os.walk",
    "os.reload_environ": _PROCESS_WIDE,
    **{
        f"os.{name}": _NO_PROCESSES
        for name in (
            "execl",
            "execle",
            "execlp",
            "execlpe",
            "execv",
            "execve",
            "execvp",
            "execvpe",
            "fork",
            "forkpty",
            "popen",
            "posix_spawn",
            "posix_spawnp",
            "spawnl",
            "spawnle",
            "spawnlp",
            "spawnlpe",
            "spawnv",
            "spawnve",
            "spawnvp",
            "spawnvpe",
            "system",
        )
    },
    **{f"os.{name}": _PROCESS_WIDE for name in ("_exit", "abort", "kill", "killpg", "setuid", "setgid", "nice")},
}

# Modules without a file that exist once another one is imported.
ALIASES = frozenset(
    {
        "__main__",
        "collections.abc",
        "os.path",
        "pyexpat.errors",
        "pyexpat.model",
        "xml.parsers.expat.errors",
        "xml.parsers.expat.model",
    }
)

_VMHOST = Path(__file__).parents[1]  # the package above; in a checkout its folder has a link to this one
GUEST, _ENGINE = _VMHOST / "guest", _VMHOST / "engine"
_STUB = b'"""Inside a VM this package holds vmhost.guest and vmhost.engine only."""\n'
_OUTSIDE = ("testing.py",)  # in vmhost/guest/, but never inside a VM
_NOT_LIBRARY = ("__pycache__", "lib-dynload", "site-packages", "dist-packages")


def left_out(name):
    """The reason why the stdlib module `name` is not offered to a VM, or None."""
    while name:
        if name in LEFT_OUT:
            return LEFT_OUT[name]
        name = name.rpartition(".")[0]
    return None


@functools.cache
def offered_modules():
    """The names of all modules that a VM can import, apart from its task's."""
    sources = library_sources().keys() | guest_sources().keys() | engine_sources().keys()
    return frozenset(NATIVE_MODULES | STAND_INS | sources)


def offered_folders():
    """The folders whose lists of names decide what `offered_modules` gives, together with the Python's version."""
    return Path(sysconfig.get_path("stdlib")), GUEST, _ENGINE, *(_ENGINE / package for package in _ENGINE_PACKAGES)


def library_sources():
    """Dotted name to (path, is_package) of the stdlib modules that go into the bundle."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = {}
    for folder, subfolders, files in os.walk(root):
        inside = Path(folder).relative_to(root).parts
        subfolders[:] = sorted(
            sub
            for sub in subfolders
            if sub not in _NOT_LIBRARY and sub.isidentifier() and left_out(".".join((*inside, sub))) is None
        )
        for file in sorted(files):
            stem, suffix = os.path.splitext(file)
            if suffix != ".py" or stem == "__main__" or stem.startswith("_sysconfigdata"):
                continue
            is_package = stem == "__init__"
            module = ".".join(inside if is_package else (*inside, stem))
            if all(part.isidentifier() for part in module.split(".")) and left_out(module) is None:
                sources[module] = (Path(folder, file), is_package)
    return sources


def guest_sources(guest=GUEST):
    sources = {}
    for path in sorted(guest.glob("*.py")):
        if path.name not in _OUTSIDE:
            is_package = path.stem == "__init__"
            name = "vmhost.guest" if is_package else f"vmhost.guest.{path.stem}"
            sources[name] = (path, path.read_bytes(), is_package)
    if sources:
        sources["vmhost"] = (guest, _STUB, True)
        sources.setdefault("vmhost.guest", (guest, _STUB, True))
    return sources


_ENGINE_PACKAGES = ("embedding", "features", "grad", "nn", "numpy", "optim", "runs", "tokenizers")


def engine_sources():
    """The engine's Python that runs inside a VM: the package itself, models, `vmhost.engine.numpy`, and training."""
    sources = {
        "vmhost.engine": (_ENGINE / "__init__.py", (_ENGINE / "__init__.py").read_bytes(), True),
        **{
            f"vmhost.engine.{name}": (_ENGINE / f"{name}.py", (_ENGINE / f"{name}.py").read_bytes(), False)
            for name in ("model", "models", "model_parts", "model_texts")
        },
    }
    for path in sorted(path for package in _ENGINE_PACKAGES for path in (_ENGINE / package).rglob("*.py")):
        is_package = path.stem == "__init__"
        parts = ("vmhost", *path.relative_to(_VMHOST).with_suffix("").parts)
        sources[".".join(parts[:-1] if is_package else parts)] = (path, path.read_bytes(), is_package)
    return sources
