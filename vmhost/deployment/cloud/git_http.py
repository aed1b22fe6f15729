"""git's smart HTTP protocol as an ASGI application: clone, fetch, push, by accounts with tokens (Basic authentication).

upload_pack.py implements clone and fetch, receive_pack.py pushes. Each runs on a thread of its own, so that a long one
keeps no other request waiting; its output is sent as it is written, so that a user sees how a build proceeds. Pushes to
a repository take turns, and wait for theirs without a thread.
"""

import asyncio
import base64
import binascii
import contextlib
import fcntl
import io
import logging
import re
import shutil
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

from dulwich.errors import GitProtocolError, NotGitRepository
from dulwich.protocol import ReceivableProtocol
from dulwich.repo import Repo
from dulwich.server import DictBackend, ReceivePackHandler

from vmhost.access import AccessDeniedError
from vmhost.deployment.artifacts import sync_folder, sync_tree
from vmhost.deployment.cloud import receive_pack
from vmhost.deployment.cloud.receive_pack import unavailable_message
from vmhost.deployment.cloud.upload_pack import UploadPack
from vmhost.deployment.errors import DeploymentError, RefusedError
from vmhost.stores import StoreError

MAX_PUSH_BYTES = 128 << 20
MAX_WANTS_BYTES = 2 << 20  # of a fetch: what it wants and has, 50 bytes each
MAX_WAITING = 16  # pushes to one repository that wait for their turn
_IN_MEMORY = 1 << 20
_PATH = re.compile(r"/([a-z0-9][a-z0-9_-]{0,62})(?:\.git)?/(info/refs|git-upload-pack|git-receive-pack)")
SERVICES = {"git-upload-pack": "read", "git-receive-pack": "push"}  # and the scope that each needs, of the repository
_log = logging.getLogger("vmhost.deployment")


class GitServer:
    """The ASGI application over a Platform's repositories; mount it where `git clone URL/NAME` should work. `limit`:
    the rate limit of an account (a RateLimit), shared with the API."""

    def __init__(self, platform, limit):
        self._platform, self._limit = platform, limit
        self._queues = {}  # repository -> _Queue of its pushes

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        found = _PATH.fullmatch(path)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not found:
            await _answer(send, 404, "no such repository path; the address is .../git/NAME\n")
            return
        name, what = found.groups()
        service = query.get("service", [""])[0] if what == "info/refs" else what
        if service not in SERVICES:
            await _answer(send, 403, "this server speaks only git's smart protocol: use git 1.6.6 or newer\n")
            return
        try:
            identity = await asyncio.to_thread(self._identify, headers.get("authorization", ""))
            if wait_s := self._limit.wait_s(f"account {identity.name}"):
                extra = [(b"retry-after", str(int(wait_s) + 1).encode())]
                await _answer(send, 429, "too many requests; ask less often\n", extra)
                return
            identity.must(SERVICES[service], name)
            repo = await asyncio.to_thread(self._platform.open_repository, name)
        except AccessDeniedError as error:
            status = 403 if error.known else 401
            extra = [] if error.known else [(b"www-authenticate", b'Basic realm="vmhost"')]
            await _answer(send, status, f"{error}\n", extra)
            return
        except DeploymentError as error:
            await _answer(send, 404, f"{error}\n")
            return
        except (StoreError, OSError) as error:
            await _answer(send, 503, f"{unavailable_message(error)}\n")
            return
        with contextlib.closing(repo):
            if what == "info/refs":
                await _send_refs(send, repo, service)
            else:
                with self._queued(name, service) as has_room:
                    if has_room:
                        await self._serve(send, receive, headers, repo, name, service, identity)
                    else:
                        extra = [(b"retry-after", b"60")]
                        await _answer(send, 503, f"{MAX_WAITING} pushes wait for their turn; push again later\n", extra)

    def _identify(self, header):
        kind, _, encoded = header.partition(" ")
        try:
            account, _, token = base64.b64decode(encoded, validate=True).decode().partition(":")
        except binascii.Error, UnicodeDecodeError:
            account = token = ""
        if kind.lower() != "basic" or not token:
            raise AccessDeniedError("give an account's name and its token as user name and password", False)
        return self._platform.access.identify(token, account)

    async def _serve(self, send, receive, headers, repo, name, service, identity):
        if headers.get("content-type") != f"application/x-{service}-request":
            await _answer(send, 415, f"expected the content type application/x-{service}-request\n")
            return
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as body:
            try:
                max_bytes = MAX_PUSH_BYTES if service == "git-receive-pack" else MAX_WANTS_BYTES
                if not await _receive(receive, body, headers.get("content-encoding", "") == "gzip", max_bytes):
                    return
            except RefusedError as error:
                await _answer(send, 413, f"{error}\n")
                return
            except OSError as error:
                await _answer(send, 507, f"{unavailable_message(error)}\n")
                return
            body.seek(0)
            loop, queue = asyncio.get_running_loop(), asyncio.Queue()

            def write(data):
                loop.call_soon_threadsafe(queue.put_nowait, bytes(data))
                return len(data)

            def work():
                handler = None
                try:
                    if service == "git-receive-pack":
                        with self._platform.pushing(name):
                            receive_pack.receive(body, write, self._platform, repo, name, identity)
                    else:
                        handler = UploadPack(
                            DictBackend({"/": repo}), ["/"], ReceivableProtocol(body.read, write), True
                        )
                        handler.handle()
                except Exception as error:  # git code may raise anything on hostile bytes: report and log it
                    known = isinstance(error, (GitProtocolError, DeploymentError, OSError))
                    _log.warning("%s: %s by %s: %s", name, service, identity.name, error, exc_info=not known)
                    if handler is None or not handler.is_sending:
                        text = f"ERR {type(error).__name__}: {error}\n".encode()[:60_000]
                        write(f"{len(text) + 4:04x}".encode() + text)

            thread = asyncio.create_task(self._in_turn(work, name, service))
            thread.add_done_callback(lambda done: queue.put_nowait(None))
            try:
                await _begin(send, 200, f"application/x-{service}-result")
                disconnected = False
                while (data := await queue.get()) is not None:
                    if not disconnected:
                        try:
                            await send({"type": "http.response.body", "body": data, "more_body": True})
                        except OSError:
                            disconnected = True  # a push that began runs to its end anyway
                if not disconnected:
                    await send({"type": "http.response.body", "body": b""})
            finally:
                await thread

    async def _in_turn(self, work, name, service):
        """Runs `work` on a thread of its own; a push after those to the same repository that came before."""
        async with contextlib.AsyncExitStack() as stack:
            if service == "git-receive-pack":
                await stack.enter_async_context(self._queues[name].turn)
            thread = ThreadPoolExecutor(1, thread_name_prefix="git")
            try:
                await asyncio.get_running_loop().run_in_executor(thread, work)
            finally:
                thread.shutdown(wait=False)

    @contextlib.contextmanager
    def _queued(self, name, service):
        """Yields whether there is room for one more push to the repository."""
        if service != "git-receive-pack":
            yield True
            return
        queue = self._queues.setdefault(name, _Queue())
        queue.pushes += 1
        try:
            yield queue.pushes <= 1 + MAX_WAITING
        finally:
            queue.pushes -= 1
            if not queue.pushes:
                del self._queues[name]


