"""Builds the native parts. What the project is called and needs stands in pyproject.toml.

Which native parts there are and how each is compiled is described in tools/native_build.py. The shipped tasks come
along in vmhost/tasks. Three environment variables change the build: VMHOST_SANITIZE=address|undefined|thread adds that
sanitizer ("address,undefined" both), VMHOST_WERROR=1 turns warnings into errors, VMHOST_SYMBOLS=1 leaves symbols for
debuggers in what is linked. Object files with different sanitizers lie in different folders, so switching between them
never mixes them; those that were compiled with warnings as errors serve a plain build too. The latter is the default: a
compiler that knows more warnings than ours must not keep a user from an installation."""

import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if refusal := runpy.run_path(str(Path(__file__).resolve().with_name("vmhost") / "supported.py"))["refusal"]():
    sys.exit(refusal)

import fcntl

# Ctrl-C ends a build here and now, without setuptools' traceback; what is half made is made again.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import native_build
from native_build import BINDING, ENGINE, GENERATED


def extensions():
    """The project's native parts, in the order in which they can be linked."""
    sanitize = native_build.sanitizer_flags(_sanitizers())
    for name, part in native_build.INSTALLED.items():
        yield Extension(
            name,
            part.files(),
            depends=part.headers(),
            include_dirs=[*part.folders, *(native_build.python_headers() if part.python else [])],
            define_macros=list(native_build.DEFINES.items()),
            libraries=list(part.libraries),
            # Debian's Python asks for -O3 -Wall of its own; ours come last and win.
            extra_compile_args=[
                *native_build.LANGUAGE,
                *part.optimize,
                *part.flags,
                native_build.SYMBOLS,
                *native_build.HIDDEN,
                *part.warning_flags(),
            ],
            extra_link_args=["-pthread", *sanitize, *native_build.symbol_flags(sanitize), *part.link_flags],
        )


def _sanitizers():
    return native_build.sanitizers(os.environ.get("VMHOST_SANITIZE", ""))


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


class BuildWithTasks(build_py):
    """Takes along the tasks that `vmhost demo` runs, as vmhost/tasks, so that it runs without a checkout too."""

    def run(self):
        super().run()
        if not self.editable_mode:
            installed = Path(self.build_lib, "vmhost", "tasks")
            shutil.rmtree(installed, ignore_errors=True)
            shutil.copytree("tasks", installed, ignore=shutil.ignore_patterns("__pycache__"))


class SourcesOnce(sdist):
    """vmhost/bytecode and vmhost/engine are links in the archive too, so that it holds no file twice."""

    LINKS = ("vmhost/bytecode", "vmhost/engine")

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [path for path in files if not path.startswith(self.LINKS)])
        for link in self.LINKS:
            os.symlink(os.path.join("..", os.path.basename(link)), os.path.join(base_dir, link))


class Progress:
    """Tells on stderr how many of `count` C files are compiled, where VMHOST_PROGRESS=1 (tools/setup.sh) asks for it:
    on one line of a terminal, else a line for each quarter."""

    def __init__(self, count):
        self.asked, self.terminal = os.environ.get("VMHOST_PROGRESS") == "1", sys.stderr.isatty()
        self.done, self.count, self.lock = 0, count, threading.Lock()

    def one_more(self):
        with self.lock:
            self.done += 1
            quarter = self.done * 4 // self.count > (self.done - 1) * 4 // self.count
            if self.asked and (self.terminal or quarter):
                start, end = ("\r\033[K", "") if self.terminal else ("", "\n")
                print(f"{start}set-up:   {self.done} of {self.count} C files", end=end, file=sys.stderr, flush=True)

    def end(self):
        if self.asked and self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class BuildInParallel(build_ext):
    """Compiles the C files of an extension side by side, and only those that changed."""

    def finalize_options(self):
        super().finalize_options()
        self.build_temp = native_build.objects_folder(_sanitizers())
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
        native_build.write_commands()
        compiler = self.compiler
        compile_one = compiler.compile
        told = Progress(sum(len(extension.sources) or 1 for extension in self.extensions))  # 1: the binding's
        strict = os.environ.get("VMHOST_WERROR") == "1"
        sanitize = native_build.sanitizer_flags(_sanitizers())

        def compile_all(sources, output_dir=None, depends=None, **shared):
            def compile_source(source):
                [made] = compiler.object_filenames([source], output_dir=output_dir)
                flags = [*(shared.get("extra_postargs") or []), *native_build.instructions(source), *sanitize, "-MMD"]
                settings = repr((sys.version, shared.get("macros"), shared.get("include_dirs"), flags))

                def compile_it(more):
                    options = {**shared, "extra_postargs": [*flags, *more]}
                    compile_one([source], output_dir=output_dir, depends=depends, **options)

                native_build.compile_changed(made, source, settings, compile_it, strict=strict)
                told.one_more()
                return made

            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                return list(pool.map(compile_source, sources))

        compiler.compile = compile_all
        super().build_extensions()
        told.end()

    def build_extension(self, extension):
        if extension.name == BINDING:
            extension.sources = [self.write_binding()]
        if native_build.INSTALLED[extension.name].needs_engine:  # beside it, wherever both are installed
            library = Path(self.get_ext_fullpath(ENGINE)).resolve()
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
        plain = name.rpartition(".")[2] == ENGINE.rpartition(".")[2]  # asked for by both names
        return f"{name.replace('.', '/')}.so" if plain else super().get_ext_filename(name)


os.chdir(native_build.ROOT)
setup(
    ext_modules=list(extensions()),
    cmdclass={"build_ext": BuildInParallel, "build_py": BuildWithTasks, "sdist": SourcesOnce},
)
