"""An agent's requests by a tunnel instead of HTTP connections; the platform tells it when to ask.

transfers = TunnelTransfers(settings.platform)
agent = Agent(settings, transfers=transfers)     # first: its host must exist before others use SQLite
transfers.device = Device("cloud.example:7443", "tunnel.sqlite", ca=..., certificate=..., key=...)  # vmhost.tunnel
transfers.device.on(CHANNEL, lambda message: agent.hint())
"""

import contextlib
import re

from vmhost import VMHostError
from vmhost.deployment.device.transfers import Transfers
from vmhost.deployment.errors import TransferError
from vmhost.deployment.tunnel_channel import CHANNEL

_RANGE = re.compile(r"bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})")


class TunnelTransfers(Transfers):
    """`device`: an object with `request(channel, value, timeout_s)`, set before the first request; it is neither opened
    nor closed here. Files on other servers (such as a static one) are pulled by HTTP."""

    def __init__(self, platform, timeout_s=30.0, certificates=None):
        super().__init__(platform, timeout_s, certificates)
        self.device = None

    @contextlib.contextmanager
    def _request(self, method, url, data, headers):
        if not url.startswith(self.platform + "/"):
            with super()._request(method, url, data, headers) as response:
                yield response
            return
        yield _Answer(self._call, method, url.removeprefix(self.platform), data or b"", headers)

    def _call(self, *call):
        try:
            answer = self.device.request(CHANNEL, list(call), self._timeout_s)
        except VMHostError as error:
            raise TransferError(f"{self.platform}{call[1]}: by the tunnel: {error}") from error
        status, headers, body = answer
        return status, headers, body


class _Answer:
    """An http.client response. A body in pieces is requested as it is read."""

    def __init__(self, call, method, path, body, headers):
        self._call, self._path, self._headers = call, path, headers
        self.status, self.headers, self._rest = call(method, path, headers, body)
        self._next = self._end = 0
        if self.status == 206:
            _, self._next, self._end = _ranged(path, self.headers, self._rest)
            if "range" not in headers:
                self.status = 200  # the pieces were the cloud's choice

    def read(self, limit):
        while len(self._rest) < limit and self._next < self._end:
            self._rest += self._piece()
        data, self._rest = self._rest[:limit], self._rest[limit:]
        return data

    read1 = read

    def _piece(self):
        began = self._next
        asked = {name: text for name, text in self._headers.items() if name != "range"}
        status, headers, data = self._call("GET", self._path, asked | {"range": f"bytes={began}-"}, b"")
        if status != 206:
            raise TransferError(f"{self._path}: asked for bytes from {began}, got HTTP {status}")
        first, self._next, end = _ranged(self._path, headers, data)
        if first != began or end != self._end:
            raise TransferError(f"{self._path}: changed while it came")
        return data


def _ranged(path, headers, data):
    """(begin of a piece, begin of the next, total size)."""
    found = _RANGE.fullmatch(headers.get("content-range", ""))
    if found is None or not data or int(found[2]) + 1 - int(found[1]) != len(data):
        raise TransferError(f"{path}: a piece came with a wrong content-range")
    return int(found[1]), int(found[2]) + 1, int(found[3])
