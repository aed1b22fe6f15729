"""Streams of events against a plain reference that looks at all events at once: windows, joins, snapshots; the same in
a VM."""

import json
import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmhost
import vmhost.engine.numpy as engine_numpy
from vmhost.bytecode.compiler import compile_sources
from vmhost.guest.stream import Columns, Filter, Join, KeyBy, Map, Reduce, Stream, StreamError, TimeWindow
from vmhost.pipeline.events import Event, StoredEvent

# ---- the reference


def taken(arrivals, lateness):
    """The events that are not older than the watermark when they come, by time, ties as they came; and the watermark
    at the end."""
    kept, watermark = [], -math.inf
    for event in arrivals:
        if event["time_ms"] >= watermark:
            kept.append(event)
        watermark = max(watermark, event["time_ms"] - lateness)
    return sorted(kept, key=lambda event: event["time_ms"]), watermark


def spans(window, times):
    """All windows, pairs [start, end), that hold some of `times`, which are in order."""
    if window.kind == "session":
        starts = [time for before, time in zip([-math.inf, *times], times) if time - before >= window.size_ms]
        lasts = [time for time, after in zip(times, [*times[1:], math.inf]) if after - time >= window.size_ms]
        return [(start, last + window.size_ms) for start, last in zip(starts, lasts, strict=True)]
    first = min(times) - window.size_ms - window.every_ms
    begins = [start for start in range(first, max(times) + 1) if (start - window.offset_ms) % window.every_ms == 0]
    held = [(start, start + window.size_ms) for start in begins]
    return [(start, end) for start, end in held if any(start <= time < end for time in times)]


def windows_of(kept, window, key, until=math.inf):
    """The results of all windows that end by `until`; of each the values' numbers."""
    results = []
    for one in {key(event) for event in kept}:
        events = [event for event in kept if key(event) == one]
        for start, end in spans(window, [event["time_ms"] for event in events]):
            numbers = [event["n"] for event in events if start <= event["time_ms"] < end]
            if end <= until:
                about = {"key": one, "start_ms": start, "end_ms": end, "count": len(numbers)}
                results.append({**about, "value": numbers})
    return results


def by_span(results):
    return sorted(results, key=lambda result: (result["end_ms"], result["start_ms"], str(result["key"])))


def in_order(results):
    ends = [(result["end_ms"], result["start_ms"]) for result in results]
    return ends == sorted(ends)


# ---- streams that are tried

DURATIONS = st.integers(1, 12)
WINDOWS = st.one_of(
    st.builds(TimeWindow.tumbling, DURATIONS, st.integers(-9, 9)),
    st.builds(TimeWindow.sliding, DURATIONS, DURATIONS, st.integers(0, 9)),
    st.builds(TimeWindow.session, DURATIONS),
)


@st.composite
def arrivals(draw, max_size=40, lateness=None):
    """Events as they come: out of order at will, or by at most `lateness`."""
    times = draw(st.lists(st.integers(-20, 60), max_size=max_size))
    if lateness is not None:
        delays = draw(st.lists(st.integers(0, lateness), min_size=len(times), max_size=len(times)))
        times = [time for _, time in sorted(zip(map(sum, zip(times, delays)), times), key=lambda pair: pair[0])]
    keys = draw(st.lists(st.sampled_from("ab"), min_size=len(times), max_size=len(times)))
    return [
        {"time_ms": time, "about": {"item": key}, "n": number, "position": number + 5}
        for number, (time, key) in enumerate(zip(times, keys))
    ]


def gathered(stream, window):
    return stream.key_by("about.item").window(window).reduce(lambda numbers, event: [*numbers, event["n"]], [])


def item(event):
    return event["about"]["item"]


@given(arrivals(), WINDOWS, st.integers(0, 15))
def test_windows_are_those_of_the_reference(events, window, lateness):
    stream = gathered(Stream(events, lateness=lateness), window)
    kept, _ = taken(events, lateness)
    results = list(stream)
    assert in_order(results) and by_span(results) == by_span(windows_of(kept, window, item))
    held = {number for result in results for number in result["value"]}
    if window.kind == "session" or window.size_ms >= window.every_ms:
        assert held == {event["n"] for event in kept}
    assert stream.late == len(events) - len(kept)


