"""`vmhost pipeline`: what it takes, shows and refuses; Ctrl-C, SIGTERM and kill -9 in the middle; two at once."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from pyarrow import parquet
from rich.console import Console

from tests.pipeline.stream_tasks import ROWS, WAIT_S, stream_task
from vmhost.cli import failures
from vmhost.cli.pipeline import opening
from vmhost.cli.pipeline.live import Live
from vmhost.pipeline import Event, Pipeline
from vmhost.pipeline.control import NotRunningError, ask
from vmhost.stores import StoreFullError

ROOT = Path(__file__).resolve().parents[3]
BEGIN_MS = 1_790_000_000_000
SLOW = f"import time\n\n\n{ROWS.replace('return', 'time.sleep(3600)\n    return')}"
BAD = 'def run(value):\n    raise ValueError("no good")\n'


def lines(count, begin_ms=BEGIN_MS, **more):
    events = (
        {"name": "click", "time_ms": begin_ms + n, "visit": f"v{n % 5}", "key": f"k{n % 2}"} for n in range(count)
    )
    return "".join(json.dumps(event | more) + "\n" for event in events)


@pytest.fixture
def clicks(tmp_path):
    path = tmp_path / "clicks.vmb"
    path.write_bytes(stream_task(tmp_path, ROWS, "on: [click], queue: 1000"))
    return path


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(10))
    return path


@pytest.fixture
def shop(tmp_path, vmhost, clicks, events):
    """A folder at rest, in which ten events have become rows."""
    code, _, err = vmhost("pipeline", "run", tmp_path / "shop", clicks, "--allow-unsigned", "--events", events)
    assert (code, err) == (0, "")
    return tmp_path / "shop"


@contextlib.contextmanager
def started(*arguments, **options):
    """The command as a process of its own, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vmhost", "pipeline", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process, pattern):
    """The first line on stderr that fits, as a match."""
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"ended without a line like {pattern}")


# ---- run


def test_run_prints_what_became_of_events(tmp_path, vmhost, clicks, events):
    code, out, _ = vmhost("pipeline", "run", tmp_path / "d", clicks, "--allow-unsigned", "--events", events)
    assert code == 0
    assert re.search(r"clicks +10 +0 +10 +0 +0 +0\n", out)
    assert f"15 events in {tmp_path / 'd'}; 0 late, 0 duplicates" in out  # with the exits of five visits
    code, out, _ = vmhost("pipeline", "run", tmp_path / "e", clicks, "--allow-unsigned", "--events", events, "--json")
    figures = json.loads(out)
    assert figures["tasks"]["clicks"]["stored"] == 10
    assert figures["sources"][str(events)]["taken"] == 10


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Missing argument 'FOLDER...': a folder and bundles, or a pipeline.yaml."),
        (["d"], "Missing argument 'BUNDLE...'"),
        (["d", "clickz.vmb"], "error: clickz.vmb: no such file; did you mean clicks.vmb?"),
        (["pipelin.yaml"], "error: pipelin.yaml: no such file; did you mean pipeline.yaml?"),
        (["pipeline.yaml", "clicks.vmb"], "error: pipeline.yaml names folder and bundles; leave clicks.vmb out"),
        (
            ["d", "clicks.vmb", "--events", "event.jsonl"],
            "error: event.jsonl: no such file; did you mean events.jsonl?",
        ),
        (["d", "clicks.vmb", "--events", "-", "--events", "-"], "error: --events -: stdin can be read once"),
        (
            ["d", "clicks.vmb", "--listen", "0.0.0.0:80"],
            "error: --listen: expected an address of this machine's loopback",
        ),
        (
            ["d", "clicks.vmb", "--events", "events.jsonl", "--token-file", "x"],
            "error: --token-file goes with --listen",
        ),
        (
            ["d", "clicks.vmb", "--listen", "127.0.0.1:0", "--token-file", "x"],
            "error: x: the token cannot be read: No such file or directory",
        ),
        (["d", "clicks.vmb", "--bad-line", "aside"], "No such option '--bad-line'"),
        (["d", "clicks.vmb", "--events", "events.jsonl"], "clicks.vmb: not signed; compile it with --sign KEY"),
        (["pipeline.yaml"], "error: pipeline.yaml:3: retentoin: unknown key; did you mean 'retention'?"),
    ],
)
def test_run_says_what_is_wrong_with_its_arguments(tmp_path, vmhost, clicks, events, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text("folder: d\nbundles: [clicks.vmb]\nretentoin: {age: 3 d}\n")
    code, _, err = vmhost("pipeline", "run", *arguments)
    assert code in (2, 3)
    assert expected.lower() in err.lower()


def test_run_takes_a_pipeline_yaml(tmp_path, vmhost, clicks, events):
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "folder: d\nbundles: [clicks.vmb]\nallow_unsigned: true\nkeep_visits: true\n"
        "sources:\n  log: {file: events.jsonl}\n"
    )
    for arguments in ([path], ["--config", path]):
        code, out, err = vmhost("pipeline", "run", *arguments, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["sources"]["log"]["taken"] == 10
    assert json.loads(out)["position"] == 20  # nothing closed the visits


def test_a_bad_line_stops_or_is_put_aside(tmp_path, vmhost, clicks):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(3) + "{\n" + lines(3, BEGIN_MS + 100))
    run = ["pipeline", "run", tmp_path / "d", clicks, "--allow-unsigned", "--events", path]
    code, _, err = vmhost(*run)
    assert code == 2
    assert f"error: {path}:4: not an event: Input data was truncated; the events before it were taken" in err
    code, out, _ = vmhost(*run, "--bad-lines", "aside")
    assert code == 0 and "1 bad lines put aside" in out
    code, out, _ = vmhost("pipeline", "events", tmp_path / "d", "--bad", "--json")
    [noted] = json.loads(out)
    assert (code, noted["line"], noted["text"]) == (0, 4, "{")
    assert vmhost("pipeline", "events", tmp_path / "d", "--bad")[1].count(f"{path}:4") == 1


