"""Records what a VM can't make by itself: the texts that are given to `compile`, `exec` and `eval`, those that are
parsed, the syntax trees that are compiled, and the modules whose sources are read by `inspect`. recording.py runs it in
a separate process; a recorded program (vmhost/recording_executor.py) calls `listen` in its own.

    python recorder.py REQUEST OUT

Texts from the import system, `runpy` and traceback printing are left out: they are source files. So are those of named
tuples and dataclasses, and expressions which the standard library parses: a VM has other ways.

Imports succeed and fail as in a VM: code below `roots` gets only the standard library and vmhost of this Python's
environment, without the modules that a VM lacks.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import runpy
import sys
import traceback
from types import CodeType

_FUTURES = 0x1FE0000
_OPTIMIZED = ast.PyCF_OPTIMIZED_AST & ~ast.PyCF_ONLY_AST
_SOURCE_FILES = {"runpy", "importlib._bootstrap", "importlib._bootstrap_external", "linecache", "traceback", "tokenize"}
_LEFT_OUT = _SOURCE_FILES | {"collections", "dataclasses"}
_PARSE_EXPRESSIONS = {"ast", "inspect", "annotationlib"}
_IMPORTS = ("<frozen importlib", importlib.__file__, __file__)  # frames of these files are skipped to find the importer
_getframe = sys._getframe  # bound now: tests of packages remove it
_noted = {}


def _note(mode, flags, source, caller):
    """Records a text or a tree; `flags` includes those of the caller's code where it inherits them."""
    if caller.f_globals.get("__name__") in _LEFT_OUT:
        return
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = bytes(source).decode("utf-8", "replace")
    if isinstance(source, ast.AST):
        with contextlib.suppress(RecursionError, ValueError):
            _noted[f"tree {mode}", flags & _FUTURES, _packed(source)] = None
    elif isinstance(source, str):
        _noted[mode, flags & (_FUTURES | ast.PyCF_TYPE_COMMENTS), source] = None


def _listening(name):
    original = getattr(builtins, name)

    @functools.wraps(original)
    def listening(source, *args, **kwargs):
        caller = _getframe(1)
        if not isinstance(source, CodeType):
            source = source.lstrip(" \t") if name == "eval" and isinstance(source, str) else source
            futures = caller.f_code.co_flags & _FUTURES
            _note(name, futures, source, caller)
            source = _compile(source, "<string>", name, futures, True)
        if not args and not {"globals", "locals"} & kwargs.keys():
            names = caller.f_locals  # in a function: a copy for exec
            args = caller.f_globals, names if isinstance(names, dict) else dict(names)
        return original(source, *args, **kwargs)

    return listening


def _listening_compile(source, filename, mode, flags=0, dont_inherit=False, optimize=-1, **others):
    caller = _getframe(1)
    flags |= 0 if dont_inherit else caller.f_code.co_flags & _FUTURES
    made = _compile(source, filename, mode, flags, True, optimize, **others)
    if not flags & ast.PyCF_ONLY_AST:
        _note(mode, flags, source, caller)
    elif not flags & _OPTIMIZED and not isinstance(source, ast.AST):
        caller = caller.f_back if caller.f_globals.get("__name__") == "ast" else caller  # `ast.parse`
        if caller.f_globals.get("__name__") not in _PARSE_EXPRESSIONS:
            _note(f"parse {mode}", flags, source, caller)
    return made


def _listening_findsource(object):
    lines, number = _findsource(object)
    module = object if inspect.ismodule(object) else inspect.getmodule(object)
    file = inspect.getsourcefile(object) or inspect.getfile(object)
    if module is not None and inspect.getsourcefile(module) == file:
        _noted["source", 0, module.__name__] = None
    return lines, number


