"""Rules as data: parses and checks a rule before an automaton is built from it.

A rule is a mapping: `pattern` is a list of steps, `within_ms` and `within` limit its time, `skip` decides about other
matches when one completes. docs/patterns.md describes the form and the meaning. Any problem of a rule raises RuleError,
which names the place and says what to do.
"""

import difflib
from dataclasses import dataclass, field

CONTIGUITIES = ("next", "followed_by", "followed_by_any", "not_next", "not_followed_by")
NOT_NEXT, NOT_FOLLOWED_BY = "not_next", "not_followed_by"
WITHINS = ("first_and_last", "previous_and_current")
FIRST_AND_LAST, PREVIOUS_AND_CURRENT = WITHINS
SKIPS = ("no_skip", "to_next", "past_last", "to_first", "to_last")
MAX_TIMES = 1000
MAX_STEPS = 100
MAX_DEPTH = 16  # of nested groups, and of nested conditions
MAX_MS = 1 << 52
STEP_KEYS = (
    "name", "event", "where", "or", "group", "contiguity", "times", "times_within_ms", "optional", "greedy",
    "consecutive", "combinations", "until", "within_ms", "within",
)  # fmt: skip
# With those that do not concern the pattern: the pipeline's, and a description for people.
RULE_KEYS = (
    "name", "about", "by", "pattern", "within_ms", "within", "skip", "when_changed", "fields", "then", "timeout",
    "version", "priority", "audience", "expires_ms", "message",
)  # fmt: skip
WHEN_CHANGED = ("end", "go_on")  # what happens to matches under way
_GROUP_HAS_NOT = ("name", "event", "where", "or")


class RuleError(ValueError):
    """An invalid rule; the message names the place in it, and says what to do."""


@dataclass(eq=False)
class Step:
    """One step, or a group of steps. `low` and `high`: how many events it takes, `high` None for any number; both None
    for one. `within`: limits in ms, by WITHINS. Conditions are trees as in conditions.py."""

    place: str
    name: str | None
    contiguity: str | None  # None: the first step
    condition: object = None
    group: tuple | None = None
    low: int | None = None
    high: int | None = None
    times_within_ms: int | None = None
    optional: bool = False
    greedy: bool = False
    inner: str = "followed_by"  # contiguity of the events of one step
    until: object = None
    within: dict = field(default_factory=dict)

    @property
    def looping(self):
        return self.low is not None and self.high is None

    @property
    def single(self):
        return self.low is None

    @property
    def negative(self):
        return self.contiguity in (NOT_NEXT, NOT_FOLLOWED_BY)


@dataclass(frozen=True)
class Skip:
    """What happens to other matches when one completes. `step`: for `to_first` and `to_last`. `loud`: a match without
    that step is an error."""

    kind: str
    step: str | None = None
    loud: bool = False


@dataclass(frozen=True)
class Rule:
    """`within_ms`: limit from the first event to the last, the smallest of all that are given, at the rule or at any
    step; 0: none. `goes_on`: it takes over the matches under way of the rule that it replaces."""

    steps: tuple
    within_ms: int
    skip: Skip
    goes_on: bool = False


def read_rule(rule, conditions):
    """The Rule for a mapping; `conditions.read(value, place)` reads a condition. RuleError."""
    _mapping(rule, "rule", RULE_KEYS)
    steps = _chain(rule.get("pattern"), "pattern", conditions, 0)
    whole = Step("rule", None, None)
    _within(rule, whole, "rule")
    limits = [step.within[FIRST_AND_LAST] for step in (whole, *_all(steps)) if FIRST_AND_LAST in step.within]
    if PREVIOUS_AND_CURRENT in whole.within:
        limit_ms, within = whole.within[PREVIOUS_AND_CURRENT], steps[-1].within
        within[PREVIOUS_AND_CURRENT] = min(limit_ms, within.get(PREVIOUS_AND_CURRENT, limit_ms))
    names = list(_names(steps))
    for name in names:
        if names.count(name) > 1:
            raise RuleError(f"pattern: there are two steps {name!r}; give one of them another name")
    skip = _skip(rule.get("skip"), [step.name for step in steps if step.group is None])
    when_changed = rule.get("when_changed", WHEN_CHANGED[0])
    if when_changed not in WHEN_CHANGED:
        raise RuleError(f"when_changed: expected one of {', '.join(WHEN_CHANGED)}, got {when_changed!r:.60}")
    return Rule(steps, min(limits, default=0), skip, when_changed == "go_on")


