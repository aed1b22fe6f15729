"""EmbeddingVariable: the documentation of DeepRec and TFRA on admission, first rows, eviction and saving, as cases; and
steps equal to those of vmhost.engine.optim."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import vmhost.engine.numpy as np
from vmhost.engine import nn, optim
from vmhost.engine.embedding import (
    CBFFilter,
    CheckpointError,
    CounterFilter,
    EmbeddingVariable,
    GlobalStepEvict,
    L2WeightEvict,
    restore,
    save,
    table,
)

SGD = optim.SGD(1.0)


def made(dim=2, first=10.0, **options):
    """A table whose rows begin with `first`, and SGD's steps."""
    options = {"optimizer": "sgd", "initializer": np.full((1, dim), first, "float32")} | options
    return EmbeddingVariable(dim, **options)


def train(table, keys, step=0, gradient=1.0, optimizer=SGD):
    keys = np.asarray(keys, "int64")
    table.step(keys, np.full((len(keys), table.dim), gradient, "float32"), optimizer, step)


def read(table, *keys):
    return table.lookup(np.asarray(keys, "int64"))[:, 0].tolist()


# ---- rows
def test_any_int64_is_a_key_of_its_own():
    one = made(first=0.0)
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**62]
    for i, key in enumerate(keys):
        train(one, [key] * (i + 1))
    assert read(one, *keys) == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
    assert len(one) == 7


def test_keys_begin_with_the_row_of_their_number_modulo_default_value_dim():
    first = np.arange(12.0).reshape(4, 3)
    one = EmbeddingVariable(3, optimizer="sgd", initializer=first)
    assert one.lookup(np.asarray([0, 5, -1, 4096])).tolist() == first[np.asarray([0, 1, 3, 0])].tolist()
    assert len(one) == 0, "a lookup makes no row"
    default = EmbeddingVariable(2, seed=3)
    assert read(default, 7) == read(default, 7 + 4096) == read(EmbeddingVariable(2, seed=3), 7)
    assert read(default, 7) != read(default, 8)


def test_a_table_grows_and_finds_all_its_keys():
    one = made(first=0.0)
    keys = np.arange(30000) * 7919 - 10**9
    train(one, keys)
    assert len(one) == 30000
    assert (one.lookup(keys) == -1).all()
    assert (one.lookup(keys + 1) == 0).all()


# ---- admission: DeepRec's EmbeddingVariable, "Feature filter"
def test_with_filter_freq_3_steps_1_to_3_read_no_permission_and_step_4_the_trained_row():
    one = made(filter=CounterFilter(3), default_value_no_permission=0.0)
    seen = []
    for step in range(1, 5):
        seen += read(one, 7)
        train(one, [7], step)
    assert seen == [0.0, 0.0, 0.0, 9.0]
    assert read(one, 7) == [8.0]


def test_lookups_neither_count_nor_admit():
    one = made(filter=CounterFilter(2))
    train(one, [7])
    for _ in range(10):
        assert read(one, 7) == [0.0]
    assert (len(one), one.statistics().waiting) == (0, 1)


def test_a_step_counts_occurrences():
    one = made(filter=CounterFilter(3))
    train(one, [7, 7, 8])
    assert read(one, 7, 8) == [0.0, 0.0]
    train(one, [7, 8, 8])
    assert read(one, 7, 8) == [9.0, 8.0], "admitted at freq + count >= filter_freq, by this step's gradient"


def test_no_permission_value_may_be_chosen():
    one = made(filter=CounterFilter(2), default_value_no_permission=-5.0)
    assert read(one, 1) == [-5.0]


def test_without_a_filter_and_at_1_every_key_is_admitted_by_its_first_step():
    for options in ({}, {"filter": CounterFilter(1)}, {"filter": CounterFilter(0)}):
        one = made(**options)
        assert read(one, 3) == [10.0]
        train(one, [3])
        assert read(one, 3) == [9.0]


