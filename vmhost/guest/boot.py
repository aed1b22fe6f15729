"""The start of a VM: importer, streams and system module for one task, and the functions that the C core calls.

Runs once per VM, before the seal is armed, in well under a millisecond: so it imports nothing that the interpreter has
not already loaded. Nothing here is secret from the task: the C core (gates, importer, audit hook) enforces the rules.
"""

import _frozen_importlib
import sys
from _frozen_importlib import ModuleSpec

_io = sys.modules["_io"]
_builtins = sys.modules["builtins"]
_getframe = sys._getframe  # saved: tests of packages remove it
_native = None
_COROUTINE = 0x80
_ModuleType = type(sys)
_MODULE, _PACKAGE, _BUILTIN, _DYNAMIC = range(4)


def breathe():
    """Makes the interpreter run its pending calls, and raises what they injected. Called by the waits in C."""
    for _ in (0, 1):
        pass


_CodeType = type(breathe.__code__)


def enter(run):
    """The core runs the second phase of native modules in a frame of this code, with its own globals."""
    run()


class Importer:
    """The only finder and loader of a VM: modules of the task's bundle, of the standard library's, and native ones."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        kind = _native.find(name)
        if kind is None:
            if name.startswith("_sysconfigdata_"):
                return ModuleSpec(name, _importer, origin="empty")
            kind, reason = _fetched(name)
        if kind is None:
            # importlib.util.find_spec, which only asks whether it exists, gets None
            if _getframe(2).f_code is _FINDS:
                _raise_if_known_absent(name, _getframe(3), reason)
            return None
        if kind >= _BUILTIN:
            return ModuleSpec(name, _importer, origin="built-in" if kind == _BUILTIN else "native")
        return ModuleSpec(name, _importer, origin="bundle", is_package=kind == _PACKAGE)

    @staticmethod
    def create_module(spec):
        if spec.origin in ("bundle", "empty"):
            return None
        module = _with_deferred_traceback() if spec.name == "_asyncio" else _native.create(spec.name)
        if spec.name == "select":
            module.poll = staticmethod(_poll)  # selectors stores it in a class, where it must not bind
        return module

    @staticmethod
    def exec_module(module):
        spec = module.__spec__
        if spec.origin == "empty":
            module.build_time_vars = {
                "TZPATH": "/usr/share/zoneinfo:/usr/lib/zoneinfo:/etc/zoneinfo",
                "Py_DEBUG": 0,
                "Py_GIL_DISABLED": 0,
                "WITH_DOC_STRINGS": int(dict.__doc__ is not None),
            }
            return
        if spec.origin != "bundle":
            return  # already executed by create_module
        name = spec.name
        code = _native.code(name)
        module.__file__ = code.co_filename
        if spec.submodule_search_locations is not None and not module.__path__:
            module.__path__.append(code.co_filename.rpartition("/")[0])
        exec(code, module.__dict__)
        after = _AFTER.get(name)
        if after is not None:
            after(module)

    @staticmethod
    def get_code(name):
        return _native.code(name)

    @staticmethod
    def get_source(name):
        """The module's source if it is among the bundle's files; otherwise None."""
        found = _native.find(name)
        if found not in (_MODULE, _PACKAGE):
            return None
        data = _native.file(name.replace(".", "/") + ("/__init__.py" if found == _PACKAGE else ".py"))
        return None if data is None else _io.TextIOWrapper(_io.BytesIO(data), "utf-8").read()

    @staticmethod
    def get_data(path):
        from vmhost.guest.files import read_bytes

        return read_bytes(path)

    @staticmethod
    def is_package(name):
        return _native.find(name) == _PACKAGE

    @staticmethod
    def iter_modules(prefix=""):
        return _modules_in("", prefix)

    @staticmethod
    def find_distributions(context):
        """For importlib.metadata: the packages in the bundle."""
        from vmhost.guest.packages import distributions

        return distributions(context.name)

    @staticmethod
    def get_resource_reader(name):
        from vmhost.guest.files import BundleReader

        package = name if _native.find(name) == _PACKAGE else name.rpartition(".")[0]
        return BundleReader(package.replace(".", "/"))


class PackageFolder:
    """pkgutil's finder for an entry of a package's __path__: "name@version/package", or the same as absolute path."""

    def __init__(self, path):
        parts = [part for part in path.split("/") if part] if isinstance(path, str) else [""]
        if parts and "@" in parts[0]:
            del parts[0]
        self._package = ".".join(parts)
        if parts and _native.find(self._package) != _PACKAGE:
            raise ImportError("not a folder of a bundle's modules", path=path)

    def iter_modules(self, prefix=""):
        return _modules_in(self._package, prefix)

    @staticmethod
    def find_spec(name, target=None):
        return _importer.find_spec(name)


def _modules_in(package, prefix):
    return [(prefix + name, is_package) for name, is_package in sorted(_native.modules(package).items())]


def _fetched(name):
    """Has the host of an executor add the module of a package that it left out (`Closure.deferred`): (kind, None), or
    (None, the reason)."""
    from vmhost.guest.texts import digest

    if _native.text(digest("deferred", name)) is None:
        return None, None
    _, reason = _native.host_call("later", name)
    return _native.find(name), reason and reason.removeprefix(f"import {name}: ")


def _code_in(space):
    """The code of the functions of a namespace, of the methods of its classes, and the code within it."""
    found = []
    for value in space.values():
        if type(value) is type:
            found += _code_in(vars(value))
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        inner = [] if code is None else [code]
        for code in inner:
            inner += (constant for constant in code.co_consts if type(constant) is type(code))
        found += inner
    return found


IMPORT_CODE = (*_code_in(vars(_frozen_importlib)), *_code_in(vars(Importer)))  # code that locks imports: compat.c
_importer = Importer()  # an instance: code that lists the classes of a module must not find its __loader__


_FINDS = _frozen_importlib._find_and_load_unlocked.__code__
_TAKES_NAMES = _frozen_importlib._handle_fromlist.__code__


def _raise_if_known_absent(name, frame, reason=None):
    """Raises ModuleNotFoundError with the reason, if there is one or the cloud compiler recorded one. For `from package
    import name` it is an ImportError: the import system would turn the other into one without the reason."""
    reason = reason or _reason_of_absence(name)
    if reason is not None:
        for _ in range(3):  # past the functions of the import system between these two
            if frame is not None and frame.f_code is _TAKES_NAMES:
                raise ImportError(f"cannot import name {name.rpartition('.')[2]!r}: {reason}", name=name)
            frame = frame and frame.f_back
        raise ModuleNotFoundError(f"No module named {name!r}: {reason}", name=name)


def _reason_of_absence(name):
    from vmhost.guest.texts import digest

    code = _native.text(digest("absent", name))
    if code is not None:
        return eval(code)
    for group in (name.partition(".")[0] + ".*", "*"):  # of many modules: the reason, and their names
        code = _native.text(digest("absent", group))
        if code is not None:
            reason, names = eval(code)
            if name in names:
                return reason
    return None


def _with_deferred_traceback():
    """Creates `_asyncio` without importing traceback (and so contextlib, linecache, …), which it uses only in debug
    mode; and first asyncio, which imports `_asyncio`."""
    from vmhost.guest.deferred import traceback

    modules = sys.modules
    there = modules.setdefault("traceback", traceback)
    try:
        if "asyncio.events" not in modules:
            __import__("asyncio.events")
            if "_asyncio" in modules:
                return modules["_asyncio"]
        return _native.create("_asyncio")
    finally:
        if there is traceback and modules.get("traceback") is traceback:
            del modules["traceback"]


class LogStream(_io._TextIOBase):
    """sys.stdout and sys.stderr: whole lines go to the host's logger, an unfinished one when the VM ends."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True

    def __init__(self, name, level):
        self.name = name
        self.mode = "w"
        self._level = level
        self._rest = ""

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._rest += text
        if "\n" in text:
            *lines, self._rest = self._rest.split("\n")
            for line in lines:
                _native.log(self._level, line)
        elif len(self._rest) > 8192:
            self.finish()
        return len(text)

    def finish(self):
        """Logs the unfinished line."""
        rest, self._rest = self._rest, ""
        if rest:
            _native.log(self._level, rest)

    def writable(self):
        return True

    def isatty(self):
        return False

    def flush(self):
        pass

    def close(self):
        pass

    def reconfigure(self, **options):
        pass

    @property
    def buffer(self):
        return _Bytes(self)


