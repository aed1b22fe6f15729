"""The pipeline as a whole: events in, tasks triggered in VMs, rows out; failures, overload, state, restarts."""

import collections
import gzip
import json
from pathlib import Path

import pytest

import vmhost
from tasks.ipv import reference
from tests.pipeline.stream_tasks import GATED, ROWS, WAIT_S, Gate, clicks, open_pipeline, stream_task
from vmhost.bytecode.compiler import compile_task
from vmhost.cli import main
from vmhost.compiler import compile_folder
from vmhost.pipeline import pipeline as pipelines
from vmhost.pipeline import visits
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import Pipeline, PipelineError

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "tests" / "tasks" / "real_events.jsonl.gz"


@pytest.fixture(scope="module")
def item_page_views():
    """The bundle's bytes."""
    return compile_folder(ROOT / "tasks" / "ipv").to_bytes()


def test_a_real_stream_gives_the_features_of_the_reference(tmp_path, item_page_views):
    bundle = tmp_path / "ipv.vmb"
    bundle.write_bytes(item_page_views)
    with gzip.open(REAL, "rt", encoding="utf-8") as file:
        lines = list(file)
    with Pipeline(tmp_path / "data", [bundle], allow_unsigned=True) as pipeline:
        for line in lines:
            pipeline.append_line(line)
        assert pipeline.wait(WAIT_S)
        rows = pipeline.table("ipv").read()
    found = {row["visit"]: row["feature"] for row in rows}
    assert found == json.loads(json.dumps(reference.features(list(map(json.loads, lines)))))
    assert len(found) == 12


def test_a_call_gets_the_events_of_its_visit(tmp_path):
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        pipeline.append_many(clicks("a", "b", "a", "a"))
        assert pipeline.wait(WAIT_S)
        rows = pipeline.table("clicks").read()
    assert [(row["visit"], row["count"]) for row in rows] == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_a_call_that_fails_is_tried_again_and_then_kept_aside(tmp_path):
    source = 'def run(value):\n    raise ValueError("no good")\n'
    with open_pipeline(tmp_path, stream_task(tmp_path, source, "on: [click], retries: 2")) as pipeline:
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        [letter] = pipeline.dead_letters()
    assert (letter.task, letter.position, letter.tries) == ("clicks", 1, 3)
    assert "no good" in letter.error and "main.py" in letter.traceback
    assert letter.event["events"][0]["name"] == "click"
    counts = pipeline.final["tasks"]["clicks"]
    assert (counts["triggered"], counts["retries"], counts["dead_letters"], counts["stored"]) == (1, 2, 1, 0)


def test_a_row_that_does_not_fit_is_kept_aside_at_once(tmp_path):
    source = 'def run(value):\n    return {"visits": 1}\n'
    with open_pipeline(tmp_path, stream_task(tmp_path, source, "on: [click], retries: 5")) as pipeline:
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        [letter] = pipeline.dead_letters()
    assert "'visits' is no column" in letter.error
    assert pipeline.final["tasks"]["clicks"]["retries"] == 0


@pytest.mark.parametrize(
    ("rule", "kept"),
    [("oldest", ["a", "b", "c"]), ("newest", ["a", "d", "d"]), ("coalesce", ["a", "c", "d"])],
)
def test_the_overload_rule_says_who_wins(tmp_path, rule, kept):
    """The first call is handed over before the lock is let go; two more may wait for it."""
    source = "import time\n" + ROWS.replace("return", "time.sleep(0.2)\n    return")
    bundle = stream_task(tmp_path, source, f"on: [click], queue: 2, overload: {rule}")
    with open_pipeline(tmp_path, bundle) as pipeline:
        pipeline.append_many(clicks("a", "b", "c", "d", "d"))
        assert pipeline.wait(WAIT_S)
        assert [row["visit"] for row in pipeline.table("clicks").read()] == kept
    counts = pipeline.final["tasks"]["clicks"]
    assert (counts["triggered"], counts["stored"], counts["dropped_by_overload"]) == (5, 3, 2)


def test_state_goes_from_call_to_call_of_a_key_also_over_a_restart(tmp_path):
    source = (
        "def run(value):\n"
        '    count = (value["state"] or 0) + 1\n'
        '    return {"rows": {"visit": value["visit"], "count": count}, "state": count}\n'
    )
    bundle = stream_task(tmp_path, source, "on: [click], state: true")
    for begin_ms in (1_790_000_000_000, 1_790_000_001_000):
        with open_pipeline(tmp_path, bundle) as pipeline:
            pipeline.append_many(clicks("a", "b", "a", "a", begin_ms=begin_ms))
            assert pipeline.wait(WAIT_S)
            rows = pipeline.table("clicks").read()
            pipeline.close(keep_visits=True)
    counts = {visit: [row["count"] for row in rows if row["visit"] == visit] for visit in "ab"}
    assert counts == {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2]}


def test_what_a_shutdown_cuts_off_is_triggered_again(tmp_path):
    bundle = stream_task(tmp_path, "import time\ndef run(value):\n    time.sleep(3600)\n")
    pipeline = open_pipeline(tmp_path, bundle)
    pipeline.append_many(clicks("a", "b"))
    pipeline.close(drain=False)
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        assert pipeline.wait(WAIT_S)
        assert [row["visit"] for row in pipeline.table("clicks").read()] == ["a", "b"]


def test_a_task_that_is_no_stream_task_is_refused(tmp_path):
    (tmp_path / "main.py").write_text(ROWS)
    (tmp_path / "task.yaml").write_text('name: plain\nversion: 1.0.0\nentry: main:run\npython: "3.14"\n')
    with pytest.raises(PipelineError, match="plain is no stream task: its task.yaml has no `trigger`"):
        open_pipeline(tmp_path, compile_task(tmp_path).to_bytes())
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        pass
    with pytest.raises(vmhost.ConfigurationError, match="the pipeline is closed"):
        pipeline.append_many(clicks("a"))