def test_a_bloom_filter_admits_by_its_counts_and_keeps_no_waiting_keys():
    one = made(filter=CBFFilter(3, 10000, 0.01))
    before = one.statistics().bytes
    keys = np.arange(2000)
    train(one, keys)
    train(one, keys)
    assert len(one) < 40, "false positives are few"
    assert one.statistics().waiting == 0
    assert one.statistics().bytes < before + 200_000
    train(one, keys)
    assert len(one) == 2000, "none is counted too low"
    assert set(read(one, *range(40, 2000))) <= {9.0, 8.0, 7.0}


# ---- eviction
def test_global_step_eviction_happens_at_full_saves_only_and_is_strictly_more(tmp_path):
    one = made(evict=GlobalStepEvict(5))
    train(one, [1], 10)
    train(one, [2], 11)
    save([one], tmp_path, step=15)
    assert len(one) == 2
    train(one, [3], 100)
    save([one], tmp_path, incremental=True, step=1000)
    assert len(one) == 3, "an increment evicts nothing"
    save([one], tmp_path, step=16)
    assert read(one, 1, 2) == [10.0, 9.0], "16 - 10 > 5; 16 - 11 is not"
    assert len(one) == 2


def test_l2_eviction_is_half_the_squared_norm_below_the_threshold(tmp_path):
    one = made(first=0.0, evict=L2WeightEvict(2.0))
    train(one, [1], gradient=-1.0)  # half the squared norm: 1
    train(one, [2], gradient=-(2.0**0.5) - 1e-3)  # 2 and more
    save([one], tmp_path)
    assert read(one, 1)[0] == 0.0
    assert read(one, 2)[0] > 1.4


def test_waiting_keys_grow_old_too(tmp_path):
    one = made(filter=CounterFilter(5), evict=GlobalStepEvict(5))
    train(one, range(100), 1)
    train(one, [7], 50)
    save([one], tmp_path, step=50)
    assert one.statistics().waiting == 1


def test_an_evicted_key_begins_anew_and_its_room_is_used_again(tmp_path):
    one = made(evict=GlobalStepEvict(1), filter=CounterFilter(2))
    train(one, list(range(5000)) * 2, 0)
    size = one.statistics().bytes
    save([one], tmp_path, step=10)
    assert len(one) == 0
    train(one, [1], 10)
    assert read(one, 1) == [0.0], "counted from nothing"
    train(one, list(range(5000)) * 2, 11)
    assert len(one) == 5000
    assert one.statistics().bytes == size


# ---- saving
def fresh(**options):
    return made(name="t", **options)


def test_full_and_incremental_saves_restore_to_the_same_table(tmp_path):
    options = {"optimizer": "adam", "filter": CounterFilter(2)}
    one = fresh(**options)
    adam = optim.Adam(0.1)
    for step in range(1, 4):
        adam.state["step"] = step
        train(one, [1, 2, 3, step + 10], step, 0.5 * step, adam)
    save([one], tmp_path)
    adam.state["step"] = 4
    train(one, [2, 11], 4, 1.0, adam)
    path = save([one], tmp_path, incremental=True)
    again = fresh(**options)
    assert restore([again], tmp_path) == 4
    keys = [1, 2, 3, 11, 12, 13, 99]
    assert (again.lookup(np.asarray(keys)) == one.lookup(np.asarray(keys))).all()
    assert again.statistics()[:2] == (4, 2) and one.statistics()[:2] == (4, 2)
    for table in (one, again):  # slots and counts came along: they go on alike
        adam.state["step"] = 5
        train(table, [1, 2, 11, 12], 5, -0.3, adam)
    assert (again.lookup(np.asarray(keys)) == one.lookup(np.asarray(keys))).all()
    header = json.loads((tmp_path / path / "t.safetensors").read_bytes()[8:8192])
    assert header["keys"]["shape"] == [2], "2 and 11: what changed"
    assert not any(name.endswith("_filtered") for name in header), "keys that wait are in full saves only"


