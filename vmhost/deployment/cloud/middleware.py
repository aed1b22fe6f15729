"""Push, then pull, for people's own services: ASGI middleware that reads the header by which a device says what it has.

    app = TaskProfiles(app, platform.profiles)

Where the platform has something else for the device, the answer tells it to ask (VMHost-Ask). The comparison is one
look into a dict; where the device has what it should have, the answer is not touched.
"""

import threading
from collections import OrderedDict

from vmhost.deployment.profile import ANSWER_HEADER, ASK_NOW, REQUEST_HEADER

MAX_KNOWN = 1_000_000
_REQUEST = REQUEST_HEADER.encode()
_ANSWER = (ANSWER_HEADER.encode(), ASK_NOW.encode())


class Profiles:
    """Which header values are those of devices that have what they should have. Threads may share it.

    `generation()`: a number that changes whenever any device may be due something else.
    """

    def __init__(self, generation, max_known=MAX_KNOWN):
        self._generation, self._max_known = generation, max_known
        self._known = OrderedDict()  # value -> generation in which it was right
        self._lock = threading.Lock()

    def is_current(self, value):
        """Whether a device with this value (bytes) needs to do nothing."""
        return self._known.get(value) == self._generation()

    def remember(self, value, generation):
        """The device with this value had what it should have in that generation."""
        with self._lock:
            self._known[value] = generation
            self._known.move_to_end(value)
            if len(self._known) > self._max_known:
                self._known.popitem(last=False)


class TaskProfiles:
    """The ASGI application `app`, with VMHost-Ask in the answers to devices that are due something."""

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
