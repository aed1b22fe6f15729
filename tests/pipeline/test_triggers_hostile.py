"""The trigger engine with hostile input: junk, huge texts, long sequences, and endless streams."""

import pytest

from vmhost.pipeline.triggers import MAX_IDS, TriggerEngine, TriggerError

IPV = [["page:item", "*", "page_exit"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, [["a"]]), "key: expected a `str`, got `int`"),
        (("k", []), "'k': expected a list of sequences, got []"),
        (("k", "abc"), "'k': expected a list of sequences, got 'abc'"),
        (("k", ["abc"]), "'k': sequence 1: expected a list of ids, got 'abc'"),
        (("k", [["a"], []]), "'k': sequence 2: expected a list of ids, got []"),
        (("k", [["*", "*"]]), "'k': sequence 1: expected an id beside `*`"),
        (("k", [["a", ""]]), "'k': sequence 1: id 2: expected a name, `page:ID` or `*`, got ''"),
        (("k", [["page:"]]), "'k': sequence 1: id 1: expected a name, `page:ID` or `*`, got 'page:'"),
        (("k", [["a", None]]), "'k': sequence 1: id 2: expected a name, `page:ID` or `*`, got None"),
        (("k", [["a"]], "visit"), "'k': level: expected page or time, got 'visit'"),
        (("k", [["a"]], "page", 0), "'k': within_ms: expected None or 1"),
        (("k", [["a"]], "page", True), "'k': within_ms: expected None or 1"),
        (("k", [["a"]], "page", 1.5), "'k': within_ms: expected None or 1"),
        (("k", [["a"]], "page", 1 << 80), "'k': within_ms: expected None or 1"),
        (("k", [["a"] * (MAX_IDS + 1)]), "'k': sequence 1: expected up to 1000 ids, got 1001"),
        (("k", [["a"] * 10_000]), "'k': sequence 1: expected up to 1000 ids, got 10000"),
    ],
)
def test_a_bad_condition_is_told_and_changes_nothing(arguments, message):
    engine = TriggerEngine()
    before = engine.statistics()
    with pytest.raises(TriggerError) as caught:
        engine.add(*arguments)
    assert message in str(caught.value)
    assert engine.statistics() == before


def test_a_key_is_added_once_and_changed_only_when_it_is_there():
    engine = TriggerEngine()
    engine.add("k", [["a"]])
    with pytest.raises(TriggerError, match="'k': there is a condition with this key; change it"):
        engine.add("k", [["b"]])
    for missing in (lambda: engine.change("l", [["a"]]), lambda: engine.remove("l"), lambda: engine.explain("l")):
        with pytest.raises(TriggerError, match="'l': there is no condition with this key"):
            missing()
    assert engine.feed("b", "", "v", 1, 1) == () and engine.feed("a", "", "v", 1, 2) == (("k", 2),)


@pytest.mark.parametrize(
    ("event", "error", "message"),
    [
        ((b"a", "", "v", 1, 9), TypeError, "name: expected a `str`, got `bytes`"),
        (("a", None, "v", 1, 9), TypeError, "page: expected a `str`, got `NoneType`"),
        (("a", "", 5, 1, 9), TypeError, "visit: expected a `str`, got `int`"),
        (("a", "", "v", 1.0, 9), TypeError, "time_ms: expected an `int`, got `float`"),
        (("a", "", "v", 1, "9"), TypeError, "position: expected an `int`, got `str`"),
        (("a", "", "v", 1 << 64, 9), ValueError, "time_ms: expected an `int` of up to 64 bits"),
        (("a", "", "v", 1, -(1 << 64)), ValueError, "position: expected an `int` of up to 64 bits"),
        (("a", "", "v", 1, 5), TriggerError, "position: expected more than 5, the last event's, got 5"),
        (("a", "", "v", 1), TypeError, "feed() takes name, page, visit, time_ms and position, got 4 arguments"),
    ],
)
def test_a_bad_event_is_told_and_changes_nothing(event, error, message):
    engine = TriggerEngine()
    engine.add("k", [["a", "*", "b"]])
    engine.feed("a", "", "v", 1, 5)
    before = engine.statistics()
    with pytest.raises(error) as caught:
        engine.feed(*event)
    assert message in str(caught.value)
    assert engine.statistics() == before
    assert engine.feed("b", "", "v", 1, 6) == (("k", 5),)


