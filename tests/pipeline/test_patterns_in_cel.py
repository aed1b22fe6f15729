"""Conditions in CEL: the specification's own cases, what the checker refuses, and rules that were compiled before."""

import json

import pytest

from tests.pipeline.cel_cases import kept, verdict
from vmhost.pipeline.events import Event
from vmhost.pipeline.patterns import PatternEngine, RuleError, cel, event_path

RULE = {
    "pattern": [
        {"name": "view", "event": "view", "where": 'event.page == "item" && event.price > 100.0'},
        {"name": "more", "where": 'sum("view", "price") + double(event.price) >= 300.0 && event.item.id in ["x", "y"]'},
    ],
    "within_ms": 60_000,
}


def test_the_specifications_cases():
    verdicts = [verdict(case) for case in kept()]
    assert [why for found, why in verdicts if found == "FAILED"] == []
    assert sum(found == "passed" for found, _ in verdicts) >= 644


def matches(rule):
    engine = PatternEngine()
    engine.add("r", rule)
    contents = {"price": 150}, {"price": 150, "item": {"id": "z"}}, {"price": 150, "item": {"id": "y"}}
    events = [
        Event(name, at, "item", contents=contents_)
        for at, (name, contents_) in enumerate(zip(("view", "a", "b"), contents), 1)
    ]
    return [match.steps for at, event in enumerate(events) for match in engine.feed(event, at)]


def test_expressions_look_at_events_and_back_at_what_was_taken():
    assert matches(RULE) == [(("view", (0,)), ("more", (2,)))]


def test_a_compiled_rule_says_the_same_and_needs_no_compiler(monkeypatch):
    compiled = json.loads(json.dumps(cel.compiled(RULE, event_path)))
    monkeypatch.setattr(cel, "_cel", lambda: pytest.fail("the compiler was asked for"))
    assert matches(compiled) == matches(compiled) == [(("view", (0,)), ("more", (2,)))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("event.page > 3", "found no matching overload for '_>_' applied to '(string, int)'"),
        ("event.price ==", "Syntax error"),
        ("foo == 1", "undeclared reference to 'foo'"),
        ("event.page", "expected a condition, true or false; this is of type string"),
        ('event.page + "x" == "ax"', "texts and lists are not joined"),
        ("[1, 2].exists(x, x == 1)", "macros over lists"),
        ('event.page.matches("a")', "the function matches is left out"),
        ("event.list[3] == 1", "an index is a text"),
        ('sum("z", "v") > 1.0', "there is no step 'z'"),
        ("event == event", "`event` stands with a field of it"),
        (" || ".join(["event.a == 1"] * 2000), "more than"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(text, message):
    with pytest.raises(RuleError) as refused:
        PatternEngine().add("r", {"pattern": [{"name": "a", "where": text}]})
    assert message in str(refused.value) and ("pattern[0] (a).where" in str(refused.value) or "step" in message)


def test_where_fields_are_declared_others_are_unknown_and_types_are_checked():
    rule = {"fields": {"price": "double", "item.id": "string"}, "pattern": [{"name": "a"}]}

    def with_condition(text):
        engine = PatternEngine()
        engine.add("r", rule | {"pattern": [{"name": "a", "where": text}]})
        return len(engine.feed(Event("x", 1, contents={"price": 3, "item": {"id": "i"}}), 1))

    assert with_condition('event.price * 2.0 == 6.0 && event.item.id.startsWith("i")') == 1
    for text, message in (
        ("event.prise > 1.0", "undeclared reference"),
        ('event.price == "3"', "no matching overload"),
    ):
        with pytest.raises(RuleError, match=message):
            with_condition(text)
    with pytest.raises(RuleError, match="fields: expected a mapping of fields to bool, int, double, string, dyn"):
        PatternEngine().add("r", rule | {"fields": {"price": "float"}})


def test_an_error_is_no_match_and_a_decided_side_outweighs_it():
    def holds(text, **contents):
        engine = PatternEngine()
        engine.add("r", {"pattern": [{"name": "a", "where": text}]})
        return bool(engine.feed(Event("x", 1, "p", contents=contents), 1))

    assert not holds("event.a > 1")
    assert not holds("!(event.a > 1)")
    assert holds('event.a > 1 || event.page == "p"')
    assert holds("has(event.a) ? event.a > 1 : true")
    assert not holds("has(event.a.b)") and holds("!has(event.a.b)", a={}) and holds("has(event.a.b)", a={"b": None})
    assert holds("event.a > 1 && event.a < 2", a=1.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.pop(),
        lambda one: one.append(["FLY", 0, 0, 0]),
        lambda one: one[0].pop(),
        lambda one: one.insert(0, ["AND", 0, 0, 0]),
    ],
)
def test_a_damaged_program_is_refused(change):
    compiled = json.loads(json.dumps(cel.compiled(RULE, event_path)))
    change(compiled["pattern"][0]["where"]["program"])
    with pytest.raises(ValueError):
        PatternEngine().add("r", compiled)
