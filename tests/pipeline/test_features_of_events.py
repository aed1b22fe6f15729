"""Features of keys: each operator against plain Python, a stream against its batch, restarts, what is refused."""

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost
from tests.batches import each
from tests.pipeline.features_reference import computed
from tests.pipeline.stream_tasks import open_pipeline, stream_task
from vmhost.cli import main
from vmhost.pipeline import Event, Pipeline
from vmhost.pipeline.events import StoredEvent
from vmhost.pipeline.features import DERIVED, OPERATORS, SHOP, Features, FeatureSet, _features, read_feature_file
from vmhost.pipeline.features.definitions import feature

NOW = 1_800_000_000_000  # a Friday, 08:00 UTC
PARAMETERS = {  # two of each
    "at_least": (3, 50),
    "quantile": (0.3, 1.0),
    "trimmed_mean": (0.2, 0.0),
    "top_share": (0.25, 1.0),
    "nth_last": (3, 1),
    "nth_first": (2, 40),
    "sessions": (1800, 1),
    "session_events": (1800, 60),
    "session_seconds": (1800, 60),
    "mean_session_events": (1800, 60),
    "mean_session_seconds": (1800, 60),
    "hour_share": (8, 23),
    "weekday_share": (4, 0),
    "decayed_count": (3600, 60),
    "decayed_sum": (3600, 60),
    "decayed_mean": (3600, 7200),
    "recent_share": (0.5, 0.1),
    "co_occurrence": (3600, 0),
    "co_occurrence_share": (60, 86400),
    "approximate_quantile": (0.5, 1.0),
}
WINDOW_S = 2 * 86400


def all_operators(source="*", field="price"):
    """A definition for each operator, and for each of its two parameters."""
    definitions = {}
    for name, operator in OPERATORS.items():
        for place, parameter in enumerate(PARAMETERS.get(name, (2, 0)) if operator.parameter else (None,)):
            one = {"source": source, "field": field, "operator": name, "window": f"{WINDOW_S} s"}
            one |= {"parameter": parameter} if operator.parameter else {}
            definitions[f"{name}_{place}"] = one | ({"other": "items"} if operator.other else {})
    return definitions


def events(random_, number, span_s=3 * 86400):
    """Events of the last days, in the order of time: prices that are often equal, some missing, some at one moment."""
    times = sorted(random_.choice((random_.randrange(span_s), random_.randrange(600))) for _ in range(number))
    found = []
    for ago in reversed(times):
        price = random_.choice((None, 0, 1, 2, 2.5, -3, random_.uniform(-10, 100), 1e6))
        contents = {} if price is None else {"price": price}
        contents |= random_.choice(({}, {"items": random_.randrange(3)}, {"items": random_.uniform(0, 9)}))
        found.append(Event(random_.choice(("cart", "order")), NOW - 1000 * ago, contents=contents, key="ann"))
    return found


def stored(some, start=1):
    return [StoredEvent(position, event) for position, event in enumerate(some, start)]


def in_window(some, at_ms):
    return [
        (event.time_ms / 1000, event.contents.get("price"), event.contents.get("price"), event.contents.get("items"))
        for event in some
        if at_ms - 1000 * WINDOW_S < event.time_ms <= at_ms
    ]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 7, 40, 300])
def test_each_operator_is_what_plain_python_says(number):
    assert len(OPERATORS) >= 100
    definitions = all_operators()
    sample = events(random.Random(number), number)
    features = Features(FeatureSet.of({"features": definitions}))
    features.feed(stored(sample))
    found = dict(zip(definitions, features.read("*", "ann", NOW), strict=True))
    for name, one in definitions.items():
        if OPERATORS[one["operator"]].of_sketch:
            continue
        expected = computed(in_window(sample, NOW), NOW / 1000, WINDOW_S, one.get("parameter", 0))[one["operator"]]
        assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), name


