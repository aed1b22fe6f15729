"""The automaton of a pattern, built as Apache Flink CEP 2.3 builds it, state by state, so that results are the same.

An automaton is built from end to begin. A state's edges say what an event does there: `take` it and go on, `ignore` it
and stay or go on, or `proceed`, which looks at the same event from another state. Edges have conditions, trees of
("true",), ("leaf", L), ("not", c), ("and", a, b) and ("or", a, b); conditions.py makes the leaves.

An event that completes a step is tested against the edges of the next one; where a loop may end or go on, both are
tried. `not_followed_by` becomes an edge to a stop state, which ends a match; at the end of a pattern it becomes a
pending state, which completes the match when its time is up.
"""

from dataclasses import dataclass, field

from vmhost.pipeline.patterns.rules import (
    NOT_FOLLOWED_BY,
    NOT_NEXT,
    PREVIOUS_AND_CURRENT,
    RuleError,
)

TAKE, IGNORE, PROCEED = "take", "ignore", "proceed"
NORMAL, FINAL, STOP, PENDING = "normal", "final", "stop", "pending"
TRUE = ("true",)
MAX_STATES = 10_000
END = "$end"
CIRCLE = "pattern: a group repeats without end and may match nothing; make one of its steps required"


def negation(condition):
    return ("not", condition)


@dataclass(eq=False)
class Edge:
    action: str
    source: "State"
    target: "State"
    condition: tuple


@dataclass(eq=False)
class State:
    name: str
    kind: str
    edges: list = field(default_factory=list)
    window_ms: int | None = None  # limit since the event before
    start: bool = False

    @property
    def step(self):
        return self.name.partition(":")[0]

    def add(self, action, target, condition):
        self.edges.append(Edge(action, self, target, condition))


@dataclass(frozen=True)
class Automaton:
    """`states` include the start. `within_ms`: limit from the first event to the last; 0: none."""

    states: tuple
    within_ms: int

    @property
    def start(self):
        return next(state for state in self.states if state.start)


class _Chained:
    """A step, linked to the step before it in its chain."""

    __slots__ = ("step", "previous")

    def __init__(self, step, previous):
        self.step, self.previous = step, previous


def _last_of(steps):
    last = None
    for step in steps:
        last = _Chained(step, last)
    return last


def build(rule):
    """The Automaton of a Rule. RuleError."""
    return _Builder(rule).automaton()


