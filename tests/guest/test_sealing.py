"""What a sealed VM refuses, tried from inside one: each escape is denied with PermissionDenied or does not exist.

And the process is as it was.
"""

import inspect
import io
import os
import signal
import sys
import threading
import time

import pytest

import vmhost
from tests.batches import each
from vmhost.bytecode.compiler import compile_sources

# name -> the body of a function that tries something; the tests below state its outcome
DENIED = {
    # code
    "compile_text": "compile('1', 'text', 'eval')",
    "eval_text": "eval('1 + 1')",
    "exec_text": "exec('pass')",
    "code_constructor": "type(tries['eval_text'].__code__)(0, 0, 0, 0, 0, 0, b'', (), (), (), '', '', '', 0, b'', b'')",
    "code_replace": "tries['eval_text'].__code__.replace(co_consts=(None, 'other'))",
    "code_replace_instructions": "tries['eval_text'].__code__.replace(co_name='other', co_code=b'')",
    "function_over_hidden_arguments": "import types; types.FunctionType(hidden, {})(17, 17)",
    "function_made_to_hold_hidden_arguments": "setattr(stores, '__code__', hidden)",
    "relocated_library_code": (
        "import _vmhost, contextlib;"
        " _vmhost.relocated_code(contextlib.closing.__init__.__code__, 'task@1.0.0/main.py', None, None, 0, True)"
    ),
    "relocated_frozen_code": (
        "import _frozen_importlib, _vmhost;"
        " _vmhost.relocated_code(_frozen_importlib._find_and_load.__code__, 'main.py', None, None, 0, True)"
    ),
    "code_copy_replace": "import copy; copy.replace(tries['eval_text'].__code__, co_name='other')",
    "marshal_loads": "import marshal; marshal.loads(b'N')",
    "marshal_dumps": "import marshal; marshal.dumps(1)",
    "pickled_eval": "import pickle; pickle.loads(b'cbuiltins\\neval\\n(V1+1\\ntR.')",
    # processes and what they share
    "fork": "import os; os.fork()",
    "system": "import os; os.system('true')",
    "exec_program": "import os; os.execv('/bin/true', ['true'])",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "popen": "import subprocess; subprocess.run(['true'])",
    "debugger": "import pdb; pdb.set_trace()",
    "debugger_object": "import pdb; pdb.Pdb()",
    "debugger_of_a_text": "import pdb; pdb.run('pass')",
    "exit_process": "import os; os._exit(3)",
    "abort": "import os; os.abort()",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "raise_signal": "import signal; signal.raise_signal(9)",
    "alarm": "import signal; signal.alarm(1)",
    "signal_handler": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "interrupt_main": "import _thread; _thread.interrupt_main()",
    "chdir": "import os; os.chdir('/')",
    "umask": "import os; os.umask(0)",
    "setuid": "import os; os.setuid(os.getuid())",
    "nice": "import os; os.nice(1)",
    "locale": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    # descriptors of the host
    "close_stdout": "import os; os.close(1)",
    "dup2": "import os; os.dup2(1, 2)",
    "read_descriptor": "import os; os.read(0, 1)",
    "write_descriptor": "import os; os.write(0, b'x')",
    "fstat_descriptor": "import os; os.fstat(0)",
    "open_descriptor": "open(1, 'wb')",
    "file_descriptor": "import io; io.FileIO(2, 'w')",
    "file_unbound": "import io; io.FileIO.__init__(io.FileIO.__new__(io.FileIO), 1, 'w')",
    "opener": "open('/anything', opener=lambda path, flags: 1)",
    "socket_descriptor": "import socket; socket.socket(fileno=0)",
    "socket_unbound": "import _socket; _socket.socket.__init__(_socket.socket.__new__(_socket.socket), fileno=0)",
    "select_descriptor": "import select; select.select([0], [], [], 0)",
    "epoll_descriptor": "import select; select.epoll().register(0)",
    "map_descriptor": "import mmap; mmap.mmap(0, 4096)",
    # files
    "read_file": "open('/etc/passwd')",
    "read_file_bytes": "open(b'/etc/passwd')",
    "read_file_pathlib": "import pathlib; pathlib.Path('/etc/passwd').read_text()",
    "read_file_codecs": "import codecs; codecs.open('/etc/passwd')",
    "read_file_io": "import _io; _io.open('/etc/passwd')",
    "open_code": "import io; io.open_code('/etc/passwd')",
    "read_file_posix": "import os; os.open('/etc/passwd', os.O_RDONLY)",
    "read_proc": "open('/proc/self/environ')",
    "write_file": "open('/tmp/made-by-a-guest', 'w')",
    "write_bundle": "open('data.txt', 'w')",
    "stat_file": "import os; os.stat('/etc/passwd')",
    "list_folder": "import os; os.listdir('/etc')",
    "scan_folder": "import os; os.scandir('/etc')",
    "make_folder": "import os; os.mkdir('/tmp/made-by-a-guest')",
    "remove_file": "import os; os.remove('/tmp/made-by-a-guest')",
    "rename_file": "import os; os.rename('/tmp/a', '/tmp/b')",
    "link": "import os; os.symlink('/etc', '/tmp/made-by-a-guest')",
    "folder_descriptor": "import os; os.stat('passwd', dir_fd=3)",
    # databases and memory
    "database_file": "import sqlite3; sqlite3.connect('/tmp/made-by-a-guest')",
    "database_uri": "import sqlite3; sqlite3.connect('file:x?mode=memory&cache=shared', uri=True)",
    "database_limit": "import sqlite3; sqlite3.connect(':memory:').setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 5)",
    "database_extension": "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)",
    "database_settings": "import sqlite3 as s; s.connect(':memory:').setconfig(s.SQLITE_DBCONFIG_DEFENSIVE, False)",
    # network
    "connect": "import socket; socket.create_connection(('127.0.0.1', 1))",
    "unix_socket": "import socket; socket.socket(socket.AF_UNIX)",
    "raw_socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW)",
    "resolve": "import socket; socket.getaddrinfo('example.org', 80)",
    "pass_descriptor": "import socket; a, b = socket.socketpair(); a.sendmsg([b'x'], [(1, 1, b'')])",
    "unix_elsewhere": "import socket as s; a, b = s.socketpair(type=s.SOCK_DGRAM); a.sendto(b'x', '/run/some.sock')",
    # the host's terminal
    "input": "input()",
    # tracing, and what only a trace function is for
    "jump": "import sys; setattr(sys._getframe(), 'f_lineno', 1)",
    "jump_in_a_generator": "setattr((one for one in [1]).gi_frame, 'f_lineno', 1)",
    "frame_trace": "import sys; setattr(sys._getframe(), 'f_trace', print)",
    "frame_trace_opcodes": "import sys; setattr(sys._getframe(), 'f_trace_opcodes', True)",
    "frame_trace_deleted": "import sys; delattr(sys._getframe(), 'f_trace')",
    "breakpoint": "breakpoint()",
    # variables of frames, by the proxy of PEP 667: those of the standard library, and where the compiler keeps hidden
    # ones
    "frame_local": "import operator; operator.setitem(library.f_locals, 'value', 1)",
    "frame_local_deleted": "import operator; operator.delitem(library.f_locals, 'value')",
    "frame_local_by_its_method": "f = library.f_locals; type(f).__setitem__(f, 'value', 1)",
    "frame_local_deleted_by_its_method": "library.f_locals.__delitem__('value')",
    "frame_local_by_update": "library.f_locals.update(value=1)",
    "frame_local_by_merging": "import operator; operator.ior(library.f_locals, {'value': 1})",
    "frame_local_by_its_merging_method": "library.f_locals.__ior__({'value': 1})",
    "frame_local_by_default": "library.f_locals.setdefault('other', 1)",
    "frame_local_popped": "library.f_locals.pop('other', 1)",
    "frame_local_by_exec": "exec(storing, {'__name__': ''}, library.f_locals)",
    "frame_local_of_a_template": "import operator; operator.setitem(template.f_locals, 'value', 1)",
    "frame_local_of_a_generator": "import operator; operator.setitem((one for one in [1]).gi_frame.f_locals, '.0', 1)",
    "frame_local_under_another_name": (
        "import operator; operator.setitem((one for one in [1]).gi_frame.f_locals, 'one', 1)"
    ),
    "frame_local_of_a_generic_function": "import operator; operator.setitem(generic.f_locals, '.type_params', 1)",
}

