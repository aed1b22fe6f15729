"""vmhost.engine.numpy against NumPy in the main interpreter, and arrays in VMs: at work, crossing the boundary, shared.

NumPy has its default threading (one thread except for matrix products), and the engine its own, as users get them.
"""

import contextlib
import ctypes
import gc
import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import psutil

import vmhost.engine.numpy as np
from bench import against_numpy, contenders, functions
from bench.cases import ENGINE_CLASSES, ENGINE_SIZES
from bench.functions import ROOT
from bench.measure import Figure, Result, interleaved, per_call_us, per_second, seconds
from bench.tasks.arrays.small import work
from tests.engine import op_cases
from vmhost.engine import library

OURS, NUMPY, ITSELF = "vmhost.engine.numpy", "NumPy", "NumPy, once more"


# ---- operators
def _ratios(name, measured, promises):
    """At most one Result for (Cells, missing functions): speed relative to NumPy. `promises`: a function of the
    Cells."""
    cells, absent = measured
    if not cells:
        return []
    figures = {
        OURS: Figure(tuple(cell.ratio for cell in cells), "x NumPy", "more"),
        ITSELF: Figure(tuple(cell.itself for cell in cells), "x NumPy", "more"),
    }
    return [
        Result(
            name,
            figures,
            promises=tuple(promises(cells)),
            grid=tuple(cells),
            note=f"NumPy against itself: nine of ten within {against_numpy.spread(cells):.0%}"
            + (f"; not there yet: {', '.join(absent)}" if absent else ""),
        )
    ]


def _nearly_all(cells):
    """The promises for a class as a whole; a case within NumPy's noise counts as met."""
    spread = against_numpy.spread(cells)
    share = sum(cell.ratio >= min(0.95, 1 - spread) for cell in cells) / len(cells)
    strict = sum(cell.ratio >= 0.95 for cell in cells) / len(cells)
    mean = math.exp(statistics.fmean(math.log(cell.ratio) for cell in cells))
    yield (
        f"{share:.0%} of {len(cells)} cases at 0.95 or within the spread ({strict:.0%} without it; reach 90 %)",
        share >= 0.9,
    )
    yield f"geometric mean {mean:.2f} (reach 1.1)", mean > 1.1


def _broad(cells):
    """The promises for operators over arrays."""
    yield from _nearly_all(cells)
    minimum = min(cell.ratio for cell in cells)
    yield f"least {minimum:.2f} (reach 0.8)", minimum >= min(0.8, 1 - against_numpy.spread(cells))


def _surface(cells):
    """The promises for functions of the whole surface; each case below half of NumPy's speed needs an entry in
    WHY_SLOWER."""
    yield from _nearly_all(cells)
    slow = sorted((cell for cell in cells if cell.ratio < 0.5), key=lambda cell: cell.ratio)
    yield (
        f"least {min(cell.ratio for cell in cells):.2f}; {len(slow)} under 0.5, each with a reason",
        all(cell.row in against_numpy.WHY_SLOWER for cell in slow),
    )
    for cell in slow:
        yield (
            f"  {cell.ratio:.2f} {cell.row}: {against_numpy.WHY_SLOWER.get(cell.row, 'no reason given')}",
            cell.row in against_numpy.WHY_SLOWER,
        )


def _twice(cells):
    binary = [cell for cell in cells if cell.row.startswith("a + b")]
    ratio = statistics.median(cell.ratio for cell in binary)
    yield f"a + b: {min(cell.ours_us for cell in binary) * 1000:.0f} ns, {ratio:.1f}x NumPy (reach 2x)", ratio >= 2


def _movement(cells):
    transposed = [cell.ratio for cell in cells if cell.column == "transposed"]
    other = [cell.ratio for cell in cells if cell.column == "other"]
    yield f"transposed: least {min(transposed):.2f}x (reach 3x)", min(transposed) >= 3
    mean = math.exp(statistics.fmean(map(math.log, other)))
    yield f"others: geometric mean {mean:.2f}x, least {min(other):.2f}x (reach 1.2x)", min(other) >= 1.2


def _products(threads):
    def promises(cells):
        spread = against_numpy.spread(cells)
        minimum = min(cells, key=lambda cell: cell.ratio)
        mean = math.exp(statistics.fmean(math.log(cell.ratio) for cell in cells))
        yield (
            f"least {minimum.ratio:.2f} at {minimum.row}, geometric mean {mean:.2f} (reach 0.97 of NumPy's OpenBLAS)",
            minimum.ratio >= min(0.97, 1 - spread),
        )

    return promises


