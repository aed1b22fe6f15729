"""Alerts: rules over the fleet's sums, evaluated by the platform, sent by webhook.

webhook: https://example.org/alerts      # gets each alert, and its end, as JSON by POST; without it: pages only
rules:
  - name: errors                         # share of failed calls, by version (and by cohort, where one is named)
    errors: {over: 0.05, within: 10 min, min_calls: 100}
    task: shop/rank                      # default: all tasks; likewise `version` and `cohort`
  - name: crashes
    crashes: {over: 3, within: 1 h}
  - name: adoption                       # share of devices that run the newest released version
    adoption: {under: 0.9, after: 24 h}

An alert is one rule for one task, version and cohort. It is sent once when it begins, and once when it ends.
"""

import json
import logging
import math
import threading
from dataclasses import dataclass

from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.quantities import seconds
from vmhost.bytecode.spec import plain_of
from vmhost.deployment.cloud.fleet import KEPT_MS
from vmhost.deployment.errors import RefusedError
from vmhost.operations.posting import post

MAX_RULES = 100
MAX_BYTES = 64 << 10
MAX_OPEN = 1000  # open alerts at a time
KEPT_ALERTS = 5000
MAX_TRIES = 10
_EVALUATE_MS = 15_000
_TIMEOUT_S = 10.0
_KINDS = {
    "errors": {"over": "share", "within": "time", "min_calls": "count"},
    "crashes": {"over": "count", "within": "time"},
    "adoption": {"under": "share", "after": "time"},
}
_log = logging.getLogger("vmhost.deployment")


@dataclass(frozen=True)
class Rule:
    """`bounds`: shares as numbers, times in seconds."""

    name: str
    kind: str
    bounds: dict
    task: str | None = None
    version: str | None = None
    cohort: str | None = None

    def is_of(self, task, version, cohort):
        """Whether the rule is about these sums; without a cohort it is about those of all devices."""
        return self.task in (None, task) and self.version in (None, version) and (self.cohort or "") == cohort


def read_rules(text):
    """(webhook or None, Rules) in the YAML `text`. RefusedError says what is wrong."""
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        raise RefusedError(f"rules: expected a text of at most {MAX_BYTES:,} characters")
    try:
        plain = plain_of(text.encode(errors="replace"), "rules")
    except TaskSpecError as error:
        raise RefusedError(str(error)[:300]) from None
    plain = {} if plain is None else plain
    if not isinstance(plain, dict) or not plain.keys() <= {"webhook", "rules"}:
        raise RefusedError("rules: expected the keys webhook and rules")
    webhook, rules = plain.get("webhook"), plain.get("rules") or []
    if webhook is not None and not (isinstance(webhook, str) and webhook.startswith(("http://", "https://"))):
        raise RefusedError(f"webhook: expected an address that begins with http, got {webhook!r:.100}")
    if not isinstance(rules, list) or len(rules) > MAX_RULES:
        raise RefusedError(f"rules: expected a list of at most {MAX_RULES}")
    read = [_rule(each, f"rules: {number}") for number, each in enumerate(rules, 1)]
    names = [rule.name for rule in read]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise RefusedError(f"rules: {double}: two rules have this name")
    return webhook, read


def _rule(plain, where):
    if not isinstance(plain, dict) or not isinstance(plain.get("name"), str) or not 0 < len(plain["name"]) <= 100:
        raise RefusedError(f"{where}: expected a name, and one of {', '.join(_KINDS)}")
    where = f"rules: {plain['name']}"
    kinds = [kind for kind in _KINDS if kind in plain]
    if len(kinds) != 1 or (wrong := plain.keys() - {"name", "task", "version", "cohort", *kinds}):
        more = "" if len(kinds) != 1 else f", not {', '.join(map(str, wrong))}"
        raise RefusedError(f"{where}: expected one of {', '.join(_KINDS)}, and task, version, cohort{more}")
    [kind] = kinds
    of = {name: plain.get(name) for name in ("task", "version", "cohort")}
    if not all(value is None or isinstance(value, str) for value in of.values()):
        raise RefusedError(f"{where}: task, version and cohort: expected texts, in quotes if they look like numbers")
    if kind == "adoption" and (of["version"] or of["cohort"]):
        raise RefusedError(
            f"{where}: adoption: is that of the newest version by all devices; leave out version, cohort"
        )
    bounds = plain[kind]
    if not isinstance(bounds, dict) or bounds.keys() - _KINDS[kind].keys() or len(bounds) < 2:
        raise RefusedError(f"{where}: {kind}: expected {', '.join(_KINDS[kind])}")
    read = {"min_calls": 1} if kind == "errors" else {}
    for name, value in bounds.items():
        read[name] = _bound(_KINDS[kind][name], value, f"{where}: {kind}: {name}")
    if missing := _KINDS[kind].keys() - read.keys():
        raise RefusedError(f"{where}: {kind}: expected {', '.join(sorted(missing))}")
    return Rule(plain["name"], kind, read, **of)


