"""The client end of a debugging session: opens a link, and makes the page's requests by HTTP.

    with Client.open(link) as client:
        client.wait_for_consent()
        for line in client.log(): ...

A session is stored in a file (`save`), so that successive commands can use it.
"""

import base64
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from vmhost import debug_links
from vmhost.operations.debugging.ledger import DebugError
from vmhost.operations.posting import opener

_TIMEOUT_S = 30.0  # of a request, which itself waits for up to _WAIT_S
_WAIT_S = 8.0
_MAX_ANSWER_BYTES = 4 << 20
_SLOWER_S = 0.5


class Client:
    """A session at `address`. `who`: identifies the session in each request. DebugError; OSError: no connection."""

    def __init__(self, address, who, asked=()):
        self.address, self._who, self.asked = address, who, tuple(asked)

    @classmethod
    def open(cls, text):
        """Opens the link; the session then waits for consent. LinkError, DebugError."""
        link = debug_links.read(text)
        session = cls(link.address, {})
        answer = session.ask("open", link=link.text)
        session._who = {name: answer[name] for name in ("session", "secret", "device") if name in answer}
        session.asked = tuple(answer["asked"])
        return session

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    @property
    def session(self):
        return self._who["session"]

    def save(self, path):
        """Stores the session in a file that only its owner can read."""
        path = Path(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"address": self.address, "who": self._who, "asked": self.asked}, file)
        new.replace(path)

    @classmethod
    def saved(cls, path):
        """The session in such a file; None if there is none."""
        try:
            plain = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(plain["address"], plain["who"], plain["asked"])
        except OSError, ValueError, KeyError, TypeError:
            return None

    def ask(self, do, **what):
        """The answer to a request. DebugError."""
        body = json.dumps({"do": do, **what, **self._who}).encode()
        headers = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
        request = urllib.request.Request(f"{self.address}/debug/api", body, headers)
        try:
            with opener().open(request, timeout=_TIMEOUT_S) as response:
                status, data = response.status, response.read(_MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                status, data = error.code, error.read(_MAX_ANSWER_BYTES + 1)
        except ValueError as error:  # an address that urllib cannot take
            raise DebugError("link", f"{self.address}: {error}") from error
        try:
            if len(data) > _MAX_ANSWER_BYTES:
                raise ValueError("too long")
            answer = json.loads(data)
            failed = answer.get("error")
        except (ValueError, AttributeError, RecursionError) as error:
            raise DebugError(
                "host",
                f"{self.address}: answered with HTTP {status}, and not as a host that may be debugged does; is "
                "`debugging: ask` in its host.yaml?",
            ) from error
        if failed is not None:
            raise DebugError(failed["kind"], failed["message"])
        return answer

    def state(self, wait_s=0.0):
        return self.ask("state", wait_s=wait_s)

    def wait_for_consent(self, timeout_s=None):
        """Returns the granted scopes. DebugError if consent was refused or did not come in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _WAIT_S if end is None else max(0.0, min(_WAIT_S, end - time.monotonic()))
            state = self.state(left_s)
            if state["state"] == "active":
                return tuple(state["granted"])
            if state["state"] != "waiting":
                raise DebugError("consent", f"{state['state']}: {state['why']}")
            if end is not None and time.monotonic() >= end:
                raise DebugError("consent", f"nobody at the device consented within {timeout_s:g} s; try again")

    def config(self):
        return self.ask("config")

    def log(self, *, follow=True, task=None, level="all", text=""):
        """Yields lines, (number, time, level, task, version, text), oldest first; a text in place of a line says how
        many are missing. Without `follow`: existing lines only."""
        after = 0
        while True:
            asked = {"after": after, "task": task, "level": level, "text": text}
            answer = self._ask_patiently("logs", wait_s=_WAIT_S if follow else 0, **asked)
            if answer["missed"]:
                yield f"{answer['missed']} lines came too fast, and are not shown"
            yield from map(tuple, answer["lines"])
            if not follow and not answer["lines"]:
                return
            after = answer["next"]

    def run(self, task, plain, *, profile=False, trace=False, timeout_s=None):
        """Runs a task once, and returns the outcome, as in the answer to `result`."""
        limit = {} if timeout_s is None else {"timeout_s": timeout_s}
        begun = self.ask("run", task=task, value=plain, profile=profile, trace=trace, **limit)
        try:
            while (answer := self._ask_patiently("result", run=begun["run"], wait_s=_WAIT_S))["state"] == "running":
                pass
            return answer
        except BaseException:
            try:
                self.ask("stop", run=begun["run"])
            except DebugError, OSError:
                pass  # the end of the session stops it too
            raise

    def reports(self):
        return self.ask("reports")["reports"]

    def fetch(self, name):
        """The bytes of a report, or of a file made by a run."""
        data, offset = bytearray(), 0
        while offset is not None:
            piece = self._ask_patiently("fetch", name=name, offset=offset)
            data += base64.b64decode(piece["data"], validate=True)
            if piece["next"] is not None and piece["next"] <= offset:
                raise DebugError("host", f"{name}: the pieces are not contiguous")
            offset = piece["next"]
        return bytes(data)

    def end(self):
        """Ends the session; does nothing if it is over."""
        try:
            self.ask("end")
        except DebugError, OSError:
            pass

    def _ask_patiently(self, do, **what):
        """As `ask`, repeated while the rate limit refuses it."""
        while True:
            try:
                return self.ask(do, **what)
            except DebugError as error:
                if error.kind not in ("rate", "busy"):
                    raise
                time.sleep(_SLOWER_S)
