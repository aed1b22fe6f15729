"""HTTP to the platform and to static servers: JSON requests, and downloads that resume where they were interrupted.

Connections are kept between requests. Answers are bounded in size and waits in time; a transfer slower than
LEAST_BYTES_PER_S is given up. TransferError: try again later.
"""

import contextlib
import http.client
import io
import json
import os
import time
from urllib.parse import urljoin, urlsplit

from vmhost.deployment import strict_json
from vmhost.deployment.errors import DeploymentError, TransferError

MAX_ANSWER_BYTES = 8 << 20
LEAST_BYTES_PER_S = 1000  # after the first `timeout_s` of an answer
_CHUNK = 1 << 16
_MAX_REDIRECTS = 3


class AnswerError(DeploymentError):
    """The platform refused: the HTTP `status`, and its message."""

    def __init__(self, status, message, retry_after_s=None):
        super().__init__(f"{message} (HTTP {status})")
        self.message = message
        self.status, self.retry_after_s = status, retry_after_s


class _Paced(io.RawIOBase):
    """Reads the socket file `raw` for one answer, each read within the remaining time: a server that trickles bytes
    must not hold up the device."""

    def __init__(self, raw, sock, timeout_s):
        self._raw, self._sock, self._timeout_s = raw, sock, timeout_s
        self._began, self._got = time.monotonic(), 0

    def readable(self):
        return True

    def readinto(self, buffer):
        left_s = self._timeout_s + self._got / LEAST_BYTES_PER_S - (time.monotonic() - self._began)
        if left_s <= 0:
            raise TimeoutError(f"slower than {LEAST_BYTES_PER_S} bytes a second; {self._got:,} came")
        self._sock.settimeout(min(self._timeout_s, left_s))
        got = self._raw.readinto(buffer)
        self._got += got or 0
        return got

    def close(self):
        self._raw.close()
        super().close()


class _PacedSocket:
    """The part of a socket that HTTPResponse uses."""

    def __init__(self, sock):
        self._sock = sock

    def makefile(self, mode):
        raw = self._sock.makefile(mode, buffering=0)
        return io.BufferedReader(_Paced(raw, self._sock, self._sock.gettimeout()))


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, sock, *arguments, **options):
        super().__init__(_PacedSocket(sock), *arguments, **options)


