"""Runs one test module in plain CPython, as a program: `python plain.py TESTS MODULE FOLDER OUT.json`.

Beside each test's outcome it notes which audit events the test's own frames raised that a sealed VM denies: compiling,
new code objects, processes, files outside FOLDER and relative paths (in a VM those are the bundle's), network other
than this machine's own, modules that a VM does not have; under the name "" those of its import, and for all tests of a
class those of its setUpClass. The frame that counts is the innermost one that is not a door: a module of the standard
library whose purpose is that very operation."""

import json
import os
import re
import resource
import runpy
import signal
import sys
import unittest
from pathlib import Path

_DOORS = {  # files of the standard library that are asked for the operation by name
    "compile": {
        "ast.py",
        "codeop.py",
        "code.py",
        "runpy.py",
        "py_compile.py",
        "compileall.py",
        "timeit.py",
        "doctest.py",
        "symtable.py",
    },
    "process": {
        "subprocess.py",
        "os.py",
        "pty.py",
        "process.py",
        "context.py",
        "popen_fork.py",
        "popen_spawn_posix.py",
        "popen_forkserver.py",
        "util.py",
        "forkserver.py",
        "base_events.py",
        "unix_events.py",
        "script_helper.py",
        "spawn.py",
        "resource_tracker.py",
        "platform.py",
        "uuid.py",
        "queues.py",
    },
    "network": {
        "socket.py",
        "socketserver.py",
        "ssl.py",
        "client.py",
        "server.py",
        "request.py",
        "ftplib.py",
        "smtplib.py",
        "base_events.py",
        "selector_events.py",
        "unix_events.py",
        "socket_helper.py",
        "streams.py",
        "handlers.py",
        "config.py",
        "managers.py",
        "connection.py",
        "process.py",
        "context.py",
        "forkserver.py",
        "popen_forkserver.py",
        "queues.py",
        "util.py",
    },  # the last six: processes are asked for at a socket
    "file": {
        "os.py",
        "shutil.py",
        "pathlib",
        "__init__.py",
        "linecache.py",
        "tokenize.py",
        "glob.py",
        "os_helper.py",
        "tempfile.py",
        "fileinput.py",
        "zipfile.py",
        "tarfile.py",
        "gzip.py",
        "bz2.py",
        "lzma.py",
        "_compression.py",
        "inspect.py",
        "traceback.py",
        "genericpath.py",
        "codecs.py",
        "netrc.py",
        "mimetypes.py",
        "pkgutil.py",
        "support.py",
        "mailbox.py",
        "wave.py",
        "uuid.py",
        "readers.py",
        "abc.py",
        "_abc.py",
        "zoneinfo.py",
        "_common.py",
        "_tzpath.py",
        "parser.py",
        "types.py",
        "_local.py",
        "_os.py",
        "logging",
        "_bootstrap_external",
    },
    "written": {
        "_bootstrap",
        "_bootstrap_external",
        "import_helper.py",
        "importlib",
        "zipimport",
        "pkgutil.py",
        "runpy.py",
    },
    "policy": {
        "os.py",
        "contextlib.py",
        "threading.py",
        "signal.py",
        "bdb.py",
        "shutil.py",
        "pathlib",
        "_local.py",
        "_os.py",
    },
    "import": {
        "_bootstrap",
        "_bootstrap_external",
        "import_helper.py",
        "importlib",
        "__init__.py",
        "pkgutil.py",
        "mock.py",
    },
}
_THROUGH = {"case.py", "contextlib.py"}  # unittest's assertRaises and enterContext, context managers: for their callers
_PROCESS = (
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.kill",
    "os.killpg",
    "pty.spawn",
    "signal.pthread_kill",
    "_posixsubprocess.fork_exec",
    "cpython.run_command",
    "cpython.run_file",
    "cpython.run_module",
    "cpython.run_interactivehook",
    "cpython.PyInterpreterState_New",
)
_NETWORK = (
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.sendmsg",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.gethostbyaddr",
    "socket.getnameinfo",
    "socket.sethostname",
)
_RESOLVE = ("socket.getaddrinfo", "socket.gethostbyname")
_LOOPBACK = ("127.0.0.1", "localhost")  # what folders.py grants, with all ports
_FILES = (
    "open",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "os.chmod",
    "os.chown",
    "os.chdir",
    "os.fwalk",
    "os.mkfifo",
    "os.lockf",
    "os.getxattr",
    "os.setxattr",
    "os.listxattr",
    "os.removexattr",
    "os.add_dll_directory",
    "shutil.chown",
    "sqlite3.connect",
)
_TWO_PATHS = ("os.rename", "os.link", "os.symlink")
# Missing in both runs: packages (for hypothesis the tests have a stand-in), native modules that only test the C
# interface
_NEITHER = (
    "hypothesis",
    "_testcapi",
    "_testinternalcapi",
    "_testlimitedcapi",
    "_testbuffer",
    "_testclinic",
    "_testclinic_limited",
    "_testmultiphase",
    "_testsinglephase",
    "_testimportmultiple",
    "_ctypes_test",
    "xxsubtype",
    "xxlimited",
    "xxlimited_35",
    "_xxtestfuzz",
)
MODULE = ""  # stands for the import of the test module among names of tests
_TOOL, _BYTES = 4, 6 << 30
_ROOT = Path(__file__).resolve().parent.parent.parent
_POLICY = runpy.run_path(str(_ROOT / "vmhost" / "stdlib" / "policy.py"))["POLICY"]
_MODULES = {
    "os": "posix",
    "sys": "sys",
    "gc": "gc",
    "signal": "_signal",
    "builtins": "builtins",
    "sqlite3": "_sqlite3",
    "socket": "_socket",
    "time": "time",
}  # of audit events -> of the sealing policy
_READS = ("os.listdir", "os.scandir", "os.getxattr", "os.listxattr")
_WRITES = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
)  # open's event has io.open's mode, and flags for os.open too