class _Builder:
    def __init__(self, rule):
        self.rule = rule
        self.states, self.names, self.stops, self.originals = [], set(), {}, {}
        self.first_of_loop = {}  # group: whether its head is built as the first of its repetitions
        self.group = None
        self.current, self.following = _last_of(rule.steps), None

    def automaton(self):
        last = self.current.step
        end = self._state(END, FINAL)
        sink = self._middle(end)
        start = self._convert(sink)
        start.start = True
        window = self.rule.within_ms
        spans = [state.window_ms for state in self.states if state.window_ms is not None]
        if window and any(span > window for span in spans):
            raise RuleError(
                f"within: the time from step to step, {max(spans)} ms, is longer than that of all, {window} ms"
            )
        if last.contiguity == NOT_FOLLOWED_BY and not window and last.within.get(PREVIOUS_AND_CURRENT) is None:
            raise RuleError(
                f"{last.place}: not_followed_by at the end of a pattern wants `within_ms`: it matches when it is over"
            )
        _refuse_circles(self.states)
        return Automaton(tuple(self.states), window)

    # ---- states

    def _state(self, name, kind):
        unique, number = name, 0
        while unique in self.names:
            unique = f"{name}:{number}"
            number += 1
        self.names.add(unique)
        state = State(unique, kind)
        self.states.append(state)
        if len(self.states) > MAX_STATES:
            raise RuleError(f"pattern: more than {MAX_STATES} states; use smaller `times`")
        return state

    def _state_of(self, kind, takes):
        step = self.current.step
        state = self._state(step.name if step.group is None else "$group", kind)
        if takes:
            if step.single:
                state.window_ms = step.within.get(PREVIOUS_AND_CURRENT)
            elif ":" in state.name:
                state.window_ms = step.times_within_ms
        return state

    def _stop(self, condition, name):
        stop = self.stops.get(name)
        if stop is None:
            stop = self.stops[name] = self._state(name, STOP)
            stop.add(TAKE, stop, condition)
        return stop

    def _copy(self, state):
        copy = self._state(state.step, state.kind)
        for edge in state.edges:
            copy.add(edge.action, copy if edge.target is state else edge.target, edge.condition)
        return copy

    # ---- not_followed_by

    def _nots(self):
        """(condition, name) of each not_followed_by that applies where the current step begins."""
        found, chained = [], self.current
        while chained.previous is not None and (
            chained.previous.step.optional or chained.previous.step.contiguity == NOT_FOLLOWED_BY
        ):
            chained = chained.previous
            if chained.step.contiguity == NOT_FOLLOWED_BY:
                found.append((self._take_condition(chained.step), chained.step.name))
        return found

    def _without_nots(self, sink, under_way=()):
        """The state without the stops that precede an optional step: an event taken there lifts them."""
        nots = self._nots()
        if not nots or not self.current.step.optional:
            return sink
        if sink in under_way:
            raise RuleError(CIRCLE)
        copy = self._state(sink.name, sink.kind)
        for edge in sink.edges:
            if edge.action == PROCEED:
                target = edge.target
                if target.kind == STOP:
                    if any(target.name == name for _, name in nots):
                        continue
                else:
                    target = self._without_nots(target, (*under_way, sink))
                copy.add(PROCEED, target, edge.condition)
            else:
                copy.add(edge.action, copy if edge.target is sink else edge.target, edge.condition)
        return copy

    def _add_stops(self, state):
        for condition, name in self._nots():
            state.add(PROCEED, self._stop(condition, name), condition)

    def _add_stop_to_loop(self, state):
        if self.following is not None and self.following.step.contiguity == NOT_FOLLOWED_BY:
            step = self.following.step
            condition = self._take_condition(step)
            state.add(PROCEED, self._stop(condition, step.name), condition)

    # ---- chains

    def _middle(self, sink):
        """All steps of the chain but the first."""
        while self.current.previous is not None:
            step = self.current.step
            if step.contiguity == NOT_FOLLOWED_BY:
                waits = step.within.get(PREVIOUS_AND_CURRENT) is not None or self.rule.within_ms > 0
                if waits and sink.kind == FINAL:
                    pending = self._state_of(PENDING, True)
                    condition = self._take_condition(step)
                    pending.add(PROCEED, self._stop(condition, step.name), condition)
                    pending.add(IGNORE, pending, negation(condition))
                    sink = pending
            elif step.contiguity == NOT_NEXT:
                state = self._state_of(NORMAL, True)
                condition = self._take_condition(step)
                stop = self._stop(condition, step.name)
                # at the end of a pattern, one more event has to come
                state.add(IGNORE if sink.kind == FINAL else PROCEED, sink, negation(condition))
                state.add(PROCEED, stop, condition)
                sink = state
            else:
                sink = self._convert(sink)
            self.following, self.current = self.current, self.current.previous
        return sink

    def _convert(self, sink):
        step = self.current.step
        if step.looping:
            self._mark_first(False)
            looping = self._looping(self._without_nots(sink))
            self._mark_first(True)
            made = self._times(looping, sink, step.low, step.low)
        elif not step.single:
            made = self._times(sink, sink, step.low, step.high)
        else:
            made = self._singleton(sink, sink, self._take_condition(step), self._ignore_condition(step), step.optional)
        self._add_stops(made)
        return made

    def _times(self, sink, proceed, low, high):
        step, last = self.current.step, sink
        self._mark_first(False)
        inner_ignore = _until(self._inner_ignore_condition(step), step.until, False)
        take = _until(self._take_condition(step), step.until, True)
        if step.greedy and low != high:
            if step.until is not None:
                self.originals[sink.name] = self._copy(sink)
            _greedy(sink, take)
        for _ in range(high - low):
            last = self._singleton(last, proceed, take, inner_ignore, True)
            self._add_stop_to_loop(last)
        for _ in range(low - 1):
            last = self._singleton(last, None, take, inner_ignore, False)
            self._add_stop_to_loop(last)
        self._mark_first(True)
        return self._singleton(last, proceed, take, self._ignore_condition(step), step.optional)

    def _singleton(self, sink, proceed, take, ignore, optional):
        step = self.current.step
        if step.group is not None:
            return self._group_state(sink, proceed, optional)
        state = self._state_of(NORMAL, True)
        taken = self._without_nots(sink)
        state.add(TAKE, taken, take)
        if optional:
            going_on = self._true()
            if step.greedy:
                if step.until is not None:
                    # no original: the loop became greedy on a copy without stops; `proceed` is unchanged
                    original = self.originals.get(proceed.name, proceed)
                    state.add(PROCEED, original, ("and", going_on, step.until))
                    going_on = ("and", going_on, negation(step.until))
                state.add(PROCEED, proceed, going_on)
            else:
                state.add(PROCEED, proceed, going_on)
        if ignore is not None:
            ignoring = state
            if optional or self._is_head_of_optional_group():
                ignoring = self._state_of(NORMAL, False)
                ignoring.add(TAKE, taken, take)
                ignoring.add(IGNORE, ignoring, ignore)
                self._add_stops(ignoring)
            state.add(IGNORE, ignoring, ignore)
        return state

    def _looping(self, sink):
        step = self.current.step
        if step.group is not None:
            return self._looping_group(sink)
        ignore = _until(self._inner_ignore_condition(step), step.until, False)
        take = _until(self._take_condition(step), step.until, True)
        going_on = self._true()
        state = self._state_of(NORMAL, True)
        if step.greedy:
            if step.until is not None:
                copy = self._copy(sink)
                state.add(PROCEED, copy, ("and", going_on, step.until))
                self.originals[sink.name] = copy
                going_on = ("and", going_on, negation(step.until))
            state.add(PROCEED, sink, going_on)
            _greedy(sink, self._take_condition(step))
        else:
            state.add(PROCEED, sink, going_on)
        state.add(TAKE, state, take)
        self._add_stop_to_loop(state)
        if ignore is not None:
            ignoring = self._state_of(NORMAL, False)
            ignoring.add(TAKE, state, take)
            ignoring.add(IGNORE, ignoring, ignore)
            state.add(IGNORE, ignoring, ignore)
            self._add_stop_to_loop(ignoring)
        return state

    # ---- groups

    def _within_group(self, sink):
        outer = self.current, self.following, self.group
        self.group = self.current.step
        self.current = _last_of(self.group.group)
        head = self._convert(self._middle(sink))
        self.current, self.following, self.group = outer
        return head

    def _group_state(self, sink, proceed, optional):
        going_on = self._true()
        head = self._within_group(sink)
        if optional:
            head.add(PROCEED, proceed, going_on)
        return head

    def _looping_group(self, sink):
        going_on = self._true()
        again = self._state_of(NORMAL, True)
        head = self._within_group(again)
        head.add(PROCEED, sink, going_on)
        again.add(PROCEED, head, going_on)
        return head

    def _mark_first(self, first):
        if self.current.step.group is not None:
            self.first_of_loop[self.current.step] = first

    def _is_first_of_loop(self):
        return self.first_of_loop.get(self.group, True)

    def _is_head_of_group(self):
        return self.group is not None and self.current.previous is None

    def _is_head_of_optional_group(self):
        return self._is_head_of_group() and self._is_first_of_loop() and self.group.optional

    # ---- conditions

    def _take_condition(self, step):
        condition = step.condition if step.condition is not None else TRUE
        return _until(condition, self.group.until if self.group is not None else None, True)

    def _ignoring(self, step, strategy):
        # the first step counts as `next`: there is nothing to skip
        if strategy in (None, "next", NOT_NEXT, NOT_FOLLOWED_BY):
            condition = None
        elif strategy == "followed_by":
            condition = negation(step.condition if step.condition is not None else TRUE)
        else:
            condition = TRUE
        return _until(condition, self.group.until if self.group is not None else None, False)

    def _ignore_condition(self, step):
        strategy = step.contiguity
        if self._is_head_of_group():
            strategy = self.group.contiguity if self._is_first_of_loop() else self.group.inner
        return self._ignoring(step, strategy)

    def _inner_ignore_condition(self, step):
        return self._ignoring(step, self.group.inner if self._is_head_of_group() else step.inner)

    def _true(self):
        return _until(TRUE, self.group.until if self.group is not None else None, True)


def _until(condition, until, takes):
    if until is not None and condition is not None:
        return ("and", negation(until), condition)
    if until is not None and takes:
        return negation(until)
    return condition


def _greedy(state, take):
    for edge in state.edges:
        edge.condition = ("and", edge.condition, negation(take))


def _refuse_circles(states):
    """RuleError for a cycle of proceed edges: a group that may match nothing and repeats without end."""
    done, under_way = set(), set()
    for first in states:
        stack = [(first, iter(first.edges))]
        if first in done:
            continue
        under_way.add(first)
        while stack:
            state, edges = stack[-1]
            edge = next(edges, None)
            if edge is None:
                under_way.discard(state)
                done.add(state)
                stack.pop()
            elif edge.action == PROCEED and edge.target not in done:
                if edge.target in under_way:
                    raise RuleError(CIRCLE)
                under_way.add(edge.target)
                stack.append((edge.target, iter(edge.target.edges)))
