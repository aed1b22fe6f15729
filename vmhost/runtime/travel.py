"""How a function of the running program gets into a VM: the name to find it by, and the bytecode of its module.

A function travels as a name, "module:path", and its module as bytecode, compiled here from the source that the running
program was imported from, together with the modules that it imports. Nothing is pickled, so a function that is only
reachable as an object (a closure, a bound method) cannot travel; CrossingError says what, where and why.
"""

import ast
import dis
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import types
import weakref
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from vmhost.bytecode.errors import BytecodeError, CompileError
from vmhost.bytecode.lookup import INSTALLED
from vmhost.bytecode.offered import REFUSED, REFUSED_NAMES, left_out, offered_modules
from vmhost.errors import CrossingError
from vmhost.runtime import program_packages
from vmhost.runtime.kept_luggage import Luggage, ModuleSource
from vmhost.runtime.luggage import later_luggage, luggage_of
from vmhost.runtime.working_folder import absolute
from vmhost.stdlib.policy import POLICY

# The name of the program's own module in a VM, so that its `if __name__ == "__main__":` does not run there.
MAIN = "__mp_main__"
# The name of a function that was typed in, and that no name leads to, in its sketch.
MADE = "vmhost_function"
_ERRORS_SHOWN = 5
_REPLACED = ("builtins", "select")  # their removed functions have substitutes in a VM
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)

_BRANCHES = frozenset((*dis.hasjump, dis.opmap["FOR_ITER"]))

_sketches = weakref.WeakKeyDictionary()  # function that was typed in -> (path, Sketch, ModuleSource)


class Unreachable(CrossingError):
    """A function that no name of its module leads to."""


def place_of(function):
    """(module name, attribute path) by which the running program finds `function`. CrossingError."""
    module, path = _claimed_place(function)
    home = sys.modules.get(module)
    if home is None:
        raise CrossingError(
            f"{shown(function)} cannot travel to a VM: it claims to be from module {module!r}, which is not imported"
        )
    bound = isinstance(function, types.MethodType) and not isinstance(function.__self__, type)
    if bound and module == "__main__" and is_typed_in(function.__func__):  # no sketch has a global for it
        raise Unreachable(f"{shown(function)} cannot travel to a VM: {why_unreachable(function, module, path)}")
    if _is_at(home, path, function):
        return module, path
    written_in = getattr(function, "__globals__", {}).get("__name__")  # another one for what copies a function's names
    if written_in != module and _is_at(sys.modules.get(written_in), path, function):
        return written_in, path
    for name, value in list(vars(home).items()):
        if value is function or isinstance(function, (types.MethodType, types.BuiltinMethodType)) and value == function:
            return module, name
    raise Unreachable(f"{shown(function)} cannot travel to a VM: {why_unreachable(function, module, path)}")


def _claimed_place(function):
    """Where `function` claims to be; for bound methods, where a global of the same name may refer to them."""
    if isinstance(function, functools.partial):
        raise TypeError("a partial has no module and name of its own")
    owner = getattr(function, "__self__", None)
    if isinstance(function, _DESCRIPTORS):
        owner = function.__objclass__
    if isinstance(owner, type):
        return owner.__module__, f"{owner.__qualname__}.{function.__name__}"
    if owner is not None and not isinstance(owner, types.ModuleType):
        return type(owner).__module__, function.__name__
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        raise CrossingError(
            f"{shown(function)} cannot travel to a VM: it is an object of class "
            f"{type(function).__qualname__}; functions travel by name: put the call into a function at "
            "the top of a module"
        )
    return module, path


def _is_at(home, path, function):
    found = home
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is function or isinstance(function, (types.MethodType, types.BuiltinMethodType)) and found == function


