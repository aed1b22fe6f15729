"""Crash reports: made of the dump of a process that died of a signal, and attributed to the task that it ran.

A host with a state folder leaves a dump there when its process crashes (vmhost/isolation/crash/dump.h). `collect` makes
a report of each: JSON in the folder `crashes`, readable by its owner. Reports of one cause have the same fingerprint:
the signal, the task, and the top functions of the Python and the native stack, without versions, lines or addresses.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from vmhost.masking import CurrentMasking, Masking
from vmhost.operations.posting import post

_log = logging.getLogger("vmhost")
_MAX_REPORTS = 1000  # in a folder; beyond it the oldest are deleted
_MAX_DUMP_BYTES = 4 << 20  # bytes read of a dump
_TOP = 5  # functions of each stack that enter the fingerprint
_PHASES = ("idle", "boot", "load", "call", "end")
_WEBHOOK_S = 10.0
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)')
_NATIVE = re.compile(r'\s*Binary file "(?P<file>[^"]*)"(?:, at (?P<name>[^ +]*)(?:\+0x[0-9a-f]+)?)?')
# Frames of the handler itself, and of what delivers signals to it.
_OURS = ("_Py_DumpStack", "_core.", "libc.so", "libpthread", "linux-vdso")


@dataclass(frozen=True, slots=True)
class VMStack:
    """The stacks of one VM, one for each of its threads, innermost frame first."""

    vm: int
    task: str
    version: str
    phase: str
    entry: str | None
    threads: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class CrashReport:
    """One crash. `task` is None if the crashing thread was not a VM's; `call` has entry, bytes and running_s of the
    call that ran there. `complete`: False if a second fault cut the dump off."""

    id: str
    fingerprint: str
    time: float
    pid: int
    signal: str
    task: str | None
    version: str | None
    phase: str | None
    call: dict[str, object] | None
    python: tuple[str, ...]
    native: tuple[str, ...]
    vms: tuple[VMStack, ...]
    log: tuple[str, ...]
    limits: dict[str, object] | None
    machine: dict[str, object] = field(default_factory=dict)
    complete: bool = True

    @property
    def title(self) -> str:
        """One line: what crashed, and where."""
        natives = _functions(self.native)
        where = self.python[0] if self.python else natives[0] if natives else "no stack"
        found = _FRAME.fullmatch(where)
        where = f"{found['name']} ({found['file']}:{found['line']})" if found else where
        return f"{self.signal} in {self.task or 'the host'}{f' {self.version}' if self.version else ''}: {where}"


@dataclass(frozen=True, slots=True)
class CrashGroup:
    """Crashes of one cause. `versions`: version -> crashes."""

    fingerprint: str
    title: str
    task: str | None
    count: int
    first: float
    last: float
    versions: dict[str, int]
    latest: str  # id of the newest report


class CrashFolder:
    """The reports in the folder `crashes` of the state folder `state`. `masking` (a Masking or CurrentMasking): masks
    more than the host did when it wrote its log, and than reports were when they were made. `webhook`: an http(s)
    address that gets each new report, as JSON by POST. `senders`: further receivers by name, called on a thread; they
    may raise OSError or ValueError (`sentry.Sentry.send`)."""

    def __init__(
        self,
        state: str | os.PathLike[str],
        *,
        masking: Masking | CurrentMasking | None = None,
        webhook: str | None = None,
        senders: dict[str, Callable[[CrashReport], None]] | None = None,
    ) -> None:
        self.folder = Path(state, "crashes")
        self._masking = masking or Masking((), ("token",))
        self._senders = dict(senders or {})
        if webhook is not None:
            self._senders[webhook] = functools.partial(_post, webhook)

    def collect(self) -> tuple[CrashReport, ...]:
        """Makes reports of existing dumps, which are then deleted. An unreadable dump is logged, and kept."""
        reports = []
        for dump in sorted(self.folder.glob("*.dump")):
            try:
                with dump.open("rb") as file:
                    text = file.read(_MAX_DUMP_BYTES).decode("utf-8", "replace")
                report = read_dump(text, dump.stat().st_mtime, self._masking)
                self._write(report)
                dump.unlink()
            except (OSError, ValueError) as error:
                _log.error("%s: no report can be made from it: %s", dump, error)
                with contextlib.suppress(OSError):
                    dump.rename(dump.with_suffix(".damaged"))
                continue
            _log.error("%s: %s", dump.parent, report.title)
            reports.append(report)
        if reports and self._senders:
            threading.Thread(target=self._send, args=(reports,), name="vmhost-crash-sender").start()
        return tuple(reports)

    def take_dump(self) -> None:
        """Sets the dump of a process that has just crashed aside for `collect`; otherwise the next host would do it."""
        dump = self.folder.parent / "crash.dump"
        with contextlib.suppress(OSError):
            if dump.stat().st_size > 0:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                dump.rename(self.folder / f"{time.time_ns()}.dump")

    def reports(self) -> tuple[CrashReport, ...]:
        """All reports, newest first. Damaged ones are left out and logged."""
        found = []
        for path in sorted(self.folder.glob("*.json"), reverse=True):
            try:
                report = _report(json.loads(path.read_text("utf-8")))
                found.append(replace(report, log=tuple(map(self._masking.text, report.log))))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                _log.error("%s: not a report of a crash: %s: %s", path, type(error).__name__, error)
        return tuple(sorted(found, key=lambda report: report.time, reverse=True))

    def report(self, name: str) -> CrashReport | None:
        """The report whose id is `name`, or begins with it; None if there is none."""
        return next((report for report in self.reports() if report.id.startswith(name)), None) if name else None

    def groups(self) -> tuple[CrashGroup, ...]:
        """Reports by cause, most crashes first."""
        return grouped(self.reports())

    def ranking(self) -> tuple[tuple[str, str, int], ...]:
        """(task, version, crashes), most crashes first; "" stands for the host itself."""
        counts: dict[tuple[str, str], int] = {}
        for report in self.reports():
            key = report.task or "", report.version or ""
            counts[key] = counts.get(key, 0) + 1
        return tuple((*key, count) for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def _write(self, report):
        old = sorted(self.folder.glob("*.json"))
        for path in old[: max(0, len(old) - _MAX_REPORTS + 1)]:
            path.unlink(missing_ok=True)
        path = self.folder / f"{report.id}.json"
        new = path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(report), file, indent=1)
        new.replace(path)

    def _send(self, reports):
        for report in reports:
            for name, send in self._senders.items():
                try:
                    send(report)
                except (OSError, ValueError) as error:
                    _log.error("%s: the report %s could not be sent: %s", name, report.id, error)


def _post(address, report):
    body = json.dumps({"title": report.title, **asdict(report)}).encode()
    post(address, body, {"Content-Type": "application/json"}, _WEBHOOK_S)


def grouped(reports: Iterable[CrashReport]) -> tuple[CrashGroup, ...]:
    """The CrashGroups of `reports`, given newest first."""
    by_cause: dict[str, list[CrashReport]] = {}
    for report in reports:
        by_cause.setdefault(report.fingerprint, []).append(report)
    groups = []
    for fingerprint, found in by_cause.items():
        versions: dict[str, int] = {}
        for report in found:
            versions[report.version or ""] = versions.get(report.version or "", 0) + 1
        newest = found[0]
        groups.append(
            CrashGroup(
                fingerprint=fingerprint,
                title=newest.title,
                task=newest.task,
                count=len(found),
                first=min(report.time for report in found),
                last=newest.time,
                versions=versions,
                latest=newest.id,
            )
        )
    return tuple(sorted(groups, key=lambda group: (-group.count, -group.last)))


# -- dumps -----------------------------------------------------------------------------------------------------------


def read_dump(text: str, written: float, masking: Masking | CurrentMasking) -> CrashReport:
    """The report for a dump's text; `written`: the file's time. ValueError: not a dump."""
    head, *rest = re.split(r"^== (\w+)\n", text, flags=re.MULTILINE)
    first, *lines = head.splitlines()
    if first != "VMHCRASH 1":
        raise ValueError("not a dump of this version of vmhost")
    parts = dict(zip(rest[::2], rest[1::2]))
    header = _fields(lines)
    number = _number(header.get("signal"))
    try:
        name = signal.Signals(number).name
    except ValueError:
        raise ValueError(f"there is no signal {number}") from None
    at = float(_number(header.get("time"))) or written
    task, version = header.get("task") or None, header.get("version") or None
    python = _frames(parts.get("python", ""))
    native = tuple(line.strip() for line in parts.get("native", "").splitlines() if _NATIVE.match(line))
    loaded = _loaded(parts.get("tasks", ""))
    call = None
    if "entry" in header:
        call = {
            "entry": header["entry"],
            "bytes": _number(header.get("bytes")),
            "running_s": _number(header.get("running_us")) / 1e6,
        }
    fingerprint = _fingerprint(name, task, python, native)
    return CrashReport(
        id=f"{int(at)}-{_number(header.get('pid'))}-{fingerprint[:8]}",
        fingerprint=fingerprint,
        time=at,
        pid=_number(header.get("pid")),
        signal=name,
        task=task,
        version=version,
        phase=_phase(header.get("phase")) if "phase" in header else None,
        call=call,
        python=python,
        native=native,
        vms=tuple(map(_vm, parts.get("vms", "").split("-- ")[1:])),
        log=tuple(masking.text(line) for line in parts.get("log", "").splitlines() if line),
        limits=loaded.get("tasks", {}).get(f"{task} {version}"),
        machine={
            "system": platform.platform(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory_bytes(),
            "python": loaded.get("python", ""),
            "vmhost": loaded.get("vmhost", ""),
        },
        complete="end" in parts,
    )


def _fields(lines):
    found = {}
    for line in lines:
        name, _, value = line.partition(" ")
        found.setdefault(name, value.strip())
    return found


def _number(text):
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _phase(text):
    number = _number(text)
    return _PHASES[number] if 0 <= number < len(_PHASES) else "idle"


def _frames(text):
    return tuple(line.strip() for line in text.splitlines() if line.startswith("  "))


def _vm(text):
    head, *threads = text.split("thread\n")
    fields = _fields(head.splitlines())
    return VMStack(
        vm=_number(fields.get("vm")),
        task=fields.get("task", ""),
        version=fields.get("version", ""),
        phase=_phase(fields.get("phase")),
        entry=fields.get("entry"),
        threads=tuple(map(_frames, threads)),
    )


def python_frame(line: str) -> tuple[str, int, str] | None:
    """(file, line, function) from a line of a report's Python stack; None: not a frame."""
    found = _FRAME.fullmatch(line)
    return (found["file"], int(found["line"]), found["name"]) if found else None