GONE = {
    "objects_of_all": "import gc; gc.get_objects",
    "referrers": "import gc; gc.get_referrers",
    "referents": "import gc; gc.get_referents",
    "frames_of_all": "import sys; sys._current_frames",
    "trace": "import sys; sys.settrace",
    "profile": "import sys; sys.setprofile",
    "trace_all_threads": "import sys; sys._settraceallthreads",
    "profile_all_threads": "import sys; sys._setprofileallthreads",
    "call_tracing": "import sys; sys.call_tracing",
    "trace_of_threading": "import threading; threading.settrace_all_threads(print)",
    "profile_of_threading": "import threading; threading.setprofile_all_threads(print)",
    "audit_hook": "import sys; sys.addaudithook",
    "monitoring": "import sys; sys.monitoring",
    "code_from_fields": "import _vmhost; _vmhost.make_code",
    "native_loader": "import _imp; _imp.create_dynamic",
    "frozen_code": "import _imp; _imp.get_frozen_object",
    "event_descriptor": "import os; os.eventfd",
    "memory_file": "import os; os.memfd_create",
    "terminal": "import os; os.openpty",
    "clock": "import time; time.clock_settime",
    "zone": "import time; time.tzset",
}

MODULES = [
    "ctypes",
    "_ctypes",
    "_interpreters",
    "_interpqueues",
    "_testcapi",
    "_tracemalloc",
    "resource",
    "readline",
    "fcntl",
    "pwd",
    "multiprocessing.shared_memory",
    "symtable",
    "_remote_debugging",
    "sys.monitoring",
    "_lsprof",
]

