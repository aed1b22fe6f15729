"""Round trip of an empty call: task(x) and submit(x).result(), one core and two, idle and busy machine.

A round's value is the median of its calls. The promised time is read from the best round, as other load only adds to
it; ratios are medians over the rounds.

Where the kernel leaves the threads of a caller and a VM decides how long a call takes, so the regimes of `_held` hold
them by affinity. A round there is a quarter of a second."""

import contextlib
import multiprocessing
import os
import statistics
import threading
import time
from pathlib import Path

from bench import contenders
from bench.contenders import INTERPRETERS, PROCESSES, THREADS
from bench.functions import empty
from bench.measure import Figure, Result, interleaved, per_call_us

WINDOW_S = 0.25


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
        yield process
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


def _threads():
    return set(map(int, os.listdir("/proc/self/task")))


@contextlib.contextmanager
def _on(core):
    """A process that keeps this core busy; None: no process."""
    if core is None:
        yield
        return
    with _busy() as process:
        os.sched_setaffinity(process.pid, {core})
        yield


class _Window:
    """Calls for WINDOW_S. `median()` makes them; `times` are those of all windows, in microseconds."""

    def __init__(self, call):
        self.call, self.times = call, []

    def median(self):
        clock, times = time.perf_counter_ns, []
        end = clock() + int(WINDOW_S * 1e9)
        while (began := clock()) < end:
            self.call()
            times.append((clock() - began) / 1000)
        self.times += times
        return statistics.median(times)


def _held(name, rounds, reach_us, reach_p99_us, *, caller, worker, busy=None):
    """task(x) and a thread pool's call, the calling thread held to the cores `caller`, the other to `worker`."""
    everywhere, me = os.sched_getaffinity(0), threading.get_native_id()
    before = _threads()
    with contenders.host() as host, contenders.executors(1, (THREADS,)) as pools, _on(busy):
        task = host.load(contenders.empty_bundle())
        task(1)
        pools[THREADS].submit(empty, 1).result()
        windows = {
            "task(x)": _Window(lambda: task(1)),
            THREADS: _Window(lambda: pools[THREADS].submit(empty, 1).result()),
        }
        try:
            for thread in _threads() - before:
                os.sched_setaffinity(thread, worker)
            os.sched_setaffinity(me, caller)
            figures = interleaved({name: window.median for name, window in windows.items()}, rounds, "us", "less")
        finally:
            os.sched_setaffinity(me, everywhere)
    ours, times = figures["task(x)"], sorted(windows["task(x)"].times)
    p99 = times[int(len(times) * 0.99)]
    promises = [
        (
            f"task(x) {ours.median:.2f} us, worst window {max(ours.values):.2f} us (reach {reach_us} us)",
            ours.median < reach_us,
        )
    ]
    if reach_p99_us is not None:
        promises.append((f"99 % of calls within {p99:.1f} us (reach {reach_p99_us} us)", p99 < reach_p99_us))
    return Result(f"round trip of an empty call, {name}", figures, promises=tuple(promises))


def _spinning(rates):
    """The processor time that a host's threads spend at few calls a second, more than the calls themselves take: what
    spins cost. Caller and VM are held to different cores, where a spin is longest."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    everywhere, me, before = os.sched_getaffinity(0), threading.get_native_id(), _threads()
    figures, promises = {}, []
    with contenders.host() as host:
        task = host.load(contenders.empty_bundle())
        task(1)
        vm = _threads() - before
        try:
            for thread in vm:
                os.sched_setaffinity(thread, {second})
            os.sched_setaffinity(me, {first})
            for rate in rates:
                count, began = max(3, rate * 2), time.perf_counter()
                spent = _cpu_s(vm)
                for number in range(count):
                    task(1)
                    time.sleep(max(0.0, began + (number + 1) / rate - time.perf_counter()))
                share = (_cpu_s(vm) - spent) / (time.perf_counter() - began) * 100
                name = f"{rate} calls/s"
                figures[name] = Figure((share,), "% of a core", "less")
                promises.append((f"{name}: {share:.1f} % of a core (reach 12 %, calls included)", share < 12))
        finally:
            os.sched_setaffinity(me, everywhere)
    return Result("processor time of a VM's thread that is called now and then", figures, promises=tuple(promises))


def _cpu_s(threads):
    """The processor time of these threads so far, in seconds."""
    total = 0
    for thread in threads:
        total += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    return total / 1e9


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
        promises=(("under 0.2 ms per second", figures["idle host, one VM"].median < 0.2),),
    )


def run(quick):
    rounds, count = (3, 300) if quick else (9, 2000)
    results = []
    with contenders.one_core():
        results.append(_regime("one core", rounds, count))
    results.append(_regime("two cores, idle machine", rounds, count))
    with _busy():
        results.append(_regime("two cores, one of them busy", rounds, count))
    windows = 3 if quick else 16
    cores = sorted(os.sched_getaffinity(0))
    one, two, both = {cores[0]}, set(cores[1:2]), set(cores[:2])
    results.append(_held("both on one core", windows, 4.5, None, caller=one, worker=one))
    if two:
        results.append(_held("each held to a core of its own", windows, 2, 20, caller=one, worker=two))
        results.append(_held("of two cores one busy", windows, 6, None, caller=both, worker=both, busy=cores[1]))
        results.append(_held("the VM's core busy", windows, 6, None, caller=one, worker=two, busy=cores[1]))
        results.append(_spinning((1, 100, 1000)))
    return [*results, _idle_cpu()]
