"""The trigger engine: what fires, compared with brute force, and mistakes of its callers."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.pipeline.brute_force import BruteForce
from vmhost.pipeline.events import Event, StoredEvent
from vmhost.pipeline.triggers import TriggerEngine, TriggerError

IPV = [["page:item", "*", "page_exit"]]


def feed_all(engine, rows, begin=1):
    """Feeds (name, page, visit) or names of one visit; what fired at each, keys only."""
    rows = [(row, "", "v") if isinstance(row, str) else row for row in rows]
    return [[key for key, _ in engine.feed(*row, 1000 + number, number)] for number, row in enumerate(rows, begin)]


# ---- what a condition means


def test_a_page_view_is_found_at_its_exit():
    engine = TriggerEngine()
    engine.add("ipv", IPV)
    rows = [("page_enter", "item", "v1"), ("click", "item", "v1"), ("page_enter", "home", "v2")]
    assert feed_all(engine, [*rows, ("page_exit", "home", "v2")]) == [[], [], [], []]
    assert engine.feed("page_exit", "item", "v1", 2000, 5) == (("ipv", 2),)  # the latest start stays


def test_ids_are_adjacent_in_their_visit():
    engine = TriggerEngine()
    engine.add("bought", [["click", "buy"]])
    assert feed_all(engine, ["click", "other", "buy", "click", ("other", "", "w"), "buy"])[-4:] == [
        [],
        [],
        [],
        ["bought"],
    ]


def test_time_level_conditions_see_all_events():
    engine = TriggerEngine()
    engine.add("bought", [["click", "buy"]], level="time")
    assert feed_all(engine, ["click", ("other", "", "w"), "buy", "click", ("buy", "", "")])[2:] == [[], [], ["bought"]]


def test_events_outside_of_visits_are_in_no_page_level_sequence():
    engine = TriggerEngine()
    engine.add("page", [["push"]])
    engine.add("time", [["push"]], level="time")
    assert feed_all(engine, [("push", "", ""), ("push", "", "v")]) == [["time"], ["page", "time"]]
    assert engine.statistics()["outside"] == 1


def test_any_run_may_be_empty_and_says_nothing_at_the_ends():
    engine = TriggerEngine()
    engine.add("run", [["*", "*", "a", "*", "*", "b", "*"]])
    assert feed_all(engine, ["a", "b", "c", "b", "a"]) == [[], ["run"], [], ["run"], []]


def test_a_key_fires_once_with_the_latest_start():
    engine = TriggerEngine()
    engine.add("key", [["a", "*", "c"], ["b", "c"], ["c"]])
    engine.add("other", [["b", "c"]])
    feed_all(engine, ["a", "b"])
    assert sorted(engine.feed("c", "", "v", 5, 9)) == [("key", 9), ("other", 2)]


@pytest.mark.parametrize(("gap_ms", "fires"), [(99, True), (100, False), (101, False)])
def test_within_is_half_open(gap_ms, fires):
    engine = TriggerEngine()
    engine.add("short", [["a", "*", "b"]], within_ms=100)
    engine.add("long", [["a", "*", "b"]], within_ms=1000)
    engine.add("none", [["a", "*", "b"]])
    engine.feed("a", "", "v", 5000, 1)
    fired = {key for key, _ in engine.feed("b", "", "v", 5000 + gap_ms, 2)}
    assert fired == {"long", "none"} | ({"short"} if fires else set())


def test_a_match_ends_with_its_visit():
    engine = TriggerEngine()
    engine.add("ipv", IPV)
    feed_all(engine, [("page_enter", "item", "v1"), ("page_enter", "item", "v2")])
    engine.end_visit("v1")
    engine.end_visit("never seen")
    assert engine.statistics()["ended"] == 1
    assert engine.feed("page_exit", "", "v1", 5, 5) == ()
    assert engine.feed("page_exit", "", "v2", 6, 6) == (("ipv", 2),)


def test_a_new_condition_counts_events_from_the_next_one_on():
    engine = TriggerEngine()
    engine.add("old", [["a", "*", "b"]])
    feed_all(engine, ["a"])
    engine.add("new", [["a", "*", "b"]])
    assert feed_all(engine, ["b", "a", "b"], begin=2) == [["old"], [], ["new", "old"]]


def test_changing_one_loses_no_match_of_others():
    engine = TriggerEngine()
    engine.add("stays", [["a", "*", "b"]])
    engine.add("goes", [["a", "*", "b", "*", "c"]])
    engine.add("changes", [["a", "*", "b"]])
    feed_all(engine, ["a"])
    engine.remove("goes")
    engine.change("changes", [["b"]])
    assert sorted(engine.feed("b", "", "v", 5, 2)) == [("changes", 2), ("stays", 1)]
    with pytest.raises(TriggerError, match="'goes': there is no condition with this key"):
        engine.remove("goes")


def test_a_changed_condition_begins_anew():
    engine = TriggerEngine()
    engine.add("k", [["a", "*", "b"]])
    feed_all(engine, ["a"])
    engine.change("k", [["a", "*", "b"]])
    assert feed_all(engine, ["b", "a", "b"], begin=2) == [[], [], ["k"]]


def test_a_small_jump_back_counts_as_no_time_and_a_large_one_as_a_clock_that_was_set():
    engine = TriggerEngine(max_back_ms=1000)
    engine.add("key", [["a", "*", "b"]], within_ms=100)
    engine.feed("a", "", "v", 50_000, 1)
    assert engine.feed("b", "", "v", 49_500, 2) != ()
    engine.feed("a", "", "v", 10_000, 3)  # set back by 40 s: time goes on from here
    assert engine.feed("b", "", "v", 10_099, 4) != ()
    assert engine.feed("b", "", "v", 10_100, 5) == ()
    assert engine.statistics()["clock_sets"] == 1


def test_many_events_at_once_are_told_by_position():
    def engine():
        made = TriggerEngine()
        made.add("ipv", IPV)
        return made

    names, pages, visits = ["page_enter", "page_exit"] * 2, ["item"] * 4, ["v", "v", "w", "w"]
    times, positions = [1, 2, 3, 4], [10, 20, 30, 40]
    expected = [(20, (("ipv", 10),)), (40, (("ipv", 30),))]
    assert engine().feed_columns(names, pages, visits, times, positions) == expected
    events = [
        StoredEvent(position, Event(name, time, page, visit))
        for name, page, visit, time, position in zip(names, pages, visits, times, positions)
    ]
    assert engine().feed_many(events) == expected


# ---- against brute force

# Few ids, so that conditions share nodes and most events complete some.
NAMES, PAGES, VISITS = ["a", "b", "é"], ["", "p"], ["v", "v", "w", ""]
ids = st.lists(st.sampled_from(["a", "b", "é", "page:p", "*", "*"]), min_size=1, max_size=5).filter(
    lambda sequence: set(sequence) != {"*"}
)
conditions = st.tuples(
    st.lists(ids, min_size=1, max_size=2), st.sampled_from(["page", "time"]), st.sampled_from([None, 2, 5])
)
keys = st.sampled_from(["k1", "k2"])
feeds = st.tuples(
    st.just("feed"),
    st.sampled_from(NAMES),
    st.sampled_from(PAGES),
    st.sampled_from(VISITS),
    st.sampled_from([0, 0, 1, 1, 2, 5, -3, -30]),
)
others = st.one_of(
    st.tuples(st.just("put"), keys, conditions),
    st.tuples(st.just("same"), keys),  # changed to what it is: begins anew
    st.tuples(st.just("remove"), keys),
    st.tuples(st.just("end"), st.sampled_from(VISITS)),
    st.tuples(st.just("advance"), st.integers(0, 30)),
)
doings = st.integers(0, 5).flatmap(lambda choice: feeds if choice else others)


any_begin = st.lists(st.tuples(keys, conditions), min_size=1, max_size=3)
any_doings = st.lists(doings, min_size=5, max_size=40)


def compare(begin, doings):
    engine, plain = TriggerEngine(max_back_ms=15), BruteForce(max_back_ms=15)
    time = 1000

    def put(key, condition):
        if key in plain.conditions:
            engine.change(key, *condition)
        else:
            engine.add(key, *condition)
        plain.change(key, *condition)

    for key, condition in begin:
        put(key, condition)
    for position, (what, *rest) in enumerate(doings):
        if what == "feed":
            time += rest[3]
            event = (*rest[:3], time, position)
            assert sorted(engine.feed(*event)) == sorted(plain.feed(*event))
        elif what == "put":
            put(*rest)
        elif what == "same" and rest[0] in plain.conditions:
            put(*rest, plain.conditions[rest[0]][:3])
        elif what == "remove" and rest[0] in plain.conditions:
            engine.remove(*rest)
            plain.remove(*rest)
        elif what == "end":
            engine.end_visit(*rest)
            plain.end_visit(*rest)
        elif what == "advance":
            engine.advance(time + rest[0])
            plain.advance(time + rest[0])
    for key in plain.conditions:
        engine.remove(key)
    statistics = engine.statistics()
    assert (statistics["conditions"], statistics["sequences"], statistics["nodes"], statistics["ids"]) == (0, 0, 0, 0)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_begin, any_doings)
@example(
    [("k1", ([["a", "b"], ["a", "*", "b"]], "page", None))], [("feed", "a", "p", "v", 1), ("feed", "b", "p", "v", 1)]
)
def test_what_fires_is_what_brute_force_finds(begin, doings):
    compare(begin, doings)


@pytest.mark.stress
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_begin, any_doings)
def test_what_fires_is_what_brute_force_finds_in_thousands_of_streams(begin, doings):
    compare(begin, doings)
