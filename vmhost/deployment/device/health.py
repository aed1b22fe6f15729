"""The outcome of calls of current versions: counted by each process of the device that runs tasks, summed by the agent.

    health/PROCESS.json     {name of a task: [release, calls, failures, seconds, most bytes of a VM, slow calls]},
                            since the process began

A process that ended leaves its file, as its calls still count. The agent removes files without current versions. All of
this is a hint for the platform: an unreadable file counts as none.
"""

import json
import os
import secrets

from vmhost.deployment.artifacts import replace_durably
from vmhost.deployment.bounds import Counted

_MAX_FILES = 1000


class HealthFile:
    """This process's file in the bundle store's `folder`. Nothing is written before the first call."""

    def __init__(self, folder):
        self._path = folder / "health" / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._written = {}

    def write(self, counts):
        """`counts`: {name: (release, Counted)}."""
        counts = {name: [release, *each] for name, (release, each) in counts.items() if each.calls}
        if counts and counts != self._written:
            self._path.parent.mkdir(exist_ok=True)
            replace_durably(self._path, json.dumps(counts).encode())
            self._written = counts


def counted(host, current):
    """{name: (release, Counted)} of a Host, for the tasks of a store's list that it runs."""
    statistics = host.statistics()
    by_name = {}
    for entry in current.values():
        task = statistics.tasks.get(entry["name"])
        if task is not None and task.version == entry["version"]:
            vms = [vm.peak_bytes for vm in statistics.vms if (vm.task, vm.version) == (task.name, task.version)]
            wall_s = round(task.counters["wall_s"], 6)
            over_s = (entry.get("rules") or {}).get("slow_over_s")
            slow = 0 if over_s is None else task.walls.longer_than(over_s)
            counts = Counted(task.calls, task.failures, wall_s, max(vms, default=0), slow)
            by_name[entry["name"]] = (entry["release"], counts)
    return by_name


def total(folder, current):
    """{name: Counted} over all processes, for current releases; deletes other files."""
    sums = dict.fromkeys(((entry["name"], entry["release"]) for entry in current.values()), Counted())
    files = sorted((folder / "health").glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for number, path in enumerate(files):
        is_of_current = False
        for name, (release, found) in _read(path).items():
            if (name, release) in sums:
                is_of_current = True
                sums[name, release] = sums[name, release].plus(found)
        if not is_of_current or number >= _MAX_FILES:
            path.unlink(missing_ok=True)
    return {name: counts for (name, _), counts in sums.items()}


def _read(path):
    try:
        plain = json.loads(path.read_bytes())
        return {
            name: (release, Counted(int(calls), int(failures), float(wall_s), int(peak_bytes), *map(int, slow)))
            for name, (release, calls, failures, wall_s, peak_bytes, *slow) in plain.items()
        }
    except OSError, ValueError, TypeError, AttributeError:
        return {}
