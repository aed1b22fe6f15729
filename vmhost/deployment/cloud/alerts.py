"""Alerts: rules over the fleet's sums, evaluated by the platform, sent by webhook.

An alert is one rule for one task, version and cohort. It is sent once when it begins, and once when it ends.
"""

import json
import logging
import re
import threading
from dataclasses import dataclass

from vmhost.bytecode.either import section
from vmhost.bytecode.kinds import Items, Text, Whole
from vmhost.deployment.cloud import written
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
_KEPT = written.Span(KEPT_MS / 1000, "a time of at most 14 d, as in 10 min", gt=0)


_KINDS = {
    "errors": section(
        ("over", written.Share(), "of failed calls, by version (and by cohort, where one is named)"),
        ("within", _KEPT, "before now"),
        ("min_calls", Whole(0, 10**12), "within this time", 1),
    ),
    "crashes": section(("over", Whole(0, 10**12), "crashes"), ("within", _KEPT, "before now")),
    "adoption": section(
        ("under", written.Share(), "of devices that run the newest released version"),
        ("after", _KEPT, "its release"),
    ),
}
_TEXT = Text("a text, in quotes if it looks like a number")
_RULE = section(
    ("name", Text("a name of at most 100 characters", max_chars=100), "of the rule"),
    *((key, kind, f"fires by {key}", None) for key, kind in _KINDS.items()),
    ("task", _TEXT, "of this task only, such as shop/rank", "all"),
    ("version", _TEXT, "of this version only", "all"),
    ("cohort", _TEXT, "of this named cohort only", "all"),
)
RULES = section(
    (
        "webhook",
        Text("an address that begins with http", re.compile(r"https?://\S*")),
        "gets each alert, and its end, as JSON by POST",
        "pages only",
    ),
    ("rules", Items(_RULE, f"a list of at most {MAX_RULES} rules", 0, MAX_RULES, unique=False), "what to watch", ()),
)
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
    plain, lines = written.parsed(text, "rules")
    if isinstance(plain, dict):
        plain = {key: value for key, value in plain.items() if value is not None}
    found = written.read(RULES, {} if plain is None else plain, "rules", lines, _check)
    rules = []
    for rule in found.get("rules", ()):
        [kind] = _KINDS.keys() & rule.keys()
        bounds = rule.pop(kind)
        rules.append(Rule(kind=kind, bounds={"min_calls": 1} | bounds if kind == "errors" else bounds, **rule))
    return found.get("webhook"), rules


def _check(found, at):
    names = set()
    for number, rule in enumerate(found.get("rules") or ()):
        kinds = [kind for kind in _KINDS if kind in (rule or ())]
        if rule is not None and len(kinds) != 1:
            at.add(("rules", number), f"expected one of {', '.join(_KINDS)}, got {', '.join(kinds) or 'none'}")
        elif kinds == ["adoption"] and rule.keys() & {"version", "cohort"}:
            at.add(
                ("rules", number), "adoption is that of the newest version by all devices; leave out version, cohort"
            )
        if rule is not None and rule.get("name") in names:
            at.add(("rules", number, "name"), f"two rules have the name {rule['name']!r}")
        names.add(rule and rule.get("name"))


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