def why_unreachable(function, module=None, path=None):
    """Why no name leads to `function`, which claims to be at `path` of `module`."""
    if module is None:
        module, path = _claimed_place(function)
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        return (
            f"it is bound to an object of class {type(owner).__qualname__}, which stays on the host; pass what it "
            "needs as arguments to a function at the top of a module"
        )
    if path.endswith("<lambda>") and "<locals>" not in path:
        return f"a lambda has no name to find it by; bind it to a name at the top of {module}, or use def"
    if "<locals>" in path:
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        closes = f" and closes over {', '.join(names)}" if names else ""
        return (
            f"it was made inside {path.rpartition('.<locals>')[0]}(){closes}, where no VM can find it; define it "
            f"at the top of {module} and pass what it needs as arguments"
        )
    return (
        f"{module}.{path} is not this object any more (decorated, or defined again); submit what the module has "
        "under that name"
    )


def shown(function):
    path = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{path}{where}"


def compile_module(module_name, path, function):
    """The Luggage of the imported module `module_name`, which has `function` at `path`. CrossingError.

    The same module in the same state is compiled once in a process.
    """
    luggage = module_luggage(module_name, function, path)
    if luggage.modules:
        luggage = _refuse_gaps(luggage, function)
    return luggage


def module_luggage(module_name, function, path=""):
    """Like compile_module, for a module that `function` uses, whatever the module lacks in a VM."""
    if _is_the_vms_own(module_name, function):
        return Luggage(module_name, {}, {})
    if module_name == "__main__" and is_typed_in(function):
        source = _typed_in(function, path)
    else:
        source = _source_of(module_name, function)
        if module_name == "__main__":
            _refuse_guarded(source, path, function)
    try:
        packages = program_packages.locked()
    except BytecodeError as error:
        raise CrossingError(f"{shown(function)} cannot travel to a VM: {error}") from error
    roots = tuple(_roots(source.root, packages))
    try:
        return luggage_of(source, roots, packages)
    except BytecodeError as error:
        raise CrossingError(
            f"{shown(function)} cannot travel to a VM with its module {module_name}:\n{_first_lines(str(error))}"
        ) from error


def _refuse_guarded(source, path, function):
    """CrossingError if the first name of `path` is bound only under `if __name__ == "__main__":`."""
    name, guarded, free = path.partition(".")[0], {}, {}
    for statement in ast.parse(source.text).body:
        is_guard = isinstance(statement, ast.If) and ast.unparse(statement.test) in (
            "__name__ == '__main__'",
            "'__main__' == __name__",
        )
        for part in statement.body if is_guard else [statement]:
            _note_bound(part, guarded if is_guard else free)
        for part in statement.orelse if is_guard else []:
            _note_bound(part, free)
    code = getattr(function, "__code__", None)
    if code is not None and ("<lambda>" in path or "<locals>" in path):
        for used in code.co_names:
            if used in guarded and used not in free and used in vars(sys.modules["__main__"]):
                raise CrossingError(
                    f"{shown(function)} cannot travel to a VM: it uses {used}, which {source.path}:{guarded[used]}"
                    ' binds under `if __name__ == "__main__":`, which does not run in a VM; pass it as an argument'
                )
    if name in guarded and name not in free:
        raise CrossingError(
            f"{shown(function)} cannot travel to a VM: {source.path}:{guarded[name]}: {name} is bound under `if"
            ' __name__ == "__main__":`, which does not run in a VM; define it above, at the top of the file'
        )


