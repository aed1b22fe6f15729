"""Item page views: every feature against the slow reference, encodings against a plain forward pass, recommendations
against what shoppers looked at next; the generator of the events; and events of a real browser, which
`make real-stream ARGS="--visits 12 --seed 4"` recorded into real_events.jsonl.gz."""

import collections
import gzip
import itertools
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmhost
from tasks.ipv import browser, reference, sessions
from tasks.training import ipv
from tasks.training.gradients import Value
from tasks.training.onnx_files import read_weights
from vmhost.compiler import compile_folder

TASKS = Path(__file__).resolve().parents[2] / "tasks"
ROUGH = sessions.Options(
    seed=3, visits=600, missing_exits=0.1, nested=0.3, bots=0.02, duplicates=0.1, late=0.05, clock_jumps=0.2
)


def item_visits(log):
    """The item visits of a log, as the pipeline calls the task with: events that are seen again left out."""
    visits, known = {}, set()
    for event in log:
        if event["page"] == "item" and event["id"] not in known:
            known.add(event["id"])
            visits.setdefault(event["visit"], []).append(event)
    return visits


def call(events):
    """The value of the call that the last of a visit's events triggers."""
    last = events[-1]
    return {name: last[name] for name in ("key", "page", "visit", "time_ms")} | {"position": 1, "events": events}


@pytest.fixture(scope="module")
def host():
    """A host, the rows that its function `table_rows` gives, and what that was asked."""
    asked, rows = [], []

    def table_rows(value):
        asked.append(value)
        return rows[: value["limit"]]

    with vmhost.Host(allow_unsigned=True, functions={"table_rows": table_rows}) as host:
        yield host, rows, asked


def loaded(host, name):
    return host.load(compile_folder(TASKS / name, strict=True).to_bytes())


# ---- features


def test_no_feature_of_a_rough_stream_differs_from_the_reference():
    log = list(sessions.events(ROUGH))
    wanted, visits = reference.features(log), item_visits(log)
    assert len(wanted) == len(visits) >= 600
    wrong = [visit for visit, events in visits.items() if ipv.features.feature(events) != wanted[visit]]
    assert wrong == []
    # The stream has the cases that could differ.
    assert {"favourite", "cart", "order"} <= {name for one in wanted.values() for name in one["events"]}
    assert any(not one["complete"] for one in wanted.values())
    assert any(one["exposures"]["clicked"] for one in wanted.values())
    assert any(one["scroll"]["turns"] > 1 for one in wanted.values())
    assert any(one["active_ms"] < one["dwell_ms"] for one in wanted.values())


ITEM = {"id": "item-1", "category": "lamp", "brand": "b", "shop": "s", "price_cents": 5}
NAMES = ("page_enter", "page_scroll", "exposure", "click", "page_exit", "favourite", "cart", "order", "other")
CONTENTS = st.one_of(
    st.none(),
    st.integers(),
    st.fixed_dictionaries(
        {},
        optional={
            "item": st.sampled_from([ITEM, {"id": "item-2"}]),
            "from": st.sampled_from(["home", "item"]),
            "offset_px": st.integers(0, 900),
            "viewport_px": st.integers(0, 300),
            "height_px": st.sampled_from([0, 1000]),
            "area": st.sampled_from(["recommended", "same_shop", "elsewhere"]),
            "shown": st.sampled_from(["a", "b", None]),
            "slot": st.integers(0, 3),
            "visible_ms": st.integers(0, 100),
            "target": st.sampled_from(["item", "cart", "elsewhere"]),
            "on": st.booleans(),
            "pieces": st.integers(-2, 3),
            "amount_cents": st.integers(0, 50),
            "variant": st.sampled_from("SM"),
            "closed_by": st.just("timeout"),
        },
    ),
)
EVENT = st.builds(
    lambda name, time, contents: {"name": name, "time_ms": time, "page": "item", "visit": "v", "contents": contents},
    st.sampled_from(NAMES),
    st.integers(1_000_000, 1_100_000) | st.integers(1_000_000, 1_000_003),
    CONTENTS.map(
        lambda one: {"offset_px": 0, "viewport_px": 0, **one} if isinstance(one, dict) and one.get("height_px") else one
    ),
)


@given(st.lists(EVENT, min_size=1, max_size=25))
def test_features_of_any_events_are_those_of_the_reference(events):
    wanted = reference.features(events)
    assert ipv.features.feature(events) == wanted.get("v")
    if wanted:
        assert len(ipv.encoder.numbers(wanted["v"])) == ipv.encoder.WIDTH


def test_a_visit_without_an_item_has_no_feature():
    events = [{"name": "page_enter", "time_ms": 1, "contents": None}, {"name": "click", "time_ms": 2, "contents": {}}]
    assert ipv.features.feature(events) is None
    assert ipv.features.feature([{**events[0], "contents": {"item": {"id": 5}}}]) is None


