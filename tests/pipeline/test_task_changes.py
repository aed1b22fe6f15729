"""Stream tasks come, change and go while events flow: neither their own data nor that of others is lost."""

import threading

import pytest

import vmhost
from tests.pipeline.stream_tasks import GATED, ROWS, WAIT_S, Gate, clicks, open_pipeline, stream_task
from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.pipeline import PipelineError

PAIRS = "on: [view, '*', click]"
VERSIONS = 'def run(value):\n    return {{"visit": value["visit"], "version": "{}"}}\n'


def event(n, name, visit="v"):
    return Event(name, 1_790_000_000_000 + n, "item", visit, n, f"{visit}-{name}-{n}", visit)


def visits(pipeline, name):
    return [row["visit"] for row in pipeline.table(name).read()]


def versions(pipeline, name="clicks"):
    return [(row["visit"], row["version"]) for row in pipeline.table(name).read()]


def versioned(folder, version, trigger="on: [click]", table="columns: {visit: text, version: text}", **options):
    return stream_task(folder, VERSIONS.format(version), trigger, version=version, table=table, **options)


def test_a_task_comes_and_sees_what_comes_from_then_on(tmp_path):
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS, PAIRS, "pairs")) as pipeline:
        pipeline.append_many([event(1, "view"), *clicks("before")])
        pipeline.load(stream_task(tmp_path, ROWS))
        pipeline.append_many([event(2, "click"), event(3, "click", "w")])
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks") == ["v", "w"]
        assert visits(pipeline, "pairs") == ["v"]  # its match was under way
        with pytest.raises(PipelineError, match="there is a stream task clicks; change it"):
            pipeline.load(stream_task(tmp_path, ROWS))


def test_a_task_comes_and_sees_all_that_is_stored_first(tmp_path):
    """Its queue takes few calls at a time, and none is dropped; events flow meanwhile."""
    gate, stored = Gate(), [f"stored {n}" for n in range(50)]
    with open_pipeline(tmp_path, host={"functions": {"gate": gate}}) as pipeline:
        pipeline.append_many(clicks(*stored))
        pipeline.append(event(900, "view", "open"))
        bundles = [
            stream_task(tmp_path, GATED, "on: [click], queue: 3", functions="gate"),
            stream_task(tmp_path, ROWS, PAIRS, "pairs"),
        ]
        for bundle in bundles:
            pipeline.load(bundle, from_stored=True)
        gate.wait_for(1)
        pipeline.append_many(clicks("flows", begin_ms=1_790_000_001_000))
        explanation = pipeline.explain("clicks")
        assert (
            explanation["behind"] > 40
            and explanation["running"] == 1
            and explanation["trigger"]["sequences"][0][0]["id"] == "click"
        )
        gate.open()
        pipeline.append(event(1100, "click", "open"))  # ends a match that began before the task came
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks") == [*stored, "flows", "open"]
        assert visits(pipeline, "pairs") == ["open"]
        pipeline.append(event(1200, "click", "open"))
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks")[-1] == "open" and pipeline.explain("clicks")["behind"] == 0
    assert pipeline.final["tasks"]["clicks"]["dropped_by_overload"] == 0


def test_what_a_shutdown_leaves_of_stored_events_comes_at_the_next_start(tmp_path):
    gate, stored = Gate(), [f"stored {n}" for n in range(50)]
    bundle = stream_task(tmp_path, GATED, "on: [click], queue: 3", functions="gate")
    pipeline = open_pipeline(tmp_path, host={"functions": {"gate": gate}})
    pipeline.append_many(clicks(*stored))
    pipeline.load(bundle, from_stored=True)
    gate.wait_for(1)
    pipeline.close(drain=False)
    gate.open()
    with open_pipeline(tmp_path, bundle, host={"functions": {"gate": gate}}) as pipeline:
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks") == stored


