"""The platform for devices on a tunnel: requests are calls on one channel, and changes are announced at once.

    calls = TunnelCalls(application(platform), lambda: platform.releases.generation)
    server.answer(CHANNEL, calls.answer)          # `server`: a vmhost.tunnel.Server
    calls.announce = server.push

A call is an HTTP request, [method, path, {header: text}, body]; the application answers it with [status, {header:
text}, body]. Only routes for devices are reachable. Downloads come in pieces (`PIECE_BYTES`), whatever range is asked
for, so a large one needs little memory and delays nobody.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from urllib.parse import unquote

from vmhost.deployment.tunnel_channel import CHANNEL, PIECE_BYTES

MAX_KNOWN = 100_000  # devices that get announcements
MAX_ANSWER_BYTES = 2 << 20
KEPT_S = 3600.0  # how long an announcement waits for a disconnected device; later it asks by itself
_POLL_S = 0.2
_REACHED = {
    "GET": ("/files/", "/exclusive/", "/metadata/", "/keys/bundles.pub"),
    "POST": ("/api/v1/device/",),
}
_log = logging.getLogger("vmhost.deployment")


class TunnelCalls:
    """`application`: ASGI. `generation()`: a number that changes whenever any device may need something else.
    `announce(device, channel, body, ttl_s=, collapse=)`: announces a change to a device that called before; blocks;
    may be None."""

    def __init__(self, application, generation, announce=None):
        self._application, self._generation = application, generation
        self.announce = announce
        self._known = OrderedDict()  # devices that called, the latest last
        self._watching = None

    async def answer(self, request):
        """`request`: `device`, `value`. ValueError if the value is not a call."""
        method, path, headers, body = _checked(request.value)
        if not path.startswith(_REACHED.get(method, ())):
            return [404, {}, b'{"error": "devices do not reach this by the tunnel"}']
        headers = {name.lower(): text for name, text in headers.items()}
        headers["x-vmhost-device"] = request.device  # as authenticated by the tunnel, not as claimed
        headers["content-length"] = str(len(body))
        if method == "GET":
            headers["range"] = _piece(headers.get("range"))
        if self.announce is not None:
            self._know(request.device)
        return await self._ask(request.device, method, path, headers, body)

    async def _ask(self, device, method, path, headers, body):
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "https",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()],
            "client": (device, 0),
            "server": ("tunnel", 0),
        }
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        ended = asyncio.Event()
        status, response_headers, parts, size = 500, {}, [], 0

        async def receive():
            if waiting:
                return waiting.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            nonlocal status, response_headers, size
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = {
                    name.decode("latin-1"): text.decode("latin-1") for name, text in message.get("headers", ())
                }
            else:
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_ANSWER_BYTES:
                    raise ValueError(f"{path}: an answer of more than {MAX_ANSWER_BYTES:,} bytes")

        try:
            await self._application(scope, receive, send)
        finally:
            ended.set()
        return [status, response_headers, b"".join(parts)]

    # ---- announcing changes

    def _know(self, device):
        self._known[device] = None
        self._known.move_to_end(device)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch(self._generation()))

    async def _watch(self, announced):
        """Tells devices one after the other, so that they do not all ask at once. A further change starts over."""
        while True:
            await asyncio.sleep(_POLL_S)
            while (generation := self._generation()) != announced:
                announced = generation
                for device in reversed(list(self._known)):
                    await self._announce(device)

    async def _announce(self, device):
        try:
            await asyncio.to_thread(
                self.announce, device, CHANNEL, str(int(time.time() * 1000)).encode(), ttl_s=KEPT_S, collapse="ask"
            )
        except Exception as error:  # such as a full disk; the device asks by itself later
            _log.warning("%s could not be notified of a change: %s", device, error)


def _checked(value):
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("expected [method, path, {header: text}, body]")
    method, path, headers, body = value
    texts = isinstance(headers, dict) and all(
        isinstance(each, str) and each.isascii() and each.isprintable() for pair in headers.items() for each in pair
    )
    if not texts or not isinstance(body, bytes) or len(headers) > 50:
        raise ValueError("expected headers of ASCII text, and a body of bytes")
    if not isinstance(method, str) or not isinstance(path, str) or not path.isascii() or ".." in unquote(path):
        raise ValueError("expected a method and a path")
    return method, path, headers, body


def _piece(asked):
    """The range that is served for `bytes=FIRST-`, `bytes=FIRST-LAST`, or no range."""
    first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
    try:
        first = int(first)
        last = min(int(last) if last else first + PIECE_BYTES, first + PIECE_BYTES - 1)
    except ValueError:
        raise ValueError(f"range: expected bytes=FIRST- or bytes=FIRST-LAST, got {asked!r:.100}") from None
    return f"bytes={first}-{last}"
