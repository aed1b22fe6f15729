"""Debugging devices from the platform: it signs links, and relays requests to devices by the tunnel.

The platform relays requests of links that it made and that are neither revoked nor expired. Everything else is decided
by the device: it checks the link, asks its user, and audits (vmhost/operations/debugging). The platform's own audit
records who made which link, and each request before it is relayed.
"""

import json
import threading

from vmhost import debug_links
from vmhost.access import RateLimit
from vmhost.bytecode import signing
from vmhost.debug_links import LinkError
from vmhost.deployment.cloud import key_files
from vmhost.deployment.errors import MissingError, RefusedError
from vmhost.operations.debugging.ledger import DebugError
from vmhost.stores import StoreError

TIMEOUT_S = 20.0  # of a request, which may wait ten seconds on the device
MAX_VALID_S = 86_400.0
_REQUESTS_PER_S, _BURST = 20, 60  # of one session
_OPENS_PER_S, _OPENS_AT_ONCE = 1, 20  # of one client address
_WAITS_AT_ONCE = 32  # threads that may wait for devices
_QUIET = ("state", "result", "logs")  # polling requests, which are not audited one by one
_STEPS = (
    """
    CREATE TABLE debug_links (
        id TEXT PRIMARY KEY, device TEXT NOT NULL, who TEXT NOT NULL, scopes TEXT NOT NULL, note TEXT NOT NULL,
        time_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0, session TEXT
    ) WITHOUT ROWID;
    CREATE INDEX debug_links_sessions ON debug_links (session)
    """,
)
_COLUMNS = ("id", "device", "who", "scopes", "note", "time_ms", "expires_ms", "revoked", "session")