@contextlib.contextmanager
def _threads(count):
    """Sets the threads of the engine and of NumPy's OpenBLAS to `count`; False if that OpenBLAS is not found."""
    found = sorted(Path(numpy.__file__).parents[1].glob("numpy.libs/libscipy_openblas64_*"))
    before = library.threads()
    if not found or count > before:
        yield False
        return
    blas = ctypes.CDLL(str(found[0]))
    blas_before = blas.scipy_openblas_get_num_threads64_()
    library.set_threads(count)
    blas.scipy_openblas_set_num_threads64_(count)
    try:
        yield True
    finally:
        library.set_threads(before)
        blas.scipy_openblas_set_num_threads64_(blas_before)


def _over_arrays(quick, classes, sizes):
    """Elementwise operators, reductions and casts; quick: only some of them."""
    layouts = ("contiguous", "strided", "broadcast")
    results = []
    for size in sizes:
        n, every = ENGINE_SIZES[size], 6 if quick else 1
        # calls on few elements are short, so noise is a larger part of them
        rounds = 3 if quick else 25 if n <= 1000 else 9
        for name, cases in (
            ("elementwise", against_numpy.elementwise(n, layouts, every)),
            ("reductions", against_numpy.reductions(n, min(every, 3))),
            ("casts", against_numpy.casts(n, min(every, 4))),
        ):
            if name in classes:
                results += _ratios(f"{name}, {size} elements", against_numpy.measured(cases, rounds), _broad)
    if len(results) > 1:
        results += _ratios("all of these", ([cell for result in results for cell in result.grid], {}), _broad)
    return results


def _operators(quick, classes, sizes):
    rounds = 3 if quick else 7
    results = []
    if "overhead" in classes:
        results += _ratios(
            "operators on 8 elements", against_numpy.measured(against_numpy.overhead(), 3 if quick else 25), _twice
        )
    results += _over_arrays(quick, classes, sizes)
    if "movement" in classes:
        results += _ratios(
            "copies of non-contiguous arrays",
            against_numpy.measured(against_numpy.movement(512 if quick else 2048), rounds),
            _movement,
        )
    if "chains" in classes:
        cases = [case for size in sizes for case in against_numpy.chains(ENGINE_SIZES[size])]
        results += _ratios("expressions of several operators", against_numpy.measured(cases, rounds), _broad)
    for size in sizes if "surface" in classes else ():
        if ENGINE_SIZES[size] <= 100_000:
            results += _ratios(
                f"functions of the surface, {size} elements",
                against_numpy.measured(op_cases.surface_cases(ENGINE_SIZES[size]), 3 if quick else 9),
                _surface,
            )
    for count in (1, 2) if "products" in classes else ():
        with _threads(count) as available:
            if available:
                results += _ratios(
                    f"matrix products, float32, {count} thread{'s' * (count > 1)}",
                    against_numpy.measured(against_numpy.products(256 if quick else 2048), rounds, threaded=count > 1),
                    _products(count),
                )
    return results


# ---- in VMs
def _bundle():
    return contenders.bundle("arrays", ROOT / "bench" / "tasks" / "arrays")


@contextlib.contextmanager
def _vms(count):
    """A host, and a task that may use `count` VMs at once, all of them booted."""
    with contenders.host(cores=count) as host:
        task = host.load(_bundle())
        for future in [task.submit(None, entry="main:keep") for _ in range(count)]:
            future.result()
        yield host, task


def _at_once(call, count):
    for result in [call() for _ in range(count)]:
        result.result()


