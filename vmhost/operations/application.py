"""The dashboard as an ASGI application.

/                     overview: totals, charts, tasks by rank, breakers
/tasks/NAME           a task's report           /vms   all VMs with their states
/log                  the last lines            /settings   policies, and which values were set
/profile              takes and shows a profile (profile_pages.py)
/coverage[/FILE]      which lines and branches ran (coverage_pages.py)
/crashes[/ID]         crashes by cause, or the report of one (crash_pages.py)
/debugging, /debug    debugging sessions of this host; the page that a link opens (debugging/pages.py)
/tasks.json           the data of `vmhost top`
/part/...             parts of these pages that htmx refreshes
/series[?task=NAME]   numbers for the charts, as JSON
/metrics              Prometheus's format, or OpenMetrics    /healthz  /readyz
"""

from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from vmhost.operations import metrics
from vmhost.operations.access import Guard
from vmhost.operations.coverage_pages import CoveragePages
from vmhost.operations.crash_pages import Crashes
from vmhost.operations.debugging import pages as debugging_pages
from vmhost.operations.pages import Pages
from vmhost.operations.profile_pages import Profiles


def application(host, history, logs, token, names, port, debugging=None, sources=()):
    """The application for a Host, the History that samples it, a LogTail, and its Debugging if it allows that.
    `sources`: folders of tasks, for their coverage; other arguments as for Guard."""
    pages = Pages(host, history, logs)
    probes = _Probes(host)
    app = Starlette(
        routes=[
            Route("/", _html(pages.overview)),
            Route("/vms", _html(pages.vms)),
            Route("/log", _html(pages.log)),
            Route("/settings", _html(pages.settings)),
            Route("/tasks/{name}", _html(pages.task)),
            *Profiles(host, pages.render).routes(),
            *CoveragePages(host, pages.render, sources).routes(),
            *Crashes(host, pages.render).routes(),
            *debugging_pages.routes(debugging, pages.render, token is not None),
            Route("/part/overview", _html(pages.overview_part)),
            Route("/part/vms", _html(pages.vms_part)),
            Route("/part/log", _html(pages.log_part)),
            Route("/part/tasks/{name}", _html(pages.task_part)),
            Route("/series", _series(history)),
            Route("/tasks.json", _tasks(pages)),
            Route("/metrics", probes.metrics),
            Route("/healthz", probes.healthy),
            Route("/readyz", probes.ready),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ]
    )
    return Guard(app, token, names, port)


def _html(page):
    """A route for `page(parts of the path, query)`, which returns HTML, or None: not found."""

    async def endpoint(request):
        html = await run_in_threadpool(page, request.path_params, request.query_params)
        if html is None:
            return PlainTextResponse("no such task is loaded\n", 404)
        return HTMLResponse(html)

    return endpoint


def _tasks(pages):
    async def endpoint(request):
        return JSONResponse(await run_in_threadpool(pages.tasks, request.query_params))

    return endpoint


def _series(history):
    async def endpoint(request):
        task = request.query_params.get("task")
        return JSONResponse((history.host if task is None else history.task(task)).columns())

    return endpoint


class _Probes:
    def __init__(self, host):
        self._host = host

    async def metrics(self, request):
        content_type = metrics.accepted(request.headers.get("accept", ""))
        text = await run_in_threadpool(lambda: metrics.scrape(self._host, content_type))
        return Response(text, headers={"content-type": content_type})

    async def healthy(self, request):
        return PlainTextResponse("ok\n")

    async def ready(self, request):
        """503 while the host takes no calls: it is closed, or no VM could be booted."""
        if self._host.closed:
            return PlainTextResponse("the host is closed\n", 503)
        statistics = await run_in_threadpool(self._host.statistics)
        if statistics.boot_failures and not statistics.booted:
            return PlainTextResponse("no VM can be booted; see the log\n", 503)
        return PlainTextResponse("ok\n")
