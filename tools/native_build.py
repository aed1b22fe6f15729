"""The native parts: sources and compiler flags. Everything that compiles or reads this project's C uses this file.

| reader | makes |
| --- | --- |
| setup.py | the extension modules and the engine's library |
| vmhost/image/link.py | the executable `vmrun` of device images |
| tests/native/run.py | the test programs in C, with sanitizers |
| clangd, clang-tidy | nothing: they read build/compile_commands.json, which setup.py writes |

    python tools/native_build.py inputs | outputs       lists the files that setup.py reads, or makes
    python tools/native_build.py commands               writes build/compile_commands.json
    python tools/native_build.py runtimes SANITIZERS    lists the shared libraries of sanitizers

Paths are relative to the checkout. Needs only the standard library, and no earlier build."""

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "build/generated"  # C tables that setup.py writes
COMMANDS = "build/compile_commands.json"

X86_64 = platform.machine() in ("x86_64", "AMD64")
# glibc's vectorised transcendental functions: libmvec has all of them since 2.35. Elsewhere libm's are used.
LIBC, LIBC_VERSION = platform.libc_ver()
LIBMVEC = X86_64 and LIBC == "glibc" and tuple(map(int, LIBC_VERSION.split(".")[:2])) >= (2, 35)

# ---- flags

LANGUAGE = ["-std=c11"]
DEFINES = {"_GNU_SOURCE": "1"}
SYMBOLS = "-g1"  # functions and lines; variables would take as long again to compile
HIDDEN = ["-fvisibility=hidden"]  # except for test programs, which have a separate library
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes"]
# CPython's signatures (slots, METH_NOARGS) force parameters that a function does not read.
PYTHON_WARNINGS = ["-Wno-unused-parameter"]
SANITIZERS = {
    "address": ["-fsanitize=address", "-fno-omit-frame-pointer"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"],
    "thread": ["-fsanitize=thread", "-fno-omit-frame-pointer"],
}
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
# For C files in a folder of this name. engine/src/runtime/backend.c checks that the CPU has them before it runs such a
# kernel.
INSTRUCTIONS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ],
}
if LIBMVEC:
    INSTRUCTIONS = {name: [*flags, "-DVME_LIBMVEC"] for name, flags in INSTRUCTIONS.items()}
# Debian's Python compiles with -fno-strict-overflow, which makes lookups 5 % slower. These kernels need no wrapping,
# because they compute with row numbers and offsets, and hash unsigned numbers.
OWN_FLAGS = {f"{backend}/embedding.c": ["-fstrict-overflow"] for backend in ("portable", *INSTRUCTIONS)}
# On x86-64 only CPUs without AVX2 run these, and -O3 takes much longer to compile than -O2.
if X86_64:
    large = "casts comparisons complexes divisors elementwise floats gemm integers reduce"
    OWN_FLAGS.update({f"portable/{kernels}.c": ["-O2"] for kernels in large.split()})
# Results must equal NumPy's, so no contraction to fused multiply-add. The engine reads neither errno nor the
# floating-point exception flags.
ARITHMETIC = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]


# ---- parts


@dataclass(frozen=True)
class Part:
    """C files with the same compiler flags.

    `sources` are patterns; `folders` the include paths; `flags` those beyond the language, the warnings, a folder's
    instructions and `optimize`; `libraries` the system's.
    """

    sources: tuple = ()
    folders: tuple = ()
    flags: tuple = ()
    optimize: tuple = ("-O2",)
    libraries: tuple = ()
    link_flags: tuple = ()
    python: bool = True  # includes Python.h
    needs_engine: bool = False  # linked with libvme.so, in the same folder
    warnings: bool = True  # false for generated code

    def files(self):
        """Its C files for this machine, without vendored ones, which others include, and kernels of other machines."""
        found = (path.relative_to(ROOT) for pattern in self.sources for path in ROOT.glob(pattern))
        return sorted(
            str(path)
            for path in found
            if "vendor" not in path.parts and (X86_64 or path.parent.name not in INSTRUCTIONS)
        )

    def headers(self):
        return sorted(str(path.relative_to(ROOT)) for folder in self.folders for path in (ROOT / folder).rglob("*.h"))

    def warning_flags(self):
        return [*WARNINGS, *(PYTHON_WARNINGS if self.python else [])] if self.warnings else ["-w"]

    def command(self, source):
        """The compiler command for one of its files, without an output, for tools that read sources."""
        return [
            "cc",
            *LANGUAGE,
            *(f"-D{name}={value}" for name, value in DEFINES.items()),
            *(f"-I{folder}" for folder in self.folders),
            *(f"-isystem{folder}" for folder in (python_headers() if self.python else ())),
            *self.optimize,
            *self.flags,
            *instructions(source),
            *self.warning_flags(),
            "-c",
            source,
        ]