class _Bytes(_io._BufferedIOBase):
    """`sys.stdout.buffer`: bytes are decoded as UTF-8."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, data):
        data = bytes(data)
        self._stream.write(data.decode("utf-8", "backslashreplace"))
        return len(data)

    def writable(self):
        return True

    def flush(self):
        pass

    def close(self):
        pass


def _poll():
    """Returns a polling object, which supports registering and unregistering file descriptors, and then polling them
    for I/O events."""
    from vmhost.guest.polling import Poll

    return Poll()


def _install_texts(module):
    module.install(_native.text, _native)


def _compile(source, filename, mode, flags=0, dont_inherit=False, optimize=-1, *, _feature_version=-1):
    """Compile source into a code object that can be executed by exec() or eval(): the code of a text that the cloud
    compiler has seen."""
    from vmhost.guest.texts import compiled

    inherited = 0 if dont_inherit else _getframe(1).f_code.co_flags
    return compiled(source, mode, flags | inherited, filename)


_compile.__name__ = _compile.__qualname__ = "compile"
_compile.__module__ = "builtins"


def _install_logging(module):
    from vmhost.guest.logging_handler import HostHandler

    module.root.addHandler(HostHandler())
    module.root.setLevel(module.INFO)


def _install_pools(module):
    """Programs name pools of processes and interpreters where they do not use them, such as in a default."""
    find = module.__getattr__

    def __getattr__(name):
        if name not in ("ProcessPoolExecutor", "InterpreterPoolExecutor"):
            return find(name)
        from vmhost.guest.gaps import Gap

        return Gap(
            module.__name__,
            f"concurrent.futures.{name}: a VM starts no processes and no interpreters; run the work in the call"
            " itself, or start the pool on the host",
        )

    module.__getattr__ = __getattr__


def _install_path_importers(module):
    """Finishes the path-based importers if a VM imports them after all: they find nothing, but code may inspect
    them."""
    module._set_bootstrap_module(_frozen_importlib)
    _frozen_importlib._bootstrap_external = module


_AFTER = {
    "_frozen_importlib_external": _install_path_importers,
    "vmhost.guest.texts": _install_texts,
    "logging": _install_logging,
    "concurrent.futures": _install_pools,
}


# --- functions that the C core calls

_set_up = []  # modules whose setup() has run
_failed = {}  # module name -> the exception of its setup(), raised again by every later call in this VM
_runner = None
_shown = sys.displayhook  # writes to stdout


def entry_for(name):
    """The callable for an entry point "module:function"; its module is imported, and its setup() run once."""
    module_name, _, path = name.partition(":")
    __import__(module_name)
    module = sys.modules[module_name]
    function = module
    for part in path.split("."):
        function = getattr(function, part)
    if not callable(function):
        raise TypeError(f"entry point {name} is {type(function).__name__}, expected a function")
    if module_name in _failed:
        error, traceback = _failed[module_name]
        raise error.with_traceback(traceback)
    if module not in _set_up:
        setup = getattr(module, "setup", None)
        try:
            if callable(setup):
                _settle(setup)
        except Exception as error:
            _failed[module_name] = error, error.__traceback__
            raise
        _set_up.append(module)
    return run_to_end(function) if is_async(function) else function


def is_async(function):
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    if type(code) is not _CodeType:  # of a class with an attribute of this name, a descriptor
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004 - as CPython looks it up
    return type(code) is _CodeType and bool(code.co_flags & _COROUTINE)


def run_to_end(function):
    """`function`, a coroutine function, as a plain one: each call runs to its end on the VM's single event loop."""

    def entry(*args, **kwargs):
        global _runner
        if _runner is None:
            from asyncio import Runner

            _runner = Runner()
        return _runner.run(function(*args, **kwargs))

    return entry


