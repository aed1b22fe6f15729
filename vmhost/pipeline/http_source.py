"""Events by HTTP: `POST /events` on loopback, as a Starlette app for any server, or served by uvicorn here.

app = events_app(feed)                # Starlette: mount it anywhere
HttpSource(feed, "127.0.0.1:8400")    # a source that serves it; both are in the extra `web`

The body is one event, a list of events, or lines of JSON. A request is taken as a whole or not at all:

    200 {"taken": 3, "durable": false}            with ?durable=true: on the disk before the answer
    400 {"error": "...", "line": 2, "taken": 0}   what is wrong, and where

`{"error": ...}` also comes with 401 (no token, or a wrong one), 403 (page or host not allowed), 404, 405, 408 (the body
did not arrive), 413 (too long), 415 (compressed), 503 and Retry-After (the queues are full, or the pipeline is closing)
and 507 (the disk is full).
"""

import asyncio
import contextlib
import hmac
import threading

import msgspec

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from vmhost import web_server
except ImportError as error:
    raise ImportError("events by HTTP need Starlette and uvicorn: pip install 'vmhost[web]'") from error

from vmhost import ConfigurationError
from vmhost.pipeline.configuration import MAX_BODY_BYTES
from vmhost.pipeline.events import Event
from vmhost.pipeline.feed import decoded, put_aside
from vmhost.pipeline.passes import columns
from vmhost.pipeline.values import pack
from vmhost.stores import StoreError, StoreFullError

MAX_EVENTS = 10_000  # of one request
_BODY_S = 30.0  # time limit for the body
_ROOM_S = 5.0  # time limit of a wait for room in the queues
_MAX_BUSY = 256  # requests that are answered at the same time
_MAX_STORING = 4  # requests that wait for the store or for room at once; others wait for these
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class _Refused(Exception):
    def __init__(self, status, error, headers=None, **more):
        super().__init__(error)
        self.response = JSONResponse({"error": error, **more, "taken": 0}, status, headers)