def _small(rounds, steps):
    """As in compute.py: rounds are short and many, two plain processes run the same in each, and the promise on cores
    is read from the best rounds."""
    calls = 16
    with (
        _vms(1) as (_, one),
        _vms(8) as (_, eight),
        ThreadPoolExecutor(8) as threads,
        contenders.plain_processes(functions.small_arrays, 2) as plain,
    ):
        total = calls * steps
        measures = {
            "8 VMs": lambda: per_second(
                lambda: _at_once(lambda: eight.submit(steps, entry="main:small"), calls), total
            ),
            "1 VM": lambda: per_second(lambda: [one(steps, entry="main:small") for _ in range(calls)], total),
            "8 GIL threads, NumPy": lambda: per_second(
                lambda: _at_once(lambda: threads.submit(work, numpy, steps), calls), total
            ),
            "8 GIL threads, vmhost.engine.numpy": lambda: per_second(
                lambda: _at_once(lambda: threads.submit(work, np, steps), calls), total
            ),
            "two plain processes": lambda: per_second(lambda: plain([steps] * (calls // 2), 2), total),
            "one plain process": lambda: per_second(lambda: plain([steps] * calls, 1), total),
        }
        figures = interleaved(measures, rounds, "steps/s", "more")
    eight, one, two = figures["8 VMs"], figures["1 VM"], figures["two plain processes"]
    many, gil = eight.best / one.best, eight.advantage_over(figures["8 GIL threads, NumPy"])
    return Result(
        "small arrays (32 floats) in VMs",
        figures,
        promises=(
            (
                f"8 VMs: {many:.2f}x one VM (reach 1.9x on 2 cores); median of rounds {eight.advantage_over(one):.2f}x",
                many >= 1.9,
            ),
            (f"8 VMs: {gil:.2f}x NumPy on 8 GIL threads (reach 1.7x)", gil >= 1.7),
        ),
        note=(
            f"two plain processes do {two.best / figures['one plain process'].best:.2f}x one (median of rounds"
            f" {two.advantage_over(figures['one plain process']):.2f}x): what two cores give here; 8 VMs do"
            f" {eight.best / two.best:.2f}x their work (median of rounds {eight.advantage_over(two):.2f}x)"
        ),
    )


def _large(rounds, count, size):
    operations = 2 * size**3
    with _vms(1) as (_, one), _vms(8) as (_, eight):
        measures = {
            "8 VMs": lambda: (
                8
                * count
                * operations
                / 1e9
                / seconds(lambda: _at_once(lambda: eight.submit([count, size], entry="main:products"), 8))
            ),
            "1 VM, all threads": lambda: (
                8 * count * operations / 1e9 / seconds(lambda: one([8 * count, size], entry="main:products"))
            ),
        }
        figures = interleaved(measures, rounds, "GFLOP/s", "more")
    ratio = figures["8 VMs"].advantage_over(figures["1 VM, all threads"])
    return Result(
        f"products of {size} x {size} in VMs",
        figures,
        promises=((f"8 VMs: {ratio:.2f}x one VM on all threads (reach 0.95x)", ratio >= 0.95),),
    )


def _crossing(rounds):
    calls = 50
    with _vms(1) as (_, task):
        arrays = {title: np.zeros(size, dtype="uint8") for title, size in (("64 bytes", 64), ("64 MB", 64_000_000))}
        figures = interleaved(
            {
                f"{title}, host to VM to host": lambda array=array: per_call_us(lambda: task(array), calls)
                for title, array in reversed(arrays.items())
            },
            rounds,
            "us",
            "less",
        )
    large, small = figures.values()
    noise = (small.high - small.low) / small.median
    ratio = large.median / small.median
    return Result(
        "an array of the engine in and out of a VM",
        figures,
        promises=(
            (f"64 MB: {ratio:.2f}x the time of 64 bytes (within noise, {noise:.0%})", ratio <= 1 + max(noise, 0.1)),
        ),
    )


def _private_bytes():
    gc.collect()
    return psutil.Process().memory_full_info().uss


def _shared():
    with _vms(16) as (host, task):
        first, array = np.zeros(64, dtype="uint8"), np.full(64_000_000, 1, dtype="uint8")
        _at_once(
            lambda: task.submit(first, entry="main:keep"), 16
        )  # the engine's module is loaded with the first array
        before = _private_bytes()
        _at_once(lambda: task.submit(array, entry="main:keep"), 16)
        grown = (_private_bytes() - before) / 16 / 1000
        count = sum(1 for vm in host.statistics().vms if vm.task == task.name)
    return Result(
        f"64 MB held by {count} VMs at once",
        {"grown by, each VM": Figure((grown,), "kB", "less")},
        promises=((f"{grown:.0f} kB each (headers only: under 100 kB)", grown < 100),),
    )


def _import(rounds):
    times, sizes = [], []
    for _ in range(rounds):
        with contenders.host() as host:
            task = host.load(_bundle())
            task(None)
            before = _vm_bytes(host, task)
            times.append(task(None, entry="main:imported"))
            sizes.append((_vm_bytes(host, task) - before) / 1000)
    time_taken, size = Figure(tuple(times), "ms", "less"), Figure(tuple(sizes), "kB", "less")
    return [
        Result(
            "import of vmhost.engine.numpy in a VM, time",
            {"first import": time_taken},
            promises=((f"{time_taken.median:.1f} ms (reach 5 ms)", time_taken.median < 5),),
        ),
        Result(
            "import of vmhost.engine.numpy in a VM, memory",
            {"first import": size},
            promises=((f"{size.median:.0f} kB (reach 600 kB)", size.median < 600),),
        ),
    ]


def _vm_bytes(host, task):
    return next(vm.live_bytes for vm in host.statistics().vms if vm.task == task.name)


def _in_vms(quick):
    rounds = 3 if quick else 9
    return [
        _small(3 if quick else 25, 500 if quick else 5000),
        _large(rounds, 1 if quick else 3, 256 if quick else 1024),
        _crossing(rounds),
        _shared(),
        *_import(rounds),
    ]


def run(quick, classes=ENGINE_CLASSES, sizes=None):
    """`classes`: some of ENGINE_CLASSES; `sizes`: some of ENGINE_SIZES; default: all of them (quick: without the
    largest)."""
    sizes = sizes or [size for size, n in ENGINE_SIZES.items() if not quick or n <= 100_000]
    return _operators(quick, classes, sizes) + (_in_vms(quick) if "vms" in classes else [])
