"""The dashboard's crashes: causes by frequency, tasks by rank, and single reports."""

from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

from vmhost.masking import CurrentMasking
from vmhost.operations.crash_reports import CrashFolder, grouped


class Crashes:
    """Shows the reports in the state folder of `host` by `render(template name, values)`."""

    def __init__(self, host, render):
        masking = CurrentMasking(lambda: host.policy)
        self._folder = CrashFolder(host.state, masking=masking) if host.state is not None else None
        self._render = render

    def routes(self):
        return [Route("/crashes", self._page), Route("/crashes/{name}", self._report)]

    async def _page(self, request):
        return HTMLResponse(await run_in_threadpool(self._overview))

    async def _report(self, request):
        html = await run_in_threadpool(self._one, request.path_params["name"])
        return PlainTextResponse("no such report\n", 404) if html is None else HTMLResponse(html)

    def _overview(self):
        reports = self._folder.reports() if self._folder is not None else ()
        ranking = {}
        for report in reports:
            key = report.task or "", report.version or ""
            ranking[key] = ranking.get(key, 0) + 1
        values = {
            "kept": self._folder is not None,
            "groups": grouped(reports),
            "ranking": sorted(ranking.items(), key=lambda item: (-item[1], item[0])),
        }
        return self._render("crashes.html", values)

    def _one(self, name):
        report = self._folder.report(name) if self._folder is not None else None
        return None if report is None else self._render("crash.html", {"report": report})