SOURCE = """
import sys
import threading
tries = {}

def stores():
    class Body:     # its code stores by name
        sys = 1
[storing] = [one for one in stores.__code__.co_consts if hasattr(one, "co_code")]

def makes_generic():
    # its defaults come to the code that makes it as arguments without a check
    def generic[T](a=1, *, b=2): return a
[hidden] = [one for one in makes_generic.__code__.co_consts if hasattr(one, "co_code")]

def fails():
    found = {}
    found["nothing"]
try:
    fails()
except KeyError as error:
    failure = error.with_traceback(error.__traceback__.tb_next)

import contextlib
@contextlib.contextmanager
def caught():
    global library
    library = sys._getframe(1)      # contextlib's
    yield
with caught():
    pass
assert 'contextlib' in library.f_code.co_filename

def frames_of_code_that_is_made():
    import dataclasses
    template = generic = None
    @dataclasses.dataclass
    class Seen:     # its __init__ is made from a template
        value: int
        def __setattr__(self, name, value):
            nonlocal template
            template = sys._getframe(1)
    Seen(1)
    def base():
        nonlocal generic
        generic = sys._getframe(1)
        return dict
    class Generic[T](base()): pass
    return template, generic
template, generic = frames_of_code_that_is_made()
assert template.f_code.co_name == '__init__'
assert '.type_params' in generic.f_code.co_varnames + generic.f_code.co_cellvars

def writes(value):
    '''What the writes to a frame's own variables come to, by each of the ways.'''
    import operator
    first = second = third = fourth = fifth = None
    seen = sys._getframe().f_locals
    seen["first"] = 1
    seen.update({"second": 2})
    seen |= {"third": 3}
    seen.__setitem__("fourth", 4)
    operator.setitem(seen, "fifth", 5)
    kept = [held for held in (seen.setdefault("extra", 6), seen.pop("extra"), seen.pop("extra", 7))]
    try:
        del seen["first"]
    except ValueError as error:
        refused = str(error)
    def closed():
        return value
    inner = (lambda: sys._getframe(1).f_locals)()
    inner["value"] = 8
    operator.setitem(failure.__traceback__.tb_frame.f_locals, "found", 9)
    return (first, second, third, fourth, fifth, kept, refused, closed(),
            failure.__traceback__.tb_frame.f_locals["found"])

def borrowed(value):
    '''What was loaded from a variable stays alive while the variable changes.'''
    def change():
        sys._getframe(1).f_locals["held"] = None
        return [bytearray(100) for one in range(100)]
    held = bytearray(b"kept") * 10
    return [held, change(), held][0][:4] == b"kept", held

def frames(value):
    '''What can be read of a frame's variables.'''
    seen = sys._getframe().f_locals
    value += 1
    return (seen["value"], dict(seen | {"more": 1})["more"], sorted(failure.__traceback__.tb_frame.f_locals),
            len(seen), "value" in seen)

def run(name):
    try:
        value = tries[name]()
    except BaseException as error:
        return type(error).__name__, str(error), isinstance(error, PermissionError)
    return "nothing", repr(value), False

def load(name):
    try:
        __import__(name)
    except ImportError as error:
        return str(error)
    return None

def shared(value):
    import os
    return os.getpid(), sorted(os.environ), os.getcwd()

def instances(value):
    '''Modules that were made again from their native definition are gated like the first.'''
    import _vmhost, importlib
    made = _vmhost.create("posix")
    del sys.modules["posix"]
    import posix
    found = []
    for module in (made, posix):
        try:
            module._exit(3)
        except PermissionError as error:
            found.append(str(error))
    return found

def rooted(value):
    '''Every function object in reach of the classes of this VM that opens files is the gated one.'''
    import _io
    found = []
    for kind in object.__subclasses__():
        for name in ("open", "system", "_exit", "create_dynamic"):
            function = getattr(kind, name, None)
            if type(function).__name__ == "builtin_function_or_method" and function is not _io.open:
                found.append((kind.__name__, name))
    return found

def signatures(_):
    import inspect, io, os, sys, threading, time
    from inspect import signature
    module = sys.modules[__name__]
    return ([str(signature(function))
             for function in (input, os.fork, os.kill, threading.stack_size, threading.Lock, time.sleep,
                                                       threading.Lock().__exit__, sys.__breakpointhook__,
                                                       io.FileIO.close, io.FileIO._isatty_open_only)],
            time.sleep.__self__ is time, inspect.getmembers(module, lambda value: isinstance(value, type)))

def closed(_):
    import errno, os, select
    kinds = set()
    for act in (lambda: os.read(9999, 1), lambda: os.close(9999), lambda: open(9999), lambda: os.fstat(9999),
                lambda: select.select([9999], [], [], 0)):
        try:
            act()
        except OSError as error:
            kinds.add((type(error).__name__, errno.errorcode[error.errno]))
    return kinds

def misused(_):
    import os, time, warnings
    found = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found.append(os.path.exists(False))
    found += [str(warning.message) for warning in warned]
    try:
        time.sleep("1")
    except TypeError as error:
        found.append(str(error))
    return found

def accessible(_):
    import os, shutil
    return os.access("/bin/sh", os.X_OK), shutil.which("sh", path="/bin"), os.access(b"/etc", os.R_OK)

def tracing(_):
    import sys
    return sys.gettrace(), sys.getprofile()

def reach(value):
    '''What a function gives away through its attributes.'''
    import os, builtins
    given = []
    for function in (os.open, os.stat, os._exit, builtins.open, builtins.exec):
        owner = getattr(function, "__self__", None)
        given.append(type(owner).__name__)
        if type(owner).__name__ == "module":
            assert owner.__dict__[function.__name__] is function or owner.__name__ == "posix"
    return given
"""


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture(scope="module")
def task(host):
    source = SOURCE
    for name, body in {**DENIED, **GONE}.items():
        lines = body.split("; ")
        lines[-1] = f"return {lines[-1]}"
        source += f"\ndef _{name}():\n" + "".join(f"    {line}\n" for line in lines) + f"tries[{name!r}] = _{name}\n"
    return host.load(
        compile_sources(
            {"main": (source, "main.py", False)},
            entry="main:run",
            name="escape",
            version="1",
            limits={"wall_time_s": 30.0},
            files={"data.txt": b"bundled"},
        )
    )