def test_a_later_increment_never_brings_an_evicted_key_back(tmp_path):
    one = fresh(evict=GlobalStepEvict(5))
    train(one, [1, 2], 0)
    save([one], tmp_path, step=0)
    train(one, [1], 1)
    save([one], tmp_path, incremental=True)
    train(one, [2, 3], 10)
    save([one], tmp_path, step=10)  # 1 goes, which the increment before has
    train(one, [3], 11)
    save([one], tmp_path, incremental=True)
    again = fresh()
    restore([again], tmp_path)
    assert read(again, 1, 2, 3) == [10.0, 8.0, 8.0]
    assert len(again) == 2


def test_filters_leave_increments_alone(tmp_path):
    one = fresh(filter=CounterFilter(3))
    train(one, [1, 1, 1, 2])
    save([one], tmp_path)
    train(one, [2, 3])
    path = save([one], tmp_path, incremental=True)
    assert json.loads((tmp_path / path / "t.safetensors").read_bytes()[8:8192])["keys"]["shape"] == [0]
    again = fresh(filter=CounterFilter(3))
    restore([again], tmp_path)
    train(again, [2, 2])
    assert read(again, 1, 2) == [7.0, 8.0], "its count of the full save, 1, and 2 more"


def test_a_bloom_filters_counts_are_restored(tmp_path):
    options = {"filter": CBFFilter(3, 1000)}
    one = fresh(**options)
    train(one, [1, 1])
    save([one], tmp_path)
    again = fresh(**options)
    restore([again], tmp_path)
    train(again, [1])
    assert read(again, 1) == [9.0]


def test_tables_without_keys_are_saved_too(tmp_path):
    save([fresh()], tmp_path)
    again = fresh()
    assert restore([again], tmp_path) == 0 and len(again) == 0


def test_rows_are_of_one_moment_while_training_goes_on(tmp_path):
    """Both tables make each step: a save with different numbers of steps in them, or in rows of one, mixes two
    moments."""
    tables = [fresh(first=0.0), made(first=0.0, name="u")]
    keys = np.arange(4000)
    gradients = np.ones((4000, 2), "float32")
    for one in tables:
        one.step(keys, gradients, SGD, 1)
    turn, stop = threading.Lock(), threading.Event()

    def trains():
        step = 1
        while not stop.is_set():
            step += 1
            with turn:  # a save begins between two steps
                for one in tables:
                    one.step(keys, gradients, SGD, step)

    thread = threading.Thread(target=trains)
    thread.start()
    try:
        from vmhost.engine import _array

        for _ in range(8):
            with turn:
                snapshots = _array._embedding_snapshot(tuple(one._table for one in tables), False)
            seen = set()
            for snapshot in snapshots:
                count = 0
                while (piece := _array._embedding_snapshot_read(snapshot, 300))[0]:
                    read, _, freqs, versions, values, _ = piece
                    seen |= set(freqs[:read].tolist()) | set(versions[:read].tolist())
                    seen |= set((-values[:read]).ravel().tolist())
                    count += read
                assert count == 4000
                _array._embedding_snapshot_end(snapshot, True)
            assert len(seen) == 1
    finally:
        stop.set()
        thread.join()


