"""Downloads from static servers that cut, slow, lie and lack ranges; deltas and their fallbacks."""

import contextlib
import hashlib
import http.server
import os
import threading
import time

import pytest

from vmhost.deployment import delta
from vmhost.deployment.artifacts import ArtifactFolder, digest_of
from vmhost.deployment.device.transfers import Transfers
from vmhost.deployment.errors import DamagedError, TransferError

DATA = os.urandom(300_000)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("range"))
        behave = server.behaviour.pop(0) if server.behaviour else "well"
        start = int((self.headers.get("range") or "bytes=0-")[6:-1])
        if behave in ("no ranges", "more"):
            start = 0
        if behave == "gone":
            self.send_error(503)
            return
        if behave == "elsewhere":
            self.send_response(302)
            self.send_header("location", "/moved")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        if behave == "drips a header":
            self.drip(b"HTTP/1.1 200 OK\r\nx: " + bytes([120]) * 100_000)
            return
        data = DATA[start:]
        self.send_response(206 if start else 200)
        if start:
            begin = start + 7 if behave == "wrong range" else start
            self.send_header("content-range", f"bytes {begin}-{len(DATA) - 1}/{len(DATA)}")
        if behave == "more":
            data += b"and more"
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if behave == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.shutdown(2)
            self.close_connection = True
            return
        if behave == "drips":
            self.drip(data)
            return
        if behave == "lie":
            data = bytes(len(data))
        self.wfile.write(data)

    def drip(self, data):
        """A byte now and then, as long as the client reads."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(0.02)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.behaviour, server.asked = [], []
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def transfers(server):
    with contextlib.closing(Transfers(f"http://127.0.0.1:{server.server_port}", timeout_s=20)) as transfers:
        yield transfers


def pull(transfers, path, tries=1):
    for _ in range(tries - 1):
        with pytest.raises(TransferError):
            transfers.download("/file", path, len(DATA))
    transfers.download("/file", path, len(DATA))
    assert path.read_bytes() == DATA


def test_a_download_that_is_cut_goes_on_where_it_was(server, transfers, tmp_path):
    server.behaviour = ["cut", "cut"]
    pull(transfers, tmp_path / "file", tries=3)
    assert server.asked == [None, "bytes=150000-", "bytes=225000-"]


def test_a_server_without_ranges_begins_anew(server, transfers, tmp_path):
    server.behaviour = ["cut", "no ranges"]
    pull(transfers, tmp_path / "file", tries=2)


@pytest.mark.parametrize("behaviour", ["gone", "wrong range", "more"])
def test_what_a_broken_server_does_is_an_error_that_may_pass(server, transfers, tmp_path, behaviour):
    server.behaviour = ["cut", behaviour]
    pull(transfers, tmp_path / "file", tries=3)


@pytest.mark.parametrize("behaviour", ["drips", "drips a header"])
def test_a_server_that_is_too_slow_holds_nobody_up(server, tmp_path, behaviour):
    """It would take half an hour."""
    for timeout_s in (0.5, 5, 50):  # on a slow machine nothing comes in a short time
        with contextlib.closing(Transfers(f"http://127.0.0.1:{server.server_port}", timeout_s=timeout_s)) as transfers:
            server.behaviour = [behaviour]
            with pytest.raises(TransferError, match="slower than|timed out"):
                transfers.download("/file", tmp_path / "partial", len(DATA))
        if behaviour != "drips" or (tmp_path / "partial").exists():
            break
    begun = (tmp_path / "partial").stat().st_size if behaviour == "drips" else None
    assert begun != 0, "what came is kept"
    with contextlib.closing(Transfers(f"http://127.0.0.1:{server.server_port}", timeout_s=20)) as transfers:
        pull(transfers, tmp_path / "partial")
    assert server.asked[-1] == (None if begun is None else f"bytes={begun}-")


def test_redirects_are_followed(server, transfers, tmp_path):
    server.behaviour = ["elsewhere"]
    pull(transfers, tmp_path / "file")


def test_a_lying_server_is_found_out_and_its_bytes_are_deleted(server, transfers, tmp_path):
    server.behaviour = ["lie"]
    folder = ArtifactFolder(tmp_path / "artifacts")
    digest, partial = hashlib.sha256(DATA).hexdigest(), tmp_path / "file"
    transfers.download("/file", partial, len(DATA))
    with pytest.raises(DamagedError, match="expected the SHA-256"):
        folder.take(partial, digest)
    assert not partial.exists() and digest not in folder
    pull(transfers, partial)
    folder.take(partial, digest)
    assert folder.read(digest) == DATA


def test_nobody_who_listens_is_an_error_that_may_pass(tmp_path):
    with contextlib.closing(Transfers("http://127.0.0.1:9")) as transfers, pytest.raises(TransferError):
        transfers.download("/file", tmp_path / "file", 10)


def test_a_delta_makes_the_new_file_of_the_old_one():
    new = bytearray(DATA)
    new[1000:1004] = b"edit"
    made_of = delta.make(DATA, bytes(new))
    assert len(made_of) < 200
    assert delta.apply(DATA, made_of, len(new)) == bytes(new)
    assert delta.apply(b"", delta.make(b"", bytes(new)), len(new)) == bytes(new)


@pytest.mark.parametrize("harm", ["other old file", "cut", "flipped", "wrong size", "bomb"])
def test_a_delta_that_does_not_fit_is_refused(harm):
    new = DATA[:100_000] + b"new" + DATA[100_000:]
    made_of, old, size = delta.make(DATA, new), DATA, len(new)
    if harm == "other old file":
        old = bytes(len(DATA))
    if harm == "cut":
        made_of = made_of[:-10]
    if harm == "flipped":
        made_of = made_of[:20] + bytes([made_of[20] ^ 255]) + made_of[21:]
    if harm == "wrong size":
        size -= 1
    if harm == "bomb":
        made_of = delta.make(b"", bytes(5_000_000), level=3)
    with pytest.raises(DamagedError):
        data = delta.apply(old, made_of, size)
        if digest_of(data) != digest_of(new):  # the agent finds this by the digest
            raise DamagedError
