"""Access control of the pages: requests need the token and a known name of this machine, and must not come from pages
of other sites.

A browser gets the token once, in the address, and keeps it as a cookie that pages of other sites cannot use. An unknown
`Host` is refused, so that a site which points its own name at this machine gets nothing."""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response

OPEN = ("/healthz", "/readyz")
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """ASGI middleware around `app`. `token`: None: none is required. `names`: allowed values of `Host`, without the
    port.

    Two pages (`debugging/pages.py`) are exceptions: /debug needs no token, since its link is one; /debugging may change
    something, so it needs the token and a request from this site's own pages."""

    def __init__(self, app, token, names, port):
        self._app, self._token, self._names = app, token, {name.lower() for name in names}
        self._cookie = f"vmhost_dashboard_{port}"  # a browser shares cookies between ports of one name

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return

        async def send_guarded(message):
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                extra = [(name, value) for name, value in _HEADERS if name not in own]
                message = message | {"headers": [*message["headers"], *extra]}
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, scope):
        """The response to a request that is refused; None for others."""
        if scope["path"] in OPEN:
            return None
        headers = Headers(scope=scope)
        if _name(headers.get("host", "")) not in self._names:
            return PlainTextResponse("this is not one of the host's names; see `names` of Dashboard\n", 421)
        path, site = scope["path"], headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin") and path not in ("/", "/debug"):
            return PlainTextResponse("requests from pages of other sites are refused\n", 403)
        changes = scope["method"] == "POST" and path.startswith("/debugging/")
        if scope["method"] not in ("GET", "HEAD") and not changes and (scope["method"], path) != ("POST", "/debug/api"):
            return PlainTextResponse("only GET and HEAD are supported\n", 405)
        if path == "/debug" or path.startswith("/debug/"):
            return None
        if changes and self._token is None:
            return PlainTextResponse("without a token anybody could consent here; use `vmhost debug consent`\n", 403)
        if changes and site != "same-origin" and "authorization" not in headers:
            return PlainTextResponse("only this site's own pages may change something\n", 403)
        if self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            response = RedirectResponse(scope["path"] + ("?" + rest if rest else ""), 303)
            response.set_cookie(self._cookie, given, httponly=True, samesite="strict", path="/")
            return response
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        if self._is_token(_cookie(headers.get("cookie", ""), self._cookie)):
            return None
        text = "open the address with ?token=..., as it was printed when the dashboard started\n"
        return Response(text, 401, {"www-authenticate": "Bearer"}, "text/plain")

    def _is_token(self, given):
        return hmac.compare_digest(given.encode(), self._token.encode())


def _name(host):
    """The name in a Host header, without the port and an IPv6 address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _cookie(header, name):
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
