"""Empty and light calls per second."""

from bench import contenders
from bench.contenders import PROCESSES, THREADS
from bench.functions import digits, empty
from bench.measure import Result, interleaved, per_second
from tasks.cases import cases

CHUNKS = (1, 64, 1024)  # what a careful user would try; the best one counts


def _submitted(submit, value, count):
    return per_second(lambda: [future.result() for future in [submit(value) for _ in range(count)]], count)


def _mapped(mapper, values):
    return per_second(lambda: sum(1 for _ in mapper(values)), len(values))


def _best_map(pool, function, values):
    return max(_mapped(lambda items, size=size: pool.map(function, items, chunksize=size), values) for size in CHUNKS)


def _empty_calls(rounds, count):
    with contenders.host() as host, contenders.executors(2) as pools:
        task = host.load(contenders.empty_bundle())
        task(1)
        values = list(range(count))
        submits = {"task.submit": lambda: _submitted(task.submit, 1, count)}
        maps = {"task.map": lambda: _mapped(task.map, values)}
        for name, pool in pools.items():
            few = count if name == THREADS else count // 5
            submits[name] = lambda pool=pool, few=few: _submitted(lambda v: pool.submit(empty, v), 1, few)
            maps[name] = lambda pool=pool: _best_map(pool, empty, values)
        submitted, mapped = (
            interleaved(submits, rounds, "calls/s", "more"),
            interleaved(maps, rounds, "calls/s", "more"),
        )
    return [
        Result(
            f"{count:,} empty calls submitted, then collected",
            submitted,
            promises=(("100,000/s", submitted["task.submit"].median >= 100_000),),
        ),
        Result(
            f"{count:,} empty calls mapped (peers: best chunk size of {CHUNKS})",
            mapped,
            promises=(("400,000/s", mapped["task.map"].median >= 400_000),),
        ),
    ]


def _light_calls(rounds, count):
    values = [value for value, _ in cases("digits")][:100] * (count // 100)
    with contenders.host(max_vms=2) as host, contenders.executors(2) as pools:
        task = host.load(contenders.bundle("digits"))
        list(task.map(values[:200]))
        measures = {"task.map": lambda: _mapped(task.map, values)}
        for name, pool in pools.items():
            measures[name] = lambda pool=pool: _best_map(pool, digits, values)
        one_by_one = {
            "task.submit": lambda: per_second(
                lambda: [f.result() for f in [task.submit(v) for v in values]], len(values)
            )
        }
        for name, pool in pools.items():
            one_by_one[name] = lambda pool=pool: per_second(
                lambda: [f.result() for f in [pool.submit(digits, v) for v in values]], len(values)
            )
        mapped = interleaved(measures, rounds, "calls/s", "more")
        submitted = interleaved(one_by_one, rounds, "calls/s", "more")
    ours, mapping = submitted["task.submit"], mapped["task.map"]
    return [
        Result(
            "light task (digits), two VMs, submitted one by one",
            submitted,
            promises=(
                (
                    f"{ours.advantage_over(submitted[PROCESSES]):.1f}x the process pool (reach 3x)",
                    ours.advantage_over(submitted[PROCESSES]) >= 3,
                ),
                (
                    f"{ours.advantage_over(submitted[THREADS]):.2f}x threads (reach 1.7x)",
                    ours.advantage_over(submitted[THREADS]) >= 1.7,
                ),
            ),
        ),
        Result(
            f"light task (digits), two VMs, mapped (peers: best chunk size of {CHUNKS})",
            mapped,
            promises=(
                (
                    f"{mapping.advantage_over(mapped[THREADS]):.2f}x threads (reach 1.7x)",
                    mapping.advantage_over(mapped[THREADS]) >= 1.7,
                ),
            ),
        ),
    ]


def run(quick):
    rounds, count = (2, 2000) if quick else (7, 10_000)
    return _empty_calls(rounds, count) + _light_calls(4 if quick else 15, 1000 if quick else 2000)
