"""A device's records of debugging: sessions and consent, used or revoked links, and the audit.

`debugging.sqlite` in the host's state folder is a store shared by several processes: the host, and the commands with
which a person inspects, consents and ends. Each change and its audit line are one transaction. Audit lines are
append-only: triggers refuse to change or delete one, and each has the SHA-256 of itself and the line before.

A session is `waiting` for consent, then `active`, then `ended`; or `denied`. Its secret is stored as a digest.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import time
from pathlib import Path

from vmhost import VMHostError
from vmhost.bytecode import signing
from vmhost.bytecode.errors import SigningError
from vmhost.debug_links import MAX_VALID_S, checked_scopes, signed
from vmhost.stores import Database, StoreError

MAX_LINES = 200_000  # audit lines; some 60 MB
MAX_WAITING, MAX_ACTIVE = 8, 4  # sessions
WAITING_S = 600.0  # time limit for consent
CLOCK_TOLERANCE_S = 300.0
_LAST_LINES = 2_000  # the part of MAX_LINES reserved for the ends of sessions
_MAX_DETAILS = 2_000  # characters of a line
_EMPTY = bytes(32)
_COLUMNS = "id, link, signer, via, note, asked, granted, state, why, opened_ms, expires_ms"


class DebugError(VMHostError):
    """A refusal. `kind`: link, consent, ended, scope, input, busy, rate, audit, host, or another word from a newer
    vmhost."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