def test_a_new_version_takes_over_without_losing_a_call(tmp_path):
    """One call runs in the old version, others wait; a match is under way."""
    gate = Gate()
    columns = "columns: {visit: text, version: text}"
    source = GATED.replace('"count": len(value["events"])', '"version": "1"')
    first = stream_task(tmp_path, source, functions="gate", table=columns)
    options = {"host": {"functions": {"gate": gate}}}
    with open_pipeline(tmp_path, first, stream_task(tmp_path, ROWS, PAIRS, "pairs"), **options) as pipeline:
        pipeline.append_many([event(1, "view"), *clicks("a", "b")])
        gate.wait_for(1)
        changing = threading.Thread(target=pipeline.change, args=(versioned(tmp_path, "2.0.0"),))
        changing.start()
        pipeline.append_many(clicks("c", begin_ms=1_790_000_000_100))
        changing.join(WAIT_S)
        assert pipeline.explain("clicks")["version"] == "2.0.0"
        gate.open()
        pipeline.append_many([event(200, "click")])
        assert pipeline.wait(WAIT_S)
        assert versions(pipeline) == [("a", "1"), ("b", "2.0.0"), ("c", "2.0.0"), ("v", "2.0.0")]
        assert visits(pipeline, "pairs") == ["v"]


def test_a_new_version_with_the_same_trigger_keeps_its_matches(tmp_path):
    with open_pipeline(tmp_path, versioned(tmp_path, "1.0.0", PAIRS)) as pipeline:
        pipeline.append(event(1, "view"))
        pipeline.change(versioned(tmp_path, "2.0.0", PAIRS))
        pipeline.append_many([event(2, "click"), event(3, "view")])
        assert pipeline.wait(WAIT_S)
        pipeline.change(versioned(tmp_path, "3.0.0", "on: [view, click]"))
        pipeline.append(event(4, "click"))
        pipeline.append_many([event(5, "view"), event(6, "click")])
        assert pipeline.wait(WAIT_S)
        assert versions(pipeline) == [("v", "2.0.0"), ("v", "3.0.0")]  # not event 4: what it waits for has changed


def test_a_version_with_other_columns_and_back_again(tmp_path):
    """Each keeps its table. The older one processes the events that came meanwhile, which its own table lacks."""
    first = versioned(tmp_path, "1.0.0")
    with open_pipeline(tmp_path, first) as pipeline:
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        pipeline.change(versioned(tmp_path, "2.0.0", table="columns: {visit: text, version: json}"))
        pipeline.append_many(clicks("b", begin_ms=1_790_000_000_100))
        assert pipeline.wait(WAIT_S)
        assert versions(pipeline) == [("b", "2.0.0")]
        pipeline.change(first)
        pipeline.append_many(clicks("c", begin_ms=1_790_000_000_200))
        assert pipeline.wait(WAIT_S)
        assert versions(pipeline) == [("a", "1.0.0"), ("b", "1.0.0"), ("c", "1.0.0")]


def test_a_call_that_waits_while_versions_go_back_and_forth_is_made_once(tmp_path):
    gate = Gate()
    first = stream_task(tmp_path, GATED, functions="gate")
    table = "columns: {visit: json, count: integer}"
    with open_pipeline(tmp_path, first, host={"functions": {"gate": gate}}) as pipeline:
        pipeline.append_many(clicks("a"))
        gate.wait_for(1)
        pipeline.change(stream_task(tmp_path, GATED, version="2.0.0", functions="gate", table=table))
        pipeline.append_many(clicks("b", "c", begin_ms=1_790_000_000_100))
        pipeline.change(first)
        gate.open()
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks") == ["a", "b", "c"]
    counts = pipeline.final["tasks"]["clicks"]
    assert (counts["triggered"], counts["stored"]) == (3, 3)


def test_calls_of_a_key_follow_each_other_also_into_a_new_version(tmp_path):
    source = (
        "from vmhost.guest import host\n\n\ndef run(value):\n    host.gate(value['visit'])\n"
        "    count = (value['state'] or 0) + 1\n"
        "    return {'rows': {'visit': value['visit'], 'count': count}, 'state': count}\n"
    )
    gate, trigger = Gate(), "on: [click], state: true"
    old, new = (
        stream_task(tmp_path, source, trigger, version=v, functions="gate", concurrency=4) for v in ("1.0.0", "2.0.0")
    )
    with open_pipeline(tmp_path, old, host={"functions": {"gate": gate}}) as pipeline:
        pipeline.append_many(clicks("a", "a", "b"))
        gate.wait_for(2)
        pipeline.change(new)
        pipeline.append_many(clicks("a", "b", begin_ms=1_790_000_000_100))
        gate.open()
        assert pipeline.wait(WAIT_S)
        counts = [(row["visit"], row["count"]) for row in pipeline.table("clicks").read()]
        assert counts == [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2)]