def test_a_task_that_fails_is_told_and_its_calls_are_kept(tmp_path, vmhost, events):
    path = tmp_path / "bad.vmb"
    path.write_bytes(stream_task(tmp_path, BAD, "on: [click], queue: 1000, retries: 0", name="bad"))
    code, out, _ = vmhost("pipeline", "run", tmp_path / "d", path, "--allow-unsigned", "--events", events, "--json")
    assert code == 1
    assert json.loads(out)["tasks"]["bad"]["dead_letters"] == 10
    code, out, _ = vmhost("pipeline", "dead-letters", tmp_path / "d", "--limit", 1)
    assert code == 0 and "no good" in out and "main.py" in out and out.count("event at") == 1
    code, out, _ = vmhost("pipeline", "dead-letters", tmp_path / "d", "bad", "--json")
    assert [one["event"]["visit"] for one in json.loads(out)[:2]] == ["v0", "v1"]


# ---- Ctrl-C, SIGTERM, kill -9


def test_ctrl_c_ends_in_order(tmp_path, clicks):
    with started(
        "run", tmp_path / "d", clicks, "--allow-unsigned", "--listen", "127.0.0.1:0", stdin=subprocess.DEVNULL
    ) as process:
        url = first_line(process, r"POST (http://\S+)")[1]
        with urllib.request.urlopen(url, lines(10).encode(), timeout=WAIT_S) as answer:
            assert json.load(answer) == {"taken": 10, "durable": False}
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert re.search(r"clicks +10 +0 +10 ", out)
    assert "10 events in" in out  # visits stay open for the next run


def test_sigterm_is_how_a_service_ends(tmp_path, clicks):
    with started("run", tmp_path / "d", clicks, "--allow-unsigned", stdin=subprocess.PIPE) as process:
        process.stdin.write(lines(3))
        process.stdin.flush()
        while _asked(tmp_path / "d", "status")["position"] < 3:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)  # although stdin is open still
    assert process.returncode == 0


def _asked(folder, what):
    while True:
        with contextlib.suppress(NotRunningError):  # not yet: the process starts
            return ask(folder, what)
        time.sleep(0.02)


def test_a_second_ctrl_c_leaves_calls_to_the_next_run(tmp_path, vmhost, clicks):
    slow = tmp_path / "slow.vmb"
    slow.write_bytes(stream_task(tmp_path, SLOW, "on: [click], queue: 1000"))
    with started("run", tmp_path / "d", slow, "--allow-unsigned", stdin=subprocess.PIPE) as process:
        process.stdin.write(lines(3))
        process.stdin.flush()
        while _asked(tmp_path / "d", "status")["position"] < 3:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        first_line(process, "3 calls run to their end; Ctrl-C again leaves them to the next run")
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    assert process.returncode == 130
    (tmp_path / "none").write_text("")
    run = ["pipeline", "run", tmp_path / "d", clicks, "--allow-unsigned", "--events", tmp_path / "none", "--json"]
    assert json.loads(vmhost(*run)[1])["tasks"]["clicks"]["stored"] == 3


