"""Builds the test programs in C, and runs them: those beside this file, of the core's parts without CPython, and those
in engine/, of the engine, and in triggers/, patterns/ and features/, of the pipeline's parts in C.

    python tests/native/run.py core [none|address|undefined|thread|address,undefined] ...
    python tests/native/run.py engine [none|address|undefined|thread|address,undefined] ...
    python tests/native/run.py triggers [none|address|undefined|thread|address,undefined] ...
    python tests/native/run.py features [none|address|undefined|thread|address,undefined] ...
    python tests/native/run.py patterns [none|address|undefined|thread|address,undefined] ...

Without a sanitizer's name: each of them, and `none` for all but the engine. The engine without a sanitizer is
what test_polls.c measures: every source includes polls.h. How C is compiled is described in tools/native_build.py;
object files stay in build/native_tests, so that the next run compiles what changed."""

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import native_build
from native_build import CORE_TESTS, ENGINE_TESTS, FEATURE_TESTS, INSTALLED, PATTERN_TESTS, TRIGGER_TESTS

HERE = "tests/native"
BUILD = "build/native_tests"
COMPILER = os.environ.get("CC", "gcc")
FAILING_CALLS = f"{HERE}/failing_calls.c"  # answers for these
FAILING = ("malloc", "calloc", "realloc", "strdup", "strndup", "aligned_alloc", "pread", "pwrite")
WRAPS = [f"-Wl,--wrap={name}" for name in FAILING]
GREEDY_LIBRARY = f"{HERE}/greedy_library.c"  # stands for a foreign library that allocates
PROFILE = native_build.Part(("vmhost/isolation/profile/*.c", "vmhost/isolation/lanes/critical.c")).files()
LANES = native_build.Part(("vmhost/isolation/lanes/*.c",)).files()
PYTHON = f"{HERE}/python"  # a stub of CPython
OBJECTS = (f"{PYTHON}/objects.c", f"{PYTHON}/errors.c")
RECORDING = ("vmhost/isolation/seal/recording.c", "vmhost/isolation/lanes/critical.c")
SAMPLER = ("vmhost/isolation/vm/sampler.c", "vmhost/isolation/lanes/clock.c")
# Of programs that draw networks or files at random: a part of their rounds where only races are looked for, from the
# same seed. The address and undefined-behaviour sanitizers, and builds without one, run all of them.
THREAD_ROUNDS = {"test_bands": ("20261122", "80"), "test_model_fuzz": ("20261122", "1000")}
# The files that run VMs; test_vms.c builds them with a stub of CPython.
VMS = [f"vmhost/isolation/{name}.c" for name in ("vm/vm", "vm/stop", "vm/threads", "seal/waits", "crash/starvation")]


@dataclass(frozen=True)
class Program:
    """A test program: its own C file, `name` without the suffix, and the `sources` that it tests or needs."""

    name: str
    sources: tuple
    wraps: tuple = ()  # functions of libc that the program stands for itself
    null_for_too_much: bool = False  # malloc of the sanitizers gives NULL for what is too large, as libc's does
    library: str | None = None  # a C file that becomes a shared library of its own


def core_programs():
    fake_vm = f"{HERE}/fake_vm.c"
    meter = ("lanes/meter.c", "lanes/critical.c")
    memory = ("memory/library_memory.c", *meter)
    return [
        Program(f"{HERE}/test_lane", (*LANES, fake_vm)),
        Program(f"{HERE}/test_spin", ("vmhost/isolation/lanes/spin.c",)),
        Program(f"{HERE}/test_vms", (*LANES, *VMS, f"{HERE}/fake_guest.c", f"{PYTHON}/python.c", f"{PYTHON}/errors.c")),
        Program(f"{HERE}/test_faults", (*LANES, fake_vm, FAILING_CALLS)),
        Program(f"{HERE}/test_profile", (*PROFILE, FAILING_CALLS)),
        Program(f"{HERE}/test_holdings", (*PROFILE, FAILING_CALLS)),
        Program(f"{HERE}/test_sampler", (*PROFILE, *SAMPLER, FAILING_CALLS)),
        Program(f"{HERE}/test_dump", ("vmhost/isolation/crash/dump.c",), wraps=("open", "write")),
        Program(f"{HERE}/test_cover", (*PROFILE, "vmhost/isolation/vm/cover.c", *OBJECTS, FAILING_CALLS)),
        Program(f"{HERE}/test_memory", tuple(f"vmhost/isolation/{name}" for name in ("memory/memory.c", *meter))),
        Program(f"{HERE}/test_recording", (*RECORDING, *OBJECTS), wraps=("getrandom",)),
        Program(
            f"{HERE}/test_library_memory",
            (*(f"vmhost/isolation/{name}" for name in memory), FAILING_CALLS),
            null_for_too_much=True,
            library=GREEDY_LIBRARY,
        ),
    ]


def engine_programs():
    engine = INSTALLED[native_build.ENGINE].files()
    tests = [source for source in ENGINE_TESTS.files() if Path(source).name.startswith("test_")]
    return [Program(source.removesuffix(".c"), (*engine, FAILING_CALLS)) for source in tests]


def trigger_programs():
    core = native_build.Part(("vmhost/pipeline/triggers/core/*.c",)).files()
    return [Program(source.removesuffix(".c"), tuple(core)) for source in TRIGGER_TESTS.files()]


def feature_programs():
    core = native_build.Part(("vmhost/pipeline/features/core/*.c",)).files()
    return [Program(source.removesuffix(".c"), (*core, FAILING_CALLS)) for source in FEATURE_TESTS.files()]


