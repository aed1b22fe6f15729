"""Messages to open pages: server-sent events on loopback, as a Starlette app for any server.

    GET  /                     a page that shows messages, for trials and as an example
    GET  /messages?key=ann     the stream: `event: poplayer` or `broadcast`, `id` and `data` of each message
    POST /seen                 {"id": …, "page": …}: the page has shown it; `page` is from its `event: page`

A message counts as sent when a page has reported that it was shown. Pages skip ids that they know. A page that has not
shown a message in its time is not waited for until it shows one; one that does not take its messages is closed.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import threading
import time
import urllib.parse
from pathlib import Path

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise ImportError("channels to pages need Starlette and uvicorn: pip install 'vmhost[web]'") from error

from vmhost import web_server
from vmhost.pipeline.reach.channels import ChannelError, NobodyThereError, text_of

MAX_PAGES = 256
_MAX_WAITING = 100  # messages that a page has not taken
_ALIVE_S = 15.0  # interval of comments that keep proxies from closing the stream
_MAX_SEEN = 16 << 10  # bytes of a request to /seen
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_PAGE = Path(__file__).with_name("page.html")


class _Page:
    def __init__(self, key):
        self.key, self.name, self.lines = key, secrets.token_hex(8), asyncio.Queue(_MAX_WAITING)
        self.is_silent = False  # it has not shown what it got last


class _Shown:
    def __init__(self):
        self.pages, self.waiting = set(), 0  # names of pages; channels that wait for them


class Pages:
    """The open pages of one address. `app` serves them; `show` is for other threads. `opened(key)` is called on the
    loop's thread when a page has opened."""

    def __init__(self, hosts, token=None, origins=()):
        self._hosts, self._token, self._origins = hosts, token, frozenset(origins)
        self._loop, self._pages = None, {}
        self._changed = threading.Condition()  # guards `_pages`, `_seen`
        self._seen = {}  # id of a message being shown: _Shown
        self.opened = lambda key: None
        self.app = Starlette(
            routes=[
                Route("/", self._root),
                Route("/messages", self._messages),
                Route("/seen", self._acknowledge, methods=["POST"]),
            ]
        )

    # ---- for channels

    def show(self, kind, message, key, timeout_s):
        """Sends a message to the pages of a person (`key` None: to all), and waits until one has shown it; returns how
        many did. NobodyThereError, ChannelError."""
        identity = message["id"]
        text = text_of(message).encode(errors="replace").decode()
        lines = f"event: {kind}\nid: {urllib.parse.quote(identity, errors='surrogatepass')}\ndata: {text}\n\n"
        with self._changed:
            pages = [page for page in self._pages.values() if key is None or page.key == key]
            if not pages:
                raise NobodyThereError("no page is open" if key is None else "no page of this person is open")
            names = {page.name for page in pages}
            with self._shown(identity) as seen:
                try:
                    for page in pages:
                        self._loop.call_soon_threadsafe(self._pass_on, page, lines)
                except RuntimeError as error:  # the serving loop has ended
                    raise NobodyThereError("pages are no longer served") from error
                prompt = {page.name for page in pages if not page.is_silent}

                def is_enough():
                    if key is None and prompt:
                        return prompt & self._pages.keys() <= seen
                    return names & seen or not names & self._pages.keys()

                if not self._changed.wait_for(is_enough, timeout_s):
                    for page in pages:
                        page.is_silent = page.name not in seen
                if not names & seen:
                    raise ChannelError(f"{len(pages)} open pages have not shown it within {timeout_s:g} s")
                return len(names & seen)

    @contextlib.contextmanager
    def _shown(self, identity):
        """The names of pages that have shown a message; several channels may send it at a time."""
        shown = self._seen.setdefault(identity, _Shown())
        shown.waiting += 1
        try:
            yield shown.pages
        finally:
            shown.waiting -= 1
            if not shown.waiting:
                del self._seen[identity]

    def wait_for_page(self, timeout_s, key=None):
        """Whether a page is open, of a person or any; False after `timeout_s`. Ctrl-C interrupts it."""
        end_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                there = lambda: any(key is None or page.key == key for page in self._pages.values())  # noqa: E731
                if self._changed.wait_for(there, 0.1):
                    return True
            if time.monotonic() >= end_s:
                return False

    def _pass_on(self, page, lines):
        """Called on the loop's thread."""
        try:
            page.lines.put_nowait(lines)
        except asyncio.QueueFull:
            self._end(page)

    def _end(self, page):
        """Ends the stream of a page, which may be written still; called on the loop's thread."""
        with self._changed:
            self._pages.pop(page.name, None)
            self._changed.notify_all()
        while not page.lines.empty():
            page.lines.get_nowait()
        page.lines.put_nowait(None)

    def end(self):
        """Ends all streams; called on the loop's thread."""
        for page in list(self._pages.values()):
            self._end(page)

    # ---- requests

    def _refusal(self, request, token=True):
        host = request.headers.get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()
        if name not in self._hosts:
            return JSONResponse({"error": f"host {host!r:.80}: this is for pages of this machine"}, 403)
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins and urllib.parse.urlsplit(origin).netloc != host:
            return JSONResponse({"error": f"pages of {origin!r:.80} may not; name it in `origins`"}, 403)
        given = request.query_params.get("token", "")
        if token and self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
            return JSONResponse({"error": "expected ?token=TOKEN"}, 401)
        return None

    def _headers(self, request):
        origin = request.headers.get("origin")
        allowed = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"} if origin in self._origins else {}
        return {"Cache-Control": "no-store", **allowed}

    async def _root(self, request):
        if (refused := self._refusal(request, token=False)) is not None:
            return refused
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers={"Cache-Control": "no-store"})

    async def _messages(self, request):
        if (refused := self._refusal(request)) is not None:
            return refused
        if len(self._pages) >= MAX_PAGES:
            return JSONResponse({"error": f"{MAX_PAGES} pages are open already"}, 503, headers={"Retry-After": "10"})
        self._loop = asyncio.get_running_loop()
        page = _Page(request.query_params.get("key", ""))
        return StreamingResponse(self._stream(page), media_type="text/event-stream", headers=self._headers(request))

    async def _stream(self, page):
        with self._changed:
            self._pages[page.name] = page
            self._changed.notify_all()
        try:
            yield f"event: page\ndata: {json.dumps({'page': page.name})}\n\n"
            self.opened(page.key)
            while True:
                try:
                    async with asyncio.timeout(_ALIVE_S):
                        lines = await page.lines.get()
                except TimeoutError:
                    lines = ": alive\n\n"
                if lines is None:
                    return
                yield lines
        finally:
            with self._changed:
                self._pages.pop(page.name, None)
                self._changed.notify_all()

    async def _acknowledge(self, request):
        if (refused := self._refusal(request)) is not None:
            return refused
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_SEEN:
                return JSONResponse({"error": "too long"}, 413)
        try:
            receipt = json.loads(body)
            identity, name = receipt["id"], receipt["page"]
        except ValueError, TypeError, KeyError, RecursionError:
            return JSONResponse({"error": 'expected {"id": …, "page": …}'}, 400)
        with self._changed:
            known = isinstance(name, str) and name in self._pages
            if known:
                self._pages[name].is_silent = False
            seen = self._seen.get(identity) if isinstance(identity, str) else None
            if known and seen is not None:
                seen.pages.add(name)
                self._changed.notify_all()
        return JSONResponse({"seen": known}, 200, headers=self._headers(request))


class PageServer:
    """Serves Pages on a loopback address ("127.0.0.1:8500"; port 0: any free one), on a thread of its own, from `start`
    to `close`. `url`: its address. ConfigurationError if the port cannot be bound."""

    def __init__(self, address, token=None, origins=()):
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self.pages = Pages(_LOOPBACK | {host}, token, origins)
        config = web_server.config(
            self.pages.app, max_busy=MAX_PAGES + 64, log_config=None, log_level="error", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="vmhost-reach-pages", daemon=True)
        self._loop = None
        self._ready = threading.Event()
        shown = f"[{host}]" if ":" in host else host
        with contextlib.ExitStack() as undo:  # undone when a later step fails
            self._socket = web_server.listening(host, int(port))
            undo.callback(self._socket.close)
            self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"
            undo.pop_all()

    def start(self):
        self._thread.start()
        self._ready.wait()

    def _run(self):
        asyncio.run(self._serve())

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._server.serve(sockets=[self._socket])

    def _end(self):
        self._server.should_exit = True
        self.pages.end()

    def close(self):
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
        self._socket.close()
