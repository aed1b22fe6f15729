"""A person who was everywhere is forgotten: no file of the pipeline and of its host holds the bytes, online and at
rest, also when the process dies at any write. Others' data is untouched."""

import contextlib
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.pipeline import durable_faults
from tests.pipeline.stream_tasks import ROWS, WAIT_S, open_pipeline, stream_task
from vmhost import Policy, RecordPolicy, TaskPolicy
from vmhost.pipeline import forgetting
from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.feed import Feed
from vmhost.pipeline.forgetting import HARMLESS, IN_FILES, IN_STORE, forget
from vmhost.pipeline.reach.channels import TrackingLog
from vmhost.stores import Database, Outbox
from vmhost.tunnel.inbox import Inbox

ROOT = Path(__file__).resolve().parents[2]
MARK, BEGIN_MS = 'Rümpel"stilzchen', 1_790_000_000_000
PART = b"stilzchen"  # is in each form in which texts, JSON and JSON in JSON write the key
BUYS = {
    "name": "buys",
    "pattern": [{"name": "cart", "event": "cart"}, {"name": "order", "event": "order"}],
    "within_ms": 3_600_000,
    "then": ["track", "later"],
}
RULES = [
    BUYS,
    BUYS | {"name": "in_visit", "by": "visit"},
    BUYS | {"name": "of_all", "by": "all", "pattern": [{"name": "two", "event": "cart", "times": 9}]},
]
FEATURES = {"features": {"carts": {"source": "cart", "operator": "count"}}}
TABLE = "columns: {visit: {type: text, leaves: true}, count: integer}"


def event(name, at_s, key, visit=None, contents=None):
    visit = f"visit of {key}" if visit is None else visit
    return Event(name, BEGIN_MS + at_s * 1000, f"page of {key}", visit, contents or {"of": key}, f"{key} {at_s}", key)


def life(key):
    """Under way at the end: a visit, and a match of each rule."""
    return [
        event(PAGE_ENTER, 0, key),
        event("cart", 1, key),
        event("order", 2, key),
        event("click", 3, key),
        event("bad", 4, key),
        event("cart", 5, key),
        event("click", 6, key, "of both"),
    ]


def opened(folder, **options):
    tasks = (
        stream_task(folder, ROWS.replace("return", "print(value)\n    return"), "on: [click]", table=TABLE),
        stream_task(folder, "def run(value):\n    raise ValueError(value)\n", "on: [bad], retries: 0", "bad"),
        stream_task(
            folder,
            'def run(value):\n    return {"rows": None, "state": value["key"]}\n',
            "on: [cart], state: true, level: time",
            "counts",
        ),
    )
    return open_pipeline(
        folder,
        *tasks,
        rules=RULES,
        features=[FEATURES],
        channels={"track": {"ut": "track.jsonl"}, "later": {"push": "http://127.0.0.1:9/none"}},
        host={
            "state": folder / "state",
            "policy": Policy(task=TaskPolicy(record=RecordPolicy(folder=str(folder / "records"), share=1.0))),
        },
        clock=lambda: BEGIN_MS / 1000 + 100,
        **options,
    )


def live(folder):
    """A pipeline in which two people did everything, still open."""
    pipeline = opened(folder)
    pipeline.append_many([*life(MARK), *life("bob")])
    pipeline.append(event("click", -7200, MARK))  # late
    Feed(pipeline, "lines", bad_lines="aside").take_lines(
        [f'{{"name": 1, "key": {json.dumps(MARK)}}}'.encode(), b'{"name": 2, "key": "bob"}']
    )
    assert pipeline.wait(WAIT_S)
    outbox = Outbox(pipeline.database)
    for key in (MARK, "bob"):
        outbox.put(f"{key} said", "chat", f"about {key}".encode())
        outbox.put(f"{key} told", "chat", b"done")
    outbox.acknowledge([f"{MARK} told", "bob told"])
    inbox = Inbox(pipeline.database)
    inbox.keep_dictionary("clicks", 3, b"like " + MARK.encode())
    with pipeline.database.transaction() as connection:
        for position, key in enumerate((MARK, "bob"), 1):
            connection.execute(
                "INSERT INTO tunnel_refused VALUES (?, '', 'c', 'id', 1, 'why', ?)", (position, f"to {key}".encode())
            )
    crashes = folder / "state" / "crashes"
    crashes.mkdir(exist_ok=True)
    for key in (MARK, "bob"):
        (crashes / f"{len(key)}.json").write_text(json.dumps({"lines": f"call of {key}"}, ensure_ascii=False))
    track = folder / "data" / "tracking" / "track.jsonl"
    with pipeline.reach._wake:
        assert pipeline.reach._wake.wait_for(lambda: track.exists() and track.read_bytes().count(b"\n") >= 4, WAIT_S)
    pipeline._complex.save(now=True)
    pipeline.flush()
    return pipeline


