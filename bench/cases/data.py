"""Large data in and out: bytes are copied, arrays are not.

A figure is the median of some calls in a row: the first one after a contender that moved 64 MB finds every cache cold.
"""

import numpy

from bench import contenders
from bench.contenders import INTERPRETERS, PROCESSES
from bench.functions import empty
from bench.measure import Result, interleaved, per_call_us

CALLS = 5
SIZES = {"64 B": 64, "1 MB": 1_000_000, "64 MB": 64_000_000}


def run(quick):
    rounds = 3 if quick else 9
    results = []
    with contenders.host() as host, contenders.executors(1, (INTERPRETERS, PROCESSES)) as pools:
        task = host.load(contenders.empty_bundle())
        task(1)
        medians = {}
        for title, size in SIZES.items():
            if quick and size > 1_000_000:
                continue
            data, array = bytes(size), numpy.zeros(size, dtype=numpy.uint8)
            ways = {"task, array": lambda array=array: per_call_us(lambda: task(array), CALLS),
                    "task, bytes": lambda data=data: per_call_us(lambda: task(data), CALLS)}
            # NumPy does not load in the interpreter pool, so bytes are what can be sent there
            for name, value in ((f"{PROCESSES}, array", array), (f"{INTERPRETERS}, bytes", data)):
                pool = pools[name.split(",")[0]]
                ways[name] = lambda pool=pool, value=value: per_call_us(lambda: pool.submit(empty, value).result(), CALLS)
            figures = interleaved(ways, rounds, "us", "less")
            medians[title] = figures["task, array"]
            promises = ()
            if title != "64 B":
                small = medians["64 B"]
                promises = ((f"array: {medians[title].median / small.median:.2f}x the time of 64 B (independent of size)",
                             medians[title].median < 2 * small.median),)
            results.append(Result(f"{title} in and out", figures, promises=promises))
    return results