def test_the_command_takes_events_and_shows_rows(tmp_path, capfd):
    bundle, events = tmp_path / "clicks.vmb", tmp_path / "events.jsonl"
    bundle.write_bytes(stream_task(tmp_path, ROWS))
    events.write_text('{"name": "click", "time_ms": 1790000000000, "visit": "a"}\n\n{"name": "cl')
    run = ["pipeline", "run", str(tmp_path / "data"), str(bundle), "--allow-unsigned", "--events", str(events)]
    assert main(run) == 2
    assert f"{events}:3: not an event: " in capfd.readouterr().err
    events.write_text('{"name": "click", "time_ms": 1790000000500, "visit": "a"}\n')
    assert main([*run, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tasks"]["clicks"]["dead_letters"] == 0
    assert main(["pipeline", "table", str(tmp_path / "data"), "clicks", "--json"]) == 0
    assert [row["count"] for row in json.loads(capfd.readouterr().out)] == [2, 1]
    assert main(["pipeline", "table", str(tmp_path / "data"), "clock"]) == 2
    assert "there is no table 'clock'; there are clicks" in capfd.readouterr().err


def test_events_of_more_visits_than_memory_takes_are_read_from_the_store(tmp_path, monkeypatch):
    """Of visits, and of calls that wait: what they are given is the same."""
    monkeypatch.setattr(visits, "MAX_HELD", 40)
    monkeypatch.setattr(visits, "MAX_EVENTS", 15)
    monkeypatch.setattr(pipelines, "_WITH_EVENTS", 3)
    names = [f"v{n}" for n in range(10)]
    bundle = stream_task(tmp_path, ROWS, "on: [page_exit], queue: 1000")
    with open_pipeline(tmp_path, bundle) as pipeline:
        for step in range(20):
            name = {0: "page_enter", 19: "page_exit"}.get(step, "click")
            began = 1_790_000_000_000 + step * 100
            here = names if step in (0, 19) else names[step % 3 :: 2]
            pipeline.append_many([Event(name, began + n, "item", visit, key=visit) for n, visit in enumerate(here)])
        assert pipeline.wait(WAIT_S)
        counts = {row["visit"]: row["count"] for row in pipeline.table("clicks").read()}
        stored = collections.Counter(one.event.visit for one in pipeline._store.read())
    assert counts == stored and len(counts) == 10
    assert pipeline._visits._count == 0


def test_a_result_that_cannot_be_kept_is_a_dead_letter_and_others_go_on(tmp_path, monkeypatch):
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        table = pipeline.table("clicks")
        add = table.add

        def fails_once(*what):
            monkeypatch.setattr(table, "add", add)
            raise RuntimeError("a bug")

        monkeypatch.setattr(table, "add", fails_once)
        pipeline.append_many(clicks("a", "b"))
        assert pipeline.wait(WAIT_S)
        assert [row["visit"] for row in table.read()] == ["b"]
        [letter] = pipeline.dead_letters()
    assert (letter.error, letter.event) == ("RuntimeError: a bug", {"position": 1, "key": "a"})


def test_rows_go_after_their_retention_also_where_nothing_comes_any_more(tmp_path):
    now_s = [1_790_000_000.0]
    bundle = stream_task(tmp_path, ROWS, table="columns: {visit: text, count: integer}, retention: 1 h")
    with open_pipeline(tmp_path, bundle, clock=lambda: now_s[0]) as pipeline:
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        assert len(pipeline.table("clicks").read()) == 1
        now_s[0] += 2 * 3600
        pipeline._tables.sweep()
        with pipeline._database.reader() as connection:
            assert connection.execute('SELECT count(*) FROM "clicks.1"').fetchone() == (0,)


def test_options_that_are_none(tmp_path):
    with pytest.raises(PipelineError, match="intake: .*'lateness'"):
        open_pipeline(tmp_path, intake={"lateness": 5})
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS), intake={"lateness_ms": 1000}) as pipeline:
        pipeline.append(Event("click", 1_790_000_000_000, "item", "a"))
        for key in ("", None):
            with pytest.raises(ValueError, match="expected the key of a person"):
                pipeline.forget(key)
        assert pipeline.wait(WAIT_S)
    assert pipeline.final["tasks"]["clicks"]["stored"] == 1


def test_where_vms_are_scarce_priority_says_who_runs_first(tmp_path):
    """One VM, which a call holds while one event triggers two other tasks."""
    gate, order = Gate(), []
    tells = f"from vmhost.guest import host\n\n\n{ROWS.replace('return', 'host.tell(NAME)\n    return')}"
    bundles = [
        stream_task(tmp_path, GATED, "on: [hold]", "holds", functions="gate"),
        *(
            stream_task(
                tmp_path, tells.replace("NAME", repr(name)), "on: [click]", name, functions="tell", priority=priority
            )
            for name, priority in (("low", -5), ("middle", 0), ("high", 5))
        ),
    ]
    host = {"functions": {"gate": gate, "tell": order.append}, "policy": vmhost.Policy(max_vms=1)}
    with open_pipeline(tmp_path, *bundles, host=host) as pipeline:
        pipeline.append(Event("hold", 1_790_000_000_000, "item", "v"))
        gate.wait_for(1)
        pipeline.append_many(clicks("a", begin_ms=1_790_000_000_001))
        gate.open()
        assert pipeline.wait(WAIT_S)
    assert order == ["high", "middle", "low"]
