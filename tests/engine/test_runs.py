"""Runs: states that resume one bit for bit, also after kill -9; early stopping, scores of clicks,
permutation importance."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import vmhost.engine.numpy as np
from vmhost.engine import nn, optim, runs
from vmhost.engine.embedding import CounterFilter, EmbeddingVariable, Ragged
from vmhost.engine.nn import auc, calibration, gauc

STEPS, EVERY = 30, 5


class Net(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.rows = nn.SparseEmbedding(table, "sum")
        self.deep = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def __call__(self, ids):
        return self.deep(self.rows(ids))[:, 0]


def trained(folder, kill_at=None):
    """Resumes the run of `folder`: its weights and table afterwards. `kill_at`: the step in which it is killed."""
    nn.seed(3)
    table = EmbeddingVariable(4, optimizer="adam", filter=CounterFilter(2), name="items")
    net, optimizer = Net(table), optim.Adam(optim.cosine_decay(0.05, STEPS))
    draw = np.random.default_rng(7)
    state = runs.load(folder, tables=[table])
    if state is not None:
        runs.put_state(state, model=net, optimizer=optimizer, generators={"draw": draw})
    step = nn.value_and_grad(net, lambda ids, y: nn.binary_cross_entropy(net(ids), y))
    for number in range(0 if state is None else state["step"], STEPS):
        ids = draw.integers(0, 40, (16, 3))
        _, gradients = step(ids, (ids[:, 0] < 20).astype("float32"))
        if number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.update(net, gradients)
        if (number + 1) % EVERY == 0:
            saved = runs.state_of(model=net, optimizer=optimizer, generators={"draw": draw}, step=number + 1)
            runs.save(folder, saved, tables=[table])
    weights = [
        one for one in net.deep.modules() for one in (getattr(one, "weight", None), getattr(one, "running_mean", None))
    ]
    keys = table.lookup(np.arange(40))
    return [one.tobytes() for one in weights if one is not None] + [keys.tobytes()]


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    whole = trained(tmp_path / "whole")
    code = f"from tests.engine.test_runs import trained; trained({str(tmp_path / 'killed')!r}, {{}})"
    for kill_at in (3, 17):  # before the first state, and between two
        ended = subprocess.run(
            [sys.executable, "-c", code.format(kill_at)], cwd=os.getcwd(), env=os.environ, timeout=120
        )
        assert ended.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed").glob("run-*"))) == 2
    assert trained(tmp_path / "killed") == whole


def table_of(rows):
    table = EmbeddingVariable(2, optimizer="sgd", name="t")
    if rows:
        table.step(np.arange(rows), np.ones((rows, 2), "float32"), optim.SGD(1.0), 1)
    return table


def test_a_state_is_a_tree_that_comes_back(tmp_path):
    state = {"step": 3, "told": [0.1, None, True, "a"], "more": {"x": np.arange(3), "y": [np.ones((2, 2), "float32")]}}
    runs.save(tmp_path, state)
    again = runs.load(tmp_path)
    assert again["told"] == state["told"] and again["step"] == 3
    assert (again["more"]["x"] == np.arange(3)).all() and again["more"]["y"][0].shape == (2, 2)
    assert runs.load(tmp_path / "nothing") is None


def test_names_that_meet_in_a_state_are_refused(tmp_path):
    for state in (
        {"a/b": np.ones(1), "a": {"b": np.zeros(1)}},
        {"a": {"b": {"c": np.ones(1)}, "b/c": np.zeros(1)}},
        {"a": [np.ones(1)], "a/0": np.zeros(1)},
    ):
        with pytest.raises(runs.RunError, match="two arrays of the state have this name"):
            runs.save(tmp_path, state)
    assert runs.load(tmp_path) is None
    runs.save(tmp_path, {"": np.ones(1), "__metadata__": np.asarray(3.0), "array": np.zeros(2)})
    again = runs.load(tmp_path)
    assert again[""].tolist() == [1] and again["__metadata__"].tolist() == 3 and again["array"].tolist() == [0, 0]


def test_what_a_folder_keeps(tmp_path):
    """Two states, and the saves of tables that they refer to."""
    table = table_of(100)
    for step in range(2, 9):
        table.step(np.arange(10), np.ones((10, 2), "float32"), optim.SGD(1.0), step)
        runs.save(tmp_path, {"step": step}, tables=[table], full=step in (2, 7))
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-000006", "run-000007"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["000006-full", "000007-incremental"]
    again = table_of(0)
    assert runs.load(tmp_path, tables=[again])["step"] == 8
    assert (again.lookup(np.arange(100)) == table.lookup(np.arange(100))).all()


def test_increments_are_chosen_where_few_rows_changed(tmp_path):
    table = table_of(100)
    runs.save(tmp_path, {}, tables=[table])
    table.step(np.arange(10), np.ones((10, 2), "float32"), optim.SGD(1.0), 2)
    runs.save(tmp_path, {}, tables=[table])
    table.step(np.arange(90), np.ones((90, 2), "float32"), optim.SGD(1.0), 3)
    runs.save(tmp_path, {}, tables=[table])
    names = sorted(path.name for path in (tmp_path / "tables").iterdir())
    assert [name.partition("-")[2] for name in names] == ["full", "incremental", "full"]


def test_a_state_that_is_not_whole_is_not_there(tmp_path, monkeypatch):
    """Each file operation of a save fails once; the state before stays the last one, and the next save works."""
    table = table_of(50)
    runs.save(tmp_path, {"step": 1, "x": np.arange(9)}, tables=[table])
    failed = 0
    for name in ("mkdir", "fsync", "rename", "replace", "open", "listdir"):
        for after in range(8):
            real, left = getattr(os, name), [after]

            def failing(*args, real=real, left=left, **kwargs):
                left[0] -= 1
                if left[0] == -1:
                    raise OSError(28, "No space left on device")
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, failing)
            try:
                runs.save(tmp_path, {"step": 2, "x": np.arange(10)}, tables=[table])
            except OSError:
                failed += 1
            finally:
                monkeypatch.setattr(os, name, real)
            again = table_of(0)
            state = runs.load(tmp_path, tables=[again])
            assert len(state["x"]) == 8 + state["step"] and len(again) == 50
    assert failed > 10
    runs.save(tmp_path, {"step": 3}, tables=[table])
    assert runs.load(tmp_path)["step"] == 3 and not list(tmp_path.glob(".saving-*"))


def test_damage_is_told(tmp_path):
    path = runs.save(tmp_path, {"x": np.arange(100)})
    file = Path(path) / "arrays.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(runs.RunError, match="arrays.safetensors: is damaged"):
        runs.load(tmp_path)
    (Path(path) / "state.json").write_bytes(b"{")
    with pytest.raises(runs.RunError, match="run-000001: cannot be read"):
        runs.load(tmp_path)
    with pytest.raises(runs.RunError, match="x: expected arrays, numbers and texts, got set"):
        runs.save(tmp_path, {"x": {1, 2}})
    runs.save(tmp_path, {"y": 1})
    with pytest.raises(runs.RunError, match="was saved without tables"):
        runs.load(tmp_path, tables=[table_of(0)])


def test_a_state_of_another_model_is_refused():
    nn.seed(0)
    state = runs.state_of(model=nn.Linear(3, 2), optimizer=optim.SGD(0.1))
    with pytest.raises(runs.RunError, match=r"model: the state has no weight of float32 \(2, 4\)"):
        runs.put_state(state, model=nn.Linear(4, 2))
    with pytest.raises(runs.RunError, match="model: it has no bias"):
        runs.put_state(state, model=nn.Linear(3, 2, bias=False))
    with pytest.raises(runs.RunError, match="optimizer: the state has none"):
        runs.put_state(runs.state_of(), optimizer=optim.SGD(0.1))
    with pytest.raises(runs.RunError, match="the state has no 'draw'"):
        runs.put_state(state, generators={"draw": np.random.default_rng(1)})


def test_early_stopping():
    stopping = runs.EarlyStopping(2, min_delta=0.01)
    assert [stopping(score) for score in (0.7, 0.75, 0.755, float("nan"))] == [False, False, False, True]
    assert stopping.best == 0.75 and stopping.best_at == 1 and not stopping.improved
    of_losses = runs.EarlyStopping(1, higher=False)
    assert [of_losses(loss) for loss in (0.7, 0.6, 0.6)] == [False, False, True]
    again = runs.EarlyStopping(2)
    again.state = dict(stopping.state)
    assert again(0.9) is False and again.improved


def test_gauc_is_the_weighted_mean_of_groups():
    draw = numpy.random.default_rng(0)
    labels, scores, groups = draw.integers(0, 2, 2000), draw.integers(0, 20, 2000) / 20, draw.integers(0, 300, 2000)
    total = weight = 0
    for group in numpy.unique(groups):
        some = groups == group
        if 0 < labels[some].sum() < some.sum():
            total += some.sum() * auc(labels[some], scores[some])
            weight += some.sum()
    assert gauc(labels, scores, groups) == pytest.approx(total / weight, abs=1e-12)
    with pytest.raises(ValueError, match="a group with examples of both labels"):
        gauc([0, 1], [0.1, 0.2], [1, 2])
    with pytest.raises(ValueError, match="there are NaNs"):
        gauc([0, 1], [0.1, float("nan")], [1, 1])


def test_calibration_tells_what_is_off():
    draw = numpy.random.default_rng(0)
    p = draw.random(20_000)
    labels = draw.random(20_000) < p
    right, doubled = calibration(labels, p), calibration(labels, numpy.minimum(p * 2, 1))
    assert right.ratio == pytest.approx(1, abs=0.03) and right.error < 0.02 and len(right.bins) == 10
    assert doubled.ratio > 1.4 and doubled.error > 0.2
    assert sum(size for size, _, _ in right.bins) == 20_000


def test_permutation_importance_finds_what_matters():
    draw = numpy.random.default_rng(0)
    bags = [list(map(int, draw.integers(0, 9, draw.integers(0, 4)))) for _ in range(400)]
    columns = {
        "x": draw.random(400),
        "noise": draw.random(400),
        "text": [str(i % 2) for i in range(400)],
        "bag": Ragged.of(bags),
    }
    labels = numpy.array([a > 0.5 for a in columns["x"]])

    def score(given):
        counts = numpy.diff(numpy.asarray(given["bag"].offsets))
        assert counts.sum() == len(given["bag"].values) and sorted(counts) == sorted(map(len, bags))
        return auc(labels, numpy.asarray(given["x"]) + 0.1 * numpy.array([one == "1" for one in given["text"]]))

    found = runs.permutation_importance(score, columns)
    assert list(found)[0] == "x" and found["x"] > 0.3 and found["noise"] == 0 and found["bag"] == 0
    assert runs.permutation_importance(score, columns, {"both": ("x", "text")})["both"] > 0.3