def test_what_is_refused_changes_nothing(tmp_path):
    with open_pipeline(tmp_path, versioned(tmp_path, "1.0.0")) as pipeline:
        plain = tmp_path / "plain"
        plain.mkdir()
        (plain / "main.py").write_text(ROWS)
        (plain / "task.yaml").write_text('name: clicks\nversion: 2.0.0\nentry: main:run\npython: "3.14"\n')
        from vmhost.bytecode.compiler import compile_task

        with pytest.raises(PipelineError, match="clicks is no stream task: its task.yaml has no `trigger`"):
            pipeline.change(compile_task(plain).to_bytes())
        with pytest.raises(PipelineError, match="there is no stream task 'pairs'; there are clicks"):
            pipeline.change(stream_task(tmp_path, ROWS, PAIRS, "pairs"))
        with pytest.raises(vmhost.BundleError, match="host function 'gate'"):
            pipeline.change(versioned(tmp_path, "2.0.0", functions="gate"))
        with pytest.raises(vmhost.BundleError, match="host function 'gate'"):
            pipeline.load(stream_task(tmp_path, GATED, name="gated", functions="gate"))
        with pytest.raises(vmhost.BundleError, match="nothing.vmb"):
            pipeline.load(tmp_path / "nothing.vmb")
        for method in (pipeline.withdraw, pipeline.explain):
            with pytest.raises(PipelineError, match="there is no stream task 'gated'"):
                method("gated")
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        assert versions(pipeline) == [("a", "1.0.0")]


def test_a_task_goes_with_its_calls_and_comes_back_for_what_it_missed(tmp_path):
    gate, gated = Gate(), stream_task(tmp_path, GATED, functions="gate")
    options = {"host": {"functions": {"gate": gate}}}
    with open_pipeline(tmp_path, gated, stream_task(tmp_path, ROWS, PAIRS, "pairs"), **options) as pipeline:
        pipeline.append_many([event(1, "view"), *clicks("a", "b")])
        gate.wait_for(1)
        going = threading.Thread(target=pipeline.withdraw, args=("clicks",))
        going.start()
        gate.open()
        going.join(WAIT_S)
        with pytest.raises(KeyError):
            pipeline.table("clicks")
        pipeline.append_many([event(100, "click"), *clicks("c", begin_ms=1_790_000_000_200)])
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "pairs") == ["v"]
        pipeline.load(gated)
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks") == ["a", "b", "v", "c"]


def test_a_task_that_is_cut_off_comes_back_to_its_calls(tmp_path):
    gate, gated = Gate(), stream_task(tmp_path, GATED, functions="gate")
    with open_pipeline(tmp_path, gated, host={"functions": {"gate": gate}}) as pipeline:
        pipeline.append_many(clicks("a", "b"))
        gate.wait_for(1)
        pipeline.withdraw("clicks", drain=False)
        gate.open()
        pipeline.load(gated)
        assert pipeline.wait(WAIT_S)
        assert visits(pipeline, "clicks") == ["a", "b"]
    assert pipeline.final["tasks"]["clicks"]["triggered"] == 2


def test_tasks_come_and_go_in_a_stream_and_others_notice_nothing(tmp_path):
    """100 visits; at each third of one a task comes, changes or goes."""
    steady = stream_task(tmp_path, ROWS, "on: [page_enter, '*', page_exit], queue: 1000", "steady")
    with open_pipeline(tmp_path, steady) as pipeline:
        changes = [
            lambda: pipeline.load(versioned(tmp_path, "1.0.0", "on: [click], queue: 1000")),
            lambda: pipeline.change(versioned(tmp_path, "2.0.0", "on: [page_enter, click], queue: 1000")),
            lambda: pipeline.withdraw("clicks"),
        ]
        for n in range(100):
            visit = f"visit {n:03}"
            for step, name in enumerate((PAGE_ENTER, "click", "view", PAGE_EXIT)):
                pipeline.append(event(n * 10 + step, name, visit))
            if n % 3 == 0:
                changes[n // 3 % 3]()
        assert pipeline.wait(WAIT_S)
        rows = pipeline.table("steady").read()
        assert [(row["visit"], row["count"]) for row in rows] == [(f"visit {n:03}", 4) for n in range(100)]