@given(arrivals(), WINDOWS, st.integers(0, 15))
def test_windows_that_the_watermark_has_not_reached_wait(events, window, lateness):
    stream = gathered(Stream(events, lateness=lateness, ends=False), window)
    kept, watermark = taken(events, lateness)
    assert by_span(stream) == by_span(windows_of(kept, window, item, until=watermark))
    rest = windows_of(kept, window, item)
    late = max((result["end_ms"] for result in rest), default=0)
    assert by_span([*stream.advance(late)]) == by_span(result for result in rest if result["end_ms"] > watermark)
    assert stream.advance(late + 1000) == []


@given(arrivals(lateness=9), WINDOWS)
def test_the_order_of_arrival_does_not_matter_within_the_lateness(events, window):
    stream = gathered(Stream(events, lateness=9), window)
    by_time = sorted(events, key=lambda event: event["time_ms"])
    assert list(stream) == list(gathered(Stream(by_time, lateness=9), window))
    assert stream.late == 0


@given(arrivals(lateness=6), arrivals(lateness=6), WINDOWS)
def test_joins_are_those_of_the_reference(lefts, rights, window):
    left, right = (Stream(events, lateness=6).key_by("about.item") for events in (lefts, rights))
    stream = left.join(right, window, lambda one, other: (one["n"], other["n"]))
    kept = sorted(
        [{**event, "side": side} for side, events in enumerate((lefts, rights)) for event in events],
        key=lambda event: event["time_ms"],
    )
    wanted = []
    for key in "ab":
        events = [event for event in kept if item(event) == key]
        for start, end in spans(window, [event["time_ms"] for event in events]) if events else ():
            inside = [event for event in events if start <= event["time_ms"] < end]
            wanted += [
                {"key": key, "start_ms": start, "end_ms": end, "value": (one["n"], other["n"])}
                for one in inside
                for other in inside
                if (one["side"], other["side"]) == (0, 1)
            ]
    results = list(stream)
    assert in_order(results)
    assert sorted(map(str, results)) == sorted(map(str, wanted))
    assert stream.late == 0


def several_stages(events, lateness, window, ends):
    """Windows, a reduction of their results, and windows of these."""
    stream = Stream(events, lateness=lateness, ends=ends).filter(lambda event: event["n"] % 5)
    counted = stream.key_by("about.item", lambda event: event["n"] % 2).window(window).reduce(Reduce.count())
    total = counted.key_by(lambda result: result["key"][0]).reduce(Reduce.total("value"))
    return total.window(TimeWindow.session(5)).map(lambda result: {**result, "value": len(result["value"])})


def joined(events, lateness, window, ends):
    left, right = (
        Stream(events, lateness=lateness, ends=ends)
        .filter(lambda event, side=side: event["n"] % 2 == side)
        .key_by("about.item")
        for side in (0, 1)
    )
    pairs = left.join(right, window, lambda one, other: [one["n"], other["n"]])
    return pairs.key_by("key").window(TimeWindow.tumbling(7))


@pytest.mark.parametrize("make", [several_stages, joined])
@given(
    events=arrivals(),
    window=WINDOWS,
    lateness=st.integers(0, 15),
    reads=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=5),
)
def test_streams_that_go_on_from_snapshots_give_what_one_gives(make, events, window, lateness, reads):
    """Each part begins somewhere before the snapshot, up to events that come later, and reads some of the results."""
    whole = make(events, lateness, window, ends=False)
    wanted = list(whole)
    found, state, length = [], None, 0
    for more, count in reads:
        length = min(length + more, len(events))
        stream = make(events[:length], lateness, window, ends=False).restore(state)
        found += [result for _, result in zip(range(count), stream)]
        state = json.loads(json.dumps(stream.snapshot()))
    stream = make(events, lateness, window, ends=False).restore(state)
    found += stream
    assert json.dumps(found) == json.dumps(wanted)
    assert stream.late == whole.late
    end = 10**6
    assert json.dumps(stream.advance(end)) == json.dumps(whole.advance(end))