class EventsEndpoint:
    """Implements `POST /events`. Counters: `taken`, `aside` (events), `refused` (requests)."""

    def __init__(self, feed, token, origins, max_body_bytes, hosts):
        self.feed = feed
        self._token, self._origins, self._hosts = token, frozenset(origins), hosts
        self._max_body_bytes = max_body_bytes
        self._lock = threading.Lock()
        self._storing = None  # asyncio.Semaphore of the serving loop
        self.taken = self.aside = self.refused = 0
        self._limits = set()  # asyncio.timeout of each body that is read
        self.waiting = 0  # requests whose events are being taken

    async def post(self, request):
        if self._storing is None:
            self._storing = asyncio.Semaphore(_MAX_STORING)
        try:
            self._must_be_allowed(request)
            body = await self._body(request)
            durable = _is_true(request.query_params.get("durable", "false"))
            events, numbers, aside = self._events(request, body)
            response = JSONResponse(await self._taken(events, numbers, aside, durable))
        except _Refused as refused:
            self.refused += 1
            response = refused.response
        except ClientDisconnect:
            self.refused += 1
            return JSONResponse({}, 400)  # the client is gone
        self._add_origin(request, response)
        return response

    async def _taken(self, *request):
        self.waiting += 1
        try:
            async with self._storing:
                return await asyncio.to_thread(self._take, *request)
        finally:
            self.waiting -= 1

    async def options(self, request):
        """Answers a browser's preflight for a page of another origin."""
        try:
            self._must_be_allowed(request, token=False)
        except _Refused as refused:
            return refused.response
        response = JSONResponse({}, 200)
        self._add_origin(request, response)
        response.headers["Access-Control-Allow-Methods"] = "POST"
        response.headers["Access-Control-Allow-Headers"] = "authorization, content-type"
        return response

    def _add_origin(self, request, response):
        if request.headers.get("origin") in self._origins:
            response.headers["Access-Control-Allow-Origin"] = request.headers["origin"]
            response.headers["Vary"] = "Origin"

    def _must_be_allowed(self, request, token=True):
        """A foreign web page can make its reader's browser post to loopback, even under a host name of its own."""
        host = request.headers.get("host", "")
        if self._hosts is not None and _without_port(host) not in self._hosts:
            raise _Refused(403, f"host {host!r:.80}: expected one of {', '.join(sorted(self._hosts))}")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise _Refused(403, f"pages of {origin} may not post events; name it in `origins`")
        if token and self._token is not None:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise _Refused(401, "expected the header `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"})

    async def _body(self, request):
        if request.headers.get("content-encoding", "identity") != "identity":
            raise _Refused(415, "expected a body that is not compressed")
        too_long = f"the body is longer than {self._max_body_bytes:,} bytes; send fewer events at a time"
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            raise _Refused(413, too_long, {"Connection": "close"})
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(0 if self.feed.stop.is_set() else _BODY_S) as limit, self._reading(limit):
                async for part in request.stream():
                    size += len(part)
                    if size <= self._max_body_bytes:
                        body += part
                    elif size > 2 * self._max_body_bytes:
                        break  # read to the end below: a client still sending when the connection closes gets no answer
        except TimeoutError:
            if self.feed.stop.is_set():
                raise _Refused(503, "the pipeline ends; try again later", {"Retry-After": "10"}) from None
            raise _Refused(408, f"the body did not come within {_BODY_S:.0f} s", {"Connection": "close"}) from None
        if size > self._max_body_bytes:
            raise _Refused(413, too_long, {"Connection": "close"})
        return bytes(body)

    @contextlib.asynccontextmanager
    async def _reading(self, limit):
        self._limits.add(limit)
        try:
            yield
        finally:
            self._limits.discard(limit)

    def end(self):
        """Stops waiting for bodies. Called on the serving loop."""
        for limit in list(self._limits):
            limit.reschedule(asyncio.get_running_loop().time())

    def _events(self, request, body):
        """(events, their lines, lines to be set aside: (line, text, reason) each)"""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
            return self._from_json(body)
        events, numbers, aside = [], [], []
        for number, line in enumerate(body.split(b"\n"), 1):
            if line.strip():
                try:
                    events.append(decoded(line))
                    numbers.append(number)
                except ValueError as error:
                    if self.feed.bad_lines != "aside":
                        raise _Refused(400, f"line {number}: not an event: {error}", line=number) from None
                    aside.append((number, line, str(error)))
            if len(events) > MAX_EVENTS:
                raise _Refused(413, f"more than {MAX_EVENTS:,} events; send fewer at a time")
        if not events and not aside:
            raise _Refused(400, "no events; send one, a list of them, or one on each line")
        return events, numbers, aside

    def _from_json(self, body):
        kind = list[Event] if body.lstrip()[:1] == b"[" else Event
        try:
            found = msgspec.json.decode(body, type=kind)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise _Refused(400, f"not an event, nor a list of events: {error}") from None
        events = found if type(found) is list else [found]
        if not 1 <= len(events) <= MAX_EVENTS:
            raise _Refused(413 if events else 400, f"expected 1 to {MAX_EVENTS:,} events, got {len(events):,}")
        return events, None, []

    def _take(self, events, numbers, aside, durable):
        """Runs on a thread of its own, as the store may block."""
        pipeline = self.feed.pipeline
        try:
            if events:
                self._must_have_room(len(events))
                pipeline.append_many(events, bounded=self.feed.when_full == "drop")
            for number, line, reason in aside:
                put_aside(pipeline.folder, self.feed.name, number, line, reason)
            if durable:
                pipeline.flush()
        except StoreFullError as error:
            raise _Refused(507, str(error), {"Retry-After": "10"}) from None
        except StoreError as error:
            raise _Refused(503, str(error), {"Retry-After": "10"}) from None
        except ConfigurationError as error:  # the pipeline is closed
            raise _Refused(503, str(error), {"Retry-After": "10"}) from None
        except OSError as error:
            raise _Refused(507, f"bad lines cannot be put aside: {error.strerror}") from None
        except ValueError as error:
            raise _unstorable(events, numbers, error) from None
        with self._lock:
            self.taken += len(events)
            self.aside += len(aside)
        answer = {"taken": len(events), "durable": durable or pipeline.durability == "each"}
        if aside:
            answer["aside"] = [{"line": number, "error": reason} for number, _, reason in aside]
        return answer

    def _must_have_room(self, wanted):
        if self.feed.stop.is_set():
            raise _Refused(503, "the pipeline ends; try again later", {"Retry-After": "10"})
        if self.feed.when_full != "drop" and not self.feed.pipeline.wait_for_room(_ROOM_S):
            raise _Refused(503, "the tasks' queues are full; try again later", {"Retry-After": "1"})


