"""A consumer that sends each message to a web server: a signed HTTP POST with the message's body, unchanged.

    server.consume("orders", Webhook("https://shop.example/orders", secret="whsec_..."))

Delivery is at least once, in the order of the device's channel. The status decides: 2xx accepts the message; 400, 404,
405, 410, 413, 414, 415 and 422 refuse it, and it goes to `tunnel_refused`; anything else, or no answer, is tried again
with growing delays. Redirects are not followed. Headers are those of Standard Webhooks (standardwebhooks.com):
`webhook-id`, which stays the same when a message is sent again, `webhook-timestamp`, and with a secret
`webhook-signature`; `tunnel-device`, `tunnel-channel` and `tunnel-id`, percent-encoded.
"""

import base64
import binascii
import hashlib
import hmac
import http.client
import ssl
import threading
import time
from urllib.parse import quote, urlsplit

from vmhost.tunnel.errors import MessageRefused, TunnelConfigurationError, TunnelError
from vmhost.tunnel.inbox import Callable

TIMEOUT_S = 15.0
_REFUSALS = frozenset({400, 404, 405, 410, 413, 414, 415, 422})
_ANSWER_BYTES = 1 << 20  # of a response that is read, so that its connection can be reused
_PREFIX = "whsec_"
_FEWEST_BYTES = 16  # shortest secret


class Webhook(Callable):
    """`url`: each message is POSTed there. `secret`: "whsec_" and base64, as in Standard Webhooks, or bytes; None:
    unsigned. `headers`: additional ones. `content_type`: of the messages. `context`: an ssl.SSLContext; None: the
    system's trust."""

    def __init__(self, url, *, secret=None, headers=None, content_type="application/octet-stream", context=None):
        super().__init__(self._send)
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.username is not None:
            raise TunnelConfigurationError(f"webhook {url!r}: expected http://HOST:PORT/PATH or https, no password")
        self.url = url
        self._host, self._port = parts.hostname, port
        self._path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe="/?=&%:,;+@~!$'()*")
        self._context = None
        if parts.scheme == "https":
            self._context = context or ssl.create_default_context()
        self._secret = _secret(secret)
        self._headers = {"Content-Type": content_type, "User-Agent": "vmhost-tunnel", **(headers or {})}
        self._threads = threading.local()
        self._connections = []  # connections of all threads

    def _connection(self):
        found = getattr(self._threads, "connection", None)
        if found is None:
            if self._context is None:
                found = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            else:
                found = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=self._context)
            self._threads.connection = found
            self._connections.append(found)
        return found

    def close(self):
        """Closes its connections. Called when no thread sends."""
        self._threads = threading.local()
        while self._connections:
            self._connections.pop().close()

    def headers(self, message, now):
        """The headers of a message at a time (seconds since 1970)."""
        identity = "/".join(quote(part, safe="") for part in (message.peer, message.channel, message.id))
        found = self._headers | {
            "webhook-id": identity,
            "webhook-timestamp": str(int(now)),
            "tunnel-device": quote(message.peer, safe=""),
            "tunnel-channel": quote(message.channel, safe=""),
            "tunnel-id": quote(message.id, safe=""),
        }
        if self._secret is not None:
            signed = b"%s.%d.%s" % (identity.encode(), int(now), message.body)
            digest = hmac.digest(self._secret, signed, hashlib.sha256)
            found["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return found

    def _send(self, message):
        connection = self._connection()
        used = connection.sock is not None
        try:
            try:
                status = self._post(connection, message)
            except http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError:
                if not used:
                    raise
                connection.close()  # the web server had closed it while idle
                status = self._post(connection, message)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TunnelError(f"{self.url}: {why}") from error
        if 200 <= status < 300:
            return
        if status in _REFUSALS:
            raise MessageRefused(f"{self.url}: the answer was {status}")
        raise TunnelError(f"{self.url}: the answer was {status}")

    def _post(self, connection, message):
        connection.request("POST", self._path, message.body, self.headers(message, time.time()))
        answer = connection.getresponse()
        answer.read(_ANSWER_BYTES)
        if not answer.isclosed():
            connection.close()
        return answer.status


def _secret(given):
    if given is None:
        return None
    if isinstance(given, str):
        try:
            given = base64.b64decode(given.removeprefix(_PREFIX), validate=True)
        except binascii.Error as error:
            raise TunnelConfigurationError(f"webhook: the secret is not {_PREFIX} and base64: {error}") from None
    if len(given) < _FEWEST_BYTES:
        raise TunnelConfigurationError(f"webhook: the secret has {len(given)} bytes; at least {_FEWEST_BYTES} are safe")
    return bytes(given)
