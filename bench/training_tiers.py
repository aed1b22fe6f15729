"""Embedding tables with rows on disk: single-threaded lookups with Zipf-distributed keys, with parts of the rows in
memory."""

import itertools
import tempfile
import time

import numpy

from bench.measure import Result, interleaved
from bench.training_peers import threads_of

DIM, BATCH, SKEW, CALLS, WARM = 64, 4096, 1.05, 16, 64
SHARES = (0.1, 0.5, 0.9)


def run(quick):
    return [_lookups(100_000 if quick else 1_000_000, 3 if quick else 9)]


def zipf(generator, rows, count):
    """Keys whose r-th most popular one has a probability proportional to r ** -SKEW; popularity is independent of the
    key's number."""
    weights = numpy.arange(1, rows + 1) ** -SKEW
    ranks = numpy.searchsorted(numpy.cumsum(weights) / weights.sum(), generator.random(count))
    return numpy.random.default_rng(7).permutation(rows)[numpy.minimum(ranks, rows - 1)]


def _lookups(rows, rounds):
    import vmhost.engine.numpy as np
    from vmhost.engine import _array, optim
    from vmhost.engine.embedding import EmbeddingVariable, SSDStorage

    optimizer = optim.Adagrad(0.1, initial=0.1)
    row_bytes = 2 * DIM * 4 + 44
    drawn = zipf(numpy.random.default_rng(1), rows, BATCH * (WARM + (rounds + 1) * CALLS)).reshape(-1, BATCH)
    first, asked = drawn[:WARM], drawn[WARM:]
    with tempfile.TemporaryDirectory() as folder:

        def made(share):
            storage = None if share is None else SSDStorage(folder, int(rows * row_bytes * share), 4 * rows * row_bytes)
            table = EmbeddingVariable(DIM, optimizer=optimizer, default_value_dim=1, storage=storage, name="t")
            for begin in range(0, rows, 50_000):
                keys = np.arange(begin, min(begin + 50_000, rows))
                table.step(keys, np.ones((len(keys), DIM), "float32"), optimizer, 1)
            for one in first:  # brings the needed rows into memory
                _array._embedding_lookup(table.handle, np.asarray(one))
            return table

        def rate(table):
            turns = iter([np.asarray(one) for one in asked])  # each used once

            def once():
                calls = list(itertools.islice(turns, CALLS))
                begun = time.perf_counter()
                for one in calls:
                    _array._embedding_lookup(table.handle, one)
                return BATCH * CALLS / (time.perf_counter() - begun) / 1e6

            return once

        tables = {"all in memory": made(None)} | {f"{share:.0%} in memory": made(share) for share in SHARES}
        with threads_of(1, None):
            figures = interleaved({name: rate(table) for name, table in tables.items()}, rounds, "M rows/s", "more")
        hits = []
        for name, table in tables.items():
            counts = table.statistics()
            if looked := counts.memory_hits + counts.disk_hits:
                hits.append(f"{name}: {counts.memory_hits / looked:.1%} found there")
    ratios = {name: figures[name].advantage_over(figures["all in memory"]) for name in tables if "all" not in name}
    note = (
        f"{rows:,} rows of D{DIM} with a slot, LFU, {BATCH} keys a call, Zipf {SKEW}; 1 thread; file in the page cache"
    )
    return Result("lookups: rows on disk", figures, ratios=ratios, note="; ".join([note, *hits]))
