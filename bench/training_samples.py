"""Samples and saves: Parquet to batches beside pyarrow's own batches, the share of training spent waiting for them, and
saves of a large table: the size of an increment, and how long steps wait."""

import os
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy

from bench.measure import Figure, Result, interleaved

ROWS, BATCH, GROUP = 200_000, 2048, 50_000
INTEGERS, FLOATS = 27, 13  # columns
EXAMPLES = 5000  # rows whose size as tf.Example is measured
MIN_SHARE_OF_PYARROW, MAX_WAITING = 0.8, 0.02
SAVED_ROWS, SAVED_DIM, CHANGED = 10_000_000, 16, 0.01
MAX_INCREMENT, MAX_STALL_MS = 0.02, 50


def run(quick):
    results = [_saves(SAVED_ROWS // 10 if quick else SAVED_ROWS)]
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return results
    with tempfile.TemporaryDirectory() as folder:
        results[:0] = [_parquet(Path(folder), 3 if quick else 9), _waiting(Path(folder))]
    return results


def _parquet(folder, rounds):
    import pyarrow
    from pyarrow import parquet

    from vmhost.training.samples import ParquetSamples

    generator = numpy.random.default_rng(0)
    columns = {f"i{number}": generator.integers(0, 100_000, ROWS) for number in range(INTEGERS)}
    columns |= {f"f{number}": generator.normal(size=ROWS).astype("float32") for number in range(FLOATS)}
    path = folder / "clicks.parquet"
    parquet.write_table(pyarrow.table(columns), path, row_group_size=GROUP)

    def rate(read):
        def once():
            begun = time.perf_counter()
            rows = read()
            assert rows == ROWS
            return rows / (time.perf_counter() - begun) / 1e6

        return once

    def ours(**options):
        with ParquetSamples(path, BATCH, **options) as samples:
            return sum(len(batch["i0"]) for batch in samples)

    def theirs():
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(BATCH, use_threads=False)
            return sum(len([column.to_numpy() for column in batch.columns][0]) for batch in batches)

    contenders = {
        "vmhost": rate(ours),
        "pyarrow iter_batches, to NumPy": rate(theirs),
        "vmhost, shuffled": rate(lambda: ours(shuffle_window=2 * GROUP, seed=1)),
    }
    figures = interleaved(contenders, rounds, "M rows/s", "more")
    ratio = figures["vmhost"].advantage_over(figures["pyarrow iter_batches, to NumPy"])
    promise = f"{ratio:.2f}x pyarrow's batches (at least {MIN_SHARE_OF_PYARROW}x)"
    small = folder / "small.parquet"
    parquet.write_table(pyarrow.table(columns), small, row_group_size=GROUP, compression="zstd")
    size, least = os.path.getsize(path) / ROWS, os.path.getsize(small) / ROWS
    small.unlink()
    records = _example_records(columns, EXAMPLES)
    plain, packed = len(records) / EXAMPLES, len(zlib.compress(records, 6)) / EXAMPLES
    return Result(
        "Parquet to batches, 40 columns",
        figures,
        promises=((promise, ratio >= MIN_SHARE_OF_PYARROW),),
        ratios={"pyarrow": ratio},
        note=f"{BATCH} rows a batch; bytes a row: {INTEGERS * 8 + FLOATS * 4} in memory, {size:.0f} stored,"
        f" {least:.0f} with zstd; tf.Example records {plain:.0f}, with gzip {packed:.0f}"
        f" ({least / packed - 1:+.0%}; vivo: -38 %)",
    )


def _example_records(columns, count):
    """The first rows as TensorFlow's records of tf.train.Example (tensorflow/core/example/feature.proto), with zeros
    instead of checksums."""

    def varint(number):
        parts = bytearray()
        while number > 127:
            parts.append(number & 127 | 128)
            number >>= 7
        return bytes((*parts, number))

    def field(number, content):
        return varint(number << 3 | 2) + varint(len(content)) + content

    whole, names = bytearray(), {name: field(1, name.encode()) for name in columns}
    for row in range(count):
        features = b""
        for name, column in columns.items():
            if column.dtype.kind == "i":
                value = field(3, field(1, varint(int(column[row]))))
            else:
                value = field(2, field(1, column[row].tobytes()))
            features += field(1, names[name] + field(2, value))
        example = field(1, features)
        whole += len(example).to_bytes(8, "little") + bytes(4) + example + bytes(4)
    return bytes(whole)


def _waiting(folder):
    """The share of DeepFM's training (bench/click_networks.py) spent waiting for batches of the file."""
    from bench import click_networks
    from bench.training_networks import our_trainer
    from bench.training_peers import threads_of
    from vmhost.training.samples import ParquetSamples

    _, _, step = our_trainer()
    names = [f"i{number}" for number in range(click_networks.TABLES)], [f"f{number}" for number in range(FLOATS)]
    with threads_of(1, None):
        with ParquetSamples(folder / "clicks.parquet", BATCH, shuffle_window=2 * GROUP) as samples:
            begun = time.perf_counter()
            for batch in samples:
                numbers = numpy.stack([batch[name] for name in names[1]], 1)
                labels = (batch["i26"] % 2).astype("float32")
                step(numpy.stack([batch[name] for name in names[0]], 1), numbers, labels)
            share = samples.waited_s / (time.perf_counter() - begun)
    promise = (f"{share:.1%} of training waits for samples (at most {MAX_WAITING:.0%})", share <= MAX_WAITING)
    return Result("DeepFM from Parquet", {"waiting": Figure((share * 100,), "%", "less")}, (promise,))


def _waited_for_a_cpu_ms():
    """Milliseconds that this thread was ready to run, but had no CPU (Linux's sched-stats)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6


def _saves(rows):
    """A table being trained by a thread while it is saved, first completely, then as an increment."""
    import vmhost.engine.numpy as np
    from vmhost.engine import optim
    from vmhost.engine.embedding import EmbeddingVariable, save

    optimizer = optim.Adagrad(0.1, initial=0.1)
    table = EmbeddingVariable(SAVED_DIM, optimizer=optimizer, name="t")
    for begin in range(0, rows, 100_000):
        keys = np.arange(begin, min(begin + 100_000, rows))
        table.step(keys, np.ones((len(keys), SAVED_DIM), "float32"), optimizer, 1)
    generator, ended, stalls, queued = numpy.random.default_rng(0), threading.Event(), [], []
    part = np.ones((2048, SAVED_DIM), "float32")

    def train():
        keys = [np.asarray(generator.integers(0, int(rows * CHANGED), 2048)) for _ in range(16)]
        while not ended.is_set():
            waited, begun = _waited_for_a_cpu_ms(), time.perf_counter()
            table.step(keys[len(stalls) % 16], part, optimizer, 2)
            stalls.append((time.perf_counter() - begun) * 1000)
            queued.append(_waited_for_a_cpu_ms() - waited)

    def bytes_of(path):
        return sum(one.stat().st_size for one in Path(path).iterdir())

    with tempfile.TemporaryDirectory() as folder:
        trainer = threading.Thread(target=train)
        trainer.start()
        begun = time.perf_counter()
        full = bytes_of(save([table], folder))
        whole_s = time.perf_counter() - begun
        ended.set()
        trainer.join()
        save([table], folder, incremental=True)
        table.step(np.arange(int(rows * CHANGED)), np.ones((int(rows * CHANGED), SAVED_DIM), "float32"), optimizer, 3)
        begun = time.perf_counter()
        increment = bytes_of(save([table], folder, incremental=True))
        part_s = time.perf_counter() - begun
    share, stall = increment / full, max(stalls)
    return Result(
        f"saves of {rows:,} rows of D{SAVED_DIM} with slots",
        {
            "full": Figure((whole_s * 1000,), "ms", "less"),
            f"increment of {CHANGED:.0%}": Figure((part_s * 1000,), "ms", "less"),
            "a step of 2048 keys meanwhile": Figure(tuple(stalls), "ms", "less"),
        },
        promises=(
            (f"an increment of {CHANGED:.0%} has {share:.1%} of the bytes (at most {MAX_INCREMENT:.0%})",
             share <= MAX_INCREMENT),
            (f"the longest step while all is saved: {stall:.0f} ms (below {MAX_STALL_MS})", stall < MAX_STALL_MS),
        ),
        note=f"{full / 1e6:,.0f} MB and {increment / 1e6:,.1f} MB; of that longest step"
        f" {queued[stalls.index(stall)]:.0f} ms waiting for a CPU that had other work",
    )  # fmt: skip
