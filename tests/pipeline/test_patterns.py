"""The matcher of patterns against Flink's answers, which are kept as a file, and against its own bounds."""

import gzip
import json
from pathlib import Path

import pytest

from tests import warm
from tests.batches import each
from tests.pipeline.flink.__main__ import verdict
from tests.pipeline.pattern_questions import question
from vmhost.pipeline.events import Event, StoredEvent
from vmhost.pipeline.patterns import PatternEngine, PatternError, RuleError
from vmhost.pipeline.patterns.builder import SKIP_PAST_LAST_EVENT, Pattern
from vmhost.pipeline.patterns.questions import answer

KEPT = Path(__file__).with_name("flink_answers.jsonl.gz")


def kept():
    with gzip.open(KEPT, "rt") as lines:
        return [json.loads(line) for line in lines]


def test_every_match_and_time_out_is_flinks():
    verdicts = {}
    for asked, flink in kept():
        verdicts.setdefault(verdict(asked, flink, answer(asked)), []).append(asked["case"])
    assert verdicts.get("DIFFERS", []) == []
    assert len(verdicts["same"]) > 900
    assert sum(bool(flink.get("matches")) for _, flink in kept()) > 250


def test_a_snapshot_at_any_place_changes_no_answer():
    """Each event is fed to an engine that was saved and loaded just before."""
    path = lambda text: (0, text)
    tried = 0
    for number in range(120):
        asked = question(f"snapshots {number}")
        whole, part = PatternEngine(), PatternEngine()
        try:
            whole.add("r", asked["rule"], path=path)
        except RuleError:
            continue
        part.add("r", asked["rule"], path=path)
        for place, event in enumerate(asked["events"]):
            given = (event, event["name"], event.get("key", ""), "", "", event["at"], place, False)
            expected, got = whole.feed_raw(*given), part.feed_raw(*given)
            assert [one[1:] for one in got[0]] == [one[1:] for one in expected[0]], asked
            saved, part = part.save(), PatternEngine()
            part.add("r", asked["rule"], path=path)
            part.load(saved)
            tried += len(expected[0])
        assert [one.steps for one in part.advance(1000)] == [one.steps for one in whole.advance(1000)]
    assert tried > 100


STEP = {"name": "a", "event": "a"}


