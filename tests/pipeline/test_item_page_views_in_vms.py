"""Item page views from end to end: a rough stream through a Pipeline that is closed and opened again on the way. No
feature differs from the slow reference over the whole log of what was stored, and recommendations are those that a
plain forward pass gives over the rows that were stored when they were asked for."""

import collections
import json
from pathlib import Path

import numpy
import pytest

from tasks.ipv import reference, sessions
from tasks.training import ipv
from tasks.training.gradients import Value
from tasks.training.onnx_files import read_weights
from tests.pipeline.stream_tasks import WAIT_S, open_pipeline
from vmhost.compiler import compile_folder
from vmhost.pipeline.events import Event
from vmhost.pipeline.store import EventStore
from vmhost.stores import Database

TASKS = Path(__file__).resolve().parents[2] / "tasks"
FIELDS = ("name", "time_ms", "page", "visit", "contents", "id", "key")
RECENT = 20
ROUGH = sessions.Options(
    seed=11, visits=220, missing_exits=0.1, nested=0.3, bots=0.02, duplicates=0.1, late=0.05, clock_jumps=0.2
)


@pytest.fixture(scope="module")
def bundles():
    return [compile_folder(TASKS / name).to_bytes() for name in ("ipv", "ipv_recommend")]


class Stream:
    """Feeds a log to pipelines one after the other, at the time that its events say."""

    def __init__(self, folder, bundles):
        self._folder, self._bundles, self._now_s = folder, bundles, 0.0

    def open(self, visit_timeout_ms=900_000):
        times = {"lateness_ms": 30_000, "visit_timeout_ms": visit_timeout_ms, "clock": lambda: self._now_s}
        return open_pipeline(self._folder, *self._bundles, **times)

    def feed(self, pipeline, log, batch=7):
        for begin in range(0, len(log), batch):
            events = [Event(**each) for each in log[begin : begin + batch]]
            self._now_s = max(self._now_s, *(event.time_ms / 1000 for event in events))
            pipeline.append_many(events)


def stored(folder):
    with Database(folder / "data" / "pipeline.sqlite") as database:
        return [{name: getattr(one.event, name) for name in FIELDS} for one in EventStore(database).read()]


def test_no_feature_of_a_rough_stream_differs_from_the_reference(tmp_path, bundles):
    log, stream = list(sessions.events(ROUGH)), Stream(tmp_path, bundles)
    third = len(log) // 3
    for part in (log[:third], log[third : 2 * third]):
        with stream.open() as pipeline:
            stream.feed(pipeline, part)
            pipeline.close(drain=False)  # calls are cut off, visits stay open
    with stream.open() as pipeline:
        stream.feed(pipeline, log[2 * third :])
        assert pipeline.wait(WAIT_S)
        pipeline.close()
    counts = pipeline.final["tasks"]["ipv"]
    assert counts["dead_letters"] == counts["dropped_by_overload"] == 0
    assert pipeline.final["intake"]["late"] > 0 and pipeline.final["intake"]["duplicates"] > 0
    with stream.open() as pipeline:
        rows = pipeline.table("ipv").read()
    log = stored(tmp_path)
    seen = collections.Counter(event["visit"] for event in log)  # an exit whose enter came too late ends nothing
    wanted = {visit: made for visit, made in reference.features(log).items() if seen[visit] > 1}
    found = {row["visit"]: row["feature"] for row in rows}
    assert len(rows) == len(found) and len(found) > 150
    assert found == json.loads(json.dumps(wanted))


def test_recommendations_over_stored_rows_are_those_of_a_plain_forward_pass(tmp_path, bundles):
    weights, _ = read_weights((TASKS / "ipv_recommend" / "recommender.onnx").read_bytes())
    weights = {name: Value(array) for name, array in weights.items()}
    items = [one["id"] for one in json.loads((TASKS / "ipv_recommend" / "catalogue.json").read_text())]
    log = list(sessions.events(sessions.Options(seed=6, visits=120, **sessions.CLEAN)))
    stream, asked = Stream(tmp_path, bundles), []
    with stream.open(visit_timeout_ms=24 * 3_600_000) as pipeline:  # no visit ends at the moment of a request
        for event in log:
            if event["name"] == "recommendations":
                assert pipeline.wait(WAIT_S)
                asked.append((event["key"], pipeline.table("ipv").read(key=event["key"], order="_id DESC")))
            stream.feed(pipeline, [event])
            if event["name"] == "recommendations":
                assert pipeline.wait(WAIT_S)  # no visit that ends afterwards is read
        found = pipeline.table("ipv_recommend").read()
    assert len(found) == len(asked) > 10 and max(len(rows) for _, rows in asked) > 3
    for (key, rows), answer in zip(asked, found, strict=True):
        history = [numpy.frombuffer(row["encoding"], "float32") for row in rows[:RECENT]]
        recent = numpy.zeros((1, RECENT, ipv.CODE), "float32")
        for number, encoding in enumerate(history):
            recent[0, number] = encoding
        plain = ipv.scores(weights, Value(recent), (numpy.arange(RECENT) < len(history))[None]).data[0]
        ordered = {row["item"] for row in rows[:RECENT] if row["feature"]["order"]["pieces"] > 0}
        best = [place for place in numpy.argsort(-plain, kind="stable") if items[place] not in ordered][:10]
        assert (answer["shopper"], answer["visits"]) == (key, len(history))
        assert numpy.abs(numpy.asarray(answer["scores"]) - plain[best]).max() <= 1e-4 * numpy.abs(plain).max()
        assert all(abs(plain[items.index(item)] - plain[place]) < 1e-3 for item, place in zip(answer["items"], best))
