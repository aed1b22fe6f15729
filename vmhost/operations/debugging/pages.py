"""Debugging in a browser: the device's page, where sessions are offered, consented to and ended, and the client's page,
which a link opens.

/debugging                    waiting and active sessions, the audit; buttons (the dashboard's token)
/debugging/offer, /decide, /end, /revoke     POST, from these buttons
/part/debugging               the part that htmx refreshes
/debug                        the client's page: opens the link after #
/debug/api                    POST: a request of `Debugging.answer`, as JSON
"""

import json
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from vmhost.operations.debugging import qr
from vmhost.operations.debugging.ledger import DebugError

MAX_BODY_BYTES = (1 << 20) + 4096
MAX_WAITING_BYTES = 8 * MAX_BODY_BYTES  # of all requests that are still being read: anybody may send them
STATUS = {"input": 400, "link": 403, "consent": 403, "scope": 403, "ended": 410, "busy": 409, "rate": 429, "audit": 507}
_FILES = {
    "debug.js": ("debugging", "text/javascript"),
    "debug.css": ("debugging", "text/css"),
    "dashboard.css": ("static", "text/css"),
    "icon.svg": ("static", "image/svg+xml"),
}
_OPERATIONS = Path(__file__).parent.parent
_MINUTES = (5, 15, 60)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def routes(debugging, render, has_token):
    """The dashboard's routes. `debugging`: a Debugging; None if the host allows none."""
    device = _Device(debugging, render, has_token)
    found = [Route("/debugging", device.page), Route("/part/debugging", device.part)]
    if debugging is None:
        return found
    found += [Route(f"/debugging/{name}", device.act(name), methods=["POST"]) for name in _ACTS]

    async def answer(request, body):
        return await run_in_threadpool(debugging.answer, body, f"HTTP from {_peer(request)}")

    return found + other_end(answer)


def other_end(answer):
    """The routes of the client's page. `answer(request, body)`: a coroutine function that returns plain data."""
    room = _Room()

    async def page(request):
        return FileResponse(_OPERATIONS / "debugging" / "debug.html", headers=HEADERS)

    async def file(request):
        folder, kind = _FILES.get(request.path_params["name"], (None, None))
        if folder is None:
            return PlainTextResponse("no such file\n", 404)
        path = _OPERATIONS / folder / request.path_params["name"]
        return FileResponse(path, media_type=kind, headers=HEADERS)

    async def api(request):
        try:
            answered = await answer(request, await _body(request, room))
        except DebugError as error:
            answered = {"error": {"kind": error.kind, "message": str(error)}}
        status = STATUS.get(answered["error"]["kind"], 500) if "error" in answered else 200
        text = json.dumps(answered, separators=(",", ":"))  # in ASCII: a task's texts may hold half surrogate pairs
        return Response(text, status, HEADERS, "application/json")

    return [
        Route("/debug", page),
        Route("/debug/api", api, methods=["POST"]),
        Route("/debug/{name}", file),
    ]


def _peer(request):
    return request.client.host if request.client else "this machine"


class _Room:
    """Bytes of requests that are being read, over all connections."""

    def __init__(self):
        self._used = 0

    async def read(self, request, limit):
        """The request's body. DebugError if it, or all of them together, have too many bytes."""
        data = bytearray()
        try:
            async for piece in request.stream():
                data += piece
                self._used += len(piece)
                if len(data) > limit:
                    raise DebugError("input", f"expected at most {limit:,} bytes")
                if self._used > MAX_WAITING_BYTES:
                    raise DebugError("busy", "too many requests are being sent here; try again later")
            return bytes(data)
        finally:
            self._used -= len(data)


async def _body(request, room):
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise DebugError("input", "expected application/json")
    try:
        return json.loads(await room.read(request, MAX_BODY_BYTES))
    except (ValueError, RecursionError) as error:
        raise DebugError("input", f"not JSON: {error}"[:200]) from error


class _Device:
    """The page of the person at the device."""

    def __init__(self, debugging, render, has_token):
        self._debugging, self._render, self._has_token = debugging, render, has_token

    async def page(self, request):
        return HTMLResponse(await run_in_threadpool(self._shown, "debugging.html"))

    async def part(self, request):
        return HTMLResponse(await run_in_threadpool(self._shown, "debugging_part.html"))

    def act(self, name):
        async def endpoint(request):
            try:
                form = dict(parse_qsl((await _Room().read(request, 4096)).decode(), max_num_fields=20))
                form["scopes"] = [scope for scope in ("config", "logs", "run", "reports") if form.get(scope) == "on"]
                link = await run_in_threadpool(_ACTS[name], self._debugging, form)
            except (DebugError, ValueError) as error:
                page = await run_in_threadpool(self._shown, "debugging.html", str(error))
                return HTMLResponse(page, STATUS.get(getattr(error, "kind", "input"), 400))
            if link is None:
                return RedirectResponse("/debugging", 303)
            return HTMLResponse(await run_in_threadpool(self._shown, "debugging.html", None, link))

        return endpoint

    def _shown(self, template, trouble=None, link=None):
        values = {"allowed": self._debugging is not None, "can_act": self._has_token, "trouble": trouble, "link": link}
        if self._debugging is not None:
            ledger = self._debugging.ledger
            try:
                sessions, audit = ledger.sessions(limit=50), ledger.audit(limit=50)
            except DebugError as error:
                sessions, audit, values["trouble"] = [], [], str(error)
            values |= {
                "waiting": [each for each in sessions if each["state"] == "waiting"],
                "active": [each for each in sessions if each["state"] == "active"],
                "over": [each for each in sessions if each["state"] in ("ended", "denied")][:10],
                "audit": audit,
                "minutes": _MINUTES,
            }
        if link is not None:
            try:
                values["code"] = qr.svg(link.text)
            except ImportError as error:
                values["code"], values["trouble"] = None, str(error)
        return self._render(template, values)


def _offer(debugging, form):
    if not form["scopes"]:
        raise DebugError("input", "choose what the session may do")
    return debugging.offer(
        form["scopes"], 60 * float(form.get("minutes", "15")), note=form.get("note", "")[:80], who="the dashboard"
    )


def _decide(debugging, form):
    yes = form.get("answer") == "yes"
    if yes and not form["scopes"]:
        raise DebugError("input", "choose what the session may do, or refuse it")
    debugging.decide(form.get("session"), yes, scopes=form["scopes"] or None, who="the dashboard")


def _end(debugging, form):
    debugging.end(form.get("session"), who="the dashboard")


def _revoke(debugging, form):
    debugging.ledger.revoke(form.get("link"), "the dashboard")


_ACTS = {"offer": _offer, "decide": _decide, "end": _end, "revoke": _revoke}