def _loaded(text):
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("tasks", {}), dict) else {}


def _fingerprint(signal_name, task, python, native):
    """32 hexadecimal digits, equal for crashes that look alike."""
    functions = []
    for line in python[:_TOP]:
        if found := _FRAME.fullmatch(line):
            functions.append(f"{re.sub(r'@[^/]*', '', found['file'])}:{found['name']}")
    parts = [signal_name, task or "", *functions, "", *_functions(native)[:_TOP]]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _functions(native):
    """ "library:function" of each native frame, starting with the one where the signal arrived."""
    found = []
    for line in native:
        frame = _NATIVE.match(line)
        file, name = os.path.basename(frame["file"] or ""), frame["name"] or ""
        if found or not (name in _OURS or file.startswith(_OURS)):
            found.append(f"{file}:{name}")
    return found


def _memory_bytes():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except OSError, ValueError:
        return 0


def _report(plain):
    """The CrashReport in a file's plain data."""
    vms = tuple(
        VMStack(**{**vm, "threads": tuple(tuple(map(str, thread)) for thread in vm["threads"])}) for vm in plain["vms"]
    )
    lists = {name: tuple(map(str, plain[name])) for name in ("python", "native", "log")}
    report = CrashReport(**{**plain, **lists, "vms": vms})
    if not all(isinstance(value, str) for value in (report.id, report.fingerprint, report.signal)):
        raise TypeError("its names are no texts")
    float(report.time)
    time.localtime(report.time)
    return report
