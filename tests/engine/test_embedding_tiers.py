"""Embedding tables with rows on disk: equal to tables in memory, number by number; bounded in memory and on disk;
rows that stay in memory; disks that are full; kill -9."""

import os
import signal
import subprocess
import sys
import threading

import numpy
import pytest

import vmhost.engine.numpy as np
from vmhost.engine import optim
from vmhost.engine.embedding import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariable,
    GlobalStepEvict,
    L2WeightEvict,
    Ragged,
    SSDStorage,
    restore,
    safe_embedding_lookup_sparse,
    save,
)

DIM, MEMORY, QUOTA = 16, 100_000, 24 << 20  # some 500 rows in memory
SGD = optim.SGD(1.0)


def made(folder, *, memory=MEMORY, quota=QUOTA, cache="lfu", dim=DIM, **options):
    """A table whose rows begin with zeros; folder None: all in memory."""
    storage = None if folder is None else SSDStorage(folder, memory, quota, cache)
    options = {"optimizer": "sgd", "initializer": np.zeros((1, dim), "float32")} | options
    return EmbeddingVariable(dim, storage=storage, **options)


def train(table, keys, step=1, gradient=1.0, optimizer=SGD):
    keys = np.asarray(keys, "int64")
    table.step(keys, np.full((len(keys), table.dim), gradient, "float32"), optimizer, step)


def rows(table, keys):
    return numpy.asarray(table.lookup(np.asarray(keys, "int64")))


@pytest.mark.parametrize("cache", ["lru", "lfu"])
def test_rows_in_either_tier_are_those_of_a_table_in_memory(tmp_path, cache):
    """Steps, lookups, evictions, full and incremental saves, restoring into either form."""
    random, optimizer, every = numpy.random.default_rng(3), optim.Adam(0.1), range(12_000)
    options = {"optimizer": "adam", "filter": CounterFilter(2), "evict": (GlobalStepEvict(30), L2WeightEvict(1e-4))}
    plain, tiered = made(None, **options), made(tmp_path, cache=cache, **options)
    for step in range(1, 121):
        drawn = random.zipf(1.3, 600) % 12_000 if step % 3 else random.integers(0, 12_000, 600)
        keys = np.asarray(drawn.astype("int64"))
        gradients = np.asarray(random.standard_normal((600, DIM)).astype("float32"))
        assert (rows(plain, keys) == rows(tiered, keys)).all()
        bags = Ragged(keys, np.arange(0, 601, 20))
        sums = [numpy.asarray(safe_embedding_lookup_sparse(one, bags, combiner="sqrtn")) for one in (plain, tiered)]
        assert (sums[0] == sums[1]).all()
        optimizer.state["step"] = step
        for one in (plain, tiered):
            one.step(keys, gradients, optimizer, step)
        if step % 15 == 0:
            for one, name in ((plain, "plain"), (tiered, "tiered")):
                save([one], tmp_path / name, incremental=step % 60 != 15, step=step)
            assert tiered.statistics()[:3] == plain.statistics()[:3]
            again = [made(None, **options), made(tmp_path, cache=cache, **options)]
            restore(again[:1], tmp_path / "tiered")
            restore(again[1:], tmp_path / "plain")
            assert all((rows(plain, every) == rows(one, every)).all() for one in (tiered, *again))
    counts = tiered.statistics()
    assert counts.disk_rows > counts.rows / 2 and counts.memory_hits and counts.disk_hits
    assert counts.disk_bytes <= QUOTA


def test_memory_has_a_bounded_number_of_rows_and_the_disk_all_others(tmp_path):
    table = made(tmp_path)
    for begin in range(0, 20_000, 1000):
        train(table, range(begin, begin + 1000))
    counts = table.statistics()
    assert counts.rows == 20_000
    assert (counts.rows - counts.disk_rows) * (DIM * 4 + 40) <= MEMORY
    assert 20_000 * DIM * 4 < counts.disk_bytes <= QUOTA
    assert (rows(table, range(20_000)) == -1).all()
    assert (rows(table, range(20_000)) == -1).all(), "also after rows went back to where they were, without a change"
    assert table.statistics().disk_bytes <= 2 * counts.disk_bytes


@pytest.mark.parametrize("cache", ["lru", "lfu"])
def test_rows_that_are_wanted_stay_in_memory(tmp_path, cache):
    table, hot = made(tmp_path, cache=cache), range(200)
    train(table, range(10_000))
    for begin in range(200, 10_000, 100):
        rows(table, hot)
        rows(table, range(begin, begin + 100))
    before = table.statistics()
    rows(table, hot)
    after = table.statistics()
    assert after.memory_hits - before.memory_hits + after.disk_hits - before.disk_hits == 200
    assert after.memory_hits - before.memory_hits > 150


def test_rows_that_change_for_ever_do_not_fill_the_disk(tmp_path):
    quota = 4 << 20
    table = made(tmp_path, quota=quota)
    for step in range(1, 61):
        train(table, range(8000), step)
        assert table.statistics().disk_bytes <= quota
    assert (rows(table, range(8000)) == -60).all()


def test_keys_that_never_end_meet_the_quota_and_lose_no_row(tmp_path):
    table = made(tmp_path, quota=4 << 20)
    known = 0
    with pytest.raises(MemoryError, match="fill the 4194304 bytes that it may take on disk: raise the quota"):
        while True:
            train(table, range(known, known + 1000))
            known += 1000
    assert 10_000 < known < 60_000
    assert (rows(table, range(known)) == -1).all()
    saved = save([table], tmp_path / "saves")
    assert os.path.isdir(saved)
    for step in range(2, 6):
        train(table, range(known), step)
    assert (rows(table, range(known)) == -5).all(), "rows that are there are trained as before"
    assert table.statistics().disk_bytes <= 4 << 20


