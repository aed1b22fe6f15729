"""What leaves by HTTP goes to the configured address and to no other: a redirect is a failure."""

import http.server
import threading

import pytest

from vmhost.deployment.cloud import alerts
from vmhost.operations import crash_reports, otlp, posting, sentry


class Redirecting:
    """A server that redirects each request to another path of its own; `seen`: (method, path) of the requests."""

    def __init__(self, status):
        self.seen = seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                seen.append((self.command, self.path))
                self.rfile.read(int(self.headers.get("content-length", 0)))
                moved = "elsewhere" not in self.path
                self.send_response(status if moved else 200)
                if moved:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *arguments):
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_failures_and_nothing_goes_elsewhere(status):
    with Redirecting(status) as receiver:
        with pytest.raises(OSError, match=f"HTTP Error {status}: .*, which is not followed"):
            posting.post(f"{receiver.address}/hook", b"{}", {}, 5.0)
        assert not alerts._posted(f"{receiver.address}/hook", "{}", 1)
        posting.post(f"{receiver.address}/elsewhere", b"{}", {}, 5.0)
    assert receiver.seen == [("POST", "/hook")] * 2 + [("POST", "/elsewhere")]


def test_every_sender_uses_the_one_client():
    assert {module.post for module in (alerts, crash_reports, otlp, sentry)} == {posting.post}
