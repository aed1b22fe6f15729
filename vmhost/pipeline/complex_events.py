"""Complex events of a pipeline: events that match a rule become an event of their own.

A match of the rule `hesitates` is stored as the event `rule:hesitates`, outside of visits; a time-out, where the rule
reports these, as `rule:hesitates:timeout`. As they are stored like other events, they can trigger tasks (level `time`),
reach channels in order, and are known after a restart.

Matches under way are saved every few seconds, with the position up to which events were fed. A start loads the last
snapshot and feeds the later events again; matches whose events are stored already are not stored twice.
"""

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vmhost import ConfigurationError
from vmhost.pipeline.events import Event
from vmhost.pipeline.patterns import PatternEngine, PatternError, RuleError
from vmhost.pipeline.patterns.rules import RULE_KEYS
from vmhost.pipeline.reach.settings import USUAL_PRIORITY, sending_of
from vmhost.pipeline.values import pack, unpack
from vmhost.settings.files import plain_yaml

PREFIX = "rule:"
TIMED_OUT = ":timeout"
SAVE_S = 5.0
COUNTS = ("events", "looked_at", "matched", "timed_out", "dropped", "ended", "missed")  # an engine's growing counters
_EVER_MS = 1 << 62
_MAX_LISTED_EVENTS = 100  # most events of one step in the contents of a match's event
_AT_ONCE = 1000
STEPS = (
    "CREATE TABLE pattern_state (id INTEGER PRIMARY KEY CHECK (id = 1), position INTEGER NOT NULL, data BLOB NOT NULL)",
    "ALTER TABLE pattern_state ADD COLUMN rules BLOB",
)
_log = logging.getLogger("vmhost.pipeline")


@dataclass(frozen=True)
class RuleSettings:
    """A rule of a pipeline. `data` is the rule as data; `then` and `timeout` are the names of channels that get its
    matches and time-outs. `timeout` None: time-outs are not reported. The rest is for messages (reach/settings.py)."""

    name: str
    by: str
    data: dict
    then: tuple = ()
    timeout: tuple | None = None
    priority: int = USUAL_PRIORITY
    audience: str | None = None
    expires_ms: int | None = None
    message: dict | None = None