def _settle(function):
    (run_to_end(function) if is_async(function) else function)()


def report(error):
    """What the caller gets of an exception: plain values only, of bounded size. Never fails because of the task's own
    classes.

    "args" are None if they are not plain; "attributes" are those of a builtin exception, "state" holds those that were
    set on the exception, as far as they are plain, and "whole" says whether that is all.
    """
    kind = type(error)
    name = _text(kind, "__qualname__")
    builtin = vars(_builtins).get(name) is kind
    args = _plain_args(error)
    state, whole = _careful(({}, False), _plain_state, error)
    sent = {
        "type": name,
        "module": _text(kind, "__module__"),
        "message": _message(error),
        "builtin": builtin,
        "args": args,
        "attributes": _attributes(error) if builtin else {},
        "state": state,
        "whole": whole,
        "traceback": _careful("", _traceback_of, error),
        "notes": _notes(error),
        "chain": _careful([], _chain, error),
    }
    # Crosses as a value if it and its contents can; the core leaves it out if not. Only VMExecutors raise builtin ones.
    if not isinstance(error, _native.Stopped) and (
        not builtin or "vmhost.guest.executor" in sys.modules and (args is None or not whole)
    ):
        sent["error"] = error
    return sent


# Maximum numbers of characters: of a message, of a note, of all str and bytes among the arguments, of a traceback.
_MAX_MESSAGE_CHARS, _MAX_NOTE_CHARS, _MAX_ARGS_CHARS, _MAX_TRACEBACK_CHARS = 16384, 2048, 32768, 65536
_MAX_NOTES, _MAX_PARTS = 20, 100  # notes, and exceptions in one traceback
# BaseException's own attributes: a subclass may shadow these names.
_args_of, _dict_of, _cause_of, _context_of = (
    vars(BaseException)[name].__get__ for name in ("args", "__dict__", "__cause__", "__context__")
)
_traceback_of_error = vars(BaseException)["__traceback__"].__get__
_is_suppressed = vars(BaseException)["__suppress_context__"].__get__
_exceptions_of = vars(BaseExceptionGroup)["exceptions"].__get__