def test_memory_that_ends_before_the_disk_is_told(tmp_path):
    bounded = EmbeddingVariable(
        DIM, optimizer="sgd", initializer=np.zeros((1, DIM), "float32"), quota=2 << 20,
        storage=SSDStorage(tmp_path, 50_000, 1 << 30),
    )  # fmt: skip
    known = 0
    with pytest.raises(MemoryError, match="the embedding table has .* of its 2097152 bytes"):
        while True:
            train(bounded, range(known, known + 1000))
            known += 1000
    assert known > 20_000, "keys alone"
    assert (rows(bounded, range(known)) == -1).all()


def test_rows_wider_than_a_piece_of_work(tmp_path):
    table = made(tmp_path, dim=5000, memory=8 << 20, quota=256 << 20)
    train(table, range(1500))
    assert table.statistics().disk_rows > 1000
    assert (rows(table, range(1500)) == -1).all()
    wide = numpy.asarray(safe_embedding_lookup_sparse(table, np.arange(1500).reshape(1, 1500), combiner="sum"))
    assert (wide == -1500).all()


def test_the_file_has_no_name_and_ends_with_the_table(tmp_path):
    table = made(tmp_path)
    train(table, range(10_000))
    assert os.listdir(tmp_path) == []
    opened = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if _is_open(one)]
    assert any(one.startswith(str(tmp_path)) for one in opened)
    del table
    opened = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if _is_open(one)]
    assert not any(one.startswith(str(tmp_path)) for one in opened)


def _is_open(descriptor):
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"memory": 0}, ValueError, "storage: memory: expected a whole number above 0"),
        ({"memory": 1000}, ValueError, "memory: expected at least .* bytes for rows of this size, got 1000"),
        ({"quota": 1 << 20}, ValueError, "quota of the disk: expected at least 4194304 bytes"),
        ({"cache": "fifo"}, ValueError, "cache: expected one of lru, lfu"),
        ({"filter": CBFFilter(2, 100)}, ValueError, "a counting Bloom filter does not go with rows on disk"),
        ({"folder": "file"}, OSError, "file"),
    ],
)
def test_wrong_storage_is_refused(tmp_path, options, error, said):
    (tmp_path / "file").touch()
    with pytest.raises(error, match=said):
        made(tmp_path / options.pop("folder", ""), **options)
    with pytest.raises(ValueError, match="expected SSDStorage or None"):
        EmbeddingVariable(4, storage="folder")


def test_a_disk_that_is_full_loses_no_row(tmp_path):
    """RLIMIT_FSIZE simulates a full disk: writes fail, and work again when it is raised."""
    code = """
import resource, sys
from tests.engine.test_embedding_tiers import *
table = made(sys.argv[1], quota=64 << 20)
train(table, range(5000))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
done = 5000
try:
    while True:
        train(table, range(done, done + 100))
        done += 100
except OSError as error:
    print(error)
assert done < 20_000
assert (rows(table, range(done)) == -1).all()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
train(table, range(done + 1000, done + 9000))
assert (rows(table, range(done)) == -1).all() and (rows(table, range(done + 1000, done + 9000)) == -1).all()
"""
    ended = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "rows of the embedding table cannot be written on disk: File too large" in ended.stdout


def test_kill_9_leaves_the_last_save_and_no_file(tmp_path):
    code = """
import sys
from tests.engine.test_embedding_tiers import *
table = made(sys.argv[1] + "/disk")
step = 0
while True:
    step += 1
    train(table, range(6000), step)
    save([table], sys.argv[1] + "/saves", incremental=step % 3 != 1)
    print(step, flush=True)
"""
    (tmp_path / "disk").mkdir()
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        last = max(int(process.stdout.readline()) for _ in range(4))
    finally:
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
    last = int(rest[-1]) if rest else last
    assert os.listdir(tmp_path / "disk") == []
    again = made(tmp_path / "disk")
    restore([again], tmp_path / "saves")
    found = rows(again, range(6000))
    assert (found == found[0, 0]).all() and -found[0, 0] >= last
    train(again, range(6000), last + 2)
    assert (rows(again, range(6000)) == found[0, 0] - 1).all()


def test_many_threads_train_read_and_save(tmp_path):
    """Each key is trained by one thread at a time, so that each row counts its own steps."""
    table, problems = made(tmp_path), []

    def trains(first):
        for _ in range(30):
            train(table, range(first, 4000, 2))

    def reads():
        while any(one.is_alive() for one in trainers):
            found = rows(table, range(4000))
            if not (found == found[:, :1]).all():
                problems.append("a row that is not whole")

    trainers = [threading.Thread(target=trains, args=(first,)) for first in range(2)]
    others = [threading.Thread(target=reads)]
    for one in trainers + others:
        one.start()
    saves = 0
    while saves == 0 or any(one.is_alive() for one in trainers):
        save([table], tmp_path / "saves", incremental=saves > 0)
        saves += 1
    for one in trainers + others:
        one.join()
    save([table], tmp_path / "saves", incremental=True)
    assert not problems
    assert (rows(table, range(4000)) == -30).all()
    again = made(None)
    restore([again], tmp_path / "saves")
    assert (rows(again, range(4000)) == -30).all()


def test_rows_that_are_no_numbers_go_to_disk_and_come_back(tmp_path):
    table = made(tmp_path)
    train(table, range(3000), gradient=float("nan"))
    train(table, range(3000, 9000), gradient=float("inf"))
    assert numpy.isnan(rows(table, range(3000))).all()
    assert numpy.isneginf(rows(table, range(3000, 9000))).all()