def read_rule_file(path, content_of=Path.read_bytes):
    """The RuleSettings in a YAML or JSON file, which has one rule or a list of them. `content_of(path)` reads its
    bytes. ConfigurationError."""
    import yaml

    path = Path(path)
    try:
        content = plain_yaml(content_of(path).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    listed = content if isinstance(content, list) else [content]
    return [
        rule_settings(one, f"{path}[{number}]" if len(listed) > 1 else f"{path}") for number, one in enumerate(listed)
    ]


def read_rules(rules, content_of=Path.read_bytes):
    """The RuleSettings of a list of mappings and of paths of rule files. ConfigurationError."""
    read = []
    for one in rules:
        read += [rule_settings(one)] if isinstance(one, dict) else read_rule_file(one, content_of)
    return read


def check_rules(rules):
    """ConfigurationError if these RuleSettings cannot be together in one pipeline."""
    engine, names = PatternEngine(), set()
    for rule in rules:
        if rule.name in names:
            raise ConfigurationError(f"there are two rules {rule.name}; give one of them another name")
        names.add(rule.name)
        _add(engine, rule)


def _add(engine, rule):
    try:
        lowered = engine.add(rule.name, rule.data, rule.by, timeouts=rule.timeout is not None)
        if lowered.automaton.within_ms == 0:
            engine.remove(rule.name)
            raise RuleError("within_ms: is missing; without it matches under way never end")
    except (RuleError, PatternError) as error:
        raise ConfigurationError(f"rule {rule.name}: {error}") from error


def _forget(engine, rules, key, visits):
    engine.forget(1, key)
    for visit in visits:
        engine.forget(2, visit)
    for rule in rules:
        if rule.by in ("all", "page"):
            engine.remove(rule.name)
            _add(engine, rule)


def forget_saved(connection, key, visits):
    """Ends saved matches that may hold events of `key`, inside of a transaction. Matches whose rules cannot be read any
    more all end."""
    row = connection.execute("SELECT data, rules FROM pattern_state").fetchone()
    if row is None:
        return
    try:
        engine, rules = PatternEngine(), []
        for name, settings, by, timeouts in unpack(row[1] or pack([])):
            rules.append(RuleSettings(name, by, settings, timeout=() if timeouts else None))
            _add(engine, rules[-1])
        engine.load(row[0])
        _forget(engine, rules, key, visits)
        connection.execute("UPDATE pattern_state SET data = ?", (engine.save(),))
    except (ConfigurationError, PatternError, ImportError, ValueError, TypeError) as error:
        _log.warning("all saved matches under way end: those of one person cannot be told apart: %s", error)
        connection.execute("DELETE FROM pattern_state")


def _matching(rule):
    """The settings of a rule that decide how it matches."""
    keys = ("pattern", "within_ms", "within", "skip", "fields")
    settings = {key: rule.data[key] for key in keys if rule.data.get(key) is not None}
    return settings, rule.by, rule.timeout is not None


def _continues(rule):
    return rule.data.get("when_changed") == "go_on"


def rule_of(event_name):
    """The name of the rule whose matches or time-outs are events of this name."""
    return event_name.removeprefix(PREFIX).partition(":")[0]


def rule_settings(data, place="rule"):
    """The RuleSettings of a rule as data. ConfigurationError."""
    if not isinstance(data, dict):
        raise ConfigurationError(f"{place}: expected a mapping with name and pattern, got {type(data).__name__}")
    name = data.get("name")
    if not isinstance(name, str) or not name or ":" in name:
        raise ConfigurationError(f"{place}: name: expected a text without a colon, got {name!r}")
    for key in data:
        if key not in RULE_KEYS:
            raise ConfigurationError(f"{place}: {name}: there is no key {key!r}; there are {', '.join(RULE_KEYS)}")
    here = f"{place}: {name}"
    return RuleSettings(name, data.get("by", "key"), data, **sending_of(here, data))


class ComplexEvents:
    """The rules of one pipeline. The pipeline's lock is held in all calls."""

    def __init__(self, rules, database, store, *, lateness_ms, max_bytes=64 << 20):
        self.rules = {}
        self._max_bytes = max_bytes
        self.engine = PatternEngine(max_bytes=max_bytes)
        self._counted = {}  # by the engines before this one
        self._database, self._store, self._lateness_ms = database, store, lateness_ms
        self._latest_ms = -_EVER_MS  # the latest time of an event that was fed
        self._waiting = []  # events of matches that the store has not taken yet
        self.position = store.position
        self._saved, self._saved_s = None, time.monotonic()
        database.migrate("pipeline.patterns", STEPS)
        for rule in rules:
            self.add(rule)

    @classmethod
    def of(cls, rules, database, store, **options):
        """ComplexEvents with these RuleSettings; None if there are none. ConfigurationError."""
        return cls(rules, database, store, **options) if rules else None

    def add(self, rule):
        """ConfigurationError."""
        if rule.name in self.rules:
            raise ConfigurationError(f"there are two rules {rule.name}; give one of them another name")
        _add(self.engine, rule)
        self.rules[rule.name] = rule

    def change(self, rules):
        """Replaces the rules by these RuleSettings, which `check_rules` has accepted. A rule that matches as before
        keeps its matches under way, and so does a changed one that asks for it and has the same steps. All others begin
        anew; their names are returned."""
        wanted = {rule.name: rule for rule in rules}
        if any(map(_continues, rules)):
            return self._change_and_go_on(wanted)
        for name, rule in list(self.rules.items()):
            if name not in wanted or _matching(wanted[name]) != _matching(rule):
                self.engine.remove(name)
                del self.rules[name]
        begun = [name for name in wanted if name not in self.rules]  # in the order of `rules`
        for name, rule in wanted.items():
            if name in self.rules:
                self.rules[name] = rule  # its channels may be others
            else:
                self.add(rule)
        self._changed()
        return begun

    def _change_and_go_on(self, wanted):
        """As `change`: a new engine with these rules loads the matches under way of the old one."""
        before = self.engine
        after = PatternEngine(max_bytes=self._max_bytes)
        begun = []
        for name, rule in wanted.items():
            _add(after, rule)
            if name not in self.rules or not after.lowered(name).takes(before.lowered(name)):
                begun.append(name)
        after.load(before.save())
        counts = before.statistics()
        self._counted = {name: self._counted.get(name, 0) + counts[name] for name in COUNTS}
        self.rules, self.engine = dict(wanted), after
        self._changed()
        return begun

    def _changed(self):
        self._waiting = [event for event in self._waiting if rule_of(event.name) in self.rules]
        self._saved, self._saved_s = None, -SAVE_S  # the next tick saves

    # ---- events

    def feed(self, stored, time_ms):
        """Feeds StoredEvents, in ascending positions, and moves time on with each; `time_ms` is event time after the
        last, and those beyond it have the time of a wrong clock. Matches stay open `lateness_ms` longer, for late
        events. Returns the Events that are to be stored. The next call returns them again, unless `taken` was called in
        between."""
        self.position = stored[-1].position
        seen = [one for one in stored if not one.event.name.startswith(PREFIX)]
        if seen:
            recent = {one.position: one.event for one in seen}
            until_ms = self._latest_ms if time_ms is None else time_ms
            latest_ms = min(self._latest_ms, until_ms)  # the clock may have been set back
            found, self._latest_ms = self.engine.feed_in_time(seen, latest_ms, until_ms, self._lateness_ms)
            for match in found:
                self._found(match, recent)
        return self._waiting

    def advance(self, time_ms):
        """Moves time on to `time_ms`, that of the clock while no events come; returns Events as `feed`."""
        self._latest_ms = max(self._latest_ms, time_ms)
        for match in self.engine.advance(time_ms - self._lateness_ms):
            self._found(match, {})
        return self._waiting

    def drain(self):
        """No more events come: all windows end. Returns Events as `feed`."""
        for match in self.engine.advance(_EVER_MS):
            self._found(match, {})
        return self._waiting

    @staticmethod
    def timed(events, time_ms):
        """The Events at `time_ms`, event time, so that none is late, and none moves time on."""
        return events if time_ms is None else [msgspec.structs.replace(event, time_ms=time_ms) for event in events]

    def taken(self):
        self._waiting = []

    def _found(self, match, recent):
        rule = self.rules[match.rule]
        if match.timed_out and rule.timeout is None:
            return
        steps, key = {}, None
        last = recent.get(match.last) or self._event(match.last)
        key = "" if last is None else last.key
        for step, positions in match.steps:
            listed = steps[step] = []
            for position in positions[-_MAX_LISTED_EVENTS:]:
                event = recent.get(position) or self._event(position)
                about = {"position": position}
                if event is not None and event.key == key:  # events of other keys must go when their key is forgotten
                    about |= {"name": event.name, "time_ms": event.time_ms, "page": event.page, "visit": event.visit}
                    about["contents"] = event.contents
                listed.append(about)
        at_ms = match.at_ms or (0 if last is None else last.time_ms)
        contents = {"rule": match.rule, "at_ms": at_ms, "timed_out": match.timed_out, "steps": steps}
        name = f"{PREFIX}{match.rule}{TIMED_OUT if match.timed_out else ''}"
        self._waiting.append(Event(name, at_ms, "", "", contents, identity(match), key))

    def _event(self, position):
        stored = self._store.at(position)
        return None if stored is None else stored.event

    # ---- restarts

    def begin(self, time_ms):
        """Loads the matches under way at the end of the last run; returns Events to be stored, as `feed`. StoreError.

        Where nothing was saved yet it saves now, so that a start after a crash feeds all events from here on."""
        with self._database.reader() as connection:
            row = connection.execute("SELECT position, data FROM pattern_state").fetchone()
        if row is None or row[0] > self._store.position:
            self.save(now=True)
            return []
        try:
            self.engine.load(row[1])
        except PatternError as error:
            _log.error("matches under way are lost: %s", error)
            self.save(now=True)
            return []
        ended = self.engine.statistics()["ended"]
        if ended:
            _log.warning("%d matches under way have ended: their rules were removed or changed", ended)
        self.position = row[0]
        there = {one.event.id for one in self._store.read(row[0]) if one.event.name.startswith(PREFIX)}
        batch = []
        for one in self._store.read(row[0]):
            batch.append(one)
            if len(batch) == _AT_ONCE:
                self.feed(batch, time_ms)
                batch = []
        if batch:
            self.feed(batch, time_ms)
        self._waiting = [event for event in self._waiting if event.id not in there]
        return self._waiting

    def save(self, now=False):
        """Saves the matches under way, if SAVE_S have passed or `now`. StoreError."""
        if self._waiting or self._saved == self.position:
            return
        if not now and time.monotonic() - self._saved_s < SAVE_S:
            return
        self._database.flush()
        data = self.engine.save()
        with self._database.transaction() as connection:
            rules = pack([[rule.name, *_matching(rule)] for rule in self.rules.values()])
            connection.execute("INSERT OR REPLACE INTO pattern_state VALUES (1, ?, ?, ?)", (self.position, data, rules))
        self._saved, self._saved_s = self.position, time.monotonic()

    def forget(self, key, visits):
        """Ends matches that may hold events of `key`, and removes them from the saved state. StoreError."""
        _forget(self.engine, self.rules.values(), key, visits)
        self._waiting = [event for event in self._waiting if event.key != key]
        self._saved = None
        if not self._waiting:
            self.save(now=True)

    # ---- statistics

    def statistics(self):
        counts = self.engine.statistics()
        return counts | {name: counts[name] + before for name, before in self._counted.items()}


def identity(match):
    """The id of a match's event; equal for equal matches."""
    content = json.dumps([match.rule, match.timed_out, match.steps])
    return f"{PREFIX}{match.rule}:{hashlib.sha256(content.encode(errors='surrogatepass')).hexdigest()[:24]}"


def channels_of(rule, event):
    """The names of the channels that get a stored match's Event."""
    if event.name == f"{PREFIX}{rule.name}":
        return rule.then
    return rule.timeout or ()