def _careful(otherwise, function, *args):
    """`function(*args)`, or `otherwise` if the task's code that it calls raises anything but a stop of the call."""
    try:
        return function(*args)
    except _native.Stopped:
        raise
    except BaseException:
        return otherwise


def _cut(text, max_chars):
    """`text`, a str of any class, as an exact str truncated to about `max_chars` characters."""
    length = str.__len__(text)
    if length > max_chars:
        return str.__getitem__(text, slice(max_chars)) + f"... ({length - max_chars} more characters)"
    return text if type(text) is str else str.__str__(text)


def _text(kind, name):
    value = _careful("?", getattr, kind, name, "?")
    return _cut(value, 500) if type(value) is str else "?"


def _message(error):
    text = _careful(None, str, error)
    return "<no message: str() of the exception failed>" if text is None else _cut(text, _MAX_MESSAGE_CHARS)


def _plain_args(error):
    args, left = _args_of(error), [_MAX_ARGS_CHARS]
    if len(args) > 100:
        return None
    plain = [_plain(value, left) for value in args]
    return None if _NOT_PLAIN in plain else plain


def _plain_state(error):
    """(plain attributes set on the exception, whether these are all)"""
    state, left, whole, plain = _dict_of(error), [_MAX_ARGS_CHARS], True, {}
    for name, value in list(state.items()):
        if type(name) is str and not name.startswith("__"):
            found = _plain(value, left) if len(name) <= 100 and len(plain) < 100 else _NOT_PLAIN
            if found is _NOT_PLAIN:
                whole = False
            else:
                plain[name] = found
    return plain, whole


class _NotPlain:
    __slots__ = ()


_NOT_PLAIN = _NotPlain()


def _plain(value, left):
    """`value` if it is plain, a text cut to `left[0]` characters, which it is taken from; or _NOT_PLAIN."""
    if type(value) in (str, bytes):
        if left[0] <= 0:
            return _NOT_PLAIN
        cut = _cut(value, left[0]) if type(value) is str else value[: left[0]]
        left[0] -= len(value)
        return cut
    if value is None or type(value) in (bool, float) or type(value) is int and value.bit_length() <= 256:
        return value
    return _NOT_PLAIN