# The pattern matcher uses the memory and tables of the trigger engine.
EVENT_FOLDERS = ("vmhost/pipeline/patterns", "vmhost/pipeline/triggers")
ENGINE = "vmhost.engine.libvme"  # a plain shared library: no Python, no suffix in its name
BINDING = "vmhost.engine._vme"  # its only source is generated by the build
# The installed parts, by import name, in link order.
INSTALLED = {
    "vmhost.isolation._core": Part(("vmhost/isolation/**/*.c",), ("vmhost/isolation", "engine/include", GENERATED)),
    ENGINE: Part(
        ("engine/src/**/*.c",),
        ("engine/src", "engine/include"),
        (*ARITHMETIC,),
        ("-O3",),
        ("mvec", "m") if LIBMVEC else ("m",),
        # Binds symbols when loaded: lazy binding takes 3 KiB of the stack of the first caller.
        ("-Wl,-soname,libvme.so", "-Wl,-z,now"),
        python=False,
    ),
    "vmhost.engine._array": Part(("engine/arrays/**/*.c",), ("engine/arrays", "engine/include"), needs_engine=True),
    BINDING: Part((), ("engine/include",), needs_engine=True, warnings=False),
    "vmhost.pipeline.features._features": Part(("vmhost/pipeline/features/**/*.c",), ("vmhost/pipeline/features",)),
    "vmhost.pipeline.passes._passes": Part(("vmhost/pipeline/passes/*.c",), ("vmhost/pipeline/passes",)),
    "vmhost.pipeline.patterns._patterns": Part(
        (
            "vmhost/pipeline/patterns/**/*.c",
            "vmhost/pipeline/triggers/core/memory.c",
            "vmhost/pipeline/triggers/core/table.c",
        ),
        EVENT_FOLDERS,
    ),
    "vmhost.pipeline.triggers._triggers": Part(("vmhost/pipeline/triggers/**/*.c",), EVENT_FOLDERS),
}
# The executable of device images: the core again, optimised for size. Its engine consists of setup.py's object files.
IMAGE = Part(
    ("vmhost/image/native/*.c", "vmhost/isolation/**/*.c"),
    ("vmhost/image/native", "vmhost/isolation", GENERATED, "engine/include"),
    (
        "-g0",
        "-DNDEBUG",
        "-ffunction-sections",
        "-fdata-sections",
        "-fno-pie",
        "-fno-asynchronous-unwind-tables",
    ),
    ("-Os",),
)
# Flags for every file of the engine in a build that counts polls of the stop flag (test_polls.c).
POLLS = ["-DVME_POLLS", "-include", "tests/native/engine/polls.h"]
# Test programs; tests/native/run.py decides which files go into which. The core's use a stub of Python.h in
# tests/native/python.
CORE_TESTS = Part(
    ("tests/native/*.c", "tests/native/python/*.c"),
    ("vmhost/isolation", "engine/include", "tests/native", "tests/native/python"),
    optimize=("-O1",),
    python=False,
)
ENGINE_TESTS = Part(
    ("tests/native/engine/*.c",), ("engine/src", "engine/include"), (*ARITHMETIC,), ("-O1",), python=False
)
TRIGGER_TESTS = Part(
    ("tests/native/triggers/*.c",), ("vmhost/pipeline/triggers", "tests/native"), optimize=("-O1",), python=False
)
FEATURE_TESTS = Part(
    ("tests/native/features/*.c",), ("vmhost/pipeline/features", "tests/native"), optimize=("-O1",), python=False
)
PATTERN_TESTS = Part(("tests/native/patterns/*.c",), (*EVENT_FOLDERS, "tests/native"), optimize=("-O1",), python=False)


def instructions(source):
    """The instruction flags of the C file's folder, and flags of its own."""
    path = Path(source)
    return [*INSTRUCTIONS.get(path.parent.name, []), *OWN_FLAGS.get(path.as_posix().partition("engine/src/")[2], [])]