def test_bad_events_among_many_keep_what_went_before():
    engine = TriggerEngine()
    engine.add("k", [["a"]])
    with pytest.raises(TypeError, match="page: expected a `str`, got `NoneType`"):
        engine.feed_columns(["a", "a"], ["", None], ["v", "v"], [1, 2], [1, 2])
    assert engine.statistics()["fired"] == 1
    with pytest.raises(ValueError, match="expected columns of one length, got 2 and 1"):
        engine.feed_columns(["a", "a"], [""], ["v", "v"], [1, 2], [1, 2])
    with pytest.raises(TypeError, match="not iterable"):
        engine.feed_columns(["a"], None, ["v"], [1], [1])
    with pytest.raises(AttributeError, match="event"):
        engine.feed_many([object()])


@pytest.mark.parametrize(
    "text",
    ["é", "名", "🛒", "\ud800", "nul\0in it", "x" * 5_000_000, "*x", "page", "PAGE:item", " "],
    ids=lambda text: ascii(text[:10]),
)
def test_any_text_is_a_name_a_page_a_visit_and_a_key(text):
    engine = TriggerEngine()
    engine.add(text, [[text, "*", f"page:{text}"]])
    assert engine.feed(text, "", text, 1, 1) == ()
    assert engine.feed("other", text, text, 2, 2) == ((text, 1),)
    assert engine.explain(text)["sequences"][0][1]["id"] == f"page:{text}"
    engine.remove(text)


def test_texts_of_the_same_bytes_are_apart():
    engine = TriggerEngine()
    engine.add("ab", [["ab"]])
    engine.add("\u6261", [["\u6261", "*", "ab"]])  # "ab" in two bytes a character
    assert engine.feed("\u6261", "", "ab", 1, 1) == ()
    assert engine.feed("ab", "", "\u6261", 2, 2) == (("ab", 2),)  # another visit
    assert dict(engine.feed("ab", "", "ab", 3, 3)) == {"ab": 3, "\u6261": 1}


def test_what_a_subclass_of_str_says_of_itself_is_not_asked():
    class Liar(str):
        __hash__ = None

        def __eq__(self, other):
            raise AssertionError

    engine = TriggerEngine()
    engine.add("k", [["a"]])
    assert engine.feed(Liar("a"), Liar(""), Liar("v"), 1, 1) == (("k", 1),)


def test_a_sequence_of_a_thousand_ids_that_overlaps_itself():
    engine = TriggerEngine()
    engine.add("k", [["a"] * MAX_IDS])
    fired = [engine.feed("a", "", "v", 1, position) for position in range(MAX_IDS + 2)]
    assert [number for number, found in enumerate(fired) if found] == [MAX_IDS - 1, MAX_IDS, MAX_IDS + 1]
    assert fired[-1] == (("k", 2),)


