"""The registry of devices: their identity, and what they state of themselves and of their tasks."""

import hashlib
import hmac
import json

from vmhost.access import AccessDeniedError
from vmhost.deployment import identifiers, stated_facts
from vmhost.deployment.errors import MissingError, RefusedError

MAX_FACTS_BYTES = 16 << 10
MAX_PROFILE_BYTES = 256 << 10
_MAX_PROBLEM = 2000  # characters


class Devices:
    """The registry in `database`. `seen` is written with the next `flush`, at the latest by `close`."""

    def __init__(self, database, clock):
        self._database, self._clock = database, clock
        self._seen = {}  # device -> ms, not written yet
        self.load_blocked()

    def _now_ms(self):
        return int(self._clock() * 1000)

    def enrol(self, device, secret):
        """Registers the device with the secret that it made up; doing it again with the same secret changes nothing.
        Returns whether it is new."""
        with self._database.transaction() as connection:
            if self.is_enrolled(device, secret):
                return False
            self.add(connection, device, digest_of_secret(secret))
        return True

    def is_enrolled(self, device, secret):
        """Whether the device is registered with this secret. RefusedError if it is with another one, or may not be."""
        identifiers.check("device", device)
        self._must_not_be_blocked(device)
        if not isinstance(secret, str) or not 32 <= len(secret) <= 128:
            raise RefusedError("secret: expected a text of 32 to 128 characters")
        with self._database.transaction() as connection:
            row = connection.execute("SELECT secret FROM deploy_devices WHERE id = ?", (device,)).fetchone()
        if row is not None and not hmac.compare_digest(row[0], digest_of_secret(secret)):
            raise RefusedError(
                f"{device}: another device has this name. Choose another name; if it is the same device, set up "
                f"again, an admin can free the name: vmhost cloud forget {device}"
            )
        return row is not None

    def add(self, connection, device, digest):
        """Registers a device that is new, with its secret's digest."""
        self._must_not_be_blocked(device)
        now_ms = self._now_ms()
        connection.execute(
            "INSERT INTO deploy_devices (id, secret, facts, profile, first_ms, seen_ms, epoch, reported) "
            "VALUES (?, ?, '{}', '{}', ?, ?, '', 0)",
            (device, digest, now_ms, now_ms),
        )

    def identify(self, device, secret):
        """AccessDeniedError unless the secret is the device's. Returns (epoch, number of the last report)."""
        with self._database.reader() as connection:
            row = connection.execute(
                "SELECT secret, epoch, reported FROM deploy_devices WHERE id = ?", (str(device),)
            ).fetchone()
        if row is None or not hmac.compare_digest(row[0], digest_of_secret(str(secret))):
            raise AccessDeniedError(f"{device!s:.128}: not enrolled, or with another secret", False)
        self._must_not_be_blocked(device)
        self._seen[device] = self._now_ms()
        return row[1], row[2]

    # ---- blocked devices

    def load_blocked(self):
        """Reads what is committed."""
        with self._database.reader() as connection:
            self._blocked = dict(connection.execute("SELECT device, why FROM deploy_blocked").fetchall())

    def why_blocked(self, device):
        """Why the device is blocked; None if it is not. Quick. A change by another process is seen within a second."""
        return self._blocked.get(device)

    def _must_not_be_blocked(self, device):
        if (why := self.why_blocked(device)) is not None:
            raise AccessDeniedError(f"{device}: is blocked ({why}); an admin can lift it", True)

    def block(self, device, why, who):
        """Refuses the device, known or not, until `unblock`, whatever secret or certificate it has."""
        identifiers.check("device", device)
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO deploy_blocked VALUES (?, ?, ?, ?) ON CONFLICT (device) DO UPDATE SET "
                "why = excluded.why, who = excluded.who, time_ms = excluded.time_ms",
                (device, why.replace("\0", "") or "no reason was given", who, self._now_ms()),
            )
        self.load_blocked()

    def unblock(self, device):
        with self._database.transaction() as connection:
            if not connection.execute("DELETE FROM deploy_blocked WHERE device = ?", (device,)).rowcount:
                raise MissingError(f"{device}: is not blocked")
        self.load_blocked()

    def blocked(self):
        """[{device, why, who, time_ms}] by name."""
        with self._database.reader() as connection:
            rows = connection.execute("SELECT device, why, who, time_ms FROM deploy_blocked ORDER BY device").fetchall()
        return [dict(zip(("device", "why", "who", "time_ms"), row)) for row in rows]

    def forget(self, device):
        """Lets the device enrol again with another secret. Its part in releases stays recorded."""
        with self._database.transaction() as connection:
            if not connection.execute("DELETE FROM deploy_devices WHERE id = ?", (device,)).rowcount:
                raise MissingError(f"{device}: no such device")
            for table in ("deploy_health", "fleet_epochs", "fleet_versions"):
                connection.execute(f"DELETE FROM {table} WHERE device = ?", (device,))
        self._seen.pop(device, None)

    def state(self, connection, device, facts, profile, epoch, reported):
        """Stores what the device states, if it changed."""
        problem = _problem(facts)
        facts, profile = json.dumps(facts, sort_keys=True), json.dumps(profile, sort_keys=True)
        if len(facts) > MAX_FACTS_BYTES or len(profile) > MAX_PROFILE_BYTES:
            raise RefusedError(
                f"{device}: more than {MAX_FACTS_BYTES:,} bytes of facts, or {MAX_PROFILE_BYTES:,} of tasks"
            )
        connection.execute(
            "UPDATE deploy_devices SET facts = ?, profile = ?, epoch = ?, reported = ?, problem = ? WHERE id = ? AND "
            "(facts != ? OR profile != ? OR epoch != ? OR reported != ? OR coalesce(problem, '') != ?)",
            (facts, profile, epoch, reported, problem, device, facts, profile, epoch, reported, problem or ""),
        )

    def stated(self, device):
        """(facts, tasks) as the device stated them last; empty for an unknown device."""
        with self._database.reader() as connection:
            row = connection.execute("SELECT facts, profile FROM deploy_devices WHERE id = ?", (device,)).fetchone()
        return (stated_facts.loaded(row[0]), stated_facts.loaded(row[1])) if row else ({}, {})

    def flush(self):
        if self._database.shared:
            self.load_blocked()
        seen, self._seen = self._seen, {}
        if seen:
            with self._database.transaction() as connection:
                connection.executemany(
                    "UPDATE deploy_devices SET seen_ms = ? WHERE id = ?", [(ms, device) for device, ms in seen.items()]
                )

    # ---- named cohorts

    def named(self, connection, device):
        return frozenset(
            row[0] for row in connection.execute("SELECT cohort FROM deploy_cohorts WHERE device = ?", (device,))
        )

    def set_cohort(self, cohort, devices):
        """Replaces the members of a named cohort; devices need not be known yet."""
        identifiers.check("cohort", cohort)
        devices = {identifiers.check("device", device) for device in devices}
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM deploy_cohorts WHERE cohort = ?", (cohort,))
            connection.executemany("INSERT INTO deploy_cohorts VALUES (?, ?)", [(cohort, each) for each in devices])

    def cohorts(self):
        with self._database.reader() as connection:
            found = {}
            for cohort, device in connection.execute("SELECT cohort, device FROM deploy_cohorts ORDER BY 1, 2"):
                found.setdefault(cohort, []).append(device)
        return found

    # ---- reading

    def list(self, *, after="", limit=100):
        """Plain data of known devices, by name."""
        with self._database.reader() as connection:
            rows = connection.execute(
                "SELECT id, facts, profile, first_ms, seen_ms FROM deploy_devices WHERE id > ? ORDER BY id LIMIT ?",
                (after, limit),
            ).fetchall()
        return [self._plain(*row) for row in rows]

    def get(self, device):
        with self._database.reader() as connection:
            row = connection.execute(
                "SELECT id, facts, profile, first_ms, seen_ms FROM deploy_devices WHERE id = ?", (device,)
            ).fetchone()
        if row is None:
            raise MissingError(f"{device}: no such device")
        return self._plain(*row)

    def count(self):
        with self._database.reader() as connection:
            return connection.execute("SELECT count(*) FROM deploy_devices").fetchone()[0]

    def _plain(self, device, facts, profile, first_ms, seen_ms):
        facts, bad = stated_facts.divided(stated_facts.loaded(facts))
        return {
            "device": device,
            "facts": facts,
            "bad_facts": bad,
            "blocked": self.why_blocked(device),
            "tasks": stated_facts.loaded(profile),
            "first_ms": first_ms,
            "seen_ms": max(seen_ms, self._seen.get(device, 0)),
        }


def _problem(facts):
    """The problem that the device states for its operator, or that its facts are; None without one."""
    good, bad = stated_facts.divided(facts)
    problem = good.get("problem") or (f"bad facts: {', '.join(bad)}" if bad else None)
    return None if problem is None else str(problem)[:_MAX_PROBLEM].replace("\0", "\ufffd")


def digest_of_secret(secret):
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()
