"""Round trip of an empty call: task(x) and submit(x).result(), one core and two, idle and busy machine.

A round's value is the median of its calls. The promised time is read from the best round, as other load only adds to
it; ratios are medians over the rounds."""

import contextlib
import multiprocessing
import time

from bench import contenders
from bench.contenders import INTERPRETERS, PROCESSES, THREADS
from bench.functions import empty
from bench.measure import Result, interleaved, per_call_us


def _burn(stop):
    while not stop.is_set():
        for _ in range(10000):
            pass


@contextlib.contextmanager
def _busy():
    """Another process that keeps one core busy."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_burn, args=(stop,))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


def _regime(name, rounds, count):
    with contenders.host() as host, contenders.executors(1) as pools:
        task = host.load(contenders.empty_bundle())
        task(1)
        measures = {
            "task(x)": lambda: per_call_us(lambda: task(1), count),
            "submit(x).result()": lambda: per_call_us(lambda: task.submit(1).result(), count),
        }
        for pool_name, pool in pools.items():
            measures[pool_name] = lambda pool=pool: per_call_us(lambda: pool.submit(empty, 1).result(), count)
        figures = interleaved(measures, rounds, "us", "less")
    call, submit = figures["task(x)"], figures["submit(x).result()"]
    return Result(
        f"round trip of an empty call, {name}",
        figures,
        promises=(
            (
                f"task(x) {call.best:.1f} us in the best round (reach 8 us); median of rounds {call.median:.1f} us",
                call.best < 8,
            ),
            (
                f"submit {submit.advantage_over(figures[INTERPRETERS]):.1f}x the interpreter pool (reach 3x)",
                submit.advantage_over(figures[INTERPRETERS]) >= 3,
            ),
            (
                f"submit {submit.advantage_over(figures[PROCESSES]):.1f}x the process pool (reach 8x)",
                submit.advantage_over(figures[PROCESSES]) >= 8,
            ),
            (
                f"submit {submit.advantage_over(figures[THREADS]):.2f}x threads (no slower)",
                submit.advantage_over(figures[THREADS]) >= 1,
            ),
        ),
    )


def _idle_cpu():
    """CPU time that a host with an idle VM uses: milliseconds per second."""
    with contenders.host() as host:
        host.load(contenders.empty_bundle())(1)

        def burnt():
            before, began = time.process_time(), time.perf_counter()
            time.sleep(1.0)
            return (time.process_time() - before) / (time.perf_counter() - began) * 1000

        figures = interleaved({"idle host, one VM": burnt}, 2, "ms/s", "less")
    return Result(
        "CPU that an idle host burns",
        figures,
        promises=(("under 1 ms per second", figures["idle host, one VM"].median < 1),),
    )


def run(quick):
    rounds, count = (3, 300) if quick else (9, 2000)
    results = []
    with contenders.one_core():
        results.append(_regime("one core", rounds, count))
    results.append(_regime("two cores, idle machine", rounds, count))
    with _busy():
        results.append(_regime("two cores, one of them busy", rounds, count))
    return [*results, _idle_cpu()]