def test_a_save_that_fails_leaves_nothing_and_the_next_increment_has_its_rows(tmp_path, monkeypatch):
    one = fresh()
    train(one, [1])
    save([one], tmp_path)
    train(one, [2])
    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            save([one], tmp_path, incremental=True)
    assert [name for name in sorted(os.listdir(tmp_path)) if name[0] != "."] == ["000001-full"]
    train(one, [3])
    save([one], tmp_path, incremental=True)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".saving")]
    again = fresh()
    restore([again], tmp_path)
    assert read(again, 1, 2, 3) == [9.0, 9.0, 9.0]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "000001-full").rename(folder / "gone"), "there is no full save"),
        (lambda folder: (folder / "000002-incremental").rename(folder / "gone"), "which is missing"),
        (lambda folder: (folder / "000003-incremental" / "save.json").write_text("{"), "cannot be read"),
        (lambda folder: os.truncate(folder / "000001-full" / "t.safetensors", 9000), "is damaged"),
        (lambda folder: os.truncate(folder / "000001-full" / "t.safetensors", 10), "is damaged"),
        (lambda folder: flip(folder / "000001-full" / "t.safetensors", 8200), "keys is damaged"),
        (lambda folder: (folder / "000003-incremental" / "t.safetensors").unlink(), "is damaged"),
    ],
)
def test_damaged_saves_are_refused_with_the_reason(tmp_path, damage, said):
    one = fresh()
    for incremental in (False, True, True):
        train(one, range(200))
        save([one], tmp_path, incremental=incremental)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        restore([fresh()], tmp_path)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_what_does_not_fit_is_refused_with_the_reason(tmp_path):
    one = fresh()
    with pytest.raises(CheckpointError, match="make a full save first"):
        save([one], tmp_path, incremental=True)
    save([one], tmp_path)
    with pytest.raises(CheckpointError, match="trained by sgd, t has 3 and sgd"):
        restore([fresh(dim=3, initializer=None)], tmp_path)
    with pytest.raises(CheckpointError, match="has no table 'u'"):
        restore([made(name="u")], tmp_path)
    train(one, [1])
    with pytest.raises(CheckpointError, match="expected a table without keys"):
        restore([one], tmp_path)
    with pytest.raises(CheckpointError, match="different names"):
        save([one, fresh()], tmp_path)
    with pytest.raises(CheckpointError, match="make a full save first"):
        save([fresh()], tmp_path, incremental=True)


KILLED = """
import sys, threading
from tests.engine.test_embedding_tables import fresh, train, save
one = fresh(first=0.0)
step = 0
print("begun", flush=True)
while True:
    step += 1
    train(one, range(3000), step)
    save([one], sys.argv[1], incremental=step % 4 != 1)
    print("saved", flush=True)
"""


def test_kill_9_while_saving_leaves_the_last_whole_save(tmp_path):
    for round_ in range(3):
        folder = tmp_path / str(round_)
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(3 + 2 * round_):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        again = fresh(first=0.0)
        step = restore([again], folder)
        assert step >= 2 + 2 * round_
        assert set(read(again, *range(3000))) == {-float(step)}
        train(again, [1])
        save([again], folder, incremental=True)


def test_versions_of_a_restored_table_go_on_with_a_new_optimizer(tmp_path):
    one = made(evict=GlobalStepEvict(10))
    old = optim.SGD(1.0)
    for _ in range(100):
        old.state["step"] += 1
        train(one, [1], None, optimizer=old)
    save([one], tmp_path / "first")
    again, beside, new = made(evict=GlobalStepEvict(10)), made(name="beside", evict=GlobalStepEvict(10)), optim.SGD(1.0)
    restore([again], tmp_path / "first")
    layers = [nn.SparseEmbedding(table, "sum") for table in (again, beside)]
    model = nn.Sequential(*layers)
    for key in range(2, 22):
        step = nn.value_and_grad(model, lambda: sum(layer(np.array([[key]])).sum() for layer in layers))  # noqa: B023
        new.update(model, step()[1])
    assert again.statistics().step == beside.statistics().step == 120
    save([again, beside], tmp_path / "second")
    for table in (again, beside):
        assert [key for key in range(1, 22) if read(table, key)[0] < 10] == list(range(11, 22)), table
    resumed = optim.SGD(1.0)
    resumed.state = new.state
    last = made(evict=GlobalStepEvict(10))
    restore([last], tmp_path / "second")
    resumed.state["step"] += 1
    train(last, [30], None, optimizer=resumed)
    assert last.statistics().step == 121


