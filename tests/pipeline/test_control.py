"""The control socket, and reading the data of a running pipeline."""

import os
import socket
import stat

import pytest

from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task
from vmhost.pipeline import control
from vmhost.pipeline.control import Control, ControlError, NotRunningError, ask
from vmhost.pipeline.stored import StoredPipeline, moment_ms
from vmhost.stores import Database, StoreAccessError, StoreVersionError


@pytest.fixture
def pipeline(tmp_path):
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline, Control(pipeline):
        pipeline.append_many(clicks("a", "b", "a"))
        assert pipeline.wait(WAIT_S)
        yield pipeline


def test_a_pipeline_at_work_tells_its_numbers(pipeline):
    answer = ask(pipeline.folder, "status")
    assert (answer["pid"], answer["position"], answer["store_error"]) == (os.getpid(), 3, None)
    assert answer["tasks"]["clicks"]["triggered"] == 3
    assert ask(pipeline.folder, "explain", name="clicks")["trigger"]["level"] == "page"


def test_it_forgets_and_flushes_when_asked(pipeline):
    ask(pipeline.folder, "flush")
    with StoredPipeline(pipeline.folder) as stored:
        assert [row["visit"] for row in stored.rows("clicks")] == ["a", "b", "a"]
    assert ask(pipeline.folder, "forget", timeout_s=WAIT_S, key="a")["events"] == 2
    with StoredPipeline(pipeline.folder) as stored:
        assert [row["visit"] for row in stored.rows("clicks")] == ["b"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"what": "stop"}, "do: expected one of status, explain, flush, forget, got 'stop'"),
        ({"what": "explain", "name": "clock"}, "there is no stream task 'clock'"),
        ({"what": "explain", "nam": "clicks"}, "unexpected keyword argument 'nam'"),
    ],
)
def test_what_it_cannot_do_is_told(pipeline, asked, expected):
    with pytest.raises(ControlError, match=expected):
        ask(pipeline.folder, **asked)


def test_junk_and_silence_do_not_end_it(pipeline, monkeypatch):
    monkeypatch.setattr(control, "_QUICK_S", 0.05)
    path = str(pipeline.folder / control.NAME)
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(path)
    for junk in (b"", b"{}\n", b"[]\n", b"nonsense\n", b'{"do": []}\n', b"\xff\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(junk)
    assert ask(pipeline.folder, "status", timeout_s=WAIT_S)["position"] == 3
    silent.close()


def test_it_is_for_one_user(pipeline):
    assert stat.S_IMODE((pipeline.folder / control.NAME).stat().st_mode) == 0o600


def test_nobody_answers_in_a_folder_at_rest(tmp_path):
    with pytest.raises(NotRunningError):
        ask(tmp_path / "none", "status")
    with open_pipeline(tmp_path) as pipeline:
        with Control(pipeline):
            pass
        assert not (pipeline.folder / control.NAME).exists()
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(pipeline.folder / control.NAME))  # as left by a killed process
        left.close()
        with pytest.raises(NotRunningError):
            ask(pipeline.folder, "status")
        with Control(pipeline):
            assert ask(pipeline.folder, "status")["position"] == 0


def test_a_folder_with_a_long_path_has_one_too(tmp_path):
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    with open_pipeline(folder) as pipeline, Control(pipeline):
        assert ask(pipeline.folder, "status")["position"] == 0


def test_a_store_is_read_without_being_changed(tmp_path, pipeline):
    pipeline.flush()
    with StoredPipeline(pipeline.folder) as stored:
        held = stored.status()
        assert (held["events"]["stored"], held["tables"]["clicks"]["rows"], held["dead_letters"]) == (3, 3, {})
        assert [one.event.visit for one in stored.last_events(2)] == ["b", "a"]
        assert [one.position for one in stored.find(visit="a", name="click")] == [1, 3]
        assert [one.position for one in stored.find(since_ms=1_790_000_000_001, until_ms=1_790_000_000_001)] == [2]
        assert stored.late_events() == [] and stored.outbox() == []
        with pytest.raises(KeyError, match="there is no table 'clock'; there are clicks"):
            stored.table("clock")
    with pytest.raises(StoreAccessError, match="no such file"):
        StoredPipeline(tmp_path)


def test_a_store_of_a_newer_vmhost_is_not_read(tmp_path):
    with open_pipeline(tmp_path) as pipeline:
        folder = pipeline.folder
    with Database(folder / "pipeline.sqlite") as database, database.transaction() as connection:
        connection.execute("UPDATE store_versions SET version = 99 WHERE name = 'pipeline.events'")
    with pytest.raises(StoreVersionError, match="pipeline.events has schema version 99"):
        StoredPipeline(folder)


def test_moments_are_dates_times_or_milliseconds():
    assert moment_ms("1790000000000") == 1_790_000_000_000
    assert moment_ms("2026-11-25T10:30:00+00:00") == 1_795_602_600_000
    assert moment_ms("2026-11-25") == moment_ms("2026-11-25T00:00")
    for text in ("yesterday", "2026-13-01", "12", ""):
        with pytest.raises(ValueError, match="expected a moment such as"):
            moment_ms(text)