def test_a_clock_beyond_all_bounds():
    engine = TriggerEngine()
    engine.add("k", [["a", "*", "b"]], within_ms=10)
    ends = [-(1 << 63), (1 << 63) - 1]
    for position in range(0, 40, 2):
        engine.feed("a", "", "v", ends[position // 2 % 2], position)
        assert engine.feed("b", "", "v", ends[position // 2 % 2], position + 1) == (("k", position),)


# ---- streams without an end


def test_ids_that_no_condition_uses_cost_nothing():
    engine = TriggerEngine()
    engine.add("k", [["a", "*", "b"]])
    engine.feed("a", "", "stays", 0, 0)
    engine.feed("a", "", "goes", 0, 1)
    engine.end_visit("goes")
    before = engine.statistics()["bytes"]
    for position in range(2, 20_000):
        engine.feed(f"name {position}", f"page {position}", f"visit {position}", position, position)
    assert engine.statistics()["bytes"] == before


def test_visits_that_never_end_are_bounded_and_the_quietest_gives_up():
    engine = TriggerEngine(max_matches=1000)
    engine.add("ipv", IPV)
    for position in range(20_000):
        engine.feed("page_enter", "item", f"visit {position}", position, position)
    statistics = engine.statistics()
    assert (statistics["matches"], statistics["visits"], statistics["dropped"]) == (1000, 1000, 19_000)
    assert engine.feed("page_exit", "item", "visit 18999", 30_000, 30_000) == ()
    assert engine.feed("page_exit", "item", "visit 19999", 30_000, 30_001) == (("ipv", 19_999),)


def test_matches_take_no_more_than_their_share_of_memory():
    engine = TriggerEngine(max_bytes=1 << 20)
    engine.add("ipv", IPV)
    for position in range(50_000):
        engine.feed("page_enter", "item", f"visit {position}", position, position)
    statistics = engine.statistics()
    assert statistics["match_bytes"] <= (1 << 20) // 4 and statistics["matches"] + statistics["dropped"] == 50_000
    assert statistics["matches"] > 1000


def test_conditions_that_do_not_fit_are_refused_and_the_old_one_stays():
    engine = TriggerEngine(max_bytes=1 << 18)
    engine.add("first", [["a"]])
    with pytest.raises(TriggerError, match="conditions may take 196608 bytes, three quarters of max_bytes"):
        for number in range(10_000):
            engine.add(f"k{number}", [[f"x{number}", f"y{number}"]])
    before = engine.statistics()
    with pytest.raises(TriggerError, match="'first': conditions may take"):
        engine.change("first", [[f"z{number}{place}" for place in range(900)] for number in range(9)])
    assert engine.statistics() == before
    assert engine.feed("a", "", "v", 1, 1) == (("first", 1),)
    engine.remove("k0")
    engine.add("k0", [["x0", "y0"]])


def test_memory_of_conditions_that_went_is_used_again():
    engine = TriggerEngine()
    sizes = []
    for turn in range(4):
        for number in range(2000):
            engine.add(f"{turn} {number}", [[f"{turn} {number % 50}", "*", f"{turn} {number}"]])
        for number in range(2000):
            engine.remove(f"{turn} {number}")
        sizes.append(engine.statistics()["bytes"])
    assert sizes[1:] == sizes[:1] * 3


@pytest.mark.parametrize("bad", [{"max_matches": 0}, {"max_bytes": -1}, {"max_back_ms": -1}])
def test_bounds_that_are_none(bad):
    with pytest.raises(ValueError, match="expected 1 or more"):
        TriggerEngine(**bad)


# ---- what it tells


def test_statistics_are_true():
    engine = TriggerEngine()
    engine.add("ipv", IPV)
    engine.add("cart", [["page:item", "*", "add"], ["add"]], within_ms=100)
    engine.add("pair", [["click", "add"]])
    events = [("page_enter", "item", "v1"), ("click", "item", "v1"), ("add", "item", "v1"), ("click", "", "v2")]
    for position, event in enumerate(events):
        engine.feed(*event, 1000 + position, position)
    engine.feed("push", "", "", 1010, 10)
    statistics = engine.statistics()
    counts = {
        name: statistics[name] for name in ("conditions", "sequences", "nodes", "ids", "visits", "matches", "fired")
    }
    assert counts == {
        "conditions": 3,
        "sequences": 4,
        "nodes": 6,  # page:item, page_exit, add; add; click, add
        "ids": 4,
        "visits": 2,
        "matches": 2,  # page:item in v1, click in v2
        "fired": 2,  # cart and pair, by `add`
    }
    assert (statistics["events"], statistics["outside"], statistics["dropped"], statistics["clock_sets"]) == (
        5,
        1,
        0,
        0,
    )
    engine.end_visit("v2")
    statistics = engine.statistics()
    assert (statistics["ended"], statistics["matches"], statistics["visits"]) == (1, 1, 1)


def test_matches_that_are_too_old_or_whose_conditions_went_are_dropped_as_time_moves_on():
    engine = TriggerEngine()
    engine.add("short", [["a", "*", "b"]], within_ms=100)
    engine.add("gone", [["c", "*", "b"]])
    engine.feed("a", "", "v1", 1000, 1)
    engine.feed("c", "", "v2", 1000, 2)
    engine.advance(1099)
    assert engine.statistics()["matches"] == 2
    engine.remove("gone")
    engine.advance(1100)
    statistics = engine.statistics()
    assert (statistics["expired"], statistics["withdrawn"], statistics["matches"], statistics["visits"]) == (1, 1, 0, 0)


def test_explain_tells_how_far_matches_have_come():
    engine = TriggerEngine()
    engine.add("ipv", [["page:item", "*", "page_exit"], ["home"]], within_ms=1000)
    engine.add("cart", [["page:item", "*", "add", "buy"]])
    for position, visit in enumerate(["v1", "v2", "v1"]):
        engine.feed("page_enter", "item", visit, 10, position)
    engine.feed("home", "", "v1", 10, 5)
    item = {"id": "page:item", "after_any_run": False, "waiting": 2, "ends": 0, "next": 2}
    assert engine.explain("ipv") == {
        "key": "ipv",
        "level": "page",
        "within_ms": 1000,
        "fired": 1,
        "sequences": [
            [item, {"id": "page_exit", "after_any_run": True, "waiting": 0, "ends": 1, "next": 0}],
            [{"id": "home", "after_any_run": False, "waiting": 0, "ends": 1, "next": 0}],
        ],
    }
    assert engine.explain("cart")["level"] == "page" and engine.explain("cart")["within_ms"] is None