def _attributes(error):
    """The attributes of a builtin exception besides its arguments, if plain."""
    names = ("filename", "filename2") if isinstance(error, OSError) else ("name", "path")
    found = {name: _careful(None, getattr, error, name, None) for name in names}
    return {
        name: value
        for name, value in found.items()
        if type(value) in (str, bytes)
        and len(value) <= _MAX_NOTE_CHARS
        or type(value) is int
        and value.bit_length() <= 64
    }


def _notes(error):
    notes = _careful(None, getattr, error, "__notes__", None)
    if type(notes) is not list:
        return []
    return [_cut(note, _MAX_NOTE_CHARS) for note in notes[:_MAX_NOTES] if type(note) is str]


def _next(error):
    """(relation, exception) of the cause or context of `error`, or None."""
    cause, context = _cause_of(error), _context_of(error)
    if cause is not None:
        return "cause", cause
    if context is not None and not _is_suppressed(error):
        return "context", context
    return None


def _chain(error):
    chain, seen = [], {id(error)}
    while (step := _next(error)) is not None and id(step[1]) not in seen and len(chain) < 20:
        relation, error = step
        seen.add(id(error))
        chain.append(
            {
                "relation": relation,
                "type": _text(type(error), "__qualname__"),
                "module": _text(type(error), "__module__"),
                "message": _cut(_message(error), _MAX_NOTE_CHARS),
            }
        )
    return chain


_BRIDGES = {
    "cause": "\nThe above exception was the direct cause of the following exception:\n\n",
    "context": "\nDuring handling of the above exception, another exception occurred:\n\n",
}


def _traceback_of(error):
    text = _format(error, set())
    if len(text) > _MAX_TRACEBACK_CHARS:  # the most recent exception is at the end
        begin, end = _MAX_TRACEBACK_CHARS // 8, _MAX_TRACEBACK_CHARS * 7 // 8
        text = f"{text[:begin]}\n... ({len(text) - begin - end} characters left out)\n{text[-end:]}"
    return text


def _format(error, seen, depth=0):
    """A traceback in CPython's format, without source lines (a VM has no source)."""
    seen.add(id(error))
    text = ""
    step = _next(error)
    if step is not None and id(step[1]) not in seen and len(seen) < 20:
        text = _format(step[1], seen, depth) + _BRIDGES[step[0]]
    frames = _frames(_traceback_of_error(error))
    if frames:
        text += "Traceback (most recent call last):\n" + frames
    kind = type(error)
    name, module = _text(kind, "__qualname__"), _text(kind, "__module__")
    if module not in ("builtins", "__main__"):
        name = f"{module}.{name}"
    message = _message(error)
    text += f"{name}: {message}\n" if message else f"{name}\n"
    for note in _notes(error):
        text += note + "\n"
    if isinstance(error, BaseExceptionGroup) and depth < 5:
        for number, part in enumerate(_exceptions_of(error)[:15], 1):
            if len(seen) >= _MAX_PARTS:
                break
            inner = _format(part, seen, depth + 1) if id(part) not in seen else "(shown above)\n"
            text += f"  +---------------- {number} ----------------\n"
            text += "".join(f"  | {line}\n" for line in inner.splitlines())
    return text


def _frames(traceback):
    # Like CPython, leave out the import system's own frames between an import and the imported code.
    lines, last, repeated = [], None, 0
    while traceback is not None and len(lines) < 1000:
        code = traceback.tb_frame.f_code
        if code is _EXEC_MODULE:
            while lines and lines[-1].startswith('  File "<frozen importlib._bootstrap>"'):
                lines.pop()
            last = None
        elif code.co_filename != _OWN_FILE:
            line = f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}\n'
            repeated = repeated + 1 if line == last else 0
            if repeated < 3:
                lines.append(line)
            elif repeated == 3:
                lines.append("  [the previous line repeats]\n")
            last = line
        traceback = traceback.tb_next
    if len(lines) > 60:
        lines[30:-30] = [f"  [{len(lines) - 60} more frames]\n"]
    return "".join(lines)


_OWN_FILE = report.__code__.co_filename
_EXEC_MODULE = Importer.exec_module.__code__