# ---- what the page says


def timed(*times, **others):
    return [{"time_ms": time, **others} for time in times]


def spans_of(stream):
    return [(result["start_ms"], result["end_ms"], result["count"]) for result in stream]


def test_windows_are_half_open():
    minute = TimeWindow.tumbling("1 min")
    assert spans_of(Stream(timed(0, 59_999, 60_000)).window(minute)) == [(0, 60_000, 2), (60_000, 120_000, 1)]
    gap = TimeWindow.session("1 s")
    assert spans_of(Stream(timed(0, 999, 1998)).window(gap)) == [(0, 2998, 3)]
    assert spans_of(Stream(timed(0, 1000)).window(gap)) == [(0, 1000, 1), (1000, 2000, 1)]


def test_a_result_comes_with_the_event_that_brings_the_watermark_to_its_end():
    read = []
    events = (read.append(event) or event for event in timed(0, 9_999, 12_999, 13_000, 20_000))
    stream = Stream(events, lateness="3 s").window(TimeWindow.tumbling("10 s"))
    assert read == [] and next(stream)["count"] == 2
    assert read[-1]["time_ms"] == 13_000 and stream.watermark == 10_000


def test_an_event_that_is_too_late_is_counted():
    stream = Stream(timed(10_000, 7000, 6999), lateness="3 s").window(TimeWindow.tumbling("10 s"))
    assert spans_of(stream) == [(0, 10_000, 1), (10_000, 20_000, 1)] and stream.late == 1


def test_without_a_reduction_a_window_has_the_list_of_its_values():
    [result] = Stream(timed(1, 2)).map(lambda event: event["time_ms"]).window(TimeWindow.tumbling(10))
    assert result == {"key": None, "start_ms": 0, "end_ms": 10, "count": 2, "value": [1, 2]}


def test_without_a_window_a_reduction_tells_each_value():
    events = [{"time_ms": n, "key": "ab"[n % 2], "n": n} for n in range(4)]
    results = list(Stream(events).key_by("key").reduce(lambda seen, event: [*seen, event["n"]], []))
    assert [(result["key"], result["count"], result["value"]) for result in results] == [
        ("a", 1, [0]),
        ("b", 1, [1]),
        ("a", 2, [0, 2]),
        ("b", 2, [1, 3]),
    ]


def test_results_that_were_made_and_not_read_come_from_the_next_stream():
    events = [{"time_ms": 1, "key": key, "position": n} for n, key in enumerate("abc")]
    first, second = (
        Stream(all_of_them, ends=False).key_by("key").window(TimeWindow.tumbling(10))
        for all_of_them in ([*events, {"time_ms": 50, "key": "a", "position": 3}], [])
    )
    assert next(first)["key"] == "a"
    assert [result["key"] for result in second.restore(first.snapshot())] == ["b", "c"]


def test_events_in_another_order_than_that_of_positions_are_all_taken_on_request():
    for positions, count in ((True, 2), (False, 4)):
        first, second = (
            Stream([{"time_ms": 1, "position": n} for n in numbers], ends=False, positions=positions)
            for numbers in ((2, 5), (3, 4))
        )
        first, second = (one.reduce(Reduce.count()) for one in (first, second))
        list(first)
        list(second.restore(first.snapshot()))
        assert second.snapshot()["stages"] == [[[None, count, count]]]


def test_windows_close_in_the_order_they_began_also_after_a_snapshot():
    events = [{"time_ms": n, "key": n * 7 % 16} for n in range(200)]

    def stream(events):
        return Stream(events, ends=False).key_by("key").window(TimeWindow.sliding(60, 20)).reduce(Reduce.count())

    first, whole = stream(events[:90]), stream(events)
    before = list(first)
    assert before + list(stream(events[90:]).restore(first.snapshot())) == list(whole)