def test_an_exit_that_the_pipeline_made_changes_nothing():
    events = [{"name": "page_enter", "time_ms": 1, "contents": {"item": ITEM}}]
    closed = {"name": "page_exit", "time_ms": 1, "contents": {"closed_by": "timeout"}}
    assert ipv.features.feature([*events, closed]) == ipv.features.feature(events)
    assert not ipv.features.feature([*events, closed])["complete"]
    assert ipv.features.feature([*events, {**closed, "contents": {}}])["complete"]


def test_a_visit_becomes_a_feature_of_the_size_that_the_page_says():
    log = list(sessions.events(sessions.Options(visits=1000, bots=0.0)))
    visits = item_visits(log)
    raw = sum(len(json.dumps(event, separators=(",", ":"))) for events in visits.values() for event in events)
    made = sum(len(json.dumps(ipv.features.feature(events), separators=(",", ":"))) for events in visits.values())
    count = sum(map(len, visits.values()))
    page = (TASKS / "ipv/README.md").read_text()
    for figure in (round(count / len(visits)), round(raw / len(visits), -3), round(made / len(visits), -2)):
        assert f" {figure:,.0f} |" in page


# ---- the tasks in VMs


def test_rows_have_the_columns_of_their_tables(host):
    host, rows, _ = host
    encode, recommend = loaded(host, "ipv"), loaded(host, "ipv_recommend")
    events = next(iter(item_visits(sessions.events(sessions.Options(visits=5, **sessions.CLEAN))).values()))
    rows[:] = [encode(call(events))]
    wanted = {"key": events[0]["key"], "visit": "v", "events": []}
    for task, row in ((encode, rows[0]), (recommend, recommend(wanted))):
        assert list(row) == list(task.table.columns), task.name
    assert recommend.trigger.events == "none", "it reads what is stored"


def test_rows_of_visits_in_a_vm(host):
    task = loaded(host[0], "ipv")
    log = list(sessions.events(ROUGH))
    wanted, visits = reference.features(log), dict(itertools.islice(item_visits(log).items(), 100))
    rows = list(task.map([call(events) for events in visits.values()]))
    assert {row["visit"]: row["feature"] for row in rows} == {visit: wanted[visit] for visit in visits}
    weights, _ = read_weights((TASKS / ipv.FILE).read_bytes())
    figures = numpy.asarray([ipv.encoder.numbers(row["feature"]) for row in rows], "float32")
    places = numpy.asarray([ipv.encoder.places(row["feature"]["item"]) for row in rows])
    plain = ipv.encodings({name: Value(array) for name, array in weights.items()}, weights, figures, places).data
    assert {len(row["encoding"]) for row in rows} == {128}
    ours = numpy.asarray([numpy.frombuffer(row["encoding"], "float32") for row in rows])
    assert numpy.abs(ours - plain).max() <= 1e-4 * numpy.abs(plain).max()
    for row, events in zip(rows, visits.values(), strict=True):
        assert (row["shopper"], row["item"]) == (events[0]["key"], row["feature"]["item"]["id"])
        assert row["dwell_ms"] == row["feature"]["dwell_ms"]
    assert task(call([{**events[0], "contents": None}])) is None


def test_recommendations_are_what_shoppers_look_at_next(host):
    encode, recommend = loaded(host[0], "ipv"), loaded(host[0], "ipv_recommend")
    log = sessions.events(sessions.Options(seed=77, visits=1500, **sessions.CLEAN))
    of_shopper = collections.defaultdict(list)
    for row in encode.map([call(events) for events in item_visits(log).values()]):
        of_shopper[row["shopper"]].insert(0, row)
    asked = [
        (rows[number]["item"], {"key": key, "rows": rows[number + 1 : number + 21]})
        for key, rows in of_shopper.items()
        for number in range(len(rows) - 5)
    ]
    answers = recommend.map([value for _, value in asked])
    right = sum(item in answer["items"] for (item, _), answer in zip(asked, answers, strict=True)) / len(asked)
    best = sorted(sessions.catalogue(), key=lambda item: -item["sales"])[:10]
    by_sales = sum(item in [one["id"] for one in best] for item, _ in asked) / len(asked)
    print(f"{len(asked)} visits of shoppers never seen: {right:.3f} among the ten recommended, by sales {by_sales:.3f}")
    assert right > 0.33 and right > by_sales + 0.2


