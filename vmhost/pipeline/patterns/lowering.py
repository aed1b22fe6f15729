"""Lowers an automaton to the description that the matcher in C takes: states, edges, codes, predicates, programs.

The names of events that may begin a match, or change one under way, are found by evaluating each state with the name
alone. The matcher ignores all other events.
"""

import hashlib
from dataclasses import dataclass

from vmhost.pipeline.patterns._patterns import OPERATIONS
from vmhost.pipeline.patterns.automaton import FINAL, IGNORE, NORMAL, PENDING, PROCEED, STOP, TAKE
from vmhost.pipeline.patterns.conditions import GATHERS, OPERATORS, Compared, Gathered, Named
from vmhost.pipeline.patterns.rules import SKIPS, RuleError

_OPS = {name: number for number, name in enumerate(OPERATIONS)}
_KINDS = (NORMAL, FINAL, STOP, PENDING)
_ACTIONS = (TAKE, IGNORE, PROCEED)
_TRUE, _NEGATE, _BOTH, _EITHER = -1, -2, -3, -4
_STACK = 64
NO_FIELD = 0xFFFF
SPACES = ("all", "key", "visit", "page")
_OTHER = object()  # stands for any name that no condition mentions


@dataclass
class Lowered:
    """`steps`: names of steps by number, as in results. `states`: names and kinds, for display."""

    steps: tuple
    states: tuple
    description: tuple
    automaton: object
    begins: frozenset | None  # names of events; None: any event
    listens: frozenset | None
    shape: int  # fingerprint of states and edges alone
    goes_on: bool

    def takes(self, before):
        """Whether this rule can take over the matches under way of `before`, a rule of the same name."""
        return self.description[0] == before.description[0] or (self.goes_on and self.shape == before.shape)


def lower(rule, automaton, by, number_of, timeouts=True):
    """The Lowered for a Rule's Automaton. `number_of(path)`: the number of a field. `timeouts` False: time-outs are not
    reported. RuleError."""
    return _Lowering(rule, automaton, number_of).lowered(by, timeouts)


def _digest(content):
    return int.from_bytes(hashlib.sha256(repr(content).encode(errors="surrogatepass")).digest()[:8])


class _Lowering:
    def __init__(self, rule, automaton, number_of):
        self.rule, self.automaton, self.number_of = rule, automaton, number_of
        self.steps, self.predicates, self.operations = {}, {}, []
        self.constants, self._known, self.keeps, self.rows = [], {}, {}, []
        for state in automaton.states:
            if not state.step.startswith("$"):
                self.steps.setdefault(state.step, len(self.steps))

    def lowered(self, by, timeouts):
        states, edges, codes = [], [], []
        automaton = self.automaton
        place = {state: number for number, state in enumerate(automaton.states)}
        if len(place) > 0xFFFF:
            raise RuleError("pattern: too many states; use smaller `times`")
        for state in automaton.states:
            step = self.steps.get(state.step, 0)
            states.append((_KINDS.index(state.kind), step, len(state.edges), state.window_ms or 0))
            for edge in state.edges:
                lowered = self._codes(edge.condition)
                edges.append((_ACTIONS.index(edge.action), place[edge.target], len(lowered)))
                codes.extend(lowered)
        names = {leaf.name for leaf in self.predicates if type(leaf) is Named}
        begins = {name for name in (*names, _OTHER) if _may_begin(automaton.start, name)}
        others = [state for state in automaton.states if not state.start and state.kind not in (FINAL, STOP)]
        # a match never returns to the start state, unless an edge leads there
        led_to = {edge.target for state in automaton.states for edge in state.edges}
        others += [state for state in automaton.states if state.start and state in led_to]
        listens = begins | {name for name in (*names, _OTHER) if any(not _stays(state, name) for state in others)}
        begins = None if _OTHER in begins else frozenset(begins)
        listens = None if _OTHER in listens else frozenset(listens)
        skip = self.rule.skip
        keeps = tuple(self.number_of(path) for path in self.keeps)
        leaf_texts = tuple(repr(leaf) for leaf in self.predicates)
        content = (states, edges, codes, leaf_texts, automaton.within_ms, skip, by, sorted(self.steps.items()))
        shape = _digest(
            ([state[:3] for state in states], [edge[:2] for edge in edges], place[automaton.start], by, content[-1])
        )
        description = (
            _digest(content),
            shape,
            self.rule.goes_on,
            SPACES.index(by),
            SKIPS.index(skip.kind),
            skip.loud,
            not timeouts,
            self.steps.get(skip.step, 0),
            place[automaton.start],
            max(1, len(self.steps)),
            automaton.within_ms,
            tuple(states),
            tuple(edges),
            tuple(codes),
            tuple(self.rows),
            tuple(self.operations),
            tuple(self.constants),
            None if begins is None else tuple(sorted(begins)),
            None if listens is None else tuple(sorted(listens)),
            keeps,
        )
        return Lowered(
            tuple(self.steps),
            tuple((state.name, state.kind) for state in automaton.states),
            description,
            automaton,
            begins,
            listens,
            shape,
            self.rule.goes_on,
        )

    # ---- conditions

    def _codes(self, condition):
        """Postfix codes; empty where the condition always holds."""
        if condition == ("true",):
            return []
        codes, depth, deepest = [], 0, 0
        stack = [(condition, False)]
        while stack:
            node, done = stack.pop()
            kind = node[0]
            if kind == "true":
                codes.append(_TRUE)
                depth += 1
            elif kind == "leaf":
                codes.append(self._predicate(node[1]))
                depth += 1
            elif done:
                codes.append({"not": _NEGATE, "and": _BOTH, "or": _EITHER}[kind])
                depth -= kind != "not"
            else:
                stack.append((node, True))
                stack.extend((part, False) for part in reversed(node[1:]))
            deepest = max(deepest, depth)
        if deepest > _STACK or len(codes) > 0xFFFF:
            raise RuleError("pattern: a condition is nested too deeply; simplify it")
        return codes

    def _predicate(self, leaf):
        if leaf not in self.predicates:
            if type(leaf) is Named:
                row = (leaf.name, False, 0, 0)
            else:
                first = len(self.operations)
                operations, gathers = self._program(leaf)
                _check_depth(operations, leaf)
                self.operations.extend(operations)
                row = (None, gathers, first, len(operations))
            self.predicates[leaf] = len(self.predicates)
            self.rows.append(row)
            if len(self.predicates) > 0x7FFF:
                raise RuleError("pattern: too many conditions")
        return self.predicates[leaf]

    def _program(self, leaf):
        if type(leaf) is Compared:
            return [
                self._field("FIELD", leaf.field),
                self._constant(False, leaf.value),
                (_OPS["COMPARE"], OPERATORS.index(leaf.op), 0, 0),
            ], False
        if type(leaf) is Gathered:
            gathered = self._gather(leaf.kind, leaf.step, leaf.field)
            compare = (_OPS["COMPARE"], OPERATORS.index(leaf.op), 0, 0)
            if leaf.other is not None:
                return [self._field("FIELD", leaf.other), gathered, compare], True
            added = [] if leaf.plus is None else [self._field("FIELD", leaf.plus), (_OPS["PLUS"], 0, 0, 0)]
            return [gathered, *added, self._constant(False, leaf.value), compare], True
        operations, gathers = [], False
        for name, a, b, c in leaf.operations:
            if name in ("FIELD", "HAS"):
                operations.append(self._field(name, a))
            elif name == "CONSTANT":
                operations.append(self._constant(*a))
            elif name not in _OPS:
                raise RuleError(f"{leaf.text}: there is no operation {name!r}; compile the rule again")
            elif name == "GATHER":
                gathers = True
                operations.append(self._gather(c, b, a))
            else:
                operations.append((_OPS[name], a, b, c))
        return operations, gathers

    def _field(self, name, path):
        return (_OPS[name], self.number_of(path), 0, 0)

    def _constant(self, unsigned, value):
        key = (unsigned, type(value), repr(value))
        if key not in self._known:
            self._known[key] = len(self._known)
            self.constants.append((unsigned, value))
        return (_OPS["CONSTANT"], self._known[key], 0, 0)

    def _gather(self, kind, step, path):
        if step not in self.steps:
            raise RuleError(f"{kind}: there is no step {step!r}; there are {', '.join(self.steps)}")
        if path is not None:
            self.keeps[path] = True
        number = NO_FIELD if path is None else self.number_of(path)
        return (_OPS["GATHER"], number, self.steps[step], GATHERS.index(kind))


