"""A real event stream: Chromium clicks through a small shop, and what happens on its pages becomes events.

    make real-stream ARGS="--visits 20 --out events.jsonl"

Serves shop.html and shop.js on loopback, starts a headless browser, and writes what the pages send by fetch, as JSON
lines in order of arrival. Times, scrolling, exposures, leaving and the order of arrival are the browser's; the seed
determines which links it follows. Only the items of the shop are made up (sessions.py)."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tasks.ipv import sessions

HERE = Path(__file__).resolve().parent
LINKS = 12  # items shown on a page


class Shop(ThreadingHTTPServer):
    """The shop's pages, and the events that they send: `lines`, complete when `done` is set."""

    daemon_threads = False  # closing waits for running requests

    def __init__(self, seed, visits):
        super().__init__(("127.0.0.1", 0), _Request)
        self.seed, self.visits = seed, visits
        self.items = {item["id"]: item for item in sessions.catalogue()}
        self.dice, self.lock = random.Random(seed), threading.Lock()
        self.lines, self.wanted, self.done = [], None, threading.Event()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self, path):
        """The page at `path`, or None."""
        kind, _, item = path.strip("/").partition("/")
        if kind not in ("home", "search", "item") or (kind == "item") != (item in self.items):
            return None
        with self.lock:
            shown = self.dice.sample(list(self.items.values()), LINKS)
        about = {"page": kind, "seed": self.seed, "visits": self.visits, "shown": shown, "item": self.items.get(item)}
        return (HERE / "shop.html").read_text(encoding="utf-8").replace("__PAGE__;", f"{json.dumps(about)};")


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.path == "/shop.js":
            self._answer(200, "text/javascript", (HERE / "shop.js").read_bytes())
        elif page := self.server.page(self.path):
            self._answer(200, "text/html", page.encode())
        else:
            self._answer(404, "text/plain", b"no such page\n")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        with self.server.lock:
            if self.path == "/events":
                self.server.lines += body.splitlines()
            elif self.path == "/done":  # which may overtake the last events
                self.server.wanted = int(body)
            if self.server.wanted is not None and len(self.server.lines) >= self.server.wanted:
                self.server.done.set()
        self._answer(204, None, b"")

    def _answer(self, status, kind, body):
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def record(browser, visits, seed, timeout_s=600):
    """The lines of events from a walk through the shop until `visits` item pages were seen.

    `browser`: the path of Chromium's headless shell; one unpacked by tools/chromium.sh finds its libraries next to it.
    RuntimeError if it ends early, or takes longer than `timeout_s`.
    """
    roots = [folder for folder in Path(browser).parents if folder.name == "root"]
    libraries = [found for root in roots for found in root.glob("usr/lib/*-linux-gnu")]
    paths = [str(path) for found in libraries for path in (found, found / "pulseaudio")]
    paths.append(os.environ.get("LD_LIBRARY_PATH", ""))
    with Shop(seed, visits) as shop, tempfile.TemporaryDirectory() as profile, open(f"{profile}/log", "wb+") as log:
        serving = threading.Thread(target=shop.serve_forever, name="shop")
        serving.start()
        command = [
            browser,
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--remote-debugging-port=0",  # else it ends as soon as the page has loaded
            "--window-size=412,915",
            f"--user-data-dir={profile}/profile",
            f"{shop.address}/home",
        ]
        try:
            environment = os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}
            with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as running:
                ended = threading.Thread(target=lambda: running.wait() is not None and shop.done.set())
                ended.start()
                finished = shop.done.wait(timeout_s)
                by_itself = running.poll()
                running.terminate()
            ended.join()
        finally:
            shop.shutdown()
            serving.join()
        if not finished or by_itself is not None:
            log.seek(0)
            why = f"ended with status {by_itself}" if finished else f"had not finished after {timeout_s} s"
            raise RuntimeError(f"{browser} {why}; its output: {log.read().decode(errors='replace')[-2000:]}")
        return list(shop.lines)


def main(arguments):
    parser = argparse.ArgumentParser(prog="make real-stream", description="Events of a real browser, as JSON lines.")
    parser.add_argument("--browser", required=True, help="Chromium's headless shell; make knows it")
    parser.add_argument("--visits", type=int, default=20, help="visits of item pages [20]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--out", default="build/real-events.jsonl", help="the file to write [build/real-events.jsonl]")
    options = parser.parse_args(arguments)
    lines = record(options.browser, options.visits, options.seed)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{options.out}: {len(lines)} events")


if __name__ == "__main__":
    main(sys.argv[1:])