class Transfers:
    """Requests to `platform` (its address). Not thread-safe. Close it. `certificates`: a file of trusted certificates;
    None: the system's."""

    def __init__(self, platform, timeout_s=30.0, certificates=None):
        self.platform = platform
        self._timeout_s, self._certificates = timeout_s, certificates
        self._tls = None  # the context, made on first use
        self._connections = {}  # (scheme, host and port) -> connection

    def close(self):
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def post(self, path, body, headers):
        return self.ask("POST", path, body, headers)

    def ask(self, method, path, body, headers):
        """The JSON object that the platform answers; `body` is plain data, or bytes. AnswerError, TransferError."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body, allow_nan=False).encode()
        headers = {"content-type": "application/json", **headers}
        with self._request(method, self.platform + path, data, headers) as response:
            answer = response.read(MAX_ANSWER_BYTES + 1)
            if len(answer) > MAX_ANSWER_BYTES:
                raise TransferError(f"{self.platform}{path}: an answer of more than {MAX_ANSWER_BYTES:,} bytes")
            try:
                plain = strict_json.read(answer)
            except ValueError as error:
                raise TransferError(
                    f"{self.platform}{path}: answered no JSON (HTTP {response.status}): {error}"
                ) from None
            if response.status >= 400 or not isinstance(plain, dict):
                message = plain.get("error", "refused") if isinstance(plain, dict) else "no object"
                raise AnswerError(response.status, str(message), _seconds(response.headers.get("retry-after")))
            return plain

    def download(self, url, partial, size):
        """Completes the file `partial` to `size` bytes. TransferError; the bytes received so far are kept."""
        url = urljoin(self.platform + "/", url)
        have = partial.stat().st_size if partial.exists() else 0
        if have > size:
            partial.unlink()
            have = 0
        if have == size:
            return
        headers = {"range": f"bytes={have}-"} if have else {}
        with self._request("GET", url, None, headers) as response:
            if response.status == 206 and have:
                begins = (response.headers.get("content-range") or "").removeprefix("bytes ").partition("-")[0]
                if begins != str(have):
                    raise TransferError(f"{url}: asked for bytes from {have}, got from {begins or 'nowhere'}")
                mode = "ab"
            elif response.status == 200:
                mode = "wb"  # a server without ranges sends it from the start
            else:
                if response.status == 416:
                    partial.unlink(missing_ok=True)
                response.read(MAX_ANSWER_BYTES)
                raise TransferError(f"{url}: HTTP {response.status}")
            with open(partial, mode) as file:
                while chunk := response.read1(_CHUNK):
                    if file.tell() + len(chunk) > size:
                        file.truncate(0)
                        raise TransferError(f"{url}: more than the {size:,} bytes that were expected")
                    file.write(chunk)
                got = file.tell()
        if got != size:
            raise TransferError(f"{url}: ended after {got:,} of {size:,} bytes; goes on from there")

    def fetch(self, path, max_bytes):
        """The bytes of a small file of the platform; None if it does not exist. TransferError."""
        with self._request("GET", self.platform + path, None, {}) as response:
            data = response.read(max_bytes + 1)
            if response.status in (403, 404):
                return None
            if response.status != 200 or len(data) > max_bytes:
                raise TransferError(f"{self.platform}{path}: HTTP {response.status}, {len(data):,} bytes or more")
            return data

    @contextlib.contextmanager
    def _request(self, method, url, data, headers):
        """The response, with redirects of GET followed. The connection is kept if the body was read completely."""
        for _ in range(_MAX_REDIRECTS):
            try:
                response = self._send(method, url, data, headers)
                target = response.headers.get("location")
                if response.status in (301, 302, 303, 307, 308) and target and method == "GET":
                    response.read(MAX_ANSWER_BYTES)
                    url = urljoin(url, target)
                    continue
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                raise TransferError(f"{url}: {error or type(error).__name__}") from error
            complete = False
            try:
                yield response
                complete = response.isclosed()
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.filename is not None:
                    raise  # an error of the local file
                raise TransferError(f"{url}: {error or type(error).__name__}") from error
            finally:
                response.close()
                if not complete:
                    self.close()
            return
        raise TransferError(f"{url}: more than {_MAX_REDIRECTS} redirects")

    def _send(self, method, url, data, headers):
        parts = urlsplit(url)
        key = (parts.scheme, parts.netloc)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        kept = self._connections.get(key)
        for connection in (kept, None) if kept is not None else (None,):
            if connection is None:
                connection = self._connections[key] = self._connection(parts, url)
                connection.response_class = _PacedResponse
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(self._timeout_s)
                connection.request(method, path or "/", data, headers)
                return connection.getresponse()
            except OSError, http.client.HTTPException:
                connection.close()
                if connection is not kept:
                    raise
        raise AssertionError

    def _connection(self, parts, url):
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=self._timeout_s)
        if parts.scheme != "https":
            raise TransferError(f"{url}: expected an address with http or https")
        if self._tls is None:
            try:
                import ssl
            except ImportError:
                raise TransferError(
                    f"{url}: this Python has no TLS; make the image again with `vmhost image OUT --with-agent "
                    "--with-tls`"
                ) from None
            try:
                self._tls = ssl.create_default_context(cafile=self._certificates)
            except (OSError, ssl.SSLError) as error:
                raise TransferError(f"{self._certificates}: no certificates can be read from it: {error}") from error
        return http.client.HTTPSConnection(parts.netloc, timeout=self._timeout_s, context=self._tls)


def _seconds(text):
    try:
        return min(3600.0, max(0.0, float(text)))
    except TypeError, ValueError:
        return None


def free_bytes(folder):
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