class _Queue:
    """Pushes to a repository: how many there are, and whose turn it is."""

    def __init__(self):
        self.pushes, self.turn = 0, asyncio.Lock()


async def _receive(receive, body, is_gzip, max_bytes):
    """Writes the request's body to the file; False if the client went away. RefusedError beyond `max_bytes`."""
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if is_gzip else None
    total, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        data, more = message.get("body", b""), message.get("more_body", False)
        for piece in [data] if unzip is None else _unzipped(unzip, data):
            total += len(piece)
            if total > max_bytes:
                raise RefusedError(f"the request has more than {max_bytes:,} bytes; keep large files elsewhere")
            body.write(piece)
    return True


def _unzipped(unzip, data):
    """The content of `data` in bounded pieces. RefusedError if it is not gzip."""
    while data and not unzip.eof:
        try:
            yield unzip.decompress(data, _IN_MEMORY)
        except zlib.error as error:
            raise RefusedError(f"the request is not gzip: {error}") from None
        data = unzip.unconsumed_tail


async def _send_refs(send, repo, service):
    out = io.BytesIO()
    protocol = ReceivableProtocol(io.BytesIO().read, out.write)
    protocol.write_pkt_line(f"# service={service}\n".encode())
    protocol.write_pkt_line(None)
    kind = ReceivePackHandler if service == "git-receive-pack" else UploadPack
    await asyncio.to_thread(
        kind(DictBackend({"/": repo}), ["/"], protocol, stateless_rpc=True, advertise_refs=True).handle
    )
    await _begin(send, 200, f"application/x-{service}-advertisement")
    await send({"type": "http.response.body", "body": out.getvalue()})


async def _begin(send, status, kind, extra=()):
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-cache"), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _answer(send, status, text, extra=()):
    await _begin(send, status, "text/plain; charset=utf-8", extra)
    await send({"type": "http.response.body", "body": text.encode()})


class Repositories:
    """Bare repositories in the folder `folder`, one per name."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._locks, self._lock = {}, threading.Lock()

    def names(self):
        return sorted(path.stem for path in self.folder.glob("*.git"))

    def make(self, name):
        """Makes the repository, unless it exists."""
        path, partial = self.folder / f"{name}.git", self.folder / f".partial-{name}"
        with self.pushing(name):
            if (path / "HEAD").exists():
                return
            for left in (partial, path):
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir()
            Repo.init_bare(partial).close()
            sync_tree(partial)
            partial.rename(path)
            sync_folder(self.folder)

    def clean(self, name):
        """Removes leftovers of a killed process: locks of references, partial packs. Called while `pushing`."""
        path = self.folder / f"{name}.git"
        for left in (*path.rglob("*.lock"), *path.rglob("tmp_pack_*"), *path.rglob("tmp*.pack")):
            left.unlink(missing_ok=True)

    def open(self, name):
        """dulwich's Repo, which the caller closes. RefusedError if there is none."""
        try:
            return Repo(self.folder / f"{name}.git")
        except NotGitRepository:
            raise RefusedError(
                f"{name}: no such repository; an admin makes it: vmhost cloud repository {name}"
            ) from None

    @contextlib.contextmanager
    def pushing(self, name):
        """Lets pushes take turns, over all processes."""
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock, open(self.folder / f"{name}.pushing", "ab") as turns:
            fcntl.flock(turns, fcntl.LOCK_EX)
            yield
