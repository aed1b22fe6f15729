"""The modules of an image: those that its bundles, the guest runtime and the host import, directly or indirectly.

Read off the code, since neither bundles nor the standard-library bundle hold sources. Imports inside functions count,
too, as a task may get there; SELDOM names those that do not. A module that is wanted and not there says so when it is
imported, with the command that adds it."""

import dis
import functools
import marshal
from collections import defaultdict

from vmhost.bytecode.format import Manifest, Module, read_bundle, write_bundle
from vmhost.bytecode.offered import NATIVE_MODULES
from vmhost.image import ImageError
from vmhost.image.absent_modules import stand_ins
from vmhost.image.line_tables import without_columns

# For a task without bundles: the modules that the documentation promises in every VM, as far as an image can have them.
DEFAULT = tuple(
    """
    asyncio bisect collections concurrent.futures contextlib csv dataclasses datetime decimal enum fractions functools
    hashlib heapq
    itertools json logging math queue random re statistics string struct threading time typing urllib.parse zlib
""".split()
)
# Imported by name by the C core and boot.py.
GUEST = tuple(
    """
    vmhost.guest vmhost.guest.assembler vmhost.guest.boot vmhost.guest.deferred vmhost.guest.expressions
    vmhost.guest.files vmhost.guest.inert
    vmhost.guest.classes vmhost.guest.codec vmhost.guest.kinds
    vmhost.guest.logging_handler vmhost.guest.polling vmhost.guest.signatures vmhost.guest.texts
    encodings encodings.utf_8 encodings.latin_1 encodings.ascii importlib._bootstrap_external
""".split()
)
# Imported by functions that a task on a device seldom calls, or replaced by a linked native module. Included if a
# bundle imports them itself, or with --module.
SELDOM = frozenset(
    """
    _ast_unparse _py_abc _pydatetime _pyio _pylong argparse bz2 calendar compression compression.zstd difflib dis
    doctest email
    ftplib getopt gettext http.client http.cookiejar http.server importlib.metadata importlib.resources
    importlib.resources.abc
    importlib.resources._functional inspect lzma mimetypes netrc ntpath optparse pdb pickle pprint pydoc shutil
    socketserver ssl
    subprocess tarfile tempfile tokenize tracemalloc unittest urllib.request xml zipfile zipfile._path zipimport
    asyncio.sslproto asyncio.subprocess asyncio.base_subprocess asyncio.proactor_events pyexpat unicodedata
""".split()
)
# Python forms of native modules that are always linked in.
REPLACED = frozenset(("_pydatetime", "_py_abc", "_pyio"))
# Native modules with a Python form, which their importers use if the static library lacks the native one.
DISPENSABLE = frozenset("_ast _asyncio _decimal _hashlib _hmac _tokenize _uuid _zoneinfo".split())
# Imports by native modules, which are not visible in bytecode.
OF_NATIVE = {
    "_datetime": ("_strptime",),
    "_pickle": ("copyreg", "_compat_pickle"),
    "_socket": ("encodings.idna",),
    "_sqlite3": ("functools", "sqlite3.dump"),
}
# Modules that CPython loads at start, whatever is imported.
ALWAYS_NATIVE = frozenset(
    """
    _abc _codecs _collections _datetime _contextvars _functools _imp _io _locale _operator _signal _sre _stat _string
    _thread _types _typing
    _warnings _weakref atexit builtins errno fcntl gc itertools marshal posix sys time _sha2
""".split()
)

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