def test_what_a_reduction_changes_in_place_is_its_own():
    def appended(seen, event):
        seen.append(event["time_ms"])
        return seen

    results = list(Stream(timed(1, 2, 3)).reduce(appended, []))
    assert [one["value"] for one in results] == [[1], [1, 2], [1, 2, 3]]
    first = Stream(timed(1, 2), ends=False).window(TimeWindow.tumbling(10)).reduce(appended, [])
    assert list(first) == []
    state = first.snapshot()
    text = json.dumps(state)
    for _ in range(2):
        again = Stream(timed(3, 20), ends=False).window(TimeWindow.tumbling(10)).reduce(appended, []).restore(state)
        assert next(again)["value"] == [1, 2, 3]
    assert json.dumps(state) == text


@pytest.mark.parametrize(
    ("reduce", "value"),
    [
        (Reduce.count(), 4),
        (Reduce.total("a.b"), 9),
        (Reduce.least("a.b"), 2),
        (Reduce.most("a.b"), 4),
        (Reduce.mean("a.b"), 3.0),
        (Reduce.mean("nothing"), None),
        (Reduce(lambda found, event: found | {event["n"]}, set(), finish=len), 4),
    ],
)
def test_reductions_that_come_along(reduce, value):
    events = [{"time_ms": n, "n": n, "a": {"b": number}} for n, number in enumerate((3, 2, None, 4))]
    [result] = Stream(events).then(TimeWindow.tumbling(10), reduce)
    assert result["value"] == value


def test_operators_chain_as_methods_do():
    events = [{"time_ms": n, "key": "k", "n": n} for n in range(20)]
    window, other = TimeWindow.tumbling(5), Stream(events).key_by("key")
    with_methods = Stream(events).filter(lambda e: e["n"] % 3).map(lambda e: {**e, "n": -e["n"]}).key_by("key")
    operators = Filter(lambda e: e["n"] % 3), Map(lambda e: {**e, "n": -e["n"]}), KeyBy("key")
    chained = list(Stream(events).then(*operators, Join(other, window)))
    assert chained == list(with_methods.join(Stream(events).key_by("key"), window))
    assert len(chained) == 5 * (3 + 4 + 3 + 3) and chained[0]["value"] == [{**events[1], "n": -1}, events[0]]


def test_nothing_is_read_before_it_is_asked_for():
    def events():
        raise AssertionError("read")
        yield

    Stream(events()).filter(bool).window(TimeWindow.session(5)).reduce(Reduce.count())
    Columns(events()).filter(bool).map(dict).rows()