def python_headers():
    """The folders of Python.h and of the internal headers; exits if the headers are missing."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise SystemExit(
            f"{include / 'Python.h'} is missing: {sys.executable} came without its C headers. Install them"
            " (python3.14-dev on Debian, python3.14-devel on Fedora) or point VMHOST_PYTHON at a Python that has them."
        )
    return [str(include), str(include / "internal")]


def sanitizers(chosen, where="VMHOST_SANITIZE"):
    """The sanitizers in a text such as "address,undefined"; exits if one is unknown, naming its source `where`."""
    names = [name for name in chosen.split(",") if name]
    for name in names:
        if name not in SANITIZERS:
            raise SystemExit(f"{where}: expected some of {', '.join(SANITIZERS)}, joined by commas, got {name!r}")
    return names


def sanitizer_flags(names):
    """The sanitizers' flags for compiler and linker, [] without a name. They stand last: checked kernels take four
    times as long to compile with -O3 as with -O1, and again with Debian's -fno-strict-overflow, which also keeps an
    overflow of signed numbers from being reported."""
    flags = list(dict.fromkeys(flag for name in names for flag in SANITIZERS[name]))
    if names:
        flags += ["-O1", "-fstrict-overflow", "-UNDEBUG"]
    if len(names) > 1:
        flags.append("-fno-var-tracking-assignments")  # else gcc notes each function that is too large for it
    return flags


def symbol_flags(sanitize):
    """The linker's flags for symbols: strips them, unless a sanitizer needs them for line numbers or VMHOST_SYMBOLS=1
    is set. Object files keep them, so that relinking is enough."""
    return [] if sanitize or os.environ.get("VMHOST_SYMBOLS") == "1" else ["-Wl,--strip-all"]


# ---- object files: recompiled only when their inputs have changed


def objects_folder(names=()):
    """The folder of the object files with these sanitizers: shared by all kinds of builds, editable installations
    included, so that none compiles a file again."""
    python = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    return f"build/objects-{python}-{'-'.join(names) or 'plain'}"


def included(made, root=ROOT):
    """The project's files that went into the object file `made`, as listed by the compiler (-MMD); None without a
    list."""
    listed = Path(made).with_suffix(".d")
    if not listed.is_file():
        return None
    return [root / name for name in named_by_compiler(listed.read_text()) if not os.path.isabs(name)]


def named_by_compiler(text):
    """The names of files in the compiler's output of -MD or -MMD."""
    names = re.split(r"(?<!\\)\s+", text.partition(":")[2].replace("\\\n", " ").strip())
    return [name.replace("\\ ", " ") for name in names]


def newer_than(made, source, root=ROOT):
    """An input of the object file `made`, headers included, that is missing or newer; None if it is up to date."""
    files = included(made, root)
    if files is None or not Path(made).is_file():
        return source
    age = os.path.getmtime(made)
    return next((path for path in (source, *files) if not path.is_file() or os.path.getmtime(path) > age), None)


def compile_changed(made, source, settings, compile_it, *, strict):
    """Calls `compile_it(flags)`, which compiles `source` to the object file `made` and lists its headers (-MMD), unless
    `made` is up to date and was made with the same `settings`, a text.

    `strict`: warnings are errors. Plain builds reuse such object files too."""
    note = Path(f"{made}.settings")
    without_warnings = f"{settings}\nwithout a warning"
    accepted = [without_warnings] if strict else [without_warnings, settings]
    if note.exists() and note.read_text() in accepted and newer_than(made, ROOT / source) is None:
        return
    note.unlink(missing_ok=True)  # so that an interrupted object file is never reused
    compile_it(["-Werror"] if strict else [])
    note.write_text(without_warnings if strict else settings)


# ---- for other tools


def write_commands():
    """Writes COMMANDS, the compiler command of each C file, for clangd and clang-tidy. A file of several parts has one
    entry."""
    entries = {}
    for part in (*INSTALLED.values(), IMAGE, CORE_TESTS, ENGINE_TESTS, TRIGGER_TESTS, PATTERN_TESTS, FEATURE_TESTS):
        for source in part.files():
            command = [*part.command(source), *(POLLS if part is ENGINE_TESTS else [])]
            entry = {"directory": str(ROOT), "file": source, "arguments": command}
            entries.setdefault(source, entry)
    text = json.dumps(list(entries.values()), indent=1)
    path = ROOT / COMMANDS
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        Path(f"{path}.new").write_text(text)
        os.replace(f"{path}.new", path)


def inputs():
    """All input files of the native parts."""
    files = {"setup.py", "tools/native_build.py", "engine/declarations.py", "vmhost/stdlib/policy.py"}
    for part in INSTALLED.values():
        files.update(str(path.relative_to(ROOT)) for folder in part.folders for path in (ROOT / folder).rglob("*.[ch]"))
    return sorted(path for path in files if not path.startswith(GENERATED))


def output(name):
    """The path of a part in the checkout, by its name in INSTALLED."""
    return name.replace(".", "/") + (".so" if name == ENGINE else sysconfig.get_config_var("EXT_SUFFIX"))


def runtimes(names):
    """The shared libraries to preload into a program that is built without these sanitizers."""
    compiler = os.environ.get("CC", "gcc")
    for name in names:
        asked = [compiler, f"-print-file-name={RUNTIMES[name]}"]
        path = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        if not os.path.exists(path):
            raise SystemExit(f"{compiler} has no sanitizer {name}; install its libraries")
        yield path


def main(arguments):
    match arguments:
        case ["inputs"]:
            print(*inputs(), sep="\n")
        case ["outputs"]:
            print(*map(output, INSTALLED), sep="\n")
        case ["commands"]:
            write_commands()
        case ["runtimes", chosen]:
            print(*runtimes(sanitizers(chosen, "runtimes")), sep="\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
