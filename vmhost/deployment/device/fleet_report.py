"""A device's reports for the fleet views: calls, latencies and denials by version since the last report.

    fleet/PROCESS.json     {name of a task: [version, {what: number}, breaker]}, since the process began

Each process of the device that runs tasks writes its file; the agent sends the sum of the increments. A report keeps
its number, and the epoch of its number, until the platform confirms it, so one that is sent twice counts once. `what`
is `call:OUTCOME`, `wall:N` (calls of at most `bucket_end_s(8 * N + 6)`, and longer than those of N - 1), `wall_us` or
`denied`.
"""

import array
import contextlib
import json
import os
import secrets
import time

from vmhost.deployment.artifacts import replace_durably

REPORT_S = 60.0  # interval of a device's reports
MAX_TASKS = 200  # versions in a report
_MAX_FILES = 1000
_BUCKETS = 32


def counted(host, current):
    """{name: [version, {what: number}, state of the breaker]} of a Host, for the tasks of a store's list."""
    statistics, found = host.statistics(), {}
    for entry in current.values():
        task = statistics.tasks.get(entry["name"])
        if task is None or task.version != entry["version"]:
            continue
        counts = {f"call:{outcome}": number for outcome, number in task.ended.items() if number}
        for bucket, number in enumerate(array.array("Q", task.walls.counts)):
            if number:
                what = f"wall:{min(_BUCKETS, (bucket + 1) // 8)}"
                counts[what] = counts.get(what, 0) + number
        counts["wall_us"] = int(task.walls.total_s * 1e6)
        counts["denied"] = int(task.counters.get("denied", 0))
        found[entry["name"]] = [task.version, {what: number for what, number in counts.items() if number}]
        found[entry["name"]].append(task.breaker.state)
    return found


class FleetFile:
    """This process's file in the bundle store's `folder`."""

    def __init__(self, folder):
        self._path = folder / "fleet" / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._written = {}

    def write(self, counts):
        counts = {name: each for name, each in counts.items() if each[1]}
        if counts and counts != self._written:
            self._path.parent.mkdir(exist_ok=True)
            replace_durably(self._path, json.dumps(counts).encode())
            self._written = counts


class FleetReport:
    """Reports of the device with this Memory, whose store is in `folder`. Not thread-safe."""

    def __init__(self, memory, folder):
        self._memory, self._folder = memory, folder
        self._own = f"agent-{secrets.token_hex(4)}"
        self._next = 0.0

    def due(self):
        return time.monotonic() >= self._next

    def next(self, host, current):
        """The report to be sent; None if nothing is new."""
        kept = self._memory.value("fleet", {"number": 0, "seen": {}, "pending": None})
        if kept["pending"] is None:
            sources = self._sources() | {self._own: counted(host, current)}
            names = {entry["name"]: task for task, entry in current.items()}
            kept["pending"] = _new(sources, kept["seen"], names)
            if not kept["pending"]:
                self._next = time.monotonic() + REPORT_S
                return None
            kept["number"] += 1
            kept["epoch"] = self._memory.epoch
            kept["seen"] = {source: {name: each[:2] for name, each in of.items()} for source, of in sources.items()}
            self._memory.set_value("fleet", kept)
        epoch = kept.get("epoch") or self._memory.value("epoch") or self._memory.epoch  # a report of an older agent
        return {"epoch": epoch, "number": kept["number"], "tasks": kept["pending"]}

    def confirm(self):
        """The platform has taken the last report."""
        kept = self._memory.value("fleet")
        if kept is not None:
            self._memory.set_value("fleet", kept | {"pending": None})
        self._next = time.monotonic() + REPORT_S
        self._remove_ended(kept["seen"] if kept else {})

    def put_off(self):
        """The platform did not take the report now: tries again later."""
        self._next = time.monotonic() + REPORT_S

    def _sources(self):
        found = {}
        for path in sorted((self._folder / "fleet").glob("*.json"))[:_MAX_FILES]:
            if (plain := _read(path)) is not None:
                found[path.stem] = plain
        return found

    def _remove_ended(self, seen):
        """Removes files of ended processes whose counts the platform has."""
        for path in (self._folder / "fleet").glob("*.json"):
            if not os.path.exists(f"/proc/{path.stem.partition('-')[0]}"):
                counts = {name: each[:2] for name, each in (_read(path) or {}).items()}
                if counts == seen.get(path.stem, {}):
                    with contextlib.suppress(OSError):
                        path.unlink()


def _read(path):
    """The counts of a process; None if the file cannot be read."""
    try:
        plain = json.loads(path.read_bytes())
        return {
            str(name): [str(version), {str(what): int(number) for what, number in counts.items()}, str(breaker)]
            for name, (version, counts, breaker) in plain.items()
        }
    except OSError, ValueError, TypeError, AttributeError:
        return None


def _new(sources, seen, names):
    """[{task, version, counts, breaker}] since `seen`. A count that fell began from zero."""
    sums = {}
    for source, of in sources.items():
        for name, (version, counts, breaker) in of.items():
            if name not in names:
                continue
            before = seen.get(source, {}).get(name)
            before = before[1] if before is not None and before[0] == version else {}
            if any(number < before.get(what, 0) for what, number in counts.items()):
                before = {}
            sum_, breakers = sums.setdefault((names[name], version), ({}, set()))
            breakers.add(breaker)
            for what, number in counts.items():
                if number > before.get(what, 0):
                    sum_[what] = sum_.get(what, 0) + number - before.get(what, 0)
    return [
        {
            "task": task,
            "version": version,
            "counts": counts,
            "breaker": "open" if "open" in breakers else min(breakers, default="closed"),
        }
        for (task, version), (counts, breakers) in sorted(sums.items())[:MAX_TASKS]
        if counts
    ]