def _check_depth(operations, leaf):
    taken = {
        "NEGATE": 1,
        "NOT": 1,
        "SIZE": 1,
        "TO_INT": 1,
        "TO_UINT": 1,
        "TO_DOUBLE": 1,
        "TO_DYN": 1,
        "KIND_IS": 1,
        "CHOOSE": 3,
    }
    depth = deepest = 0
    for operation, a, *_ in operations:
        name = OPERATIONS[operation]
        if name in ("CONSTANT", "FIELD", "HAS", "GATHER"):
            depth += 1
        elif name == "IN":
            depth -= a
        else:
            depth -= taken.get(name, 2) - 1
        deepest = max(deepest, depth)
    if deepest > _STACK:
        raise RuleError(
            f"{getattr(leaf, 'text', leaf)}: an expression with more than {_STACK} values at once; simplify it"
        )


# ---- relevant events


def _value(condition, name):
    """The value of a condition for events of this name: True, False, or None if it depends on more than the name."""
    kind = condition[0]
    if kind == "true":
        return True
    if kind == "leaf":
        return condition[1].name == name if type(condition[1]) is Named else None
    if kind == "not":
        value = _value(condition[1], name)
        return None if value is None else not value
    left, right = _value(condition[1], name), _value(condition[2], name)
    decides = kind == "or"
    if left is decides or right is decides:
        return decides
    return None if left is None or right is None else not decides


def _may_begin(state, name):
    return any(
        edge.action == TAKE or (edge.action == PROCEED and _may_begin(edge.target, name))
        for edge in state.edges
        if _value(edge.condition, name) is not False
    )


def _leads_nowhere(state, name):
    return all(
        _value(edge.condition, name) is False or (edge.action == PROCEED and _leads_nowhere(edge.target, name))
        for edge in state.edges
    )


def _stays(state, name):
    """Whether events of this name certainly leave a match in this state unchanged."""
    selves = 0
    for edge in state.edges:
        value = _value(edge.condition, name)
        if value is False or (edge.action == PROCEED and _leads_nowhere(edge.target, name)):
            continue
        if edge.action != IGNORE or edge.target is not state or value is not True:
            return False
        selves += 1
    return selves == 1