def test_the_page_lists_every_operator():
    page = (Path(__file__).resolve().parents[2] / "docs" / "features-of-events.md").read_text()
    for name, operator in OPERATORS.items():
        wants = ", ".join(key for key in ("parameter", "other") if getattr(operator, key))
        assert f"| `{name}` | {wants} | {operator.cost} | {operator.says} |" in page
    assert f"{len(OPERATORS)} operators" in (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_the_reference_knows_every_operator_and_no_other():
    exact = {name for name, operator in OPERATORS.items() if not operator.of_sketch}
    assert computed([], 0, 1, 0).keys() == exact


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 9))
def test_a_stream_gives_what_its_batch_gives(seed, number, at_once):
    """Events come late and in batches; at any time the values are those of a computation over all of them at once."""
    random_ = random.Random(seed)
    sample = events(random_, number)
    late = sorted(sample, key=lambda event: event.time_ms + random_.randrange(7_200_000))
    declared = FeatureSet.of({"features": all_operators()})
    streamed = Features(declared)
    for place in range(0, number, at_once):
        batch = stored(late[place : place + at_once], place + 1)
        streamed.feed(batch)
        at_ms = max(event.time_ms for event in late[: place + at_once]) + random_.randrange(3_600_000)
        whole = Features(declared)
        whole.feed(stored(sorted(late[: place + at_once], key=lambda event: event.time_ms)))
        assert list(map(str, streamed.read("*", "ann", at_ms))) == list(map(str, whole.read("*", "ann", at_ms)))


def test_texts_are_told_apart_and_ratios_are_of_two_features():
    definitions = {
        "items": {"source": "view", "field": "item.name", "operator": "distinct", "window": "1 d"},
        "views": {"source": "view", "operator": "count", "window": "1 d"},
        "orders": {"source": "order", "operator": "count", "window": "1 d"},
        "conversion": {"ratio": ["orders", "views"], "default": -1},
    }
    definitions |= {name: {name: ["views", "orders"]} for name in DERIVED if name != "ratio"}
    features = Features(FeatureSet.of({"features": definitions, "views": {"short": ["conversion", "items"]}}))
    assert list(features.read("short", "nobody", NOW)) == [-1, 0]
    names = ("lamp", "stove", "lamp", "größe")
    views = [Event("view", NOW - 10, contents={"item": {"name": name}}, key="ann") for name in names]
    features.feed(stored([*views, Event("order", NOW - 5, key="ann")]))
    assert list(features.read("short", "ann", NOW)) == [0.25, 3]
    derived = dict(zip(definitions, features.read("*", "ann", NOW), strict=True))
    names = ("difference", "total", "product", "larger", "smaller", "both")
    assert [derived[name] for name in names] == [3, 5, 4, 4, 1, 1]
    assert list(features.read(["views", "conversion"], "ann", NOW)) == [4, 0.25]


def test_conditions_sources_and_whose_they_are():
    definitions = {
        "dear": {"source": ["cart", "order"], "where": {"field": "price", "op": ">", "value": 50}, "operator": "count"},
        "cel": {"source": "cart", "where": "event.price > 50.0 && event.page == 'item'", "operator": "count"},
    }
    by_page = {"seen": {"by": "page", "operator": "count"}}
    pytest.importorskip("cel_expr_python")
    features = Features(FeatureSet.of({"features": definitions}))
    pages = Features(FeatureSet.of({"features": by_page}))
    sample = stored(
        [
            Event("cart", NOW - 9, page="item", visit="v", contents={"price": 60.0}, key="ann"),
            Event("cart", NOW - 8, contents={"price": 60.0}, key="ann"),
            Event("order", NOW - 7, contents={"price": 70}, key="ann"),
            Event("view", NOW - 6, page="item", visit="w", contents={"price": 70.0}, key="ann"),
            Event("cart", NOW - 5, contents={"price": 10.0}, key="ann"),
            Event("cart", NOW - 4, contents={"price": 99.0}),
        ]
    )
    features.feed(sample)
    pages.feed(sample)
    assert list(features.read("*", "ann", NOW)) == [3, 1]
    assert list(pages.read("*", "item", NOW)) == [2]


