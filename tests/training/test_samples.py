"""Samples from Parquet: every row once and in order, for all batches, files, row groups and threads; positions to
resume from; types of columns; refused files. And a run that a task resumes."""

import itertools

import numpy
import pyarrow as pa
import pytest
from pyarrow import parquet

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle
from vmhost.engine.embedding import EmbeddingVariable, Ragged
from vmhost.engine.features import FeatureSpec, hashed
from vmhost.training.errors import SamplesError
from vmhost.training.runs import Run
from vmhost.training.samples import ParquetSamples


@pytest.fixture
def folder(tmp_path):
    """100 rows, numbered, in three files with row groups of 7."""
    for name, begin, end in (("a", 0, 30), ("b", 30, 31), ("c", 31, 100)):
        rows = range(begin, end)
        table = pa.table({"n": list(rows), "x": [n / 2 for n in rows], "list": [list(range(n % 4)) for n in rows]})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=7)
    return tmp_path


def numbers(samples):
    with samples:
        return [batch["n"].tolist() for batch in samples]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 8, 31, 100, 1000])
def test_each_row_comes_once_and_in_order(folder, batch_size, prefetch):
    batches = numbers(ParquetSamples(folder, batch_size, fields=["n"], prefetch=prefetch))
    assert list(itertools.chain(*batches)) == list(range(100))
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}
    whole = numbers(ParquetSamples(folder, batch_size, fields=["n"], prefetch=prefetch, drop_remainder=True))
    assert whole == batches[: 100 // batch_size]


def test_rows_are_shuffled_within_windows_alike_for_a_seed_and_otherwise_in_each_epoch(folder):
    def order(seed, epochs=1):
        samples = ParquetSamples(folder, 10, fields=["n"], shuffle_window=30, seed=seed, epochs=epochs)
        return list(itertools.chain(*numbers(samples)))

    first = order(1, epochs=2)
    assert sorted(first[:100]) == sorted(first[100:]) == list(range(100))
    assert first[:100] != first[100:] and first == order(1, epochs=2) != order(2, epochs=2)
    assert first[:100] != list(range(100))


def test_partitions_have_each_row_group_once(folder):
    parts = [
        list(itertools.chain(*numbers(ParquetSamples(folder, 9, fields=["n"], partition=(i, 3))))) for i in range(3)
    ]
    assert sorted(itertools.chain(*parts)) == list(range(100)) and all(parts)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_reading_goes_on_from_each_place(folder, prefetch):
    options = {"fields": ["n", "list"], "shuffle_window": 25, "seed": 4, "epochs": 2, "prefetch": prefetch}
    with ParquetSamples(folder, 9, **options) as samples:
        rows = [(batch["n"].tolist(), batch["list"].values.tolist(), dict(samples.position)) for batch in samples]
    for at in range(0, len(rows), 3):
        with ParquetSamples(folder, 9, start=rows[at][2], **options) as samples:
            again = [(batch["n"].tolist(), batch["list"].values.tolist()) for batch in samples]
        assert again == [one[:2] for one in rows[at + 1 :]]


def test_what_columns_become(tmp_path):
    columns = {
        "whole": pa.array([1, None, 3], pa.int32()),
        "real": pa.array([0.5, None, 2.0], pa.float64()),
        "flag": pa.array([True, None, False]),
        "text": pa.array(["a", None, "a"]),
        "coded": pa.array(["x", "y", None]).dictionary_encode(),
        "kept": pa.array(["p", None, "q"]),
        "lists": pa.array([[1, 2], None, [None]], pa.list_(pa.int64())),
        "words": pa.array([["a"], [], ["b", "a"]], pa.large_list(pa.string())),
    }
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    fields = dict.fromkeys(columns) | {"whole": 7, "real": -1.5, "flag": 1, "lists": 9}
    with ParquetSamples(tmp_path / "t.parquet", 10, fields=fields, texts=["kept"]) as samples:
        (batch,) = samples
    assert batch["whole"].tolist() == [1, 7, 3] and batch["whole"].dtype == "int64"
    assert batch["real"].tolist() == [0.5, -1.5, 2.0] and batch["real"].dtype == "float32"
    assert batch["flag"].tolist() == [1, 1, 0] and batch["flag"].dtype == "uint8"
    assert batch["text"].tolist() == numpy.asarray(hashed(["a", None, "a"])).tolist()
    assert batch["coded"].tolist() == numpy.asarray(hashed(["x", "y", None])).tolist()
    assert batch["kept"] == ["p", None, "q"]
    assert (batch["lists"].values.tolist(), batch["lists"].offsets.tolist()) == ([1, 2, 9], [0, 2, 2, 3])
    assert batch["words"].values.tolist() == numpy.asarray(hashed(["a", "b", "a"])).tolist()


def test_a_specification_reads_what_it_needs(tmp_path):
    spec = FeatureSpec(
        {
            "tables": {"t": {"dim": 2}},
            "features": {"price": {"kind": "number", "default": 3}, "item": {"kind": "hashed", "table": "t"}},
        }
    )
    table = pa.table({"price": [1.0, None], "item": ["a", "b"], "other": [1, 2], "y": [0, 1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    with ParquetSamples(tmp_path, 10, spec=spec, labels=["y"]) as samples:
        (batch,) = samples
    assert sorted(batch) == ["item", "price", "y"]
    inputs = spec.transform(batch)
    assert inputs.numbers.tolist() == [[1.0], [3.0]]
    assert inputs.ids["item"].tolist() == numpy.asarray(hashed(["a", "b"])).tolist()


def test_what_does_not_fit_is_told(folder, tmp_path):
    for paths, options, message in (
        (folder, {"fields": ["no"]}, r"a\.parquet: there is no column 'no', but n, x, list"),
        (folder / "none", {}, "there is no such file"),
        (folder, {"partition": (3, 3)}, "partition: expected"),
        (folder, {"batch_size": 101, "epochs": None, "drop_remainder": True}, "no batch would ever come"),
        (folder, {"batch_size": 0}, "batch_size: expected 1 or more, got 0"),
    ):
        with pytest.raises(SamplesError, match=message):
            ParquetSamples(paths, options.pop("batch_size", 5), **options)
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SamplesError, match="junk.parquet: cannot be read as Parquet"):
        ParquetSamples(tmp_path / "junk.parquet", 5, fields=["n"])
    parquet.write_table(pa.table({"n": [1, None]}), tmp_path / "null.parquet")
    with (
        ParquetSamples(tmp_path / "null.parquet", 5) as samples,
        pytest.raises(SamplesError, match="1 values are null"),
    ):
        next(samples)


LEARNS = """
import vmhost.engine.numpy as np
from vmhost.engine import embedding, nn, optim, runs
from vmhost.guest import host

def run(stop_after):
    table = embedding.table("items")
    nn.seed(5)
    rows, out, optimizer = nn.SparseEmbedding(table, "sum"), nn.Linear(3, 1), optim.SGD(0.1)
    model = nn.Sequential(rows, out, lambda x: x[:, 0])
    step = nn.value_and_grad(model, lambda ids, y: nn.binary_cross_entropy(model(ids), y))
    state = host.resume(None)
    if state is not None:
        runs.put_state(state, model=model, optimizer=optimizer)
    done = 0
    while (batch := host.batch(None)) is not None:
        _, gradients = step(np.asarray(batch["n"]) % 10, np.asarray(batch["x"] > 20, "float32"))
        optimizer.update(model, gradients)
        done += 1
        if done % 2 == 0:
            host.checkpoint(runs.state_of(model=model, optimizer=optimizer))
        if done == stop_after:
            return None
    return out.weight
"""


def test_a_task_goes_on_where_a_run_was_saved(folder, tmp_path):
    def train(states, stop_after):
        table = EmbeddingVariable(3, optimizer="sgd", quota=8 << 20, name="items")
        samples = lambda start: ParquetSamples(folder, 10, fields=["n", "x"], shuffle_window=20, seed=2, start=start)
        with Run(tmp_path / states, samples, {"items": table}) as run:
            permissions = {"host": ["batch", "checkpoint", "resume"], "tables": ["items:write"]}
            task = bundle(LEARNS, permissions=permissions)
            with vmhost.Host(allow_unsigned=True, functions=run.functions, tables={"items": table}) as host:
                weight = host.load(task)(stop_after)
            return weight, numpy.asarray(table.lookup(np.arange(10))), run.resumed

    weight, rows, resumed = train("whole", 0)
    assert weight is not None and not resumed
    assert train("cut", 5)[0] is None  # one step beyond the last state
    again, same_rows, resumed = train("cut", 0)
    assert resumed and numpy.asarray(again).tobytes() == numpy.asarray(weight).tobytes()
    assert same_rows.tobytes() == rows.tobytes()


def test_ragged_of_samples_is_that_of_lookups(folder):
    with ParquetSamples(folder, 10, fields=["list"]) as samples:
        assert isinstance(next(samples)["list"], Ragged)
