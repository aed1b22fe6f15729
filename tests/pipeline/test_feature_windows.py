"""Windows of features, values as of the last event, sketches, and own operators: functions, and tasks in VMs."""

import math
import random
import statistics
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost
from tests.hosts import bundle
from tests.pipeline.stream_tasks import open_pipeline
from tests.pipeline.test_features_of_events import NOW, clock, events, stored
from vmhost.pipeline import Event, Pipeline, PipelineError
from vmhost.pipeline.features import OPERATORS, Features, FeatureSet, feature

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def fed(definitions, sample, **options):
    features = Features(FeatureSet.of({"features": definitions}), **options)
    features.feed(stored(sample))
    return features


def at(*times_ms):
    return [Event("a", time_ms, key="k", contents={"n": number}) for number, time_ms in enumerate(times_ms)]


def test_tumbling_windows_are_those_of_the_calendar():
    definitions = {
        "today": {"operator": "count", "window": {"tumbling": "1 d"}},
        "yesterday": {"operator": "count", "window": {"previous": "1 d"}},
        "this_week": {"operator": "count", "window": {"tumbling": "7 d"}},
        "last_week": {"operator": "count", "window": {"previous": "7 d"}},
        "this_hour": {"operator": "count", "window": {"tumbling": "1 h"}},
    }
    midnight = NOW - 8 * HOUR  # of a Friday
    monday = midnight - 4 * DAY
    assert datetime.fromtimestamp(monday / 1000, UTC).strftime("%a %H:%M") == "Mon 00:00"
    sample = at(monday - 7 * DAY - 1, monday - 1, monday, midnight - DAY, midnight - 1, midnight, NOW - 1, NOW)
    features = fed(definitions, sample)
    assert list(features.read("*", "k", NOW)) == [3, 2, 6, 1, 1]
    assert list(features.read("*", "k", midnight + DAY)) == [0, 3, 6, 1, 0]
    assert list(features.read("*", "k", monday + 7 * DAY)) == [0, 0, 0, 6, 0]
    shifted = Features(FeatureSet.of({"features": definitions, "utc_offset": "-8 h"}))  # NOW is midnight there
    shifted.feed(stored(sample))
    assert list(shifted.read("*", "k", NOW))[:2] == [1, 3]


def test_a_session_is_over_after_its_pause():
    definitions = {
        "events": {"operator": "count", "window": {"session": "30 min"}},
        "sum": {"operator": "sum", "field": "n", "window": {"session": "30 min", "most": "1 h"}},
    }
    sample = at(NOW - 200 * MINUTE, NOW - 100 * MINUTE, NOW - 75 * MINUTE, NOW - 50 * MINUTE, NOW - 25 * MINUTE, NOW)
    features = fed(definitions, sample)
    assert list(features.read("*", "k", NOW)) == [5, 3 + 4 + 5]
    assert list(features.read("*", "k", NOW + 30 * MINUTE - 1)) == [5, 4 + 5]
    assert list(features.read("*", "k", NOW + 30 * MINUTE)) == [0, 0]
    assert list(fed(definitions, sample[:1]).read("*", "k", NOW - 180 * MINUTE)) == [1, 0]


def test_what_is_as_of_the_last_event_stays_until_the_next():
    asked = []

    @feature("a", field="n", window="1 h", when="write")
    def spread(window):
        asked.append(window.at_ms)
        return max(window.values) - min(window.values)

    ages = {"operator": "age", "window": "1 h"}
    declared = FeatureSet.of({"features": {"now": ages, "then": ages | {"when": "write"}}})
    features = Features(declared.merged(FeatureSet.of_features([spread])))
    features.feed(stored(at(NOW - 10 * MINUTE, NOW - 5 * MINUTE, NOW)))
    assert list(features.read("*", "k", NOW)) == [600, 600, 2]
    assert list(features.read("*", "k", NOW + 20 * MINUTE)) == [1800, 600, 2]
    assert list(features.read("*", "k", NOW + 2 * HOUR))[1:] == [600, 2]
    assert asked == [NOW], "once an event"
    features.feed(stored([Event("a", NOW - MINUTE, key="k", contents={"n": 50})], 9))  # it came late
    assert list(features.read("*", "k", NOW + HOUR))[1:] == [600, 50]
    assert list(features.read("*", "nobody", NOW))[0] != 0  # NaN: of nothing
    stale = fed({"then": ages | {"when": "write", "fresh": "1 h", "default": -1}}, at(NOW))
    assert [*stale.read("*", "k", NOW + HOUR), *stale.read("*", "k", NOW + HOUR + 1)] == [0, -1]


