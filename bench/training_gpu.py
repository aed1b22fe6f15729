"""Serving and tables on an NVIDIA GPU: `python -m bench.training_gpu [--quick] [--json FILE]`. Needs a GPU and
libvme_cuda.so (`make cuda`); not part of `vmhost bench training`, which runs everywhere.

A session group answers DeepFM's calls from several callers, with each of the GPU's switches on and off: milliseconds
per call (median and P99), calls per second, and GPU utilization. Then a network alone, lookups, and gradient steps."""

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from bench import click_networks
from bench.training_serving import _asked, _Publisher

SESSIONS, SIZES = 8, (512, 2048)
SWITCHES = {  # name in the table: options that are off
    "all on": {},
    "one stream for all sessions": {"streams": False},
    "a copy of each input": {"merged_copies": False},
    "copies on a stream of their own": {"copy_stream": True},
    "no graphs": {"graphs": False},
    "nothing fused": {"fused": False},
    "tables in the host's memory": {"device_tables": False},
    "tables in the host's, no graphs": {"device_tables": False, "graphs": False},
    "all off": {"streams": False, "merged_copies": False, "graphs": False, "fused": False, "device_tables": False},
}


def _share(times, part):
    return sorted(times)[min(int(len(times) * part), len(times) - 1)]


class _Utilisation:
    """Samples nvidia-smi's GPU utilization in per cent, and averages it."""

    def __enter__(self):
        self.process = subprocess.Popen(
            ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"],
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self.process.terminate()
        text, _ = self.process.communicate()
        found = [int(one) for one in text.split() if one.isdecimal()][3:]  # the first ones cover the time before
        self.mean = statistics.mean(found) if found else float("nan")


def groups(folder, seconds, sizes=SIZES, callers=(1, 8)):
    """Rows of the table of session groups."""
    from vmhost.engine.cuda import Options
    from vmhost.serving.sessions import SessionGroup

    publisher, rows = _Publisher(folder, "deepfm"), []
    for size in sizes:
        inputs = [publisher.inputs(size, seed) for seed in range(1, 9)]
        for name, off in {"CPU, one thread a session": None, **SWITCHES}.items():
            options = {"sessions": SESSIONS, "warmup": (size,)}
            if off is not None:
                own = {key: value for key, value in off.items() if key != "device_tables"}
                options |= {"device": "cuda", "device_options": Options(**own)}
                options["device_tables"] = off.get("device_tables", True)
            with SessionGroup(folder / "served", **options) as group:
                _asked(group, inputs, 0.3, 8)
                for count in callers:
                    with _Utilisation() as busy:
                        times, rate, errors, _ = _asked(group, inputs, seconds, count)
                    if errors:
                        raise errors[0]
                    launches = 0
                    if off is not None:
                        launches = next(iter(group._sessions[0].network.launches.values()))
                    rows.append(
                        {
                            "size": size,
                            "how": name,
                            "callers": count,
                            "median_ms": statistics.median(times),
                            "p99_ms": _share(times, 0.99),
                            "calls_a_second": rate,
                            "busy": busy.mean if off is not None else None,
                            "launches": launches,
                        }
                    )
                    print(_row(rows[-1]), flush=True)
    return rows


def _row(one):
    busy = "" if one["busy"] is None else f"{one['busy']:.0f} %"
    return (
        f"batch {one['size']:5} | {one['how']:34} | callers {one['callers']} | {one['median_ms']:7.2f} ms |"
        f" p99 {one['p99_ms']:7.2f} | {one['calls_a_second']:7.0f}/s | {busy:5} | {one['launches'] or ''}"
    )


def network(data, rounds):
    """Microseconds per call of the network alone, with staged inputs: median and P99, by switches; and on the CPU."""
    from vmhost.engine.cuda import Options
    from vmhost.engine.models import opened

    rows = []
    for size in SIZES:
        cases = {"all on": Options(), "no graphs": Options(graphs=False), "nothing fused": Options(fused=False),
                 "no graphs, nothing fused": Options(graphs=False, fused=False),
                 "a copy of each input": Options(merged_copies=False)}  # fmt: skip
        for name, options in cases.items():
            model = opened("deepfm", data, device="cuda", device_options=options)
            model.warmup({"batch": size})
            staged = model.staging({"batch": size})
            rows.append((f"network, batch {size}, {name}", *_timed(lambda: model(staged), rounds)))
        cpu = opened("deepfm", data, threads=1)
        inputs = {name: array.copy() for name, array in staged.items()}
        rows.append((f"network, batch {size}, CPU one thread", *_timed(lambda: cpu(inputs), rounds // 20)))
    return rows


def _timed(call, rounds):
    times = []
    for _ in range(max(rounds, 5)):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e6)
    times = times[len(times) // 5 :]
    return statistics.median(times), _share(times, 0.99)


def tables(rounds, large):
    """Microseconds of lookups and gradient steps, from and to the host's arrays, with tables on the host and on the
    GPU."""
    import numpy

    import vmhost.engine.numpy as np
    from vmhost.engine import optim
    from vmhost.engine.cuda import CudaTable
    from vmhost.engine.embedding import EmbeddingVariable, group_embedding_lookup_sparse

    rows, optimizer = [], optim.Adagrad(0.01, initial=0.1)
    optimizer.state["step"] = 1

    def filled(kind, dim, count):
        table = kind(dim, optimizer=optimizer, initializer=0.05, name="t")
        for begin in range(0, count, 500_000):
            keys = numpy.arange(begin, min(begin + 500_000, count))
            table.step(np.asarray(keys), np.ones((len(keys), dim), "float32"), optimizer)
        return table

    for where, kind in (("GPU", CudaTable), ("CPU", EmbeddingVariable)):
        some = [filled(kind, click_networks.DIM, 100_000) for _ in range(click_networks.TABLES)]
        for size in SIZES:
            [(keys, _, _)] = click_networks.batches(1, size)
            ids = [np.asarray(keys[:, i].copy()) for i in range(len(some))]
            look = _timed(lambda: group_embedding_lookup_sparse(some, ids, combiners="sum", together=True), rounds)
            rows.append((f"{where}: 26 lookups of D16, batch {size}", *look))
        [(keys, _, _)] = click_networks.batches(1, 512)
        flat, gradient = np.asarray(keys.reshape(-1)), np.ones((keys.size, click_networks.DIM), "float32")
        step = _timed(lambda: some[0].step(flat, gradient, optimizer), rounds)
        rows.append((f"{where}: a gradient step of {keys.size:,} keys of one table", *step))
        for count in (100_000, large):
            table = filled(kind, 64, count)
            ids = [np.asarray(numpy.random.default_rng(0).integers(0, count, (4096, 20)))]
            read = _timed(lambda: group_embedding_lookup_sparse([table], ids, combiners="sum"), rounds // 4)
            rows.append((f"{where}: 4,096 bags of 20 of D64, {count:,} rows", *read))
    return rows


def run(quick):
    from vmhost.engine.cuda import gpu

    facts = gpu().facts()
    found = {"gpu": facts.name}
    print(facts.name, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found["groups"] = groups(Path(folder) / "deepfm", 0.5 if quick else 1.0)
        data = _network_of(Path(folder) / "deepfm" / "served")
        found["network"] = network(data, 200 if quick else 1000)
    for one in found["network"]:
        print(f"{one[0]:60} | {one[1]:9.1f} us | p99 {one[2]:9.1f}", flush=True)
    found["tables"] = tables(50 if quick else 200, 1_000_000 if quick else 4_000_000)
    for one in found["tables"]:
        print(f"{one[0]:60} | {one[1]:9.1f} us | p99 {one[2]:9.1f}", flush=True)
    return found


def _network_of(served):
    return sorted(served.glob("version-*/network.vmm"))[-1].read_bytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs, and tables of 1 M rows in place of 4 M")
    parser.add_argument("--json", metavar="FILE", help="where the figures are written too")
    asked = parser.parse_args()
    figures = run(asked.quick)
    assert threading.active_count() == 1
    if asked.json:
        Path(asked.json).write_text(json.dumps(figures, indent=1))
