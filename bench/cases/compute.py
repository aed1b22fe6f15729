"""CPU-bound tasks, middle and heavy: two VMs on two cores against one VM and against the pools."""

from bench import contenders
from bench.contenders import PROCESSES
from bench import functions
from bench.measure import Result, interleaved, per_second
from tasks.cases import cases


def _task(name, values, rounds):
    function = getattr(functions, name)
    with contenders.host() as host, contenders.executors(2) as pools:
        task = host.load(contenders.bundle(name))
        list(task.map(values[:4]))
        count = len(values)
        ways = {
            "two VMs": lambda: per_second(lambda: [f.result() for f in [task.submit(v) for v in values]], count),
            "one VM": lambda: per_second(lambda: [task(v) for v in values], count),
        }
        for pool_name, pool in pools.items():
            list(pool.map(function, values[:4]))
            ways[pool_name] = lambda pool=pool: per_second(lambda: list(pool.map(function, values)), count)
        figures = interleaved(ways, rounds, "calls/s", "more")
    two = figures["two VMs"]
    return Result(f"{name}, CPU-bound", figures, promises=(
        (f"{two.advantage_over(figures['one VM']):.2f}x one VM (reach 1.9x)", two.advantage_over(figures["one VM"]) >= 1.9),
        (f"{two.advantage_over(figures[PROCESSES]):.2f}x the process pool (not slower)",
         two.advantage_over(figures[PROCESSES]) >= 1)))


def run(quick):
    middle = [value for value, _ in cases("neighbours")][:10 if quick else 40]
    heavy = [value for value, _ in cases("forest")][:2 if quick else 4]
    heavy = (heavy * 4)[:2 if quick else 4]
    return [_task("neighbours", middle, 2 if quick else 5), _task("forest", heavy, 1 if quick else 3)]