def _harmless():
    """The events that the audit hook of a VM lets through without a pass, prefixes with a dot at the end."""
    source = (_ROOT / "vmhost" / "isolation" / "seal" / "audit.c").read_text(encoding="utf-8")
    listed = re.search(r"harmless\[\] = \{(.*?)\};", source, re.DOTALL)[1]
    return re.findall(r'"([^"]+)"', listed)


def _is_loopback(event, args):
    """Whether this event of `_socket` names what the run grants: this machine, or an address that need not be
    resolved."""
    if event in _RESOLVE:
        host = args[0].decode() if isinstance(args[0], bytes) else args[0]
        return host is None or host in _LOOPBACK or bool(re.fullmatch(r"[0-9.]+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*", host))
    address = args[1] if len(args) > 1 else None
    return isinstance(address, tuple) and address[:1] != () and address[0] in _LOOPBACK


def _is_gated(event):
    """Whether the function that raises this event stays in a VM, behind a gate that passes what is granted."""
    module, _, name = event.partition(".")
    if event in ("open", "sqlite3.connect"):
        return True
    rules = _POLICY.get(_MODULES.get(module, module))
    return rules is not None and rules.verdict(name.partition(".")[0]) == "gated"


class Watch:
    """Which denied events each test raised. Set `test` to the id of the running test (None: between tests)."""

    def __init__(self, tests, writable, is_offered):
        self.test = None
        self.events = {}
        self._tests = str(tests) + os.sep
        self._own = str(Path(__file__).resolve().parent) + os.sep
        self._writable = os.path.join(writable, "")
        self._is_offered = is_offered
        harmless = _harmless()
        self._harmless = frozenset(name for name in harmless if not name.endswith("."))
        self._prefixes = tuple(name for name in harmless if name.endswith("."))
        sys.addaudithook(self._hook)
        # exec and eval of a text raise no audit event of their own: their calls are watched
        monitoring = sys.monitoring
        monitoring.use_tool_id(_TOOL, "conformance")
        monitoring.register_callback(_TOOL, monitoring.events.CALL, self._called)
        monitoring.set_events(_TOOL, monitoring.events.CALL)

    def _called(self, code, offset, callable, argument):
        asserts = code.co_filename.endswith("/unittest/case.py")  # assertRaises(SyntaxError, eval, "1 +")
        if callable is not exec and callable is not eval:
            return None if asserts else sys.monitoring.DISABLE
        if (
            isinstance(argument, (str, bytes))
            and self.test is not None
            and (asserts or code.co_filename.startswith(self._tests))
        ):
            self.events.setdefault(self.test, {})[f"{callable.__name__} of a text"] = "compile"
        return None

    def _hook(self, event, args):
        if self.test is None:
            return
        kind = self._kind(event, args)
        if kind is not None and self._is_its_own(kind):
            self.events.setdefault(self.test, {})[event] = kind

    def _kind(self, event, args):
        if event == "import":
            return None if self._is_offered(args[0]) else "import"
        if event == "compile" and str(args[1]).startswith(self._writable):  # a module that the test wrote, to import it
            return "written"
        if event in ("compile", "code.__new__") or event.startswith("marshal."):
            return "compile"
        if event in _PROCESS:
            return "process"
        if event in _NETWORK:
            return None if _is_loopback(event, args) else "network"
        if event in _FILES and any(self._is_outside(path, event, args) for path in args[: 1 + (event in _TWO_PATHS)]):
            return "file"
        if event.startswith("ctypes."):
            return "import"
        if event == "mmap.__new__":
            return "file" if args[0] != -1 else None
        return None if event in self._harmless or event.startswith(self._prefixes) or _is_gated(event) else "policy"

    def _is_outside(self, path, event, args):
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or path in ("", ":memory:"):
            return False
        reads = event in _READS or event == "open" and str(args[1] or "r").strip("rbt") == "" and not args[2] & _WRITES
        if not os.path.isabs(path):  # in a VM that is a file of the bundle, which can be read
            return not reads or os.path.lexists(path)
        path = os.path.abspath(path)
        if reads:
            return not (path + os.sep).startswith((self._writable, self._tests))
        return not (path + os.sep).startswith(self._writable)

    def _is_its_own(self, kind):
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self._tests) and "/support/" not in file:
                return True
            if file.startswith(self._own):
                return False
            frozen = file.startswith("<frozen ")  # <frozen os> is os.py
            name = (
                file.removeprefix("<frozen ").removesuffix(">").rpartition(".")[2] if frozen else os.path.basename(file)
            )
            doors = _DOORS[kind] | _THROUGH
            if doors.isdisjoint((name, f"{name}.py" if frozen else name, *Path(file).parts[-2:])) and (
                not file.startswith(self._tests)
            ):
                return False
            frame = frame.f_back
        return False


