"""Builds the native parts. What the project is called and needs stands in pyproject.toml.

`vmhost.isolation._core` is made of every C file in the rooms of vmhost/isolation/; `engine/libvme.so` of those in
engine/src (no Python in it; files in its folders avx2/ and avx512/ are compiled for those instructions and run only
where the CPU has them); `vmhost.engine._array`, its Python array type, of those in engine/arrays; `vmhost.engine._vme`,
cffi's binding for the host, of what engine/declarations.py reads in its header. The shipped tasks come along in
vmhost/tasks. Two environment variables change the build: VMHOST_SANITIZE=address|undefined|thread adds that sanitizer
("address,undefined" both), VMHOST_WERROR=1 turns warnings into errors. Object files with different sanitizers lie in
different folders, so switching between them never mixes them; those that were compiled with warnings as errors serve a
plain build too. The latter is the default: a compiler that knows more warnings than ours must not keep a user from an
installation."""

import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Ctrl-C ends a build here and now, without setuptools' traceback; what is half made is made again.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes"]
# CPython's own signatures (slots, METH_NOARGS) force parameters that a function does not read.
WARNINGS.append("-Wno-unused-parameter")
SANITIZERS = {
    "address": ["-fsanitize=address", "-fno-omit-frame-pointer"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"],
    "thread": ["-fsanitize=thread", "-fno-omit-frame-pointer"],
}
HERE = Path(__file__).resolve().parent


# A CPU has these before a kernel compiled for them runs: engine/src/runtime/backend.c asks.
X86_64 = platform.machine() in ("x86_64", "AMD64")
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
# glibc's vector functions of the transcendental kind: libmvec has all of them since 2.35. Elsewhere libm's serve.
LIBC, LIBC_VERSION = platform.libc_ver()
LIBMVEC = X86_64 and LIBC == "glibc" and tuple(map(int, LIBC_VERSION.split(".")[:2])) >= (2, 35)
if LIBMVEC:
    INSTRUCTIONS = {name: [*flags, "-DVME_LIBMVEC"] for name, flags in INSTRUCTIONS.items()}
# Results are NumPy's: no contraction to fused products behind the source's back. The engine reads no errno and no
# exception flags.
ARITHMETIC = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
GENERATED = "build/generated"
BINDING = "vmhost.engine._vme"  # its one source is written when it is built
LIBRARY = "vmhost.engine.libvme"  # a plain shared library: no Python, no suffix in its name


def extensions():
    """The project's native parts, in the order in which they can be linked."""
    return [
        _native(
            "vmhost.isolation._core", ["vmhost/isolation"], ["engine/include", GENERATED, *_python_headers()], ["-O2"]
        ),
        _native(LIBRARY, ["engine/src"], ["engine/include"], ARITHMETIC, libraries=["mvec", "m"] if LIBMVEC else ["m"]),
        _native(
            "vmhost.engine._array",
            ["engine/arrays"],
            ["engine/include", *_python_headers()],
            ["-O2"],
            needs_library=True,
        ),
        _native(BINDING, [], ["engine/include", *_python_headers()], ["-O2"], needs_library=True, ours=False),
    ]


def _native(name, folders, include_dirs, optimize, *, libraries=(), needs_library=False, ours=True):
    """One shared object, of every C file in `folders` and below; `ours`: we answer for its warnings."""
    sanitize = list(dict.fromkeys(flag for chosen in _sanitizers() for flag in SANITIZERS[chosen]))
    if len(_sanitizers()) > 1:
        sanitize.append("-fno-var-tracking-assignments")  # else gcc tells of each function that is too large for it
    extension = Extension(
        name,
        sorted(str(path) for folder in folders for path in Path(folder).rglob("*.c") if _is_for_here(path)),
        depends=sorted(
            str(path)
            for folder in (*folders, *include_dirs)
            if not os.path.isabs(folder)
            for path in Path(folder).rglob("*.h")
        ),
        include_dirs=[*folders, *include_dirs],
        define_macros=[("_GNU_SOURCE", "1")],
        libraries=list(libraries),
        # Debian's Python asks for -O3 -Wall of its own; ours come last and win.
        extra_compile_args=[
            "-std=c11",
            *optimize,
            "-g",
            "-fvisibility=hidden",
            *(WARNINGS if ours else ["-w"]),
            *sanitize,
        ],
        extra_link_args=["-pthread", *sanitize],
    )
    extension.needs_library = needs_library
    return extension


def generate_tables():
    """Writes the C tables that Python files hold into GENERATED; each only when it changes, so that only then its users
    are compiled."""
    table = subprocess.run(
        [sys.executable, "-I", "vmhost/stdlib/policy.py"], check=True, capture_output=True, text=True
    ).stdout
    header = Path(GENERATED, "policy_table.h")
    if not header.exists() or header.read_text() != table:
        header.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{header}.new").write_text(table)
        os.replace(f"{header}.new", header)


def _is_for_here(path):
    """Whether the C file is compiled on this machine: vendored ones are included by ours, and kernels may be for
    another one."""
    return "vendor" not in path.parts and (X86_64 or path.parent.name not in INSTRUCTIONS)


class BuildWithTasks(build_py):
    """Takes along the tasks that `vmhost demo` runs, as vmhost/tasks, so that it runs without a checkout too."""

    def run(self):
        super().run()
        if not self.editable_mode:
            installed = Path(self.build_lib, "vmhost", "tasks")
            shutil.rmtree(installed, ignore_errors=True)
            shutil.copytree("tasks", installed, ignore=shutil.ignore_patterns("__pycache__"))


class BuildInParallel(build_ext):
    """Compiles the C files of an extension side by side, and only those that changed."""

    def finalize_options(self):
        super().finalize_options()
        # one place for all ways to build, editable installations included, so that none compiles what another has
        # compiled
        python = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        self.build_temp = f"build/objects-{python}-{'-'.join(_sanitizers()) or 'plain'}"
        self.force = True  # links always: what is up to date is decided below, per C file and with the settings

    def run(self):
        os.makedirs(self.build_temp, exist_ok=True)
        with open(Path(self.build_temp, "lock"), "w") as lock:  # two builds in one checkout take turns
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().run()

    def copy_extensions_to_source(self):
        """Puts the modules beside their sources in one step each: who imports meanwhile gets the old one or the new."""
        packages = self.get_finalized_command("build_py")
        for extension in self.extensions:
            built = Path(self.get_ext_filename(extension.name))
            in_place = Path(packages.get_package_dir(extension.name.rpartition(".")[0]), built.name)
            self.copy_file(str(self.build_lib / built), f"{in_place}.new")
            os.replace(f"{in_place}.new", in_place)

    def build_extensions(self):
        generate_tables()
        compiler = self.compiler
        compile_one = compiler.compile
        strict = os.environ.get("VMHOST_WERROR") == "1"

        def compile_all(sources, output_dir=None, depends=None, **shared):
            def compile_source(source):
                [made] = compiler.object_filenames([source], output_dir=output_dir)
                newest = max(os.path.getmtime(path) for path in (source, __file__, *_included(made, depends or ())))
                settings = Path(f"{made}.settings")
                instructions = INSTRUCTIONS.get(Path(source).parent.name, [])
                options = {**shared, "extra_postargs": [*(shared.get("extra_postargs") or []), *instructions, "-MMD"]}
                wanted = repr((sys.version, options.get("macros"), options["extra_postargs"]))
                without_warnings = f"{wanted}\nwithout a warning"
                if (
                    os.path.exists(made)
                    and os.path.getmtime(made) > newest
                    and settings.exists()
                    and settings.read_text() in ([without_warnings] if strict else [without_warnings, wanted])
                ):
                    return made
                settings.unlink(missing_ok=True)  # an object file that an interruption cut short is never taken
                if strict:
                    options["extra_postargs"] = [*options["extra_postargs"], "-Werror"]
                    wanted = without_warnings
                compile_one([source], output_dir=output_dir, depends=depends, **options)
                settings.write_text(wanted)
                return made

            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                return list(pool.map(compile_source, sources))

        compiler.compile = compile_all
        super().build_extensions()

    def build_extension(self, extension):
        if extension.name == LIBRARY:
            # functions of other libraries are found when it is loaded: finding one takes 3 KiB of the stack that first
            # calls it
            extension.extra_link_args += ["-Wl,-soname,libvme.so", "-Wl,-z,now"]
        if extension.name == BINDING:
            extension.sources = [self.write_binding()]
        if extension.needs_library:  # beside it, wherever both are installed
            library = Path(self.get_ext_fullpath(LIBRARY)).resolve()
            extension.extra_link_args += [str(library), "-Wl,-rpath,$ORIGIN"]
        super().build_extension(extension)

    def write_binding(self):
        """The C source of the binding; written only when it changes, so that it is compiled only then."""
        source = Path(self.build_temp, "vme_binding.c")
        subprocess.run(
            [sys.executable, "-m", "vmhost.engine.declarations", f"{source}.new"], check=True, stdout=subprocess.DEVNULL
        )
        made = Path(f"{source}.new").read_text()
        if not source.exists() or source.read_text() != made:
            source.write_text(made)
        return str(source)

    def get_ext_filename(self, name):
        plain = name.rpartition(".")[2] == LIBRARY.rpartition(".")[2]  # asked for by both names
        return f"{name.replace('.', '/')}.so" if plain else super().get_ext_filename(name)


def _included(made, otherwise):
    """The project's files that the object file `made` was made of, as its compiler listed them (-MMD); `otherwise`
    before that."""
    listed = Path(made).with_suffix(".d")
    if not listed.exists():
        return otherwise
    names = re.split(r"(?<!\\)\s+", listed.read_text().partition(":")[2].replace("\\\n", " ").strip())
    own = [name.replace("\\ ", " ") for name in names if not os.path.isabs(name)]
    return own if all(map(os.path.exists, own)) else otherwise


def _sanitizers():
    chosen = [name for name in os.environ.get("VMHOST_SANITIZE", "").split(",") if name]
    for name in chosen:
        if name not in SANITIZERS:
            raise SystemExit(
                f"VMHOST_SANITIZE: expected some of {', '.join(SANITIZERS)}, joined by commas, got {name!r}"
            )
    return chosen


def _python_headers():
    """The folders of Python.h and of the internal headers; ends the build where the headers are missing."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise SystemExit(
            f"{include / 'Python.h'} is missing: {sys.executable} came without its C headers. Install them"
            " (python3.14-dev on Debian, python3.14-devel on Fedora) or point VMHOST_PYTHON at a Python that has them."
        )
    return [str(include), str(include / "internal")]


if sys.version_info < (3, 14):
    raise SystemExit(
        f"vmhost needs CPython 3.14 or newer, this is {sys.version.split()[0]}: interpreters with their own GIL "
        "crash in older ones. `make build` finds or fetches one."
    )
os.chdir(HERE)
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildInParallel, "build_py": BuildWithTasks})
