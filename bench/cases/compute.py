"""CPU-bound tasks, medium and heavy: two VMs on two cores against one VM and against pools.

The gain of a second core depends on the machine: other tenants slow one or both cores for a while. So rounds are short
and many, one and two plain processes run the same function without any framework in each, and a promise is read from
the best round of each contender; the median over the rounds is shown beside it."""

import vmhost.engine.library
from bench import contenders, functions
from bench.contenders import PROCESSES
from bench.measure import Result, interleaved, per_second
from tasks.cases import cases

_TITLES = {
    "neighbours": "neighbours, under 1 ms",
    "grove": "forest of 12 trees, middle",
    "forest": "forest of 240 trees, heavy",
}


def _task(name, values, rounds):
    """`values` are the input of one worker in a round; two workers get all of them twice."""
    function, twice = getattr(functions, name), [*values, *values]
    with (
        contenders.host(max_vms=2) as two_vms,
        contenders.host(max_vms=1) as one_vm,
        contenders.executors(2, in_processes=functions.use_one_engine_thread) as pools,
        contenders.plain_processes(function, 2, functions.use_one_engine_thread) as plain,
    ):
        bundle = contenders.bundle("forest" if name == "grove" else name)
        by_two, by_one = two_vms.load(bundle), one_vm.load(bundle)
        list(by_two.map(twice))  # now two VMs exist
        measures = {
            "two VMs": lambda: per_second(lambda: list(by_two.map(twice)), len(twice)),
            "one VM": lambda: per_second(lambda: list(by_one.map(values)), len(values)),
            "two plain processes": lambda: per_second(lambda: plain(values, 2), len(twice)),
            "one plain process": lambda: per_second(lambda: plain(values, 1), len(values)),
        }
        for pool_name, pool in pools.items():
            measures[pool_name] = lambda pool=pool: per_second(lambda: list(pool.map(function, twice)), len(twice))
        figures = interleaved(measures, rounds, "calls/s", "more")
    two, one = figures["two VMs"], figures["one VM"]
    plain_two, plain_one, pool = figures["two plain processes"], figures["one plain process"], figures[PROCESSES]
    return Result(
        f"{_TITLES[name]}, CPU-bound",
        figures,
        promises=(
            (
                f"{two.best / one.best:.2f}x one VM (reach 1.9x); median of rounds {two.advantage_over(one):.2f}x",
                two.best >= 1.9 * one.best,
            ),
            (
                (
                    f"{two.best / pool.best:.2f}x the process pool (not slower, within 2 %); median of rounds"
                    f" {two.advantage_over(pool):.2f}x"
                ),
                two.best >= 0.98 * pool.best,
            ),
        ),
        note=(
            f"two plain processes do {plain_two.best / plain_one.best:.2f}x one (median of rounds "
            f"{plain_two.advantage_over(plain_one):.2f}x): what two cores give here; two VMs do "
            f"{two.best / plain_two.best:.2f}x their work (median of rounds {two.advantage_over(plain_two):.2f}x)"
        ),
    )


def run(quick):
    threads = vmhost.engine.library.threads()
    functions.use_one_engine_thread()  # otherwise one VM may use both cores, and two cannot be twice as fast
    try:
        images = [value for value, _ in cases("neighbours")][: 50 if quick else 100]
        patients = cases("forest")[0][0]
        return [
            _task("neighbours", images, 4 if quick else 40),
            _task("grove", [{**patients, "trees": 12}] * 2, 4 if quick else 20),
            _task("forest", [patients], 2 if quick else 7),
        ]
    finally:
        vmhost.engine.library.set_threads(threads)