SHAPES = (
    "5 h",
    {"tumbling": "3 h"},
    {"previous": "1 d"},
    {"session": "20 min", "most": "2 h"},
)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 9))
def test_streams_give_what_batches_give_in_every_window(seed, number, at_once):
    random_ = random.Random(seed)
    names = ("count", "sum", "median", "distinct", "age", "trend", "correlation", "co_occurrence")
    names += tuple(name for name, operator in OPERATORS.items() if operator.of_sketch)
    definitions = {}
    for name in names:
        for place, window in enumerate(SHAPES):
            for when in ("read", "write"):
                one = {"operator": name, "field": "price", "window": window, "when": when}
                one |= {"parameter": 0.5} if OPERATORS[name].parameter else {}
                one |= {"other": "items"} if OPERATORS[name].other else {}
                if place == 0 or not OPERATORS[name].of_sketch:
                    definitions[f"{name}_{place}_{when}"] = one
    sample = events(random_, number)
    late = sorted(sample, key=lambda event: event.time_ms + random_.randrange(7_200_000))
    declared = FeatureSet.of({"features": definitions, "utc_offset": "5 h"})
    streamed, read_ms = Features(declared), 0
    for place in range(0, number, at_once):
        streamed.feed(stored(late[place : place + at_once], place + 1))
        latest = max(event.time_ms for event in late[: place + at_once])
        read_ms = max(read_ms, latest + random_.randrange(3_600_000))
        whole = Features(declared)
        whole.feed(stored(sorted(late[: place + at_once], key=lambda event: event.time_ms)))
        expected = dict(zip(definitions, map(str, whole.read("*", "ann", read_ms)), strict=True))
        assert dict(zip(definitions, map(str, streamed.read("*", "ann", read_ms)), strict=True)) == expected


# ---- sketches


RANKS = (0, 0.01, 0.5, 0.9, 0.999, 1)


def test_sketches_keep_their_error_in_bounded_room():
    definitions = {
        "count": {"operator": "approximate_count", "window": "1 d"},
        "distinct": {"operator": "approximate_distinct", "field": "n", "window": "1 d"},
        **{
            f"quantile_{place}": {"operator": "approximate_quantile", "parameter": q, "field": "n", "window": "1 d"}
            for place, q in enumerate(RANKS)
        },
    }
    random_ = random.Random(1)
    for scale, name in ((lambda: random_.lognormvariate(3, 1), "prices"), (lambda: random_.randrange(300), "few")):
        features = Features(FeatureSet.of({"features": definitions}), max_events=100)
        sizes, values = [], []
        for begin in range(0, 60_000, 20_000):
            sample = [Event("a", NOW - DAY + 1 + begin + n, key="k", contents={"n": scale()}) for n in range(20_000)]
            values += [event.contents["n"] for event in sample]
            features.feed(stored(sample, begin + 1))
            sizes.append(features.statistics()["bytes"])
        found = dict(zip(definitions, features.read("*", "k", NOW), strict=True))
        assert found["count"] == 60_000
        assert found["distinct"] == pytest.approx(len(set(values)), rel=0.1 if name == "prices" else 0.05)
        ordered = sorted(values)
        for place, q in enumerate(RANKS):
            assert found[f"quantile_{place}"] == pytest.approx(ordered[int(q * 59_999)], rel=0.0101, abs=1e-300), q
        assert sizes[2] == sizes[1] < 300_000, "they do not grow"
        assert features.statistics()["dropped"] == 0
        assert list(features.read("*", "k", NOW + 2 * DAY))[:2] == [0, 0]


def test_a_sketch_of_values_far_apart_puts_the_lowest_together():
    definitions = {
        f"q{place}": {"operator": "approximate_quantile", "parameter": q, "field": "n", "window": "1 d"}
        for place, q in enumerate((0, 0.5, 0.75, 1))
    }
    values = [*(10.0**power for power in range(-300, 300)), 0, -1e300, -0.0, 1e308, 5e-324, -5e-324]
    values = [value for value in values for _ in range(2)]
    found = []
    for order in (values, values[::-1], random.Random(3).sample(values, len(values))):
        features = fed(definitions, [Event("a", NOW - 1, key="k", contents={"n": value}) for value in order])
        found.append(list(features.read("*", "k", NOW)))
    assert found[0] == found[1] == found[2], "whatever the order"
    ordered = sorted(values)
    assert found[0][1:] == [pytest.approx(ordered[int(q * (len(values) - 1))], rel=0.0101) for q in (0.5, 0.75, 1)]
    few = fed(definitions, [Event("a", NOW - 1, key="k", contents={"n": value}) for value in (-4.0, 0, 9, math.inf)])
    assert list(few.read("*", "k", NOW)) == pytest.approx([-4, 0, 9, math.inf], rel=0.0101)


# ---- own operators