def test_two_at_once_and_one_that_is_killed(tmp_path, vmhost, clicks, events):
    folder = tmp_path / "d"
    run = ["run", folder, clicks, "--allow-unsigned"]
    with started(*run, stdin=subprocess.PIPE) as process:
        process.stdin.write(lines(3))
        process.stdin.flush()
        while _asked(folder, "status")["position"] < 3:
            assert process.poll() is None
        code, _, err = vmhost("pipeline", *run, "--events", events)
        assert code == 5
        assert f"error: {folder}: a pipeline is running there (process {process.pid}) already" in err
        # what looks, and what forgets, works beside it, and sees what is in memory
        status = json.loads(vmhost("pipeline", "status", folder, "--json")[1])
        assert (status["running"]["pid"], status["running"]["sources"]["stdin"]["taken"]) == (process.pid, 3)
        assert len(json.loads(vmhost("pipeline", "events", folder, "--json")[1])) == 3
        assert "triggered 3 times" in vmhost("pipeline", "explain-trigger", folder, "clicks")[1]
        assert json.loads(vmhost("pipeline", "forget", folder, "k0", "--json")[1])["removed"]["events"] == 2
        assert len(json.loads(vmhost("pipeline", "table", folder, "clicks", "--json")[1])) == 1
        process.kill()
        process.wait(WAIT_S)
    code, out, _ = vmhost("pipeline", "status", folder)
    assert code == 0 and "no pipeline is running there" in out
    assert vmhost("pipeline", *run, "--events", events)[0] == 0


def test_what_a_full_disk_did_not_keep_is_told(shop):
    class Full:
        folder, final = shop, {"position": 18}

        def close(self):
            raise StoreFullError("the disk is full; make room")

    with pytest.raises(failures.Failure) as failed:
        opening.close(Full())
    assert str(failed.value) == (
        "the disk is full; make room; 3 events that were taken last are not in the store: give them again"
    )
    assert failed.value.exit_code == 5


def test_the_live_table_fits_a_terminal_of_80_columns(tmp_path, clicks):
    class Terminal:
        as_json = False
        remarks = Console(force_terminal=True, width=80, height=24, file=io.StringIO())

    sources = {"web": {"taken": 3, "aside": 1, "refused": 2, "url": "http://127.0.0.1:1/events", "waits": "queues"}}
    with Pipeline(tmp_path / "d", [clicks], allow_unsigned=True) as pipeline:
        pipeline.append(Event("click", BEGIN_MS, visit="v"))
        assert pipeline.wait(WAIT_S)
        with Live(Terminal(), pipeline, lambda: sources) as live:
            live.note = "ending"
            live.show()
    shown = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", Terminal.remarks.file.getvalue()).replace("\r", "")
    assert "1 events, 0/s; 1 open visits; event time 2026-" in shown
    assert "web: 3 events taken, 1 bad lines put aside, 2 requests refused" in shown
    assert "waits: the tasks' queues are full" in shown.replace("\n", " ")
    assert re.search(r"clicks +1 +0 +1 +0 +0 +0", shown) and "ending" in shown
    assert max(map(len, shown.splitlines())) <= 80


# ---- what looks at a folder


def test_status_of_a_folder_at_rest(vmhost, shop):
    code, out, _ = vmhost("pipeline", "status", shop)
    assert code == 0
    assert "15 events, from 2026-" in out and re.search(r"clicks +10 +0 +15 +1.0.0", out)
    report = json.loads(vmhost("pipeline", "status", shop, "--json")[1])
    assert report["running"] is None
    assert report["stored"]["tables"]["clicks"]["rows"] == 10