def test_recommendations_read_stored_rows_and_leave_out_what_was_ordered(host):
    host, rows, asked = host
    encode, recommend = loaded(host, "ipv"), loaded(host, "ipv_recommend")
    visits = item_visits(sessions.events(sessions.Options(seed=5, visits=60, **sessions.CLEAN)))
    rows[:] = encode.map([call(events) for events in visits.values()])
    value = call(next(iter(visits.values())))
    found = recommend(value)
    assert asked[-1] == {"table": "ipv", "key": value["key"], "limit": 20}
    assert (found["shopper"], found["visit"], found["visits"]) == (value["key"], value["visit"], 20)
    assert len(found["items"]) == len(set(found["items"])) == 10
    assert found["scores"] == sorted(found["scores"], reverse=True)
    bought = {**rows[0], "item": found["items"][0], "feature": {"order": {"pieces": 1}}}
    rows.insert(1, bought)
    rows[1]["encoding"] = rows[0]["encoding"]
    assert found["items"][0] not in recommend(value)["items"]
    rows.clear()
    assert recommend(value)["visits"] == 0 and len(recommend(value)["items"]) == 10


# ---- the real stream


def test_no_feature_of_a_real_stream_differs_from_the_reference(host):
    with gzip.open(Path(__file__).with_name("real_events.jsonl.gz"), "rt", encoding="utf-8") as file:
        log = [json.loads(line) for line in file]
    wanted, visits = reference.features(log), item_visits(log)
    rows = loaded(host[0], "ipv").map([call(events) for events in visits.values()])
    assert {row["visit"]: row["feature"] for row in rows} == wanted and len(wanted) == 12
    assert all(one["complete"] and one["dwell_ms"] > 0 for one in wanted.values())
    assert sum(one["exposures"]["clicked"] for one in wanted.values()) > 2
    assert {"favourite", "cart", "order"} <= {name for one in wanted.values() for name in one["events"]}


def test_the_shop_that_the_browser_walks_through_keeps_what_pages_send():
    with browser.Shop(seed=2, visits=5) as shop:
        serving = threading.Thread(target=shop.serve_forever)
        serving.start()
        try:

            def ask(path, body=None):
                with urllib.request.urlopen(shop.address + path, body, timeout=30) as answer:
                    return answer.read().decode()

            assert '"page": "item", "seed": 2, "visits": 5' in ask("/item/item-0007") and "PAGE." in ask("/shop.js")
            for path in ("/item/item-9999", "/home/item-0007", "/else"):
                with pytest.raises(urllib.error.HTTPError, match="404") as caught:
                    ask(path)
                caught.value.close()
            ask("/done", b"3")  # it may overtake events
            assert not shop.done.is_set()
            ask("/events", b"1\n2\n")
            assert not shop.done.is_set()
            ask("/events", b"3\n")
            assert shop.done.is_set() and shop.lines == ["1", "2", "3"]
        finally:
            shop.shutdown()
            serving.join()


def test_a_browser_that_ends_says_why(tmp_path):
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended with status 3; its output: no display"):
        browser.record(str(program), visits=1, seed=1)


# ---- the generator


def test_the_same_options_make_the_same_stream_and_others_another():
    few = sessions.Options(visits=30)
    lines = [json.dumps(event) for event in sessions.events(few)]
    assert lines == [json.dumps(event) for event in sessions.events(few)]
    assert lines != [json.dumps(event) for event in sessions.events(sessions.Options(seed=2, visits=30))]


def test_a_clean_stream_has_nothing_wrong_in_it():
    log = list(sessions.events(sessions.Options(visits=300, **sessions.CLEAN)))
    assert len({event["id"] for event in log}) == len(log)
    times = collections.defaultdict(list)
    for event in log:
        times[event["key"], event["id"].partition("/")[0]].append(event["time_ms"])
    assert all(one == sorted(one) for one in times.values())
    entered, left = (
        collections.Counter(event["visit"] for event in log if event["name"] == name)
        for name in ("page_enter", "page_exit")
    )
    assert entered == left and set(entered.values()) == {1}


def test_what_goes_wrong_does_so_as_often_as_the_options_say():
    log = list(sessions.events(ROUGH))
    ids = collections.Counter(event["id"] for event in log)
    assert 0.08 < 1 - len(ids) / len(log) < 0.11  # a tenth as many come twice
    visits = item_visits(log)
    people = {visit: events for visit, events in visits.items() if not events[0]["key"].startswith("bot-")}
    assert 0 < len(visits) - len(people) < len(visits) / 2
    unfinished = sum(all(event["name"] != "page_exit" for event in events) for events in people.values())
    assert 0.06 < unfinished / len(people) < 0.14
    nested = sum(events[0]["contents"].get("from") == "item" for events in people.values())
    assert 0.1 < nested / len(people) < 0.3
    arrived = collections.defaultdict(list)
    for event in log:
        arrived[event["id"].partition("/")[0]].append(event["time_ms"])
    assert sum(one != sorted(one) for one in arrived.values()) > len(arrived) / 10