def finish():
    """Ends the task in this VM: teardown(), the event loop, threads, exit handlers, finalisers.

    An exception is logged, and the rest continues.
    """
    global _runner
    for module in reversed(_set_up):
        teardown = getattr(module, "teardown", None)
        if callable(teardown):
            _try(_settle, teardown)
    _set_up.clear()
    if _runner is not None:
        runner, _runner = _runner, None
        _try(runner.close)
    threading = sys.modules.get("threading")
    if threading is not None:
        _try(threading._shutdown)
    _try(sys.modules["_thread"]._shutdown)
    if "atexit" in sys.modules:
        _try(sys.modules["atexit"]._run_exitfuncs)
    _try(_drop_task_modules)
    for stream in _streams:
        stream.finish()


def _drop_task_modules():
    """Drops the task's objects, so that their finalisers run here, under a deadline, and not later."""
    library = _OWN_FILE.removesuffix("vmhost/guest/boot.py")
    names = [
        name
        for name, module in sys.modules.items()
        if type(module) is _ModuleType
        and getattr(module.__spec__, "loader", None) is _importer
        and module.__spec__.origin == "bundle"
        and not module.__file__.startswith(library)
    ]
    if names:
        import gc

        gc.collect()
        kept = (type, _ModuleType, type(_try), type(len))
        for name in names:
            values = sys.modules.pop(name).__dict__
            for key in reversed(list(values)):  # the newest first, as they may need older ones
                if not isinstance(values.get(key), kept):
                    values.pop(key, None)


def _try(function, *args):
    try:
        function(*args)
    except Exception as error:
        for line in _careful("an error of the task cannot be shown", _traceback_of, error).splitlines():
            _native.log(40, line)


_streams = ()
_recording = None


def pack(value):
    """Packs a value of a class that the wire does not know."""
    from vmhost.guest.codec import pack

    return pack(value)


def unpack(kind, detail, payload, in_key, entry):
    """The value that the host packed."""
    from vmhost.guest.codec import unpack

    return unpack(kind, detail, payload, in_key, entry)


def begin_recording(given):
    """Starts to record a call, or to replay a record: vmhost.guest.recording."""
    global _recording
    if _recording is None:  # few VMs record
        from vmhost.guest import recording as _recording
    _recording.begin(given)


def end_recording():
    """The record of the call."""
    return _recording.end()


def _generic(params):
    """What is a base of `class C[*Ts]`, as CPython's intrinsic makes it (Objects/typevarobject.c)."""
    import typing

    kinds = typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec
    if not all(type(one) in kinds for one in params):
        return None
    unpacked = tuple([typing.Unpack[one] if type(one) is typing.TypeVarTuple else one for one in params])
    return typing._GenericAlias(typing.Generic, unpacked)


def displayhook(value):
    """sys.displayhook, which code calls where it makes a class generic (isolation/cpython/compat.h)."""
    made = _generic(value) if type(value) is tuple and value else None
    return _shown(value) if made is None else made


def boot(native):
    """Turns this interpreter into a VM; sets in `native` the functions that the C core calls."""
    global _native, _streams
    _native = native
    modules = sys.modules
    modules["_vmhost"] = native
    modules[__name__].__spec__ = ModuleSpec(__name__, _importer, origin="bundle")
    _builtins.compile = _compile
    sys.meta_path[:] = [_importer]
    sys.path[:] = []
    sys.path_hooks[:] = [PackageFolder]
    sys.path_importer_cache.clear()
    modules.pop("zipimport", None)
    if "encodings" in modules:  # imported from the host's folder if file names are not in UTF-8
        modules["encodings"].__path__ = []
    sys.argv = [""]
    sys.orig_argv = []
    sys.executable = sys._base_executable = ""
    own_thread = modules["_thread"].get_ident()  # the main thread of this interpreter, not that of the process
    modules["_thread"]._get_main_thread_ident = lambda: own_thread
    _streams = LogStream("<stdout>", 20), LogStream("<stderr>", 30)
    sys.stdin = sys.__stdin__ = None
    sys.stdout, sys.stderr = _streams
    sys.__stdout__, sys.__stderr__ = _streams
    sys.displayhook = displayhook
    native.entry_for, native.report, native.finish = entry_for, report, finish
    native.begin_recording, native.end_recording = begin_recording, end_recording
    native.pack, native.unpack = pack, unpack
