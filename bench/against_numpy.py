"""vmhost.engine.numpy against NumPy in the main interpreter, operator by operator, on the same values and layouts.

A case is timed in rounds: ours, NumPy's, NumPy's again, each as many calls in a row as fill about a third of a
millisecond; the minimum of each counts, which is least affected by other load. NumPy's two figures give its noise,
against which ratios should be read. Cases of functions that vmhost.engine.numpy lacks are left out and named.

Where NumPy uses threads, each sample waits until no thread of this process runs: after a call the threads of NumPy's
OpenBLAS spin for a tenth of a second, which would slow the next contender. The sample then starts with ten milliseconds
of uncounted calls: after such a rest 16 MB have left the caches, and ours, which runs after NumPy's, would read them
from memory (a matrix-vector product takes 540 us in the second call after a rest, 350 from the third on, 290 in the
end), while NumPy's, which runs after ours, would not."""

import functools
import gc
import itertools
import time

import numpy

import vmhost.engine.numpy as np
from bench.measure import Cell
from tests.engine import op_cases

SAMPLE_S, WARM_S = 3e-4, 1e-2
CASE_S, MIN_ROUNDS = 0.3, 3  # time limit for the rounds of a case, and their minimum number
POLL_S, IDLE, MAX_POLLS = 5e-3, 0.1, 200  # idle: threads used less than this share of an interval of POLL_S


def measured(cases, rounds, threaded=False):
    """(Cells, names of missing functions) for `cases`: (row, column, function of a module, arguments as NumPy arrays)
    each.

    `threaded`: NumPy uses threads in these.
    """
    cells, absent = [], {}
    for row, column, function, arguments in cases:
        arguments = arguments() if callable(arguments) else arguments
        ours = [np.asarray(argument) if isinstance(argument, numpy.ndarray) else argument for argument in arguments]
        try:
            function(np, *ours)
        except (AttributeError, NotImplementedError) as error:
            absent[row] = str(error)
            continue
        cells.append(
            Cell(
                row,
                column,
                *_times(
                    functools.partial(function, np, *ours),
                    functools.partial(function, numpy, *arguments),
                    rounds,
                    threaded,
                ),
            )
        )
    return cells, absent


def _times(ours, theirs, rounds, threaded):
    """Minimum microseconds of both, NumPy's over ours, and NumPy's two figures against each other."""
    with numpy.errstate(all="ignore"):
        count = max(1, round(SAMPLE_S / max(_seconds(theirs, 1), 1e-7)))
        functions = (ours, theirs, theirs)
        enabled = gc.isenabled()
        gc.disable()
        try:
            warm_up = sum(_seconds(function, count) for function in functions)
            rounds = max(MIN_ROUNDS, min(rounds, int(CASE_S / warm_up)))
            shortest = [float("inf")] * len(functions)
            for _ in range(rounds):
                for number, function in enumerate(functions):
                    if threaded:
                        _wait_until_idle()
                        _warm_up(function)
                    shortest[number] = min(shortest[number], _seconds(function, count))
        finally:
            if enabled:
                gc.enable()
    own, first, second = (seconds / count * 1e6 for seconds in shortest)
    return own, first, first / own, first / second


def _wait_until_idle():
    """Waits until no thread of this process runs, or for a second."""
    for _ in range(MAX_POLLS):
        began = time.process_time()
        time.sleep(POLL_S)
        if time.process_time() - began < IDLE * POLL_S:
            break


def _warm_up(function):
    until = time.perf_counter() + WARM_S
    function()
    while time.perf_counter() < until:
        function()


def _seconds(function, count):
    times = itertools.repeat(None, count)
    began = time.perf_counter()
    for _ in times:
        function()
    return time.perf_counter() - began


def spread(cells):
    """NumPy's noise: the distance from 1 that nine of ten of its own ratios stay within."""
    away = sorted(abs(1 - cell.itself) for cell in cells)
    return away[int(len(away) * 0.9)] if away else 0.0