def main(tests, module, writable, out):
    """Writes {"listed": [id], "outcomes": {id: [outcome, text]}, "denied": {id: {event: kind}}}, or {"error": text}."""
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(tests), str(here / "guest"), str(here.parent.parent)]
    sys.modules.update(dict.fromkeys(_NEITHER))
    import runner
    import stand_ins

    from vmhost.bytecode.offered import LEFT_OUT, NATIVE_MODULES, left_out

    sys.path[:] = [path for path in sys.path if "site-packages" not in path]  # the tests find no packages

    def is_offered(name):
        top = name.partition(".")[0]
        return (
            top not in sys.stdlib_module_names | LEFT_OUT.keys()
            and not name.startswith("_test")
            or (left_out(name) is None and not (top.startswith("_") and _is_native(top) and top not in NATIVE_MODULES))
        )

    os.chdir(writable)
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs come with it ignored
    watch = Watch(tests, writable, is_offered)
    try:
        stand_ins.import_with_gaps()
        runner.prepare(writable, str(tests / "test"))
        watch.test = MODULE
        found = _imported(f"test.{module}")
        listed = runner.run(found, {"names": None})

        def stop():
            watch.test = None

        watch.test = None
        for test in runner.flat(unittest.defaultTestLoader.loadTestsFromModule(found)):
            if type(test).__name__ == "DocTestCase":  # its examples are compiled, by doctest
                watch.events[test.id()] = {"doctest": "compile"}
        _watch_classes(watch)
        outcomes = runner.run(found, {"names": list(listed)}, lambda name: setattr(watch, "test", name), stop)
        for name in listed:
            of_class = watch.events.get(name.rpartition(".")[0])
            if of_class:
                watch.events[name] = of_class | watch.events.get(name, {})
        answer = {"listed": list(listed), "outcomes": outcomes, "denied": watch.events}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(out).write_text(json.dumps(answer), encoding="utf-8")


def _imported(name):
    """The test module `name`; what it can't be imported without of _NEITHER is a gap for it, as in the bundles."""
    import importlib
    import inspect

    from gaps import Gap

    class Absent(Gap):
        def __getattr__(self, attribute):
            if (
                sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED
            ):  # asked for in a function, which knows what else to do
                raise AttributeError(attribute)
            return super().__getattr__(attribute)

    while True:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if error.name not in _NEITHER or sys.modules[error.name] is not None:
                raise
            sys.modules[error.name] = Absent(error.name, "neither run has it")


def _watch_classes(watch):
    """Notes what setUpClass raises under the class: none of its tests runs without it."""
    set_up = unittest.TestSuite._handleClassSetUp

    def watched(suite, test, result):
        watch.test = test.id().rpartition(".")[0]
        try:
            set_up(suite, test, result)
        finally:
            watch.test = None

    unittest.TestSuite._handleClassSetUp = watched


def _is_native(name):
    spec = sys.modules.get(name)
    return name in sys.builtin_module_names or getattr(spec, "__file__", "").endswith(".so")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], os.path.realpath(sys.argv[3]), os.path.abspath(sys.argv[4]))