def holding(folder):
    """The files that hold the person's bytes."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return {path.name.removesuffix("-wal") for path in files if PART in path.read_bytes()}


EVERYWHERE = {"pipeline.sqlite", "track.jsonl", "bad-lines.jsonl", f"{len(MARK)}.json"}


def must_be_gone(folder):
    assert holding(folder) == set()
    with contextlib.closing(opened(folder)) as pipeline:
        pipeline.append(event("order", 10, "bob"))
        assert pipeline.wait(WAIT_S)
        found = [(one.event.name, one.event.key) for one in pipeline._store.read()]
        rule_events = [one for one in found if one[0].startswith("rule:")]
        # bob's second match goes on, nobody else's: not hers, nor one with an empty key
        assert sorted(rule_events) == sorted([("rule:buys", "bob"), ("rule:in_visit", "bob")] * 2)
        assert {key for _, key in found} == {"bob"}
        assert {row["visit"] for row in pipeline.table("clicks").read()} == {"visit of bob", "of both"}
        pipeline.close(drain=False)
    assert b"bob" in (folder / "data" / "bad-lines.jsonl").read_bytes()
    assert (folder / "data" / "tracking" / "track.jsonl").read_bytes().count(b'"bob"') >= 2
    assert (folder / "state" / "crashes" / "3.json").exists()
    assert any(b"bob" in path.read_bytes() for path in (folder / "records").glob("*.baseline"))


@pytest.mark.parametrize("online", [True, False])
def test_a_person_who_was_everywhere_is_nowhere(tmp_path, online):
    pipeline = live(tmp_path)
    assert holding(tmp_path) >= EVERYWHERE and any(name.endswith(".baseline") for name in holding(tmp_path))
    if online:
        removed = pipeline.forget(MARK)
        assert holding(tmp_path) == set()
        pipeline.close(drain=False, keep_visits=True)
    else:
        pipeline.close(drain=False, keep_visits=True)
        with Database(tmp_path / "data" / "pipeline.sqlite") as database:
            removed = forget(database, MARK)
    expected = {place.name for place in (*IN_STORE, *IN_FILES)} - {"matches"}
    expected -= {"recorded_calls"} if online else set()  # the host removes those of the files that it writes
    assert {name for name, count in removed.items() if count} >= expected
    must_be_gone(tmp_path)


def die(folder, number, after):
    program = (
        "import sys; from pathlib import Path; from tests.pipeline.durable_faults import die_at;"
        "from tests.pipeline.test_forget_everywhere import *;"
        "writes = die_at(int(sys.argv[2]), sys.argv[3] == 'True');"
        "database = Database(Path(sys.argv[1], 'data', 'pipeline.sqlite')); forget(database, MARK);"
        "database.close(); print(writes())"
    )
    command = [sys.executable, "-c", program, str(folder), str(number), str(after)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_process_that_dies_has_begun_nothing_or_is_finished_by_the_next(tmp_path):
    dies(tmp_path, lambda writes: random.Random(1).sample(range(1, writes + 1), 4))


@pytest.mark.stress
def test_a_process_that_dies_at_each_write(tmp_path):
    dies(tmp_path, lambda writes: range(1, writes + 1))


def dies(tmp_path, at):
    (tmp_path / "live").mkdir()
    pipeline = live(tmp_path / "live")
    pipeline.close(drain=False, keep_visits=True)

    def copy():
        """Where the host's folders are is noted in the store, so the copy takes the place of the original."""
        for part in ("data", "records", "state/crashes"):  # this process keeps other files of its host open
            shutil.rmtree(tmp_path / "live" / part)
            shutil.copytree(tmp_path / "kept" / part, tmp_path / "live" / part)
        return tmp_path / "live"

    shutil.copytree(tmp_path / "live", tmp_path / "kept")
    writes = int(die(copy(), 0, False).stdout)
    assert writes > 10
    for number, after in itertools.product(at(writes), (False, True)):
        folder = copy()
        done = die(folder, number, after)
        assert done.returncode == durable_faults.STATUS, (number, done.stderr)
        with Database(folder / "data" / "pipeline.sqlite") as database:
            counters = database.counters()
            begun = counters.get("forget.begun", 0)
            forgetting.finish(database)
        left = holding(folder)
        assert left == set() if begun else left >= EVERYWHERE, (number, after, begun, left)