# ---- steps
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: optim.SGD(0.1),
        lambda: optim.Adagrad(0.1, initial=0.1),
        lambda: optim.Adam(0.05),
        lambda: optim.Ftrl(0.1, l1=0.01, l2=0.1),
        lambda: optim.Ftrl(optim.exponential_decay(0.1, 0.5), l1=0.01, l2=0.1),
    ],
    ids=["sgd", "adagrad", "adam", "ftrl", "ftrl with a schedule"],
)
@pytest.mark.usefixtures("backend")
def test_steps_are_those_of_engine_optim(optimizer):
    generator = np.random.default_rng(1)
    first = generator.standard_normal((8, 37)).astype("float32")
    mine, dense = optimizer(), optimizer()
    one = EmbeddingVariable(37, optimizer=mine, initializer=first)
    weights = {"w": first.copy()}
    for _ in range(5):
        gradient = generator.standard_normal((8, 37)).astype("float32")
        gradient[:4] = 0
        dense.apply_gradients({"w": gradient}, weights)
        mine.learning_rate = dense.learning_rate
        mine.state["step"] += 1
        one.step(np.arange(8), gradient, mine)
    assert np.allclose(one.lookup(np.arange(8)), weights["w"], 1e-6, 1e-7)
    assert np.allclose(weights["w"][:4], first[:4])  # without a gradient they stay


def test_nans_stay_where_they_are():
    one = made()
    train(one, [1], gradient=float("nan"))
    train(one, [2])
    assert read(one, 1)[0] != read(one, 1)[0]
    assert read(one, 2) == [9.0]


# ---- errors
def test_keys_that_never_end_meet_the_quota_and_the_table_lives_on():
    one = made(dim=16, quota=2 << 20)
    with pytest.raises(MemoryError, match="raise its quota, or admit fewer"):
        for i in range(1000):
            train(one, np.arange(1000) + 1000 * i)
    kept = len(one)
    assert kept > 1000 and one.statistics().bytes <= 2 << 20
    train(one, [1])
    assert read(one, 1) == [8.0]
    assert len(one) == kept


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 0}, "dim: expected"),
        ({"default_value_dim": 2.5, "initializer": None}, "default_value_dim: expected"),
        ({"optimizer": "rmsprop"}, "optimizer: expected one of sgd"),
        ({"optimizer": optim.AdamW(0.1)}, "optimizer: expected one of sgd"),
        ({"filter": CounterFilter(-1)}, "filter_freq: expected"),
        ({"filter": CBFFilter(2, 0)}, "max_element_size: expected"),
        ({"filter": CBFFilter(2, 100, 1.5)}, "false_positive_probability: expected"),
        ({"filter": 3}, "filter: expected CounterFilter"),
        ({"evict": GlobalStepEvict(-1)}, "steps_to_live: expected"),
        ({"evict": "old"}, "evict: expected GlobalStepEvict"),
        ({"initializer": np.zeros((4, 3))}, "initializer: expected rows of 2"),
        ({"default_value_dim": 0, "initializer": None}, "default_value_dim: expected"),
        ({"quota": -1}, "quota: expected"),
    ],
)
def test_wrong_options_are_refused_by_name(options, said):
    with pytest.raises(ValueError, match=said):
        made(**options)


def test_wrong_steps_are_refused_and_change_nothing():
    one = made()
    with pytest.raises(ValueError, match="the slots of sgd, the optimizer is Adam"):
        train(one, [1], optimizer=optim.Adam(0.1))
    with pytest.raises(ValueError, match="which tables do not support"):
        train(one, [1], optimizer=optim.SGD(0.1, momentum=0.9))
    with pytest.raises(ValueError, match="gradients: expected 2 contiguous rows of 2"):
        one.step(np.asarray([1, 2]), np.ones((3, 2), "float32"), SGD)
    with pytest.raises(TypeError, match="ids: expected an array of whole numbers"):
        one.lookup(np.asarray([1.5]))
    with pytest.raises(ValueError, match="learning_rate: expected"):
        train(one, [1], optimizer=optim.SGD(0.0))
    assert len(one) == 0
    with pytest.raises(LookupError, match="granted to tasks in VMs"):
        table("clicks")
