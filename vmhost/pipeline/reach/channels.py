"""Channels: where matches of rules go. A channel is a function that gets a message, a dict with `id`, `rule`, `key`,
`at_ms`, `timed_out` and `steps`; what it raises is tried again.

| settings | |
| --- | --- |
| `log: true` | a line of the log `vmhost.pipeline.reach` |
| `function: NAME` | a host function of the pipeline gets the message |
| `webhook: URL` | a POST of JSON; the header `Idempotency-Key` has the message's id |
"""

import json
import logging
import urllib.error
import urllib.parse
import urllib.request

from vmhost import ConfigurationError

_TIMEOUT_S = 10.0
_log = logging.getLogger("vmhost.pipeline.reach")


class ChannelError(Exception):
    """A message could not be handed over; `final`: it never will be."""

    def __init__(self, message, final=False):
        super().__init__(message)
        self.final = final


def channel(name, settings, functions):
    """The channel that settings describe. ConfigurationError."""
    kinds = ("log", "function", "webhook")
    if not isinstance(settings, dict) or len(settings) != 1 or next(iter(settings)) not in kinds:
        raise ConfigurationError(f"channel {name}: expected one of {', '.join(kinds)}, got {settings!r:.100}")
    ((kind, said),) = settings.items()
    if kind == "log":
        return _logged(name)
    if kind == "function":
        if said not in functions:
            there = ", ".join(functions) or "none"
            raise ConfigurationError(f"channel {name}: there is no host function {said!r}; there are {there}")
        return functions[said]
    address = urllib.parse.urlsplit(said) if isinstance(said, str) else None
    if address is None or address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigurationError(
            f"channel {name}: webhook: expected an address such as https://host/path, got {said!r}"
        )
    return _webhook(said)


def _logged(name):
    def send(message):
        _log.info("%s: %s", name, json.dumps(message, ensure_ascii=False, default=repr))

    return send


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments):
        return None


def _webhook(url):
    opener = urllib.request.build_opener(_NoRedirects)

    def send(message):
        body = json.dumps(message, ensure_ascii=False, default=repr).encode(errors="replace")
        headers = {"Content-Type": "application/json", "Idempotency-Key": message["id"]}
        try:
            with opener.open(urllib.request.Request(url, body, headers, method="POST"), timeout=_TIMEOUT_S) as answer:
                answer.read(1 << 16)
        except urllib.error.HTTPError as error:
            with error:
                final = 400 <= error.code < 500 and error.code not in (408, 425, 429)
                raise ChannelError(f"{url}: status {error.code}", final) from None
        except (OSError, ValueError) as error:
            raise ChannelError(f"{url}: {getattr(error, 'reason', None) or error}") from error

    return send
