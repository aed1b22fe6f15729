"""The dashboard's coverage: which lines and branches of tasks ran, shown in their sources if these are available.

/coverage                  tasks and files, by the share that ran
/coverage/TASK@VERSION/... the lines of a file

Bundles have no sources. `sources`: folders of tasks as they were compiled; without them the pages show functions and
line numbers.
"""

import collections

from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

from vmhost import ConfigurationError
from vmhost.source_coverage import TaskSources, report_of


class CoveragePages:
    """Shows `host.coverage()` by `render(template name, values)`."""

    def __init__(self, host, render, sources=()):
        self._host, self._render, self._folders = host, render, tuple(sources)
        self._tasks = None  # TaskSources of those folders, compiled on first use

    def routes(self):
        return [Route("/coverage", self._page), Route("/coverage/{file:path}", self._file)]

    async def _page(self, request):
        return HTMLResponse(await run_in_threadpool(self._overview))

    async def _file(self, request):
        html = await run_in_threadpool(self._lines, request.path_params["file"])
        return PlainTextResponse("there is no coverage of this file\n", 404) if html is None else HTMLResponse(html)

    def _sources(self):
        if self._tasks is None:
            self._tasks = [TaskSources(folder) for folder in self._folders]
        return self._tasks

    def _overview(self):
        ran, trouble, rows = self._host.coverage(), None, []
        try:
            with report_of(ran, self._sources()) as (report, arcs, _):
                files = {path: file for task in self._sources() for file, path in task.files.items()}
                for path in arcs:
                    rows.append(_shares(report, path) | {"file": files[path], "shown": True})
        except (ImportError, ConfigurationError, OSError, ValueError) as error:
            trouble, rows = str(error), []
        known = {row["file"] for row in rows}
        functions, lines = collections.Counter(), collections.defaultdict(set)
        for (file, _, _), of in ran.functions.items():
            functions[file] += bool(of.lines)
            lines[file] |= of.lines
        rows += [
            {"file": file, "shown": False, "ran": len(lines[file]), "functions": functions[file]}
            for file in functions
            if file not in known
        ]
        rows.sort(key=lambda row: row["file"])
        values = {"rows": rows, "trouble": trouble, "full": ran.full, "shares": self._shares_of_calls()}
        return self._render("coverage.html", values)

    def _shares_of_calls(self):
        """(task, share of its calls that are recorded) of all loaded tasks."""
        return [(name, self._host.policy.for_task(name).coverage) for name in sorted(self._host.tasks)]

    def _lines(self, file):
        ran, trouble = self._host.coverage(), None
        try:
            path = next((task.files[file] for task in self._sources() if file in task.files), None)
            if path is not None:
                with report_of(ran, self._sources()) as (report, _, _):
                    shares, rows = _shares(report, path), _marked(report, path)
                return self._render("coverage_file.html", {"file": file, "lines": rows, "trouble": None} | shares)
        except (ImportError, ConfigurationError, OSError, ValueError) as error:
            trouble = str(error)
        functions = sorted(
            (first, name, sorted(of.lines)) for (where, name, first), of in ran.functions.items() if where == file
        )
        if not functions:
            return None
        values = {"file": file, "lines": None, "functions": functions, "trouble": trouble}
        return self._render("coverage_file.html", values)


def _shares(report, path):
    """The share of a source that ran, from coverage.py."""
    _, statements, _, missing, _ = report.analysis2(str(path))
    branches = report.branch_stats(str(path)).values()
    total, taken = sum(total for total, _ in branches), sum(taken for _, taken in branches)
    there = len(statements) + total
    return {
        "statements": len(statements),
        "ran": len(statements) - len(missing),
        "branches": total,
        "taken": taken,
        "share": (len(statements) - len(missing) + taken) / there if there else 1.0,
    }


def _marked(report, path):
    """(number, text, "ran", "part", "missing" or "", explanation) of each line."""
    _, statements, _, missing, _ = report.analysis2(str(path))
    branches = report.branch_stats(str(path))
    rows = []
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        total, taken = branches.get(number, (0, 0))
        if number in missing:
            mark, means = "missing", "did not run"
        elif number not in statements:
            mark, means = "", ""
        elif taken < total:
            mark, means = "part", f"{taken} of {total} ways on were taken"
        else:
            mark, means = "ran", "ran"
        rows.append((number, text, mark, means))
    return rows
