"""A pipeline on a full disk, in a folder that is in use, or on a damaged store: one clear error each,
and no promised data is lost."""

import shutil
import threading

import pytest

from tests.hosts import until
from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import PipelineError
from vmhost.stores import StoreAccessError, StoreDamagedError, StoreForeignError, StoreFullError, StoreInUseError


def fill_disk(pipeline):
    """As if the disk had no room for another page of the store."""
    writer = pipeline._database._writer
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages}")


def make_room(pipeline):
    pipeline._database._writer.execute("PRAGMA max_page_count = 1000000")


def large(n):
    return Event("click", 1_790_000_000_000 + n, "p", f"v{n}", {"pad": bytes(3000), "n": n}, f"id-{n}", f"k{n % 7}")


def test_a_full_disk_lets_results_wait_and_refuses_events(tmp_path):
    """All events that `append_many` accepted are there when there is room again, with a row for each."""
    taken, refused = [], 0
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS, "on: [click], queue: 100000")) as pipeline:
        fill_disk(pipeline)
        n = 0
        while refused < 5:
            batch = [large(n + more) for more in range(100)]
            n += 100
            try:
                pipeline.append_many(batch)
                taken += [event.contents["n"] for event in batch]
            except StoreFullError as error:
                assert "disk" in str(error) or "full" in str(error)
                refused += 1
        with pytest.raises(StoreFullError):
            pipeline.flush()
        make_room(pipeline)
        assert pipeline.wait(WAIT_S)
        pipeline.flush()
        rows = pipeline.table("clicks").read()
        assert sorted(int(row["visit"][1:]) for row in rows) == taken
        assert [stored.event.contents["n"] for stored in pipeline._store.read()] == [each for each in taken]
        pipeline.close(keep_visits=True)
    assert pipeline.store_error is None


def test_a_pipeline_ends_on_a_full_disk_and_says_so(tmp_path):
    """Events flushed before are there afterwards, and each has its row."""
    bundle = stream_task(tmp_path, ROWS, "on: [click], queue: 100000")
    pipeline = open_pipeline(tmp_path, bundle)
    pipeline.append_many([large(n) for n in range(50)])
    pipeline.flush()
    fill_disk(pipeline)
    pipeline.append_many([large(n) for n in range(50, 700)])
    with pytest.raises(StoreFullError):
        pipeline.close()
    with open_pipeline(tmp_path, bundle) as pipeline:
        assert pipeline.wait(WAIT_S)
        positions = [row["_id"] >> 20 for row in pipeline.table("clicks").read(with_ids=True)]
        assert positions == list(range(1, pipeline.statistics()["position"] + 1)) and len(positions) >= 50


def test_two_pipelines_on_one_folder(tmp_path):
    bundle = stream_task(tmp_path, ROWS)
    with open_pipeline(tmp_path, bundle) as pipeline:
        with pytest.raises(StoreInUseError, match="end that process first"):
            open_pipeline(tmp_path, bundle)
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        assert len(pipeline.table("clicks").read()) == 1


def test_a_folder_that_cannot_be_made_and_one_of_somebody_else(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match="file/data: the folder cannot be made: Not a directory"):
        open_pipeline(tmp_path / "file")
    data = tmp_path / "data"
    (data / "pipeline.sqlite").mkdir(parents=True)
    with pytest.raises(StoreAccessError, match="pipeline.sqlite"):
        open_pipeline(tmp_path)
    (data / "pipeline.sqlite").rmdir()
    (data / "pipeline.sqlite").write_bytes(b"not a database" * 500)
    with pytest.raises((StoreDamagedError, StoreForeignError), match="pipeline.sqlite"):
        open_pipeline(tmp_path)
    assert (data / "pipeline.sqlite").read_bytes() == b"not a database" * 500


@pytest.mark.parametrize("what", ["-wal cut", "-wal lost", "pages overwritten"])
def test_damage(tmp_path, what):
    """The files as a process leaves them that was killed, damaged."""
    bundle = stream_task(tmp_path, ROWS)
    with open_pipeline(tmp_path, bundle) as pipeline:
        pipeline.append_many([large(n) for n in range(200)])
        assert pipeline.wait(WAIT_S)
        pipeline.flush()
        copied = shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")
    database, wal = copied / "pipeline.sqlite", copied / "pipeline.sqlite-wal"
    if what == "-wal cut":
        wal.write_bytes(wal.read_bytes()[:-5000])
    elif what == "-wal lost":
        wal.unlink()
    else:
        wal.unlink()
        shutil.copy(tmp_path / "data" / "pipeline.sqlite", database)  # whole: the pipeline was closed
        content = bytearray(database.read_bytes())
        content[8192:] = bytes(len(content) - 8192)
        database.write_bytes(content)
    before = threading.active_count()
    with pytest.raises(StoreDamagedError, match="pipeline.sqlite"):
        open_pipeline(copied.parent, bundle)
    until(lambda: threading.active_count() <= before)  # also those of the first pipeline end a moment later