class DebugRelay:
    """`ask(device, text, timeout_s)`: the device's answer to a text, by the tunnel; it blocks. None if the platform
    has no tunnel."""

    def __init__(self, database, access, keys, clock):
        self._database, self._access, self._path, self._clock = database, access, keys / "debug", clock
        self.ask = None
        self._requests = RateLimit(_REQUESTS_PER_S, _BURST)
        self._opens = RateLimit(_OPENS_PER_S, _OPENS_AT_ONCE)
        self._waits = threading.BoundedSemaphore(_WAITS_AT_ONCE)
        database.migrate("debugging", _STEPS)
        with key_files.turn(keys):
            key_files.make(self._path, "platform")
            self._key = signing.load_key(self._path)

    @property
    def public(self):
        """The public key that devices list under `keys` of `debugging`."""
        return signing.format_public_key("platform", self._key.public)

    def _now_ms(self):
        return int(self._clock() * 1000)

    # ---- making links

    def make(self, who, device, scopes, valid_s, address, note=""):
        """Makes a Link to the device. RefusedError."""
        if valid_s > MAX_VALID_S:
            raise RefusedError(f"valid_s: expected at most {MAX_VALID_S:,.0f} seconds, got {valid_s:g}")
        try:
            link = debug_links.signed(self._key, address, device, scopes, valid_s, self._clock(), note)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO debug_links (id, device, who, scopes, note, time_ms, expires_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (link.id, device, who, json.dumps(list(link.scopes)), note, self._now_ms(), link.expires_s * 1000),
            )
            self._access.note(who, "debug link made", device, link=link.id, scopes=list(link.scopes), note=note or None)
        return link

    def links(self, limit=100):
        """The latest links first, as plain data."""
        with self._database.reader() as connection:
            rows = connection.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM debug_links ORDER BY time_ms DESC LIMIT ?", (limit,)
            ).fetchall()
        return [self._plain(row) for row in rows]

    def revoke(self, identity, who):
        """Revokes a link; the next request tells the device to end its session."""
        with self._database.transaction() as connection:
            found = self._find(connection, "id", identity)
            if found is None:
                raise MissingError(f"{identity}: there is no such link")
            connection.execute("UPDATE debug_links SET revoked = 1 WHERE id = ?", (identity,))
            self._access.note(who, "debug link revoked", found["device"], link=identity)
        return found | {"revoked": True}

    def _find(self, connection, column, value):
        row = connection.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM debug_links WHERE {column} = ?", (value,)
        ).fetchone()
        return self._plain(row) if row else None

    def _plain(self, row):
        found = dict(zip(_COLUMNS, row))
        return found | {"scopes": json.loads(found["scopes"]), "revoked": bool(found["revoked"])}

    # ---- relaying

    def answer(self, request, peer):
        """The device's answer, or why it was not asked. `peer`: the client's address."""
        try:
            if not isinstance(request, dict) or not isinstance(request.get("do"), str):
                raise DebugError("input", "expected {'do': ...}")
            if request["do"] == "open":
                return self._open(request, peer)
            return self._relay(request)
        except (DebugError, LinkError) as error:
            return {"error": {"kind": getattr(error, "kind", "link"), "message": str(error)}}
        except StoreError as error:
            return {"error": {"kind": "audit", "message": f"refused, since it cannot be audited: {error}"}}

    def _open(self, request, peer):
        if (wait_s := self._opens.wait_s(peer)) > 0:
            raise DebugError("rate", f"too many links; again in {wait_s:.0f} s")
        link = debug_links.read(request.get("link"))
        link.signed_by({self._key.public: "platform"})
        with self._database.reader() as connection:
            known = self._find(connection, "id", link.id)
        self._check_link(known)
        self._access.note(f"link {link.id}", "debug link opened", link.host, peer=peer)
        answer = self._ask_device(link.host, {"do": "open", "link": link.text})
        if "session" in answer:
            with self._database.transaction() as connection:
                connection.execute(
                    "UPDATE debug_links SET session = ? WHERE id = ?", (str(answer["session"])[:100], link.id)
                )
            answer["device"] = link.host
        return answer

    def _relay(self, request):
        session, device = request.get("session"), request.pop("device", None)
        if not isinstance(session, str) or not isinstance(device, str):
            raise DebugError("link", "no such session; open the link first")
        with self._database.reader() as connection:
            known = self._find(connection, "session", session)
        if known is None or known["device"] != device:
            raise DebugError("link", "no such session; open the link first")
        if (wait_s := self._requests.wait_s(session)) > 0:
            raise DebugError("rate", f"too many requests; again in {wait_s:.1f} s")
        do, who = request["do"], f"link {known['id']}"
        if known["revoked"]:
            self._ask_device(device, {"do": "end", "session": session, "secret": request.get("secret")})
        self._check_link(known)
        if do not in _QUIET:
            named = {
                name: request[name] for name in ("task", "name", "run") if isinstance(request.get(name), (str, int))
            }
            self._access.note(
                who, f"debug {do}"[:60], device, **{name: str(each)[:100] for name, each in named.items()}
            )
        answer = self._ask_device(device, request)
        if do == "logs" and answer.get("lines"):
            self._access.note(who, "debug logs", device, lines=len(answer["lines"]))
        if do == "result" and answer.get("state") == "ended":
            self._access.note(who, "debug result", device, outcome=str(answer.get("outcome"))[:60])
        with self._database.reader() as connection:  # it may have been revoked meanwhile
            self._check_link(self._find(connection, "session", session))
        return answer

    def _check_link(self, known):
        if known is None:
            raise DebugError("link", "this platform made no such link; ask for a new one")
        if known["revoked"]:
            raise DebugError("link", "the link was revoked; ask for a new one")
        if known["expires_ms"] <= self._now_ms():
            raise DebugError("link", "the link has expired; ask for a new one")

    def _ask_device(self, device, request):
        if self.ask is None:
            raise DebugError("host", "this platform has no tunnel to devices; serve it with --tunnel and --tunnel-keys")
        if not self._waits.acquire(blocking=False):
            raise DebugError("busy", "too many requests wait for devices; ask again later")
        try:
            answer = json.loads(self.ask(device, json.dumps(request), TIMEOUT_S))
            if not isinstance(answer, dict):
                raise ValueError("no object")
            return answer
        except (ValueError, TypeError, RecursionError) as error:
            raise DebugError("host", f"{device}: sent an invalid answer: {error}"[:300]) from error
        finally:
            self._waits.release()
