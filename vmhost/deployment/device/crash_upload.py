"""Reports crashes of the agent's process to the platform, over the agent's own connection (HTTP or the tunnel).

The reports are those that `vmhost crashes` shows (vmhost/operations/crash_reports.py). A device image lacks the code
that makes them: then the platform gets what the host knows: task, version, phase and signal.
"""

import hashlib
import json
import time
from dataclasses import asdict

MAX_KEPT = 20  # reports to be sent; beyond it the oldest are dropped
_MAX_BYTES = 48 << 10
_MAX_LINES = 40


def keep(memory, state, crashes):
    """Keeps reports of the crashes found in a state folder until they are sent. `crashes`: those of the Host."""
    before = memory.value("crash_reports")
    if before is None:  # an older agent's memory: it has sent what is there, but for the dumps
        memory.set_value("crash_reports", before := _ids(state))
    found = _reports(state, before) or [_brief(crash) for crash in crashes]
    if not found:
        return
    names = {}
    for task, slots in memory.tasks().items():
        for slot in ("current", "previous"):
            if slots[slot]:
                names.setdefault(slots[slot]["name"], task)
    for report in found:
        report["task"] = names.get(report["task"]) if report["task"] else None
    with memory.change():
        memory.set_value("crashes", [*memory.value("crashes", []), *found][-MAX_KEPT:])
        memory.set_value("crash_reports", _ids(state))


def send(memory, post):
    """Sends the kept reports, and deletes what was sent."""
    while waiting := memory.value("crashes", []):
        post(waiting[0])
        memory.set_value("crashes", waiting[1:])


def _ids(state):
    """Those of the reports in a state folder."""
    return sorted(path.stem for path in (state / "crashes").glob("*.json"))


def _reports(state, before):
    """What the existing dumps say, and the reports that were made of dumps since `before` (ids), as plain data. The
    agent may have been killed after a dump became a report."""
    if next((state / "crashes").glob("*.dump"), None) is None and set(_ids(state)) <= set(before):
        return []  # importing the report code would take memory
    try:
        from vmhost.operations.crash_reports import CrashFolder
    except ImportError:
        return []
    folder = CrashFolder(state)
    folder.collect()
    new = [report for report in reversed(folder.reports()) if report.id not in before]
    return [_bounded({"title": report.title, **asdict(report)}) for report in new]


def _brief(crash):
    cause = f"{crash.signal} {crash.task} {crash.phase}"
    return {
        "id": f"{int(time.time())}-{crash.pid}",
        "fingerprint": hashlib.sha256(cause.encode()).hexdigest()[:32],
        "title": str(crash),
        "time": time.time(),
        "signal": crash.signal,
        "task": crash.task or None,
        "version": crash.version or None,
        "phase": crash.phase,
    }


def _bounded(report):
    """The report, without other VMs' stacks and old log lines if it is too large to send."""
    report |= {name: list(report[name])[:_MAX_LINES] for name in ("python", "native")}
    report["log"] = list(report["log"])[-_MAX_LINES:]
    for name in ("vms", "log", "native", "limits", "python"):
        if len(json.dumps(report)) <= _MAX_BYTES:
            break
        report[name] = [] if name != "limits" else None
    return report