@each("name", DENIED)
def test_it_is_denied_in_words(task, name):
    kind, text, is_permission_error = task(name)
    assert kind == "PermissionDenied", text
    assert is_permission_error and ": " in text and text.startswith("[Errno 13] ")


@each("name", GONE)
def test_it_is_not_there(task, name):
    assert task(name)[0] == "AttributeError"


@pytest.mark.parametrize("module", MODULES)
def test_the_module_is_not_there(task, module):
    assert task(module, entry="main:load") is not None


def test_a_grant_is_named_with_its_key(task):
    assert "permissions: {read: [...]}" in task("read_file")[1]
    assert "permissions: {write: [...]}" in task("make_folder")[1]
    assert 'permissions: {net: ["host:port"]}' in task("connect")[1]


def test_modules_made_again_are_gated(task):
    first, second = task(None, entry="main:instances")
    assert "posix._exit" in first and "posix._exit" in second


def test_nothing_traces_and_that_can_be_asked(task):
    assert task(None, entry="main:tracing") == (None, None)


def test_a_descriptor_that_is_nobodys_is_a_bad_one_as_in_cpython(task):
    assert task(None, entry="main:closed") == {("OSError", "EBADF")}


def test_misuse_is_told_as_cpython_tells_it(task):
    assert task(None, entry="main:misused") == [
        False,
        "bool is used as a file descriptor",
        "'str' object cannot be interpreted as an integer or float",
    ]


