"""The environments: how to start a program in each, and what they need."""

import ctypes
import functools
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROBE = ("-m", "tests.environments.probe")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Environment:
    """`program`: the arguments of Python, before the report and the number of VMs. `prefix`: a command before Python.
    `enter`: called in the new process before it starts Python. `needs`: why it cannot be made here, or None: it can.
    `refusal`: a part of the one error with which a host must refuse it. `quick`: among those of `.ci/run`. `vms`: VMs
    to boot and end."""

    name: str
    program: tuple = PROBE
    prefix: tuple = ()
    options: tuple = ()
    variables: dict = field(default_factory=dict)
    enter: Callable | None = None
    needs: Callable = lambda folder: None
    refusal: str | None = None
    quick: bool = False
    vms: int = 200


# -- what is needed ----------------------------------------------------------------------------------------------------


def _root(_folder=None):
    return None if os.geteuid() == 0 else "needs root"


def _program(name):
    return lambda folder: None if shutil.which(name) else f"needs the program {name}"


def _may_be_real_time(_folder):
    def child():
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

    return _refused(child, "a real-time policy (CAP_SYS_NICE)")


def _refused(child, what):
    """None if `child` may be done in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return None if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else f"needs {what}"


# -- allocators --------------------------------------------------------------------------------------------------------


@functools.cache
def _library(folder, name):
    return next(iter(sorted(Path(folder).glob(f"root/usr/lib/**/{name}.so*"))), None)


def _preloads(name):
    return Environment(
        name.removeprefix("lib"),
        variables={"LD_PRELOAD": lambda folder: str(_library(folder, name))},
        needs=lambda folder: None if _library(folder, name) else f"needs {name} (tools/environments.sh)",
        quick=name == "libjemalloc",
    )


def _python_malloc(name):
    return Environment(
        f"PYTHONMALLOC={name}",
        variables={"PYTHONMALLOC": name},
        refusal="PYTHONMALLOC=mimalloc" if "mimalloc" in name else None,
        quick=name in ("malloc", "mimalloc"),
    )


# -- limits of the process ---------------------------------------------------------------------------------------------


def _limit(name, kind, value, **options):
    def enter():
        resource.setrlimit(kind, (value, value))

    return Environment(name, enter=enter, **options)


def _one_core():
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


def _real_time(name, policy, priority):
    def enter():
        _one_core()
        os.sched_setscheduler(0, policy, os.sched_param(priority))

    return Environment(f"{name} {priority} on one core", enter=enter, needs=_may_be_real_time, quick=priority == 1)


# (version, where it is mounted, the file with the limit, a file that only a mounted hierarchy has)
_GROUPS = (
    ("1", Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("2", Path("/sys/fs/cgroup"), "memory.max", "cgroup.controllers"),
)


def _folder(mount):
    return mount / f"vmhost-environments-{os.getpid()}"


def _group(version, mount, limit, mark):
    folder = _folder(mount)

    def needs(_folder):
        try:
            if (mount / mark).exists():
                folder.mkdir(exist_ok=True)
                (folder / limit).write_text(str(256 << 20))
                return None
        except OSError:
            pass
        return f"needs a control group of version {version} for memory that this user may make"

    def enter():
        (folder / "cgroup.procs").write_text(str(os.getpid()))

    return Environment(f"256 MiB by a control group of version {version}", enter=enter, needs=needs)


def remove_groups():
    for _, mount, *_ in _GROUPS:
        if _folder(mount).is_dir():
            _folder(mount).rmdir()


# -- privileges --------------------------------------------------------------------------------------------------------

_NOBODY = 65534


def _become_nobody():
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def _few_threads():
    """RLIMIT_NPROC holds for ordinary users only."""
    resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
    _become_nobody()


def _readable_by_nobody(_folder):
    if _root() is not None:
        return _root()

    def child():
        _become_nobody()
        os.listdir(ROOT)
        subprocess.run([sys.executable, "-c", "import vmhost"], check=True, cwd=ROOT, capture_output=True)

    return _refused(child, "a checkout and a Python that every user may read")


# Numbers of system calls that containers or services refuse, by machine.
_CALLS = {
    "x86_64": (0xC000003E, [101, 141, 142, 144, 203, 250, 272, 298, 310, 311, 314, 319, 321, 323, 425, 426, 427]),
    "aarch64": (0xC00000B7, [117, 140, 118, 119, 122, 219, 97, 241, 270, 271, 274, 279, 280, 282, 425, 426, 427]),
}


def _filter_calls():
    """Refuses ptrace, setpriority, sched_setparam and its kind, keyctl, unshare, perf_event_open, process_vm_*,
    sched_setattr, memfd_create, bpf, userfaultfd and io_uring with EPERM."""
    architecture, numbers = _CALLS[platform.machine()]
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, 0x7FFF0000), (0x20, 0, 0, 0)]
    for index, number in enumerate(numbers):
        program.append((0x15, len(numbers) - index, 0, number))
    program += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | 1)]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "prctl")


def _hides(paths):
    """A command that runs the rest without what is at `paths`, in mounts of its own."""
    mounts = " && ".join(f"mount -t tmpfs -o mode=555,size=4k none {path}" for path in paths)
    return ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh")


def _may_mount(_folder):
    if shutil.which("unshare") is None:
        return "needs the program unshare"
    done = subprocess.run([*_hides(["/dev/shm"]), "true"], capture_output=True)
    return None if done.returncode == 0 else "needs the privilege to mount (root)"


def _block_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _close_streams():
    os.closerange(0, 3)


# -- servers and event loops -------------------------------------------------------------------------------------------


def _packages(*names):
    return lambda folder: (
        None
        if all((Path(folder) / "packages" / name).exists() for name in names)
        else f"needs {', '.join(names)} (tools/environments.sh)"
    )


def _server(name, *packages, **options):
    return Environment(
        name,
        program=("-m", "tests.environments.servers", name.replace(" ", "_")),
        needs=_packages(*packages),
        **options,
    )


ENVIRONMENTS = [
    Environment("plain", quick=True),
    *(_preloads(name) for name in ("libjemalloc", "libtcmalloc_minimal", "libmimalloc")),
    *(
        _python_malloc(name)
        for name in (
            "pymalloc",
            "malloc",
            "debug",
            "pymalloc_debug",
            "malloc_debug",
            "mimalloc",
            "mimalloc_debug",
        )
    ),
    Environment("glibc's MALLOC_PERTURB_ and one arena", variables={"MALLOC_PERTURB_": "165", "MALLOC_ARENA_MAX": "1"}),
    Environment("-X dev", options=("-X", "dev"), quick=True),
    Environment("-X tracemalloc", options=("-X", "tracemalloc=5"), quick=True),
    Environment(  # its file: coverage deletes and makes it, so /dev/null would be gone
        "coverage",
        program=("-m", "coverage", "run", *PROBE),
        variables={"COVERAGE_FILE": lambda folder: f"{folder}/coverage"},
    ),
    Environment("sys.monitoring", program=("-m", "tests.environments.monitored")),
    Environment("-O", options=("-O",)),
    Environment("faulthandler", options=("-X", "faulthandler")),
    _limit("a stack of 256 KiB", resource.RLIMIT_STACK, 256 << 10),
    _limit("a stack of 64 MiB", resource.RLIMIT_STACK, 64 << 20),
    _limit("an unlimited stack", resource.RLIMIT_STACK, resource.RLIM_INFINITY, quick=True),
    _limit("ulimit -v 1 GiB", resource.RLIMIT_AS, 1 << 30, quick=True),
    _limit("ulimit -n 64", resource.RLIMIT_NOFILE, 64, quick=True),
    _limit("no core dumps, small files", resource.RLIMIT_FSIZE, 1 << 20),
    Environment("ulimit -u 60", enter=_few_threads, needs=_readable_by_nobody),
    Environment("one core", enter=_one_core, quick=True),
    _real_time("SCHED_FIFO", os.SCHED_FIFO, 1),
    _real_time("SCHED_FIFO", os.SCHED_FIFO, 50),
    _real_time("SCHED_RR", os.SCHED_RR, 10),
    Environment("SCHED_BATCH", enter=lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))),
    Environment("SCHED_IDLE", enter=lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))),
    *(_group(*group) for group in _GROUPS),
    Environment("an unprivileged user", enter=_become_nobody, needs=_readable_by_nobody),
    Environment("seccomp", enter=_filter_calls, quick=True),
    Environment("no /proc and no /dev/shm", prefix=_hides(["/proc", "/dev/shm"]), needs=_may_mount, quick=True),
    Environment("all signals blocked", enter=_block_signals, quick=True),
    Environment("no streams", enter=_close_streams),
    _server("gunicorn", "gunicorn"),
    _server("gunicorn preload", "gunicorn"),
    _server("uvicorn"),
    _server("celery", "celery"),
    _server("gevent", "gevent", quick=True),
    _server("uvloop", "uvloop"),
]