def test_the_features_of_a_shop():
    declared = read_feature_file(SHOP)
    assert sum(len(names) for names in declared.views.values()) == len(declared.features) > 30
    assert all(each.about or not each.of for each in declared.features.values())
    features = Features(declared)
    minute = 60_000
    sample = [
        Event("exposure", NOW - 50 * minute, contents={"item": "a"}, key="ann"),
        Event("exposure", NOW - 49 * minute, contents={"item": "b"}, key="ann"),
        *(
            Event("click", NOW - ago * minute, contents={"item": item, "category": "tea", "price": price}, key="ann")
            for ago, item, price in ((25, "a", 40), (20, "b", 30), (15, "a", 40), (10, "c", 20))
        ),
        Event("cart", NOW - 9 * minute, contents={"item": "c", "price": 20}, key="ann"),
        Event("order", NOW - 10 * 86_400_000, contents={"item": "z", "price": 99}, key="ann"),
    ]
    features.feed(stored(sample))
    found = {
        name: value
        for view, names in declared.views.items()
        for name, value in zip(names, features.read(view, "ann", NOW), strict=True)
    }
    assert (found["click_rate_1d"], found["conversion_7d"], found["spent_90d"], found["basket_price"]) == (2, 0, 99, 99)
    assert (found["hesitation"], found["follow_through"], found["customer_here"]) == (1, 0, 1)
    assert (found["comparing"], found["undecided"], found["session_depth"]) == (3, 1, 4)
    assert found["bargain_hunt"] < 0 and found["seconds_since_order"] == 10 * 86_400 and found["category_loyalty"] == 1
    assert not any(map(math.isnan, found.values()))


def test_windows_end_where_they_should_and_old_news_is_none():
    definitions = {
        "hour": {"operator": "count", "window": "1 h"},
        "day": {"operator": "count", "window": "1 d", "fresh": "10 min", "default": -1},
    }
    features = Features(FeatureSet.of({"features": definitions}))
    hour = 3_600_000
    features.feed(
        stored([Event("a", NOW - hour, key="k"), Event("a", NOW - hour + 1, key="k"), Event("a", NOW, key="k")])
    )
    assert list(features.read("*", "k", NOW)) == [2, 3]
    assert list(features.read("*", "k", NOW + hour - 1)) == [1, -1]
    assert list(features.read("*", "k", NOW + hour)) == [0, -1]
    assert list(features.read("*", "k", NOW + 600_000)) == [1, 3]


def test_local_time(tmp_path):
    definitions = {
        "night": {"operator": "night_share", "window": "1 d"},
        "peak": {"operator": "peak_hour", "window": "1 d"},
    }
    sample = stored([Event("a", NOW, key="k")])  # 08:00 UTC
    for offset, expected in (("0 h", [0, 8]), ("14 h", [1, 22]), ("-9 h", [1, 23])):
        features = Features(FeatureSet.of({"features": definitions, "utc_offset": offset}))
        features.feed(sample)
        assert list(features.read("*", "k", NOW)) == expected


@pytest.mark.parametrize("time_ms", [2**53 + 1, -(2**63), 2**70])
def test_times_beyond_all_bounds_are_refused(time_ms):
    features = Features(FeatureSet.of({"features": {"all": {"operator": "age"}}}))
    with pytest.raises(ValueError, match="a time: expected milliseconds"):
        features.read("*", "k", time_ms)
    history = _features.History(((1, 1, 0, 0, 0, 0),))
    with pytest.raises(ValueError, match="a time: expected milliseconds"):
        history.append(0, time_ms, 1.0, 1)
    with pytest.raises(IndexError):
        history.append(1, 1, 1.0, 1)
    for steps in (
        ((0, 0, 999, 0, 1, 1, -1, -1, 0, 0),),
        ((1, 0, 0, 0, 0, 1, -1, -1, 0, 0),),
        ((0, -1, 0, 0, 1, 1, -1, -1, 0, 0),),
        ((0, 0, 0, 0, 0, 1, -1, -1, 0, 0),),
    ):
        with pytest.raises(ValueError, match="names what is not there"):
            _features.Plan(steps)
    with pytest.raises(ValueError, match="a history with more columns"):
        history.read(_features.Plan(((0, 1, 0, 0, 1, 1, -1, -1, 0, 0),)), 1)
    with pytest.raises(TypeError):
        _features.Plan((1,))
    step = (0, 0, 0, 0, 1, 1, -1, -1, 0, 0)
    for order in (1,), (-1,), (0, 5):
        with pytest.raises(ValueError, match="order: there is no step"):
            _features.Plan((step,), 0, order)
    for order in [0], ("x",):
        with pytest.raises(TypeError):
            _features.Plan((step,), 0, order)