# ---- cases
def overhead():
    """Calls on eight floats, where the overhead of a call is everything."""
    for dtype in ("float32", "float64"):
        a, b = numpy.arange(8, dtype=dtype), numpy.ones(8, dtype=dtype)
        for name, function in (
            ("a + b", lambda module, a, b: a + b),
            ("a * 2.0", lambda module, a, b: a * 2.0),
            ("a < b", lambda module, a, b: a < b),
            ("np.add(a, b)", lambda module, a, b: module.add(a, b)),
            ("a += b", _in_place),
            ("a[2:5]", lambda module, a, b: a[2:5]),
            ("a.sum()", lambda module, a, b: a.sum()),
            ("np.exp(a)", lambda module, a, b: module.exp(b)),
        ):
            yield f"{name} {dtype}", "8", function, (a.copy(), b)


def _in_place(module, a, b):
    a += b


def _operands(layout, n, dtypes, domain):
    return tuple(_operand(layout, number, n, dtype, domain) for number, dtype in enumerate(dtypes))


@functools.lru_cache(maxsize=4)
def _operand(*arguments):
    return op_cases.operand(*arguments)


def elementwise(n, layouts, every=1):
    """The operators of op_cases.MEASURED, every `every`-th of them, on `n` elements."""
    for name, dtypes in op_cases.MEASURED[::every]:
        domain = (op_cases.UNARY if len(dtypes) == 1 else op_cases.BINARY)[name]
        for layout in layouts:
            if len(dtypes) == 1 and layout in ("broadcast", "scalar"):
                continue
            yield (
                f"{name} {', '.join(dict.fromkeys(dtypes))}",
                f"{n:.0e} {layout}".replace("e+0", "e"),
                lambda module, *inputs, name=name: getattr(module, name)(*inputs),
                functools.partial(_operands, layout, n, dtypes, domain),
            )


def reductions(n, every=1):
    for name, dtypes in list(op_cases.REDUCED.items())[::every]:
        for dtype in dtypes:
            for layout, axis in (("contiguous", None), ("strided", None), ("broadcast", 0), ("broadcast", 1)):
                column = {None: layout, 0: "axis 0 of rows of 100", 1: "axis 1 of rows of 100"}[axis]
                yield (
                    f"{name} {dtype}",
                    f"{n:.0e} {column}".replace("e+0", "e"),
                    lambda module, a, name=name, axis=axis: getattr(module, name)(a, axis=axis),
                    functools.partial(_operands, layout, n, (dtype,), op_cases.REDUCED_DOMAIN[name]),
                )


def casts(n, every=1):
    for source, target in op_cases.CASTS[::every]:
        for layout in ("contiguous", "strided"):
            yield (
                f"{source} to {target}",
                f"{n:.0e} {layout}".replace("e+0", "e"),
                lambda module, a, target=target: a.astype(target),
                functools.partial(_operands, layout, n, (source,), "small"),
            )


def movement(side):
    """Copies of non-contiguous data; the columns say which promise a case belongs to."""
    for dtype in ("uint8", "float32", "float64"):
        square = numpy.ones((side, side), dtype)
        yield f"transposed {side} x {side}, {dtype}", "transposed", lambda module, a: a.T.copy(), (square,)
    a = numpy.arange(side * side, dtype="float32").reshape(side, side)
    image = numpy.arange(32 * 64 * 64, dtype="float32").reshape(32, 64, 64)
    places = numpy.random.default_rng(1).permutation(side)
    yield (
        "transposed image, channels last",
        "other",
        lambda module, a: module.ascontiguousarray(a.transpose(1, 2, 0)),
        (image,),
    )
    yield "every other column", "other", lambda module, a: a[:, ::2].copy(), (a,)
    yield "columns backwards", "other", lambda module, a: a[:, ::-1].copy(), (a,)
    yield "concatenate of two transposed", "other", lambda module, a: module.concatenate([a.T, a.T], axis=0), (a,)
    yield "concatenate along columns", "other", lambda module, a: module.concatenate([a, a], axis=1), (a,)
    yield "pad by 1, images", "other", lambda module, a: module.pad(a, ((0, 0), (1, 1), (1, 1))), (image,)
    yield (
        "pad reflect by 3, images",
        "other",
        lambda module, a: module.pad(a, ((0, 0), (3, 3), (3, 3)), mode="reflect"),
        (image,),
    )
    yield "roll by 5", "other", lambda module, a: module.roll(a, 5, axis=1), (a,)
    yield "gather rows", "other", lambda module, a, places: a[places], (a, places)
    yield "gather columns", "other", lambda module, a, places: a[:, places], (a, places)
    yield "gather elements", "other", lambda module, a, rows, places: a[rows, places], (a, places[::-1].copy(), places)
    yield "boolean mask", "other", lambda module, a, mask: a[mask], (a, a % 3 == 0)