def _bound(kind, value, where):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind == "share":
        if is_number and 0 <= value <= 1:
            return value
        raise RefusedError(f"{where}: expected a share from 0 to 1, got {value!r:.40}")
    if kind == "count":
        if is_number and isinstance(value, int) and 0 <= value <= 10**12:
            return value
        raise RefusedError(f"{where}: expected a whole number, got {value!r:.40}")
    found = seconds(value)
    if found is None or not 0 < found <= KEPT_MS / 1000:
        raise RefusedError(f"{where}: expected a time of at most 14 d, as in 10 min, got {value!r:.40}")
    return found


class Alerts:
    """Rules and alerts in the platform's `database`, over its Fleet. `look` may be called often; it evaluates
    seldom."""

    def __init__(self, database, fleet, releases):
        self._database, self._fleet, self._releases = database, fleet, releases
        self._next_ms = 0
        self._sending = None

    # ---- rules

    def rules(self):
        """{text, who, time_ms} of the current rules, as written."""
        with self._database.reader() as connection:
            row = connection.execute("SELECT text, who, time_ms FROM fleet_rules").fetchone()
        return dict(zip(("text", "who", "time_ms"), row or ("", "", None), strict=True))

    def set_rules(self, text, who):
        """Replaces the rules. RefusedError."""
        _, rules = read_rules(text)
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO fleet_rules VALUES (1, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET "
                "text = excluded.text, who = excluded.who, time_ms = excluded.time_ms",
                (text, who, self._fleet.now_ms()),
            )
        self._next_ms = 0
        return [rule.name for rule in rules]

    # ---- evaluating

    def look(self):
        """Evaluates all rules if that is due, and sends notices on a thread of its own."""
        if self._fleet.now_ms() >= self._next_ms:
            self._next_ms = self._fleet.now_ms() + _EVALUATE_MS
            try:
                self.evaluate()
            except RefusedError as error:  # rules written by another version of the platform
                _log.error("alerts: %s", error)
            self._fleet.clean()
        if (self._sending is None or not self._sending.is_alive()) and self._due():
            self._sending = threading.Thread(target=self._send_logged, name="fleet-alerts", daemon=True)
            self._sending.start()

    def close(self):
        if self._sending is not None:
            self._sending.join()

    def evaluate(self):
        """Begins and ends alerts by the current sums."""
        webhook, rules = read_rules(self.rules()["text"])
        firing, sums, adoption = {}, {}, None
        for rule in rules:
            if rule.kind == "adoption":
                adoption = self._fleet.adoption() if adoption is None else adoption
                found = self._slow_adoption(rule, adoption)
            else:
                within_s = rule.bounds["within"]
                if within_s not in sums:
                    sums[within_s] = self._fleet.sums(within_s / 3600)
                found = _exceeded(rule, sums[within_s])
            firing |= {(rule.name, *of): why for of, why in found.items()}
        firing = dict(sorted(firing.items())[:MAX_OPEN])
        now_ms = self._fleet.now_ms()
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT id, rule, task, version, cohort, why FROM fleet_alerts WHERE until_ms IS NULL"
            ).fetchall()
            known = {tuple(key): (identity, why) for identity, *key, why in rows}
            for key in firing.keys() - known.keys():
                identity = connection.execute(
                    "INSERT INTO fleet_alerts (rule, task, version, cohort, since_ms, why) VALUES (?, ?, ?, ?, ?, ?) "
                    "RETURNING id",
                    (*key, now_ms, firing[key]),
                ).fetchall()[0][0]
                self._note(connection, webhook, identity, "firing", key, firing[key], now_ms)
            for key in known.keys() - firing.keys():
                identity, why = known[key]
                connection.execute("UPDATE fleet_alerts SET until_ms = ? WHERE id = ?", (now_ms, identity))
                self._note(connection, webhook, identity, "resolved", key, why, now_ms)
            if firing.keys() != known.keys():
                for table in ("fleet_alerts", "fleet_notices"):
                    connection.execute(
                        f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?"
                        + (" AND until_ms IS NOT NULL" if table == "fleet_alerts" else ""),
                        (KEPT_ALERTS,),
                    )

    def _slow_adoption(self, rule, adoption):
        after_ms = self._fleet.now_ms() - rule.bounds["after"] * 1000
        newest = {}
        with self._database.lock:
            for release in self._releases.releases.values():
                if release.state in ("running", "paused", "halted", "done"):
                    newest[release.task] = release
        found = {}
        for each in adoption:
            release = newest.get(each["task"])
            if release is None or release.time_ms > after_ms or rule.task not in (None, each["task"]):
                continue
            version = release.version.version
            share = next((of["share"] for of in each["versions"] if of["version"] == version), 0.0)
            if share < rule.bounds["under"]:
                why = f"{share:.1%} of {each['devices']} devices run it, under {rule.bounds['under']:.1%}"
                found[each["task"], version, ""] = why
        return found

    @staticmethod
    def _note(connection, webhook, identity, state, key, why, now_ms):
        if webhook is not None:
            of = dict(zip(("rule", "task", "version", "cohort"), key, strict=True))
            body = json.dumps({"alert": identity, "state": state, **of, "why": why, "time_ms": now_ms})
            connection.execute(
                "INSERT INTO fleet_notices (alert, body, tries, next_ms, state) VALUES (?, ?, 0, ?, 'waiting')",
                (identity, body, now_ms),
            )

    # ---- sending

    def _due(self):
        with self._database.reader() as connection:
            return connection.execute(
                "SELECT id, alert, body, tries, next_ms FROM fleet_notices WHERE state = 'waiting' AND next_ms <= ? "
                "ORDER BY id LIMIT 100",
                (self._fleet.now_ms(),),
            ).fetchall()

    def _send_logged(self):
        try:
            self.send()
        except Exception:
            _log.exception("alerts could not be sent; they are retried")

    def send(self):
        """Sends due notices. A failed one is tried again with growing delays, `MAX_TRIES` times."""
        webhook, _ = read_rules(self.rules()["text"])
        for identity, alert, body, tries, next_ms in self._due():
            again_ms = self._fleet.now_ms() + min(3600, 15 * 2**tries) * 1000
            with self._database.transaction() as connection:  # so that only one process sends it
                mine = connection.execute(
                    "UPDATE fleet_notices SET next_ms = ?, tries = tries + 1 WHERE id = ? AND next_ms = ? AND "
                    "state = 'waiting'",
                    (again_ms, identity, next_ms),
                ).rowcount
            if not mine:
                continue
            state = "sent" if webhook is None or _posted(webhook, body, alert) else None
            if state is None and tries + 1 >= MAX_TRIES:
                state = "given up"
                _log.error("%s: the notice of alert %d failed %d times; it is dropped", webhook, alert, MAX_TRIES)
            if state is not None:
                with self._database.transaction() as connection:
                    connection.execute("UPDATE fleet_notices SET state = ? WHERE id = ?", (state, identity))

    # ---- pages

    def list(self, may=lambda task: True, limit=100):
        """Alerts, the open ones first, then the latest; `told`: the state of the last notice of each, None without
        one."""
        names = ("id", "rule", "task", "version", "cohort", "since_ms", "until_ms", "why", "told")
        with self._database.reader() as connection:
            rows = connection.execute(
                "SELECT id, rule, task, version, cohort, since_ms, until_ms, why, "
                "(SELECT state FROM fleet_notices WHERE alert = fleet_alerts.id ORDER BY id DESC LIMIT 1) "
                "FROM fleet_alerts ORDER BY until_ms IS NOT NULL, id DESC"
            )
            found = [dict(zip(names, row, strict=True)) for row in rows]
        return [each for each in found if may(each["task"])][:limit]


def _exceeded(rule, sums):
    """{(task, version, cohort): why} of the sums beyond the rule's bound."""
    found = {}
    for each in sums:
        key = each["task"], each["version"], each["cohort"]
        if not rule.is_of(*key):
            continue
        over = rule.bounds["over"]
        if rule.kind == "crashes":
            if each["crashes"] > over:
                found[key] = f"{each['crashes']:,} crashes, more than {over:,}"
        elif each["calls"] >= rule.bounds["min_calls"] and each["share"] > over:
            found[key] = f"{each['failures']:,} of {each['calls']:,} calls failed, more than {over:.1%}"
    return found


def _posted(webhook, body, alert):
    try:
        post(webhook, body.encode(), {"Content-Type": "application/json"}, _TIMEOUT_S)
        return True
    except (OSError, ValueError) as error:
        _log.warning("%s: the notice of alert %d could not be sent: %s", webhook, alert, error)
        return False
