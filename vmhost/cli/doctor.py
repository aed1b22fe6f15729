"""`vmhost doctor`: whether this machine and this installation can run bundles, and how to fix what is wrong.

Every check is a function that yields Findings. A check that fails does not prevent the others.
"""

import os
import platform
import resource
import statistics
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from vmhost.cli import failures, keys
from vmhost.cli.inspect import size_text
from vmhost.supported import NEEDED, PYTHON

OK, REMARK, WRONG = "ok", "remark", "wrong"
MARKS = {OK: "ok", REMARK: "note", WRONG: "WRONG"}
STYLES = {OK: None, REMARK: "yellow", WRONG: "bold red"}
CALLS = 200
PROBE_YAML = """\
name: doctor
version: 1.0.0
entry: main:run
python: "{python}"
limits: {{memory: 32 MiB, wall_time: 5 s}}
"""
PROBE = """\
def run(value):
    if value == "compile":
        return compile("1", "text", "eval") is not None
    if value == "open":
        return open("/etc/passwd").read() != ""
    return value
"""


@dataclass(frozen=True)
class Finding:
    """One finding: its subject, its state, and advice if it is not well (else None). `detail`: shown only with --all
    while it is well."""

    name: str
    status: str
    text: str
    advice: str | None = None
    detail: bool = False


@click.command(short_help="Check this machine and installation.")
@click.option("--all", "everything", is_flag=True, help="Show all findings in full.")
@failures.command
def command(output, everything):
    """Check this machine and installation: Python, cores, memory, the native core, a VM from boot to end."""
    findings = []
    for check in (python, machine, installation, engine, trust, confinement, probe):
        try:
            findings += check()
        except Exception as error:
            # The doctor must not die of an ailment: an error is a finding.
            findings.append(
                Finding(
                    check.__name__,
                    WRONG,
                    f"{type(error).__name__}: {error}",
                    "report this, with all that doctor prints",
                )
            )
    healthy = all(finding.status != WRONG for finding in findings)
    output.document({"healthy": healthy, "findings": [asdict(finding) for finding in findings]})
    if not output.as_json:
        _show(output, findings, everything)
    return failures.DONE if healthy else failures.UNHEALTHY


def _show(output, findings, everything):
    """Prints the findings: good ones on one line that fits the terminal, others in full."""
    shortened = 0
    for finding in findings:
        brief = finding.status == OK and not everything
        if brief and finding.detail:
            shortened += 1
            continue
        line = f"{MARKS[finding.status]:6} {finding.name}: {finding.text}"
        if brief and len(line) > output.console.width:
            shortened += 1
            line = f"{line[: output.console.width - 3]}..."
        output.line(line, style=STYLES[finding.status])
        if finding.advice:
            output.line(f"       {finding.advice}")
    if shortened:
        output.line(f"       {shortened} more findings are good, or cut off here: vmhost doctor --all")


def python():
    """The interpreter that runs this."""
    version = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    fitting = sys.implementation.name == "cpython" and sys.version_info[:2] == PYTHON
    yield Finding("Python", OK if fitting else WRONG, version, None if fitting else f"vmhost needs {NEEDED}")
    for name, present, advice in (
        ("Py_GIL_DISABLED", "free-threaded", "use a Python with the GIL: each VM brings its own"),
        ("Py_DEBUG", "debug", "use a release build: a debug build has other structures"),
    ):
        if sysconfig.get_config_var(name):
            yield Finding("Python build", WRONG, present, advice)
    header = Path(sysconfig.get_path("include")) / "internal" / "pycore_interp.h"
    found = header.is_file()
    yield Finding(
        "Python headers",
        OK if found else REMARK,
        str(header.parents[1]) if found else f"none in {header.parents[1]}",
        (
            None
            if found
            else "only needed to build vmhost: install the package that brings them, python3.14-dev or the like"
        ),
        detail=True,
    )


