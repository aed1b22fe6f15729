"""Accounts with roles, tokens with scopes, and the audit log, in a `vmhost.stores.Database`.

A role is a set of scopes. A scope is a word ("push"), or a word and an owner ("push:shop"); the word alone covers all
owners. Only the words in `OWNED` can have an owner: the others concern everybody. A token belongs to an account and is
limited to both its own scopes and the account's role. A token's text is shown once, when it is created; the database
holds its SHA-256 (the secret is 256 random bits, so that suffices).
"""

import hashlib
import hmac
import json
import re
import secrets
import time
from dataclasses import dataclass

ROLES = {
    "viewer": ("read",),
    "developer": ("read", "push"),
    "releaser": ("read", "push", "release"),
    "debugger": ("read", "debug"),  # makes links that open sessions on devices
    "admin": ("read", "push", "release", "admin", "enrol", "join", "debug"),
    "fleet": ("enrol", "join"),  # for tokens with which devices join; with `join` alone, an admin approves each
}
_COVERED_BY = {"join": "enrol"}  # whoever may do the latter may do the former
OWNED = frozenset(("read", "push", "release"))
_NAME = re.compile(r"[a-z0-9][a-z0-9_.@-]{0,63}")
_TOKEN = re.compile(r"vmh_([0-9a-z]{1,16})_([0-9A-Za-z_-]{43})")
_STEPS = (
    """
    CREATE TABLE access_accounts (
        name TEXT PRIMARY KEY, role TEXT NOT NULL, time_ms INTEGER NOT NULL, disabled INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE TABLE access_tokens (
        id TEXT PRIMARY KEY, account TEXT NOT NULL, secret BLOB NOT NULL, scopes TEXT NOT NULL, label TEXT NOT NULL,
        time_ms INTEGER NOT NULL, expires_ms INTEGER, revoked INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE TABLE access_audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
        subject TEXT NOT NULL, details TEXT NOT NULL
    );
    CREATE INDEX access_audit_subjects ON access_audit (subject)
    """,
    "ALTER TABLE access_tokens ADD COLUMN uses INTEGER",
)


class AccessError(Exception):
    """An invalid account, role or scope. The message gives the remedy."""


class AccessDeniedError(Exception):
    """The caller is unknown (`known` is False), or lacks the scope."""

    def __init__(self, message, known):
        super().__init__(message)
        self.known = known


@dataclass(frozen=True)
class Identity:
    """The caller: an account, through one of its tokens. `scopes`: what the token allows; `token`: its id."""

    name: str
    role: str
    scopes: tuple
    token: str = ""

    def may(self, scope, whose=None):
        """Is the scope covered, for the owner `whose` where given?"""
        if scope in self.scopes or _COVERED_BY.get(scope) in self.scopes:
            return True
        return bool(whose) and f"{scope}:{whose}" in self.scopes

    def must_somewhere(self, scope):
        """AccessDeniedError unless the scope is covered for at least one owner; `must` then checks which."""
        if not any(each.partition(":")[0] == scope for each in self.scopes):
            self.must(scope)

    def must(self, scope, whose=None):
        """AccessDeniedError unless `may`."""
        if not self.may(scope, whose):
            wanted = scope if whose is None else f"{scope} (of {whose})"
            raise AccessDeniedError(
                f"{self.name} has the role {self.role} and may {', '.join(self.scopes) or 'do nothing'}; this needs "
                f"{wanted}: ask an admin for it",
                True,
            )


