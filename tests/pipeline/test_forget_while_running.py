"""`Pipeline.forget` during all kinds of work: calls that wait, run, or just ended, open visits, matches, late events.

Afterwards the person's bytes are nowhere in the files, and other people's calls gave the same as without `forget`."""

import random
import threading

import pytest

from tests.pipeline.stream_tasks import GATED, ROWS, WAIT_S, Gate, open_pipeline, stream_task
from vmhost.pipeline import forgetting
from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.pipeline import PipelineError

MARK = "Rumpelstilzchen"
BEGIN_MS = 1_790_000_000_000


def files(folder):
    return b"".join(file.read_bytes() for file in (folder / "data").iterdir() if not file.name.endswith("-shm"))


def event(n, key, visit, name="click"):
    return Event(name, BEGIN_MS + n, f"page of {key}", visit, {"said": f"{key} {n}"}, f"{key}-{n}", key)


def ended(counts):
    return sum(counts[way] for way in ("stored", "dead_letters", "dropped_by_overload", "forgotten", "expired"))


def test_calls_that_wait_and_run(tmp_path):
    """One VM is held in a call of hers and one in a call that was given an event of hers; others wait behind them."""
    gate = Gate()
    bundle = stream_task(tmp_path, GATED, concurrency=2, functions="gate")
    options = {"host": {"functions": {"gate": gate}}, "clock": lambda: BEGIN_MS / 1000 + 100}
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        pipeline.append(event(1, MARK, f"visit of {MARK}"))
        pipeline.append(event(2, MARK, "shared", PAGE_ENTER))
        pipeline.append(event(3, "bob", "shared"))
        assert gate.wait_for(2) == {f"visit of {MARK}", "shared"}
        pipeline.append_many([event(4, MARK, f"visit of {MARK}"), event(5, "bob", "shared"), event(6, "bob", "own")])
        pipeline.append(Event("click", BEGIN_MS - 3_600_000, contents=MARK, key=MARK))  # late
        pipeline.flush()
        assert MARK.encode() in files(tmp_path)
        gone = pipeline.forget(MARK)
        assert (gone["events"], gone["late_events"], gone["calls"]) == (3, 1, 2)
        assert MARK.encode() not in files(tmp_path)
        gate.open()
        assert pipeline.wait(WAIT_S)
        pipeline.append(event(7, "bob", "shared"))
        assert pipeline.wait(WAIT_S)
        rows = pipeline.table("clicks").read(with_ids=True)
        assert [(row["_id"] >> 20, row["visit"], row["count"]) for row in rows] == [
            (3, "shared", 1),  # without her page_enter
            (5, "shared", 2),
            (6, "own", 1),
            (7, "shared", 3),
        ]
        assert MARK.encode() not in files(tmp_path)
        assert set(pipeline.forget(MARK).values()) == {0}
    assert MARK.encode() not in files(tmp_path)
    counts = pipeline.final["tasks"]["clicks"]
    assert (counts["triggered"], counts["stored"], counts["forgotten"], counts["retries"]) == (6, 4, 2, 0)


def test_results_that_are_not_stored_yet(tmp_path, monkeypatch):
    """Her call has returned from the VM, and waits to write to the table."""
    arrived, go_on = threading.Event(), threading.Event()
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        kept = pipeline._kept

        def slowly(*what):
            arrived.set()
            go_on.wait(WAIT_S)
            return kept(*what)

        monkeypatch.setattr(pipeline, "_kept", slowly)
        pipeline.append(event(1, MARK, MARK))
        assert arrived.wait(WAIT_S)
        assert pipeline.forget(MARK)["calls"] == 1
        go_on.set()
        assert pipeline.wait(WAIT_S)
        assert pipeline.table("clicks").read() == []
    assert MARK.encode() not in files(tmp_path)


def test_a_result_on_its_way_into_the_table(tmp_path, monkeypatch):
    """It is written first, and then removed with everything else."""
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline:
        table, gone = pipeline.table("clicks"), []
        add, forgetting_her = table.add, threading.Thread(target=lambda: gone.append(pipeline.forget(MARK)))

        def slowly(*what):
            forgetting_her.start()
            forgetting_her.join(0.2)  # it would have ended by now if nothing held it
            add(*what)

        monkeypatch.setattr(table, "add", slowly)
        pipeline.append(event(1, MARK, MARK))
        assert pipeline.wait(WAIT_S)
        forgetting_her.join()
        assert gone[0]["rows"] == 1 and table.read() == []
    assert MARK.encode() not in files(tmp_path)