def machine():
    """Cores, memory and the process's limits."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count()
    quota = _cgroup("cpu.max")
    text = f"{usable} usable of {present}"
    if quota and quota[0] != "max":
        text += f", limited to {int(quota[0]) / int(quota[1]):g} by its control group"
    yield Finding(
        "cores", OK if usable > 1 else REMARK, text, None if usable > 1 else "VMs will take turns on the one core"
    )
    import psutil

    from vmhost.runtime.machine import memory_bytes

    memory = psutil.virtual_memory()
    text = f"{size_text(memory.available)} free of {size_text(memory.total)}"
    if memory_bytes() < memory.total:
        text += f", limited to {size_text(memory_bytes())} by its control group"
    yield Finding("memory", OK, text)
    for name, kind, minimum in (("threads", resource.RLIMIT_NPROC, 256), ("open files", resource.RLIMIT_NOFILE, 256)):
        soft, _ = resource.getrlimit(kind)
        enough = soft == resource.RLIM_INFINITY or soft >= minimum
        yield Finding(
            name,
            OK if enough else REMARK,
            "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}",
            None if enough else f"raise it with ulimit; below {minimum} a host with many VMs may run out",
            detail=True,
        )


def installation():
    """The parts installed by `pip install` or set-up."""
    import vmhost
    from vmhost.extras import not_installed

    yield Finding("vmhost", OK, f"{vmhost.__version__}, {Path(vmhost.__file__).parent}")
    if lacking := not_installed():
        yield Finding("extras", OK, f"not installed: {', '.join(lacking)} (pip install 'vmhost[NAME]')", detail=True)
    try:
        from vmhost.isolation import _core
    except ImportError as error:
        yield Finding("native core", WRONG, str(error), "build it: make build, or pip install the project again")
    else:
        yield Finding("native core", OK, _core.__file__)
        if (refusal := _core.memory_refusal()) is not None:
            told, _, mend = refusal.partition(": ")
            yield Finding("memory limits", WRONG, f"no host starts: {told}", mend)
        if not _core.sqlite_counted():
            yield Finding(
                "SQLite",
                REMARK,
                "its memory is not charged to the VM that asks for it",
                "this SQLite hides its functions, or the process used it first: see memory-accounting.md in docs",
            )
        if uncounted := _core.libraries_uncounted():
            yield Finding(
                "libraries",
                REMARK,
                f"what {', '.join(uncounted)} take from the C library is not charged to the VM that asks for it",
                "they are linked into this Python: bound such a process from outside, see isolation.md in docs",
            )
    from vmhost.bytecode.acceptance import is_accepted
    from vmhost.bytecode.errors import BundleError
    from vmhost.bytecode.format import read_bundle
    from vmhost.errors import ConfigurationError
    from vmhost.host import SYSTEM_BUNDLE
    from vmhost.runtime.system_bundle import system_bundle

    path = SYSTEM_BUNDLE
    try:
        path = system_bundle(SYSTEM_BUNDLE)
        bundle = read_bundle(path, allow_unsigned=True)
    except BundleError as error:
        yield Finding("standard library", WRONG, str(error), f"make it again: python -m vmhost.stdlib {path}")
    except ConfigurationError as error:
        yield Finding("standard library", WRONG, str(error), None)
    else:
        size = size_text(path.stat().st_size)
        yield Finding(
            "standard library",
            OK,
            f"{path}, Python {bundle.manifest.exact_python}, {len(bundle.modules)} modules, {size}, "
            + ("made here" if is_accepted(bundle, path) else "not made here: the first host verifies it"),
        )


def engine():
    """The tensor engine: its CPU features and its parts."""
    try:
        from vmhost.engine import library
    except ImportError as error:
        yield Finding("engine", WRONG, str(error), "build it: make build, or pip install the project again")
        return
    backends, threads = library.backends(), library.threads()
    here = [backend.name + (" (in use)" if backend.current else "") for backend in backends if backend.available]
    missing = [backend.name for backend in backends if not backend.available]
    yield Finding(
        "engine",
        OK,
        f"backends {', '.join(here)}"
        + (f"; not on this CPU: {', '.join(missing)}" if missing else "")
        + f"; {threads} {'thread' if threads == 1 else 'threads'}",
    )
    yield from _operators()


def _operators():
    """The engine's operators: those with kernels, lowered ones, and what lowering saves."""
    from vmhost.engine import inventory
    from vmhost.engine.onnx import READERS
    from vmhost.engine.onnx.writing import OPS

    operators, lowered, pieces = inventory.operators(), inventory.lowered(), inventory.pieces()
    makings = [operator.making for operator in operators]
    kernels = inventory.kernels()
    yield Finding(
        "primitives",
        OK,
        f"{', '.join(inventory.primitives())}: {makings.count(inventory.KERNELS)} operators with kernels in the"
        " backends ("
        + ", ".join(f"{count} in {name}" for name, count in kernels.items())
        + f"), {makings.count(inventory.LOOPS)} written once",
        detail=True,
    )
    yield Finding(
        "lowered operators",
        OK,
        f"{len(lowered)} ({', '.join(lowered)}): {pieces.written} pieces to write instead of "
        f"{pieces.without_lowering} for {len(kernels)} backends",
        detail=True,
    )
    yield Finding(
        "model operators",
        OK,
        f"{len(READERS)} of ONNX ({', '.join(sorted(READERS))}), made of {len(OPS)} kinds of steps",
        detail=True,
    )