def _note_bound(statement, lines):
    """Add the names that `statement` binds in its own scope to `lines`, with the line of the first binding."""
    pending = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            lines.setdefault(node.name, node.lineno)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                lines.setdefault(alias.asname or alias.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            lines.setdefault(node.id, node.lineno)
        elif not isinstance(node, ast.Lambda):
            pending += reversed(list(ast.iter_child_nodes(node)))


def _refuse_gaps(luggage, function):
    """The Luggage with the modules whose imports waited and that `function`, or what it uses of its module, uses.
    CrossingError if they use something that cannot be imported in a VM."""
    function = inspect.unwrap(function) if callable(function) else function
    later = luggage.later.get(luggage.name, {})
    home = sys.modules.get(function.__module__) if hasattr(function, "__code__") else None
    if home is not None and (luggage.gaps or later):
        for name, code_name in _reached(function.__code__, home):
            if name in luggage.gaps:
                raise CrossingError(
                    f"{shown(function)} cannot travel to a VM: {code_name} uses {name}:\n{luggage.gaps[name]}"
                )
            for module in later[name].modules if name in later else ():
                try:
                    more = later_luggage(module, luggage.roots)
                except BytecodeError as error:
                    raise CrossingError(
                        f"{shown(function)} cannot travel to a VM: {code_name} uses {name}:\n"
                        f"{later[name].where}: {reason_of(error)}"
                    ) from error
                luggage = replace(
                    luggage,
                    modules={**more.modules, **luggage.modules},
                    texts={**more.texts, **luggage.texts},
                    files={**more.files, **luggage.files},
                    absent={**more.absent, **luggage.absent},
                    deferred=more.deferred | luggage.deferred,
                )
    _refuse_first_imports(luggage, function)
    return luggage


def reason_of(error):
    """The first message of a BytecodeError, without its place."""
    return error.diagnostics[0].message if isinstance(error, CompileError) else str(error)


def _reached(code, home):
    """(name, the words for the code that uses it) of each global name that `code` uses, or what it uses of the module
    `home`."""
    waiting, seen = [(code, "it")], set()
    while waiting:
        code, code_name = waiting.pop()
        waiting += [(constant, code_name) for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
            yield name, code_name
            value = vars(home).get(name)
            if name not in seen and getattr(value, "__module__", None) == home.__name__:
                seen.add(name)
                members = vars(value).values() if isinstance(value, type) else [value]
                codes = [getattr(getattr(member, "__func__", member), "__code__", None) for member in members]
                waiting += [(inner, f"it uses {name}, which") for inner in codes if inner is not None]


def _refuse_first_imports(luggage, function):
    """CrossingError if `function` imports a module that a VM does not have, before any branch or exception handler."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return  # a coroutine is inside an exception handler from its start
    level, handled = 0, [(entry.start, entry.end) for entry in dis.Bytecode(code).exception_entries]
    for step in dis.get_instructions(code):
        if (
            step.opcode in _BRANCHES
            or step.opname == "RETURN_VALUE"
            or any(start <= step.offset < end for start, end in handled)
        ):
            return
        if step.opname == "LOAD_SMALL_INT":
            level = step.argval  # the level operand of an IMPORT_NAME
        elif (
            step.opname == "IMPORT_NAME"
            and level == 0
            and step.argval not in luggage.modules
            and step.argval not in offered_modules()
        ):
            reason = luggage.absent.get(step.argval)
            if reason is None and step.argval in luggage.deferred:
                try:
                    later_luggage(step.argval, luggage.roots)
                    return
                except BytecodeError as error:
                    reason = reason_of(error).removeprefix(f"import {step.argval}: ")
            reason = reason or (
                "a VM does not have it: native packages and what is not installed as pure Python stay"
                " on the host; import it where it is not called, or use vmhost.engine.numpy for arrays"
            )
            raise CrossingError(
                f"{shown(function)} cannot travel to a VM: {code.co_filename}:{step.positions.lineno}: import"
                f" {step.argval}: {reason}"
            )


def _is_the_vms_own(name, function):
    """Whether every VM has the module. CrossingError for one of the standard library, or of vmhost, that no VM has."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and not _is_of_the_library(sys.modules.get(top)):
        raise CrossingError(
            f"{shown(function)} cannot travel to a VM: its module {name} "
            f"({sys.modules[top].__file__}) has the name of one of the standard library; rename it"
        )
    if top not in sys.stdlib_module_names and top != "vmhost":
        return False
    if name in offered_modules() and name not in REFUSED:
        _refuse_removed(function)
        return True
    if top == "vmhost":
        raise CrossingError(f"{shown(function)} cannot travel to a VM: vmhost's own modules stay on the host")
    if top in sys.stdlib_module_names:
        reason = REFUSED.get(name) or left_out(name) or "it is not among the modules that VMs are given"
        raise CrossingError(f"{shown(function)} cannot travel to a VM: a VM does not have the module {name}: {reason}")
    return False


def _refuse_removed(function):
    """CrossingError for a function that VMs remove from a native module, or that only calls one."""
    owner, module, name = (getattr(function, part, None) for part in ("__self__", "__module__", "__name__"))
    if isinstance(owner, type) or not isinstance(module, str):
        return
    known_as = f"{'os' if module == 'posix' else module.removeprefix('_')}.{name}"
    rules = None if module in _REPLACED or isinstance(function, type) else POLICY.get(module)
    lacking = rules is not None and rules.verdict(name) not in ("allowed", "gated")
    if lacking or known_as in REFUSED_NAMES:
        reason = REFUSED_NAMES.get(known_as, "it is none of the names that VMs are given")
        raise CrossingError(f"{shown(function)} cannot travel to a VM: a VM does not have {known_as}: {reason}")


def _is_of_the_library(module):
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    path = os.path.realpath(file)
    inside = path.startswith(tuple(folder + os.sep for folder in _library()))
    return inside and not {"site-packages", "dist-packages"} & set(Path(path).parts)


@functools.cache
def _library():
    """The folders of the standard library; native modules are in a subfolder of one of them."""
    return frozenset(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _source_of(name, function):
    module = sys.modules[name]
    spec = getattr(module, "__spec__", None)
    known_as = spec.name if spec is not None else name
    target = MAIN if known_as == "__main__" else known_as
    path = getattr(module, "__file__", None)
    is_package = hasattr(module, "__path__")
    text, reason = None, "it has none"
    if path is not None and not path.endswith((".pyc", *EXTENSION_SUFFIXES)):
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            reason = str(error)
    if text is None and hasattr(getattr(spec, "loader", None), "get_source"):
        try:
            text = (spec.loader.get_source(known_as) or "").encode() or None  # such as from a zip file
        except (ImportError, OSError, SyntaxError) as error:
            reason = str(error)
    if text is None:
        raise CrossingError(
            f"{shown(function)} cannot travel to a VM: VMs run what is compiled from Python source, "
            f"and that of its module {name} is not available: {reason}"
        )
    folder = Path(absolute(path or ".")).parent
    for _ in range(target.count(".") + is_package):
        folder = folder.parent
    return ModuleSource(target, text, path or f"<{name}>", is_package, str(folder))


def is_typed_in(function):
    """Whether it was typed at a prompt, in a cell or command, not read from a file of the program's own module."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(inspect.unwrap(function) if callable(function) else function, "__module__", None) != "__main__":
        return False
    if file is None or file.startswith("<"):
        return getattr(main, "__spec__", None) is None
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and code.co_filename != file and not os.path.exists(code.co_filename)


def _typed_in(function, path):
    """The ModuleSource with the function at `path`, or as MADE without one, and all that it uses, as they are now."""
    known = _sketches.get(function)
    if known is None or known[0] != path or not known[1].is_current():
        from vmhost.runtime.interactive import Sketch

        sketch = Sketch(sys.modules["__main__"])
        if path is None:
            text, shown_as = sketch.of_function(function, MADE)
        else:
            text, shown_as = sketch.of_global(path.partition(".")[0])
        text = text.encode()
        name = f"{MAIN}_{hashlib.sha256(text).hexdigest()[:12]}"  # other source gets another name
        _sketches[function] = known = path, sketch, ModuleSource(name, text, shown_as, False, absolute())
    return known[2]


def _roots(own, packages):
    """The folders to search for the modules that a travelling module imports, first match first. The folder `packages`,
    if any, replaces everything that is installed."""
    yield own
    if packages is not None:
        yield str(packages)
    for entry in dict.fromkeys(sys.path):
        folder = os.path.realpath(absolute(entry or "."))
        if packages is not None and Path(folder).name in INSTALLED:
            continue
        if folder not in _library() and folder != own and os.path.isdir(folder) and Path(folder).name != "lib-dynload":
            yield folder


def _first_lines(text):
    lines = text.splitlines()
    more = len(lines) - _ERRORS_SHOWN
    return "\n".join(lines[:_ERRORS_SHOWN]) + (f"\n... and {more} more" if more > 0 else "")