def test_rows_in_the_buffer_and_dead_letters_of_others(tmp_path):
    source = ROWS.replace("    return", '    if value["key"] == "bad": raise ValueError(value["events"])\n    return')
    table = "columns: {visit: {type: text, leaves: true}, count: integer}"
    with open_pipeline(tmp_path, stream_task(tmp_path, source, table=table), batch_ms=60_000) as pipeline:
        pipeline.append_many([event(1, MARK, "shared", PAGE_ENTER), event(2, MARK, "shared"), event(3, "bob", "b")])
        pipeline.append(event(4, "bad", "shared"))
        assert pipeline.wait(WAIT_S)
        gone = pipeline.forget(MARK)
        assert (gone["rows"], gone["outbox"], gone["dead_letters"]) == (1, 1, 1)
        assert MARK.encode() not in files(tmp_path)
        assert [row["visit"] for row in pipeline.table("clicks").read()] == ["b"]


@pytest.mark.parametrize(("level", "left"), [("page", ["v"]), ("time", ["v"])])
def test_matches_under_way_are_forgotten(tmp_path, level, left):
    """Her half of a pair does not count any more, neither in her visit nor in time."""
    trigger = f"on: [view, '*', click], level: {level}, events: match"
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS, trigger)) as pipeline:
        pipeline.append(event(1, MARK, "u", "view"))
        pipeline.forget(MARK)
        pipeline.append_many([event(2, "bob", "u"), event(3, "bob", "v", "view"), event(4, "bob", "v")])
        assert pipeline.wait(WAIT_S)
        assert [row["visit"] for row in pipeline.table("clicks").read()] == left


def test_a_process_that_dies_while_it_forgets(tmp_path, monkeypatch):
    """The rows are deleted, their bytes are not: the next start does it."""
    bundle = stream_task(tmp_path, ROWS)
    with open_pipeline(tmp_path, bundle) as pipeline:
        pipeline.append_many([event(n, MARK, MARK) for n in range(50)])
        assert pipeline.wait(WAIT_S)
        with monkeypatch.context() as patch:
            patch.setattr(forgetting, "_erase", lambda database: None)
            pipeline.forget(MARK)
        pipeline.close()
    assert MARK.encode() in files(tmp_path)
    open_pipeline(tmp_path, bundle).close()
    assert MARK.encode() not in files(tmp_path)
    with pytest.raises(PipelineError, match="closed"):
        pipeline.forget(MARK)


def storm(tmp_path, seed, rounds):
    """Threads append events of her and of others, in visits that they share; she is forgotten again and again."""
    dice, stop, others = random.Random(seed), threading.Event(), 3
    bundles = [
        stream_task(tmp_path, ROWS, "on: [click], queue: 5000", concurrency=2),
        stream_task(tmp_path, ROWS, "on: [view, '*', click], level: time, within: 1 s, queue: 5000", "pairs"),
    ]
    positions = [[] for _ in range(others)]
    with open_pipeline(tmp_path, *bundles, batch_ms=5) as pipeline:

        def append(number):
            draw, n = random.Random(f"{seed} {number}"), 0
            while not stop.is_set() and n < 400:
                n += 1
                key, visit = (MARK if draw.random() < 0.4 else f"other {number}"), f"v{number}-{n // 10}"
                name = draw.choice(("click", "view", PAGE_ENTER, PAGE_EXIT))
                one = event(n * others + number, key, visit, name)
                with pipeline._lock:
                    before = pipeline.statistics()
                    pipeline.append(one)
                    after = pipeline.statistics()
                    in_visit = after["intake"]["after_exit"] == before["intake"]["after_exit"]
                    if key != MARK and name == "click" and after["position"] > before["position"] and in_visit:
                        positions[number].append(after["position"])

        threads = [threading.Thread(target=append, args=(number,)) for number in range(others)]
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            pipeline.wait(dice.random() * 0.02)
            pipeline.forget(MARK)
        stop.set()
        for thread in threads:
            thread.join()
        pipeline.forget(MARK)
        assert MARK.encode() not in files(tmp_path), f"seed {seed}"
        assert pipeline.wait(WAIT_S)
        rows = [row["_id"] >> 20 for row in pipeline.table("clicks").read(with_ids=True)]
        assert rows == sorted(sum(positions, [])), f"seed {seed}"
    assert MARK.encode() not in files(tmp_path), f"seed {seed}"
    for counts in pipeline.final["tasks"].values():
        assert counts["triggered"] == ended(counts) and counts["unfinished"] == 0, f"seed {seed}"
        assert counts["dead_letters"] == counts["dropped_by_overload"] == 0, f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_a_storm(tmp_path, seed):
    storm(tmp_path, seed, 8)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 30))
def test_many_storms(tmp_path, seed):
    storm(tmp_path, seed, 20)