def test_tables_lists_shows_and_exports(tmp_path, vmhost, shop):
    code, out, _ = vmhost("pipeline", "tables", shop)
    assert code == 0 and "visit text, count integer" in out and "clicks.1" in out
    assert json.loads(vmhost("pipeline", "tables", shop, "--json")[1])[0]["rows"] == 10
    rows = json.loads(vmhost("pipeline", "tables", shop, "clicks", "--limit", 2, "--json")[1])
    assert rows == [{"visit": "v4", "count": 2}, {"visit": "v3", "count": 2}]
    assert len(json.loads(vmhost("pipeline", "tables", shop, "clicks", "--key", "k1", "--json")[1])) == 5
    assert "clicks has no rows of 'nobody'" in vmhost("pipeline", "table", shop, "clicks", "--key", "nobody")[1]
    path = tmp_path / "clicks.parquet"
    code, out, _ = vmhost("pipeline", "tables", shop, "clicks", "--parquet", path)
    assert code == 0 and f"10 rows of clicks in {path}" in out
    with parquet.ParquetFile(path, pre_buffer=False) as file:  # leaves no thread behind
        assert file.read(use_threads=False).column("visit").to_pylist()[:2] == ["v0", "v1"]


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path, vmhost, shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = vmhost("pipeline", "tables", shop, "clicks", "--parquet", tmp_path / "x.parquet")
    assert code == 5 and "pip install 'vmhost[parquet]'" in err
    assert not (tmp_path / "x.parquet").exists()


def test_events_are_shown_and_chosen(vmhost, shop):
    def shown(*options):
        code, out, err = vmhost("pipeline", "events", shop, *options, "--json")
        assert code == 0, err
        return json.loads(out)

    assert [one["position"] for one in shown("--limit", 2)] == [14, 15]
    assert len(shown("--all")) == 15
    assert [one["position"] for one in shown("--visit", "v1")] == [2, 7, 12]
    assert [one["position"] for one in shown("--visit", "v1", "--name", "click")] == [2, 7]
    assert len(shown("--key", "k1", "--name", "click")) == 5
    assert [one["position"] for one in shown("--since", BEGIN_MS + 3, "--until", BEGIN_MS + 5, "--name", "click")] == [
        4,
        5,
    ]
    assert shown("--late") == []
    code, out, _ = vmhost("pipeline", "events", shop, "--lines", "--visit", "v1", "--name", "click")
    assert json.loads(out.splitlines()[0]) == {"name": "click", "time_ms": BEGIN_MS + 1, "visit": "v1", "key": "k1"}
    assert "page_exit" in vmhost("pipeline", "events", shop)[1]


def test_lines_that_are_shown_can_be_run_again(tmp_path, vmhost, shop, clicks):
    path = tmp_path / "again.jsonl"
    path.write_text(vmhost("pipeline", "events", shop, "--lines", "--all")[1])
    run = ["pipeline", "run", tmp_path / "again", clicks, "--allow-unsigned", "--events", path, "--json"]
    assert json.loads(vmhost(*run)[1])["tasks"]["clicks"]["stored"] == 10


def test_a_trigger_is_explained_from_stored_events(tmp_path, vmhost, shop, clicks):
    code, out, _ = vmhost("pipeline", "explain-trigger", shop, clicks)
    assert code == 0 and "clicks 1.0.0: in the events of one visit\n  click\n" in out
    assert "15 stored events would trigger it 10 times, last by the event at 10" in out
    path = tmp_path / "pairs.vmb"
    path.write_bytes(stream_task(tmp_path, ROWS, 'on: [click, "*", page_exit]', name="pairs"))
    report = json.loads(vmhost("pipeline", "explain-trigger", shop, path, "--visit", "v1", "--json")[1])
    assert [(one["name"], one["triggers_from"], one["come_to"]) for one in report["events"]] == [
        ("click", None, [[0]]),
        ("click", None, [[0]]),
        ("page_exit", 7, [[0]]),
    ]
    assert "triggers, from 7" in vmhost("pipeline", "explain-trigger", shop, path, "--visit", "v1")[1]
    path.write_bytes(stream_task(tmp_path, ROWS, "on: [click], within: 30 min", name="pairs"))
    assert "within 30 min\n" in vmhost("pipeline", "explain-trigger", shop, path)[1]


