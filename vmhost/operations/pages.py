"""The dashboard's pages: reads the host, ranks, and fills the templates."""

import dataclasses
import logging
import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vmhost.operations.figures import RANKS, clock, count, duration, moment, rate, share, size
from vmhost.operations.settings import settings

LEVELS = {"all": 0, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999))


class Pages:
    """Each method returns the HTML of a page, or of its refreshed part; None: no such task."""

    def __init__(self, host, history, logs):
        self._host, self._history, self._logs = host, history, logs
        templates = FileSystemLoader(Path(__file__).parent / "templates")
        self._environment = Environment(
            loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._environment.filters.update(
            duration=duration, size=size, count=count, share=share, clock=clock, rate=rate, moment=moment
        )

    def overview(self, parts, query):
        return self.render("overview.html", self._overview(query))

    def overview_part(self, parts, query):
        return self.render("overview_part.html", self._overview(query))

    def vms(self, parts, query):
        return self.render("vms.html", self._vms())

    def vms_part(self, parts, query):
        return self.render("vms_part.html", self._vms())

    def task(self, parts, query):
        return self._task("task.html", parts["name"])

    def task_part(self, parts, query):
        return self._task("task_part.html", parts["name"])

    def log(self, parts, query):
        return self.render("log.html", self._log(query))

    def log_part(self, parts, query):
        return self.render("log_part.html", self._log(query))

    def settings(self, parts, query):
        return self.render("settings.html", {"groups": settings(self._host)})

    def render(self, name, values):
        """The HTML of a template. Reports, files and tasks may hold half surrogate pairs, which UTF-8 lacks."""
        text = self._environment.get_template(name).render(closed=self._host.closed, now=time.time(), **values)
        return text.encode(errors="backslashreplace").decode()

    def tasks(self, query):
        """The overview's numbers as plain values: seconds, bytes, and calls and errors per second."""
        values = self._overview(query)
        rows = [
            row
            | {"breaker": row["breaker"] and row["breaker"].state}
            | {"last_errors": [dataclasses.asdict(error) for error in row["last_errors"]]}
            for row in values["rows"]
        ]
        host = values["host"]
        return {"tasks": rows, "totals": values["totals"], "vms": len(host.vms), "memory": host.memory_bytes}

    def _overview(self, query):
        statistics = self._host.statistics()
        memory = _memory_by_task(statistics)
        rows = []
        for task in statistics.tasks.values():
            series = self._history.task(task.name)
            rows.append(
                {
                    "name": task.name,
                    "version": task.version,
                    "cpu": series.rate("cpu_s"),
                    "rate": series.rate("calls"),
                    "errors": series.rate("failures"),
                    "refused": series.rate("refused"),
                    "memory": memory.get(task.name, 0),
                    "calls": task.calls,
                    "failures": task.failures,
                    "p50": task.walls.quantile(0.5),
                    "p99": task.walls.quantile(0.99),
                    "queued": task.queued,
                    "running": task.running,
                    "breaker": task.breaker,
                    "last_errors": task.last_errors,
                }
            )
        by = query.get("by") if query.get("by") in RANKS else "cpu"
        rows.sort(key=lambda row: row["name"])
        if RANKS[by][1] is not None:
            rows.sort(key=RANKS[by][1], reverse=True)
        series = self._history.host
        totals = {
            "rate": series.rate("calls"),
            "errors": series.rate("failures"),
            "refused": series.rate("refused"),
            "cpu": series.rate("cpu_s"),
            "queued": sum(row["queued"] for row in rows),
            "running": sum(row["running"] for row in rows),
        }
        changes = list(self._history.breaker_changes)
        return {"host": statistics, "rows": rows, "by": by, "ranks": RANKS, "totals": totals, "changes": changes}

    def _vms(self):
        statistics = self._host.statistics()
        vms = sorted(statistics.vms, key=lambda vm: (vm.task is None, vm.task or "", vm.id))
        return {"vms": vms, "quarantined": statistics.quarantined}

    def _task(self, template, name):
        statistics = self._host.statistics()
        current = statistics.tasks.get(name)
        if current is None:
            return None
        others = (*statistics.draining, *statistics.replaced)
        versions = [current, *(task for task in others if task.name == name)]
        quantiles = [
            (title, [(task.walls.quantile(q), task.waits.quantile(q)) for task in versions]) for title, q in QUANTILES
        ]
        outcomes = sorted({outcome for task in versions for outcome in task.ended})
        values = {
            "name": name,
            "versions": versions,
            "ended": [task for task in statistics.replaced if task.name == name],
            "quantiles": quantiles,
            "outcomes": outcomes,
            "memory": _memory_by_task(statistics).get(name, 0),
            "longest": self._longest(name),
            "vms": [vm for vm in statistics.vms if vm.task == name],
            "changes": [change for change in list(self._history.breaker_changes) if change.task == name],
            "lines": self._logs.lines(task=name, limit=20),
        }
        return self.render(template, values)

    def _longest(self, name):
        try:
            return self._host.longest_calls(name)[:20]
        except KeyError:  # unloaded just now
            return ()

    def _log(self, query):
        level = query.get("level") if query.get("level") in LEVELS else "all"
        task, text = query.get("task") or None, query.get("text", "")
        lines = self._logs.lines(task=task, level=LEVELS[level], text=text)
        values = {"lines": lines, "level": level, "levels": LEVELS, "task": task, "text": text}
        return values | {"tasks": sorted(self._host.tasks)}


def _memory_by_task(statistics):
    memory = {}
    for vm in statistics.vms:
        if vm.task is not None:
            memory[vm.task] = memory.get(vm.task, 0) + vm.live_bytes
    return memory
