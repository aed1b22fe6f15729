"""Complex events: finds sequences of events that match rules. Rules are data; docs/patterns.md describes them.

engine = PatternEngine()
engine.add("hesitates", {"pattern": [{"name": "view", "event": "page_enter"}, {"name": "leave", "event": "page_exit"}],
                         "within_ms": 60_000})
for match in engine.feed(event, position):
    print(match.rule, match.steps)
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from vmhost.pipeline.patterns._patterns import Engine, PatternError
from vmhost.pipeline.patterns.automaton import build
from vmhost.pipeline.patterns.cel import FIELD_TYPES, reader
from vmhost.pipeline.patterns.conditions import Conditions
from vmhost.pipeline.patterns.lowering import SPACES, lower
from vmhost.pipeline.patterns.rules import RuleError, read_rule

__all__ = ["BY", "Match", "PatternEngine", "PatternError", "RuleError", "SHOP", "event_path"]

BY = SPACES
SHOP = Path(__file__).with_name("shop")  # rules for a shop's customers, as a starting point, and events to try them on
MISSED = 6  # a status of `Engine`
_ROOTS = {"name": 1, "key": 2, "page": 3, "visit": 4, "time_ms": 5}


def event_path(text):
    """The path of a field of an Event: `name`, `key`, `page`, `visit`, `time_ms`, or keys of its contents separated by
    dots."""
    if text in _ROOTS:
        return (_ROOTS[text],)
    return (0, *text.removeprefix("contents.").split("."))


@dataclass(frozen=True, slots=True)
class Match:
    """A match of `rule`. `steps`: pairs of a step's name and the positions of the events that it took, in order of
    arrival. `timed_out`: it did not end in time. `at_ms`: the end of the window, of a time-out and of a match that ends
    with an absence; 0 for other matches."""

    rule: str
    timed_out: bool
    at_ms: int
    steps: tuple

    @property
    def first(self):
        """The position of its first event."""
        return self.steps[0][1][0]

    @property
    def last(self):
        """The position of its last event."""
        return max(positions[-1] for _, positions in self.steps)


@dataclass(frozen=True, slots=True)
class _Known:
    key: str
    steps: tuple


class PatternEngine(Engine):
    """Rules, and their matches under way. Not thread-safe; main interpreter only.

    `max_matches`: matches under way of one rule and key; beyond it the oldest are given up and counted as `dropped`.
    `max_bytes`: three quarters are for rules (`add` refuses a rule that does not fit), one quarter is for matches.
    Where that is full, the key without an event for longest gives up its matches, counted as `dropped`.
    """

    __slots__ = ("_lowered",)

    def __new__(cls, max_matches=10_000, max_bytes=64 << 20):
        engine = super().__new__(cls, max_matches, max_bytes, secrets.randbits(64))
        engine._lowered = {}
        return engine

    def add(self, key, rule, by="key", path=event_path, timeouts=True, root="event"):
        """Adds a rule, a mapping as docs/patterns.md describes it; it sees events from the next one on.

        `by`: matches are of events of one "key", one "visit", one "page", or of "all". `timeouts` False: time-outs are
        only counted. `root`: the name of the event in CEL conditions. RuleError describes what is wrong with the rule;
        PatternError: it does not fit, or the key is in use.
        """
        if by not in BY:
            raise RuleError(f"by: expected one of {', '.join(BY)}, got {by!r}")
        fields = rule.get("fields") if isinstance(rule, dict) else None
        if fields is not None and not (
            isinstance(fields, dict)
            and all(isinstance(name, str) and kind in FIELD_TYPES for name, kind in fields.items())
        ):
            raise RuleError(f"fields: expected a mapping of fields to {', '.join(FIELD_TYPES)}, got {fields!r:.200}")
        read = read_rule(rule, Conditions(path, reader(path, fields, root)))
        lowered = lower(read, build(read), by, self.field, timeouts)
        self.put(key, _Known(key, lowered.steps), lowered.description)
        self._lowered[key] = lowered
        return lowered

    def remove(self, key):
        """Removes a rule; its matches under way end. PatternError."""
        super().remove(key)
        del self._lowered[key]

    def lowered(self, key):
        """The `lowering.Lowered` of a rule; KeyError."""
        return self._lowered[key]

    def feed(self, event, position):
        """The Matches that an Event completes, and the time-outs of its key that are due."""
        results, _, _ = self.feed_raw(
            event.contents, event.name, event.key, event.page, event.visit, event.time_ms, position, False
        )
        return [match(result) for result in results]

    feed_raw = Engine.feed

    def feed_many(self, events):
        """The same for StoredEvents: {position: [Match, ...]}, only of those that complete something."""
        return {position: [match(result) for result in results] for position, results in super().feed_many(events)}

    def feed_in_time(self, events, latest_ms, until_ms, behind_ms):
        """As `feed_many`, and time moves on for all keys with each event, to `behind_ms` before the latest time of an
        event up to `until_ms`. So the Matches, and their order, do not depend on how a stream is cut into batches.

        `latest_ms`: the latest time before. Returns (Matches, latest time)."""
        events, found, at = tuple(events), [], 0
        while at < len(events):
            time_ms = events[at].event.time_ms
            if latest_ms < time_ms <= until_ms:
                latest_ms = time_ms
            found += self.advance(latest_ms - behind_ms)
            pairs, at, latest_ms = self.feed_until(events, at, latest_ms, until_ms, behind_ms)
            found += [match(result) for _, results in pairs for result in results]
        return found, latest_ms

    def advance(self, time_ms):
        """Moves time on for all keys: returns the Matches that time out by `time_ms`, or that had to wait for it, in
        the order of their time; those of one time in that of their events."""
        found, before_ms = [], None
        while (due_ms := self.next_ms()) is not None and before_ms != due_ms <= time_ms:
            before_ms = due_ms  # it stays where memory lacks
            found += sorted(map(match, super().advance(due_ms)), key=_by_events)
        return found


def _by_events(one):
    return one.at_ms, one.rule, one.timed_out, one.steps


def match(result):
    """The Match for a result of Engine."""
    known, timed_out, at_ms, items = result
    steps = {}
    for step, position in items:
        steps.setdefault(known.steps[step], []).append(position)
    return Match(known.key, timed_out, at_ms, tuple((name, tuple(positions)) for name, positions in steps.items()))