def test_bounds_are_kept_and_told():
    definitions = {"all": {"operator": "count", "window": "1 d"}}
    features = Features(FeatureSet.of({"features": definitions}), max_keys=3, max_events=5)
    for number in range(4):
        features.feed(stored([Event("a", NOW + n, key=f"k{number}") for n in range(8)], 8 * number + 1))
    statistics = features.statistics()
    assert (statistics["keys"], statistics["events"], statistics["put_aside"]) == (3, 15, 1) and statistics[
        "dropped"
    ] == 9
    assert list(features.read("*", "k3", NOW + 10)) == [5]


# ---- in a pipeline

SAID = {
    "features": {
        "carts": {"source": "cart", "operator": "count", "window": "7 d"},
        "spent": {"source": "order", "field": "price", "operator": "sum", "window": "30 d"},
    },
    "views": {"buyer": ["spent", "carts"]},
}
ASKS = """
from vmhost.guest import host
import vmhost.engine.numpy as np

def run(value):
    vector = np.asarray(host.features({"view": "buyer", "key": "ann"}))
    return {"spent": float(vector[0]), "carts": float(vector[1]), "length": int(vector.shape[0])}
"""


def shop(number=3):
    carts = [Event("cart", NOW + n, key="ann") for n in range(number)]
    return [*carts, Event("order", NOW + 50, key="ann", contents={"price": 20}), Event("cart", NOW + 60, key="ben")]


def clock():
    return NOW / 1000 + 1


def test_features_are_there_after_a_restart_and_after_a_change(tmp_path):
    with Pipeline(tmp_path / "data", [], features=[SAID], clock=clock) as pipeline:
        pipeline.append_many(shop())
        assert list(pipeline.features.read("buyer", "ann", NOW + 1000)) == [20, 3]
    changed = {
        **SAID,
        "features": SAID["features"] | {"mean": {"source": "order", "field": "price", "operator": "mean"}},
    }
    (tmp_path / "features.yaml").write_text(json.dumps(changed))
    with Pipeline(tmp_path / "data", [], features=[tmp_path / "features.yaml"], clock=clock) as pipeline:
        assert list(pipeline.features.read("buyer", "ann", NOW + 1000)) == [20, 3]
        assert list(pipeline.features.read(["mean"], "ann", NOW + 1000)) == [20]
        assert list(pipeline.features.read("buyer", "ann", NOW + 1)) == [0, 2]  # as it was then
        assert pipeline.statistics()["features"]["keys"] == 2
        pipeline.forget("ann")
        assert list(pipeline.features.read("buyer", "ann", NOW + 1000)) == [0, 0]


def test_a_key_that_was_put_aside_is_read_from_the_store(tmp_path):
    with Pipeline(tmp_path / "data", [], features=[SAID], clock=clock) as pipeline:
        pipeline.features._max_keys = 1
        pipeline.append_many(shop())
        assert pipeline.features.statistics()["put_aside"] == 1
        assert list(pipeline.features.read("buyer", "ann", NOW + 1000)) == [20, 3]


def test_a_task_reads_a_vector_by_one_call(tmp_path):
    options = {"trigger": "on: [ask], level: time", "functions": "features"}
    table = "columns: {spent: real, carts: real, length: integer}"
    asks = stream_task(tmp_path, ASKS, name="asks", table=table, **options)
    with open_pipeline(tmp_path, asks, features=[SAID], clock=clock) as pipeline:
        pipeline.append_many([*shop(), Event("ask", NOW + 70, key="ann")])
        assert pipeline.drain(60)
        (row,) = pipeline.table("asks").read()
        assert (row["spent"], row["carts"], row["length"]) == (20.0, 3.0, 2)