class _Given:
    """Finds the modules whose sources are given: [name, text (bytes as latin-1), path, whether it is a package]."""

    def __init__(self, sources):
        self._sources = {name: others for name, *others in sources}

    def find_spec(self, name, path=None, target=None):
        if name in self._sources:
            _, file, is_package = self._sources[name]
            return importlib.util.spec_from_loader(name, self, origin=file, is_package=is_package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        text, file, _ = self._sources[module.__name__]
        module.__file__ = file
        _exec(_compile(text.encode("latin-1"), file, "exec", dont_inherit=True), module.__dict__)


class _ImportGuard:
    """The imports refused to code below `roots`: the modules `absent`, {name: reason}, and whatever else is
    installed; but for those at the places `replaced`, {path: lines}."""

    def __init__(self, roots, absent, outside, replaced):
        self._absent, self._outside, self._replaced = absent, outside, replaced
        self._let = set()  # top-level names of what was imported at these places
        self._known = {*sys.stdlib_module_names, "vmhost", "__main__", "__mp_main__"}
        self._below = tuple(os.path.join(root, "") for root in roots)
        self._others = frozenset(sys.path) - set(roots)  # installed packages; a program may add its own folders

    def install(self):
        """Refuses from now on."""
        self._import = builtins.__import__
        builtins.__import__ = self._import_within
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        """For imports by name (`importlib.import_module`), and those inside packages."""
        frame = _getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_IMPORTS):
            frame = frame.f_back
        if frame is not None and self._is_within(frame):
            self._refuse(name)

    def _import_within(self, name, globals=None, locals=None, fromlist=(), level=0):
        if self._is_within(_getframe(1)):
            within = globals or {}
            package = within.get("__package__") or within.get("__name__", "").rpartition(".")[0]
            whole = importlib.util.resolve_name("." * level + name, package) if level else name
            self._refuse(whole)
            for inner in fromlist or ():
                if f"{whole}.{inner}" in self._absent:
                    self._refuse(f"{whole}.{inner}")
        elif self._is_replaced(_getframe(1)):
            self._let.add(name.partition(".")[0])
        return self._import(name, globals, locals, fromlist, level)

    def _is_within(self, frame):
        file = frame.f_code.co_filename
        return file.startswith(self._below) and file != self._outside and not self._is_replaced(frame)

    def _is_replaced(self, frame):
        return frame.f_lineno in self._replaced.get(frame.f_code.co_filename, ())

    def _refuse(self, name):
        parts = name.split(".")
        if parts[0] in self._let and parts[-1].startswith("_"):
            return  # what was let in imports its parts in C, as ctypes does: no frame of its own shows
        reason = next((self._absent[each] for each in _prefixes(parts) if each in self._absent), None)
        if reason is None and not self._is_there(parts[0]):
            reason = "it is in this environment, but not among what the program requires"
        if reason is not None:
            raise ModuleNotFoundError(f"No module named {name!r}: {reason}", name=name)

    def _is_there(self, top):
        if top not in self._known:
            folders = [folder for folder in sys.path if folder not in self._others]
            if importlib.machinery.PathFinder.find_spec(top, folders) is None:
                return False
            self._known.add(top)
        return True


def _prefixes(parts):
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def main(request, out):
    """Imports the modules, runs the script, writes the texts and the entry module's error."""
    with open(request, encoding="utf-8") as file:
        asked = json.load(file)
    entry, script = asked["entry"], asked["script"]
    sys.path[:] = [*sys.path[1:], asked["library"]]  # not the folder of this file
    importlib.import_module("vmhost")  # now, from the library: packages may contain the same name
    add_folders(asked["roots"])
    listen()
    sys.meta_path.insert(0, _Given(asked["sources"]))
    _ImportGuard(asked["roots"], asked["absent"], script, asked["replaced"]).install()
    problem = None
    try:
        if os.path.isabs(entry):
            runpy.run_path(entry, run_name="__mp_main__")
        else:
            importlib.import_module(entry)
    except BaseException as error:
        if script or isinstance(error, KeyboardInterrupt):
            raise
        problem = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    for name in asked["modules"]:
        try:
            importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue  # as in a VM: the program does without it, or fails
    if script:
        sys.argv = [script]
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
    texts = [{"mode": mode, "futures": futures, "text": text} for mode, futures, text in noted()]
    with open(out, "w", encoding="utf-8", errors="surrogatepass") as file:
        json.dump({"texts": texts, "problem": problem}, file)


def add_folders(folders):
    """From now on, modules are also found in `folders`: after the standard library, before installed packages."""
    library = os.path.dirname(os.__file__)
    last = max((at for at, path in enumerate(sys.path) if path in (library, f"{library}/lib-dynload")), default=-1)
    sys.path[last + 1 : last + 1] = folders


def listen():
    """Records in this process from now on."""
    global _packed
    from vmhost.bytecode.trees import packed as _packed

    inspect.findsource = _listening_findsource
    builtins.compile, builtins.exec, builtins.eval = _listening_compile, _listening("exec"), _listening("eval")


def noted():
    """What was recorded so far: a list of (mode, flags, text), as in Recorded's file."""
    return list(_noted)


_compile, _exec, _findsource = builtins.compile, builtins.exec, inspect.findsource
if __name__ == "__main__":
    main(*sys.argv[1:])
