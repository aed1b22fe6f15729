"""The executable `vmrun`: our C sources, and the members of CPython's static library that they need.

The archive is used unchanged: members of the compiler are not linked because `native/absent.c` defines the names that
the rest refers to, and the linker's map is checked to confirm it.

Three modules are missing in the archive: `_sqlite3`, `_ssl`, `_zstd`. Python's own shared object is put next to the
executable (`shared_module`), which contains SQLite, OpenSSL or zstd and exports the functions of the library and of
CPython that the module needs."""

import functools
import hashlib
import json
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vmhost.image import ImageError
from vmhost.image.shared_object import without_need
from vmhost.image.toolchain import CHECKOUT, SHARED, native_build

# Archive members that generate code, or parse sources.
COMPILER = frozenset(
    f"{name}.o"
    for name in """
    pegen pegen_errors action_helpers parser string_parser peg_api buffer lexer state file_tokenizer
    readline_tokenizer string_tokenizer
    utf8_tokenizer helpers token Python-ast Python-tokenize asdl assemble ast ast_preprocess ast_unparse codegen
    compile flowgraph future
    instruction_sequence symtable symtablemodule jit
""".split()
)
OBJECTS = CHECKOUT / "build" / "image"
# Init functions of linked modules where they are not PyInit_<name>.
INITS = {"marshal": "PyMarshal_Init", "_warnings": "_PyWarnings_Init", "builtins": None, "sys": None}
OURS = {"vmhost.isolation._core": "PyInit__core", "vmhost.engine._array": "PyInit__array"}
# Modules of SHARED for the host only: allocations of their libraries cannot be charged to a VM.
HOST_ONLY = frozenset(("_ssl", "_zstd"))
# Not relocatable, as the archive is not; no path of the build machine gets in.
_LINK = (
    "-no-pie",
    "-pthread",
    "-Wl,--gc-sections",
    "-Wl,-z,relro,-z,now",
    "-Wl,--build-id=none",
    "-Wl,-O1",
    "-Wl,--hash-style=gnu",
    "-Wl,-z,noseparate-code",
    # An odd multiple of 64 KiB. At the usual multiple of 2 MiB, the kernel maps the executable in 2 MiB pages if the
    # page cache happens to hold it so, and an idle host then uses 2 to 4 MiB more than it touches.
    "-Wl,-Ttext-segment=0x410000",
)
# SQLite's code is put into one section, whose bounds the linker exports: a stack overflow (overflow.c) inside it is
# handled differently from one inside CPython.
_SQLITE_CODE = (
    "--rename-section=.text=vmrun_sqlite_code",
    "--rename-section=.text.unlikely=vmrun_sqlite_code",
    "--rename-section=.text.startup=vmrun_sqlite_code",
)


def offered(toolchain):
    """The native modules for VMs that can be linked in or put next to the executable."""
    members = _run([toolchain.nm, "--defined-only", "-A", str(toolchain.python_library)])
    built_in = set(re.findall(r"\bPyInit_(\w+)$", members, re.MULTILINE))
    shared = toolchain.shared_modules.keys() - HOST_ONLY
    return (built_in | INITS.keys() | {"vmhost.engine._array"} | shared) - {"_ast", "_symtable", "_tokenize"}


def shared_module(toolchain, name):
    """The bytes of a module of SHARED, for an executable that was linked for it. ImageError."""
    if name not in toolchain.shared_modules:
        raise ImageError(f"this Python has no {name} in a file of its own; take Debian's, as `make build` does")
    data = toolchain.shared_modules[name].read_bytes()
    for library in SHARED[name]:
        data = without_need(data, library)
    return data