def _all(steps):
    for step in steps:
        yield step
        yield from _all(step.group or ())


def _names(steps):
    return (step.name for step in _all(steps) if step.group is None)


def _mapping(value, place, keys):
    if not isinstance(value, dict):
        raise RuleError(f"{place}: expected a mapping, got {type(value).__name__}")
    for key in value:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, 1)
            advice = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(keys)}"
            raise RuleError(f"{place}: there is no key {key!r}{advice}")


def _chain(listed, place, conditions, depth):
    if not isinstance(listed, list | tuple) or not listed:
        raise RuleError(f"{place}: expected a list of steps")
    if depth > MAX_DEPTH:
        raise RuleError(f"{place}: groups are nested more than {MAX_DEPTH} deep")
    if len(listed) > MAX_STEPS:
        raise RuleError(f"{place}: expected at most {MAX_STEPS} steps, got {len(listed)}")
    steps = []
    for number, one in enumerate(listed):
        steps.append(_step(one, f"{place}[{number}]", steps[-1] if steps else None, conditions, depth))
    if depth and steps[-1].contiguity == NOT_FOLLOWED_BY:
        raise RuleError(
            f"{steps[-1].place}: not_followed_by at the end of a group would hold at once; put it behind the group, or "
            "another step behind it"
        )
    return tuple(steps)


def _step(data, place, before, conditions, depth):
    _mapping(data, place, STEP_KEYS)
    group = data.get("group")
    name = data.get("name")
    if group is None:
        if not isinstance(name, str) or not name:
            raise RuleError(f"{place}: expected `name`, a text, or `group`")
        if ":" in name or name.startswith("$"):
            raise RuleError(f"{place}: a name holds no colon and does not begin with $, got {name!r}")
        place = f"{place} ({name})"
    else:
        for key in _GROUP_HAS_NOT:
            if data.get(key) is not None:
                raise RuleError(f"{place}: a group has no `{key}`; set it on the steps in it")
    contiguity = data.get("contiguity")
    if before is None:
        contiguity = None
    else:
        contiguity = "followed_by" if contiguity is None else contiguity
        if contiguity not in CONTIGUITIES:
            raise RuleError(f"{place}: contiguity: expected one of {', '.join(CONTIGUITIES)}, got {contiguity!r}")
    step = Step(place, name, contiguity)
    if step.negative:
        if group is not None:
            raise RuleError(f"{place}: a group cannot be {contiguity}; set it on one step")
        if before.optional:
            raise RuleError(
                f"{place}: {contiguity} cannot stand behind an optional step; make two rules, one with {before.name!r} "
                "and one without"
            )
    if group is not None:
        step.group = _chain(group, f"{place}.group", conditions, depth + 1)
    parts = []
    if data.get("event") is not None:
        parts.append(conditions.event(data["event"], f"{place}.event"))
    if data.get("where") is not None:
        parts.append(conditions.read(data["where"], f"{place}.where"))
    step.condition = conditions.conjunction(parts)
    if data.get("or") is not None:
        other = conditions.read(data["or"], f"{place}.or")
        step.condition = other if step.condition is None else conditions.disjunction([step.condition, other])
    _times(step, data, place)
    _quantifiers(step, data, place, before)
    if data.get("until") is not None:
        if not step.looping:
            raise RuleError(f"{place}: `until` ends a step that takes any number of events; give it times: [1, null]")
        step.until = conditions.read(data["until"], f"{place}.until")
    _within(data, step, place)
    return step


