"""Lookups of embedding tables, one thread: rows per second of `group_embedding_lookup_sparse`, for tables with hashed
keys and plain ones (arrays), beside a probe in C without locks, growth or checks (bench/lookup_probe.c), and torch's
`embedding_bag` on plain tables if installed (`make training-peers`)."""

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import numpy

from bench.measure import Result, interleaved
from bench.training_peers import threads_of, torch_or_none

_PROBE = Path(__file__).with_name("lookup_probe.c")
_BAGS = 2048


def run(quick):
    results, rounds = [], 5 if quick else 15
    sizes = [("26 tables of 100 k rows, D16, single keys", 26, 100_000, 16, 1)]
    sizes += [(f"bags of 20, D64, {rows:,} rows".replace(",", " "), 1, rows, 64, 20) for rows in (100_000, 4_000_000)]
    for name, tables, rows, dim, each in sizes[:2] if quick else sizes:
        results.append(_lookups(name, tables, rows, dim, each, rounds))
    return results


def _lookups(name, tables, rows, dim, each, rounds):
    generator = numpy.random.default_rng(1)
    keys = [numpy.sort(generator.choice(2**62, rows)) for _ in range(tables)]
    places = [[generator.integers(0, rows, _BAGS * each) for _ in range(tables)] for _ in range(8)]
    with threads_of(1, torch_or_none()):
        contenders = {"vmhost": _ours(keys, dim, each, places), "vmhost, plain": _plain(rows, dim, each, places)}
        contenders |= _probes(keys, dim, each, places) | _torch(rows, tables, dim, each, places)
        figures = interleaved(contenders, rounds, "M rows/s", "more")
    ratios = {peer: figures["vmhost"].advantage_over(of) for peer, of in figures.items() if "vmhost" not in peer}
    note = f"{_BAGS} bags a call; uniform keys; 1 thread"
    wanted, promises = 1.3 if each == 1 else 1.0, ()
    if "torch embedding_bag, plain" in ratios:
        ratio = ratios["torch embedding_bag, plain"]
        plain = figures["vmhost, plain"].advantage_over(figures["torch embedding_bag, plain"])
        promises = (
            (f"hashed keys, {ratio:.2f}x torch's plain tables (at least {wanted}x)", ratio >= wanted),
            (f"plain tables, {plain:.2f}x torch's (at least 1.3x)", plain >= 1.3),
        )
    return Result(f"lookups: {name}", figures, promises=promises, ratios=ratios, note=note)


def _rate(call, places):
    """Millions of rows per second, of calls with each of the drawn places."""

    def once():
        begun = time.perf_counter()
        for one in places:
            call(one)
        return sum(len(ids) for ids in places[0]) * len(places) / (time.perf_counter() - begun) / 1e6

    return once


def _plain(rows, dim, each, places):
    import vmhost.engine.numpy as np

    made = [np.ones((rows, dim), "float32") for _ in places[0]]
    return _of_engine(made, [[np.asarray(at).reshape(_BAGS, each) for at in one] for one in places])


def _of_engine(tables, asked):
    from vmhost.engine.embedding import group_embedding_lookup_sparse

    call = _rate(lambda one: group_embedding_lookup_sparse(tables, one, combiners="sum", together=True), asked)
    each = asked[0][0].shape[1]

    def once():
        return call() * each  # `len` of an array [bags, each] is its bags

    return once


def _ours(keys, dim, each, places):
    import vmhost.engine.numpy as np
    from vmhost.engine import _array
    from vmhost.engine.embedding import EmbeddingVariable

    made = []
    for number, own in enumerate(keys):
        table = EmbeddingVariable(dim, optimizer="sgd", default_value_dim=1, name=f"t{number}")
        for begin in range(0, len(own), 65536):
            part = np.asarray(own[begin : begin + 65536])
            zeros = np.zeros(len(part), "int64")
            values = np.ones((len(part), dim), "float32")
            _array._embedding_put(table.handle, part, zeros, zeros, values, np.zeros((len(part), 0), "float32"))
        made.append(table)
    return _of_engine(
        made, [[np.asarray(own[at]).reshape(_BAGS, each) for own, at in zip(keys, one)] for one in places]
    )


def _probes(keys, dim, each, places):
    try:
        folder = tempfile.TemporaryDirectory()
        library = f"{folder.name}/probe.so"
        subprocess.run(
            ["cc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", str(_PROBE), "-o", library],
            check=True,
            capture_output=True,
        )
    except OSError, subprocess.CalledProcessError:
        return {}
    probe = ctypes.CDLL(library)
    probe.probe_new.restype = ctypes.c_void_p

    def pointer(array):
        return ctypes.c_void_p(array.ctypes.data)

    made = [
        ctypes.c_void_p(probe.probe_new(ctypes.c_int64(len(own)), ctypes.c_int64(dim), pointer(own))) for own in keys
    ]
    hashed = [[own[at] for own, at in zip(keys, one)] for one in places]
    sums = numpy.empty((_BAGS, dim), "float32")

    def call(by_key):
        def of(asked):
            for one, ids in zip(made, asked):
                probe.probe_bags(
                    one, ctypes.c_int64(_BAGS), ctypes.c_int64(each), pointer(ids), ctypes.c_int(by_key), pointer(sums)
                )

        return of

    return {
        "probe in C, hashed": _rate(call(1), hashed),
        "probe in C, plain": _rate(call(0), places),
    }


def _torch(rows, tables, dim, each, places):
    torch = torch_or_none()
    if torch is None:
        return {}
    made = [torch.ones(rows, dim) for _ in range(tables)]
    asked = [[torch.from_numpy(at.reshape(_BAGS, each)) for at in one] for one in places]

    def call(one):
        with torch.no_grad():
            torch.cat([torch.nn.functional.embedding_bag(at, table, mode="sum") for table, at in zip(made, one)], 1)

    rate = _rate(call, asked)
    return {"torch embedding_bag, plain": lambda: rate() * each}