def test_a_person_is_forgotten(vmhost, shop):
    code, out, _ = vmhost("pipeline", "forget", shop, "k1", "--yes")
    assert code == 0 and re.fullmatch(r"removed of 'k1': events \d+, rows 5\n", out)
    assert f"nothing of 'k1' is in {shop}" in vmhost("pipeline", "forget", shop, "k1", "--yes")[1]
    assert len(json.loads(vmhost("pipeline", "table", shop, "clicks", "--json")[1])) == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status", "shoq"], "error: shoq: no such folder; did you mean shop?"),
        (["tables", "."], "error: .: holds no pipeline.sqlite: no pipeline ran there yet"),
        (["table", "shop", "clocks"], "there is no table 'clocks'; there are clicks"),
        (["tables", "shop", "--key", "k1"], "error: --parquet and --key go with the NAME of a table"),
        (["tables", "shop", "clicks", "--parquet", "no/x.parquet"], "error: no/x.parquet: cannot be written: "),
        (["events", "shop", "--since", "noon"], "error: --since: expected a moment such as 2026-11-25"),
        (["events", "shop", "--late", "--bad"], "error: --late and --bad are two lists"),
        (["events", "shop", "--late", "--visit", "v1"], "error: --late and --bad go with --limit and --all only"),
        (["events", "shop", "--bad", "--lines"], "error: --lines does not go with --json or --bad"),
        (["explain-trigger", "shop", "clicks"], "error: shop: no pipeline is running there that could be asked"),
        (["explain-trigger", "shop", "clickz.vmb"], "error: clickz.vmb: no such bundle; did you mean clicks.vmb?"),
        (["explain-trigger", "shop", "clicks.vmb", "--visit", "v9"], "error: shop: no events of the visit 'v9'"),
        (["forget", "shop", "", "--yes"], "error: KEY: expected the key of a person or thing"),
        (["replay", "shop", "shop", "clicks.vmb"], "error: shop: expected a new folder, got the one whose events"),
        (["replay", "events.jsonl", "shop", "clicks.vmb"], "error: shop: holds events of a pipeline already"),
        (["replay", "event.jsonl", "d", "clicks.vmb"], "error: event.jsonl: no such file or folder; did you mean ev"),
        (["replay", "events.jsonl", "d", "clicks.vmb", "--speed", "fast"], "expected max, or a number above 0 such as"),
        (["replay", "events.jsonl", "d", "clicks.vmb", "--day", "today"], "error: --day: expected a date such as 2026"),
        (["statuz", "shop"], "Did you mean 'status'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, vmhost, shop, clicks, events, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, out, err = vmhost("pipeline", *arguments)
    assert (code, out) == (2, "")
    assert expected.lower() in err.lower()


# ---- replay


def test_a_stored_day_is_replayed(tmp_path, vmhost, shop, clicks):
    run = ["pipeline", "replay", shop, tmp_path / "again", clicks, "--allow-unsigned"]
    code, out, err = vmhost(*run, "--speed", "60")
    assert (code, err) == (0, "")
    assert re.search(r"15 events in \d+\.\d s, \d+ times as fast as they came", out)
    assert json.loads(vmhost("pipeline", "table", tmp_path / "again", "clicks", "--json")[1]) == json.loads(
        vmhost("pipeline", "table", shop, "clicks", "--json")[1]
    )


def test_a_file_of_lines_is_replayed_up_to_a_bad_one(tmp_path, vmhost, clicks):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(4) + "{\n")
    code, _, err = vmhost("pipeline", "replay", path, tmp_path / "d", clicks, "--allow-unsigned")
    assert code == 2 and f"error: {path}:5: not an event: " in err
    assert len(json.loads(vmhost("pipeline", "table", tmp_path / "d", "clicks", "--json")[1])) == 4


def test_a_pipeline_yaml_is_replayed_into_a_folder_of_its_own(tmp_path, vmhost, shop, clicks):
    path = tmp_path / "pipeline.yaml"
    path.write_text("folder: shop\nbundles: [clicks.vmb]\nallow_unsigned: true\n")
    code, _, err = vmhost("pipeline", "replay", shop, path)
    assert code == 2 and f"{shop}: expected a new folder" in err
    code, out, _ = vmhost("pipeline", "replay", shop, path, "--folder", tmp_path / "again", "--json")
    assert code == 0 and json.loads(out)["tasks"]["clicks"]["stored"] == 10


def test_what_a_terminal_would_obey_is_not_printed(tmp_path, vmhost, clicks):
    path = tmp_path / "events.jsonl"
    path.write_text(
        json.dumps({"name": "a\x1b[2J", "time_ms": BEGIN_MS, "visit": "\x9bv", "key": "\x07", "contents": "\x1b"})
    )
    assert vmhost("pipeline", "run", tmp_path / "d", clicks, "--allow-unsigned", "--events", path)[0] == 0
    out = vmhost("pipeline", "events", tmp_path / "d")[1]
    assert "a\\x1b[2J" in out and not any(bad in out for bad in "\x1b\x9b\x07")


def test_a_replay_ends_at_ctrl_c(tmp_path, clicks):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(1) + lines(1, BEGIN_MS + 3_600_000))
    with started("replay", path, tmp_path / "d", clicks, "--allow-unsigned", "--speed", "1") as process:
        while _asked(tmp_path / "d", "status")["position"] < 1:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "1 events in" in out
