"""Devices that ask to join, with a token that has only the scope `join`: each waits until an admin decides.

A request is known by the device's name and a code that both ends derive from the device's secret. Whoever has the
token can ask under any name, so an admin compares the code with the one that the device shows.
"""

import hmac
import time

from vmhost.access import AccessDeniedError
from vmhost.deployment import identifiers
from vmhost.deployment.cloud.devices import digest_of_secret
from vmhost.deployment.errors import MissingError, RefusedError

MAX_JOINS = 1000  # requests that are kept; of refused ones, the oldest make room
MAX_OF_TOKEN = 500  # that wait with one token: who has a leaked one leaves places to others


class Joins:
    """The requests in `database`. `note(who, action, subject, **details)` writes the audit log."""

    def __init__(self, database, devices, note, clock=time.time):
        self._database, self._devices, self._note, self._clock = database, devices, note, clock

    def ask(self, device, secret, identity, network):
        """Records the request; returns whether it is new. AccessDeniedError if it was refused."""
        code, digest = identifiers.join_code(secret), digest_of_secret(secret)
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT state, secret FROM deploy_joins WHERE device = ? AND code = ?", (device, code)
            ).fetchone()
            if row is not None:
                if row[0] == "refused" or not hmac.compare_digest(row[1], digest):
                    raise AccessDeniedError(f"{device} {code}: an admin refused to let this device join", True)
                return False
            self._make_room(connection, identity.token)
            connection.execute(
                "INSERT INTO deploy_joins VALUES (?, ?, ?, 'waiting', ?, ?, ?, ?)",
                (device, code, digest, identity.name, identity.token, network, self._now_ms()),
            )
            self._note(identity.name, "device asks to join", device, code=code, network=network)
        return True

    def _make_room(self, connection, token):
        waiting = "SELECT count(*) FROM deploy_joins WHERE state = 'waiting' AND token = ?"
        if connection.execute(waiting, (token,)).fetchone()[0] >= MAX_OF_TOKEN:
            raise RefusedError(
                f"{MAX_OF_TOKEN:,} devices that asked with this token wait for an admin's approval; try again later"
            )
        if connection.execute("SELECT count(*) FROM deploy_joins").fetchone()[0] < MAX_JOINS:
            return
        oldest = connection.execute(
            "SELECT device, code FROM deploy_joins WHERE state = 'refused' ORDER BY time_ms LIMIT 1"
        ).fetchone()
        if oldest is None:
            raise RefusedError(f"{MAX_JOINS:,} devices wait for an admin's approval; try again later")
        connection.execute("DELETE FROM deploy_joins WHERE device = ? AND code = ?", tuple(oldest))

    def _now_ms(self):
        return int(self._clock() * 1000)

    def list(self):
        """[{device, code, state, who, network, time_ms}]: waiting ones first, the oldest first. `state`: waiting or
        refused; `who`: whose token it used."""
        with self._database.reader() as connection:
            rows = connection.execute(
                "SELECT device, code, state, who, network, time_ms FROM deploy_joins "
                "ORDER BY state DESC, time_ms, device, code"
            ).fetchall()
        return [dict(zip(("device", "code", "state", "who", "network", "time_ms"), row)) for row in rows]

    def approve(self, device, code, by):
        """Registers the device with this code, refused before or not. MissingError, RefusedError, AccessDeniedError."""
        with self._database.transaction() as connection:
            digest = self._known(connection, device, code)
            if connection.execute("SELECT 1 FROM deploy_devices WHERE id = ?", (device,)).fetchone():
                raise RefusedError(f"{device}: another device has this name; free it: vmhost cloud forget {device}")
            self._devices.add(connection, device, digest)
            connection.execute("DELETE FROM deploy_joins WHERE device = ? AND code = ?", (device, code))
            self._note(by, "device approved", device, code=code)

    def refuse(self, device, code, by):
        """Answers this device that it may not join, from now on. MissingError."""
        with self._database.transaction() as connection:
            self._known(connection, device, code)
            connection.execute(
                "UPDATE deploy_joins SET state = 'refused', time_ms = ? WHERE device = ? AND code = ?",
                (self._now_ms(), device, code),
            )
            self._note(by, "device refused", device, code=code)

    def _known(self, connection, device, code):
        row = connection.execute(
            "SELECT secret FROM deploy_joins WHERE device = ? AND code = ?", (device, code)
        ).fetchone()
        if row is None:
            raise MissingError(f"{device} {code}: no such device asks to join; vmhost cloud joins lists them")
        return row[0]

    def drop(self, token):
        """Removes what was asked with this token, which was revoked."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM deploy_joins WHERE token = ? AND state = 'waiting'", (token,))