def _unstorable(events, numbers, error):
    """The refusal that names the event which the store cannot take."""
    for index, event in enumerate(events):
        try:
            columns((event,))
            pack(event.contents)
        except ValueError as reason:
            if numbers is None:
                return _Refused(400, f"event {index + 1} of {len(events)}: {reason}", event=index + 1)
            return _Refused(400, f"line {numbers[index]}: {reason}", line=numbers[index])
    return _Refused(400, str(error))


def _without_port(host):
    """The name or address in a Host header."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()


def _is_true(text):
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise _Refused(400, f"durable: expected true or false, got {text!r:.40}")


def events_app(feed, *, token=None, origins=(), max_body_bytes=MAX_BODY_BYTES, hosts=None):
    """A Starlette app with `POST /events`, whose events go into `feed`'s pipeline.

    `token`: required in requests, as `Authorization: Bearer`. `origins`: of web pages that may post from a browser.
    `hosts`: names by which requests may address this machine; None: any. ImportError without the extra `web`.
    """
    endpoint = EventsEndpoint(feed, token, origins, max_body_bytes, hosts)

    async def not_found(request, error):
        return JSONResponse({"error": f"{request.url.path}: not here; events go to POST /events"}, error.status_code)

    async def not_allowed(request, error):
        answer = {"error": f"{request.method}: events go to POST /events"}
        return JSONResponse(answer, error.status_code, headers=error.headers)

    app = Starlette(
        routes=[
            Route("/events", endpoint.post, methods=["POST"]),
            Route("/events", endpoint.options, methods=["OPTIONS"]),
        ],
        exception_handlers={404: not_found, 405: not_allowed},
    )
    app.state.events = endpoint
    return app


class HttpSource:
    """Serves `events_app` on `address` ("127.0.0.1:8400"; port 0: any free one) until the feed is to stop; requests
    that are being handled then are answered. `url`: its address, from `start()` on."""

    ends, live = False, True

    def __init__(self, feed, address, *, token=None, origins=(), max_body_bytes=MAX_BODY_BYTES):
        self.feed = feed
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._app = events_app(
            feed, token=token, origins=origins, max_body_bytes=max_body_bytes, hosts=_LOOPBACK | {self._host}
        )
        self._socket = None
        self.url = None

    def start(self):
        """ConfigurationError if the port cannot be bound."""
        self._socket = web_server.listening(self._host, self._port)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/events"

    def run(self):
        config = web_server.config(
            self._app,
            max_busy=_MAX_BUSY,
            log_config=None,
            log_level="error",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
        )
        server = uvicorn.Server(config)
        asyncio.run(self._serve(server))

    async def _serve(self, server):
        loop, stop = asyncio.get_running_loop(), self.feed.stop

        def end():
            loop.remove_reader(stop.fileno())
            server.should_exit = True
            self._app.state.events.end()

        loop.add_reader(stop.fileno(), end)
        await server.serve(sockets=[self._socket])
        with contextlib.suppress(ValueError):
            loop.remove_reader(stop.fileno())

    def close(self):
        if self._socket is not None:
            self._socket.close()

    def statistics(self):
        endpoint = self._app.state.events
        return {
            "taken": endpoint.taken,
            "aside": endpoint.aside,
            "refused": endpoint.refused,
            "url": self.url,
            "waits": None,
        }