@each(
    ("rule", "message"),
    [
        ([], "rule: expected a mapping"),
        ({}, "pattern: expected a list of steps"),
        ({"pattern": [STEP], "skips": 1}, "rule: there is no key 'skips'; did you mean skip?"),
        ({"pattern": [STEP, STEP]}, "there are two steps 'a'"),
        ({"pattern": [{"event": "a"}]}, "pattern[0]: expected `name`, a text, or `group`"),
        ({"pattern": [{"name": "a:b"}]}, "a name holds no colon"),
        ({"pattern": [STEP, {"name": "b", "contiguity": "after"}]}, "pattern[1] (b): contiguity: expected one of next"),
        ({"pattern": [STEP | {"times": 0}]}, "pattern[0] (a).times: expected 1 or more"),
        ({"pattern": [STEP | {"times": [3, 2]}]}, "expected [low, high], got [3, 2]"),
        ({"pattern": [STEP | {"greedy": True}]}, "`greedy` goes with `times`"),
        ({"pattern": [STEP | {"until": {"event": "b"}}]}, "give it times: [1, null]"),
        (
            {"pattern": [STEP, {"name": "n", "contiguity": "not_followed_by"}]},
            "at the end of a pattern wants `within_ms`",
        ),
        (
            {
                "pattern": [
                    {"group": [STEP, {"name": "n", "event": "n", "contiguity": "not_followed_by"}]},
                    {"name": "z"},
                ],
                "within_ms": 9,
            },
            "pattern[0].group[1] (n): not_followed_by at the end of a group",
        ),
        ({"pattern": [STEP | {"optional": True}, {"name": "n", "contiguity": "not_next"}]}, "behind an optional step"),
        ({"pattern": [STEP], "within_ms": 1.5}, "rule.within_ms: expected a whole number from 1"),
        ({"pattern": [STEP], "within": "first_and_last"}, "which is missing"),
        ({"pattern": [STEP], "skip": {"to_first": "b"}}, "skip: there is no step 'b' in the pattern"),
        ({"pattern": [STEP], "skip": "later"}, "skip: expected one of no_skip, to_next, past_last"),
        ({"pattern": [{"group": [STEP], "event": "b"}]}, "a group has no `event`"),
        (
            {"pattern": [STEP | {"where": {"field": "v", "op": "~", "value": 1}}]},
            "pattern[0] (a).where.op: expected one of ==",
        ),
        ({"pattern": [STEP | {"where": {"op": "==", "value": 1}}]}, "where: expected `field`, or one of sum_of"),
        ({"pattern": [STEP | {"where": {"field": "v", "op": "==", "value": [1]}}]}, "where.value: expected a text"),
        ({"pattern": [STEP | {"where": [{"not": 5}]}]}, "where[0].not: expected a condition"),
        (
            {"pattern": [STEP | {"where": {"sum_of": ["z", "v"], "op": ">", "value": 1}}]},
            "sum_of: there is no step 'z'",
        ),
        ({"pattern": [{"group": [STEP | {"optional": True}], "times": [1, None]}]}, "may match nothing"),
        (
            {
                "pattern": [
                    STEP,
                    {"name": "n", "event": "n", "contiguity": "not_followed_by"},
                    {"name": "b", "event": "b", "times": [0, None]},
                    {"group": [{"name": "c", "optional": True}], "contiguity": "followed_by", "times": [2, None]},
                ]
            },
            "may match nothing",
        ),
        (
            {
                "pattern": [
                    STEP | {"times": [1, None]},
                    {"name": "b", "optional": True, "within_ms": 9, "within": "previous_and_current"},
                ],
                "within_ms": 5,
            },
            "is longer than that of all",
        ),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_place(rule, message):
    with pytest.raises(RuleError) as refused:
        PatternEngine().add("r", rule)
    assert message in str(refused.value)


def engine_of(pattern, **options):
    engine = PatternEngine(**options.pop("engine", {}))
    engine.add("r", {"pattern": pattern, "within_ms": 1000} | options)
    return engine


def test_an_event_that_no_state_waits_for_is_not_looked_at():
    engine = engine_of([STEP, {"name": "b", "event": "b"}])
    for position, name in enumerate("axxxbxxb"):
        engine.feed(Event(name, position + 1), position)
    assert engine.statistics()["looked_at"] == 2  # a, and the first b; the others find nothing under way


def test_matches_beyond_the_bound_are_given_up_oldest_first():
    engine = engine_of([STEP, {"name": "b", "event": "b"}], engine={"max_matches": 3})
    for position in range(10):
        engine.feed(Event("a", position + 1), position)
    assert engine.statistics()["dropped"] == 7
    assert [match.first for match in engine.feed(Event("b", 100), 10)] == [7, 8, 9]


def answers(pattern, events, **options):
    reply = answer(
        {
            "rule": {"pattern": pattern} | options,
            "events": [{"id": number, "at": at, "name": name} for number, (name, at) in enumerate(events)],
            "watermark": "direct",
        }
    )
    return [{step: ids for taken in match for step, ids in taken.items()} for match in reply["matches"]]


def test_a_greedy_loop_with_an_end_may_stand_behind_not_followed_by():
    """Flink builds an edge to nowhere here and fails with a NullPointerException when an event takes it."""
    pattern = [
        {"name": "a", "event": "a"},
        {"name": "n", "event": "n", "contiguity": "not_followed_by"},
        {"name": "b", "event": "b", "times": [0, None], "greedy": True, "until": {"event": "u"}},
        {"name": "c", "event": "c"},
    ]
    assert answers(pattern, [("a", 1), ("b", 2), ("b", 3), ("c", 4)]) == [
        {"a": [0], "b": [1, 2], "c": [3]},
        {"a": [0], "c": [3]},  # greed ends at the stop: Flink has both matches
    ]
    assert answers(pattern, [("a", 1), ("u", 2), ("c", 3)]) == [{"a": [0], "c": [2]}]
    assert answers(pattern, [("a", 1), ("n", 2), ("c", 3)]) == []


def test_past_last_skips_past_the_latest_event_by_time():
    """The match of 0 and 1 ends at time 5, although 1 came last: matches that began by then are dropped."""
    pattern = [{"name": "p", "event": "a"}, {"name": "q", "contiguity": "followed_by_any"}]
    events = [("a", 5), ("x", 3), ("x", 6)]
    assert answers(pattern, events, skip="past_last") == [{"p": [0], "q": [1]}]
    assert answers(pattern, events, skip="no_skip") == [{"p": [0], "q": [1]}, {"p": [0], "q": [2]}]


def test_the_key_without_an_event_for_longest_gives_up_its_matches():
    engine = engine_of([STEP, {"name": "b", "event": "b"}], engine={"max_bytes": 1 << 18})
    for position in range(3000):
        engine.feed(Event("a", position % 900 + 1, key=f"key-{position}"), position)
    counts = engine.statistics()
    assert counts["match_bytes"] <= 1 << 16 and counts["dropped"] > 1000
    assert engine.feed(Event("b", 950, key="key-0"), 3000) == []
    assert [match.first for match in engine.feed(Event("b", 950, key="key-2999"), 3001)] == [2999]


def test_rules_by_visit_page_and_all():
    pattern = [STEP, {"name": "b", "event": "b"}]
    engine = PatternEngine()
    for by in ("all", "key", "visit", "page"):
        engine.add(by, {"pattern": pattern, "within_ms": 1000}, by)
    fired = []
    events = [
        Event("a", 1, "p", "v", key="k"),
        Event("b", 2, "q", "v", key="l"),
        Event("b", 3, "p", "", key="m"),
        Event("b", 4, "", "w", key="k"),
    ]
    for position, event in enumerate(events):
        fired.append({match.rule for match in engine.feed(event, position)})
    assert fired == [set(), {"all", "visit"}, {"page"}, {"key"}]
    assert engine.feed(Event("a", 5), 5) == [] and engine.feed(Event("b", 6), 6) != []  # nobody's: a key like others
    assert engine.statistics()["keys"] == 0


def test_what_is_no_event_is_refused_and_changes_nothing():
    engine = engine_of([STEP])
    for given in (
        (None, 5, "", "", "", 1, 1, False),
        (None, "a", "", "", "", "1", 1, False),
        (None, "a", "", "", "", 1 << 70, 1, False),
    ):
        with pytest.raises((TypeError, ValueError)):
            engine.feed_raw(*given)
    with pytest.raises(TypeError, match="feed\\(\\) takes"):
        engine.feed_raw(1)
    assert len(engine.feed(Event("a", 1, key="\ud800"), 1)) == 1
    assert engine.feed_many([StoredEvent(2, Event("a", 2))])[2][0].first == 2


def test_values_that_are_none_of_a_conditions_kinds_do_not_hold():
    engine = engine_of([STEP | {"where": {"field": "v.w", "op": "!=", "value": 3}}])
    strange = [None, 5, {"v": 5}, {"v": {}}, {"v": {"w": None}}, {"v": {"w": 3}}, {"v": {"w": 3.0}}]
    assert [len(engine.feed(Event("a", 1, contents=value), 1)) for value in strange] == [0] * 7
    others = [{"v": {"w": 10**30}}, {"v": {"w": "3"}}, {"v": {"w": [3]}}, {"v": {"w": True}}, {"v": {"w": "\ud800"}}]
    assert [len(engine.feed(Event("a", 1, contents=value), 1)) for value in others] == [1] * 5


def test_a_snapshot_is_right_where_other_rules_number_fields_otherwise():
    other = {"pattern": [{"name": "x", "event": "x", "where": {"field": "n", "op": ">", "value": 1}}]}
    rule = {"pattern": [{"name": "v", "event": "v", "times": 2}, {"name": "c", "event": "c"}]}
    rule["pattern"][1]["where"] = {"field": "price", "op": ">", "sum_of": ["v", "price"]}
    before, after = PatternEngine(), PatternEngine()
    before.add("other", other)
    before.add("rule", rule)
    for number in (1, 2):
        before.feed(Event("v", number, key="k", contents={"price": 5, "n": 3}), number)
    after.add("rule", rule)
    after.load(before.save())
    assert after.feed(Event("c", 3, key="k", contents={"price": 7}), 3) == []
    assert len(after.feed(Event("c", 4, key="k", contents={"price": 11}), 4)) == 1


def test_a_damaged_snapshot_is_refused():
    engine = engine_of([STEP, {"name": "b", "event": "b"}])
    engine.feed(Event("a", 1), 1)
    saved = engine.save()
    for data in (b"", saved[:-1], saved + b"x", b"x" + saved[1:]):
        other = engine_of([STEP, {"name": "b", "event": "b"}])
        with pytest.raises(PatternError, match="damaged"):
            other.load(data)
    other = engine_of([STEP, {"name": "b", "event": "b"}])
    other.load(saved)
    with pytest.raises(PatternError, match="has matches already"):
        other.load(saved)


# ---- the builder


def test_the_builder_says_what_data_say():
    group = Pattern.begin("search", event="search").next("item", event="view").optional()
    rule = (
        Pattern.begin("view", SKIP_PAST_LAST_EVENT, event="view")
        .where({"field": "v", "op": ">", "value": 1})
        .where({"field": "w", "op": "==", "value": 2})
        .or_({"event": "look"})
        .followed_by_any(group)
        .one_or_more(within_ms=5)
        .until({"event": "stop"})
        .next("cart")
        .times(2, 3)
        .consecutive()
        .greedy()
        .not_followed_by("order", event="order")
        .within(seconds=9)
        .rule("r", by="visit")
    )
    assert rule == {
        "name": "r",
        "pattern": [
            {
                "name": "view",
                "event": "view",
                "where": [{"field": "v", "op": ">", "value": 1}, {"field": "w", "op": "==", "value": 2}],
                "or": {"event": "look"},
            },
            {
                "group": [
                    {"name": "search", "event": "search"},
                    {"name": "item", "event": "view", "contiguity": "next", "optional": True},
                ],
                "contiguity": "followed_by_any",
                "times": [1, None],
                "times_within_ms": 5,
                "until": {"event": "stop"},
            },
            {"name": "cart", "contiguity": "next", "times": [2, 3], "consecutive": True, "greedy": True},
            {"name": "order", "event": "order", "contiguity": "not_followed_by", "within_ms": 9000},
        ],
        "skip": "past_last",
        "by": "visit",
    }
    PatternEngine().add("r", rule)
    with pytest.raises(RuleError, match="view: times is set already"):
        Pattern.begin("view").times(2).times(3)


@each(
    ("last", "whole", "limit_ms"),
    [
        ({}, {"within_ms": 50}, 50),
        ({"within_ms": 20}, {}, 20),
        ({"within_ms": 20}, {"within_ms": 50}, 20),
        ({"within_ms": 50}, {"within_ms": 20}, 20),
        ({"within_ms": 20}, {"within_ms": 20, "within": "previous_and_current"}, 20),
        ({"within_ms": 15, "within": "previous_and_current"}, {"within_ms": 50, "within": "previous_and_current"}, 35),
        ({"group": [{"name": "c", "event": "c", "within_ms": 30}]}, {"within_ms": 50}, 30),
    ],
)
def test_the_limit_of_a_match_is_the_smallest_that_is_given(last, whole, limit_ms):
    named = {} if "group" in last else {"name": "c", "event": "c"}
    rule = {"pattern": [STEP, {"name": "b", "event": "b"}, named | last], **whole}
    for late in (0, 1):
        engine = PatternEngine()
        engine.add("r", rule)
        events = [Event("a", 0), Event("b", 20 if limit_ms == 35 else 1), Event("c", limit_ms - 1 + late)]
        found = [one for number, event in enumerate(events) for one in engine.feed(event, number)]
        assert [one.timed_out for one in found] == [bool(late)], late


def test_a_match_that_ends_with_an_absence_is_of_the_end_of_its_window():
    absent = {"name": "b", "event": "b", "contiguity": "not_followed_by"}
    for limit, at_ms in (({"within_ms": 50}, 60), ({"within_ms": 9, "within": "previous_and_current"}, 19)):
        engine = PatternEngine()
        engine.add("r", {"pattern": [STEP, absent], **limit})
        assert engine.feed(Event("a", 10), 1) == []
        (found,) = engine.advance(1000)
        assert (found.timed_out, found.at_ms) == (False, at_ms)


# ---- the commands


def command(*arguments):
    done = warm.run("-m", "vmhost", "pipeline", *arguments)
    return done.returncode, done.stdout, done.stderr


def test_the_command_answers_questions_of_a_file(tmp_path):
    asked, flink = next(pair for pair in kept() if pair[1].get("matches"))
    (tmp_path / "questions.jsonl").write_text(f"{json.dumps(asked)}\n\n{{\n[]\n")
    code, out, err = command("match", tmp_path / "questions.jsonl")
    answered, *bad = [json.loads(line) for line in out.splitlines()]
    assert (code, err, answered["matches"]) == (1, "", flink["matches"])
    assert [one["phase"] for one in bad] == ["read", "read"] and "line 3: not JSON" in bad[0]["error"]


def test_the_command_explains_a_rule_event_by_event(tmp_path):
    pattern = Pattern.begin("a", event="a").followed_by("b", event="b").where('event.page == "p"').within(seconds=1)
    (tmp_path / "rule.json").write_text(json.dumps(pattern.rule("r")))
    lines = [{"name": name, "time_ms": at, "page": "p"} for at, name in enumerate("axb", 1)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, err = command("explain-rule", tmp_path / "rule.json", "--events", tmp_path / "events.jsonl", "--json")
    assert code == 0, err
    rows = json.loads(out)["events"]
    assert [(row["under_way"], row["results"]) for row in rows] == [
        ("1 at b", []),
        ("1 at b", []),
        ("", [{"timed_out": False, "at_ms": 3, "steps": {"a": [1], "b": [3]}}]),
    ]
    code, out, err = command("explain-rule", tmp_path / "rule.json", "--dot")
    assert code == 0 and '"a" -> "b" [label="take a"' in out
    code, out, err = command("compile-rule", tmp_path / "rule.json", "-o", tmp_path / "compiled.json")
    assert code == 0, err
    (compiled,) = json.loads((tmp_path / "compiled.json").read_text())
    assert compiled["pattern"][1]["where"]["program"][0][0] == "FIELD"


def test_the_command_prints_every_field_that_is_given_for_a_rule(tmp_path):
    step = {"name": "a", "event": "e1", "where": {"field": "x", "op": "==", "value": "e2"}, "times": [2, None]}
    step |= {"times_within_ms": 71, "greedy": True, "until": {"event": "e3"}, "within_ms": 72, "or": {"event": "e4"}}
    group = {"group": [{"name": "b", "event": "e5"}], "contiguity": "followed_by_any", "optional": True}
    rule = {"name": "r", "about": "words", "by": "visit", "pattern": [step, {"name": "c", "event": "e6"}, group]}
    rule |= {"within_ms": 73, "skip": {"to_last": "c"}, "then": ["shop"], "timeout": [], "version": 74, "priority": 7}
    rule |= {"fields": {"x": "string"}, "when_changed": "go_on", "expires_ms": 75_000, "message": {"text": "e8"}}
    (tmp_path / "rule.json").write_text(json.dumps(rule))
    code, out, err = command("explain-rule", tmp_path / "rule.json")
    assert code == 0, err
    keys = {*rule, *step, *group} - {"pattern", "group"}
    lines = [line.split() for line in out.splitlines()]
    assert keys - {word for line in lines for word in line[:4]} == set()
    for value in ("e1", "e2", "e3", "e4", "e5", "e6", "e8", "71", "72", "73", "74", "75000", "words", "shop"):
        assert value in out, value
    assert "within 72 ms" in out