class Library:
    """The standard-library bundle of this installation, with the imports found in its code."""

    def __init__(self, path):
        self.bundle = read_bundle(path, allow_unsigned=True)
        self.modules = {**self.bundle.modules, **stand_ins()}
        self._parts = defaultdict(
            list
        )  # module, with underscores for dots -> names of its parts (`vmhost/stdlib/splitting.py`)
        for name in self.bundle.modules:
            if name.startswith("vmhost.parts."):
                self._parts[name.removeprefix("vmhost.parts.").partition("__")[0]].append(name)

    def _imports_of(self, name):
        module = self.modules[name]
        return _imports_of_code(module.code, name, module.is_package)

    def everything(self, linked):
        """The names of all modules except the engine's, and of native ones among `linked` that VMs can have."""
        return {name for name in self.modules if not f"{name}.".startswith("vmhost.engine.")} | (
            linked & NATIVE_MODULES - {"vmhost.engine._array"}
        )

    def closure(self, wanted):
        """(names of modules, names of native modules) that the modules `wanted` need, including themselves."""
        modules, native, waiting = set(), set(), [(name, True) for name in wanted]
        while waiting:
            name, asked = waiting.pop()
            if name in modules or name in REPLACED or (name in SELDOM and not asked):
                continue
            if name not in self.modules:
                if name in NATIVE_MODULES or name in ALWAYS_NATIVE:
                    native.add(name)
                    waiting += [(other, False) for other in OF_NATIVE.get(name, ()) if other not in modules]
                continue
            modules.add(name)
            waiting += [(parent, asked) for parent in _parents(name)]
            waiting += [(part, True) for part in self._parts.get(name.replace(".", "_"), ())]
            # packages that import their modules by names in a table
            if name in ("asyncio", "vmhost.engine.numpy"):
                waiting += [(other, False) for other in self.bundle.modules if other.startswith(f"{name}.")]
            # imports at module level must exist for the module to be importable
            waiting += self._imports_of(name)
        return modules, native

    def cut_to(self, modules):
        """The bytes of the bundle with only these modules, and with all texts."""
        manifest = self.bundle.manifest
        return write_bundle(
            Manifest(
                name=manifest.name,
                version=manifest.version,
                kind="stdlib",
                exact_python=manifest.exact_python,
                optimize=manifest.optimize,
            ),
            {
                name: Module(self.modules[name].is_package, without_columns(self.modules[name].code))
                for name in sorted(modules)
            },
            texts=self.bundle.texts,
        )


def imported_by(bundle):
    """The names of all modules imported by the code of `bundle` (a Bundle), at any depth."""
    return {
        imported
        for name, module in bundle.modules.items()
        for imported, _ in imports_of(marshal.loads(module.code), name, module.is_package)
    }


@functools.cache  # shared by all images that the process makes
def _imports_of_code(code, name, is_package):
    return imports_of(marshal.loads(code), name, is_package)


def imports_of(code, name, is_package):
    """(module, whether it is imported when this one is) for each import in the code of the module `name`."""
    package = name if is_package else name.rpartition(".")[0]
    return frozenset(_walk(code, package, not name.startswith("vmhost.parts.")))


def _walk(code, package, at_once):
    constants, before = [], []
    deferred = "_deferred" in code.co_names  # `_deferred.Module("copy")`: imported on first use
    # few functions import, and disassembling is slow: first look for the opcode, which is the first byte of each
    # two-byte instruction
    for instruction in dis.get_instructions(code) if deferred or _IMPORT_NAME in code.co_code[::2] else ():
        if instruction.opname == "IMPORT_NAME":
            level, names = (each.argval for each in before[-2:])
            module = instruction.argval
            if level:
                parts = package.split(".")
                module = ".".join(filter(None, (*parts[: len(parts) - level + 1], module)))
            yield module, at_once
            for each in names or ():
                yield f"{module}.{each}", at_once
        elif instruction.opname == "LOAD_CONST" and type(instruction.argval) is str:
            constants.append(instruction.argval)
        before = [*before[-1:], instruction]
    if deferred:
        yield from ((text, False) for text in constants)
    for inner in code.co_consts:
        if type(inner) is type(code):
            # a class body runs at once, a function body does not
            yield from _walk(inner, package, at_once and not inner.co_flags & 2)


def _parents(name):
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def check_native(native, linked, wanted_by):
    """ImageError for native modules that neither the static library nor vmhost has."""
    missing = sorted(name for name in native if name not in linked)
    if missing:
        raise ImageError(
            f"{wanted_by}: needs {', '.join(missing)}, which the static library does not hold; "
            "run this bundle on a full host, or write the task without it"
        )