class Access:
    """The accounts in `database`. Threads may share it. `clock`: seconds since 1970. `owners()`: the names that a scope
    may have after its colon."""

    def __init__(self, database, clock=time.time, owners=lambda: ()):
        self.database = database
        self._clock, self._owners = clock, owners
        database.migrate("access", _STEPS)

    def _now_ms(self):
        return int(self._clock() * 1000)

    # ---- accounts and tokens

    def add_account(self, name, role, by):
        """Creates the account. AccessError if it exists, or the name or role is invalid."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise AccessError(f"{name!r}: expected a name of a-z, 0-9 and _.@-, at most 64 characters")
        if role not in ROLES:
            raise AccessError(f"{role!r}: expected one of the roles {', '.join(ROLES)}")
        with self.database.transaction() as connection:
            if connection.execute("SELECT 1 FROM access_accounts WHERE name = ?", (name,)).fetchone():
                raise AccessError(f"{name}: there is such an account already; change its role, or take another name")
            connection.execute("INSERT INTO access_accounts VALUES (?, ?, ?, 0)", (name, role, self._now_ms()))
            self.note(by, "account added", name, role=role)

    def change_account(self, name, by, *, role=None, disabled=None):
        """Changes the role, or disables the account and all its tokens."""
        if role is not None and role not in ROLES:
            raise AccessError(f"{role!r}: expected one of the roles {', '.join(ROLES)}")
        with self.database.transaction() as connection:
            self._must_exist(connection, name)
            if role is not None:
                connection.execute("UPDATE access_accounts SET role = ? WHERE name = ?", (role, name))
            if disabled is not None:
                connection.execute("UPDATE access_accounts SET disabled = ? WHERE name = ?", (int(disabled), name))
            self.note(by, "account changed", name, role=role, disabled=disabled)

    def _must_exist(self, connection, name):
        row = connection.execute("SELECT role FROM access_accounts WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise AccessError(f"{name}: no such account")
        return row[0]

    def add_token(self, account, by, *, scopes=None, label="", expires_s=None, uses=None):
        """Creates a token and returns its text. `scopes`: by default all of the role's; `expires_s`: from now; `uses`:
        how often `use` accepts it, None: without a bound."""
        secret = secrets.token_urlsafe(32)
        identity = "".join(secrets.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(10))
        now_ms = self._now_ms()
        expires_ms = None if expires_s is None else now_ms + int(expires_s * 1000)
        with self.database.transaction() as connection:
            role = self._must_exist(connection, account)
            scopes = list(ROLES[role]) if scopes is None else list(scopes)
            for scope in scopes:
                self._check_scope(scope, role, account)
            connection.execute(
                "INSERT INTO access_tokens (id, account, secret, scopes, label, time_ms, expires_ms, revoked, uses) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)",
                (identity, account, _digest(secret), json.dumps(scopes), label, now_ms, expires_ms, uses),
            )
            self.note(by, "token added", account, token=identity, scopes=scopes, label=label, uses=uses)
        return f"vmh_{identity}_{secret}"

    def _check_scope(self, scope, role, account):
        word, colon, owner = scope.partition(":") if isinstance(scope, str) else ("", "", "")
        if word not in ROLES[role]:
            raise AccessError(f"{scope!s:.100}: the role {role} of {account} may {', '.join(ROLES[role])} only")
        if colon and word not in OWNED:
            raise AccessError(
                f"{scope:.100}: {word} concerns everybody, and cannot be given for one owner; "
                f"{', '.join(sorted(OWNED))} can"
            )
        if colon and owner not in (known := sorted(self._owners())):
            raise AccessError(f"{scope:.100}: expected one of {', '.join(known) or 'none'} after the colon")

    def use(self, identity):
        """Counts a use of the Identity's token, where these are bounded. Joins the current transaction.
        AccessDeniedError if none is left."""
        with self.database.transaction() as connection:
            row = connection.execute("SELECT uses FROM access_tokens WHERE id = ?", (identity.token,)).fetchone()
            if row is None or row[0] is None:
                return
            if row[0] <= 0:
                raise AccessDeniedError("the token was used as often as it may be; ask an admin for another one", True)
            connection.execute("UPDATE access_tokens SET uses = uses - 1 WHERE id = ?", (identity.token,))

    def revoke_token(self, identity, by):
        """Revokes the token with this id (the part after `vmh_`)."""
        with self.database.transaction() as connection:
            row = connection.execute("SELECT account FROM access_tokens WHERE id = ?", (identity,)).fetchone()
            if row is None:
                raise AccessError(f"{identity}: no such token")
            connection.execute("UPDATE access_tokens SET revoked = 1 WHERE id = ?", (identity,))
            self.note(by, "token revoked", row[0], token=identity)

    def accounts(self):
        """Plain data about each account and its tokens, without secrets."""
        with self.database.reader() as connection:
            tokens = {}
            for identity, account, scopes, label, time_ms, expires_ms, revoked, uses in connection.execute(
                "SELECT id, account, scopes, label, time_ms, expires_ms, revoked, uses FROM access_tokens "
                "ORDER BY time_ms"
            ):
                tokens.setdefault(account, []).append(
                    {
                        "id": identity,
                        "scopes": json.loads(scopes),
                        "label": label,
                        "time_ms": time_ms,
                        "expires_ms": expires_ms,
                        "revoked": bool(revoked),
                        "uses": uses,
                    }
                )
            return [
                {"name": name, "role": role, "disabled": bool(disabled), "tokens": tokens.get(name, [])}
                for name, role, disabled in connection.execute("SELECT name, role, disabled FROM access_accounts")
            ]

    def identify(self, token, account=None):
        """The Identity of a token's text; AccessDeniedError. `account`: the token's required owner, where known."""
        unknown = AccessDeniedError("the token is not known, was revoked or has expired; ask an admin for one", False)
        found = _TOKEN.fullmatch(token) if isinstance(token, str) else None
        if not found:
            raise unknown
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT t.account, t.secret, t.scopes, t.expires_ms, t.revoked, a.role, a.disabled "
                "FROM access_tokens t JOIN access_accounts a ON a.name = t.account WHERE t.id = ?",
                (found[1],),
            ).fetchone()
        if row is None or not hmac.compare_digest(row[1], _digest(found[2])):
            raise unknown
        name, _, scopes, expires_ms, revoked, role, disabled = row
        if revoked or disabled or (expires_ms is not None and expires_ms <= self._now_ms()):
            raise unknown
        if account is not None and account != name:
            raise AccessDeniedError(f"the token is not one of {account}'s", False)
        allowed = tuple(scope for scope in json.loads(scopes) if _is_allowed(scope, ROLES[role]))
        return Identity(name, role, allowed, found[1])

    # ---- the audit log

    def note(self, who, action, subject, **details):
        """Writes a line to the audit log. Joins the current transaction."""
        kept = {name: value for name, value in details.items() if value is not None}
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO access_audit (time_ms, who, action, subject, details) VALUES (?, ?, ?, ?, ?)",
                (self._now_ms(), who, action, subject, json.dumps(kept, sort_keys=True)),
            )

    def audit(self, *, subject=None, limit=100):
        """The latest lines, newest first, as plain data; of one subject where that is given."""
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT number, time_ms, who, action, subject, details FROM access_audit "
                "WHERE (? IS NULL OR subject = ?) ORDER BY number DESC LIMIT ?",
                (subject, subject, limit),
            ).fetchall()
        names = ("number", "time_ms", "who", "action", "subject")
        return [dict(zip(names, row)) | {"details": json.loads(row[5])} for row in rows]


def _is_allowed(scope, words):
    """Whether a stored scope counts for a role with these words."""
    word, colon, _ = scope.partition(":")
    return word in words and (not colon or word in OWNED)


def _digest(secret):
    return hashlib.sha256(secret.encode()).digest()