def test_an_own_function_sees_its_window_and_what_fails_has_no_answer(caplog):
    seen = []

    @feature("a", field="n", other="m", window="1 h", parameter=7, default=-1)
    def last(window):
        seen.append(window)
        return window.values[-1]

    doubled = feature(total=["last", "last"], name="doubled")
    features = Features(FeatureSet.of_features([last, doubled], views={"both": ["doubled", "last"]}))
    sample = [Event("a", NOW - n, key="k", contents={"n": n, "m": 2 * n}) for n in (9, 5, 1)]
    features.feed(stored(sample))
    assert list(features.read("both", "k", NOW)) == [2, 1]
    assert [*seen[0].times_ms] == [NOW - 9, NOW - 5, NOW - 1] and [*seen[0].others] == [18, 10, 2]
    assert (seen[0].at_ms, seen[0].parameter) == (NOW, 7)
    assert list(features.read("both", "nobody", NOW)) == [-2, -1]
    assert features.statistics()["failed"] == 1 and "last: IndexError" in caplog.text
    for wrong in ("text", None, object(), 10**400):
        odd = feature("a", name="odd", default=3)(lambda _, wrong=wrong: wrong)
        features = Features(FeatureSet.of_features([odd]))
        assert list(features.read("*", "k", NOW)) == [3], wrong
    exits = feature("a", name="exits", default=3)(lambda _: sys.exit(3))
    features = Features(FeatureSet.of_features([exits]))
    assert list(features.read("*", "k", NOW)) == [3] and features.statistics()["failed"] == 1

    async def later(window):
        return 1.0

    with pytest.raises(vmhost.ConfigurationError, match="expected a function that is not async"):
        feature("a")(later)


OWN = """
import vmhost.engine.numpy as np

def run(window):
    values = np.asarray(window["values"])
    if values.shape[0] == 3:
        raise ValueError("three")
    return float(values.sum()) * window["parameter"]

def span(window):
    times = np.asarray(window["times_ms"])
    return float(times[-1] - times[0])
"""


def test_a_task_computes_a_feature_in_a_vm(tmp_path):
    definitions = {
        "features": {
            "own": {"source": "a", "field": "n", "task": "own", "parameter": 10, "window": "1 h", "default": -5},
            "span": {"source": "a", "task": "own", "entry": "main:span", "window": "1 h", "when": "write"},
            "count": {"source": "a", "operator": "count", "window": "1 h"},
            "each": {"ratio": ["own", "count"]},
        }
    }
    own = bundle(OWN, name="own")
    with Pipeline(tmp_path, [own], features=[definitions], allow_unsigned=True, clock=clock) as pipeline:
        pipeline.append_many([Event("a", NOW + n, key="k", contents={"n": n}) for n in (1, 4)])
        assert list(pipeline.features.read("*", "k", NOW + 100)) == [50, 3, 2, 25]
        pipeline.append_many([Event("a", NOW + 9, key="k", contents={"n": 9})])
        assert list(pipeline.features.read("*", "k", NOW + 100)) == [-5, 8, 3, -5 / 3]
        assert pipeline.statistics()["features"]["failed"] == 1
    with pytest.raises(PipelineError, match="there is no bundle of a task own, which computes one"):
        open_pipeline(tmp_path / "other", features=[definitions], clock=clock)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"operator": "count", "window": {"hourly": 1}}, "or one of {tumbling: 1 d}"),
        ({"operator": "count", "window": {"tumbling": "1 d", "most": "1 d"}}, "or one of"),
        ({"operator": "count", "window": {"tumbling": "1 d", "session": "1 d"}}, "or one of"),
        ({"operator": "count", "window": {"session": "30 min", "most": "500 d"}}, "up to 400 days"),
        ({"operator": "count", "window": {"session": {}}}, "expected a time such as"),
        ({"operator": "approximate_count", "window": {"tumbling": "1 d"}}, "has a sliding one only"),
        ({"operator": "count", "when": "never"}, "when: expected read or write"),
        ({"operator": "correlation", "field": "n"}, "other: correlation needs one"),
        ({"operator": "sum", "field": "n", "other": "m"}, "other: sum has none"),
        ({"operator": "sum", "task": "t"}, "operator: a task computes it"),
        ({"operator": "sum", "entry": "t"}, "entry: it goes with a task"),
        ({"operator": [], "field": "n"}, "operator: expected the name of an operator"),
        ({"task": 5}, "task: expected a text"),
    ],
)
def test_windows_and_operators_that_are_wrong_are_told(definition, message):
    with pytest.raises(vmhost.ConfigurationError) as error:
        FeatureSet.of({"features": {"a": definition}})
    assert message in str(error.value)


def test_features_that_are_none_are_told():
    for made in ([1], [feature("a", name="x", operator="count"), feature("b", name="x", operator="count")]):
        with pytest.raises(vmhost.ConfigurationError):
            FeatureSet.of_features(made)
    with pytest.raises(vmhost.ConfigurationError, match="expected a function"):
        feature("a")(3)


def test_the_exact_median_and_its_sketch_agree():
    random_ = random.Random(5)
    values = [random_.uniform(1, 1000) for _ in range(501)]
    definitions = {
        "exact": {"operator": "median", "field": "n"},
        "near": {"operator": "approximate_quantile", "parameter": 0.5, "field": "n"},
    }
    found = fed(definitions, [Event("a", NOW - 1, key="k", contents={"n": value}) for value in values]).read(
        "*", "k", NOW
    )
    assert found[0] == statistics.median(values) and found[1] == pytest.approx(found[0], rel=0.0101)