def link(toolchain, modules, *, engine):
    """Links the executable; returns its path. `modules`: the native modules in it, and those of SHARED that it
    supports; `engine`: with the tensor engine. ImageError."""
    work = OBJECTS / ("engine" if engine else "plain")
    work.mkdir(parents=True, exist_ok=True)
    header = _table(
        sorted(modules - SHARED.keys() | {"vmhost.isolation._core"} | ({"vmhost.engine._array"} if engine else set())),
        beside := sorted(modules & SHARED.keys()),
        engine,
    )
    work_folder = Path(work, hashlib.sha256(header.encode()).hexdigest()[:16])
    work_folder.mkdir(exist_ok=True)
    unfinished = work_folder / f"native_modules.{os.getpid()}"
    unfinished.write_text(header)
    os.replace(unfinished, work_folder / "native_modules.h")  # other processes may be making the same image
    build = native_build()
    part = build.IMAGE
    includes = [work_folder, *(CHECKOUT / folder for folder in part.folders), *toolchain.includes]
    options = [
        *build.LANGUAGE,
        *(f"-D{name}={value}" for name, value in build.DEFINES.items()),
        *part.optimize,
        *part.flags,
        *build.HIDDEN,
        *part.warning_flags(),
        "-Werror",
        f"-ffile-prefix-map={CHECKOUT}=.",
    ]
    objects = _engine_objects(build) if engine else []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects += pool.map(
            lambda source: _compile(toolchain, CHECKOUT / source, options, includes),
            part.files(),
        )
    libraries = [
        toolchain.python_library,
        *(path for name, path in toolchain.libraries.items() if name != "libexpat.a" or "pyexpat" in modules),
    ]
    libraries = [_without_tables(toolchain, path) for path in libraries]
    offers = []
    if beside:
        archives = {}
        for name in beside:
            archives |= dict.fromkeys(toolchain.archives_of(name).values(), _SQLITE_CODE if name == "_sqlite3" else ())
        # zlib last: OpenSSL refers to it
        zlib = libraries.pop(list(toolchain.libraries).index("libz.a") + 1)
        libraries += [_without_tables(toolchain, path, *options) for path, options in archives.items()]
        libraries.append(zlib)
        names = _asked_of_executable(toolchain, beside)
        listed = work_folder / f"offered.{os.getpid()}"
        listed.write_text("{" + "".join(f"{name};" for name in names) + "};\n")
        # --no-relax: GNU ld 2.40 turns `push function@GOTPCREL(%rip)` into a call if a newer assembler lets it relax;
        # SQLite has two of these
        offers = [
            "-Wl,--no-relax",
            f"-Wl,--dynamic-list={listed}",
            *(f"-Wl,--require-defined={name}" for name in names),
        ]
    trace, executable, stripped = (work_folder / f"{name}.{os.getpid()}" for name in ("map", "vmrun", "stripped"))
    _run(
        [
            toolchain.compiler,
            *_LINK,
            *offers,
            "-o",
            str(executable),
            *map(str, objects),
            *map(str, libraries),
            "-lm",
            "-ldl",
            *(["-lmvec"] if engine else []),
            f"-Wl,-Map={trace}",
        ]
    )
    linked = set(
        re.findall(
            r"libpython[\d.]+\.a\(([\w-]+\.o)\)",
            trace.read_text(errors="replace").partition("Discarded input sections")[0],
        )
    )
    if linked & COMPILER:
        raise ImageError(
            f"{', '.join(sorted(linked & COMPILER))} of {toolchain.python_library.name} would be linked in, and an"
            " image holds no compiler; look at who asks for it in " + str(trace)
        )
    _run(
        [
            toolchain.strip,
            "--strip-all",
            "--remove-section=.comment",
            "--remove-section=.note.*",
            "-o",
            str(stripped),
            str(executable),
        ]
    )
    for product in (trace, executable, stripped, *([listed] if beside else [])):
        os.replace(product, product.with_suffix(""))
    return stripped.with_suffix("")


def _engine_objects(build):
    """The engine's object files from `make build`; ImageError if they are missing or older than their sources."""
    objects = []
    for name in ("vmhost.engine._array", build.ENGINE):
        for source in build.INSTALLED[name].files():
            object_file = (CHECKOUT / build.objects_folder() / source).with_suffix(".o")
            newer = build.newer_than(object_file, CHECKOUT / source)
            if newer is not None:
                raise ImageError(f"{object_file}: is missing or older than {newer}; run `make build`")
            objects.append(object_file)
    return objects


def _asked_of_executable(toolchain, modules):
    """The names that the modules next to the executable refer to, except glibc's, and those of SQLite that the native
    core looks up."""
    asked = set()
    for name in modules:
        listed = _run([toolchain.nm, "--dynamic", "--undefined-only", str(toolchain.shared_modules[name])])
        asked.update(re.findall(r"^ +U (\w+)(?:@OPENSSL_[\d.]+)?$", listed, re.MULTILINE))
    if "_sqlite3" in modules:
        for source in CHECKOUT.glob("vmhost/isolation/sqlite/sqlite_*.c"):
            asked.update(re.findall(r'dlsym\(\w+, "(sqlite3_\w+)"\)', source.read_text()))
    return sorted(asked)