def pattern_programs():
    shared = [f"vmhost/pipeline/triggers/core/{name}.c" for name in ("memory", "table")]
    core = native_build.Part(("vmhost/pipeline/patterns/core/*.c",)).files()
    return [Program(source.removesuffix(".c"), (*core, *shared)) for source in PATTERN_TESTS.files()]


class Build:
    """Object files and programs of one part with the same sanitizers."""

    def __init__(self, folder, part, sanitizers, flags, libraries):
        self.folder = Path(folder)
        shared = sanitizers and part is not CORE_TESTS  # whose sources include a stub of Python.h here
        self.built = Path(native_build.objects_folder(sanitizers)) if shared else None
        self.sanitize = native_build.sanitizer_flags(sanitizers)
        self.flags = [
            *native_build.LANGUAGE,
            *(f"-D{name}={value}" for name, value in native_build.DEFINES.items()),
            *(f"-I{folder}" for folder in part.folders),
            *part.optimize,
            *part.flags,
            native_build.SYMBOLS,
            "-pthread",
            *part.warning_flags(),
            *flags,
        ]
        self.libraries = [f"-l{name}" for name in libraries]

    def programs(self, programs):
        """Builds them side by side; the paths of the executables."""
        sources = {source for program in programs for source in (*program.sources, f"{program.name}.c")}
        sources.update(program.library for program in programs if program.library)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(self.compile, sorted(sources)))
            return list(pool.map(self.link, programs))

    def object(self, source):
        """Where the object file is, or is to be made: that of sanitize_core.sh, if it is up to date."""
        name = f"{source.removesuffix('.c')}.o"
        built = self.built and self.built / name
        up_to_date = built and native_build.newer_than(built, native_build.ROOT / source) is None
        return built if up_to_date else self.folder / name

    def compile(self, source):
        made = self.object(source)
        if made.parts[: len(self.folder.parts)] != self.folder.parts:
            return
        made.parent.mkdir(parents=True, exist_ok=True)
        position = ["-fPIC"] * (source == GREEDY_LIBRARY)
        command = [COMPILER, *self.flags, *native_build.instructions(source), *self.sanitize, *position]
        native_build.compile_changed(
            made,
            source,
            repr(command),
            lambda more: call([*command, *more, "-MMD", "-c", source, "-o", str(made)]),
            strict=True,
        )

    def link(self, program):
        made = self.folder / Path(program.name).name
        objects = [str(self.object(source)) for source in (*program.sources, f"{program.name}.c")]
        wraps = [f"-Wl,--wrap={name}" for name in program.wraps] + (WRAPS if FAILING_CALLS in program.sources else [])
        beside = []
        if program.library:
            library = made.with_name(f"lib{Path(program.library).stem}.so")
            shared = ["-shared", "-pthread", "-Wl,-z,relro,-z,now", *self.sanitize]
            call([COMPILER, str(self.object(program.library)), *shared, "-o", str(library)])
            beside = [str(library), "-Wl,-rpath,$ORIGIN"]
        call([COMPILER, *objects, *beside, "-pthread", *wraps, *self.sanitize, *self.libraries, "-o", str(made)])
        return made


def call(command):
    if subprocess.run(command).returncode:
        raise SystemExit(1)


def run(executable, program, sanitizers):
    rounds = THREAD_ROUNDS.get(executable.name, ()) if sanitizers == ["thread"] else ()
    options = ["allocator_may_return_null=1"] if program.null_for_too_much else []
    environment = {"ASAN_OPTIONS": ":".join(options), "TSAN_OPTIONS": ":".join(["halt_on_error=1", *options])}
    done = subprocess.run([executable, *rounds], env={**os.environ, **environment})
    if done.returncode:
        raise SystemExit(f"{executable}: exit status {done.returncode}")


def main(which, *chosen):
    if which == "core":
        part, programs, libraries = CORE_TESTS, core_programs(), ()
        chosen = chosen or ("none", *native_build.SANITIZERS)
    elif which == "triggers":
        part, programs, libraries = TRIGGER_TESTS, trigger_programs(), ()
        chosen = chosen or ("none", *native_build.SANITIZERS)
    elif which == "features":
        part, programs, libraries = FEATURE_TESTS, feature_programs(), ("m",)
        chosen = chosen or ("none", *native_build.SANITIZERS)
    elif which == "patterns":
        part, programs, libraries = PATTERN_TESTS, pattern_programs(), ()
        chosen = chosen or ("none", *native_build.SANITIZERS)
    else:
        part, programs, libraries = ENGINE_TESTS, engine_programs(), INSTALLED[native_build.ENGINE].libraries
        chosen = chosen or tuple(native_build.SANITIZERS)
    for names in chosen:
        sanitizers = [] if names == "none" else native_build.sanitizers(names, "tests/native/run.py")
        polls = native_build.POLLS if which == "engine" and not sanitizers else []
        folder = f"{BUILD}/{which}-{'-'.join(sanitizers) or 'none'}"
        executables = Build(folder, part, sanitizers, polls, libraries).programs(programs)
        print(f"sanitizer: {names}", flush=True)
        # Others look at times: the core's (test_spin), and the engine's without a sanitizer (test_polls).
        with ThreadPoolExecutor((os.cpu_count() or 1) if which == "engine" and sanitizers else 1) as pool:
            list(pool.map(run, executables, programs, [sanitizers] * len(programs)))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("core", "engine", "features", "triggers", "patterns"):
        raise SystemExit(__doc__)
    os.chdir(native_build.ROOT)
    Path(BUILD).mkdir(parents=True, exist_ok=True)
    with open(Path(BUILD, "lock"), "w") as lock:  # two runs in one checkout take turns
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(*sys.argv[1:])