def trust():
    """Keys: without any, only unsigned bundles could run."""
    store = keys.trust_store(())
    names = ", ".join(sorted(store.keys.values()))
    yield Finding(
        "trusted keys",
        OK if names else REMARK,
        names or f"none in {keys.home() / 'trusted'}",
        (
            None
            if names
            else "make a key and trust it (vmhost keys new NAME --trust), or run with --allow-unsigned while developing"
        ),
    )


def confinement():
    """Whether a deployment platform here can confine builds of what is pushed to it."""
    from vmhost.deployment.cloud.confinement import why_not

    reason = why_not()
    yield Finding(
        "confined builds",
        OK if reason is None else REMARK,
        "by namespaces" if reason is None else f"not possible: {reason}",
        (
            None
            if reason is None
            else "only `vmhost cloud serve` needs it: let this user make user namespaces, or serve on another machine"
        ),
        detail=True,
    )


def probe():
    """A task from source to answer, in a VM that must boot, answer, and refuse what a sealed VM refuses."""
    import vmhost
    from vmhost.bytecode.format import TARGET
    from vmhost.compiler import compile_folder
    from vmhost.isolation import _core

    if _core.memory_refusal() is not None:
        return  # no VM boots, as installation() says
    with tempfile.TemporaryDirectory(prefix="vmhost-doctor-") as folder:
        (Path(folder) / "task.yaml").write_text(PROBE_YAML.format(python=TARGET), encoding="utf-8")
        (Path(folder) / "main.py").write_text(PROBE, encoding="utf-8")
        bundle = Path(folder) / "doctor.vmb"
        bundle.write_bytes(compile_folder(folder).to_bytes())
        with vmhost.Host(allow_unsigned=True) as host:
            started = time.perf_counter()
            task = host.load(bundle)
            answer = task("hello")
            first_s = time.perf_counter() - started
            yield Finding(
                "a VM boots",
                OK if answer == "hello" else WRONG,
                f"first answer after {first_s * 1e3:.1f} ms: {answer!r}",
            )
            times = []
            for _ in range(CALLS):
                started = time.perf_counter()
                task(None)
                times.append(time.perf_counter() - started)
            yield Finding("an empty call", OK, f"{statistics.median(times) * 1e6:.1f} us, median of {CALLS}")
            for attempt, what in (("compile", "compiles nothing"), ("open", "opens no file that was not granted")):
                try:
                    task(attempt)
                except (vmhost.TaskError, vmhost.PermissionDenied) as error:
                    yield Finding(f"a VM {what}", OK, error.type_name)
                else:
                    yield Finding(f"a VM {what}", WRONG, "it did", "do not run bundles here, and report this")
            started = time.perf_counter()
        yield Finding("the host closes", OK, f"in {(time.perf_counter() - started) * 1e3:.1f} ms")


def _cgroup(name):
    """The fields of a file of this process's control group (version 2); None if there is none."""
    try:
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        return (Path("/sys/fs/cgroup") / own[3:].lstrip("/") / name).read_text().split()
    except OSError, StopIteration:
        return None