def _without_tables(toolchain, archive, *options):
    """A copy of the archive without sections that only debuggers and C++ exceptions read: a tenth of the executable."""
    digest = hashlib.sha256(archive.read_bytes() + " ".join(options).encode()).hexdigest()[:16]
    copy = OBJECTS / "libraries" / digest / archive.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        unfinished = copy.with_suffix(f".{os.getpid()}")
        _run(
            [
                toolchain.objcopy,
                "-D",
                "--strip-debug",
                "--remove-section=.eh_frame",
                "--remove-section=.rela.eh_frame",
                *options,
                str(archive),
                str(unfinished),
            ]
        )
        os.replace(unfinished, copy)
    return copy


def needed_glibc(toolchain, *files):
    """The newest glibc version that the files need, as text ("2.34")."""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", _run([toolchain.readelf, "-W", "--version-info", *map(str, files)]))
    return ".".join(map(str, max((int(major), int(minor)) for major, minor in found)))


def _table(modules, beside, engine):
    inits = {name: INITS.get(name, OURS.get(name, f"PyInit_{name}")) for name in modules}
    declared = "".join(f"PyObject *{init}(void);\n" for init in inits.values() if init is not None)
    rows = "".join(f'    {{"{name}", {init or "NULL"}}}, \\\n' for name, init in inits.items())
    more = "#define VMRUN_SQLITE\n" if "_sqlite3" in beside else ""
    more += "#define VMRUN_ENGINE\n" if engine else ""
    more += f"#define VMRUN_BESIDE {''.join(f'"{name}.so", ' for name in beside)}\n"
    return f"/* Written by vmhost/image/link.py. */\n{more}{declared}#define VMRUN_NATIVE_MODULES \\\n{rows}\n"


def _compile(toolchain, source, options, includes):
    """The object file of a source, compiled only if its inputs changed.

    Its name is a digest of the preprocessed source. A note lists the files that the preprocessor read, so that it runs
    again only if one of them changed. A source that includes the table of modules, in the first of `includes`, has no
    note, as each image has its own table."""
    command = [toolchain.compiler, *options, *(f"-I{folder}" for folder in includes), "-c", str(source)]
    version = _version(toolchain.compiler)
    asked = "\0".join((version, *options, *map(str, includes[1:]), str(source)))
    note = OBJECTS / "notes" / hashlib.sha256(asked.encode()).hexdigest()[:32]
    object_file = _noted(note)
    if object_file is not None:
        return object_file
    began = time.time_ns()
    note.parent.mkdir(parents=True, exist_ok=True)
    listed = note.with_suffix(f".{os.getpid()}")
    text = _run([*command[:-2], "-E", "-P", "-MD", "-MF", str(listed), str(source)])
    digest = hashlib.sha256("\0".join((version, *options, text)).encode()).hexdigest()[:32]
    object_file = OBJECTS / "objects" / f"{source.stem}-{digest}.o"
    if not object_file.exists():
        object_file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = object_file.with_suffix(f".{os.getpid()}")
        _run([*command, "-o", str(unfinished)])
        os.replace(unfinished, object_file)
    files = native_build().named_by_compiler(listed.read_text())
    states = {path: _state(path) for path in files}
    # no note if a file changed meanwhile: the old contents may have been read
    if not any(Path(path).is_relative_to(includes[0]) or state[1] >= began for path, state in states.items()):
        listed.write_text(json.dumps([object_file.name, states]))
        os.replace(listed, note)
    listed.unlink(missing_ok=True)
    return object_file


def _noted(note):
    """The object file named by a note, if it exists and none of its inputs changed."""
    if not note.exists():
        return None
    name, states = json.loads(note.read_text())
    object_file = OBJECTS / "objects" / name
    if not object_file.exists() or any(_state(path) != state for path, state in states.items()):
        return None
    return object_file


def _state(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


@functools.cache
def _version(compiler):
    return _run([compiler, "--version"]).partition("\n")[0]


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise ImageError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()[-3000:]}")
    return done.stdout