def test_events_of_the_pipeline_are_taken_as_they_are():
    events = [Event("click", 5, key="k", contents={"n": 1}), StoredEvent(7, Event("click", 6, key="k"))]
    [result] = Stream(events).key_by("key").window(TimeWindow.tumbling(10))
    about = {"name": "click", "page": "", "visit": "", "id": None, "key": "k"}
    assert result["value"] == [
        {**about, "time_ms": 5, "contents": {"n": 1}},
        {**about, "time_ms": 6, "contents": None, "position": 7},
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: list(Stream([{"name": "click"}])), "event 1 of the stream: expected a dict with time_ms, whole"),
        (lambda: list(Stream([5])), "got int"),
        (lambda: list(Stream([{"time_ms": 5.0}])), "got time_ms 5.0"),
        (lambda: Stream(lateness=-1), "lateness: expected 0 ms or more, got -1"),
        (lambda: TimeWindow.tumbling("5 minutes"), "expected a duration such as \"5 min\".*got '5 minutes'; units are"),
        (lambda: TimeWindow.tumbling("0 s"), "size of a window: expected more than 0 ms, got '0 s'"),
        (lambda: TimeWindow.session(True), "got True"),
        (lambda: Stream().window("1 min"), r"expected a window such as TimeWindow.tumbling\(\"1 min\"\), got '1 min'"),
        (lambda: Stream().join([], TimeWindow.session(1)), "join: expected a Stream and a TimeWindow, got list and"),
        (lambda: Stream().then(bool), "expected an operator such as Filter"),
        (lambda: Stream().key_by(), "expected what to key by"),
        (lambda: Stream().key_by(5), 'expected a path such as "contents.item" or a function, got 5'),
        (lambda: Stream().snapshot(), r"make it with Stream\(events, ends=False\)"),
        (lambda: Stream().restore({}), r"make it with Stream\(events, ends=False\)"),
        (lambda: list(Columns({"time_ms": [1, 2], "n": [1]}).rows()), "columns of one length, got time_ms 2, n 1"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(StreamError, match=message):
        make()


def test_a_snapshot_of_another_stream_is_refused():
    minute, hour = (Stream(timed(1), ends=False).window(TimeWindow.tumbling(size)) for size in ("1 min", "1 h"))
    with pytest.raises(
        StreamError, match="tumbling window of 60000 ms; expected one .* window of 3600000 ms; make the"
    ):
        hour.restore(minute.snapshot())
    with pytest.raises(StreamError, match="the snapshot is a list; expected one of format 1"):
        hour.restore([])
    list(minute)
    with pytest.raises(StreamError, match="restore it before its first result"):
        minute.restore(minute.snapshot())


# ---- columns, and VMs


@pytest.mark.parametrize("np", [numpy, engine_numpy], ids=["numpy", "engine"])
def test_columns_of_arrays_become_rows(np):
    batches = [{"time_ms": np.arange(5) + first, "dwell": np.arange(5) * 0.5} for first in (0, 5)]
    stream = Columns(batches).filter(lambda c: c["dwell"] > 0.5).map(lambda c: {**c, "double": c["dwell"] * 2}).rows()
    first, second = stream.window(TimeWindow.tumbling(8)).reduce(Reduce.total("double"))
    assert (first["count"], first["value"], second["count"], second["value"]) == (4, 2.0 + 3.0 + 4.0 + 2.0, 2, 7.0)
    rows = list(Columns({**batches[1], "name": list("abcde")}).rows())
    assert rows[3] == {"time_ms": 8, "dwell": 1.5, "name": "d"} and type(rows[3]["time_ms"]) is int


SOURCE = """
import vmhost.engine.numpy as np
from vmhost.guest.stream import Columns, Reduce, Stream, TimeWindow


def run(value):
    stream = (
        Stream(value["events"], lateness=3, ends=False)
        .filter(lambda event: event["n"] % 7)
        .key_by("about.item")
        .window(TimeWindow.sliding(8, 3))
        .reduce(lambda numbers, event: [*numbers, event["n"]], [])
        .restore(value["state"])
    )
    rows = list(stream)
    dwell = {"time_ms": np.arange(20), "dwell": np.arange(20) * 1.5}
    columns = Columns(dwell).filter(lambda c: c["dwell"] > 6).rows().window(TimeWindow.tumbling(10))
    return {"rows": rows, "state": stream.snapshot(), "columns": list(columns.reduce(Reduce.mean("dwell")))}
"""


def test_a_stream_in_vms_goes_on_where_the_last_call_left_it():
    events = [
        {"time_ms": number * 2 - number % 3, "about": {"item": "ab"[number % 2]}, "n": number, "position": number}
        for number in range(90)
    ]
    here = {}
    exec(compile(SOURCE, "main.py", "exec"), here)
    wanted = here["run"]({"events": events, "state": None})
    compiled = compile_sources({"main": (SOURCE, "main.py", False)}, entry="main:run", name="counts", version="1")
    with vmhost.Host(allow_unsigned=True) as host:
        task, rows, state = host.load(compiled), [], None
        for first in range(0, 90, 30):
            answer = task({"events": events[max(first - 10, 0) : first + 30], "state": state})
            rows, state = rows + answer["rows"], answer["state"]
    assert rows == wanted["rows"] and len(rows) > 40 and state == wanted["state"]
    assert (
        answer["columns"]
        == wanted["columns"]
        == [
            {"key": None, "start_ms": 0, "end_ms": 10, "count": 5, "value": 10.5},
            {"key": None, "start_ms": 10, "end_ms": 20, "count": 10, "value": 21.75},
        ]
    )
