"""Rules in Python: `Pattern.begin("view").where(…).followed_by("cart")…`, which `rule()` gives as data.

rule = (
    Pattern.begin("view", event="page_enter")
    .where('event.page == "item"')
    .followed_by("cart", event="cart").times(1, 3).greedy()
    .not_followed_by("order", event="order")
    .within(minutes=10)
    .rule("leaves_the_cart", then=["shop"])
)
"""

from vmhost.pipeline.patterns.rules import RuleError

SKIP_PAST_LAST_EVENT, SKIP_TO_NEXT, NO_SKIP = "past_last", "to_next", "no_skip"


def skip_to_first(step, throw=False):
    return {"to_first": step} | ({"throw": True} if throw else {})


def skip_to_last(step, throw=False):
    return {"to_last": step} | ({"throw": True} if throw else {})


class Pattern:
    """A pattern under construction. Each method returns a new one; methods about a step apply to the last one. Errors
    are reported when it is added to an engine as a rule (RuleError)."""

    __slots__ = ("_steps", "_rule")

    def __init__(self, steps, rule):
        self._steps, self._rule = steps, rule

    @classmethod
    def begin(cls, step, skip=None, *, event=None):
        """`step`: the first step's name, or a Pattern as a group. `skip`: SKIP_PAST_LAST_EVENT, SKIP_TO_NEXT, NO_SKIP,
        skip_to_first(step), skip_to_last(step)."""
        return cls((_step(step, None, event),), {} if skip is None else {"skip": skip})

    def _and_then(self, step, contiguity, event):
        return Pattern((*self._steps, _step(step, contiguity, event)), self._rule)

    def next(self, step, *, event=None):
        return self._and_then(step, "next", event)

    def followed_by(self, step, *, event=None):
        return self._and_then(step, "followed_by", event)

    def followed_by_any(self, step, *, event=None):
        return self._and_then(step, "followed_by_any", event)

    def not_next(self, step, *, event=None):
        return self._and_then(step, "not_next", event)

    def not_followed_by(self, step, *, event=None):
        return self._and_then(step, "not_followed_by", event)

    def _with(self, **settings):
        last = self._steps[-1]
        for key in settings:
            if key in last:
                raise RuleError(f"{last.get('name', 'the group')}: {key} is set already")
        return Pattern((*self._steps[:-1], last | settings), self._rule)

    def where(self, condition):
        """A further condition that must hold: a text in CEL, or a condition as data."""
        before = self._steps[-1].get("where")
        condition = condition if before is None else [*(before if isinstance(before, list) else [before]), condition]
        return Pattern((*self._steps[:-1], self._steps[-1] | {"where": condition}), self._rule)

    def or_(self, condition):
        return self._with(**{"or": condition})

    def times(self, low, high=None, *, within_ms=None):
        """`low` times, or `low` to `high`."""
        return self._times(low if high is None else [low, high], within_ms)

    def times_or_more(self, low, *, within_ms=None):
        return self._times([low, None], within_ms)

    def one_or_more(self, *, within_ms=None):
        return self._times([1, None], within_ms)

    def _times(self, times, within_ms):
        return self._with(times=times, **({} if within_ms is None else {"times_within_ms": within_ms}))

    def optional(self):
        return self._with(optional=True)

    def greedy(self):
        return self._with(greedy=True)

    def consecutive(self):
        return self._with(consecutive=True)

    def allow_combinations(self):
        return self._with(combinations=True)

    def until(self, condition):
        return self._with(until=condition)

    def within(self, *, milliseconds=0, seconds=0, minutes=0, hours=0, days=0, from_step_to_step=False):
        """The time limit from the first event to this step; `from_step_to_step`: from the event before."""
        hours += days * 24
        span = round(milliseconds + (seconds + (minutes + hours * 60) * 60) * 1000)
        kind = {"within": "previous_and_current"} if from_step_to_step else {}
        return self._with(within_ms=span, **kind)

    def steps(self):
        """The steps as data."""
        return [dict(step) for step in self._steps]

    def rule(self, name=None, **more):
        """The rule as data; `more`: `by`, `then`, `timeout`, `fields`, `about`."""
        return ({} if name is None else {"name": name}) | {"pattern": self.steps()} | self._rule | more


def _step(step, contiguity, event):
    settings = {"group": step.steps()} if isinstance(step, Pattern) else {"name": step}
    if event is not None:
        settings["event"] = event
    return settings | ({} if contiguity is None else {"contiguity": contiguity})
