"""Sends what leaves by HTTP, to the address that was configured and to no other: alerts, crash reports, spans, events.

Redirects are failures: a receiver that was taken over must not name another one, and what came as a POST would arrive
as a GET without its body.
"""

import urllib.error
import urllib.request
from collections.abc import Mapping

_MAX_ANSWER_BYTES = 64 << 10


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, request, file, code, message, headers, address):
        return None


def opener() -> urllib.request.OpenerDirector:
    """Opens addresses without following redirects, with the authorities that are trusted now."""
    return urllib.request.build_opener(_NoRedirects)


def post(address: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Sends `body` to `address`. OSError, also for an answer that is no success or a redirect; ValueError."""
    request = urllib.request.Request(address, body, dict(headers), method="POST")
    try:
        with opener().open(request, timeout=timeout_s) as answer:
            answer.read(_MAX_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            more = ", which is not followed" if 300 <= error.code < 400 else ""
            raise OSError(f"HTTP Error {error.code}: {error.reason}{more}") from None