def chains(n):
    """Expressions of several operators, whose intermediate results need not be materialized."""
    a, b = numpy.random.default_rng(1).uniform(0.1, 2, (2, n))
    table = a.reshape(-1, 100)
    for text, function, arguments in (
        ("-(a * b)", lambda module, a, b: -(a * b), (a, b)),
        ("a * b + 1", lambda module, a, b: a * b + 1, (a, b)),
        ("1 - a * b", lambda module, a, b: 1 - a * b, (a, b)),
        ("a + b * b", lambda module, a, b: a + b * b, (a, b)),
        ("(a - b) * (a + b) / (a * a + 1)", lambda module, a, b: (a - b) * (a + b) / (a * a + 1), (a, b)),
        ("np.sqrt((a - b) ** 2 + 1)", lambda module, a, b: module.sqrt((a - b) ** 2 + 1), (a, b)),
        ("1 / (1 + np.exp(-a))", lambda module, a, b: 1 / (1 + module.exp(-a)), (a, b)),
        ("(x - x.mean(0)) / x.std(0)", lambda module, x: (x - x.mean(0)) / x.std(0), (table,)),
        ("polynomial of degree 4", lambda module, a, b: (((a + 2) * a + 3) * a + 4) * a + 5, (a, b)),
    ):
        yield text, f"{n:.0e}".replace("e+0", "e"), function, arguments


def products(largest):
    """Matrix products, float32: square ones up to `largest`, and narrow ones."""
    shapes = [(size, size, size) for size in (64, 128, 256, 512, 1024, 2048) if size <= largest]
    shapes += [
        (1, largest, largest),
        (largest, largest, 1),
        (8, largest, largest),
        (largest, 64, largest),
        (64, largest, 64),
        (largest, largest, 16),
    ]
    random = numpy.random.default_rng(1)
    for m, k, n in shapes:
        yield (
            f"({m}, {k}) @ ({k}, {n})",
            "",
            lambda module, a, b: a @ b,
            (random.random((m, k), dtype="float32"), random.random((k, n), dtype="float32")),
        )


# Why an expression of the surface takes more than twice NumPy's time; the bench reports those without an entry. NumPy's
# is one loop in C in each of these; calls of a few microseconds are on a thousand elements.
WHY_SLOWER = {
    "np.add.reduceat(v, i[:50])": "a call of the reduction for each part",
    "np.vecdot(big, big)": "products first, then sums along rows of 10",
    "np.broadcast_to(v, (2, v.size)).sum()": "sums along rows of 2",
    "np.ravel_multi_index((k[:, 0], k[:, 1]), (40, 40))": "Python over a few operators, where NumPy is one call into C",
    "np.argpartition(v, 500)": "places share a word with their keys, which are made and taken apart again",
    "np.vdot(v, w)": "one thread, where NumPy's OpenBLAS takes two",
    "np.unique(v)": "a sort, where NumPy counts in a hash table",
    "np.histogram(v, xs[::20])": "sorts, and sorting is slower where there is one thread",
    "np.histogram(v, 50)": "a search for each element, where NumPy computes its bin",
}