def _times(step, data, place):
    times = data.get("times")
    span = data.get("times_within_ms")
    if span is not None:
        step.times_within_ms = _whole(span, f"{place}.times_within_ms")
    if times is None:
        if span is not None:
            raise RuleError(f"{place}: `times_within_ms` goes with `times`")
        return
    if step.negative:
        raise RuleError(f"{place}: `times` does not go with {step.contiguity}")
    if isinstance(times, list | tuple):
        if len(times) != 2:
            raise RuleError(f"{place}.times: expected n, [low, high] or [low, null], got {times!r}")
        low, high = times
    else:
        low = high = times
        if times == 0:
            raise RuleError(f"{place}.times: expected 1 or more, got 0")
    low = _whole(low, f"{place}.times", MAX_TIMES, 0)
    if high is not None:
        high = _whole(high, f"{place}.times", MAX_TIMES)
        if high < low:
            raise RuleError(f"{place}.times: expected [low, high], got [{low}, {high}]")
    step.optional = low == 0
    step.low, step.high = max(low, 1), high


def _quantifiers(step, data, place, before):
    if data.get("consecutive"):
        if step.single:
            raise RuleError(f"{place}: `consecutive` goes with `times`")
        step.inner = "next"
    if data.get("combinations"):
        if step.single:
            raise RuleError(f"{place}: `combinations` goes with `times`")
        if step.inner != "followed_by":
            raise RuleError(f"{place}: `consecutive` and `combinations` exclude each other; keep one")
        step.inner = "followed_by_any"
    if data.get("greedy"):
        if step.negative:
            raise RuleError(f"{place}: {step.contiguity} cannot be greedy")
        if step.group is not None:
            raise RuleError(f"{place}: a group cannot be greedy; set it on the steps in it")
        if step.single:
            raise RuleError(f"{place}: `greedy` goes with `times`")
        if step.inner == "followed_by_any":
            raise RuleError(f"{place}: `greedy` and `combinations` exclude each other; keep one")
        step.greedy = True
    if data.get("optional"):
        if before is not None and before.greedy:
            raise RuleError(f"{place}: an optional step cannot stand behind a greedy one")
        if step.optional:
            raise RuleError(f"{place}: `times` from 0 says `optional` already")
        if step.negative:
            raise RuleError(f"{place}: {step.contiguity} cannot be optional")
        step.optional = True
    elif step.optional and step.high is None and before is not None and before.greedy:
        raise RuleError(f"{place}: an optional step cannot stand behind a greedy one")


def _within(data, step, place):
    span = data.get("within_ms")
    kind = data.get("within")
    if span is None:
        if kind is not None:
            raise RuleError(f"{place}: `within` says how `within_ms` is measured, which is missing")
        return
    kind = FIRST_AND_LAST if kind is None else kind
    if kind not in WITHINS:
        raise RuleError(f"{place}.within: expected one of {', '.join(WITHINS)}, got {kind!r}")
    step.within[kind] = _whole(span, f"{place}.within_ms")


def _whole(value, place, most=MAX_MS, least=1):
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RuleError(f"{place}: expected a whole number from {least} to {most}, got {value!r}")
    return value


def _skip(data, names):
    if data is None:
        return Skip("no_skip")
    if isinstance(data, str):
        if data in SKIPS[:3]:
            return Skip(data)
        raise RuleError(f"skip: expected one of {', '.join(SKIPS[:3])}, to_first: STEP or to_last: STEP, got {data!r}")
    _mapping(data, "skip", ("to_first", "to_last", "throw"))
    kinds = [kind for kind in ("to_first", "to_last") if kind in data]
    if len(kinds) != 1:
        raise RuleError("skip: expected one of to_first and to_last, with a step's name")
    step = data[kinds[0]]
    if step not in names:
        raise RuleError(
            f"skip: there is no step {step!r} in the pattern, outside of groups; there are {', '.join(names)}"
        )
    return Skip(kinds[0], step, bool(data.get("throw")))
