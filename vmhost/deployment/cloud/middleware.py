"""Push, then pull, for application services: ASGI middleware that reads the header with a device's profile.

    app = TaskProfiles(app, platform.profiles)

Where the platform has something else for the device, the response tells it to ask (VMHost-Ask). The check is one lookup
in a dict; for an up-to-date device the response is unchanged.
"""

import threading
from collections import OrderedDict

from vmhost.deployment.profile import ANSWER_HEADER, ASK_NOW, REQUEST_HEADER

MAX_KNOWN = 1_000_000
_REQUEST = REQUEST_HEADER.encode()
_ANSWER = (ANSWER_HEADER.encode(), ASK_NOW.encode())


class Profiles:
    """The header values of devices that are up to date. Thread-safe.

    `generation()`: a number that changes whenever any device may need something else.
    """

    def __init__(self, generation, max_known=MAX_KNOWN):
        self._generation, self._max_known = generation, max_known
        self._known = OrderedDict()  # value -> generation in which it was up to date
        self._lock = threading.Lock()

    def is_current(self, value):
        """Whether a device with this value (bytes) is up to date."""
        return self._known.get(value) == self._generation()

    def remember(self, value, generation):
        """Records that the device with this value was up to date in that generation."""
        with self._lock:
            self._known[value] = generation
            self._known.move_to_end(value)
            if len(self._known) > self._max_known:
                self._known.popitem(last=False)


class TaskProfiles:
    """The ASGI application `app`, with VMHost-Ask in responses to devices that are not up to date."""

    def __init__(self, app, profiles):
        self._app, self._profiles = app, profiles

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == _REQUEST:
                    if not self._profiles.is_current(value):
                        send = _asking(send)
                    break
        await self._app(scope, receive, send)


def _asking(send):
    async def send_with_header(message):
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _ANSWER]}
        await send(message)

    return send_with_header
