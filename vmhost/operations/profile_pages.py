"""The dashboard's profiles: a page that takes and shows one, and files for other tools.

/profile                                  the page
/part/profile?seconds=5&measure=cpu&task= takes one (without `seconds`: shows the last one again)
/profile/profile.svg?seconds=5            a file of a new one, or of the last one; .speedscope.json, .pb.gz, .folded
"""

from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from vmhost.operations import flames

SECONDS = (0.1, 60.0)
FILES = {
    "profile.svg": "image/svg+xml",
    "profile.speedscope.json": "application/json",
    "profile.pb.gz": "application/octet-stream",
    "profile.folded": "text/plain; charset=utf-8",
}
_MAX_ROWS = 30  # rows of the table


class Profiles:
    """Takes profiles of `host`, keeps the last one, and shows it by `render(template name, values)`."""

    def __init__(self, host, render):
        self._host, self._render = host, render
        self._last = None

    def routes(self):
        return [
            Route("/profile", self._page),
            Route("/part/profile", self._part),
            Route("/profile/{name}", self._file),
        ]

    async def _page(self, request):
        return HTMLResponse(self._render("profile.html", self._values(request.query_params)))

    async def _part(self, request):
        trouble = await run_in_threadpool(self._taken, request.query_params)
        values = self._values(request.query_params)
        return HTMLResponse(self._render("profile_part.html", values | {"trouble": trouble}))

    async def _file(self, request):
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse(f"there are {', '.join(FILES)}\n", 404)
        trouble = await run_in_threadpool(self._taken, request.query_params)
        if trouble is not None:
            return PlainTextResponse(f"{trouble}\n", 409)
        profile = self._last
        if profile is None:
            return PlainTextResponse("no profile was taken yet; ask with ?seconds=5\n", 404)
        data = flames.form_of(name)(profile, _measure(request.query_params))
        return Response(data, headers={"content-type": FILES[name]})

    def _taken(self, query):
        """Takes a profile if the query asks for one; returns the problem, or None."""
        if "seconds" not in query:
            return None
        try:
            seconds = float(query["seconds"])
        except ValueError:
            seconds = -1.0
        if not SECONDS[0] <= seconds <= SECONDS[1]:
            return f"seconds: expected {SECONDS[0]} to {SECONDS[1]:.0f}, got {query['seconds']!r}"
        try:
            profiling = self._host.profile()
            profiling.wait(seconds)
            self._last = profiling.stop()
        except (OSError, RuntimeError) as error:
            return str(error)
        return None

    def _values(self, query):
        profile, measure, trouble = self._last, _measure(query), None
        values = {"measure": measure, "measures": flames.MEASURES, "profile": profile, "trouble": trouble, "task": None}
        if profile is None:
            return values | {"tasks": (), "flames": "", "rows": (), "total": 0}
        task = query.get("task") if query.get("task") in profile.tasks else None
        rows = self_times(profile, measure, task)
        return values | {
            "task": task,
            "tasks": profile.tasks,
            "flames": flames.flame_graph(profile, measure, task),
            "rows": rows[:_MAX_ROWS],
            "total": sum(spent for _, spent in rows),
        }


def self_times(profile, measure, task=None):
    """(frame, seconds) of each line by its self time, without its calls, longest first."""
    spent = {}
    for stack, node in profile.stacks():
        if task is None or stack[0].name == task:
            spent[stack[-1]] = spent.get(stack[-1], 0) + (node.cpu_s if measure == "cpu" else node.wall_s)
    return sorted(((frame, time) for frame, time in spent.items() if time > 0), key=lambda row: -row[1])


def _measure(query):
    return query.get("measure") if query.get("measure") in flames.MEASURES else "cpu"