class Ledger:
    """The ledger in the state folder of a host. Thread-safe. `clock`: seconds since 1970. Close it.

    DebugError of kind "audit" where the store cannot be opened."""

    def __init__(self, folder, clock=time.time):
        self.folder, self._clock = Path(folder), clock
        self.path = self.folder / "debugging.sqlite"
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.database = Database(self.path, shared=True)
            try:
                self.database.migrate("debugging", (_make_tables,))
            except BaseException:
                self.database.close()
                raise
        except OSError as error:
            raise DebugError(
                "audit", f"{self.path}: cannot be opened: {error.strerror}; give the host's `state`"
            ) from (error)
        except StoreError as error:
            raise DebugError("audit", str(error)) from error

    def close(self):
        with contextlib.suppress(StoreError):
            self.database.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def now_ms(self):
        return int(self._clock() * 1000)

    # ---- identity of the host

    def key(self):
        """The host's own SigningKey for links, made if missing. SigningError."""
        path = self.folder / "debugging.key"
        if not path.exists():
            with contextlib.suppress(SigningError):  # another process was quicker
                signing.generate_key().save(path, "this host")
        return signing.load_key(path)

    def host(self):
        """The host's name in links: a digest of its own key."""
        return hashlib.sha256(self.key().public).hexdigest()[:16]

    def address(self):
        """The address at which it was last reachable, or None."""
        return self._fact("address")

    def set_address(self, address):
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO debug_facts VALUES ('address', ?)", (address,))

    def _fact(self, name):
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM debug_facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    # ---- the audit

    def note(self, who, action, session="", **details):
        """Adds an audit line. DebugError of kind "audit" where it cannot be written: then the action must not
        happen."""
        with self._writing() as connection:
            self._note(connection, who, action, session, details)

    def _note(self, connection, who, action, session, details, last=False):
        row = connection.execute("SELECT number, chain FROM debug_audit ORDER BY number DESC LIMIT 1").fetchone()
        number, before = (row[0] + 1, row[1]) if row else (1, _EMPTY)
        if number > MAX_LINES - (0 if last else _LAST_LINES):
            raise DebugError(
                "audit",
                f"{self.path}: the audit is full ({MAX_LINES:,} lines); end the host, move the file away, and keep it",
            )
        text = json.dumps({name: value for name, value in details.items() if value is not None}, sort_keys=True)
        if len(text) > _MAX_DETAILS:
            text = json.dumps({"cut": text[: _MAX_DETAILS // 2]})
        now_ms = self.now_ms()
        row = (number, now_ms, who, action, session, text)
        connection.execute("INSERT INTO debug_audit VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _chained(before, row)))
        connection.execute(
            "INSERT INTO debug_facts VALUES ('clock_ms', ?) ON CONFLICT (name) DO UPDATE SET value = "
            "max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))",
            (now_ms,),
        )

    def audit(self, *, session=None, limit=100):
        """The latest audit lines, newest first, as plain data."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT number, time_ms, who, action, session, details FROM debug_audit "
                "WHERE (? IS NULL OR session = ?) ORDER BY number DESC LIMIT ?",
                (session, session, limit),
            ).fetchall()
        names = ("number", "time_ms", "who", "action", "session")
        return [dict(zip(names, row)) | {"details": json.loads(row[5])} for row in rows]

    def damage(self):
        """The first damage of the audit: a line that was changed or is missing; None if there is none."""
        before, expected = _EMPTY, 1
        with self._reading() as connection:
            for *row, chain in connection.execute(
                "SELECT number, time_ms, who, action, session, details, chain FROM debug_audit ORDER BY number"
            ):
                if row[0] != expected:
                    return f"line {expected} is missing"
                if _chained(before, row) != chain:
                    return f"line {expected} was changed"
                before, expected = chain, expected + 1
        return None

    # ---- links

    def offer(self, who, scopes, valid_s, address=None, note=""):
        """A new Link of this host's own. `address`: where it is reachable; None: the dashboard's. DebugError."""
        address = address or self.address()
        if address is None:
            raise DebugError(
                "host", "no dashboard has served this host yet; begin it with --dashboard, or give --address"
            )
        try:
            link = signed(self.key(), address, self.host(), scopes, valid_s, self._clock(), note)
        except (ValueError, SigningError) as error:
            raise DebugError("input", str(error)) from error
        self.note(who, "offered", link.id, scopes=list(link.scopes), valid_s=int(valid_s), note=note or None)
        return link

    def revoke(self, identity, who):
        """Revokes the link with this id; its session, if any, ends. DebugError."""
        if not (isinstance(identity, str) and len(identity) == 12 and set(identity) <= set("0123456789abcdef")):
            raise DebugError("input", f"{identity!r:.40}: expected a link, or its id of 12 hexadecimal digits")
        with self._writing() as connection:
            self._note(connection, who, "revoked", identity, {}, last=True)
            connection.execute("INSERT OR IGNORE INTO debug_revoked VALUES (?, ?)", (identity, self.now_ms()))
            self._finish(connection, "link", identity, "ended", "the link was revoked", who)

    def check_clock(self):
        """DebugError if the clock was set back, as expired links would seem valid."""
        before_ms, now_ms = int(self._fact("clock_ms") or 0), self.now_ms()
        if now_ms < before_ms - CLOCK_TOLERANCE_S * 1000:
            raise DebugError(
                "link",
                f"this host's clock stands at {_moment(now_ms)}, and stood at {_moment(before_ms)} before, so "
                "expired links cannot be recognized; set it right, or if it is right now: "
                f"vmhost debug clock {self.folder}",
            )

    def accept_clock(self, who):
        """Accepts the present clock; its earlier, later reading is forgotten."""
        with self._writing() as connection:
            self._note(connection, who, "clock accepted", "", {"before_ms": int(self._fact("clock_ms") or 0)})
            connection.execute("UPDATE debug_facts SET value = ? WHERE name = 'clock_ms'", (self.now_ms(),))

    # ---- sessions

    def open(self, link, signer, via, asked, max_s):
        """Opens a session, which waits for consent, for a link whose signature was checked; returns (session, secret).
        DebugError if the link was used, was revoked or has expired, or too many sessions wait."""
        self.check_clock()
        now_ms = self.now_ms()
        if link.expires_s * 1000 <= now_ms:
            raise DebugError("link", f"the link expired at {_moment(link.expires_s * 1000)}; ask for a new one")
        if link.issued_s * 1000 > now_ms + CLOCK_TOLERANCE_S * 1000:
            raise DebugError(
                "link",
                f"the link was made at {_moment(link.issued_s * 1000)}, and this host's clock stands at "
                f"{_moment(now_ms)}; set the clock right that is wrong",
            )
        session, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        expires_ms = int(min(link.expires_s * 1000, now_ms + max_s * 1000))
        with self._writing() as connection:
            run = connection.execute
            if run("SELECT 1 FROM debug_revoked WHERE link = ?", (link.id,)).fetchone():
                raise DebugError("link", "the link was revoked; ask for a new one")
            if run("SELECT 1 FROM debug_sessions WHERE nonce = ?", (link.nonce,)).fetchone():
                raise DebugError("link", "the link was used already; each opens one session: ask for a new one")
            waiting = run("SELECT count(*) FROM debug_sessions WHERE state = 'waiting'").fetchone()[0]
            if waiting >= MAX_WAITING:
                raise DebugError("busy", f"{waiting} sessions wait for consent already; try again later")
            # Expired links cannot be opened again, used or not; the week allows for clock differences.
            run(
                "DELETE FROM debug_sessions WHERE state IN ('ended', 'denied') AND expires_ms < ?",
                (now_ms - 2 * MAX_VALID_S * 1000,),
            )
            places = ", ".join("?" * (_COLUMNS.count(",") + 3))
            run(
                f"INSERT INTO debug_sessions ({_COLUMNS}, nonce, secret) VALUES ({places})",
                (session, link.id, signer, via, link.note, json.dumps(list(asked)), "[]", "waiting", "", now_ms)
                + (expires_ms, link.nonce, _digest(secret)),
            )
            self._note(connection, f"{signer} by {via}", "asked for a session", session, {"link": link.id})
        return session, secret

    def sessions(self, *, state=None, limit=100):
        """Sessions as plain data, the latest first."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM debug_sessions WHERE (? IS NULL OR state = ?) "
                "ORDER BY opened_ms DESC, rowid DESC LIMIT ?",
                (state, state, limit),
            ).fetchall()
        return [_session(row) for row in rows]

    def session(self, identity):
        """One session, or None."""
        with self._reading() as connection:
            row = connection.execute(f"SELECT {_COLUMNS} FROM debug_sessions WHERE id = ?", (identity,)).fetchone()
        return _session(row) if row else None

    def identify(self, identity, secret):
        """The session with this secret. DebugError."""
        if isinstance(identity, str) and isinstance(secret, str):
            with self._reading() as connection:
                row = connection.execute("SELECT secret FROM debug_sessions WHERE id = ?", (identity,)).fetchone()
            if row and hmac.compare_digest(row[0], _digest(secret)):
                return self.session(identity)
        raise DebugError("link", "no such session; open the link first")

    def decide(self, identity, yes, who, scopes=None):
        """Consents to a waiting session, to `scopes` only if given; or denies it. DebugError."""
        with self._writing() as connection:
            row = connection.execute(f"SELECT {_COLUMNS} FROM debug_sessions WHERE id = ?", (identity,)).fetchone()
            session = _session(row) if row else None
            if session is None or session["state"] != "waiting":
                state = f"it is {session['state']}" if session else "there is no such session"
                raise DebugError("input", f"{identity}: waits for no consent: {state}; see `vmhost debug sessions`")
            if not yes:
                self._finish(connection, "id", identity, "denied", "consent was refused", who)
                return
            if scopes is not None:
                try:
                    session["asked"] = [scope for scope in checked_scopes(scopes) if scope in session["asked"]]
                except ValueError as error:
                    raise DebugError("input", str(error)) from error
                if not session["asked"]:
                    raise DebugError("input", "none of these scopes was asked for; refuse the session instead")
            if self._late(session):
                raise DebugError("input", f"{identity}: its time is over; ask for a new link")
            active = connection.execute("SELECT count(*) FROM debug_sessions WHERE state = 'active'").fetchone()[0]
            if active >= MAX_ACTIVE:
                raise DebugError("busy", f"{active} sessions are active already; end one first")
            self._note(connection, who, "consented", identity, {"scopes": session["asked"]})
            connection.execute(
                "UPDATE debug_sessions SET state = 'active', granted = ? WHERE id = ?",
                (json.dumps(session["asked"]), identity),
            )

    def end(self, identity, who, why):
        """Ends a waiting or active session; an ended one stays as it is. False if there is none."""
        with self._writing() as connection:
            return self._finish(connection, "id", identity, "ended", why, who)

    def end_all(self, who, why):
        with self._writing() as connection:
            for (identity,) in connection.execute(
                "SELECT id FROM debug_sessions WHERE state IN ('waiting', 'active')"
            ).fetchall():
                self._finish(connection, "id", identity, "ended", why, who)

    def act(self, identity, scope, who, action, **details):
        """Adds the audit line of an action of the session, before it happens. DebugError if it is not allowed: no
        consent (any more), the session is over, the scope is not granted, or the line cannot be written."""
        with self._writing() as connection:
            row = connection.execute(f"SELECT {_COLUMNS} FROM debug_sessions WHERE id = ?", (identity,)).fetchone()
            session = _session(row)
            self.must_be_active(session)
            if scope is not None and scope not in session["granted"]:
                granted = ", ".join(session["granted"])
                raise DebugError("scope", f"this session may {granted}; {scope} was not granted: ask for a new link")
            self._note(connection, who, action, identity, details)

    def must_be_active(self, session):
        if session["state"] == "waiting":
            raise DebugError("consent", "nobody at the device has consented yet")
        if session["state"] != "active":
            raise DebugError("ended", f"the session is over: {session['why']}")
        if self._late(session):
            raise DebugError("ended", "the session is over: its time ran out")

    def _late(self, session):
        return session["expires_ms"] <= self.now_ms()

    def _finish(self, connection, column, value, state, why, who):
        rows = connection.execute(
            f"SELECT id FROM debug_sessions WHERE {column} = ? AND state IN ('waiting', 'active')", (value,)
        ).fetchall()
        for (identity,) in rows:
            connection.execute("UPDATE debug_sessions SET state = ?, why = ? WHERE id = ?", (state, why, identity))
            self._note(connection, who, state, identity, {"why": why}, last=True)
        return bool(rows)

    # ---- the store

    @contextlib.contextmanager
    def _writing(self):
        try:
            with self.database.transaction() as connection:
                yield connection
        except StoreError as error:
            raise DebugError("audit", f"refused, since it cannot be audited: {error}") from error

    @contextlib.contextmanager
    def _reading(self):
        try:
            with self.database.reader() as connection:
                yield connection
        except StoreError as error:
            raise DebugError("audit", str(error)) from error


def _make_tables(connection):
    for statement in _TABLES:
        connection.execute(statement)


_TABLES = (
    """CREATE TABLE debug_audit (
        number INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
        session TEXT NOT NULL, details TEXT NOT NULL, chain BLOB NOT NULL)""",
    "CREATE INDEX debug_audit_sessions ON debug_audit (session)",
    """CREATE TRIGGER debug_audit_stays BEFORE DELETE ON debug_audit
        BEGIN SELECT RAISE(ABORT, 'lines of the audit stay'); END""",
    """CREATE TRIGGER debug_audit_is_fixed BEFORE UPDATE ON debug_audit
        BEGIN SELECT RAISE(ABORT, 'lines of the audit are not changed'); END""",
    """CREATE TABLE debug_sessions (
        id TEXT PRIMARY KEY, link TEXT NOT NULL, signer TEXT NOT NULL, via TEXT NOT NULL, note TEXT NOT NULL,
        asked TEXT NOT NULL, granted TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL,
        opened_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, nonce BLOB NOT NULL UNIQUE, secret BLOB NOT NULL)""",
    "CREATE TABLE debug_revoked (link TEXT PRIMARY KEY, time_ms INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE debug_facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)


def _session(row):
    session = dict(zip(_COLUMNS.split(", "), row))
    return session | {"asked": json.loads(session["asked"]), "granted": json.loads(session["granted"])}


def _digest(secret):
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _chained(before, row):
    return hashlib.sha256(before + json.dumps(list(row)).encode()).digest()


def _moment(ms):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms / 1000))