def test_each_table_and_file_has_an_entry(tmp_path):
    """A new one fails here: it needs a Place in vmhost/pipeline/forgetting.py, or is listed there as harmless."""
    listed = HARMLESS | {name for place in IN_STORE for name in place.holds}
    source = "".join(
        path.read_text()
        for folder in ("pipeline", "stores")
        for path in sorted((ROOT / "vmhost" / folder).rglob("*.py"))
    )
    source += (ROOT / "vmhost" / "tunnel" / "inbox.py").read_text()
    made = set(re.findall(r"CREATE (?:VIRTUAL )?TABLE (?:IF NOT EXISTS )?(\w+)", source))
    assert made - listed == set() and len(made) > 15
    pipeline = live(tmp_path)
    with pipeline.database.reader() as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        generated = {name for (name,) in connection.execute("SELECT sql_name FROM task_tables")}
    assert tables - listed - generated == set()
    patterns = [pattern for place in IN_FILES for pattern in place.holds]
    patterns += ["pipeline.sqlite*", "lock", "crash.map", "breakers.msgpack", "*.lock"]
    for folder in ("data", "state", "records"):
        for path in (tmp_path / folder).rglob("*"):
            if path.is_file():
                name = path.relative_to(tmp_path / folder)
                assert any(name.full_match(pattern) for pattern in patterns), path
    pipeline.close(drain=False)


def test_lines_that_come_while_a_log_is_rewritten_are_kept(tmp_path, monkeypatch):
    log, arrived = TrackingLog(tmp_path, "track.jsonl"), threading.Event()
    for n in range(3):
        log.send({"id": f"a{n}", "key": MARK})
        log.send({"id": f"b{n}", "key": "bob"})
    from vmhost.pipeline.reach import channels

    read_bytes = Path.read_bytes

    def slowly(path):
        data = read_bytes(path)
        sending = threading.Thread(target=lambda: (log.send({"id": "new", "key": "bob"}), arrived.set()))
        sending.start()
        sending.join(0.3)  # it would have ended by now if nothing held it
        return data

    monkeypatch.setattr(Path, "read_bytes", slowly)
    assert channels.forget_lines(tmp_path / "tracking", MARK) == 3
    assert arrived.wait(WAIT_S)
    lines = read_bytes(tmp_path / "tracking" / "track.jsonl").decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["b0", "b1", "b2", "new"]


def test_a_visit_of_others_keeps_no_match_with_the_persons_event(tmp_path):
    with open_pipeline(tmp_path, rules=[RULES[1] | {"then": []}], channels={}) as pipeline:
        pipeline.append_many(
            [event(PAGE_ENTER, 0, "bob", "shared"), event("cart", 1, MARK, "shared"), event("cart", 1, "eve", "own")]
        )
        assert pipeline.statistics()["rules"]["matches"] == 2
        pipeline.forget(MARK)
        assert pipeline.statistics()["rules"]["matches"] == 1
        pipeline.append_many([event("order", 2, "bob", "shared"), event(PAGE_EXIT, 3, "bob", "shared")])
        assert pipeline.statistics()["rules"]["matched"] == 0