def test_the_command_lists_and_reads(tmp_path, capfd):
    path = tmp_path / "features.yaml"
    path.write_text(json.dumps(SAID))
    with Pipeline(tmp_path / "data", [], features=[SAID], clock=clock) as pipeline:
        pipeline.append_many(shop())
    assert main(["pipeline", "features", str(path)]) == 0
    assert "spent" in capfd.readouterr().out
    arguments = [str(path), "--folder", str(tmp_path / "data"), "--key", "ann", "--at", str(NOW + 1000)]
    assert main(["pipeline", "features", *arguments, "--view", "buyer", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["values"] == {"spent": 20.0, "carts": 3.0}
    assert main(["pipeline", "features", *arguments, "--view", "nobody"]) == 2
    assert "there is no view nobody" in capfd.readouterr().err
    assert main(["pipeline", "features", "--operators"]) == 0
    assert "time_weighted_mean" in capfd.readouterr().out


@each(
    ("definition", "message"),
    [
        (None, "expected a mapping with `features`"),
        ({"features": {}}, "expected a mapping with `features`"),
        ({"features": {"a": {}}, "other": 1}, "other: unknown key; expected one of features"),
        ({"features": {"a b": {"operator": "count"}}}, "expected a name of letters"),
        ({"features": {"a": 1}}, "a: expected a mapping"),
        ({"features": {"a": {"operator": "cuont"}}}, "did you mean count?"),
        ({"features": {"a": {"operator": "zzz"}}}, "--operators"),
        ({"features": {"a": {"operator": "quantile"}}}, "quantile needs one"),
        ({"features": {"a": {"operator": "count", "parameter": 1}}}, "count has none"),
        ({"features": {"a": {"operator": "above", "parameter": "x"}}}, "expected a number"),
        ({"features": {"a": {"operator": "above", "parameter": 10**400}}}, "that a float can hold"),
        ({"features": {"a": {"operator": "count", "window": "7 days"}}}, "expected a time such as"),
        ({"features": {"a": {"operator": "count", "window": 0}}}, "up to 400 days"),
        ({"features": {"a": {"operator": "count", "window": "401 d"}}}, "up to 400 days"),
        ({"features": {"a": {"operator": "count", "by": "day"}}}, "by: expected one of key, visit, page"),
        ({"features": {"a": {"operator": "count", "source": []}}}, "source: expected"),
        ({"features": {"a": {"operator": "count", "field": 5}}}, "field: expected a text"),
        ({"features": {"a": {"operator": "count", "colour": 5}}}, "features.a.colour: unknown key; expected one of"),
        ({"features": {"a": {"ratio": ["b", "a"]}}}, "b: there is no such feature"),
        ({"features": {"a": {"ratio": ["a", "a"]}}}, "a -> a: a circle"),
        ({"features": {"a": {"ratio": "a"}}}, "expected the names of two features"),
        ({"features": {"a": {"operator": "count"}}, "views": {"v": ["b"]}}, "views.v: b: there is no such"),
        ({"features": {"a": {"operator": "count"}}, "views": {"v": []}}, "expected a list of names"),
    ],
)
def test_definitions_that_are_wrong_are_told(definition, message):
    with pytest.raises(vmhost.ConfigurationError) as error:
        FeatureSet.of(definition)
    assert message in str(error.value)


def test_what_cannot_be_used_is_told(tmp_path):
    wrong = {"operator": "count", "where": {"field": "x", "op": "~", "value": 1}}
    with pytest.raises(vmhost.ConfigurationError, match="where: "):
        Features(FeatureSet.of({"features": {"a": wrong}}))
    mixed = FeatureSet.of({"features": {"a": {"operator": "count"}, "b": {"operator": "count", "by": "page"}}})
    with pytest.raises(vmhost.ConfigurationError, match="features by key and page; make one for each"):
        Features(mixed).read("*", "k", NOW)
    with pytest.raises(KeyError):
        Features(mixed).read("nobody", "k", NOW)
    (tmp_path / "f.yaml").write_text("features:\n  a: {by: day}\n  b:\n    operator: cuont\n")
    with pytest.raises(
        vmhost.ConfigurationError, match=r"f\.yaml:2: features\.a\.by: expected one of key, visit, page"
    ):
        read_feature_file(tmp_path / "f.yaml")
    for text in ("", "[", "\x00", "features: 1"):
        (tmp_path / "f.yaml").write_text(text)
        with pytest.raises(vmhost.ConfigurationError, match=r"f\.yaml"):
            read_feature_file(tmp_path / "f.yaml")
    with pytest.raises(vmhost.ConfigurationError, match="means two things"):
        FeatureSet.of(SAID).merged(FeatureSet.of({"features": {"carts": {"operator": "sum"}}}))


def test_a_feature_in_python_is_the_same_as_data():
    made = feature("cart", name="carts", operator="count", window="7 d")
    assert made.window_ms == 7 * 86_400_000 and math.isnan(made.default)
    assert made.stream == FeatureSet.of(SAID).features["carts"].stream