def test_what_is_not_granted_is_not_accessible(task):
    assert task(None, entry="main:accessible") == (False, None, False)


def test_replaced_functions_have_the_signatures_of_the_originals(task):
    found, is_in_its_module, classes = task(None, entry="main:signatures")
    assert found == [
        str(inspect.signature(function))
        for function in (
            input,
            os.fork,
            os.kill,
            threading.stack_size,
            threading.Lock,
            time.sleep,
            threading.Lock().__exit__,
            sys.__breakpointhook__,
            io.FileIO.close,
            io.FileIO._isatty_open_only,
        )
    ]
    assert is_in_its_module
    assert classes == []  # the module's __loader__ is none


def test_variables_of_frames_can_be_read(task):
    assert task(1, entry="main:frames") == (2, 1, ["found"], 2, True)


def test_a_task_writes_the_variables_of_its_own_functions(task):
    *values, refused, closed, found = task(None, entry="main:writes")
    assert values == [1, 2, 3, 4, 5, [6, 6, 7]]
    assert "local variables" in refused
    assert (closed, found) == (8, 9)


def test_what_a_variable_held_outlives_a_write_while_it_is_in_use(task):
    assert task(None, entry="main:borrowed") == (True, None)


def test_the_host_can_still_write_variables_of_frames(task):
    assert task("frame_local")[0] == "PermissionDenied"

    def other():
        sys._getframe(1).f_locals["value"] = 2

    value = 1
    other()
    seen = sys._getframe().f_locals
    seen |= {"more": 3}
    seen.update({"most": 4})
    assert (value, seen["more"], seen.pop("most")) == (2, 3, 4)


def test_classes_lead_to_no_original(task):
    assert task(None, entry="main:rooted") == []


def test_functions_lead_to_no_original(task):
    assert set(task(None, entry="main:reach")) <= {"module", "str"}


def test_the_process_is_as_before(task):
    before = os.getcwd(), os.umask(0o77), signal.getsignal(signal.SIGINT), time.tzname, dict(os.environ)
    os.umask(before[1])
    for name in ("chdir", "umask", "signal_handler", "close_stdout", "locale"):
        task(name)
    pid, names, folder = task(None, entry="main:shared")
    assert (pid, folder) == (os.getpid(), "/") and names == []
    after = os.getcwd(), os.umask(0o77), signal.getsignal(signal.SIGINT), time.tzname, dict(os.environ)
    os.umask(after[1])
    assert before == after
    os.fstat(1)
    assert not os.path.exists("/tmp/made-by-a-guest")


def test_the_host_can_still_trace_and_jump(task):
    assert task("jump")[0] == "PermissionDenied"
    reached = []

    def jumps():
        reached.append("first")
        reached.append("skipped")
        reached.append("last")

    skipped = jumps.__code__.co_firstlineno + 2

    def tracer(frame, event, argument):
        if frame.f_code is jumps.__code__ and frame.f_lineno == skipped:
            frame.f_lineno = skipped + 1
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        jumps()
    finally:
        sys.settrace(before)
    assert reached == ["first", "last"]
